"""Datasets that grow in two steps: files by `write_single_partition`, the header by `commit_dataset`."""

import pickle

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from storefact import get_store_from_url

from kartothek_cube.api import dataset as api
from kartothek_cube.core.errors import ConcurrentWriteError, DatasetExistsError, SchemaConflictError
from kartothek_cube.core.schema import make_meta
from kartothek_cube.io.dask.delayed import update_dataset_from_delayed
from kartothek_cube.io_components.write import write_commit
from tests.support import stored_files
from tests.support.cubes import unchanged

PX = stored_files.frame(p=[1, 1, 2], x=[1, 2, 3])


@pytest.fixture
def stored(memory):
    options = {"partition_on": "p", "secondary_indices": "x", "metadata": {"m": 1}}
    api.store_dataframes_as_dataset(memory, "u", [PX], **options)
    return memory


def test_write_and_commit(store_factory):
    api.store_dataframes_as_dataset(store_factory, "u", [PX], partition_on="p", secondary_indices="x")
    before = stored_files.snapshot(store_factory)
    handle = api.write_single_partition(store_factory, "u", stored_files.frame(p=[2, 3], x=[4, 5]))
    written = stored_files.keys(store_factory) - set(before)
    assert {key.split("/")[2] for key in written} == {"p=2", "p=3"}
    assert {key: stored_files.snapshot(store_factory)[key] for key in before} == before
    dataset = api.commit_dataset(store_factory, "u", handle)
    assert stored_files.directories(store_factory) == ["p=1", "p=2", "p=2", "p=3"]
    stored_files.check_integrity(store_factory)
    assert dataset == api.DatasetMetadata.load_from_store("u", store_factory)


def test_handles_travel(stored):
    handles = [
        pickle.loads(pickle.dumps(api.write_single_partition(stored, "u", stored_files.frame(p=[p], x=[p]))))
        for p in (7, 8)
    ]
    assert all(len(pickle.dumps(handle)) < 4_000 for handle in handles)
    api.commit_dataset(stored, "u", [handles[0], [[handles[1]], None]])
    assert stored_files.directories(stored) == ["p=1", "p=2", "p=7", "p=8"]
    stored_files.check_integrity(stored)


@pytest.fixture
def handle(stored):
    """A partition p=7 that is written and not committed."""
    return api.write_single_partition(stored, "u", stored_files.frame(p=[7], x=[7]))


def test_a_handle_counts_once(stored, handle):
    with unchanged(stored), pytest.raises(ValueError, match=r"Duplicate partition labels.*p=7"):
        api.commit_dataset(stored, "u", [handle, handle])
    api.commit_dataset(stored, "u", handle)
    with unchanged(stored):
        api.commit_dataset(stored, "u", [handle])


def test_commit_everything_at_once(stored):
    handle = api.write_single_partition(stored, "u", [stored_files.frame(p=[1], x=[x]) for x in (7, 8)])
    dataset = api.commit_dataset(stored, "u", handle, delete_scope=[{"p": 1}], metadata=lambda: {"n": 2})
    assert stored_files.contents(stored) == [{"x": [3]}, {"x": [7]}, {"x": [8]}]
    assert {"m": 1, "n": 2}.items() <= dataset.metadata.items()
    stored_files.check_integrity(stored)


def test_commits_without_files(stored):
    before = stored_files.header(stored)
    api.commit_dataset(stored, "u", metadata={"n": 2})
    assert stored_files.header(stored) == {**before, "metadata": {**before["metadata"], "n": 2}}
    api.commit_dataset(stored, "u", delete_scope=[{"x": 1}])
    assert stored_files.directories(stored) == ["p=2"]


def test_input_of_an_update(io, stored, handle):
    io.update(stored, [handle, [stored_files.frame(p=[8], x=[8])]])
    assert stored_files.directories(stored) == ["p=1", "p=2", "p=7", "p=8"]
    stored_files.check_integrity(stored)


@pytest.mark.parametrize("data", [[], [None], PX[:0]])
def test_nothing_written(stored, data):
    handle = api.write_single_partition(stored, "u", data)
    assert handle.rows == 0
    if isinstance(data, pd.DataFrame):
        assert len(api.commit_dataset(stored, "u", handle).partitions) == 2
    else:
        with pytest.raises(ValueError, match="no information about files"):
            api.commit_dataset(stored, "u", handle)


def test_no_data(stored):
    with pytest.raises(TypeError, match="data"):
        api.write_single_partition(stored, "u")


@pytest.mark.parametrize(
    "data, arguments, error, text",
    [
        (stored_files.frame(p=[1], x=["a"]), {}, SchemaConflictError, "'u'"),
        (stored_files.frame(x=[1]), {}, ValueError, "p"),
        (PX, {"partition_on": ["x"]}, ValueError, r"\['p'\], but partition_on is \['x'\]"),
        (PX, {"secondary_indices": ["y"]}, ValueError, r"expected \['x'\], but got \['y'\]"),
        (PX, {"table_name": "core"}, RuntimeError, "core"),
        (PX, {"metadata_version": 5}, NotImplementedError, "5"),
        (1, {}, ValueError, "int"),
        ([PX, stored_files.frame(p=[1], x=["a"])], {}, SchemaConflictError, "'u'"),
    ],
)
def test_bad_writes(stored, data, arguments, error, text):
    with unchanged(stored), pytest.raises(error, match=text):
        api.write_single_partition(stored, "u", data, **arguments)


@pytest.mark.parametrize("function", [api.write_single_partition, api.commit_dataset])
def test_missing_dataset(memory, function):
    with pytest.raises(KeyError, match="'u' does not exist"):
        function(memory, "u", *([PX] if function is api.write_single_partition else [None, None, {"m": 1}]))


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({}, "none of them was given"),
        ({"new_partitions": [], "delete_scope": [], "metadata": {}}, "none of them was given"),
        ({"new_partitions": [[]]}, "none of them was given"),
        ({"new_partitions": [PX]}, "DataFrame.*no information about files"),
        ({"new_partitions": {"label": "a"}}, "dict.*no information about files"),
        ({"metadata": {"n": 1}, "partition_on": ["x"]}, "Incompatible set of partition keys"),
        ({"metadata": {"n": 1}, "secondary_indices": "p"}, r"expected \['x'\], but got \['p'\]"),
        ({"delete_scope": [{"typo": 1}]}, "typo"),
    ],
)
def test_bad_commits(stored, arguments, text):
    with unchanged(stored), pytest.raises(ValueError, match=text):
        api.commit_dataset(stored, "u", **arguments)


@pytest.mark.parametrize("uuid, table", [("v", "table"), ("u", "core")])
def test_handle_of_another_dataset(stored, uuid, table):
    store = get_store_from_url("hmemory://")
    api.store_dataframes_as_dataset(store, uuid, [PX], partition_on="p", table_name=table)
    handle = api.write_single_partition(store, uuid, PX, table_name=table)
    with unchanged(stored), pytest.raises(RuntimeError, match=f"table {table!r} of dataset {uuid!r}"):
        api.commit_dataset(stored, "u", handle)


def test_index_that_was_added_after_writing(stored):
    api.update_dataset_from_dataframes([], stored, "u", delete_scope=[{}])
    api.store_dataframes_as_dataset(stored, "u", [PX], partition_on="p", overwrite=True)
    handle = api.write_single_partition(stored, "u", stored_files.frame(p=[7], x=[7]))
    api.build_dataset_indices(stored, "u", "x")
    api.commit_dataset(stored, "u", handle)
    assert stored_files.index(stored, "x") == {1: [0], 2: [0], 3: [1], 7: [2]}


def test_schema_that_changed_after_writing(stored, handle):
    other = stored_files.frame(p=[1], x=["a"])
    api.store_dataframes_as_dataset(stored, "u", [other], partition_on="p", overwrite=True)
    with unchanged(stored), pytest.raises(SchemaConflictError):
        api.commit_dataset(stored, "u", handle)


def test_files_that_were_deleted_after_writing(stored, handle):
    (key,) = handle.partitions().files["table"].to_pylist()
    stored().delete(key)
    with pytest.raises(ConcurrentWriteError, match="deleted"):
        api.commit_dataset(stored, "u", handle)
    assert stored_files.directories(stored) == ["p=1", "p=2"]


# datasets whose partitions are whatever files there are -----------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        PX,
        pl.from_pandas(PX),
        pa.Table.from_pandas(PX),
        pa.Table.from_pandas(PX).schema,
        make_meta(PX, "here", ["p"]),
    ],
)
@pytest.mark.parametrize("kind", ["json", "msgpack"])
def test_header_without_partitions(store_factory, schema, kind):
    options = {"metadata": {"m": 1}, "metadata_storage_format": kind}
    dataset = api.create_empty_dataset_header(store_factory, "u", schema, partition_on="p", **options)
    assert not dataset.explicit_partitions
    assert dataset.schema.names == ["p", "x"]
    assert dataset == api.DatasetMetadata.load_from_store("u", store_factory)
    assert api.read_table("u", store_factory).equals(PX[:0])
    if kind == "json":
        assert "partitions" not in stored_files.header(store_factory)


@pytest.fixture
def unlisted(memory):
    """A dataset whose header does not list its partitions p=1 and p=2."""
    api.create_empty_dataset_header(memory, "u", PX, partition_on=["p"])
    api.write_single_partition(memory, "u", PX)
    return memory


def test_files_are_partitions_and_a_commit_lists_them(unlisted):
    more = api.write_single_partition(unlisted, "u", stored_files.frame(p=[7], x=[7]))
    assert sorted(api.read_table("u", unlisted)["x"]) == [1, 2, 3, 7]
    assert sorted(api.read_table("u", unlisted, predicates=[[("p", ">", 1)]])["x"]) == [3, 7]
    dataset = api.commit_dataset(unlisted, "u", more)
    assert dataset.explicit_partitions
    assert sorted(stored_files.directories(unlisted)) == ["p=1", "p=2", "p=7"]
    assert dataset == api.DatasetMetadata.load_from_store("u", unlisted)


@pytest.mark.parametrize("change", [{"metadata": {"m": 1}}, {"delete_scope": [{"p": 1}]}])
def test_any_commit_makes_partitions_explicit(unlisted, change):
    assert api.commit_dataset(unlisted, "u", **change).explicit_partitions
    assert sorted(stored_files.directories(unlisted)) == (["p=1", "p=2"] if "metadata" in change else ["p=2"])


def test_an_overwrite_replaces_files_that_no_header_lists(unlisted):
    new = stored_files.frame(p=[9], x=[9])
    api.store_dataframes_as_dataset(unlisted, "u", [new], partition_on="p", overwrite=True)
    assert api.read_table("u", unlisted)["x"].tolist() == [9]
    stored_files.check_integrity(unlisted)


def test_a_write_that_fails_leaves_no_rows_where_files_are_partitions(unlisted, monkeypatch):
    def fail(*arguments):
        raise ValueError("of the commit")

    monkeypatch.setattr(write_commit, "commit_datasets", fail)
    with pytest.raises(ValueError, match="of the commit"):
        api.update_dataset_from_dataframes([stored_files.frame(p=[9], x=[9])], unlisted, "u")
    assert sorted(api.read_table("u", unlisted)["x"]) == [1, 2, 3]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_graph_that_runs_again(unlisted, monkeypatch, moment):
    """Its worker was killed before or after its commit, and the files of the first attempt are there."""

    class Killed(BaseException):
        pass

    def kill(*arguments):
        if moment == "after":
            commit(*arguments)
        raise Killed

    new = stored_files.frame(p=[9], x=[9])
    graph = update_dataset_from_delayed([new], unlisted, "u")
    commit = write_commit.commit_datasets
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(write_commit, "commit_datasets", kill)
        graph.compute(scheduler="sync")
    assert graph.compute(scheduler="sync").explicit_partitions
    assert sorted(api.read_table("u", unlisted)["x"]) == [1, 2, 3, 9]
    stored_files.check_integrity(unlisted)


def test_first_partitions_bring_indices(memory):
    api.create_empty_dataset_header(memory, "u", PX, partition_on=["p"])
    api.write_single_partition(memory, "u", stored_files.frame(p=[7], x=[3]))  # without entries
    handle = api.write_single_partition(memory, "u", PX, secondary_indices=["x"])
    api.commit_dataset(memory, "u", handle, secondary_indices=["x"])
    stored_files.check_integrity(memory)
    assert len(stored_files.index(memory, "x")[3]) == 2


@pytest.mark.parametrize("overwrite", [False, True])
def test_existing_dataset(memory, overwrite):
    api.store_dataframes_as_dataset(memory, "u", [PX])
    if overwrite:
        assert not api.create_empty_dataset_header(memory, "u", PX, overwrite=True).explicit_partitions
        assert len(api.read_table("u", memory)) == 3  # old files count as well
    else:
        with pytest.raises(DatasetExistsError, match="'u'"):
            api.create_empty_dataset_header(memory, "u", PX)


@pytest.mark.parametrize(
    "schema, arguments, error, text",
    [
        (PX, {"partition_on": ["y"]}, ValueError, "unknown column y"),
        (1, {}, ValueError, "int"),
        (PX, {"metadata_version": 3}, NotImplementedError, "3"),
        (PX, {"metadata": 1}, TypeError, "int"),
        (PX[["p"]], {"partition_on": "p"}, ValueError, "only p"),
        (pa.schema([("x", pa.int8()), ("x", pa.int64())]), {}, ValueError, "more than once: x"),
        (pa.schema([("x\0", pa.int8())]), {}, ValueError, "NUL"),
        (pa.schema([("x", pa.duration("s"))]), {}, TypeError, "'x' .* cannot be stored"),
        (
            pa.schema([("p", pa.list_(pa.int8())), ("x", pa.int8())]),
            {"partition_on": "p"},
            NotImplementedError,
            "nested",
        ),
    ],
)
def test_bad_headers(memory, schema, arguments, error, text):
    with unchanged(memory), pytest.raises(error, match=text):
        api.create_empty_dataset_header(memory, "u", schema, **arguments)


def test_factory(stored):
    factory = api.DatasetFactory("u", stored)
    handle = api.write_single_partition(data=stored_files.frame(p=[7], x=[7]), factory=factory)
    api.commit_dataset(new_partitions=handle, factory=factory)
    assert len(factory.partitions) == 2
    assert stored_files.directories(stored) == ["p=1", "p=2", "p=7"]
