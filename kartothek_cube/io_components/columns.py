"""Values of columns: take, repeat, expand ranges, join chunks into one array, dictionary-encode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow import Ints, replace_columns

Column: TypeAlias = pa.Array | pa.ChunkedArray


def as_chunked(column: Column) -> pa.ChunkedArray:
    """The column as a chunked array."""
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def expand_ranges(start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """All positions in half-open ranges, one range after the other; and for each the number of its range."""
    lengths = stop - start
    range_numbers = np.repeat(np.arange(len(start)), lengths)
    offsets = np.cumsum(lengths) - lengths
    return np.arange(len(range_numbers)) - offsets[range_numbers] + start[range_numbers], range_numbers


def take_values(column: Column, positions: Ints, *, missing: bool) -> pa.Array:
    """Values at the given positions; null at -1, which only ``missing`` allows."""
    values = to_single_array(column)
    if missing:
        return values.take(pa.array(positions, mask=positions < 0))
    bits = _bits(values)
    if bits is None:
        return values.take(pa.array(positions))
    # "clip" avoids the copy that NumPy makes to check bounds; all positions are valid
    taken = np.take(bits, positions, out=allocate_array(len(positions), bits.dtype), mode="clip")
    return _from_bits(taken, values.type)


def take_columns(columns: list[pa.ChunkedArray], positions: Ints) -> list[pa.Array]:
    """Values of columns at the given positions; each entry of ``columns`` is released when it is taken."""
    # a result as large as memory allows is sorted column by column: both copies of all would not fit
    taken = []
    for number in range(len(columns)):
        column, columns[number] = columns[number], None
        taken.append(take_values(column, positions, missing=False))
    return taken


def repeat(column: Column, times: Ints) -> pa.Array:
    """Each value repeated as often as its entry in ``times`` says."""
    values = to_single_array(column)
    bits = _bits(values)
    if bits is None:
        return values.take(pa.array(np.repeat(np.arange(len(values)), times)))
    if len(times) and bool((times == times[0]).all()):  # a broadcast assignment is faster than np.repeat
        repeated = allocate_array(len(bits) * int(times[0]), bits.dtype)
        repeated.reshape(len(bits), -1)[:] = bits[:, np.newaxis]
    else:
        repeated = np.repeat(bits, times)
    return _from_bits(repeated, values.type)


def _bits(values: pa.Array) -> npt.NDArray[Any] | None:
    """Values as unsigned integers of their width; None if there are nulls, or values have no fixed width."""
    if values.null_count or not _has_fixed_width(values.type):
        return None
    width = values.type.bit_width // 8
    return np.frombuffer(values.buffers()[1], f"u{width}", len(values), values.offset * width)


def _from_bits(bits: npt.NDArray[Any], dtype: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(dtype, len(bits), [None, pa.py_buffer(bits)])


def to_single_array(column: Column) -> pa.Array:
    """The values of a column as one array, without a copy if its chunks are adjacent in memory."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        return pa.array([], type=column.type)
    whole = _join_adjacent(column)
    return pa.concat_arrays(column.chunks) if whole is None else whole


def _join_adjacent(column: pa.ChunkedArray) -> pa.Array | None:
    """The chunks as one array over their common buffer; None if they are not adjacent in one."""
    if not _has_fixed_width(column.type) or column.null_count:
        return None
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    buffer = chunks[0].buffers()[1] if chunks else None
    if buffer is None or buffer.size * 8 < len(column) * column.type.bit_width:
        return None
    position = start = chunks[0].offset
    for chunk in chunks:
        if chunk.offset != position or chunk.buffers()[1].address != buffer.address:
            return None
        position += len(chunk)
    return pa.Array.from_buffers(column.type, len(column), [None, buffer], 0, start)


def _has_fixed_width(dtype: pa.DataType) -> bool:
    """Whether values of a type take the same number of whole bytes, at most eight."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_temporal)
    return any(is_kind(dtype) for is_kind in kinds) and bool(dtype.bit_width <= 64)


def allocate_array(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An uninitialised array in the memory pool of Arrow."""
    # NumPy returns large arrays to the system, which clears every page again for the next one;
    # Arrow's pool keeps them for the next block of rows
    dtype = np.dtype(dtype)
    return np.frombuffer(pa.allocate_buffer(length * dtype.itemsize), dtype, length)


def categorize(
    table: pa.Table,
    columns: Sequence[str],
    lengths: Sequence[int],
    dictionaries: Mapping[str, pa.Array] | None = None,
) -> pa.Table:
    """Encode columns of the rows of several files with one dictionary each, unless a dictionary is given.

    A dictionary holds the values of the longest file in the order of their first appearance, then the
    others sorted, as in kartothek.

    >>> table = pa.table({"CITY": ["Kiel", "Ulm", "Bonn", "Ulm"]})
    >>> categorize(table, ["CITY"], [1, 3]).column("CITY").chunk(0).dictionary.to_pylist()
    ['Ulm', 'Bonn', 'Kiel']
    """
    positions = {name: position for position, name in enumerate(table.column_names)}
    encoded = {
        positions[column]: _encode_column(table.column(column), lengths, (dictionaries or {}).get(column))
        for column in columns
    }
    return replace_columns(table, encoded)


def _encode_column(
    values: pa.ChunkedArray, lengths: Sequence[int], categories: pa.Array | None
) -> pa.ChunkedArray:
    if categories is not None:
        values = values.cast(categories.type)
    elif pa.types.is_null(values.type):
        values = values.cast(pa.string())
    if categories is None:
        categories = _collect_categories(values, lengths)
    codes = pc.index_in(values, value_set=categories)
    # without rows, one empty chunk keeps the categories
    code_chunks = codes.chunks or [pa.array([], pa.int32())]
    chunks = [pa.DictionaryArray.from_arrays(chunk, categories) for chunk in code_chunks]
    return pa.chunked_array(chunks, type=pa.dictionary(pa.int32(), values.type))


def _collect_categories(values: pa.ChunkedArray, lengths: Sequence[int]) -> pa.Array:
    distinct = values.unique().drop_null()
    if len(lengths) < 2:
        return distinct
    longest = int(np.argmax(lengths))
    start = int(np.sum(lengths[:longest]))
    first = values.slice(start, lengths[longest]).unique().drop_null()
    others = distinct.filter(pc.invert(pc.is_in(distinct, value_set=first)))
    return pa.concat_arrays([first, others.take(pc.sort_indices(others))])
