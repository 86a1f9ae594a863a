"""Cutting queries into tasks of about equal size."""

import pickle
from uuid import uuid4

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.api.cube import C, Cube, append_to_cube, build_cube, query_cube
from kartothek_cube.io_components.query.executor import run_frames, run_task
from kartothek_cube.io_components.query.logical_plan import QueryCube
from kartothek_cube.io_components.query.physical_plan import plan_query, split_into_tasks
from tests.support.factories import local

CUBE = Cube(["x"], ["p"], "cube", index_columns=["i1"])


@pytest.fixture
def store(tmp_path):
    """Seven partitions, a second file in one of them, a dataset with partners for some and one for all."""
    factory = local(tmp_path / "store")
    n = 7 * 20
    seed = pd.DataFrame({"x": range(n), "p": np.arange(n) // 20, "v1": 1.5, "i1": np.arange(n) % 10})
    enrich = pd.DataFrame({"x": range(60), "p": np.arange(60) // 20, "v2": 2.5})
    whole = pd.DataFrame({"x": range(n), "v3": [uuid4().hex * 9 for _ in range(n)]})
    build_cube({"seed": seed, "enrich": enrich, "all": whole}, CUBE, factory, partition_on={"all": []})
    append_to_cube(pd.DataFrame({"x": [5], "p": [0], "v1": [9.5], "i1": [5]}), CUBE, factory)
    return factory


def answer(plan, tasks) -> pd.DataFrame:
    travelled = pickle.loads(pickle.dumps([plan.context, tasks]))
    tables = [table for task in travelled[1] for table in run_task(travelled[0], task)]
    return pd.concat([t.to_pandas() for t in tables]).sort_values("x", ignore_index=True)


@pytest.mark.parametrize("workers", [1, 2, 100])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"payload_columns": ["v3"]},
        {"conditions": C("v2") > 2.0},
        {"partition_by": "p"},
        {"partition_by": "i1"},
        {"partition_by": ["i1"], "conditions": C("i1").isin([1, 5, 7])},
    ],
)
def test_tasks_together_are_the_query(monkeypatch, store, arguments, workers):
    monkeypatch.setattr("kartothek_cube.core.tuning.MIN_TASK_BYTES", 1)
    plan = plan_query(QueryCube(CUBE, store, **arguments))
    tasks = split_into_tasks(plan, workers)
    expected = pd.concat(query_cube(CUBE, store, **arguments)).sort_values("x", ignore_index=True)
    pd.testing.assert_frame_equal(answer(plan, tasks), expected)
    limit = len(plan.groups) if plan.groups is not None else plan.n_partitions
    assert min(workers, limit) <= len(tasks) <= min(3 * workers, limit)


@pytest.mark.parametrize("values", [(0, 1), ("a", "b")], ids=["numbers", "texts"])
def test_tasks_of_several_groups_give_no_rows_of_other_groups(tmp_path, values):
    cube = Cube(["x"], ["p"], "cube")
    store = local(tmp_path)
    # groups (0, 0) and (1, 0) have rows; the task of (0, 1) and (1, 0) reads both: by column, both match
    cells = pd.DataFrame({"x": [values[n % 2] for n in range(4)], "p": [0, 0, 1, 1], "v": [1, 1, 0, 0]})
    build_cube(cells, cube, store)
    plan = plan_query(QueryCube(cube, store, C("v") == 1, partition_by=["x", "p"]))
    assert list(plan.groups) == [(x, p) for x in values for p in (0, 1)]
    tasks = plan.slice_tasks(np.array([0, 1, 3, 4]))
    tables = [[t.to_pylist() for t in run_task(plan.context, task)] for task in tasks]
    frames = [[df.to_dict("records") for df in run_frames(plan.context, task)] for task in tasks]
    first, second = ({"p": 0, "v": 1, "x": x} for x in values)
    assert tables == frames == [[[first]], [[second]], []]


def test_size_bounds_tasks(monkeypatch, store):
    monkeypatch.setattr("kartothek_cube.core.tuning.MIN_TASK_BYTES", 1)
    alone, shared = (
        split_into_tasks(plan_query(QueryCube(CUBE, store, payload_columns=columns)), workers=1, size=1)
        for columns in (["v1"], ["v1", "v3"])
    )
    assert len(shared) < len(alone) == 7


@pytest.mark.parametrize("partition_by", [None, "p"])
def test_nothing_to_read_is_no_task(store, partition_by):
    plan = plan_query(QueryCube(CUBE, store, C("p") > 100, partition_by=partition_by))
    assert split_into_tasks(plan, workers=2) == []


def test_groups_of_a_task_narrow_what_it_reads(store):
    plan = plan_query(QueryCube(CUBE, store, partition_by="i1"))
    first, second = plan.slice_tasks(np.array([0, 9, 10]))
    assert first.predicates == (("i1", "in", tuple(range(9))),)
    assert second.predicates == (("i1", "==", 9),)
    assert plan.single_task().predicates == ()
    assert len(split_into_tasks(plan_query(QueryCube(CUBE, store)), workers=8)) == 1
