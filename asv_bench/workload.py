"""The workload of all peers: one cube of four datasets, and seven queries.

Cube ``bench`` has the dimensions x, y (a day) and the partition column p:

* seed: x y p v0, P * X * Y rows
* enrich: x y p v1 v2 v3 v4, the same cells
* loc: x p v5 v6 (a string), a projection on x
* cal: y v7, not partitioned

This module and `peers/cube.py`, `peers/plan.py` also run on Python 3.8, for comparisons with kartothek.
"""

from __future__ import annotations

import os

import numpy as np
import pandas as pd

P = int(os.environ.get("BENCH_P", "50"))
X = int(os.environ.get("BENCH_X", "400"))  # per partition
Y = int(os.environ.get("BENCH_Y", "250"))

#: name -> (payload columns, conditions as (column, operator, value), partition_by)
QUERIES = {
    "full_join": (["v0", "v1", "v2", "v5", "v7"], [], None),
    "one_column": (["v0"], [], None),
    "one_part": (["v0", "v1", "v5", "v7"], [("p", "==", 7)], None),
    "dim_index": (["v0", "v1", "v5", "v7"], [("x", "==", 2900)], None),
    "payload_cond": (["v0", "v1"], [("v1", ">", 2.5)], None),
    "strings": (["v0", "v6"], [], None),
    "regroup_y": (["v0", "v1"], [("y", "<", "2020-01-11")], ["y"]),
}

#: payload column -> dataset, and dataset -> columns that it is joined on
OWNER = {
    "v0": "seed",
    "v1": "enrich",
    "v2": "enrich",
    "v3": "enrich",
    "v4": "enrich",
    "v5": "loc",
    "v6": "loc",
    "v7": "cal",
}
KEYS = {"enrich": ["x", "y", "p"], "loc": ["x", "p"], "cal": ["y"]}
DIMENSIONS = ["x", "y"]


def days():
    """All days of the cube."""
    return pd.date_range("2020-01-01", periods=Y, freq="D").astype("datetime64[ns]")


def _cells(p):
    return {
        "x": np.repeat(np.arange(X, dtype="int64") + p * X, Y),
        "y": np.tile(days().values, X),
        "p": np.int64(p),
    }


def seed(p):
    """Rows of the seed in a partition."""
    return pd.DataFrame({**_cells(p), "v0": np.random.default_rng(p).normal(size=X * Y)})


def enrich(p):
    """Rows with four more values for the same cells."""
    rng = np.random.default_rng(1000 + p)
    return pd.DataFrame({**_cells(p), **{f"v{i}": rng.normal(size=X * Y) for i in range(1, 5)}})


def loc(p):
    """Rows without days."""
    x = np.arange(X, dtype="int64") + p * X
    return pd.DataFrame({"x": x, "p": np.int64(p), "v5": x * 0.5, "v6": [f"loc_{i:07d}" for i in x]})


def cal():
    """Rows with nothing but days."""
    return pd.DataFrame({"y": days(), "v7": days().day_of_week.values.astype("int64")})


def whole(part):
    """All partitions of a dataset in one frame."""
    return pd.concat([part(p) for p in range(P)], ignore_index=True)


def build_data():
    """Data of the first call, and of a second one: dataset -> frame."""
    return {"seed": whole(seed), "enrich": whole(enrich)}, {"loc": whole(loc), "cal": cal()}
