"""Changing a dataset: plan (what is there, what is asked), run (files of one input), finish (one commit).

Create, append, update and remove are one operation with different options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import attrs
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.commit import Delta, IndexEntries, commit
from kartothek_cube.core.common_metadata import SchemaWrapper, make_meta, validate_compatible
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    SchemaConflictError,
    unknown_names,
)
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import (
    DEFAULT_METADATA_STORAGE_FORMAT,
    DEFAULT_METADATA_VERSION,
    SINGLE_TABLE,
    check_metadata_version,
    check_table_name,
    metadata_key_from_uuid,
)
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.types import as_table
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.arguments import (
    MetadataInput,
    check_partition_keys,
    check_serializer,
    check_table,
    dataset_factory,
    user_metadata,
)
from kartothek_cube.io_components.columns import sort_order
from kartothek_cube.io_components.execute import store_factory
from kartothek_cube.io_components.files import read_files
from kartothek_cube.io_components.scope import plan_removal
from kartothek_cube.io_components.utils import extract_duplicates, normalize_args
from kartothek_cube.io_components.write import (
    WriteContext,
    WriteResult,
    index_entries_of,
    merge_results,
    write_table,
)
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "MetadataMerger",
    "OnConflict",
    "UpdatePlan",
    "check_handles",
    "create_header",
    "finish_update",
    "inputs",
    "plan_commit",
    "plan_partition",
    "plan_store",
    "plan_update",
    "run_update",
)

#: what becomes of a removal that meets partitions which somebody else wrote after it was planned
OnConflict = Literal["raise", "replace"]
MetadataMerger = Callable[[list[dict[str, Any]]], dict[str, Any]]


@attrs.frozen
class UpdatePlan:
    """
    A planned change of one dataset.

    Attributes
    ----------
    context
        What tasks need to write input.
    mode
        As in :class:`~kartothek_cube.core.commit.Delta`.
    metadata, merge_metadata
        Metadata to set, and how.
    scope, expected
        Partitions to remove, as in :class:`~kartothek_cube.core.commit.Delta`.
    storage_format
        Format of a new header.
    """

    context: WriteContext
    mode: Literal["create", "replace", "update", "upsert"]
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    merge_metadata: MetadataMerger | None = None
    scope: list[list[tuple[str, str, Any]]] | None = None
    expected: pa.StringArray | None = None
    storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT


# -- plan ------------------------------------------------------------------------------------------------------------


@normalize_args
def plan_store(
    store: StoreInput,
    dataset_uuid: str | None = None,
    *,
    metadata: MetadataInput = None,
    partition_on: Any = None,
    df_serializer: DataFrameSerializer | None = None,
    overwrite: bool = False,
    secondary_indices: Any = None,
    sort_partitions_by: Any = None,
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    metadata_merger: MetadataMerger | None = None,
    table_name: str = SINGLE_TABLE,
) -> UpdatePlan:
    """
    Plan to write a new dataset.

    Parameters
    ----------
    store, dataset_uuid, metadata, partition_on, df_serializer, overwrite, secondary_indices, metadata_version
        As in :func:`kartothek_cube.io.eager.store_dataframes_as_dataset`.
    metadata_storage_format, sort_partitions_by, metadata_merger, table_name
        As in the façades.

    Returns
    -------
    UpdatePlan

    Raises
    ------
    RuntimeError
        The dataset exists and is not to be overwritten, or a partition column is to be indexed.
    """
    uuid = gen_uuid() if dataset_uuid is None else dataset_uuid
    plan = _new(
        WriteContext(
            store_factory(store),
            uuid,
            table_name,
            tuple(partition_on),
            tuple(secondary_indices),
            check_serializer(df_serializer),
            tuple(sort_partitions_by),
        ),
        metadata,
        metadata_merger,
        metadata_version,
        metadata_storage_format,
    )
    if overwrite:
        return attrs.evolve(plan, mode="replace")
    if DatasetMetadata.exists(uuid, plan.context.store):
        raise DatasetExistsError(uuid)
    return attrs.evolve(plan, mode="create")


def _new(
    context: WriteContext,
    metadata: MetadataInput,
    merger: MetadataMerger | None,
    version: int,
    storage_format: str,
) -> UpdatePlan:
    """The part of a plan that does not depend on what is in the store."""
    check_metadata_version(version)
    check_table_name(context.table)
    metadata_key_from_uuid(context.uuid, storage_format.lower())
    for name in ("partition_on", "indices", "sort_by"):
        twice = extract_duplicates(getattr(context, name))
        if twice:
            raise ValueError(f"Columns are named twice for dataset {context.uuid!r}: {', '.join(sorted(twice))}")
    overlap = set(context.partition_on) & set(context.indices)
    if overlap:
        raise RuntimeError(
            f"Cannot create a secondary index on partition column(s) {', '.join(sorted(overlap))} of dataset "
            f"{context.uuid!r}: their values are in the labels of the partitions already"
        )
    return UpdatePlan(context, "upsert", user_metadata(metadata), merger, storage_format=storage_format.lower())


@normalize_args
def plan_update(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    delete_scope: Any = None,
    metadata: MetadataInput = None,
    df_serializer: DataFrameSerializer | None = None,
    metadata_merger: MetadataMerger | None = None,
    default_metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: Any = None,
    sort_partitions_by: Any = None,
    secondary_indices: Any = None,
    table_name: str = SINGLE_TABLE,
    on_conflict: OnConflict = "raise",
) -> UpdatePlan:
    """
    Plan to remove and add partitions; a dataset that does not exist is created.

    Parameters
    ----------
    dataset_uuid, store, factory, delete_scope, metadata, df_serializer, metadata_merger, default_metadata_version
        As in :func:`kartothek_cube.io.eager.update_dataset_from_dataframes`.
    partition_on, sort_partitions_by, secondary_indices, table_name, on_conflict
        As there.

    Returns
    -------
    UpdatePlan

    Raises
    ------
    ValueError
        Arguments contradict the dataset that is there.
    """
    found = dataset_factory(dataset_uuid, store, factory)
    context = WriteContext(
        found.store_factory,
        found.dataset_uuid,
        table_name,
        tuple(partition_on),
        tuple(secondary_indices),
        check_serializer(df_serializer),
        tuple(sort_partitions_by),
    )
    plan = _new(context, metadata, metadata_merger, default_metadata_version, DEFAULT_METADATA_STORAGE_FORMAT)
    try:
        dataset = found.dataset_metadata
    except DatasetNotFoundError:
        return plan
    scope, expected = plan_removal(dataset, delete_scope, context.store)
    return attrs.evolve(
        plan,
        context=_stored_context(context, dataset),
        mode="update",
        scope=scope,
        expected=None if _is_replace(on_conflict) else expected,
    )


def _is_replace(on_conflict: OnConflict) -> bool:
    if on_conflict not in ("raise", "replace"):
        raise ValueError(f"on_conflict is 'raise' or 'replace', got {on_conflict!r}")
    return on_conflict == "replace"


def _stored_context(context: WriteContext, dataset: DatasetMetadata) -> WriteContext:
    """The context with partition keys and indices of a dataset that is there; what was given has to agree."""
    table = check_table(dataset, None)
    if context.table != table:
        raise RuntimeError(f"Dataset {dataset.uuid!r}: {unknown_names('table', [context.table], [table])}")
    keys = check_partition_keys(dataset, context.partition_on)
    indices = tuple(sorted(dataset.secondary_indices))
    if not set(context.indices) <= set(indices):
        raise ValueError(
            f"Incorrect indices provided for dataset {dataset.uuid!r}: expected {list(indices)}, but got "
            f"{sorted(context.indices)}. An update keeps all indices and adds none; use build_dataset_indices"
        )
    return attrs.evolve(context, partition_on=keys, indices=indices)


@normalize_args
def plan_partition(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    df_serializer: DataFrameSerializer | None = None,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: Any = None,
    secondary_indices: Any = None,
    sort_partitions_by: Any = None,
    table_name: str = SINGLE_TABLE,
) -> tuple[WriteContext, SchemaWrapper | None]:
    """
    Plan to write files for a dataset that is there, to be committed later.

    Parameters
    ----------
    dataset_uuid, store, factory, df_serializer, metadata_version, partition_on, secondary_indices, table_name
        As in :func:`kartothek_cube.io.eager.write_single_partition`.
    sort_partitions_by
        As in :func:`kartothek_cube.io.eager.update_dataset_from_dataframes`.

    Returns
    -------
    context
        How to write.
    schema
        The schema that input has to have.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError, RuntimeError
        Arguments contradict the dataset.
    """
    plan = plan_update(
        dataset_uuid,
        store,
        factory,
        df_serializer=df_serializer,
        default_metadata_version=metadata_version,
        partition_on=partition_on,
        secondary_indices=secondary_indices,
        sort_partitions_by=sort_partitions_by,
        table_name=table_name,
    )
    if plan.mode != "update":
        raise DatasetNotFoundError(plan.context.uuid)
    return plan.context, dataset_factory(dataset_uuid, store, factory).schema


@normalize_args
def plan_commit(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    new_partitions: Any = None,
    delete_scope: Any = None,
    metadata: MetadataInput = None,
    metadata_merger: MetadataMerger | None = None,
    default_metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: Any = None,
    secondary_indices: Any = None,
    on_conflict: OnConflict = "raise",
) -> tuple[UpdatePlan, list[WriteResult]]:
    """
    Plan to commit files that are written already.

    Parameters
    ----------
    dataset_uuid, store, factory, new_partitions, delete_scope, metadata, metadata_merger, default_metadata_version
        As in :func:`kartothek_cube.io.eager.commit_dataset`.
    partition_on, secondary_indices, on_conflict
        As there.

    Returns
    -------
    plan
        What to change.
    results
        What is added.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        There is nothing to do, or arguments contradict the dataset.
    RuntimeError
        A handle belongs to another dataset or table.
    """
    handles = [handle for handle in _flat(new_partitions) if handle is not None]
    wanted = user_metadata(metadata)
    if not handles and not wanted and not delete_scope:
        raise ValueError("Need to provide new partitions, new metadata or a delete scope; none of them was given.")
    found = dataset_factory(dataset_uuid, store, factory)
    plan = plan_update(
        factory=found,
        delete_scope=delete_scope,
        metadata=wanted,
        metadata_merger=metadata_merger,
        default_metadata_version=default_metadata_version,
        partition_on=partition_on,
        secondary_indices=secondary_indices,
        table_name=_table_of(found),
        on_conflict=on_conflict,
    )
    return plan, check_handles(plan.context, handles)


def _table_of(factory: DatasetFactory) -> str:
    """The only table of a dataset, which has to exist."""
    return check_table(factory.dataset_metadata, None)


def check_handles(context: WriteContext, handles: Iterable[Any]) -> list[WriteResult]:
    """
    What `write_single_partition` returned, about to be committed.

    Parameters
    ----------
    context
        Where it is committed.
    handles
        The handles.

    Returns
    -------
    list of WriteResult

    Raises
    ------
    ValueError
        Something is no handle, or no file was written for it.
    RuntimeError
        A handle belongs to another dataset or table.
    """
    results = []
    for handle in handles:
        if not isinstance(handle, WriteResult) or handle.schema is None:
            raise ValueError(
                f"Cannot commit {type(handle).__name__} to dataset {context.uuid!r}: it has no information about files. "
                "Pass what write_single_partition returned"
            )
        _check_own(context, handle)
        results.append(handle)
    return results


def _check_own(context: WriteContext, result: WriteResult) -> None:
    if (result.uuid, result.table) != (context.uuid, context.table):
        raise RuntimeError(
            f"Partitions written for table {result.table!r} of dataset {result.uuid!r} cannot be committed to "
            f"table {context.table!r} of dataset {context.uuid!r}"
        )


# -- run -------------------------------------------------------------------------------------------------------------


def inputs(data: Any) -> Iterator[Any]:
    """
    The inputs of a write, one after the other.

    Parameters
    ----------
    data
        Any iterable of them, or a single one.

    Yields
    ------
    object
        What :func:`run_update` takes.

    Raises
    ------
    TypeError
        It is neither.
    """
    if data is None or isinstance(data, (pd.DataFrame, WriteResult)) or hasattr(data, "__arrow_c_stream__"):
        yield data
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        yield from data
    else:
        raise TypeError(f"Expected DataFrames (or what Arrow reads as tables), got {type(data).__name__}.")


def run_update(context: WriteContext, data: Any, schema: SchemaWrapper | None = None) -> WriteResult:
    """
    Write one input; the state of the dataset is not touched.

    Parameters
    ----------
    context
        The dataset.
    data
        A DataFrame or anything that Arrow reads as a table, None, the result of an earlier call, or a list of all
        that.
    schema
        If given, input of another schema is refused before it is written.

    Returns
    -------
    WriteResult

    Raises
    ------
    ValueError
        The input does not fit the dataset.
    """
    items = list(_flat(data))
    tables = [item if isinstance(item, WriteResult) else _as_input(item) for item in items if item is not None]
    for table in tables:
        if isinstance(table, WriteResult):
            _check_own(context, table)
        elif schema is not None:
            _check_schema(context, table, schema)
    written = [t if isinstance(t, WriteResult) else write_table(context, _sorted(context, t)) for t in tables]
    return merge_results([WriteResult(context.uuid, context.table), *written])


def _flat(data: Any) -> Iterator[Any]:
    if isinstance(data, list):
        for item in data:
            yield from _flat(item)
    else:
        yield data


def _as_input(item: Any) -> pa.Table:
    try:
        return as_table(item)
    except TypeError as error:
        if isinstance(item, pd.DataFrame) or hasattr(item, "__arrow_c_stream__"):
            raise
        raise ValueError(
            f"Cannot write {type(item).__name__}: input is a DataFrame, a table that Arrow reads, None, or a list of these"
        ) from error


def _sorted(context: WriteContext, table: pa.Table) -> pa.Table:
    """The rows in the order that is asked for, nulls last; equal rows keep their order."""
    missing = set(context.sort_by) - set(table.column_names)
    if missing:
        raise ValueError(
            f"Cannot sort the input for dataset {context.uuid!r}: "
            + unknown_names("column", missing, table.column_names)
        )
    order = sort_order([table.column(c) for c in context.sort_by], len(table)) if context.sort_by else None
    return table if order is None else table.take(pa.array(order))


def _check_schema(context: WriteContext, table: pa.Table, schema: SchemaWrapper) -> None:
    found = make_meta(table, origin=f"{context.uuid}/{context.table}", partition_keys=list(context.partition_on))
    try:
        validate_compatible([schema, found])
    except SchemaConflictError as error:
        raise SchemaConflictError(error.problem, context.uuid, context.table) from error


# -- finish ----------------------------------------------------------------------------------------------------------


def finish_update(plan: UpdatePlan, results: Iterable[WriteResult]) -> DatasetMetadata:
    """
    Commit what tasks wrote, in the order of the results.

    Parameters
    ----------
    plan
        The change.
    results
        What was written.

    Returns
    -------
    DatasetMetadata
        The new state, as loading it gives.

    Raises
    ------
    ValueError
        A dataset would be created out of nothing, schemas do not fit, or a partition was written twice.
    ConcurrentWriteError
        Somebody else wrote partitions that this change removes.
    """
    context = plan.context
    parts = list(results)
    _check_content(plan, parts)
    result = merge_results([WriteResult(context.uuid, context.table), *parts])
    twice = extract_duplicates(result.labels.to_pylist())
    if twice:
        raise ValueError(f"Duplicate partition labels for dataset {context.uuid!r}: {', '.join(sorted(twice))}")
    dataset, _ = commit(open_blobs(context.store), _delta(plan, result), partial(read_index_entries, context))
    return dataset


def _check_content(plan: UpdatePlan, parts: Sequence[WriteResult]) -> None:
    """A new dataset needs something to take its schema from."""
    if plan.mode == "update" or any(part.schema is not None for part in parts):
        return
    if not parts or plan.context.partition_on or plan.mode == "upsert":
        raise ValueError(
            f"Cannot store an empty dataset: there is no input for {plan.context.uuid!r}. To create a dataset without "
            "partitions, use create_empty_dataset_header or pass a DataFrame without rows"
        )


def _delta(plan: UpdatePlan, result: WriteResult) -> Delta:
    return result.delta(
        mode=plan.mode,
        scope=plan.scope,
        expected=plan.expected,
        partition_keys=plan.context.partition_on,
        metadata=plan.metadata,
        merge_metadata=plan.merge_metadata,
        storage_format=plan.storage_format,
    )


def read_index_entries(context: WriteContext, column: str, labels: Sequence[str]) -> IndexEntries:
    """
    Index entries that the tasks did not know they should collect, read back from the files.

    Parameters
    ----------
    context
        The dataset.
    column
        The indexed column.
    labels
        Partitions that lack entries.

    Returns
    -------
    IndexEntries
    """
    blobs = open_blobs(context.store)
    files = PartitionTable.from_labels(context.uuid, context.table, labels).files[context.table]
    dataset = DatasetMetadata.load_from_store(context.uuid, blobs)
    tables = read_files(blobs, files.to_pylist(), [column])
    return index_entries_of(column, labels, tables, dataset.schema.field(column).type)


@normalize_args
def create_header(
    store: StoreInput,
    dataset_uuid: str,
    schema: Any,
    *,
    partition_on: Any = None,
    metadata: MetadataInput = None,
    overwrite: bool = False,
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    table_name: str = SINGLE_TABLE,
) -> DatasetMetadata:
    """
    Create a dataset whose partitions are whatever files are there.

    Parameters
    ----------
    store, dataset_uuid, schema, partition_on, metadata, overwrite, metadata_storage_format, metadata_version
        As in :func:`kartothek_cube.io.eager.create_empty_dataset_header`.
    table_name
        As there.

    Returns
    -------
    DatasetMetadata

    Raises
    ------
    RuntimeError
        The dataset exists and is not to be overwritten.
    ValueError
        The schema lacks a partition column.
    """
    plan = plan_store(
        store,
        dataset_uuid,
        metadata=metadata,
        partition_on=partition_on,
        overwrite=overwrite,
        metadata_storage_format=metadata_storage_format,
        metadata_version=metadata_version,
        table_name=table_name,
    )
    wrapped = make_meta(schema, origin=dataset_uuid, partition_keys=partition_on)
    missing = set(partition_on) - set(wrapped.names)
    if missing:
        raise ValueError(
            f"Partition column(s) missing in the schema of dataset {dataset_uuid!r}: "
            + unknown_names("column", missing, wrapped.names)
        )
    delta = _delta(plan, WriteResult(dataset_uuid, table_name, wrapped))
    dataset, _ = commit(open_blobs(plan.context.store), attrs.evolve(delta, explicit=False))
    return dataset
