"""Collections beside writers: no commit refers to a file that a collection deletes."""

from datetime import timedelta

import attrs
import pandas as pd
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.core import clock, history
from kartothek_cube.core.commit import header_store
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.core.naming import TOMBSTONES_KEY
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.maintenance.garbage import delete_garbage
from kartothek_cube.io_components.write.dataset_writes import UpdateDataset
from kartothek_cube.io_components.write.write_commit import finish_dataset_write
from kartothek_cube.io_components.write.write_tasks import write_part
from tests.support.cubes import header, memory
from tests.support.object_server import Stored, running
from tests.support.stores import FaultyStore, InjectedError, Same


def frame(x):
    return pd.DataFrame({"x": [x], "i1": x})


@pytest.fixture
def store():
    store = memory()
    api.store_dataframes_as_dataset(Same.of(store), "data", [frame(1)], secondary_indices=["i1"])
    return store


def test_the_header_is_as_it_was_but_for_its_id(store):
    before = header(Same.of(store), "data")
    seen = []
    store.put("data/table/2f1d.parquet", b"")

    def look():
        seen.append(header(Same.of(store), "data")["metadata"])

    watched = FaultyStore(store).fail("delete", error=look)
    delete_garbage(Same.of(watched), ["data/table/2f1d.parquet"])
    assert [header_store.list_tombstoned_files(metadata) for metadata in seen] == [{"2f1d.parquet"}]
    after = header(Same.of(store), "data")
    assert before.pop("kartothek_cube")["commit"] != after.pop("kartothek_cube")["commit"]
    assert after == before
    assert api.list_dataset_garbage("data", Same.of(store)) == []


def test_a_torn_snapshot_of_the_current_state_stops_no_cleanup(store):
    """A power failure may leave one, before a commit has flushed it."""
    url = Same.of(store)
    blobs = open_blobs(url)
    snapshot = history.current_snapshot(DatasetMetadata.load_from_store("data", url), blobs)
    blobs.put(snapshot, b"\0")
    api.garbage_collect_dataset("data", url, retention=timedelta(0))
    assert blobs.get(snapshot) == b"\0"
    # the next commit puts it again
    api.update_dataset_from_dataframes([frame(2)], url, "data")
    assert api.read_table("data", url, as_of=1)["x"].tolist() == [1]


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_markers_of_directories_are_no_garbage(kind):
    """As consoles of object stores put them."""
    with running() as server:
        url = server.url(kind)
        api.store_dataframes_as_dataset(url, "data", [frame(1)], secondary_indices=["i1"])
        for path in ("data", "data/table", "data/table/empty", "data/indices/i1"):
            server.blobs[f"{path}/"] = Stored(b"", 1, {})
        open_blobs(url).put("data/table/2f1d.parquet", b"")
        assert [blob.key for blob in api.list_dataset_garbage("data", url)] == ["data/table/2f1d.parquet"]


def test_others_may_commit_meanwhile(store):
    def append():
        api.update_dataset_from_dataframes([frame(2)], store=Same.of(store), dataset_uuid="data")

    store.put("data/table/2f1d.parquet", b"")
    beside = FaultyStore(store).fail("delete", error=append)
    delete_garbage(Same.of(beside), ["data/table/2f1d.parquet"])
    assert api.read_table("data", Same.of(store)).x.tolist() == [1, 2]
    assert TOMBSTONES_KEY not in header(Same.of(store), "data")["metadata"]


def test_an_overwrite_keeps_the_add_tombstones(store):
    plan = UpdateDataset(Same.of(store), "data").plan()
    results = [write_part(plan, frame(2))]

    def overwrite_and_commit():
        options = {"secondary_indices": ["i1"], "overwrite": True}
        api.store_dataframes_as_dataset(Same.of(store), "data", [frame(3)], **options)
        with pytest.raises(ConcurrentWriteError, match="retention"):
            finish_dataset_write(plan, results)

    # before the commit, its file is garbage
    garbage = [blob.key for blob in api.list_dataset_garbage("data", Same.of(store))]
    assert [key for key in garbage if key.endswith(".parquet")] == garbage != []
    beside = FaultyStore(store).fail("delete", error=overwrite_and_commit)
    delete_garbage(Same.of(beside), garbage)
    assert api.read_table("data", Same.of(store)).x.tolist() == [3]


def test_a_commit_starts_again_if_the_index_it_reads_was_replaced_and_collected(store):
    plan = UpdateDataset(Same.of(store), "data").plan()
    results = [write_part(plan, frame(3))]
    happened = []

    def replace_and_collect():
        own = Same.of(store)
        api.update_dataset_from_dataframes([frame(2)], store=own, dataset_uuid="data")
        garbage = [b.key for b in api.list_dataset_garbage("data", own) if "/indices/" in b.key]
        delete_garbage(own, garbage)
        happened.extend(garbage)

    slow = FaultyStore(store).fail("get", key="/indices/", error=replace_and_collect)
    finish_dataset_write(attrs.evolve(plan, store=Same.of(slow)), results)
    assert len(happened) == 1
    assert sorted(api.read_table("data", Same.of(store)).x) == [1, 2, 3]


@pytest.mark.parametrize("key", ["_common_metadata", "by-dataset-metadata"])
def test_a_first_commit_whose_files_went(key):
    """There is no header that could hold tombstones: the commit looks again when it has put one."""
    store = memory()

    def collect():
        delete_garbage(Same.of(store), [key for key in store.keys() if key.startswith("data/table/")])

    slow = FaultyStore(store).fail("put", key=key, error=collect)
    with pytest.raises(ConcurrentWriteError, match="retention"):
        api.store_dataframes_as_dataset(Same.of(slow), "data", [frame(1)])
    assert "data.by-dataset-metadata.json" not in store.keys()


def test_a_collection_that_fails_leaves_its_tombstones(store):
    """Nobody knows whether its request is still on its way."""

    store.put("data/table/2f1d.parquet", b"")
    failing = FaultyStore(store)
    for at in range(1, 20):
        failing.fail("delete", at=at)
    with pytest.raises(InjectedError):
        delete_garbage(Same.of(failing), ["data/table/2f1d.parquet"])
    assert header_store.list_tombstoned_files(header(Same.of(store), "data")["metadata"]) == {"2f1d.parquet"}


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b"\xff"], ids=["cut", "nested", "binary"])
def test_malformed_tombstone_files_protect_nothing(content):
    store = memory()
    store.put("u/_tombstones/2f1d.json", content)
    assert header_store.list_tombstone_files(open_blobs(store), "u") == {"2f1d": {}}
    api.store_dataframes_as_dataset(store, "u", [frame(1)])
    assert api.read_table("u", store)["x"].tolist() == [1]


def test_tombstones_of_a_dead_collection_go(monkeypatch):
    """When they are old and another collection has deleted all their files."""
    dead = header_store.add_tombstones({"a": 1}, "dead", ["data/table/1.parquet", "data/table/2.parquet"])
    both = header_store.add_tombstones(dead, "other", ["data/table/2.parquet", "data/table/1.parquet"])
    names = {"1.parquet", "2.parquet"}
    assert header_store.list_tombstoned_files(header_store.remove_tombstones(both, "other", names)) == names
    later = clock.datetime_utcnow() + timedelta(days=2)
    monkeypatch.setattr(clock, "datetime_utcnow", lambda: later)
    kept = header_store.remove_tombstones(both, "other", {"1.parquet"})
    assert header_store.list_tombstoned_files(kept) == names
    assert header_store.remove_tombstones(both, "other", names) == {"a": 1}


@pytest.mark.parametrize("strange", [None, 1, [], {"a": None}, {"a": {"files": 1}}, {"a": {"files": [1]}}])
def test_tombstones_of_strangers(strange):
    assert header_store.list_tombstoned_files({TOMBSTONES_KEY: strange}) == set()
    assert header_store.list_tombstoned_files(
        header_store.add_tombstones({TOMBSTONES_KEY: strange}, "b", ["data/table/1.parquet"])
    ) == {"1.parquet"}
