"""Changing a dataset: a change as data, its application to a state, its publication by compare-and-swap."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.common_metadata import SchemaWrapper, schema_to_bytes, validate_compatible
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import (
    ConcurrentWriteError,
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    SchemaConflictError,
)
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.naming import SINGLE_TABLE, metadata_key_from_uuid, schema_key
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.prune import load_needed_indices, select_partitions
from kartothek_cube.core.store import BlobStore, PreconditionFailed

__all__ = (
    "Delta",
    "IndexEntries",
    "MissingIndexEntries",
    "Published",
    "apply",
    "commit",
    "last_batch",
    "merged_schema",
    "rollback",
)

#: metadata key that tells the last committed batch of each stream
BATCHES = "kartothek_cube_batches"
#: attempts before a writer gives up against faster ones; with the pauses below this is about a minute
_ATTEMPTS = 60
_LONGEST_PAUSE_S = 2.0
#: above this number of new files their existence is checked by one listing
_FEW_FILES = 100

Predicates = list[list[tuple[str, str, Any]]]


@attrs.frozen
class IndexEntries:
    """Index entries of one column, and the labels of the partitions that they speak about."""

    entries: IndexColumns
    covered: pa.StringArray


@attrs.frozen
class Delta:
    """
    A change of one dataset.

    Attributes
    ----------
    uuid, table
        The dataset.
    mode
        ``create``: must not exist yet; ``replace``: whatever is there is replaced; ``update``: must exist;
        ``upsert``: updated if it exists, else created.
    added
        New partitions.
    scope
        Partitions to remove, as a predicate on indexed columns; ``None`` for none, ``[]`` for all.
    expected
        Labels that the scope matched when the operation was planned; None if nothing is assumed. If
        the newest
        state has others in the scope, somebody wrote there meanwhile.
    schema
        Schema of the added partitions.
    partition_keys
        Partition keys, for a dataset that is created; checked otherwise, unless None.
    indices
        Index entries of the added partitions, by column; on creation these are all indices, on update other
        columns than the indexed ones are ignored unless named in ``new_indices``. Where the header did
        not list
        the partitions so far, any column of them gets an index.
    new_indices
        Columns of ``indices`` for which an index is added or replaced; their entries cover all partitions.
    metadata
        User metadata to set.
    merge_metadata
        How to combine stored and given metadata; by default given keys replace stored ones.
    storage_format
        Format of the header of a new dataset.
    batch
        Name of a stream and number of a batch of it. The number of the last batch is kept in the metadata; a
        batch that is not newer was committed already and changes nothing.
    write_id
        Part of the names of all files of this write, whichever attempts of its tasks made them. If the newest
        state has such files, the write was committed before, maybe with the files of other attempts,
        and nothing
        changes. Empty if tasks run only once.
    """

    uuid: str
    table: str = SINGLE_TABLE
    mode: Literal["create", "replace", "update", "upsert"] = "update"
    added: PartitionTable = attrs.field(factory=PartitionTable.empty)
    scope: Predicates | None = None
    expected: pa.StringArray | None = None
    schema: SchemaWrapper | None = None
    partition_keys: tuple[str, ...] | None = None
    indices: Mapping[str, IndexEntries] = attrs.field(factory=dict)
    new_indices: frozenset[str] = frozenset()
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    merge_metadata: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None
    storage_format: str = "json"
    explicit: bool = True
    batch: tuple[str, int] | None = None
    write_id: str = ""


@attrs.frozen
class Published:
    """What a commit put in place of what: enough to take it back."""

    uuid: str
    header_key: str
    header: bytes
    old_header: bytes | None
    schema_key: str
    schema: bytes | None
    old_schema: bytes | None


class MissingIndexEntries(Exception):
    """Internal: the state has an index for which the change brings no entries."""

    def __init__(self, column: str, labels: pa.StringArray) -> None:
        super().__init__(column)
        self.column = column
        self.labels = labels


def apply(state: DatasetMetadata | None, delta: Delta) -> DatasetMetadata:
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


def _created(state: DatasetMetadata | None, delta: Delta) -> DatasetMetadata:
    if delta.mode == "update":
        raise DatasetNotFoundError(delta.uuid)
    indices = {}
    for column, given in delta.indices.items():
        _check_covered(column, delta.added.labels, given)
        indices[column] = _index(column, given.entries, delta.schema)
    return DatasetMetadata(
        uuid=delta.uuid,
        partitions=delta.added,
        metadata=dict(delta.metadata),
        indices=indices,
        explicit_partitions=delta.explicit,
        partition_keys=list(delta.partition_keys or ()),
        schema=delta.schema,
        table_name=delta.table,
    )


def _updated(state: DatasetMetadata, delta: Delta) -> DatasetMetadata:
    if delta.partition_keys is not None and list(delta.partition_keys) != list(state.partition_keys or []):
        raise ValueError(
            f"Incompatible set of partition keys for dataset {delta.uuid}: it is partitioned by "
            f"{list(state.partition_keys or [])}, but {list(delta.partition_keys)} was given"
        )
    removed = _removed(state, delta)
    partitions = state.partition_table
    if removed.any():
        partitions = partitions.filter(~removed)
    if len(delta.added):
        partitions = partitions.concat(delta.added) if len(partitions) else delta.added
    if delta.merge_metadata is None:
        metadata = {**state.metadata, **delta.metadata}
    else:
        metadata = delta.merge_metadata([dict(state.metadata), dict(delta.metadata)])
        metadata.setdefault("creation_time", state.metadata.get("creation_time"))
    gone = state.partition_table.labels.filter(pa.array(removed))
    return state.copy(
        partitions=partitions,
        metadata=metadata,
        indices=_updated_indices(state, delta, gone, partitions),
        schema=merged_schema(state, delta),
        explicit_partitions=True,
    )


def _removed(state: DatasetMetadata, delta: Delta) -> np.ndarray[Any, np.dtype[np.bool_]]:
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
    state: DatasetMetadata, delta: Delta, gone: pa.StringArray, partitions: PartitionTable
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


def _new_indices(state: DatasetMetadata, delta: Delta) -> set[str]:
    """Indices made of entries of all partitions: where nobody listed these so far, that is any index."""
    if state.explicit_partitions:
        return set(delta.new_indices)
    return {*delta.new_indices, *delta.indices, *state.secondary_indices}


def _check_covered(column: str, labels: pa.StringArray, given: IndexEntries | None) -> None:
    covered = pa.array([], pa.string()) if given is None else given.covered
    missing = labels.filter(pa.compute.invert(pa.compute.is_in(labels, value_set=covered)))
    if len(missing):
        raise MissingIndexEntries(column, missing)


def _index(column: str, entries: IndexColumns, schema: SchemaWrapper | None) -> ExplicitSecondaryIndex:
    dtype = entries.values.type
    if schema is not None and column in schema.names and not pa.types.is_null(schema.field(column).type):
        dtype = schema.field(column).type
    return ExplicitSecondaryIndex.from_columns(column, entries, dtype)


def merged_schema(state: DatasetMetadata, delta: Delta) -> SchemaWrapper | None:
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


def commit(
    blobs: BlobStore,
    delta: Delta,
    index_entries: Callable[[str, Sequence[str]], IndexEntries] | None = None,
) -> tuple[DatasetMetadata, Published]:
    """
    Publish a change: apply it to the newest state, write it if nobody else was faster, else start again.

    Parameters
    ----------
    blobs
        Store.
    delta
        The change. Its data files are stored already.
    index_entries
        Reads the index entries of a column for the given partitions from their files; asked for when
        the newest
        state has an index that the writers of the partitions did not know of.

    Returns
    -------
    state
        The new state, as loading it gives.
    published
        What was replaced, for :func:`rollback`.

    Raises
    ------
    ConcurrentWriteError
        If others were faster again and again, or wrote to the partitions that the change removes.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return _try(blobs, delta)
        except PreconditionFailed:
            time.sleep(min(_LONGEST_PAUSE_S, 0.005 * 1.5**attempt) * random.random())
        except MissingIndexEntries as missing:
            if index_entries is None:
                raise ValueError(
                    f"Partitions without entries for the index on {missing.column} of dataset {delta.uuid}"
                ) from None
            delta = _with_entries(delta, missing, index_entries)
    raise ConcurrentWriteError(delta.uuid, delta.added.labels.to_pylist())


def _with_entries(
    delta: Delta, missing: MissingIndexEntries, read: Callable[[str, Sequence[str]], IndexEntries]
) -> Delta:
    found = read(missing.column, missing.labels.to_pylist())
    known = delta.indices.get(missing.column)
    if known is not None:
        merged = IndexColumns.merge([known.entries, found.entries], found.entries.values.type)
        found = IndexEntries(merged, pa.concat_arrays([known.covered, found.covered]))
    return attrs.evolve(delta, indices={**delta.indices, missing.column: found})


def _try(blobs: BlobStore, delta: Delta) -> tuple[DatasetMetadata, Published]:
    old_schema, schema_token = _current(blobs, schema_key(delta.uuid, delta.table))
    header_key, old_header, token, state = _load(blobs, delta)
    if state is not None and _is_done(state, delta):
        return _unloaded(state), _unchanged(delta, header_key, old_header, old_schema)
    new = apply(state, delta)
    schema = None
    if new.schema is not None:
        schema = schema_to_bytes(new.schema)
        unchanged = state is not None and delta.mode != "replace" and new.schema == state.schema
        if old_schema is None or not (unchanged or schema == old_schema):
            blobs.put_if(schema_key(delta.uuid, delta.table), schema, schema_token)
    written: list[str] = []
    try:
        new = _store_indices(blobs, new, written)
        header = _header(new, header_key)
        _check_files(blobs, delta, written)
        blobs.put_if(header_key, header, token)
    except PreconditionFailed:
        blobs.delete(written)
        _restore(blobs, schema_key(delta.uuid, delta.table), schema, old_schema)
        raise
    if delta.mode == "replace":
        _drop_other_format(blobs, delta.uuid, header_key)
    published = Published(
        delta.uuid, header_key, header, old_header, schema_key(delta.uuid, delta.table), schema, old_schema
    )
    return new, published


def _current(blobs: BlobStore, key: str) -> tuple[bytes | None, Any]:
    try:
        return blobs.get_with_token(key)
    except KeyError:
        return None, None


def _load(blobs: BlobStore, delta: Delta) -> tuple[str, bytes | None, Any, DatasetMetadata | None]:
    """Key, bytes and token of the header to replace, and its state with the indices that will change."""
    wanted = metadata_key_from_uuid(delta.uuid, delta.storage_format)
    try:
        state, key, token, header = DatasetMetadata.load_with_token(delta.uuid, blobs)
    except DatasetNotFoundError:
        return wanted, None, None, None
    except (CorruptDatasetError, KeyError, NotImplementedError):
        if delta.mode != "replace":
            raise
        return wanted, *_current(blobs, wanted), None
    if delta.mode == "replace" and key != wanted:
        return wanted, header, _current(blobs, wanted)[1], state
    if delta.mode in ("create", "replace"):
        return key, header, token, state
    _check_one_header(blobs, delta.uuid, key)
    if not state.explicit_partitions:  # the files of this very change are there already
        ours = state.partition_table.positions(delta.added.labels)
        theirs = np.ones(len(state.partition_table), dtype=bool)
        theirs[ours[ours >= 0]] = False
        state = state.copy(partitions=state.partition_table.filter(theirs))
    touched = set(state.secondary_indices) - delta.new_indices
    scope_columns = {literal[0] for conjunction in delta.scope or () for literal in conjunction}
    if not len(delta.added) and delta.scope is None:
        touched = set()
    state = load_needed_indices(state, touched | scope_columns, blobs)
    return key, header, token, state


def _is_done(state: DatasetMetadata, delta: Delta) -> bool:
    """Whether this very commit got through already: its labels are UUIDs, nobody else adds them."""
    if delta.batch is not None:
        last = last_batch(state, delta.batch[0])
        if last is not None and last >= delta.batch[1]:
            return True
    if not len(delta.added):
        return False
    if delta.write_id and pc.any(pc.match_substring(state.partition_table.labels, delta.write_id)).as_py():
        return True
    return bool((state.partition_table.positions(delta.added.labels) >= 0).all())


def _unchanged(delta: Delta, key: str, header: bytes | None, schema: bytes | None) -> Published:
    return Published(
        delta.uuid, key, header or b"", header, schema_key(delta.uuid, delta.table), None, schema
    )


def _unloaded(state: DatasetMetadata) -> DatasetMetadata:
    """The state as loading it gives: secondary indices by key only."""
    return state.copy(indices={column: index.unload() for column, index in state.secondary_indices.items()})


def _store_indices(blobs: BlobStore, state: DatasetMetadata, written: list[str]) -> DatasetMetadata:
    """Write the changed indices; the result refers to all of them by key."""
    indices = {}
    for column, index in state.indices.items():
        if not isinstance(index, ExplicitSecondaryIndex):
            continue
        if index.index_storage_key is None:
            key = index.store(blobs, state.uuid)
            written.append(key)
            index = ExplicitSecondaryIndex(column=column, index_storage_key=key, dtype=index.dtype)
        indices[column] = index.unload()
    return state.copy(indices=indices)


def _check_files(blobs: BlobStore, delta: Delta, written: Sequence[str]) -> None:
    """
    Make sure that no cleanup took the files of this commit for garbage while it was under way.

    Raises
    ------
    ConcurrentWriteError
        If one is gone.
    """
    added = [key for keys in delta.added.files.values() for key in keys.to_pylist()]
    if len(added) > _FEW_FILES:
        stored = {blob.key for blob in blobs.list(f"{delta.uuid}/{delta.table}/")}
        gone = [key for key in added if key not in stored]
    else:
        gone = [key for key in added if not blobs.exists(key)]
    gone += [key for key in written if not blobs.exists(key)]
    if gone:
        raise ConcurrentWriteError(
            delta.uuid,
            detail=f"Files of this commit were deleted while it was under way, such as {gone[0]}: a cleanup "
            "or garbage collection ran at the same time. Write again, and give cleanups a retention.",
        )


def _header(state: DatasetMetadata, key: str) -> bytes:
    return state.to_json() if key.endswith(".json") else state.to_msgpack()


def _other_header(blobs: BlobStore, uuid: str, key: str) -> str | None:
    """Key of the header in the other format, if there is one."""
    (other,) = {metadata_key_from_uuid(uuid, fmt) for fmt in ("json", "msgpack")} - {key}
    return other if blobs.exists(other) else None


def _check_one_header(blobs: BlobStore, uuid: str, key: str) -> None:
    other = _other_header(blobs, uuid, key)
    if other is not None:
        raise CorruptDatasetError(
            key,
            f"there is another header of this dataset, {other!r}, and it is unknown which one holds its "
            f"state. "
            "Delete the outdated one, or write the dataset anew with overwrite=True",
        )


def _drop_other_format(blobs: BlobStore, uuid: str, key: str) -> None:
    """A dataset has one header; a leftover in the other format would win or linger."""
    other = _other_header(blobs, uuid, key)
    if other is not None:
        blobs.delete([other])


def _restore(
    blobs: BlobStore, key: str, ours: bytes | None, old: bytes | None, *, delete: bool = False
) -> None:
    """
    Put back what we replaced, if what is there is still ours.

    What was not there before stays unless ``delete`` is set: a schema may be that of another writer,
    with the same
    content, and is garbage at worst.
    """
    current, token = _current(blobs, key)
    if ours is None or current != ours or old == ours:
        return
    try:
        if old is not None:
            blobs.put_if(key, old, token)
        elif delete:
            blobs.delete_if(key, token)
    except PreconditionFailed:
        return


def rollback(blobs: BlobStore, published: Published) -> None:
    """
    Take a commit back, if nobody has committed on top of it.

    Files written for the commit stay as garbage.

    Parameters
    ----------
    blobs
        Store.
    published
        As returned by :func:`commit`.
    """
    current, _ = _current(blobs, published.header_key)
    if current != published.header:
        return
    _restore(blobs, published.header_key, published.header, published.old_header, delete=True)
    _restore(blobs, published.schema_key, published.schema, published.old_schema)
