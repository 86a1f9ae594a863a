"""Other workloads: wide cubes, many datasets, text, missing or overwritten cells."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import numpy as np
import pandas as pd
from storefact import get_store_from_url

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, explain_query, query_cube

X = int(os.environ["BENCH_X"]) * 20
DAYS = pd.date_range("2020-01-01", periods=200).astype("datetime64[ns]")
CUBE = Cube(uuid_prefix="shapes", dimension_columns=["x", "y"], partition_columns=["p"])
TEXT = Cube(uuid_prefix="shapes", dimension_columns=["a", "b", "c"], partition_columns=["p"])


def grid():
    """All cells, in 20 partitions."""
    x = np.repeat(np.arange(X), len(DAYS))
    return pd.DataFrame({"x": x, "y": np.tile(DAYS, X), "p": x % 20})


def sample(df, share, column, seed=0):
    """Some of the cells, with values."""
    random = np.random.default_rng(seed)
    part = df[random.random(len(df)) < share]
    return part.assign(**{column: random.normal(size=len(part))})


def simple(df):
    """Seed and enrichment have the same cells."""
    return {"seed": sample(df, 1.0, "v"), "enrich": sample(df, 1.0, "w", 1)}


def wide(df):
    """An enrichment of 300 columns."""
    values = np.random.default_rng(0).normal(size=(len(df), 300))
    more = pd.DataFrame(values, columns=[f"w{number}" for number in range(300)], index=df.index)
    return {"seed": df, "enrich": pd.concat([df, more], axis=1)}


def many(df):
    """Twenty datasets."""
    return {"seed": df} | {f"e{number}": sample(df, 1.0, f"w{number}", number) for number in range(19)}


def sparse(df):
    """Half of the cells are missing."""
    return {"seed": sample(df, 1.0, "v"), "enrich": sample(df, 0.5, "w", 1), "more": sample(df, 0.5, "u", 2)}


def days(df):
    """Days are dates."""
    return simple(df.assign(y=[day.date() for day in DAYS] * X))


def text(df):
    """Three dimensions of text."""
    day = df.y.dt.day_of_year
    cells = pd.DataFrame(
        {
            "a": "shop " + df.x.astype(str),
            "b": "article " + (day // 20).astype(str),
            "c": "channel " + (day % 20).astype(str),
            "p": df.p,
        }
    )
    return {
        "seed": sample(cells, 1.0, "v"),
        "enrich": sample(cells, 1.0, "w", 1),
        "more": sample(cells, 0.7, "u", 2),
    }


#: name -> (data, cube, arguments of the query)
SHAPES = {
    "isin": (simple, CUBE, {"conditions": C("x").isin(list(range(0, X, 5)))}),
    "seed condition": (simple, CUBE, {"conditions": C("v") > 2.5}),
    "groups of x": (simple, CUBE, {"partition_by": "x"}),
    "groups of y": (simple, CUBE, {"partition_by": "y"}),
    "wide": (wide, CUBE, {"payload_columns": ["w3", "w77", "w150", "w200", "w299"]}),
    "many": (many, CUBE, {}),
    "overwritten": (simple, CUBE, {}),
    "sparse": (sparse, CUBE, {}),
    "days": (days, CUBE, {"conditions": C("y") >= datetime.date(2020, 3, 1)}),
    "text": (text, TEXT, {"payload_columns": ["v", "w"]}),
    "sparse text": (text, TEXT, {"payload_columns": ["v", "u"]}),
}


def build(name, directory):
    """Write the cube of a shape; returns its URL."""
    make, cube, _ = SHAPES[name]
    url = f"hfs://{directory}?create_if_missing=true"
    build_cube(make(grid()), cube, url)
    if name == "overwritten":
        for number in range(3):
            again = {"seed": sample(grid(), 0.2, "v", number), "enrich": sample(grid(), 0.2, "w", number)}
            append_to_cube(again, cube, url)
    return url


class Shapes:
    """One query each."""

    params = list(SHAPES)
    param_names = ("shape",)
    timeout = 300

    def setup_cache(self):
        return {name: build(name, Path.cwd() / name.replace(" ", "_")) for name in SHAPES}

    def query(self, urls, name):
        _, cube, arguments = SHAPES[name]
        return query_cube(cube=cube, store=urls[name], **arguments)

    def time_query(self, urls, name):
        self.query(urls, name)

    def peakmem_query(self, urls, name):
        self.query(urls, name)


class Columns:
    """Two rows with many columns: the time is that of the columns."""

    params = (500, 10_000)
    param_names = ("columns",)

    def setup(self, columns):
        values = {f"c{number}": [0.5, 1.5] for number in range(columns)}
        self.data = pd.DataFrame({"x": [1, 2], "y": DAYS[:2], "p": 1} | values)
        self.store = get_store_from_url("hmemory://")
        build_cube(self.data, CUBE, self.store)

    def time_build(self, columns):
        build_cube(self.data, CUBE, self.store, overwrite=True)

    def time_query(self, columns):
        query_cube(CUBE, self.store)

    def time_explain(self, columns):
        repr(explain_query(CUBE, self.store))
