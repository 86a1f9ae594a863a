"""Arrow types: widened, storage and memory types; aliases of the types of tables and arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat
from pandas.api.types import is_object_dtype

from kartothek_cube.core.arrow.tables import replace_columns

_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_FLOATS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
_BITS = {t.id: width for kind in (_SIGNED, _UNSIGNED, _FLOATS) for width, t in kind.items()}
_STRINGS = {pa.large_string(), pa.string_view()}
_BINARIES = {pa.large_binary(), pa.binary_view()}


@lru_cache(maxsize=1024)
def widen(t: pa.DataType) -> pa.DataType:
    """Widest type of the same kind: the type of schemas and indices, whatever the width in a file.

    Examples
    --------
    >>> import pyarrow as pa
    >>> widen(pa.int8())
    DataType(int64)
    >>> widen(pa.dictionary(pa.int8(), pa.large_string()))
    DataType(string)
    """
    if pat.is_signed_integer(t):
        return pa.int64()
    if pat.is_unsigned_integer(t):
        return pa.uint64()
    if pat.is_floating(t):
        return pa.float64()
    if pat.is_time(t):
        return pa.time64("us")
    if pat.is_fixed_size_binary(t):
        return pa.binary()
    return _rebuild(t, widen)


@lru_cache(maxsize=1024)
def storage_type(t: pa.DataType) -> pa.DataType:
    """Type under which values are written: the same width, in a flavour that kartothek reads.

    Examples
    --------
    >>> import pyarrow as pa
    >>> storage_type(pa.int8()), storage_type(pa.large_string())
    (DataType(int8), DataType(string))
    """
    if pat.is_float16(t):
        return pa.float32()
    if pat.is_time(t):
        return pa.time64("us")
    return _rebuild(t, storage_type)


@lru_cache(maxsize=1024)
def memory_type(t: pa.DataType, *, dates_as_object: bool = True, date_unit: str = "ns") -> pa.DataType:
    """Type in which values are passed to pandas: the storage type, dates as timestamps if requested.

    Examples
    --------
    >>> import pyarrow as pa
    >>> memory_type(pa.list_(pa.date32()), dates_as_object=False)
    ListType(list<item: timestamp[ns]>)
    """
    if pat.is_date(t) and not dates_as_object:
        return pa.timestamp(date_unit)

    def inner(child: pa.DataType) -> pa.DataType:
        return memory_type(child, dates_as_object=dates_as_object, date_unit=date_unit)

    return storage_type(t) if not is_nested(t) else _rebuild(t, inner)


def number_bits(t: pa.DataType) -> int:
    """
    Bits of a number, or of the numbers in a list; 0 for other types.

    >>> number_bits(pa.int8()), number_bits(pa.list_(pa.float32())), number_bits(pa.string())
    (8, 32, 0)
    """
    width = _BITS.get(t.id)
    while width is None and pat.is_list(t):
        t = t.value_type
        width = _BITS.get(t.id)
    return width or 0


def with_number_bits(t: pa.DataType, width: int) -> pa.DataType:
    """
    The type of the same kind whose numbers have so many bits; types without numbers are unchanged.

    >>> with_number_bits(pa.list_(pa.uint64()), 16)
    ListType(list<item: uint16>)
    """
    if _BITS.get(t.id) == width:
        return t
    if pat.is_list(t):
        return pa.list_(t.value_field.with_type(with_number_bits(t.value_type, width)))
    for kind, is_kind in (
        (_SIGNED, pat.is_signed_integer),
        (_UNSIGNED, pat.is_unsigned_integer),
        (_FLOATS, pat.is_floating),
    ):
        if is_kind(t):
            return kind[width]
    return t


def same_type(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether two types are equal but for width, string flavour, time unit and dictionary encoding.

    Examples
    --------
    >>> import pyarrow as pa
    >>> same_type(pa.timestamp("us"), pa.timestamp("ns")), same_type(pa.int64(), pa.float64())
    (True, False)
    """
    return bool(widen(a).equals(widen(b)))


def is_long(t: pa.DataType) -> bool:
    """Whether a type is ``large_string`` or ``large_binary``."""
    return bool(pat.is_large_string(t) or pat.is_large_binary(t))


def is_text(t: pa.DataType) -> bool:
    """Whether values of a type are texts, also dictionary-encoded ones.

    >>> is_text(pa.large_string()), is_text(pa.binary())
    (True, False)
    """
    value_type = t.value_type if pat.is_dictionary(t) else t
    return bool(value_type in (*_STRINGS, pa.string()))


def is_nested(t: pa.DataType) -> bool:
    """Whether values of a type contain other values (lists, structs, maps)."""
    return bool(pat.is_nested(t))


def contains_type(t: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type is of a kind, or contains one of it at any depth.

    >>> contains_type(pa.list_(pa.date32()), pat.is_date)
    True
    """
    return is_kind(t) or any(contains_type(t.field(number).type, is_kind) for number in range(t.num_fields))


def _rebuild(t: pa.DataType, inner: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Normalise the flavour of a type and apply `inner` to the types it contains."""
    if isinstance(t, pa.BaseExtensionType):
        return inner(t.storage_type)
    if pat.is_dictionary(t) or pat.is_run_end_encoded(t):
        return inner(t.value_type)
    if t in _STRINGS:
        return pa.string()
    if t in _BINARIES:
        return pa.binary()
    if pat.is_timestamp(t):
        return pa.timestamp("ns", t.tz)
    if pat.is_date(t):
        return pa.date32()
    if pat.is_decimal(t):
        return t if pat.is_decimal256(t) else pa.decimal128(t.precision, t.scale)
    return _rebuild_nested(t, inner) if is_nested(t) else t


def _rebuild_nested(t: pa.DataType, inner: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if pat.is_map(t):
        return pa.map_(inner(t.key_type), inner(t.item_type))
    if pat.is_struct(t):
        return pa.struct([pa.field(f.name, inner(f.type)) for f in t])
    if pat.is_union(t):
        return t
    return pa.list_(inner(t.value_type))


class ArrowStream(Protocol):
    """Tables of other libraries, such as polars, that Arrow reads without a copy."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hand out a stream of record batches."""


Frame: TypeAlias = pd.DataFrame | pa.Table | pa.RecordBatch | ArrowStream
"""A table of input."""


#: positions, codes, counts
Ints: TypeAlias = npt.NDArray[np.int64]
#: selection: one bool per row, value or partition
Mask: TypeAlias = npt.NDArray[np.bool_]


def restore_types(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Cast columns to their stored types where a query changes them, if no value changes.

    pandas has timestamps for dates, floats for integers next to missing values, and decimals without
    precision. Other columns, and columns with values that do not fit, stay as they are.

    Examples
    --------
    >>> import datetime
    >>> days = pa.table({"DAY": [datetime.datetime(2020, 1, 1)], "AVG_TEMP": [6.0]})
    >>> restore_types(days, {"DAY": pa.date32(), "AVG_TEMP": pa.int64()}).schema.types
    [DataType(date32[day]), DataType(double)]
    """
    columns = {}
    for position, field in enumerate(table.schema):
        target = types.get(field.name)
        if target is not None and not same_type(field.type, target):
            column = _restore(table.column(position), target)
            if column is not None:
                columns[position] = column
    return replace_columns(table, columns)


def _restore(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray | None:
    """The column with its stored type; None if a query does not make this of it, or values would change."""
    source = column.type
    if not _is_result(source, target):
        return None
    # floats without a gap are not what a query returns for integers: to accept them would hide mistakes
    if pat.is_floating(source) and not column.null_count:
        return None
    source = _without_nulls(source, target)
    try:
        column = column.cast(source)
        restored = column.cast(target)
        return restored if restored.cast(source).equals(column) else None
    except pa.ArrowException:
        return None


def _without_nulls(source: pa.DataType, target: pa.DataType) -> pa.DataType:
    """The type of a column with that of the stored one where there are nulls only; both are alike."""
    # Arrow casts nulls to any type, but no type back to nulls
    if pat.is_null(source):
        return target
    if pat.is_struct(source):
        pairs = [(source.field(i), target.field(i)) for i in range(source.num_fields)]
        return pa.struct([a.with_type(_without_nulls(a.type, b.type)) for a, b in pairs])
    if pat.is_list(source) and pat.is_list(target):
        return pa.list_(source.value_field.with_type(_without_nulls(source.value_type, target.value_type)))
    return source


def _is_result(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether pandas has this type for a stored one, at any depth."""
    if is_nested(source) and is_nested(target):
        if source.num_fields != target.num_fields or pat.is_struct(source) != pat.is_struct(target):
            return False
        pairs = [(source.field(i), target.field(i)) for i in range(source.num_fields)]
        if pat.is_struct(source) and any(a.name != b.name for a, b in pairs):
            return False
        return all(same_type(a.type, b.type) or _is_result(a.type, b.type) for a, b in pairs)
    return bool(
        pat.is_null(source)
        or (pat.is_date(target) and pat.is_timestamp(source) and source.tz is None)
        or (pat.is_integer(target) and pat.is_floating(source))
        or (pat.is_decimal(target) and pat.is_decimal(source))
    )


def convert_objects(df: pd.DataFrame, types: Mapping[str, pa.DataType]) -> dict[str, pa.ChunkedArray]:
    """Columns of Python objects for which Arrow would find another type than the stored one, or none."""
    converted = {}
    for name, dtype in df.dtypes.items():
        target = types.get(str(name))
        if target is None or not is_object_dtype(dtype) or not is_nested(target):
            continue
        if contains_type(target, pat.is_date):
            # Arrow takes times for dates without an error
            continue
        try:
            values = pa.array(df[name].to_numpy(), type=target, from_pandas=True)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue  # the type is found from the values then, and compared with the schema later
        is_chunked = isinstance(values, pa.ChunkedArray)  # as more than 2 GB of text are
        converted[str(name)] = values if is_chunked else pa.chunked_array([values])
    return converted
