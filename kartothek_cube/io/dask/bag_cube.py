"""Cubes with dask bags: every function returns a bag, which does the work when it is computed.

Examples
--------
>>> import dask.bag as db
>>> import pandas as pd
>>> from kartothek_cube.core.cube.cube import Cube
>>> from kartothek_cube.core.utils import lazy_store
>>> from storefact import get_store_from_url
>>> store = lazy_store(get_store_from_url("hmemory://"))
>>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
>>> cities = pd.DataFrame({"CITY": ["Ulm", "Bath"], "COUNTRY_CODE": ["DE", "UK"], "TEMP": [6, 8]})
>>> data = db.from_sequence([cities[:1], cities[1:]])
>>> [datasets] = build_cube_from_bag(data, cube, store).compute(scheduler="sync")
>>> [frame] = query_cube_bag(cube, store).compute(scheduler="sync")
>>> sorted(datasets), frame["CITY"].tolist()
(['seed'], ['Bath', 'Ulm'])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Literal

from dask.bag import Bag
from dask.task_spec import TaskRef

from kartothek_cube.core.arguments import alias_parameter
from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput
from kartothek_cube.core.typing import StoreFactoryInput
from kartothek_cube.io.dask._dask_executor import answer_as_bag, results_as_bag
from kartothek_cube.io.dask.common_cube import as_factory, check_blocksize
from kartothek_cube.io_components.maintenance.compact import compact_cube_job
from kartothek_cube.io_components.maintenance.copy import copy_cube_job, plan_copy
from kartothek_cube.io_components.maintenance.delete import delete_cube_job
from kartothek_cube.io_components.maintenance.garbage import cube_garbage_job
from kartothek_cube.io_components.maintenance.history import CubeAsOf
from kartothek_cube.io_components.maintenance.stats import collect_stats_job
from kartothek_cube.io_components.query.executor import query_job, run_frame_blocks
from kartothek_cube.io_components.query.result_types import plan_frames
from kartothek_cube.io_components.runtime import batched
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
from kartothek_cube.io_components.write.incremental import declared_ids, write_parts, write_parts_job
from kartothek_cube.io_components.write.validation import CubeMetadata
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "append_to_cube_from_bag",
    "build_cube_from_bag",
    "cleanup_cube_bag",
    "collect_stats_bag",
    "compact_cube_bag",
    "copy_cube_bag",
    "delete_cube_bag",
    "extend_cube_from_bag",
    "query_cube_bag",
    "remove_partitions_bag",
    "update_cube_from_bag",
    "verify_cube_bag",
)


def _write_bag(plan: CubeWritePlan, data: Bag) -> Bag:
    """Write each partition of the bag in one task, then commit."""
    if not isinstance(data, Bag):
        raise TypeError(f"data must be a dask bag but is {type(data).__name__}")
    partitions = [TaskRef((data.name, i)) for i in range(data.npartitions)]
    return answer_as_bag(write_parts_job(with_write_id(plan), partitions, write_parts), [data])


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def build_cube_from_bag(
    data: Bag,
    cube: Cube,
    store: StoreFactoryInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Bag:
    """
    Store a new cube; see :func:`kartothek_cube.io.eager_cube.build_cube`.

    ``data`` is a bag of DataFrames (for the seed), dicts of dataset id to DataFrame, and None; cells are
    unique within an element. One task checks and writes each partition of the bag, the last task publishes
    the cube. ``store`` is a factory or URL; ``ktk_cube_dataset_ids`` are the ids that may occur, by default
    the seed.
    """
    store = as_factory(store)
    names = declared_ids(ktk_cube_dataset_ids, [cube.seed_dataset])
    plan = plan_build(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_bag(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def extend_cube_from_bag(
    data: Bag,
    cube: Cube,
    store: StoreFactoryInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Bag:
    """
    Add datasets to a cube; see :func:`kartothek_cube.io.eager_cube.extend_cube`.

    ``data`` and ``store`` are as in :func:`build_cube_from_bag`, ``ktk_cube_dataset_ids`` are the ids that
    may occur in the bag. The only element of the result are the datasets that were written.
    """
    store = as_factory(store)
    names = declared_ids(ktk_cube_dataset_ids)
    plan = plan_extend(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_bag(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def append_to_cube_from_bag(
    data: Bag,
    cube: Cube,
    store: StoreFactoryInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
    schema_mode: SchemaMode = "strict",
    unique_cells: bool = False,
) -> Bag:
    """
    Add partitions to datasets; see :func:`kartothek_cube.io.eager_cube.append_to_cube`.

    ``data`` and ``store`` are as in :func:`build_cube_from_bag`, ``ktk_cube_dataset_ids`` are the ids that
    may occur in the bag. A dataset without rows in the bag stays as it is.
    """
    store = as_factory(store)
    names = declared_ids(ktk_cube_dataset_ids)
    plan = plan_append(cube, store, names, metadata, df_serializer, schema_mode, unique_cells=unique_cells)
    return _write_bag(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def update_cube_from_bag(
    data: Bag,
    cube: Cube,
    store: StoreFactoryInput,
    remove_conditions: ConditionsInput | Literal["all"],
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Bag:
    """
    Replace partitions; see :func:`kartothek_cube.io.eager_cube.update_cube`.

    ``data`` and ``store`` are as in :func:`build_cube_from_bag`. The only element are the updated datasets.
    """
    store = as_factory(store)
    plan = plan_update(cube, store, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer)
    return _write_bag(plan, data)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def remove_partitions_bag(
    cube: Cube,
    store: StoreFactoryInput,
    conditions: ConditionsInput | Literal["all"] = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> Bag:
    """
    Remove partitions; see :func:`kartothek_cube.io.eager_cube.remove_partitions`.

    ``store`` is a factory or URL. The only element gives the result of that function.
    """
    store = as_factory(store)
    return answer_as_bag(remove_partitions_job(cube, store, conditions, ktk_cube_dataset_ids, metadata))


def query_cube_bag(
    cube: Cube,
    store: StoreFactoryInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    blocksize: int = 1,
    *,
    as_of: CubeAsOf | None = None,
    dtype_backend: DtypeBackend | None = None,
) -> Bag:
    """
    Query a cube; see :func:`kartothek_cube.io.eager_cube.query_cube`.

    ``store`` is a factory or URL. The query is planned when the graph is built: headers and indices are read
    then, files in tasks. Elements are the frames of that function, ``blocksize`` groups in each partition of
    the bag.
    """
    store = as_factory(store)
    check_blocksize(blocksize)
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
    blocks = batched(plan.tasks(), blocksize)
    return results_as_bag(query_job(plan, blocks, run_frame_blocks, "groups"), flatten=True)


def delete_cube_bag(
    cube: Cube, store: StoreFactoryInput, blocksize: int = 100, datasets: DatasetsInput = None
) -> Bag:
    """
    Delete a cube; see :func:`kartothek_cube.io.eager_cube.delete_cube`.

    ``store`` is a factory or URL. Headers are deleted first, then ``blocksize`` files per task. The elements
    are None.
    """
    store = as_factory(store)
    check_blocksize(blocksize)
    return results_as_bag(delete_cube_job(cube, store, datasets, blocksize))


def cleanup_cube_bag(
    cube: Cube, store: StoreFactoryInput, blocksize: int = 100, *, retention: timedelta | None = None
) -> Bag:
    """
    Delete garbage of a cube; see :func:`kartothek_cube.io.eager_cube.cleanup_cube`.

    ``store`` is a factory or URL. Garbage is listed when the graph is built, ``blocksize`` files are deleted
    per task. The elements are None.
    """
    store = as_factory(store)
    check_blocksize(blocksize)
    return results_as_bag(cube_garbage_job(cube, store, retention, blocksize))


def copy_cube_bag(
    cube: Cube,
    src_store: StoreFactoryInput,
    tgt_store: StoreFactoryInput,
    blocksize: int = 100,
    overwrite: bool = False,
    datasets: DatasetsInput = None,
    *,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
) -> Bag:
    """
    Copy a cube; see :func:`kartothek_cube.io.eager_cube.copy_cube`.

    Stores are factories or URLs. Arguments are checked when the graph is built; to tell the stores apart, a
    key is put and deleted. Each task copies ``blocksize`` files, the last one publishes the datasets. The
    elements are None.
    """
    src_store = as_factory(src_store)
    tgt_store = as_factory(tgt_store)
    check_blocksize(blocksize)
    plan = plan_copy(cube, src_store, tgt_store, overwrite, datasets, renamed_cube_prefix, renamed_datasets)
    return answer_as_bag(copy_cube_job(plan, blocksize))


def collect_stats_bag(
    cube: Cube, store: StoreFactoryInput, datasets: DatasetsInput = None, blocksize: int = 100
) -> Bag:
    """
    Count what is stored; see :func:`kartothek_cube.io.eager_cube.collect_stats`.

    ``store`` is a factory or URL; each task reads the footers of ``blocksize`` files. The only element gives
    the counts.
    """
    store = as_factory(store)
    check_blocksize(blocksize)
    return answer_as_bag(collect_stats_job(cube, store, datasets, blocksize))


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def compact_cube_bag(
    cube: Cube,
    store: StoreFactoryInput,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
    datasets: str | Iterable[str] | None = None,
) -> Bag:
    """
    Compact a cube; see :func:`kartothek_cube.io.eager_cube.compact_cube`.

    The partitions to compact are chosen when the graph is built. The only element gives the counts of that
    function.
    """
    store = as_factory(store)
    job = compact_cube_job(cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files)
    return answer_as_bag(job)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def verify_cube_bag(
    cube: Cube,
    store: StoreFactoryInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
    datasets: str | Iterable[str] | None = None,
) -> Bag:
    """
    Check a cube; see :func:`kartothek_cube.io.eager_cube.verify_cube`.

    Headers and the existence of files are checked when the graph is built, the files themselves in tasks. The
    only element gives the report.
    """
    store = as_factory(store)
    return answer_as_bag(verify_cube_job(cube, store, ktk_cube_dataset_ids, deep=deep))
