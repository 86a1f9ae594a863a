"""Binding of predicate values to column types, without silent casts."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.arrow.casting import describe
from kartothek_cube.core.arrow.types import is_nested, widen

__all__ = ("BEYOND", "bind_value", "bind_values", "is_null_value")

#: type of integer values out of the range of the column's type, which still compare correctly
BEYOND = pa.decimal128(20, 0)
_CLAMP = 2**64

# Python types that Arrow converts to an array of the column's type without changing a value
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], frozenset[type]], ...] = (
    (
        pat.is_integer,
        frozenset({int, *(np.dtype(c).type for c in "bhilqBHILQ")}),
    ),
    (pat.is_floating, frozenset({float, np.float64})),
    (pat.is_boolean, frozenset({bool})),
    (pat.is_string, frozenset({str})),
    (pat.is_binary, frozenset({bytes})),
    (pat.is_date, frozenset({datetime.date})),
)


def is_null_value(value: object) -> bool:
    """Whether a predicate value is null: None, NaN, NaT or :data:`pandas.NA`."""
    if value is None or value is pd.NaT or value is pd.NA:
        return True
    if isinstance(value, (float, np.floating)):
        return math.isnan(value)
    return isinstance(value, (np.datetime64, np.timedelta64)) and bool(np.isnat(value))


def bind_value(dtype: pa.DataType, value: Any, column: str, op: str) -> pa.Scalar | None:
    """Scalar of the column's widened type, None for null; raises TypeError or ValueError."""
    # Integers and timestamps out of the range of that type become a decimal or a timestamp of a coarser
    # unit, which compare as beyond every value.
    wide = widen(dtype)
    if is_null_value(value):
        if _null_fits(wide, value, op):
            return None
        hint = " Use pandas.NA to look for missing values." if value is None else ""
        raise _mismatch(dtype, value, column, op, hint)
    if pat.is_null(wide):
        return pa.scalar(True)
    for matches, bind in _BINDERS:
        if matches(wide):
            scalar = bind(wide, value, column)
            if scalar is None:
                raise _mismatch(dtype, value, column, op, _hint(wide, value))
            return scalar
    raise _mismatch(dtype, value, column, op, " Columns of this type cannot be used in predicates.")


def bind_values(dtype: pa.DataType, values: Iterable[Any], column: str, op: str) -> tuple[pa.Array, bool]:
    """Non-null values of an ``in`` list as an array, and whether the list holds a null."""
    # Values out of the range of the type equal no row and are left out.
    wide = widen(dtype)
    items = list(values)
    if not is_nested(wide) and _is_convertible(wide, items):
        try:
            array = pa.array(items, type=wide, from_pandas=True)
        except (pa.ArrowInvalid, OverflowError):
            pass  # out of range: dropped one by one below
        else:
            return array.drop_null(), array.null_count > 0
    scalars = [bind_value(dtype, item, column, op) for item in items]
    if pat.is_null(wide):
        return pa.array([], wide), any(scalar is None for scalar in scalars)
    return _array_of([s for s in scalars if s is not None], wide), any(scalar is None for scalar in scalars)


def _is_convertible(wide: pa.DataType, items: Sequence[Any]) -> bool:
    kinds = set(map(type, items)) - {type(None)}
    return any(matches(wide) and kinds <= allowed for matches, allowed in _PLAIN)


def _array_of(scalars: Sequence[pa.Scalar], wide: pa.DataType) -> pa.Array:
    fitting = [s for s in scalars if s.type.equals(wide) or _fits(s, wide)]
    if not pat.is_timestamp(wide):
        return pa.array([s.as_py() for s in fitting], type=wide)
    return pa.array([s.value for s in fitting], type=pa.int64()).cast(wide)


def _fits(scalar: pa.Scalar, wide: pa.DataType) -> bool:
    if not pat.is_decimal(wide):
        return False
    try:
        scalar.cast(wide)
    except pa.ArrowInvalid:
        return False
    return True


def _null_fits(wide: pa.DataType, value: object, op: str) -> bool:
    if value is pd.NA or pat.is_null(wide):
        return True
    if value is None:
        return not pat.is_integer(wide) or op in ("in", "not in")
    if isinstance(value, (float, np.floating)):
        return bool(pat.is_floating(wide))
    return bool(pat.is_timestamp(wide) or pat.is_date(wide))


def _mismatch(dtype: pa.DataType, value: object, column: str, op: str, hint: str = "") -> TypeError:
    problem = f"Column {column!r} of type {dtype} cannot be compared ({op}) with {describe(value)}."
    return TypeError(problem + hint)


def _hint(wide: pa.DataType, value: Any) -> str:
    """Hint how to write a value of another kind."""
    if pat.is_timestamp(wide) and wide.tz is None and getattr(value, "tzinfo", None):
        return f" The column has no time zone. Write pandas.Timestamp({str(value.replace(tzinfo=None))!r})."
    if pat.is_timestamp(wide) and isinstance(value, (str, datetime.date)):
        zone = "" if wide.tz is None or getattr(value, "tzinfo", None) else ", tz='UTC'"
        return f" Write pandas.Timestamp({str(value)!r}{zone})."
    if pat.is_date(wide) and isinstance(value, datetime.datetime):
        return f" Write {value.date()!r}."
    if pat.is_string(wide):
        return f" Write {str(value)!r}."
    if pat.is_integer(wide) and isinstance(value, float) and value.is_integer():
        return f" Write {int(value)}."
    if pat.is_floating(wide) and isinstance(value, int) and not isinstance(value, bool):
        return f" Write {float(value)}."
    return ""


def _bind_integer(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        return None
    number = int(value)
    low, high = (-(2**63), 2**63 - 1) if pat.is_signed_integer(wide) else (0, 2**64 - 1)
    if low <= number <= high:
        return pa.scalar(number, wide)
    return pa.scalar(decimal.Decimal(max(-_CLAMP, min(_CLAMP, number))), BEYOND)


def _bind_float(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    return pa.scalar(float(value), wide) if isinstance(value, (float, np.floating)) else None


def _bind_bool(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    return pa.scalar(bool(value), wide) if isinstance(value, (bool, np.bool_)) else None


def _bind_string(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    return pa.scalar(str(value), wide) if isinstance(value, str) else None


def _bind_binary(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    if isinstance(value, str):
        value = value.encode("utf-8")
    return pa.scalar(bytes(value), wide) if isinstance(value, (bytes, bytearray)) else None


def _bind_date(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    if isinstance(value, (str, bytes)):
        text = value.decode("utf-8") if isinstance(value, bytes) else value
        try:
            value = datetime.datetime.strptime(text, "%Y-%m-%d").date()
        except ValueError as error:
            problem = f"Column {column!r} holds dates; {text!r} is no date of the form YYYY-MM-DD."
            raise ValueError(problem) from error
    if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
        return None
    return pa.scalar(value, wide)


def _bind_timestamp(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    if not isinstance(value, (datetime.datetime, np.datetime64)):
        return None
    stamp = pd.Timestamp(value)
    if (stamp.tzinfo is None) != (wide.tz is None):
        return None
    try:
        return pa.scalar(stamp.as_unit("ns").value, pa.int64()).cast(wide)
    except pd.errors.OutOfBoundsDatetime:
        coarse = pa.timestamp(stamp.unit, wide.tz)
        return pa.scalar(int(stamp.asm8.view("i8")), pa.int64()).cast(coarse)


def _bind_time(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    return pa.scalar(value, wide) if isinstance(value, datetime.time) and value.tzinfo is None else None


def _bind_decimal(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer, decimal.Decimal)):
        return None
    number = decimal.Decimal(int(value)) if isinstance(value, (int, np.integer)) else value
    return pa.scalar(number) if number.is_finite() else None


_BINDERS: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Any, str], pa.Scalar | None]], ...
] = (
    (pat.is_integer, _bind_integer),
    (pat.is_floating, _bind_float),
    (pat.is_boolean, _bind_bool),
    (pat.is_string, _bind_string),
    (pat.is_binary, _bind_binary),
    (pat.is_date, _bind_date),
    (pat.is_timestamp, _bind_timestamp),
    (pat.is_time, _bind_time),
    (pat.is_decimal, _bind_decimal),
)
