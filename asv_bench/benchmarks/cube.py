"""Build and query the cube of the workload."""

from __future__ import annotations

import operator
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import workload as w

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import build_cube, extend_cube, query_cube

CUBE = Cube(uuid_prefix="bench", dimension_columns=["x", "y"], partition_columns=["p"])
OPERATORS = {"==": operator.eq, "<": operator.lt, ">": operator.gt}


def store_in(directory):
    """URL of a store in a directory."""
    return f"hfs://{directory}?create_if_missing=true"


def build(url):
    """Build the whole cube."""
    data = {"seed": w.whole(w.seed), "enrich": w.whole(w.enrich)}
    build_cube(data=data, cube=CUBE, store=url, overwrite=True)
    extend_cube(
        data={"loc": w.whole(w.loc), "cal": w.cal()},
        cube=CUBE,
        store=url,
        partition_on={"cal": []},
        overwrite=True,
    )


class Build:
    """Write 50 partitions."""

    timeout = 300

    def setup(self):
        self.directory = tempfile.TemporaryDirectory()
        self.data = {"seed": w.whole(w.seed), "enrich": w.whole(w.enrich)}

    def teardown(self):
        self.directory.cleanup()

    def build(self):
        build_cube(data=self.data, cube=CUBE, store=store_in(self.directory.name), overwrite=True)

    def time_build(self):
        self.build()

    def peakmem_build(self):
        self.build()


class BuildUnsorted:
    """Sort 2 million rows in random order, write them in 20 partitions, and index the dimension."""

    timeout = 300

    def setup(self):
        self.directory = tempfile.TemporaryDirectory()
        cells = np.tile(np.arange(100_000), 20)
        rows = pa.table({"x": cells, "p": np.repeat(np.arange(20), 100_000), "v": cells / 7, "w": cells * 2})
        self.rows = rows.take(np.random.default_rng(1).permutation(len(rows)))

    def teardown(self):
        self.directory.cleanup()

    def time_build(self):
        build_cube(self.rows, Cube(["x"], ["p"], "unsorted"), store_in(self.directory.name), overwrite=True)


class Query:
    """The seven queries."""

    params = list(w.QUERIES)
    param_names = ("query",)

    def setup_cache(self):
        directory = str(Path.cwd() / "cube")
        build(store_in(directory))
        return store_in(directory)

    def query(self, url, name):
        columns, triples, by = w.QUERIES[name]
        conditions = [
            OPERATORS[op](C(column), pd.Timestamp(value) if column == "y" else value)
            for column, op, value in triples
        ]
        query_cube(cube=CUBE, store=url, payload_columns=columns, conditions=conditions, partition_by=by)

    def time_query(self, url, name):
        self.query(url, name)

    def peakmem_query(self, url, name):
        self.query(url, name)
