"""Writing a dataset out of a stream of tables, and checking it before there are any."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kartothek_cube.core.errors import SchemaConflictError
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.eager import read_table
from kartothek_cube.io_components.write.dataset_writes import StoreDataset, UpdateDataset
from kartothek_cube.io_components.write.write_commit import finish_dataset_write
from kartothek_cube.io_components.write.write_tasks import check_dataset_input, write_stream


def rows(x, p) -> pa.Table:
    return pa.table({"x": pa.array(x, pa.int64()), "p": pa.array(p, pa.int64())})


@pytest.fixture
def plan(store_factory):
    return StoreDataset(
        store_factory, "uuid", partition_on="p", secondary_indices="x", sort_partitions_by="x"
    ).plan()


def test_tables_become_partitions(plan, store_factory):
    result = write_stream(plan, "uuid", [rows([2, 1], [0, 0]), rows([3], [1]), rows([], [])])
    finish_dataset_write(plan, [result])
    assert read_table("uuid", store_factory)["x"].tolist() == [1, 2, 3]


def test_what_was_written_before_a_bad_table_is_deleted(plan, store_factory):
    with pytest.raises(ValueError, match="Partition column p"):
        write_stream(plan, "uuid", [rows([1], [0]), rows([1], [None])])
    assert open_blobs(store_factory).list("") == []


def test_the_schema_of_no_rows_makes_a_dataset(plan, store_factory):
    finish_dataset_write(plan, [{"uuid": check_dataset_input(plan.spec, rows([], []))}])
    assert list(read_table("uuid", store_factory).columns) == ["p", "x"]


@pytest.mark.parametrize(
    "table, error, fragment",
    [
        (rows([], []).drop_columns(["p"]), ValueError, "p"),
        (rows([], []).drop_columns(["x"]), ValueError, "x"),
        (rows([], []).set_column(0, "x", pa.array([], pa.string())), SchemaConflictError, "x"),
    ],
)
def test_columns_are_checked_without_rows(plan, store_factory, table, error, fragment):
    finish_dataset_write(plan, [write_stream(plan, "uuid", [rows([1], [1])])])
    again = UpdateDataset(store_factory, "uuid", sort_partitions_by="x").plan()
    with pytest.raises(error, match=fragment):
        check_dataset_input(again.spec, table)
