"""Literals of predicates bound to the type of a column: as mask and as Arrow expression."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core.expressions.binding import bind_value, bind_values, is_null_value

__all__ = ("OPERATORS", "BoundLiteral", "bind_literal", "literal_expression", "mask_of")

OPERATORS = ("==", "!=", "<=", ">=", "<", ">", "in", "not in")

_COMPARE = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
# immutable types: binding their objects can be cached by identity
_IMMUTABLE = (tuple, pa.Array, bool, int, float, str, bytes, datetime.date)
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True)
class BoundLiteral:
    """A literal in the exact type of a column; NaN counts as null."""

    #: ``compare`` with a scalar, ``in`` or ``not in`` an array, ``null``, ``valid`` (not null) or ``never``
    kind: str
    #: operator of a ``compare``, for the operand rounded to a value of the column's type
    op: str = ""
    #: scalar or array in the exact type of the column
    operand: pa.Scalar | pa.Array | None = None
    #: whether null rows match in addition
    or_null: bool = False


_NEVER = BoundLiteral("never")
_NULL = BoundLiteral("null")
_VALID = BoundLiteral("valid")


def bind_literal(dtype: pa.DataType, op: str, value: Any, column: str) -> BoundLiteral:
    """Bind a literal to the storage type of its column; raises for unknown operators and values.

    Examples
    --------
    >>> import pyarrow as pa
    >>> bind_literal(pa.int8(), "<", 1000, "STORE_ID").kind
    'valid'
    """
    if op not in OPERATORS:
        raise NotImplementedError(
            f"Column {column!r}: operator {op!r} is not known; use one of {', '.join(OPERATORS)}."
        )
    dtype = dtype.value_type if pat.is_dictionary(dtype) else dtype
    if isinstance(value, _IMMUTABLE):
        return _bind_cached(dtype, op, _IdentityKey(value), column)
    return _bind(dtype, op, value, column)


class _IdentityKey:
    """Cache key by identity: 1, 1.0 and True are equal, but no equal literals."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and other.value is self.value


@lru_cache(maxsize=256)
def _bind_cached(dtype: pa.DataType, op: str, value: _IdentityKey, column: str) -> BoundLiteral:
    """Cached binding: a query binds the same literals for many files."""
    return _bind(dtype, op, value.value, column)


def _bind(dtype: pa.DataType, op: str, value: Any, column: str) -> BoundLiteral:
    if op in ("in", "not in"):
        return _bind_list(dtype, op, value, column)
    null = is_null_value(value)
    if null and op not in ("==", "!="):
        raise TypeError(f"Column {column!r}: a null can be compared by ==, != and in only, not by {op}.")
    scalar = bind_value(dtype, value, column, op)
    if null:
        return _NULL if op == "==" else _VALID
    return _NEVER if pat.is_null(dtype) else _fit(op, scalar, dtype)


def _bind_list(dtype: pa.DataType, op: str, value: Any, column: str) -> BoundLiteral:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"Column {column!r}: {op!r} needs a list of values, got {type(value).__name__}.")
    items = value.to_pylist() if isinstance(value, (pa.Array, pa.ChunkedArray)) else list(value)
    if not items:
        return _NEVER if op == "in" else _VALID
    values, has_null = bind_values(dtype, items, column, op)
    values = _narrow(values, dtype)
    if len(values) == 0:
        return (_NULL if has_null else _NEVER) if op == "in" else _VALID
    return BoundLiteral(op, op, values, or_null=has_null and op == "in")


def _narrow(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Values in the column's own type; others equal no row."""
    if not values.type.equals(dtype):
        narrowed = values.cast(dtype, safe=False)
        values = narrowed.filter(pc.equal(narrowed.cast(values.type, safe=False), values))
    if pat.is_floating(dtype):  # 0.0 == -0.0, but they differ in Arrow's hash tables
        zeros = pa.array([0.0, -0.0], pa.float64()).cast(dtype)
        if pc.any(pc.equal(values, zeros[0])).as_py():
            values = pa.concat_arrays([values, zeros])
    return values


def _fit(op: str, scalar: pa.Scalar, dtype: pa.DataType) -> BoundLiteral:
    """Compare in the column's own type: ``int8 < 1000`` is always true, ``us <= 1.5 us`` is ``us <= 1``."""
    if scalar.type.equals(dtype):
        return BoundLiteral("compare", op, scalar)
    if pat.is_floating(dtype):
        return _fit_float(op, scalar.as_py(), dtype)
    scaled = _to_units(scalar, dtype)
    if scaled is None:  # same values in another flavour, such as large_string
        return BoundLiteral("compare", op, scalar.cast(dtype))
    floor, exact = scaled.numerator // scaled.denominator, scaled.denominator == 1
    low, high = _bounds(dtype)
    if op in ("==", "!=") and not (exact and low <= floor <= high):
        return _NEVER if op == "==" else _VALID
    if not exact:
        op = "<=" if op in ("<", "<=") else ">"
    if not low <= floor <= high:
        return _VALID if (floor > high) == (op in ("<", "<=")) else _NEVER
    return BoundLiteral("compare", op, _from_units(floor, dtype))


def _fit_float(op: str, value: float, dtype: pa.DataType) -> BoundLiteral:
    narrow = np.dtype(dtype.to_pandas_dtype()).type
    with np.errstate(over="ignore"):
        rounded = narrow(value)
    nearest = float(rounded)
    if nearest != value:
        if op in ("==", "!="):
            return _NEVER if op == "==" else _VALID
        # no value of the column is between `value` and `nearest`
        below = "<" if nearest > value else "<="
        op = below if op in ("<", "<=") else {"<": ">=", "<=": ">"}[below]
    return BoundLiteral("compare", op, pa.scalar(rounded, dtype))


def _to_units(scalar: pa.Scalar, dtype: pa.DataType) -> Fraction | None:
    """Value as a multiple of the unit of an integer-based type; None for other types."""
    if pat.is_integer(dtype):
        return Fraction(scalar.as_py())
    if pat.is_timestamp(dtype) or pat.is_time(dtype):
        return Fraction(scalar.value * _UNITS[scalar.type.unit], _UNITS[dtype.unit])
    if pat.is_decimal(dtype):
        return Fraction(scalar.as_py()) * Fraction(10) ** int(dtype.scale)
    return None


def _bounds(dtype: pa.DataType) -> tuple[int, int]:
    if pat.is_decimal(dtype):
        return 1 - 10**dtype.precision, 10**dtype.precision - 1
    if pat.is_unsigned_integer(dtype):
        return 0, 2**dtype.bit_width - 1
    half: int = 2 ** (dtype.bit_width - 1)
    return -half, half - 1


def _from_units(number: int, dtype: pa.DataType) -> pa.Scalar:
    if pat.is_decimal(dtype):
        return pa.scalar(decimal.Decimal(f"{number}E{-dtype.scale}"), dtype)
    if pat.is_integer(dtype):
        return pa.scalar(number, dtype)
    integer = pa.int32() if dtype.bit_width == 32 else pa.int64()
    return pa.scalar(number, integer).cast(dtype)


def mask_of(array: pa.Array, literal: BoundLiteral) -> pa.Array:
    """Mask, without nulls, of the rows that match a bound literal.

    Examples
    --------
    >>> import pyarrow as pa
    >>> mask_of(pa.array([1, None]), bind_literal(pa.int64(), "!=", 2, "STORE_ID")).to_pylist()
    [True, False]
    """
    if literal.kind == "never":
        return _constant(False, len(array))
    if literal.kind == "null":
        return _is_null(array)
    if literal.kind == "valid":
        return pc.invert(_is_null(array))
    if literal.kind == "compare":
        mask = _COMPARE[literal.op](array, literal.operand)
        mask = mask.fill_null(False) if array.null_count else mask
        return pc.and_(mask, pc.invert(_is_null(array))) if _matches_nan(literal, array.type) else mask
    mask = pc.is_in(array, value_set=literal.operand)
    if literal.kind == "not in":
        return pc.and_not(pc.invert(_is_null(array)), mask)
    return pc.or_(mask, _is_null(array)) if literal.or_null else mask


def _constant(value: bool, length: int) -> pa.Array:
    return pa.array(np.full(length, value))


def _is_null(array: pa.Array) -> pa.Array:
    return pc.is_null(array, nan_is_null=pat.is_floating(array.type))


def _matches_nan(literal: BoundLiteral, dtype: pa.DataType) -> bool:
    """Whether the comparison alone is true for NaN."""
    return bool(literal.op == "!=" and pat.is_floating(dtype))


def literal_expression(column: str, dtype: pa.DataType, literal: BoundLiteral) -> pc.Expression:
    """Arrow expression of a bound literal, with the semantics of `mask_of`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> print(literal_expression("CITY", pa.string(), bind_literal(pa.string(), "==", "Rom", "CITY")))
    (CITY == "Rom")
    """
    field = pc.field(column)
    is_floating = pat.is_floating(dtype)
    if literal.kind == "never" or (pat.is_null(dtype) and literal.kind == "valid"):
        return pc.scalar(False)
    if literal.kind == "null":
        return pc.scalar(True) if pat.is_null(dtype) else _null_expression(field, is_floating)
    if pat.is_dictionary(dtype):
        field = field.cast(dtype.value_type)
    valid = field.is_valid() & ~field.is_nan() if is_floating else field.is_valid()
    if literal.kind == "valid":
        return valid
    if literal.kind == "compare":
        expression = _COMPARE[literal.op](field, literal.operand)
        return expression & ~field.is_nan() if _matches_nan(literal, dtype) else expression
    inside = field.isin(literal.operand)
    if literal.kind == "not in":
        return valid & ~inside
    return inside | _null_expression(field, is_floating) if literal.or_null else inside


def _null_expression(field: pc.Expression, is_floating: bool) -> pc.Expression:
    if not is_floating:
        return field.is_null()
    # Parquet statistics ignore NaN, and Arrow concludes from min == max that all rows have that value: it
    # would skip row groups with a NaN. A function that it cannot evaluate beforehand, always false, prevents
    # that.
    never_true = pc.Expression._call("random", [], pc.RandomOptions(initializer=0)) < 0.0
    return field.is_null() | field.is_nan() | never_true
