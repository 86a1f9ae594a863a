"""What the dask façades of cubes share: checks of arguments, and the graph of each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import pandas as pd
from dask.delayed import Delayed
from dask.task_spec import TaskRef

from kartothek_cube.core.arrow.pandas_conversion import to_pandas
from kartothek_cube.core.cube.consistency import get_dataset_columns
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.io.dask._graph import Graph, Key, discard_results
from kartothek_cube.io_components.maintenance.cube_copy import (
    CopyPlan,
    copy_tasks,
    finish_copies,
    run_copy_task,
)
from kartothek_cube.io_components.maintenance.delete import plan_cube_delete, run_delete_headers
from kartothek_cube.io_components.maintenance.garbage import delete_garbage, plan_cube_garbage
from kartothek_cube.io_components.maintenance.stats import add_stats, plan_stats, run_stats, sum_stats
from kartothek_cube.io_components.query.frame_conversion import run_frames
from kartothek_cube.io_components.query.physical_plan import ScanContext, ScanTask
from kartothek_cube.io_components.runtime.threads import batched
from kartothek_cube.io_components.write.cube_commit import finish_write
from kartothek_cube.io_components.write.cube_plan import CubeWritePlan
from kartothek_cube.io_components.write.cube_write import merge_writes
from kartothek_cube.io_components.write.incremental import commit_parts, without_commit_state
from kartothek_cube.io_components.write.plan import with_write_id
from kartothek_cube.io_components.write.table_writer import WriteResult

__all__ = (
    "check_blocksize",
    "check_store",
    "cleanup_cube",
    "collect_stats",
    "copy_cube",
    "delete_cube",
    "ensure_valid_cube_indices",
    "finish_cube",
    "frame_of",
    "frames_of",
    "wait",
    "write_cube",
)


R = TypeVar("R")


# -- arguments -----------------------------------------------------------------------------------------------


def check_store(store: Any) -> None:
    """
    Check that a store can travel to the tasks of a graph.

    Raises
    ------
    TypeError
        It is not a factory; names its class.

    Examples
    --------
    >>> check_store("hfs:///data")
    Traceback (most recent call last):
    ...
    TypeError: store must be a factory (a function without arguments that opens the store) but is str
    """
    if not callable(store):
        raise TypeError(
            "store must be a factory (a function without arguments that opens the store) "
            f"but is {type(store).__name__}"
        )


def check_blocksize(blocksize: Any) -> None:
    """
    Check how many pieces of work a task gets.

    Raises
    ------
    TypeError
        It is no integer.
    ValueError
        It is not positive.

    Examples
    --------
    >>> check_blocksize(0)
    Traceback (most recent call last):
    ...
    ValueError: blocksize must be > 0 but is 0
    """
    if not isinstance(blocksize, int) or isinstance(blocksize, bool):
        raise TypeError(f"blocksize must be an integer but is {type(blocksize).__name__}")
    if blocksize <= 0:
        raise ValueError(f"blocksize must be > 0 but is {blocksize}")


def ensure_valid_cube_indices(existing_datasets: Mapping[str, DatasetMetadata], cube: Cube) -> Cube:
    """
    Extend the specification of a cube by the indices that its datasets have.

    Parameters
    ----------
    existing_datasets
        Datasets by id.
    cube
        The specification.

    Returns
    -------
    Cube

    Raises
    ------
    ValueError
        The specification wants an index on a column of a dataset that has none there.
    """
    found: set[str] = set()
    for name, dataset in sorted(existing_datasets.items()):
        wanted = set(cube.index_columns) & get_dataset_columns(dataset)
        missing = wanted - set(dataset.secondary_indices)
        if missing:
            raise ValueError(
                f"Dataset {name!r} has no index on {', '.join(sorted(missing))}, which is an index column of "
                f"{cube}; indexed are: {', '.join(sorted(dataset.secondary_indices)) or 'none'}"
            )
        found |= set(dataset.secondary_indices)
    own = {*cube.dimension_columns, *cube.partition_columns}
    return cube.copy(
        index_columns=set(cube.index_columns) | (found - own),
        suppress_index_on=set(cube.suppress_index_on) - found,
    )


# -- writes --------------------------------------------------------------------------------------------------


def write_cube(
    end: Callable[..., R],
    plan: CubeWritePlan,
    inputs: Sequence[Any],
    function: Callable[..., dict[str, WriteResult]],
    arguments: Sequence[tuple[Any, ...]],
) -> R:
    """
    Write input in independent tasks, then commit in a last one.

    Parameters
    ----------
    end
        Form of the result: ``Graph.to_delayed`` or ``Graph.to_bag``.
    plan
        The write.
    inputs
        dask collections that the arguments refer to.
    function
        Writes some of the input: ``function(plan, *arguments[i])``.
    arguments
        Arguments of the tasks.
    """
    plan, graph = with_write_id(plan), Graph(f"{plan.operation}_cube", inputs)
    parts = graph.merge(merge_writes, graph.map("write", function, without_commit_state(plan), arguments))
    return end(graph, "commit", commit_parts, plan, after=parts)


def finish_cube(end: Callable[..., R], plan: CubeWritePlan) -> R:
    """Commit a plan without input."""
    return end(Graph(plan.operation), "commit", finish_write, plan, {})


# -- queries -------------------------------------------------------------------------------------------------


def frames_of(context: ScanContext, tasks: Iterable[ScanTask]) -> list[pd.DataFrame]:
    """The frames of some tasks of a query; groups without rows are left out."""
    return [frame for task in tasks for frame in run_frames(context, task)]


def frame_of(context: ScanContext, task: ScanTask | None) -> pd.DataFrame:
    """The frame of a task of a query; without task or rows, it still has the planned columns and types."""
    frames = [] if task is None else run_frames(context, task)
    return frames[0] if frames else to_pandas(context.output.empty_table())


# -- maintenance ---------------------------------------------------------------------------------------------


def delete_cube(cube: Cube, store: StoreFactory, datasets: Any, blocksize: int) -> tuple[Graph, list[Key]]:
    """Delete the headers, then all other files in any order."""
    plan = plan_cube_delete(cube, store, datasets)
    graph = Graph("delete_cube")
    first = graph.finalize("headers", _delete_headers, store, plan.uuids)
    rest = [(block, TaskRef(first)) for block in batched(plan.keys, blocksize)]
    return graph, graph.map("files", _collect, store, rest) or [first]


def cleanup_cube(
    cube: Cube, store: StoreFactory, blocksize: int, retention: timedelta | None
) -> tuple[Graph, list[Key]]:
    """Delete the keys that no dataset refers to."""
    graph = Graph("cleanup_cube")
    keys = batched(plan_cube_garbage(cube, store, retention), blocksize)
    return graph, graph.map("files", _collect, store, [(block,) for block in keys])


def copy_cube(end: Callable[..., R], plan: CopyPlan, blocksize: int) -> R:
    """Copy files in any order, then schemas and headers."""
    graph = Graph("copy_cube")
    copied = graph.map("files", run_copy_task, plan, [(task,) for task in copy_tasks(plan, blocksize)])
    return end(graph, "headers", _finish_copies, plan, after=graph.merge(discard_results, copied))


def collect_stats(end: Callable[..., R], cube: Cube, store: StoreFactory, datasets: Any, blocksize: int) -> R:
    """Count files in any order, then add up."""
    base, tasks = plan_stats(cube, store, datasets, blocksize)
    graph = Graph("collect_stats")
    counted = graph.map("count", run_stats, store, [(task,) for task in tasks])
    return end(graph, "sum", _sum_stats, base, after=graph.merge(add_stats, counted))


def wait(graph: Graph, keys: Sequence[Key]) -> Delayed:
    """A Delayed of None for tasks without a result."""
    return graph.to_delayed("done", discard_results, after=graph.merge(discard_results, keys))


def _collect(store: StoreFactory, keys: Sequence[str], *_after: Any) -> list[None]:
    delete_garbage(store, keys)
    return [None]


def _delete_headers(store: StoreFactory, uuids: Sequence[str]) -> list[None]:
    run_delete_headers(store, uuids)
    return [None]


def _finish_copies(plan: CopyPlan, _copied: list[None]) -> None:
    finish_copies(plan)


def _sum_stats(base: dict[str, dict[str, int]], parts: list[Any]) -> dict[str, dict[str, int]]:
    return sum_stats([base, *parts])
