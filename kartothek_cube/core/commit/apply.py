"""The state of a dataset after a change: pure functions without a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import Mask
from kartothek_cube.core.commit.change import ChangeSet, IndexUpdate, MissingIndexEntries, WriteMode
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.history import retained_metadata
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.evolution import EVOLUTION, merge_evolution, unite_schemas
from kartothek_cube.core.schema.wrapper import SchemaWrapper

__all__ = ("apply", "last_batch", "merged_schema")

#: metadata key that tells the last committed batch of each stream
BATCHES = "kartothek_cube_batches"


def apply(state: DatasetMetadata | None, change: ChangeSet) -> DatasetMetadata:
    """The state after a change whose requirements are met; changed indices have no storage key yet."""
    new = (
        _create(state, change)
        if state is None or change.mode is WriteMode.REPLACE
        else _update(state, change)
    )
    if change.batch is None:
        return new
    stream, number = change.batch
    return new.copy(metadata={**new.metadata, BATCHES: {**_batches(new), stream: number}})


def last_batch(dataset: DatasetMetadata, stream: str) -> int | None:
    """Number of the last batch of a stream that was committed to a dataset; None if there was none."""
    number = _batches(dataset).get(stream)
    return number if isinstance(number, int) else None


def _batches(dataset: DatasetMetadata) -> dict[str, Any]:
    batches = dataset.metadata.get(BATCHES)
    return batches if isinstance(batches, dict) else {}


def _create(state: DatasetMetadata | None, change: ChangeSet) -> DatasetMetadata:
    indices = {}
    for column, update in change.indices.items():
        _check_covered(column, change.added.labels, update)
        indices[column] = _index(column, update.entries, change.schema)
    return DatasetMetadata(
        uuid=change.uuid,
        partitions=change.added,
        metadata={**retained_metadata(state), **_without_evolution(_metadata({}, change))},
        indices=indices,
        explicit_partitions=change.explicit,
        partition_keys=list(change.partition_keys or ()),
        schema=change.schema,
        table_name=change.table,
    )


def _update(state: DatasetMetadata, change: ChangeSet) -> DatasetMetadata:
    removed = change.removal_mask(state)
    if change.replaces is not None:
        removed[state.partition_table.positions(change.replaces)] = True
    partitions = _partitions(state, change, removed)
    metadata = _without_evolution(_metadata(state.metadata, change))
    metadata.setdefault("creation_time", state.metadata.get("creation_time"))
    if EVOLUTION in state.metadata:
        # older files cannot be read without it, whatever a user's function makes of the metadata
        metadata[EVOLUTION] = state.metadata[EVOLUTION]
    schema = merged_schema(state, change)
    if change.merge_schema and state.schema is not None and change.schema is not None:
        metadata = merge_evolution(state.schema, change.schema, metadata, state.uuid)
    if change.schema_update is not None and schema is not None:
        schema, metadata = change.schema_update.apply(
            schema, metadata, state.partition_keys or (), _fixed_columns(state, change), state.uuid
        )
    removed_labels = state.partition_table.labels.filter(pa.array(removed))
    return state.copy(
        partitions=partitions,
        metadata=metadata,
        indices=_update_indices(state, change, removed_labels, partitions),
        schema=schema,
        explicit_partitions=True,
    )


def _fixed_columns(state: DatasetMetadata, change: ChangeSet) -> dict[str, str]:
    """Columns that an update of the schema must not change, with the reason."""
    indexed = dict.fromkeys(state.secondary_indices, "indexed")
    return {**indexed, **change.fixed_columns, **dict.fromkeys(state.partition_keys or (), "a partition key")}


def _metadata(stored: Mapping[str, Any], change: ChangeSet) -> dict[str, Any]:
    if change.merge_metadata is None:
        return {**stored, **change.metadata}
    return change.merge_metadata([dict(stored), dict(change.metadata)])


def _without_evolution(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata without what only updates of the schema set; users may pass on that of another dataset."""
    return {key: value for key, value in metadata.items() if key != EVOLUTION}


def _partitions(state: DatasetMetadata, change: ChangeSet, removed: Mask) -> PartitionTable:
    """The remaining partitions and the added ones, in the order of commit."""
    table = state.partition_table
    stay = np.flatnonzero(~removed)
    remaining = table.take(stay) if len(stay) < len(table) else table
    if not len(change.added):
        return remaining
    partitions = remaining.concat(change.added) if len(remaining) else change.added
    if change.replaces_at is None:
        return partitions
    place = np.concatenate([stay, table.positions(change.replaces_at)])
    return partitions.take(np.argsort(place, kind="stable"))


def _update_indices(
    state: DatasetMetadata, change: ChangeSet, removed: pa.StringArray, partitions: PartitionTable
) -> dict[str, Any]:
    result = {}
    new = _new_indices(state, change)
    for column, index in state.indices.items():
        if column in (state.partition_keys or ()) or column in new:
            continue
        if len(removed):
            index = index.remove_partitions(removed.to_pylist())
        if len(change.added):
            _check_covered(column, change.added.labels, change.indices.get(column))
            index = index.update(_index(column, change.indices[column].entries, state.schema))
        result[column] = index
    for column in sorted(new):
        _check_covered(column, partitions.labels, change.indices.get(column))
        entries = change.indices[column].entries.keep_labels(partitions.labels)
        result[column] = _index(column, entries, state.schema)
    return result


def _new_indices(state: DatasetMetadata, change: ChangeSet) -> set[str]:
    """Indices built from entries of all partitions: any index, where the header did not list these."""
    if state.explicit_partitions:
        return set(change.new_indices)
    return {*change.new_indices, *change.indices, *state.secondary_indices}


def _check_covered(column: str, labels: pa.StringArray, update: IndexUpdate | None) -> None:
    covered = pa.array([], pa.string()) if update is None else update.covered
    missing = labels.filter(pa.compute.invert(pa.compute.is_in(labels, value_set=covered)))
    if len(missing):
        raise MissingIndexEntries(column, missing)


def _index(column: str, entries: IndexColumns, schema: SchemaWrapper | None) -> ExplicitSecondaryIndex:
    dtype = entries.values.type
    if schema is not None and column in schema.names and not pa.types.is_null(schema.field(column).type):
        dtype = schema.field(column).type
    return ExplicitSecondaryIndex.from_columns(column, entries, dtype)


def merged_schema(state: DatasetMetadata, change: ChangeSet) -> SchemaWrapper | None:
    """The schema that knows most: a column that was null so far may get a type."""
    if change.schema is None:
        return state.schema
    if state.schema is None or not (len(state.schema) or len(state.partition_table)):
        return change.schema
    evolving = state.metadata if change.merge_schema else None
    keys = state.partition_keys or ()
    return unite_schemas(state.schema, change.schema, keys, evolving, change.uuid, change.table)
