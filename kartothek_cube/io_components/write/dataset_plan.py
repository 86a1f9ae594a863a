"""Plan writes of single datasets: store, update, and the commit of files that are written already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import attrs
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow.casting import normalize_value
from kartothek_cube.core.commit.change import MetadataMerger, WriteMode
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.errors import DatasetExistsError, DatasetNotFoundError, unknown_names
from kartothek_cube.core.expressions.literal import is_null_value
from kartothek_cube.core.expressions.predicate import ConjunctionType
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import (
    DEFAULT_METADATA_STORAGE_FORMAT,
    DEFAULT_METADATA_VERSION,
    SINGLE_TABLE,
    check_metadata_version,
    check_table_name,
    metadata_key_from_uuid,
)
from kartothek_cube.core.schema.evolution import evolution_metadata
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
from kartothek_cube.io_components.runtime import store_factory
from kartothek_cube.io_components.utils import extract_duplicates, normalize_arg, normalize_args
from kartothek_cube.io_components.write.table_writer import WriteContext, Written
from kartothek_cube.io_components.write.validation import check_handles, flatten
from kartothek_cube.io_components.write.write_plan import (
    DatasetWritePlan,
    SchemaMode,
    WritePlan,
    is_merge_mode,
)
from kartothek_cube.serialization import DataFrameSerializer

#: what a removal does with partitions that another writer has added since it was planned
OnConflict = Literal["raise", "replace"]


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
) -> WritePlan:
    """Plan to write a new dataset."""
    uuid = gen_uuid() if dataset_uuid is None else dataset_uuid
    plan = _new_plan(
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
    if not overwrite and DatasetMetadata.exists(uuid, plan.context.store):
        raise DatasetExistsError(uuid)
    return _plan(attrs.evolve(plan, mode=WriteMode.REPLACE if overwrite else WriteMode.CREATE))


def _plan(change: DatasetWritePlan) -> WritePlan:
    return WritePlan(store=change.context.store, changes={change.context.uuid: change})


def _new_plan(
    context: WriteContext,
    metadata: MetadataInput,
    merger: MetadataMerger | None,
    version: int,
    storage_format: str,
) -> DatasetWritePlan:
    """The part of a plan that does not depend on the stored state."""
    check_metadata_version(version)
    check_table_name(context.table)
    metadata_key_from_uuid(context.uuid, storage_format.lower())
    for name in ("partition_on", "indices", "sort_by"):
        duplicates = extract_duplicates(getattr(context, name))
        if duplicates:
            raise ValueError(
                f"Columns are named twice for dataset {context.uuid!r}: {', '.join(sorted(duplicates))}"
            )
    overlap = set(context.partition_on) & set(context.indices)
    if overlap:
        raise RuntimeError(
            f"Cannot create a secondary index on partition column(s) {', '.join(sorted(overlap))} of dataset "
            f"{context.uuid!r}: their values are in the labels of the partitions already"
        )
    return DatasetWritePlan(
        context,
        WriteMode.UPSERT,
        user_metadata(metadata),
        merger,
        storage_format=storage_format.lower(),
    )


@normalize_args
def plan_dataset_update(
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
    schema_mode: SchemaMode = "strict",
) -> WritePlan:
    """Plan to remove and add partitions; a dataset that does not exist is created."""
    is_merge = is_merge_mode(schema_mode)
    dataset = dataset_factory(dataset_uuid, store, factory)
    context = WriteContext(
        dataset.store_factory,
        dataset.dataset_uuid,
        table_name,
        tuple(partition_on),
        tuple(secondary_indices),
        check_serializer(df_serializer),
        tuple(sort_partitions_by),
    )
    plan = _new_plan(
        context, metadata, metadata_merger, default_metadata_version, DEFAULT_METADATA_STORAGE_FORMAT
    )
    try:
        state = dataset.dataset_metadata
    except DatasetNotFoundError:
        return _plan(plan)
    remove_where, labels = _plan_removal(state, delete_scope, context.store)
    change = attrs.evolve(
        plan,
        context=_complete_context(context, state, is_merge=is_merge),
        mode=WriteMode.UPDATE,
        merge_schema=is_merge,
        remove_where=remove_where,
        assumed_labels=None if _is_replace(on_conflict) else labels,
    )
    return _plan(change)


def with_scope(plan: WritePlan, delete_scope: Any) -> WritePlan:
    """Add a ``delete_scope`` that was not known at planning (a dask Delayed) to an update."""
    change = plan.dataset
    if change.mode is not WriteMode.UPDATE:
        return plan
    dataset = DatasetMetadata.load_from_store(change.context.uuid, open_blobs(plan.store))
    scope = normalize_arg("delete_scope", delete_scope) or []
    remove_where, labels = _plan_removal(dataset, scope, plan.store)
    # None: on_conflict="replace"
    assumed = None if change.assumed_labels is None else labels
    return _plan(attrs.evolve(change, remove_where=remove_where, assumed_labels=assumed))


def _is_replace(on_conflict: OnConflict) -> bool:
    if on_conflict not in ("raise", "replace"):
        raise ValueError(f"on_conflict is 'raise' or 'replace', got {on_conflict!r}")
    return on_conflict == "replace"


def _complete_context(context: WriteContext, dataset: DatasetMetadata, *, is_merge: bool) -> WriteContext:
    """The context with the keys, indices and schema of the stored dataset; given ones have to agree."""
    table = check_table(dataset, None)
    if context.table not in (table, SINGLE_TABLE):
        raise RuntimeError(f"Dataset {dataset.uuid!r}: {unknown_names('table', [context.table], [table])}")
    keys = check_partition_keys(dataset, context.partition_on)
    indices = _merge_indices(dataset, context.indices, ())
    schema = dataset.schema
    return attrs.evolve(
        context,
        table=table,
        # without a name as an argument, input may have it
        unnamed_table=None if context.table == table else context.table,
        partition_on=keys,
        indices=indices,
        types={} if schema is None else {field.name: field.type for field in schema.internal()},
        schema=SchemaWrapper(pa.schema([]), dataset.uuid) if schema is None else schema,
        evolving=evolution_metadata(dataset.metadata) if is_merge else None,
    )


def _merge_indices(dataset: DatasetMetadata, columns: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    """Indexed columns of a dataset with given ones, which have to be among them or among new ones."""
    stored = set(dataset.secondary_indices)
    if not set(columns) <= stored.union(new):
        raise ValueError(
            f"Incorrect indices provided for dataset {dataset.uuid!r}: expected {sorted(stored)}, but got "
            f"{sorted(columns)}. An update keeps all indices and adds none; use build_dataset_indices"
        )
    return tuple(sorted(stored.union(columns)))


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
    table_name: str = SINGLE_TABLE,
) -> WriteContext:
    """Plan to write files of an existing dataset, to be committed later."""
    dataset = dataset_factory(dataset_uuid, store, factory)
    plan = plan_dataset_update(
        factory=dataset,
        df_serializer=df_serializer,
        default_metadata_version=metadata_version,
        partition_on=partition_on,
        table_name=table_name,
    )
    state = dataset.dataset_metadata
    # the first partitions of a dataset that was created without any bring its indices along
    new = () if state.explicit_partitions else secondary_indices
    indices = _merge_indices(state, secondary_indices, new)
    return attrs.evolve(plan.dataset.context, indices=indices)


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
) -> tuple[WritePlan, list[Written]]:
    """Plan to commit files that are written already; also what was written."""
    handles = [handle for handle in flatten(new_partitions) if handle is not None]
    entries = user_metadata(metadata)
    if not handles and not entries and not delete_scope:
        raise ValueError(
            "Need to provide new partitions, new metadata or a delete scope; none of them was given."
        )
    dataset = dataset_factory(dataset_uuid, store, factory)
    plan = plan_dataset_update(
        factory=dataset,
        delete_scope=delete_scope,
        metadata=entries,
        metadata_merger=metadata_merger,
        default_metadata_version=default_metadata_version,
        partition_on=partition_on,
        table_name=check_table(dataset.dataset_metadata, None),
        on_conflict=on_conflict,
    )
    results = check_handles(plan.dataset.context, handles)
    # only its check matters here
    _merge_indices(
        dataset.dataset_metadata, secondary_indices, {c for result in results for c in result.indices}
    )
    return plan, [{result.uuid: result} for result in results]


# -- delete_scope --------------------------------------------------------------------------------------------


def _plan_removal(
    dataset: DatasetMetadata, delete_scope: Sequence[Mapping[str, Any]], store: StoreInput
) -> tuple[list[ConjunctionType] | None, pa.StringArray]:
    """The predicate of a ``delete_scope``, None for no removal, and the labels that it selects now."""
    if not delete_scope:
        return None, pa.array([], pa.string())
    scope = [_conjunction(dataset, element) for element in delete_scope]
    if not all(scope):
        return [], dataset.partition_table.labels
    columns = {column for conjunction in scope for column, _, _ in conjunction}
    picked = select_partitions(dataset.load_indices(columns, store), scope)
    return scope, dataset.partition_table.take(picked).labels


def _conjunction(dataset: DatasetMetadata, element: Any) -> ConjunctionType:
    if not isinstance(element, Mapping):
        raise TypeError(
            f"delete_scope has to be a list of dicts, but holds a {type(element).__name__}: {element!r}"
        )
    unknown = set(element) - dataset.index_columns
    if unknown:
        raise ValueError(
            f"delete_scope of dataset {dataset.uuid!r} needs indexed columns: "
            + unknown_names("or unindexed column", unknown, dataset.index_columns)
        )
    return [(column, "==", _value(dataset, column, value)) for column, value in element.items()]


def _value(dataset: DatasetMetadata, column: str, value: Any) -> Any:
    """The value as a predicate takes it; a scope is generous, ``"2020-01-01"`` stands for a date."""
    if is_null_value(value):
        raise ValueError(
            f"delete_scope of dataset {dataset.uuid!r}: no index knows where {column!r} is null, "
            "so these rows cannot be removed"
        )
    if dataset.schema is None:
        raise ValueError(
            f"delete_scope of dataset {dataset.uuid!r}: there is no schema that types {column!r}"
        )
    dtype = dataset.schema.field(column).type
    try:
        converted = normalize_value(dtype, value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"delete_scope of dataset {dataset.uuid!r}, column {column!r}: {error}") from error
    return pd.Timestamp(converted, tz="UTC") if getattr(dtype, "tz", None) else converted
