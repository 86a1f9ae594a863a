"""Cubes with dask bags: every function returns a bag, which does the work when it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from dask.bag import Bag

from kartothek_cube.core.cube.discover import DatasetsInput
from kartothek_cube.core.store import StoreFactoryInput
from kartothek_cube.io.dask import _dask_executor as executor
from kartothek_cube.io_components import computed_dataset, delete_rows
from kartothek_cube.io_components.facade import Example, Operation, P, define_facade, facade, plan_job
from kartothek_cube.io_components.maintenance import copy, garbage, verify_cube
from kartothek_cube.io_components.query import logical_plan, physical_plan
from kartothek_cube.io_components.query.executor import announce_query, query_job, run_frames
from kartothek_cube.io_components.write import cube_writes, rewrite, write_commit, write_tasks
from kartothek_cube.io_components.write.build_index import BuildColumnStatistics
from kartothek_cube.io_components.write.write_plan import RowsOutside

__all__ = ["build_cube_from_bag", "extend_cube_from_bag", "append_to_cube_from_bag", "update_cube_from_bag"]
__all__ += ["query_cube_bag", "compute_dataset_bag", "delete_rows_bag", "remove_partitions_bag"]
__all__ += ["cleanup_cube_bag", "compact_cube_bag", "copy_cube_bag", "delete_cube_bag"]
__all__ += ["build_column_statistics_bag", "collect_stats_bag", "verify_cube_bag"]


_TYPES = {**executor.TYPES, "DataT": "Bag"}
_SYNC = f"{executor.SYNC}[0]"


def _write(name: str, write: Callable[P, cube_writes.CubeWrite[Bag]], note: str = "") -> Callable[P, Bag]:
    """The façade of a write: one task per partition of the bag, then a commit."""

    def run(write: cube_writes.CubeWrite[Bag]) -> Bag:
        plan, data = executor.with_factories(write).plan(), write.data
        tasks: list[Any] = executor.bag_partitions(data, "data")
        job = write_commit.write_job(plan, tasks, write_tasks.write_parts)
        return executor.answer_as_bag(job, [data])

    input_note = (
        "``data`` is a bag. One task checks and writes each partition of the bag, the last one commits "
        "the cube. The only element of the bag that is returned are the datasets."
    )
    setup = ("import dask.bag", "data = dask.bag.from_sequence([data])")
    example = Example(setup, _SYNC)
    if write is not _UpdateCube:
        example = Example((setup[0], "datasets = list(data)", setup[1]), _SYNC, ", datasets")
    return facade(__name__, name, write, run, f"{input_note} {note}".strip(), _TYPES, example=example)


def _bag(name: str, operation: Callable[P, Operation[Any]]) -> Callable[P, Bag]:
    """The façade whose functions return a bag with the answer of a job."""

    def run(operation: Operation[Any]) -> Bag:
        return executor.answer_as_bag(plan_job(executor.with_factories(operation)))

    note = f"The only element of the bag is the result. {executor.tasks_note(name)}".strip()
    return facade(__name__, name, operation, run, note, _TYPES, example=Example(value=_SYNC))


def _bag_of_results(name: str, operation: Callable[P, Operation[None]]) -> Callable[P, Bag]:
    """The façade whose functions return a bag with a None for each task."""

    def run(operation: Operation[None]) -> Bag:
        return executor.results_as_bag(plan_job(executor.with_factories(operation)))

    note = f"The elements of the bag are None. {executor.tasks_note(name)}"
    return facade(__name__, name, operation, run, note, _TYPES, example=Example(value=executor.SYNC))


@attrs.frozen
class _UpdateCube(cube_writes.UpdateCube[Bag, StoreFactoryInput]):
    # kartothek's default
    rows_outside: RowsOutside = attrs.field(default="warn", kw_only=True)


@attrs.frozen
class _QueryFrames(logical_plan.QueryFrames[StoreFactoryInput]):
    blocksize: int = 1


# kartothek has the block size at another position than in the other façades; fields that are declared again
# come last


@attrs.frozen
class _DeleteCube(garbage.DeleteCube[StoreFactoryInput]):
    blocksize: int = 100
    datasets: DatasetsInput = None


@attrs.frozen
class _CopyCube(copy.CopyCube[StoreFactoryInput]):
    blocksize: int = 100
    overwrite: bool = False
    datasets: DatasetsInput = None
    renamed_cube_prefix: str | None = attrs.field(default=None, kw_only=True)
    renamed_datasets: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)


@define_facade(
    _QueryFrames,
    _TYPES,
    example=Example(value=executor.SYNC),
    returns="Elements are frames, ``blocksize`` groups in each partition of the bag.",
)
def query_cube_bag(query: _QueryFrames) -> Bag:
    """Query a cube as if it were one DataFrame.

    The query is planned when the graph is built: headers and indices are read then, files in tasks.
    """
    query = executor.with_factories(query)
    plan = physical_plan.plan_query(query)
    announce_query(plan)
    job = query_job(plan, plan.tasks(query.blocksize), run_frames, "groups")
    return executor.results_as_bag(job, flatten=True)


build_cube_from_bag = _write("build_cube_from_bag", cube_writes.BuildParts[Bag, StoreFactoryInput])
extend_cube_from_bag = _write("extend_cube_from_bag", cube_writes.ExtendParts[Bag, StoreFactoryInput])
append_to_cube_from_bag = _write("append_to_cube_from_bag", cube_writes.AppendParts[Bag, StoreFactoryInput])
_WARN = 'By default, ``rows_outside`` is ``"warn"``: kartothek appends such rows.'
update_cube_from_bag = _write("update_cube_from_bag", _UpdateCube, _WARN)
remove_partitions_bag = _bag("remove_partitions_bag", cube_writes.RemovePartitions[StoreFactoryInput])
delete_rows_bag = _bag("delete_rows_bag", delete_rows.DeleteRows[StoreFactoryInput])
delete_cube_bag = _bag_of_results("delete_cube_bag", _DeleteCube)
cleanup_cube_bag = _bag_of_results("cleanup_cube_bag", executor.CleanupCubeBlocks)
copy_cube_bag = _bag("copy_cube_bag", _CopyCube)
build_column_statistics_bag = _bag("build_column_statistics_bag", BuildColumnStatistics[StoreFactoryInput])
collect_stats_bag = _bag("collect_stats_bag", executor.CollectStatsBlocks)
compact_cube_bag = _bag("compact_cube_bag", rewrite.CompactCube[StoreFactoryInput])
verify_cube_bag = _bag("verify_cube_bag", verify_cube.VerifyCube[StoreFactoryInput])
compute_dataset_bag = _bag("compute_dataset_bag", computed_dataset.ComputeDataset[StoreFactoryInput])
