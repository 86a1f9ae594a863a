"""Checks and column selection shared by all serializers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pandas as pd

from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.expressions.predicate import PredicatesType, check_predicates, columns_in_predicates

__all__ = ("check_columns", "check_filters", "columns_to_read", "select_columns")


def check_filters(filter_query: str | None, predicates: PredicatesType) -> None:
    """Raise ValueError for two filters at once, and for malformed predicates."""
    if filter_query and predicates is not None:
        raise ValueError("Use either predicates or filter_query (deprecated) to filter, not both.")
    check_predicates(predicates)


def check_columns(columns: Iterable[str], available: Collection[str], where: str = "") -> None:
    """Raise ValueError for columns that do not exist."""
    unknown = set(columns) - set(available)
    if unknown:
        prefix = f"{where}: " if where else ""
        raise ValueError(f"{prefix}{unknown_names('column', unknown, available)}.")


def columns_to_read(columns: Sequence[str] | None, predicates: PredicatesType) -> list[str] | None:
    """Columns needed to filter and to return some; None for all.

    Examples
    --------
    >>> columns_to_read(["CITY"], [[("DAY", ">", 1)]])
    ['CITY', 'DAY']
    """
    if columns is None:
        return None
    return list(dict.fromkeys([*columns, *sorted(columns_in_predicates(predicates))]))


def select_columns(df: pd.DataFrame, columns: Sequence[str] | None) -> pd.DataFrame:
    """Columns of a frame in this order; None for all."""
    return df if columns is None else df[list(columns)]
