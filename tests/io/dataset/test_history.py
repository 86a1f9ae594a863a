"""Older states of datasets: kept, listed, read, returned to; and the files that they need."""

import json
import pickle
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.core import errors
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.header import COMMIT_RECORD
from kartothek_cube.core.history import KEEP_HISTORY, load_state, snapshot_retention
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.testing import cm_frozen_time
from kartothek_cube.io import eager
from kartothek_cube.io.dask.dataframe import read_dataset_as_ddf
from kartothek_cube.io.dask.delayed import read_dataset_as_delayed
from kartothek_cube.io_components.maintenance.rollback import finish_rollback, plan_rollback
from tests.support.cubes import edit_header
from tests.support.stored_files import frame, header, keys, snapshot
from tests.support.stores import CountingStore, Died, FaultyStore, InjectedError, Same

KEEP = {KEEP_HISTORY: 3}
FIRST, SECOND = frame(x=[1], p=[0]), frame(x=[2], p=[1])


@pytest.fixture
def store(memory):
    """Two states."""
    eager.store_dataframes_as_dataset(memory, "u", [FIRST], KEEP, partition_on="p", secondary_indices="x")
    eager.update_dataset_from_dataframes([SECOND], memory, "u")
    return memory


def versions(store, uuid="u") -> list[int]:
    return [state.version for state in eager.list_dataset_history(uuid, store)]


def values(store, **kwargs) -> list[int]:
    return eager.read_table("u", store, **kwargs)["x"].tolist()


def copies(store) -> list[str]:
    return sorted(key for key in keys(store) if "/_history/" in key)


def test_all_states_are_kept_until_a_cleanup(memory):
    eager.store_dataframes_as_dataset(memory, "u", [FIRST])
    eager.update_dataset_from_dataframes([SECOND], memory, "u")
    eager.update_dataset_from_dataframes([], memory, "u", delete_scope=[{}])
    assert set(header(memory)["metadata"]) == {"creation_time"}
    assert versions(memory) == [1, 2, 3]
    assert [values(memory, as_of=version) for version in (1, 2)] == [[1], [1, 2]]
    eager.garbage_collect_dataset("u", memory)
    assert versions(memory) == [3]
    assert [key for key in keys(memory) if "/table/p=" in key or "_history" in key] == []
    with pytest.raises(errors.StateNotFoundError, match=r"only state is 3 \(since .*kept until a cleanup"):
        values(memory, as_of=2)


def test_a_cleanup_says_how_many_states_it_deletes(store, caplog):
    eager.keep_dataset_history("u", store)
    with caplog.at_level("INFO"):
        eager.garbage_collect_dataset("u", store)
    assert "2 older states of datasets can no longer be read" in caplog.text


def test_nothing_is_kept_with_a_history_of_no_states(memory):
    eager.store_dataframes_as_dataset(memory, "u", [FIRST], {KEEP_HISTORY: 0})
    eager.update_dataset_from_dataframes([SECOND], memory, "u")
    assert copies(memory) == []
    ((version, time, current, key, *_),) = eager.list_dataset_history("u", memory)
    assert (version, current, key) == (2, True, "u.by-dataset-metadata.json")
    assert abs(time - datetime.now(UTC)) < timedelta(minutes=1)
    for as_of in (1, time - timedelta(seconds=1)):
        with pytest.raises(errors.StateNotFoundError, match="only state is 2"):
            eager.rollback_dataset("u", memory, as_of)


def test_numbers_of_states_may_be_those_of_numpy(memory):
    eager.update_dataset_from_dataframes([FIRST], memory, "u")
    assert eager.keep_dataset_history("u", memory, np.int64(3)).metadata[KEEP_HISTORY] == 3
    for number in (-1, np.int64(-1), True, np.True_, 3.0, "3"):
        with pytest.raises(ValueError, match=r"^states is the number of states to keep"):
            eager.keep_dataset_history("u", memory, number)


@pytest.mark.parametrize("keep, listings", [(None, 0), (0, 0), (3, 1)])
def test_only_commits_to_a_limited_history_list_states(memory, keep, listings):
    counting = CountingStore(memory())
    for _ in range(3):
        counting.reset()
        eager.update_dataset_from_dataframes([FIRST], Same.of(counting), "u", metadata={KEEP_HISTORY: keep})
    assert counting.counts["iter_keys"] == listings


def test_a_rollback_that_would_change_nothing_is_an_error(store):
    before = snapshot(store)
    for as_of in (2, "2999-01-01"):
        with pytest.raises(ValueError, match=r"nothing to undo. It keeps 2 states: 1 "):
            eager.rollback_dataset("u", store, as_of)
    assert snapshot(store) == before


def test_states_and_their_times(store):
    first, second = eager.list_dataset_history("u", store)
    assert (first.version, first.current, second.version, second.current) == (1, False, 2, True)
    assert first.time < second.time
    assert first.time.tzinfo is not None
    assert copies(store) == [first.key]
    assert "by-dataset-metadata" not in first.key
    assert not first.key.endswith(".parquet")
    assert values(store, as_of=first.time) == [1]
    assert values(store, as_of=second.time - timedelta(microseconds=1)) == [1]
    assert values(store, as_of=second.time) == [1, 2]
    assert values(store, as_of=second.time.replace(tzinfo=None)) == [1, 2]
    assert values(store, as_of=pd.Timestamp(first.time).tz_convert("Asia/Tokyo")) == [1]
    assert values(store, as_of=first.time.isoformat()) == [1]
    assert values(store, as_of="2999-01-01") == [1, 2]


def test_only_some_are_kept(store):
    for n in range(5):
        eager.update_dataset_from_dataframes([frame(x=[n], p=[7])], store, "u")
    assert versions(store) == [4, 5, 6, 7]
    eager.keep_dataset_history("u", store, 1)
    assert versions(store) == [7, 8]
    eager.keep_dataset_history("u", store, 0)
    assert copies(store) == []


@pytest.mark.parametrize("number", [-1, 1.0, "3", True])
def test_illegal_number(store, number):
    before = snapshot(store)
    with pytest.raises(ValueError, match="number of states"):
        eager.keep_dataset_history("u", store, number)
    with pytest.raises(ValueError, match="number of states"):
        eager.update_dataset_from_dataframes([], store, "u", metadata={KEEP_HISTORY: number})
    with pytest.raises(ValueError, match="number of states"):
        snapshot_retention({KEEP_HISTORY: number})
    assert snapshot(store) == before


def test_every_kind_of_commit_makes_a_state(store):
    eager.build_dataset_indices(store, "u", ["x"])
    eager.update_dataset_from_dataframes([], store, "u", delete_scope=[{"p": 0}])
    eager.update_dataset_from_dataframes([], store, "u", metadata={"k": 1})
    # but to rebuild an index
    assert versions(store) == [1, 2, 3, 4]


def test_an_overwrite_keeps_the_history_and_can_be_rolled_back(store):
    eager.store_dataframes_as_dataset(store, "u", [frame(y=["a"])], overwrite=True)
    assert versions(store) == [1, 2, 3]
    assert values(store, as_of=2) == [1, 2]
    assert list(eager.read_table("u", store)) == ["y"]
    assert eager.verify_dataset("u", store).ok
    eager.rollback_dataset("u", store, 2)
    assert values(store) == [1, 2]
    eager.update_dataset_from_dataframes([FIRST], store, "u")
    assert eager.verify_dataset("u", store).ok
    assert eager.read_table("u", store, as_of=3)["y"].tolist() == ["a"]


def test_times_increase_even_if_clocks_do_not(store):
    with cm_frozen_time(datetime(2000, 1, 1)):
        for _ in range(2):
            eager.update_dataset_from_dataframes([FIRST], store, "u")
    times = [state.time for state in eager.list_dataset_history("u", store)]
    assert times == sorted(set(times))


def test_a_writer_that_knows_no_versions(store):
    """kartothek 5.3 drops the record of the commit (as `header` does) and archives nothing."""
    foreign = header(store)
    label = next(iter(foreign["partitions"]))
    del foreign["partitions"][label]
    store().put("u.by-dataset-metadata.json", json.dumps(foreign).encode())
    assert versions(store) == [1, 3]
    assert values(store) == [2]
    eager.update_dataset_from_dataframes([FIRST], store, "u")
    assert versions(store) == [1, 3, 4]
    assert values(store, as_of=3) == [2]
    assert values(store, as_of=4) == [2, 1]


def test_states_of_a_dataset_that_other_software_deleted_are_not_those_of_the_next_one(store):
    """``delete_dataset`` and ``delete_cube`` of kartothek 5.3 leave the copies of older states."""
    eager.update_dataset_from_dataframes([SECOND], store, "u")
    for key in set(keys(store)) - set(copies(store)):
        store().delete(key)
    eager.store_dataframes_as_dataset(store, "u", [FIRST], KEEP)
    assert versions(store) == [1]
    eager.update_dataset_from_dataframes([FIRST], store, "u")
    assert versions(store) == [1, 2]
    assert [values(store, as_of=version) for version in (1, 2)] == [[1], [1, 1]]
    eager.rollback_dataset("u", store, 1)
    assert values(store) == [1]
    eager.garbage_collect_dataset("u", store)
    assert versions(store) == [1, 2, 3]
    assert len(copies(store)) == 2
    assert eager.verify_dataset("u", store).ok


def test_partitions_that_no_header_lists_have_no_history(memory):
    eager.create_empty_dataset_header(memory, "u", FIRST, metadata=KEEP)
    eager.update_dataset_from_dataframes([FIRST], memory, "u")
    assert copies(memory) == []
    assert versions(memory) == [2]


@pytest.mark.parametrize("kind", ["json", "msgpack"])
def test_formats(memory, kind):
    eager.store_dataframes_as_dataset(memory, "u", [FIRST], KEEP, metadata_storage_format=kind)
    eager.update_dataset_from_dataframes([SECOND], memory, "u")
    assert values(memory, as_of=1) == [1]
    other = {"json": "msgpack", "msgpack": "json"}[kind]
    eager.store_dataframes_as_dataset(memory, "u", [SECOND], overwrite=True, metadata_storage_format=other)
    assert [values(memory, as_of=version) for version in versions(memory)] == [[1], [1, 2], [2]]


@pytest.mark.parametrize("more", [{}, {"predicates": [[("x", "<", 5)]]}], ids=repr)
def test_readers(io, store, more):
    factory = DatasetFactory("u", store)
    for dataset, uuid, options, x in (
        (store, "u", {"as_of": 1}, [1]),
        (None, None, {"factory": factory, "as_of": 1}, [1]),
        (None, None, {"factory": factory}, [1, 2]),
    ):
        assert pd.concat(io.read(dataset, uuid, **options, **more))["x"].tolist() == x
        ddf = read_dataset_as_ddf(uuid, dataset, **options, **more)
        assert ddf.compute(scheduler="sync")["x"].tolist() == x


def test_factories_stay_where_they_are(store):
    factory = DatasetFactory("u", store, as_of=1)
    (frame_,) = read_dataset_as_delayed(factory=factory)
    eager.update_dataset_from_dataframes([SECOND], store, "u")
    for found in (factory, factory.copy(), pickle.loads(pickle.dumps(factory))):
        assert len(found.partitions) == 1
        found.invalidate()
        assert found.load_all_indices().indices["x"].index_dct.keys() == {1}
    assert frame_.compute(scheduler="sync")["x"].tolist() == [1]


@pytest.mark.parametrize(
    "as_of, error, text",
    [
        *(
            (as_of, errors.StateNotFoundError, r"1 .*")
            for as_of in (0, 3, -1, "2000-01-01", datetime(1999, 1, 1))
        ),
        *((as_of, TypeError, "as_of is a version") for as_of in (True, 1.5, None.__class__, b"1", pd.NaT)),
        (np.datetime64("NaT", "ns"), TypeError, "as_of is a version"),
        ("yesterday", ValueError, "as_of is a version"),
        (np.datetime64("9999999-01-01"), ValueError, "as_of is beyond the range of UTC: 9999999-01-01"),
    ],
    ids=repr,
)
def test_what_is_no_state(store, as_of, error, text):
    with pytest.raises(error, match=text):
        values(store, as_of=as_of)


def test_states_that_are_gone(store):
    time = eager.list_dataset_history("u", store)[0].time
    eager.keep_dataset_history("u", store, 1)
    for as_of in (1, time):
        with pytest.raises(errors.StateNotFoundError, match=r"go from 2 .* to 3"):
            values(store, as_of=as_of)


def test_a_version_of_a_frame_with_the_history(store):
    history = pd.DataFrame(eager.list_dataset_history("u", store))
    for column in ("version", "time"):
        times = history[column].dt.tz_localize(None) if column == "time" else history[column]
        scalar = times.to_numpy()[0]
        assert isinstance(scalar, np.generic)
        assert values(store, as_of=scalar) == values(store, as_of=1)


@pytest.mark.parametrize("damage", [b"", b"x", b"(\xb5/\xfd\x20\x01\x09\x00\x00\xc0"], ids=repr)
def test_damaged_copies(store, damage):
    (key,) = copies(store)
    store().put(key, damage)
    for function in (lambda: values(store, as_of=1), lambda: eager.garbage_collect_dataset("u", store)):
        with pytest.raises(errors.CorruptDatasetError) as caught:
            function()
        assert caught.value.key == key
    assert values(store) == [1, 2]
    eager.delete_dataset("u", store)
    assert keys(store) == set()


def test_files_of_impossible_times_are_no_states(store):
    store().put("u/_history/0000000009-20251332T000000000000Z-0123456789abcdef.state", b"x")
    assert versions(store) == [1, 2]
    eager.update_dataset_from_dataframes([FIRST], store, "u", metadata={KEEP_HISTORY: 1})
    assert versions(store) == [2, 3]
    assert eager.verify_dataset("u", store).ok


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999+00:00"])
def test_times_that_have_no_successor_count_as_no_versions(store, time):
    edit_header(store, "u", lambda header: header[COMMIT_RECORD]["version"].update(time=time))
    eager.update_dataset_from_dataframes([FIRST], store, "u")
    assert values(store) == [1, 2, 1]
    assert len(eager.list_dataset_history("u", store)) > 1
    with pytest.raises(ValueError, match="as_of"):
        values(store, as_of="0001-01-01T00:00:00+14:00")


def test_a_copy_of_another_dataset(store):
    """A key is a name, and names are not trusted."""
    (key,) = copies(store)
    eager.copy_dataset("u", store, "v")
    store().put(key.replace("u/", "v/"), store().get(key))
    with pytest.raises(errors.CorruptDatasetError, match="'u'"):
        eager.read_table("v", store, as_of=1)


def test_rollback(store):
    before = header(store)
    dataset = eager.rollback_dataset("u", store, 1)
    assert values(store) == [1]
    assert versions(store) == [1, 2, 3]
    assert header(store)["indices"] != before["indices"]
    assert dataset.load_all_indices(store) == DatasetFactory("u", store).load_all_indices().dataset_metadata
    eager.rollback_dataset("u", store, 2)
    assert {**header(store), "metadata": 0} == {**before, "metadata": 0}
    assert eager.verify_dataset("u", store).ok


def test_rollback_keeps_what_is_known_of_types(memory):
    df = frame(x=pd.Series([None], dtype=object), y=[1])
    eager.store_dataframes_as_dataset(memory, "u", [df], KEEP)
    eager.update_dataset_from_dataframes([frame(x=["a"], y=[2])], memory, "u")
    assert str(eager.rollback_dataset("u", memory, 1).schema.field("x").type) == "string"
    # the header has the same schema as the file
    assert eager.verify_dataset("u", memory).ok
    eager.update_dataset_from_dataframes([frame(x=["b"], y=[2])], memory, "u")
    assert eager.read_table("u", memory)["x"].tolist()[1] == "b"


def test_rollback_needs_the_files(store):
    key = header(store)["partitions"].popitem()[1]["files"]["table"]
    eager.update_dataset_from_dataframes([], store, "u", delete_scope=[{}])
    store().delete(key)
    before = snapshot(store)
    with pytest.raises(errors.CorruptDatasetError) as caught:
        eager.rollback_dataset("u", store, 2)
    assert caught.value.key == key
    assert snapshot(store) == before


def test_rollback_against_commits(store):
    blobs = open_blobs(store)
    plan = plan_rollback("u", blobs, 1)
    eager.update_dataset_from_dataframes([FIRST], store, "u")
    before = snapshot(store)
    with pytest.raises(errors.ConcurrentWriteError, match="go back again"):
        finish_rollback(blobs, plan)
    after = snapshot(store)
    assert {key: after[key] for key in after if "_history" not in key} == {
        key: before[key] for key in before if "_history" not in key
    }


@pytest.mark.parametrize(
    "function", [eager.list_dataset_history, lambda u, s: eager.rollback_dataset(u, s, 1)]
)
def test_missing_dataset(memory, function):
    with pytest.raises(errors.DatasetNotFoundError):
        function("u", memory)


def test_files_of_kept_states_stay(store):
    eager.update_dataset_from_dataframes([], store, "u", delete_scope=[{}])
    before = snapshot(store)
    eager.garbage_collect_dataset("u", store)
    assert snapshot(store) == before
    assert values(store, as_of=2) == [1, 2]
    eager.keep_dataset_history("u", store, 1)
    eager.garbage_collect_dataset("u", store)
    assert [key for key in keys(store) if "/table/p=" in key] == []
    assert eager.verify_dataset("u", store).ok


def test_copies_that_nobody_threw_away(store):
    """A writer died between the commit and its tidying up."""
    (copy,) = copies(store)
    content = store().get(copy)
    eager.keep_dataset_history("u", store, 1)
    store().put(copy, content)
    assert copy in [blob.key for blob in eager.list_dataset_garbage("u", store)]
    eager.garbage_collect_dataset("u", store)
    assert copy not in keys(store)


def test_copies_of_datasets_have_a_history_of_their_own(store):
    eager.copy_dataset("u", store, "v")
    assert versions(store, "v") == [2]
    eager.update_dataset_from_dataframes([FIRST], store, "v")
    assert versions(store, "v") == [2, 3]
    with pytest.raises(errors.StateNotFoundError):
        eager.read_table("v", store, as_of=1)


@pytest.mark.parametrize("fault", ["fail", "die"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
def test_whatever_fails(store, at, after, fault):
    """Of all calls that write, each fails in turn: the history is that before or after the commit."""
    expected = [[1], [1, 2]]
    failing = FaultyStore(store())
    for method in ("put", "delete"):
        getattr(failing, fault)(method, at=at, after=after)
    try:
        eager.update_dataset_from_dataframes([frame(x=[3], p=[3])], failing, "u")
    except (InjectedError, Died):
        pass
    found = [values(store, as_of=version) for version in versions(store)]
    assert found in (expected, [*expected, [1, 2, 3]])
    eager.garbage_collect_dataset("u", store)
    assert found == [values(store, as_of=version) for version in versions(store)]
    assert eager.verify_dataset("u", store).ok
    eager.update_dataset_from_dataframes([frame(x=[4], p=[3])], store, "u")
    assert values(store, as_of=versions(store)[-2]) == found[-1]


def test_a_state_that_becomes_an_older_one_while_it_is_read(store):
    current = eager.list_dataset_history("u", store)[-1]
    eager.update_dataset_from_dataframes([], store, "u", metadata={"k": 1})
    assert "k" not in load_state("u", open_blobs(store), current).metadata
    eager.keep_dataset_history("u", store, 0)
    with pytest.raises(errors.StateNotFoundError):
        load_state("u", open_blobs(store), current)
