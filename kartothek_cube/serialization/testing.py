"""Test helpers of serializers: a frame with all types of every format."""

from __future__ import annotations

import numpy as np
import pandas as pd

_NUMBERS = ("float32", "float64", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))


def get_dataframe_not_nested(n: int) -> pd.DataFrame:
    """Frame with a column of every type but lists; values count the rows."""
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
