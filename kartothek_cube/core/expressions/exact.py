"""Exact comparison of columns with values of other types: literals in the type of the column."""
# Conditions of cubes use this; predicates of datasets demand the type of the column, as kartothek's do.

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.expressions.predicate import LiteralType

__all__ = ("exact_literal",)

#: ISO 8601, as far as it names one instant: a date, and a time of day and a zone if wanted
_ISO_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?)?(?: ?(?:Z|[+-]\d{2}:?\d{2}))?"
)

#: A value in the type of the column, as the bounds of the gap that it lies in: the greatest value of that
#: type that is not greater, and the least that is not less; equal if the type has it, None beyond its range.
_Gap = tuple[Any, Any]


def exact_literal(dtype: pa.DataType, literal: LiteralType) -> LiteralType:
    """
    The literal with a value of the type of the column, which matches the same rows.

    Values that cannot be compared exactly stay as they are; binding the literal rejects them.

    >>> exact_literal(pa.int64(), ("QTY", ">=", 1.5))
    ('QTY', '>=', 2)
    >>> exact_literal(pa.float64(), ("TEMP", "in", (10, 2**60 + 1)))
    ('TEMP', 'in', (10.0,))
    """
    column, op, value = literal
    dtype = dtype.value_type if pat.is_dictionary(dtype) else dtype
    convert = next((convert for matches, convert in _CONVERTERS if matches(dtype)), None)
    if convert is None or value is None or value is pd.NA:
        return literal
    if op in ("in", "not in"):
        return column, op, _exact_values(dtype, value, convert)
    gap = convert(dtype, value)
    return literal if gap is None else _compare(column, op, gap)


def _compare(column: str, op: str, gap: _Gap) -> LiteralType:
    low, high = gap
    if low == high and low is not None:
        return column, op, low
    if op == "==":
        return column, "in", ()
    if op == "!=":
        return column, "not in", ()  # any value, but no null
    is_upper = op in ("<", "<=")
    limit = low if is_upper else high
    if limit is None:  # the column has no value on that side
        return column, "in", ()
    return column, "<=" if is_upper else ">=", limit


def _exact_values(dtype: pa.DataType, values: Any, convert: _Converter) -> Any:
    """Values of an ``in`` list in the type of the column; those that it cannot hold equal no row."""
    if set(map(type, values)) <= _NATIVE.get(convert, set()):
        return values
    gaps = [convert(dtype, value) for value in values]
    if all(gap is None for gap in gaps):
        return values  # the same object: bound values are cached by identity
    pairs = zip(values, gaps, strict=True)
    kept = ((value, gap) for value, gap in pairs if gap is None or (gap[0] == gap[1] and gap[0] is not None))
    return tuple(value if gap is None else gap[0] for value, gap in kept)


_Converter = Callable[[pa.DataType, Any], _Gap | None]


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _as_number(value: Any) -> int | float | decimal.Decimal | None:
    """The number; None for anything else, and for null."""
    if _is_bool(value):
        return None
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return None if math.isnan(value) else float(value)
    return value if isinstance(value, decimal.Decimal) and not value.is_nan() else None


def _integer_gap(dtype: pa.DataType, value: Any) -> _Gap | None:
    number = _as_number(value)
    if number is None or isinstance(number, int):
        return None  # integers of any size are bound exactly
    if math.isinf(number):
        limits = np.iinfo(dtype.to_pandas_dtype())
        return (int(limits.max), None) if number > 0 else (None, int(limits.min))
    return math.floor(number), math.ceil(number)


def _float_gap(dtype: pa.DataType, value: Any) -> _Gap | None:
    number = _as_number(value)
    if number is None or isinstance(number, float):
        return None
    if isinstance(number, decimal.Decimal) and number.is_infinite():
        return float(number), float(number)
    try:
        nearest = float(number)
    except OverflowError:
        nearest = math.inf if number > 0 else -math.inf
    if math.isinf(nearest):
        largest = float(np.finfo(np.float64).max)
        return (largest, math.inf) if nearest > 0 else (-math.inf, -largest)
    if Fraction(nearest) == number:
        return nearest, nearest
    if isinstance(number, decimal.Decimal):
        return None  # 0.1 as a float is another number: whether that is meant is not known
    if nearest > number:
        return math.nextafter(nearest, -math.inf), nearest
    return nearest, math.nextafter(nearest, math.inf)


def _decimal_gap(dtype: pa.DataType, value: Any) -> _Gap | None:
    number = _as_number(value)
    if not isinstance(number, float) or math.isinf(number):
        return None
    if (Fraction(number) * Fraction(10) ** int(dtype.scale)).denominator != 1:
        return None  # as for floats and decimals
    return decimal.Decimal(number), decimal.Decimal(number)


def _date_gap(dtype: pa.DataType, value: Any) -> _Gap | None:
    """A time lies between two days, also as text; a date is midnight."""
    if isinstance(value, str):
        stamp = _parse_time(value)
    elif isinstance(value, datetime.datetime | np.datetime64) and not pd.isna(value):
        stamp = pd.Timestamp(value)
    else:
        return None
    if stamp is None or stamp.tzinfo is not None:
        return None
    midnight = stamp.normalize()
    if midnight == stamp:
        return midnight.date(), midnight.date()
    day = midnight.date()
    return day, (None if day == datetime.date.max else day + datetime.timedelta(days=1))


def _timestamp_gap(dtype: pa.DataType, value: Any) -> _Gap | None:
    """A date is midnight if the column has no zone; text is a time in ISO 8601."""
    if isinstance(value, str):
        stamp = _parse_time(value)
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        stamp = pd.Timestamp(value)
    else:
        return None
    if stamp is None or (stamp.tzinfo is None) != (dtype.tz is None):
        return None
    return stamp, stamp


def _parse_time(text: str) -> pd.Timestamp | None:
    if not _ISO_TIME.fullmatch(text.strip()):
        return None
    try:
        return pd.Timestamp(text.strip())
    except ValueError:
        return None  # such as 2024-02-30


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], _Converter], ...] = (
    (pat.is_integer, _integer_gap),
    (pat.is_floating, _float_gap),
    (pat.is_decimal, _decimal_gap),
    (pat.is_date, _date_gap),
    (pat.is_timestamp, _timestamp_gap),
)

#: fast path: types of values that need no conversion
_NATIVE: dict[_Converter, set[type]] = {
    _integer_gap: {int},
    _float_gap: {float},
    _date_gap: {datetime.date},
    _timestamp_gap: {datetime.datetime, pd.Timestamp},
}
