"""Upserts into 2,000,000 rows in 200 partitions, and delta-rs. usage: merge.py DIR ROUNDS OUT [spark].

1 % of the rows in 5 % of the partitions, then in all of them; the engines alternate, on the same data, in one
process. With ``spark``, the rows come from a Spark DataFrame. The jar of delta-spark is in no package.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.arrow_cube import query_cube_arrow
from kartothek_cube.io.eager_cube import build_cube, merge_into_cube

ROWS, PARTITIONS = int(os.environ.get("BENCH_ROWS", "2000000")), 200
CHANGES = ROWS // 100
CUBE = Cube(uuid_prefix="merge", dimension_columns=["x", "y"], partition_columns=["p"])
#: name -> number of partitions with changes
WORKLOADS = {"1 % in 5 % of the partitions": PARTITIONS // 20, "1 % in all partitions": PARTITIONS}


def make_rows(x, p, random):
    """Rows of cells: numbers that do not repeat, numbers that do, texts."""
    names = pa.array([f"name {number}" for number in range(5_000)])
    columns = {"x": x, "y": p, "p": p, "v": random.random(len(x)), "n": random.integers(0, 1_000, len(x))}
    return pa.table(columns).append_column("t", names.take(pa.array(random.integers(0, 5_000, len(x)))))


def make_changes(partitions, random):
    """New values for some cells of evenly spread partitions."""
    chosen = np.arange(partitions) * (PARTITIONS // partitions)
    each, cells = CHANGES // partitions, ROWS // PARTITIONS
    x = np.concatenate([np.sort(random.choice(cells, each, replace=False)) for _ in chosen])
    return make_rows(x, np.repeat(chosen, each), random)


def merge_table(root, rows):
    """As delta-rs does it."""
    matched = "old.p = new.p AND old.x = new.x"
    merger = DeltaTable(str(root)).merge(rows, matched, source_alias="new", target_alias="old")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def check_answers(url, root):
    """The results have the same rows."""
    # delta-rs reads through Arrow's pool of threads, which aborts some processes at their end
    tables = query_cube_arrow(CUBE, url)[0], pl.read_delta(str(root)).to_arrow()
    ours, theirs = (
        (len(table), *(pc.sum(pc.multiply(table[c], table["x"])).as_py() for c in ("v", "n", "p")))
        for table in tables
    )
    assert np.allclose(ours, theirs), (ours, theirs)


def main(directory, rounds, out, mode="eager"):
    """Measure: engine -> workload -> median."""
    root, random = Path(directory), np.random.default_rng(0)
    url = f"hfs://{root / 'ours'}?create_if_missing=true"
    x = np.tile(np.arange(ROWS // PARTITIONS), PARTITIONS)
    rows = make_rows(x, np.repeat(np.arange(PARTITIONS), ROWS // PARTITIONS), random)
    build_cube(rows, CUBE, url)
    write_deltalake(str(root / "delta"), rows, partition_by=["p"])
    seconds = {}
    if mode == "spark":
        from kartothek_cube.io.spark import create_frame, local_session
        from kartothek_cube.io.spark.cube import merge_into_cube_from_spark

        spark = local_session(memory="2g")
    for name, partitions in WORKLOADS.items():
        for number in range(int(rounds) + 1):
            changes = make_changes(partitions, random)
            frame = changes if mode == "eager" else create_frame(changes, spark)
            merge = merge_into_cube if mode == "eager" else merge_into_cube_from_spark
            engines = {
                "kartothek_cube": lambda: merge(frame, CUBE, url),  # noqa: B023
                "delta": lambda: merge_table(root / "delta", changes),  # noqa: B023
            }
            for engine, run in engines.items():
                start = time.perf_counter()
                run()
                if number:  # the first one warms up
                    seconds.setdefault(engine, {}).setdefault(name, []).append(time.perf_counter() - start)
    check_answers(url, root / "delta")
    medians = {
        engine: {name: {"s": float(np.median(values))} for name, values in measured.items()}
        for engine, measured in seconds.items()
    }
    Path(out).write_text(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
