"""Conditions of cube queries, from columns (``C("CITY") == "Köln"``), text or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import pyarrow as pa

from kartothek_cube.core.arguments import converter_str
from kartothek_cube.core.cube.condition_codec import Incomparable
from kartothek_cube.core.cube.condition_types import (
    Condition,
    Conjunction,
    EqualityCondition,
    GreaterEqualCondition,
    GreaterThanCondition,
    InequalityCondition,
    InIntervalCondition,
    IsInCondition,
    LessEqualCondition,
    LessThanCondition,
    SimpleCondition,
)

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
