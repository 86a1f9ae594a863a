"""Queries of a cube of 1,000 rows, alone and on many threads. usage: small.py STORE_DIR ROUNDS OUT.json.

All engines run in this process and alternate; each opens the files for every query.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import build_cube, query_cube

ROWS, PARTITIONS = 1_000, 4
THREADS = (1, 2, 16)
CUBE = Cube(uuid_prefix="small", dimension_columns=["x"], partition_columns=["p"])
#: name -> (column and value of the condition, payload columns)
QUERIES = {
    "point": (("x", 512), ["v0", "v1", "t"]),
    "all": (None, ["v0", "v1", "t"]),
    "one partition": (("p", 2), ["v0", "v1", "t"]),
    "seed only": (None, ["v0"]),
}


def build(root):
    """Write the cube: the seed, and a dataset with the same cells."""
    x = np.arange(ROWS)
    cells = pd.DataFrame({"x": x, "p": x * PARTITIONS // ROWS})
    seed = cells.assign(v0=np.random.default_rng(0).random(ROWS))
    enrich = cells.assign(v1=x * 0.5, t=[f"text {number}" for number in x])
    build_cube({"seed": seed, "enrich": enrich}, CUBE, f"hfs://{root}")


def cube_query(root, condition, payload):
    """As a function of the condition's value."""
    store, column = f"hfs://{root}", None if condition is None else C(condition[0])
    return lambda value: query_cube(
        CUBE, store, conditions=None if column is None else column == value, payload_columns=payload
    )[0]


def sql_query(root, condition, payload):
    """One statement on a connection that stays open; threads have a cursor each."""
    connection = duckdb.connect()

    def source(dataset):
        return f"read_parquet('{root}/small++{dataset}/table/*/*.parquet', hive_partitioning=true)"

    sql = f"SELECT s.x, s.p, {', '.join(payload)} FROM {source('seed')} s"
    if len(payload) > 1:
        sql += f" LEFT JOIN {source('enrich')} e USING (x, p)"
    where = "" if condition is None else f" WHERE {condition[0]} = "
    return lambda value: (
        connection.cursor().execute(sql + (where and f"{where}{value}") + " ORDER BY s.x, s.p").df()
    )


def polars_query(root, condition, payload):
    """A lazy query plan."""

    def scan(dataset):
        files = f"{root}/small++{dataset}/table/*/*.parquet"
        return pl.scan_parquet(files, hive_partitioning=True, hive_schema={"p": pl.Int64})

    def run(value):
        frame = scan("seed")
        if len(payload) > 1:
            frame = frame.join(scan("enrich"), on=["x", "p"], how="left")
        if condition is not None:
            frame = frame.filter(pl.col(condition[0]) == value)
        return frame.select("x", "p", *payload).sort("x", "p").collect().to_pandas()

    return run


ENGINES = {"kartothek_cube": cube_query, "duckdb": sql_query, "polars": polars_query}


def time_alternating(queries, value, rounds):
    """Least seconds per call of each engine, and its last result."""
    results = {}
    for engine, query in queries.items():
        for _ in range(5):
            results[engine] = query(value)
    seconds = dict.fromkeys(queries, float("inf"))
    for _ in range(rounds):
        for engine, query in queries.items():
            start = time.perf_counter()
            for _ in range(20):
                query(value)
            seconds[engine] = min(seconds[engine], (time.perf_counter() - start) / 20)
    return {engine: (seconds[engine], results[engine]) for engine in queries}


def count_calls(query, value):
    """Python functions that a query calls."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        query(value)
    finally:
        sys.setprofile(None)
    return calls


def time_threads(queries, rounds):
    """Most point queries per second, by engine and number of threads."""
    rates = {engine: dict.fromkeys(THREADS, 0.0) for engine in queries}
    for _ in range(rounds):
        for engine, query in queries.items():
            for threads in THREADS:
                values = [number % ROWS for number in range(160)]
                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(query, values[:threads]))
                    start = time.perf_counter()
                    list(pool.map(query, values))
                rate = len(values) / (time.perf_counter() - start)
                rates[engine][threads] = max(rates[engine][threads], rate)
    return rates


def main(root, rounds, out):
    """Build, run and write the result."""
    build(root)
    result = {engine: {} for engine in ENGINES}
    for name, (condition, payload) in QUERIES.items():
        queries = {engine: make(root, condition, payload) for engine, make in ENGINES.items()}
        value = None if condition is None else condition[1]
        for engine, (seconds, frame) in time_alternating(queries, value, int(rounds)).items():
            check = float(frame["v0"].sum())
            result[engine][f"{name}, 1,000 rows"] = {"s": seconds, "rows": len(frame), "check": check}
        if name == "point":
            calls = count_calls(queries["kartothek_cube"], value)
            print(f"a point query calls {calls} Python functions", file=sys.stderr)
            for engine, rates in time_threads(queries, int(rounds)).items():
                for threads, rate in rates.items():
                    result[engine][f"point, {threads} threads: s per query"] = {"s": 1 / rate}
    Path(out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
