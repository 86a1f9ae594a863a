"""Operations on several datasets: readers see all of an operation or nothing, whenever its writer dies."""

import json
from contextlib import suppress

import pandas as pd
import pytest
from plateau.io import eager as plateau

import kartothek_cube
from kartothek_cube.api import cube as api
from kartothek_cube.core import caching, clock, errors
from kartothek_cube.core.commit import atomic, header_store, operation
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset_files import data_keys
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io import eager
from kartothek_cube.io.eager import read_table, verify_dataset
from kartothek_cube.io_components.maintenance import garbage
from kartothek_cube.io_components.runtime import limit_threads
from tests.support.cubes import CUBE, HEADER, edit_header, frame, keys, memory
from tests.support.stores import CountingStore, Died, FaultyStore, InjectedError

NAMES = ["first", "second", "seed"]


def data(value: int, cells=(0, 1)) -> dict[str, pd.DataFrame]:
    """Frames of three datasets that all have the same value."""
    key = {"x": list(cells), "p": [x % 2 for x in cells]}
    return {name: frame(**key, **{f"v_{name}": [value] * len(cells)}) for name in NAMES}


def without_record(store, name: str) -> None:
    """What kartothek 5 does to a header that it writes: fields that it does not know are lost."""
    edit_header(lambda: store, f"cube++{name}", lambda header: header.pop("kartothek_cube"))


def values(store, **arguments) -> list[int]:
    """The distinct values that a query sees in the datasets."""
    frames = api.query_cube(CUBE, store, **arguments)
    columns = pd.concat(frames)[[f"v_{name}" for name in NAMES]]
    return sorted(set(columns.stack().astype(int)))


def test_other_software_that_drops_each_record_is_a_concurrent_writer(store, monkeypatch):
    without_record(store, "seed")
    monkeypatch.setattr(header_store, "edit_header", lambda *arguments: None)
    pauses = []
    monkeypatch.setattr(clock, "sleep", pauses.append)
    with pytest.raises(ConcurrentWriteError, match="cube\\+\\+seed"):
        api.append_to_cube(data(2), CUBE, store)
    assert len(pauses) < 100
    assert values(store) == [1]


@pytest.fixture
def impatient(monkeypatch):
    """Writers hardly wait for a pending operation, as its process has died."""
    monkeypatch.setattr(operation, "_LOOKS", 1)


@pytest.fixture
def store(impatient):
    store = FaultyStore(memory())
    api.build_cube(data(1), CUBE, store)
    return store


WRITES = {
    "append": lambda store: api.append_to_cube(data(2), CUBE, store),
    "update": lambda store: api.update_cube(data(2), CUBE, store, None, NAMES),
    "update some": lambda store: api.update_cube(data(2, [0]), CUBE, store, api.C("p") == 0, NAMES),
    "remove": lambda store: api.remove_partitions(CUBE, store, api.C("p") == 0, NAMES),
    "overwrite": lambda store: api.build_cube(data(2), CUBE, store, overwrite=True),
    "extend": lambda store: api.extend_cube({n: frame(x=[0], p=[0], **{n: [2]}) for n in "ab"}, CUBE, store),
}


def die(store, write, after: int) -> bool:
    """Let the process die before a put of a header, after some others; False if the write has less."""
    dying = FaultyStore(store).die("put", at=after + 1, key=HEADER)
    # one thread, for the same number of commits in each run
    with suppress(Died), limit_threads(1):
        write(dying)
    # another process goes on
    caching.clear()
    return bool(dying.happened)


def answer(store) -> pd.DataFrame:
    [df] = api.query_cube(CUBE, store)
    return df


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("after", range(3))
def test_a_write_that_dies_is_invisible(store, write, after):
    before, listed = answer(store), list(api.list_cube_history(CUBE, store))
    assert die(store, write, after)
    pd.testing.assert_frame_equal(answer(store), before)
    assert list(api.list_cube_history(CUBE, store)) == listed
    assert sorted(api.discover_cube("cube", store)[1]) == NAMES
    problems = {problem.kind for problem in api.verify_cube(CUBE, store).problems}
    assert problems <= {"unfinished-operation", "schema-pending"}
    assert ("unfinished-operation" in problems) == (after > 0)
    # the next one puts it aside
    write(store)
    died = answer(store)
    again = memory()
    api.build_cube(data(1), CUBE, again)
    write(again)
    pd.testing.assert_frame_equal(died, answer(again))


@pytest.mark.parametrize("after", range(3))
def test_a_write_that_dies_on_top_of_a_commit_of_other_software_is_invisible(store, after):
    without_record(store, "second")
    before = answer(store)
    assert die(store, WRITES["append"], after)
    pd.testing.assert_frame_equal(answer(store), before)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_write_that_can_be_neither_ended_nor_undone_is_invisible_to_its_process(store, write):
    """The connection breaks before the last header; the caches of the process do not know better."""

    def contents():
        return [answer(store), *(read_table(f"cube++{name}", store) for name in NAMES)]

    before = contents()
    broken = FaultyStore(store).fail("put", at=3, key=HEADER, lasting=True)
    with pytest.raises(errors.UnknownOutcomeError), limit_threads(1):
        write(broken)
    for found, expected in zip(contents(), before, strict=True):
        pd.testing.assert_frame_equal(found, expected)


def test_an_operation_that_another_writer_rolls_back_begins_again(store):
    """Between its commits of the first dataset and of the seed, another one waits no longer."""
    others = store._dstore

    def append_to_first():
        api.append_to_cube({"first": frame(x=[2], p=[0], v_first=[5])}, CUBE, others)

    store.fail("put", key="cube++second.by-dataset", error=append_to_first, after=True)
    with limit_threads(1):
        api.append_to_cube(data(2, [3, 4]), CUBE, store)
    assert store.happened
    assert sorted(read_table("cube++first", others)["x"]) == [0, 1, 2, 3, 4]
    assert values(others, conditions=api.C("x") >= 3) == [2]


def test_an_operation_that_fails_is_undone_below_notes_of_a_cleanup(store):
    blobs, uuid = open_blobs(store._dstore), "cube++first"

    def note(state):
        return state.copy(metadata=header_store.add_tombstones(state.metadata, "collection", ["a/b/c"]))

    def fail():
        header_store.edit_header(blobs, uuid, note)
        raise InjectedError("the second one")

    store.fail("put", key="cube++second.by-dataset", error=fail)
    with limit_threads(1), pytest.raises(InjectedError):
        api.append_to_cube(data(2), CUBE, store)
    assert operation.read_record(blobs, uuid).participation.before is None
    newest = DatasetMetadata.load_from_store(uuid, store)
    assert header_store.list_tombstoned_files(newest.metadata) == {"c"}
    assert values(store) == [1]
    assert api.verify_cube(CUBE, store).ok


def test_an_operation_that_fails_stays_below_a_commit_of_other_software(store, caplog):
    def fail():
        without_record(store._dstore, "first")
        raise InjectedError("the second one")

    store.fail("put", key="cube++second.by-dataset", error=fail)
    with limit_threads(1), pytest.raises(InjectedError):
        api.append_to_cube(data(2), CUBE, store)
    assert "dataset cube++first could not be taken back" in caplog.text
    assert sorted(read_table("cube++first", store)["v_first"]) == [1, 1, 2, 2]


def test_an_aborted_build_below_a_later_commit_fails(monkeypatch):
    """Another writer has aborted it, but has deleted its note before the header of the seed was put."""
    store = memory()

    def confirm(*arguments):
        api.append_to_cube({"seed": data(3)["seed"]}, CUBE, store)
        return False

    monkeypatch.setattr(atomic, "_confirm", confirm)
    with pytest.raises(ConcurrentWriteError, match="there are later commits"):
        api.build_cube(data(1), CUBE, store)
    assert set(read_table("cube++seed", store)["v_seed"]) == {1, 3}


def test_an_abort_is_noted_until_the_state_before_is_stored(store):
    """The writer of the operation may decide just before, while the header is its own."""
    others, decided = store._dstore, []
    blobs = open_blobs(others)

    def decide():
        part = operation.read_record(blobs, "cube++first").participation
        uuids = "cube++first", "cube++second"
        decision = operation.Decision(part.operation, part.lineage, uuids, None)
        with pytest.raises(operation.OperationAborted):
            decision.check(blobs, header_store.read_optional_base(blobs, "cube++seed", "table", ""))
        decided.append(part.operation)

    assert die(store, WRITES["append"], 2)
    other = FaultyStore(others).fail("put", key="cube++first.by-dataset", error=decide)
    api.append_to_cube({"first": frame(x=[2], p=[0], v_first=[5])}, CUBE, other)
    assert decided
    assert sorted(read_table("cube++first", others)["x"]) == [0, 1, 2]


ALL = pytest.mark.slow("each write with a failure of each of its headers")


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("at", [1, 2, *(pytest.param(at, marks=ALL) for at in range(3, 9))])
def test_a_write_that_fails_on_top_of_one_that_died_leaves_the_state_before_both(store, write, at):
    """It undoes what it has committed, but does not restore headers of the other one, which is forgotten."""
    before = answer(store)
    assert die(store, write, 2)
    store.fail("put", key=HEADER, at=at)
    try:
        write(store)
    except (InjectedError, errors.MultiTableCommitAborted):
        assert store.happened
        caching.clear()
        pd.testing.assert_frame_equal(answer(store), before)
    problems = {problem.kind for problem in api.verify_cube(CUBE, store).problems}
    assert problems <= {"unfinished-operation"}
    store = store._dstore
    api.append_to_cube(data(3), CUBE, store)
    api.cleanup_cube(CUBE, store)
    assert api.verify_cube(CUBE, store).ok


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("finish", [api.repair_cube, api.cleanup_cube])
def test_it_is_finished_off(store, write, finish):
    before = answer(store)
    assert die(store, write, 2)
    finish(CUBE, store)
    assert api.verify_cube(CUBE, store).ok
    assert not {key for key in keys(lambda: store) if key.endswith(".before")}
    pd.testing.assert_frame_equal(answer(store), before)
    api.cleanup_cube(CUBE, store)
    pd.testing.assert_frame_equal(answer(store), before)


def uncommitted_files(store, names) -> set[str]:
    """Data files that only the newest headers of datasets have, which readers do not see."""
    newest = (DatasetMetadata.load_from_store(f"cube++{name}", store) for name in names)
    stored = {key for dataset in newest for key in data_keys(dataset)}
    return stored.difference(*map(data_keys, api.discover_datasets_unchecked("cube", store).values()))


@pytest.mark.parametrize("write", ["append", "update", "extend"])
def test_files_of_an_operation_that_has_not_committed_may_be_missing(store, write):
    """As those of a header that a server has put after its writer had given up, and had deleted the files."""
    before = answer(store)
    assert die(store, WRITES[write], 2)
    problems = api.verify_cube(CUBE, store).problems
    unfinished = {problem.dataset for problem in problems if problem.kind == "unfinished-operation"}
    deleted = uncommitted_files(store, [uuid.removeprefix("cube++") for uuid in unfinished])
    assert len(unfinished) == 2 and deleted
    for key in deleted:
        store._dstore.delete(key)
    pd.testing.assert_frame_equal(answer(store), before)
    kinds = {problem.kind for problem in api.verify_cube(CUBE, store).problems}
    assert kinds <= {"unfinished-operation", "schema-pending"}
    for uuid in unfinished:
        assert {p.kind for p in verify_dataset(uuid, store).problems} <= kinds
    assert api.repair_cube(CUBE, store).ok
    pd.testing.assert_frame_equal(answer(store), before)


def test_a_missing_file_of_the_state_before_an_operation_is_a_problem(store):
    (key, *_) = sorted(data_keys(DatasetMetadata.load_from_store("cube++first", store)))
    assert die(store, WRITES["update"], 2)
    store._dstore.delete(key)
    missing = [p.key for p in api.verify_cube(CUBE, store).problems if p.kind == "missing-file"]
    assert missing == [key]


@pytest.mark.parametrize("damage", [lambda s, key: s.delete(key), lambda s, key: s.put(key, b"{")])
def test_a_state_before_an_operation_that_cannot_be_read(store, damage):
    """A cleanup of kartothek 5.3 deletes it."""
    api.keep_cube_history(CUBE, store, 0)
    assert die(store, WRITES["append"], 1)
    (before,) = [k for k in keys(lambda: store) if k.startswith("cube++first") and k.endswith(".before")]
    damage(store._dstore, before)
    for read in (
        lambda: answer(store),
        lambda: read_table("cube++first", store),
        lambda: api.append_to_cube(data(2), CUBE, store),
    ):
        with pytest.raises(errors.CorruptDatasetError, match="before"):
            read()
    found = {(p.kind, p.key) for p in api.verify_cube(CUBE, store).problems}
    assert found == {("header", before), ("unfinished-operation", f"cube++first{HEADER}json")}
    store._dstore.delete(f"cube++first{HEADER}json")
    api.build_cube(data(3), CUBE, store, overwrite=True)
    assert values(store) == [3]
    assert api.verify_cube(CUBE, store).ok


@pytest.mark.parametrize("moment", ["_delete_files", "_delete_tombstoned"])
def test_a_cleanup_deletes_no_state_before_an_operation(store, monkeypatch, moment):
    """An operation archives a state again that the cleanup has listed, or given a tombstone, as garbage."""
    before = answer(store)
    die(store, WRITES["append"], 0)
    delete = getattr(garbage, moment)

    def delete_later(blobs, uuid, *arguments):
        if uuid == "cube++first":
            assert die(store, WRITES["append"], 2)
        delete(blobs, uuid, *arguments)

    monkeypatch.setattr(garbage, moment, delete_later)
    api.cleanup_cube(CUBE, store)
    pd.testing.assert_frame_equal(answer(store), before)
    WRITES["append"](store)
    assert values(store) == [2]


@pytest.mark.parametrize("method, at", [("delete", 2), ("put", 4)], ids=["header", "note"])
def test_a_cleanup_deletes_a_reserved_header_that_was_left(impatient, method, at):
    """Of an aborted build, if the deletion of the header or of its note has failed."""
    store = FaultyStore(memory())
    assert die(store, lambda store: api.build_cube(data(1), CUBE, store), 2)
    failing = FaultyStore(store._dstore).fail(method, key=f"cube++seed{HEADER}", at=at)
    api.cleanup_cube(CUBE, failing)
    assert failing.happened and f"cube++seed{HEADER}json" in keys(lambda: store)
    api.cleanup_cube(CUBE, store)
    assert keys(lambda: store) == set()


def test_a_build_of_less_after_one_that_died():
    store = FaultyStore(memory())
    assert die(store, lambda store: api.build_cube(data(1), CUBE, store), 2)
    api.build_cube({"seed": data(2)["seed"]}, CUBE, store)
    assert list(answer(store).columns) == ["p", "v_seed", "x"]
    api.cleanup_cube(CUBE, store)
    assert not {key for key in keys(lambda: store) if "first" in key or "second" in key}


def test_all_readers_see_the_state_before(store):
    stats = api.collect_stats(CUBE, store)
    die(store, WRITES["append"], 2)
    assert values(store) == [1]
    assert api.collect_stats(CUBE, store) == stats
    target = memory()
    api.copy_cube(CUBE, store, target)
    assert values(target) == [1]
    assert api.verify_cube(CUBE, target).ok
    eager.copy_dataset("cube++first", store, "first", target)
    assert set(read_table("first", target)["v_first"]) == {1}
    assert set(read_table("cube++first", store)["v_first"]) == {1}


@pytest.mark.parametrize("states", [None, 0])
def test_time_travel_of_one_dataset_stops_before_an_operation_that_has_not_committed(store, states):
    api.keep_cube_history(CUBE, store, states)
    (*_, committed) = eager.list_dataset_history("cube++first", store)
    assert die(store, WRITES["append"], 2)
    (*_, current) = eager.list_dataset_history("cube++first", store)
    assert (current.version, current.time, current.current) == (committed.version, committed.time, True)
    for as_of in (committed.version, committed.time, "2999-01-01"):
        assert set(read_table("cube++first", store, as_of=as_of)["v_first"]) == {1}
    with pytest.raises(errors.StateNotFoundError):
        read_table("cube++first", store, as_of=committed.version + 1)
    with pytest.raises(ValueError, match="nothing to undo"):
        eager.rollback_dataset("cube++first", store, as_of="2999-01-01")


def test_a_commit_of_one_dataset_puts_it_aside(store):
    die(store, WRITES["update"], 2)
    eager.update_dataset_from_dataframes([data(3, [5])["first"]], store, "cube++first")
    assert sorted(read_table("cube++first", store)["v_first"]) == [1, 1, 3]
    # and the operation can't come back
    assert values(store) == [1]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_reader_beside_the_first_write_of_several_datasets(at):
    """Only the seed tells a reader that a dataset, which was written by itself before, takes part."""
    store = memory()
    for name, frame_ in sorted(data(1).items(), key=lambda item: item[0] != "seed"):
        (api.build_cube if name == "seed" else api.extend_cube)({name: frame_}, CUBE, store)
    caching.clear()
    meanwhile = FaultyStore(store).fail("any", at=at, key=HEADER, error=lambda: WRITES["append"](store))
    assert len(values(meanwhile)) == 1
    assert values(store) == [2]


def test_a_reader_whose_header_of_the_seed_is_older_than_a_committed_and_a_pending_operation(impatient):
    def of_both(value):
        return {name: frame(x=[0], p=[0], **{name: [value]}) for name in ("seed", "z")}

    def write_twice():
        api.append_to_cube(of_both(2), CUBE, store)
        assert die(store, lambda dying: api.append_to_cube(of_both(3), CUBE, dying), 1)

    store = memory()
    api.build_cube(of_both(1), CUBE, store)
    meanwhile = FaultyStore(store).fail("get", key=f"cube++z{HEADER}", error=write_twice)
    with limit_threads(1):
        assert answer(meanwhile)[["seed", "z"]].to_numpy().tolist() == [[2, 2]]
    assert meanwhile.happened


def test_time_travel_never_stops_between_commits(store):
    api.keep_cube_history(CUBE, store, 9)
    api.append_to_cube(data(2), CUBE, store)
    history = api.list_cube_history(CUBE, store)
    times = {state.time for name in NAMES for state in history[name]}
    first = max(history[name][-2].time for name in NAMES)
    assert len({history[name][-1].time for name in NAMES}) == 3
    for time in sorted(times):
        if time >= first:
            assert len(values(store, as_of=time)) == 1
    die(store, lambda store: api.append_to_cube(data(3), CUBE, store), 2)
    assert values(store, as_of=max(times)) == [2]
    assert values(store, as_of="2999-01-01") == [2]


def write_beside_the_seed(store, name: str, participant: str) -> None:
    """Write several datasets; another commit of the seed comes after that of the last participant."""
    seed = {"seed": frame(x=[0], p=[0], v_seed=[1])}
    other = FaultyStore(store)
    other.fail(
        "put", key=participant + HEADER, after=True, error=lambda: api.append_to_cube(seed, CUBE, store)
    )
    with limit_threads(1):
        WRITES[name](other)


@pytest.mark.parametrize("name, participant", [("append", "second"), ("extend", "b")])
def test_time_travel_to_a_commit_of_the_seed_in_the_middle_of_an_operation(store, name, participant):
    write_beside_the_seed(store, name, participant)
    *_, before, between, after = api.list_cube_history(CUBE, store)
    assert between.datasets == ("seed",)
    assert {**before.versions, "seed": between.versions["seed"]} == between.versions
    assert set(after.datasets) >= after.versions.keys() - before.versions.keys()
    for as_of in (between.time, between.version):
        assert values(store, as_of=as_of) == [1]
        assert not {"a", "b"} & {*api.query_cube(CUBE, store, as_of=as_of)[0]}


def test_time_travel_to_a_commit_in_the_middle_of_an_operation_that_needs_a_state_which_is_gone(store):
    api.keep_cube_history(CUBE, store, 0, datasets=["first"])
    write_beside_the_seed(store, "append", "second")
    between = api.list_cube_history(CUBE, store)["seed"][-2]
    assert [state.versions["first"] for state in api.list_cube_history(CUBE, store)] == [3]
    with pytest.raises(errors.StateNotFoundError, match=r"first.*State 3 became visible later"):
        api.query_cube(CUBE, store, as_of=between.time)


def test_history_lists_states_of_the_cube(store):
    api.keep_cube_history(CUBE, store, 9)
    with api.annotate_operations("nightly", job={"run": 17}):
        api.append_to_cube(data(2), CUBE, store)
    api.append_to_cube({"first": data(3)["first"]}, CUBE, store)
    api.update_cube(data(4, [0]), CUBE, store, api.C("p") == 0, NAMES)
    api.compact_cube(CUBE, store)
    history = api.list_cube_history(CUBE, store)[-4:]
    assert [state.operation for state in history] == ["append", "append", "update", "compact"]
    assert [state.datasets for state in history] == [tuple(NAMES), ("first",), tuple(NAMES), tuple(NAMES)]
    assert [(state.rows_added, state.rows_removed) for state in history[:3]] == [(6, 0), (2, 0), (3, 7)]
    assert [state.files_added for state in history[:3]] == [6, 2, 3]
    assert (history[0].message, history[0].job) == ("nightly", {"run": 17})
    assert [state.current for state in history] == [False, False, False, True]
    assert len({state.version for state in history}) == 4
    assert values(store, as_of=history[0].version) == [2]
    assert values(store, as_of=history[2].version) == [2, 3, 4]
    with pytest.raises(errors.StateNotFoundError, match="as of 1234"):
        api.query_cube(CUBE, store, as_of=1234)
    api.rollback_cube(CUBE, store, history[0].version)
    assert values(store) == [2]
    assert api.list_cube_history(CUBE, store)[-1].operation == "rollback"


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"job": {"at": float("nan")}}, "job is a dict"),
        ({"job": "load", "run": object()}, "'load', <object"),
        ({"message": 5}, "message is a text"),
        ({"job": []}, "job is a dict"),
        ({"job": 5, "run": 1}, "job is a dict"),
    ],
)
def test_annotations_are_checked(arguments, text):
    with pytest.raises(TypeError, match=text), api.annotate_operations(**arguments):
        pass


@pytest.mark.parametrize(
    "arguments, job",
    [
        ({"job": "load", "run": 17, "revision": "4c1e"}, {"name": "load", "run": 17, "revision": "4c1e"}),
        ({"job": {"name": "load", "run": 16}, "run": 17}, {"name": "load", "run": 17}),
        ({"run": "a"}, {"run": "a"}),
        ({"message": "why"}, None),
    ],
)
def test_a_job_is_described_by_its_name_run_and_revision(store, arguments, job):
    with api.annotate_operations(**arguments):
        api.append_to_cube(data(2), CUBE, store)
    newest = api.list_cube_history(CUBE, store)[-1]
    assert (newest.job, newest.message) == (job, arguments.get("message"))
    assert newest.library == kartothek_cube.__version__


@pytest.mark.parametrize("written", [["seed"], ["first"], ["first", "second", "seed"]])
def test_other_writers_do_no_harm(store, written):
    api.append_to_cube(data(2), CUBE, store)
    for name in written:
        without_record(store, name)
    caching.clear()
    assert values(store) == [2]
    unknown = {"cube++first", "cube++second"} if written == ["seed"] else set()
    found = {(problem.kind, problem.dataset) for problem in api.verify_cube(CUBE, store).problems}
    assert found == {("unknown-operation", dataset) for dataset in unknown}
    api.append_to_cube(data(3), CUBE, store)
    assert values(store) == [3]
    api.append_to_cube({"first": data(3)["first"]}, CUBE, store)
    assert values(store) == [3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", NAMES)
def test_plateau_writes_in_between(tmp_path, name):
    url = f"hfs://{tmp_path}"
    api.build_cube(data(1), CUBE, url)
    api.append_to_cube(data(2), CUBE, url)
    uuid, column = f"cube++{name}", f"v_{name}"
    plateau.update_dataset_from_dataframes([data(3)[name]], store=url, dataset_uuid=uuid, partition_on=["p"])
    assert sorted(plateau.read_table(uuid, store=url)[column]) == [1, 1, 2, 2, 3, 3]
    assert values(url) == [2, 3]
    unknown = {"cube++first", "cube++second"} if name == "seed" else set()
    problems = api.verify_cube(CUBE, url).problems
    assert {(problem.kind, problem.dataset) for problem in problems} == {
        ("unknown-operation", dataset) for dataset in unknown
    }
    api.append_to_cube(data(4), CUBE, url)
    assert values(url) == [4]
    assert api.verify_cube(CUBE, url).ok
    assert sorted(plateau.read_table(uuid, store=url)[column]) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_deleted_datasets_are_forgotten(store):
    api.delete_cube(CUBE, store, {"first"})
    record = json.loads(store.get(f"cube++seed{HEADER}json"))["kartothek_cube"]
    assert "cube++first" not in record["participants"]
    api.extend_cube({"first": data(7)["first"]}, CUBE, store)
    assert values(store) == [1, 7]


def test_requests():
    """Reads without a writer cost no more requests, and a commit of one dataset neither."""
    store = CountingStore(memory())
    api.build_cube(data(1), CUBE, store)
    api.append_to_cube(data(2), CUBE, store)
    caching.clear()
    store.reset()
    api.query_cube(CUBE, store)
    assert len([key for method, key in store.log if method == "get" and HEADER in key]) == 3
    api.append_to_cube({"first": data(3)["first"]}, CUBE, store)
    store.reset()
    api.append_to_cube({"first": data(4)["first"]}, CUBE, store)
    puts = [key for method, key in store.log if method == "put"]
    assert len([key for key in puts if HEADER in key]) == 1
    assert not [key for key in puts if key.endswith(".before")]
