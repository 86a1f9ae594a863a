"""One DataFrame for each of 5,000 values of an index. usage: groups.py STORE_DIR ROUNDS OUT.json.

All engines run in this process and alternate. The floor decodes the columns, and makes one DataFrame.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset as pads

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import build_cube, query_cube

VALUES, DAYS, PARTITIONS = 5_000, 200, 20
CUBE = Cube(uuid_prefix="groups", dimension_columns=["x", "y"], partition_columns=["p"])


def build(root):
    """Write the cube: the seed, and a dataset with the same cells."""
    x = np.repeat(np.arange(VALUES), DAYS)
    days = pd.date_range("2020-01-01", periods=DAYS).astype("datetime64[ns]").to_numpy()
    cells = pd.DataFrame({"x": x, "y": np.tile(days, VALUES), "p": x % PARTITIONS})
    random = np.random.default_rng(0)
    values = {name: random.random(len(x)) for name in ("v0", "v1")}
    build_cube({"seed": cells.assign(v0=values["v0"]), "enrich": cells.assign(v1=values["v1"])}, CUBE, root)


def cube_frames(root):
    """The query of the cube."""
    return query_cube(CUBE, root, partition_by="x")


def split(df):
    """Frames of the values of x."""
    return [group for _, group in df.groupby("x")]


def sql_frames(root):
    """A join, split by pandas."""
    seed, enrich = (
        f"read_parquet('{root}/groups++{name}/table/*/*.parquet') {name}" for name in ("seed", "enrich")
    )
    sql = f"SELECT x, y, p, v0, v1 FROM {seed} LEFT JOIN {enrich} USING (x, y, p) ORDER BY x, y, p"
    return split(duckdb.connect().execute(sql).df())


def polars_frames(root):
    """A join, split by pandas."""
    seed, enrich = (
        pl.scan_parquet(f"{root}/groups++{name}/table/*/*.parquet", hive_partitioning=True)
        for name in ("seed", "enrich")
    )
    joined = seed.join(enrich, on=["x", "y", "p"], how="left").sort("x", "y", "p")
    return split(joined.collect().to_pandas())


def floor(root):
    """Decode the needed columns."""
    frames = []
    for name, columns in (("seed", ["x", "y", "v0"]), ("enrich", ["v1"])):
        files = sorted(map(str, Path(root).glob(f"groups++{name}/table/*/*.parquet")))
        frames.append(pads.dataset(files, format="parquet").to_table(columns=columns).to_pandas())
    return frames[:1]


ENGINES = {"kartothek_cube": cube_frames, "duckdb": sql_frames, "polars": polars_frames, "floor": floor}


def main(root, rounds, out):
    """Build, run and write the result."""
    build(root)
    seconds = dict.fromkeys(ENGINES, float("inf"))
    checks = {}
    for _ in range(int(rounds) + 1):
        for engine, read in ENGINES.items():
            start = time.perf_counter()
            frames = read(root)
            seconds[engine] = min(seconds[engine], time.perf_counter() - start)
            checks[engine] = {"rows": sum(map(len, frames)), "check": sum(df["v0"].sum() for df in frames)}
    result = {
        engine: {"5,000 frames of 200 rows": {"s": seconds[engine], **checks[engine]}} for engine in ENGINES
    }
    Path(out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
