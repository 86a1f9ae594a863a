"""Datasets on Spark."""

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.core.errors import DatasetExistsError, SchemaConflictError
from kartothek_cube.io.spark import create_frame
from tests.support.spark_session import files

ROWS = pa.table(
    {
        "x": list(range(12)),
        "p": [i % 3 for i in range(12)],
        "s": [None if i % 4 == 0 else f"s{i}" for i in range(12)],
        "t": pa.array([datetime(2020, 1, 1 + i) for i in range(12)], pa.timestamp("ns")),
    }
)


@pytest.fixture
def frame(spark):
    return create_frame(ROWS, spark)


@pytest.fixture
def stored(frame, url):
    api.store_dataset_from_spark(
        frame, url, "uuid", {"k": 1}, partition_on="p", secondary_indices="s", sort_partitions_by="x"
    )
    return url


def test_rows_with_maps_are_divided_into_files(spark, url):
    rows = spark.sql("SELECT id, 0 AS p, map('a', id) AS m FROM range(6)")
    api.store_dataset_from_spark(rows, url, "maps", partition_on="p", max_rows_per_file=2)
    frames = api.read_dataset_as_dataframes("maps", url)
    assert sorted(x for df in frames for x in df["id"]) == list(range(6))
    assert max(map(len, frames)) <= 2


def values(df) -> list[tuple]:
    return sorted(map(tuple, df.collect()), key=str)


def test_partitions_are_files(stored):
    frames = api.read_dataset_as_dataframes("uuid", stored)
    assert sorted(df["p"].tolist() for df in frames) == [[p] * 4 for p in range(3)]
    assert all(df["x"].is_monotonic_increasing for df in frames)
    dataset = api.DatasetFactory("uuid", stored).dataset_metadata
    assert dataset.metadata["k"] == 1 and list(dataset.secondary_indices) == ["s"]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"columns": ["x"], "predicates": [[("p", "==", 1)]]}, [(1,), (4,), (7,), (10,)]),
        ({"columns": ["x"], "predicates": [[("s", "==", "s5")]]}, [(5,)]),
        ({"columns": ["x", "p"], "predicates": [[("x", ">", 10)]]}, [(11, 2)]),
        ({"columns": ["x"], "predicates": [[("p", "==", 9)]]}, []),
        ({"columns": ["p"], "dispatch_by": ["p"]}, [(0,)] * 4 + [(1,)] * 4 + [(2,)] * 4),
    ],
)
def test_reads_are_planned(stored, arguments, expected):
    df = api.read_dataset_as_spark("uuid", stored, **arguments)
    assert [tuple(row) for row in df.collect()] == expected or values(df) == sorted(expected, key=str)
    assert df.columns == arguments["columns"]


@pytest.mark.parametrize(
    "arguments, error, fragment",
    [
        ({"dataset_uuid": "uuidd"}, KeyError, "uuidd"),
        ({"columns": ["y"]}, ValueError, "y"),
        ({"columns": []}, ValueError, "at least one column"),
        ({"predicates": [[("x", "==", "a")]]}, TypeError, "x"),
        ({"dispatch_by": "x"}, RuntimeError, "x"),
        ({"store": "hmemory://"}, ValueError, "executors cannot open"),
    ],
)
def test_wrong_reads_are_refused_at_once(stored, arguments, error, fragment):
    with pytest.raises(error, match=fragment):
        api.read_dataset_as_spark(**{"dataset_uuid": "uuid", "store": stored, **arguments})


def test_an_update_adds_and_removes(frame, stored):
    new = frame.where("p = 1").withColumn("x", frame["x"] + 100)
    api.update_dataset_from_spark(new, stored, "uuid", delete_scope=[{"p": 1}], metadata={"k": 2})
    assert sorted(api.read_table("uuid", stored)["x"]) == [0, 2, 3, 5, 6, 8, 9, 11, 101, 104, 107, 110]
    api.update_dataset_from_spark(None, stored, "uuid", delete_scope=[{"p": 2}])
    dataset = api.DatasetFactory("uuid", stored).dataset_metadata
    assert len(dataset.partitions) == 2 and dataset.metadata["k"] == 2


def test_an_update_may_create(frame, url):
    api.update_dataset_from_spark(frame, url, "new", partition_on="p")
    assert len(api.read_table("new", url)) == 12


def test_a_frame_without_rows_makes_an_empty_dataset(frame, url):
    api.store_dataset_from_spark(frame.where("x < 0"), url, "uuid", partition_on="p")
    df = api.read_dataset_as_spark("uuid", url)
    assert sorted(df.columns) == sorted(ROWS.column_names) and df.count() == 0


def test_a_dataset_without_partitions_is_one_file(frame, url):
    dataset = api.store_dataset_from_spark(frame.repartition(3), url, "uuid")
    assert len(dataset.partitions) == 1


@pytest.mark.parametrize("partition_on", [None, "p"])
def test_files_may_be_limited(frame, url, partition_on):
    dataset = api.store_dataset_from_spark(frame, url, "uuid", partition_on=partition_on, max_rows_per_file=3)
    frames = api.read_dataset_as_dataframes("uuid", url)
    assert max(map(len, frames)) <= 3 and len(dataset.partitions) == len(frames) >= 4
    assert sorted(api.read_table("uuid", url)["x"]) == list(range(12))


@pytest.mark.parametrize(
    "change, error, fragment",
    [
        (lambda df: df.drop("p"), ValueError, "p"),
        (lambda df: df.drop("s"), (SchemaConflictError, RuntimeError), "s"),
        (lambda df: df.withColumn("x", df["x"].cast("string")), SchemaConflictError, "x"),
        (lambda df: df.withColumn("x", df["x"].cast("interval second")), TypeError, "'x'"),
        (lambda df: ROWS, TypeError, "create_frame"),
        (lambda df: df.selectExpr("x", "cast(null as bigint) p", "s", "t"), ValueError, "Partition column p"),
        (lambda df: df.selectExpr("x", "p", "s", "raise_error('user error') t"), Exception, "user error"),
    ],
)
def test_updates_that_do_not_fit_change_nothing(frame, stored, change, error, fragment):
    before = files(stored)
    with pytest.raises(error, match=fragment):
        api.update_dataset_from_spark(change(frame), stored, "uuid")
    assert files(stored) == before


def test_a_dataset_is_not_replaced_by_accident(frame, stored):
    with pytest.raises(DatasetExistsError):
        api.store_dataset_from_spark(frame, stored, "uuid", partition_on="p")
    api.store_dataset_from_spark(frame.limit(1), stored, "uuid", overwrite=True)
    assert len(api.read_table("uuid", stored)) == 1


def test_indices_are_built_by_executors(spark, stored, monkeypatch):
    monkeypatch.setattr("kartothek_cube.io.spark.dataset._PARTITIONS", 1)
    dataset = api.build_dataset_indices_spark(stored, "uuid", ["x"])
    assert sorted(dataset.secondary_indices) == ["s", "x"]
    df = api.read_dataset_as_spark("uuid", stored, ["x"], predicates=[[("x", "in", [3, 4])]])
    assert values(df) == [(3,), (4,)]
    with pytest.raises(RuntimeError, match="y"):
        api.build_dataset_indices_spark(stored, "uuid", ["y"])


def test_rows_are_deleted_by_executors(stored):
    predicates = [[("p", "==", 2)], [("x", "==", 1)]]
    deleted = api.read_table("uuid", stored, predicates=predicates)
    before = len(api.read_table("uuid", stored))
    counts = api.delete_dataset_rows_spark("uuid", stored, predicates)
    assert counts["rows_deleted"] == len(deleted) > 0
    assert len(api.read_table("uuid", stored)) == before - len(deleted)
    assert api.verify_dataset("uuid", stored).ok


def test_garbage_is_collected_by_executors(frame, stored, monkeypatch):
    monkeypatch.setattr("kartothek_cube.io.spark.dataset._BLOCK", 1)
    before = files(stored)
    api.update_dataset_from_spark(None, stored, "uuid", delete_scope=[{"p": 2}, {"p": 1}])
    api.garbage_collect_dataset_spark("uuid", stored, retention=timedelta(hours=1))
    assert before <= files(stored)
    api.garbage_collect_dataset_spark(factory=api.DatasetFactory("uuid", stored))
    assert len(list(Path(stored.removeprefix("hfs://")).rglob("*.parquet"))) == 2
    assert len(api.read_table("uuid", stored)) == 4


def test_older_and_staged_states_can_be_read(frame, stored):
    api.keep_dataset_history("uuid", stored, 5)
    api.update_dataset_from_spark(None, stored, "uuid", delete_scope=[{"p": 2}])
    version = api.list_dataset_history("uuid", stored)[-1].version
    assert api.read_dataset_as_spark("uuid", stored).count() == 8
    assert api.read_dataset_as_spark("uuid", stored, as_of=version - 1).count() == 12
    same = api.read_dataset_as_spark("uuid", stored)
    staged = api.update_dataset_from_spark(same, stored, "uuid", publish=False)
    n_rows = api.read_dataset_as_spark("uuid", stored).count()
    assert api.read_dataset_as_spark("uuid", stored, as_of=staged).count() == 2 * n_rows
    older = api.DatasetFactory("uuid", stored, as_of=version - 1)
    assert api.read_dataset_as_spark(factory=older).count() == 12


def test_an_update_with_other_columns(spark, stored):
    other = create_frame(ROWS.drop_columns(["t"]).slice(0, 1).append_column("v", pa.array([1.5])), spark)
    before = files(stored)
    remedy = r"v +- +double +drop the column, or add it by update_schema"
    with pytest.raises(SchemaConflictError, match=remedy):
        api.update_dataset_from_spark(other, stored, "uuid")
    assert files(stored) == before
    api.update_dataset_from_spark(other, stored, "uuid", schema_mode="merge")
    rows = api.read_dataset_as_spark("uuid", stored).where("x = 0").select("t", "v")
    assert sorted(map(tuple, rows.collect()), key=str) == [(None, 1.5), (ROWS["t"][0].as_py(), None)]
