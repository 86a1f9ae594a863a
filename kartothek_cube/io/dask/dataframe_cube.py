"""Cubes with dask DataFrames as input of writes and as result of queries; the work is done when computed.

Examples
--------
>>> import dask.dataframe as dd
>>> import pandas as pd
>>> from kartothek_cube.core.cube.cube import Cube
>>> from kartothek_cube.core.utils import lazy_store
>>> from storefact import get_store_from_url
>>> store = lazy_store(get_store_from_url("hmemory://"))
>>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
>>> cities = pd.DataFrame({"CITY": ["Ulm", "Bath"], "COUNTRY_CODE": ["DE", "UK"], "TEMP": [6, 8]})
>>> data = dd.from_pandas(cities, npartitions=2)
>>> sorted(build_cube_from_dataframe(data, cube, store, shuffle=True).compute(scheduler="sync"))
['seed']
>>> int(query_cube_dataframe(cube, store)["TEMP"].max().compute(scheduler="sync"))
8
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Literal, TypeAlias

import dask.dataframe as dd
import pandas as pd
from dask.delayed import Delayed
from dask.task_spec import List, TaskRef

from kartothek_cube.core.arguments import alias_parameter
from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend, dates_as_stamps
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput
from kartothek_cube.core.typing import StoreFactoryInput
from kartothek_cube.io.dask._dask_executor import answer_as_delayed
from kartothek_cube.io.dask.common_cube import as_factory, check_blocksize
from kartothek_cube.io.dask.compression import buckets, shuffle_by_key
from kartothek_cube.io.dask.dataframe import from_map
from kartothek_cube.io_components.maintenance.copy import copy_cube_job, plan_copy
from kartothek_cube.io_components.maintenance.garbage import cube_garbage_job, delete_cube_job
from kartothek_cube.io_components.maintenance.history import CubeAsOf
from kartothek_cube.io_components.maintenance.stats import collect_stats_job
from kartothek_cube.io_components.query.executor import run_single_frame
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, ScanContext, ScanTask, project
from kartothek_cube.io_components.query.result_types import plan_frames
from kartothek_cube.io_components.write.cube_plan import plan_append, plan_build, plan_extend, plan_update
from kartothek_cube.io_components.write.table_writer import Written, merge_writes
from kartothek_cube.io_components.write.validation import CubeMetadata
from kartothek_cube.io_components.write.write_commit import remove_partitions_job, write_job
from kartothek_cube.io_components.write.write_plan import (
    CubeWritePlan,
    RowsOutside,
    SchemaMode,
    with_write_id,
)
from kartothek_cube.io_components.write.write_tasks import prepare, write_part
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "append_to_cube_from_dataframe",
    "build_cube_from_dataframe",
    "cleanup_cube_dataframe",
    "collect_stats_dataframe",
    "copy_cube_dataframe",
    "delete_cube_dataframe",
    "extend_cube_from_dataframe",
    "query_cube_dataframe",
    "remove_partitions_dataframe",
    "update_cube_from_dataframe",
)

Frames = dict[str, dd.DataFrame]
DaskInput: TypeAlias = dd.DataFrame | Mapping[str, dd.DataFrame]


# -- writes --------------------------------------------------------------------------------------------------


def _by_id(data: DaskInput, cube: Cube) -> Frames:
    frames = dict(data) if isinstance(data, Mapping) else {cube.seed_dataset: data}
    for name, frame in frames.items():
        if not isinstance(frame, dd.DataFrame):
            raise TypeError(
                f"data must be a dask DataFrame or a dict of dataset id to these, "
                f"but for dataset {name!r} it is {type(frame).__name__}"
            )
    return frames


def _check_columns(plan: CubeWritePlan, frames: Frames) -> None:
    """Check columns and types of the input, which need no rows."""
    prepare(plan, {name: [frame._meta] for name, frame in frames.items()}, unique=False)


def _build(
    plan: CubeWritePlan,
    frames: Frames,
    shuffle: bool,
    num_buckets: int,
    bucket_by: str | Iterable[str] | None,
) -> Delayed:
    _check_columns(plan, frames)
    if shuffle:
        frames = {
            name: shuffle_by_key(frame, plan.changes[name].context.partition_on, bucket_by, num_buckets)
            for name, frame in frames.items()
        }
    return _write_partitions(plan, frames, _write_buckets)


def _write(plan: CubeWritePlan, frames: Frames) -> Delayed:
    _check_columns(plan, frames)
    return _write_partitions(plan, frames, _write_partition)


def _write_partitions(plan: CubeWritePlan, frames: Frames, function: Callable[..., Written]) -> Delayed:
    """Write each partition of each frame in one task, then commit."""
    inputs: list[Delayed] = []
    tasks: list[List] = []
    for name, frame in frames.items():
        parts = frame.to_delayed()
        inputs += parts[:1]
        tasks += [List(name, TaskRef(part.key)) for part in parts]
    return answer_as_delayed(write_job(with_write_id(plan), tasks, function), inputs)


def _write_partition(plan: CubeWritePlan, item: tuple[str, pd.DataFrame]) -> Written:
    name, frame = item
    return write_part(plan, {name: frame})


def _write_buckets(plan: CubeWritePlan, item: tuple[str, pd.DataFrame]) -> Written:
    name, frame = item
    return merge_writes([write_part(plan, {name: rows}, unique=False) for rows in buckets(frame)])


# -- queries -------------------------------------------------------------------------------------------------


def _query(plan: PhysicalPlan, dtype_backend: DtypeBackend | None) -> dd.DataFrame:
    meta, tasks = run_single_frame(plan.context, None), plan.tasks()
    alone = len(tasks) <= 1 or dtype_backend is not None
    result: dd.DataFrame = from_map(_read, tasks, "query_cube", meta, plan.context, alone)
    return result


def _read(
    task: ScanTask | None, context: ScanContext, alone: bool, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    if columns is not None and task is not None:
        context, task = project(context, task, columns)
    frame = run_single_frame(context, task)
    # pandas cannot concatenate timestamps of such different ranges
    frame = frame if alone else dates_as_stamps(frame)
    return frame if columns is None else frame[list(columns)]


# -- generated by tools/make_facades.py from tools/facades.toml; do not edit -------------------------------


def build_cube_from_dataframe(
    data: DaskInput,
    cube: Cube,
    store: StoreFactoryInput,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    shuffle: bool = False,
    num_buckets: int = 1,
    bucket_by: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> Delayed:
    """
    Store a new cube.

    See :func:`kartothek_cube.io.eager_cube.build_cube`. ``data`` is a dask DataFrame (the seed) or a dict of
    dataset id to dask DataFrame. ``store`` is a factory, a directory or a URL. One task checks and writes
    each partition of the input, the last one commits the cube. Duplicate cells are not detected. ``shuffle``
    first collects the rows of each physical partition into at most ``num_buckets`` files, distributed by the
    values of ``bucket_by`` (all columns by default).
    """
    store = as_factory(store)
    frames = _by_id(data, cube)
    plan = plan_build(cube, store, frames, metadata, overwrite, partition_on, df_serializer)
    return _build(plan, frames, shuffle, num_buckets, bucket_by)


def extend_cube_from_dataframe(
    data: DaskInput,
    cube: Cube,
    store: StoreFactoryInput,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> Delayed:
    """
    Add datasets, and with them columns, to a cube.

    See :func:`kartothek_cube.io.eager_cube.extend_cube`. ``data`` and ``store`` are as in
    :func:`build_cube_from_dataframe`; cells are unique within a partition of the input. The Delayed gives the
    datasets that were written.
    """
    store = as_factory(store)
    frames = _by_id(data, cube)
    plan = plan_extend(cube, store, frames, metadata, overwrite, partition_on, df_serializer)
    return _write(plan, frames)


def append_to_cube_from_dataframe(
    data: DaskInput,
    cube: Cube,
    store: StoreFactoryInput,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    unique_cells: bool = False,
    schema_mode: SchemaMode = "strict",
) -> Delayed:
    """
    Add partitions to datasets of a cube.

    See :func:`kartothek_cube.io.eager_cube.append_to_cube`. ``data`` and ``store`` are as in
    :func:`build_cube_from_dataframe`; cells are unique within a partition of the input. The Delayed gives the
    datasets that were written. A dataset without rows in the input stays as it is.
    """
    store = as_factory(store)
    frames = _by_id(data, cube)
    plan = plan_append(cube, store, frames, metadata, df_serializer, schema_mode, unique_cells=unique_cells)
    return _write(plan, frames)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def update_cube_from_dataframe(
    data: DaskInput,
    cube: Cube,
    store: StoreFactoryInput,
    remove_conditions: ConditionsInput | Literal["all"],
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
    rows_outside: RowsOutside = "raise",
) -> Delayed:
    """
    Remove partitions of datasets and add others, in one commit per dataset.

    See :func:`kartothek_cube.io.eager_cube.update_cube`. ``data`` and ``store`` are as in
    :func:`extend_cube_from_dataframe`; the dict may be empty. Removal and input of a dataset are one commit.
    """
    store = as_factory(store)
    frames = _by_id(data, cube)
    plan = plan_update(
        cube,
        store,
        remove_conditions,
        ktk_cube_dataset_ids,
        metadata,
        df_serializer,
        rows_outside=rows_outside,
    )
    return _write(plan, frames)


def query_cube_dataframe(
    cube: Cube,
    store: StoreFactoryInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
    dtype_backend: DtypeBackend | None = None,
) -> dd.DataFrame:
    """
    Query a cube as if it were one DataFrame.

    See :func:`kartothek_cube.io.eager_cube.query_cube`. The query is planned when the graph is built: headers
    and indices are read then, files in tasks. There is one partition per group, in the order of
    ``partition_by``, or one in total; divisions are unknown. Only the columns that dask needs are read.
    Without ``dtype_backend``, partitions may have other types where values are missing.
    """
    store = as_factory(store)
    plan = plan_frames(
        cube,
        store,
        conditions,
        datasets,
        dimension_columns,
        partition_by,
        payload_columns,
        as_of=as_of,
        dtype_backend=dtype_backend,
    )
    return _query(plan, dtype_backend)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def remove_partitions_dataframe(
    cube: Cube,
    store: StoreFactoryInput,
    conditions: ConditionsInput | Literal["all"] = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Delayed:
    """
    Remove partitions.

    See :func:`kartothek_cube.io.eager_cube.remove_partitions`. ``store`` is a factory, a directory or a URL.
    The Delayed gives its result.
    """
    store = as_factory(store)
    job = remove_partitions_job(cube, store, conditions, ktk_cube_dataset_ids, metadata)
    return answer_as_delayed(job)


def delete_cube_dataframe(
    cube: Cube, store: StoreFactoryInput, datasets: DatasetsInput = None, blocksize: int = 100
) -> Delayed:
    """
    Delete a cube or some of its datasets.

    See :func:`kartothek_cube.io.eager_cube.delete_cube`. ``store`` is a factory, a directory or a URL. The
    Delayed is None. Headers are deleted first, then ``blocksize`` files per task.
    """
    store = as_factory(store)
    check_blocksize(blocksize)
    return answer_as_delayed(delete_cube_job(cube, store, datasets, blocksize))


def cleanup_cube_dataframe(
    cube: Cube, store: StoreFactoryInput, blocksize: int = 100, *, retention: timedelta | None = None
) -> Delayed:
    """
    Delete garbage: files of failed, overwritten or removed writes, to which no dataset refers.

    See :func:`kartothek_cube.io.eager_cube.cleanup_cube`. ``store`` is a factory, a directory or a URL. The
    Delayed is None. Garbage is listed when the graph is built, ``blocksize`` files are deleted per task.
    """
    store = as_factory(store)
    check_blocksize(blocksize)
    return answer_as_delayed(cube_garbage_job(cube, store, retention, blocksize))


def copy_cube_dataframe(
    cube: Cube,
    src_store: StoreFactoryInput,
    tgt_store: StoreFactoryInput,
    overwrite: bool = False,
    datasets: DatasetsInput = None,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
    blocksize: int = 100,
) -> Delayed:
    """
    Copy a cube from one store to another.

    See :func:`kartothek_cube.io.eager_cube.copy_cube`. Stores are factories, directories or URLs. The Delayed
    is None. Arguments are checked when the graph is built; to tell the stores apart, a key is put and
    deleted. Each task copies ``blocksize`` files, the last one commits the datasets.
    """
    src_store = as_factory(src_store)
    tgt_store = as_factory(tgt_store)
    check_blocksize(blocksize)
    plan = plan_copy(cube, src_store, tgt_store, overwrite, datasets, renamed_cube_prefix, renamed_datasets)
    return answer_as_delayed(copy_cube_job(plan, blocksize))


def collect_stats_dataframe(
    cube: Cube, store: StoreFactoryInput, datasets: DatasetsInput = None, blocksize: int = 100
) -> Delayed:
    """
    Count what is stored.

    See :func:`kartothek_cube.io.eager_cube.collect_stats`. ``store`` is a factory, a directory or a URL. The
    Delayed gives its result. Each task reads the footers of ``blocksize`` files.
    """
    store = as_factory(store)
    check_blocksize(blocksize)
    return answer_as_delayed(collect_stats_job(cube, store, datasets, blocksize))
