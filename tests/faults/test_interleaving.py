"""Two operations at once, request by request; one operation that dies or fails at each of its requests.

A sample; all pairs, all schedules and all kinds of stores are run by ``make soak``.
"""

import importlib
from contextlib import suppress
from functools import partial
from unittest import mock

import pytest

from kartothek_cube.core import dataset_files
from kartothek_cube.core.commit import change, header_store
from kartothek_cube.core.cube.discover import discover_datasets_unchecked
from kartothek_cube.core.errors import CorruptDatasetError, DatasetExistsError
from kartothek_cube.io_components.write import write_commit
from tests.support.concurrent_cubes import OPERATIONS, STARTS, Pair, applies, content, deterministic
from tests.support.concurrent_schemas import SchemaChanges
from tests.support.interleave import Crash, LostAnswer, ModelStore, StrangeError, World, explore

STAGED_OTHERS = ("discard staged", "cleanup")
#: operations that delete files, and what loses by it if they are not careful
PAIRS = [
    *((start, "append", "cleanup") for start in ("cube", "past")),
    *((start, "build", "cleanup") for start in ("nothing", "leftover")),
    ("leftover", "copy", "cleanup"),
    ("cube", "delete", "overwrite"),
    ("cube", "append", "delete"),
    ("nothing", "build", "copy"),
    ("cube", "append", "copy over"),
    ("past", "cleanup", "rollback"),
    ("cube", "cleanup", "delete"),
    ("two", "delete", "delete"),
    ("cube", "append", "update"),
    ("past", "compact", "cleanup"),
    ("past", "delete rows", "append"),
    *(("two", "delete rows", other) for other in ("append both", "append extra", "compact", "cleanup")),
    *(("two", "delete rows", other) for other in ("query", "delete rows")),
    *(("nothing", "build two", other) for other in ("build", "copy two")),
    *(("nothing", "copy two", other) for other in ("copy extended", "query")),
    ("nothing", "copy extended", "query"),
    *(("two", "copy two over", other) for other in ("append extra", "append both", "query")),
    *(("published", "publish", other) for other in ("publish", "append", "compact", "delete", "overwrite")),
    *(("published", other, "cleanup") for other in ("publish", "overwrite", "compact")),
    ("published", "publish", "remove and clean"),
    *(("published", "unpublish", other) for other in ("publish", "cleanup", "unpublish")),
    *(("publishing", "append", other) for other in ("update", "unpublish", "cleanup", "overwrite", "delete")),
    *(("extended", "rollback before extra", other) for other in ("query", "append both", "cleanup")),
    ("hidden", "extend", "query"),
    *(("pinned", "read pinned", other) for other in ("append", "cleanup", "compact", "remove and clean")),
    *(("staged", "publish staged", other) for other in ("publish staged", *STAGED_OTHERS)),
    *(("staged", "publish staged", other) for other in ("append both", "compact", "query")),
    ("staged", "publish and remove", "publish again"),
    *(("staged", "read staged", other) for other in ("publish staged", *STAGED_OTHERS)),
    *(("staged build", "publish build", other) for other in ("publish build", *STAGED_OTHERS, "build")),
    *(("staged extend", "publish extend", other) for other in ("publish extend", *STAGED_OTHERS, "delete")),
    ("cube", "set contract", "append 7"),
    *(("contracted", "append 3", other) for other in ("append 5", "append 7", "set contract", "compact")),
    *(("statistics", "append", other) for other in ("build statistics", "compact", "cleanup")),
    *(("statistics", "build statistics", other) for other in ("build statistics", "update", "cleanup")),
    *(("statistics", "query by statistics", other) for other in ("append", "compact", "remove and clean")),
    *(("columns", "extend", other) for other in ("extend other", "extend two", "add column")),
    *(("columns", "add column", other) for other in ("extend two", "query")),
    *(("computed", "compute", other) for other in ("compute", "append", "append both", "compact", "query")),
]


#: those that run on other kinds of stores as well
STAGED_AND_CONTRACTS = [
    *(("staged", "publish staged", other) for other in ("publish staged", *STAGED_OTHERS, "append both")),
    ("staged", "publish and remove", "publish again"),
    ("staged", "read staged", "cleanup"),
    *(("staged build", "publish build", other) for other in ("publish build", *STAGED_OTHERS)),
    ("staged extend", "publish extend", "discard staged"),
    ("cube", "set contract", "append 7"),
    *(("contracted", "append 3", other) for other in ("append 5", "set contract")),
]


SLOW = pytest.mark.slow("many schedules")


def count_runs(*args, **options):
    return sum(1 for _ in explore(*args, **options))


@SLOW
@pytest.mark.parametrize(
    "kind, start, first, second",
    [
        *(("s3", *pair) for pair in PAIRS),
        ("azure", *PAIRS[0]),
        *((kind, *pair) for kind in ("local", "memory") for pair in STAGED_AND_CONTRACTS),
    ],
)
def test_two_operations(kind, start, first, second):
    """Each of them stops before each of its requests until the other one has ended."""
    pair = Pair(kind, start, (first, second))
    assert count_runs(pair.play, bound=1) > 2


@SLOW
@pytest.mark.parametrize("first, second", [("append", "cleanup"), ("append", "delete")])
def test_all_schedules(first, second):
    assert count_runs(Pair("s3", "cube", (first, second)).play) > 50


#: two changes with a reader
WITH_READERS = [
    ("two", "append both", "update both"),
    ("two", "overwrite both", "append extra"),
    ("nothing", "copy two", "build two"),
]

#: three operations of which some change the schema
SCHEMA_CHANGES = [
    ("cube", "add s", "merge t", "query"),
    ("cube", "drop v", "rename v", "query"),
    ("cube", "add s", "add s", "query"),
    ("cube", "add s", "add u", "append"),
    ("evolved", "drop v", "merge t", "compact"),
    ("evolved", "merge t", "merge w", "query"),
    ("evolved", "rename v", "compact", "query"),
    ("evolved", "drop v", "compact", "cleanup"),
]


@SLOW
@pytest.mark.parametrize("start, first, second", WITH_READERS)
def test_two_operations_with_a_reader(start, first, second):
    assert count_runs(Pair("s3", start, (first, second, "query")).play, bound=1) > 20


@SLOW
@pytest.mark.parametrize("start, names", [(start, names) for start, *names in SCHEMA_CHANGES])
def test_changes_of_the_schema(start, names):
    assert count_runs(SchemaChanges("s3", start, tuple(names)).play, bound=1) > 20


@SLOW
def test_a_reader_that_takes_the_newest_schema_is_found_out(monkeypatch):
    """The oracle can fail: a header that is older than the schema file has another schema."""
    damaged = mock.Mock(side_effect=CorruptDatasetError("k", "no copy"))
    monkeypatch.setattr(dataset_files, "embedded_schema", damaged)
    with pytest.raises(AssertionError, match="add s and merge t and query"):
        count_runs(SchemaChanges("s3", "cube", ("add s", "merge t", "query")).play, bound=1)


@SLOW
@pytest.mark.parametrize("start", ["cube", "past"])
def test_overwrite_beside_deletion(start):
    # cube: the deletion takes the schema file between the look and the put of the new first commit
    # past: the first attempt archives a snapshot of the deleted dataset
    assert count_runs(Pair("s3", start, ("overwrite", "delete")).play, bound=1) > 20


@SLOW
def test_an_unknown_outcome_is_reported_as_such():
    """The answer to the header of a copy is lost, and an append follows before the copy looks again."""
    assert count_runs(Pair("s3", "nothing", ("append", "copy")).play, bound=1, faults=(LostAnswer,)) > 50


def test_a_publisher_that_stages_nothing_is_found_out(monkeypatch):
    """The oracle can fail: without staged versions, a cleanup deletes files of the next one."""
    module = importlib.import_module("kartothek_cube.io_components.publication.delta_log")
    monkeypatch.setattr(module, "stage_version", lambda *args: "c++seed/_delta_log/none")
    with pytest.raises(AssertionError, match="publish and remove"):
        count_runs(Pair("s3", "published", ("publish", "remove and clean")).play, bound=1)


@SLOW
@pytest.mark.parametrize(
    "name, faults",
    [
        *(
            (name, (Crash, LostAnswer))
            for name in OPERATIONS
            if any(applies(name, start) for start in STARTS)
        ),
        *((name, (StrangeError,)) for name in ("build two", "append both", "delete", "copy two", "cleanup")),
    ],
)
def test_one_operation_that_fails(name, faults):
    """At each of its requests the process dies, or the answer is lost; the request has its effect or not."""
    starts = ("cube", "past", "two", "nothing", "published", "extended", "contracted")
    own = {"compute": "computed", "read pinned": "pinned", "publish build": "staged build"}
    own |= {"publish extend": "staged extend"}
    own |= dict.fromkeys(("extend other", "extend two", "add column"), "columns")
    own |= dict.fromkeys(("publish staged", "read staged", "discard staged"), "staged")
    own |= dict.fromkeys(("build statistics", "query by statistics"), "statistics")
    start = own.get(name) or next(start for start in starts if applies(name, start))
    _fail(start, name, faults)


@SLOW
@pytest.mark.parametrize("name", ["append", "update", "unpublish"])
def test_an_operation_on_a_cube_that_each_commit_publishes_fails(name):
    """Also between the commit and the publication, and before the publication is complete."""
    _fail("publishing", name, (Crash, LostAnswer))


def _fail(start, name, faults):
    assert count_runs(Pair("s3", start, (name,)).play, faults=faults) > 4 * len(faults)


@SLOW
@pytest.mark.parametrize(
    "name, after",
    [
        ("build two", "nothing"),
        ("extend", "cube"),
        ("delete", "two"),
        ("copy two", "nothing"),
        ("copy extended", "nothing"),
        ("extend", "hidden"),
        ("delete", "past"),
        ("delete extra", "two"),
    ],
)
def test_an_operation_that_died_can_be_repeated(name, after):
    """Without overwrite, unless all of it is done; a deletion leaves no more files than without a fault."""
    pair = Pair("s3", after, (name,))
    worlds = []

    def play(scheduler):
        world = World("s3", pair.blobs)
        world.scheduler = scheduler
        worlds.append(world)
        with deterministic(1_000_000):
            run = scheduler.play(world, [partial(OPERATIONS[name][0], ModelStore(world, 0))])
            world.scheduler = None
            visible = discover_datasets_unchecked("c", ModelStore(world))
            assert not visible or "seed" in visible or name == "delete"
            if run.outcomes[0].error is not None:
                with suppress(DatasetExistsError, ValueError):
                    OPERATIONS[name][0](ModelStore(world))
            assert content(ModelStore(world)) == OPERATIONS[name][1](pair.start)
            if "delete" in name:
                assert set(world.blobs) <= worlds[0].blobs.keys()
        return run

    assert count_runs(play, faults=(Crash,)) > 10


@SLOW
@pytest.mark.parametrize("name", ["append both", "rollback both"])
def test_a_rollback_finishes_an_operation_that_died(name):
    pair = Pair("s3", "two", (name,))

    def play(scheduler):
        world = World("s3", pair.blobs)
        world.scheduler = scheduler
        with deterministic(1_000_000):
            run = scheduler.play(world, [partial(OPERATIONS[name][0], ModelStore(world, 0))])
            world.scheduler = None
            OPERATIONS["rollback both"][0](ModelStore(world))
            assert content(ModelStore(world)) == OPERATIONS["rollback both"][1](pair.start)
        return run

    assert count_runs(play, faults=(Crash,)) > 10


def test_a_protocol_that_does_not_check_its_files_is_found_out(monkeypatch):
    """The oracle can fail: a commit that does not look for its files loses them to a cleanup."""
    monkeypatch.setattr(header_store, "check_files", lambda *args, **kwargs: None)
    with pytest.raises(AssertionError, match="append and cleanup"):
        count_runs(Pair("s3", "cube", ("append", "cleanup")).play, bound=1)


def test_a_staged_write_that_is_published_twice_is_found_out(monkeypatch):
    """The oracle can fail: without its id in the header, the write brings back rows that were removed."""
    monkeypatch.setattr(change, "is_staged_committed", lambda *args: False)
    with pytest.raises(AssertionError, match="publish and remove and publish again"):
        count_runs(Pair("s3", "staged", ("publish and remove", "publish again")).play, bound=1)


def test_a_commit_that_does_not_validate_the_cube_is_found_out(monkeypatch):
    """The oracle can fail: two datasets get a column of the same name at the same time."""
    monkeypatch.setattr(write_commit, "_validate", lambda *args: None)
    with pytest.raises(AssertionError, match="extend and extend other"):
        count_runs(Pair("s3", "columns", ("extend", "extend other")).play, bound=1)


@SLOW
def test_headers_that_repeat_are_found_out(monkeypatch):
    """The ABA problem: a header without an id of its own is taken for an earlier one."""
    for module in ("header_store", "optimistic"):
        home = importlib.import_module(f"kartothek_cube.core.commit.{module}")
        monkeypatch.setattr(home, "gen_uuid", lambda: "the same for all")
    with pytest.raises(AssertionError, match="append and cleanup"):
        count_runs(Pair("s3", "cube", ("append", "cleanup")).play)
