"""Conditions of cube queries, built from columns (``C("CITY") == "Köln"``), from text or from JSON."""

from __future__ import annotations

from typing import ClassVar

import attrs

from kartothek_cube.core._converters import converter_str
from kartothek_cube.core.cube._condition_forms import Incomparable
from kartothek_cube.core.cube._conditions import (
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
)


@attrs.frozen(eq=False)
class VirtualColumn(Incomparable):
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

    _noun: ClassVar[str] = "another column"

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
