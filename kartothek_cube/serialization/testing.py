"""Test helpers of serializers: a frame with all types of every format."""

from __future__ import annotations

import numpy as np
import pandas as pd

__all__ = ("get_dataframe_not_nested",)

_NUMBERS = ("float32", "float64", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))


def get_dataframe_not_nested(n: int) -> pd.DataFrame:
    """Make a frame with a column for every type, lists excepted.

    Numbers, dates and texts count the rows (numbers wrap around in narrow types); the bytes are no UTF-8.

    Parameters
    ----------
    n
        Number of rows.

    Returns
    -------
    pandas.DataFrame
        Columns sorted by name; each is named after its type.

    Examples
    --------
    >>> get_dataframe_not_nested(3)["unicode"].tolist()
    ['0', '1', '2']
    """
    rows = np.arange(n)
    texts = [str(row) for row in rows]
    days = np.datetime64("2018-01-02") + rows
    columns = {
        **{name: rows.astype(name) for name in _NUMBERS},
        "bool": rows < n // 2,
        "bytes": pd.Series([b"\xff" + text.encode() for text in texts], dtype=object),
        "date": pd.Series(days.astype(object), dtype=object),
        "datetime64": days.astype("datetime64[ns]"),
        "null": pd.Series([None] * n, dtype=object),
        "unicode": pd.Series(texts, dtype="str"),
    }
    return pd.DataFrame(columns).sort_index(axis=1)
