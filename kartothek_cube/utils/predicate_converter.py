"""Conversion of dataset predicates to cube conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from kartothek_cube.core.cube.conditions import COMPARISONS, Condition

__all__ = ("convert_predicates_to_cube_conditions", "write_predicate_as_cube_condition")

_VALUE_TYPES = (str, int, float, bool, pd.Timestamp)


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
    if type(value) not in _VALUE_TYPES:
        allowed, kind = ", ".join(cls.__name__ for cls in _VALUE_TYPES), type(value).__name__
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
