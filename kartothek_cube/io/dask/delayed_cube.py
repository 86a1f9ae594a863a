"""Cubes with ``dask.delayed``: functions return Delayed objects, which do the work when computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from dask.delayed import Delayed, delayed
from dask.task_spec import TaskRef

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.typing import ConditionsInput, CubeMetadata, DatasetsInput
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.io.dask._executor import answer_as_delayed, results_as_delayed
from kartothek_cube.io.dask.common_cube import check_blocksize, check_store
from kartothek_cube.io_components.maintenance.compact import compact_cube_job
from kartothek_cube.io_components.maintenance.cube_copy import copy_cube_job, plan_copy
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.maintenance.delete import delete_cube_job
from kartothek_cube.io_components.maintenance.garbage import cube_garbage_job
from kartothek_cube.io_components.maintenance.stats import collect_stats_job
from kartothek_cube.io_components.query.frame_conversion import query_job, run_single_frame
from kartothek_cube.io_components.query.planner import plan_query
from kartothek_cube.io_components.verify.cube_rules import verify_cube_job
from kartothek_cube.io_components.write import cube_write as write
from kartothek_cube.io_components.write.cube_write import remove_partitions_job
from kartothek_cube.io_components.write.incremental import (
    declared_ids,
    iter_input,
    with_write_id,
    write_part,
    write_parts_job,
)
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


def _write_delayed(plan: write.CubeWritePlan, data: Any) -> Delayed:
    """One task per Delayed."""
    items = [data] if isinstance(data, Delayed) else [delayed(element) for element in iter_input(data)]
    tasks = [TaskRef(item.key) for item in items]
    return answer_as_delayed(write_parts_job(with_write_id(plan), tasks, write_part), items)


def build_cube_from_delayed(
    data: Iterable[Delayed],
    cube: Cube,
    store: StoreFactory,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> Delayed:
    """
    Store a new cube.

    Each Delayed is checked and written by one task, the last task makes the cube visible. If a task fails, no
    dataset appears. What can be checked without input is checked when the graph is built.

    Parameters
    ----------
    data
        List of Delayed objects, each of a DataFrame (for the seed), a dict of dataset id to DataFrame, or
        None. Cells have to be unique within each of them.
    ktk_cube_dataset_ids
        Ids that may occur; by default only the seed. Those that do not occur are not written.
    store
        Factory of the store.
    cube, metadata, overwrite, partition_on, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.build_cube`.

    Returns
    -------
    dask.delayed.Delayed
        Dict of dataset id to metadata.

    Raises
    ------
    TypeError
        If the store is not a factory.
    ValueError, RuntimeError
        As :func:`~kartothek_cube.io.eager_cube.build_cube`; those about the input when the result is
        computed.

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
    check_store(store)
    names = declared_ids(ktk_cube_dataset_ids, [cube.seed_dataset])
    plan = write.plan_build(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_delayed(plan, data)


def extend_cube_from_delayed(
    data: Iterable[Delayed],
    cube: Cube,
    store: StoreFactory,
    ktk_cube_dataset_ids: str | Iterable[str] | None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> Delayed:
    """
    Add datasets, and with them columns, to a cube.

    Parameters
    ----------
    data, store
        As in :func:`build_cube_from_delayed`.
    ktk_cube_dataset_ids
        Ids that may occur.
    cube, metadata, overwrite, partition_on, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.extend_cube`.

    Returns
    -------
    dask.delayed.Delayed
        Dict of dataset id to metadata of what was written.

    Raises
    ------
    TypeError
        If the store is not a factory.
    ValueError, RuntimeError
        As :func:`~kartothek_cube.io.eager_cube.extend_cube`; those about the input when the result is
        computed.
    """
    check_store(store)
    names = declared_ids(ktk_cube_dataset_ids)
    plan = write.plan_extend(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_delayed(plan, data)


def append_to_cube_from_delayed(
    data: Iterable[Delayed],
    cube: Cube,
    store: StoreFactory,
    ktk_cube_dataset_ids: str | Iterable[str] | None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> Delayed:
    """
    Add partitions to datasets of a cube; nothing happens to a dataset without rows in the input.

    Parameters
    ----------
    data, store
        As in :func:`build_cube_from_delayed`.
    ktk_cube_dataset_ids
        Ids that may occur.
    cube, metadata, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.append_to_cube`.

    Returns
    -------
    dask.delayed.Delayed
        Dict of dataset id to metadata of what was written.

    Raises
    ------
    TypeError
        If the store is not a factory.
    ValueError
        As :func:`~kartothek_cube.io.eager_cube.append_to_cube`; those about the input when the result is
        computed.
    """
    check_store(store)
    plan = write.plan_append(cube, store, declared_ids(ktk_cube_dataset_ids), metadata, df_serializer)
    return _write_delayed(plan, data)


def update_cube_from_delayed(
    data: Iterable[Delayed],
    cube: Cube,
    store: StoreFactory,
    remove_conditions: ConditionsInput,
    ktk_cube_dataset_ids: str | Iterable[str],
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> Delayed:
    """
    Replace partitions: what meets the conditions goes, the input comes, in one commit per dataset.

    Parameters
    ----------
    data, store
        As in :func:`build_cube_from_delayed`.
    cube, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.update_cube`.

    Returns
    -------
    dask.delayed.Delayed
        Dict of dataset id to metadata of the updated datasets.

    Raises
    ------
    TypeError
        If the store is not a factory.
    ValueError, RuntimeError
        As :func:`~kartothek_cube.io.eager_cube.update_cube`; those about the input when the result is
        computed.
    """
    check_store(store)
    plan = write.plan_update(cube, store, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer)
    return _write_delayed(plan, data)


def remove_partitions_delayed(
    cube: Cube,
    store: StoreFactory,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
) -> Delayed:
    """
    Remove partitions. Their files stay until a cleanup.

    Parameters
    ----------
    store
        Factory of the store.
    cube, conditions, ktk_cube_dataset_ids, metadata
        As in :func:`kartothek_cube.io.eager_cube.remove_partitions`.

    Returns
    -------
    dask.delayed.Delayed
        Dict of dataset id to metadata of all datasets of the cube.

    Raises
    ------
    TypeError
        If the store is not a factory.
    ValueError
        As :func:`~kartothek_cube.io.eager_cube.remove_partitions`.
    """
    check_store(store)
    return answer_as_delayed(remove_partitions_job(cube, store, conditions, ktk_cube_dataset_ids, metadata))


def query_cube_delayed(
    cube: Cube,
    store: StoreFactory,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
) -> list[Delayed]:
    """
    Query a cube. Headers and indices are read when the graph is built, files when it is computed.

    Parameters
    ----------
    store
        Factory of the store.
    cube, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of
        As in :func:`kartothek_cube.io.eager_cube.query_cube`.

    Returns
    -------
    list of dask.delayed.Delayed
        One DataFrame per group, sorted by the values of ``partition_by``; without it a single one, or none.
        A group that turns out to have no rows is a DataFrame without rows.

    Raises
    ------
    ValueError, TypeError
        As :func:`~kartothek_cube.io.eager_cube.query_cube`; also if the store is not a factory.
    """
    check_store(store)
    plan = plan_query(
        cube, store, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of=as_of
    )
    return results_as_delayed(query_job(plan, plan.tasks(), run_single_frame))


def delete_cube_delayed(
    cube: Cube, store: StoreFactory, datasets: DatasetsInput = None, blocksize: int = 100
) -> Delayed:
    """
    Delete a cube or some of its datasets, with all files that they refer to.

    Parameters
    ----------
    store
        Factory of the store.
    blocksize
        Keys per task.
    cube, datasets
        As in :func:`kartothek_cube.io.eager_cube.delete_cube`.

    Returns
    -------
    dask.delayed.Delayed
        None.

    Raises
    ------
    TypeError, ValueError
        If the store is not a factory or the block size is not a positive integer.
    """
    check_store(store)
    check_blocksize(blocksize)
    return answer_as_delayed(delete_cube_job(cube, store, datasets, blocksize))


def cleanup_cube_delayed(
    cube: Cube, store: StoreFactory, blocksize: int = 100, *, retention: timedelta | None = None
) -> Delayed:
    """
    Remove keys of the cube that no dataset refers to.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Factory of the store.
    blocksize
        Keys per task.
    retention
        As in :func:`kartothek_cube.io.eager_cube.cleanup_cube`.

    Returns
    -------
    dask.delayed.Delayed
        None.

    Raises
    ------
    TypeError, ValueError
        If the store is not a factory or the block size is not a positive integer.
    """
    check_store(store)
    check_blocksize(blocksize)
    return answer_as_delayed(cube_garbage_job(cube, store, retention, blocksize))


def copy_cube_delayed(
    cube: Cube,
    src_store: StoreFactory,
    tgt_store: StoreFactory,
    overwrite: bool = False,
    datasets: DatasetsInput = None,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
    blocksize: int = 100,
) -> Delayed:
    """
    Copy a cube from one store to another. All checks are made when the graph is built.

    Parameters
    ----------
    src_store, tgt_store
        Factories of the stores; must not be the same store, which is checked by a key that is put and
        deleted.
    blocksize
        Files per task.
    cube, overwrite, datasets, renamed_cube_prefix, renamed_datasets
        As in :func:`kartothek_cube.io.eager_cube.copy_cube`.

    Returns
    -------
    dask.delayed.Delayed
        None.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As :func:`~kartothek_cube.io.eager_cube.copy_cube`; also if a store is not a factory or the block size
        is not a positive integer.
    """
    check_store(src_store)
    check_store(tgt_store)
    check_blocksize(blocksize)
    plan = plan_copy(cube, src_store, tgt_store, overwrite, datasets, renamed_cube_prefix, renamed_datasets)
    return answer_as_delayed(copy_cube_job(plan, blocksize))


def collect_stats_delayed(
    cube: Cube, store: StoreFactory, datasets: DatasetsInput = None, blocksize: int = 100
) -> Delayed:
    """
    Count what is stored.

    Parameters
    ----------
    store
        Factory of the store.
    blocksize
        Files per task.
    cube, datasets
        As in :func:`kartothek_cube.io.eager_cube.collect_stats`.

    Returns
    -------
    dask.delayed.Delayed
        The result of :func:`~kartothek_cube.io.eager_cube.collect_stats`.

    Raises
    ------
    TypeError, ValueError
        If the store is not a factory or the block size is not a positive integer.
    """
    check_store(store)
    check_blocksize(blocksize)
    return answer_as_delayed(collect_stats_job(cube, store, datasets, blocksize))


def compact_cube_delayed(
    cube: Cube,
    store: StoreFactory,
    conditions: ConditionsInput = None,
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
    check_store(store)
    job = compact_cube_job(cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files)
    return answer_as_delayed(job)


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
    check_store(store)
    return answer_as_delayed(verify_cube_job(cube, store, ktk_cube_dataset_ids, deep=deep))
