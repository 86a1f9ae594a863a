"""Other shapes of cubes. usage: shapes.py STORE_DIR ROUNDS OUT.json, with the rows of ``benchmarks.shapes``.

All engines run in this process and alternate; they read the same files.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.io.eager_cube import build_cube, query_cube

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("BENCH_X", "250")  # a million rows
from benchmarks import shapes

SELECTIVE = {"conditions": C("v") > 3.719}
OF_ENRICHMENT = {"conditions": C("w") > 3.719}
TWO_CONDITIONS = {"conditions": (C("v") > 1.282) & (C("w") > 1.282)}
ALL = {"payload_columns": ["v", "w"]}
BOTH = {"seed": ["v"], "enrich": ["w"]}
#: name -> (shape of the cube, arguments of our query, payload by dataset, SQL condition)
WORKS = {
    "5 of 300 columns": ("wide", "wide", {"enrich": ["w3", "w77", "w150", "w200", "w299"]}, None),
    "20 datasets": ("many", "many", {f"e{number}": [f"w{number}"] for number in range(19)}, None),
    "half of the cells missing": ("sparse", "sparse", {"seed": ["v"], "enrich": ["w"], "more": ["u"]}, None),
    "from a day on": ("days", "days", BOTH, "y >= DATE '2020-03-01'"),
    "three texts": ("text", "text", BOTH, None),
    "three texts, a third missing": ("text", "sparse text", {"seed": ["v"], "more": ["u"]}, None),
    "one partition": ("one partition", ALL, BOTH, None),
    "one partition, 0.01 % of a float": ("one partition", SELECTIVE, BOTH, "v > 3.719"),
    "one partition, 0.01 % of an enrichment": ("one partition", OF_ENRICHMENT, BOTH, "w > 3.719"),
    "one partition, 10 % of two datasets": ("one partition", TWO_CONDITIONS, BOTH, "v > 1.282 AND w > 1.282"),
    "unsorted files": ("unsorted", ALL, BOTH, None),
    "unsorted files, 0.01 % of a float": ("unsorted", SELECTIVE, BOTH, "v > 3.719"),
}


def build(name, directory):
    """Write the cube of a shape, and return its URL."""
    url = f"hfs://{directory}?create_if_missing=true"
    if name == "one partition":
        build_cube(shapes.simple(shapes.grid().assign(p=0)), shapes.CUBE, url)
    elif name == "unsorted":
        build_cube(shapes.simple(shapes.grid()), shapes.CUBE, url)
        for path in Path(directory).glob("*/table/*/*.parquet"):
            # as another program may write them
            table = pq.read_table(path, partitioning=None)
            pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), path)
    else:
        shapes.build(name, directory)
    return url


def cube_frame(directory, name, arguments):
    """The query of the cube."""
    if isinstance(arguments, str):
        arguments = shapes.SHAPES[arguments][2]
    cube = shapes.TEXT if name == "text" else shapes.CUBE
    return query_cube(cube, f"hfs://{directory}", **arguments)[0]


def _keys(name):
    return [*(shapes.TEXT if name == "text" else shapes.CUBE).dimension_columns, "p"]


def sql_frame(directory, name, payload, condition):
    """One SQL statement."""
    keys = ", ".join(_keys(name))
    sql = f"SELECT {keys}, {', '.join(column for columns in payload.values() for column in columns)} FROM "
    sql += " LEFT JOIN ".join(
        f"read_parquet('{directory}/shapes++{dataset}/table/*/*.parquet', hive_partitioning=true) {dataset}"
        + (f" USING ({keys})" if number else "")
        for number, dataset in enumerate(dict.fromkeys(["seed", *payload]))
    )
    where = f" WHERE {condition}" if condition else ""
    return duckdb.connect().execute(f"{sql}{where} ORDER BY {keys}").df()


def polars_frame(directory, name, payload, condition):
    """A lazy query plan."""
    keys = _keys(name)

    def scan(dataset):
        files = f"{directory}/shapes++{dataset}/table/*/*.parquet"
        frame = pl.scan_parquet(files, hive_partitioning=True, hive_schema={"p": pl.Int64})
        return frame.select(*keys, *payload.get(dataset, []))

    frame = scan("seed")
    for dataset in payload:
        if dataset != "seed":
            frame = frame.join(scan(dataset), on=keys, how="left")
    if condition:
        frame = frame.filter(pl.sql_expr(condition))
    return frame.sort(keys).collect().to_pandas()


def main(root, rounds, out):
    """Build, run and write the result."""
    directories = {name: Path(root) / name.replace(" ", "_") for name, *_ in WORKS.values()}
    for name, directory in directories.items():
        build(name, directory)
    result = {}
    for work, (name, arguments, payload, condition) in WORKS.items():
        directory = directories[name]
        engines = {
            "kartothek_cube": partial(cube_frame, directory, name, arguments),
            "duckdb": partial(sql_frame, directory, name, payload, condition),
            "polars": partial(polars_frame, directory, name, payload, condition),
        }
        seconds, checks = {engine: [] for engine in engines}, {}
        for number in range(int(rounds) + 1):
            for engine, query in engines.items():
                start = time.perf_counter()
                frame = query()
                if number:  # the first one warms up
                    seconds[engine].append(time.perf_counter() - start)
                last = list(payload.values())[-1][-1]
                checks[engine] = {"rows": len(frame), "check": float(frame[last].sum())}
        for engine, values in seconds.items():
            result.setdefault(engine, {})[work] = {"s": statistics.median(values), **checks[engine]}
    Path(out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
