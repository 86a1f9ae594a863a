"""dask as executor: a job becomes a graph of its tasks, a tree of merges and one last task; its façades."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, NoReturn, TypeAlias, TypeVar

import attrs
from dask.bag import Bag
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import DataNode, GraphNode, List, Task, TaskRef
from dask.typing import Key as DaskKey
from simplekv import KeyValueStore
from simplekv.decorator import StoreDecorator

from kartothek_cube.core.arguments import check_positive
from kartothek_cube.core.store import StoreFactory, StoreFactoryInput, StoreInput, resolve
from kartothek_cube.io_components.facade import Example, Operation, P, facade, plan_job, with_stores
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.maintenance import copy, garbage, overview
from kartothek_cube.io_components.runtime import batched
from kartothek_cube.io_components.write.write_tasks import iter_inputs

#: results per merge; up to this number, tasks carry their context themselves
FAN_IN = 32

#: key of a task: name of its step, number within the step
Key: TypeAlias = tuple[str, int]
Function: TypeAlias = Callable[..., object]
#: a job whose tasks may be references to the values of other tasks
AnyJob: TypeAlias = Job[Any]


def picklable_store(store: StoreInput | None) -> StoreFactory | None:
    """A factory that graphs can carry; None stays None."""
    return None if store is None else _guarded_factory(store)


#: names this process, but not its forks
_PROCESS = uuid.uuid4().hex


@attrs.frozen
class GuardedFactory:
    """The factory of a user; in other processes, a store in memory is a copy, which can only be read."""

    factory: StoreFactory
    process: tuple[str, int] = attrs.field(factory=lambda: (_PROCESS, os.getpid()))

    def __call__(self) -> KeyValueStore:
        """Open the store."""
        store = self.factory()
        is_copy = self.process != (_PROCESS, os.getpid()) and resolve.find_dictionary(store) is not None
        return MemoryCopy(store) if is_copy else store


class MemoryCopy(StoreDecorator):  # type: ignore[misc]
    """An in-memory store of another process: what is written to this copy would be lost."""

    def put(self, *_arguments: object, **_options: object) -> NoReturn:
        """Raise ValueError."""
        raise ValueError(
            "The store is memory of the process that built the graph, so what a task of another process "
            "writes would be lost: compute with threads, as by scheduler='threads' or "
            "Client(processes=False), or pass a store that all processes can open, such as a directory"
        )

    put_file = delete = put


def _guarded_factory(store: StoreInput) -> StoreFactory:
    factory = resolve.lazy_store(store)
    is_guarded = isinstance(factory, resolve.UrlStoreFactory | GuardedFactory)
    return factory if is_guarded else GuardedFactory(factory)


class Graph:
    """A graph under construction; keys are named ``<operation>-<step>-<token>``, as dashboards show them."""

    def __init__(self, operation: str, inputs: Iterable[Delayed | Bag] = ()) -> None:
        self._operation = operation
        self._token = uuid.uuid4().hex
        self._tasks: dict[DaskKey, GraphNode] = {}
        # DaskCollection by dask's own check, but its annotations do not say so
        self._inputs: list[Any] = list(inputs)

    def name(self, step: str) -> str:
        """Prefix of the keys of a step."""
        return f"{self._operation}-{step}-{self._token}"

    def map(
        self, step: str, function: Function, context: object, tasks: Sequence[object], *more: object
    ) -> list[Key]:
        """Add ``function(context, task, *more)`` for each task; many tasks share one key for the context."""
        if len(tasks) > FAN_IN:
            shared = self.name(f"{step}-context")
            self._tasks[shared] = DataNode(shared, context)
            context = TaskRef(shared)
        keys = ((self.name(step), number) for number in range(len(tasks)))
        return [self._add(key, function, context, task, *more) for key, task in zip(keys, tasks, strict=True)]

    def merge(self, function: Callable[[list[Any]], Any], keys: Sequence[Key]) -> list[Key]:
        """Add a tree of tasks that merge results, down to at most ``FAN_IN`` keys."""
        merged, numbers = list(keys), count()
        while len(merged) > FAN_IN:
            parts = [List(*map(TaskRef, part)) for part in batched(merged, FAN_IN)]
            merged = [self._add((self.name("merge"), next(numbers)), function, part) for part in parts]
        return merged

    def finalize(self, step: str, function: Function, after: Sequence[DaskKey]) -> Key:
        """Add a single task that calls a function with the list of other results."""
        return self._add((self.name(step), 0), function, List(*map(TaskRef, after)))

    def delayed(self, keys: Sequence[Key]) -> list[Delayed]:
        """The values of keys, each as a Delayed of this graph."""
        name = self.name("graph")
        layers = self.layers(name)
        return [Delayed(key, layers, layer=name) for key in keys]

    def bag(self, keys: Sequence[Key]) -> Bag:
        """A bag of all keys of one step, whose values are lists; without keys the bag is empty."""
        if not keys:
            keys = [(self.name("nothing"), 0)]
            self._tasks[keys[0]] = DataNode(keys[0], [])
        name = keys[0][0]
        return Bag(self.layers(name), name, len(keys))

    def layers(self, name: str) -> HighLevelGraph:
        """The tasks as one layer of dask, upon the layers of the inputs."""
        return HighLevelGraph.from_collections(name, self._tasks, dependencies=self._inputs)

    def _add(self, key: Key, function: Function, *arguments: object) -> Key:
        self._tasks[key] = Task(key, function, *arguments)
        return key


def answer_as_delayed(
    job: AnyJob, inputs: Iterable[Delayed | Bag] = (), first: Sequence[DaskKey] = ()
) -> Delayed:
    """The answer of a job; ``first`` are keys whose values its last step gets before the results."""
    graph = Graph(job.name, inputs)
    return graph.delayed([_add_answer(graph, job, first)])[0]


def answer_as_bag(job: AnyJob, inputs: Iterable[Delayed | Bag] = ()) -> Bag:
    """The answer of a job as the only element of a bag."""
    graph = Graph(job.name, inputs)
    return graph.bag([_add_answer(graph, job, as_list=True)])


def bag_partitions(bag: Bag, argument: str) -> list[TaskRef]:
    """References to the partitions of a bag, which is an argument of a façade."""
    if not isinstance(bag, Bag):
        raise TypeError(f"{argument} must be a dask bag but is {type(bag).__name__}")
    return [TaskRef((bag.name, i)) for i in range(bag.npartitions)]


def delayed_inputs(data: Any) -> tuple[list[Delayed], list[TaskRef]]:
    """The inputs of a write, each as a Delayed, and references to their values."""
    items = [data] if isinstance(data, Delayed) else [delayed(item) for item in iter_inputs(data)]
    return items, [TaskRef(item.key) for item in items]


def results_as_delayed(job: AnyJob) -> list[Delayed]:
    """The results of the tasks of a job, each as a Delayed."""
    graph = Graph(job.name)
    return graph.delayed(_add_tasks(graph, job, job.run))


def results_as_bag(job: AnyJob, *, flatten: bool = False) -> Bag:
    """The results of the tasks of a job, a partition for each; lists of elements if ``flatten``."""
    graph = Graph(job.name)
    return graph.bag(_add_tasks(graph, job, job.run if flatten else partial(_call_to_list, job.run)))


def _add_answer(graph: Graph, job: AnyJob, first: Sequence[DaskKey] = (), *, as_list: bool = False) -> Key:
    """The tasks of a job, their merges, and the last step; ``as_list``: its value is a list of the answer."""
    results = _add_tasks(graph, job, job.run)
    if job.merge is not None:
        results = graph.merge(job.merge, results)
    finish = partial(_call_to_list, job.finish) if as_list else job.finish
    return graph.finalize(job.steps[2], finish, [*first, *results])


def _add_tasks(graph: Graph, job: AnyJob, run: Function) -> list[Key]:
    """One task of the graph per task of the job; if there are none, the preparation."""
    tasks = list(job.tasks)
    if job.prepare is None:
        return graph.map(job.steps[1], run, job.context, tasks)
    prepared = graph.finalize(job.steps[0], partial(_prepare, job.prepare), [])
    run_after = partial(_run_after, run)
    return graph.map(job.steps[1], run_after, job.context, tasks, TaskRef(prepared)) or [prepared]


def _prepare(prepare: Callable[[], None], _results: list[object]) -> list[None]:
    prepare()
    return [None]


def _run_after(run: Callable[[Any, Any], Any], context: Any, task: Any, _prepared: list[None]) -> Any:
    return run(context, task)


def _call_to_list(function: Callable[..., Any], *arguments: object) -> list[Any]:
    return [function(*arguments)]


# -- what the façades of cubes share -------------------------------------------------------------------------

T = TypeVar("T")

#: types that signatures name
TYPES = {"StoreT": "StoreFactoryInput"}
#: how examples compute
SYNC = "{}.compute(scheduler='sync')"
SYNC_ALL = Example(("import dask",), "dask.compute(*{}, scheduler='sync')")

#: work of the tasks of graphs, by operation
_TASKS = {
    "delete_cube": "Headers are deleted first, then ``blocksize`` files per task.",
    "cleanup_cube": "Garbage is listed when the graph is built, ``blocksize`` files are deleted per task.",
    "copy_cube": "Arguments are checked when the graph is built; to tell the stores apart, a key is put and "
    "deleted. Each task copies ``blocksize`` files, the last one commits the datasets.",
    "build_column_statistics": "Each task reads the columns of 256 files, the last one commits.",
    "collect_stats": "Each task counts ``blocksize`` files.",
    "delete_rows": "Partitions with such cells are found when the graph is built; a task rewrites up to 16.",
    "compact_cube": "Partitions to compact are found when the graph is built; a task compacts up to 16.",
    "compute_dataset": "What has changed is found when the graph is built; "
    "a task computes one or several partitions.",
    "verify_cube": "Headers and the existence of files are checked when the graph is built, files in tasks.",
}


def as_factory(store: StoreFactoryInput) -> StoreFactory:
    """The factory with which tasks of a graph open a store: a factory, or that of a URL or directory.

    >>> as_factory("hfs:///data")
    UrlStoreFactory('hfs:///data')
    """
    if not (callable(store) or isinstance(store, str | os.PathLike)):
        raise TypeError(
            "store must be a factory (a function without arguments that opens the store), a directory or a "
            f"URL but is {type(store).__name__}"
        )
    return _guarded_factory(store)


# -- operations that tasks do in blocks ----------------------------------------------------------------------


@attrs.frozen
class DeleteCubeBlocks(garbage.DeleteCube[StoreFactoryInput]):
    """Delete files in blocks."""

    blocksize: int = 100


@attrs.frozen
class CleanupCubeBlocks(garbage.CleanupCube[StoreFactoryInput]):
    """Delete garbage in blocks."""

    blocksize: int = 100


@attrs.frozen
class CopyCubeBlocks(copy.CopyCube[StoreFactoryInput]):
    """Copy files in blocks."""

    blocksize: int = 100


@attrs.frozen
class CollectStatsBlocks(overview.CollectStats[StoreFactoryInput]):
    """Count files in blocks."""

    blocksize: int = 100


def with_factories(operation: T) -> T:
    """The operation with factories as stores; its block size is checked."""
    operation = with_stores(operation, as_factory)
    check_positive("blocksize", getattr(operation, "blocksize", 1))
    return operation


def tasks_note(name: str) -> str:
    """Work of the tasks of a graph, for the documentation of a façade."""
    return next((note for operation, note in _TASKS.items() if name.startswith(operation)), "")


def delayed_facade(module: str, name: str, operation: Callable[P, Operation[Any]]) -> Callable[P, Delayed]:
    """The façade whose functions return the answer of a job as a Delayed."""

    def run(operation: Operation[Any]) -> Delayed:
        return answer_as_delayed(plan_job(with_factories(operation)))

    note = f"The Delayed gives the result. {tasks_note(name)}".strip()
    return facade(module, name, operation, run, note, TYPES, example=Example(value=SYNC))
