"""Cubes with ``dask.delayed``: functions return Delayed objects, which do the work when computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from dask.delayed import Delayed

from kartothek_cube.core.store import StoreFactoryInput
from kartothek_cube.io.dask import _dask_executor as executor
from kartothek_cube.io_components import computed_dataset, delete_rows
from kartothek_cube.io_components.facade import Example, Operation, P, define_facade, facade
from kartothek_cube.io_components.maintenance import verify_cube
from kartothek_cube.io_components.query.executor import announce_query, query_job, run_single_frame
from kartothek_cube.io_components.query.logical_plan import QueryFrames
from kartothek_cube.io_components.query.physical_plan import plan_query
from kartothek_cube.io_components.write import cube_writes, rewrite, write_commit, write_tasks
from kartothek_cube.io_components.write.build_index import BuildColumnStatistics

__all__ = ["build_cube_from_delayed", "extend_cube_from_delayed"]
__all__ += ["append_to_cube_from_delayed", "update_cube_from_delayed"]
__all__ += ["query_cube_delayed", "compute_dataset_delayed"]
__all__ += ["delete_rows_delayed", "remove_partitions_delayed", "delete_cube_delayed", "copy_cube_delayed"]
__all__ += ["cleanup_cube_delayed", "compact_cube_delayed", "build_column_statistics_delayed"]
__all__ += ["collect_stats_delayed", "verify_cube_delayed"]


Data: TypeAlias = Iterable[Delayed]
_TYPES = {**executor.TYPES, "DataT": "Iterable[Delayed]"}
_UPDATE = cube_writes.UpdateCube[Data, StoreFactoryInput]


def _write(operation: str, write: Callable[P, cube_writes.CubeWrite[Data]]) -> Callable[P, Delayed]:
    """The façade of a write: one task per Delayed, then a commit."""

    def run(write: cube_writes.CubeWrite[Data]) -> Delayed:
        plan = executor.with_factories(write).plan()
        items, tasks = executor.delayed_inputs(write.data)
        job = write_commit.write_job(plan, tasks, write_tasks.write_part)
        return executor.answer_as_delayed(job, items)

    note = (
        "``data`` are Delayed objects. One task checks and writes each of them, the last one commits "
        "the cube. The Delayed that is returned gives the datasets."
    )
    convert, datasets = "data = [dask.delayed(data)]", "datasets = list(data)"
    setup = (convert,) if write is _UPDATE else (datasets, convert)
    example = Example(("import dask", *setup), executor.SYNC, ", datasets" if len(setup) > 1 else "")
    return facade(__name__, f"{operation}_from_delayed", write, run, note, _TYPES, example=example)


def _delayed(name: str, operation: Callable[P, Operation[Any]]) -> Callable[P, Delayed]:
    """The façade whose functions return the answer of a job as a Delayed."""
    return executor.delayed_facade(__name__, f"{name}_delayed", operation)


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


build_cube_from_delayed = _write("build_cube", cube_writes.BuildParts[Data, StoreFactoryInput])
extend_cube_from_delayed = _write("extend_cube", cube_writes.ExtendParts[Data, StoreFactoryInput])
append_to_cube_from_delayed = _write("append_to_cube", cube_writes.AppendParts[Data, StoreFactoryInput])
update_cube_from_delayed = _write("update_cube", _UPDATE)
remove_partitions_delayed = _delayed("remove_partitions", cube_writes.RemovePartitions[StoreFactoryInput])
delete_rows_delayed = _delayed("delete_rows", delete_rows.DeleteRows[StoreFactoryInput])
delete_cube_delayed = _delayed("delete_cube", executor.DeleteCubeBlocks)
cleanup_cube_delayed = _delayed("cleanup_cube", executor.CleanupCubeBlocks)
copy_cube_delayed = _delayed("copy_cube", executor.CopyCubeBlocks)
build_column_statistics_delayed = _delayed(
    "build_column_statistics", BuildColumnStatistics[StoreFactoryInput]
)
collect_stats_delayed = _delayed("collect_stats", executor.CollectStatsBlocks)
compact_cube_delayed = _delayed("compact_cube", rewrite.CompactCube[StoreFactoryInput])
verify_cube_delayed = _delayed("verify_cube", verify_cube.VerifyCube[StoreFactoryInput])
compute_dataset_delayed = _delayed("compute_dataset", computed_dataset.ComputeDataset[StoreFactoryInput])
