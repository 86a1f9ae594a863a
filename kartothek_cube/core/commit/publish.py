"""Optimistic commit: apply a change to the newest state, compare-and-swap the header, retry on conflict."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.commit.apply import apply, last_batch
from kartothek_cube.core.commit.backoff import attempts
from kartothek_cube.core.commit.change import (
    BaseState,
    ChangeSet,
    CommitReceipt,
    IndexUpdate,
    MissingIndexEntries,
)
from kartothek_cube.core.commit.header_store import (
    check_one_header,
    compare_and_swap_header,
    delete_blob,
    header_format,
    other_header_key,
    read_versioned,
    render,
    restore_if_ours,
)
from kartothek_cube.core.commit.tombstones import (
    check_files,
    confirm_first_commit,
    inherit_tombstones,
    list_tombstone_files,
    tombstone_entries,
    tombstone_name,
    tombstoned_files,
)
from kartothek_cube.core.common_metadata import schema_file_from_bytes, schema_to_bytes
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.loading import HeaderBlob
from kartothek_cube.core.errors import (
    ConcurrentWriteError,
    CorruptDatasetError,
    DatasetNotFoundError,
    MissingFileError,
    UnknownOutcomeError,
)
from kartothek_cube.core.header.commit_record import COMMIT_RECORD, new_record, parse_record
from kartothek_cube.core.history import archive_snapshot, expire_snapshots, snapshot_retention, with_version
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.naming import TOMBSTONES_KEY, metadata_key_from_uuid, schema_key
from kartothek_cube.core.schema.versions import next_version, schema_version_of
from kartothek_cube.core.store import BlobStore, FlushError, PreconditionFailed
from kartothek_cube.core.uuid import gen_uuid

__all__ = (
    "BaseState",
    "commit",
    "confirm_pending",
    "publish",
    "publish_copy",
    "read_base",
    "read_replaced_base",
)

_LOGGER = logging.getLogger(__name__)

Result = tuple[DatasetMetadata, CommitReceipt]


def commit(
    blobs: BlobStore,
    delta: ChangeSet,
    index_entries: Callable[[str, Sequence[str]], IndexUpdate] | None = None,
) -> Result:
    """Apply a change to the newest state and publish it; returns the new state and the receipt."""
    # `index_entries` reads index entries of a column back from the files of partitions: the newest state may
    # have an index that did not exist when the partitions were written.
    snapshot_retention(delta.metadata)
    for _ in attempts():
        try:
            return _attempt(blobs, delta)
        except PreconditionFailed:
            continue
        except MissingIndexEntries as missing:
            if index_entries is None:
                raise ValueError(
                    f"Partitions without entries for the index on {missing.column} of dataset {delta.uuid}"
                ) from None
            delta = _with_entries(delta, missing, index_entries)
        except MissingFileError as missing:
            # a concurrent writer replaced the index and a garbage collection deleted its file before we read
            # it
            if _refers_to(blobs, delta.uuid, missing.key):
                raise
        except UnknownOutcomeError as unknown:
            if isinstance(unknown.__cause__, FlushError):
                # reading the header back would prove that it is visible, not that it is on disk
                raise
            result = _resolve_unknown_outcome(blobs, delta)
            if result is None:
                raise
            return result
    raise ConcurrentWriteError(delta.uuid, delta.added.labels.to_pylist())


def _refers_to(blobs: BlobStore, uuid: str, key: str) -> bool:
    state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    return any(getattr(index, "index_storage_key", None) == key for index in state.indices.values())


def _with_entries(
    delta: ChangeSet, missing: MissingIndexEntries, read: Callable[[str, Sequence[str]], IndexUpdate]
) -> ChangeSet:
    update = read(missing.column, missing.labels.to_pylist())
    present = delta.indices.get(missing.column)
    if present is not None:
        merged = IndexColumns.merge([present.entries, update.entries], update.entries.values.type)
        update = IndexUpdate(merged, pa.concat_arrays([present.covered, update.covered]))
    return attrs.evolve(delta, indices={**delta.indices, missing.column: update})


def _resolve_unknown_outcome(blobs: BlobStore, delta: ChangeSet) -> Result | None:
    """Result of a change whose answer was lost; None if the state does not contain it."""
    try:
        base = _load(blobs, delta)
        return _already_committed(blobs, base, delta) if _is_committed(base.state, delta) else None
    except OSError:
        return None


def _attempt(blobs: BlobStore, delta: ChangeSet) -> Result:
    base = _load(blobs, delta)
    if _is_committed(base.state, delta):
        return _already_committed(blobs, base, delta)
    if delta.mode == "create" and delta.replace_pending and base.state and _pending_operation(base.state):
        delta = attrs.evolve(delta, mode="replace")
    new = apply(base.state, delta)
    if base.state is not None and delta.mode != "replace" and _is_unchanged(base.state, new, delta):
        return _already_committed(blobs, base, delta)
    added = [key for keys in delta.added.files.values() for key in keys.to_pylist()]
    return publish(blobs, base, new, added, replace=delta.mode == "replace", pending=delta.pending)


def _is_unchanged(old: DatasetMetadata, new: DatasetMetadata, delta: ChangeSet) -> bool:
    """Whether the new header would equal the stored one."""
    return not len(delta.added) and not delta.new_indices and new == old


def publish(
    blobs: BlobStore,
    base: BaseState,
    new: DatasetMetadata,
    files: Sequence[str],
    *,
    replace: bool = False,
    pending: str = "",
) -> Result:
    """Replace the base state: write new indices, then the schema, then the header."""
    written: list[str] = []
    snapshot: str | None = None
    try:
        new = with_version(_store_indices(blobs, new, written), base.state, blobs, base.header_key)
        collections = _read_tombstones(blobs, base)
        record = new_record(new.schema, first=base.old is None, pending=pending or None)
        new = new.copy(
            metadata=inherit_tombstones(new.metadata, collections),
            extra={**new.extra, COMMIT_RECORD: record.to_field()},
        )
        needed = [*files, *written]
        if not replace and not base.is_confirmed and base.state is not None:
            # the first commit may have died before it could undo a header whose files are deleted
            needed = _files_of(new)
        if snapshot_retention(new.metadata) and base.state is not None and base.old is not None:
            snapshot = archive_snapshot(blobs, base.state, base.old)
        published = _put_state(blobs, base, new, render(new, base.header_key), needed, collections, replace)
    except (PreconditionFailed, ConcurrentWriteError):
        # leftovers are garbage at worst, and the original error tells more
        with suppress(OSError):
            if snapshot is not None and not blobs.exists(base.header_key):
                # the dataset was deleted, maybe without this snapshot: a new dataset of that name would adopt
                # it
                blobs.delete([snapshot])
            blobs.delete(_unreferenced(blobs, base.uuid, written))
        raise
    if _has_history(new) or _has_history(base.state):
        expire_snapshots(base.uuid, blobs)
    return new, published


def publish_copy(
    blobs: BlobStore,
    base: BaseState,
    new: DatasetMetadata,
    header: bytes,
    schema: bytes | None,
    files: Sequence[str],
) -> Result:
    """Publish the header of a copied dataset, unchanged, in place of the base state."""
    collections = _read_tombstones(blobs, base)
    if collections != tombstone_entries(new.metadata):
        # tombstones of the source dataset mean nothing here
        new = new.copy(metadata=inherit_tombstones(new.metadata, collections))
        header = render(new, base.header_key)
    published = _put_state(blobs, base, new, header, files, collections, True, schema)
    if schema is not None and base.state is not None:
        # while a dataset was replaced, the file held the schemas of both; nothing depends on this step
        with suppress(OSError, PreconditionFailed):
            content, token = read_versioned(blobs, base.schema_key)
            if content != schema and content in (published.schema, base.schema):
                blobs.put_if(base.schema_key, schema, token)
                published = attrs.evolve(published, schema=schema)
    return new, published


def confirm_pending(blobs: BlobStore, published: CommitReceipt) -> Result:
    """Mark the operation that created a dataset as finished; raises if the dataset was replaced."""
    # Until then a repetition of the operation may replace the dataset, so this step detects a replacement.
    operation = _pending_operation(published.state)
    state, content, token = published.state, published.header, published.token
    for _ in attempts():
        record = parse_record(state.extra)
        if record is None or record.pending is None or record.pending != operation:
            break
        record = attrs.evolve(record, commit=gen_uuid(), pending=None)
        new = state.copy(extra={**state.extra, COMMIT_RECORD: record.to_field()})
        header = render(new, published.header_key)
        try:
            token = compare_and_swap_header(
                blobs, published.uuid, published.header_key, header, content, token
            )
        except PreconditionFailed:
            state, _, token, content = DatasetMetadata.load_with_token(published.uuid, blobs)
            continue
        return new, attrs.evolve(published, header=header, token=token, state=new)
    # commits of other writers on top of a dataset confirm it as well
    labels = published.state.partition_table.labels
    replaced = _pending_operation(state) is not None or (state.partition_table.positions(labels) < 0).any()
    if replaced:
        raise ConcurrentWriteError(
            published.uuid, labels.to_pylist(), "Another build or extension has replaced the dataset."
        )
    return state, published


def _pending_operation(state: DatasetMetadata) -> str | None:
    """Id of the unfinished operation on several datasets that created this one."""
    record = parse_record(state.extra)
    return None if record is None else record.pending


def _read_tombstones(blobs: BlobStore, base: BaseState) -> dict[str, Any]:
    """Tombstones that a commit inherits and must respect."""
    # Tombstone files count until another commit is on top of the first header (`confirm_first_commit`). They
    # are listed before the files of the commit are checked: files deleted by a garbage collection that
    # finishes in between are missing then.
    in_header = {} if base.state is None else tombstone_entries(base.state.metadata)
    if base.old is None or base.is_confirmed:
        return in_header
    return {**list_tombstone_files(blobs, base.uuid), **in_header}


def _put_state(
    blobs: BlobStore,
    base: BaseState,
    new: DatasetMetadata,
    header: bytes,
    files: Sequence[str],
    collections: dict[str, Any],
    replace: bool,
    schema: bytes | None = None,
) -> CommitReceipt:
    """Put the schema, then the header of a state."""
    # Schema first: a header must never be stored without it. The old state finds its own schema in the new
    # file, see `core.schema.versions`.
    put: bytes | None = None
    try:
        put = _put_schema(blobs, base, new, replace, schema)
        others = 0 if base.state is None else len(base.state.partition_table)
        # a deleted dataset, or one of another table, may have left a schema that is garbage-collected now
        schemas = [base.schema_key] if new.schema is not None and (replace or base.old is None) else []
        # the schema of a first commit is confirmed below, where it can be put again
        names = tombstoned_files({TOMBSTONES_KEY: collections})
        names -= {tombstone_name(base.schema_key)} if base.old is None else set()
        # files have to be on disk before the header that names them, see BlobStore.flush
        blobs.flush(files)
        check_files(blobs, base.uuid, [*files, *schemas], names, others=others)
        token = compare_and_swap_header(
            blobs, base.uuid, base.header_key, header, _header_at_key(base), base.token
        )
        if base.old is None:
            _confirm(blobs, base, new, files)
        if replace:
            _drop_other_format(blobs, base, token)
    except (PreconditionFailed, ConcurrentWriteError):
        # a failure here does no harm: the next commit puts the right schema as well
        with suppress(OSError):
            restore_if_ours(blobs, base.schema_key, put, base.schema)
        raise
    except UnknownOutcomeError:
        raise
    except OSError:
        with suppress(OSError, PreconditionFailed):
            _restore_schema(blobs, base, put)
        raise
    return base.published(header, token, put, new)


def _confirm(blobs: BlobStore, base: BaseState, new: DatasetMetadata, files: Sequence[str]) -> None:
    """Ensure that the first commit of a dataset and its schema file are not garbage-collected."""
    record = parse_record(new.extra)
    commit = "" if record is None else record.unconfirmed or record.commit
    tombstones = confirm_first_commit(blobs, base.uuid, base.header_key, files, commit)
    if new.schema is None:
        return
    # a new version of the blob, so that the conditional deletion of the garbage collection fails
    file = schema_to_bytes(next_version(new.schema, schema_version_of(new.metadata), None, None))
    try:
        for attempt in attempts():
            content, token = read_versioned(blobs, base.schema_key)
            # after a refused put: the garbage collection deleted the file, or another commit put a newer one
            if content is not None and (attempt or tombstone_name(base.schema_key) not in tombstones):
                return
            with suppress(PreconditionFailed):
                blobs.put_if(base.schema_key, file, token)
                return
    except OSError as error:
        # the header holds the schema, too, and the next commit or repair puts the file again
        _LOGGER.warning("The schema file of dataset %s may be missing: %s", base.uuid, error)


def _drop_other_format(blobs: BlobStore, base: BaseState, token: Any) -> None:
    """Delete the header of the other format, which would shadow or outlive the new one."""
    # JSON wins over msgpack. So a new JSON header is the state at once, and a leftover does no harm to
    # readers. A new msgpack header becomes the state when the JSON header is deleted, if it is still the one
    # we read.
    other = other_header_key(base.uuid, base.header_key)
    if base.old is None or base.old.key != other or base.header_key.endswith(".json"):
        try:
            delete_blob(blobs, other)
        except (OSError, ConcurrentWriteError) as error:
            _LOGGER.warning("An outdated header of dataset %s is left: %s", base.uuid, error)
        return
    try:
        blobs.delete_if(other, base.old.token)
    except (OSError, PreconditionFailed):
        if not blobs.exists(other):
            return
        # the condition holds, since readers and writers prefer the JSON header to ours
        blobs.delete_if(base.header_key, token)
        raise


def _header_at_key(base: BaseState) -> bytes | None:
    """Stored header at the key of the new one."""
    return base.header if base.old is not None and base.old.key == base.header_key else None


def _files_of(state: DatasetMetadata) -> list[str]:
    """Keys of the data and index files of a state."""
    files = [key for keys in state.partition_table.files.values() for key in keys.to_pylist()]
    return files + [i.index_storage_key for i in state.secondary_indices.values() if i.index_storage_key]


def _has_history(state: DatasetMetadata | None) -> bool:
    """Whether a dataset has, or may have, snapshots."""
    try:
        return state is not None and snapshot_retention(state.metadata) > 0
    except ValueError:
        return False


def read_base(blobs: BlobStore, uuid: str, table: str) -> BaseState:
    """Read a dataset in order to change it; raises DatasetNotFoundError."""
    schema, schema_token = read_versioned(blobs, schema_key(uuid, table))
    state, key, token, header = DatasetMetadata.load_with_token(uuid, blobs)
    stored = HeaderBlob(key, header, header_format(key), token)
    return BaseState(uuid, table, key, token, stored, state, schema, schema_token)


def read_replaced_base(blobs: BlobStore, uuid: str, table: str, header_key: str) -> BaseState:
    """Read a dataset, absent or damaged ones too, in order to replace it by a header at a key."""
    schema = read_versioned(blobs, schema_key(uuid, table))
    try:
        base = read_base(blobs, uuid, table)
    except DatasetNotFoundError:
        return BaseState(uuid, table, header_key, None, None, None, *schema)
    except (CorruptDatasetError, KeyError, NotImplementedError):
        content, token = read_versioned(blobs, header_key)
        old = None
        if content is not None:
            old = HeaderBlob(header_key, content, header_format(header_key), token)
        return BaseState(uuid, table, header_key, token, old, None, *schema)
    if base.header_key == header_key:
        return base
    return attrs.evolve(base, header_key=header_key, token=read_versioned(blobs, header_key)[1])


def _load(blobs: BlobStore, delta: ChangeSet) -> BaseState:
    """Base state of a change, with the indices that will change."""
    # A schema is read before its header: a schema file also holds the versions of older headers.
    header_key = metadata_key_from_uuid(delta.uuid, delta.storage_format)
    if delta.mode == "replace":
        return read_replaced_base(blobs, delta.uuid, delta.table, header_key)
    base = None
    with suppress(DatasetNotFoundError):
        base = read_base(blobs, delta.uuid, delta.table)
    if base is None:
        schema = read_versioned(blobs, schema_key(delta.uuid, delta.table))
        return BaseState(delta.uuid, delta.table, header_key, None, None, None, *schema)
    if delta.mode == "create":
        return base
    check_one_header(blobs, delta.uuid, base.header_key)
    return attrs.evolve(base, state=_with_indices(blobs, base.state, delta))


def _with_indices(blobs: BlobStore, state: Any, delta: ChangeSet) -> DatasetMetadata:
    if not state.explicit_partitions:  # partitions are listed from storage: those of this change are included
        added = state.partition_table.positions(delta.added.labels)
        is_older = np.ones(len(state.partition_table), dtype=bool)
        is_older[added[added >= 0]] = False
        state = state.copy(partitions=state.partition_table.filter(is_older))
    touched = set(state.secondary_indices) - delta.new_indices
    scope_columns = {literal[0] for conjunction in delta.scope or () for literal in conjunction}
    if not len(delta.added) and delta.scope is None and delta.inputs is None:
        touched = set()
    loaded: DatasetMetadata = state.load_indices(touched | scope_columns, blobs)
    return loaded


def _is_committed(state: DatasetMetadata | None, delta: ChangeSet) -> bool:
    """Whether the state contains this commit already."""
    # Labels contain UUIDs: no other writer adds the same ones.
    if state is None:
        return False
    if delta.batch is not None:
        last = last_batch(state, delta.batch[0])
        if last is not None and last >= delta.batch[1]:
            return True
    if not len(delta.added):
        return False
    if delta.write_id and pc.any(pc.match_substring(state.partition_table.labels, delta.write_id)).as_py():
        return True
    return bool((state.partition_table.positions(delta.added.labels) >= 0).all())


def _already_committed(blobs: BlobStore, base: BaseState, delta: ChangeSet) -> Result:
    """The stored state and its receipt; secondary indices by key only."""
    state: Any = base.state
    if base.record is not None and base.record.unconfirmed:
        # only the answer to our commit was lost, or a commit on top of ours came before its confirmation
        _confirm(blobs, base, state, _files_of(state))
    unloaded = {column: index.unload() for column, index in state.secondary_indices.items()}
    return state.copy(indices=unloaded), base.published(base.header or b"", base.token, None, state)


def _put_schema(
    blobs: BlobStore, base: BaseState, new: DatasetMetadata, replace: bool, content: bytes | None
) -> bytes | None:
    """Put the schema file before the header, unless it is stored already."""
    # The file holds the old and the new version, so that both headers resolve to the right schema. The first
    # commit of a dataset always writes it: a garbage collection may be about to delete the stored one.
    if new.schema is None:
        return None
    try:
        old = None if base.schema is None else schema_file_from_bytes(base.schema, base.schema_key)
    except CorruptDatasetError:
        if base.state is not None:
            raise
        old = None
    version = schema_version_of(new.metadata)
    same = base.old is not None and old is not None and old.schema.equals(new.schema, check_metadata=replace)
    if same and old is not None and old.of(version).equals(new.schema):
        return None
    replaced = None if base.state is None else schema_version_of(base.state.metadata)
    if content is None or base.state is not None:
        content = schema_to_bytes(next_version(new.schema, version, old, replaced))
    blobs.put_if(base.schema_key, content, base.schema_token)
    return content


def _restore_schema(blobs: BlobStore, base: BaseState, ours: bytes | None) -> None:
    """After a failed header write, make the schema of the stored header current again."""
    # Ours stays in the file as a version, in case our header lands late.
    content, token = read_versioned(blobs, base.schema_key)
    if ours is None or content != ours or base.state is None or base.state.schema is None:
        return
    version = schema_version_of(base.state.metadata)
    old = schema_file_from_bytes(ours, base.schema_key)
    file = next_version(base.state.schema, version, old, version)
    blobs.put_if(base.schema_key, schema_to_bytes(file), token)


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


def _unreferenced(blobs: BlobStore, uuid: str, written: Sequence[str]) -> list[str]:
    """Index files that the stored state does not refer to."""
    # The answer to our put may be lost and a newer state, based on ours, be stored: it still refers to them.
    if not written:
        return []
    try:
        state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    except DatasetNotFoundError:
        return list(written)
    except (CorruptDatasetError, OSError, KeyError, NotImplementedError):
        # garbage at worst
        return []
    used = {index.index_storage_key for index in state.secondary_indices.values()}
    return [key for key in written if key not in used]
