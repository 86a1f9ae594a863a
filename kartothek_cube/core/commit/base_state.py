"""The state that a commit is built on, as it was read from the store, and the receipt of a commit."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import numpy as np

from kartothek_cube.core.commit.change import ChangeSet, WriteMode
from kartothek_cube.core.commit.header_store import check_one_header, header_format, read_versioned
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.loading import HeaderBlob
from kartothek_cube.core.errors import CorruptDatasetError, DatasetNotFoundError
from kartothek_cube.core.header.commit_record import CommitRecord, parse_record
from kartothek_cube.core.naming import metadata_key_from_uuid, schema_key
from kartothek_cube.core.store import BlobStore

__all__ = (
    "BaseState",
    "CommitReceipt",
    "load_base",
    "pending_operation",
    "read_base",
    "read_replaced_base",
)


@attrs.frozen
class CommitReceipt:
    """What a commit put in place of what: enough to undo it."""

    uuid: str
    header_key: str
    header: bytes
    token: Any
    old_header: bytes | None
    schema_key: str
    schema: bytes | None
    old_schema: bytes | None
    state: DatasetMetadata
    old_state: DatasetMetadata | None


@attrs.frozen
class BaseState:
    """The newest state of a dataset and how it is stored."""

    uuid: str
    table: str
    #: key of the new header, and the version of the blob at it
    header_key: str
    token: Any
    #: the stored header; None if there is none
    old: HeaderBlob | None
    #: its state; None if there is none, or none that can be read
    state: DatasetMetadata | None
    #: content and version of the schema file
    schema: bytes | None
    schema_token: Any

    @property
    def header(self) -> bytes | None:
        """Content of the stored header."""
        return None if self.old is None else self.old.content

    @property
    def header_at_key(self) -> bytes | None:
        """Content of the stored header if the new one takes its place; None if it is in the other format."""
        return self.header if self.old is not None and self.old.key == self.header_key else None

    @property
    def schema_key(self) -> str:
        """Key of the schema file."""
        return schema_key(self.uuid, self.table)

    @property
    def record(self) -> CommitRecord | None:
        """The commit record of the state; None if it has none."""
        return None if self.state is None else parse_record(self.state.extra)

    @property
    def is_confirmed(self) -> bool:
        """Whether the header holds the tombstones of all collections that may concern this dataset."""
        return self.state is not None and (self.record is None or self.record.unconfirmed is None)

    def receipt(self, header: bytes, token: Any, schema: bytes | None, new: DatasetMetadata) -> CommitReceipt:
        """The receipt of a commit on top of this state."""
        return CommitReceipt(
            self.uuid,
            self.header_key,
            header,
            token,
            self.header,
            self.schema_key,
            schema,
            self.schema,
            new,
            self.state,
        )


def pending_operation(state: DatasetMetadata) -> str | None:
    """Id of the operation on several datasets that has created this one and not finished."""
    record = parse_record(state.extra)
    return None if record is None else record.pending


def load_base(blobs: BlobStore, change: ChangeSet) -> BaseState:
    """The newest state with the indices that a change touches."""
    new_key = metadata_key_from_uuid(change.uuid, change.storage_format)
    if change.mode is WriteMode.REPLACE:
        return read_replaced_base(blobs, change.uuid, change.table, new_key)
    base = None
    with suppress(DatasetNotFoundError):
        base = read_base(blobs, change.uuid, change.table)
    if base is None:
        schema = read_versioned(blobs, schema_key(change.uuid, change.table))
        return BaseState(change.uuid, change.table, new_key, None, None, None, *schema)
    if change.mode.is_create:
        return base
    check_one_header(blobs, change.uuid, base.header_key)
    return attrs.evolve(base, state=_load_indices(blobs, base.state, change))


def read_base(blobs: BlobStore, uuid: str, table: str) -> BaseState:
    """Read a dataset in order to change it; DatasetNotFoundError if it does not exist."""
    # the schema before its header: a schema file that is newer than the header still knows its schema
    schema, schema_token = read_versioned(blobs, schema_key(uuid, table))
    state, key, token, header = DatasetMetadata.load_with_token(uuid, blobs)
    stored = HeaderBlob(key, header, header_format(key), token)
    return BaseState(uuid, table, key, token, stored, state, schema, schema_token)


def read_replaced_base(blobs: BlobStore, uuid: str, table: str, header_key: str) -> BaseState:
    """Read a dataset, which may be absent or damaged, in order to put another header at a given key."""
    schema = read_versioned(blobs, schema_key(uuid, table))
    try:
        base = read_base(blobs, uuid, table)
    except DatasetNotFoundError:
        return BaseState(uuid, table, header_key, None, None, None, *schema)
    except (CorruptDatasetError, KeyError, NotImplementedError):
        # overwriting is how a user repairs a damaged dataset, or one of a version that cannot be read
        content, token = read_versioned(blobs, header_key)
        old = None
        if content is not None:
            old = HeaderBlob(header_key, content, header_format(header_key), token)
        return BaseState(uuid, table, header_key, token, old, None, *schema)
    if base.header_key == header_key:
        return base
    return attrs.evolve(base, header_key=header_key, token=read_versioned(blobs, header_key)[1])


def _load_indices(blobs: BlobStore, state: Any, change: ChangeSet) -> DatasetMetadata:
    if not state.explicit_partitions:
        # the partitions were found by a listing, which shows the files of this very change already
        own = state.partition_table.positions(change.added.labels)
        others = np.ones(len(state.partition_table), dtype=bool)
        others[own[own >= 0]] = False
        state = state.copy(partitions=state.partition_table.filter(others))
    touched = set(state.secondary_indices) - change.new_indices
    if not len(change.added) and change.remove_where is None and change.replaces is None:
        touched = set()
    predicate_columns = {literal[0] for conjunction in change.remove_where or () for literal in conjunction}
    loaded: DatasetMetadata = state.load_indices(touched | predicate_columns, blobs)
    return loaded
