"""Predicates and conditions as one tree: validation, binding to types, evaluation, simplification."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple, TypeAlias, TypeVar

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core.arrow import convert_plain, describe, is_null, widen
from kartothek_cube.core.errors import abbreviate_text, check_names

LiteralType: TypeAlias = tuple[str, str, Any]

#: type of integer values out of the range of the column's type, which still compare correctly
_BEYOND = pa.decimal128(20, 0)
_CLAMP = 2**64


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
        if op in ("<", "<=", ">", ">="):
            raise TypeError(f"Column {column!r}: a null can be compared by ==, != and in only, not by {op}.")
        if _null_fits(wide, value, op):
            return None
        raise _mismatch(dtype, value, column, op, "Use pandas.NA to look for missing values.")
    if pat.is_null(wide):
        return pa.scalar(True)
    for matches, bind, kind in _BINDERS:
        if matches(wide):
            try:
                scalar = bind(wide, value, column)
            except UnicodeError as error:
                raise ValueError(f"Column {column!r}: {describe(value)} is no valid Unicode.") from error
            except pa.ArrowInvalid as error:
                problem = f"Column {column!r}: {describe(value)} has more than 76 digits; write fewer."
                raise ValueError(problem) from error
            if scalar is None:
                hint = _hint(wide, value) or f"Write {kind}."
                raise _mismatch(dtype, value, column, op, hint)
            return scalar
    raise _mismatch(dtype, value, column, op, "Columns of this type cannot be used in predicates.")


def bind_values(dtype: pa.DataType, values: Iterable[Any], column: str, op: str) -> pa.Array:
    """Values of an ``in`` list in the widened type; those out of its range equal no row and are left out."""
    wide, items = widen(dtype), list(values)
    array = convert_plain(items, wide)
    if array is not None:
        return array
    bound = []
    for scalar in (bind_value(dtype, item, column, op) for item in items):
        if scalar is None or scalar.type.equals(wide):
            bound.append(scalar)
        elif pat.is_decimal(wide):
            with suppress(pa.ArrowInvalid):
                bound.append(scalar.cast(wide))
    return pa.array(bound, wide)


def _null_fits(wide: pa.DataType, value: object, op: str) -> bool:
    if value is pd.NA or pat.is_null(wide):
        return True
    if value is None:
        return not pat.is_integer(wide) or op in ("in", "not in")
    if isinstance(value, (float, np.floating)):
        return bool(pat.is_floating(wide))
    return bool(pat.is_timestamp(wide) or pat.is_date(wide))


def _mismatch(dtype: pa.DataType, value: object, column: str, op: str, hint: str) -> TypeError:
    problem = f"Column {column!r} of type {dtype} cannot be compared ({op}) with {describe(value)}."
    return TypeError(f"{problem} {hint}")


def _hint(wide: pa.DataType, value: Any) -> str:
    """How to write a value of another kind; empty if there is no such value of the type."""
    zone = getattr(value, "tzinfo", None)
    if pat.is_timestamp(wide) and isinstance(value, str | datetime.date | np.datetime64):
        if isinstance(value, str) and _parse_time(value) is None:
            is_form = _ISO_TIME.fullmatch(value.strip())
            return "" if is_form else "Write the year first, as in pandas.Timestamp('2020-01-31')."
        if wide.tz is None and zone:
            stamp = pd.Timestamp(value).tz_convert("UTC").tz_localize(None)
            question = "The column has no time zone; are its times those of UTC?"
            return f"{question} Write pandas.Timestamp({str(stamp)!r})."
        in_zone = "" if wide.tz is None or zone else f", tz={wide.tz!r}"
        return f"Write pandas.Timestamp({str(value)!r}{in_zone})."
    if pat.is_date(wide) and isinstance(value, datetime.datetime | np.datetime64):
        return f"Write {pd.Timestamp(value).date()!r}."
    if pat.is_string(wide):
        return f"Write {str(value)!r}."
    if pat.is_integer(wide) and isinstance(value, float) and value.is_integer():
        return f"Write {int(value)}."
    if pat.is_decimal(wide) and isinstance(value, float | np.floating) and np.isfinite(value):
        return f"Write decimal.Decimal({str(value)!r})."
    if pat.is_floating(wide) and isinstance(value, int | decimal.Decimal) and not isinstance(value, bool):
        with suppress(OverflowError):
            return f"Write {float(value)}."
    return ""


def _bind_integer(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        return None
    number = int(value)
    try:
        return pa.scalar(number, wide)
    except OverflowError:
        return pa.scalar(decimal.Decimal(max(-_CLAMP, min(_CLAMP, number))), _BEYOND)


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
    for unit in (wide.unit, "ns"):
        with suppress(ValueError):  # out of range, or finer
            stamp = stamp.as_unit(unit, round_ok=False)
            break
    return pa.scalar(int(stamp.asm8.view("i8")), pa.int64()).cast(pa.timestamp(stamp.unit, wide.tz))


def _bind_decimal(wide: pa.DataType, value: Any, column: str) -> pa.Scalar | None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer, decimal.Decimal)):
        return None
    number = decimal.Decimal(int(value)) if isinstance(value, (int, np.integer)) else value
    return pa.scalar(number) if number.is_finite() else None


#: kinds of types, functions that bind values to them, and what these values are
_BINDERS: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Any, str], pa.Scalar | None], str], ...
] = (
    (pat.is_integer, _bind_integer, "an int"),
    (
        pat.is_floating,
        lambda t, v, _: pa.scalar(float(v), t) if isinstance(v, (float, np.floating)) else None,
        "a float",
    ),
    (
        pat.is_boolean,
        lambda t, v, _: pa.scalar(bool(v), t) if isinstance(v, (bool, np.bool_)) else None,
        "True or False",
    ),
    (pat.is_string, _bind_string, "text"),
    (pat.is_binary, _bind_binary, "bytes"),
    (pat.is_date, _bind_date, "a datetime.date"),
    (pat.is_timestamp, _bind_timestamp, "a pandas.Timestamp of an existing time"),
    (
        pat.is_time,
        lambda t, v, _: pa.scalar(v, t) if isinstance(v, datetime.time) and not v.tzinfo else None,
        "a datetime.time without time zone",
    ),
    (pat.is_decimal, _bind_decimal, "a finite decimal.Decimal"),
)


def is_comparable(dtype: pa.DataType) -> bool:
    """Whether columns of a type can be used in predicates."""
    return any(matches(widen(dtype)) for matches, *_ in _BINDERS)


OPERATORS = ("==", "!=", "<=", ">=", "<", ">", "in", "not in")

_COMPARE = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class BoundLiteral(NamedTuple):
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
    """Bind a literal to the storage type of its column; raises for unknown operators and values."""
    if op not in OPERATORS:
        problem = f"Column {column!r}: operator {op!r} is not known; use one of {', '.join(OPERATORS)}."
        raise NotImplementedError(problem)
    dtype = dtype.value_type if pat.is_dictionary(dtype) else dtype
    if op in ("in", "not in"):
        return _bind_list(dtype, op, value, column)
    scalar = bind_value(dtype, value, column, op)
    if scalar is None:
        return _NULL if op == "==" else _VALID
    return _NEVER if pat.is_null(dtype) else _fit(op, scalar, dtype)


def _bind_list(dtype: pa.DataType, op: str, value: Any, column: str) -> BoundLiteral:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"Column {column!r}: {op!r} needs a list of values, got {type(value).__name__}.")
    wide = widen(dtype)
    # fast path for arrays of the stored type; NaN is no null of Arrow's
    if not (isinstance(value, pa.Array) and value.type.equals(wide) and not pat.is_floating(wide)):
        items = value.to_pylist() if isinstance(value, (pa.Array, pa.ChunkedArray)) else value
        value = bind_values(dtype, items, column, op)
    values, has_null = value.drop_null(), value.null_count > 0
    if len(values) == 0 and not has_null:
        return _NEVER if op == "in" else _VALID
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
    """Mask, without nulls, of the rows that match a bound literal."""
    if literal.kind == "never":
        return pa.array(np.full(len(array), False))
    if literal.kind == "null":
        return is_null(array)
    if literal.kind == "valid":
        return pc.invert(is_null(array))
    if literal.kind == "compare":
        mask = _COMPARE[literal.op](array, literal.operand)
        mask = mask.fill_null(False) if array.null_count else mask
        # of all comparisons, only `!=` is true for NaN
        has_nan_matches = literal.op == "!=" and pat.is_floating(array.type)
        return pc.and_(mask, pc.invert(is_null(array))) if has_nan_matches else mask
    mask = pc.is_in(array, value_set=literal.operand)
    if literal.kind == "not in":
        return pc.and_not(pc.invert(is_null(array)), mask)
    return pc.or_(mask, is_null(array)) if literal.or_null else mask


#: ISO 8601, as far as it names one instant: a date, and a time of day and a zone if wanted
_ISO_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?)?(?: ?(?:Z|[+-]\d{2}:?\d{2}))?"
)


class _Between(NamedTuple):
    """A value that the type of a column does not have, by its neighbours; None beyond its range."""

    low: Any
    high: Any


# Conditions of cubes use this; predicates of datasets demand the type of the column, as kartothek's do.
def exact_literal(dtype: pa.DataType, literal: LiteralType) -> LiteralType:
    """The literal with a value of the type of the column, which matches the same rows.

    Values that cannot be compared exactly stay as they are; binding the literal rejects them.

    >>> exact_literal(pa.int64(), ("QTY", ">=", 1.5))
    ('QTY', '>=', 2)
    >>> exact_literal(pa.float64(), ("TEMP", "in", (10, 2**60 + 1)))
    ('TEMP', 'in', (10.0,))
    """
    column, op, value = literal
    dtype = dtype.value_type if pat.is_dictionary(dtype) else dtype
    conversion = next((each for each in _CONVERSIONS if each.matches(dtype)), None)
    if conversion is None or value is None or value is pd.NA:
        return literal
    if op in ("in", "not in"):
        if conversion.native.issuperset(map(type, value)):
            return literal
        values = [conversion.convert(dtype, item) for item in value]
        return column, op, tuple(item for item in values if not isinstance(item, _Between))
    exact = conversion.convert(dtype, value)
    if not isinstance(exact, _Between):
        return column, op, exact
    if op in ("==", "!="):
        return column, "in" if op == "==" else "not in", ()  # no value, or any but null
    is_upper = op in ("<", "<=")
    limit = exact.low if is_upper else exact.high
    return (column, "in", ()) if limit is None else (column, "<=" if is_upper else ">=", limit)


# Each function returns the value in the type of the column, its neighbours, or the value as it is: if it has
# the type already, or cannot be compared.


def _as_number(value: Any) -> int | float | decimal.Decimal | None:
    """The number; None for anything else, and for null."""
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return None if math.isnan(value) else float(value)
    return value if isinstance(value, decimal.Decimal) and not value.is_nan() else None


def _to_integer(dtype: pa.DataType, value: Any) -> Any:
    number = _as_number(value)
    if number is None or isinstance(number, int):
        return value  # integers of any size are bound exactly
    if math.isinf(number):
        least, greatest = _bounds(dtype)
        return _Between(greatest, None) if number > 0 else _Between(None, least)
    low, high = math.floor(number), math.ceil(number)
    return low if low == high else _Between(low, high)


def _to_float(dtype: pa.DataType, value: Any) -> Any:
    number = _as_number(value)
    if number is None or isinstance(number, float):
        return value
    try:
        nearest = float(number)
    except OverflowError:
        nearest = math.inf if number > 0 else -math.inf
    if nearest == number:
        return nearest
    if isinstance(number, decimal.Decimal) and math.isfinite(nearest):
        return value  # 0.1 as a float is another number: whether that is meant is not known
    if nearest > number:
        return _Between(math.nextafter(nearest, -math.inf), nearest)
    return _Between(nearest, math.nextafter(nearest, math.inf))


def _to_decimal(dtype: pa.DataType, value: Any) -> Any:
    number = _as_number(value)
    if not isinstance(number, float) or math.isinf(number):
        return value
    # as for floats and decimals, 0.1 is another number
    is_exact = (Fraction(number) * Fraction(10) ** int(dtype.scale)).denominator == 1
    return decimal.Decimal(number) if is_exact else value


def _to_date(dtype: pa.DataType, value: Any) -> Any:
    """A time lies between two days, also as text; a date is midnight."""
    stamp = _parse_time(value) if isinstance(value, str) else value
    if not isinstance(stamp, datetime.datetime | np.datetime64) or pd.isna(stamp):
        return value
    stamp = pd.Timestamp(stamp)
    if stamp.tzinfo is not None:
        return value
    day = stamp.date()
    if stamp == stamp.normalize():
        return day
    return _Between(day, None if day == datetime.date.max else day + datetime.timedelta(days=1))


def _to_timestamp(dtype: pa.DataType, value: Any) -> Any:
    """A date is midnight if the column has no zone; text is a time in ISO 8601."""
    if isinstance(value, str):
        stamp = _parse_time(value)
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        stamp = pd.Timestamp(value)
    else:
        return value
    return value if stamp is None or (stamp.tzinfo is None) != (dtype.tz is None) else stamp


def _parse_time(text: str) -> pd.Timestamp | None:
    if not _ISO_TIME.fullmatch(text.strip()):
        return None
    try:
        return pd.Timestamp(text.strip())
    except ValueError:
        return None  # such as 2024-02-30


class _Conversion(NamedTuple):
    matches: Callable[[pa.DataType], bool]
    convert: Callable[[pa.DataType, Any], Any]
    #: fast path: types of values that need no conversion
    native: frozenset[type] = frozenset()


_CONVERSIONS = (
    _Conversion(pat.is_integer, _to_integer, frozenset({int})),
    _Conversion(pat.is_floating, _to_float, frozenset({float})),
    _Conversion(pat.is_decimal, _to_decimal),
    _Conversion(pat.is_date, _to_date, frozenset({datetime.date})),
    _Conversion(pat.is_timestamp, _to_timestamp, frozenset({datetime.datetime, pd.Timestamp})),
)


# -- predicates and trees -----------------------------------------------------------------------------------

# ``[[(column, op, value), ...], ...]``. Nulls (and NaN) match no comparison, ``!=`` and ``not in`` included,
# but for ``== None``, ``!= None`` and None within an ``in`` list.

LiteralValue = TypeVar("LiteralValue")
ConjunctionType: TypeAlias = list[LiteralType]
PredicatesType: TypeAlias = list[ConjunctionType] | None


def check_predicates(predicates: PredicatesType) -> None:
    """Check the form of predicates, without knowing the columns.

    Parameters
    ----------
    predicates
        The predicates; None means "no filter".

    Raises
    ------
    ValueError
        The nesting is wrong, something is empty, or a null is compared by an operator that has no meaning for
        nulls; names the position.
    TypeError
        The value of an ``in`` is no list.
    NotImplementedError
        A bytes value contains a NUL byte.

    Examples
    --------
    >>> check_predicates([[("COUNTRY_CODE", "==", "DE"), ("STORE_ID", "in", [1, 2])]])
    >>> check_predicates([])
    Traceback (most recent call last):
      ...
    ValueError: Empty predicates match nothing; use None to read without a filter.
    """
    if predicates is None:
        return
    if not isinstance(predicates, Sequence):
        raise TypeError(f"predicates are a list of lists of (column, operator, value), got {predicates!r}")
    if len(predicates) == 0:
        raise ValueError("Empty predicates match nothing; use None to read without a filter.")
    for number, conjunction in enumerate(predicates):
        if not isinstance(conjunction, list):
            raise ValueError(
                f"Conjunction {number} should be a list of (column, operator, value) tuples, as in "
                f"[[('A', '==', 1)]], got {type(conjunction).__name__}."
            )
        if not conjunction:
            raise ValueError(f"Conjunction {number} is empty.")
        for position, literal in enumerate(conjunction):
            _check_literal(literal, f"Literal {position} in conjunction {number}")


def _check_literal(literal: Any, where: str) -> None:
    if not isinstance(literal, tuple) or len(literal) != 3:
        raise ValueError(
            f"{where} should be a tuple (column, operator, value), got {abbreviate_text(repr(literal))}."
        )
    column, op, value = literal
    if op not in ("==", "!=") and is_null_value(value):
        problem = f"{where} ({column!r}): a null can be compared by ==, != and in only, not by {op}."
        raise ValueError(problem)
    if op in ("in", "not in"):
        # an iterator would be empty after the first of several files
        if isinstance(value, (str, bytes, Iterator)) or not isinstance(value, Iterable):
            problem = f"{where} ({column!r}): {op!r} needs a list of values, got {type(value).__name__}."
            raise TypeError(problem)
        has_nul = any(isinstance(item, bytes) and b"\0" in item for item in value)
    else:
        has_nul = isinstance(value, bytes) and b"\0" in value
    if has_nul:
        raise NotImplementedError(f"{where} ({column!r}): bytes values with a NUL byte are not supported.")


def columns_in_predicates(predicates: PredicatesType) -> set[str]:
    """Columns that occur in the predicates.

    Parameters
    ----------
    predicates
        The predicates.

    Returns
    -------
    set of str

    Examples
    --------
    >>> columns_in_predicates([[("CITY", "==", "Rom")], [("CITY", "==", "Bonn")]])
    {'CITY'}
    """
    return {column for conjunction in predicates or () for column, _, _ in conjunction}


def filter_predicates_by_column(predicates: PredicatesType, columns: Collection[str]) -> PredicatesType:
    """The literals on some columns only.

    Parameters
    ----------
    predicates
        The predicates.
    columns
        The columns that stay.

    Returns
    -------
    predicates or None
        Conjunctions without a literal left are dropped; None if nothing is left.

    Examples
    --------
    >>> filter_predicates_by_column([[("CITY", "==", "Rom"), ("DAY", ">", "2020-01-01")]], ["CITY"])
    [[('CITY', '==', 'Rom')]]
    """
    kept = [[literal for literal in conjunction if literal[0] in columns] for conjunction in predicates or ()]
    return [conjunction for conjunction in kept if conjunction] or None


def literal_mask(array: pa.Array | pa.ChunkedArray, op: str, value: Any, column: str = "") -> pa.BooleanArray:
    """Mask, without nulls, of the rows of a column that match a literal."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if pat.is_dictionary(array.type):
        return _mask_of_codes(array, op, value, column)
    try:
        literal = bind_literal(array.type, op, value, column)
    except TypeError:
        # a column of NaN only may stand for any type
        if not (len(array) and pat.is_floating(array.type) and pc.all(is_null(array)).as_py()):
            raise
        return pa.repeat(pa.scalar(False), len(array))
    return mask_of(array, literal)


def _mask_of_codes(array: pa.DictionaryArray, op: str, value: Any, column: str) -> pa.BooleanArray:
    """Mask of the rows of an encoded column: distinct values are compared, codes are looked up."""
    values = array.dictionary
    matches = literal_mask(values, op, value, column).take(array.indices)
    if not matches.null_count:
        return matches
    return matches.fill_null(literal_mask(pa.nulls(1, values.type), op, value, column)[0])


def bind(predicates: PredicatesType | Tree, schema: pa.Schema) -> Tree | None:
    """Predicates as a tree, checked against a schema: form, columns, operators and types of values."""
    node = to_tree(predicates)
    literals = literals_of(node)
    check_columns(columns_of(node), schema.names, "Predicates")
    for column, op, value in literals:
        bind_literal(schema.field(column).type, op, value, column)
    return node


def check_columns(columns: Iterable[str], available: Collection[str], where: str = "") -> None:
    """Raise ValueError for columns that do not exist."""
    check_names(f"{where}: " if where else "", "column", columns, available, ".")


# There is no "not": a negation is pushed down to the literals. A literal that compares a null is false, and
# with "and" and "or" only, that is what SQL gives: rows whose condition is unknown are left out.


@attrs.frozen
class AllOf:
    """All operands hold; without operands, every row matches."""

    operands: tuple[Node, ...]


@attrs.frozen
class AnyOf:
    """One of the operands holds; without operands, no row matches."""

    operands: tuple[Node, ...]


Tree: TypeAlias = AllOf | AnyOf
Node: TypeAlias = Tree | LiteralType


def to_tree(predicates: PredicatesType | Tree) -> Tree | None:
    """The tree of predicates, whose form is checked; None for None, a tree for itself."""
    if predicates is None or isinstance(predicates, AllOf | AnyOf):
        return predicates
    check_predicates(predicates)
    return AnyOf(tuple(AllOf(tuple(conjunction)) for conjunction in predicates))


def is_null_test(literal: LiteralType) -> bool:
    """Whether a literal of a condition matches nulls: ``IS NULL`` is ``(column, "in", (None,))``."""
    _, op, value = literal
    return op == "in" and len(value) == 1 and value[0] is None


def literals_of(node: Node | None) -> list[LiteralType]:
    """Literals of a tree, from left to right."""
    if node is None or isinstance(node, tuple):
        return [] if node is None else [node]
    return [literal for operand in node.operands for literal in literals_of(operand)]


def columns_of(node: Node | None) -> set[str]:
    """Columns that occur in a tree."""
    return {literal[0] for literal in literals_of(node)}


def identify(node: Node | None) -> object:
    """A key that is equal for trees of the same literals; their values may have no hash."""
    if node is None or isinstance(node, tuple):
        return id(node)
    return type(node), tuple(map(identify, node.operands))


def rejects_nulls(node: Node, columns: Collection[str]) -> bool:
    """Whether a row cannot match in which all of the columns are null."""
    if isinstance(node, tuple):
        return node[0] in columns and not is_null_test(node)
    reject = [rejects_nulls(operand, columns) for operand in node.operands]
    return any(reject) if isinstance(node, AllOf) else all(reject)


def imply(node: Node, columns: Collection[str]) -> Node | None:
    """Implication of a tree for some of its columns; None for nothing."""
    if isinstance(node, tuple):
        return node if node[0] in columns else None
    implied = [imply(operand, columns) for operand in node.operands]
    kept = tuple(operand for operand in implied if operand is not None)
    if isinstance(node, AnyOf):
        return AnyOf(kept) if len(kept) == len(implied) else None
    return AllOf(kept) if kept else None


def reduce_to_columns(node: Node, columns: Collection[str]) -> Node:
    """Condition on some columns under which a tree matches, whatever the values of others."""
    if isinstance(node, tuple):
        return node if node[0] in columns else AnyOf(())
    return type(node)(tuple(reduce_to_columns(operand, columns) for operand in node.operands))


def all_of(nodes: Iterable[Node | None]) -> AllOf | None:
    """Conjunction of nodes; None where there is none."""
    operands = tuple([node for node in nodes if node is not None])
    return AllOf(operands) if operands else None


def evaluate(
    node: Node, mask_of_literal: Callable[[LiteralType], pa.BooleanArray], length: int
) -> pa.BooleanArray:
    """Mask of the rows that match, of those that match each literal."""
    if isinstance(node, tuple):
        return mask_of_literal(node)
    is_all = isinstance(node, AllOf)
    masks = [evaluate(operand, mask_of_literal, length) for operand in node.operands]
    return reduce(pc.and_ if is_all else pc.or_, masks) if masks else pa.repeat(is_all, length)


def tree_mask(table: pa.Table, node: Node | None) -> pa.BooleanArray:
    """Mask, without nulls, of the rows of a table that match."""
    check_columns(columns_of(node), table.column_names, "Predicates")
    return evaluate(
        AllOf(()) if node is None else node,
        lambda literal: literal_mask(table.column(literal[0]), literal[1], literal[2], literal[0]),
        table.num_rows,
    )


def simplify(node: Node, constants: Mapping[str, pa.Scalar]) -> Node | bool:
    """Remaining predicate on rows in which some columns are constant; a bool if the result is certain."""
    if isinstance(node, tuple):
        column, op, value = node
        if column not in constants:
            return node
        return bool(literal_mask(pa.repeat(constants[column], 1), op, value, column)[0].as_py())
    # all operands are simplified, so that values of wrong types always raise
    parts = [simplify(operand, constants) for operand in node.operands]
    is_all = isinstance(node, AllOf)
    if any(part is (not is_all) for part in parts):
        return not is_all
    remaining = tuple(part for part in parts if not isinstance(part, bool))
    return type(node)(remaining) if remaining else is_all
