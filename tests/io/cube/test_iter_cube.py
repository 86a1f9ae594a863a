"""The iterator façade: one element of input, one group of output at a time."""

import gc
import threading
import weakref

import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.errors import MissingFileError, MultiTableCommitAborted
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.query import executor
from tests.support.cubes import CUBE, build, check_integrity, dataset_ids, file_keys, frame, memory, rows
from tests.support.stores import CountingStore, Same


@pytest.fixture
def store():
    """A memory store."""
    return Same.of(memory())


def part(p):
    return frame(x=[0, 1], p=[p, p], v1=[p, p])


BOTH = pd.concat([part(0), part(1)])


@pytest.mark.parametrize(
    "data",
    [
        [part(0), part(1)],
        (part(p) for p in range(2)),
        [part(0), None, {"seed": part(1)}],
        [{"seed": part(0)}, {}, {"seed": None}, {"seed": part(1)}],
        BOTH,
        {"seed": BOTH},
    ],
    ids=["list", "generator", "none", "dicts", "frame", "dict"],
)
def test_forms_of_input(store, data):
    api.build_cube__iter(data, CUBE, store)
    found = [rows([df]) for df in api.query_cube__iterator(CUBE, store, partition_by="p")]
    assert found == [{"p": [p, p], "v1": [p, p], "x": [0, 1]} for p in range(2)]
    check_integrity(store)


OTHER = part(0).rename(columns={"v1": "v2"})


@pytest.mark.parametrize(
    "data", [[part(0), {"extra": OTHER[:0]}], [{"extra": OTHER}], []], ids=["no rows", "no seed", "nothing"]
)
def test_the_files_of_a_write_that_is_given_up_are_deleted(store, data):
    text = "Seed data" if len(data) < 2 else "extra"
    with pytest.raises(MultiTableCommitAborted, match=text):
        api.build_cube__iter(data, CUBE, store, ["seed", "extra"])
    assert open_blobs(store).list("") == []


@pytest.mark.parametrize("data", [1, "seed", [1], [[part(0), 1]]], ids=["int", "str", "element", "nested"])
def test_wrong_input(store, data):
    with pytest.raises(TypeError, match=r"int|str"):
        api.build_cube__iter(data, CUBE, store)
    assert dataset_ids(store) == set()


def test_one_frame_is_in_memory_at_a_time(store):
    alive = []

    def load(p):
        assert [ref for ref in alive if ref() is not None] == []
        df = part(p)
        alive.append(weakref.ref(df))
        return df

    api.build_cube__iter((load(p) for p in range(4)), CUBE, store)
    more = ({"new": load(p).rename(columns={"v1": "v2"})} for p in range(4))
    api.extend_cube__iter(more, CUBE, store, "new")
    api.append_to_cube__iter(map(load, range(4)), CUBE, store, "seed")
    api.update_cube__iter(map(load, range(4)), CUBE, store, api.C("p") == 0, "seed", rows_outside="append")
    assert len(alive) == 16


def test_input_is_not_touched_before_the_plan_stands(store):
    build(store, seed=part(0))

    def data():
        raise AssertionError("touched")
        yield

    with pytest.raises(RuntimeError, match=r"cube\+\+seed"):
        api.build_cube__iter(data(), CUBE, store)
    with pytest.raises(ValueError, match="nope"):
        api.append_to_cube__iter(data(), CUBE, store, "nope")
    with pytest.raises(ValueError, match="v1"):
        api.update_cube__iter(data(), CUBE, store, api.C("v1") == 1, "seed")


def test_cells_are_unique_within_an_element_only(store):
    built = api.build_cube__iter([part(0), part(0).assign(v1=[7, 8])], CUBE, store, ["seed", "enrich"])
    assert set(built) == dataset_ids(store) == {"seed"}, "datasets that do not occur are not written"
    assert len(file_keys(store, "cube++seed")) == 2
    assert [rows([df])["v1"] for df in api.query_cube__iterator(CUBE, store)] == [[7, 8]]
    with pytest.raises(ValueError, match="p, x"):
        api.append_to_cube__iter([pd.concat([part(0), part(0)])], CUBE, store, "seed")


# queries -----------------------------------------------------------------------------------------


def files_read(store):
    return sorted(key.split("/")[2] for method, key in store().log if "/p=" in key)


def test_a_group_is_read_when_it_is_asked_for(store):
    build(store, seed=pd.concat([part(p) for p in range(3)]))
    counting = Same.of(CountingStore(store()))
    groups = api.query_cube__iterator(CUBE, counting, partition_by="p")
    assert files_read(counting) == []
    assert list(next(groups)["v1"]) == [0, 0]
    assert set(files_read(counting)) == {"p=0"}
    # a consumer that goes on gets what has been read in the meantime, as the store is not local
    for p in range(1, 3):
        assert list(next(groups)["v1"]) == [p, p]
        assert f"p={p}" in files_read(counting)
    assert list(groups) == []
    # the footer of the first file tells how many groups make a block
    assert files_read(counting) == ["p=0", "p=0", "p=1", "p=2"]


def test_small_groups_are_read_in_blocks(store, monkeypatch):
    build(store, seed=pd.concat([part(p) for p in range(100)]))
    read, sizes = executor.run_frames, []

    def run_frames(context, task):
        frames = read(context, task)
        sizes.append(len(frames))
        return frames

    monkeypatch.setattr(executor, "run_frames", run_frames)
    frames = api.query_cube__iterator(CUBE, store, partition_by="p")
    assert [list(frame["v1"]) for frame in frames] == [[p, p] for p in range(100)]
    assert sizes == [1, 1, 2, 4, 8, 16, 32, 36]


def test_a_local_store_is_not_read_ahead(tmp_path):
    url = f"hfs://{tmp_path}"
    build(url, seed=pd.concat([part(p) for p in range(3)]))
    groups = api.query_cube__iterator(CUBE, url, partition_by="p")
    assert [list(next(groups)["v1"]) for _ in range(2)] == [[0, 0], [1, 1]]
    for file in tmp_path.glob("*/*/p=2/*"):
        file.unlink()
    with pytest.raises(MissingFileError, match="p=2"):
        next(groups)


def test_a_consumer_that_stops_leaves_no_threads(store):
    build(store, seed=pd.concat([part(p) for p in range(40)]))
    counting = Same.of(CountingStore(store()))
    groups = api.query_cube__iterator(CUBE, counting, partition_by="p")
    assert [list(next(groups)["v1"]) for _ in range(3)] == [[p, p] for p in range(3)]
    del groups
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name.startswith("kartothek_cube")]


def test_one_group_is_in_memory_at_a_time(store, monkeypatch):
    """No frame of an earlier group is alive when the next one is read."""
    build(store, seed=pd.concat([part(p) for p in range(3)]))
    read, made = executor.run_frames, []

    def run_frames(context, task):
        assert [ref for ref in made if ref() is not None] == []
        frames = read(context, task)
        made.extend(map(weakref.ref, frames))
        return frames

    monkeypatch.setattr(executor, "run_frames", run_frames)
    for df in api.query_cube__iterator(CUBE, store, partition_by="p"):
        assert len(df) == 2
        del df
    assert len(made) == 3


def test_wrong_arguments_are_noticed_by_the_call(store):
    build(store, seed=part(0))
    with pytest.raises(ValueError, match="nope"):
        api.query_cube__iterator(CUBE, store, payload_columns="nope")
