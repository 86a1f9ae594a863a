"""Maintenance of datasets: indices, garbage collection, deletion."""

import datetime
from functools import partial

import pandas as pd
import pytest

from kartothek_cube.api.dataset import DatasetFactory, DatasetMetadata
from kartothek_cube.core.errors import DatasetNotFoundError
from kartothek_cube.io import eager
from kartothek_cube.io_components.write.build_index import BuildDatasetIndices
from tests.support.crash import stores_after_faults
from tests.support.cubes import unchanged
from tests.support.factories import local
from tests.support.stored_files import check_integrity, frame, header, index, keys, snapshot
from tests.support.stores import FaultyStore

PXY = frame(p=[1, 1, 2], x=[1, 2, 3], y=["a", None, "a"])
DAY, NEXT_DAY = datetime.date(2020, 1, 31), datetime.date(2020, 2, 1)


def test_build_indices(store_factory):
    eager.store_dataframes_as_dataset(store_factory, "u", [PXY, PXY], partition_on="p", secondary_indices="x")
    before = header(store_factory)
    dataset = eager.build_dataset_indices(store_factory, "u", ["y"])
    assert index(store_factory, "y") == {"a": [0, 1, 2, 3]}
    after = header(store_factory)
    assert after["indices"]["x"] == before["indices"]["x"]
    assert {**after, "indices": None} == {**before, "indices": None}
    assert dataset == DatasetMetadata.load_from_store("u", store_factory)


def test_build_an_existing_index_anew(memory):
    eager.store_dataframes_as_dataset(memory, "u", [PXY], secondary_indices="x")
    old = header(memory)["indices"]["x"]
    eager.build_dataset_indices(memory, "u", "x")
    assert header(memory)["indices"]["x"] != old
    check_integrity(memory)


@pytest.mark.parametrize(
    "values, dtype",
    [
        (pd.array([0, 2**64 - 1, 1], "uint64"), "uint64"),
        (pd.array([1, 2, 3], "int8"), "int64"),
        (pd.Series([1.5, None, -0.0]), "double"),
        ([True, False, True], "bool"),
        (["", "ä", "a"], "string"),
        ([b"", b"\x00", b"a"], "binary"),
        ([DAY, None, NEXT_DAY], "date32[day]"),
        (pd.to_datetime(["2020-01-31", None, "2020-02-01"]), "timestamp[ns]"),
        (pd.to_datetime(["2020-01-31"] * 3).tz_localize("Europe/Berlin"), "timestamp[ns, tz=Europe/Berlin]"),
    ],
)
def test_indices_of_every_type(memory, values, dtype):
    df = frame(x=values)
    eager.store_dataframes_as_dataset(memory, "u", [df, df[:0]])
    built = eager.build_dataset_indices(memory, "u", "x").load_all_indices(memory).indices["x"]
    eager.store_dataframes_as_dataset(memory, "v", [df, df[:0]], secondary_indices="x")
    written = DatasetMetadata.load_from_store("v", memory, load_all_indices=True).indices["x"]
    assert str(built.dtype) == str(written.dtype) == dtype
    assert list(built.index_dct) == list(written.index_dct)
    assert [len(found) for found in built.index_dct.values()] == [1] * len(set(frame(x=values)["x"].dropna()))


def test_index_of_no_partitions(memory):
    eager.store_dataframes_as_dataset(memory, "u", [PXY[:0]], partition_on="p")
    eager.build_dataset_indices(memory, "u", ["x"])
    assert index(memory, "x") == {}


@pytest.mark.parametrize(
    "columns, error, text",
    [
        (["zz"], RuntimeError, "unknown column zz; available: p, x, y"),
        (["x", "p"], RuntimeError, "partition column.* p"),
        ({"x"}, ValueError, "set"),
        (["x", "x"], ValueError, "columns: .* twice.* x"),
        (None, TypeError, "columns is"),
    ],
)
def test_columns_that_cannot_be_indexed(memory, columns, error, text):
    eager.store_dataframes_as_dataset(memory, "u", [PXY], partition_on="p")
    with unchanged(memory), pytest.raises(error, match=text):
        eager.build_dataset_indices(memory, "u", columns)


def test_only_the_columns_of_the_index_are_read(memory):
    """Tasks of one partition each, run out of order, give the same indices as one task."""
    eager.store_dataframes_as_dataset(memory, "u", [PXY, PXY], partition_on="p")
    job = BuildDatasetIndices(memory, "u", ["x", "y"]).job(1)
    assert len(job.tasks) == 4
    job.finish([job.run(job.context, task) for task in reversed(job.tasks)])
    check_integrity(memory)


def test_partitions_that_come_and_go_while_indices_are_built(memory):
    eager.store_dataframes_as_dataset(memory, "u", [PXY], partition_on="p")
    job = BuildDatasetIndices(memory, "u", ["x"]).job()
    results = [job.run(job.context, task) for task in job.tasks]
    eager.update_dataset_from_dataframes([PXY.assign(x=7)], memory, "u", delete_scope=[{"p": 1}])
    job.finish(results)
    check_integrity(memory)


@pytest.fixture
def littered(store_factory):
    """A dataset with garbage, and the keys that it refers to."""
    eager.store_dataframes_as_dataset(store_factory, "u", [PXY], partition_on="p", secondary_indices="x")
    eager.update_dataset_from_dataframes([PXY], store_factory, "u", delete_scope=[{"p": 1}])
    eager.write_single_partition(store_factory, "u", PXY)
    store_factory().put("u/table/stray", b"")
    content = header(store_factory)
    used = {"u.by-dataset-metadata.json", "u/table/_common_metadata", *content["indices"].values()}
    used |= {part["files"]["table"] for part in content["partitions"].values()}
    assert used < keys(store_factory)
    return store_factory, used


def test_garbage(littered):
    store, used = littered
    foreign = ["u/other/x", "u.x", "u2/table/x", "u+/indices/x", "v", "u/x"]
    for key in foreign:
        store().put(key, b"")
    eager.garbage_collect_dataset("u", store)
    assert keys(store) == used | set(foreign)
    check_integrity(store)
    eager.garbage_collect_dataset(factory=DatasetFactory("u", store))
    assert keys(store) == used | set(foreign)


def test_leftovers_of_writers_that_died(tmp_path):
    store = local(tmp_path / "store")
    eager.store_dataframes_as_dataset(store, "u", [PXY], partition_on="p", secondary_indices="x")
    before = keys(store)
    name = "0123456789abcdef" * 2
    others = [f"v.{name}.tmp", "u.tmp", "u.x.tmp"]
    for key in [*[f"u.{name}.tmp", f"u/table/p=1/a.{name}.tmp", f"u/indices/x/b.{name}.tmp"], *others]:
        (tmp_path / "store" / key).write_bytes(b"")
    eager.garbage_collect_dataset("u", store)
    assert keys(store) == before | set(others)


def test_garbage_of_derived_partitions(memory):
    eager.create_empty_dataset_header(memory, "u", PXY, partition_on="p")
    eager.write_single_partition(memory, "u", PXY)
    for key in ("u/table/stray", "u/indices/x/stray"):
        memory().put(key, b"")
    before = keys(memory)
    eager.garbage_collect_dataset("u", memory)
    assert keys(memory) == before - {"u/indices/x/stray"}


def test_what_is_committed_while_keys_are_listed_stays(memory):
    eager.store_dataframes_as_dataset(memory, "u", [PXY])
    counting = FaultyStore(memory())
    listed = []

    def commit():
        if not listed:
            listed.append(True)
            eager.update_dataset_from_dataframes([PXY], memory, "u")

    counting.fail("iter_keys", key="u/", error=commit)
    counting.fail("keys", key="u/", error=commit)
    eager.garbage_collect_dataset("u", counting)
    assert listed
    assert len(eager.read_table("u", memory)) == 6


@pytest.mark.parametrize("function", [eager.garbage_collect_dataset, eager.delete_dataset])
def test_missing_dataset(memory, function):
    with pytest.raises(DatasetNotFoundError, match="'u'"):
        function("u", memory)


@pytest.mark.parametrize("function", [eager.garbage_collect_dataset, eager.delete_dataset])
@pytest.mark.parametrize("arguments", [("u",), (None, "hmemory://"), ()])
def test_ambiguous_dataset(function, arguments):
    with pytest.raises(ValueError, match="factory"):
        function(*arguments)


def test_delete(littered):
    store, _ = littered
    foreign = ["u/notes.txt", "u/other/x", "u.x", "u2/table/x", "v"]
    for key in foreign:
        store().put(key, b"")
    eager.delete_dataset("u", store)
    assert keys(store) == set(foreign)
    assert not DatasetMetadata.exists("u", store)


@pytest.mark.parametrize("gone", ["_common_metadata", "indices", "p=1", "x=nothing"])
def test_delete_what_is_left(memory, gone):
    eager.store_dataframes_as_dataset(memory, "u", [PXY], partition_on="p", secondary_indices="x")
    for key in keys(memory):
        if gone in key:
            memory().delete(key)
    eager.delete_dataset(factory=DatasetFactory("u", memory, load_schema=False))
    assert keys(memory) == set()


@pytest.mark.parametrize("kind", ["json", "msgpack"])
@pytest.mark.parametrize("table", ["table", "core"])
def test_delete_a_dataset_without_partitions(memory, kind, table):
    options = {"metadata_storage_format": kind, "table_name": table}
    eager.store_dataframes_as_dataset(memory, "u", [PXY], partition_on="p", **options)
    eager.update_dataset_from_dataframes([], memory, "u", delete_scope=[{}], table_name=table)
    eager.delete_dataset("u", memory)
    assert keys(memory) == set()


def test_delete_both_headers(memory):
    eager.store_dataframes_as_dataset(memory, "u", [PXY], metadata_storage_format="msgpack")
    packed = {key: data for key, data in snapshot(memory).items() if "/" not in key}
    eager.store_dataframes_as_dataset(memory, "u", [PXY], overwrite=True)
    for key, data in packed.items():
        memory().put(key, data)
    eager.delete_dataset("u", memory)
    assert keys(memory) == set()


def test_delete_derived_partitions(memory):
    eager.create_empty_dataset_header(memory, "u", PXY, partition_on="p")
    eager.write_single_partition(memory, "u", PXY)
    eager.delete_dataset("u", memory)
    assert keys(memory) == set()


@pytest.mark.parametrize("fault", ["fail", "die"])
@pytest.mark.parametrize("after", [False, True])
def test_a_deletion_that_fails(memory, after, fault):
    """Whatever request fails, the dataset is there as a whole or not at all, and can be deleted again."""
    eager.store_dataframes_as_dataset(memory, "u", [PXY], partition_on="p", secondary_indices="x")
    before, headers = snapshot(memory), 0
    delete = partial(eager.delete_dataset, "u")
    stores = stores_after_faults(before, delete, fault, method="delete", after=after)
    assert len(stores) >= len(before)
    for store in stores:
        if "u.by-dataset-metadata.json" in store.keys():
            headers += 1
            assert before.keys() <= {*store.keys()}
            assert eager.verify_dataset("u", store).ok
        try:
            eager.delete_dataset("u", store)
        except DatasetNotFoundError:
            pass
        assert not store.keys()
    assert headers == (fault == "die" and not after)
