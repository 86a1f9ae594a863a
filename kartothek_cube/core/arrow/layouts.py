"""Layouts of arrays that files do not have (views, runs) as the layouts that they have."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

__all__ = ("convert_layout", "convert_layouts", "has_foreign_layout")


@lru_cache(maxsize=1024)
def has_foreign_layout(t: pa.DataType) -> bool:
    """
    Whether arrays of a type contain views or run-end encoded values, at any depth.

    Arrow (26) casts list views as if their offsets were those of lists, which gives other values or ends the
    process; it does not cast run-end encoded values, nor decode dictionaries of string views.

    Parameters
    ----------
    t
        Any Arrow type.

    Returns
    -------
    bool

    Examples
    --------
    >>> has_foreign_layout(pa.list_(pa.list_view(pa.int64()))), has_foreign_layout(pa.list_(pa.int64()))
    (True, False)
    """
    if _is_list_view(t) or _is_text_view(t) or pat.is_run_end_encoded(t):
        return True
    if isinstance(t, pa.BaseExtensionType):
        return has_foreign_layout(t.storage_type)
    if pat.is_dictionary(t):
        return has_foreign_layout(t.value_type)
    return any(has_foreign_layout(t.field(number).type) for number in range(t.num_fields))


def convert_layout(array: pa.Array) -> pa.Array:
    """
    The same values, with lists and texts instead of views, and repeated values instead of runs.

    Parameters
    ----------
    array
        Values of a type for which :func:`has_foreign_layout` is true; slices are fine.

    Returns
    -------
    pyarrow.Array

    Raises
    ------
    pyarrow.ArrowNotImplementedError
        Views or runs are in a type that can't be taken apart, such as a union.

    Examples
    --------
    >>> convert_layout(pa.ListViewArray.from_arrays([2, 0], [1, 2], [3, 5, 8])).to_pylist()
    [[8], [3, 5]]
    """
    t = array.type
    if not has_foreign_layout(t):
        return array
    if isinstance(t, pa.BaseExtensionType):
        return convert_layout(array.storage)
    if _is_text_view(t):
        return array.cast(pa.large_string() if pat.is_string_view(t) else pa.large_binary())
    if pat.is_run_end_encoded(t):
        return _decoded_runs(array)
    if pat.is_dictionary(t):
        return convert_layout(array.dictionary).take(array.indices)
    if pat.is_struct(t):
        return _converted_struct(array)
    if pat.is_map(t):
        return _converted_map(array)
    if pat.is_fixed_size_list(t):
        return _converted_fixed_size_list(array)
    if _is_list_view(t) or pat.is_list(t) or pat.is_large_list(t):
        return _converted_list(array)
    raise pa.ArrowNotImplementedError(f"views and runs within {t} are not supported")


def convert_layouts(table: pa.Table) -> pa.Table:
    """
    A table whose columns can be filtered and compared, whatever their layouts are.

    Parameters
    ----------
    table
        For example as read from a file that another program wrote.

    Returns
    -------
    pyarrow.Table
        ``table`` itself if nothing has to change.
    """
    for position, field in enumerate(table.schema):
        if has_foreign_layout(field.type):
            chunks = table.column(position).chunks or [pa.array([], field.type)]
            column = pa.chunked_array([convert_layout(chunk) for chunk in chunks])
            table = table.set_column(position, field.with_type(column.type), column)
    return table


def _is_list_view(t: pa.DataType) -> bool:
    return bool(pat.is_list_view(t) or pat.is_large_list_view(t))


def _is_text_view(t: pa.DataType) -> bool:
    return bool(pat.is_string_view(t) or pat.is_binary_view(t))


def _decoded_runs(array: pa.Array) -> pa.Array:
    """Each value as often as its run says; by positions, as Arrow decodes runs of few types only."""
    ends = array.run_ends.to_numpy()
    rows = np.arange(array.offset, array.offset + len(array))
    return convert_layout(array.values).take(pa.array(np.searchsorted(ends, rows, side="right")))


def _converted_struct(array: pa.Array) -> pa.Array:
    # flattened children are null where the struct is, and cut like it
    children = [convert_layout(child) for child in array.flatten()]
    fields = [pa.field(f.name, c.type) for f, c in zip(array.type, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


def _converted_list(array: pa.Array) -> pa.Array:
    # flattening leaves out what nulls hide, and puts the elements of views in the order of the rows
    elements = convert_layout(array.flatten())
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.LargeListArray.from_arrays(pa.array(_offsets(lengths)), elements, mask=array.is_null())


def _converted_fixed_size_list(array: pa.Array) -> pa.Array:
    # nulls have elements, too; flattening leaves them out, but not if these are dictionaries of list views
    nulls, size = array.is_null(), array.type.list_size
    valid = np.repeat(~nulls.to_numpy(zero_copy_only=False), size)
    elements = convert_layout(array.values[array.offset * size : (array.offset + len(array)) * size])
    offsets = _offsets(np.where(nulls.to_numpy(zero_copy_only=False), 0, size))
    return pa.LargeListArray.from_arrays(pa.array(offsets), elements.filter(pa.array(valid)), mask=nulls)


def _converted_map(array: pa.Array) -> pa.Array:
    # maps cannot be flattened; of a slice, the offsets are cut, but not the keys and items
    nulls, bounds = array.is_null(), array.offsets.to_numpy()
    lengths = np.where(nulls.to_numpy(zero_copy_only=False), 0, np.diff(bounds))
    offsets = _offsets(lengths)
    entries = pa.array(np.repeat(bounds[:-1] - offsets[:-1], lengths) + np.arange(offsets[-1]))
    keys, items = (convert_layout(child).take(entries) for child in (array.keys, array.items))
    return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), keys, items, mask=nulls)


def _offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
