"""What has changed since a state of a cube, and datasets that are computed again where their inputs have."""

import json
from datetime import datetime
from functools import partial
from urllib.parse import urlsplit
from uuid import UUID

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.api import cube as api
from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.errors import ConcurrentWriteError, SchemaConflictError, StateNotFoundError
from kartothek_cube.io.eager import build_dataset_indices
from kartothek_cube.io_components import computed_dataset
from kartothek_cube.io_components.maintenance.cube_history import COMPUTED_FROM
from tests.support import cubes
from tests.support.cubes import CUBE, frame, memory, rows, snapshot

SEED = frame(x=[0, 1, 2], p=[0, 1, 2], v1=[10, 11, 12])
EXTRA = frame(x=[0, 1, 2], p=[0, 1, 2], v2=[20, 21, 22])


@pytest.fixture
def store():
    store = memory()
    api.build_cube({"seed": SEED, "extra": EXTRA}, CUBE, store)
    return store


def token(store):
    return api.list_cube_changes(CUBE, store).token


def changes(store, since, **arguments):
    frame = api.list_cube_changes(CUBE, store, since, **arguments).partitions
    return {(row.dataset, row.p): row.change for row in frame.itertuples()}


# -- changes -------------------------------------------------------------------------------------------------


def test_each_kind_of_change_is_told(store):
    assert changes(store, None) == {(name, p): "added" for name in ("extra", "seed") for p in (0, 1, 2)}
    before, state = token(store), api.list_cube_history(CUBE, store)[-1]
    api.append_to_cube({"extra": frame(x=[5], p=[1], v2=[5])}, CUBE, store)
    api.append_to_cube(frame(x=[9], p=[9], v1=[9]), CUBE, store)
    api.remove_partitions(CUBE, store, C("p") == 2, ["seed"])
    expected = {("extra", 1): "changed", ("seed", 9): "added", ("seed", 2): "removed"}
    for since in (before, state.version, state.time, str(state.time)):
        assert changes(store, since) == expected
    assert changes(store, before, datasets="seed") == {k: v for k, v in expected.items() if k[0] == "seed"}
    before = token(store)
    assert changes(store, before) == {}
    api.extend_cube({"more": frame(x=[1], p=[1], v3=[1])}, CUBE, store)
    assert changes(store, before) == {("more", 1): "added"}
    assert api.query_cube_df(CUBE, store, changed_since=before)["p"].tolist() == [1]


def test_a_compaction_is_no_change_whatever_was_done_before_and_after(store):
    api.append_to_cube({"seed": SEED, "extra": EXTRA}, CUBE, store)
    before = token(store)
    api.compact_cube(CUBE, store)
    api.compact_cube(CUBE, store, min_files=1)
    assert changes(store, before) == {}
    api.append_to_cube(SEED.query("p == 1"), CUBE, store)
    assert changes(store, before) == {("seed", 1): "changed"}
    api.compact_cube(CUBE, store)
    assert changes(store, before) == {("seed", 1): "changed"}
    compacted = token(store)
    api.append_to_cube(SEED, CUBE, store)
    api.compact_cube(CUBE, store)
    assert len(changes(store, compacted)) == 3


@pytest.mark.parametrize(
    "update, n_changed",
    [
        ({"add": {"n": "int64"}, "defaults": {"n": 7}}, 3),
        ({"drop": "v1"}, 3),
        ({"rename": {"v1": "n"}}, 3),
        ({"add": {"n": "int64"}}, 0),
        ({"widen": {"v1": "float64"}}, 0),
    ],
    ids=str,
)
def test_columns_that_are_dropped_renamed_or_have_a_default_change_all_rows(store, update, n_changed):
    before, before_update = token(store), api.list_cube_history(CUBE, store)[-1].version
    api.update_schema(CUBE, store, **update)
    assert changes(store, before) == {("seed", p): "changed" for p in range(n_changed)}
    updated = token(store)
    api.compact_cube(CUBE, store, min_files=1)
    assert changes(store, updated) == {}
    api.rollback_cube(CUBE, store, before_update)
    assert changes(store, before) == {}


def test_the_earlier_state_may_have_had_other_indices_and_partition_keys(store):
    api.extend_cube({"extra": EXTRA[["x", "v2"]]}, CUBE, store, overwrite=True, partition_on={"extra": []})
    before = token(store)
    build_dataset_indices(lambda: store, "cube++seed", ["v1"])
    assert len(api.list_cube_changes(CUBE.copy(index_columns=["v1"]), store, before)) == 0
    api.extend_cube({"extra": EXTRA}, CUBE, store, overwrite=True)
    assert list(api.list_cube_changes(CUBE, store, before).partitions["change"]) == ["changed"]
    assert len(api.query_cube_df(CUBE, store, changed_since=before)) == 3


def test_a_query_reads_partitions_in_which_a_dataset_of_the_query_has_changed(store):
    before = token(store)
    api.append_to_cube({"extra": frame(x=[1], p=[1], v2=[99])}, CUBE, store)
    expected = {"p": [1], "v1": [11], "v2": [99], "x": [1]}
    assert rows(api.query_cube(CUBE, store, changed_since=before)) == expected
    # no row of the seed has changed
    for left_out in ({"payload_columns": ["v1"]}, {"datasets": ["seed"]}):
        assert api.query_cube(CUBE, store, changed_since=before, **left_out) == []
    assert api.query_cube_df(CUBE, store, changed_since=before, columns=["v2"])["v2"].tolist() == [99]
    after = token(store)
    api.append_to_cube({"extra": frame(x=[1, 2], p=[1, 2], v2=[1, 2])}, CUBE, store)
    assert rows(api.query_cube(CUBE, store, changed_since=before, as_of=after)) == expected


def test_datasets_with_fewer_partition_columns_change_all_partitions_that_they_concern():
    cube, store = api.Cube(["x"], ["p", "q"], "cube"), memory()
    seed = frame(x=[0, 1, 2, 3], p=[0, 0, 1, 1], q=[0, 1, 0, 1])
    data = {"seed": seed, "by_p": frame(x=[0, 2], p=[0, 1], a=[1, 2]), "all": frame(x=[3], b=[3])}
    api.build_cube(data, cube, store, partition_on={"by_p": ["p"], "all": []})
    before = api.list_cube_changes(cube, store).token
    api.append_to_cube({"by_p": frame(x=[3], p=[1], a=[7])}, cube, store)
    assert api.query_cube_df(cube, store, changed_since=before)["x"].tolist() == [2, 3]
    changed = api.list_cube_changes(cube, store, before).partitions
    assert changed[["dataset", "p", "change"]].to_dict("records") == [
        {"dataset": "by_p", "p": 1, "change": "changed"}
    ]
    assert changed["q"].isna().all()
    api.append_to_cube({"all": frame(x=[1], b=[1])}, cube, store)
    assert len(api.query_cube_df(cube, store, changed_since=before)) == 4


def test_keys_of_changed_partitions_are_exact_beside_datasets_without_them():
    store, large = memory(), 2**53 + 1
    data = {"seed": frame(x=[0], p=[large]), "all": frame(x=[0], b=[3])}
    api.build_cube(data, CUBE, store, partition_on={"all": []})
    assert api.list_cube_changes(CUBE, store).partitions["p"].dropna().tolist() == [large]


@pytest.mark.parametrize(
    "forget", [lambda s: api.cleanup_cube(CUBE, s), lambda s: api.keep_cube_history(CUBE, s, 0)]
)
def test_a_state_that_is_no_longer_kept_is_an_error_and_no_empty_answer(store, forget):
    before = token(store)
    api.append_to_cube(SEED, CUBE, store)
    api.append_to_cube(EXTRA.assign(v1=0)[["x", "p", "v1"]], CUBE, store)
    forget(store)
    api.append_to_cube(SEED, CUBE, store)
    for ask in (api.list_cube_changes, lambda *args: api.query_cube(CUBE, store, changed_since=before)):
        with pytest.raises(StateNotFoundError, match="no state as of version 1"):
            ask(CUBE, store, before)


@pytest.mark.parametrize("deleted", ["extra", "seed"])
def test_a_dataset_that_was_deleted_is_a_gap_also_if_it_was_built_again(store, deleted):
    before = token(store)
    api.delete_cube(CUBE, store, None if deleted == "seed" else [deleted])
    if deleted == "seed":
        api.build_cube({"seed": SEED, "extra": EXTRA}, CUBE, store)
    with pytest.raises(StateNotFoundError):
        api.list_cube_changes(CUBE, store, before)


def test_a_dataset_that_was_deleted_is_no_gap_for_who_asks_for_others(store):
    before = token(store)
    api.delete_cube(CUBE, store, ["extra"])
    api.append_to_cube(frame(x=[5], p=[1], v1=[5]), CUBE, store)
    assert changes(store, before, datasets=["seed"]) == {("seed", 1): "changed"}
    (df,) = api.query_cube(CUBE, store, datasets=["seed"], changed_since=before)
    assert df["x"].tolist() == [1, 5]


WRITES = {
    "append": lambda s, p, v: api.append_to_cube(frame(x=[p], p=[p], v1=[v]), CUBE, s),
    "append extra": lambda s, p, v: api.append_to_cube({"extra": frame(x=[p], p=[p], v2=[v])}, CUBE, s),
    "update": lambda s, p, v: api.update_cube(frame(x=[v], p=[p], v1=[v]), CUBE, s, C("p") == p, ["seed"]),
    "merge": lambda s, p, v: api.merge_into_cube(frame(x=[p], p=[p], v1=[v]), CUBE, s),
    "remove": lambda s, p, v: api.remove_partitions(CUBE, s, C("p") == p, ["seed"]),
    "compact": lambda s, p, v: api.compact_cube(CUBE, s, min_files=1 + v % 2),
}
STEPS = st.lists(st.tuples(st.sampled_from(sorted(WRITES)), st.integers(0, 3), st.integers(0, 9)), max_size=6)


def by_partition(df):
    return {p: part.reset_index(drop=True) for p, part in df.groupby("p")}


@pytest.mark.slow("many random writes")
@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=3))
def test_the_replay_of_all_changes_gives_the_newest_state(batches):
    """A reader that replaces the partitions that it is told, and no others, has the rows of the cube."""
    store, last, replica = memory(), None, {}
    api.build_cube({"seed": SEED, "extra": EXTRA}, CUBE, store)
    for steps in [[], *batches]:
        for name, p, v in steps:
            WRITES[name](store, p, v)
        told = api.list_cube_changes(CUBE, store, last)
        before = replica
        new = api.query_cube_df(CUBE, store, changed_since=last, as_of=told.token)
        changed = {*told.partitions["p"]}
        replica = {p: part for p, part in before.items() if p not in changed} | by_partition(new)
        current = by_partition(api.query_cube_df(CUBE, store))
        assert replica.keys() == current.keys()
        for p, part in current.items():
            pd.testing.assert_frame_equal(replica[p], part, check_dtype=False)
        if all(name == "compact" for name, _, _ in steps) and last is not None:
            assert not changed
        last = told.token


NO_TOKEN = ("seed@3", "@", "seed@../../x", "seed@0000000001-20260101T000000000000Z-xyz", "seed@yesterday")
NO_STATES = [(text, ValueError, "no token of a state") for text in NO_TOKEN]
NO_VERSIONS = [
    ("2020", ValueError),
    (b"", TypeError),
    ({"seed": "2020"}, ValueError),
    ({"seed": None}, TypeError),
]
NO_STATES += [(since, error, "changed_since is a version") for since, error in NO_VERSIONS]


@pytest.mark.parametrize("since, error, text", NO_STATES)
def test_what_names_no_state_is_refused(store, since, error, text):
    """Also by a first computation."""
    for read in (api.query_cube, api.list_cube_changes, lambda *args, **more: compute(store, **more)):
        with cubes.refuses(lambda: store, error, text):
            read(CUBE, store, changed_since=since)


@pytest.mark.parametrize(
    "since, error, text",
    [({"sead": 1}, ValueError, "dataset: unknown dataset sead"), (9, StateNotFoundError, "no state as of 9")],
)
def test_states_that_do_not_exist_are_refused(store, since, error, text):
    """Also by a first computation."""
    for read in (partial(api.query_cube, CUBE), compute):
        with cubes.refuses(lambda: store, error, text):
            read(store, changed_since=since)


# -- computed datasets ---------------------------------------------------------------------------------------

CALLS: list[int] = []


def double(df):
    CALLS.append(int(df["p"].iloc[0]))
    return df[["x", "p"]].assign(twice=2 * df["v1"])


def one_type_per_partition(df):
    return df[["x", "p"]].assign(n=1 if df["p"].iloc[0] else 0.5)


def compute(store, **arguments):
    CALLS.clear()
    return api.compute_dataset(double, CUBE, store, "doubled", **arguments)


def doubled(store):
    found = api.query_cube_df(CUBE, store)
    return dict(zip(found["x"], found["twice"], strict=True))


@pytest.fixture(params=[1, 512], ids=["one task", "a task per partition"])
def tasks(request, monkeypatch):
    monkeypatch.setattr(computed_dataset, "_TASKS", request.param)


@pytest.mark.usefixtures("tasks")
def test_only_changed_partitions_are_computed_again(store):
    result = compute(store)
    assert (sorted(CALLS), result.n_partitions, result.rows, result.files_replaced) == ([0, 1, 2], 3, 3, 0)
    api.append_to_cube(frame(x=[1, 7], p=[1, 1], v1=[50, 70]), CUBE, store)
    api.remove_partitions(CUBE, store, C("p") == 2, ["seed", "extra"])
    result = compute(store)
    assert (CALLS, result.n_partitions, result.rows, result.files_replaced) == ([1], 1, 2, 2)
    assert doubled(store) == {0: 20, 1: 100, 7: 140}
    assert sorted(api.query_cube_df(CUBE, store, datasets=["seed", "doubled"])["x"]) == [0, 1, 7]


@pytest.mark.usefixtures("tasks")
def test_without_a_change_nothing_is_committed(store):
    compute(store)
    api.append_to_cube(SEED, CUBE, store)
    compute(store)
    api.compact_cube(CUBE, store)
    compute(store)
    assert CALLS == []
    header = snapshot(lambda: store)
    compute(store)
    assert CALLS == []
    assert snapshot(lambda: store) == header


def test_datasets_that_the_function_does_not_get_do_not_count(store):
    compute(store, payload_columns=["v1"])
    api.append_to_cube({"extra": EXTRA}, CUBE, store)
    compute(store, payload_columns=["v1"])
    assert CALLS == []
    compute(store, datasets=["seed"], changed_since=None)
    assert sorted(CALLS) == [0, 1, 2]


def test_a_rollback_of_the_cube_takes_the_computed_rows_along(store):
    compute(store)
    state = api.list_cube_history(CUBE, store)[-1].version
    api.append_to_cube(frame(x=[1], p=[1], v1=[50]), CUBE, store)
    compute(store)
    api.rollback_cube(CUBE, store, state)
    assert doubled(store) == {0: 20, 1: 22, 2: 24}
    compute(store)
    assert doubled(store) == {0: 20, 1: 22, 2: 24}


def test_a_hidden_dataset_that_is_computed_again_follows_from_states_that_a_cleanup_keeps(store):
    before = api.list_cube_history(CUBE, store)[-1].version
    compute(store)
    api.rollback_cube(CUBE, store, before)
    compute(store)
    assert sorted(CALLS) == [0, 1, 2]
    api.cleanup_cube(CUBE, store)
    compute(store)
    assert CALLS == []
    assert doubled(store) == {0: 20, 1: 22, 2: 24}


def test_after_a_cleanup_the_gap_is_an_error_with_its_remedy(store):
    compute(store)
    api.append_to_cube(SEED, CUBE, store)
    api.cleanup_cube(CUBE, store)
    with pytest.raises(StateNotFoundError, match=r"compute everything once, by changed_since=None"):
        compute(store)
    compute(store, changed_since=None)
    assert doubled(store) == {0: 20, 1: 22, 2: 24}


@pytest.mark.parametrize("is_first", [True, False])
def test_another_computation_in_the_meantime_is_a_conflict(store, is_first):
    if not is_first:
        compute(store)
        api.append_to_cube(SEED, CUBE, store)

    def overtaken(df):
        if not CALLS:
            compute(store)
        return double(df)

    CALLS.clear()
    with pytest.raises(ConcurrentWriteError, match=r"has (created|computed) it since"):
        api.compute_dataset(overtaken, CUBE, store, "doubled")
    assert doubled(store) == {0: 20, 1: 22, 2: 24}


@pytest.mark.usefixtures("tasks")
def test_a_function_that_fails_leaves_no_file(store):
    before = set(store.keys())

    def fail(df):
        if df["p"].iloc[0] == 2:
            raise ZeroDivisionError
        return double(df)

    with pytest.raises(ZeroDivisionError) as caught:
        api.compute_dataset(fail, CUBE, store, "doubled")
    assert caught.value.__notes__ == ["Function fail failed for p=2"]
    assert set(store.keys()) == before


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize(
    "function, into, error, message",
    [
        (double, "seed", ValueError, "the seed"),
        (double, "a b", ValueError, "dataset id: 'a b' cannot be"),
        ("double", "doubled", TypeError, "function takes a DataFrame"),
        (lambda df: 3, "doubled", TypeError, "of pandas or None, but it returned builtins.int"),
        (lambda df: double(df).assign(p=8), "doubled", ValueError, "rows of another one: {'p': 8}"),
        (lambda df: df, "doubled", ValueError, "v1"),
        (one_type_per_partition, "counts", SchemaConflictError, "int64"),
    ],
)
def test_mistakes_are_errors_that_change_nothing(store, function, into, error, message):
    with cubes.refuses(lambda: store, error, message):
        api.compute_dataset(function, CUBE, store, into)


def test_the_name_of_a_computed_dataset_may_be_bytes(store):
    api.compute_dataset(double, CUBE, store, b"doubled")
    own = doubled(store)
    assert own
    with cubes.refuses(
        lambda: store, ValueError, "of dataset 'doubled', which is computed: its function gets"
    ):
        api.compute_dataset(double, CUBE, store, "doubled", payload_columns=["v1", "twice"])


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("transform", [api.month("day"), api.day("day"), api.truncate(2, "x")], ids=str)
def test_rows_of_another_derived_partition_are_refused(transform):
    """The next computation of that partition would replace them."""
    cube, store = api.Cube(["x", "day"], [transform], "cube"), memory()
    days = pd.to_datetime(["2024-01-31", "2024-02-01", "2024-02-29"])
    api.build_cube(pd.DataFrame({"x": [0, 2, 4], "day": days, "v": [1, 2, 3]}), cube, store)

    def move(df, months, places):
        rows = df[["x", "day"]].assign(w=df["v"])
        return rows.assign(day=rows["day"] + pd.DateOffset(months=months), x=rows["x"] + places)

    with pytest.raises(ValueError, match=f"returned rows of another one: {{'{transform.name}'"):
        api.compute_dataset(lambda df: move(df, 1, 2), cube, store, "later")
    assert set(api.discover_datasets_unchecked("cube", store)) == {"seed"}
    api.compute_dataset(lambda df: move(df, 0, 0), cube, store, "same")
    assert api.query_cube_df(cube, store)["w"].tolist() == [1, 2, 3]


@pytest.mark.usefixtures("tasks")
def test_a_function_may_return_no_rows(store):
    api.compute_dataset(lambda df: double(df) if df["p"].iloc[0] else None, CUBE, store, "doubled")
    assert doubled(store) == pytest.approx({0: float("nan"), 1: 22, 2: 24}, nan_ok=True)


# -- lineage -------------------------------------------------------------------------------------------------


def test_lineage_names_the_computation_and_tells_what_is_stale(store):
    api.append_to_cube(SEED, CUBE, store)
    seed = api.list_cube_history(CUBE, store)["seed"][-1].version
    with api.annotate_operations(job="double", run=1):
        compute(store)
    assert api.list_cube_history(CUBE, store)[-1].inputs == {"extra": 1, "seed": seed}
    api.append_to_cube({"doubled": frame(x=[0], p=[0], twice=[20])}, CUBE, store)
    api.compact_cube(CUBE, store)
    entry = api.lineage_cube(CUBE, store)["doubled"]
    # a compaction of the inputs is no change, and one of the dataset does not hide the job
    assert (entry.operation, entry.job) == ("compute", {"name": "double", "run": 1})
    assert (entry.inputs, entry.changed_inputs, entry.is_stale) == ({"extra": 1, "seed": seed}, (), False)
    version = api.lineage_cube(CUBE, store)["doubled"].version
    api.append_to_cube({"extra": EXTRA}, CUBE, store)
    assert api.lineage_cube(CUBE, store)["doubled"].changed_inputs == ("extra",)
    api.cleanup_cube(CUBE, store)
    assert api.lineage_cube(CUBE, store)["doubled"].changed_inputs == ("extra", "seed")
    assert api.lineage_cube(CUBE, store)["doubled"].version == version
    api.delete_cube(CUBE, store, datasets=["extra"])
    assert "extra" in api.lineage_cube(CUBE, store)["doubled"].changed_inputs
    assert not api.lineage_cube(CUBE, store)["seed"].is_stale


@pytest.mark.parametrize("value", ["seed@1", "@", 5, ["seed@"], None, "x"])
def test_lineage_of_metadata_of_strangers_is_empty(store, value):
    api.append_to_cube({"extra": EXTRA}, CUBE, store, metadata={"extra": {COMPUTED_FROM: value}})
    entry = api.lineage_cube(CUBE, store)["extra"]
    assert (entry.inputs, entry.is_stale, entry.status) == ({}, False, "")


def facets(events):
    for event in events:
        yield from event["run"]["facets"].values()
        for dataset in [*event["inputs"], *event["outputs"]]:
            yield from dataset["facets"].values()


def test_lineage_refuses_unknown_datasets_and_a_namespace_that_is_no_text(store):
    lineage = api.lineage_cube(CUBE, store)
    with pytest.raises(KeyError, match="unknown dataset sed; did you mean seed"):
        lineage["sed"]
    with pytest.raises(TypeError, match="namespace is a name"):
        lineage.to_openlineage(5)


def test_events_of_openlineage_have_what_its_specification_requires(store):
    """RunEvent of https://openlineage.io/spec/2-0-2/OpenLineage.json, and the facets that are used."""
    with api.annotate_operations("why", job="double"):
        compute(store)
    lineage = api.lineage_cube(CUBE, store)
    events = lineage.to_openlineage("memory")
    assert events == json.loads(json.dumps(events)) == api.lineage_cube(CUBE, store).to_openlineage("memory")
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"] * 3
    for event in events:
        found = set(event)
        assert found == {"eventType", "eventTime", "producer", "schemaURL", "run", "job", "inputs", "outputs"}
        assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
        assert UUID(event["run"]["runId"])
        for named in (event["job"], *event["inputs"], *event["outputs"]):
            assert named["namespace"] == "memory"
            assert named["name"]
    for facet in facets(events):
        assert {"_producer", "_schemaURL"} < set(facet)
        assert all(urlsplit(facet[name]).scheme == "https" for name in ("_producer", "_schemaURL"))
    event = next(event for event in events if event["outputs"][0]["name"] == "cube++doubled")
    (output,) = event["outputs"]
    assert event["job"]["name"] == "double"
    assert {"name": "twice", "type": "int64"} in output["facets"]["schema"]["fields"]
    versions = {i["name"]: i["facets"]["version"]["datasetVersion"] for i in event["inputs"]}
    assert versions == {"cube++extra": "1", "cube++seed": "1"}
    annotations = event["run"]["facets"]["kartothekCube_annotations"]
    assert (annotations["message"], annotations["job"]) == ("why", {"name": "double"})
    assert len({event["run"]["runId"] for event in events}) == 3
