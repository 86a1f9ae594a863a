"""Cubes with ``dask.delayed``: functions return Delayed objects, which do the work when computed.

Examples
--------
>>> import pandas as pd
>>> from dask import compute, delayed
>>> from kartothek_cube.core.cube.cube import Cube
>>> from kartothek_cube.core.utils import lazy_store
>>> from storefact import get_store_from_url
>>> store = lazy_store(get_store_from_url("hmemory://"))
>>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
>>> def load(country, city):
...     return pd.DataFrame({"CITY": [city], "COUNTRY_CODE": [country]})
>>> data = [delayed(load)("DE", "Ulm"), delayed(load)("UK", "Bath")]
>>> sorted(build_cube_from_delayed(data, cube, store).compute(scheduler="sync"))
['seed']
>>> frames = compute(*query_cube_delayed(cube, store, partition_by="COUNTRY_CODE"), scheduler="sync")
>>> [frame["CITY"].tolist() for frame in frames]
[['Ulm'], ['Bath']]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Literal

from dask.delayed import Delayed, delayed
from dask.task_spec import TaskRef

from kartothek_cube.core.arguments import alias_parameter
from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput
from kartothek_cube.core.typing import StoreFactoryInput
from kartothek_cube.io.dask._dask_executor import answer_as_delayed, results_as_delayed
from kartothek_cube.io.dask.common_cube import as_factory, check_blocksize
from kartothek_cube.io_components.maintenance.compact import compact_cube_job
from kartothek_cube.io_components.maintenance.copy import copy_cube_job, plan_copy
from kartothek_cube.io_components.maintenance.delete import delete_cube_job
from kartothek_cube.io_components.maintenance.garbage import cube_garbage_job
from kartothek_cube.io_components.maintenance.history import CubeAsOf
from kartothek_cube.io_components.maintenance.stats import collect_stats_job
from kartothek_cube.io_components.query.executor import query_job, run_single_frame
from kartothek_cube.io_components.query.result_types import plan_frames
from kartothek_cube.io_components.verify.cube_rules import verify_cube_job
from kartothek_cube.io_components.write.cube_plan import (
    CubeWritePlan,
    plan_append,
    plan_build,
    plan_extend,
    plan_update,
)
from kartothek_cube.io_components.write.cube_write import remove_partitions_job
from kartothek_cube.io_components.write.dataset_plan import SchemaMode, with_write_id
from kartothek_cube.io_components.write.incremental import (
    declared_ids,
    iter_elements,
    write_part,
    write_parts_job,
)
from kartothek_cube.io_components.write.validation import CubeMetadata
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "append_to_cube_from_delayed",
    "build_cube_from_delayed",
    "cleanup_cube_delayed",
    "collect_stats_delayed",
    "compact_cube_delayed",
    "copy_cube_delayed",
    "delete_cube_delayed",
    "extend_cube_from_delayed",
    "query_cube_delayed",
    "remove_partitions_delayed",
    "update_cube_from_delayed",
    "verify_cube_delayed",
)


def _write_delayed(plan: CubeWritePlan, data: Iterable[Delayed] | Delayed) -> Delayed:
    """Write each Delayed in one task, then commit."""
    items = [data] if isinstance(data, Delayed) else [delayed(element) for element in iter_elements(data)]
    tasks = [TaskRef(item.key) for item in items]
    return answer_as_delayed(write_parts_job(with_write_id(plan), tasks, write_part), items)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def build_cube_from_delayed(
    data: Iterable[Delayed],
    cube: Cube,
    store: StoreFactoryInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Delayed:
    """
    Store a new cube; see :func:`kartothek_cube.io.eager_cube.build_cube`.

    ``data`` are Delayed objects of a DataFrame (for the seed), a dict of dataset id to DataFrame, or None;
    cells are unique within each. One task checks and writes each of them, the last task publishes the cube.
    ``store`` is a factory or URL; ``ktk_cube_dataset_ids`` are the ids that may occur in the input, by
    default the seed.
    """
    store = as_factory(store)
    names = declared_ids(ktk_cube_dataset_ids, [cube.seed_dataset])
    plan = plan_build(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_delayed(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def extend_cube_from_delayed(
    data: Iterable[Delayed],
    cube: Cube,
    store: StoreFactoryInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Delayed:
    """
    Add datasets to a cube; see :func:`kartothek_cube.io.eager_cube.extend_cube`.

    ``data`` and ``store`` are as in :func:`build_cube_from_delayed`, ``ktk_cube_dataset_ids`` are the ids
    that may occur in the input. The Delayed gives the datasets that were written.
    """
    store = as_factory(store)
    names = declared_ids(ktk_cube_dataset_ids)
    plan = plan_extend(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_delayed(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def append_to_cube_from_delayed(
    data: Iterable[Delayed],
    cube: Cube,
    store: StoreFactoryInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
    schema_mode: SchemaMode = "strict",
    unique_cells: bool = False,
) -> Delayed:
    """
    Add partitions to datasets; see :func:`kartothek_cube.io.eager_cube.append_to_cube`.

    ``data`` and ``store`` are as in :func:`build_cube_from_delayed`, ``ktk_cube_dataset_ids`` are the ids
    that may occur in the input. A dataset without rows in the input stays as it is.
    """
    store = as_factory(store)
    names = declared_ids(ktk_cube_dataset_ids)
    plan = plan_append(cube, store, names, metadata, df_serializer, schema_mode, unique_cells=unique_cells)
    return _write_delayed(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def update_cube_from_delayed(
    data: Iterable[Delayed],
    cube: Cube,
    store: StoreFactoryInput,
    remove_conditions: ConditionsInput | Literal["all"],
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Delayed:
    """
    Replace partitions; see :func:`kartothek_cube.io.eager_cube.update_cube`.

    ``data`` and ``store`` are as in :func:`build_cube_from_delayed`. The Delayed gives the updated datasets.
    """
    store = as_factory(store)
    plan = plan_update(cube, store, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer)
    return _write_delayed(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def remove_partitions_delayed(
    cube: Cube,
    store: StoreFactoryInput,
    conditions: ConditionsInput | Literal["all"] = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Delayed:
    """
    Remove partitions; see :func:`kartothek_cube.io.eager_cube.remove_partitions`.

    ``store`` is a factory or URL. The Delayed gives the result of that function.
    """
    store = as_factory(store)
    return answer_as_delayed(remove_partitions_job(cube, store, conditions, ktk_cube_dataset_ids, metadata))


def query_cube_delayed(
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
) -> list[Delayed]:
    """
    Query a cube; see :func:`kartothek_cube.io.eager_cube.query_cube`.

    ``store`` is a factory or URL. The query is planned when the graph is built: headers and indices are read
    then, files in tasks. There is one Delayed per group in the order of ``partition_by``, or a single one, or
    none if no file can match; a group that proves empty is a DataFrame without rows.
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
    return results_as_delayed(query_job(plan, plan.tasks(), run_single_frame))


def delete_cube_delayed(
    cube: Cube, store: StoreFactoryInput, datasets: DatasetsInput = None, blocksize: int = 100
) -> Delayed:
    """
    Delete a cube; see :func:`kartothek_cube.io.eager_cube.delete_cube`.

    ``store`` is a factory or URL. Headers are deleted first, then ``blocksize`` files per task. The Delayed
    is None.
    """
    store = as_factory(store)
    check_blocksize(blocksize)
    return answer_as_delayed(delete_cube_job(cube, store, datasets, blocksize))


def cleanup_cube_delayed(
    cube: Cube, store: StoreFactoryInput, blocksize: int = 100, *, retention: timedelta | None = None
) -> Delayed:
    """
    Delete garbage of a cube; see :func:`kartothek_cube.io.eager_cube.cleanup_cube`.

    ``store`` is a factory or URL. Garbage is listed when the graph is built, ``blocksize`` files are deleted
    per task. The Delayed is None.
    """
    store = as_factory(store)
    check_blocksize(blocksize)
    return answer_as_delayed(cube_garbage_job(cube, store, retention, blocksize))


def copy_cube_delayed(
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
    Copy a cube; see :func:`kartothek_cube.io.eager_cube.copy_cube`.

    Stores are factories or URLs. Arguments are checked when the graph is built; to tell the stores apart, a
    key is put and deleted. Each task copies ``blocksize`` files, the last one publishes the datasets. The
    Delayed is None.
    """
    src_store = as_factory(src_store)
    tgt_store = as_factory(tgt_store)
    check_blocksize(blocksize)
    plan = plan_copy(cube, src_store, tgt_store, overwrite, datasets, renamed_cube_prefix, renamed_datasets)
    return answer_as_delayed(copy_cube_job(plan, blocksize))


def collect_stats_delayed(
    cube: Cube, store: StoreFactoryInput, datasets: DatasetsInput = None, blocksize: int = 100
) -> Delayed:
    """
    Count what is stored; see :func:`kartothek_cube.io.eager_cube.collect_stats`.

    ``store`` is a factory or URL; each task reads the footers of ``blocksize`` files. The Delayed gives the
    counts.
    """
    store = as_factory(store)
    check_blocksize(blocksize)
    return answer_as_delayed(collect_stats_job(cube, store, datasets, blocksize))


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def compact_cube_delayed(
    cube: Cube,
    store: StoreFactoryInput,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
    datasets: str | Iterable[str] | None = None,
) -> Delayed:
    """
    Compact a cube; see :func:`kartothek_cube.io.eager_cube.compact_cube`.

    The partitions to compact are chosen when the graph is built. The Delayed gives the counts of that
    function.
    """
    store = as_factory(store)
    job = compact_cube_job(cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files)
    return answer_as_delayed(job)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def verify_cube_delayed(
    cube: Cube,
    store: StoreFactoryInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
    datasets: str | Iterable[str] | None = None,
) -> Delayed:
    """
    Check a cube; see :func:`kartothek_cube.io.eager_cube.verify_cube`.

    Headers and the existence of files are checked when the graph is built, the files themselves in tasks. The
    Delayed gives the report.
    """
    store = as_factory(store)
    return answer_as_delayed(verify_cube_job(cube, store, ktk_cube_dataset_ids, deep=deep))
