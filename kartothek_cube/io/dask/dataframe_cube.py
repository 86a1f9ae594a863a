"""Cubes with dask DataFrames as input of writes and as result of queries; the work is done when computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat
from dask.delayed import Delayed
from dask.task_spec import List, TaskRef

from kartothek_cube.core.cube.consistency import get_payload_subset
from kartothek_cube.core.pandas_conversion import as_table, dates_as_stamps
from kartothek_cube.core.store import StoreFactoryInput
from kartothek_cube.io.dask import _dask_executor as executor
from kartothek_cube.io.dask.dataframe import (
    buckets,
    check_num_buckets,
    from_map,
    restore_text,
    shuffle_by_key,
)
from kartothek_cube.io_components.facade import Example, Operation, P, define_facade, facade
from kartothek_cube.io_components.query.executor import announce_query, run_single_frame
from kartothek_cube.io_components.query.logical_plan import QueryFrames
from kartothek_cube.io_components.query.physical_plan import ScanContext, ScanTask, plan_query, project
from kartothek_cube.io_components.write import cube_writes, write_commit, write_tasks
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteSpec, Written, merge_writes
from kartothek_cube.serialization import DataFrameSerializer

__all__ = ["build_cube_from_dataframe", "extend_cube_from_dataframe"]
__all__ += ["append_to_cube_from_dataframe", "update_cube_from_dataframe"]
__all__ += ["query_cube_dataframe", "collect_stats_dataframe", "remove_partitions_dataframe"]
__all__ += ["cleanup_cube_dataframe", "copy_cube_dataframe", "delete_cube_dataframe"]

Frames = dict[str, dd.DataFrame]
DaskInput: TypeAlias = dd.DataFrame | Mapping[str, dd.DataFrame]


# -- writes --------------------------------------------------------------------------------------------------


def _plan(write: cube_writes.CubeWrite[DaskInput]) -> tuple[WritePlan, Frames]:
    """Plan a write; columns and types of the input are checked, which need no rows."""
    write = executor.with_factories(write)
    frames = dict(write.data) if isinstance(write.data, Mapping) else {write.cube.seed_dataset: write.data}
    for name, frame in frames.items():
        if not isinstance(frame, dd.DataFrame):
            raise TypeError(
                "data must be a dask DataFrame or a dict of dataset id to these, but for dataset "
                f"{name!r} it is {type(frame).__name__}; dask.dataframe.concat joins several"
            )
    plan = write.plan(frames)
    # of texts restored by pandas 2, the types would not be known
    columns = {name: [_columns_to_check(plan, name, frame._meta)] for name, frame in frames.items()}
    write_tasks.prepare(plan, columns, unique=False)
    return plan, {name: restore_text(frame) for name, frame in frames.items()}


def _columns_to_check(plan: WritePlan, name: str, meta: pd.DataFrame) -> pd.DataFrame:
    """Columns of the input of a dataset; floats for a stored payload of integers have no type."""
    # they may be whole numbers beside gaps: the tasks check the values
    payload, types = get_payload_subset(meta.columns, plan.cube), plan.specs[name].types
    gaps = [
        column
        for column, dtype in meta.dtypes.items()
        if dtype.kind == "f" and column in payload and pat.is_integer(types.get(column, pa.null()))
    ]
    return meta.astype(dict.fromkeys(gaps, object))


def _write_partitions(plan: WritePlan, frames: Frames, function: Callable[..., Written]) -> Delayed:
    """Write each partition of each frame in one task, then commit."""
    parts = {name: frame.to_delayed() for name, frame in frames.items()}
    inputs = [part for each in parts.values() for part in each[:1]]
    tasks = [List(name, TaskRef(part.key)) for name, each in parts.items() for part in each]
    return executor.answer_as_delayed(write_commit.write_job(plan, tasks, function), inputs)


def _write_partition(plan: WritePlan, item: tuple[str, pd.DataFrame]) -> Written:
    name, frame = item
    return write_tasks.write_part(plan, {name: frame})


def _derive_columns(frame: pd.DataFrame, spec: WriteSpec) -> pd.DataFrame:
    """The frame with the partition columns that are transforms, so that it can be shuffled by them."""
    sources = list({transform.column: None for transform in spec.transforms(frame.columns)})
    if not sources:
        return frame
    derived = write_tasks.derive_columns(spec, as_table(frame[sources], spec.types)).drop_columns(sources)
    missing = [name for name in derived.column_names if name not in frame]
    return frame.assign(**{name: derived.column(name).to_pandas().set_axis(frame.index) for name in missing})


def _write_buckets(plan: WritePlan, item: tuple[str, pd.DataFrame]) -> Written:
    name, frame = item
    return merge_writes([write_tasks.write_part(plan, {name: rows}, unique=False) for rows in buckets(frame)])


# -- queries -------------------------------------------------------------------------------------------------


def _read(
    task: ScanTask, context: ScanContext, alone: bool, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    if columns is not None:
        context, task = project(context, task, columns)
    frame = run_single_frame(context, task)
    # pandas cannot concatenate timestamps of such different ranges
    frame = frame if alone else dates_as_stamps(frame)
    return frame if columns is None else frame[list(columns)]


# -- façades -------------------------------------------------------------------------------------------------

_TYPES = {**executor.TYPES, "DataT": "DaskInput"}
_CONVERT = "data = {name: dd.from_pandas(df, npartitions=1) for name, df in data.items()}"
_EXAMPLE = Example(("import dask.dataframe as dd", _CONVERT), executor.SYNC)


@attrs.frozen
class _BuildCube(cube_writes.BuildCube[DaskInput, StoreFactoryInput]):
    shuffle: bool = False
    num_buckets: int = 1
    bucket_by: str | Iterable[str] | None = None
    # declared again to be the last parameter, as in kartothek
    df_serializer: DataFrameSerializer | None = None


@define_facade(_BuildCube, _TYPES, example=_EXAMPLE)
def build_cube_from_dataframe(build: _BuildCube) -> Delayed:
    """Store a new cube.

    ``data`` is a dask DataFrame (the seed) or a dict of dataset id to dask DataFrame. One task checks and
    writes each partition of the input, the last one commits the cube. The Delayed gives the datasets.
    With ``shuffle``, duplicate cells are not detected; else cells are unique within a partition of the input.
    """
    num_buckets = check_num_buckets(build.num_buckets, shuffle=build.shuffle)
    plan, frames = _plan(build)
    if not build.shuffle:
        return _write_partitions(plan, frames, _write_partition)
    for name, frame in frames.items():
        spec = plan.specs[name]
        derived = frame.map_partitions(_derive_columns, spec, meta=_derive_columns(frame._meta, spec))
        frames[name] = shuffle_by_key(derived, spec.partition_on, build.bucket_by, num_buckets, spec.types)
    return _write_partitions(plan, frames, _write_buckets)


def _write(operation: str, write: Callable[P, cube_writes.CubeWrite[DaskInput]]) -> Callable[P, Delayed]:
    """The façade of a write without a shuffle."""

    def run(write: cube_writes.CubeWrite[DaskInput]) -> Delayed:
        return _write_partitions(*_plan(write), _write_partition)

    note = (
        "``data`` is a dask DataFrame (the seed) or a dict of dataset id to dask DataFrame. One task "
        "checks and writes each partition of the input, the last one commits the cube. The Delayed gives "
        "the datasets. Cells are unique within a partition of the input."
    )
    return facade(__name__, f"{operation}_from_dataframe", write, run, note, _TYPES, example=_EXAMPLE)


def _delayed(name: str, operation: Callable[P, Operation[Any]]) -> Callable[P, Delayed]:
    """The façade whose functions return the answer of a job as a Delayed."""
    return executor.delayed_facade(__name__, f"{name}_dataframe", operation)


@define_facade(
    QueryFrames[StoreFactoryInput],
    _TYPES,
    example=Example(value="[part.compute(scheduler='sync') for part in {}.partitions]"),
    returns="One partition per group, in the order of ``partition_by``, or one in total.",
)
def query_cube_dataframe(query: QueryFrames[StoreFactoryInput]) -> dd.DataFrame:
    """Query a cube as if it were one DataFrame.

    The query is planned when the graph is built: headers and indices are read then, files in tasks. Divisions
    are unknown. Only the columns that dask needs are read. Without ``dtype_backend``, partitions may have
    other types where values are missing.
    """
    plan = plan_query(executor.with_factories(query))
    announce_query(plan)
    meta, tasks = run_single_frame(plan.context, None), plan.tasks()
    alone = len(tasks) <= 1 or query.dtype_backend is not None
    result: dd.DataFrame = from_map(_read, tasks, "query_cube", meta, plan.context, alone)
    return result


extend_cube_from_dataframe = _write("extend_cube", cube_writes.ExtendCube[DaskInput, StoreFactoryInput])
append_to_cube_from_dataframe = _write(
    "append_to_cube", cube_writes.AppendToCube[DaskInput, StoreFactoryInput]
)
update_cube_from_dataframe = _write("update_cube", cube_writes.UpdateCube[DaskInput, StoreFactoryInput])
remove_partitions_dataframe = _delayed("remove_partitions", cube_writes.RemovePartitions[StoreFactoryInput])
delete_cube_dataframe = _delayed("delete_cube", executor.DeleteCubeBlocks)
cleanup_cube_dataframe = _delayed("cleanup_cube", executor.CleanupCubeBlocks)
copy_cube_dataframe = _delayed("copy_cube", executor.CopyCubeBlocks)
collect_stats_dataframe = _delayed("collect_stats", executor.CollectStatsBlocks)
