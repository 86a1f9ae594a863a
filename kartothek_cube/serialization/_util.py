"""What all serializers need: checks of arguments, and columns by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pandas as pd

from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.expressions.predicate import PredicatesType, check_predicates, columns_in_predicates

__all__ = ("check_columns", "check_filters", "columns_to_read", "select_columns")


def check_filters(filter_query: str | None, predicates: PredicatesType) -> None:
    """
    Refuse two filters at once, and predicates of the wrong form.

    Parameters
    ----------
    filter_query, predicates
        The arguments of ``restore_dataframe``.

    Raises
    ------
    ValueError
        Both are given, or the predicates have the wrong form.

    Examples
    --------
    >>> check_filters("CITY == 'Rom'", None)
    """
    if filter_query and predicates is not None:
        raise ValueError("Use either predicates or filter_query (deprecated) to filter, not both.")
    check_predicates(predicates)


def check_columns(wanted: Iterable[str], available: Collection[str], where: str = "") -> None:
    """
    Refuse columns that do not exist.

    Parameters
    ----------
    wanted, available
        Names of columns.
    where
        The file, for the message.

    Raises
    ------
    ValueError
        Names the columns that are missing, and those that there are.

    Examples
    --------
    >>> check_columns(["CITY"], ["CITY", "DAY"])
    """
    unknown = set(wanted) - set(available)
    if unknown:
        prefix = f"{where}: " if where else ""
        raise ValueError(f"{prefix}{unknown_names('column', unknown, available)}.")


def columns_to_read(columns: Sequence[str] | None, predicates: PredicatesType) -> list[str] | None:
    """
    Columns that have to be read to filter and to return some.

    Parameters
    ----------
    columns
        Columns to return; None for all.
    predicates
        The filter.

    Returns
    -------
    list of str or None
        Each column once; None for all.

    Examples
    --------
    >>> columns_to_read(["CITY"], [[("DAY", ">", 1)]])
    ['CITY', 'DAY']
    """
    if columns is None:
        return None
    return list(dict.fromkeys([*columns, *sorted(columns_in_predicates(predicates))]))


def select_columns(df: pd.DataFrame, columns: Sequence[str] | None) -> pd.DataFrame:
    """
    The frame with exactly these columns.

    Parameters
    ----------
    df
        The frame.
    columns
        Columns in the order wanted; None for all.

    Returns
    -------
    pandas.DataFrame

    Examples
    --------
    >>> select_columns(pd.DataFrame({"DAY": [1], "CITY": ["Rom"]}), ["CITY"]).columns.tolist()
    ['CITY']
    """
    return df if columns is None else df[list(columns)]
