"""Jobs that build on each other, and Lance, Delta, Iceberg. usage: jobs.py DIR ROUNDS OUT.

1,500,000 cells with ten columns in 30 partitions. Jobs add a column by key, for all cells and for half of
them, unsorted; four jobs add a column each at the same time; a job corrects a partition. Then the rows are
read: all, three columns, one cell, and 0.1 % by a column that was added. Every engine adds columns in the way
that was the fastest here: Lance merges by key, Delta and Iceberg join in Polars and overwrite the table, as
their merges take longer. Reads are those of the engine (Delta and Iceberg: Polars). "lost" counts the jobs
out of four whose column is not there afterwards, as they were refused or another job has overwritten it; "MB"
is what is written. A read is the second one: some engines have read the table for the correction.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from kartothek_cube.api.cube import C, Cube, build_cube, extend_cube, query_cube_df, update_cube

# the plugin that it recommends is another package
os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"

N = int(os.environ.get("BENCH_ROWS", "1500000"))
PARTITIONS, COLUMNS, JOBS = 30, 10, 4
CUBE = Cube(["cell"], ["p"], "jobs")
CORRECTED = 7
POINT = N // 3


def make_rows():
    """Rows of the seed."""
    random, cell = np.random.default_rng(0), np.arange(N)
    payload = {f"v{number}": random.random(N) for number in range(COLUMNS)}
    return pa.table({"cell": cell, "p": cell * PARTITIONS // N, **payload})


def make_column(name, seed, *, half=False):
    """A column by key; of half of the cells in random order, or of all of them in order."""
    random = np.random.default_rng(seed)
    cell = random.permutation(N)[: N // 2] if half else np.arange(N)
    return pa.table({"cell": cell, "p": cell * PARTITIONS // N, name: random.random(len(cell))})


class Ours:
    """kartothek_cube: a dataset per job."""

    def __init__(self, root):
        self.store = f"hfs://{root}?create_if_missing=true"

    def build(self, rows):
        build_cube(rows, CUBE, self.store)

    def add(self, name, column):
        extend_cube({name: column}, CUBE, self.store)

    def correct(self, rows):
        update_cube({"seed": rows}, CUBE, self.store, C("p") == CORRECTED, ["seed"])

    def read(self, columns=None, point=None, above=None):
        conditions = None if point is None else C("cell") == point
        conditions = conditions if above is None else C(above[0]) > above[1]
        return query_cube_df(CUBE, self.store, conditions, columns=columns)


class Lance:
    """Lance: columns are added to the table, by key."""

    def __init__(self, root):
        self.root = str(root)

    def open(self):
        import lance

        return lance.dataset(self.root)

    def build(self, rows):
        import lance

        lance.write_dataset(rows, self.root, max_rows_per_file=N // PARTITIONS)

    def add(self, name, column):
        self.open().merge(column.select(["cell", name]), left_on="cell")

    def correct(self, rows):
        merge = self.open().merge_insert("cell")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def read(self, columns=None, point=None, above=None):
        condition = None if point is None else f"cell = {point}"
        condition = condition if above is None else f"{above[0]} > {above[1]}"
        return self.open().to_table(columns, filter=condition).to_pandas()


class _Joined:
    """An engine without a way to add a column by key that is faster than to write the table again."""

    def add(self, name, column):
        joined = self.scan().join(pl.from_arrow(column.select(["cell", name])).lazy(), "cell", how="left")
        self.overwrite(joined.collect().to_arrow())

    def read(self, columns=None, point=None, above=None):
        rows = self.scan()
        rows = rows if point is None else rows.filter(pl.col("cell") == point)
        rows = rows if above is None else rows.filter(pl.col(above[0]) > above[1])
        return (rows if columns is None else rows.select(columns)).collect().to_pandas()


class Delta(_Joined):
    """delta-rs."""

    def __init__(self, root):
        self.root = str(root)

    def scan(self):
        return pl.scan_delta(self.root)

    def build(self, rows):
        from deltalake import write_deltalake

        write_deltalake(self.root, rows, partition_by=["p"])

    def overwrite(self, rows):
        from deltalake import write_deltalake

        write_deltalake(self.root, rows, mode="overwrite", schema_mode="overwrite", partition_by=["p"])

    def correct(self, rows):
        from deltalake import write_deltalake

        write_deltalake(self.root, rows, mode="overwrite", predicate=f"p = {CORRECTED}")


class Iceberg(_Joined):
    """pyiceberg, with a catalog in SQLite."""

    def __init__(self, root):
        self.root = Path(root)

    def open(self):
        from pyiceberg.catalog.sql import SqlCatalog

        self.root.mkdir(parents=True, exist_ok=True)
        places = {"uri": f"sqlite:///{self.root}/catalog.db", "warehouse": f"file://{self.root}"}
        return SqlCatalog("bench", **places)

    def scan(self):
        return pl.scan_iceberg(self.open().load_table("bench.jobs"))

    def build(self, rows):
        catalog = self.open()
        catalog.create_namespace("bench")
        table = catalog.create_table("bench.jobs", rows.schema)
        with table.update_spec() as update:
            update.add_identity("p")
        table.append(rows)

    def overwrite(self, rows):
        table = self.open().load_table("bench.jobs")
        with table.transaction() as change:
            with change.update_schema() as update:
                update.union_by_name(rows.schema)
            change.overwrite(rows)

    def correct(self, rows):
        self.open().load_table("bench.jobs").overwrite(rows, overwrite_filter=f"p = {CORRECTED}")


ENGINES = {"kartothek_cube": Ours, "lance": Lance, "delta": Delta, "iceberg": Iceberg}
CHOSEN = os.environ.get("BENCH_ENGINES", ",".join(ENGINES)).split(",")


def size_mb(root):
    """Size of all files below a directory."""
    return sum(path.stat().st_size for path in Path(root).rglob("*") if path.is_file()) / 1e6


def add_beside(engine, root, number, barrier, queue):
    """One of several jobs at the same time, in a process of its own."""
    job, column = ENGINES[engine](root), make_column(f"job{number}", 100 + number)
    job.read(["cell"])  # imports, and a first look at the table
    barrier.wait()
    started = time.time()
    with suppress(Exception):  # refused; the column is missing then
        job.add(f"job{number}", column)
    queue.put((started, time.time()))


def measure_jobs(engine, root):
    """Seconds from the start of four jobs to the end of the last one, and how many columns are missing."""
    spawn = multiprocessing.get_context("spawn")
    barrier, queue = spawn.Barrier(JOBS), spawn.Queue()
    jobs = [spawn.Process(target=add_beside, args=(engine, root, i, barrier, queue)) for i in range(JOBS)]
    for job in jobs:
        job.start()
    ends = [queue.get() for _ in jobs]
    for job in jobs:
        job.join()
    columns = ENGINES[engine](root).read(point=POINT).columns
    lost = sum(f"job{number}" not in columns for number in range(JOBS))
    return max(end for _, end in ends) - min(start for start, _ in ends), lost


def measure(engine, root, rows):
    """All workloads of an engine, on a new table."""
    job, measured = ENGINES[engine](root), {}

    def timed(name, function, *args, **arguments):
        # what an engine has left to the operating system to write would slow down the next one
        os.sync()
        start = time.perf_counter()
        result = function(*args, **arguments)
        measured[name] = time.perf_counter() - start
        return result

    job.build(rows)
    for name, half in (("added", False), ("half", True)):
        column, before = make_column(name, 1 + half, half=half), size_mb(root)
        what = "a column of half of the cells, unsorted" if half else "a column"
        timed(f"add {what}", job.add, name, column)
        measured[f"add {what}: MB written"] = size_mb(root) - before
    corrected = pl.from_arrow(rows).filter(pl.col("p") == CORRECTED).with_columns(v0=-pl.col("v0"))
    if engine != "kartothek_cube":
        # a row of the table has the columns of the other jobs as well, which a correction has to carry along
        stored = pl.from_pandas(job.read()).filter(pl.col("p") == CORRECTED)
        corrected = stored.drop("v0").join(corrected.select("cell", "v0"), "cell").select(stored.columns)
    corrected = corrected.to_arrow()
    before = size_mb(root)
    timed("correct a partition", job.correct, corrected)
    measured["correct a partition: MB written"] = size_mb(root) - before
    reads = {
        "read all columns": {},
        "read three columns": {"columns": ["cell", "v1", "added"]},
        "read a cell": {"point": POINT},
        "read 0.1 % by an added column": {"above": ("added", 0.999)},
    }
    for arguments in reads.values():
        job.read(**arguments)
    answers = {name: timed(name, job.read, **arguments) for name, arguments in reads.items()}
    measured["four jobs add a column each"], measured["four jobs: columns lost"] = measure_jobs(engine, root)
    columns = ["v0", "v1", "added", "half"]
    checks = {
        name: (len(df), round(float(df.filter(columns).sum().sum()), 3)) for name, df in answers.items()
    }
    return measured, checks


def main(directory, rounds, out):
    """Measure: engine -> workload -> median."""
    rows, found, answers = make_rows(), {}, {}
    for number in range(int(rounds) + 1):
        for engine in CHOSEN:
            root = Path(directory) / engine
            measured, checks = measure(engine, root, rows)
            shutil.rmtree(root)
            for name, check in checks.items():
                assert answers.setdefault(name, check) == check, (engine, name, check, answers[name])
            for name, value in measured.items():
                if number:  # the first round imports
                    found.setdefault(engine, {}).setdefault(name, []).append(value)
    medians = {
        engine: {name: {"s": statistics.median(values)} for name, values in measured.items()}
        for engine, measured in found.items()
    }
    Path(out).write_text(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
