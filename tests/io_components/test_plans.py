"""The shape of operations: plans travel and stay small, running and finishing may be repeated."""

import pickle
import random
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.api.cube import C, append_to_cube, build_cube, extend_cube, query_cube
from kartothek_cube.api.dataset import DatasetMetadata, read_table, store_dataframes_as_dataset
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.io_components.dataset_read import DatasetRead, run_read
from kartothek_cube.io_components.query.executor import run_task
from kartothek_cube.io_components.query.logical_plan import QueryCube
from kartothek_cube.io_components.query.physical_plan import plan_query
from kartothek_cube.io_components.write.cube_writes import AppendToCube, BuildCube
from kartothek_cube.io_components.write.dataset_writes import StoreDataset, UpdateDataset
from kartothek_cube.io_components.write.write_commit import finish_dataset_write, finish_write
from kartothek_cube.io_components.write.write_plan import merge_writes
from kartothek_cube.io_components.write.write_tasks import prepare, run_write, write_part
from tests.support.cubes import snapshot
from tests.support.headers import CUBE, store_headers
from tests.support.stores import CountingStore, Same

SIZES = [10, 1_000, 100_000]


def frame(p: int, x: Any = (1, 2), **more: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": list(x), "p": p, **more})


@pytest.fixture
def many(store_factory: Any) -> Any:
    """Make a store with a cube of n partitions, from headers alone; there are no data files."""
    return partial(store_headers, store_factory)


@pytest.mark.parametrize("n", SIZES)
def test_query_tasks_travel_and_stay_small(many: Any, n: int) -> None:
    plan = plan_query(QueryCube(CUBE, many(n), conditions=C("p") < min(n, 1_000), partition_by="p"))
    tasks = plan.tasks()
    assert len(tasks) == min(n, 1_000)
    assert max([len(pickle.dumps(task)) for task in tasks[:10]]) < 600
    assert len(pickle.dumps(plan.context)) < 8_000
    assert pickle.loads(pickle.dumps(tasks[3])) == tasks[3]
    assert pickle.loads(pickle.dumps(plan.context)).scans == plan.context.scans


@pytest.mark.parametrize("n", SIZES)
def test_write_plans_do_not_grow_with_partitions(many: Any, n: int) -> None:
    plan = AppendToCube(None, CUBE, many(n)).plan(["seed", "enrich"])
    assert len(pickle.dumps(plan)) < 8_000
    results = run_write(plan, prepare(plan, {"seed": [frame(n + 1, v1=0.5)]}))
    assert len(pickle.dumps(results)) < 8_000


def test_planning_twice_gives_the_same_tasks(store_factory: Any) -> None:
    build_cube([frame(2, v0=0.5), frame(1, v0=1.5)], CUBE, store_factory)
    first, second = (plan_query(QueryCube(CUBE, store_factory, partition_by="p")) for _ in range(2))
    assert first.tasks() == second.tasks()
    assert list(first.groups) == list(second.groups) == [(1,), (2,)]


def test_tasks_may_run_shuffled_and_twice(store_factory: Any) -> None:
    build_cube([frame(p, v0=p * 0.5) for p in range(5)], CUBE, store_factory)
    extend_cube({"enrich": frame(0, v1=0)}, CUBE, store_factory)
    plan = plan_query(QueryCube(CUBE, store_factory, partition_by="p"))
    context = pickle.loads(pickle.dumps(plan.context))
    numbered = list(enumerate(plan.tasks())) * 2
    random.Random(1).shuffle(numbered)
    results = {number: run_task(context, pickle.loads(pickle.dumps(task)))[0] for number, task in numbered}
    for number, df in enumerate(query_cube(CUBE, store_factory, partition_by="p")):
        pd.testing.assert_frame_equal(results[number].to_pandas(), df)


def test_an_overwrite_of_partitions_loses_no_concurrent_append_to_them(store_factory: Any) -> None:
    build_cube([frame(p, v0=0.5) for p in range(3)], CUBE, store_factory)
    plan = AppendToCube(None, CUBE, store_factory).plan_overwrite("seed")
    written = run_write(plan, prepare(plan, {"seed": [frame(1, x=[7], v0=1.5)]}))
    append_to_cube(frame(1, x=[8], v0=2.5), CUBE, store_factory)
    with pytest.raises(ConcurrentWriteError, match="p=1/"):
        finish_write(plan, [written])
    plan = AppendToCube(None, CUBE, store_factory).plan_overwrite("seed")
    append_to_cube(frame(2, x=[9], v0=3.5), CUBE, store_factory)
    finish_write(plan, [written])
    finish_write(plan, [written])
    cells = query_cube(CUBE, store_factory)[0].query("p > 0")[["p", "x"]]
    assert sorted(map(tuple, cells.to_numpy())) == [(1, 7), (2, 1), (2, 2), (2, 9)]


def test_finishing_a_build_twice_changes_nothing(store_factory: Any) -> None:
    plan = BuildCube(None, CUBE, store_factory).plan({"seed"})
    results = run_write(plan, prepare(plan, {"seed": [frame(1, v0=9.5)]}))
    first, before = finish_write(plan, [results]), snapshot(store_factory)
    assert finish_write(*pickle.loads(pickle.dumps((plan, [results])))) == first
    assert snapshot(store_factory) == before


def test_a_write_in_pieces_is_the_write_at_once(store_factory: Any) -> None:
    plan = BuildCube(None, CUBE, store_factory).plan(["seed"])
    frames = [frame(p, x=np.arange(p, p + 3), v0=p * 0.5) for p in range(6)]
    parts = [run_write(plan, prepare(plan, {"seed": [df]})) for df in frames]
    lost_attempt = run_write(plan, prepare(plan, {"seed": [frames[0]]}))
    tree = merge_writes([merge_writes(parts[:2]), merge_writes([merge_writes(parts[2:5]), parts[5]])])
    finish_write(plan, [tree])
    expected = pd.concat(frames).sort_values(["x", "p"], ignore_index=True)[["p", "v0", "x"]]
    pd.testing.assert_frame_equal(query_cube(CUBE, store_factory)[0], expected)
    stored = DatasetMetadata.load_from_store("cube++seed", store_factory).partitions
    assert not set(lost_attempt["seed"].labels.to_pylist()) & set(stored)


# datasets without a cube


def travelled(obj):
    return pickle.loads(pickle.dumps(obj))


@pytest.mark.parametrize("n", SIZES)
def test_tasks_of_a_read_are_small(many, n):
    predicates = [[("v1", ">", 0.5), ("p", ">=", 0)]]
    plan = DatasetRead("cube++seed", many(n), predicates=predicates, columns=["p", "v1"]).plan()
    tasks = plan.tasks()
    assert len(tasks) == n
    assert len(pickle.dumps(tasks[-1])) < 600
    assert len(pickle.dumps(plan.context)) < 3_000


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dispatch_by", [None, "p"])
def test_store_calls_of_a_plan_do_not_grow(many, n, dispatch_by):
    counting = CountingStore(many(n)())
    DatasetRead("cube++seed", Same.of(counting), dispatch_by=dispatch_by).plan()
    assert sum(counting.counts.values()) == 2


@pytest.mark.filterwarnings("ignore::kartothek_cube.core.store.NoCompareAndSwapWarning")
def test_store_calls_of_an_update_do_not_grow(store_factory, other_store_factory):
    counts = []
    for n, factory in ((10, store_factory), (1_000, other_store_factory)):
        counting = CountingStore(store_headers(factory, n, ["seed"])())
        plan = UpdateDataset(Same.of(counting), "cube++seed", delete_scope=[{"p": 3}]).plan()
        finish_dataset_write(plan, [write_part(plan, pd.DataFrame({"p": [3], "x": [1], "v1": [1.5]}))])
        counts.append(sum(counting.counts.values()))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("dispatch_by", [None, "x"])
def test_tasks_of_a_read_run_anywhere_and_often(store_factory, dispatch_by):
    df = pd.DataFrame({"p": np.arange(60) % 6, "x": np.arange(60) % 7 % 5, "n": np.arange(60)})
    options = {"partition_on": "p", "secondary_indices": "x"}
    store_dataframes_as_dataset(store_factory, "u", [df[:30], df[30:]], **options)
    options = {"predicates": [[("n", ">", 10)]], "categoricals": ["p"]}
    plan = DatasetRead("u", store_factory, dispatch_by=dispatch_by, **options).plan()
    context, tasks = travelled(plan.context), travelled(plan.tasks())
    assert tasks == plan.tasks()
    expected = [run_read(plan.context, task).to_pydict() for task in plan.tasks()]
    order = [*range(len(tasks)), *range(len(tasks))]
    random.Random(0).shuffle(order)
    for number in order:
        assert run_read(context, tasks[number]).to_pydict() == expected[number]


@pytest.mark.parametrize("mode", ["store", "update"])
def test_results_of_a_write_travel_and_merge(store_factory, mode):
    options = {"partition_on": "p", "secondary_indices": ["x"], "metadata": {"m": 1}}
    operation = StoreDataset if mode == "store" else UpdateDataset
    plan = travelled(operation(store_factory, "u", **options).plan())
    frames = [pd.DataFrame({"p": [i, i], "x": [i, 2 * i]}) for i in range(4)]
    results = [travelled(write_part(travelled(plan), df)) for df in frames]
    assert all(len(pickle.dumps(result)) < 4_000 for result in results)
    dataset = finish_dataset_write(plan, results)
    assert sorted(read_table("u", store_factory)["x"]) == [0, 0, 1, 2, 2, 3, 4, 6]
    assert dataset.metadata["m"] == 1
