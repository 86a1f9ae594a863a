"""Changes of five datasets of two years, in a partition per day. usage: writes.py STORE_DIR ROUNDS OUT.json.

All engines run in this process and alternate, each with files of its own: the cube, Delta Lake, and Parquet
files that DuckDB writes, without transactions.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
from deltalake import DeltaTable, write_deltalake

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, compact_cube, query_cube, update_cube

DAYS, ROWS = 730, int(os.environ.get("BENCH_ROWS", "500"))
DATASETS = ("seed", "a", "b", "c", "d")
CUBE = Cube(uuid_prefix="writes", dimension_columns=["x"], partition_columns=["p"])
#: one of a hundred partitions
UPDATED = list(range(50, DAYS, 100))
WEEK = list(range(100, 107))
#: partitions that get several small files, which are then made one
SPLIT, PIECES = list(range(20)), 5


def rows(days, number, start=0, stop=ROWS):
    """Rows of a dataset on some days."""
    x, p = np.tile(np.arange(start, stop), len(days)), np.repeat(days, stop - start)
    values = np.random.default_rng(number).random((3, len(x)))
    columns = {f"v{number}_{column}": values[column] for column in range(3)}
    return pa.table({"x": x, "p": p, **columns, f"t{number}": [f"text {value % 50}" for value in x.tolist()]})


def data(days, *part, datasets=DATASETS):
    """Rows of all datasets, or of some."""
    return {name: rows(days, number, *part) for number, name in enumerate(datasets)}


def unsorted():
    """4,000,000 rows in 20 partitions, in random order."""
    table = rows(list(range(20)), 0, 0, 400 * ROWS)
    return {"seed": table.take(np.random.default_rng(1).permutation(len(table)))}


class CubeWriter:
    """The cube."""

    options = ""

    def __init__(self, root):
        self.store = f"hfs://{root}?create_if_missing=true{self.options}"

    def build(self, tables):
        build_cube(tables, CUBE, self.store)

    def append(self, tables):
        append_to_cube(tables, CUBE, self.store)

    def update(self, tables, days):
        update_cube(tables, CUBE, self.store, C("p").isin(days), datasets=DATASETS)

    def compact(self, days):
        compact_cube(CUBE, self.store, C("p").isin(days))

    def summary(self):
        frame = query_cube(CUBE, self.store, payload_columns=["v0_0"])[0]
        return len(frame), frame["v0_0"].sum()


class UnflushedWriter(CubeWriter):
    """The cube in a store that, as the other engines, does not wait for the disk."""

    options = "&durable=false"


class DeltaWriter:
    """One Delta table per dataset."""

    def __init__(self, root):
        self.root = root

    def build(self, tables):
        for name, table in tables.items():
            write_deltalake(f"{self.root}/{name}", table, partition_by=["p"])

    def append(self, tables):
        for name, table in tables.items():
            write_deltalake(f"{self.root}/{name}", table, mode="append")

    def update(self, tables, days):
        predicate = f"p IN ({', '.join(map(str, days))})"
        for name, table in tables.items():
            write_deltalake(f"{self.root}/{name}", table, mode="overwrite", predicate=predicate)

    def compact(self, days):
        for name in DATASETS:
            table = DeltaTable(f"{self.root}/{name}")
            table.optimize.compact(partition_filters=[("p", "in", [str(day) for day in days])])

    def summary(self):
        # delta-rs reads through Arrow's pool of threads, which aborts some processes at their end
        table = pl.read_delta(f"{self.root}/seed")
        return len(table), np.sum(table["v0_0"].to_numpy())


class DuckWriter:
    """One directory of Parquet files per dataset, with a directory per partition."""

    def __init__(self, root):
        self.root = root
        self.connection = duckdb.connect()

    def _copy(self, table, name, option):
        self.connection.register("source", table)
        options = f"FORMAT parquet, PARTITION_BY p, {option}"
        # the cube is sorted by cell as well
        self.connection.execute(f"COPY (FROM source ORDER BY p, x) TO '{self.root}/{name}' ({options})")

    def build(self, tables):
        for name, table in tables.items():
            self._copy(table, name, "OVERWRITE")

    def append(self, tables):
        for name, table in tables.items():
            self._copy(table, name, "APPEND")

    def update(self, tables, days):
        for name, table in tables.items():
            self._remove(name, days)
            self._copy(table, name, "APPEND")

    def compact(self, days):
        for name in DATASETS:
            files = [str(file) for day in days for file in Path(f"{self.root}/{name}/p={day}").glob("*")]
            sql = "SELECT * FROM read_parquet($1, hive_partitioning=true)"
            table = self.connection.sql(sql, params=[files]).to_arrow_table()
            self._remove(name, days)
            self._copy(table, name, "APPEND")

    def _remove(self, name, days):
        for day in days:
            shutil.rmtree(f"{self.root}/{name}/p={day}")

    def summary(self):
        table = pads.dataset(f"{self.root}/seed", partitioning="hive").to_table(columns=["v0_0"])
        return len(table), np.sum(table["v0_0"].to_numpy())


ENGINES = {
    "kartothek_cube": CubeWriter,
    "not durable": UnflushedWriter,
    "delta": DeltaWriter,
    "duckdb": DuckWriter,
}


def main(root, rounds, out):
    """Build, change and write the result."""
    seconds = {engine: {} for engine in ENGINES}

    def make_writers(name):
        for engine in ENGINES:
            Path(root, name, engine).mkdir(parents=True)
        return {engine: make(Path(root, name, engine)) for engine, make in ENGINES.items()}

    writers = make_writers("changed")

    def measure(work, call, writers=writers):
        for engine, writer in writers.items():
            start = time.perf_counter()
            call(writer)
            taken = time.perf_counter() - start
            seconds[engine][work] = min(seconds[engine].get(work, taken), taken)

    built = data(range(DAYS))
    measure("build", lambda writer: writer.build(built))
    others = {"build 4,000,000 unsorted rows": unsorted()}
    others["build 2 x 20,000 partitions"] = data(range(20_000), 0, 5, datasets=DATASETS[:2])
    for number, (work, tables) in enumerate(others.items()):
        measure(work, lambda writer, tables=tables: writer.build(tables), make_writers(str(number)))
    many = [data(range(10), ROWS * 9 + number * 10, ROWS * 9 + number * 10 + 10) for number in range(20)]
    measure("20 appends to 10 days", lambda writer: [writer.append(part) for part in many])
    for number in range(int(rounds)):
        day, updated = data([DAYS + number]), data(UPDATED)
        measure("append a day", lambda writer, day=day: writer.append(day))
        measure("update 1 %", lambda writer, updated=updated: writer.update(updated, UPDATED))
        week = data(WEEK)
        measure("update a week", lambda writer, week=week: writer.update(week, WEEK))
        for piece in range(PIECES):
            part = data(SPLIT, ROWS * (piece + 1), ROWS * (piece + 1) + ROWS // PIECES)
            for writer in writers.values():
                writer.append(part)
        measure("compact", lambda writer: writer.compact(SPLIT))
        for writer in writers.values():
            writer.update(data(SPLIT), SPLIT)
    result = {}
    for engine, writer in writers.items():
        n_rows, check = writer.summary()
        result[engine] = {work: {"s": taken} for work, taken in seconds[engine].items()}
        result[engine]["append a day"] |= {"rows": n_rows, "check": float(check)}
    Path(out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
