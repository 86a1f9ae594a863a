"""Planning the change of a dataset: what is there, what is asked, and whether both go together.

Create, append, update and remove are one operation with different options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import attrs
import pyarrow as pa

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DatasetExistsError, DatasetNotFoundError, unknown_names
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import (
    DEFAULT_METADATA_STORAGE_FORMAT,
    DEFAULT_METADATA_VERSION,
    SINGLE_TABLE,
    check_metadata_version,
    check_table_name,
    metadata_key_from_uuid,
)
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import open_blobs
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
from kartothek_cube.io_components.runtime.threads import store_factory
from kartothek_cube.io_components.utils import extract_duplicates, normalize_arg, normalize_args
from kartothek_cube.io_components.write.delete_scope import plan_removal
from kartothek_cube.io_components.write.inputs import check_handles, flatten
from kartothek_cube.io_components.write.table_writer import WriteContext, WriteResult
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "MetadataMerger",
    "OnConflict",
    "UpdatePlan",
    "plan_commit",
    "plan_partition",
    "plan_store",
    "plan_update",
    "with_write_id",
    "with_scope",
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
        As in :class:`~kartothek_cube.core.commit.ChangeSet`.
    metadata, merge_metadata
        Metadata to set, and how.
    scope, expected
        Partitions to remove, as in :class:`~kartothek_cube.core.commit.ChangeSet`.
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
            raise ValueError(
                f"Columns are named twice for dataset {context.uuid!r}: {', '.join(sorted(twice))}"
            )
    overlap = set(context.partition_on) & set(context.indices)
    if overlap:
        raise RuntimeError(
            f"Cannot create a secondary index on partition column(s) {', '.join(sorted(overlap))} of dataset "
            f"{context.uuid!r}: their values are in the labels of the partitions already"
        )
    return UpdatePlan(
        context, "upsert", user_metadata(metadata), merger, storage_format=storage_format.lower()
    )


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
    dataset_uuid, store, factory, delete_scope, metadata, df_serializer, metadata_merger
        As in :func:`kartothek_cube.io.eager.update_dataset_from_dataframes`.
    default_metadata_version
        As there.
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


def with_scope(plan: UpdatePlan, delete_scope: Any) -> UpdatePlan:
    """
    A planned update that also removes partitions, where it is known later than the rest what these are.

    Parameters
    ----------
    plan
        The update.
    delete_scope
        As in :func:`kartothek_cube.io.eager.update_dataset_from_dataframes`, or None.

    Returns
    -------
    UpdatePlan

    Raises
    ------
    ValueError, TypeError
        It does not fit the dataset.
    """
    if plan.mode != "update":
        return plan
    store = plan.context.store
    dataset = DatasetMetadata.load_from_store(plan.context.uuid, open_blobs(store))
    scope, expected = plan_removal(dataset, normalize_arg("delete_scope", delete_scope) or [], store)
    return attrs.evolve(plan, scope=scope, expected=expected)


def with_write_id(plan: UpdatePlan) -> UpdatePlan:
    """
    A plan for an engine that may run tasks again, even those that wrote what has been committed.

    Its commit recognises what an earlier run of the same plan committed, and changes nothing then.
    """
    return attrs.evolve(plan, context=attrs.evolve(plan.context, write_id=gen_uuid()[:16]))


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
    indices = _kept_indices(dataset, context.indices, ())
    return attrs.evolve(context, partition_on=keys, indices=indices)


def _kept_indices(dataset: DatasetMetadata, given: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """
    All indices of a dataset; those that are given have to be among them, or among some more.

    Raises
    ------
    ValueError
        They are not.
    """
    stored = set(dataset.secondary_indices)
    if not set(given) <= stored.union(more):
        raise ValueError(
            f"Incorrect indices provided for dataset {dataset.uuid!r}: expected {sorted(stored)}, but got "
            f"{sorted(given)}. An update keeps all indices and adds none; use build_dataset_indices"
        )
    return tuple(sorted(stored.union(given)))


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
    found = dataset_factory(dataset_uuid, store, factory)
    plan = plan_update(
        factory=found,
        df_serializer=df_serializer,
        default_metadata_version=metadata_version,
        partition_on=partition_on,
        sort_partitions_by=sort_partitions_by,
        table_name=table_name,
    )
    dataset = found.dataset_metadata
    # the first partitions of a dataset that was created without any bring its indices along
    more = () if dataset.explicit_partitions else secondary_indices
    indices = _kept_indices(dataset, secondary_indices, more)
    return attrs.evolve(plan.context, indices=indices), dataset.schema


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
    dataset_uuid, store, factory, new_partitions, delete_scope, metadata, metadata_merger
        As in :func:`kartothek_cube.io.eager.commit_dataset`.
    default_metadata_version
        As there.
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
    handles = [handle for handle in flatten(new_partitions) if handle is not None]
    wanted = user_metadata(metadata)
    if not handles and not wanted and not delete_scope:
        raise ValueError(
            "Need to provide new partitions, new metadata or a delete scope; none of them was given."
        )
    found = dataset_factory(dataset_uuid, store, factory)
    plan = plan_update(
        factory=found,
        delete_scope=delete_scope,
        metadata=wanted,
        metadata_merger=metadata_merger,
        default_metadata_version=default_metadata_version,
        partition_on=partition_on,
        table_name=_table_of(found),
        on_conflict=on_conflict,
    )
    results = check_handles(plan.context, handles)
    _kept_indices(
        found.dataset_metadata, secondary_indices, {c for result in results for c in result.indices}
    )
    return plan, results


def _table_of(factory: DatasetFactory) -> str:
    """The only table of a dataset, which has to exist."""
    return check_table(factory.dataset_metadata, None)
