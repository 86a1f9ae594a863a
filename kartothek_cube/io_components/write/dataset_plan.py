"""Plan the write of a dataset; a cube has one plan for each of its datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, Protocol, Self, TypeVar

import attrs
import pyarrow as pa

from kartothek_cube.core.commit.change import (
    ChangeSet,
    MetadataMerger,
    NoUnseenPartitions,
    Requirement,
    WriteMode,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DatasetExistsError, DatasetNotFoundError, unknown_names
from kartothek_cube.core.expressions.predicate import ConjunctionType
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import OperationInfo, describe_operation
from kartothek_cube.core.naming import (
    DEFAULT_METADATA_STORAGE_FORMAT,
    DEFAULT_METADATA_VERSION,
    SINGLE_TABLE,
    check_metadata_version,
    check_table_name,
    metadata_key_from_uuid,
)
from kartothek_cube.core.schema.evolution import evolution_metadata
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
from kartothek_cube.io_components.write.delete_scope import plan_removal
from kartothek_cube.io_components.write.table_writer import WriteContext, WriteResult
from kartothek_cube.io_components.write.validation import check_handles, flatten
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "DatasetWritePlan",
    "MetadataMerger",
    "OnConflict",
    "SchemaMode",
    "is_merge_mode",
    "plan_commit",
    "plan_partition",
    "plan_store",
    "plan_update",
    "with_scope",
    "with_write_id",
)

#: whether input has the columns of the dataset, or may lack some and add others
SchemaMode = Literal["strict", "merge"]


def is_merge_mode(schema_mode: SchemaMode) -> bool:
    """The ``schema_mode`` argument; raises ValueError."""
    if schema_mode not in ("strict", "merge"):
        raise ValueError(f"schema_mode is 'strict' or 'merge', got {schema_mode!r}")
    return schema_mode == "merge"


@attrs.frozen
class DatasetWritePlan:
    """How files of a dataset are written, and what their commit changes."""

    context: WriteContext
    mode: WriteMode
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    merge_metadata: MetadataMerger | None = None
    #: partitions to remove, as in `ChangeSet`
    remove_where: list[ConjunctionType] | None = None
    #: labels that `remove_where` selects at planning; None if the commit may also remove newer ones
    assumed_labels: pa.StringArray | None = None
    #: labels that the added partitions replace, and what the commit requires beyond the fields above
    replaces: pa.StringArray | None = None
    requires: tuple[Requirement, ...] = ()
    #: format of a new header
    storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT
    #: whether input may have other columns than the dataset
    merge_schema: bool = False
    #: stream and number of its batch
    batch: tuple[str, int] | None = None
    #: what the history tells of the operation
    info: OperationInfo = attrs.field(factory=partial(describe_operation, "write"))

    def change_set(self, result: WriteResult, info: OperationInfo | None = None) -> ChangeSet:
        """The change that commits what tasks wrote."""
        merger = self.merge_metadata
        assumed = () if self.assumed_labels is None else (NoUnseenPartitions(self.assumed_labels),)
        return result.change_set(
            mode=self.mode,
            metadata=self.metadata,
            merge_metadata=None if merger is None else partial(_merge_metadata, merger),
            partition_keys=self.context.partition_on,
            remove_where=self.remove_where,
            storage_format=self.storage_format,
            merge_schema=self.merge_schema,
            batch=self.batch,
            info=info or self.info,
            write_id=self.context.write_id,
            replaces=self.replaces,
            requires=(*self.requires, *assumed),
        )

    def with_write_id(self, write_id: str) -> Self:
        """The plan with an id that is part of all file names."""
        return attrs.evolve(self, context=attrs.evolve(self.context, write_id=write_id))


def _merge_metadata(merger: MetadataMerger, dicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge stored and given metadata; the user's function has the last word on both."""
    stored, given = dicts
    return {**stored, **given, **user_metadata(merger([dict(stored), dict(given)]))}


class _WritePlan(Protocol):
    def with_write_id(self, write_id: str) -> Self: ...


P = TypeVar("P", bound=_WritePlan)


def with_write_id(plan: P) -> P:
    """The plan of an idempotent write, for engines that may run tasks again, even committed ones."""
    # the commit finds the id in the labels of the state, and changes nothing then
    return plan.with_write_id(gen_uuid()[:16])


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
) -> DatasetWritePlan:
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
    if overwrite:
        return attrs.evolve(plan, mode=WriteMode.REPLACE)
    if DatasetMetadata.exists(uuid, plan.context.store):
        raise DatasetExistsError(uuid)
    return attrs.evolve(plan, mode=WriteMode.CREATE)


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
    schema_mode: SchemaMode = "strict",
) -> DatasetWritePlan:
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
        return plan
    remove_where, labels = plan_removal(state, delete_scope, context.store)
    return attrs.evolve(
        plan,
        context=_complete_context(context, state, is_merge=is_merge),
        mode=WriteMode.UPDATE,
        merge_schema=is_merge,
        remove_where=remove_where,
        assumed_labels=None if _is_replace(on_conflict) else labels,
    )


def with_scope(plan: DatasetWritePlan, delete_scope: Any) -> DatasetWritePlan:
    """Add a ``delete_scope`` that was not known at planning (a dask Delayed) to an update."""
    if plan.mode is not WriteMode.UPDATE:
        return plan
    store = plan.context.store
    dataset = DatasetMetadata.load_from_store(plan.context.uuid, open_blobs(store))
    remove_where, labels = plan_removal(dataset, normalize_arg("delete_scope", delete_scope) or [], store)
    return attrs.evolve(plan, remove_where=remove_where, assumed_labels=labels)


def _is_replace(on_conflict: OnConflict) -> bool:
    if on_conflict not in ("raise", "replace"):
        raise ValueError(f"on_conflict is 'raise' or 'replace', got {on_conflict!r}")
    return on_conflict == "replace"


def _complete_context(context: WriteContext, dataset: DatasetMetadata, *, is_merge: bool) -> WriteContext:
    """The context with the keys, indices and schema of the stored dataset; given ones have to agree."""
    table = check_table(dataset, None)
    if context.table != table:
        raise RuntimeError(f"Dataset {dataset.uuid!r}: {unknown_names('table', [context.table], [table])}")
    keys = check_partition_keys(dataset, context.partition_on)
    indices = _merge_indices(dataset, context.indices, ())
    schema = dataset.schema
    return attrs.evolve(
        context,
        partition_on=keys,
        indices=indices,
        types={} if schema is None else {field.name: field.type for field in schema.internal()},
        schema=schema,
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
    plan = plan_update(
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
    return attrs.evolve(plan.context, indices=indices)


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
) -> tuple[DatasetWritePlan, list[WriteResult]]:
    """Plan to commit files that are written already; also their results."""
    handles = [handle for handle in flatten(new_partitions) if handle is not None]
    entries = user_metadata(metadata)
    if not handles and not entries and not delete_scope:
        raise ValueError(
            "Need to provide new partitions, new metadata or a delete scope; none of them was given."
        )
    dataset = dataset_factory(dataset_uuid, store, factory)
    plan = plan_update(
        factory=dataset,
        delete_scope=delete_scope,
        metadata=entries,
        metadata_merger=metadata_merger,
        default_metadata_version=default_metadata_version,
        partition_on=partition_on,
        table_name=check_table(dataset.dataset_metadata, None),
        on_conflict=on_conflict,
    )
    results = check_handles(plan.context, handles)
    # only its check matters here
    _merge_indices(
        dataset.dataset_metadata, secondary_indices, {c for result in results for c in result.indices}
    )
    return plan, results
