"""Functions that are called after commits and queries: once each, whatever fails."""

import sys

import pandas as pd
import pytest
from click.testing import CliRunner

from kartothek_cube.api import cube as api
from kartothek_cube.cli import cli
from kartothek_cube.core import hooks
from kartothek_cube.core.errors import ConcurrentWriteError, HookWarning
from kartothek_cube.io.eager import update_dataset_from_dataframes
from tests.support.concurrent_cubes import Pair, is_open
from tests.support.cubes import CUBE, frame, memory
from tests.support.interleave import Crash, LostAnswer, explore

SEED = frame(x=[0, 1, 2], p=[0, 1, 2], v1=[10, 11, 12])
EXTRA = frame(x=[0, 1, 2], p=[0, 1, 2], v2=[20, 21, 22])
BOTH = {"seed": SEED, "extra": EXTRA}


@pytest.fixture
def store():
    store = memory()
    api.build_cube(BOTH, CUBE, store)
    return store


@pytest.fixture
def commits():
    events = []
    with api.on_commit(events.append):
        yield events


def double(df):
    return df[["x", "p"]].assign(twice=2 * df["v1"])


#: operation -> its call, and rows, files that came and went, and datasets of its event
OPERATIONS = {
    "append": (lambda s: api.append_to_cube(BOTH, CUBE, s), 6, 6, 0, "extra seed"),
    "update": (lambda s: api.update_cube(SEED[:1], CUBE, s, api.C("p") == 0, ["seed"]), 1, 1, 1, "seed"),
    "merge": (lambda s: api.merge_into_cube(SEED[:1].assign(v1=0), CUBE, s), 1, 1, 1, "seed"),
    "extend": (lambda s: api.extend_cube({"new": frame(x=[0], p=[0], n=[1])}, CUBE, s), 1, 1, 0, "new"),
    "remove_partitions": (lambda s: api.remove_partitions(CUBE, s, api.C("p") == 0), 0, 0, 2, "extra seed"),
    "delete_rows": (lambda s: api.delete_rows(CUBE, s, api.C("x") == 0), 0, 0, 2, "extra seed"),
    "compute": (lambda s: api.compute_dataset(double, CUBE, s, "doubled"), 3, 3, 0, "doubled"),
    "update_schema": (lambda s: api.update_schema(CUBE, s, add={"new": "string"}), 0, 0, 0, "seed"),
    "keep history": (lambda s: api.keep_cube_history(CUBE, s, 3, ["seed"]), 0, 0, 0, "seed"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_commit_is_one_event_that_tells_what_was_done(store, commits, operation):
    call, rows, added, removed, datasets = OPERATIONS[operation]
    with api.annotate_operations("why", job="load", run=1):
        call(store)
    (event,) = commits
    assert (event.operation, event.cube) == (operation, "cube")
    assert (event.rows, event.files_added, event.files_removed) == (rows, added, removed)
    assert (event.message, event.job) == ("why", {"name": "load", "run": 1})
    newest = api.list_cube_history(CUBE, store)[-1].versions
    before = {"seed": 1, "extra": 1}
    assert dict(event.versions) == {
        CUBE.ktk_dataset_uuid(name): (before.get(name), newest[name]) for name in datasets.split()
    }
    assert event.seconds >= 0
    call = len(commits)
    api.cleanup_cube(CUBE, store)
    assert len(commits) == call


def test_copies_compactions_and_rollbacks_are_commits(store, commits):
    api.append_to_cube(SEED, CUBE, store)
    api.compact_cube(CUBE, store)
    api.rollback_cube(CUBE, store, 2)
    target = memory()
    api.copy_cube(CUBE, store, target)
    api.copy_cube(CUBE, store, target, overwrite=True)
    api.delete_cube(CUBE, target)
    assert [event.operation for event in commits] == ["append", "compact", "rollback", "copy", "copy"]
    assert (commits[1].files_added, commits[1].files_removed) == (3, 6)
    assert commits[3].versions == {"cube++extra": (None, 2), "cube++seed": (None, 4)}


def test_a_commit_of_a_dataset_has_no_cube(commits):
    store = memory()
    update_dataset_from_dataframes([SEED], dataset_uuid="d", store=lambda: store)
    (event,) = commits
    assert (event.cube, event.rows, event.versions) == (None, 3, {"d": (None, 1)})


def test_what_is_not_committed_is_no_event(store, commits):
    def overtaken(df):
        with hooks.on_commit(print):
            api.compute_dataset(double, CUBE, store, "doubled")
        return double(df)

    api.compute_dataset(double, CUBE, store, "doubled")
    api.append_to_cube(SEED[:1], CUBE, store)
    with pytest.raises(ConcurrentWriteError):
        api.compute_dataset(overtaken, CUBE, store, "doubled")
    assert [event.operation for event in commits] == ["compute", "append", "compute"]
    api.compute_dataset(double, CUBE, store, "doubled")
    api.keep_cube_history(CUBE, store, 3)
    number = len(commits)
    api.keep_cube_history(CUBE, store, 3)
    assert len(commits) == number


def fail(event):
    raise RuntimeError("unreachable server")


def test_what_a_function_raises_is_a_warning(store, commits, recwarn):
    with api.on_commit(fail), api.on_query(fail), api.on_commit(commits.append):
        with pytest.warns(HookWarning, match="unreachable server"):
            api.append_to_cube(SEED, CUBE, store)
        # warnings are errors here
        api.append_to_cube(SEED, CUBE, store)
        assert len(api.query_cube_df(CUBE, store)) == 3
    assert len(commits) == 4
    assert api.list_cube_history(CUBE, store)[-1].version == 4


def test_a_function_is_called_until_it_is_removed(store, commits):
    hook = api.on_commit(commits.append)
    api.append_to_cube(SEED, CUBE, store)
    hook.remove()
    hook.remove()
    api.append_to_cube(SEED, CUBE, store)
    assert len(commits) == 3
    with pytest.raises(TypeError, match="A hook is a function"):
        api.on_query(5)


def test_commits_of_a_function_call_none(store, commits):
    with api.on_commit(lambda event: api.append_to_cube(SEED, CUBE, store)):
        api.append_to_cube(SEED, CUBE, store)
    assert len(commits) == 1
    assert api.list_cube_history(CUBE, store)[-1].version == 4


SQL = "SELECT * FROM cube WHERE p < 2"
QUERIES = [
    *(api.query_cube, api.query_cube_df, api.query_cube_arrow, api.query_cube_table, api.query_cube_polars),
    lambda *args: api.cube_dataset(*args).to_table(),
    lambda *args: api.scan_cube(*args).collect(),
    lambda *args: api.connect(*args[:2]).sql(SQL).fetchall(),
    lambda *args: api.query_cube_df(*args, limit=5),
    lambda *args: api.query_cube(*args, partition_by="p"),
    lambda *args: list(api.query_cube__iterator(*args, partition_by="p")),
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_one_event(store, query):
    api.append_to_cube(SEED, CUBE, store)
    events = []
    with api.on_query(events.append), api.annotate_operations("why", job="report"):
        query(CUBE, store, api.C("p") < 2)
    query(CUBE, store)
    (event,) = events
    assert (event.cube, event.rows, event.files) == ("cube", 2, 6)
    assert event.versions == {"cube++seed": 2, "cube++extra": 1}
    assert (event.message, event.job) == ("why", {"name": "report"})
    assert event.seconds >= 0


def test_a_reader_that_stops_early_ends_the_query(store):
    events = []
    with api.on_query(events.append):
        next(api.query_cube__iterator(CUBE, store, partition_by="p"))
        api.cube_dataset(CUBE, store).head(1)
        api.cube_dataset(CUBE, store).count_rows()
    assert [event.rows for event in events] == [1, 1, 3]


def test_each_facade_calls_the_functions_once(driver, store_factory, commits):
    driver.build_cube(data=SEED, cube=CUBE, store=store_factory)
    assert [(event.operation, event.rows) for event in commits] == [("build", 3)]
    events = []
    with api.on_query(events.append):
        driver.query_cube(cube=CUBE, store=store_factory, conditions=api.C("p") < 2)
    (event,) = events
    # workers do not tell how many rows they have read
    assert (event.cube, event.rows in (2, None), event.files) == ("cube", True, 2)


@pytest.mark.parametrize("options", [[], ["--limit", "1"], ["-o", "csv"], ["--partition-by", "p"]])
def test_the_command_line_calls_the_function_once_per_query(tmp_path, options):
    store, events = f"hfs://{tmp_path}", []
    api.build_cube(SEED, CUBE, store)
    with api.on_query(events.append):
        arguments = ["--store", store, "cube", "query", "-w", "p < 2", *options]
        CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert [event.rows for event in events] == [1 if "--limit" in options else 2]


def count_calls(run):
    """Calls of functions of hooks, and of those that make their events."""
    names = []

    def profile(frame, event, argument):
        code = frame.f_code
        if event == "call" and (code.co_filename == hooks.__file__ or code.co_name.startswith("announce_")):
            names.append(code.co_name)

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return names


def test_without_functions_nothing_is_called(store):
    row = pd.DataFrame({"x": [5], "p": [1], "v1": [1]})
    assert count_calls(lambda: api.append_to_cube(row, CUBE, store)) == []
    assert count_calls(lambda: api.query_cube(CUBE, store)) == []


class Counted(Pair):
    """Operations whose events are counted in every schedule."""

    silent = frozenset({"delete", "cleanup"})

    def play(self, scheduler):
        self.events = []
        with api.on_commit(self.events.append):
            return super().play(scheduler)

    def _check(self, world, run):
        outcomes = [o for name, o in zip(self.names, run.outcomes, strict=True) if name not in self.silent]
        acknowledged = sum(outcome.acknowledged for outcome in outcomes)
        unknown = sum(is_open(outcome.error) for outcome in outcomes)
        # a copy builds its source first
        kinds = {name.split()[0] for name in self.names}
        n_events = sum(event.operation.split("_")[0] in kinds for event in self.events)
        assert acknowledged <= n_events <= acknowledged + unknown, (self.events, run.steps)


SCHEDULES = {
    "cube": [("append", "append other"), ("append", "delete")],
    "two": [("append both", "append extra"), ("append both", "delete rows")],
    "nothing": [("build two", "build"), ("copy two", "copy two")],
    "past": [("rollback", "append")],
    "computed": [("compute", "append")],
}
ALONE = {
    "cube": ["append", "extend"],
    "two": ["append both"],
    "nothing": ["build two", "copy two"],
    "past": ["rollback"],
}


@pytest.mark.slow("many schedules")
@pytest.mark.parametrize(
    "start, names", [(start, names) for start, pairs in SCHEDULES.items() for names in pairs]
)
def test_every_acknowledged_commit_is_one_event_in_every_schedule(start, names):
    assert sum(1 for _ in explore(Counted("s3", start, names).play, bound=1)) > 2


@pytest.mark.slow("many schedules")
@pytest.mark.parametrize("start, name", [(start, name) for start, names in ALONE.items() for name in names])
def test_every_acknowledged_commit_is_one_event_whatever_request_fails(start, name):
    """The process dies at each of its requests, or the answer is lost."""
    assert sum(1 for _ in explore(Counted("s3", start, (name,)).play, faults=(Crash, LostAnswer))) > 4
