"""Helpers for tests: a frozen time, and frames with all types that datasets can hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime

import numpy as np
import pandas as pd

from kartothek_cube.core import clock

__all__ = (
    "TIME_TO_FREEZE",
    "TIME_TO_FREEZE_ISO",
    "TIME_TO_FREEZE_ISO_QUOTED",
    "cm_frozen_time",
    "get_dataframe_alltypes",
    "get_dataframe_not_nested",
)

TIME_TO_FREEZE = datetime(2000, 1, 1, 1, 1, 1, 1)
TIME_TO_FREEZE_ISO = "2000-01-01T01:01:01.000001"
TIME_TO_FREEZE_ISO_QUOTED = "2000-01-01T01%3A01%3A01.000001"

_NUMBERS = ("float32", "float64", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))


@contextmanager
def cm_frozen_time(time_to_freeze: datetime) -> Iterator[None]:
    """Let the library believe that it is always the same time.

    Parameters
    ----------
    time_to_freeze
        That time, naive UTC.

    Yields
    ------
    None

    Examples
    --------
    >>> with cm_frozen_time(TIME_TO_FREEZE):
    ...     print(clock.datetime_utcnow())
    2000-01-01 01:01:01.000001
    """
    now, utcnow = clock.datetime_now, clock.datetime_utcnow
    clock.datetime_now = clock.datetime_utcnow = lambda: time_to_freeze
    try:
        yield
    finally:
        clock.datetime_now, clock.datetime_utcnow = now, utcnow


def get_dataframe_not_nested() -> pd.DataFrame:
    """Make a frame of one row with a column for every type, lists excepted.

    Returns
    -------
    pandas.DataFrame
        Columns sorted by name; each is named after its type.

    Examples
    --------
    >>> get_dataframe_not_nested()["uint8"].dtype
    dtype('uint8')
    """
    columns = {
        **{name: pd.Series([1], dtype=name) for name in _NUMBERS},
        "bool": pd.Series([True]),
        "byte": pd.Series([bytes(range(240, 256))], dtype=object),
        "date": pd.Series([date(2018, 1, 1)], dtype=object),
        "datetime64": pd.Series([datetime(2018, 1, 1)], dtype="datetime64[ns]"),
        "null": pd.Series([None], dtype=object),
        "unicode": pd.Series(["Ö"]),
    }
    return pd.DataFrame(columns).sort_index(axis=1)


def get_dataframe_alltypes() -> pd.DataFrame:
    """Make a frame of one row with a column for every type, lists included.

    Returns
    -------
    pandas.DataFrame
        :func:`get_dataframe_not_nested` and columns ``array_<type>`` whose cells are numpy arrays; sorted by
        name.

    Examples
    --------
    >>> get_dataframe_alltypes()["array_int8"][0].dtype
    dtype('int8')
    """
    arrays = {f"array_{name}": np.array([1], dtype=name) for name in _NUMBERS}
    arrays["array_unicode"] = np.array(["Ö"], dtype=object)
    nested = pd.DataFrame({name: pd.Series([array], dtype=object) for name, array in arrays.items()})
    return pd.concat([get_dataframe_not_nested(), nested], axis=1).sort_index(axis=1)
