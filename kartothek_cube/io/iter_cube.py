"""Cubes with iterators: one frame of input, or block of groups of a result, is in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from typing import TypeAlias

import pandas as pd

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io_components import computed_dataset, delete_rows, runtime
from kartothek_cube.io_components.facade import Example, Operation, P, define_facade, facade, plan_job
from kartothek_cube.io_components.job import Answer, execute, iter_results
from kartothek_cube.io_components.maintenance import copy, garbage, overview, verify_cube
from kartothek_cube.io_components.query import executor, physical_plan
from kartothek_cube.io_components.query.logical_plan import QueryFrames
from kartothek_cube.io_components.write import cube_writes, rewrite, write_commit
from kartothek_cube.io_components.write.build_index import BuildColumnStatistics
from kartothek_cube.io_components.write.write_tasks import CubeElement, iter_inputs, write_part

__all__ = ["build_cube__iter", "extend_cube__iter", "append_to_cube__iter", "update_cube__iter"]
__all__ += ["query_cube__iter", "query_cube__iterator", "compute_dataset__iter"]
__all__ += ["delete_rows__iter", "remove_partitions__iter", "delete_cube__iter", "copy_cube__iter"]
__all__ += ["cleanup_cube__iter", "compact_cube__iter"]
__all__ += ["build_column_statistics__iter", "collect_stats__iter", "verify_cube__iter"]


Datasets: TypeAlias = dict[str, DatasetMetadata]

_TYPES = {"DataT": "Iterable[CubeElement]", "StoreT": "StoreInput"}
_INPUT = (
    "``data`` is an iterable. Each element is checked and written before the next one is taken; the cube "
    "appears, or changes, at the end."
)


Data: TypeAlias = Iterable[CubeElement]
_UPDATE = cube_writes.UpdateCube[Data, StoreInput]
_EXAMPLE = Example(("datasets, data = list(data), [data]",), arguments=", datasets")


def _write(name: str, write: Callable[P, cube_writes.CubeWrite[Data]]) -> Callable[P, Datasets]:
    """The façade of a write that holds one part of the input in memory."""

    def run(write: cube_writes.CubeWrite[Data]) -> dict[str, DatasetMetadata]:
        return execute(write_commit.write_job(write.plan(), iter_inputs(write.data), write_part))

    example = _EXAMPLE if write is not _UPDATE else Example(("data = [data]",))
    return facade(__name__, name, write, run, _INPUT, _TYPES, example=example)


def _iter(name: str, operation: Callable[P, Operation[Answer]]) -> Callable[P, Answer]:
    """The façade that runs one task of a job at a time."""

    def run(operation: Operation[Answer]) -> Answer:
        job = plan_job(operation)
        # tasks that take the time do not exceed one thread either
        with runtime.limit_threads(1) if job.is_parallel else nullcontext():
            return execute(job)

    return facade(__name__, name, operation, run, "One task runs at a time.", _TYPES)


@define_facade(QueryFrames[StoreInput], _TYPES)
def query_cube__iterator(query: QueryFrames[StoreInput]) -> Iterator[pd.DataFrame]:
    """Query a cube as if it were one DataFrame.

    The call plans the query and raises what is wrong with it. The first groups are read when their frames are
    taken, later ones in blocks of some megabytes, and before they are needed if the store is remote. For the
    types of groups, footers of files are read when it is planned.
    """
    plan = physical_plan.plan_query(query)
    tasks = plan.tasks() if plan.groups is None else physical_plan.plan_iteration(plan)
    job = executor.query_job(plan, tasks, executor.run_frames)
    frames = chain.from_iterable(iter_results(job))
    return executor.announce_end(plan, frames)


build_cube__iter = _write("build_cube__iter", cube_writes.BuildParts[Data, StoreInput])
extend_cube__iter = _write("extend_cube__iter", cube_writes.ExtendParts[Data, StoreInput])
append_to_cube__iter = _write("append_to_cube__iter", cube_writes.AppendParts[Data, StoreInput])
update_cube__iter = _write("update_cube__iter", _UPDATE)
# the same name as those of the other functions
query_cube__iter = query_cube__iterator
remove_partitions__iter = _iter("remove_partitions__iter", cube_writes.RemovePartitions[StoreInput])
delete_rows__iter = _iter("delete_rows__iter", delete_rows.DeleteRows[StoreInput])
delete_cube__iter = _iter("delete_cube__iter", garbage.DeleteCube[StoreInput])
copy_cube__iter = _iter("copy_cube__iter", copy.CopyCube[StoreInput])
build_column_statistics__iter = _iter("build_column_statistics__iter", BuildColumnStatistics[StoreInput])
collect_stats__iter = _iter("collect_stats__iter", overview.CollectStats[StoreInput])
cleanup_cube__iter = _iter("cleanup_cube__iter", garbage.CleanupCube[StoreInput])
compact_cube__iter = _iter("compact_cube__iter", rewrite.CompactCube[StoreInput])
verify_cube__iter = _iter("verify_cube__iter", verify_cube.VerifyCube[StoreInput])
compute_dataset__iter = _iter("compute_dataset__iter", computed_dataset.ComputeDataset[StoreInput])
