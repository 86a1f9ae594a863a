"""The state of a dataset after a change: pure functions, the store is not asked."""

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

__all__ = ("apply", "last_batch", "merged_schema")

Mask = npt.NDArray[np.bool_]

#: metadata key that tells the last committed batch of each stream
BATCHES = "kartothek_cube_batches"


def apply(state: DatasetMetadata | None, delta: ChangeSet) -> DatasetMetadata:
    """
    The state after a change; a pure function.

    Parameters
    ----------
    state
        The newest state with all indices that the change touches loaded; None if there is no such dataset.
    delta
        The change.

    Returns
    -------
    DatasetMetadata
        Changed indices are loaded and have no storage key.

    Raises
    ------
    DatasetExistsError, DatasetNotFoundError, ConcurrentWriteError, SchemaConflictError
        If the change does not fit the state.
    """
    if state is None or delta.mode == "replace":
        new = _created(state, delta)
    elif delta.mode == "create":
        raise DatasetExistsError(delta.uuid)
    else:
        new = _updated(state, delta)
    if delta.batch is None:
        return new
    stream, number = delta.batch
    return new.copy(metadata={**new.metadata, BATCHES: {**_batches(new), stream: number}})


def last_batch(dataset: DatasetMetadata, stream: str) -> int | None:
    """
    Number of the last batch of a stream that was committed to a dataset; None if there was none.

    Parameters
    ----------
    dataset
        The dataset.
    stream
        Name of the stream.
    """
    number = _batches(dataset).get(stream)
    return number if isinstance(number, int) else None


def _batches(dataset: DatasetMetadata) -> dict[str, Any]:
    known = dataset.metadata.get(BATCHES)
    return known if isinstance(known, dict) else {}


def _created(state: DatasetMetadata | None, delta: ChangeSet) -> DatasetMetadata:
    if delta.mode == "update":
        raise DatasetNotFoundError(delta.uuid)
    indices = {}
    for column, given in delta.indices.items():
        _check_covered(column, delta.added.labels, given)
        indices[column] = _index(column, given.entries, delta.schema)
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


def _updated(state: DatasetMetadata, delta: ChangeSet) -> DatasetMetadata:
    if delta.partition_keys is not None and list(delta.partition_keys) != list(state.partition_keys or []):
        raise ValueError(
            f"Incompatible set of partition keys for dataset {delta.uuid}: it is partitioned by "
            f"{list(state.partition_keys or [])}, but {list(delta.partition_keys)} was given"
        )
    removed = _removed(state, delta) | _inputs(state, delta)
    partitions = _partitions(state, delta, removed)
    metadata = _metadata(state.metadata, delta)
    metadata.setdefault("creation_time", state.metadata.get("creation_time"))
    gone = state.partition_table.labels.filter(pa.array(removed))
    return state.copy(
        partitions=partitions,
        metadata=metadata,
        indices=_updated_indices(state, delta, gone, partitions),
        schema=merged_schema(state, delta),
        explicit_partitions=True,
    )


def _metadata(stored: Mapping[str, Any], delta: ChangeSet) -> dict[str, Any]:
    if delta.merge_metadata is None:
        return {**stored, **delta.metadata}
    return delta.merge_metadata([dict(stored), dict(delta.metadata)])


def _partitions(state: DatasetMetadata, delta: ChangeSet, removed: Mask) -> PartitionTable:
    """The partitions that stay and those that come, in the order of commit."""
    table = state.partition_table
    stay = np.flatnonzero(~removed)
    if not len(delta.added):
        return table.take(stay) if len(stay) < len(table) else table
    kept = table.take(stay) if len(stay) < len(table) else table
    partitions = kept.concat(delta.added) if len(kept) else delta.added
    if delta.places is None:
        return partitions
    place = np.concatenate([stay, table.positions(delta.places)])
    return partitions.take(np.argsort(place, kind="stable"))


def _inputs(state: DatasetMetadata, delta: ChangeSet) -> Mask:
    """
    Mask of the partitions that the added ones stand for.

    Raises
    ------
    ConcurrentWriteError
        If one of them is gone: what was made of it is outdated.
    """
    mask = np.zeros(len(state.partition_table), dtype=bool)
    if delta.inputs is None:
        return mask
    found = state.partition_table.positions(delta.inputs)
    if (found < 0).any():
        raise ConcurrentWriteError(
            delta.uuid,
            delta.inputs.filter(pa.array(found < 0)).to_pylist(),
            "They were replaced or removed since this operation read them. Repeat it.",
        )
    mask[found] = True
    return mask


def _removed(state: DatasetMetadata, delta: ChangeSet) -> Mask:
    """Mask of the partitions that go, which must be those that the operation knew of."""
    mask = np.zeros(len(state.partition_table), dtype=bool)
    if delta.scope is None:
        return mask
    mask[select_partitions(state, delta.scope or None)] = True
    ours = state.partition_table.positions(delta.added.labels)
    mask[ours[ours >= 0]] = False
    if delta.expected is not None:
        known = state.partition_table.positions(delta.expected)
        unseen = mask.copy()
        unseen[known[known >= 0]] = False
        if unseen.any():
            raise ConcurrentWriteError(
                delta.uuid, state.partition_table.labels.filter(pa.array(unseen)).to_pylist()
            )
    return mask


def _updated_indices(
    state: DatasetMetadata, delta: ChangeSet, gone: pa.StringArray, partitions: PartitionTable
) -> dict[str, Any]:
    result = {}
    new = _new_indices(state, delta)
    for column, index in state.indices.items():
        if column in (state.partition_keys or ()) or column in new:
            continue
        if len(gone):
            index = index.remove_partitions(gone.to_pylist())
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
    """Indices made of entries of all partitions: where nobody listed these so far, that is any index."""
    if state.explicit_partitions:
        return set(delta.new_indices)
    return {*delta.new_indices, *delta.indices, *state.secondary_indices}


def _check_covered(column: str, labels: pa.StringArray, given: IndexUpdate | None) -> None:
    covered = pa.array([], pa.string()) if given is None else given.covered
    missing = labels.filter(pa.compute.invert(pa.compute.is_in(labels, value_set=covered)))
    if len(missing):
        raise MissingIndexEntries(column, missing)


def _index(column: str, entries: IndexColumns, schema: SchemaWrapper | None) -> ExplicitSecondaryIndex:
    dtype = entries.values.type
    if schema is not None and column in schema.names and not pa.types.is_null(schema.field(column).type):
        dtype = schema.field(column).type
    return ExplicitSecondaryIndex.from_columns(column, entries, dtype)


def merged_schema(state: DatasetMetadata, delta: ChangeSet) -> SchemaWrapper | None:
    """
    The schema that knows most: a column that was null so far may get a type.

    Raises
    ------
    SchemaConflictError
        If the schema of the new partitions does not fit the stored one.
    """
    if delta.schema is None:
        return state.schema
    if state.schema is None or not (len(state.schema) or len(state.partition_table)):
        return delta.schema
    try:
        return validate_compatible([state.schema, delta.schema])
    except ValueError as exc:
        raise SchemaConflictError(str(exc), delta.uuid, delta.table) from exc
