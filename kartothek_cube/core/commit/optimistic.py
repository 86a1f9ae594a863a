"""Optimistic commit: apply a change to the newest state and compare-and-swap the header; retry on conflict.

The order of writes is that of references: data files, index files, archived snapshot, schema file, header. So
a header never refers to what is not stored, and a commit that is killed leaves garbage at worst.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import dataset_files, errors, expressions, history, hooks, naming, pruning
from kartothek_cube.core import schema as schemas
from kartothek_cube.core.arrow import to_numpy
from kartothek_cube.core.commit import change as changes
from kartothek_cube.core.commit import header_store, operation
from kartothek_cube.core.commit.change import WriteMode
from kartothek_cube.core.commit.header_store import BaseState, CommitReceipt
from kartothek_cube.core.commit.operation import Decision, Role
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset_files import copy_json, file_keys
from kartothek_cube.core.header import COMMIT_RECORD, CommitRecord, Participation, embed_schema, parse_record
from kartothek_cube.core.store import BlobStore, FlushError, PreconditionFailed
from kartothek_cube.core.uuid import gen_uuid

_LOGGER = logging.getLogger(__name__)

#: the new state, and the receipt of its commit
Result = tuple[DatasetMetadata, CommitReceipt]
#: reads the index entries of a column for some partitions out of their files
IndexReader = Callable[[str, Sequence[str]], changes.IndexUpdate]


# -- commit of a change --------------------------------------------------------------------------------------


def commit(
    blobs: BlobStore, change: changes.ChangeSet, read_index: IndexReader | None = None, role: Role = None
) -> Result:
    """Commit a change to the newest state; return the new state, as loading it gives, and a receipt."""
    result: Result | None = None
    is_landed = False
    for number in header_store.attempts():
        try:
            result = _attempt(blobs, change, role)
            break
        except PreconditionFailed:
            # another writer was faster: apply the change to its state
            _LOGGER.debug(
                "Commit to dataset %s: another writer was faster, attempt %d follows", change.uuid, number + 2
            )
        except changes.MissingIndexEntries as missing:
            # the writers of the files did not know of an index that was added since
            if read_index is None:
                index = f"the index on {missing.column} of dataset {change.uuid}"
                raise ValueError(f"Partitions without entries for {index}") from None
            change = _add_entries(change, missing, read_index)
        except errors.MissingFileError as missing:
            # a faster writer replaced this file, and a collection deleted it, before it was read here
            state = DatasetMetadata.load_from_store(change.uuid, blobs, load_schema=False)
            if missing.key in {*file_keys(state), *change.files}:
                raise
        except errors.UnknownOutcomeError as unknown:
            if isinstance(unknown.__cause__, FlushError):
                # a header that can be read is visible, which does not mean that it is on disk
                raise
            # the newest state shows whether it did land, unless that cannot be read either
            with suppress(Exception):
                base = _load_base(blobs, change)
                result = _already_committed(blobs, base) if is_committed(base.state, change) else None
            if result is None:
                raise
            is_landed = True
            break
    if result is None:
        raise errors.ConcurrentWriteError(change.uuid, change.added.labels.to_pylist())
    receipt = attrs.evolve(result[1], rows=change.rows, is_landed=is_landed)
    if role is None and hooks.COMMIT_HOOKS:
        announce_commit(change.info, [receipt])
    return result[0], receipt


def announce_commit(info: history.OperationInfo | None, receipts: Sequence[CommitReceipt]) -> None:
    """Call hooks, unless nothing was committed."""
    if not hooks.COMMIT_HOOKS or not any(r.is_landed or r.header != r.base.header for r in receipts):
        return
    info, versions, n_added, n_removed = info or history.OperationInfo(), {}, 0, 0
    for receipt in receipts:
        # of a commit whose answer was lost, the base is the new state
        old = None if receipt.header == receipt.base.header else receipt.base.state
        new = receipt.state
        versions[new.uuid] = history.version_number(old), history.version_number(new)
        n_kept = 0
        if old is not None:
            n_kept = int((old.partition_table.positions(new.partition_table.labels) >= 0).sum())
            n_removed += len(old.partition_table) - n_kept
        n_added += len(new.partition_table) - n_kept
    prefix, separator, _ = receipts[0].state.uuid.rpartition("++")
    rows = [receipt.rows for receipt in receipts if receipt.rows is not None]
    event = hooks.CommitEvent(
        operation=info.name,
        cube=prefix if separator else None,
        versions=versions,
        rows=sum(rows) if rows else None,
        files_added=n_added,
        files_removed=n_removed,
        seconds=info.seconds(),
        message=info.message,
        job=info.job,
    )
    hooks.call_hooks(hooks.COMMIT_HOOKS, event)


def _attempt(blobs: BlobStore, change: changes.ChangeSet, role: Role) -> Result:
    base = _load_base(blobs, change)
    if is_committed(base.state, change):
        return _already_committed(blobs, base)
    new = _check_and_apply(base.state, change)
    has_entries, replaces = len(change.added) or change.new_indices, change.mode is WriteMode.REPLACE
    # the header would have the same content as the stored one
    is_unchanged = not has_entries and not replaces and new == base.state and not isinstance(role, Decision)
    if is_unchanged and change.statistics is None:
        return _already_committed(blobs, base)
    statistics = None
    if change.statistics is not None or change.schema_update is not None:
        old = None if base.state is None or replaces else base.state.load_statistics(blobs)
        statistics = changes.update_statistics(old, new, change)
        if is_unchanged and statistics is not None and old is not None and statistics.equals(old):
            return _already_committed(blobs, base)  # a build of statistics that is repeated
        new = new.copy(extra={key: value for key, value in new.extra.items() if key != pruning.STATISTICS})
    return commit_state(
        blobs,
        base,
        new,
        change.files,
        role,
        change.info,
        replaces=replaces,
        is_repair=change.is_index_rebuild(base.state),
        statistics=statistics,
    )


def _check_and_apply(state: DatasetMetadata | None, change: changes.ChangeSet) -> DatasetMetadata:
    if state is not None and change.replaces is not None and not len(change.added):
        # a deletion that is repeated, or another writer has deleted the same
        is_done = not (state.partition_table.positions(change.replaces) >= 0).any()
        change = attrs.evolve(change, replaces=None) if is_done else change
    change.check_requirements(state)
    return changes.apply(state, change)


def preview(
    blobs: BlobStore, state: DatasetMetadata | None, change: changes.ChangeSet, read_index: IndexReader
) -> DatasetMetadata:
    """The state that a commit of a change on top of a state would give; nothing is stored."""
    if state is not None and is_committed(state, change):
        return state
    if state is not None and change.mode not in (WriteMode.REPLACE, WriteMode.CREATE):
        state = _load_indices(blobs, state, change)
    while True:
        try:
            return _check_and_apply(state, change)
        except changes.MissingIndexEntries as missing:
            change = _add_entries(change, missing, read_index)


def _load_base(blobs: BlobStore, change: changes.ChangeSet) -> BaseState:
    """The newest settled state with the indices that a change touches."""
    key = naming.metadata_key_from_uuid(change.uuid, change.storage_format)
    replaces = change.mode is WriteMode.REPLACE
    creates = replaces or change.mode is WriteMode.CREATE
    read = header_store.read_replaced_base if replaces else header_store.read_optional_base
    base = operation.settle(blobs, lambda: read(blobs, change.uuid, change.table, key), replaces=creates)
    if base.state is None or creates:
        return base
    other = header_store.other_header_key(change.uuid, base.header_key)
    if blobs.exists(other) and not _drop_outdated(blobs, base, other):
        raise errors.CorruptDatasetError(
            base.header_key,
            f"there is another header of this dataset, {other!r}, and it is unknown which one holds its "
            "state. Delete the outdated one, or write the dataset again with overwrite=True",
        )
    return attrs.evolve(base, state=_load_indices(blobs, base.state, change))


def _drop_outdated(blobs: BlobStore, base: BaseState, other: str) -> bool:
    """Delete a header in msgpack that other software updated in JSON; False if it may hold the state."""
    content, token = header_store.read_versioned(blobs, other)
    if content is None or base.stored is None or not header_store.is_outdated(content, other, base.stored):
        return content is None
    blobs.delete_if(other, token)
    return True


def _load_indices(blobs: BlobStore, state: DatasetMetadata, change: changes.ChangeSet) -> DatasetMetadata:
    if not state.explicit_partitions:
        # the partitions were found by a listing, which shows the files of this very change already, and those
        # of other attempts of its tasks
        table = state.partition_table
        own = change.added.positions(table.labels) >= 0
        if change.write_id:
            own |= to_numpy(pc.match_substring(table.labels, change.write_id))
        state = state.copy(partitions=table.filter(~own))
    touched = set(state.secondary_indices) - change.new_indices
    if not len(change.added) and change.remove_where is None and change.replaces is None:
        touched = set()
    return state.load_indices(touched | expressions.columns_of(change.remove_where), blobs)


def _add_entries(
    change: changes.ChangeSet, missing: changes.MissingIndexEntries, read_index: IndexReader
) -> changes.ChangeSet:
    update = read_index(missing.column, missing.labels.to_pylist())
    present = change.indices.get(missing.column)
    if present is not None:
        update = changes.IndexUpdate.merge([present, update])
    return attrs.evolve(change, indices={**change.indices, missing.column: update})


def is_committed(state: DatasetMetadata | None, change: changes.ChangeSet) -> bool:
    """Whether this very change is committed already: its labels are UUIDs, which no other writer adds."""
    if state is None:
        return False
    if change.staged is not None and changes.is_staged_committed(state, change.staged[0]):
        return True
    if change.batch is not None:
        last = changes.last_batch(state, change.batch[0])
        if last is not None and last >= change.batch[1]:
            return True
    if not len(change.added) or not state.explicit_partitions:
        # a listing finds files that are not committed
        return False
    if change.write_id and pc.any(pc.match_substring(state.partition_table.labels, change.write_id)).as_py():
        return True
    return bool((state.partition_table.positions(change.added.labels) >= 0).all())


def _already_committed(blobs: BlobStore, base: BaseState) -> Result:
    """The state as loading it gives, secondary indices by key only."""
    state: Any = base.state
    if base.record is not None and base.record.unconfirmed:
        # ours, of which only the answer was lost, or one that is built on ours before this could confirm it
        _confirm(blobs, base, state, file_keys(state))
    state = _unload_indices(state, metadata=copy_json(state.metadata), extra=copy_json(state.extra))
    return state, CommitReceipt(base, base.header or b"", base.token, None, state)


def _unload_indices(state: DatasetMetadata, **changes: Any) -> DatasetMetadata:
    return state.copy(indices={c: i.unload() for c, i in state.secondary_indices.items()}, **changes)


# -- publication of a state ----------------------------------------------------------------------------------


def commit_state(
    blobs: BlobStore,
    base: BaseState,
    new: DatasetMetadata,
    files: Sequence[str],
    role: Role = None,
    info: history.OperationInfo | None = None,
    *,
    replaces: bool = False,
    hides: bool = False,
    is_repair: bool = False,
    statistics: pa.Table | None = None,
    source_header: bytes | None = None,
    source_schema: bytes | None = None,
) -> Result:
    """Put a state in place of its base; PreconditionFailed if another writer was faster."""
    # Statistics, if there are some, replace those of the state. A repair makes no new version, and the
    # damaged state is not archived. A copy has the version of its source, unless it replaces a state, and
    # its header and schema file byte by byte, unless they have to be others.
    snapshot: str | None = None
    put: bytes | None = None
    if isinstance(role, Decision):
        role.check(blobs, base)
    # also a damaged dataset, one of an aborted operation, or a reserved header
    replaces = replaces or (base.state is None and base.old is not None)
    try:
        new, written = _store_side_files(blobs, new, statistics)
        collections = _read_tombstones(blobs, base)
        tombstones = header_store.list_tombstoned_files({naming.TOMBSTONES_KEY: collections})
        needed = [*files, *written]
        is_unconfirmed = base.state is not None and not base.is_confirmed
        if base.aborted is not None or (is_unconfirmed and not replaces):
            # the first commit may have been killed before it could remove a header whose files are deleted
            needed = list(dict.fromkeys([*needed, *file_keys(new)]))
        if not is_repair:
            snapshot = _archive(blobs, base, new, role, tombstones)
        record, replaced = _next_record(base, new, role, snapshot), _replaced_state(base)
        if not is_repair and (source_header is None or replaced is not None):
            version = history.make_version(replaced, blobs, base.header_key, record.commit, info)
            record = attrs.evolve(record, version=version, hidden=hides)
        has_tombstones = collections != header_store.tombstone_entries(new.metadata)
        is_alone = base.old is None and not isinstance(role, Participation | Decision)
        header = source_header if not has_tombstones and is_alone else None
        if header is None:
            if source_header is not None:
                # staged writes to the replaced state, which must not be published again
                new = changes.with_staged_ids(new, changes.entries_of(replaced, changes.STAGED))
            new = _with_record(new, record, collections)
            header = header_store.render(new, base.header_key)
        # the schema file first: other software reads it, and must not find a header without it. It has the
        # schema of the state before as well, see kartothek_cube.core.schema
        put = put_schema(blobs, base, new, replaces, source_schema)
        # files that the header names have to be on disk before it, see BlobStore.flush
        blobs.flush(needed if snapshot is None else [*needed, snapshot])
        _check_files(blobs, base, new, needed, tombstones, replaces)
        # the content that the new header replaces, unless that is in the other format
        key = base.header_key
        old = base.old.content if base.old is not None and base.old.key == key else None
        token = header_store.compare_and_swap_header(blobs, base.uuid, key, header, old, base.token)
        if header is not source_header:
            dataset_files.cache_header(key, header, new)
        if base.old is None:
            _confirm(blobs, base, new, needed)
        if replaces:
            _drop_other_format(blobs, base, token)
    except errors.UnknownOutcomeError:
        # our header may be there, and needs the schema
        raise
    except Exception as error:
        # the next commit puts the right schema as well, so that a failure here costs nothing
        with suppress(Exception):
            restore_schema(blobs, base, put)
        if isinstance(error, PreconditionFailed | errors.ConcurrentWriteError):
            # garbage at worst, as indices are that were written, and the error says more
            with suppress(Exception):
                _delete_archived(blobs, base, snapshot)
        raise
    if base.aborted is not None:
        operation.forget_aborted(blobs, base.aborted)
    _expire_snapshots(blobs, base, new)
    before = snapshot if snapshot and isinstance(role, Participation) else ""
    final = source_header if source_header and base.state is None and not collections else b""
    return new, CommitReceipt(base, header, token, put, new, before, final)


def _store_side_files(
    blobs: BlobStore, new: DatasetMetadata, statistics: pa.Table | None
) -> tuple[DatasetMetadata, list[str]]:
    """Store the indices and statistics of a new state that are not stored; return the keys of the files."""
    unstored = [index for index in new.secondary_indices.values() if index.index_storage_key is None]
    written = [index.store_new(blobs, new.uuid) for index in unstored]
    if statistics is not None:
        name = pruning.store_statistics(blobs, new.uuid, statistics)
        new = new.copy(extra={**new.extra, pruning.STATISTICS: name})
        written.append(naming.statistics_key(new.uuid, name))
    return new, written


def _with_record(new: DatasetMetadata, record: CommitRecord, collections: dict[str, Any]) -> DatasetMetadata:
    """A new state with its commit record and the tombstones that it inherits."""
    # copies: users get this state, and that of the base is shared
    metadata = copy_json(header_store.inherit_tombstones(new.metadata, collections))
    return _unload_indices(
        new, metadata=metadata, extra=copy_json({**new.extra, COMMIT_RECORD: record.to_field()})
    )


def _check_files(
    blobs: BlobStore,
    base: BaseState,
    new: DatasetMetadata,
    needed: Sequence[str],
    tombstones: Set[str],
    replaces: bool,
) -> None:
    """Check that no collection has deleted, or is deleting, a file of a commit."""
    others = 0 if base.state is None else len(base.state.partition_table)
    # a dataset that was deleted, or had another table, may have left a schema that is collected now
    schema_files = [base.schema_key] if new.schema is not None and (replaces or base.old is None) else []
    # the schema of a first commit is confirmed after its header, where it can be put again
    names = tombstones - ({header_store.tombstone_name(base.schema_key)} if base.old is None else set())
    header_store.check_files(blobs, base.uuid, [*needed, *schema_files], names, others=others)


def _expire_snapshots(blobs: BlobStore, base: BaseState, new: DatasetMetadata) -> None:
    """Expire snapshots after a commit, unless the dataset never kept any."""
    retention = history.snapshot_retention(new.metadata)
    kept_some = base.state is not None and base.state.metadata.get(history.KEEP_HISTORY) != 0
    if retention or (retention == 0 and kept_some):
        history.expire_snapshots(base.uuid, blobs)


def _archive(
    blobs: BlobStore, base: BaseState, new: DatasetMetadata, role: Role, tombstones: Set[str]
) -> str | None:
    """Archive the replaced state, if its dataset keeps a history or readers may go back to it."""
    state, stored = _replaced_state(base), base.old
    if state is None or stored is None:
        return None
    if base.aborted is not None:
        stored = stored._replace(content=header_store.render(_unload_indices(state), stored.key))
    key = None
    if history.snapshot_retention(new.metadata) != 0:
        # The name depends on the state only, so that concurrent writers archive it once. A collection may be
        # about to delete what another writer has left there: then this state is not archived.
        name = history.snapshot_name(state, blobs, stored.key)
        key = None if name in tombstones else history.archive(blobs, state, stored, name)
    if key is None and isinstance(role, Participation) and base.state is not None:
        # the state that readers see until the operation commits. A name of its own: the deletion of a refused
        # attempt may arrive late
        key = history.archive(blobs, state, stored, gen_uuid() + history.BEFORE)
    return key


def _next_record(base: BaseState, new: DatasetMetadata, role: Role, snapshot: str | None) -> CommitRecord:
    """The record of a commit on top of a base."""
    commit_id, inherited, own = gen_uuid(), base.participation, parse_record(new.extra)
    # that in the header of the base may be inherited; `own` may be that of an older state, which a rollback
    # gives the schema of the base
    same = base.state if base.state is not None and new.schema is base.state.schema else None
    stored = None if same is None else parse_record(same.extra)
    old = base.record or CommitRecord("", lineage=gen_uuid(), interrupted=base.old is not None)
    record = CommitRecord(
        commit_id,
        (None if stored is None else stored.schema) or embed_schema(new.schema),
        unconfirmed=commit_id if base.old is None else None,
        lineage=old.lineage,
        interrupted=old.interrupted,
        participation=None if inherited is None else inherited.settle(),
        participants=old.participants,
        aborted=old.aborted,
        # of a copy, or a state that is restored
        version=None if own is None else own.version,
    )
    if isinstance(role, Participation):
        # a state that cannot be archived is replaced at once
        exists = base.state is not None or (base.old is not None and base.stored is None)
        previous = None if inherited is None else inherited.operation
        before = snapshot if exists else ""
        return attrs.evolve(record, participation=attrs.evolve(role, before=before, previous=previous))
    if isinstance(role, Decision):
        participants = {**record.participants, **dict.fromkeys(role.participants, role.operation)}
        return attrs.evolve(record, lineage=role.lineage, participants=participants)
    return record


def _read_tombstones(blobs: BlobStore, base: BaseState) -> dict[str, Any]:
    """The tombstones that a commit inherits and must not violate."""
    entries = {} if base.stored is None else header_store.tombstone_entries(base.stored.metadata)
    if base.old is None or base.is_confirmed:
        return entries
    # Tombstone files count until another commit is on top of the first header (`confirm_first_commit`). They
    # are listed before the commit looks for its files: what a collection has deleted that finished in between
    # is missing then.
    return {**header_store.list_tombstone_files(blobs, base.uuid), **entries}


def _confirm(blobs: BlobStore, base: BaseState, new: DatasetMetadata, files: Sequence[str]) -> None:
    """Check the files and the schema file of a first commit against collections that met no header."""
    record = parse_record(new.extra)
    commit_id = "" if record is None else record.unconfirmed or record.commit
    names = header_store.confirm_first_commit(blobs, base.uuid, base.header_key, files, commit_id)
    put_schema_again(blobs, base, new, names)


def _drop_other_format(blobs: BlobStore, base: BaseState, token: Any) -> None:
    """Delete the header in the other format, which would shadow or outlive the new one."""
    other = header_store.other_header_key(base.uuid, base.header_key)
    # JSON wins over msgpack: a new JSON header is the state at once, and a leftover does no harm to readers
    if base.old is None or base.old.key != other or base.header_key.endswith(".json"):
        try:
            header_store.delete_header(blobs, other)
        except Exception as error:
            _LOGGER.warning("An outdated header of dataset %s is left: %s", base.uuid, error)
        return
    # a new msgpack header is the state once that in JSON is deleted, if it is still the one that was read
    try:
        blobs.delete_if(other, base.old.token)
    except Exception:
        if not blobs.exists(other):
            # only the answer was lost
            return
        # our deletion finds what it expects, since readers and writers take the header in JSON
        blobs.delete_if(base.header_key, token)
        raise


def _replaced_state(base: BaseState) -> DatasetMetadata | None:
    """The state that a commit replaces, also that of a hidden dataset."""
    if base.state is None and base.aborted is None and base.record is not None and base.record.hidden:
        return base.stored
    return base.state


def _delete_archived(blobs: BlobStore, base: BaseState, snapshot: str | None) -> None:
    """Delete what a refused commit has archived, unless readers can use it."""
    if snapshot and not history.is_before_key(snapshot) and _is_deleted(blobs, base):
        # Listed before the snapshot was there: a new dataset of that name would take it for its own, and the
        # history would have a state without its files.
        blobs.delete([snapshot])
    operation.delete_before(blobs, snapshot)


def _is_deleted(blobs: BlobStore, base: BaseState) -> bool:
    """Whether the state that a refused commit replaces is gone: its dataset, or files that only it has."""
    try:
        newest = DatasetMetadata.load_from_store(base.uuid, blobs, load_schema=False)
    except errors.DatasetNotFoundError:
        return True
    state, kept = _replaced_state(base), set(dataset_files.referenced_keys(newest))
    files = [] if state is None else [key for key in file_keys(state) if key not in kept]
    return bool(header_store.missing_files(blobs, base.uuid, files, others=len(kept)))


# -- indices and schema -------------------------------------------------------------------------------------


def put_schema(
    blobs: BlobStore, base: BaseState, new: DatasetMetadata, replaces: bool, content: bytes | None
) -> bytes | None:
    """Write the schema file of a new state unless the stored one holds its schema; return what was put."""
    if new.schema is None:
        return None
    try:
        old = None if base.schema is None else schemas.schema_file_from_bytes(base.schema, base.schema_key)
    except errors.CorruptDatasetError:
        # damaged, or left by a dataset that is replaced now; the state has its schema from its header
        old = None
    version = schemas.schema_version_of(new.metadata)
    # a first commit always writes the file: a collection may be about to delete the stored one
    same = base.old is not None and old is not None and old.schema.equals(new.schema, check_metadata=replaces)
    # a file of another version may be that of a commit which is about to fail and to restore the one before
    if same and old is not None and old.has(version) and old.of(version).equals(new.schema):
        return None
    if content is None or base.state is not None:
        # old and new schema in one file: until the header follows, each header finds its own in it
        replaced = None
        if base.state is not None and base.state.schema is not None:
            replaced = base.state.schema, base.state.metadata
        content = schemas.render_schema_file(new.schema, new.metadata, replaced)
    try:
        schema_file = base.uuid, base.schema_key, content, base.schema, base.schema_token
        header_store.compare_and_swap_header(blobs, *schema_file)
    except errors.UnknownOutcomeError as error:
        # nothing is unknown: the header is not put yet
        raise error.__cause__ or error from None
    return content


def restore_schema(blobs: BlobStore, base: BaseState, put: bytes | None) -> None:
    """Put the schema file from before the commit again, unless another writer has put one since."""
    if put is None:
        return
    content, token = header_store.read_versioned(blobs, base.schema_key)
    if content != put:
        return
    restored = base.schema
    if restored is None and base.state is not None and base.state.schema is not None:
        restored = schemas.render_schema_file(base.state.schema, base.state.metadata)
    # a new file stays: it may be that of another writer, with the same content, and is garbage at worst
    if restored is not None:
        with suppress(PreconditionFailed):
            blobs.put_if(base.schema_key, restored, token)


def put_schema_again(blobs: BlobStore, base: BaseState, new: DatasetMetadata, tombstoned: Set[str]) -> None:
    """Write the schema file of a first commit again if a collection is deleting it, or has deleted it."""
    if new.schema is None:
        return
    name = header_store.tombstone_name(base.schema_key)
    try:
        for attempt in header_store.attempts():
            content, token = header_store.read_versioned(blobs, base.schema_key)
            # after a refused put: the collection deleted the file, or another commit put a newer one
            if content is not None and (attempt or name not in tombstoned):
                return
            # another version than the collection has read, so that its deletion by condition fails
            file = schemas.render_schema_file(new.schema, new.metadata)
            with suppress(PreconditionFailed):
                blobs.put_if(base.schema_key, file, token)
                return
    except Exception as error:
        # the header holds the schema, too, and the next commit or repair puts the file again
        _LOGGER.warning("The schema file of dataset %s may be missing: %s", base.uuid, error)
