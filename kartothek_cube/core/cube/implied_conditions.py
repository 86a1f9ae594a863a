"""Conditions of other libraries: Arrow, Polars, Spark, predicates; what they imply, or exactly."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import attrs
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core import arrow, expressions
from kartothek_cube.core.cube.condition_codec import MAX_DEPTH
from kartothek_cube.core.cube.conditions import (
    COMPARISONS,
    C,
    Condition,
    ConditionsInput,
    Conjunction,
    Disjunction,
    parse_conditions,
)
from kartothek_cube.core.errors import abbreviate_text

if TYPE_CHECKING:
    import polars

ImpliedCondition: TypeAlias = Condition | Conjunction | Disjunction

_OPERATORS = {"equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<="}
_OPERATORS |= {"greater": ">", "greater_equal": ">="}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
#: levels of an expression, each of which may be two of a condition
_MAX_DEPTH = MAX_DEPTH // 2 - 1
#: ``null_matching_behavior`` of ``is_in`` by which a null in the list equals a null in the column
_MATCH = 0


def imply_condition(expression: pc.Expression, schema: pa.Schema) -> ImpliedCondition | None:
    """Condition that holds for all rows for which the expression is true; None if nothing is known."""
    # It may hold for other rows as well: the expression has to be evaluated on the rows as well.
    decoded = decode_expression(expression)
    types = dict(zip(schema.names, schema.types, strict=True))
    return None if decoded is None or not types else _Translator(types, "Arrow").implied(decoded, True)


# -- conditions in any form ----------------------------------------------------------------------------------


def to_conjunction(conditions: ConditionsInput, types: Mapping[str, pa.DataType]) -> Conjunction:
    """Conditions that a user gives in any form, on columns of these types; raises TypeError or ValueError."""
    # As in all conditions, comparisons match neither null nor NaN, and numbers are compared exactly.
    converted: Any = _convert(conditions, types)
    if converted is conditions and isinstance(conditions, list | tuple | Iterator):
        converted = [_convert(condition, types) for condition in conditions]
    return Conjunction(converted)


def join_conditions(base: ConditionsInput, more: Iterable[ImpliedCondition]) -> ConditionsInput:
    """Conditions in any form, and more of them."""
    more = [*more]
    if not more:
        return base
    is_list = isinstance(base, list | tuple | Iterator) and not _is_predicates(base)
    return [*base, *more] if is_list else [*(() if base is None else (base,)), *more]  # type: ignore[misc]


def _convert(condition: object, types: Mapping[str, pa.DataType]) -> object:
    """The condition of a text or another library; anything else as it is."""
    if isinstance(condition, str):
        return parse_conditions(condition, types)
    if isinstance(condition, pc.Expression):
        return _exact_condition(decode_expression(condition), types, "Arrow", condition)
    if type(condition).__module__.startswith("polars.expr"):
        return _exact_condition(_decode_polars(condition), types, "Polars", condition)  # type: ignore[arg-type]
    if type(condition).__module__ in _SPARK_MODULES:
        return _exact_condition(_decode_column(condition), types, "Spark", condition)
    return _from_predicates(condition) if _is_predicates(condition) else condition


#: attributes that conditions share with other libraries, and what users of these call instead
_REMEDIES = {
    "Arrow": "isin, is_null, is_valid and starts_with; others can be filters of cube_dataset(...)",
    "Spark": "isin, between, isNull and startswith of F.col(name); others can be filters of the result",
    "Polars": "is_in, is_between, is_null and str.starts_with; others can be filters of scan_cube(...)",
}


def _exact_condition(
    decoded: Expression | None, types: Mapping[str, pa.DataType], library: str, given: object
) -> ImpliedCondition:
    """The condition that is equivalent to an expression; raises TypeError if there is none."""
    if decoded is not None:
        expressions.check_columns(fields_of(decoded), types, "Conditions")
        condition = _Translator(types, library, is_exact=True).implied(decoded, True)
        if condition is not None:
            return condition
    raise TypeError(
        f"The {library} expression {abbreviate_text(str(given))} is no condition. Conditions compare columns "
        f"with values by == != < <= > >=, {_REMEDIES[library]}"
    )


def _is_predicates(
    value: object,
) -> TypeGuard[expressions.LiteralType | list[expressions.LiteralType] | list[list[expressions.LiteralType]]]:
    """Whether a value is a predicate, ``(column, operator, value)``, a list of them, or of such lists."""
    if isinstance(value, tuple):
        if len(value) != 3 or not all(isinstance(part, str) for part in value[:2]):
            return False
        # three texts may be conditions; one of a single word or of signs only is an operator, known or not
        return value[1] in expressions.OPERATORS or value[1].isalpha() or not any(map(str.isalnum, value[1]))
    return isinstance(value, list) and len(value) > 0 and _is_predicates(value[0])


def _from_predicates(
    predicates: expressions.LiteralType | list[expressions.LiteralType] | list[list[expressions.LiteralType]],
) -> ImpliedCondition:
    nested: Any = [predicates] if isinstance(predicates, tuple) else predicates
    conjunctions: expressions.PredicatesType = [nested] if isinstance(nested[0], tuple) else nested
    expressions.check_predicates(conjunctions)
    alternatives = [Conjunction(list(map(_from_literal, literals))) for literals in conjunctions or ()]
    return alternatives[0] if len(alternatives) == 1 else Disjunction(alternatives)


def _from_literal(literal: expressions.LiteralType) -> ImpliedCondition:
    column, op, value = literal
    if op not in expressions.OPERATORS:
        known = ", ".join(expressions.OPERATORS)
        raise ValueError(f"Predicate {literal}: unknown operator {op!r}; known are {known}")
    if op in ("in", "not in"):
        values = [item for item in value if not expressions.is_null_value(item)]
        listed = C(column).isin(values)
        if op == "not in":
            return ~listed
        return listed if len(values) == len(value) else listed | C(column).is_null()
    if expressions.is_null_value(value):
        return C(column).is_null() if op == "==" else C(column).not_null()
    return COMPARISONS[op](column, value)


_PREDICATE_TYPES = (str, int, float, bool, pd.Timestamp)


def write_predicate_as_cube_condition(predicate: Sequence[Any]) -> Condition:
    """Convert one literal of a predicate to a condition.

    Parameters
    ----------
    predicate
        ``(column, operator, value)`` with one of the operators ``== != < <= > >=``.

    Returns
    -------
    Condition

    Raises
    ------
    TypeError
        The value is no str, int, float, bool or :class:`pandas.Timestamp`.
    ValueError
        The literal has not three entries, the operator is another one, or the value is null.

    Examples
    --------
    >>> write_predicate_as_cube_condition(("CITY", "==", "Köln"))
    EqualityCondition(column='CITY', value='Köln')
    """
    if len(predicate) != 3:
        raise ValueError(f"A predicate has exactly 3 entries: column, operator, value; got {predicate!r}")
    column, operator, value = predicate
    if type(value) not in _PREDICATE_TYPES:
        allowed, kind = ", ".join(cls.__name__ for cls in _PREDICATE_TYPES), type(value).__name__
        raise TypeError(f"The value of a predicate on {column!r} must be one of {allowed}, not a {kind}")
    if operator not in COMPARISONS:
        raise ValueError(f"Operator {operator!r} has no condition, available: {', '.join(COMPARISONS)}")
    return COMPARISONS[operator](column, value)


def convert_predicates_to_cube_conditions(
    predicates: Sequence[Sequence[Sequence[Any]]] | None,
) -> tuple[Condition, ...]:
    """Convert a predicate to conditions.

    Parameters
    ----------
    predicates
        One conjunction of literals, ``[[(column, operator, value), ...]]``; None: no restriction.

    Returns
    -------
    tuple of Condition

    Raises
    ------
    TypeError
        A value is of a type that conditions made of predicates do not know.
    ValueError
        There are several conjunctions (cubes know no "or") or none, or a literal cannot be converted.

    Examples
    --------
    >>> convert_predicates_to_cube_conditions([[("CITY", "==", "Köln"), ("DAY", ">", 17)]])
    (EqualityCondition(column='CITY', value='Köln'), GreaterThanCondition(column='DAY', value=17))
    """
    if predicates is None:
        return ()
    if len(predicates) != 1:
        raise ValueError(f"Conditions of cubes are exactly one conjunction, but got {len(predicates)}")
    return tuple(write_predicate_as_cube_condition(literal) for literal in predicates[0])


# -- expressions ---------------------------------------------------------------------------------------------


class _Translator:
    """Translates the parts of an expression of Arrow, Polars or Spark on columns of a schema."""

    # An exact translation is a condition that is equivalent, as far as NaN counts as null, or None.

    # Logic has three values. An expression selects rows for which it is true, and NOT those for which it is
    # false: rows for which it is null are in neither. So a negation is no separate case, but the implication
    # of a *false* part.

    def __init__(self, types: Mapping[str, pa.DataType], library: str, *, is_exact: bool = False) -> None:
        self.types, self.library, self.is_exact = types, library, is_exact
        # whether null is in a list is unknown, as in SQL; for Arrow, it is not
        self.unknown_is_in = library != "Arrow"
        # for Arrow, NaN is unequal to and not less than all values, for Polars it is the greatest one
        self.met_by_nan = ("!=", ">", ">=") if library == "Polars" else ("!=",)

    def implied(self, part: Expression, outcome: bool, depth: int = 0) -> ImpliedCondition | None:
        """Implication of the outcome of a part."""
        if depth > _MAX_DEPTH:
            return None
        imply = partial(self.implied, depth=depth + 1)
        if isinstance(part, Field):
            dtype = self.types.get(part.path[0]) if len(part.path) == 1 else None
            return C(part.path[0]) == outcome if dtype is not None and pat.is_boolean(dtype) else None
        if not isinstance(part, Call):
            is_logical = pat.is_boolean(part.type) or pat.is_null(part.type)
            return None if not is_logical or part.as_py() is outcome else self._never()
        arguments = part.arguments
        if part.function in ("and_kleene", "and", "or_kleene", "or"):
            parts = [imply(argument, outcome) for argument in arguments]
            if part.function.startswith("and") != outcome or (self.is_exact and None in parts):
                return _any_of(parts)
            return _all_of(parts)
        if part.function == "invert":
            return imply(arguments[0], not outcome)
        if part.function == "if_else":
            test, then, other = arguments
            chosen = ((True, then), (False, other))
            pairs = [(imply(test, is_met), imply(p, outcome)) for is_met, p in chosen]
            is_unknown = self.is_exact and None in (*pairs[0], *pairs[1])
            return None if is_unknown else _any_of([_all_of(pair) for pair in pairs])
        return self._on_column(part, outcome) if arguments else None

    def _never(self) -> Condition:
        return C(next(iter(self.types))).isin([])

    def _on_column(self, part: Call, outcome: bool) -> ImpliedCondition | None:
        """Implication of the outcome of a test of a column."""
        op, (operand, *others) = _OPERATORS.get(part.function), part.arguments
        if op is not None and len(others) == 1 and isinstance(others[0], Field):
            op, operand, others = _MIRRORED[op], others[0], [operand]
        # not of fields in a column, and of unknown columns
        if not isinstance(operand, Field) or len(operand.path) > 1 or operand.path[0] not in self.types:
            return None
        column, dtype = C(operand.path[0]), self.types[operand.path[0]]
        if part.function == ("is_null" if outcome else "is_valid"):
            return column.is_null()
        if part.function in ("is_null", "is_valid"):
            # NaN is a value for Arrow, and null for conditions
            return None if pat.is_floating(dtype) and not self.is_exact else column.not_null()
        if part.function == "is_in":
            return self._is_in(part, column, dtype, outcome)
        if part.function == "starts_with" and not part.options["ignore_case"].as_py():
            # the prefix of binary values need not be text
            text = _value(part.options["pattern"])
            if not text or not arrow.is_text(dtype):
                return None
            condition: Condition = column.startswith(text)
        else:
            if op is None or len(others) != 1 or not isinstance(others[0], pa.Scalar) or pat.is_nested(dtype):
                return None
            if not others[0].is_valid:
                return self._never()
            # conditions match NaN in no case
            matches_nan = pat.is_floating(dtype) and (op in self.met_by_nan) == outcome
            if not self.is_exact and (matches_nan or not _is_comparable(dtype, others[0].type)):
                return None
            self._check_zone(column.name, dtype, others[0].type)
            value = _value(others[0])
            if value is None:
                return None
            condition = COMPARISONS[op](column.name, value)
        return condition if outcome else ~condition

    def _check_zone(self, name: str, column: pa.DataType, value: pa.DataType) -> None:
        # Spark makes an instant of any datetime, also of one without a zone
        is_spark = self.library == "Spark" and pat.is_timestamp(column) and pat.is_timestamp(value)
        if is_spark and self.is_exact and value.tz and not column.tz:
            raise TypeError(
                f"Column {name!r} has no time zone, and Spark gives one to datetimes: write the time as "
                f"text, as in F.col({name!r}) >= '2020-01-31 12:00:00'"
            )

    def _is_in(self, part: Call, column: C, dtype: pa.DataType, outcome: bool) -> ImpliedCondition | None:
        listed = part.options["value_set"].values
        # Arrow rounds the list to the type of a column of floats
        is_rounded = pat.is_floating(dtype) and listed.type != dtype
        if not self.is_exact and (is_rounded or not _is_comparable(dtype, listed.type)):
            return None
        self._check_zone(column.name, dtype, listed.type)
        values = [_value(scalar) for scalar in listed.drop_null()]
        if None in values:
            return None
        matches_null = part.options["null_matching_behavior"].as_py() == _MATCH and listed.null_count
        if outcome:
            return _any_of([column.isin(values), column.is_null()]) if matches_null else column.isin(values)
        if pat.is_floating(dtype) and not self.is_exact:
            # NaN is in no list; conditions match it in no case
            return None
        if self.unknown_is_in:
            return ~column.isin(values)
        # without a null in the list, nulls may be "not in" it
        return ~column.isin(values) if matches_null else _any_of([~column.isin(values), column.is_null()])


def _all_of(parts: Sequence[ImpliedCondition | None]) -> ImpliedCondition | None:
    implied = [part for part in parts if part is not None]
    if len(implied) < 2:
        return implied[0] if implied else None
    return Conjunction([c for p in implied for c in (p.conditions if isinstance(p, Conjunction) else (p,))])


def _any_of(parts: Sequence[ImpliedCondition | None]) -> ImpliedCondition | None:
    implied = [part for part in parts if part is not None]
    return Disjunction(implied) if len(implied) == len(parts) else None


def _value(scalar: pa.Scalar) -> Any:
    """Python value of a scalar; None if a condition cannot have it."""
    try:
        value = scalar.as_py()
    except ValueError:  # such as times with nanoseconds
        return None
    # conditions are not compared with NaN; a NUL byte ends bytes for some stores of predicates
    return None if value != value or (isinstance(value, bytes) and b"\0" in value) else value


def _is_comparable(column: pa.DataType, value: pa.DataType) -> bool:
    """Whether the comparison of a column with a value is exact, in Arrow as in a condition."""
    if pat.is_timestamp(column) and pat.is_timestamp(value):
        return (column.tz is None) == (value.tz is None)
    if not expressions.is_comparable(column) or any(map(pat.is_date64, (column, value))):
        return False
    kinds = (pat.is_integer, pat.is_decimal)
    return arrow.same_type(column, value) or any(is_kind(column) and is_kind(value) for is_kind in kinds)


# -- Arrow ---------------------------------------------------------------------------------------------------

# pyarrow offers no access to the parts of an expression. Its text does not quote names, and Substrait knows
# neither nanoseconds nor lists of values. What is pickled holds all of it, with exact types: an IPC file of
# one record batch with the scalars and options, and as metadata of its schema the calls in prefix order.
# The gain: of 3 M rows in 40 files, DuckDB counts those with a text and a number (1 %) in 0.065, not
# in 0.23 s, and sums those of one partition in 0.007, not in 0.057 s.


@attrs.frozen
class Field:
    """Reference to a column, or to a field in it."""

    path: tuple[str, ...]


@attrs.frozen
class Call:
    """Call of a function of Arrow."""

    function: str
    arguments: tuple[Expression, ...]
    #: such as the values of ``is_in``
    options: Mapping[str, Any]


Expression: TypeAlias = "Call | Field | pa.Scalar"


def decode_expression(expression: pc.Expression) -> Expression | None:
    """The parts of an expression; None if this version of pyarrow stores them in another way."""
    try:
        _, (buffer,) = expression.__reduce__()
        with pa.ipc.open_file(buffer) as file:
            return _decode(iter(_metadata_pairs(file.schema)), file.get_batch(0))
    except (pa.ArrowException, AttributeError, LookupError, StopIteration, TypeError, ValueError):
        # not a documented format: without it, filters are evaluated on the rows only
        return None


#: nested calls are one with all arguments: a chain of comparisons is as deep as it is long
_ASSOCIATIVE = {"and", "and_kleene", "or", "or_kleene"}


def _decode(parts: Iterator[tuple[str, str]], scalars: pa.RecordBatch) -> Expression:
    # not recursive, as the depth of an expression is that of a query that another engine accepts
    calls: list[tuple[str, list[Expression], dict[str, Any]]] = []
    while True:
        kind, value = next(parts)
        part: Expression
        if kind == "call":
            calls.append((value, [], {}))
            continue
        if kind == "options":
            fields = scalars.column(int(value))
            calls[-1][2].update({field.name: fields.field(i)[0] for i, field in enumerate(fields.type)})
            continue
        if kind == "end":
            function, arguments, options = calls.pop()
            part = Call(function, tuple(arguments), options)
        elif kind == "literal":
            part = scalars.column(int(value))[0]
        elif kind == "field_ref":
            part = Field((value,))
        elif kind == "nested_field_ref":
            part = Field(tuple(next(parts)[1] for _ in range(int(value))))
        else:
            raise ValueError(f"unknown part of an expression: {kind}")
        if not calls:
            return part
        function, arguments, _ = calls[-1]
        if isinstance(part, Call) and part.function == function and function in _ASSOCIATIVE:
            arguments += part.arguments
        else:
            arguments.append(part)


class _ArrowSchema(ctypes.Structure):
    """Start of ``ArrowSchema`` in the C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata_pairs(schema: pa.Schema) -> list[tuple[str, str]]:
    """Metadata of a schema with repeated keys; ``schema.metadata`` is a dict, which has none."""
    get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    capsule = schema.__arrow_c_schema__()  # releases the memory when it is deleted
    pointer = get_pointer(capsule, b"arrow_schema")
    address = ctypes.cast(pointer, ctypes.POINTER(_ArrowSchema)).contents.metadata

    def read_int() -> int:
        nonlocal address
        value = ctypes.c_int32.from_address(address).value
        address += 4
        return value

    def read_text() -> str:
        nonlocal address
        length = read_int()
        text = ctypes.string_at(address, length)
        address += length
        return text.decode()

    pairs = [(read_text(), read_text()) for _ in range(read_int())]
    del capsule
    return pairs


def fields_of(expression: Expression) -> set[str]:
    """Columns that occur in an expression."""
    fields, parts = set(), [expression]
    while parts:
        part = parts.pop()
        if isinstance(part, Field):
            fields.add(part.path[0])
        elif isinstance(part, Call):
            parts += part.arguments
    return fields


# -- Polars --------------------------------------------------------------------------------------------------


def imply_polars(predicate: polars.Expr, schema: pa.Schema) -> ImpliedCondition | None:
    """Condition that holds for all rows for which a predicate of Polars is true; None if nothing is known."""
    types = dict(zip(schema.names, schema.types, strict=True))
    try:
        return _Translator(types, "Polars").implied(_decode_polars(predicate), True)
    # polars documents no way to inspect an expression: without a translation, all rows are read
    except Exception:
        return None


#: methods of expressions of Polars by the functions that Spark has
_POLARS_METHODS = (
    dict(zip(_MIRRORED, ("__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__"), strict=True))
    | {"and": "__and__", "or": "__or__", "not": "__invert__"}
    | {"isnull": "is_null", "isnotnull": "is_not_null", "in": "is_in"}
)
#: operators of the limits of ``is_between``
_CLOSED = {"both": (">=", "<="), "left": (">=", "<"), "right": (">", "<="), "none": (">", "<")}


def _decode_polars(expr: polars.Expr) -> Expression:
    """The parts of an expression of Polars, as those of one of Arrow; others are calls of no function."""
    if expr.meta.is_column():
        return Field((expr.meta.output_name(),))
    if _is_constant(expr):
        import polars

        values = polars.select(expr).to_series().to_arrow()
        # a Series is compared row by row
        return values[0] if len(values) == 1 else Call("", (), {})
    functions = {name: getattr(type(expr), method) for name, method in _POLARS_METHODS.items()}
    functions["startswith"] = lambda operand, prefix: operand.str.starts_with(prefix)
    for name, function in functions.items():
        if (operands := _operands(expr, function)) is not None:
            # a list with a null, for example, is in no condition
            with suppress(ValueError):
                return _decode_call(name, list(map(_decode_polars, operands)))
    for closed, operators in _CLOSED.items():
        operands = _operands(expr, lambda e, low, high, closed=closed: e.is_between(low, high, closed=closed))
        if operands is not None:
            column, *limits = map(_decode_polars, operands)
            pairs = zip(operators, limits, strict=True)
            return _decode_call("and", [_decode_call(operator, [column, limit]) for operator, limit in pairs])
    return Call("", tuple(Field((name,)) for name in expr.meta.root_names()), {})


def _is_constant(expr: polars.Expr) -> bool:
    """Whether an expression is a literal, or made of literals only, as ``pl.date(2024, 1, 31)`` is."""
    operands: list[polars.Expr] = expr.meta.pop()
    return expr.meta.is_literal() or (len(operands) > 0 and all(map(_is_constant, operands)))


def _operands(expr: polars.Expr, function: Callable[..., Any]) -> list[polars.Expr] | None:
    """Operands of an expression if it calls the function."""
    # public methods only: an expression equals what the function makes of its operands, or it does not
    operands: list[polars.Expr] = expr.meta.pop()
    for order in permutations(operands) if 1 <= len(operands) <= 3 else ():
        try:
            if function(*order).meta.eq(expr):
                return list(order)
        except TypeError:  # another number of operands
            return None
    return None


# -- Spark ---------------------------------------------------------------------------------------------------

# pyspark offers no access to the parts of a Column. The classic one is a tree of objects in the JVM, that of
# Spark Connect one of Python objects. Both are read without importing pyspark.

_CLASSIC = "pyspark.sql.classic.column"
_SPARK_MODULES = (_CLASSIC, "pyspark.sql.connect.column")
#: functions of Arrow by those of Spark
_SPARK_FUNCTIONS = (
    {op: function for function, op in _OPERATORS.items()}
    | {"=": "equal", "and": "and_kleene", "or": "or_kleene", "not": "invert", "!": "invert"}
    | {"in": "is_in", "isnull": "is_null", "isnotnull": "is_valid", "startswith": "starts_with"}
)


def _decode_column(column: Any) -> Expression | None:
    """The parts of a Column of Spark, as those of an expression of Arrow; None if it has others."""
    try:
        is_classic = type(column).__module__ == _CLASSIC
        return _decode_classic(column._jc.node()) if is_classic else _decode_connect(column._expr)
    except (pa.ArrowException, AttributeError, LookupError, TypeError, ValueError):
        return None


def _decode_classic(node: Any) -> Expression:
    kind = node.getClass().getSimpleName()
    if kind == "UnresolvedFunction":
        arguments = node.arguments()
        parts = [_decode_classic(arguments.apply(number)) for number in range(arguments.size())]
        return _decode_call(node.functionName(), parts)
    if kind == "UnresolvedAttribute":
        names = node.nameParts()
        return Field(tuple(names.apply(number) for number in range(names.size())))
    if kind != "Literal":
        raise ValueError(kind)
    return decode_java(node.value())


def decode_java(value: Any) -> pa.Scalar:
    """A value of Spark's JVM; raises ValueError for one of another class than literals have."""
    if not hasattr(value, "getClass"):
        return pa.scalar(value)
    java = value.getClass().getName()
    if java in ("java.sql.Date", "java.time.LocalDate"):
        return pa.scalar(date.fromisoformat(value.toString()))
    if java in ("java.time.LocalDateTime", "java.time.Instant"):
        return pa.scalar(datetime.fromisoformat(value.toString()))
    if java != "java.sql.Timestamp":
        raise ValueError(java)
    return pa.scalar(value.getTime() // 1000 * 10**6 + value.getNanos() // 1000, _INSTANT)


def _decode_connect(node: Any) -> Expression:
    kind = type(node).__name__
    if kind == "UnresolvedFunction":
        return _decode_call(node._name, list(map(_decode_connect, node._args)))
    if kind == "ColumnReference":
        return Field((node._unparsed_identifier.strip("`"),))
    if kind != "LiteralExpression":
        raise ValueError(kind)
    dtype = node._dataType.typeName()
    if dtype in _INTERNAL:
        return pa.scalar(node._value, pa.int32() if dtype == "date" else pa.int64()).cast(_INTERNAL[dtype])
    # times of the day and intervals are numbers as well
    return pa.scalar(node._value if dtype in _PLAIN else {}[dtype])


_INSTANT = pa.timestamp("us", "UTC")
#: types of Spark Connect whose literals are numbers, and those whose literals are values
_INTERNAL = {"date": pa.date32(), "timestamp": _INSTANT, "timestamp_ntz": pa.timestamp("us")}
_NUMBERS = {"byte", "short", "integer", "long", "float", "double", "decimal"}
_PLAIN = _NUMBERS | {"string", "boolean", "binary", "void"}


def _decode_call(name: str, arguments: list[Expression]) -> Expression:
    function, options = _SPARK_FUNCTIONS[name.lower()], {}
    if function in _ASSOCIATIVE:
        nested = [a.arguments if isinstance(a, Call) and a.function == function else (a,) for a in arguments]
        return Call(function, tuple(part for parts in nested for part in parts), {})
    if function in ("is_in", "starts_with"):
        column, *scalars = arguments
        # Spark has an argument per value, Polars one list with a type of its own
        if scalars and _is_list(scalars[0]):
            listed = scalars[0]
        else:
            listed = pa.scalar([s.as_py() if isinstance(s, pa.Scalar) else None for s in scalars])
        if not scalars or listed.values is None or listed.values.null_count:
            raise ValueError(scalars)
        arguments = [column]
        if function == "is_in":
            options = {"value_set": listed, "null_matching_behavior": pa.scalar(None)}
        else:
            options = {"pattern": scalars[0], "ignore_case": pa.scalar(False)}
    return Call(function, tuple(arguments), options)


def _is_list(part: Expression) -> TypeGuard[pa.ListScalar]:
    return isinstance(part, pa.ListScalar | pa.LargeListScalar)
