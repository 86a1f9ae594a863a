"""Translation of Spark filters to conditions on a cube, as far as both are equivalent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.types as pat
from pyspark.sql import datasource as ds

from kartothek_cube.core.cube.conditions import C, Condition
from kartothek_cube.core.expressions.predicate import bind

__all__ = ("to_conditions",)

#: Spark knows microseconds, the library nanoseconds; Spark sees times rounded down
_MICROSECOND = pd.Timedelta(1, "us")
#: "not in" becomes one condition per value
_MANY = 100

_COMPARISONS: Mapping[type, Callable[[Any, Any], Condition]] = {
    ds.EqualTo: lambda c, v: c == v,
    ds.EqualNullSafe: lambda c, v: c == v,
    ds.GreaterThan: lambda c, v: c > v,
    ds.GreaterThanOrEqual: lambda c, v: c >= v,
    ds.LessThan: lambda c, v: c < v,
    ds.LessThanOrEqual: lambda c, v: c <= v,
}


def to_conditions(filters: Sequence[Any], schema: pa.Schema) -> tuple[list[Condition], list[Any]]:
    """
    Conditions that follow from filters, and the filters that Spark still has to evaluate.

    >>> schema = pa.schema([("CITY", pa.string()), ("DAY", pa.int64())])
    >>> filters = [ds.IsNotNull(("DAY",)), ds.GreaterThan(("DAY",), 3), ds.StringEndsWith(("CITY",), "burg")]
    >>> conditions, left = to_conditions(filters, schema)
    >>> print(*conditions, left)
    DAY > 3 [StringEndsWith(attribute=('CITY',), value='burg')]
    """
    conditions: list[Condition] = []
    remaining_filters: list[Any] = []
    not_null = []
    for item in filters:
        if isinstance(item, ds.IsNotNull):
            not_null.append(item)
            continue
        translated, same = _translated(item, schema)
        if not _bindable(translated, schema):
            translated, same = [], False
        conditions += translated
        if not same:
            remaining_filters.append(item)
    # no condition matches a null
    valid = {condition.column for condition in conditions}
    remaining_filters += [item for item in not_null if _column(item) not in valid]
    return conditions, remaining_filters


def _column(item: Any) -> str:
    path: tuple[str, ...] = getattr(item, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _bindable(conditions: Sequence[Condition], schema: pa.Schema) -> bool:
    try:
        for condition in conditions:
            bind([condition.predicate_part], schema)
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


def _translated(item: Any, schema: pa.Schema) -> tuple[list[Condition], bool]:
    """Conditions that follow from a filter, and whether they are equivalent to it."""
    negated = isinstance(item, ds.Not)
    inner = item.child if negated else item
    column = _column(inner)
    if column not in schema.names:
        return [], False
    dtype = schema.field(column).type
    try:
        return (_negated if negated else _plain)(inner, column, dtype)
    except (TypeError, ValueError, OverflowError):
        return [], False


def _plain(item: Any, column: str, dtype: pa.DataType) -> tuple[list[Condition], bool]:
    if isinstance(item, ds.StringStartsWith) and pat.is_string(dtype):
        return _prefix(column, item.value), False
    if isinstance(item, ds.In):
        return _one_of(column, [_value(v, dtype) for v in item.value if v is not None], dtype)
    compare = _COMPARISONS.get(type(item))
    if compare is None or item.value is None:
        return [], False
    value = _value(item.value, dtype)
    if pat.is_timestamp(dtype):
        return _instant(type(item), column, value), True
    return [compare(C(column), value)], True


def _negated(item: Any, column: str, dtype: pa.DataType) -> tuple[list[Condition], bool]:
    if pat.is_timestamp(dtype) or not isinstance(item, ds.EqualTo | ds.In):
        return [], False
    values = [item.value] if isinstance(item, ds.EqualTo) else list(item.value)
    if len(values) > _MANY or any(value is None for value in values):
        return [], False
    return [C(column) != _value(value, dtype) for value in values], True


def _value(value: Any, dtype: pa.DataType) -> Any:
    """A value of Spark in the type of the column; ValueError where it cannot be compared like that."""
    if pat.is_integer(dtype) and isinstance(value, Decimal):
        if value != value.to_integral_value():
            raise ValueError(value)
        return int(value)
    if pat.is_timestamp(dtype):
        stamp = pd.Timestamp(value)
        return stamp if dtype.tz is None else stamp.tz_convert(dtype.tz)
    if isinstance(value, float) and value != value:
        raise ValueError("NaN is equal to nothing here, and to itself in Spark")
    return value


def _instant(kind: type, column: str, value: pd.Timestamp) -> list[Condition]:
    """A comparison of times that Spark sees rounded down to microseconds."""
    c, after = C(column), value + _MICROSECOND
    if kind is ds.GreaterThanOrEqual:
        return [c >= value]
    if kind is ds.LessThan:
        return [c < value]
    if kind is ds.GreaterThan:
        return [c >= after]
    if kind is ds.LessThanOrEqual:
        return [c < after]
    return [c >= value, c < after]


def _one_of(column: str, values: list[Any], dtype: pa.DataType) -> tuple[list[Condition], bool]:
    if not values:
        return [], False
    if pat.is_timestamp(dtype):
        return [C(column) >= min(values), C(column) < max(values) + _MICROSECOND], False
    return [C(column).isin(values)], True


def _prefix(column: str, prefix: str) -> list[Condition]:
    """A range that contains all texts with a prefix; Spark evaluates the rest."""
    if not prefix:
        return []
    after = ord(prefix[-1]) + 1
    if 0xD800 <= after <= 0xDFFF or after > 0x10FFFF:  # no character
        return [C(column) >= prefix]
    return [C(column) >= prefix, C(column) < prefix[:-1] + chr(after)]
