"""Cubes with pandas, at once: every function does its whole work before it returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io._eager_cube_maintenance import (
    cleanup_cube,
    collect_stats,
    compact_cube,
    keep_cube_history,
    list_cube_garbage,
    list_cube_history,
    repair_cube,
    rollback_cube,
    verify_cube,
)
from kartothek_cube.io_components.maintenance.cube_copy import copy_datasets, plan_copy
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.maintenance.delete import plan_cube_delete, run_delete
from kartothek_cube.io_components.query.explain import explain_query
from kartothek_cube.io_components.query.frame_conversion import run_frames
from kartothek_cube.io_components.query.planner import plan_query
from kartothek_cube.io_components.runtime.progress import progress_bar
from kartothek_cube.io_components.write import cube_write as write
from kartothek_cube.io_components.write.validation import collect_input
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "append_to_cube",
    "build_cube",
    "cleanup_cube",
    "collect_stats",
    "compact_cube",
    "copy_cube",
    "delete_cube",
    "explain_query",
    "extend_cube",
    "keep_cube_history",
    "list_cube_garbage",
    "list_cube_history",
    "query_cube",
    "remove_partitions",
    "repair_cube",
    "rollback_cube",
    "update_cube",
    "verify_cube",
)


def build_cube(
    data: Any,
    cube: Cube,
    store: StoreInput,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    progress: bool = False,
) -> dict[str, DatasetMetadata]:
    """
    Store a new cube.

    All input is checked before anything is written. The datasets appear one by one, the seed last: the cube
    exists when its seed does.

    Parameters
    ----------
    data
        A DataFrame (the seed), a dict of dataset id to DataFrame, or an iterable of these. Anything
        that speaks the Arrow C stream interface (a :class:`pyarrow.Table`, a polars frame, ...) may
        stand for a DataFrame.
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    metadata
        Metadata to keep with each dataset, by dataset id.
    overwrite
        Whether an existing cube is replaced.
    partition_on
        Partition columns by dataset id; default are the partition columns of the cube. The seed can't
        have others.
    df_serializer
        How files are written; Parquet with ZSTD by default.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    ValueError
        If the input breaks a rule of the cube: missing or duplicate columns, nulls in key columns, duplicate
        cells, payload in two datasets, a missing seed, datasets left out of an overwrite.
    RuntimeError
        If a dataset exists and ``overwrite`` is not set.
    MultiTableCommitAborted
        If a dataset has no rows, or the datasets do not form the cube; the store is as it was then,
        apart from files that :func:`cleanup_cube` removes.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cube = Cube(["CITY", "DAY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> weather = pd.DataFrame({
    ...     "CITY": ["Hamburg", "Dresden", "London"],
    ...     "DAY": pd.to_datetime(["2020-01-01"] * 3),
    ...     "COUNTRY_CODE": ["DE", "DE", "UK"],
    ...     "AVG_TEMP": [6, 5, 8],
    ... })
    >>> sorted(build_cube(weather, cube, store))
    ['seed']
    >>> query_cube(cube, store, payload_columns=["AVG_TEMP"])[0]["AVG_TEMP"].tolist()
    [5, 6, 8]
    """
    with progress_bar("build", progress):
        frames = collect_input(data, cube)
        plan = write.plan_build(cube, store, frames, metadata, overwrite, partition_on, df_serializer)
        return write.write_at_once(plan, frames)


def extend_cube(
    data: Any,
    cube: Cube,
    store: StoreInput,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    progress: bool = False,
) -> dict[str, DatasetMetadata]:
    """
    Add datasets, and with them columns, to a cube.

    Parameters
    ----------
    data, metadata, partition_on, df_serializer
        As in :func:`build_cube`, without the seed.
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    overwrite
        Whether datasets that exist already are replaced.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError
        As :func:`build_cube`; also for the seed, and for payload columns that the cube has in another
        dataset.
    RuntimeError
        If a dataset exists and ``overwrite`` is not set.
    MultiTableCommitAborted
        As :func:`build_cube`.
    """
    with progress_bar("extend", progress):
        frames = collect_input(data, cube)
        plan = write.plan_extend(cube, store, frames, metadata, overwrite, partition_on, df_serializer)
        return write.write_at_once(plan, frames)


def append_to_cube(
    data: Any,
    cube: Cube,
    store: StoreInput,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    progress: bool = False,
) -> dict[str, DatasetMetadata]:
    """
    Add partitions to datasets of a cube.

    A cell that exists already in its partition is hidden by the new one.

    Parameters
    ----------
    data, df_serializer
        As in :func:`build_cube`.
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    metadata
        Metadata to set by dataset id; other entries stay.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError
        As :func:`build_cube`; also for datasets that do not exist, and for columns that do not fit.
    MultiTableCommitAborted
        As :func:`build_cube`.
    """
    with progress_bar("append", progress):
        frames = collect_input(data, cube)
        plan = write.plan_append(cube, store, frames, metadata, df_serializer)
        return write.write_at_once(plan, frames)


def update_cube(
    data: Any,
    cube: Cube,
    store: StoreInput,
    remove_conditions: Any,
    ktk_cube_dataset_ids: str | Iterable[str],
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    progress: bool = False,
) -> dict[str, DatasetMetadata]:
    """
    Replace partitions of datasets, in one commit per dataset: what meets the conditions goes, input comes.

    Parameters
    ----------
    data, df_serializer
        As in :func:`build_cube`.
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    remove_conditions
        Which partitions go, as in :func:`remove_partitions`; None removes nothing.
    ktk_cube_dataset_ids
        Datasets to update, also those for which there is no input.
    metadata
        Metadata to set by dataset id; other entries stay.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    dict
        Dataset id to metadata of the updated datasets.

    Raises
    ------
    ValueError
        For input of other datasets, conditions on other columns than the partition columns of the
        cube, and as :func:`append_to_cube`.
    ConcurrentWriteError
        If another writer added partitions in the range that is removed.
    MultiTableCommitAborted
        If a dataset would lose all its partitions.
    """
    with progress_bar("update", progress):
        frames = collect_input(data, cube)
        plan = write.plan_update(
            cube, store, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer
        )
        return write.write_at_once(plan, frames)


def remove_partitions(
    cube: Cube,
    store: StoreInput,
    conditions: Any = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Remove partitions. Their files stay until :func:`cleanup_cube`.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    conditions
        Conditions on partition columns of the cube. A dataset that is not partitioned by a column loses
        partitions whatever the condition on that column says.
    ktk_cube_dataset_ids
        Datasets concerned; all by default.
    metadata
        Metadata to set by dataset id.

    Returns
    -------
    dict
        Dataset id to metadata of all datasets of the cube.

    Raises
    ------
    ValueError
        For conditions on other columns, and for unknown datasets.
    """
    plan = write.plan_remove(cube, store, conditions, ktk_cube_dataset_ids, metadata)
    return write.finish_write(plan, {})


def query_cube(
    cube: Cube,
    store: StoreInput,
    conditions: Any = None,
    datasets: Any = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
    progress: bool = False,
) -> list[pd.DataFrame]:
    """
    Query a cube as if it were one DataFrame.

    Cells come from the seed, all other datasets add columns to them ("Query System" in the specification).

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    conditions
        Conditions that all have to hold, made with :class:`~kartothek_cube.core.cube.conditions.C`.
    datasets
        Ids of the datasets to look at, or a dict of id to metadata; by default all of the cube.
    dimension_columns
        Dimensions of the result, in sort order; by default all. Fewer dimensions project the cube.
    partition_by
        Indexed columns by whose values the result is split.
    payload_columns
        Columns wanted; by default all.
    as_of
        Point in time: each dataset is read in its newest state that is not newer, as far as the datasets keep
        their history (:func:`keep_cube_history`). Or a dict of dataset id to version or time, for some of
        the datasets. By default, the cube is read as it is now.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Returns
    -------
    list of pandas.DataFrame
        One frame per group with rows, sorted by the values of ``partition_by``; without it one frame, or none
        if nothing matches. Columns are sorted by name, rows by dimension and partition columns. Dates are
        ``datetime64[ns]``; a column with dates that this cannot hold (before 1677-09-22 or after 2262-04-11)
        is ``datetime64[s]`` in all frames.

    Raises
    ------
    ValueError
        For unknown or unindexed columns, unknown datasets, and projections that would lose rows.
    TypeError
        If a condition has a value of the wrong type.
    """
    with progress_bar("query", progress):
        plan = plan_query(
            cube, store, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of=as_of
        )
        task = plan.single_task()
        return [] if task is None else run_frames(plan.context, task)


def delete_cube(cube: Cube, store: StoreInput, datasets: Any = None) -> None:
    """
    Delete a cube or some of its datasets, with all files that they refer to.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    datasets
        Ids, or a dict of id to metadata; by default all datasets of the cube.
    """
    run_delete(store, plan_cube_delete(cube, store, datasets))


def copy_cube(
    cube: Cube,
    src_store: StoreInput,
    tgt_store: StoreInput,
    overwrite: bool = False,
    datasets: Any = None,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
    *,
    progress: bool = False,
) -> None:
    """
    Copy a cube from one store to another.

    Parameters
    ----------
    cube
        Specification of the cube.
    src_store, tgt_store
        Stores, factories or URLs; must not be the same store.
    overwrite
        Whether datasets that exist in the target are replaced.
    datasets
        Ids, or a dict of id to metadata; by default all datasets of the cube.
    renamed_cube_prefix
        Prefix of the copy, if it shall have another name.
    renamed_datasets
        Old to new ids of datasets that shall have another name.
    progress
        Show a bar of files, bytes and the time left; needs tqdm.

    Raises
    ------
    ValueError
        If the stores are the same, or the target would not be a valid cube.
    RuntimeError
        If a dataset is missing in the source, or exists in the target and ``overwrite`` is not set.
    """
    with progress_bar("copy", progress):
        plan = plan_copy(
            cube, src_store, tgt_store, overwrite, datasets, renamed_cube_prefix, renamed_datasets
        )
        copy_datasets(plan)
