"""Cubes with dask bags: every function returns a bag, which does the work when it is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from dask.bag import Bag
from dask.task_spec import TaskRef

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.typing import ConditionsInput, CubeMetadata, DatasetsInput
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.io.dask._executor import answer_as_bag, results_as_bag
from kartothek_cube.io.dask.common_cube import check_blocksize, check_store
from kartothek_cube.io_components.maintenance.compact import compact_cube_job
from kartothek_cube.io_components.maintenance.cube_copy import copy_cube_job, plan_copy
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.maintenance.delete import delete_cube_job
from kartothek_cube.io_components.maintenance.garbage import cube_garbage_job
from kartothek_cube.io_components.maintenance.stats import collect_stats_job
from kartothek_cube.io_components.query.frame_conversion import query_job, run_frame_blocks
from kartothek_cube.io_components.query.planner import plan_query
from kartothek_cube.io_components.runtime.threads import batched
from kartothek_cube.io_components.verify.cube_rules import verify_cube_job
from kartothek_cube.io_components.write import cube_write as write
from kartothek_cube.io_components.write.cube_write import remove_partitions_job
from kartothek_cube.io_components.write.incremental import (
    declared_ids,
    with_write_id,
    write_parts,
    write_parts_job,
)
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


def _write_bag(plan: write.CubeWritePlan, data: Bag) -> Bag:
    """One task per partition of the bag, from its elements to stored files."""
    if not isinstance(data, Bag):
        raise TypeError(f"data must be a dask bag but is {type(data).__name__}")
    partitions = [TaskRef((data.name, i)) for i in range(data.npartitions)]
    return answer_as_bag(write_parts_job(with_write_id(plan), partitions, write_parts), [data])


def build_cube_from_bag(
    data: Bag,
    cube: Cube,
    store: StoreFactory,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> Bag:
    """
    Store a new cube.

    Each element is checked and written by one task, the last task makes the cube visible. If a task fails, no
    dataset appears. What can be checked without input is checked when the graph is built.

    Parameters
    ----------
    data
        Bag of DataFrames (for the seed), dicts of dataset id to DataFrame, and None. Cells have to be unique
        within an element.
    ktk_cube_dataset_ids
        Ids that may occur in the bag; by default only the seed. Those that do not occur are not written.
    store
        Factory of the store.
    cube, metadata, overwrite, partition_on, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.build_cube`.

    Returns
    -------
    dask.bag.Bag
        One element: a dict of dataset id to metadata.

    Raises
    ------
    TypeError
        If the store is not a factory.
    ValueError, RuntimeError
        As :func:`~kartothek_cube.io.eager_cube.build_cube`; those about the input when the bag is computed.

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
    check_store(store)
    names = declared_ids(ktk_cube_dataset_ids, [cube.seed_dataset])
    plan = write.plan_build(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_bag(plan, data)


def extend_cube_from_bag(
    data: Bag,
    cube: Cube,
    store: StoreFactory,
    ktk_cube_dataset_ids: str | Iterable[str] | None,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> Bag:
    """
    Add datasets, and with them columns, to a cube.

    Parameters
    ----------
    data, store
        As in :func:`build_cube_from_bag`.
    ktk_cube_dataset_ids
        Ids that may occur in the bag.
    cube, metadata, overwrite, partition_on, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.extend_cube`.

    Returns
    -------
    dask.bag.Bag
        One element: a dict of dataset id to metadata of what was written.

    Raises
    ------
    TypeError
        If the store is not a factory.
    ValueError, RuntimeError
        As :func:`~kartothek_cube.io.eager_cube.extend_cube`; those about the input when the bag is computed.
    """
    check_store(store)
    names = declared_ids(ktk_cube_dataset_ids)
    plan = write.plan_extend(cube, store, names, metadata, overwrite, partition_on, df_serializer)
    return _write_bag(plan, data)


def append_to_cube_from_bag(
    data: Bag,
    cube: Cube,
    store: StoreFactory,
    ktk_cube_dataset_ids: str | Iterable[str] | None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> Bag:
    """
    Add partitions to datasets of a cube; nothing happens to a dataset without rows in the bag.

    Parameters
    ----------
    data, store
        As in :func:`build_cube_from_bag`.
    ktk_cube_dataset_ids
        Ids that may occur in the bag.
    cube, metadata, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.append_to_cube`.

    Returns
    -------
    dask.bag.Bag
        One element: a dict of dataset id to metadata of what was written.

    Raises
    ------
    TypeError
        If the store is not a factory.
    ValueError
        As :func:`~kartothek_cube.io.eager_cube.append_to_cube`; those about the input when the bag is
        computed.
    """
    check_store(store)
    plan = write.plan_append(cube, store, declared_ids(ktk_cube_dataset_ids), metadata, df_serializer)
    return _write_bag(plan, data)


def update_cube_from_bag(
    data: Bag,
    cube: Cube,
    store: StoreFactory,
    remove_conditions: ConditionsInput,
    ktk_cube_dataset_ids: str | Iterable[str],
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
) -> Bag:
    """
    Replace partitions: what meets the conditions goes, the input comes, in one commit per dataset.

    Parameters
    ----------
    data, store
        As in :func:`build_cube_from_bag`.
    cube, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.update_cube`.

    Returns
    -------
    dask.bag.Bag
        One element: a dict of dataset id to metadata of the updated datasets.

    Raises
    ------
    TypeError
        If the store is not a factory.
    ValueError, RuntimeError
        As :func:`~kartothek_cube.io.eager_cube.update_cube`; those about the input when the bag is computed.
    """
    check_store(store)
    plan = write.plan_update(cube, store, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer)
    return _write_bag(plan, data)


def remove_partitions_bag(
    cube: Cube,
    store: StoreFactory,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
) -> Bag:
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
    dask.bag.Bag
        One element: a dict of dataset id to metadata of all datasets of the cube.

    Raises
    ------
    TypeError
        If the store is not a factory.
    ValueError
        As :func:`~kartothek_cube.io.eager_cube.remove_partitions`.
    """
    check_store(store)
    return answer_as_bag(remove_partitions_job(cube, store, conditions, ktk_cube_dataset_ids, metadata))


def query_cube_bag(
    cube: Cube,
    store: StoreFactory,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    blocksize: int = 1,
    *,
    as_of: CubeAsOf | None = None,
) -> Bag:
    """
    Query a cube. Headers and indices are read when the graph is built, files when it is computed.

    Parameters
    ----------
    store
        Factory of the store.
    cube, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of
        As in :func:`kartothek_cube.io.eager_cube.query_cube`.
    blocksize
        Groups per partition of the bag.

    Returns
    -------
    dask.bag.Bag
        The frames of :func:`~kartothek_cube.io.eager_cube.query_cube`.

    Raises
    ------
    ValueError, TypeError
        As :func:`~kartothek_cube.io.eager_cube.query_cube`; also if the store is not a factory or the block
        size is not a positive integer.
    """
    check_store(store)
    check_blocksize(blocksize)
    plan = plan_query(
        cube, store, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of=as_of
    )
    blocks = batched(plan.tasks(), blocksize)
    return results_as_bag(query_job(plan, blocks, run_frame_blocks, "groups"), flatten=True)


def delete_cube_bag(
    cube: Cube, store: StoreFactory, blocksize: int = 100, datasets: DatasetsInput = None
) -> Bag:
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
    dask.bag.Bag
        None from each task.

    Raises
    ------
    TypeError, ValueError
        If the store is not a factory or the block size is not a positive integer.
    """
    check_store(store)
    check_blocksize(blocksize)
    return results_as_bag(delete_cube_job(cube, store, datasets, blocksize))


def cleanup_cube_bag(
    cube: Cube, store: StoreFactory, blocksize: int = 100, *, retention: timedelta | None = None
) -> Bag:
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
    dask.bag.Bag
        None from each task.

    Raises
    ------
    TypeError, ValueError
        If the store is not a factory or the block size is not a positive integer.
    """
    check_store(store)
    check_blocksize(blocksize)
    return results_as_bag(cube_garbage_job(cube, store, retention, blocksize))


def copy_cube_bag(
    cube: Cube,
    src_store: StoreFactory,
    tgt_store: StoreFactory,
    blocksize: int = 100,
    overwrite: bool = False,
    datasets: DatasetsInput = None,
    *,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
) -> Bag:
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
    dask.bag.Bag
        None from the task that makes the copy visible.

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
    return answer_as_bag(copy_cube_job(plan, blocksize))


def collect_stats_bag(
    cube: Cube, store: StoreFactory, datasets: DatasetsInput = None, blocksize: int = 100
) -> Bag:
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
    dask.bag.Bag
        One element: the result of :func:`~kartothek_cube.io.eager_cube.collect_stats`.

    Raises
    ------
    TypeError, ValueError
        If the store is not a factory or the block size is not a positive integer.
    """
    check_store(store)
    check_blocksize(blocksize)
    return answer_as_bag(collect_stats_job(cube, store, datasets, blocksize))


def compact_cube_bag(
    cube: Cube,
    store: StoreFactory,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
) -> Bag:
    """
    Merge the files of each physical partition into one; which these are is decided when the graph is built.

    Parameters
    ----------
    cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files
        As in :func:`~kartothek_cube.io.dask.delayed_cube.compact_cube_delayed`.

    Returns
    -------
    dask.bag.Bag
        One element: the result of :func:`~kartothek_cube.io.eager_cube.compact_cube`.

    Raises
    ------
    TypeError, ValueError
        As there.
    """
    check_store(store)
    job = compact_cube_job(cube, store, conditions, ktk_cube_dataset_ids, df_serializer, min_files)
    return answer_as_bag(job)


def verify_cube_bag(
    cube: Cube,
    store: StoreFactory,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
) -> Bag:
    """
    Check a cube. Headers and the existence of files are checked when the graph is built, files in tasks.

    Parameters
    ----------
    cube, store, ktk_cube_dataset_ids, deep
        As in :func:`~kartothek_cube.io.dask.delayed_cube.verify_cube_delayed`.

    Returns
    -------
    dask.bag.Bag
        One element: the result of :func:`~kartothek_cube.io.eager_cube.verify_cube`.

    Raises
    ------
    TypeError, ValueError
        As there.
    """
    check_store(store)
    return answer_as_bag(verify_cube_job(cube, store, ktk_cube_dataset_ids, deep=deep))
