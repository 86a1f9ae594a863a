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
    Sum of the hashes of all rows, modulo 2**64; dates are objects.

    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> hash_rows(cities, ["CITY"]) == hash_rows(cities[::-1], ["CITY"])
    True
    """
    return int(_hashes(df, columns).sum(dtype=np.uint64))


def hash_groups(df: pd.DataFrame, columns: Sequence[str], keys: Sequence[str]) -> pd.Series[int]:
    """Sum of the hashes of the rows of each group, by key; rows with a missing key are in no group."""
    hashes = pd.Series(_hashes(df, columns), dtype="uint64")
    return hashes.groupby([df[key].reset_index(drop=True) for key in keys]).sum()


def merge_hashes(hashes: Iterable[pd.Series[int]]) -> pd.Series[int]:
    """Hashes of groups whose rows are in several frames; ``hashes`` has one entry per frame, at least one."""
    concatenated = pd.concat(list(hashes))
    return concatenated.groupby(level=list(range(concatenated.index.nlevels))).sum()
