"""Queries of one shape each, and Polars. usage: reads.py STORE_DIR ROUNDS OUT.json.

Each shape stresses one part of a query: dimensions of times and texts, enrichments with holes, few cells or
fewer dimensions, many small files, wide tables, one large file. Both engines run in this process and
alternate; they read the same files. The plans of Polars filter before they join, and sort as queries of
cubes do.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

from kartothek_cube.api.cube import C, Cube, build_cube, query_cube_df

#: the number of partitions is divided by it, for a test of this script
SCALE = int(os.environ.get("BENCH_SCALE", "1"))
CUBES = {
    "sales": Cube(["day", "shop", "item"], ["month", "half"], "sales"),
    "plain": Cube(["x", "y"], ["p"], "plain"),
    "sparse": Cube(["x", "y"], ["p"], "sparse"),
    "low": Cube(["x", "y"], ["p"], "low"),
    "small": Cube(["x"], ["p"], "small"),
    "wide": Cube(["x"], ["p"], "wide"),
    "large": Cube(["x"], ["p"], "large"),
    "tiny": Cube(["x"], ["p"], "tiny"),
}


def cells(**sizes):
    """All combinations of numbers below some sizes."""
    columns = np.meshgrid(*map(np.arange, sizes.values()), indexing="ij")
    return pd.DataFrame({name: column.ravel() for name, column in zip(sizes, columns, strict=True)})


def with_values(df, *names, seed=0):
    """Rows with random numbers between 0 and 1."""
    random = np.random.default_rng(seed)
    values = pd.DataFrame({name: random.random(len(df)) for name in names}, index=df.index)
    return pd.concat([df, values], axis=1)


def some(df, share):
    """Some of the rows."""
    return df[np.random.default_rng(1).random(len(df)) < share]


def sales():
    """A date, a text and an integer; prices lack 3 % of the cells, shops have one dimension."""
    grid = cells(day=180 // SCALE, shop=60, item=100)
    days = pd.date_range("2024-01-01", periods=180).to_numpy()
    shops = np.array([f"shop {number:03d}" for number in range(60)])
    grid = grid.assign(month=grid["day"] // 30, half=grid["item"] % 2)
    grid = grid.assign(day=days[grid["day"]], shop=shops[grid["shop"]])
    regions = pd.DataFrame({"shop": shops, "region": [f"region {number % 12}" for number in range(60)]})
    data = {"seed": with_values(grid, "v"), "prices": with_values(some(grid, 0.97), "w"), "shops": regions}
    return data, {"partition_on": {"shops": []}}


def plain():
    """Two datasets of the same 5,000,000 cells."""
    grid = cells(p=50 // SCALE, x=400, y=250)
    texts = np.array([f"text {number}" for number in range(100)])
    seed = with_values(grid, "v").assign(n=grid.index % 1000, text=texts[(grid.index * 7919) % 100])
    return {"seed": seed, "enrich": with_values(grid, "w", "u", seed=1)}, {}


def sparse():
    """An enrichment of 1 % of 2,000,000 cells."""
    grid = cells(p=20 // SCALE, x=500, y=200)
    return {"seed": with_values(grid, "v"), "enrich": with_values(some(grid, 0.01), "w")}, {}


def low():
    """An enrichment without one of the dimensions."""
    grid = cells(p=20 // SCALE, x=500, y=200)
    return {
        "seed": with_values(grid, "v"),
        "enrich": with_values(grid[["p", "x"]].drop_duplicates(), "w"),
    }, {}


def table(partitions, rows, columns):
    """A dataset of some columns."""
    return with_values(
        cells(p=max(1, partitions // SCALE), x=rows), *(f"v{number}" for number in range(columns))
    )


DATA = {
    "sales": sales,
    "plain": plain,
    "sparse": sparse,
    "low": low,
    "small": lambda: (table(5000, 2000, 1), {}),
    "wide": lambda: (table(20, 10_000, 300), {}),
    "large": lambda: (table(1, 20_000_000 // SCALE, 2), {}),
    "tiny": lambda: (table(10, 100, 1), {}),
}


def plan(root, name, *, seed=None, other=None, dataset="enrich", on=None, columns=None):
    """The plan of Polars: filters, a join, and the order of rows of the cube."""

    def scan(dataset, condition):
        files = sorted(map(str, (root / name / f"{name}++{dataset}" / "table").rglob("*.parquet")))
        rows = pl.scan_parquet(files, hive_partitioning=True, try_parse_hive_dates=False)
        return rows if condition is None else rows.filter(condition)

    cube, rows = CUBES[name], scan("seed", seed)
    keys = [*cube.dimension_columns, *cube.partition_columns]
    if columns is not None:
        rows, keys = rows.select(columns).unique(), columns
    elif dataset is not None:
        rows = rows.join(scan(dataset, other), on=on or keys, how="left" if other is None else "inner")
    return rows.sort(keys).collect().to_pandas()


RARE, V, W, X, V0, V7 = 0.99, *map(pl.col, ("v", "w", "x", "v0", "v7"))
LOW = {"on": ["p", "x"]}
ALONE = {"dataset": None}
#: title -> cube, arguments of its query, those of the plan
WORKS = {
    "3 % of the cells missing": ("sales", {"datasets": ["seed", "prices"]}, {"dataset": "prices"}),
    "3 % missing, 1 % of the seed": (
        "sales",
        {"datasets": ["seed", "prices"], "conditions": C("v") > RARE},
        {"dataset": "prices", "seed": V > RARE},
    ),
    "3 % missing, 1 % of the enrichment": (
        "sales",
        {"datasets": ["seed", "prices"], "conditions": C("w") > RARE},
        {"dataset": "prices", "other": W > RARE},
    ),
    "a region of shops": (
        "sales",
        {"datasets": ["seed", "shops"], "conditions": C("region") == "region 3"},
        {"dataset": "shops", "other": pl.col("region") == "region 3", "on": ["shop"]},
    ),
    "5,000,000 equal cells": ("plain", {}, {}),
    "1 % by a float": ("plain", {"conditions": C("v") > RARE}, {"seed": V > RARE}),
    "1 % by an integer": ("plain", {"conditions": C("n") < 10}, {"seed": pl.col("n") < 10}),
    "1 % by a text": ("plain", {"conditions": C("text") == "text 7"}, {"seed": pl.col("text") == "text 7"}),
    "1 % by an enrichment": ("plain", {"conditions": C("w") > RARE}, {"other": W > RARE}),
    "cells of one dimension": (
        "plain",
        {"dimension_columns": ["x"], "payload_columns": [], "datasets": ["seed"]},
        {"columns": ["x", "p"]},
    ),
    "half of an enrichment of 1 %": ("sparse", {"conditions": C("w") > 0.5}, {"other": W > 0.5}),
    "1 % of fewer dimensions": ("low", {"conditions": C("w") > RARE}, {"other": W > RARE, **LOW}),
    "1 % of the seed, fewer dimensions": ("low", {"conditions": C("v") > RARE}, {"seed": V > RARE, **LOW}),
    "5,000 files": ("small", {}, ALONE),
    "0.1 % of 5,000 files": (
        "small",
        {"conditions": C("v0") > 0.999},
        {"seed": V0 > 0.999, **ALONE},
    ),
    "300 columns": ("wide", {}, ALONE),
    "1 % of 300 columns": ("wide", {"conditions": C("v7") > RARE}, {"seed": V7 > RARE, **ALONE}),
    "0.1 % of a file of 20,000,000": (
        "large",
        {"conditions": C("v0") > 0.999},
        {"seed": V0 > 0.999, **ALONE},
    ),
    "a cell of 20,000,000": (
        "large",
        {"conditions": C("x") == 12_345},
        {"seed": X == 12_345, **ALONE},
    ),
    "1,000 rows": ("tiny", {}, ALONE),
    "a cell of 1,000": ("tiny", {"conditions": C("x") == 33}, {"seed": X == 33, **ALONE}),
}


def main(root, rounds, out):
    """Build, run and write the result."""
    for name, make in DATA.items():
        data, arguments = make()
        build_cube(data, CUBES[name], f"hfs://{root}/{name}?create_if_missing=true", **arguments)
    result = {"kartothek_cube": {}, "polars": {}}
    for work, (name, arguments, of_plan) in WORKS.items():
        engines = {
            "kartothek_cube": partial(query_cube_df, CUBES[name], f"hfs://{root}/{name}", **arguments),
            "polars": partial(plan, Path(root), name, **of_plan),
        }
        seconds, answers = {engine: [] for engine in engines}, {}
        for number in range(int(rounds) + 1):
            for engine, query in engines.items():
                gc.collect()
                start = time.perf_counter()
                frame = query()
                if number:  # the first one warms up
                    seconds[engine].append(time.perf_counter() - start)
                else:
                    check = float(frame.sum(numeric_only=True).sum())
                    answers[engine] = {"rows": len(frame), "check": check}
                del frame
        for engine, values in seconds.items():
            result[engine][work] = {"s": statistics.median(values), **answers[engine]}
    Path(out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
