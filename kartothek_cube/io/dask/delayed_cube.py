"""Cubes with ``dask.delayed``: functions return Delayed objects, which do the work when computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec

from dask.delayed import Delayed

from kartothek_cube.core.store import StoreFactoryInput
from kartothek_cube.io.dask import _dask_executor as executor
from kartothek_cube.io_components.computed_dataset import ComputeDataset
from kartothek_cube.io_components.delete_rows import DeleteRows
from kartothek_cube.io_components.facade import Example, Operation, define_facade, facade
from kartothek_cube.io_components.maintenance.verify_cube import VerifyCube
from kartothek_cube.io_components.query.executor import announce_query, query_job, run_single_frame
from kartothek_cube.io_components.query.logical_plan import QueryFrames
from kartothek_cube.io_components.query.physical_plan import plan_query
from kartothek_cube.io_components.write import build_index, cube_writes, rewrite
from kartothek_cube.io_components.write.write_commit import write_job
from kartothek_cube.io_components.write.write_tasks import write_part

__all__ = (
    "append_to_cube_from_delayed",
    "build_column_statistics_delayed",
    "build_cube_from_delayed",
    "cleanup_cube_delayed",
    "collect_stats_delayed",
    "compact_cube_delayed",
    "compute_dataset_delayed",
    "copy_cube_delayed",
    "delete_cube_delayed",
    "delete_rows_delayed",
    "extend_cube_from_delayed",
    "query_cube_delayed",
    "remove_partitions_delayed",
    "update_cube_from_delayed",
    "verify_cube_delayed",
)


P = ParamSpec("P")


_UPDATE = cube_writes.UpdateCube[Iterable[Delayed], StoreFactoryInput]


def _write(name: str, write: Callable[P, cube_writes.CubeWrite[Iterable[Delayed]]]) -> Callable[P, Delayed]:
    """The façade of a write: one task per Delayed, then a commit."""

    def run(write: cube_writes.CubeWrite[Iterable[Delayed]]) -> Delayed:
        plan = executor.with_factories(write).plan()
        items, tasks = executor.delayed_inputs(write.data)
        return executor.answer_as_delayed(write_job(plan.with_write_id(), tasks, write_part), items)

    note = (
        "``data`` are Delayed objects. One task checks and writes each of them, the last one commits "
        "the cube. The Delayed that is returned gives the datasets."
    )
    convert, datasets = "data = [dask.delayed(data)]", "datasets = list(data)"
    setup = (convert,) if write is _UPDATE else (datasets, convert)
    example = Example(("import dask", *setup), executor.SYNC, ", datasets" if len(setup) > 1 else "")
    return facade(
        __name__, name, write, run, note, {**executor.TYPES, "DataT": "Iterable[Delayed]"}, example=example
    )


def _delayed(name: str, operation: Callable[P, Operation[Any]]) -> Callable[P, Delayed]:
    """The façade whose functions return the answer of a job as a Delayed."""
    return executor.delayed_facade(__name__, name, operation)


@define_facade(
    QueryFrames[StoreFactoryInput],
    executor.TYPES,
    example=executor.SYNC_ALL,
    returns="One Delayed per group in the order of ``partition_by``, or a single one, or none.",
)
def query_cube_delayed(query: QueryFrames[StoreFactoryInput]) -> list[Delayed]:
    """Query a cube as if it were one DataFrame.

    The query is planned when the graph is built: headers and indices are read then, files in tasks. If no
    file can match, there is no Delayed; a group that proves empty is a DataFrame without rows.
    """
    plan = plan_query(executor.with_factories(query))
    announce_query(plan)
    return executor.results_as_delayed(query_job(plan, plan.tasks(), run_single_frame))


build_cube_from_delayed = _write(
    "build_cube_from_delayed", cube_writes.BuildParts[Iterable[Delayed], StoreFactoryInput]
)
extend_cube_from_delayed = _write(
    "extend_cube_from_delayed", cube_writes.ExtendParts[Iterable[Delayed], StoreFactoryInput]
)
append_to_cube_from_delayed = _write(
    "append_to_cube_from_delayed", cube_writes.AppendParts[Iterable[Delayed], StoreFactoryInput]
)
update_cube_from_delayed = _write("update_cube_from_delayed", _UPDATE)
remove_partitions_delayed = _delayed(
    "remove_partitions_delayed", cube_writes.RemovePartitions[StoreFactoryInput]
)
delete_rows_delayed = _delayed("delete_rows_delayed", DeleteRows[StoreFactoryInput])
delete_cube_delayed = _delayed("delete_cube_delayed", executor.DeleteCubeBlocks)
cleanup_cube_delayed = _delayed("cleanup_cube_delayed", executor.CleanupCubeBlocks)
copy_cube_delayed = _delayed("copy_cube_delayed", executor.CopyCubeBlocks)
build_column_statistics_delayed = _delayed(
    "build_column_statistics_delayed", build_index.BuildColumnStatistics[StoreFactoryInput]
)
collect_stats_delayed = _delayed("collect_stats_delayed", executor.CollectStatsBlocks)
compact_cube_delayed = _delayed("compact_cube_delayed", rewrite.CompactCube[StoreFactoryInput])
verify_cube_delayed = _delayed("verify_cube_delayed", VerifyCube[StoreFactoryInput])
compute_dataset_delayed = _delayed("compute_dataset_delayed", ComputeDataset[StoreFactoryInput])
