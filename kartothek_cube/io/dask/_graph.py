"""Building graphs: one shared context, a small task per piece of work, a tree of merges, one last task."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from dask.bag import Bag, Item
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import DataNode, GraphNode, Task, TaskRef

__all__ = ("FAN_IN", "Graph", "Key", "OpaqueSequence", "discard_results")

#: how many results meet in one task; so few tasks carry their context themselves
FAN_IN = 32

#: key of a task: name of its step, number within the step
Key: TypeAlias = tuple[str, int]


class Graph:
    """
    A graph under construction.

    Keys are named ``<operation>-<step>-<token>``, which is what progress bars and the dashboard show.

    Parameters
    ----------
    operation
        What the graph does, e.g. ``build_cube``.
    inputs
        dask collections whose keys the tasks refer to.
    """

    def __init__(self, operation: str, inputs: Iterable[Any] = ()) -> None:
        self._operation = operation
        self._token = uuid.uuid4().hex
        self._tasks: dict[Any, GraphNode] = {}
        self._inputs = list(inputs)

    def name(self, step: str) -> str:
        """What the keys of a step begin with."""
        return f"{self._operation}-{step}-{self._token}"

    def map(
        self,
        step: str,
        function: Callable[..., Any],
        context: Any,
        arguments: Sequence[tuple[Any, ...]],
    ) -> list[Key]:
        """
        Add one task per piece of work.

        Parameters
        ----------
        step
            Name of the step.
        function
            Called as ``function(context, *arguments[i])``; found by its name on workers.
        context
            What the tasks share: under a key of its own, unless they are few.
        arguments
            Arguments of each task; references to other keys are replaced by their values.

        Returns
        -------
        list
            Keys of the tasks.
        """
        if len(arguments) > FAN_IN:
            context = self._share(step, context)
        return [self._add((self.name(step), i), function, context, *args) for i, args in enumerate(arguments)]

    def merge(self, function: Callable[[list[Any]], Any], keys: Sequence[Key]) -> list[Key]:
        """
        Add a tree of tasks that merge results until one task can take what is left.

        Parameters
        ----------
        function
            Merges a list of results; associative.
        keys
            Keys of the results.

        Returns
        -------
        list
            At most ``FAN_IN`` keys.
        """
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
        """
        Add a single task.

        Parameters
        ----------
        step
            Name of the step.
        function
            Called with the arguments and, unless ``after`` is None, with the list of their results.
        arguments
            Arguments.
        after
            Keys of the tasks to wait for.

        Returns
        -------
        Key
        """
        key = (self.name(step), 0)
        if after is None:
            return self._add(key, function, *arguments)
        return self._add(key, _with_list, function, arguments, *map(TaskRef, after))

    def to_delayed(
        self, step: str, function: Callable[..., Any], *arguments: Any, after: Any = None
    ) -> Delayed:
        """Add a task as in :meth:`last`; its result as a Delayed."""
        return self.delayed([self.finalize(step, function, *arguments, after=after)])[0]

    def to_bag(self, step: str, function: Callable[..., Any], *arguments: Any, after: Any = None) -> Bag:
        """Add a task as in :meth:`last`; its result as the only element of a bag."""
        return self.bag([self.finalize(step, _listed, function, *arguments, after=after)])

    def to_item(self, step: str, function: Callable[..., Any], *arguments: Any, after: Any = None) -> Item:
        """Add a task as in :meth:`last`; its result as a bag item."""
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
        """
        A bag with a partition per key.

        Parameters
        ----------
        keys
            Keys of one step, all of them. Their values are lists; without keys the bag is empty.
        """
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
    """
    A list of which dask takes each to be different from all others, without looking into it.

    Parameters
    ----------
    items
        Its items.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = list(items)
        self._token = uuid.uuid4().hex

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __dask_tokenize__(self) -> str:
        return self._token


def discard_results(_results: list[Any]) -> None:
    """Merge the results of tasks that have none."""


def _with_list(function: Callable[..., Any], arguments: tuple[Any, ...], *results: Any) -> Any:
    return function(*arguments, list(results))


def _listed(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    return [function(*arguments)]
