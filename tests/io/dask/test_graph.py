"""Building graphs: shared contexts, trees of merges, names of tasks."""

from __future__ import annotations

import pickle
from functools import partial

import dask
import dask.bag as db
import pytest
from dask.utils import key_split

from kartothek_cube.io.dask._dask_executor import FAN_IN, Graph
from kartothek_cube.io.dask.dataframe import OpaqueSequence


def add(context, number):
    return context["offset"] + number


def total(numbers):
    return sum(numbers)


def all_of(offset, numbers):
    return (offset, numbers)


def numbers_graph(n):
    graph = Graph("count")
    keys = graph.map("add", add, {"offset": 100}, [(i,) for i in range(n)])
    return graph, keys


def tasks_of(collection):
    return dict(collection.__dask_graph__())


@pytest.mark.parametrize("n, shared", [(0, 0), (1, 0), (FAN_IN, 0), (FAN_IN + 1, 1), (2000, 1)])
def test_a_context_of_many_tasks_is_in_the_graph_once(n, shared):
    graph, keys = numbers_graph(n)
    result = graph.delayed([graph.finalize("sum", partial(all_of, "x"), keys)])[0]
    assert len(tasks_of(result)) == n + shared + 1
    assert result.compute(scheduler="sync") == ("x", [100 + i for i in range(n)])


@pytest.mark.parametrize("n", [0, 1, FAN_IN, FAN_IN + 1, FAN_IN**2, FAN_IN**2 + 1, 5000])
def test_many_results_are_merged_in_a_tree(n):
    graph, keys = numbers_graph(n)
    left = graph.merge(total, keys)
    assert len(left) <= FAN_IN
    result = graph.delayed([graph.finalize("sum", partial(all_of, None), left)])[0]
    assert max(len(task.dependencies) for task in tasks_of(result).values()) <= FAN_IN
    assert sum(result.compute(scheduler="sync")[1]) == sum(range(n)) + 100 * n


def test_names_of_tasks_tell_operation_and_step():
    graph, keys = numbers_graph(FAN_IN + 1)
    result = graph.delayed([graph.finalize("sum", partial(all_of, None), graph.merge(total, keys))])[0]
    names = {key_split(key) for key in tasks_of(result)}
    assert names == {"count-add", "count-add-context", "count-merge", "count-sum"}


def test_two_graphs_share_no_key():
    (first, _), (second, _) = numbers_graph(3), numbers_graph(3)
    assert first.name("add") != second.name("add")


def test_forms_of_results():
    graph, keys = numbers_graph(2)
    assert graph.item(graph.finalize("sum", sum, keys)).compute(scheduler="sync") == 201
    graph, keys = numbers_graph(2)
    assert dask.compute(graph.delayed(keys), scheduler="sync") == ([100, 101],)
    assert Graph("count").bag([]).compute(scheduler="sync") == []


def test_inputs_of_several_kinds():
    bag, item = db.from_sequence([1, 2], npartitions=1), dask.delayed(total)([3, 4])
    graph = Graph("count", [bag, item])
    result = graph.delayed([graph.finalize("sum", partial(all_of, None), [(bag.name, 0), item.key])])[0]
    assert pickle.loads(pickle.dumps(result)).compute(scheduler="sync") == (None, [[1, 2], 7])


def test_a_unique_list_is_not_looked_into():
    class Opaque:
        def __reduce__(self):
            raise TypeError("looked into")

    first, second = OpaqueSequence([Opaque()]), OpaqueSequence([Opaque()])
    assert dask.base.tokenize(first) == dask.base.tokenize(first) != dask.base.tokenize(second)
