"""Many partitions with few rows in each. usage: plan.py PACKAGE STORE_DIR OUT.json [N] [REPEATS].

Two datasets of N partitions with 20 rows each: build, load metadata and indices, point queries, a range
query, read everything, append one partition.
"""

from __future__ import annotations

import importlib
import itertools
import sys

import _common
import numpy as np
import pandas as pd
from storefact import get_store_from_url

ROWS = 20


def frames(n):
    """Seed and enrichment."""
    x = np.tile(np.arange(ROWS, dtype="int64"), n)
    p = np.repeat(np.arange(n, dtype="int64"), ROWS)
    seed = pd.DataFrame({"x": x + (p % 1000) * ROWS, "y": p * 7, "p": p, "v": np.arange(n * ROWS) * 0.5})
    return {"seed": seed, "enrich": pd.DataFrame({"x": seed.x, "y": seed.y, "p": seed.p, "w": -seed.v})}


def main(package, root, out, n=20_000, repeats=3):
    """Run everything and write the result."""
    n, repeats = int(n), int(repeats)
    cube_class = importlib.import_module(package + ".core.cube.cube").Cube
    column = importlib.import_module(package + ".core.cube.conditions").C
    eager = importlib.import_module(package + ".io.eager_cube")
    dataset = importlib.import_module(package + ".core.dataset").DatasetMetadata
    cube = cube_class(uuid_prefix="plan", dimension_columns=["x", "y"], partition_columns=["p"])
    store = get_store_from_url(f"hfs://{root}?create_if_missing=true")
    result = {}

    def measure(name, function, times=repeats, rows=None):
        seconds, answer = _common.median_seconds(function, times)
        result[name] = {"s": seconds}
        if rows is not None:
            found = sum(map(len, answer))
            if found != rows:
                raise AssertionError(f"{name}: {found} rows instead of {rows}")

    def query(condition=None):
        return eager.query_cube(cube=cube, store=store, conditions=condition)

    data = frames(n)
    measure("build", lambda: eager.build_cube(data=data, cube=cube, store=store, overwrite=True), 1)
    measure("load_metadata", lambda: dataset.load_from_store("plan++seed", store).load_partition_indices())
    measure("load_indices", lambda: dataset.load_from_store("plan++seed", store).load_all_indices(store))
    measure("point_query_p", lambda: query(column("p") == 77), rows=ROWS)
    measure("point_query_y", lambda: query(column("y") == 77 * 7), rows=ROWS)
    in_range = (column("x") >= 2 * ROWS) & (column("x") < 3 * ROWS)
    measure("range_query_x", lambda: query(in_range), rows=ROWS * len(range(2, n, 1000)))
    measure("read_all", query, 1, rows=n * ROWS)

    new = pd.DataFrame({"x": [1], "y": [-1], "p": [n + 1], "v": [0.0]})
    days = itertools.count(-2, -1)
    measure(
        "append_one",
        lambda: eager.append_to_cube(data={"seed": new.assign(y=next(days))}, cube=cube, store=store),
    )
    _common.write(out, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
