"""Datasets with dask DataFrames as input of writes and as result of reads; the work is done when computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import dask.dataframe as dd
import pandas as pd
from dask.delayed import Delayed
from dask.task_spec import TaskRef

from kartothek_cube.core.errors import DatasetNotFoundError, unknown_names
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.store.resolve import lazy_store
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.dask._dataframe_read import collect_dataset_metadata, hash_dataset, read_dataset_as_ddf
from kartothek_cube.io.dask._dataset_arguments import (
    DeleteScopeInput,
    check_table,
    immediate_scope,
    picklable_store,
    update_as_delayed,
)
from kartothek_cube.io.dask._shuffle import buckets, shuffled
from kartothek_cube.io_components.arguments import MetadataInput, dataset_factory
from kartothek_cube.io_components.utils import normalize_arg
from kartothek_cube.io_components.write.dataset_commit import Written, write_inputs
from kartothek_cube.io_components.write.dataset_plan import OnConflict, plan_store, plan_update
from kartothek_cube.io_components.write.plan import DatasetWritePlan, MetadataMerger
from kartothek_cube.io_components.write.table_writer import WriteContext
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "collect_dataset_metadata",
    "hash_dataset",
    "read_dataset_as_ddf",
    "store_dataset_from_ddf",
    "update_dataset_from_ddf",
)


def store_dataset_from_ddf(
    ddf: dd.DataFrame,
    store: StoreInput,
    dataset_uuid: str | None,
    table: str = SINGLE_TABLE,
    secondary_indices: str | Sequence[str] | None = None,
    shuffle: bool = False,
    repartition_ratio: float | None = None,
    num_buckets: int | None = 1,
    sort_partitions_by: str | Sequence[str] | None = None,
    metadata: MetadataInput = None,
    df_serializer: DataFrameSerializer | None = None,
    metadata_merger: MetadataMerger | None = None,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: str | Sequence[str] | None = None,
    bucket_by: str | Sequence[str] | None = None,
    overwrite: bool = False,
) -> Delayed:
    """
    Store a new dataset; see :func:`kartothek_cube.io.eager.store_dataframes_as_dataset`.

    One task writes each partition of ``ddf`` without its index, the last task publishes the dataset;
    arguments are checked when the graph is built. ``repartition_ratio`` partitions of the input become one
    before anything else. ``shuffle`` collects the rows of each partition key into at most ``num_buckets``
    files, distributed by the values of ``bucket_by`` (all columns by default).

    Examples
    --------
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> weather = pd.DataFrame({"DAY": [1, 2, 1, 2], "AVG_TEMP": [6, 5, 7, 8]})
    >>> ddf = dd.from_pandas(weather, npartitions=2)
    >>> task = store_dataset_from_ddf(ddf, store, "weather", partition_on="DAY", shuffle=True)
    >>> len(task.compute(scheduler="sync").partitions)
    2
    """
    plan = plan_store(
        lazy_store(store),
        dataset_uuid,
        metadata=metadata,
        partition_on=partition_on,
        df_serializer=df_serializer,
        overwrite=overwrite,
        secondary_indices=secondary_indices,
        sort_partitions_by=sort_partitions_by,
        metadata_version=metadata_version,
        metadata_merger=metadata_merger,
        table_name=check_table(table),
    )
    rows = _arranged(plan, ddf, shuffle, repartition_ratio, num_buckets, bucket_by)
    return _write(plan, rows, shuffle)


def update_dataset_from_ddf(
    ddf: dd.DataFrame | None,
    store: StoreInput | None = None,
    dataset_uuid: str | None = None,
    table: str = SINGLE_TABLE,
    secondary_indices: str | Sequence[str] | None = None,
    shuffle: bool = False,
    repartition_ratio: float | None = None,
    num_buckets: int | None = 1,
    sort_partitions_by: str | Sequence[str] | None = None,
    delete_scope: DeleteScopeInput = None,
    metadata: MetadataInput = None,
    df_serializer: DataFrameSerializer | None = None,
    metadata_merger: MetadataMerger | None = None,
    default_metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: str | Sequence[str] | None = None,
    factory: DatasetFactory | None = None,
    bucket_by: str | Sequence[str] | None = None,
    *,
    on_conflict: OnConflict = "raise",
) -> Delayed:
    """
    Remove and add partitions in one commit.

    See :func:`kartothek_cube.io.eager.update_dataset_from_dataframes`. ``ddf`` and the arguments of the
    shuffle are as in :func:`store_dataset_from_ddf`; ``ddf=None`` only removes partitions. ``delete_scope``
    may be a Delayed as well. A ``table`` that the dataset does not have is a TypeError.
    """
    dataset = dataset_factory(dataset_uuid, picklable_store(store), factory)
    _check_stored_table(dataset, check_table(table))
    plan = plan_update(
        factory=dataset,
        delete_scope=immediate_scope(delete_scope),
        metadata=metadata,
        df_serializer=df_serializer,
        metadata_merger=metadata_merger,
        default_metadata_version=default_metadata_version,
        partition_on=partition_on,
        sort_partitions_by=sort_partitions_by,
        secondary_indices=secondary_indices,
        table_name=table,
        on_conflict=on_conflict,
    )
    rows = _arranged(plan, ddf, shuffle, repartition_ratio, num_buckets, bucket_by)
    return _write(plan, rows, shuffle, delete_scope)


def _check_stored_table(factory: DatasetFactory, table: str) -> None:
    try:
        tables = factory.dataset_metadata.tables
    except DatasetNotFoundError:
        return
    if tables and table not in tables:
        raise TypeError(f"Dataset {factory.dataset_uuid!r}: {unknown_names('table', [table], tables)}")


def _arranged(
    plan: DatasetWritePlan,
    ddf: Any,
    shuffle: bool,
    repartition_ratio: float | None,
    num_buckets: int | None,
    bucket_by: str | Sequence[str] | None,
) -> dd.DataFrame | None:
    """The input, repartitioned and shuffled."""
    if ddf is None:
        return None
    if not isinstance(ddf, dd.DataFrame):
        raise TypeError(f"ddf must be a dask DataFrame but is {type(ddf).__name__}")
    if repartition_ratio:
        ddf = ddf.repartition(npartitions=math.ceil(ddf.npartitions / repartition_ratio))
    arranged: dd.DataFrame = ddf
    if not shuffle:
        return arranged
    missing = set(plan.context.partition_on) - set(arranged.columns)
    if missing:
        raise ValueError(f"partition_on: {unknown_names('column', missing, arranged.columns)}")
    by = normalize_arg("bucket_by", bucket_by)
    return shuffled(arranged, plan.context.partition_on, by, num_buckets)


def _write(
    plan: DatasetWritePlan, ddf: dd.DataFrame | None, shuffle: bool, delete_scope: DeleteScopeInput = None
) -> Delayed:
    """Write each partition in one task, then commit."""
    parts = [] if ddf is None else ddf.to_delayed()
    tasks = [TaskRef(part.key) for part in parts]
    return update_as_delayed(
        plan, parts[:1], tasks, _write_buckets if shuffle else _write_partition, delete_scope
    )


def _write_partition(context: WriteContext, frame: pd.DataFrame) -> Written:
    """Write the rows; without rows a file of the schema, unless the dataset has partition keys."""
    return write_inputs(context, [] if context.partition_on and not len(frame) else [_without_index(frame)])


def _write_buckets(context: WriteContext, frame: pd.DataFrame) -> Written:
    """Write the rows of each bucket; a shuffle may leave partitions empty."""
    return write_inputs(context, [_without_index(rows) for rows in buckets(frame) if len(rows)])


def _without_index(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.reset_index(drop=True)
