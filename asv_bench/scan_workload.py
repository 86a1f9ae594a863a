"""Selective scans: conditions that few rows meet, with the same interface as `workload`.

Cube ``bench`` has the dimensions x, y, z (texts, if BENCH_TEXT is set, else a number, a day and a number)
and the partition column p. No payload is sorted, so that no statistics help:

* seed: dimensions, p, v0 (a float), i0 (one of 1,000,000 numbers), t0 (one of 10,000 texts), t1 (one of 100),
  t2 (a text of its own in each row)
* enrich: the same cells, v1 (a float), t3 (one of 10,000 texts)
"""

from __future__ import annotations

import os

import numpy as np
import pandas as pd

P = int(os.environ.get("BENCH_P", "20"))
X = int(os.environ.get("BENCH_X", "250"))  # per partition
Y = int(os.environ.get("BENCH_Y", "200"))
TEXT = bool(os.environ.get("BENCH_TEXT"))

#: all dimensions are dimensions of both datasets
DIMENSIONS = ["a", "b", "c"] if TEXT else ["x", "y"]
OWNER = {
    "v0": "seed",
    "i0": "seed",
    "t0": "seed",
    "t1": "seed",
    "t2": "seed",
    "v1": "enrich",
    "t3": "enrich",
}
KEYS = {"enrich": [*DIMENSIONS, "p"]}

#: 1,000 values of x in all partitions
SCATTERED = np.random.default_rng(0).choice(P * X, min(1_000, P * X), replace=False).tolist()
_SELECTIVE = {
    "text 0.01 %": (["v0", "t0"], [("t0", "==", "article 04711")], None),
    "text 1 %": (["v0", "t1"], [("t1", "==", "brand 42")], None),
    "unique text": (["v0", "t2"], [("t2", "<", "0001")], None),
    "float 0.01 %": (["v0", "i0"], [("v0", ">", 3.719)], None),
    "float 1 %": (["v0", "i0"], [("v0", ">", 2.326)], None),
    "int 0.01 %": (["v0", "i0"], [("i0", "<", 100)], None),
    "enrichment 0.01 %": (["v0", "v1"], [("v1", ">", 3.719)], None),
    "enrichment 1 %": (["v0", "v1"], [("v1", ">", 2.326)], None),
    "text of enrichment": (["v0", "v1", "t3"], [("t3", "==", "article 04711")], None),
    "two conditions": (["v0", "t1"], [("t1", "==", "brand 42"), ("v0", ">", 2.326)], None),
    "two datasets": (["v0", "v1", "t1"], [("t1", "==", "brand 42"), ("v1", ">", 2.326)], None),
    "1,000 scattered x": (["v0", "v1"], [("x", "in", SCATTERED)], None),
}
_THREE_TEXTS = {
    "three texts, all": (["v0", "v1"], [], None),
    "three texts, one of a": (["v0", "v1"], [("a", "==", "shop 0000123")], None),
    "three texts, one of c": (["v0", "v1"], [("c", "==", "channel 7")], None),
    "three texts, 0.01 %": (["v0", "v1"], [("v1", ">", 3.719)], None),
}
#: name -> (payload columns, conditions as (column, operator, value), partition_by)
QUERIES = _THREE_TEXTS if TEXT else _SELECTIVE


def _cells(p):
    x = np.arange(X, dtype="int64") * P + p
    if not TEXT:
        days = pd.date_range("2020-01-01", periods=Y, freq="D").astype("datetime64[ns]")
        return {"x": np.repeat(x, Y), "y": np.tile(days.values, X), "p": np.int64(p)}
    inner = -(-Y // 20)
    return {
        "a": np.repeat([f"shop {i:07d}" for i in x], inner * 20),
        "b": np.tile(np.repeat([f"article {i}" for i in range(inner)], 20), X),
        "c": np.tile([f"channel {i}" for i in range(20)], X * inner),
        "p": np.int64(p),
    }


def _pick(rng, texts, length):
    return np.array(texts, dtype=object)[rng.integers(len(texts), size=length)]


def seed(p):
    """Rows of the seed in a partition."""
    rng = np.random.default_rng(p)
    df = pd.DataFrame(_cells(p))
    df["v0"] = rng.normal(size=len(df))
    if not TEXT:
        df["i0"] = rng.integers(1_000_000, size=len(df))
        df["t0"] = _pick(rng, [f"article {i:05d}" for i in range(10_000)], len(df))
        df["t1"] = _pick(rng, [f"brand {i}" for i in range(100)], len(df))
        df["t2"] = [f"{i:016x}" for i in rng.integers(1 << 62, size=len(df))]
    return df


def enrich(p):
    """Rows with more values for the same cells."""
    rng = np.random.default_rng(1000 + p)
    df = pd.DataFrame(_cells(p))
    df["v1"] = rng.normal(size=len(df))
    if not TEXT:
        df["t3"] = _pick(rng, [f"article {i:05d}" for i in range(10_000)], len(df))
    return df


def build_data():
    """Data of the first call, and of a second one: dataset -> frame."""
    return {
        "seed": pd.concat([seed(p) for p in range(P)], ignore_index=True),
        "enrich": pd.concat([enrich(p) for p in range(P)], ignore_index=True),
    }, {}
