"""Every executor runs a job in the same way: prepare, tasks, one last step."""

from functools import partial

import dask
import pytest
from dask.utils import key_split

from kartothek_cube.io.dask import _dask_executor as executor
from kartothek_cube.io.dask._dask_executor import FAN_IN
from kartothek_cube.io.dask.dataframe import OpaqueSequence
from kartothek_cube.io_components.job import Job, discard_results, execute, iter_results

LOG: list[str] = []


@pytest.fixture(autouse=True)
def log():
    LOG.clear()
    return LOG


def prepare():
    LOG.append("prepare")


def scale(factor, number):
    LOG.append("run")
    return factor * number


def finish(base, results):
    return base + sum(results)


def job(tasks=(1, 2, 3), **options):
    steps = {"context": 10, "run": scale, "finish": partial(finish, 1000), **options}
    return Job(name="add_up", description="add up numbers", tasks=tasks, **steps)


EXECUTORS = {
    "serial": execute,
    "threads": partial(execute, threads=2),
    "delayed": lambda j: executor.answer_as_delayed(j).compute(scheduler="sync"),
    "bag": lambda j: executor.answer_as_bag(j).compute(scheduler="sync")[0],
}


@pytest.mark.parametrize("run", EXECUTORS.values(), ids=EXECUTORS)
@pytest.mark.parametrize("merge", [None, sum], ids=["listed", "merged"])
@pytest.mark.parametrize("n", [0, 1, 3, FAN_IN + 1])
def test_answers_do_not_depend_on_the_executor(run, merge, n):
    assert run(job(tasks=range(n), merge=merge)) == 1000 + 10 * sum(range(n))


@pytest.mark.parametrize("run", EXECUTORS.values(), ids=EXECUTORS)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_the_preparation_comes_before_all_tasks(run, n, log):
    def nothing(context, task):
        LOG.append("run")

    steps = {"prepare": prepare, "run": nothing, "merge": discard_results, "finish": discard_results}
    run(job(tasks=range(n), context=None, **steps))
    assert log == ["prepare", *["run"] * n]


def test_one_thread_takes_a_task_when_the_one_before_is_done(log):
    def tasks():
        for number in range(3):
            LOG.append("take")
            yield number

    assert execute(job(tasks=tasks())) == 1030
    assert log == ["take", "run"] * 3


def test_results_come_one_by_one_or_as_collections(log):
    assert (next(iter_results(job())), log) == (10, ["run"])
    assert [item.compute(scheduler="sync") for item in executor.results_as_delayed(job())] == [10, 20, 30]
    assert executor.results_as_bag(job()).compute(scheduler="sync") == [10, 20, 30]
    lists = job(tasks=[1, 2], context=(7,), run=lambda c, t: [*c, t], finish=list)
    assert executor.results_as_bag(lists, flatten=True).compute(scheduler="sync") == [7, 1, 7, 2]


def test_a_graph_has_one_context_and_a_tree_of_merges():
    n = FAN_IN**2 + 1
    lazy = [executor.answer_as_delayed(job(tasks=range(n), merge=sum)) for _ in range(2)]
    first, second = (dict(answer.__dask_graph__()) for answer in lazy)
    assert len(first) == n + 1 + (FAN_IN + 1) + 2 + 1
    assert max(len(task.dependencies) for task in first.values()) <= FAN_IN
    names = {key_split(key) for key in first}
    assert names == {"add_up-run", "add_up-run-context", "add_up-merge", "add_up-finish"}
    assert not set(first) & set(second)


def test_dask_does_not_look_into_tasks():
    class Opaque:
        def __reduce__(self):
            raise TypeError("looked into")

    first, second = OpaqueSequence([Opaque()]), OpaqueSequence([Opaque()])
    assert dask.base.tokenize(first) == dask.base.tokenize(first) != dask.base.tokenize(second)
