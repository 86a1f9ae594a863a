"""Plain Spark reads the files of a dataset; it decodes paths byte by byte, so they are ASCII here."""

import datetime as dt
import json
from decimal import Decimal
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from kartothek_cube.api import dataset as api
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
            "d": [dt.date(2020, 1, 1), dt.date(2020, 1, 2)],
            "x": [10, 20],
            "t": pd.to_datetime(["2020-01-01 03:04:05", "2020-01-02"], format="ISO8601"),
            "v1": ["one", None],
        }
    )
    api.store_dataframes_as_dataset(local(tmp_path / "store"), "u", [df], partition_on=["p", "q", "d"])
    read = spark.read.parquet(str(tmp_path / "store" / "u" / "table")).sort("x")
    types = {field.name: field.dataType.simpleString() for field in read.schema}
    columns = {"x": "bigint", "t": "timestamp_ntz", "v1": "string"}
    assert types == {**columns, "p": "int", "q": "string", "d": "date"}
    assert [row.asDict() for row in read.collect()] == [
        {"x": 10, "t": dt.datetime(2020, 1, 1, 3, 4, 5), "v1": "one", "p": 1, "q": "a b", "d": df["d"][0]},
        {"x": 20, "t": dt.datetime(2020, 1, 2), "v1": None, "p": 2, "q": "c=d", "d": df["d"][1]},
    ]


def test_files_of_a_published_table(spark, tmp_path):
    """delta-spark uses this reader, with the schema of the log, and values of partition keys out of it."""
    columns = {
        "i8": pa.array([1, None], pa.int8()),
        "i64": pa.array([1, 2]),
        "mixed": pa.array([1, 2], pa.int8()),
        "u8": pa.array([255, 2], pa.uint8()),
        "u32": pa.array([2**32 - 1, 2], pa.uint32()),
        "u64": pa.array([2**64 - 1, 2], pa.uint64()),
        "f32": pa.array([1.5, None], pa.float32()),
        "b": pa.array([True, None]),
        "s": pa.array(["ä", None]),
        "large": pa.array(["x", ""], pa.large_string()),
        "bin": pa.array([b"\x00", b""]),
        "d": pa.array([dt.date(2020, 1, 1), None]),
        "t": pa.array([dt.datetime(2020, 1, 1, 0, 0, 0, 1), None], pa.timestamp("us")),
        "dec": pa.array([Decimal("1.25"), None], pa.decimal128(20, 2)),
        "l": pa.array([[1, None], None], pa.list_(pa.int32())),
        "st": pa.array([{"a": 1, "b": "x"}, None]),
        "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "a b,;=": pa.array([1, 2]),
    }
    data = pa.table({"x": [1, 2], "p": ["c", "d"], **columns})
    store = local(tmp_path / "store")
    api.store_dataframes_as_dataset(store, "u", [data], partition_on=["p"])
    wider = data.set_column(data.column_names.index("mixed"), "mixed", pa.array([2**40, 4]))
    api.update_dataset_from_dataframes([wider.set_column(0, "x", pa.array([3, 4]))], store, "u")
    api.publish_dataset("u", store)
    log = (tmp_path / "store/u/_delta_log" / f"{0:020d}.json").read_text().splitlines()
    actions = [json.loads(line) for line in log]
    [metadata] = [action["metaData"] for action in actions if "metaData" in action]
    fields = StructType.fromJson(json.loads(metadata["schemaString"])).fields
    schema = StructType([field for field in fields if field.name not in metadata["partitionColumns"]])
    paths = [str(tmp_path / "store/u" / unquote(a["add"]["path"])) for a in actions if "add" in a]
    rows = spark.read.schema(schema).parquet(*paths).sort("x").collect()
    read = [row.asDict(recursive=True) for row in rows]
    stored = api.read_table_arrow("u", store).drop_columns(["p"]).to_pylist(maps_as_pydicts="strict")
    assert [{**row, "u64": int(row["u64"])} for row in read] == sorted(stored, key=lambda row: row["x"])
