"""Lazy tables: what a chain of calls needs is what is read, and the answer is that of the DataFrame."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.eager_cube import build_cube, extend_cube
from kartothek_cube.io.spark import table as module
from kartothek_cube.io.spark.cube import query_cube_spark
from kartothek_cube.io.spark.table import spark_table

CUBE = Cube(["x", "y"], ["p"], "cube")


@pytest.fixture
def cube_url(url) -> str:
    n = 12
    times = [datetime(2020, 1, 1, hour) for hour in range(n)]
    seed = {
        "x": range(n),
        "y": range(n),
        "p": [x % 3 for x in range(n)],
        "v": [2 * x for x in range(n)],
        "t": times,
    }
    build_cube(pa.table({k: list(v) for k, v in seed.items()}), CUBE, url)
    extend_cube({"more": pa.table({"x": [1, 2], "p": [1, 2], "a b": [5, 6], "w": ["a", "b"]})}, CUBE, url)
    return url


@pytest.fixture
def asked(monkeypatch):
    """Arguments of the last query."""
    seen = {}

    def query(cube, store, conditions, datasets, **arguments):
        seen.update(arguments, conditions=" & ".join(map(str, conditions)))
        return query_cube_spark(cube, store, conditions, datasets, **arguments)

    monkeypatch.setattr(module, "query_cube_spark", query)
    return seen


CHAINS = {
    "expression": (lambda t: t.select(f.col("v") + 1, "`a b`"), ["a b", "v"], ""),
    "where": (lambda t: t.where("v > 4 AND p = 1").select("x"), ["v"], "v > 4 & p == 1"),
    "where after select": (
        lambda t: t.select("x", (f.col("v") * 2).alias("y")).where("x >= 3").filter(f.col("y") < 30),
        ["v"],
        "x >= 3",
    ),
    "irrelevant column": (
        lambda t: t.where("x = 3 OR (w IN (NULL, NULL) AND t IS NULL)").select("v"),
        ["v"],
        "x == 3",
    ),
    "function and time": (
        lambda t: t.where("length(w) = 1 AND t < timestamp_ntz'2020-01-01 09:00:00'").select("x"),
        ["t", "w"],
        "t < 2020-01-01 09:00:00",
    ),
    "all": (lambda t: t.where("x = 1"), ["a b", "t", "v", "w"], "x == 1"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_reads_what_it_needs(spark, cube_url, asked, name):
    chain, payload, condition = CHAINS[name]
    df = chain(spark_table(CUBE, cube_url)).frame()
    assert sorted(asked["payload_columns"]) == payload
    assert asked["conditions"].startswith(condition) and bool(asked["conditions"]) == bool(condition)
    expected = chain(query_cube_spark(CUBE, cube_url))
    assert df.columns == expected.columns
    assert sorted(map(str, df.collect())) == sorted(map(str, expected.collect()))


def test_a_table_has_the_methods_of_a_frame(spark, cube_url):
    table = spark_table(CUBE, cube_url, "p == 1")
    # used twice, with different filters, and in a query with itself
    assert table.where("x > 5").count() == 2 and table.count() == 4
    assert table.where("x > 5").join(table.where("x < 5").frame(), "p").count() == 4
    assert table.columns == ["a b", "p", "t", "v", "w", "x", "y"]
    assert table.select("x").groupBy().sum("x").collect()[0][0] == 1 + 4 + 7 + 10
    assert repr(table.select("x")) == "CubeTable[x]"
