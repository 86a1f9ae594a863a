"""Compacting cubes: queries give the same, whatever is written meanwhile."""

from unittest import mock

import numpy as np
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
CHOICES += [({"min_files": number}, files) for number, files in ((4, 4), (np.int64(3), 2))]
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
        ({"min_files": True}, "1 or more, got True"),
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


@pytest.mark.parametrize(
    "columns",
    [
        [pd.array(["a"], dtype="string")] * 3,
        *(
            [pd.Series([null], dtype=object), ["a"], pd.Series([null], dtype=object)]
            for null in (None, np.nan)
        ),
    ],
    ids=["extension type", "None", "NaN"],
)
def test_types_of_columns_stay(columns):
    store = memory()
    for x, values in enumerate(columns):
        write = api.append_to_cube if x else api.build_cube
        write(frame(x=[x], p=[0], v1=values), CUBE, store)
    before = api.query_cube_df(CUBE, store)
    api.compact_cube(CUBE, store)
    pd.testing.assert_frame_equal(api.query_cube_df(CUBE, store), before)
    assert api.verify_cube(CUBE, store).ok


# others at work ---------------------------------------------------------------------------------------------


def planned(store):
    job = CompactCube(CUBE, store).job()
    return job, [job.run(job.context, task) for task in job.tasks]


MEANWHILE = {
    "appends": lambda s: api.append_to_cube(frame(x=[0, 2], p=[0, 1], v1=[40, 42]), CUBE, s),
    "a column of an append": lambda s: api.append_to_cube(
        frame(x=[2], p=[1], v1=[42], w=[7]), CUBE, s, schema_mode="merge"
    ),
    "a column with a default": lambda s: api.update_schema(CUBE, s, add={"z": "int64"}, defaults={"z": 5}),
    "an index": lambda s: build_dataset_indices(s, "cube++seed", ["v1"]),
    "a removal elsewhere": lambda s: api.remove_partitions(CUBE, s, api.C("p") == 1),
}


@pytest.mark.parametrize("change", MEANWHILE.values(), ids=MEANWHILE)
def test_what_comes_meanwhile_stays_newer(store, change):
    job, results = planned(store)
    change(store)
    n_files = len(file_keys(lambda: store, "cube++seed"))
    expected = rows(api.query_cube(CUBE, store))
    job.finish(results)
    assert rows(api.query_cube(CUBE, store)) == expected
    assert len(file_keys(lambda: store, "cube++seed")) == n_files - 2
    cubes.check_integrity(lambda: store)
    assert api.verify_cube(CUBE, store).ok
    api.compact_cube(CUBE, store, min_files=1)
    assert rows(api.query_cube(CUBE, store)) == expected


def test_a_repeated_commit_leaves_the_files_of_older_states(store):
    job, results = planned(store)
    job.finish(results)
    versions = [state.version for state in api.list_cube_history(CUBE, store)]
    expected = [rows(api.query_cube(CUBE, store, as_of=version)) for version in versions]
    api.update_cube(SEED[:2], CUBE, store, api.C("p") == 0, ["seed"])
    with pytest.raises(ConcurrentWriteError):
        job.finish(results)
    assert [rows(api.query_cube(CUBE, store, as_of=version)) for version in versions] == expected


GONE, OTHER_SCHEMA = r"p=0/.*Repeat it", r"schema was changed.*Repeat it"
CONFLICTS = {
    "remove": (lambda s: api.remove_partitions(CUBE, s, api.C("p") == 0), GONE),
    "update": (lambda s: api.update_cube(SEED[:2].assign(z=0), CUBE, s, api.C("p") == 0, ["seed"]), GONE),
    "overwrite": (lambda s: api.build_cube(SEED, CUBE, s, overwrite=True), GONE),
    "compact": (lambda s: api.compact_cube(CUBE, s), GONE),
    "drop": (lambda s: api.update_schema(CUBE, s, drop="v1"), OTHER_SCHEMA),
    "rename": (lambda s: api.update_schema(CUBE, s, rename={"v1": "w"}), OTHER_SCHEMA),
    "widen": (lambda s: api.update_schema(CUBE, s, widen={"v1": "float64"}), OTHER_SCHEMA),
    "rollback": (lambda s: api.rollback_cube(CUBE, s, 3), "Gone: z"),
}


@pytest.mark.parametrize("conflict, text", CONFLICTS.values(), ids=CONFLICTS.keys())
def test_inputs_and_columns_that_are_gone(store, conflict, text):
    api.update_schema(CUBE, store, add={"z": "int64"})
    job, results = planned(store)
    conflict(store)
    before = snapshot(lambda: store)
    ((result,),) = results
    with pytest.raises(ConcurrentWriteError, match=text):
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
