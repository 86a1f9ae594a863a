"""Writing datasets with pandas, at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import (
    DEFAULT_METADATA_STORAGE_FORMAT,
    DEFAULT_METADATA_VERSION,
    SINGLE_TABLE,
)
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.arguments import MetadataInput
from kartothek_cube.io_components.runtime.threads import REMOTE_REQUESTS, ordered_map
from kartothek_cube.io_components.write.dataset_commit import create_header, finish_update, run_update
from kartothek_cube.io_components.write.dataset_plan import (
    OnConflict,
    plan_commit,
    plan_partition,
    plan_store,
    plan_update,
)
from kartothek_cube.io_components.write.inputs import iter_inputs
from kartothek_cube.io_components.write.plan import DatasetWritePlan, MetadataMerger
from kartothek_cube.io_components.write.table_writer import WriteResult
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "commit_dataset",
    "create_empty_dataset_header",
    "store_dataframes_as_dataset",
    "update_dataset_from_dataframes",
    "write_single_partition",
)


def store_dataframes_as_dataset(
    store: StoreInput,
    dataset_uuid: str | None,
    dfs: Iterable[Any] | Any,
    metadata: MetadataInput = None,
    partition_on: str | Sequence[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    overwrite: bool = False,
    secondary_indices: str | Sequence[str] | None = None,
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    table_name: str = SINGLE_TABLE,
) -> DatasetMetadata:
    """
    Store a new dataset.

    Parameters
    ----------
    store
        Store, factory or URL.
    dataset_uuid
        Uuid of the dataset; None for a random one.
    dfs
        The inputs: DataFrames, anything that Arrow reads as a table (:class:`pyarrow.Table`, polars, DuckDB),
        None for nothing, or lists of these. A single one need not be in a list. The index of a frame is no
        column of the dataset; datasets without partition keys keep it for those who read frame by frame.
    metadata
        What to store along: a dict that JSON can express, or a function that returns one.
    partition_on
        Columns by whose values each input is split into partitions; they come back as columns when the
        dataset is read.
    df_serializer
        How files are written; Parquet with SNAPPY by default.
    overwrite
        Whether a dataset that exists is replaced.
    secondary_indices
        Columns to index: reads whose predicates concern them open the files that hold the values only.
    metadata_storage_format
        Format of the header, ``json`` or ``msgpack``.
    metadata_version
        Version of the format; there is only 4.
    table_name
        Name of the table.

    Returns
    -------
    DatasetMetadata
        The dataset, as loading it gives.

    Raises
    ------
    RuntimeError
        The dataset exists and ``overwrite`` is not set; a partition column is to be indexed, or a column to
        index is missing.
    ValueError
        There is no input; inputs have different schemas, lack a partition column, or hold a null in one.

    Examples
    --------
    >>> import pandas as pd
    >>> from storefact import get_store_from_url
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> store = get_store_from_url("hmemory://")
    >>> store_dataframes_as_dataset(
    ...     store, "geodata", [cities], partition_on="COUNTRY_CODE", secondary_indices="CITY"
    ... )
    DatasetMetadata(uuid=geodata, tables=['table'], partition_keys=['COUNTRY_CODE'], metadata_version=4,
        indices=['CITY'], explicit_partitions=True)
    """
    plan = plan_store(
        store,
        dataset_uuid,
        metadata=metadata,
        partition_on=partition_on,
        df_serializer=df_serializer,
        overwrite=overwrite,
        secondary_indices=secondary_indices,
        metadata_storage_format=metadata_storage_format,
        metadata_version=metadata_version,
        table_name=table_name,
    )
    return _write_all(plan, dfs)


def _write_all(plan: DatasetWritePlan, data: Any) -> DatasetMetadata:
    """Write all inputs, several at once where waiting for the store takes the time, and commit."""
    items = list(iter_inputs(data))
    threads = 1 if open_blobs(plan.context.store).is_local else REMOTE_REQUESTS
    return finish_update(plan, ordered_map(partial(run_update, plan.context), items, threads))


def create_empty_dataset_header(
    store: StoreInput,
    dataset_uuid: str,
    schema: Any,
    partition_on: str | Sequence[str] | None = None,
    metadata: MetadataInput = None,
    overwrite: bool = False,
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    table_name: str = SINGLE_TABLE,
) -> DatasetMetadata:
    """
    Create a dataset whose partitions are whatever files are there; the next commit makes them explicit.

    Parameters
    ----------
    store, dataset_uuid, partition_on, metadata, overwrite, metadata_storage_format
        As in :func:`store_dataframes_as_dataset`.
    metadata_version, table_name
        As there.
    schema
        Schema of the table: a DataFrame or Arrow table of that kind, a :class:`pyarrow.Schema`, or a
        :class:`~kartothek_cube.core.common_metadata.SchemaWrapper`.

    Returns
    -------
    DatasetMetadata
        Without partitions.

    Raises
    ------
    RuntimeError
        The dataset exists and ``overwrite`` is not set.
    ValueError
        The schema is none of these, or lacks a partition column.

    Examples
    --------
    >>> import pandas as pd
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn"]})
    >>> create_empty_dataset_header(store, "geodata", cities).explicit_partitions
    False
    >>> _ = write_single_partition(store, "geodata", cities)
    >>> from kartothek_cube.io.eager import read_table
    >>> read_table("geodata", store)["CITY"].tolist()
    ['Bonn']
    """
    return create_header(
        store,
        dataset_uuid,
        schema,
        partition_on=partition_on,
        metadata=metadata,
        overwrite=overwrite,
        metadata_storage_format=metadata_storage_format,
        metadata_version=metadata_version,
        table_name=table_name,
    )


def write_single_partition(
    store: StoreInput | None = None,
    dataset_uuid: str | None = None,
    data: Any = None,
    df_serializer: DataFrameSerializer | None = None,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: str | Sequence[str] | None = None,
    factory: DatasetFactory | None = None,
    secondary_indices: str | Sequence[str] | None = None,
    table_name: str = SINGLE_TABLE,
) -> WriteResult:
    """
    Write files for a dataset that exists, to be added by :func:`commit_dataset` later.

    Parameters
    ----------
    store, dataset_uuid, factory
        As in :func:`update_dataset_from_dataframes`.
    data
        One input, or a list of them, as in :func:`store_dataframes_as_dataset`.
    df_serializer, metadata_version, table_name
        As in :func:`store_dataframes_as_dataset`.
    partition_on
        Partition keys of the dataset; need not be given.
    secondary_indices
        Indices of the dataset; need not be given, as all are kept up to date.

    Returns
    -------
    WriteResult
        What :func:`commit_dataset` takes. It is small and can be pickled.

    Raises
    ------
    KeyError
        There is no such dataset.
    TypeError
        There is no ``data``.
    ValueError
        The data does not fit the dataset; nothing is written then.

    Examples
    --------
    >>> import pandas as pd
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities])
    >>> write_single_partition(store, "geodata", cities).rows
    2
    """
    if data is None:
        raise TypeError("write_single_partition needs data, got None.")
    context, schema = plan_partition(
        dataset_uuid,
        store,
        factory,
        df_serializer=df_serializer,
        metadata_version=metadata_version,
        partition_on=partition_on,
        secondary_indices=secondary_indices,
        table_name=table_name,
    )
    return run_update(context, data, schema)


def commit_dataset(
    store: StoreInput | None = None,
    dataset_uuid: str | None = None,
    new_partitions: Any = None,
    delete_scope: Sequence[dict[str, Any]] | None = None,
    metadata: MetadataInput = None,
    metadata_merger: MetadataMerger | None = None,
    default_metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: str | Sequence[str] | None = None,
    factory: DatasetFactory | None = None,
    secondary_indices: str | Sequence[str] | None = None,
    *,
    on_conflict: OnConflict = "raise",
) -> DatasetMetadata:
    """
    Add partitions written by :func:`write_single_partition`, remove others and set metadata, in one step.

    Parameters
    ----------
    store, dataset_uuid, factory
        As in :func:`update_dataset_from_dataframes`.
    new_partitions
        What :func:`write_single_partition` returned, once or several times in (nested) lists.
    delete_scope, metadata, metadata_merger, default_metadata_version, partition_on
        As in :func:`update_dataset_from_dataframes`.
    secondary_indices, on_conflict
        As there.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        There is nothing to do, or something does not fit the dataset.
    RuntimeError
        Partitions were written for another dataset or table.
    ConcurrentWriteError
        As :func:`update_dataset_from_dataframes`.

    Examples
    --------
    >>> import pandas as pd
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities[:1]])
    >>> written = [write_single_partition(store, "geodata", cities[i : i + 1]) for i in (1, 2)]
    >>> len(commit_dataset(store, "geodata", written).partitions)
    3
    """
    plan, results = plan_commit(
        dataset_uuid,
        store,
        factory,
        new_partitions=new_partitions,
        delete_scope=delete_scope,
        metadata=metadata,
        metadata_merger=metadata_merger,
        default_metadata_version=default_metadata_version,
        partition_on=partition_on,
        secondary_indices=secondary_indices,
        on_conflict=on_conflict,
    )
    return finish_update(plan, results)


def update_dataset_from_dataframes(
    df_list: Iterable[Any] | Any,
    store: StoreInput | None = None,
    dataset_uuid: str | None = None,
    delete_scope: Sequence[dict[str, Any]] | None = None,
    metadata: MetadataInput = None,
    df_serializer: DataFrameSerializer | None = None,
    metadata_merger: MetadataMerger | None = None,
    default_metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: str | Sequence[str] | None = None,
    sort_partitions_by: str | Sequence[str] | None = None,
    secondary_indices: str | Sequence[str] | None = None,
    table_name: str = SINGLE_TABLE,
    factory: DatasetFactory | None = None,
    *,
    on_conflict: OnConflict = "raise",
) -> DatasetMetadata:
    """
    Remove partitions and add others, in one step. A dataset that does not exist is created.

    Several writers may do this at the same time: additions are all kept.

    Parameters
    ----------
    df_list
        The inputs, as in :func:`store_dataframes_as_dataset`; nothing of it is needed to remove partitions.
    store
        Store, factory or URL.
    dataset_uuid
        Uuid of the dataset.
    delete_scope
        Which partitions go: a list of dicts of indexed column to value. A partition goes if it matches all
        columns of a dict; the empty dict matches all partitions. The files stay until
        :func:`garbage_collect_dataset`.
    metadata
        Metadata to set; other entries stay.
    df_serializer
        How files are written; Parquet with SNAPPY by default.
    metadata_merger
        Function of a list of two dicts, the stored metadata and ``metadata``, that returns the new metadata.
    default_metadata_version
        Version of the format of a dataset that is created.
    partition_on
        Partition keys of the dataset; need not be given unless it is created.
    sort_partitions_by
        Columns by which each input is sorted before it is split.
    secondary_indices
        Indices of the dataset; need not be given unless it is created. All indices are kept up to date.
    table_name
        Name of the table.
    factory
        The dataset itself, instead of ``dataset_uuid`` and ``store``. What it has loaded is not changed.
    on_conflict
        What to do if somebody else writes partitions that match ``delete_scope`` while this runs: ``raise``,
        or ``replace`` them as well.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    ValueError
        Inputs or arguments do not fit the dataset; there is no input and no dataset.
    ConcurrentWriteError
        Somebody else wrote partitions that would be removed; nothing is changed then.

    Examples
    --------
    >>> import pandas as pd
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> weather = pd.DataFrame({"DAY": [1, 2], "AVG_TEMP": [6, 5]})
    >>> _ = update_dataset_from_dataframes([weather], store, "weather", partition_on="DAY")
    >>> corrected = pd.DataFrame({"DAY": [2], "AVG_TEMP": [8]})
    >>> _ = update_dataset_from_dataframes([corrected], store, "weather", delete_scope=[{"DAY": 2}])
    >>> from kartothek_cube.io.eager import read_table
    >>> read_table("weather", store)["AVG_TEMP"].tolist()
    [6, 8]
    """
    plan = plan_update(
        dataset_uuid,
        store,
        factory,
        delete_scope=delete_scope,
        metadata=metadata,
        df_serializer=df_serializer,
        metadata_merger=metadata_merger,
        default_metadata_version=default_metadata_version,
        partition_on=partition_on,
        sort_partitions_by=sort_partitions_by,
        secondary_indices=secondary_indices,
        table_name=table_name,
        on_conflict=on_conflict,
    )
    return _write_all(plan, df_list)
