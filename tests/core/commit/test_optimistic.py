"""Publishing commits: answers that are lost, inputs that have to be there, places in the order of commit."""

import json
from contextlib import suppress

import pyarrow as pa
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.core import history
from kartothek_cube.core.commit import header_store
from kartothek_cube.core.commit.change import ChangeSet
from kartothek_cube.core.commit.optimistic import commit
from kartothek_cube.core.errors import ConcurrentWriteError, DatasetNotFoundError, UnknownOutcomeError
from kartothek_cube.core.header import parse_record
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.write.table_writer import write_table
from kartothek_cube.io_components.write.write_plan import WriteSpec, merge_results
from tests.support.crash import stores_after_faults
from tests.support.cubes import memory as memory_store
from tests.support.cubes import snapshot
from tests.support.factories import memory as new_memory
from tests.support.stored_files import frame, keys, labels
from tests.support.stores import FaultyStore, InjectedError

HEADER = "by-dataset-metadata"


@pytest.fixture
def store(tmp_path):
    store = new_memory(tmp_path)
    api.store_dataframes_as_dataset(store, "u", [frame(x=[x]) for x in (1, 2, 3)], secondary_indices="x")
    return store


def written(store, *values):
    """A change that adds one partition per value."""
    spec = WriteSpec(store, "u", indices=("x",))
    return merge_results([write_table(spec, pa.table({"x": [value]})) for value in values])


def data_files(store) -> list[str]:
    return [key for key in keys(store) if "/table/" in key and key.endswith(".parquet")]


def values(store) -> list[int]:
    return api.read_table("u", store)["x"].tolist()


WRITES = {
    "append": lambda s: api.update_dataset_from_dataframes([frame(x=[4])], s, "u"),
    "remove": lambda s: api.update_dataset_from_dataframes([], s, "u", delete_scope=[{"x": 1}]),
    "index": lambda s: api.build_dataset_indices(s, "u", "x"),
    "overwrite": lambda s: api.store_dataframes_as_dataset(s, "u", [frame(y=["a"])], overwrite=True),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_an_answer_that_is_lost(store, write, tmp_path):
    other = new_memory(tmp_path)
    for key, content in snapshot(store).items():
        other().put(key, content)
    write(other)
    failing = FaultyStore(store()).fail("put", key=HEADER, after=True)
    write(failing)
    assert failing.happened
    assert api.read_table("u", store).equals(api.read_table("u", other))
    assert api.verify_dataset("u", store).ok


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_put_that_fails(store, write):
    failing = FaultyStore(store()).fail("put", key=HEADER)
    with pytest.raises(InjectedError):
        write(failing)
    assert values(store) == [1, 2, 3]
    assert api.verify_dataset("u", store).ok


def test_nobody_tells(store):
    """The put and the question what became of it fail; no file may be deleted then."""
    failing = FaultyStore(store()).fail("put", key=HEADER, after=True, lasting=True)
    with pytest.raises(UnknownOutcomeError, match="injected"):
        WRITES["append"](failing)
    assert values(store) == [1, 2, 3, 4]
    assert api.verify_dataset("u", store).ok


def test_an_answer_that_is_lost_while_others_go_on(store):
    """Our header got there, and another one on top of it."""
    failing = FaultyStore(store()).fail("put", key=HEADER, after=True)

    def overtake():
        api.update_dataset_from_dataframes([frame(x=[5])], store, "u")
        raise InjectedError("no answer")

    failing._planned[0].error = overtake
    WRITES["append"](failing)
    assert values(store) == [1, 2, 3, 4, 5]
    failing._planned.clear()
    failing.fail("put", key=HEADER, after=True)
    failing._planned[0].error = overtake
    with pytest.raises(UnknownOutcomeError):  # a removal leaves nothing by which it is known again
        WRITES["remove"](failing)
    assert values(store) == [2, 3, 4, 5, 5]


@pytest.mark.parametrize(
    "inputs, places, expected",
    [
        ([0, 1], [1], [9, 3]),
        ([0, 1], [0], [9, 3]),
        ([1, 2], [2], [1, 9]),
        ([0, 1, 2], [1], [9]),
        ([0, 2], [0], [9, 2]),
        ([0, 2], [2], [2, 9]),
        ([0], None, [2, 3, 9]),
        ([0, 1, 2], [2, 0], [8, 9]),
        ([1, 2], [1, 1], [1, 9, 8]),
    ],
)
def test_places(store, inputs, places, expected):
    known = labels(store)
    delta = written(store, *([9] if places is None or len(places) == 1 else [9, 8])).change_set(
        replaces=pa.array([known[i] for i in inputs]),
        replaces_at=None if places is None else pa.array([known[i] for i in places]),
    )
    dataset, _ = commit(open_blobs(store), delta)
    assert values(store) == expected
    assert dataset == api.DatasetMetadata.load_from_store("u", store)
    assert api.verify_dataset("u", store).ok
    assert commit(open_blobs(store), delta)[0] == dataset


@pytest.mark.parametrize("n, scope, left", [(2, None, [3]), (1, ("x", "==", 3), [2])])
def test_inputs_without_anything_in_their_place(store, n, scope, left):
    commit(open_blobs(store), ChangeSet("u", replaces=pa.array(labels(store)[:n]), remove_where=scope))
    assert values(store) == left
    assert api.verify_dataset("u", store).ok


def test_inputs_that_are_gone(store):
    known = labels(store)
    api.update_dataset_from_dataframes([], store, "u", delete_scope=[{"x": 2}])
    with pytest.raises(ConcurrentWriteError) as caught:
        commit(open_blobs(store), ChangeSet("u", replaces=pa.array(known)))
    assert caught.value.partitions == (known[1],)
    assert values(store) == [1, 3]


def test_a_first_commit_on_which_another_is_built_stays(store):
    """The other one has seen that no collection concerned its files; one that began later sees the header."""
    blobs, header = open_blobs(store), "u.by-dataset-metadata.json"
    first = parse_record(json.loads(blobs.get(header))).commit
    files = data_files(store)
    api.update_dataset_from_dataframes([frame(x=[4])], store, "u")
    header_store.put_tombstone_file(blobs, "u", "collection", files)
    assert header_store.confirm_first_commit(blobs, "u", header, files, first) == set()
    assert values(store) == [1, 2, 3, 4]


def test_a_commit_keeps_the_tombstones_of_a_collection_that_is_under_way(store):
    """A slower writer whose files it deletes is still refused."""
    blobs, used = open_blobs(store), keys(store)
    pending = written(store, 5)
    listed = keys(store) - used

    def begin(state):
        return state.copy(metadata=header_store.add_tombstones(state.metadata, "collection", listed))

    header_store.edit_header(blobs, "u", begin)
    api.update_dataset_from_dataframes([frame(x=[4])], store, "u")
    with pytest.raises(ConcurrentWriteError, match="Files of this commit were deleted"):
        commit(blobs, pending.change_set())
    assert values(store) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "formats, new",
    [(("json", "msgpack"), 2), (("msgpack", "json"), 2), (("json", "json"), "2")],
    ids=["to msgpack", "to json", "another schema"],
)
def test_an_overwrite_that_dies_leaves_the_old_rows_or_the_new_ones(formats, new):
    """At each request: never a dataset without a header, nor one without its schema."""

    def store_rows(store, x, storage_format):
        data, options = [frame(x=[x])], {"metadata_storage_format": storage_format}
        api.store_dataframes_as_dataset(store, "u", data, overwrite=True, **options)

    build = memory_store()
    store_rows(build, 1, formats[0])
    stores = stores_after_faults(snapshot(lambda: build), lambda dying: store_rows(dying, new, formats[1]))
    found = [values(store) for store in stores]
    for store, (x,) in zip(stores, found, strict=True):
        assert len(api.read_table("u", store, predicates=[[("x", "==", x)]])) == 1
    assert len(found) > 5 and {str(rows) for rows in found} <= {"[1]", str([new])}
    assert [rows == [1] for rows in found] == sorted((rows == [1] for rows in found), reverse=True)


def test_nothing_is_built_on_a_first_commit_whose_files_are_being_deleted(store):
    """The collection met no header; the first writer, who would find out, may have died."""
    files = data_files(store)
    header_store.put_tombstone_file(open_blobs(store), "u", "collection", files)
    with pytest.raises(ConcurrentWriteError, match="Files of this commit were deleted"):
        api.update_dataset_from_dataframes([frame(x=[4])], store, "u")


def test_a_commit_to_a_dataset_that_was_deleted_leaves_nothing(store, monkeypatch):
    archive = history.archive

    def delete_first(*args, **kwargs):
        with suppress(DatasetNotFoundError):
            api.delete_dataset("u", store)
        return archive(*args, **kwargs)

    monkeypatch.setattr(history, "archive", delete_first)
    with pytest.raises(ConcurrentWriteError):
        api.update_dataset_from_dataframes([frame(x=[4])], store, "u")
    assert keys(store) == set()


def test_a_refused_attempt_leaves_the_state_that_the_faster_writer_has_archived(store, monkeypatch):
    archive, overtaken = history.archive, []

    def archive_and_be_overtaken(*args, **kwargs):
        key = archive(*args, **kwargs)
        if not overtaken:
            overtaken.append(key)
            api.update_dataset_from_dataframes([frame(x=[4])], store, "u")
        return key

    monkeypatch.setattr(history, "archive", archive_and_be_overtaken)
    api.update_dataset_from_dataframes([frame(x=[5])], store, "u")
    assert [api.read_table("u", store, as_of=n)["x"].tolist()[3:] for n in (1, 2, 3)] == [[], [4], [4, 5]]
