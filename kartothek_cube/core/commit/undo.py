"""Undo of a commit, also below later commits of other writers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs
import numpy as np

from kartothek_cube.core.commit.change import WriteMode
from kartothek_cube.core.commit.header_store import (
    BaseState,
    CommitReceipt,
    attempts,
    read_base,
    restore_if_ours,
    retry_request,
)
from kartothek_cube.core.commit.operation import delete_before, forget_aborted, settle, settle_participation
from kartothek_cube.core.commit.optimistic import commit_state
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.metadata import file_keys
from kartothek_cube.core.errors import ConcurrentWriteError, CorruptDatasetError, DatasetNotFoundError
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.naming import TOMBSTONES_KEY
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.evolution import Widths, evolution_metadata, with_widths
from kartothek_cube.core.schema.file import schema_version_of
from kartothek_cube.core.store import BlobStore, PreconditionFailed

_LOGGER = logging.getLogger(__name__)


def rollback(blobs: BlobStore, receipt: CommitReceipt) -> None:
    """Undo a commit; later commits of other writers stay. Its files become garbage."""
    if receipt.header == receipt.base.header:
        return None
    base = receipt.base
    # A header of an aborted operation is not put back: nothing tells any more that it was aborted, and what
    # the state before was. Else False if the header is no longer that of the commit.
    if base.aborted is None and retry_request(
        lambda: restore_if_ours(blobs, base.header_key, receipt.header, base.header, delete=True)
    ):
        retry_request(lambda: restore_if_ours(blobs, base.schema_key, receipt.schema, base.schema))
        return None
    for _ in attempts():
        try:
            return retry_request(lambda: _invert_newest(blobs, receipt))
        except PreconditionFailed:
            # another commit came in between
            continue
    raise ConcurrentWriteError(base.uuid)


def _invert_newest(blobs: BlobStore, receipt: CommitReceipt) -> None:
    old = receipt.base.state
    try:
        base = read_base(blobs, receipt.base.uuid, receipt.state.table_name)
    except DatasetNotFoundError:
        return
    state: Any = base.state
    if receipt.operation and base.record is not None and not _takes_part(base, receipt.operation):
        # another writer has aborted the operation, and gone back to the state before it
        return
    if old is not None and state == old:
        return
    base = attrs.evolve(base, participation=settle_participation(old))
    new = invert(state, old, receipt.state, blobs)
    if old is None and not len(new.partition_table):
        # nothing of other writers is in it but tombstones
        blobs.delete_if(base.header_key, base.token)
        return
    commit_state(blobs, base, new, file_keys(new))


def finish_operation(blobs: BlobStore, uuid: str) -> bool:
    """Restore the state before an operation whose writer was killed; False if there is none."""
    # A slow writer whose operation is aborted here by mistake begins again.
    for _ in attempts():
        try:
            base = settle(blobs, lambda: read_base(blobs, uuid, _table(blobs, uuid)))
        except DatasetNotFoundError:
            return False
        except CorruptDatasetError:
            # a damaged dataset, or its archived state is gone: verification tells
            return False
        if base.aborted is None:
            return False
        with suppress(PreconditionFailed):
            if base.state is None:
                blobs.delete_if(base.header_key, base.token)
                forget_aborted(blobs, base.aborted)
            else:
                files = file_keys(base.state)
                commit_state(blobs, base, base.state, files, mode=WriteMode.REPLACE, is_repair=True)
            return True
    raise ConcurrentWriteError(uuid)


def _table(blobs: BlobStore, uuid: str) -> str:
    return DatasetMetadata.load_from_store(uuid, blobs, load_schema=False).table_name


def _takes_part(base: BaseState, operation: str) -> bool:
    return base.participation is not None and base.participation.operation == operation


def undo_all(blobs: BlobStore, receipts: Sequence[CommitReceipt]) -> bool:
    """Undo the commits of an operation, the last one first; return whether all could be undone."""
    # The failure that made this necessary is the one to raise, so that another one here is only logged.
    complete = True
    for receipt in reversed(receipts):
        try:
            rollback(blobs, receipt)
            delete_before(blobs, receipt.before)
        except Exception as error:
            complete = False
            _LOGGER.error("A commit to dataset %s could not be taken back: %s", receipt.base.uuid, error)
    return complete


def invert(
    state: DatasetMetadata, old: DatasetMetadata | None, new: DatasetMetadata, blobs: BlobStore
) -> DatasetMetadata:
    """The newest state without one of the commits that led to it; changed indices have no key yet."""
    before = PartitionTable.empty((new.table_name,)) if old is None else old.partition_table
    added = _without(new.partition_table, before)
    removed = _without(before, new.partition_table)
    later = _without(_without(state.partition_table, added), before)
    metadata = _invert_metadata(state, old, new)
    same_schema = schema_version_of(state.metadata) == schema_version_of(new.metadata)
    if not same_schema:
        # a later update of the schema stays, with the columns that were added or dropped
        metadata = {**metadata, **evolution_metadata(state.metadata)}
    if old is not None and same_schema and state.partition_table == new.partition_table:
        unloaded = {
            c: index.unload() for c, index in old.secondary_indices.items() if index.index_storage_key
        }
        return old.copy(
            metadata=metadata, indices=unloaded, extra=with_widths(state.extra, old.schema, old.widths)
        )
    if len(_without(added, state.partition_table)) or (len(later) and not _same_layout(state, old, new)):
        raise ConcurrentWriteError(
            state.uuid,
            added.labels.to_pylist(),
            "A part of an operation could not be taken back: other writers have replaced the partitions that "
            "it added, or added some to a dataset that it replaced. Look at the newest state, and repeat the "
            "operation if it is still wanted.",
        )
    # what the old state had comes first, in its order: later partitions hide the cells of earlier ones
    restored = (before.positions(state.partition_table.labels), before.positions(removed.labels))
    kept = np.sort(np.concatenate([positions[positions >= 0] for positions in restored]))
    table = before.take(kept)
    table = table.concat(later) if len(table) and len(later) else (table if len(table) else later)
    indices = _invert_indices(state, old, added, removed, blobs)
    schema = old.schema if old is not None and state.schema == new.schema else state.schema
    extra = with_widths(state.extra, schema, _widest_of_both(state, state if old is None else old))
    return state.copy(partitions=table, metadata=metadata, indices=indices, schema=schema, extra=extra)


def _widest_of_both(state: DatasetMetadata, old: DatasetMetadata) -> Widths | None:
    """The bits of the columns that are narrow in the files of both states; None if that is not known."""
    widths, others = state.widths, old.widths
    if widths is None or others is None:
        return None
    return {name: max(bits, others[name]) for name, bits in widths.items() if name in others}


def _without(table: PartitionTable, other: PartitionTable) -> PartitionTable:
    """The partitions of one table whose labels another one does not have."""
    return table.filter(other.positions(table.labels) < 0) if len(table) else table


def _same_layout(state: DatasetMetadata, old: DatasetMetadata | None, new: DatasetMetadata) -> bool:
    """Whether partitions that were added to the new state fit the old one as well."""
    if old is None:
        return True
    same = list(old.partition_keys) == list(new.partition_keys) and set(old.indices) == set(new.indices)
    return same and (old.schema is None or new.schema is None or old.schema.equals(new.schema))


def _invert_metadata(
    state: DatasetMetadata, old: DatasetMetadata | None, new: DatasetMetadata
) -> dict[str, Any]:
    """The metadata of the newest state; keys that still have the value of the commit get their old one."""
    if old is None:
        return dict(state.metadata)
    result = dict(state.metadata)
    for key in (set(old.metadata) | set(new.metadata)) - {TOMBSTONES_KEY}:
        changed = old.metadata.get(key) != new.metadata.get(key)
        if changed and state.metadata.get(key) == new.metadata.get(key):
            if key in old.metadata:
                result[key] = old.metadata[key]
            else:
                result.pop(key, None)
    return result


def _invert_indices(
    state: DatasetMetadata,
    old: DatasetMetadata | None,
    added: PartitionTable,
    removed: PartitionTable,
    blobs: BlobStore,
) -> dict[str, ExplicitSecondaryIndex]:
    indices = {}
    for column, index in state.secondary_indices.items():
        loaded = index.load(blobs).remove_partitions(added.labels.to_pylist())
        if len(removed) and old is not None:
            if column not in old.secondary_indices:
                # it would have no entries of the partitions that are restored
                continue
            past = old.secondary_indices[column].load(blobs)
            columns = past.columns_data
            if columns is not None:
                entries = columns.keep_labels(removed.labels)
                loaded = loaded.update(ExplicitSecondaryIndex(column, entries, dtype=past.dtype))
        indices[column] = loaded
    return indices
