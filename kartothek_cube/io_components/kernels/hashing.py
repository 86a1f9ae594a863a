"""Hashes of rows, added up so that their order does not matter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ("hash_groups", "hash_rows", "merge_hashes")


def _hashes(df: pd.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    return np.asarray(pd.util.hash_pandas_object(df[list(columns)], index=False), np.uint64)


def hash_rows(df: pd.DataFrame, columns: Sequence[str]) -> int:
    """
    One hash for all rows of a frame.

    Parameters
    ----------
    df
        The frame, dates as objects.
    columns
        Columns that count.

    Returns
    -------
    int
        Sum of the hashes of the rows, modulo 2**64.

    Examples
    --------
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> hash_rows(cities, ["CITY"]) == hash_rows(cities[::-1], ["CITY"])
    True
    """
    return int(_hashes(df, columns).sum(dtype=np.uint64))


def hash_groups(df: pd.DataFrame, columns: Sequence[str], keys: Sequence[str]) -> pd.Series[int]:
    """
    One hash for all rows of each group.

    Parameters
    ----------
    df, columns
        As in :func:`hash_rows`.
    keys
        Columns whose values make the groups; rows with missing values are in none.

    Returns
    -------
    pandas.Series
        uint64 by value of the keys, sorted.
    """
    hashes = pd.Series(_hashes(df, columns), dtype="uint64")
    return hashes.groupby([df[key].reset_index(drop=True) for key in keys]).sum()


def merge_hashes(parts: Iterable[pd.Series[int]]) -> pd.Series[int]:
    """
    Hashes of groups whose rows are in several frames.

    Parameters
    ----------
    parts
        What :func:`hash_groups` gave for these; at least one.

    Returns
    -------
    pandas.Series
    """
    together = pd.concat(list(parts))
    return together.groupby(level=list(range(together.index.nlevels))).sum()
