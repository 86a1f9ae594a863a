"""Conditions of cube queries: on columns (``C("CITY") == "Köln"``), from text or JSON; conjunctions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arguments import converter_str, converter_tuple
from kartothek_cube.core.cube.condition_codec import (
    Incomparable,
    check_value,
    check_values,
    filter_rows,
    from_json,
    parse_text,
    split_conditions,
    to_json,
    to_python_scalar,
    to_python_scalar_keep_int,
    to_value_tuple,
)
from kartothek_cube.core.expressions.predicate import LiteralType

__all__ = (
    "C",
    "Condition",
    "Conjunction",
    "EqualityCondition",
    "GreaterEqualCondition",
    "GreaterThanCondition",
    "InIntervalCondition",
    "InequalityCondition",
    "IsInCondition",
    "LessEqualCondition",
    "LessThanCondition",
    "SimpleCondition",
    "VirtualColumn",
    "parse_conditions",
)


@attrs.frozen
class Condition(Incomparable, ABC):
    """Condition on one column; immutable, comparable and hashable.

    Null matches no condition.

    Parameters
    ----------
    column
        Name of the column.
    """

    column: str = attrs.field(converter=converter_str)

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether the condition filters anything."""

    @property
    @abstractmethod
    def predicate_part(self) -> list[LiteralType]:
        """Literals ``(column, operator, value)`` that all have to hold."""

    @staticmethod
    def from_string(s: str, all_types: Mapping[str, pa.DataType]) -> SimpleCondition:
        """Read a condition from text: ``column operator value``, in parentheses or not.

        The operator is one of ``== = != < <= > >=``. The value contains neither ``=`` nor ``)``, unless it is
        in quotes; within them, a quote is written twice. See
        :func:`~kartothek_cube.utils.converters.get_str_to_python_converter` for its form.

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
        column, operator, value = parse_text(s, all_types)
        return COMPARISONS["==" if operator == "=" else operator](column, value)

    def filter_df(self, df: pd.DataFrame) -> pd.DataFrame:
        """Select the rows that match the condition.

        Parameters
        ----------
        df
            The frame.

        Returns
        -------
        pandas.DataFrame
            The rows with their index; the frame itself if the condition is not active.

        Raises
        ------
        TypeError
            The value does not fit the type of the column.
        ValueError
            The frame lacks the column.

        Examples
        --------
        >>> df = pd.DataFrame({"CITY": ["Köln", "Bonn", None], "DAY": [1, 2, 3]})
        >>> InequalityCondition("CITY", "Köln").filter_df(df)
           CITY  DAY
        1  Bonn    2
        """
        return Conjunction(self).filter_df(df)

    def __and__(self, other: Condition | Conjunction) -> Conjunction:
        return Conjunction.from_two(self, other)

    def __bool__(self) -> bool:
        raise TypeError(
            f"The condition {self} is neither true nor false. Join conditions by '&' instead of 'and', "
            "and write C(...).in_interval(a, b), or two conditions, instead of 'a <= C(...) < b'."
        )


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

    value: Any = attrs.field(converter=to_python_scalar_keep_int)

    active = True

    @property
    @abstractmethod
    def OP(self) -> str:
        """The operator."""

    @value.validator
    def _check(self, attribute: object, value: Any) -> None:
        check_value(self.column, value)

    @property
    def predicate_part(self) -> list[LiteralType]:
        """One literal."""
        return [(self.column, self.OP, self.value)]

    def __str__(self) -> str:
        return f"{self.column} {self.OP} {self.value}"


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

    value: tuple[Any, ...] = attrs.field(converter=to_value_tuple)

    OP = "in"

    @value.validator
    def _check(self, attribute: object, value: tuple[Any, ...]) -> None:
        check_values(self.column, value)

    def __str__(self) -> str:
        return f"{self.column} {self.OP} {tuple(map(to_python_scalar, self.value))}"


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

    start: Any = attrs.field(converter=to_python_scalar_keep_int, default=None)
    stop: Any = attrs.field(converter=to_python_scalar_keep_int, default=None)

    @start.validator
    @stop.validator
    def _check(self, attribute: object, value: Any) -> None:
        if value is not None:
            check_value(self.column, value)

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
        return f"{self.column}.in_interval({self.start}, {self.stop})"


def _to_conditions(conditions: object) -> tuple[Condition, ...]:
    """Conditions of no condition, one, an iterable of them, or a conjunction."""
    if isinstance(conditions, Conjunction):
        return conditions.conditions
    elements = converter_tuple(conditions)
    for element in elements:
        if not isinstance(element, Condition):
            raise TypeError(f"A conjunction is made of conditions, not {type(element).__name__}: {element!r}")
    return elements  # type: ignore[return-value]


@attrs.frozen
class Conjunction(Incomparable):
    """Conditions that all have to hold; immutable, comparable and hashable.

    Parameters
    ----------
    conditions
        None, one condition, an iterable of conditions, or another conjunction.

    Raises
    ------
    TypeError
        Something else is passed.

    Examples
    --------
    >>> print(Conjunction([EqualityCondition("COUNTRY_CODE", "DE"), GreaterThanCondition("DAY", 17)]))
    (COUNTRY_CODE == DE) & (DAY > 17)
    """

    conditions: tuple[Condition, ...] = attrs.field(converter=_to_conditions)

    @classmethod
    def from_two(cls, left: Condition | Conjunction, right: Condition | Conjunction) -> Conjunction:
        """Join two conditions or conjunctions, in order.

        Parameters
        ----------
        left, right
            Conditions or conjunctions.

        Returns
        -------
        Conjunction

        Raises
        ------
        TypeError
            Something else is passed.
        """
        for operand in (left, right):
            if not isinstance(operand, Condition | Conjunction):
                raise TypeError(f"Only conditions can be joined, not {type(operand).__name__}: {operand!r}")
        return cls(_to_conditions(left) + _to_conditions(right))

    @staticmethod
    def from_string(s: str, all_types: Mapping[str, pa.DataType]) -> Conjunction:
        """Read conditions from text, joined by ``&``; each as in :meth:`Condition.from_string`.

        Parameters
        ----------
        s
            The text; a blank one has no condition. ``&`` separates, but not within a quoted value.
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
        """
        text = s.strip()
        if not text:
            return Conjunction(None)
        return Conjunction([Condition.from_string(part, all_types) for part in split_conditions(text)])

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
        return Conjunction([from_json(element, _BY_NAME) for element in array])

    def to_jsonarray(self) -> list[dict[str, Any]]:
        """Write the conditions as objects that JSON can express.

        Returns
        -------
        list of dict
            ``{"type": <class>, "column": ..., "value": ...}``; intervals have ``start`` and ``stop``.

        Raises
        ------
        TypeError
            A value is no str, bool, int or float, so JSON would not preserve it.

        Examples
        --------
        >>> Conjunction(IsInCondition("CITY", ["Köln", "Bonn"])).to_jsonarray()
        [{'type': 'IsInCondition', 'column': 'CITY', 'value': ['Köln', 'Bonn']}]
        """
        return [to_json(condition) for condition in self.conditions]

    @property
    def columns(self) -> set[str]:
        """The columns of active conditions."""
        return {condition.column for condition in self.conditions if condition.active}

    @property
    def predicate(self) -> list[LiteralType] | None:
        """The literals of all conditions: one conjunction of a predicate; None if no condition is active."""
        return [literal for condition in self.conditions for literal in condition.predicate_part] or None

    def split_by_column(self) -> dict[str, Conjunction]:
        """Group the active conditions by column.

        Returns
        -------
        dict
            Conjunctions of the conditions on each column, in order of first appearance.
        """
        active = [condition for condition in self.conditions if condition.active]
        columns = dict.fromkeys(condition.column for condition in active)
        return {name: Conjunction(c for c in active if c.column == name) for name in columns}

    def filter_df(self, df: pd.DataFrame) -> pd.DataFrame:
        """Select the rows that match all conditions; null matches none.

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
        >>> (InequalityCondition("CITY", "Bonn") & LessThanCondition("DAY", 3)).filter_df(df)
           CITY  DAY
        0  Köln    1
        """
        literals = self.predicate
        return df if literals is None else filter_rows(df, self.columns, literals)

    def __and__(self, other: Condition | Conjunction) -> Conjunction:
        return Conjunction.from_two(self, other)

    def __str__(self) -> str:
        return " & ".join(f"({condition})" for condition in self.conditions)


#: conditions that compare with one value, by operator
COMPARISONS: dict[str, type[SimpleCondition]] = {
    "==": EqualityCondition,
    "!=": InequalityCondition,
    "<": LessThanCondition,
    "<=": LessEqualCondition,
    ">": GreaterThanCondition,
    ">=": GreaterEqualCondition,
}
_ALL: tuple[type[Condition], ...] = (*COMPARISONS.values(), IsInCondition, InIntervalCondition)
_BY_NAME = {c.__name__: c for c in _ALL}


@attrs.frozen(eq=False)
class VirtualColumn(Incomparable):
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

    _noun: ClassVar[str] = "another column"

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


C = VirtualColumn


def parse_conditions(text: str, types: Mapping[str, pa.DataType]) -> Conjunction:
    """Parse conditions, also on date columns; raises ValueError.

    Examples
    --------
    >>> types = {"DAY": pa.date32(), "COUNTRY_CODE": pa.string()}
    >>> parse_conditions("DAY >= 2020-01-31 & COUNTRY_CODE == DE", types).conditions[0].value
    datetime.date(2020, 1, 31)
    """
    dates = {name for name, dtype in types.items() if pa.types.is_date(dtype)}
    readable = {name: pa.timestamp("ns") if name in dates else dtype for name, dtype in types.items()}
    conditions = Conjunction.from_string(text, readable).conditions
    return Conjunction([_with_date(c) if c.column in dates else c for c in conditions])


def _with_date(condition: Any) -> Condition:
    """Convert the timestamp of a condition on a date column to a date."""
    stamp = condition.value
    if stamp != stamp.normalize():
        raise ValueError(
            f"Condition '{condition}': column {condition.column} has dates, without a time of day"
        )
    result: Condition = attrs.evolve(condition, value=stamp.date())
    return result
