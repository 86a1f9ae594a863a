"""Conversion of values and columns to an Arrow type."""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core.arrow.types import is_nested, widen, with_far_times


def describe(value: object) -> str:
    """Shortened value and its type for a message, without numpy's ``np.int64(1)``."""
    plain = value.item() if isinstance(value, (np.number, np.bool_, np.str_, np.bytes_)) else value
    text = repr(plain)
    text = text if len(text) <= 100 else text[:97] + "..."
    return f"{text} (type {type(value).__name__})"


def normalize_value(dtype: pa.DataType | None, value: Any) -> Any:
    """Python form of a value in a column of a type, lenient as index look-ups are ("1" for 1)."""
    if dtype is None:
        raise ValueError(
            "Cannot normalise a value for a column whose type is not known; load the schema first."
        )
    wide = widen(dtype)
    for matches, convert in _CONVERTERS:
        if matches(wide):
            return _convert(convert, wide, value)
    raise NotImplementedError(
        f"Columns of type {dtype} cannot be indexed, so there is no normal form of their values."
    )


def _convert(convert: Callable[[pa.DataType, Any], Any], dtype: pa.DataType, value: Any) -> Any:
    try:
        return convert(dtype, value)
    except (ValueError, ArithmeticError) as error:
        hint = ": write it as in ISO 8601, the year first" if pat.is_temporal(dtype) else ""
        raise ValueError(f"{describe(value)} is no value of type {dtype}{hint}.") from error
    except TypeError as error:
        raise TypeError(f"{describe(value)} cannot be converted to type {dtype} without loss.") from error


#: dates of which the day and the month can be confused (5.1.2024, 01/05/2024), and times of the day of today
_NO_YEAR_FIRST = re.compile(r"\s*\d{1,2}\W+\d")


def parse_timestamp(text: Any) -> Any:
    """Timestamp of a text or another value; raises ValueError for dates that do not begin with the year.

    >>> parse_timestamp("2020-01-31")
    Timestamp('2020-01-31 00:00:00')
    >>> parse_timestamp("01/02/2020")
    Traceback (most recent call last):
    ...
    ValueError: write the year first, as in 2020-01-31
    """
    if isinstance(text, str) and _NO_YEAR_FIRST.match(text):
        raise ValueError("write the year first, as in 2020-01-31")
    return pd.Timestamp(text)


def _decode(value: Any) -> Any:
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _to_bytes(dtype: pa.DataType, value: Any) -> bytes:
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else str(value).encode("utf-8")


def _to_int(dtype: pa.DataType, value: Any) -> int:
    text = _decode(value)
    number = int(text)
    low, high = (-(2**63), 2**63 - 1) if pat.is_signed_integer(dtype) else (0, 2**64 - 1)
    if not low <= number <= high or (not isinstance(text, str) and number != text):
        raise TypeError
    return number


def _to_bool(dtype: pa.DataType, value: Any) -> bool:
    text = _decode(value)
    if not isinstance(text, str):
        return bool(text)
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _to_date(dtype: pa.DataType, value: Any) -> datetime.date:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    stamp = parse_timestamp(_decode(value))
    if stamp is pd.NaT or stamp != stamp.normalize():
        raise TypeError
    day: datetime.date = stamp.date()
    return day


def _to_time(dtype: pa.DataType, value: Any) -> datetime.time:
    text = _decode(value)
    return datetime.time.fromisoformat(text) if isinstance(text, str) else pa.scalar(text, dtype).as_py()


def _to_decimal(dtype: pa.DataType, value: Any) -> decimal.Decimal:
    number = decimal.Decimal(str(value))
    exact: decimal.Decimal = pa.scalar(number, pa.decimal256(76, dtype.scale)).as_py()
    return exact


def _to_timestamp(dtype: pa.DataType, value: Any) -> np.datetime64:
    stamp: pd.Timestamp = parse_timestamp(_decode(value))
    return stamp.as_unit("us" if dtype.unit == "us" else "ns", round_ok=False).to_datetime64()


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Any], Any]], ...] = (
    (pat.is_string, lambda _, value: str(_decode(value))),
    (pat.is_binary, _to_bytes),
    (pat.is_integer, _to_int),
    (pat.is_floating, lambda _, value: float(value)),
    (pat.is_boolean, _to_bool),
    (pat.is_date, _to_date),
    (pat.is_timestamp, _to_timestamp),
    (pat.is_time, _to_time),
    (pat.is_decimal, _to_decimal),
)


# Python types that Arrow converts to an array of a type without changing a value
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], set[type]], ...] = (
    (pat.is_integer, {int, *(np.dtype(c).type for c in "bhilqBHILQ")}),
    (pat.is_floating, {float, np.float64}),
    (pat.is_boolean, {bool}),
    (pat.is_string, {str}),
    (pat.is_binary, {bytes}),
    (pat.is_date, {datetime.date}),
)


def convert_plain(values: Sequence[Any], dtype: pa.DataType) -> pa.Array | None:
    """Fast path: array of values, None for null; None if they need conversion one by one."""
    kinds = set(map(type, values)) - {type(None)}
    if not any(matches(dtype) and kinds <= plain for matches, plain in _PLAIN):
        return None
    try:
        return pa.array(values, dtype, from_pandas=True)
    except (pa.ArrowInvalid, OverflowError):
        return None  # out of range: the conversion one by one finds the value


def parse_texts(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Typed values of a partition column from the unquoted texts of partition labels."""
    wide = widen(dtype)
    if is_nested(wide) or pat.is_null(wide):
        raise ValueError(f"Partition columns cannot be of type {dtype}.")
    try:
        return _parse_array(texts, wide)
    except pa.ArrowInvalid as error:
        invalid_text = texts[first_failure(texts, lambda part: _parse_array(part, wide))].as_py()
        raise ValueError(f"{invalid_text!r} is no value of a partition column of type {wide}.") from error


def _parse_array(texts: pa.Array, wide: pa.DataType) -> pa.Array:
    if pat.is_binary(wide):
        return texts.cast(wide)
    plain = texts.cast(pa.string())
    if pat.is_integer(wide):
        _reject(plain, pc.invert(pc.match_substring_regex(plain, r"^-?[0-9]+$")))
    if pat.is_boolean(wide):
        _reject(plain, pc.invert(pc.is_in(pc.utf8_lower(plain), pa.array(["true", "false"]))))
    if pat.is_time(wide):  # Arrow parses timestamps only
        return pc.binary_join_element_wise("1970-01-01", plain, " ").cast(pa.timestamp("us")).cast(wide)
    return _parse_zoned(plain, wide) if pat.is_timestamp(wide) and wide.tz else plain.cast(wide)


def _parse_zoned(texts: pa.Array, wide: pa.DataType) -> pa.Array:
    """Parse timestamps with UTC offsets."""
    # Offsets of local mean time (before standard time) have seconds, which Arrow does not parse.
    second_offsets = pc.extract_regex(texts, r"(?P<sign>[+-])\d\d:\d\d:(?P<seconds>\d\d)$")
    if second_offsets.null_count == len(second_offsets):
        return texts.cast(wide)
    seconds = pc.struct_field(second_offsets, "seconds").cast(pa.int64())
    east = pc.equal(pc.struct_field(second_offsets, "sign"), "+")
    shift = pc.if_else(east, pc.negate(seconds), seconds).fill_null(0).cast(pa.duration("s"))
    minutes = pc.replace_substring_regex(texts, r"([+-]\d\d:\d\d):\d\d$", r"\1")
    return pc.add_checked(minutes.cast(wide), shift.cast(pa.duration("ns")))


def _reject(texts: pa.Array, is_invalid: pa.Array) -> None:
    if pc.any(is_invalid).as_py():
        raise pa.ArrowInvalid("not the text of a value")


def first_failure(array: pa.Array, attempt: Callable[[pa.Array], object]) -> int:
    """Position of the first element on which `attempt` fails."""
    # Binary search: this runs only after the whole array has failed.
    start, stop = 0, len(array)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            attempt(array[start:middle])
        except (ValueError, pa.ArrowNotImplementedError):  # ArrowInvalid is a ValueError
            stop = middle
        else:
            start = middle
    return start


def cast_times(array: pa.Array | pa.ChunkedArray, dtype: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast values to a type in memory, or to microseconds if nanoseconds do not hold them.

    >>> cast_times(pa.array([10**18], pa.timestamp("us")), pa.timestamp("ns")).type
    TimestampType(timestamp[us])
    """
    try:
        return array.cast(dtype)
    except pa.ArrowInvalid:
        far = with_far_times(dtype)
        if far.equals(dtype):
            raise
        return array.cast(far)


def cast_column(
    array: pa.Array | pa.ChunkedArray, dtype: pa.DataType, column: str
) -> pa.Array | pa.ChunkedArray:
    """Lossless cast of a column; raises TypeError that names column, value and types."""
    if array.type.equals(dtype):
        return array
    if not _castable(array.type, dtype):
        raise TypeError(f"Column {column!r}: values of type {array.type} are no values of type {dtype}.")
    if isinstance(array, pa.ChunkedArray):
        chunks = [cast_column(chunk, dtype, column) for chunk in array.chunks]
        return pa.chunked_array(chunks, type=dtype)
    try:
        return _exact_cast(array, dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        position = first_failure(array, lambda part: _exact_cast(part, dtype))
        invalid_value = describe(array[position].as_py() if len(array) else None)
        raise TypeError(
            f"Column {column!r}: {invalid_value} cannot be converted to type {dtype} without loss."
        ) from error


def _exact_cast(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()
    result = array.cast(dtype)
    if pat.is_floating(dtype) and pat.is_floating(array.type) and dtype.bit_width < array.type.bit_width:
        back = result.cast(array.type)
        is_exact = pc.or_(pc.equal(back, array), pc.is_nan(array))
        _reject(array, pc.invert(is_exact))
    return result


def _kind(t: pa.DataType) -> str:
    wide = widen(t)
    if pat.is_integer(wide) or pat.is_floating(wide) or pat.is_decimal(wide):
        return "number"
    if pat.is_timestamp(wide):
        return "zoned" if wide.tz else "naive"
    return "naive" if pat.is_date(wide) else str(wide.id)


def _castable(source: pa.DataType, target: pa.DataType) -> bool:
    if pat.is_null(source):
        return True
    if is_nested(source) and is_nested(target):
        return source.num_fields == target.num_fields and all(
            _castable(source.field(i).type, target.field(i).type) for i in range(source.num_fields)
        )
    return _kind(source) == _kind(target)
