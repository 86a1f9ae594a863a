"""Plain Spark reads the files of a dataset; it decodes paths byte by byte, so they are ASCII here."""

from __future__ import annotations

import datetime

import pandas as pd
import pytest

from kartothek_cube.io.eager import store_dataframes_as_dataset
from tests.support.factories import local


@pytest.fixture(scope="module")
def spark():
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.session.timeZone", "Asia/Tokyo").getOrCreate()
    yield session
    session.stop()


def test_types_of_columns_and_partition_columns(spark, tmp_path):
    df = pd.DataFrame(
        {
            "p": [1, 2],
            "q": ["a b", "c=d"],
            "d": [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)],
            "x": [10, 20],
            "t": pd.to_datetime(["2020-01-01 03:04:05", "2020-01-02"], format="ISO8601"),
            "v1": ["one", None],
        }
    )
    store_dataframes_as_dataset(local(tmp_path / "store"), "u", [df], partition_on=["p", "q", "d"])
    read = spark.read.parquet(str(tmp_path / "store" / "u" / "table")).sort("x")
    types = {field.name: field.dataType.simpleString() for field in read.schema}
    assert types == {
        "x": "bigint",
        "t": "timestamp_ntz",
        "v1": "string",
        "p": "int",
        "q": "string",
        "d": "date",
    }
    rows = [row.asDict() for row in read.collect()]
    assert rows == [
        {
            "x": 10,
            "t": datetime.datetime(2020, 1, 1, 3, 4, 5),
            "v1": "one",
            "p": 1,
            "q": "a b",
            "d": df["d"][0],
        },
        {"x": 20, "t": datetime.datetime(2020, 1, 2), "v1": None, "p": 2, "q": "c=d", "d": df["d"][1]},
    ]
