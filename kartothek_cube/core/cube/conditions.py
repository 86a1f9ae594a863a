"""Conditions of cube queries: on columns (``C("CITY") == "Köln"``), joined, from text or JSON."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeAlias, TypeVar

import attrs
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arguments import converter_str, converter_tuple
from kartothek_cube.core.arrow import describe, is_text
from kartothek_cube.core.cube import condition_codec as codec
from kartothek_cube.core.errors import abbreviate_text, check_names, show_value, unknown_names
from kartothek_cube.core.expressions import AllOf, AnyOf, LiteralType, Node, exact_literal
from kartothek_cube.display import code

__all__ = (
    "BetweenCondition",
    "C",
    "Condition",
    "Conjunction",
    "Disjunction",
    "EqualityCondition",
    "GreaterEqualCondition",
    "GreaterThanCondition",
    "InIntervalCondition",
    "InequalityCondition",
    "IsInCondition",
    "IsNullCondition",
    "LessEqualCondition",
    "LessThanCondition",
    "NotInCondition",
    "NotNullCondition",
    "SimpleCondition",
    "StartsWithCondition",
    "VirtualColumn",
    "parse_conditions",
)


class _Operand(codec.Incomparable):
    """Base of what ``&``, ``|`` and ``~`` join."""

    __slots__ = ()

    def __and__(self, other: ConditionTree) -> Conjunction:
        return Conjunction.from_two(self, other)  # type: ignore[arg-type]

    def __or__(self, other: ConditionTree) -> Disjunction:
        _check_operands(self, other)
        return Disjunction([self, other])

    def __bool__(self) -> bool:
        raise TypeError(
            f"The condition {abbreviate_text(str(self))} is neither true nor false. "
            "Join conditions by '&', '|' and '~' instead of 'and', 'or' and 'not', and "
            "write C(...).in_interval(a, b), or two conditions, instead of "
            "'a <= C(...) < b'."
        )

    def filter_df(self, df: pd.DataFrame) -> pd.DataFrame:
        """Select the rows that match; null matches no condition but :class:`IsNullCondition`.

        Parameters
        ----------
        df
            The frame.

        Returns
        -------
        pandas.DataFrame
            The rows with their index; the frame itself if no condition is active.

        Raises
        ------
        TypeError
            A value does not fit the type of its column.
        ValueError
            The frame lacks a column.

        Examples
        --------
        >>> df = pd.DataFrame({"CITY": ["Köln", "Bonn", None], "DAY": [1, 2, 3]})
        >>> InequalityCondition("CITY", "Köln").filter_df(df)
           CITY  DAY
        1  Bonn    2
        """
        conjunction = Conjunction(self)
        return codec.filter_rows(df, conjunction.columns, conjunction.to_tree) if conjunction.active else df

    def _repr_html_(self) -> str:
        return code(abbreviate_text(str(self)))


T = TypeVar("T")
_check_limit = attrs.validators.optional(codec.check_value)


@attrs.frozen
class Condition(_Operand, ABC):
    """Condition on one column; immutable, comparable and hashable.

    Null matches no condition but :class:`IsNullCondition`. ``~`` gives the opposite condition, which null
    does not match either: ``~(C("DAY") == 17)`` is ``C("DAY") != 17``, and ``~C("DAY").is_null()`` is
    ``C("DAY").not_null()``. Values may be of another type than the column wherever the comparison is exact:
    integers and floats, dates and timestamps, text as in ISO 8601 for dates and timestamps.

    Parameters
    ----------
    column
        Name of the column.
    """

    column: str = attrs.field(converter=converter_str)

    @property
    def active(self) -> bool:
        """Whether the condition filters anything."""
        return True

    @property
    @abstractmethod
    def predicate_part(self) -> list[LiteralType]:
        """Literals ``(column, operator, value)`` that all have to hold."""

    @staticmethod
    def from_string(s: str, all_types: Mapping[str, pa.DataType]) -> Condition:
        """Read a condition from text: ``column operator value``, in parentheses or not.

        The operator is one of ``== = != < <= > >=``. The value contains neither ``=`` nor ``)``, unless it is
        in quotes; within them, a quote is written twice. See
        :func:`~kartothek_cube.core.arguments.get_str_to_python_converter` for its form.

        Parameters
        ----------
        s
            The text.
        all_types
            Arrow type of every column.

        Returns
        -------
        Condition

        Raises
        ------
        ValueError
            The text has another form, the column is unknown, or the value does not fit its type.

        Examples
        --------
        >>> Condition.from_string("(POPULATION >= 1000)", {"POPULATION": pa.int64()})
        GreaterEqualCondition(column='POPULATION', value=1000)
        """
        return _TextReader(all_types).make(codec.parse_text(s))

    def to_tree(self, types: Mapping[str, pa.DataType]) -> Node:
        """The condition on columns of these types, with values of the types where that is exact."""
        literals = [exact_literal(types[self.column], literal) for literal in self.predicate_part]
        return literals[0] if len(literals) == 1 else AllOf(tuple(literals))

    def __invert__(self) -> Condition | Conjunction | Disjunction:
        opposites = [_BY_OPERATOR[_OPPOSITES[op]](column, value) for column, op, value in self.predicate_part]
        if opposites:
            return _one_of(opposites)
        # an interval without limits matches null as well, which the opposite of its opposite has to
        return IsNullCondition(self.column) & NotNullCondition(self.column)


@attrs.frozen
class SimpleCondition(Condition):
    """A condition that compares a column with a value.

    Parameters
    ----------
    column
        Name of the column.
    value
        The value, neither null nor a collection.
    """

    value: Any = attrs.field(converter=codec.to_python_scalar_keep_int, validator=codec.check_value)

    active = True

    @property
    @abstractmethod
    def OP(self) -> str:
        """The operator."""

    @property
    def predicate_part(self) -> list[LiteralType]:
        """One literal."""
        return [(self.column, self.OP, self.value)]

    def __str__(self) -> str:
        return f"{codec.quote_name(self.column)} {self.OP} {self.value}"


@attrs.frozen
class EqualityCondition(SimpleCondition):
    """The column equals the value."""

    OP = "=="


@attrs.frozen
class InequalityCondition(SimpleCondition):
    """The column has another value (and has one)."""

    OP = "!="


@attrs.frozen
class LessThanCondition(SimpleCondition):
    """The column is less than the value."""

    OP = "<"


@attrs.frozen
class LessEqualCondition(SimpleCondition):
    """The column is at most the value."""

    OP = "<="


@attrs.frozen
class GreaterThanCondition(SimpleCondition):
    """The column is greater than the value."""

    OP = ">"


@attrs.frozen
class GreaterEqualCondition(SimpleCondition):
    """The column is at least the value."""

    OP = ">="


@attrs.frozen
class IsInCondition(SimpleCondition):
    """The column has one of several values; no value: no row.

    Parameters
    ----------
    column
        Name of the column.
    value
        The values, or a single one; their order is kept.
    """

    value: tuple[Any, ...] = attrs.field(converter=codec.to_value_tuple, validator=codec.check_values)

    OP = "in"

    def __str__(self) -> str:
        return f"{codec.quote_name(self.column)} {self.OP} {tuple(map(codec.to_python_scalar, self.value))}"


@attrs.frozen
class NotInCondition(IsInCondition):
    """The column has a value, and none of several; no value: every row but nulls.

    Parameters
    ----------
    column
        Name of the column.
    value
        The values, or a single one; their order is kept.
    """

    OP = "not in"


@attrs.frozen
class InIntervalCondition(Condition):
    """The column lies in an interval that includes its start and excludes its stop.

    Parameters
    ----------
    column
        Name of the column.
    start
        First value; None: no limit.
    stop
        First value that is too large; None: no limit.
    """

    start: Any = attrs.field(converter=codec.to_python_scalar_keep_int, validator=_check_limit, default=None)
    stop: Any = attrs.field(converter=codec.to_python_scalar_keep_int, validator=_check_limit, default=None)

    @property
    def active(self) -> bool:
        """Whether there is a limit at all."""
        return self.start is not None or self.stop is not None

    @property
    def predicate_part(self) -> list[LiteralType]:
        """One literal per limit."""
        limits = ((">=", self.start), ("<", self.stop))
        return [(self.column, operator, limit) for operator, limit in limits if limit is not None]

    def __str__(self) -> str:
        return f"{codec.quote_name(self.column)}.in_interval({self.start}, {self.stop})"


@attrs.frozen
class BetweenCondition(Condition):
    """The column lies between two values, both included.

    Parameters
    ----------
    column
        Name of the column.
    first, last
        The values.
    """

    first: Any = attrs.field(converter=codec.to_python_scalar_keep_int, validator=codec.check_value)
    last: Any = attrs.field(converter=codec.to_python_scalar_keep_int, validator=codec.check_value)

    @property
    def predicate_part(self) -> list[LiteralType]:
        """Two literals."""
        return [(self.column, ">=", self.first), (self.column, "<=", self.last)]

    def __str__(self) -> str:
        return f"{codec.quote_name(self.column)} between {self.first} and {self.last}"


@attrs.frozen
class StartsWithCondition(Condition):
    """The text in the column starts with a prefix.

    Parameters
    ----------
    column
        Name of the column.
    prefix
        The prefix; upper and lower case differ.
    """

    prefix: str = attrs.field(converter=codec.to_python_scalar)

    @prefix.validator
    def _check(self, attribute: object, value: Any) -> None:
        codec.check_value(self, attribute, value)
        if not isinstance(value, str):
            raise TypeError(f"Column {self.column!r} cannot start with {describe(value)}: a prefix is text")

    @property
    def predicate_part(self) -> list[LiteralType]:
        """The range of all texts with the prefix."""
        if not self.prefix:
            return [(self.column, "not in", ())]
        after = codec.next_prefix(self.prefix)
        upper: list[LiteralType] = [] if after is None else [(self.column, "<", after)]
        return [(self.column, ">=", self.prefix), *upper]

    def to_tree(self, types: Mapping[str, pa.DataType]) -> Node:
        """As that of other conditions, on text only."""
        dtype = types[self.column]
        if not is_text(dtype) and not pa.types.is_null(dtype):
            other = f"(startswith) with {describe(self.prefix)}"
            raise TypeError(f"Column {self.column!r} of type {dtype} cannot be compared {other}.")
        return super().to_tree(types)

    def __str__(self) -> str:
        return f"{codec.quote_name(self.column)} startswith {self.prefix}"


@attrs.frozen
class IsNullCondition(Condition):
    """The column has no value: null, NaN or NaT, or a dataset without the :term:`cell`.

    Parameters
    ----------
    column
        Name of the column.
    """

    @property
    def predicate_part(self) -> list[LiteralType]:
        """One literal."""
        return [(self.column, "in", (None,))]

    def __invert__(self) -> NotNullCondition:
        return NotNullCondition(self.column)

    def __str__(self) -> str:
        return f"{codec.quote_name(self.column)} is null"


@attrs.frozen
class NotNullCondition(Condition):
    """The column has a value.

    Parameters
    ----------
    column
        Name of the column.
    """

    @property
    def predicate_part(self) -> list[LiteralType]:
        """One literal."""
        return [(self.column, "not in", ())]

    def __invert__(self) -> IsNullCondition:
        return IsNullCondition(self.column)

    def __str__(self) -> str:
        return f"{codec.quote_name(self.column)} is not null"


def _check_operands(*operands: object) -> None:
    for operand in operands:
        if not isinstance(operand, Condition | Conjunction | Disjunction):
            kind = type(operand).__name__
            raise TypeError(f"Only conditions can be joined, not {kind}: {show_value(operand)}")


def _to_conditions(conditions: object) -> tuple[Condition | Disjunction, ...]:
    """Conditions of no condition, one, an iterable of them and of conjunctions, or a conjunction."""
    if isinstance(conditions, Conjunction):
        return conditions.conditions
    elements: list[Condition | Disjunction] = []
    for element in converter_tuple(conditions):
        if isinstance(element, Conjunction):
            elements += element.conditions
        elif isinstance(element, Condition | Disjunction):
            elements.append(element)
        else:
            # of a mask or column of another library, its elements say nothing
            other = element if isinstance(conditions, list) else conditions
            raise TypeError(
                "Conditions are made with C, as C('TEMP') > 10, or are a text, as 'TEMP > 10'; "
                f"got {type(other).__name__}: {show_value(other)}"
            )
    return tuple(elements)


class _Joined(_Operand):
    """Base of conditions that are joined."""

    __slots__ = ()

    conditions: tuple[Any, ...]

    def __attrs_post_init__(self) -> None:
        codec.check_depth(self.conditions)

    @property
    def columns(self) -> set[str]:
        """The columns of active conditions."""
        return set().union(*(_columns(condition) for condition in self.conditions if condition.active))


@attrs.frozen
class Conjunction(_Joined):
    """Conditions that all have to hold; immutable, comparable and hashable.

    Parameters
    ----------
    conditions
        None, one condition, an iterable of conditions and conjunctions, or another conjunction. Conditions
        that are joined by ``|`` are one of them, a :class:`Disjunction`.

    Raises
    ------
    TypeError
        Something else is passed.
    ValueError
        The conditions are nested more than 50 deep.

    Examples
    --------
    >>> print(Conjunction([EqualityCondition("COUNTRY_CODE", "DE"), GreaterThanCondition("DAY", 17)]))
    (COUNTRY_CODE == DE) & (DAY > 17)
    """

    conditions: tuple[Condition | Disjunction, ...] = attrs.field(converter=_to_conditions)

    @classmethod
    def from_two(cls, left: ConditionTree, right: ConditionTree) -> Conjunction:
        """Join two conditions or conjunctions, in order.

        Parameters
        ----------
        left, right
            Conditions, conjunctions or disjunctions.

        Returns
        -------
        Conjunction

        Raises
        ------
        TypeError
            Something else is passed.
        """
        _check_operands(left, right)
        return cls(_to_conditions(left) + _to_conditions(right))

    @staticmethod
    def from_string(s: str, all_types: Mapping[str, pa.DataType]) -> Conjunction:
        """Read conditions from text, joined by ``&``; each as in :meth:`Condition.from_string`.

        ``|``, ``~`` and parentheses join and negate conditions as well. Further operators are words, in upper
        or lower case: ``CITY is null``, ``CITY is not null``, ``DAY in (1, 2)``, ``DAY not in (1, 2)``,
        ``DAY between 1 and 5``, ``CITY startswith Bad``.

        Parameters
        ----------
        s
            The text; a blank one has no condition. Nothing separates within a quoted value.
        all_types
            Arrow type of every column.

        Returns
        -------
        Conjunction

        Raises
        ------
        ValueError
            One of the conditions cannot be read.

        Examples
        --------
        >>> types = {"COUNTRY_CODE": pa.string(), "DAY": pa.int64()}
        >>> print(Conjunction.from_string("COUNTRY_CODE = 'DE' & DAY > 17", types))
        (COUNTRY_CODE == DE) & (DAY > 17)
        >>> print(Conjunction.from_string("~(DAY between 1 and 5) | COUNTRY_CODE in (DE, FR)", types))
        ((DAY < 1) | (DAY > 5) | (COUNTRY_CODE in ('DE', 'FR')))
        """
        return _TextReader(all_types).read(s)

    @staticmethod
    def from_jsonarray(array: list[dict[str, Any]]) -> Conjunction:
        """Reverse :meth:`to_jsonarray`.

        Parameters
        ----------
        array
            One object per condition; it is not changed.

        Returns
        -------
        Conjunction

        Raises
        ------
        TypeError
            The array is no list, an element no dict, its type unknown, or its fields are others.
        ValueError
            An element has no type, or compares with null.

        Examples
        --------
        >>> print(Conjunction.from_jsonarray([{"type": "EqualityCondition", "column": "DAY", "value": 17}]))
        (DAY == 17)
        """
        if not isinstance(array, list):
            raise TypeError(f"Conditions in JSON are a list, not a {type(array).__name__}")
        return Conjunction([codec.from_json(element, _BY_NAME) for element in array])

    def to_jsonarray(self) -> list[dict[str, Any]]:
        """Write the conditions as objects that JSON can express.

        Returns
        -------
        list of dict
            ``{"type": <class>, "column": ..., "value": ...}``; intervals have ``start`` and ``stop``,
            disjunctions ``conditions``.

        Raises
        ------
        TypeError
            A value is no str, bool, int or float, so JSON would not preserve it.

        Examples
        --------
        >>> Conjunction(IsInCondition("CITY", ["Köln", "Bonn"])).to_jsonarray()
        [{'type': 'IsInCondition', 'column': 'CITY', 'value': ['Köln', 'Bonn']}]
        """
        return [codec.to_json(condition) for condition in self.conditions]

    @property
    def active(self) -> bool:
        """Whether a condition filters anything."""
        return any(condition.active for condition in self.conditions)

    @property
    def predicate(self) -> list[LiteralType] | None:
        """The literals of all conditions: one conjunction of a predicate; None if no condition is active.

        Raises ValueError for conditions that are joined by ``|``: one conjunction cannot express them.
        """
        literals: list[LiteralType] = []
        for condition in self.conditions:
            if isinstance(condition, Disjunction):
                shown = abbreviate_text(str(condition))
                raise ValueError(f"Conditions joined by '|' are no single conjunction: {shown}")
            literals += condition.predicate_part
        return literals or None

    def split_by_column(self) -> dict[str, Conjunction]:
        """Group the active conditions by column.

        Returns
        -------
        dict
            Conjunctions of the conditions on each column, in order of first appearance.

        Raises
        ------
        ValueError
            Conditions on several columns are joined by ``|``.
        """
        groups: dict[str, list[Condition | Disjunction]] = {}
        for condition in self.conditions:
            if not condition.active:
                continue
            columns = _columns(condition)
            if len(columns) > 1:
                shown = abbreviate_text(str(condition))
                raise ValueError(f"The columns of conditions joined by '|' cannot be split: {shown}")
            groups.setdefault(columns.pop(), []).append(condition)
        return {name: Conjunction(conditions) for name, conditions in groups.items()}

    def to_tree(self, types: Mapping[str, pa.DataType]) -> AllOf:
        """The conditions on columns of these types."""
        return AllOf(tuple(condition.to_tree(types) for condition in self.conditions if condition.active))

    def __invert__(self) -> Condition | Conjunction | Disjunction:
        if not self.conditions:
            raise ValueError("A conjunction without conditions has no opposite")
        return _one_of([~condition for condition in self.conditions])

    def __str__(self) -> str:
        return " & ".join(f"({condition})" for condition in self.conditions)


def _columns(condition: ConditionTree) -> set[str]:
    return {condition.column} if isinstance(condition, Condition) else condition.columns


def _to_alternatives(alternatives: object) -> tuple[Condition | Conjunction, ...]:
    """Alternatives without nested disjunctions and conjunctions of one condition."""
    flat: list[Condition | Conjunction] = []
    for element in converter_tuple(alternatives):
        _check_operands(element)
        if isinstance(element, Conjunction) and len(element.conditions) == 1:
            element = element.conditions[0]
        flat += element.conditions if isinstance(element, Disjunction) else (element,)
    if not flat:
        raise ValueError("A disjunction has at least one condition")
    return tuple(flat)


def _one_of(alternatives: Sequence[T]) -> T | Disjunction:
    """Disjunction of several conditions; a single one is itself."""
    return alternatives[0] if len(alternatives) == 1 else Disjunction(alternatives)


@attrs.frozen
class Disjunction(_Joined):
    """Conditions of which one has to hold, on one or several columns; immutable, comparable and hashable.

    Parameters
    ----------
    conditions
        One or several conditions, conjunctions or disjunctions.

    Raises
    ------
    TypeError
        Something else is passed.
    ValueError
        Nothing is passed, or conditions that are nested more than 50 deep.

    Examples
    --------
    >>> print((C("DAY") < 17) | C("CITY").is_null())
    (DAY < 17) | (CITY is null)
    >>> print(~((C("DAY") < 17) | C("CITY").is_null()))
    (DAY >= 17) & (CITY is not null)
    """

    conditions: tuple[Condition | Conjunction, ...] = attrs.field(converter=_to_alternatives)

    @property
    def active(self) -> bool:
        """Whether the conditions filter anything: not if one of them matches every row."""
        return all(condition.active for condition in self.conditions)

    def to_tree(self, types: Mapping[str, pa.DataType]) -> Node:
        """The conditions on columns of these types."""
        return AnyOf(tuple(condition.to_tree(types) for condition in self.conditions))

    def __invert__(self) -> Conjunction:
        return functools.reduce(Conjunction.from_two, (~c for c in self.conditions), Conjunction(None))

    def __str__(self) -> str:
        return " | ".join(f"({condition})" for condition in self.conditions)


ConditionTree: TypeAlias = Condition | Conjunction | Disjunction

_COMPARING = (EqualityCondition, InequalityCondition, LessThanCondition, LessEqualCondition)
#: conditions that compare with one value, by operator
COMPARISONS: dict[str, type[SimpleCondition]] = {
    cls.OP: cls for cls in (*_COMPARING, GreaterThanCondition, GreaterEqualCondition)
}
_BY_OPERATOR = COMPARISONS | {"in": IsInCondition, "not in": NotInCondition}
_OPPOSITES = {"==": "!=", "<": ">=", ">": "<=", "in": "not in"}
_OPPOSITES |= {opposite: op for op, opposite in _OPPOSITES.items()}
_RANGES = (InIntervalCondition, BetweenCondition, StartsWithCondition)
_ON_COLUMN: tuple[type, ...] = (*_BY_OPERATOR.values(), *_RANGES, IsNullCondition, NotNullCondition)
_BY_NAME: dict[str, type] = {cls.__name__: cls for cls in (*_ON_COLUMN, Conjunction, Disjunction)}


@attrs.frozen(eq=False)
class VirtualColumn(codec.Incomparable):
    """A column; comparing it with a value makes a condition. Short name: ``C``.

    Parameters
    ----------
    name
        Name of the column.

    Examples
    --------
    >>> C("DAY") >= 17
    GreaterEqualCondition(column='DAY', value=17)
    >>> 17 <= C("DAY") < 20
    Traceback (most recent call last):
    ...
    TypeError: The condition DAY >= 17 is neither true nor false. ...
    """

    _noun: ClassVar[str] = "another column; filter the result, or use SQL"

    name: str = attrs.field(converter=converter_str)

    # "==" makes a condition, so columns cannot be compared and are useless in sets
    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __eq__(self, other: object) -> EqualityCondition:  # type: ignore[override]
        return EqualityCondition(self.name, other)

    def __ne__(self, other: object) -> InequalityCondition:  # type: ignore[override]
        return InequalityCondition(self.name, other)

    def __lt__(self, other: object) -> LessThanCondition:
        return LessThanCondition(self.name, other)

    def __le__(self, other: object) -> LessEqualCondition:
        return LessEqualCondition(self.name, other)

    def __gt__(self, other: object) -> GreaterThanCondition:
        return GreaterThanCondition(self.name, other)

    def __ge__(self, other: object) -> GreaterEqualCondition:
        return GreaterEqualCondition(self.name, other)

    def __rand__(self, other: object) -> NoReturn:
        # ``C("A") > 1 & C("B") == 2``: Python evaluates ``1 & C("B")`` first
        raise TypeError(f"Put comparisons in parentheses: (C('A') == {other!r}) & (C({self.name!r}) == 1)")

    __ror__ = __rand__

    if not TYPE_CHECKING:

        def __and__(self, _: object = None) -> NoReturn:
            problem = f"A column is no condition: compare it with a value, as in C({self.name!r}) == True"
            raise TypeError(problem)

        __or__ = __invert__ = __and__

        def __getattr__(self, name: str) -> NoReturn:
            # protocols of Python ask for names with underscores, copies for the name before it is set
            if name.startswith("_") or name == "name":
                raise AttributeError(name)
            methods = {method for method in dir(type(self)) if not method.startswith("_")} - {"name"}
            raise AttributeError(f"column {self.name!r}: {unknown_names('method', [name], methods)}")

    def isin(self, other: object) -> IsInCondition:
        """Condition that the column has one of several values.

        Parameters
        ----------
        other
            The values, or a single one.

        Returns
        -------
        IsInCondition

        Examples
        --------
        >>> C("CITY").isin(["Köln", "Bonn"])
        IsInCondition(column='CITY', value=('Köln', 'Bonn'))
        """
        return IsInCondition(self.name, other)

    def in_interval(self, start: object = None, stop: object = None) -> InIntervalCondition:
        """Condition that the column lies in an interval.

        Parameters
        ----------
        start
            First value; None: no limit.
        stop
            First value that is too large; None: no limit.

        Returns
        -------
        InIntervalCondition

        Examples
        --------
        >>> C("DAY").in_interval(17, 20)
        InIntervalCondition(column='DAY', start=17, stop=20)
        """
        return InIntervalCondition(self.name, start, stop)

    def between(self, first: object, last: object) -> BetweenCondition:
        """Condition that the column lies between two values, both included, as in SQL.

        Parameters
        ----------
        first, last
            The values.

        Returns
        -------
        BetweenCondition

        Examples
        --------
        >>> C("DAY").between(17, 20)
        BetweenCondition(column='DAY', first=17, last=20)
        """
        return BetweenCondition(self.name, first, last)

    def startswith(self, prefix: str) -> StartsWithCondition:
        """Condition that the text in the column starts with a prefix.

        Parameters
        ----------
        prefix
            The prefix; upper and lower case differ.

        Returns
        -------
        StartsWithCondition

        Examples
        --------
        >>> C("CITY").startswith("Bad ")
        StartsWithCondition(column='CITY', prefix='Bad ')
        """
        return StartsWithCondition(self.name, prefix)

    def is_null(self) -> IsNullCondition:
        """Condition that the column has no value.

        Cells that the dataset of the column does not have match as well.

        Returns
        -------
        IsNullCondition

        Examples
        --------
        >>> C("HOLIDAY").is_null()
        IsNullCondition(column='HOLIDAY')
        """
        return IsNullCondition(self.name)

    def not_null(self) -> NotNullCondition:
        """Condition that the column has a value.

        Returns
        -------
        NotNullCondition

        Examples
        --------
        >>> ~C("HOLIDAY").is_null()
        NotNullCondition(column='HOLIDAY')
        """
        return NotNullCondition(self.name)


C = VirtualColumn


def parse_conditions(text: str, types: Mapping[str, pa.DataType]) -> Conjunction:
    """Parse conditions, also on date columns.

    Parameters
    ----------
    text
        Conditions as in SQL, with keywords in any case: comparisons (also ``==`` and ``!=``), ``IN``,
        ``BETWEEN``, ``LIKE`` of a prefix, ``IS NULL``, each also with ``NOT``, joined by ``AND``, ``OR``,
        ``NOT`` and parentheses; ``&``, ``|``, ``~`` and ``startswith`` are those of :class:`C`.
    types
        Types of the columns by name.

    Returns
    -------
    Conjunction
        The conditions.

    Raises
    ------
    ValueError
        The text is no condition, or a value does not fit its column.

    Examples
    --------
    >>> types = {"DAY": pa.date32(), "COUNTRY_CODE": pa.string()}
    >>> parse_conditions("DAY >= 2020-01-31 & COUNTRY_CODE == DE", types).conditions[0].value
    datetime.date(2020, 1, 31)
    >>> print(parse_conditions("NOT DAY <= '2020-02-01' AND (DAY IS NULL OR COUNTRY_CODE LIKE 'D%')", types))
    (DAY > 2020-02-01) & ((DAY is null) | (COUNTRY_CODE startswith D))
    """
    return _TextReader(types, of_query=True).read(text)


#: quotes, variables, parameters and lists of other languages, which are none in the text of a condition
_NOT_QUOTES = tuple("`´‘’“”„«@$:[{")


class _TextReader:
    """Reads conditions as :meth:`Conjunction.from_string` does, or those of queries."""

    # Those also have dates, decimals, times of day, and any number for integers: all are compared exactly.
    # But they have no values without quotes where only a comparison can be meant, as in kartothek: "NAME ==
    # a|b".

    def __init__(self, types: Mapping[str, pa.DataType], *, of_query: bool = False) -> None:
        self.types, self.of_query = types, of_query

    def read(self, text: str) -> Conjunction:
        """Conditions of a text; one that is blank has none."""
        original = text = text.strip()
        if self.of_query:
            text = codec.replace_words(text, self.types)
        if not text:
            return Conjunction(None)
        try:
            return Conjunction(self._build(codec.parse_joined(text, original)))
        except codec.ConditionSyntaxError:
            has_joins = codec.has_joins(text)
            if has_joins and self.of_query:
                raise
            try:
                # comparisons may have names and values that the grammar does not
                return Conjunction([self.make(codec.parse_text(s)) for s in codec.split_conditions(text)])
            except ValueError as error:
                if not has_joins:
                    raise error from None
            raise

    def _build(self, parsed: codec.JoinedTexts | codec.ConditionText) -> ConditionTree:
        if isinstance(parsed, codec.ConditionText):
            return self.make(parsed)
        operands = [self._build(operand) for operand in parsed.operands]
        if parsed.operator == "~":
            return ~operands[0]
        if parsed.operator == "|":
            return Disjunction(operands)
        return functools.reduce(Conjunction.from_two, operands, Conjunction(None))

    def make(self, parsed: codec.ConditionText) -> Condition:
        """Condition of its text."""
        column, operator = parsed.column, parsed.operator
        if column not in self.types and codec.QUOTED_NAME.fullmatch(column):
            column = column[1:-1].replace('""', '"')
            parsed = parsed._replace(column=column)
        if operator == "<>":
            if not self.of_query:
                # kartothek does not have it
                raise codec.ConditionSyntaxError(codec.describe_syntax(parsed.text))
            operator = "!="
        check_names(f"Condition {abbreviate_text(repr(parsed.text))}: ", "column", [column], self.types)
        if operator in ("startswith", "like"):
            text = codec.parse_value(parsed, parsed.values[0], {column: pa.string()}, False)
            return StartsWithCondition(column, text) if operator == "startswith" else _like(column, text)
        values = [self._value(parsed, text) for text in parsed.values]
        if operator == "in":
            return IsInCondition(column, tuple(values))
        if operator == "is null":
            return IsNullCondition(column)
        if operator == "between":
            return BetweenCondition(column, *values)
        return COMPARISONS[operator](column, *values)

    def _value(self, parsed: codec.ConditionText, text: str) -> Any:
        if self.of_query and (problem := self._find_problem(parsed.column, text)):
            raise ValueError(f"Condition {abbreviate_text(repr(parsed.text))}{problem}")
        return codec.parse_value(parsed, text, self.types, self.of_query)

    def _find_problem(self, column: str, text: str) -> str:
        """Problem of a value in a text of a query; empty if there is none."""
        if text.lower() == "null" or text == "None":
            name = codec.quote_name(column)
            return f": conditions never match nulls; write {name} IS NULL, or the text {text!r} in quotes"
        if text[:1] in codec.QUOTES or not is_text(self.types[column]):
            return ""
        in_quotes = f"in quotes: '{text}'"
        if text[:1] in _NOT_QUOTES:
            return f": no value starts with {text[:1]}; if it is part of the text, write this {in_quotes}"
        if codec.PLAIN_NUMBER.fullmatch(text):
            return f": column {column!r} has texts, and {text} is a number; write the text {in_quotes}"
        if text in self.types and is_text(self.types[text]):
            return f": conditions compare with values, and {text} is a column; write a text {in_quotes}"
        if "(" in text:
            return ": write a text with parentheses in quotes"
        # a word alone is a value, such as the state of Oregon
        before, _, last = text.rpartition(" ")
        missing = codec.find_missing(text) if before else ""
        if last in self.types and codec.find_missing(before.rstrip()):
            missing = f": {last} is a column, which a condition compares with a value"
        return f"{missing}; if it is part of the text, write this {in_quotes}" if missing else ""


def _like(column: str, pattern: str) -> Condition:
    """The condition of a pattern of SQL, which may have a % at its end only."""
    prefix, wildcard, end = pattern.partition("%")
    if end or "_" in prefix:
        raise ValueError(
            f"Condition on {column}: LIKE takes a prefix, as in 'Bad%', not "
            f"{abbreviate_text(repr(pattern))}; a prefix that contains % or _ is written startswith 'a_b'"
        )
    return StartsWithCondition(column, prefix) if wildcard else EqualityCondition(column, prefix)


class ColumnExpression(Protocol):
    """An expression of Polars, ``pl.col("TEMP") > 10``, or a Column of Spark, ``F.col("TEMP") > 10``."""

    def alias(self, name: str, /) -> object:
        """Give it a name."""


SingleCondition: TypeAlias = (
    Condition | Conjunction | Disjunction | str | LiteralType | ColumnExpression | pc.Expression
)
ConditionsInput: TypeAlias = SingleCondition | Iterable[SingleCondition] | list[list[LiteralType]] | None
"""Conditions that all have to hold: made with :class:`C`, as text (``"TEMP > 10 AND DAY >= 2024-01-05"``),
expressions of Polars or Arrow, Columns of Spark, or predicates."""
