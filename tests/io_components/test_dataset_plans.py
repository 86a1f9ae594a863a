"""The shape of operations on datasets: plans travel and stay small, running and finishing may be repeated."""

import pickle
import random

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.io.eager import read_table, store_dataframes_as_dataset
from kartothek_cube.io_components.dataset_read import DatasetRead, run_read
from kartothek_cube.io_components.write.dataset_writes import StoreDataset, UpdateDataset
from kartothek_cube.io_components.write.write_commit import finish_dataset_write
from kartothek_cube.io_components.write.write_tasks import write_part
from tests.support.headers import store_headers
from tests.support.stores import CountingStore, Same

SEED = "cube++seed"
SIZES = [10, 1_000, 100_000]


def travelled(obj):
    return pickle.loads(pickle.dumps(obj))


@pytest.fixture
def many(store_factory):
    """Make a store with a dataset of n partitions, from a header alone; there are no data files."""
    return lambda n: store_headers(store_factory, n, ["seed"])


@pytest.mark.parametrize("n", SIZES)
def test_tasks_of_a_read_are_small(many, n):
    predicates = [[("v1", ">", 0.5), ("p", ">=", 0)]]
    plan = DatasetRead(SEED, many(n), predicates=predicates, columns=["p", "v1"]).plan()
    tasks = plan.tasks()
    assert len(tasks) == n
    assert len(pickle.dumps(tasks[-1])) < 600
    assert len(pickle.dumps(plan.context)) < 3_000


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dispatch_by", [None, "p"])
def test_store_calls_of_a_plan_do_not_grow(many, n, dispatch_by):
    counting = CountingStore(many(n)())
    DatasetRead(SEED, Same.of(counting), dispatch_by=dispatch_by).plan()
    assert sum(counting.counts.values()) == 2


@pytest.mark.filterwarnings("ignore::kartothek_cube.core.store.NoCompareAndSwapWarning")
def test_store_calls_of_an_update_do_not_grow(store_factory, other_store_factory):
    counts = []
    for n, factory in ((10, store_factory), (1_000, other_store_factory)):
        counting = CountingStore(store_headers(factory, n, ["seed"])())
        plan = UpdateDataset(Same.of(counting), SEED, delete_scope=[{"p": 3}]).plan()
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
