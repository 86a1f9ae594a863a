"""Test helpers: frozen time, frames with all types of datasets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime

import numpy as np
import pandas as pd

from kartothek_cube.core import clock

TIME_TO_FREEZE = datetime(2000, 1, 1, 1, 1, 1, 1)
TIME_TO_FREEZE_ISO = "2000-01-01T01:01:01.000001"
TIME_TO_FREEZE_ISO_QUOTED = "2000-01-01T01%3A01%3A01.000001"

_NUMBERS = ("float32", "float64", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))


@contextmanager
def cm_frozen_time(time_to_freeze: datetime) -> Iterator[None]:
    """Freeze the time of the library, naive UTC."""
    utcnow = clock.datetime_utcnow
    clock.datetime_utcnow = lambda: time_to_freeze
    try:
        yield
    finally:
        clock.datetime_utcnow = utcnow


def get_dataframe_not_nested() -> pd.DataFrame:
    """Frame of one row with a column of every type but lists."""
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
    """Frame of one row with a column of every type, lists (``array_<type>``) included."""
    arrays = {f"array_{name}": np.array([1], dtype=name) for name in _NUMBERS}
    arrays["array_unicode"] = np.array(["Ö"], dtype=object)
    nested = pd.DataFrame({name: pd.Series([array], dtype=object) for name, array in arrays.items()})
    return pd.concat([get_dataframe_not_nested(), nested], axis=1).sort_index(axis=1)
