"""Conditions that rows have to meet for which an Arrow expression is true."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core.arrow.types import is_text
from kartothek_cube.core.cube.condition_codec import MAX_DEPTH
from kartothek_cube.core.cube.conditions import COMPARISONS, C, Condition, Conjunction, Disjunction

ImpliedCondition: TypeAlias = Condition | Conjunction | Disjunction

_OPERATORS = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
#: levels of an expression, each of which may be two of a condition
_MAX_DEPTH = MAX_DEPTH // 2 - 1
#: ``null_matching_behavior`` of ``is_in`` by which a null in the list equals a null in the column
_MATCH = 0


def imply_condition(expression: pc.Expression, schema: pa.Schema) -> ImpliedCondition | None:
    """Condition that holds for all rows for which the expression is true; None if nothing is known.

    It may hold for other rows as well: the expression has to be evaluated on the rows as well.

    >>> schema = pa.schema([("CITY", pa.string()), ("DAY", pa.int64())])
    >>> print(imply_condition((pc.field("CITY") == "Rom") & (pc.abs(pc.field("DAY")) == 7), schema))
    CITY == Rom
    """
    decoded = decode_expression(expression)
    return None if decoded is None or not schema.names else _Translator(schema).implied(decoded, True)


class _Translator:
    """Translates the parts of an expression on columns of a schema."""

    # Logic has three values. An expression selects rows for which it is true, and NOT those for which it is
    # false: rows for which it is null are in neither. So a negation is no separate case, but the question
    # what a *false* part implies.

    def __init__(self, schema: pa.Schema) -> None:
        self.types = {field.name: field.type for field in schema}

    def implied(self, part: Expression, outcome: bool, depth: int = 0) -> ImpliedCondition | None:
        """What the outcome of a part implies."""
        if depth > _MAX_DEPTH:
            return None
        imply = partial(self.implied, depth=depth + 1)
        if isinstance(part, Field):
            dtype = self._type(part)
            return C(part.path[0]) == outcome if dtype is not None and pat.is_boolean(dtype) else None
        if not isinstance(part, Call):
            return None if part.as_py() is outcome else self._never()
        arguments = part.arguments
        if part.function in ("and_kleene", "and", "or_kleene", "or"):
            parts = [imply(argument, outcome) for argument in arguments]
            return _all_of(parts) if part.function.startswith("and") == outcome else _any_of(parts)
        if part.function == "invert":
            return imply(arguments[0], not outcome)
        if part.function == "if_else":
            test, then, other = arguments
            chosen = ((True, then), (False, other))
            return _any_of([_all_of([imply(test, is_met), imply(p, outcome)]) for is_met, p in chosen])
        if part.function in ("is_null", "is_valid"):
            return self._null_test(arguments[0], is_null=(part.function == "is_null") == outcome)
        if part.function == "is_in":
            return self._is_in(part, outcome)
        if part.function in _OPERATORS and len(arguments) == 2:
            return self._comparison(_OPERATORS[part.function], *arguments, outcome)
        if part.function == "starts_with" and outcome and not part.options["ignore_case"].as_py():
            return self._starts_with(arguments[0], part.options["pattern"].as_py())
        return None

    def _type(self, part: Expression) -> pa.DataType | None:
        """Type of a column; None for fields in a column, and unknown columns."""
        return self.types.get(part.path[0]) if isinstance(part, Field) and len(part.path) == 1 else None

    def _never(self) -> Condition:
        return C(next(iter(self.types))).isin([])

    def _null_test(self, operand: Expression, *, is_null: bool) -> Condition | None:
        dtype = self._type(operand)
        if dtype is None or not isinstance(operand, Field):
            return None
        if is_null:
            return C(operand.path[0]).is_null()
        # NaN is a value for Arrow, and null for conditions
        return None if pat.is_floating(dtype) else C(operand.path[0]).not_null()

    def _comparison(
        self, op: str, left: Expression, right: Expression, outcome: bool
    ) -> ImpliedCondition | None:
        if isinstance(right, Field):
            left, right, op = right, left, _MIRRORED[op]
        dtype = self._type(left)
        if dtype is None or not isinstance(left, Field) or not isinstance(right, pa.Scalar):
            return None
        if not right.is_valid:
            return self._never()
        # for Arrow, NaN is unequal to and not less than all values; conditions match it in no case
        matches_nan = pat.is_floating(dtype) and (op == "!=") == outcome
        if matches_nan or not _is_comparable(dtype, right.type):
            return None
        value = _value(right)
        if value is None:
            return None
        condition = COMPARISONS[op](left.path[0], value)
        return condition if outcome else ~condition

    def _is_in(self, part: Call, outcome: bool) -> ImpliedCondition | None:
        (operand,) = part.arguments
        dtype, listed = self._type(operand), part.options["value_set"].values
        if dtype is None or not isinstance(operand, Field) or not _is_comparable(dtype, listed.type):
            return None
        values = [_value(scalar) for scalar in listed.drop_null()]
        if None in values:
            return None
        column = C(operand.path[0])
        matches_null = part.options["null_matching_behavior"].as_py() == _MATCH and listed.null_count
        if outcome:
            return _any_of([column.isin(values), column.is_null()]) if matches_null else column.isin(values)
        if pat.is_floating(dtype):
            return None
        # without a null in the list, nulls may be "not in" it
        return ~column.isin(values) if matches_null else _any_of([~column.isin(values), column.is_null()])

    def _starts_with(self, operand: Expression, prefix: Any) -> Condition | None:
        dtype = self._type(operand)
        if dtype is None or not isinstance(operand, Field) or not is_text(dtype):
            return None
        text = prefix.decode() if isinstance(prefix, bytes) else prefix
        return C(operand.path[0]).startswith(text) if text else None


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


def _is_bytes(dtype: pa.DataType) -> bool:
    return bool(pat.is_binary(dtype) or pat.is_large_binary(dtype) or pat.is_binary_view(dtype))


#: kinds of types that Arrow compares without rounding
_KINDS: tuple[Callable[[pa.DataType], bool], ...] = (
    pat.is_integer,
    pat.is_boolean,
    pat.is_floating,
    pat.is_decimal,
    pat.is_date32,
    pat.is_time,
    is_text,
    _is_bytes,
)


def _is_comparable(column: pa.DataType, value: pa.DataType) -> bool:
    """Whether the comparison of a column with a value is exact, in Arrow as in a condition."""
    if pat.is_timestamp(column) and pat.is_timestamp(value):
        return (column.tz is None) == (value.tz is None)
    return any(is_kind(column) and is_kind(value) for is_kind in _KINDS)


# pyarrow offers no access to the parts of an expression. Its text does not quote names, and Substrait knows
# neither nanoseconds nor lists of values. What is pickled holds all of it, with exact types: an IPC file of
# one record batch with the scalars and options, and as metadata of its schema the calls in prefix order.
# What it is worth: of 3 M rows in 40 files, DuckDB counts those with a text and a number (1 %) in 0.065, not
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
    """The parts of an expression; None if this version of pyarrow stores them in another way.

    >>> decode_expression(pc.field("STORE_ID") > 1).function
    'greater'
    """
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
    address = ctypes.cast(
        get_pointer(capsule, b"arrow_schema"), ctypes.POINTER(_ArrowSchema)
    ).contents.metadata

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
    """Columns that occur in an expression.

    >>> fields_of(decode_expression(pc.field("STORE_ID") == pc.field("DAY"))) == {"STORE_ID", "DAY"}
    True
    """
    fields, parts = set(), [expression]
    while parts:
        part = parts.pop()
        if isinstance(part, Field):
            fields.add(part.path[0])
        elif isinstance(part, Call):
            parts += part.arguments
    return fields
