"""Arrow types: widened, storage and memory types; aliases of the types of tables and arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_FLOATS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
_BITS = {t.id: width for kind in (_SIGNED, _UNSIGNED, _FLOATS) for width, t in kind.items()}
_STRINGS = {pa.large_string(), pa.string_view()}
_BINARIES = {pa.large_binary(), pa.binary_view()}


@lru_cache(maxsize=1024)
def widen(t: pa.DataType) -> pa.DataType:
    """Widest type of the same kind: the type of schemas and indices, whatever the width in a file.

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
    return t if _is_far(t) else _rebuild(t, widen)


@lru_cache(maxsize=1024)
def storage_type(t: pa.DataType) -> pa.DataType:
    """Type under which values are written: the same width, in a flavour that kartothek reads.

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

    >>> import pyarrow as pa
    >>> memory_type(pa.list_(pa.date32()), dates_as_object=False)
    ListType(list<item: timestamp[ns]>)
    """
    if pat.is_date(t) and not dates_as_object:
        return pa.timestamp(date_unit)
    if _is_far(t):
        return t

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

    >>> import pyarrow as pa
    >>> same_type(pa.timestamp("us"), pa.timestamp("ns")), same_type(pa.int64(), pa.float64())
    (True, False)
    """
    return bool(storage_type(widen(a)).equals(storage_type(widen(b))))


# Timestamps of files are microseconds, which schemas and memory have as nanoseconds, as kartothek does. A
# column with values outside of their range, such as 9999-12-31, is ``timestamp[us]`` there, too.


def _is_far(t: pa.DataType) -> bool:
    return bool(pat.is_timestamp(t) and t.unit == "us")


@lru_cache(maxsize=1024)
def has_far_times(t: pa.DataType) -> bool:
    """Whether a type has timestamps in microseconds, at any depth.

    >>> has_far_times(pa.list_(pa.timestamp("us"))), has_far_times(pa.timestamp("ns"))
    (True, False)
    """
    return contains_type(t, _is_far)


@lru_cache(maxsize=1024)
def with_far_times(t: pa.DataType) -> pa.DataType:
    """The storage type with all its timestamps in microseconds.

    >>> with_far_times(pa.list_(pa.timestamp("ns", "UTC")))
    ListType(list<item: timestamp[us, tz=UTC]>)
    """
    t = storage_type(t)
    if pat.is_timestamp(t):
        return pa.timestamp("us", t.tz)
    return _rebuild_nested(t, with_far_times) if is_nested(t) else t


def common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type of a column that has the same type in two schemas, but for nulls and times.

    >>> common_type(pa.timestamp("ns"), pa.timestamp("us"))
    TimestampType(timestamp[us])
    """
    if pat.is_null(a):
        return b
    return with_far_times(a) if has_far_times(b) and same_type(a, b) else a


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
