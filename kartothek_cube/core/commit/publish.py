"""Publishing a change by compare-and-swap on the header, repeated until no other writer was faster."""

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
from kartothek_cube.core.dataset.pruning import load_needed_indices
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
    """
    Publish a change: apply it to the newest state, write it if nobody else was faster, else start again.

    Parameters
    ----------
    blobs
        Store.
    delta
        The change. Its data files are stored already.
    index_entries
        Reads the index entries of a column for the given partitions from their files; asked for when the
        newest state has an index that the writers of the partitions did not know of.

    Returns
    -------
    state
        The new state, as loading it gives.
    published
        What was replaced, for :func:`~kartothek_cube.core.commit.rollback`.

    Raises
    ------
    ConcurrentWriteError
        If others were faster again and again, or wrote to the partitions that the change removes.
    UnknownOutcomeError
        If the store does not tell whether the change got through.
    """
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
            # a faster writer replaced it, and a collection took it, before we got to it
            if _refers_to(blobs, delta.uuid, missing.key):
                raise
        except UnknownOutcomeError as unknown:
            if isinstance(unknown.__cause__, FlushError):
                # to find the header again would tell that it is visible, not that it is on disk
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
    found = read(missing.column, missing.labels.to_pylist())
    known = delta.indices.get(missing.column)
    if known is not None:
        merged = IndexColumns.merge([known.entries, found.entries], found.entries.values.type)
        found = IndexUpdate(merged, pa.concat_arrays([known.covered, found.covered]))
    return attrs.evolve(delta, indices={**delta.indices, missing.column: found})


def _resolve_unknown_outcome(blobs: BlobStore, delta: ChangeSet) -> Result | None:
    """The state, if it shows that a change whose answer was lost did get through."""
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
    """Whether a commit would put a header that says what the one says which is there."""
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
    """
    Put a state in place of the one that was read: new indices, the schema, and the header as the last thing.

    Parameters
    ----------
    blobs
        Store.
    base
        What was read.
    new
        The new state; indices without storage key are loaded.
    files
        Files that have to exist when the header is put.
    replace
        Whether the new state takes nothing over from the old one.
    pending
        As in :class:`ChangeSet`.

    Returns
    -------
    state, published
        As :func:`commit`.

    Raises
    ------
    PreconditionFailed
        Somebody else was faster; nothing has changed.
    ConcurrentWriteError
        Files of the commit are gone; nothing has changed.
    OSError, UnknownOutcomeError
        The store failed.
    """
    written: list[str] = []
    snapshot: str | None = None
    try:
        new = with_version(_store_indices(blobs, new, written), base.state, blobs, base.header_key)
        collections = _read_tombstones(blobs, base)
        record = new_record(new.schema, first=base.old is None, pending=pending or None)
        new = new.copy(
            metadata=inherit_tombstones(new.metadata, collections),
            extra={**new.extra, COMMIT_RECORD: record.to_part()},
        )
        needed = [*files, *written]
        if not replace and not base.is_confirmed and base.state is not None:
            # the first commit may have died before it could take back a header whose files are deleted
            needed = _files_of(new)
        if snapshot_retention(new.metadata) and base.state is not None and base.old is not None:
            snapshot = archive_snapshot(blobs, base.state, base.old)
        published = _put_state(blobs, base, new, render(new, base.header_key), needed, collections, replace)
    except (PreconditionFailed, ConcurrentWriteError):
        # garbage at worst, and the error tells more
        with suppress(OSError):
            if snapshot is not None and not blobs.exists(base.header_key):
                # the dataset was deleted: the deletion may have listed its files before the snapshot was
                # there, and a new dataset of that name would take it for its own
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
    """
    Put the header of a copy, as it is, in place of what was read; see :func:`publish`.

    Parameters
    ----------
    blobs, base, files
        As in :func:`publish`.
    new, header, schema
        The state, its header, and the content of its schema file.
    """
    collections = _read_tombstones(blobs, base)
    if collections != tombstone_entries(new.metadata):
        # those of the source mean nothing here
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
    """
    Say in the header of a dataset that the operation which created it has finished.

    Until then, a repetition of the operation may replace the dataset. So this is where the operation learns
    whether that has happened.

    Parameters
    ----------
    blobs
        Store.
    published
        The receipt of the commit that created the dataset.

    Returns
    -------
    state, published
        As :func:`commit`, for both commits as one.

    Raises
    ------
    ConcurrentWriteError
        The dataset was replaced.
    OSError, UnknownOutcomeError
        The store failed.
    """
    operation = _pending_operation(published.state)
    state, content, token = published.state, published.header, published.token
    for _ in attempts():
        record = parse_record(state.extra)
        if record is None or record.pending is None or record.pending != operation:
            break
        record = attrs.evolve(record, commit=gen_uuid(), pending=None)
        new = state.copy(extra={**state.extra, COMMIT_RECORD: record.to_part()})
        header = render(new, published.header_key)
        try:
            token = compare_and_swap_header(
                blobs, published.uuid, published.header_key, header, content, token
            )
        except PreconditionFailed:
            state, _, token, content = DatasetMetadata.load_with_token(published.uuid, blobs)
            continue
        return new, attrs.evolve(published, header=header, token=token, state=new)
    # what others commit on top of a dataset confirms it as well
    labels = published.state.partition_table.labels
    replaced = _pending_operation(state) is not None or (state.partition_table.positions(labels) < 0).any()
    if replaced:
        raise ConcurrentWriteError(
            published.uuid, labels.to_pylist(), "Another build or extension has replaced the dataset."
        )
    return state, published


def _pending_operation(state: DatasetMetadata) -> str | None:
    """Id of the operation on several datasets that has created this one and not finished."""
    record = parse_record(state.extra)
    return None if record is None else record.pending


def _read_tombstones(blobs: BlobStore, base: BaseState) -> dict[str, Any]:
    """
    The tombstones that a commit inherits and must not violate.

    Those in files count until another commit is on top of the first header (`confirm_first_commit`). They are
    listed before the commit looks for its files: what a collection has deleted that finished in between is
    missing then.
    """
    known = {} if base.state is None else tombstone_entries(base.state.metadata)
    if base.old is None or base.is_confirmed:
        return known
    return {**list_tombstone_files(blobs, base.uuid), **known}


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
    """
    Put schema and header of a state.

    Schema first: a header must never be there without it. The state before finds its own schema in the new
    file, see :mod:`kartothek_cube.core.schema.versions`.
    """
    put: bytes | None = None
    try:
        put = _put_schema(blobs, base, new, replace, schema)
        others = 0 if base.state is None else len(base.state.partition_table)
        # a dataset that was deleted, or had another table, may have left a schema that is collected now
        schemas = [base.schema_key] if new.schema is not None and (replace or base.old is None) else []
        # the schema of a first commit is confirmed below, where it can be put again
        names = tombstoned_files({TOMBSTONES_KEY: collections})
        names -= {tombstone_name(base.schema_key)} if base.old is None else set()
        # what the header will name has to be on disk before it, see BlobStore.flush
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
        # the next commit puts the right schema as well, so that a failure here costs nothing
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
    """Make sure that the first commit of a dataset is there to stay, with its schema file."""
    record = parse_record(new.extra)
    commit = "" if record is None else record.unconfirmed or record.commit
    tombstones = confirm_first_commit(blobs, base.uuid, base.header_key, files, commit)
    if new.schema is None:
        return
    # another version than the collection has read, so that its deletion by condition fails
    file = schema_to_bytes(next_version(new.schema, schema_version_of(new.metadata), None, None))
    try:
        for attempt in attempts():
            content, token = read_versioned(blobs, base.schema_key)
            # after a refused put: the collection deleted the file, or another commit put a newer one
            if content is not None and (attempt or tombstone_name(base.schema_key) not in tombstones):
                return
            with suppress(PreconditionFailed):
                blobs.put_if(base.schema_key, file, token)
                return
    except OSError as error:
        # the header holds the schema, too, and the next commit or repair puts the file again
        _LOGGER.warning("The schema file of dataset %s may be missing: %s", base.uuid, error)


def _drop_other_format(blobs: BlobStore, base: BaseState, token: Any) -> None:
    """
    Delete the header in the other format, after a dataset was replaced.

    JSON wins over msgpack. So a new JSON header is the state at once, and a leftover does no harm to readers.
    A new msgpack header becomes the state when that in JSON goes, if it is still the one that was read.
    """
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
        # our deletion finds what it expects, since readers and writers take the header in JSON
        blobs.delete_if(base.header_key, token)
        raise


def _header_at_key(base: BaseState) -> bytes | None:
    """The header at the key of the new one."""
    return base.header if base.old is not None and base.old.key == base.header_key else None


def _files_of(state: DatasetMetadata) -> list[str]:
    """Data and index files of a state."""
    files = [key for keys in state.partition_table.files.values() for key in keys.to_pylist()]
    return files + [i.index_storage_key for i in state.secondary_indices.values() if i.index_storage_key]


def _has_history(state: DatasetMetadata | None) -> bool:
    """Whether a dataset has, or may have, copies of older states."""
    try:
        return state is not None and snapshot_retention(state.metadata) > 0
    except ValueError:
        return False


def read_base(blobs: BlobStore, uuid: str, table: str) -> BaseState:
    """
    Read a dataset in order to change it.

    Parameters
    ----------
    blobs
        Store.
    uuid, table
        The dataset.

    Returns
    -------
    Base

    Raises
    ------
    DatasetNotFoundError
        There is no such dataset.
    """
    schema, schema_token = read_versioned(blobs, schema_key(uuid, table))
    state, key, token, header = DatasetMetadata.load_with_token(uuid, blobs)
    stored = HeaderBlob(key, header, header_format(key), token)
    return BaseState(uuid, table, key, token, stored, state, schema, schema_token)


def read_replaced_base(blobs: BlobStore, uuid: str, table: str, header_key: str) -> BaseState:
    """Read what is there in order to replace it, be it absent or damaged, by a header at a given key."""
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
    """The newest state with the indices that will change; a schema is read before the header it goes with."""
    wanted = metadata_key_from_uuid(delta.uuid, delta.storage_format)
    if delta.mode == "replace":
        return read_replaced_base(blobs, delta.uuid, delta.table, wanted)
    base = None
    with suppress(DatasetNotFoundError):
        base = read_base(blobs, delta.uuid, delta.table)
    if base is None:
        schema = read_versioned(blobs, schema_key(delta.uuid, delta.table))
        return BaseState(delta.uuid, delta.table, wanted, None, None, None, *schema)
    if delta.mode == "create":
        return base
    check_one_header(blobs, delta.uuid, base.header_key)
    return attrs.evolve(base, state=_with_indices(blobs, base.state, delta))


def _with_indices(blobs: BlobStore, state: Any, delta: ChangeSet) -> DatasetMetadata:
    if not state.explicit_partitions:  # the files of this very change are there already
        ours = state.partition_table.positions(delta.added.labels)
        theirs = np.ones(len(state.partition_table), dtype=bool)
        theirs[ours[ours >= 0]] = False
        state = state.copy(partitions=state.partition_table.filter(theirs))
    touched = set(state.secondary_indices) - delta.new_indices
    scope_columns = {literal[0] for conjunction in delta.scope or () for literal in conjunction}
    if not len(delta.added) and delta.scope is None and delta.inputs is None:
        touched = set()
    found: DatasetMetadata = load_needed_indices(state, touched | scope_columns, blobs)
    return found


def _is_committed(state: DatasetMetadata | None, delta: ChangeSet) -> bool:
    """Whether this very commit got through already: its labels are UUIDs, nobody else adds them."""
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
    """The state as loading it gives, secondary indices by key only."""
    state: Any = base.state
    if base.record is not None and base.record.unconfirmed:
        # ours, of which only the answer was lost, or one that is built on ours before this could confirm it
        _confirm(blobs, base, state, _files_of(state))
    unloaded = {column: index.unload() for column, index in state.secondary_indices.items()}
    return state.copy(indices=unloaded), base.published(base.header or b"", base.token, None, state)


def _put_schema(
    blobs: BlobStore, base: BaseState, new: DatasetMetadata, replace: bool, content: bytes | None
) -> bytes | None:
    """
    Write the schema unless it is there; until the header follows, each header finds its own in it.

    The first commit of a dataset always writes it: a collection may be about to delete what is there.
    """
    if new.schema is None:
        return None
    try:
        old = None if base.schema is None else schema_file_from_bytes(base.schema, base.schema_key)
    except CorruptDatasetError:
        if base.state is not None:
            raise
        old = None
    lineage = schema_version_of(new.metadata)
    same = base.old is not None and old is not None and old.schema.equals(new.schema, check_metadata=replace)
    if same and old is not None and old.of(lineage).equals(new.schema):
        return None
    replaced = None if base.state is None else schema_version_of(base.state.metadata)
    if content is None or base.state is not None:
        content = schema_to_bytes(next_version(new.schema, lineage, old, replaced))
    blobs.put_if(base.schema_key, content, base.schema_token)
    return content


def _restore_schema(blobs: BlobStore, base: BaseState, ours: bytes | None) -> None:
    """Put the schema of the header that is there first; ours stays known, should our header arrive late."""
    content, token = read_versioned(blobs, base.schema_key)
    if ours is None or content != ours or base.state is None or base.state.schema is None:
        return
    lineage = schema_version_of(base.state.metadata)
    old = schema_file_from_bytes(ours, base.schema_key)
    file = next_version(base.state.schema, lineage, old, lineage)
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
    """
    Index files that no state knows.

    The answer to our put may be lost and a newer state, made of ours, be there: it still refers to them.
    """
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
