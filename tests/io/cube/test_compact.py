"""Compacting cubes: queries give the same, whatever is written meanwhile."""

from unittest import mock

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kartothek_cube.api import cube as api
from kartothek_cube.core.errors import ConcurrentWriteError, UnknownOutcomeError
from kartothek_cube.io.eager import build_dataset_indices, update_dataset_from_dataframes
from kartothek_cube.io_components import runtime
from kartothek_cube.io_components.job import delete_on_failure
from kartothek_cube.io_components.write import rewrite, write_commit
from kartothek_cube.io_components.write.rewrite import CompactCube
from tests.support import cubes
from tests.support.cubes import CUBE, build, file_contents, file_keys, frame, memory, rows, snapshot

SEED = frame(x=[0, 1, 2], p=[0, 0, 1], v1=[10, 11, 12])
XY = api.Cube(["x", "y"], ["p"], "cube", index_columns=["i1"])


@pytest.fixture
def store():
    """Two partitions; the first one has three files, one row of which is hidden twice."""
    store = memory()
    build(lambda: store, seed=SEED)
    api.append_to_cube(frame(x=[1, 3], p=[0, 0], v1=[21, 23]), CUBE, store)
    api.append_to_cube(frame(x=[1], p=[0], v1=[31]), CUBE, store)
    return store


def test_files_become_one(store, driver):
    before = api.query_cube(CUBE, store)
    counts = driver.compact_cube(cube=CUBE, store=lambda: store)
    found = file_contents(lambda: store, "cube++seed")
    assert found == [{"x": [2], "v1": [12]}, {"x": [0, 1, 3], "v1": [10, 31, 23]}]
    found = {key: value for key, value in counts["seed"].items() if "bytes" not in key}
    assert found == {"partitions": 1, "files_before": 3, "files_after": 1, "rows_before": 5, "rows_after": 3}
    assert counts["seed"]["bytes_after"] < counts["seed"]["bytes_before"]
    pd.testing.assert_frame_equal(api.query_cube(CUBE, store)[0], before[0])
    cubes.check_integrity(lambda: store)
    assert api.verify_cube(CUBE, store).ok


@pytest.mark.parametrize("block_bytes", [1, 1 << 24])
def test_partitions_of_a_task(store, monkeypatch, block_bytes):
    """They are read one by one or at once; one of them stays as it is."""
    monkeypatch.setattr(rewrite, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(runtime, "available_cores", lambda: 1)
    api.update_schema(CUBE, store, add={"n": "int64"})
    api.append_to_cube(frame(x=[2, 4, 5], p=[1, 3, 3], v1=[42, 52, 54], n=1), CUBE, store)
    expected = rows(api.query_cube(CUBE, store))
    counts = api.compact_cube(CUBE, store, min_files=1)["seed"]
    assert file_contents(lambda: store, "cube++seed") == [
        {"x": [0, 1, 3], "v1": [10, 31, 23], "n": [None] * 3},
        {"x": [2], "v1": [42], "n": [1]},
        {"x": [4, 5], "v1": [52, 54], "n": [1, 1]},
    ]
    found = {key: value for key, value in counts.items() if "bytes" not in key}
    assert found == {"partitions": 3, "files_before": 6, "files_after": 3, "rows_before": 9, "rows_after": 6}
    assert rows(api.query_cube(CUBE, store)) == expected
    assert api.verify_cube(CUBE, store).ok


def test_only_old_files_are_garbage_and_then_nothing_is_to_do(store):
    expected = rows(api.query_cube(CUBE, store))
    for step, n_files in ((api.compact_cube, 5), (api.cleanup_cube, 2)):
        step(CUBE, store)
        assert len([key for key in cubes.keys(lambda: store) if "/table/p=" in key]) == n_files
    assert rows(api.query_cube(CUBE, store)) == expected
    with cubes.unchanged(lambda: store):
        assert api.compact_cube(CUBE, store)["seed"]["partitions"] == 0


def test_a_single_file_that_has_a_cell_twice_is_written_again(store):
    # a dataset whose schema has changed has partitions of one file that are written again
    api.update_schema(CUBE, store, add={"n": "int64"})
    added = frame(x=[7, 7], p=[5, 5], v1=[1, 2], n=[3, 3])
    update_dataset_from_dataframes([added], lambda: store, "cube++seed")
    counts = api.compact_cube(CUBE, store, conditions=api.C("p") == 5, min_files=1)["seed"]
    assert (counts["rows_before"], counts["rows_after"]) == (2, 1)
    assert rows(api.query_cube(CUBE, store, api.C("p") == 5)) == {"n": [3], "p": [5], "v1": [2], "x": [7]}


CHOICES = [({"conditions": api.C("p") == p}, files) for p, files in ((1, 4), (0, 2))]
CHOICES += [({"min_files": number}, files) for number, files in ((4, 4), (3, 2))]
CHOICES += [({"ktk_cube_dataset_ids": ids}, files) for ids, files in (([], 4), ("seed", 2))]


@pytest.mark.parametrize("choice, files", CHOICES)
def test_choice(store, choice, files):
    api.compact_cube(CUBE, store, **choice)
    assert len(file_keys(lambda: store, "cube++seed")) == files


@pytest.mark.parametrize(
    "choice, text",
    [
        ({"conditions": api.C("x") == 1}, "Can only compact partitions .* partition columns .*: x$"),
        ({"ktk_cube_dataset_ids": "sed"}, "unknown dataset sed; did you mean seed"),
        ({"min_files": 0}, "1 or more"),
        ({"min_files": "2"}, "1 or more, got '2'"),
    ],
)
def test_illegal_choice(store, choice, text):
    with pytest.raises(ValueError, match=text):
        api.compact_cube(CUBE, store, **choice)


def test_files_by_keys_that_the_cube_does_not_know():
    """A cell in several of these files is one cell, and files without hidden cells stay."""
    store = memory()
    enrich = frame(x=[0, 1], p=[0, 0], a=[0, 1], v2=[1, 2])
    build(lambda: store, partition_on={"enrich": ["p", "a"]}, seed=SEED, enrich=enrich)
    before = file_keys(lambda: store, "cube++enrich")
    assert api.compact_cube(CUBE, store)["enrich"]["files_after"] == 2
    assert file_keys(lambda: store, "cube++enrich") == before
    api.append_to_cube({"enrich": frame(x=[0], p=[0], a=[1], v2=[3])}, CUBE, store)
    expected = rows(api.query_cube(CUBE, store))
    assert api.compact_cube(CUBE, store)["enrich"]["files_after"] == 1
    assert file_contents(lambda: store, "cube++enrich")[0]["v2"] == [3, 2]
    assert rows(api.query_cube(CUBE, store)) == expected


def test_extension_types_stay():
    store = memory()
    df = frame(x=[0], p=[0], v1=pd.array(["a"], dtype="string"))
    build(lambda: store, seed=df)
    api.append_to_cube(df.assign(x=1), CUBE, store)
    before = api.query_cube(CUBE, store)[0]
    api.compact_cube(CUBE, store)
    pd.testing.assert_frame_equal(api.query_cube(CUBE, store)[0], before)


@pytest.mark.parametrize("null", [None, float("nan")], ids=repr)
def test_columns_without_type_in_a_file(null):
    store = memory()
    build(lambda: store, seed=frame(x=[0], p=[0], v1=pd.Series([None], dtype=object)))
    api.append_to_cube(frame(x=[1], p=[0], v1=["a"]), CUBE, store)
    api.append_to_cube(frame(x=[2], p=[0], v1=pd.Series([None], dtype=object)), CUBE, store)
    expected = rows(api.query_cube(CUBE, store))
    api.compact_cube(CUBE, store)
    assert rows(api.query_cube(CUBE, store)) == expected
    assert api.verify_cube(CUBE, store).ok


# others at work ---------------------------------------------------------------------------------------------


def planned(store):
    job = CompactCube(CUBE, store).job()
    return job, [job.run(job.context, task) for task in job.tasks]


def test_appends_meanwhile_stay_newer(store):
    job, results = planned(store)
    api.append_to_cube(frame(x=[0, 2], p=[0, 1], v1=[40, 42]), CUBE, store)
    expected = rows(api.query_cube(CUBE, store))
    assert expected["v1"] == [40, 31, 42, 23]
    job.finish(results)
    assert rows(api.query_cube(CUBE, store)) == expected
    assert len(file_keys(lambda: store, "cube++seed")) == 4
    api.compact_cube(CUBE, store)
    assert rows(api.query_cube(CUBE, store)) == expected


def test_columns_that_come_meanwhile(store):
    job, results = planned(store)
    api.append_to_cube(frame(x=[2], p=[1], v1=[42], w=[7]), CUBE, store, schema_mode="merge")
    api.update_schema(CUBE, store, add={"z": "int64"}, defaults={"z": 5})
    expected = rows(api.query_cube(CUBE, store))
    assert set(expected["z"]) == {5}
    job.finish(results)
    assert rows(api.query_cube(CUBE, store)) == expected
    assert api.verify_cube(CUBE, store).ok
    api.compact_cube(CUBE, store, min_files=1)
    assert rows(api.query_cube(CUBE, store)) == expected


@pytest.mark.parametrize(
    "change", [{"drop": "v1"}, {"rename": {"v1": "w"}}, {"widen": {"v1": "float64"}}], ids=str
)
def test_columns_that_change_meanwhile(store, change):
    job, results = planned(store)
    api.update_schema(CUBE, store, **change)
    before = rows(api.query_cube(CUBE, store))
    with pytest.raises(ConcurrentWriteError, match=r"schema was changed.*Repeat it"):
        job.finish(results)
    assert rows(api.query_cube(CUBE, store)) == before


def test_columns_that_a_rollback_removes_meanwhile(store):
    api.keep_cube_history(CUBE, store, 5)
    version = api.list_cube_history(CUBE, store)[-1].version
    api.update_schema(CUBE, store, add={"z": "int64"})
    job, results = planned(store)
    api.rollback_cube(CUBE, store, version)
    with pytest.raises(ConcurrentWriteError, match="Gone: z"):
        job.finish(results)
    assert "z" not in rows(api.query_cube(CUBE, store))


def test_a_repeated_commit_leaves_the_files_of_older_states(store):
    job, results = planned(store)
    job.finish(results)
    versions = [state.version for state in api.list_cube_history(CUBE, store)]
    expected = [rows(api.query_cube(CUBE, store, as_of=version)) for version in versions]
    api.update_cube(SEED[:2], CUBE, store, api.C("p") == 0, ["seed"])
    with pytest.raises(ConcurrentWriteError):
        job.finish(results)
    assert [rows(api.query_cube(CUBE, store, as_of=version)) for version in versions] == expected


def test_an_index_that_comes_meanwhile(store):
    job, results = planned(store)
    build_dataset_indices(store, "cube++seed", ["v1"])
    job.finish(results)
    cubes.check_integrity(lambda: store)
    assert api.verify_cube(CUBE, store).ok


CONFLICTS = {
    "remove": lambda s: api.remove_partitions(CUBE, s, api.C("p") == 0),
    "update": lambda s: api.update_cube(SEED[:2], CUBE, s, api.C("p") == 0, ["seed"]),
    "overwrite": lambda s: api.build_cube(SEED, CUBE, s, overwrite=True),
    "compact": lambda s: api.compact_cube(CUBE, s),
}


@pytest.mark.parametrize("conflict", CONFLICTS.values(), ids=CONFLICTS.keys())
def test_inputs_that_are_gone(store, conflict):
    job, results = planned(store)
    conflict(store)
    before = snapshot(lambda: store)
    ((result,),) = results
    with pytest.raises(ConcurrentWriteError, match=r"p=0/.*Repeat it"):
        job.finish(results)
    written = result.written[0].partitions().files["table"].to_pylist()
    assert written
    assert snapshot(lambda: store) == {key: data for key, data in before.items() if key not in written}


UNKNOWN = UnknownOutcomeError("cube++seed", "gone")


@pytest.mark.parametrize(
    "error, is_kept", [(OSError("gone"), False), (UNKNOWN, True), (KeyboardInterrupt(), True)]
)
def test_files_stay_if_the_commit_may_have_succeeded(store, monkeypatch, error, is_kept):
    """A request without an answer may be done after the header was read: then its files are needed."""
    job, ((result,),) = planned(store)
    monkeypatch.setattr(write_commit, "commit_datasets", mock.Mock(side_effect=error))
    with pytest.raises(type(error)):
        job.finish([[result]])
    (written,) = result.written[0].partitions().files["table"].to_pylist()
    assert (written in store) == is_kept


def test_the_first_of_several_failures_is_raised():
    delete = mock.Mock(side_effect=OSError("second"))
    with pytest.raises(ValueError, match="first"), delete_on_failure(delete):
        raise ValueError("first")
    delete.assert_called_once()


def test_finishing_twice_changes_nothing(store):
    job, results = planned(store)
    job.finish(results)
    with cubes.unchanged(lambda: store):
        job.finish(results)


def test_removal_elsewhere_is_no_conflict(store):
    job, results = planned(store)
    api.remove_partitions(CUBE, store, api.C("p") == 1)
    job.finish(results)
    assert rows(api.query_cube(CUBE, store))["v1"] == [10, 31, 23]


# the oracle is the query ------------------------------------------------------------------------------------

CELL = st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 1))
CELLS = st.lists(CELL, min_size=1, max_size=8, unique=True)
WRITES = st.lists(st.tuples(CELLS, CELLS, st.integers(0, 99)), min_size=1, max_size=4)


def frames(seed_cells, other_cells, value):
    seed = pd.DataFrame(seed_cells, columns=["x", "y", "p"])
    other = pd.DataFrame(other_cells, columns=["x", "y", "p"])
    numbers = list(range(value, value + 8))
    one_dimension = other.drop_duplicates("x")[["x"]]
    return {
        "seed": seed.assign(v1=numbers[: len(seed)], i1=[n % 3 for n in numbers[: len(seed)]]),
        "enrich": other.assign(v2=[float(n) for n in numbers[: len(other)]]),
        "flat": one_dimension.assign(v3=[f"{n}" for n in numbers[: len(one_dimension)]]),
    }


QUERIES = [
    {},
    {"conditions": api.C("i1") == 1},
    {"conditions": api.C("v2") > 50.0},
    {"conditions": api.C("v3") != "7", "payload_columns": ["v1"]},
    {"partition_by": "i1"},
    {"dimension_columns": ["y"], "payload_columns": []},
]


SLOW = pytest.mark.slow("25 random cubes, queried before and after")


@pytest.mark.parametrize("n_examples", [5, pytest.param(25, marks=SLOW)])
def test_queries_give_the_same(n_examples):
    with_settings = settings(max_examples=n_examples, suppress_health_check=[HealthCheck.too_slow])
    with_settings(given(writes=WRITES)(check_queries))()


def check_queries(writes):
    store = memory()
    first, *others = [frames(*write) for write in writes]
    api.build_cube(first, XY, store, partition_on={"flat": []})
    for data in others:
        api.append_to_cube(data, XY, store)
    before = [api.query_cube(XY, store, **query) for query in QUERIES]
    api.compact_cube(XY, store)
    api.cleanup_cube(XY, store)
    for query, expected in zip(QUERIES, before, strict=True):
        found = api.query_cube(XY, store, **query)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            pd.testing.assert_frame_equal(a, b)
    # the drawn cells of the seed may repeat in another partition
    assert {problem.kind for problem in api.verify_cube(XY, store).problems} <= {"duplicate-cells"}
    assert len(file_keys(lambda: store, "cube++flat")) == 1
