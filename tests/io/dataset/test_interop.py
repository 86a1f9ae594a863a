"""Other engines read the Parquet files of a dataset; the values of partition keys are in their paths."""

import datetime
import glob

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from kartothek_cube.io.arrow import read_dataset_as_record_batches, read_table_arrow
from kartothek_cube.io.eager import read_table, store_dataframes_as_dataset

DAY = datetime.date(2020, 1, 31)
ROWS = {
    "COUNTRY_CODE": ["DE", "DE", "Ö/=", "FR"],
    "STORE_ID": [-1, 7, 7, 7],
    "DAY": [DAY, DAY, datetime.date(2020, 2, 1), DAY],
    "CITY": ["Ulm", None, "Köln", "Lyon"],
    "SALES": [1.5, 2.5, None, -4.0],
    "SOLD_AT": [datetime.datetime(2020, 1, 31, 12, 0, 0, 5), None, datetime.datetime(1969, 12, 31), None],
    "ITEMS": [[1, 2], [], None, [3]],
}
KEYS = ["COUNTRY_CODE", "STORE_ID", "DAY"]
SQL_TYPES = {"COUNTRY_CODE": "VARCHAR", "STORE_ID": "BIGINT", "DAY": "DATE"}
HIVE_TYPES = "{'COUNTRY_CODE': VARCHAR, 'STORE_ID': BIGINT, 'DAY': DATE}"
TYPES = {"COUNTRY_CODE": pa.string(), "STORE_ID": pa.int64(), "DAY": pa.date32()}


@pytest.fixture
def directory(tmp_path):
    """The directory of the data files of a dataset with three partition keys."""
    table = pa.table({**ROWS, "DAY": pa.array(ROWS["DAY"], pa.date32())})
    options = {"partition_on": KEYS, "secondary_indices": "CITY"}
    store_dataframes_as_dataset(f"hfs://{tmp_path}", "sales", [table], **options)
    return tmp_path / "sales" / "table"


def by_sales(rows):
    sales = rows["SALES"]
    order = sorted(range(len(sales)), key=lambda i: (sales[i] is None, sales[i] or 0))
    return {name: [rows[name][i] for i in order] for name in ROWS}


@pytest.mark.parametrize("option", ["", f", hive_types={HIVE_TYPES}"], ids=["finds the types", "is told"])
def test_duckdb(directory, option):
    files = f"read_parquet('{directory}/**/*.parquet', hive_partitioning=true{option})"
    found = duckdb.sql(f"select * from {files}")
    types = dict(zip(found.columns, map(str, found.types)))
    assert {name: types[name] for name in KEYS} == SQL_TYPES
    assert by_sales(found.to_arrow_table().to_pydict()) == by_sales(ROWS)
    where = f"select CITY from {files} where DAY > '2020-01-31' and STORE_ID = 7"
    assert duckdb.sql(where).fetchall() == [("Köln",)]


def test_polars(directory):
    schema = {"COUNTRY_CODE": pl.String, "STORE_ID": pl.Int64, "DAY": pl.Date}
    found = pl.scan_parquet(f"{directory}/**/*.parquet", hive_partitioning=True, hive_schema=schema)
    assert {name: found.collect_schema()[name] for name in KEYS} == schema
    assert by_sales(found.collect().to_dict(as_series=False)) == by_sales(ROWS)
    where = (pl.col("DAY") > DAY) & (pl.col("STORE_ID") == 7)
    assert found.filter(where).select("CITY").collect().to_series().to_list() == ["Köln"]


def test_pyarrow(directory):
    """The schema file of the dataset tells the types, also those of the partition keys."""
    schema = ds.dataset(directory / "_common_metadata").schema
    assert {name: schema.field(name).type for name in KEYS} == TYPES
    files = glob.glob(f"{directory}/**/*.parquet", recursive=True)
    found = ds.dataset(files, schema=schema, partitioning="hive")
    assert by_sales(found.to_table().to_pydict()) == by_sales(ROWS)
    where = (ds.field("DAY") > DAY) & (ds.field("STORE_ID") == 7)
    assert found.to_table(filter=where, columns=["CITY"]).to_pydict() == {"CITY": ["Köln"]}


def test_pandas(directory):
    found = pd.read_parquet(directory, partitioning="hive")
    assert sorted(found["SALES"].dropna()) == [-4.0, 1.5, 2.5]
    assert set(found["STORE_ID"]) == {-1, 7}
    assert set(found["COUNTRY_CODE"]) == {"DE", "Ö/=", "FR"}


def test_frames_of_other_engines_are_input(tmp_path):
    store = f"hfs://{tmp_path}"
    polars = pl.DataFrame(ROWS)
    categories = polars.with_columns(pl.col("CITY").cast(pl.Categorical))
    inputs = {"polars": polars, "categories": categories, "duckdb": duckdb.from_arrow(polars.to_arrow())}
    for uuid, data in inputs.items():
        store_dataframes_as_dataset(store, uuid, [data], partition_on=KEYS)
        assert by_sales(read_table_arrow(uuid, store).to_pydict()) == by_sales(ROWS)
        assert read_table(uuid, store).dtypes["STORE_ID"] == "int64"


def test_streams_into_other_engines(directory, tmp_path):
    reader = read_dataset_as_record_batches("sales", f"hfs://{tmp_path}", columns=["CITY", "STORE_ID"])
    assert duckdb.from_arrow(reader).aggregate("count(*), sum(STORE_ID)").fetchall() == [(4, 20)]
    stream = read_dataset_as_record_batches("sales", f"hfs://{tmp_path}")
    assert by_sales(pl.DataFrame(stream).to_dict(as_series=False)) == by_sales(ROWS)
