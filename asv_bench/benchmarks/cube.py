"""Build and query the cube of the workload."""

from __future__ import annotations

import operator
import tempfile
from pathlib import Path

import pandas as pd
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
