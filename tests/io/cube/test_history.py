"""Cubes as of a time: consistent cuts through their datasets, and returning to them."""

from contextlib import suppress
from datetime import datetime, timedelta
from os import utime
from time import monotonic, sleep
from types import SimpleNamespace
from unittest import mock

import pytest

from kartothek_cube import ensure_store, kartothek_helpers
from kartothek_cube.api import cube as api
from kartothek_cube.core import history as core_history
from kartothek_cube.core.errors import (
    ConcurrentWriteError,
    ContractViolationError,
    CorruptDatasetError,
    DatasetNotFoundError,
    StateNotFoundError,
)
from kartothek_cube.core.history import KEEP_HISTORY
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io import eager
from kartothek_cube.io_components.maintenance import cube_history, garbage
from kartothek_cube.serialization import parquet
from tests.support import cubes
from tests.support.cubes import BOTH, CUBE, ENRICH, SEED, as_dict, frame, header, memory, rows, snapshot
from tests.support.stores import Died, FaultyStore

KEEP = {KEEP_HISTORY: 5}


@pytest.fixture
def store():
    store = memory()
    api.build_cube(BOTH, CUBE, store, metadata={"seed": KEEP, "enrich": KEEP})
    return store


def now(store, name="seed"):
    return api.list_cube_history(CUBE, store)[name][-1].time


def changed(store):
    """Times between which the datasets change one after the other; the last one is now."""
    times = [now(store)]
    api.append_to_cube({"enrich": frame(x=[1], p=[1], v2=[31])}, CUBE, store)
    times.append(now(store, "enrich"))
    api.append_to_cube(frame(x=[1, 2], p=[1, 1], v1=[41, 42]), CUBE, store)
    times.append(now(store))
    return times


CUTS = [
    {"p": [0, 1], "v1": [10, 11], "v2": [20, 21], "x": [0, 1]},
    {"p": [0, 1], "v1": [10, 11], "v2": [20, 31], "x": [0, 1]},
    {"p": [0, 1, 1], "v1": [10, 41, 42], "v2": [20, 31, None], "x": [0, 1, 2]},
]


def test_rows_conditions_and_versions_are_those_of_then(store):
    times = first, *_ = changed(store)
    assert [rows(api.query_cube(CUBE, store, as_of=time)) for time in times] == CUTS
    assert rows(api.query_cube(CUBE, store)) == CUTS[2]
    assert rows(api.query_cube(CUBE, store, api.C("x") == 2, as_of=first)) is None
    assert rows(api.query_cube(CUBE, store, api.C("x") == 1, as_of=first))["v1"] == [11]
    assert rows(api.query_cube(CUBE, store, as_of={"seed": 1}))["v2"] == [20, 31]
    assert rows(api.query_cube(CUBE, store, as_of={"seed": 1, "enrich": 1})) == CUTS[0]
    assert rows(api.query_cube(CUBE, store, as_of={})) == CUTS[2]


def test_a_commit_to_one_dataset_is_no_part_of_the_operation_before_it(store):
    api.append_to_cube({"seed": SEED, "enrich": ENRICH}, CUBE, store)
    time = now(store)
    api.append_to_cube({"enrich": ENRICH.assign(v2=0)}, CUBE, store)
    # of what the operation made, nothing is kept of one dataset
    for key in [*store.keys()]:
        if key.startswith("cube++enrich/_history/"):
            store.delete(key)
    api.append_to_cube(SEED, CUBE, store)
    with pytest.raises(StateNotFoundError, match=r"cube\+\+enrich': .* only state is 3"):
        api.query_cube(CUBE, store, as_of=time)
    assert api.list_cube_history(CUBE, store)[0].time > time


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"as_of": 1}, StateNotFoundError, "as of 1"),
        ({"as_of": {"sed": 1}}, ValueError, "unknown dataset sed; did you mean seed"),
        ({"as_of": {"seed": 9}}, StateNotFoundError, "as of 9"),
        ({"as_of": {"seed": 1.5}}, TypeError, "1.5"),
        ({"as_of": SimpleNamespace(token="seed@1")}, TypeError, "SimpleNamespace; pass its token"),
        ({"as_of": "2000-01-01"}, StateNotFoundError, r"Cube 'cube'.*only state is 2 \(since"),
        ({"as_of": "2999-01-01", "datasets": ["sed", "seed"]}, ValueError, "unknown dataset sed"),
        ({"as_of": "2999-01-01", "datasets": {}}, ValueError, "either"),
    ],
)
def test_illegal_moments(store, arguments, error, text):
    with pytest.raises(error, match=text):
        api.query_cube(CUBE, store, **arguments)


def test_keep_from_now_on():
    store = memory()
    api.build_cube(BOTH, CUBE, store)
    assert sorted(api.keep_cube_history(CUBE, store, 2, "seed")) == ["seed"]
    api.keep_cube_history(CUBE, store, 3)
    for name in ("seed", "enrich"):
        assert header(lambda: store, f"cube++{name}")["metadata"][KEEP_HISTORY] == 3
    with pytest.raises(ValueError, match="unknown dataset sed"):
        api.keep_cube_history(CUBE, store, 3, "sed")


def test_an_overwritten_cube(store):
    time = now(store)
    api.build_cube({"seed": SEED.assign(v1="a"), "enrich": ENRICH}, CUBE, store, overwrite=True)
    assert rows(api.query_cube(CUBE, store, as_of=time)) == CUTS[0]
    api.rollback_cube(CUBE, store, time)
    assert rows(api.query_cube(CUBE, store)) == CUTS[0]
    assert api.verify_cube(CUBE, store).ok


# returning --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(2))
def test_rollback(store, number):
    times = changed(store)
    result = api.rollback_cube(CUBE, store, times[number])
    assert sorted(result) == ["enrich", "seed"]
    assert rows(api.query_cube(CUBE, store)) == CUTS[number]
    assert rows(api.query_cube(CUBE, store, as_of=times[2])) == CUTS[2]
    assert api.verify_cube(CUBE, store).ok
    before = snapshot(lambda: store)
    for as_of in (now(store), {"seed": api.list_cube_history(CUBE, store)["seed"][-1].version}, "2999-01-01"):
        with pytest.raises(ValueError, match="nothing to undo"):
            api.rollback_cube(CUBE, store, as_of)
    assert snapshot(lambda: store) == before
    api.append_to_cube(SEED, CUBE, store)


def test_rollback_of_one_dataset(store):
    times = changed(store)
    assert list(api.rollback_cube(CUBE, store, times[0], "enrich")) == ["enrich"]
    assert rows(api.query_cube(CUBE, store))["v2"] == [20, 21, None]
    api.rollback_cube(CUBE, store, {"seed": 1})
    assert rows(api.query_cube(CUBE, store)) == CUTS[0]


def test_rollback_to_a_token_restores_exactly_its_states(store):
    first = api.list_cube_changes(CUBE, store).token
    changed(store)
    api.extend_cube({"more": frame(x=[0], p=[0], v3=[1])}, CUBE, store)
    last = api.list_cube_changes(CUBE, store).token
    assert sorted(api.rollback_cube(CUBE, store, first)) == ["enrich", "seed"]
    assert rows(api.query_cube(CUBE, store)) == CUTS[0]
    api.rollback_cube(CUBE, store, last, "enrich")
    with pytest.raises(ValueError, match="nothing to undo"):
        api.rollback_cube(CUBE, store, api.list_cube_changes(CUBE, store).token)
    assert api.verify_cube(CUBE, store).ok
    # the versions are those of the token, the states are not
    api.delete_cube(CUBE, store)
    api.build_cube(BOTH, CUBE, store)
    with pytest.raises(StateNotFoundError, match=r"version 1 of token .* only state is"):
        api.rollback_cube(CUBE, store, first)


def test_rollback_needs_the_files_of_all_datasets(store):
    time = now(store)
    lost = next(key for key in store.keys() if key.startswith("cube++seed/table/p="))
    api.remove_partitions(CUBE, store, "all")
    store.delete(lost)
    before = snapshot(lambda: store)
    with pytest.raises(CorruptDatasetError) as caught:
        api.rollback_cube(CUBE, store, time)
    assert caught.value.key == lost
    assert snapshot(lambda: store) == before


def test_rollback_that_is_overtaken(store):
    """Another commit to the seed, after the other dataset was published already: that one is restored."""
    time, *_ = changed(store)
    slow = FaultyStore(store)
    slow.fail("put", key="cube++seed/_history/", error=lambda: api.append_to_cube(SEED, CUBE, store))
    before = header(lambda: store, "cube++enrich")
    with pytest.raises(ConcurrentWriteError, match=r"cube\+\+seed"):
        api.rollback_cube(CUBE, slow, time)
    assert header(lambda: store, "cube++enrich") == before
    assert api.verify_cube(CUBE, store).ok


def test_a_rollback_before_a_dataset_existed_hides_it(store):
    time = now(store)
    api.extend_cube({"more": frame(x=[0], p=[0], v3=[1])}, CUBE, store)
    assert rows(api.query_cube(CUBE, store, as_of=time)) == CUTS[0]
    with pytest.raises(StateNotFoundError, match=r"cube\+\+more"):
        api.query_cube(CUBE, store, datasets=["seed", "more"], as_of=time)
    extended = api.list_cube_history(CUBE, store)[-1]
    assert sorted(api.rollback_cube(CUBE, store, time)) == ["enrich", "seed"]
    assert rows(api.query_cube(CUBE, store)) == CUTS[0]
    assert sorted(api.discover_datasets(CUBE, store)) == ["enrich", "seed"]
    with pytest.raises(ValueError, match="more"):
        api.append_to_cube({"more": frame(x=[1], p=[1], v3=[1])}, CUBE, store)
    assert api.verify_cube(CUBE, store).ok
    newest = api.list_cube_history(CUBE, store)[-1]
    assert (newest.operation, newest.datasets, newest.files_removed) == ("rollback", ("more",), 1)
    # its rows are still readable, and come back
    assert api.query_cube(CUBE, store, as_of=extended.version)[0]["v3"].dropna().tolist() == [1]
    assert sorted(api.rollback_cube(CUBE, store, extended.time)) == ["enrich", "more", "seed"]
    assert api.query_cube(CUBE, store)[0]["v3"].dropna().tolist() == [1]
    times = [state.time for state in api.list_cube_history(CUBE, store)]
    frames = [api.query_cube(CUBE, store, as_of=time)[0] for time in times]
    assert ["v3" in df for df in frames] == [False, True, False, True]
    # a hidden dataset can be written again
    api.rollback_cube(CUBE, store, time)
    api.extend_cube({"more": frame(x=[1], p=[1], other=["a"])}, CUBE, store)
    assert api.query_cube(CUBE, store)[0]["other"].dropna().tolist() == ["a"]
    assert rows(api.query_cube(CUBE, store, as_of=api.list_cube_history(CUBE, store)[-2].time)) == CUTS[0]
    assert api.verify_cube(CUBE, store).ok


def test_functions_of_datasets_take_a_hidden_one_for_absent(store):
    time, more = now(store), frame(x=[0], p=[0], v3=[1])
    api.extend_cube({"more": more}, CUBE, store)
    api.set_contract(CUBE, store, "more", api.CellsInSeed())
    api.rollback_cube(CUBE, store, time)
    assert api.verify_cube(CUBE, store).checked["datasets"] == 2
    with pytest.raises(DatasetNotFoundError, match=r"cube\+\+more"):
        eager.copy_dataset("cube++more", store, "copy")
    with pytest.raises(ValueError, match="unknown dataset more; available: enrich, seed"):
        api.query_cube(CUBE, store, datasets=["more"])
    version = api.list_cube_history(CUBE, store)["more"][-1].version
    # of which the next commit makes an older state
    eager.store_dataframes_as_dataset(
        store, "cube++more", [more], partition_on=["p"], secondary_indices=["x"]
    )
    api.rollback_cube(CUBE, store, time)
    for overwrite in (False, True):
        for read in (
            lambda: eager.read_table("cube++more", store, as_of=version),
            lambda: eager.rollback_dataset("cube++more", store, version),
            lambda: api.rollback_cube(CUBE, store, {"more": version}),
            lambda: api.query_cube(CUBE, store, as_of={"more": version}),
        ):
            with pytest.raises(
                StateNotFoundError, match=r"Dataset 'cube\+\+more': there is no state as of .* hidden"
            ):
                read()
        arguments = {"partition_on": ["p"], "secondary_indices": ["x"], "overwrite": overwrite}
        eager.store_dataframes_as_dataset(store, "cube++more", [more.assign(x=9)], **arguments)
        assert eager.read_table("cube++more", store)["x"].tolist() == [9]
        api.rollback_cube(CUBE, store, time)


def test_a_hidden_dataset_comes_back_with_its_contract_and_history(store):
    before = now(store)
    api.extend_cube({"more": frame(x=[0], p=[0], v3=[1])}, CUBE, store)
    extended = api.list_cube_history(CUBE, store)[-1]
    api.set_contract(CUBE, store, "more", api.InRange("v3", 0, 5))
    api.keep_cube_history(CUBE, store, 4, datasets="more")
    api.rollback_cube(CUBE, store, before)
    more = api.rollback_cube(CUBE, store, extended.time)["more"]
    assert more.metadata[KEEP_HISTORY] == 4
    with pytest.raises(ContractViolationError, match="InRange"):
        api.append_to_cube({"more": frame(x=[1], p=[1], v3=[9])}, CUBE, store)


def test_a_hidden_dataset_breaks_no_rule_of_the_cube(store):
    cube = CUBE.copy(index_columns=["v3"])
    before = now(store)
    api.extend_cube({"more": frame(x=[0], p=[0], v3=[1])}, cube, store)
    api.rollback_cube(cube, store, before)
    api.extend_cube({"other": frame(x=[0], p=[0], v3=["a"])}, cube, store)
    assert api.verify_cube(cube, store).ok
    assert api.repair_cube(cube, store).ok


def test_a_cleanup_deletes_a_hidden_dataset(store):
    api.keep_cube_history(CUBE, store)
    time = now(store)
    api.extend_cube({"more": frame(x=[0], p=[0], v3=[1])}, CUBE, store)
    api.rollback_cube(CUBE, store, time)
    api.cleanup_cube(CUBE, store, retention=timedelta(hours=1))
    assert any(key.startswith("cube++more") for key in store.keys())
    api.cleanup_cube(CUBE, store)
    assert not [key for key in store.keys() if key.startswith("cube++more")]
    assert api.verify_cube(CUBE, store).ok
    assert rows(api.query_cube(CUBE, store)) == CUTS[0]


def test_without_a_history_older_states_are_errors_and_nothing_is_archived(store):
    api.keep_cube_history(CUBE, store, 0)
    time = now(store)
    api.remove_partitions(CUBE, store, "all")
    assert not [key for key in store.keys() if "/_history/" in key]
    before = snapshot(lambda: store)
    for function in (api.query_cube, api.rollback_cube):
        for as_of in (time, 2):
            with pytest.raises(
                StateNotFoundError, match=r"only state is \d \(since .*retention of the history"
            ):
                function(CUBE, store, as_of=as_of)
    assert snapshot(lambda: store) == before


@pytest.mark.parametrize("keep", [None, 0, 3])
def test_datasets_that_are_added_inherit_the_history_of_the_cube(keep):
    store = memory()
    metadata = None if keep is None else {"seed": {KEEP_HISTORY: keep}}
    api.build_cube(BOTH, CUBE, store, metadata=metadata)
    api.extend_cube({"more": frame(x=[0], p=[0], v3=[1])}, CUBE, store)
    kept = [ds.metadata.get(KEEP_HISTORY) for ds in api.discover_datasets(CUBE, store).values()]
    assert kept == [keep] * 3
    overwritten = {"seed": SEED, "enrich": ENRICH, "more": SEED.assign(v1="a").rename(columns={"v1": "v3"})}
    api.build_cube({**overwritten, "last": frame(x=[0], p=[0], v4=[1])}, CUBE, store, overwrite=True)
    kept = [ds.metadata.get(KEEP_HISTORY) for ds in api.discover_datasets(CUBE, store).values()]
    assert kept == [keep] * 4


def test_versions_are_found_where_states_of_another_dataset_are_gone_in_between(store):
    api.extend_cube({"more": frame(x=[0], p=[0], v3=[1])}, CUBE, store, metadata={"more": {KEEP_HISTORY: 1}})
    for x in (5, 6, 7):
        api.append_to_cube({"more": frame(x=[x], p=[0], v3=[x])}, CUBE, store)
        api.append_to_cube(frame(x=[x], p=[0], v1=[x]), CUBE, store)
    states = api.list_cube_history(CUBE, store)
    assert states[0].operation == "build"
    for state in states:
        found = [api.query_cube_df(CUBE, store, as_of=as_of) for as_of in (state.version, state.time)]
        assert as_dict(found[0]) == as_dict(found[1])


def test_an_extension_does_not_cut_the_history_of_the_cube(store):
    changed(store)
    api.extend_cube({"more": frame(x=[0], p=[0], v3=[1])}, CUBE, store)
    api.append_to_cube({"more": frame(x=[1], p=[1], v3=[2])}, CUBE, store)
    # nor does it if the first states of the new dataset are not kept
    api.keep_cube_history(CUBE, store, 1, "more")
    api.append_to_cube({"more": frame(x=[2], p=[1], v3=[3])}, CUBE, store)
    states = api.list_cube_history(CUBE, store)
    assert [state.version for state in states[:3]] == [2, 3, 4]
    assert rows(api.query_cube(CUBE, store, as_of=2)) == CUTS[0]
    with pytest.raises(StateNotFoundError, match="go from 2"):
        api.query_cube(CUBE, store, as_of="2000-01-01")


# garbage ----------------------------------------------------------------------------------------------------


def test_cleanup_keeps_what_older_states_need(store):
    times = changed(store)
    api.compact_cube(CUBE, store)
    api.remove_partitions(CUBE, store, "all")
    before = snapshot(lambda: store)
    assert api.list_cube_garbage(CUBE, store) == []
    api.cleanup_cube(CUBE, store)
    assert snapshot(lambda: store) == before
    for time, expected in zip(times, CUTS, strict=True):
        assert rows(api.query_cube(CUBE, store, as_of=time)) == expected
    api.keep_cube_history(CUBE, store, 0)
    garbage = api.list_cube_garbage(CUBE, store)
    assert sum(blob.size for blob in garbage) == sum(len(store.get(blob.key)) for blob in garbage)
    api.cleanup_cube(CUBE, store)
    assert not [key for key in cubes.keys(lambda: store) if "/_history/" in key or "/table/p=" in key]
    assert api.verify_cube(CUBE, store).ok


@pytest.mark.parametrize("is_hidden", [False, True])
def test_after_a_deletion_no_version_is_that_of_another_state(store, is_hidden):
    """Versions of the cube are sums: those of states with the dataset are refused, later ones are higher."""
    if is_hidden:
        api.keep_cube_history(CUBE, store, None)
        api.extend_cube({"more": frame(x=[0], p=[0], w=[1])}, CUBE, store)
        before = api.list_cube_history(CUBE, store)
        api.rollback_cube(CUBE, store, before[-2].time)
        hidden = api.list_cube_history(CUBE, store)[-1]
        api.cleanup_cube(CUBE, store)
        assert "cube++more.by-dataset-metadata.json" not in cubes.keys(lambda: store)
        before = [*before, hidden]
    else:
        changed(store)
        before = api.list_cube_history(CUBE, store)
        api.delete_cube(CUBE, store, ["enrich"])
    after = api.list_cube_history(CUBE, store)
    # readers do not notice that a hidden dataset is deleted
    assert after[-1].version == before[-1].version + (not is_hidden)
    if not is_hidden:
        with pytest.raises(StateNotFoundError, match="A dataset of the cube was deleted since"):
            api.query_cube(CUBE, store, as_of=before[-1].version)
    api.append_to_cube(frame(x=[3], p=[1], v1=[43]), CUBE, store)
    newest = api.list_cube_history(CUBE, store)[-1]
    assert newest.version > before[-1].version
    assert 3 in api.query_cube(CUBE, store, as_of=newest.version)[0]["x"].tolist()
    for state in before[:-1]:
        with pytest.raises(StateNotFoundError):
            api.query_cube(CUBE, store, as_of=state.version)
    if not is_hidden:
        with pytest.raises(StateNotFoundError, match="A dataset of the cube was deleted since"):
            api.rollback_cube(CUBE, store, as_of=after[0].version)
        assert api.query_cube(CUBE, store, as_of=after[0].time)[0]["x"].tolist() == [0, 1]
        api.delete_cube(CUBE, store)
        assert cubes.keys(lambda: store) == set()


def test_versions_of_deleted_datasets_count_beside_other_software(store):
    """It drops what a header says of them: no later state has the version of an earlier one."""
    changed(store)
    api.delete_cube(CUBE, store, ["enrich"])
    api.append_to_cube(frame(x=[3], p=[1], v1=[43]), CUBE, store)
    cubes.edit_header(lambda: store, "cube++seed", lambda content: content.pop("kartothek_cube"))
    api.append_to_cube(frame(x=[4], p=[1], v1=[44]), CUBE, store)
    versions = [state.version for state in api.list_cube_history(CUBE, store)]
    assert versions == sorted(set(versions))


def test_a_dataset_is_deleted_beside_a_seed_that_other_software_wrote_last(store):
    cubes.edit_header(lambda: store, "cube++seed", lambda content: content.pop("kartothek_cube"))
    api.delete_cube(CUBE, store, ["enrich"])
    assert set(api.query_cube(CUBE, store)[0]) == set(SEED)


def test_a_seed_that_other_software_wrote_last_can_be_rolled_back_with_other_datasets(store):
    first = {name: states[0].version for name, states in api.list_cube_history(CUBE, store).datasets.items()}
    changed(store)
    cubes.edit_header(lambda: store, "cube++seed", lambda content: content.pop("kartothek_cube"))
    with mock.patch("kartothek_cube.core.clock.sleep"):
        api.rollback_cube(CUBE, store, first)
    assert rows(api.query_cube(CUBE, store)) == CUTS[0]
    assert api.verify_cube(CUBE, store).ok


@pytest.mark.parametrize("later", ["cleanup", "operation on several datasets"])
def test_a_state_of_other_software_keeps_its_time_when_its_header_is_put_again(tmp_path, later):
    url = f"hfs://{tmp_path}"
    api.build_cube(SEED, CUBE, url)
    api.append_to_cube(frame(x=[0], p=[0], v1=[99]), CUBE, url)
    cubes.edit_header(lambda: ensure_store(url), "cube++seed", lambda content: content.pop("kartothek_cube"))
    time, token = now(url), api.list_cube_changes(CUBE, url).token
    expected = rows(api.query_cube(CUBE, url))
    if later == "cleanup":
        (tmp_path / "cube++seed/table/p=0/orphan.parquet").write_bytes(b"")
        utime(tmp_path / "cube++seed/table/p=0/orphan.parquet", (0, 0))
        api.cleanup_cube(CUBE, url, retention=timedelta(hours=1))
    else:
        more = {name: frame(x=[0], p=[0], **{name: [1]}) for name in ("a", "b")}
        api.extend_cube(more, CUBE, url)
    for as_of in (time, token):
        assert rows(api.query_cube(CUBE, url, as_of=as_of)) == expected
    versions = [state.version for state in api.list_cube_history(CUBE, url)]
    assert versions == sorted(set(versions))


@pytest.fixture
def forgetful():
    """A cube of which a cleanup keeps no older state."""
    store = memory()
    api.build_cube(BOTH, CUBE, store)
    return store


def test_a_rollback_to_a_token_of_a_dataset_that_was_deleted(forgetful):
    token = api.list_cube_changes(CUBE, forgetful).token
    api.delete_cube(CUBE, forgetful, {"enrich"})
    with pytest.raises(StateNotFoundError, match=r"cube\+\+enrich.*does not exist any more"):
        api.rollback_cube(CUBE, forgetful, token)


def test_a_pinned_state_survives_cleanups_until_it_is_released(forgetful):
    pin = api.pin_cube(CUBE, forgetful)
    (listed,) = api.list_cube_history(CUBE, forgetful).pins
    found = (listed.versions, listed.expires)
    assert found == (api.list_cube_history(CUBE, forgetful)[-1].versions, pin.expires)
    before = api.query_cube(CUBE, forgetful)
    changed(forgetful)
    api.cleanup_cube(CUBE, forgetful)
    api.remove_partitions(CUBE, forgetful, "all")
    api.cleanup_cube(CUBE, forgetful)
    assert rows(api.query_cube(CUBE, forgetful, as_of=pin.token)) == rows(before)
    with pytest.raises(StateNotFoundError, match="Only a pin keeps it"):
        api.rollback_cube(CUBE, forgetful, pin.token)
    pin.release()
    assert api.list_cube_history(CUBE, forgetful).pins == []
    api.cleanup_cube(CUBE, forgetful)
    with pytest.raises(StateNotFoundError):
        api.query_cube(CUBE, forgetful, as_of=pin.token)
    assert not [key for key in forgetful.keys() if key.endswith(".pin")]
    assert api.verify_cube(CUBE, forgetful).ok


def test_a_file_that_a_cleanup_lists_before_it_is_committed_and_pinned_stays(forgetful):
    before = set(forgetful.keys())
    api.append_to_cube(frame(x=[9], p=[9], v1=[9]), CUBE, forgetful)
    listed = [key for key in set(forgetful.keys()) - before if "/p=9/" in key]
    pin = api.pin_cube(CUBE, forgetful)
    api.remove_partitions(CUBE, forgetful, api.C("p") == 9, ["seed"])
    garbage.delete_garbage(forgetful, listed)
    assert 9 in api.query_cube(CUBE, forgetful, as_of=pin.token)[0]["x"].tolist()
    pin.release()
    api.cleanup_cube(CUBE, forgetful)
    assert not set(listed) & set(forgetful.keys())


def test_a_pin_counts_until_its_lease_ends_unless_it_is_renewed(forgetful, monkeypatch):
    now = datetime(2030, 1, 1)
    monkeypatch.setattr("kartothek_cube.core.clock.datetime_utcnow", lambda: now)
    pin = api.pin_cube(CUBE, forgetful, lease=timedelta(hours=1))
    changed(forgetful)
    now += timedelta(minutes=50)
    pin.renew()
    now += timedelta(minutes=50)
    api.cleanup_cube(CUBE, forgetful)
    assert rows(api.query_cube(CUBE, forgetful, as_of=pin.token)) is not None
    now += timedelta(minutes=11)
    api.cleanup_cube(CUBE, forgetful)
    with pytest.raises(StateNotFoundError):
        api.query_cube(CUBE, forgetful, as_of=pin.token)
    assert not [key for key in forgetful.keys() if key.endswith(".pin")]


@pytest.mark.parametrize("end", ["lapse", "release"])
@pytest.mark.parametrize("cleanup", [None, "complete", "dies"])
def test_a_pin_that_had_ended_is_renewed_unless_its_state_is_deleted(forgetful, monkeypatch, end, cleanup):
    now = datetime(2030, 1, 1)
    monkeypatch.setattr("kartothek_cube.core.clock.datetime_utcnow", lambda: now)
    pin = api.pin_cube(CUBE, forgetful, lease=timedelta(hours=1))
    pinned = rows(api.query_cube(CUBE, forgetful))
    api.remove_partitions(CUBE, forgetful, "all")
    if end == "release":
        pin.release()
    else:
        now += timedelta(minutes=61)
    if cleanup is not None:
        store = FaultyStore(forgetful)
        with suppress(Died):
            api.cleanup_cube(CUBE, store.die("delete", key="/table/") if cleanup == "dies" else store)
        with pytest.raises(StateNotFoundError, match="Its pin had ended"):
            pin.renew()
        assert not [key for key in forgetful.keys() if key.endswith(".pin")]
        return
    pin.renew()
    api.cleanup_cube(CUBE, forgetful)
    assert rows(api.query_cube(CUBE, forgetful, as_of=pin.token)) == pinned


def test_a_pin_that_is_renewed_before_a_cleanup_reads_the_clock_counts(forgetful, monkeypatch):
    now = datetime(2030, 1, 1)
    monkeypatch.setattr("kartothek_cube.core.clock.datetime_utcnow", lambda: now)
    pin = api.pin_cube(CUBE, forgetful, lease=timedelta(hours=1))
    pinned = rows(api.query_cube(CUBE, forgetful))
    api.remove_partitions(CUBE, forgetful, "all")
    read_clock = garbage.store_time

    def renew_before(*args):
        nonlocal now
        now += timedelta(minutes=50)
        pin.renew()
        now += timedelta(minutes=20)
        return read_clock(*args)

    monkeypatch.setattr(garbage, "store_time", renew_before)
    api.cleanup_cube(CUBE, forgetful)
    assert rows(api.query_cube(CUBE, forgetful, as_of=pin.token)) == pinned


def test_a_state_that_is_replaced_before_its_pin_is_put_is_not_pinned(forgetful):
    """A cleanup has not seen the pin: that of the next state is put instead."""

    def replace():
        new = {**BOTH, "seed": SEED.assign(x=SEED["x"] + 100)}
        api.build_cube(new, CUBE, forgetful, overwrite=True)
        api.cleanup_cube(CUBE, forgetful)

    with api.pin_cube(CUBE, FaultyStore(forgetful).fail("put", key=".pin", error=replace)) as pin:
        assert min(api.query_cube(CUBE, forgetful, as_of=pin.token)[0]["x"]) >= 100


def test_a_state_is_pinned_throughout_a_renewal(forgetful):
    pins = []
    look = lambda: pins.extend(api.list_cube_history(CUBE, forgetful).pins)  # noqa: E731
    pin = api.pin_cube(CUBE, FaultyStore(forgetful).fail("put", at=2, key=".pin", error=look))
    pin.renew()
    assert len(pins) == 1
    pin.release()


def test_a_pin_in_each_block_is_renewed_in_the_background_and_ends_with_it(forgetful):
    pin = api.pin_cube(CUBE, forgetful, lease=timedelta(seconds=10))
    first, pin._lease = pin.expires, timedelta(milliseconds=30)
    with pin:
        deadline = monotonic() + 60
        while pin.expires == first and monotonic() < deadline:
            sleep(0.01)
        assert pin.expires != first
    with pin:
        assert len(api.list_cube_history(CUBE, forgetful).pins) == 1
        assert pin._thread.is_alive()
    assert not [key for key in forgetful.keys() if key.endswith(".pin")]


LEASES = [
    (timedelta(seconds=1), ValueError),
    (3600, TypeError),
    # later than names of pins can tell, so that cleanups ignored the pin
    (timedelta(days=300 * 366), ValueError),
    (timedelta.max, ValueError),
]


@pytest.mark.parametrize("lease, error", LEASES)
def test_a_lease_is_a_time_that_can_be_renewed_and_ends(forgetful, lease, error):
    with pytest.raises(error, match="lease is"):
        api.pin_cube(CUBE, forgetful, lease=lease)


UPDATED, STAGED = frame(x=[8, 9], p=[0, 0], v1=[1, 1]), frame(x=[4], p=[0], v1=[1])
KEY = STAGED[["x", "p"]]
#: operations that follow each other
OPERATIONS = {
    "append": lambda store: api.append_to_cube(frame(x=[1, 2], p=[1, 1], v1=[41, 42]), CUBE, store),
    "extend": lambda store: api.extend_cube({"more": frame(x=[0, 1], p=[0, 1], v3=[1, 2])}, CUBE, store),
    "merge": lambda store: api.merge_into_cube(frame(x=[0, 5], p=[0, 1], v1=[7, 8]), CUBE, store, "seed"),
    "delete rows": lambda store: api.delete_rows(CUBE, store, api.C("x") == 2),
    "update": lambda store: api.update_cube(UPDATED, CUBE, store, api.C("p") == 0, ["seed"]),
    "append again": lambda store: api.append_to_cube(frame(x=[8], p=[0], v1=[41]), CUBE, store),
    "compact": lambda store: api.compact_cube(CUBE, store),
    "compute": lambda store: api.compute_dataset(lambda df: df[["x", "p"]], CUBE, store, "score"),
    "statistics": lambda store: api.build_column_statistics(CUBE, store, "v1"),
    "undo": lambda store: api.rollback_cube(CUBE, store, 3),
    "publish": lambda store: api.publish_staged(
        api.append_to_cube(STAGED, CUBE, store, publish=False), store
    ),
    "remove": lambda store: api.remove_partitions(CUBE, store, api.C("p") == 0),
    "overwrite": lambda store: api.build_cube(
        dict.fromkeys(("seed", "more"), KEY), CUBE, store, overwrite=True
    ),
}


@pytest.fixture
def operated():
    """A store with the states of all operations, of which some write several datasets."""
    store = memory()
    api.build_cube(SEED, CUBE, store)
    for operation in OPERATIONS.values():
        operation(store)
    return store


def rows_of_states(store):
    history = api.list_cube_history(CUBE, store)
    return [(state.operation, state.rows_added, state.rows_removed) for state in history]


def test_rows_in_names_of_files_are_those_of_their_footers(operated, monkeypatch):
    named, opened = rows_of_states(operated), []
    monkeypatch.setattr(cube_history.partition, "rows_of_name", opened.append)
    assert named == rows_of_states(operated)
    assert len(opened) > len(named)


def test_the_history_and_the_sizes_of_a_cube_open_no_data_file(monkeypatch):
    store = memory()
    api.build_cube(SEED, CUBE, store)
    OPERATIONS["append"](store)
    OPERATIONS["extend"](store)
    for module in (parquet, kartothek_helpers):
        monkeypatch.setattr(module, "read_footer", lambda blobs, key: pytest.fail(f"opened {key}"))
    assert rows_of_states(store) == [("build", 2, 0), ("append", 2, 0), ("extend", 2, 0)]
    assert api.collect_stats(CUBE, store)["seed"]["rows"] == 4


def copy_over(target):
    source = memory()
    api.build_cube(SEED, CUBE, source)
    api.copy_cube(CUBE, source, target, overwrite=True)


@pytest.mark.parametrize(
    "write, versions",
    [
        (OPERATIONS["append again"], [3]),
        (lambda store: api.keep_cube_history(CUBE, store, 5), [3, 4]),
        (copy_over, [3]),
    ],
)
def test_a_state_that_a_cleanup_has_deleted_does_not_come_back_with_a_slow_commit(write, versions):
    store = memory()
    api.build_cube(SEED, CUBE, store)
    OPERATIONS["append"](store)

    def replace_and_clean():
        OPERATIONS["append"](store)
        api.cleanup_cube(CUBE, store)

    # refused if it has files, which are gone, else it begins again
    with suppress(ConcurrentWriteError, RuntimeError):
        write(FaultyStore(store).fail("put", key="/_history/", error=replace_and_clean))
    assert [state.version for state in api.list_cube_history(CUBE, store)] == versions
    assert api.verify_cube(CUBE, store).ok


def test_the_oldest_state_that_is_kept_names_the_operation_that_made_it():
    store = memory()
    api.build_cube(BOTH, CUBE, store)
    OPERATIONS["append"](store)
    api.cleanup_cube(CUBE, store)
    (state,) = api.list_cube_history(CUBE, store)
    assert (state.operation, state.datasets) == ("append", ("enrich", "seed"))


def test_a_history_is_listed_beside_a_cleanup(operated):
    beside = FaultyStore(operated)
    beside.fail("get", key="/_history/", error=lambda: api.cleanup_cube(CUBE, operated))
    assert [state.operation for state in api.list_cube_history(CUBE, beside)] == ["build"]
    assert len(beside.happened) == 1


def test_each_version_is_found_without_a_look_at_all_others(operated):
    histories = cube_history.DatasetHistories(CUBE, open_blobs(operated))
    listed = {histories.version(cut): cut for _, cut in histories.cuts()}
    assert len(listed) > len(OPERATIONS)
    for version in range(-1, max(listed) + 2):
        assert histories.find(version) == listed.get(version, {})
    for x in range(40):
        api.append_to_cube(frame(x=[x], p=[0]), CUBE, operated)
    with mock.patch.object(core_history, "load_snapshot", wraps=core_history.load_snapshot) as load_snapshot:
        assert rows(api.query_cube(CUBE, operated, as_of=max(listed) + 20))["x"][-1] == 19
    assert load_snapshot.call_count < 20


def test_a_state_of_the_middle_of_an_operation_is_that_before_it(operated):
    """Such as between the commits of the computed dataset and of the seed, when a rollback hides it."""
    histories = cube_history.DatasetHistories(CUBE, open_blobs(operated))
    cuts = list(histories.cuts())
    times = {state.time for states in histories.states.values() for state in states}
    assert times > {time for time, _ in cuts}
    for time in times:
        expected = [cut for moment, cut in cuts if moment <= time][-1]
        assert histories.version(histories.cut(time, histories.states)) == histories.version(expected)
