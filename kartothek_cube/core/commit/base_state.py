"""The state that a commit is built on, as it was read from the store, and the receipt of a commit."""

from __future__ import annotations

from typing import Any

import attrs

from kartothek_cube.core.commit.header_store import header_format, read_versioned
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.loading import HeaderBlob, read_header
from kartothek_cube.core.errors import CorruptDatasetError, DatasetNotFoundError
from kartothek_cube.core.header import CommitRecord, Participation, parse_record
from kartothek_cube.core.naming import schema_key
from kartothek_cube.core.store import BlobStore

__all__ = (
    "BaseState",
    "CommitReceipt",
    "read_base",
    "read_optional_base",
    "read_replaced_base",
)


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
    #: the state to build on: that of the stored header, or the one before an aborted operation; None if there
    #: is none, or none that can be read
    state: DatasetMetadata | None
    #: content and version of the schema file
    schema: bytes | None
    schema_token: Any
    #: what the stored header says, whatever the state to build on
    stored: DatasetMetadata | None = None
    #: the participation that a new header inherits
    participation: Participation | None = None
    #: that in an aborted operation, if the state to build on is the one before it
    aborted: Participation | None = None

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
        """The commit record of the stored header; None if it has none."""
        return None if self.stored is None else parse_record(self.stored.extra)

    @property
    def is_confirmed(self) -> bool:
        """Whether the header holds the tombstones of all collections that may concern this dataset."""
        return self.state is not None and (self.record is None or self.record.unconfirmed is None)


@attrs.frozen
class CommitReceipt:
    """What a commit put in place of what: enough to undo it."""

    base: BaseState
    #: content and version of the new header
    header: bytes
    token: Any
    #: content of the schema file, if the commit wrote it
    schema: bytes | None
    state: DatasetMetadata
    #: key of the archived state before, if the commit is part of an operation on several datasets
    before: str = ""
    #: id of that operation
    operation: str = ""


def read_base(blobs: BlobStore, uuid: str, table: str) -> BaseState:
    """Read a dataset in order to change it; DatasetNotFoundError if it does not exist."""
    base = read_optional_base(blobs, uuid, table, "")
    if base.state is None:
        raise DatasetNotFoundError(uuid)
    return base


def read_optional_base(blobs: BlobStore, uuid: str, table: str, header_key: str) -> BaseState:
    """Read a dataset, which may be absent, in order to change it or to put a first header at a given key."""
    # the schema before its header: a schema file that is newer than the header still knows its schema
    schema = read_versioned(blobs, schema_key(uuid, table))
    try:
        old = read_header(uuid, blobs, with_token=True)
    except DatasetNotFoundError:
        return BaseState(uuid, table, header_key, None, None, None, *schema)
    stored = DatasetMetadata.load_from_header(old, uuid, blobs)
    record = parse_record(stored.extra)
    if record is not None and record.reserved:
        # no dataset, but the first header takes the place of this one
        return BaseState(uuid, table, old.key, old.token, old, None, *schema, stored)
    stored = DatasetMetadata.load_from_header(old, uuid, blobs, load_schema=True)
    participation = None if record is None else record.participation
    return BaseState(uuid, table, old.key, old.token, old, stored, *schema, stored, participation)


def read_replaced_base(blobs: BlobStore, uuid: str, table: str, header_key: str) -> BaseState:
    """Read a dataset, which may be absent or damaged, in order to put another header at a given key."""
    try:
        base = read_optional_base(blobs, uuid, table, header_key)
    except (CorruptDatasetError, KeyError, NotImplementedError):
        # overwriting is how a user repairs a damaged dataset, or one of a version that cannot be read
        schema = read_versioned(blobs, schema_key(uuid, table))
        content, token = read_versioned(blobs, header_key)
        old = None
        if content is not None:
            old = HeaderBlob(header_key, content, header_format(header_key), token)
        return BaseState(uuid, table, header_key, token, old, None, *schema)
    if base.header_key == header_key:
        return base
    return attrs.evolve(base, header_key=header_key, token=read_versioned(blobs, header_key)[1])
