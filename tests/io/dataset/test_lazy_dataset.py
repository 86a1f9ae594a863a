"""Datasets as datasets of pyarrow: rows, pruning, counts, time travel."""

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kartothek_cube.io.arrow import dataset, read_table_arrow
from kartothek_cube.io.eager import store_dataframes_as_dataset, update_dataset_from_dataframes
from kartothek_cube.io_components import dataset_read
from tests.support.cubes import memory

ROWS = pd.DataFrame(
    {
        "p": [0, 0, 1, 1, 2],
        "x": [1, 2, 3, None, 5],
        "day": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03", None, "2024-01-05"]),
        "city": ["Ulm", None, "Bonn", "Bonn", ""],
    }
)


@pytest.fixture
def store():
    factory = memory()
    store_dataframes_as_dataset(factory, "u", [ROWS], partition_on="p", secondary_indices=["city"])
    return factory


@pytest.fixture
def keys(monkeypatch):
    """Keys of the files that are read."""
    opened: list[str] = []
    original = dataset_read.run_scans

    def run_scans(blobs, scans):
        opened.extend(key for scan in scans for key in scan.keys)
        return original(blobs, scans)

    monkeypatch.setattr(dataset_read, "run_scans", run_scans)
    return opened


def rows(table: pa.Table) -> list[tuple]:
    columns = [["nan" if v != v else v for v in column.to_pylist()] for column in table.columns]
    return sorted(zip(*columns, strict=True), key=repr)


def test_rows(store):
    lazy = dataset("u", store)
    expected = read_table_arrow("u", store).replace_schema_metadata().cast(lazy.schema)
    assert rows(lazy.to_table()) == rows(expected)
    assert rows(pa.table(lazy)) == rows(expected)
    assert rows(duckdb.sql("FROM lazy").to_arrow_table()) == rows(expected)
    assert pl.scan_pyarrow_dataset(lazy).select(pl.len()).collect().item() == 5
    assert lazy.count_rows() == 5
    assert lazy.head(2).num_rows == 2
    assert repr(lazy).startswith("<dataset u>")


@pytest.mark.parametrize(
    "where, expression, n_files",
    [
        ("p = 1", pc.field("p") == 1, 1),
        ("city = 'Bonn'", pc.field("city") == "Bonn", 1),
        ("city = 'Bonn' OR p = 2", (pc.field("city") == "Bonn") | (pc.field("p") == 2), 2),
        ("city IS NULL", pc.field("city").is_null(), 3),
        ("x IS NULL OR p = 0", pc.field("x").is_null() | (pc.field("p") == 0), 3),
        ("NOT (p < 2)", ~(pc.field("p") < 2), 1),
        ("coalesce(city, 'Ulm') = 'Ulm'", pc.coalesce(pc.field("city"), pa.scalar("Ulm")) == "Ulm", 3),
    ],
)
def test_filters(store, keys, where, expression, n_files):
    lazy = dataset("u", store)
    expected = rows(lazy.to_table().filter(expression).select(["p", "city"]))
    keys.clear()
    assert rows(lazy.to_table(columns=["p", "city"], filter=expression)) == expected
    assert len(set(keys)) == n_files
    keys.clear()
    assert rows(duckdb.sql(f"SELECT p, city FROM lazy WHERE {where}").to_arrow_table()) == expected
    # DuckDB 1 does not push disjunctions down: it reads all three files
    is_pushed_down = " OR " not in where or int(duckdb.__version__.partition(".")[0]) >= 2
    assert len(set(keys)) == (n_files if is_pushed_down else 3)


def test_each_scan_sees_the_newest_state(store):
    lazy = dataset("u", store)
    update_dataset_from_dataframes([ROWS.assign(p=7)], store, "u")
    assert lazy.count_rows() == lazy.to_table().num_rows == 10
    with pytest.raises(Exception, match="nope"):
        dataset("nope", store)


@pytest.mark.parametrize("condition", [None, pc.scalar(False)], ids=["all", "none"])
def test_a_dataset_without_columns_has_no_rows(condition):
    factory = memory()
    store_dataframes_as_dataset(factory, "empty", [pd.DataFrame()])
    lazy = dataset("empty", factory)
    assert lazy.to_table(filter=condition).shape == (0, 0)
    assert lazy.count_rows(filter=condition) == 0
