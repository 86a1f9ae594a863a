"""Application of a change set to the state of a dataset: pure functions, without store access."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.commit.change import ChangeSet, IndexUpdate, MissingIndexEntries
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.errors import (
    ConcurrentWriteError,
    DatasetExistsError,
    DatasetNotFoundError,
    SchemaConflictError,
)
from kartothek_cube.core.history import retained_metadata
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.compare import validate_compatible
from kartothek_cube.core.schema.wrapper import SchemaWrapper

__all__ = ("apply", "last_batch", "merge_schema")

Mask = npt.NDArray[np.bool_]

#: metadata key of the last committed batch of each stream
BATCHES = "kartothek_cube_batches"


def apply(state: DatasetMetadata | None, delta: ChangeSet) -> DatasetMetadata:
    """State after a change; indices touched by the change must be loaded."""
    if state is None or delta.mode == "replace":
        new = _create_state(state, delta)
    elif delta.mode == "create":
        raise DatasetExistsError(delta.uuid)
    else:
        new = _update_state(state, delta)
    if delta.batch is None:
        return new
    stream, number = delta.batch
    return new.copy(metadata={**new.metadata, BATCHES: {**_batches(new), stream: number}})


def last_batch(dataset: DatasetMetadata, stream: str) -> int | None:
    """Number of the last batch of a stream that was committed to a dataset; None if there was none."""
    number = _batches(dataset).get(stream)
    return number if isinstance(number, int) else None


def _batches(dataset: DatasetMetadata) -> dict[str, Any]:
    batches = dataset.metadata.get(BATCHES)
    return batches if isinstance(batches, dict) else {}


def _create_state(state: DatasetMetadata | None, delta: ChangeSet) -> DatasetMetadata:
    """State of a new or replaced dataset."""
    if delta.mode == "update":
        raise DatasetNotFoundError(delta.uuid)
    indices = {}
    for column, index_update in delta.indices.items():
        _check_covered(column, delta.added.labels, index_update)
        indices[column] = _index(column, index_update.entries, delta.schema)
    return DatasetMetadata(
        uuid=delta.uuid,
        partitions=delta.added,
        metadata={**retained_metadata(state), **_metadata({}, delta)},
        indices=indices,
        explicit_partitions=delta.explicit,
        partition_keys=list(delta.partition_keys or ()),
        schema=delta.schema,
        table_name=delta.table,
    )


def _update_state(state: DatasetMetadata, delta: ChangeSet) -> DatasetMetadata:
    """State of a dataset after an update."""
    if delta.partition_keys is not None and list(delta.partition_keys) != list(state.partition_keys or []):
        raise ValueError(
            f"Incompatible set of partition keys for dataset {delta.uuid}: it is partitioned by "
            f"{list(state.partition_keys or [])}, but {list(delta.partition_keys)} was given"
        )
    removed = _removed_mask(state, delta) | _replaced_mask(state, delta)
    partitions = _partitions(state, delta, removed)
    metadata = _metadata(state.metadata, delta)
    metadata.setdefault("creation_time", state.metadata.get("creation_time"))
    removed_labels = state.partition_table.labels.filter(pa.array(removed))
    return state.copy(
        partitions=partitions,
        metadata=metadata,
        indices=_update_indices(state, delta, removed_labels, partitions),
        schema=merge_schema(state, delta),
        explicit_partitions=True,
    )


def _metadata(stored: Mapping[str, Any], delta: ChangeSet) -> dict[str, Any]:
    if delta.merge_metadata is None:
        return {**stored, **delta.metadata}
    return delta.merge_metadata([dict(stored), dict(delta.metadata)])


def _partitions(state: DatasetMetadata, delta: ChangeSet, removed: Mask) -> PartitionTable:
    """Remaining and added partitions, in commit order."""
    table = state.partition_table
    remaining = np.flatnonzero(~removed)
    if not len(delta.added):
        return table.take(remaining) if len(remaining) < len(table) else table
    kept = table.take(remaining) if len(remaining) < len(table) else table
    partitions = kept.concat(delta.added) if len(kept) else delta.added
    if delta.places is None:
        return partitions
    order = np.concatenate([remaining, table.positions(delta.places)])
    return partitions.take(np.argsort(order, kind="stable"))


def _replaced_mask(state: DatasetMetadata, delta: ChangeSet) -> Mask:
    """Mask of the partitions that the added ones replace."""
    # A replaced partition that is gone was changed meanwhile: the added ones are outdated.
    mask = np.zeros(len(state.partition_table), dtype=bool)
    if delta.inputs is None:
        return mask
    positions = state.partition_table.positions(delta.inputs)
    if (positions < 0).any():
        raise ConcurrentWriteError(
            delta.uuid,
            delta.inputs.filter(pa.array(positions < 0)).to_pylist(),
            "They were replaced or removed since this operation read them. Repeat it.",
        )
    mask[positions] = True
    return mask


def _removed_mask(state: DatasetMetadata, delta: ChangeSet) -> Mask:
    """Mask of the partitions in the scope of removal; fails if there are others than assumed."""
    mask = np.zeros(len(state.partition_table), dtype=bool)
    if delta.scope is None:
        return mask
    mask[select_partitions(state, delta.scope or None)] = True
    added = state.partition_table.positions(delta.added.labels)
    mask[added[added >= 0]] = False
    if delta.expected is not None:
        assumed = state.partition_table.positions(delta.expected)
        unexpected = mask.copy()
        unexpected[assumed[assumed >= 0]] = False
        if unexpected.any():
            raise ConcurrentWriteError(
                delta.uuid, state.partition_table.labels.filter(pa.array(unexpected)).to_pylist()
            )
    return mask


def _update_indices(
    state: DatasetMetadata, delta: ChangeSet, removed_labels: pa.StringArray, partitions: PartitionTable
) -> dict[str, Any]:
    result = {}
    new = _new_indices(state, delta)
    for column, index in state.indices.items():
        if column in (state.partition_keys or ()) or column in new:
            continue
        if len(removed_labels):
            index = index.remove_partitions(removed_labels.to_pylist())
        if len(delta.added):
            _check_covered(column, delta.added.labels, delta.indices.get(column))
            index = index.update(_index(column, delta.indices[column].entries, state.schema))
        result[column] = index
    for column in sorted(new):
        _check_covered(column, partitions.labels, delta.indices.get(column))
        entries = delta.indices[column].entries.keep_labels(partitions.labels)
        result[column] = _index(column, entries, state.schema)
    return result


def _new_indices(state: DatasetMetadata, delta: ChangeSet) -> set[str]:
    """Columns whose index entries must cover all partitions."""
    # A header without partitions lists no index files that could cover them: every index is new.
    if state.explicit_partitions:
        return set(delta.new_indices)
    return {*delta.new_indices, *delta.indices, *state.secondary_indices}


def _check_covered(column: str, labels: pa.StringArray, index_update: IndexUpdate | None) -> None:
    covered = pa.array([], pa.string()) if index_update is None else index_update.covered
    missing = labels.filter(pa.compute.invert(pa.compute.is_in(labels, value_set=covered)))
    if len(missing):
        raise MissingIndexEntries(column, missing)


def _index(column: str, entries: IndexColumns, schema: SchemaWrapper | None) -> ExplicitSecondaryIndex:
    dtype = entries.values.type
    if schema is not None and column in schema.names and not pa.types.is_null(schema.field(column).type):
        dtype = schema.field(column).type
    return ExplicitSecondaryIndex.from_columns(column, entries, dtype)


def merge_schema(state: DatasetMetadata, delta: ChangeSet) -> SchemaWrapper | None:
    """Stored schema merged with that of the added partitions: null columns may get a type."""
    if delta.schema is None:
        return state.schema
    if state.schema is None or not (len(state.schema) or len(state.partition_table)):
        return delta.schema
    try:
        return validate_compatible([state.schema, delta.schema])
    except ValueError as exc:
        raise SchemaConflictError(str(exc), delta.uuid, delta.table) from exc
