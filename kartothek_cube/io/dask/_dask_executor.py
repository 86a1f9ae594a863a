"""dask as executor: a job becomes a graph of its tasks, a tree of merges and one last task."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from dask.bag import Bag, Item
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import DataNode, GraphNode, Task, TaskRef

from kartothek_cube.io_components.job import Job

__all__ = (
    "FAN_IN",
    "Graph",
    "Key",
    "OpaqueSequence",
    "answer_as_bag",
    "answer_as_delayed",
    "answer_as_item",
    "results_as_bag",
    "results_as_delayed",
)

Answer = TypeVar("Answer")
Context = TypeVar("Context")
Form = TypeVar("Form")
Input = TypeVar("Input")
Result = TypeVar("Result")

#: results per merge; up to this number, tasks carry their context themselves
FAN_IN = 32

#: key of a task: name of its step, number within the step
Key: TypeAlias = tuple[str, int]


class Graph:
    """A graph under construction; keys are named ``<operation>-<step>-<token>``, as dashboards show them."""

    def __init__(self, operation: str, inputs: Iterable[Any] = ()) -> None:
        self._operation = operation
        self._token = uuid.uuid4().hex
        self._tasks: dict[Any, GraphNode] = {}
        self._inputs = list(inputs)

    def name(self, step: str) -> str:
        """Prefix of the keys of a step."""
        return f"{self._operation}-{step}-{self._token}"

    def map(
        self,
        step: str,
        function: Callable[..., Any],
        context: Any,
        arguments: Sequence[tuple[Any, ...]],
    ) -> list[Key]:
        """Add ``function(context, *arguments[i])`` for each i; many tasks share one key for the context."""
        if len(arguments) > FAN_IN:
            context = self._share(step, context)
        return [self._add((self.name(step), i), function, context, *args) for i, args in enumerate(arguments)]

    def merge(self, function: Callable[[list[Any]], Any], keys: Sequence[Key]) -> list[Key]:
        """Add a tree of tasks that merge results, down to at most ``FAN_IN`` keys."""
        merged, done = list(keys), 0
        while len(merged) > FAN_IN:
            parts = [merged[start : start + FAN_IN] for start in range(0, len(merged), FAN_IN)]
            merged = [
                self._add((self.name("merge"), done + i), _with_list, function, (), *map(TaskRef, part))
                for i, part in enumerate(parts)
            ]
            done += len(parts)
        return merged

    def finalize(
        self, step: str, function: Callable[..., Any], *arguments: Any, after: Sequence[Key] | None = None
    ) -> Key:
        """Add a single task; unless ``after`` is None, its last argument is the list of their results."""
        key = (self.name(step), 0)
        if after is None:
            return self._add(key, function, *arguments)
        return self._add(key, _with_list, function, arguments, *map(TaskRef, after))

    def to_delayed(
        self, step: str, function: Callable[..., Any], *arguments: Any, after: Any = None
    ) -> Delayed:
        """Add a task as by :meth:`finalize`; its result as a Delayed."""
        return self.delayed([self.finalize(step, function, *arguments, after=after)])[0]

    def to_bag(self, step: str, function: Callable[..., Any], *arguments: Any, after: Any = None) -> Bag:
        """Add a task as by :meth:`finalize`; its result as the only element of a bag."""
        return self.bag([self.finalize(step, _listed, function, *arguments, after=after)])

    def to_item(self, step: str, function: Callable[..., Any], *arguments: Any, after: Any = None) -> Item:
        """Add a task as by :meth:`finalize`; its result as a bag item."""
        key = self.finalize(step, function, *arguments, after=after)
        name = self.name("graph")
        graph = HighLevelGraph.from_collections(name, self._tasks, dependencies=self._inputs)
        return Item(graph, key, layer=name)

    def delayed(self, keys: Sequence[Key]) -> list[Delayed]:
        """The values of keys, each as a Delayed of this graph."""
        name = self.name("graph")
        graph = HighLevelGraph.from_collections(name, self._tasks, dependencies=self._inputs)
        return [Delayed(key, graph, layer=name) for key in keys]

    def bag(self, keys: Sequence[Key]) -> Bag:
        """A bag of all keys of one step, whose values are lists; without keys the bag is empty."""
        if not keys:
            keys = [(self.name("nothing"), 0)]
            self._tasks[keys[0]] = DataNode(keys[0], [])
        name = keys[0][0]
        graph = HighLevelGraph.from_collections(name, self._tasks, dependencies=self._inputs)
        return Bag(graph, name, len(keys))

    def _share(self, step: str, value: Any) -> TaskRef:
        key = self.name(f"{step}-context")
        self._tasks[key] = DataNode(key, value)
        return TaskRef(key)

    def _add(self, key: Key, function: Callable[..., Any], *arguments: Any) -> Key:
        self._tasks[key] = Task(key, function, *arguments)
        return key


class OpaqueSequence(Sequence[Any]):
    """A list that dask does not look into to tokenize it."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = list(items)
        self._token = uuid.uuid4().hex

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __dask_tokenize__(self) -> str:
        return self._token


def answer_as_delayed(
    job: Job[Any, Any, Any, Any], inputs: Iterable[Any] = (), first: Sequence[Any] = ()
) -> Delayed:
    """The answer of a job; ``first`` are keys whose values its last step gets before the results."""
    return _answer(Graph.to_delayed, job, inputs, first)


def answer_as_bag(job: Job[Any, Any, Any, Any], inputs: Iterable[Any] = ()) -> Bag:
    """The answer of a job as the only element of a bag."""
    return _answer(Graph.to_bag, job, inputs)


def answer_as_item(job: Job[Any, Any, Any, Any], inputs: Iterable[Any] = ()) -> Item:
    """The answer of a job as a bag item."""
    return _answer(Graph.to_item, job, inputs)


def results_as_delayed(job: Job[Any, Any, Any, Any]) -> list[Delayed]:
    """The results of the tasks of a job, each as a Delayed."""
    graph = Graph(job.name)
    return graph.delayed(_add_tasks(graph, job, job.run))


def results_as_bag(job: Job[Any, Any, Any, Any], *, flatten: bool = False) -> Bag:
    """The results of the tasks of a job, a partition for each; lists of elements if ``flatten``."""
    graph = Graph(job.name)
    return graph.bag(_add_tasks(graph, job, job.run if flatten else partial(_run_to_list, job.run)))


def _answer(
    form: Callable[..., Form],
    job: Job[Any, Any, Any, Any],
    inputs: Iterable[Any],
    first: Sequence[Any] = (),
) -> Form:
    graph = Graph(job.name, inputs)
    if job.merge is None:
        lists = graph.merge(_join_lists, _add_tasks(graph, job, partial(_run_to_list, job.run)))
        return form(graph, job.steps[2], _finish_lists, job.finish, after=lists)
    results = graph.merge(job.merge, _add_tasks(graph, job, job.run))
    return form(graph, job.steps[2], job.finish, after=[*first, *results])


def _add_tasks(graph: Graph, job: Job[Context, Any, Result, Any], run: Callable[..., Any]) -> list[Key]:
    """One task of the graph per task of the job; if there are none, the preparation."""
    arguments = [(task,) for task in job.tasks]
    if job.prepare is None:
        return graph.map(job.steps[1], run, job.context, arguments)
    prepared = graph.finalize(job.steps[0], _prepare, job.prepare)
    after = [(*argument, TaskRef(prepared)) for argument in arguments]
    return graph.map(job.steps[1], partial(_run_after, run), job.context, after) or [prepared]


def _prepare(prepare: Callable[[], None]) -> list[None]:
    prepare()
    return [None]


def _run_after(run: Callable[..., Any], context: Any, task: Any, _prepared: list[None]) -> Any:
    return run(context, task)


def _run_to_list(run: Callable[[Context, Input], Result], context: Context, task: Input) -> list[Result]:
    return [run(context, task)]


def _join_lists(lists: Iterable[list[Result]]) -> list[Result]:
    return list(chain.from_iterable(lists))


def _finish_lists(finish: Callable[[Iterable[Result]], Answer], lists: list[list[Result]]) -> Answer:
    return finish(chain.from_iterable(lists))


def _with_list(function: Callable[..., Any], arguments: tuple[Any, ...], *results: Any) -> Any:
    return function(*arguments, list(results))


def _listed(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    return [function(*arguments)]
