"""One literal of a predicate, bound to the exact type of a column: its meaning as mask and as expression."""

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
# Of these types, an object means the same for ever.
_UNCHANGING = (tuple, pa.Array, bool, int, float, str, bytes, datetime.date)
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True)
class BoundLiteral:
    """
    What a literal asks of the values of a column.

    Attributes
    ----------
    kind
        ``compare`` with a scalar, ``in`` or ``not in`` an array, ``null``, ``valid`` (every value that is not
        null) or ``never``. NaN counts as null.
    op
        Operator of a ``compare``, after moving the operand to a value that the column's type can hold.
    operand
        Scalar or array in the exact type of the column.
    or_null
        Whether null rows match in addition.
    """

    kind: str
    op: str = ""
    operand: pa.Scalar | pa.Array | None = None
    or_null: bool = False


_NEVER = BoundLiteral("never")
_NULL = BoundLiteral("null")
_VALID = BoundLiteral("valid")


def bind_literal(dtype: pa.DataType, op: str, value: Any, column: str) -> BoundLiteral:
    """
    Check a literal against the type of its column and move its value into that type, keeping its meaning.

    Parameters
    ----------
    dtype
        Type of the column as it is stored, so ``int8`` where values are narrow.
    op, value, column
        The literal.

    Returns
    -------
    Literal

    Raises
    ------
    NotImplementedError
        The operator is unknown.
    TypeError, ValueError
        The value does not fit the column (:func:`~kartothek_cube.core.expressions.binding.bind_value`).

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
    if isinstance(value, _UNCHANGING):
        return _bound(dtype, op, _IdentityKey(value), column)
    return _bind(dtype, op, value, column)


class _IdentityKey:
    """A value that is equal to nothing but itself: 1, 1.0 and True are not the same."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and other.value is self.value


@lru_cache(maxsize=256)
def _bound(dtype: pa.DataType, op: str, value: _IdentityKey, column: str) -> BoundLiteral:
    """Remember what was bound: a query asks the same of many files."""
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
    """The values that the column's own type can hold; no row can equal the others."""
    if not values.type.equals(dtype):
        narrow = values.cast(dtype, safe=False)
        values = narrow.filter(pc.equal(narrow.cast(values.type, safe=False), values))
    if pat.is_floating(dtype):  # 0.0 == -0.0, but Arrow's hash tables tell them apart
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
    scaled = _scaled(scalar, dtype)
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
    return BoundLiteral("compare", op, _unscaled(floor, dtype))


def _fit_float(op: str, value: float, dtype: pa.DataType) -> BoundLiteral:
    narrow = np.dtype(dtype.to_pandas_dtype()).type
    with np.errstate(over="ignore"):
        rounded = narrow(value)
    near = float(rounded)
    if near != value:
        if op in ("==", "!="):
            return _NEVER if op == "==" else _VALID
        # No value of the column lies between `value` and `near`.
        below = "<" if near > value else "<="
        op = below if op in ("<", "<=") else {"<": ">=", "<=": ">"}[below]
    return BoundLiteral("compare", op, pa.scalar(rounded, dtype))


def _scaled(scalar: pa.Scalar, dtype: pa.DataType) -> Fraction | None:
    """The value in units of the integer that stores it in ``dtype``; None for types that are no integers."""
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


def _unscaled(number: int, dtype: pa.DataType) -> pa.Scalar:
    if pat.is_decimal(dtype):
        return pa.scalar(decimal.Decimal(f"{number}E{-dtype.scale}"), dtype)
    if pat.is_integer(dtype):
        return pa.scalar(number, dtype)
    integer = pa.int32() if dtype.bit_width == 32 else pa.int64()
    return pa.scalar(number, integer).cast(dtype)


def mask_of(array: pa.Array, literal: BoundLiteral) -> pa.Array:
    """
    Rows of an array that match a bound literal; a mask without nulls.

    Parameters
    ----------
    array
        Values of the type that the literal was bound to.
    literal
        The literal.

    Returns
    -------
    pyarrow.BooleanArray

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
        return pc.and_(mask, pc.invert(_is_null(array))) if _sees_nan(literal, array.type) else mask
    mask = pc.is_in(array, value_set=literal.operand)
    if literal.kind == "not in":
        return pc.and_not(pc.invert(_is_null(array)), mask)
    return pc.or_(mask, _is_null(array)) if literal.or_null else mask


def _constant(value: bool, length: int) -> pa.Array:
    return pa.array(np.full(length, value))


def _is_null(array: pa.Array) -> pa.Array:
    return pc.is_null(array, nan_is_null=pat.is_floating(array.type))


def _sees_nan(literal: BoundLiteral, dtype: pa.DataType) -> bool:
    """Whether the comparison is true for NaN unless told otherwise."""
    return bool(literal.op == "!=" and pat.is_floating(dtype))


def literal_expression(column: str, dtype: pa.DataType, literal: BoundLiteral) -> pc.Expression:
    """
    A bound literal as an expression for a scan, with the meaning of :func:`mask_of`.

    Parameters
    ----------
    column
        Name of the column.
    dtype
        Type of the column in the schema of the scan.
    literal
        The literal, bound to that type.

    Returns
    -------
    pyarrow.compute.Expression

    Examples
    --------
    >>> import pyarrow as pa
    >>> print(literal_expression("CITY", pa.string(), bind_literal(pa.string(), "==", "Rom", "CITY")))
    (CITY == "Rom")
    """
    field = pc.field(column)
    floating = pat.is_floating(dtype)
    if literal.kind == "never" or (pat.is_null(dtype) and literal.kind == "valid"):
        return pc.scalar(False)
    if literal.kind == "null":
        return pc.scalar(True) if pat.is_null(dtype) else _null_expression(field, floating)
    if pat.is_dictionary(dtype):
        field = field.cast(dtype.value_type)
    valid = field.is_valid() & ~field.is_nan() if floating else field.is_valid()
    if literal.kind == "valid":
        return valid
    if literal.kind == "compare":
        expression = _COMPARE[literal.op](field, literal.operand)
        return expression & ~field.is_nan() if _sees_nan(literal, dtype) else expression
    inside = field.isin(literal.operand)
    if literal.kind == "not in":
        return valid & ~inside
    return inside | _null_expression(field, floating) if literal.or_null else inside


def _null_expression(field: pc.Expression, floating: bool) -> pc.Expression:
    if not floating:
        return field.is_null()
    # Parquet statistics leave out NaN, and Arrow concludes from min == max that all rows have that value: it
    # would skip row groups in which a NaN hides. A function that it cannot evaluate beforehand prevents that;
    # this one is always false.
    impure = pc.Expression._call("random", [], pc.RandomOptions(initializer=0)) < 0.0
    return field.is_null() | field.is_nan() | impure
