"""What the dask façades of datasets share: the graph of a write, the tasks of a read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pandas as pd
from dask.delayed import Delayed
from dask.task_spec import TaskRef

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store.resolve import lazy_store
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io.dask._graph import Graph
from kartothek_cube.io_components.read.dataset_read import ReadContext, ReadTask, empty_table, run_read
from kartothek_cube.io_components.read.pandas_index import to_frame
from kartothek_cube.io_components.write.dataset_commit import finish_update, run_update
from kartothek_cube.io_components.write.dataset_plan import with_scope
from kartothek_cube.io_components.write.plan import DatasetWritePlan, with_write_id
from kartothek_cube.io_components.write.table_writer import WriteContext, WriteResult, merge_results

__all__ = (
    "ReadOptions",
    "Written",
    "check_table",
    "frame_of",
    "frames_of",
    "known_scope",
    "references",
    "picklable_store",
    "write_dataset",
    "write_input",
    "write_inputs",
)

R = TypeVar("R")
ReadOptions = tuple[ReadContext, bool]
#: what a task wrote: one result, none if there was no input
Written = list[WriteResult]


def write_dataset(
    end: Callable[..., R],
    operation: str,
    plan: DatasetWritePlan,
    inputs: Sequence[Any],
    function: Callable[..., Written],
    arguments: Sequence[tuple[Any, ...]],
    delete_scope: Any = None,
) -> R:
    """
    Write inputs in independent tasks, then commit in a last one.

    Parameters
    ----------
    end
        Form of the result: ``Graph.to_delayed`` or ``Graph.to_item``.
    operation
        Name of the operation.
    plan
        The change.
    inputs
        dask collections that the arguments refer to.
    function
        Writes some of the input: ``function(context, *arguments[i])``.
    arguments
        Arguments of the tasks.
    delete_scope
        The ``delete_scope`` if it is a Delayed; else it is part of the plan.
    """
    plan, late = with_write_id(plan), isinstance(delete_scope, Delayed)
    graph = Graph(operation, [*inputs, delete_scope] if late else inputs)
    parts = graph.merge(_merged, graph.map("write", function, plan.context, arguments))
    if late:
        return end(graph, "commit", _finish_late, plan, after=[delete_scope.key, *parts])
    return end(graph, "commit", _finish, plan, after=parts)


def _merged(parts: Iterable[Written]) -> Written:
    results = [result for part in parts for result in part]
    return [merge_results(results)] if results else []


def _finish(plan: DatasetWritePlan, parts: list[Written]) -> DatasetMetadata:
    return finish_update(plan, _merged(parts))


def picklable_store(store: StoreInput | None) -> StoreFactory | None:
    """
    A factory of a store that graphs can carry; None stays None.

    Raises
    ------
    TypeError
        It is a store that cannot be pickled; then pass its factory or URL.
    """
    return None if store is None else lazy_store(store)


def check_table(table: Any) -> str:
    """
    Check the name of a table.

    Raises
    ------
    TypeError
        It is no text.
    """
    if not isinstance(table, str):
        raise TypeError(f"table must be the name of a table but is {table!r}")
    return table


def known_scope(delete_scope: Any) -> Any:
    """The ``delete_scope`` as far as it is known when a write is planned."""
    return None if isinstance(delete_scope, Delayed) else delete_scope


def _finish_late(plan: DatasetWritePlan, results: list[Any]) -> DatasetMetadata:
    delete_scope, *parts = results
    return _finish(with_scope(plan, delete_scope), parts)


def write_input(context: WriteContext, item: Any) -> Written:
    """Write one input."""
    return [run_update(context, item)]


def write_inputs(context: WriteContext, items: Iterable[Any]) -> Written:
    """Write several inputs, one after the other."""
    return _merged([write_input(context, item) for item in items])


def frame_of(options: ReadOptions, task: ReadTask | None) -> pd.DataFrame:
    """The frame of a task; without task, one without rows."""
    context, dates_as_object = options
    table = empty_table(context) if task is None else run_read(context, task)
    return to_frame(table, dates_as_object, context.categoricals)


def frames_of(options: ReadOptions, tasks: Iterable[ReadTask]) -> list[pd.DataFrame]:
    """The frames of some tasks."""
    return [frame_of(options, task) for task in tasks]


def references(keys: Iterable[Any]) -> list[tuple[TaskRef]]:
    """Keys as arguments of tasks, one for each."""
    return [(TaskRef(key),) for key in keys]
