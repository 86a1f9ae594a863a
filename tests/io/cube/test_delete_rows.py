"""Deleting rows by conditions: a query gives what it gave without them, and other files stay."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.io_components.delete_rows import DeleteRows
from kartothek_cube.io_components.write.stored_rows import StoredRows
from kartothek_cube.serialization import CsvSerializer
from tests.support import cubes

CUBE = api.Cube(["x", "y"], ["p"], "cube", index_columns=["i"])
DATASETS = ("extra", "names", "seed", "whole")
KEYS = cubes.frame(x=[0, 1, 2, 3, 4, 5], y=[0, 0, 0, 1, 1, 1], p=[0, 0, 0, 1, 1, 1])
SEED = KEYS.assign(i=[0, 1, 0, 1, 0, 1], v=[0, 1, 2, 3, 4, 5])


@pytest.fixture
def store():
    """A cube of datasets with all keys, without the partition column, and with one dimension only."""
    store = cubes.memory()
    data = {
        "seed": SEED,
        "extra": KEYS[:5].assign(w=[10, 11, 12, 13, 14]),
        "whole": SEED[["x", "y"]].assign(u=20),
        "names": cubes.frame(y=[0, 1], n=["zero", "one"]),
    }
    api.build_cube(data, CUBE, store, partition_on={"whole": [], "names": []})
    return store


def left(store, column="x"):
    return api.query_cube_df(CUBE, store)[column].tolist()


def stored(store, name, column):
    """Values of a column in the files of a dataset."""
    contents = cubes.file_contents(lambda: store, f"cube++{name}")
    return sorted(value for content in contents for value in content[column])


def test_rows_are_deleted_from_all_datasets(store, driver):
    before = {label for label in cubes.file_keys(lambda: store, "cube++seed") if "p=1" in label}
    counts = driver.delete_rows(cube=CUBE, store=lambda: store, conditions=C("v") == 1)
    # files without such rows stay
    assert before <= set(cubes.file_keys(lambda: store, "cube++seed"))
    found = {name: count["rows_deleted"] for name, count in counts.items()}
    assert found == {"extra": 1, "names": 0, "seed": 1, "whole": 1}
    assert left(store) == [0, 2, 3, 4, 5]
    found = [stored(store, name, "x") for name in ("seed", "extra", "whole")]
    assert found == [[0, 2, 3, 4, 5], [0, 2, 3, 4], [0, 2, 3, 4, 5]]
    cubes.check_integrity(lambda: store, CUBE)
    assert api.verify_cube(CUBE, store).ok
    built, state = api.list_cube_history(CUBE, store)
    assert (state.operation, state.datasets) == ("delete_rows", ("extra", "seed", "whole"))
    assert len(api.query_cube_df(CUBE, store, as_of=built.version)) == 6


def test_files_of_kartothek_whose_objects_have_other_types(driver):
    """It typed objects by the values of each file; rows that are written again have those of the schema."""
    store = cubes.memory()
    api.build_cube(SEED[:3].assign(v=[Decimal("1.25"), Decimal(2), Decimal(3)]), CUBE, store)
    [key] = [key for key in store.keys() if key.startswith("cube++seed/table/p=0/")]
    sink = pa.BufferOutputStream()
    numbers = [Decimal(n) for n in (1, 2, 3)]
    pq.write_table(pa.Table.from_pandas(SEED[:3].drop(columns="p").assign(v=numbers)), sink)
    store.put(key, sink.getvalue().to_pybytes())
    driver.delete_rows(cube=CUBE, store=lambda: store, conditions="x == 0")
    assert left(store, "v") == numbers[1:]
    assert api.verify_cube(CUBE, store).ok


W = C("w")
CONDITIONS = [
    *((W > 11, [0, 1, 5]), ("w > 11 & i == 0", [0, 1, 3, 5]), ("n == zero", [3, 4, 5]), ("all", [])),
    *((W.is_null(), [0, 1, 2, 3, 4]), ((C("p") == 0) | (W == 14), [3, 5]), (C("p") == 1, [0, 1, 2])),
    *(([C("x").isin([0, 5]), C("u") == 20], [1, 2, 3, 4]), (C("i") == 1, [0, 2, 4])),
]


@pytest.mark.parametrize("conditions, expected", CONDITIONS, ids=str)
def test_conditions_are_those_of_a_query(store, conditions, expected):
    cells = len(api.query_cube_df(CUBE, store, None if conditions == "all" else conditions))
    assert api.delete_rows(CUBE, store, conditions)["seed"]["rows_deleted"] == cells
    assert left(store) == expected
    cubes.check_integrity(lambda: store, CUBE)


def test_whole_partitions_are_removed_without_being_read(store, monkeypatch):
    read = StoredRows.read

    def refuse(self, files):
        assert not any("p=0" in label for label in files.labels.to_pylist())
        return read(self, files)

    monkeypatch.setattr(StoredRows, "read", refuse)
    counts = api.delete_rows(CUBE, store, (C("p") == 0) | (C("v") == 5))
    assert counts["seed"] == {"rows_deleted": 4, "partitions": 2}
    assert left(store) == [3, 4]


def test_of_datasets_without_rows_nothing_is_deleted(store, driver):
    api.delete_rows(CUBE, store, "all")
    for conditions in ("all", C("v") == 1):
        counts = driver.delete_rows(cube=CUBE, store=lambda: store, conditions=conditions)
        assert counts == {name: {"rows_deleted": 0, "partitions": 0} for name in DATASETS}


def test_older_versions_of_deleted_cells_do_not_come_back(store):
    api.append_to_cube(SEED[:2].assign(v=[7, 8]), CUBE, store)
    api.delete_rows(CUBE, store, C("v") == 1)
    assert left(store, "v")[:2] == [7, 8], "the condition concerns the newest version"
    assert api.delete_rows(CUBE, store, C("v") == 8)["seed"] == {"rows_deleted": 1, "partitions": 1}
    assert left(store) == [0, 2, 3, 4, 5]


def test_a_row_that_cells_share_is_deleted_with_the_last_of_them():
    store = cubes.memory()
    data = {"seed": cubes.frame(x=[1, 1, 2], p=[0, 1, 1]), "names": cubes.frame(x=[1, 2], n=["one", "two"])}
    cube = api.Cube(["x"], ["p"], "cube")
    api.build_cube(data, cube, store, partition_on={"names": []})
    assert api.delete_rows(cube, store, "x == 1 & p == 0")["names"]["rows_deleted"] == 0
    assert api.delete_rows(cube, store, "x == 1")["names"]["rows_deleted"] == 1
    assert cubes.rows(api.query_cube(cube, store)) == {"n": ["two"], "p": [1], "x": [2]}


@pytest.mark.parametrize("conditions, expected", [("v == 1 | w == 13", [0, 2, 4, 5]), ("all", [])])
def test_a_cube_without_partition_columns(conditions, expected):
    store, cube = cubes.memory(), api.Cube(["x", "y"], [], "cube")
    api.build_cube({"seed": SEED, "extra": KEYS[["x", "y"]].assign(w=range(10, 16))}, cube, store)
    api.delete_rows(cube, store, conditions)
    assert api.query_cube_df(cube, store)["x"].tolist() == expected == stored(store, "extra", "x")


def test_a_row_of_another_partition_does_not_keep_a_row():
    """Further partition keys of a dataset, and partitions of the cube that the query does not read."""
    cube = api.Cube(["x"], ["p", "q"], "cube")
    store = cubes.memory()
    data = {
        "seed": cubes.frame(x=[1, 2, 1, 2], p=[0, 0, 1, 1], q=[0, 0, 1, 1]),
        "by_p": cubes.frame(x=[1, 2, 1, 2], p=[0, 0, 1, 1], k=[5, 6, 5, 6], w=[1, 2, 3, 4]),
    }
    api.build_cube(data, cube, store, partition_on={"by_p": ["p", "k"]})
    api.delete_rows(cube, store, "x == 1 & q == 1")
    assert cubes.rows(api.query_cube(cube, store))["w"] == [1, 2, 4]
    assert api.delete_rows(cube, store, "w == 4")["by_p"] == {"rows_deleted": 1, "partitions": 1}
    assert stored(store, "by_p", "w") == [1, 2]
    cubes.check_integrity(lambda: store, cube)


@pytest.mark.parametrize(
    "names, seed, extra, payload",
    [("seed", [0, 2, 3, 4, 5], 5, [10, 12, 13, 14, None]), ("extra", [0, 1, 2, 3, 4, 5], 4, None)],
)
def test_rows_of_some_datasets(store, names, seed, extra, payload):
    counts = api.delete_rows(CUBE, store, C("x") == 1, names)
    assert list(counts) == [names] and counts[names]["rows_deleted"] == 1
    assert left(store) == seed and len(stored(store, "extra", "x")) == extra
    assert cubes.rows([api.query_cube_df(CUBE, store)])["w"] == (payload or [10, None, 12, 13, 14, None])


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ((None,), ValueError, "No conditions: everything would be removed. Pass conditions='all'"),
        (([],), ValueError, "conditions='all'"),
        ((" ",), ValueError, "conditions='all'"),
        ((C("z") == 1,), ValueError, "missing from the cube: unknown column z"),
        ((C("v") == "text",), TypeError, "does not fit column v"),
        ((C("v") == 1, "sed"), ValueError, "unknown dataset sed; did you mean seed"),
    ],
)
def test_wrong_arguments_and_conditions_of_no_row_change_nothing(store, arguments, error, text):
    with cubes.refuses(lambda: store, error, text):
        api.delete_rows(CUBE, store, *arguments)
    with cubes.unchanged(lambda: store):
        counts = api.delete_rows(CUBE, store, "v > 3 & p == 0")
    assert counts["seed"] == {"rows_deleted": 0, "partitions": 0}


def planned(store, conditions):
    """The last step of a deletion whose tasks are done."""
    job = DeleteRows(CUBE, store, conditions).job()
    results = [job.run(job.context, task) for task in job.tasks]
    return lambda: job.finish(results)


@pytest.mark.parametrize("conditions", [C("v") < 2, C("p") == 0], ids=["rewritten", "removed"])
@pytest.mark.parametrize("start", [0, 100], ids=["stored cell", "new cell"])
def test_other_writers_of_a_changed_partition_are_noticed(store, conditions, start):
    finish = planned(store, conditions)
    api.append_to_cube(SEED[:1].assign(x=start, v=9), CUBE, store)
    before = api.query_cube_df(CUBE, store)
    with pytest.raises(ConcurrentWriteError, match="p=0"):
        finish()
    pd.testing.assert_frame_equal(api.query_cube_df(CUBE, store), before)
    tracked = [key for name in DATASETS for key in cubes.file_keys(lambda: store, f"cube++{name}").values()]
    files = {key for key in cubes.keys(lambda: store) if key.endswith(".parquet") and "/table/" in key}
    assert files == set(tracked), "files of the refused deletion are left"
    api.delete_rows(CUBE, store, conditions)
    assert api.verify_cube(CUBE, store).ok


def test_writers_of_other_partitions_are_no_conflict(store):
    finish = planned(store, C("v") < 2)
    api.append_to_cube(SEED[5:].assign(v=9), CUBE, store)
    api.compact_cube(CUBE, store)
    finish()
    assert left(store, "v") == [2, 3, 4, 9]


@pytest.mark.parametrize("conditions", [C("v") < 2, C("p") == 0], ids=["rewritten", "removed"])
def test_finishing_twice_changes_nothing(store, conditions):
    finish = planned(store, conditions)
    counts = finish()
    with cubes.unchanged(lambda: store):
        assert finish() == counts


def test_files_from_before_a_change_of_the_schema(store):
    api.update_schema(CUBE, store, add={"new": "int64"}, defaults={"new": 5}, rename={"v": "z"})
    api.delete_rows(CUBE, store, "z == 1 | new == 6")
    assert left(store, "z") == [0, 2, 3, 4, 5] and set(left(store, "new")) == {5}
    assert api.verify_cube(CUBE, store).ok


def test_other_formats():
    store = cubes.memory()
    api.build_cube(SEED, CUBE, store, df_serializer=CsvSerializer())
    counts = api.delete_rows(CUBE, store, C("p") == 0, df_serializer=CsvSerializer())
    assert counts["seed"]["rows_deleted"] == 3
    api.delete_rows(CUBE, store, C("v") == 4, df_serializer=CsvSerializer())
    assert left(store) == [3, 5]


@pytest.mark.slow("many random deletions")
@pytest.mark.parametrize("seed", range(8))
def test_random_deletions_leave_what_a_filter_does(seed):
    draw = np.random.default_rng(seed)
    store = cubes.memory()
    cells = cubes.frame(x=np.arange(40), p=draw.integers(0, 5, 40), q=draw.integers(0, 2, 40))
    cube = api.Cube(["x"], ["p", "q"], "cube")
    rows, extra = cells.assign(v=draw.integers(0, 9, 40)), cells[::2].assign(w=draw.integers(0, 9, 20))
    cubes.build(lambda: store, cube, seed=rows, extra=extra)
    api.append_to_cube(rows.sample(20, random_state=seed).assign(v=draw.integers(0, 9, 20)), cube, store)
    expected = api.query_cube_df(cube, store)
    for _ in range(4):
        p, q, v, w = (int(n) for n in draw.integers(0, 9, 4))
        either = (C("p") == p % 5) & (C("q") == q % 2) | (C("v") == v)
        choices = [either, either | (C("w") > w), C("w") == w, (C("p") > p) & (C("v") != v)]
        conditions = choices[draw.integers(0, 4)]
        gone = api.query_cube_df(cube, store, conditions)["x"]
        assert api.delete_rows(cube, store, conditions)["seed"]["rows_deleted"] >= len(gone)
        expected = expected[~expected["x"].isin(gone)]
        assert cubes.rows([api.query_cube_df(cube, store)]) == cubes.rows([expected])
        cubes.check_integrity(lambda: store, cube)
