"""Looking after cubes with dask: compaction and checks, one task per physical partition or block of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from dask.bag import Bag
from dask.delayed import Delayed

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.io.dask import common_cube
from kartothek_cube.io.dask._graph import Graph
from kartothek_cube.io_components.maintenance.compact import (
    CompactContext,
    CompactResult,
    CompactTask,
    finish_compact,
    plan_compact,
    run_compact,
)
from kartothek_cube.io_components.verify.cube_rules import (
    CubeVerifyPlan,
    finish_cube_verify,
    plan_cube_verify,
    run_cube_verify,
)
from kartothek_cube.io_components.verify.report import Report
from kartothek_cube.io_components.verify.run import VerifyResult
from kartothek_cube.serialization import DataFrameSerializer

__all__ = ("compact_cube_bag", "compact_cube_delayed", "verify_cube_bag", "verify_cube_delayed")

R = TypeVar("R")


def compact_cube_delayed(
    cube: Cube,
    store: StoreFactory,
    conditions: Any = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
) -> Delayed:
    """
    Merge the files of each physical partition into one; which these are is decided when the graph is built.

    Parameters
    ----------
    store
        Factory of the store.
    cube, conditions, ktk_cube_dataset_ids, df_serializer, min_files
        As in :func:`kartothek_cube.io.eager_cube.compact_cube`.

    Returns
    -------
    dask.delayed.Delayed
        The result of :func:`~kartothek_cube.io.eager_cube.compact_cube`.

    Raises
    ------
    TypeError, ValueError
        As there; also if the store is not a factory.
    """
    common_cube.check_store(store)
    plan = plan_compact(cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files)
    return _compact(Graph.to_delayed, *plan)


def compact_cube_bag(
    cube: Cube,
    store: StoreFactory,
    conditions: Any = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
) -> Bag:
    """
    Merge the files of each physical partition into one; which these are is decided when the graph is built.

    Parameters
    ----------
    cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files
        As in :func:`~kartothek_cube.io.dask.delayed_cube.compact_cube_delayed`.

    Returns
    -------
    dask.bag.Bag
        One element: the result of :func:`~kartothek_cube.io.eager_cube.compact_cube`.

    Raises
    ------
    TypeError, ValueError
        As there.
    """
    common_cube.check_store(store)
    plan = plan_compact(cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files)
    return _compact(Graph.to_bag, *plan)


def _compact(end: Callable[..., R], context: CompactContext, tasks: Sequence[CompactTask]) -> R:
    graph = Graph("compact_cube")
    done = graph.map("partition", _compact_one, context, [(task,) for task in tasks])
    return end(graph, "commit", _finish_compact, context, after=graph.merge(_joined, done))


def _compact_one(context: CompactContext, task: CompactTask) -> list[CompactResult]:
    return [run_compact(context, task)]


def _finish_compact(context: CompactContext, results: list[list[CompactResult]]) -> dict[str, dict[str, int]]:
    return finish_compact(context, _joined(results))


def _joined(parts: list[list[Any]]) -> list[Any]:
    return [item for part in parts for item in part]


def verify_cube_delayed(
    cube: Cube,
    store: StoreFactory,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
) -> Delayed:
    """
    Check a cube. Headers and the existence of files are checked when the graph is built, files in tasks.

    Parameters
    ----------
    store
        Factory of the store.
    cube, ktk_cube_dataset_ids, deep
        As in :func:`kartothek_cube.io.eager_cube.verify_cube`.

    Returns
    -------
    dask.delayed.Delayed
        The result of :func:`~kartothek_cube.io.eager_cube.verify_cube`.

    Raises
    ------
    TypeError, ValueError
        As there; also if the store is not a factory.
    """
    common_cube.check_store(store)
    return _verify(Graph.to_delayed, plan_cube_verify(cube, store, ktk_cube_dataset_ids, deep=deep))


def verify_cube_bag(
    cube: Cube,
    store: StoreFactory,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
) -> Bag:
    """
    Check a cube. Headers and the existence of files are checked when the graph is built, files in tasks.

    Parameters
    ----------
    cube, store, ktk_cube_dataset_ids, deep
        As in :func:`~kartothek_cube.io.dask.delayed_cube.verify_cube_delayed`.

    Returns
    -------
    dask.bag.Bag
        One element: the result of :func:`~kartothek_cube.io.eager_cube.verify_cube`.

    Raises
    ------
    TypeError, ValueError
        As there.
    """
    common_cube.check_store(store)
    return _verify(Graph.to_bag, plan_cube_verify(cube, store, ktk_cube_dataset_ids, deep=deep))


def _verify(end: Callable[..., R], plan: CubeVerifyPlan) -> R:
    graph = Graph("verify_cube")
    looked = graph.map("files", _verify_some, plan.contexts(), [(task,) for task in plan.tasks()])
    return end(graph, "report", _finish_verify, plan, after=graph.merge(_joined, looked))


def _verify_some(contexts: Any, task: Any) -> list[dict[str, VerifyResult]]:
    return [run_cube_verify(contexts, task)]


def _finish_verify(plan: CubeVerifyPlan, findings: list[list[dict[str, VerifyResult]]]) -> Report:
    return finish_cube_verify(plan, _joined(findings))
