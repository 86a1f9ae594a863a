"""Cubes with ``dask.delayed``: functions return Delayed objects, which do the work when computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec

from dask.delayed import Delayed, delayed
from dask.task_spec import TaskRef

from kartothek_cube.core.typing import StoreFactoryInput
from kartothek_cube.io.dask._dask_executor import (
    SYNC,
    SYNC_ALL,
    TYPES,
    CleanupCubeBlocks,
    CollectStatsBlocks,
    CopyCubeBlocks,
    DeleteCubeBlocks,
    answer_as_delayed,
    delayed_facade,
    results_as_delayed,
    with_factories,
)
from kartothek_cube.io_components.computed_dataset import ComputeDataset
from kartothek_cube.io_components.delete_rows import DeleteRows
from kartothek_cube.io_components.facade import Example, define_facade, facade
from kartothek_cube.io_components.maintenance.compact import CompactCube
from kartothek_cube.io_components.query.cube_query import QueryFrames
from kartothek_cube.io_components.query.executor import query_job, run_single_frame
from kartothek_cube.io_components.query.planner import plan_frames
from kartothek_cube.io_components.verify.cube_rules import VerifyCube
from kartothek_cube.io_components.write.cube_writes import (
    AppendParts,
    BuildParts,
    CubeWrite,
    ExtendParts,
    RemovePartitions,
    UpdateCube,
)
from kartothek_cube.io_components.write.write_commit import write_job
from kartothek_cube.io_components.write.write_tasks import iter_elements, write_part

__all__ = (
    "append_to_cube_from_delayed",
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


_UPDATE = UpdateCube[Iterable[Delayed], StoreFactoryInput]


def _write(name: str, write: Callable[P, CubeWrite[Iterable[Delayed]]]) -> Callable[P, Delayed]:
    """The façade of a write: one task per Delayed, then a commit."""

    def run(write: CubeWrite[Iterable[Delayed]]) -> Delayed:
        plan, data = with_factories(write).plan(), write.data
        items = [data] if isinstance(data, Delayed) else [delayed(element) for element in iter_elements(data)]
        tasks = [TaskRef(item.key) for item in items]
        return answer_as_delayed(write_job(plan.with_write_id(), tasks, write_part), items)

    note = (
        "``data`` are Delayed objects. One task checks and writes each of them, the last one commits "
        "the cube. The Delayed that is returned gives the datasets."
    )
    convert, datasets = "data = [dask.delayed(data)]", "datasets = list(data)"
    setup = (convert,) if write is _UPDATE else (datasets, convert)
    example = Example(("import dask", *setup), SYNC, ", datasets" if len(setup) > 1 else "")
    return facade(__name__, name, write, run, note, {**TYPES, "DataT": "Iterable[Delayed]"}, example=example)


@define_facade(
    QueryFrames[StoreFactoryInput],
    TYPES,
    example=SYNC_ALL,
    returns="One Delayed per group in the order of ``partition_by``, or a single one, or none.",
)
def query_cube_delayed(query: QueryFrames[StoreFactoryInput]) -> list[Delayed]:
    """Query a cube as if it were one DataFrame.

    The query is planned when the graph is built: headers and indices are read then, files in tasks. If no
    file can match, there is no Delayed; a group that proves empty is a DataFrame without rows.
    """
    plan = plan_frames(with_factories(query))
    return results_as_delayed(query_job(plan, plan.tasks(), run_single_frame))


build_cube_from_delayed = _write("build_cube_from_delayed", BuildParts[Iterable[Delayed], StoreFactoryInput])
extend_cube_from_delayed = _write(
    "extend_cube_from_delayed", ExtendParts[Iterable[Delayed], StoreFactoryInput]
)
append_to_cube_from_delayed = _write(
    "append_to_cube_from_delayed", AppendParts[Iterable[Delayed], StoreFactoryInput]
)
update_cube_from_delayed = _write("update_cube_from_delayed", _UPDATE)
remove_partitions_delayed = delayed_facade(
    __name__, "remove_partitions_delayed", RemovePartitions[StoreFactoryInput]
)
delete_rows_delayed = delayed_facade(__name__, "delete_rows_delayed", DeleteRows[StoreFactoryInput])
delete_cube_delayed = delayed_facade(__name__, "delete_cube_delayed", DeleteCubeBlocks)
cleanup_cube_delayed = delayed_facade(__name__, "cleanup_cube_delayed", CleanupCubeBlocks)
copy_cube_delayed = delayed_facade(__name__, "copy_cube_delayed", CopyCubeBlocks)
collect_stats_delayed = delayed_facade(__name__, "collect_stats_delayed", CollectStatsBlocks)
compact_cube_delayed = delayed_facade(__name__, "compact_cube_delayed", CompactCube[StoreFactoryInput])
verify_cube_delayed = delayed_facade(__name__, "verify_cube_delayed", VerifyCube[StoreFactoryInput])
compute_dataset_delayed = delayed_facade(
    __name__, "compute_dataset_delayed", ComputeDataset[StoreFactoryInput]
)
