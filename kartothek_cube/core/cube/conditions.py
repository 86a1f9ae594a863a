"""Conditions of cube queries, built from columns (``C("CITY") == "Köln"``), from text or from JSON."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core._converters import converter_str, converter_tuple, get_str_to_python_converter
from kartothek_cube.core.errors import unknown_names

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
)

Literal: TypeAlias = tuple[str, str, Any]

# Parentheses are optional, and so are blanks. An operator is not followed by another one ("=>", "<>").
_CONDITION = re.compile(
    r"\s*\(?\s*(?P<column>[^\s=<>!]+)\s*(?P<op>==|!=|<=|>=|=|<|>)(?![<>!])\s*(?P<value>[^=)]*?)\s*\)?\s*"
)
_JSON_SCALARS = (str, bool, int, float)


def _plain(value: Any) -> Any:
    """Make Python scalars of numpy's, so that conditions look and travel alike; times keep their unit."""
    return value.item() if isinstance(value, np.bool_ | np.number | np.str_ | np.bytes_) else value


def _plain_tuple(values: object) -> tuple[Any, ...]:
    return tuple(_plain(value) for value in converter_tuple(values))


def _check_value(column: str, value: Any) -> None:
    """Refuse everything that is not a single value to compare a column with."""
    if isinstance(value, VirtualColumn):
        raise TypeError(f"Column {column!r} cannot be compared with another column")
    if isinstance(value, Condition | Conjunction):
        raise TypeError(f"Column {column!r} cannot be compared with a condition")
    if pd.api.types.is_list_like(value):
        kind = type(value).__name__
        raise TypeError(f"Column {column!r} cannot be compared with a {kind}; use isin() for several values")
    if pd.isna(value):
        raise ValueError(f"Column {column!r} cannot be compared with {value!r}: conditions never match nulls")
    try:
        hash(value)
    except TypeError as error:
        raise TypeError(f"Column {column!r} cannot be compared with {value!r}: {error}") from None


@attrs.frozen
class Condition(ABC):
    """Something about one column that rows have to fulfil; immutable, comparable and hashable.

    Rows in which the column is null fulfil no condition.

    Parameters
    ----------
    column
        Name of the column.
    """

    column: str = attrs.field(converter=converter_str)

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether the condition restricts anything."""

    @property
    @abstractmethod
    def predicate_part(self) -> list[Literal]:
        """The condition as literals ``(column, operator, value)``, all of which have to hold."""

    @staticmethod
    def from_string(s: str, all_types: Mapping[str, pa.DataType]) -> SimpleCondition:
        """Read a condition from text: ``column operator value``, in parentheses or not.

        The operator is one of ``== = != < <= > >=``. The value has no ``=`` and no ``)``; how it is read
        depends on the type of the column, see
        :func:`~kartothek_cube.utils.converters.get_str_to_python_converter`.

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
        match = _CONDITION.fullmatch(s)
        if match is None:
            raise ValueError(f"Cannot parse condition {s!r}; expected: column operator value")
        column, operator, text = match.group("column", "op", "value")
        if column not in all_types:
            raise ValueError(f"Condition {s!r}: {unknown_names('column', [column], all_types)}")
        convert = get_str_to_python_converter(all_types[column])
        try:
            value = convert(text)
        except ValueError as error:
            expected = f"column {column!r} has type {all_types[column]}"
            raise ValueError(f"Condition {s!r}: {text!r} does not fit, {expected} ({error})") from error
        return _SIMPLE_CONDITIONS[operator](column, value)

    def filter_df(self, df: pd.DataFrame) -> pd.DataFrame:
        """Select the rows that fulfil the condition.

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
        >>> (C("CITY") != "Köln").filter_df(df)
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

    value: Any = attrs.field(converter=_plain)

    active = True

    @property
    @abstractmethod
    def OP(self) -> str:
        """The operator."""

    @value.validator
    def _check(self, attribute: object, value: Any) -> None:
        _check_value(self.column, value)

    @property
    def predicate_part(self) -> list[Literal]:
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

    value: tuple[Any, ...] = attrs.field(converter=_plain_tuple)

    OP = "in"

    @value.validator
    def _check(self, attribute: object, value: tuple[Any, ...]) -> None:
        for single in value:
            _check_value(self.column, single)


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

    start: Any = attrs.field(converter=_plain, default=None)
    stop: Any = attrs.field(converter=_plain, default=None)

    @start.validator
    @stop.validator
    def _check(self, attribute: object, value: Any) -> None:
        if value is not None:
            _check_value(self.column, value)

    @property
    def active(self) -> bool:
        """Whether there is a limit at all."""
        return self.start is not None or self.stop is not None

    @property
    def predicate_part(self) -> list[Literal]:
        """One literal per limit."""
        limits = ((">=", self.start), ("<", self.stop))
        return [(self.column, operator, limit) for operator, limit in limits if limit is not None]

    def __str__(self) -> str:
        return f"{self.column}.in_interval({self.start}, {self.stop})"


def _flat(conditions: object) -> tuple[Condition, ...]:
    """Take no condition, one, an iterable of them, or a conjunction."""
    if isinstance(conditions, Conjunction):
        return conditions.conditions
    elements = converter_tuple(conditions)
    for element in elements:
        if not isinstance(element, Condition):
            kind = type(element).__name__
            raise TypeError(f"A conjunction is made of conditions, not of {kind}: {element!r}")
    return elements  # type: ignore[return-value]


@attrs.frozen
class Conjunction:
    """Conditions that all have to hold; immutable, comparable and hashable.

    Parameters
    ----------
    conditions
        None, one condition, an iterable of conditions, or another conjunction.

    Raises
    ------
    TypeError
        There is something else among them.

    Examples
    --------
    >>> print((C("COUNTRY_CODE") == "DE") & (C("DAY") > 17))
    (COUNTRY_CODE == DE) & (DAY > 17)
    """

    conditions: tuple[Condition, ...] = attrs.field(converter=_flat)

    @classmethod
    def from_two(cls, left: Condition | Conjunction, right: Condition | Conjunction) -> Conjunction:
        """Join two conditions or conjunctions, in order.

        Parameters
        ----------
        left, right
            What has to hold.

        Returns
        -------
        Conjunction

        Raises
        ------
        TypeError
            One of them is something else.
        """
        for side in (left, right):
            if not isinstance(side, Condition | Conjunction):
                raise TypeError(f"Only conditions can be joined, not {type(side).__name__}: {side!r}")
        return cls(_flat(left) + _flat(right))

    @staticmethod
    def from_string(s: str, all_types: Mapping[str, pa.DataType]) -> Conjunction:
        """Read conditions from text, joined by ``&``; each as in :meth:`Condition.from_string`.

        Parameters
        ----------
        s
            The text; a blank one has no condition. ``&`` always separates, within quotes as well.
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
        if not s.strip():
            return Conjunction(None)
        return Conjunction([Condition.from_string(part, all_types) for part in s.split("&")])

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
            The array is no list, an element no dict, its type unknown, or its fields are not those of the
            type.
        ValueError
            An element has no type, or compares with null.

        Examples
        --------
        >>> print(Conjunction.from_jsonarray([{"type": "EqualityCondition", "column": "DAY", "value": 17}]))
        (DAY == 17)
        """
        if not isinstance(array, list):
            raise TypeError(f"Conditions in JSON are a list, not a {type(array).__name__}")
        return Conjunction([_condition_from_json(element) for element in array])

    def to_jsonarray(self) -> list[dict[str, Any]]:
        """Write the conditions as objects that JSON can express.

        Returns
        -------
        list of dict
            ``{"type": <class>, "column": ..., "value": ...}``; intervals have ``start`` and ``stop``.

        Raises
        ------
        TypeError
            A value is no str, bool, int or float, such as a time stamp: JSON has no form for it that would be
            read as the same value again.

        Examples
        --------
        >>> Conjunction(C("CITY").isin(["Köln", "Bonn"])).to_jsonarray()
        [{'type': 'IsInCondition', 'column': 'CITY', 'value': ['Köln', 'Bonn']}]
        """
        return [_condition_to_json(condition) for condition in self.conditions]

    @property
    def columns(self) -> set[str]:
        """The columns that are restricted."""
        return {condition.column for condition in self.conditions if condition.active}

    @property
    def predicate(self) -> list[Literal] | None:
        """The literals of all conditions, one conjunction of a predicate; None if nothing is restricted."""
        return [literal for condition in self.conditions for literal in condition.predicate_part] or None

    def split_by_column(self) -> dict[str, Conjunction]:
        """Sort the active conditions by column.

        Returns
        -------
        dict
            Conjunctions of the conditions on each column, in order of first appearance.
        """
        by_column: dict[str, list[Condition]] = {}
        for condition in self.conditions:
            if condition.active:
                by_column.setdefault(condition.column, []).append(condition)
        return {column: Conjunction(conditions) for column, conditions in by_column.items()}

    def filter_df(self, df: pd.DataFrame) -> pd.DataFrame:
        """Select the rows that fulfil all conditions; a null in a column of a condition fulfils none.

        Parameters
        ----------
        df
            The frame.

        Returns
        -------
        pandas.DataFrame
            The rows with their index; the frame itself if nothing is restricted.

        Raises
        ------
        TypeError
            A value does not fit the type of its column.
        ValueError
            The frame lacks a column.

        Examples
        --------
        >>> df = pd.DataFrame({"CITY": ["Köln", "Bonn", None], "DAY": [1, 2, 3]})
        >>> ((C("CITY") != "Bonn") & (C("DAY") < 3)).filter_df(df)
           CITY  DAY
        0  Köln    1
        """
        from kartothek_cube.core.predicates import filter_mask
        from kartothek_cube.core.types import from_pandas

        literals = self.predicate
        if literals is None:
            return df
        missing = self.columns.difference(df.columns)
        if missing:
            raise ValueError(f"Conditions: {unknown_names('column', missing, df.columns)}")
        mask = filter_mask(from_pandas(df[sorted(self.columns)]), [literals])
        return df.loc[mask.to_numpy(zero_copy_only=False)]

    def __and__(self, other: Condition | Conjunction) -> Conjunction:
        return Conjunction.from_two(self, other)

    def __str__(self) -> str:
        return " & ".join(f"({condition})" for condition in self.conditions)


@attrs.frozen(eq=False)
class VirtualColumn:
    """A column whose comparison with a value makes a condition; short name: ``C``.

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

    name: str = attrs.field(converter=converter_str)

    # "==" builds a condition, so two columns cannot be compared and a set could not find them
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
        """Make the condition that the column has one of several values.

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
        """Make the condition that the column lies in an interval.

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

_SIMPLE_CONDITIONS: dict[str, type[SimpleCondition]] = {
    "==": EqualityCondition,
    "=": EqualityCondition,
    "!=": InequalityCondition,
    "<": LessThanCondition,
    "<=": LessEqualCondition,
    ">": GreaterThanCondition,
    ">=": GreaterEqualCondition,
}
_CONDITIONS: tuple[type[Condition], ...] = (*_SIMPLE_CONDITIONS.values(), IsInCondition, InIntervalCondition)
_BY_NAME = {cls.__name__: cls for cls in _CONDITIONS}


def _condition_from_json(element: dict[str, Any]) -> Condition:
    if not isinstance(element, dict):
        raise TypeError(f"A condition in JSON is an object, not a {type(element).__name__}: {element!r}")
    if "type" not in element:
        raise ValueError(f"A condition in JSON has a 'type', which is missing in {element!r}")
    cls = _BY_NAME.get(element["type"]) if isinstance(element["type"], str) else None
    if cls is None:
        raise TypeError(f"A condition in JSON: {unknown_names('type', [element['type']], _BY_NAME)}")
    fields = {name: value for name, value in element.items() if name != "type"}
    try:
        return cls(**fields)
    except TypeError as error:
        raise TypeError(f"A condition in JSON, {element!r}: {error}") from error


def _condition_to_json(condition: Condition) -> dict[str, Any]:
    fields = {field.name: getattr(condition, field.name) for field in attrs.fields(type(condition))}
    for name, value in fields.items():
        for single in value if isinstance(value, tuple) else (value,):
            if single is not None and not isinstance(single, _JSON_SCALARS):
                kind = type(single).__name__
                raise TypeError(
                    f"The {name} of condition {condition} has no form in JSON, being a {kind}; "
                    "str, bool, int and float have one"
                )
    return {
        "type": type(condition).__name__,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()},
    }
