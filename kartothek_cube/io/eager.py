"""Datasets with pandas, at once: every function does its whole work before it returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pandas as pd

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import (
    DEFAULT_METADATA_STORAGE_FORMAT,
    DEFAULT_METADATA_VERSION,
    SINGLE_TABLE,
)
from kartothek_cube.core.predicates import PredicatesType
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.types import to_pandas
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components import update as _update
from kartothek_cube.io_components.arguments import MetadataInput, dataset_factory
from kartothek_cube.io_components.copy import finish_copy, plan_copy_dataset, run_copy
from kartothek_cube.io_components.execute import REMOTE_REQUESTS, ordered_map
from kartothek_cube.io_components.index_build import finish_index_build, plan_index_build, run_index_build
from kartothek_cube.io_components.maintain import plan_delete, plan_garbage, run_delete
from kartothek_cube.io_components.read import empty_table, plan_read, run_each, run_read
from kartothek_cube.io_components.update import MetadataMerger, OnConflict
from kartothek_cube.io_components.utils import normalize_arg
from kartothek_cube.io_components.write import WriteResult
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "build_dataset_indices",
    "commit_dataset",
    "copy_dataset",
    "create_empty_dataset_header",
    "delete_dataset",
    "garbage_collect_dataset",
    "read_dataset_as_dataframes",
    "read_table",
    "store_dataframes_as_dataset",
    "update_dataset_from_dataframes",
    "write_single_partition",
)


def delete_dataset(
    dataset_uuid: str | None = None, store: StoreInput | None = None, factory: DatasetFactory | None = None
) -> None:
    """
    Delete a dataset: its garbage, all files that it refers to, and last its header.

    Other keys that start with its uuid stay.

    Parameters
    ----------
    dataset_uuid
        Uuid of the dataset.
    store
        Store, factory or URL.
    factory
        The dataset itself, instead of the two others.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Rom"]})])
    >>> delete_dataset("geodata", store)
    >>> list(store.keys())
    []
    """
    dataset = dataset_factory(dataset_uuid, store, factory, load_schema=False)
    for keys in plan_delete(dataset):
        run_delete(dataset.store_factory, keys)


def read_dataset_as_dataframes(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    columns: list[str] | None = None,
    predicate_pushdown_to_io: bool = True,
    categoricals: list[str] | None = None,
    dates_as_object: bool = True,
    predicates: PredicatesType = None,
    factory: DatasetFactory | None = None,
    dispatch_by: str | Sequence[str] | None = None,
    *,
    table_name: str | None = None,
) -> list[pd.DataFrame]:
    """
    Read a dataset, one frame per partition or per group.

    Parameters
    ----------
    dataset_uuid
        Uuid of the dataset.
    store
        Store, factory or URL.
    columns
        Columns wanted, in this order, partition keys included. None: partition keys, then the columns as the
        file has them. ``[]``: rows without columns.
    predicate_pushdown_to_io
        Whether statistics of the files may be used to skip rows; the result is the same.
    categoricals
        Columns that become unordered categoricals.
    dates_as_object
        Whether dates become :class:`datetime.date` objects; else ``datetime64[ns]``.
    predicates
        Which rows are wanted: any of these conjunctions of ``(column, operator, value)``.
    factory
        The dataset itself, instead of ``dataset_uuid`` and ``store``.
    dispatch_by
        Indexed columns. The result has one frame for each combination of their values that the indices hold,
        with exactly the rows that have these values. ``[]``: everything in one frame.
    table_name
        Which table to read; needed for datasets with several tables only.

    Returns
    -------
    list of pandas.DataFrame
        Partitions in the order of commit, or groups sorted by their values. Partitions that cannot hold a
        matching row are left out.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        A column does not exist, or predicates have the wrong form.
    TypeError
        The value of a predicate does not fit its column.
    RuntimeError
        A column of ``dispatch_by`` has no index, or there are several tables.

    Examples
    --------
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> [df["CITY"].tolist() for df in read_dataset_as_dataframes("geodata", store)]
    [['Bonn', 'Ulm'], ['Rom']]
    """
    plan = plan_read(
        dataset_uuid,
        store,
        factory,
        columns=columns,
        predicate_pushdown_to_io=predicate_pushdown_to_io,
        categoricals=categoricals,
        predicates=predicates,
        dispatch_by=dispatch_by,
        table_name=table_name,
    )
    convert = partial(to_pandas, dates_as_object=dates_as_object, categories=plan.categoricals)
    return [convert(table) for table in run_each(plan)]


def read_table(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    columns: list[str] | None = None,
    predicate_pushdown_to_io: bool = True,
    categoricals: list[str] | None = None,
    dates_as_object: bool = True,
    predicates: PredicatesType = None,
    factory: DatasetFactory | None = None,
    *,
    table_name: str | None = None,
) -> pd.DataFrame:
    """
    Read a dataset into one frame.

    Parameters
    ----------
    dataset_uuid, store, predicate_pushdown_to_io, categoricals, dates_as_object, predicates, factory, table_name
        As in :func:`read_dataset_as_dataframes`.
    columns
        Columns wanted, in this order. None: all, partition keys first, the others sorted by name.

    Returns
    -------
    pandas.DataFrame
        With a fresh index; if nothing matches, without rows and with the types of the schema.

    Raises
    ------
    KeyError, ValueError, TypeError, RuntimeError
        As :func:`read_dataset_as_dataframes`.

    Examples
    --------
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> read_table("geodata", store, predicates=[[("CITY", ">", "C")]])
      COUNTRY_CODE CITY
    0           DE  Ulm
    1           IT  Rom
    """
    plan = plan_read(
        dataset_uuid,
        store,
        factory,
        columns=columns,
        predicate_pushdown_to_io=predicate_pushdown_to_io,
        categoricals=categoricals,
        predicates=predicates,
        table_name=table_name,
        in_schema_order=True,
    )
    task = plan.whole()
    table = empty_table(plan.context) if task is None else run_read(plan.context, task)
    return to_pandas(table, dates_as_object=dates_as_object, categories=plan.categoricals)


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
    delete_scope, metadata, metadata_merger, default_metadata_version, partition_on, secondary_indices, on_conflict
        As in :func:`update_dataset_from_dataframes`.

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
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities[:1]])
    >>> written = [write_single_partition(store, "geodata", cities[i : i + 1]) for i in (1, 2)]
    >>> len(commit_dataset(store, "geodata", written).partitions)
    3
    """
    plan, results = _update.plan_commit(
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
    return _update.finish_update(plan, results)


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
        The inputs: DataFrames, anything that Arrow reads as a table (:class:`pyarrow.Table`, polars, DuckDB), None
        for nothing, or lists of these. A single one need not be in a list. The index of a frame is not stored.
    metadata
        What to store along: a dict that JSON can express, or a function that returns one.
    partition_on
        Columns by whose values each input is split into partitions; they come back as columns when the dataset is
        read.
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
        The dataset exists and ``overwrite`` is not set; a partition column is to be indexed, or a column to index
        is missing.
    ValueError
        There is no input; inputs have different schemas, lack a partition column, or hold a null in one.

    Examples
    --------
    >>> from storefact import get_store_from_url
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> store_dataframes_as_dataset(
    ...     get_store_from_url("hmemory://"), "geodata", [cities], partition_on="COUNTRY_CODE", secondary_indices="CITY"
    ... )
    DatasetMetadata(uuid=geodata, tables=['table'], partition_keys=['COUNTRY_CODE'], metadata_version=4,
        indices=['CITY'], explicit_partitions=True)
    """
    plan = _update.plan_store(
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


def _write_all(plan: _update.UpdatePlan, data: Any) -> DatasetMetadata:
    """Write all inputs, several at once where waiting for the store takes the time, and commit."""
    items = list(_update.inputs(data))
    threads = 1 if open_blobs(plan.context.store).is_local else REMOTE_REQUESTS
    return _update.finish_update(plan, ordered_map(partial(_update.run_update, plan.context), items, threads))


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
    store, dataset_uuid, partition_on, metadata, overwrite, metadata_storage_format, metadata_version, table_name
        As in :func:`store_dataframes_as_dataset`.
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
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn"]})
    >>> create_empty_dataset_header(store, "geodata", cities).explicit_partitions
    False
    >>> _ = write_single_partition(store, "geodata", cities)
    >>> read_table("geodata", store)["CITY"].tolist()
    ['Bonn']
    """
    return _update.create_header(
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
    Write files for a dataset that exists, to be added by :func:`commit_dataset` later, also by another process.

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
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities])
    >>> write_single_partition(store, "geodata", cities).rows
    2
    """
    if data is None:
        raise TypeError("write_single_partition needs data, got None.")
    context, schema = _update.plan_partition(
        dataset_uuid,
        store,
        factory,
        df_serializer=df_serializer,
        metadata_version=metadata_version,
        partition_on=partition_on,
        secondary_indices=secondary_indices,
        table_name=table_name,
    )
    return _update.run_update(context, data, schema)


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
        Which partitions go: a list of dicts of indexed column to value. A partition goes if it matches all columns
        of a dict; the empty dict matches all partitions. The files stay until :func:`garbage_collect_dataset`.
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
        What to do if somebody else writes partitions that match ``delete_scope`` while this runs: ``raise``, or
        ``replace`` them as well.

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
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> weather = pd.DataFrame({"DAY": [1, 2], "AVG_TEMP": [6, 5]})
    >>> _ = update_dataset_from_dataframes([weather], store, "weather", partition_on="DAY")
    >>> corrected = pd.DataFrame({"DAY": [2], "AVG_TEMP": [8]})
    >>> _ = update_dataset_from_dataframes([corrected], store, "weather", delete_scope=[{"DAY": 2}])
    >>> read_table("weather", store)["AVG_TEMP"].tolist()
    [6, 8]
    """
    plan = _update.plan_update(
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


def build_dataset_indices(
    store: StoreInput | None,
    dataset_uuid: str | None,
    columns: str | Sequence[str],
    factory: DatasetFactory | None = None,
) -> DatasetMetadata:
    """
    Add secondary indices to a dataset, or build existing ones anew. Only the columns concerned are read.

    Parameters
    ----------
    store, dataset_uuid, factory
        As in :func:`read_dataset_as_dataframes`.
    columns
        Columns to index.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    KeyError
        There is no such dataset.
    RuntimeError
        A column does not exist, or is a partition key.

    Examples
    --------
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Bonn", "Rom"]})])
    >>> sorted(build_dataset_indices(store, "geodata", ["CITY"]).indices)
    ['CITY']
    """
    wanted = normalize_arg("columns", columns) or []
    context, tasks = plan_index_build(dataset_factory(dataset_uuid, store, factory), wanted)
    return finish_index_build(context, [run_index_build(context, task) for task in tasks])


def garbage_collect_dataset(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    retention: timedelta | None = None,
) -> None:
    """
    Delete what failed, overwritten or removed writes left behind: files of the dataset that it does not refer to.

    Parameters
    ----------
    dataset_uuid, store, factory
        As in :func:`read_dataset_as_dataframes`.
    retention
        Files younger than this stay, since a writer (or a reader of an older state) may still need them; so do
        files of which the store does not tell the age. None: files of any age go, so nobody else may be writing.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Bonn", "Rom"]})])
    >>> before = set(store.keys())
    >>> _ = write_single_partition(store, "geodata", pd.DataFrame({"CITY": ["Ulm"]}))  # never committed
    >>> garbage_collect_dataset("geodata", store)
    >>> set(store.keys()) == before
    True
    """
    dataset = dataset_factory(dataset_uuid, store, factory)
    run_delete(dataset.store_factory, plan_garbage(dataset, retention))


def copy_dataset(
    source_dataset_uuid: str,
    store: StoreInput,
    target_dataset_uuid: str | None = None,
    target_store: StoreInput | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Copy a dataset under another name, to another store, or both.

    Parameters
    ----------
    source_dataset_uuid
        The dataset.
    store
        Where it is.
    target_dataset_uuid
        Name of the copy; the same by default.
    target_store
        Where the copy goes; the same store by default.

    Returns
    -------
    dict
        Key of the new header to its metadata.

    Raises
    ------
    ValueError
        If neither name nor store differ.
    KeyError
        If there is no such dataset.

    Examples
    --------
    >>> from storefact import get_store_from_url
    >>> store = get_store_from_url("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Bonn", "Rom"]})])
    >>> list(copy_dataset("geodata", store, "geodata_backup"))
    ['geodata_backup.by-dataset-metadata.json']
    """
    target_uuid = target_dataset_uuid or source_dataset_uuid
    target_input = store if target_store is None else target_store
    if source_dataset_uuid == target_uuid and store == target_input:
        raise ValueError(
            "Cannot copy a dataset onto itself: give another target_dataset_uuid or another target_store"
        )
    source, target = open_blobs(store), open_blobs(target_input)
    copy = plan_copy_dataset(source, source_dataset_uuid, target_uuid)
    run_copy(source, target, copy.keys)
    return finish_copy(source, target, copy)
