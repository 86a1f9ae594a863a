"""Change sets, the state they are applied to, and the receipts of published commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs
import pyarrow as pa

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.loading import HeaderBlob
from kartothek_cube.core.header.commit_record import CommitRecord, parse_record
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.naming import SINGLE_TABLE, schema_key
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.wrapper import SchemaWrapper

__all__ = (
    "BaseState",
    "ChangeSet",
    "CommitReceipt",
    "IndexUpdate",
    "MissingIndexEntries",
    "Predicates",
)

Predicates = list[list[tuple[str, str, Any]]]


@attrs.frozen
class IndexUpdate:
    """Index entries of one column, and the labels of the partitions they cover."""

    entries: IndexColumns
    covered: pa.StringArray


@attrs.frozen
class ChangeSet:
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
        Labels that the scope matched when the operation was planned; None if nothing is assumed. If the
        newest state has others in the scope, somebody wrote there meanwhile.
    inputs
        Labels of partitions that the added ones stand for. They go; all of them have to be there.
    places
        For each added partition the label of one of the inputs, whose place in the order of commit it takes;
        None to add at the end.
    schema
        Schema of the added partitions.
    partition_keys
        Partition keys, for a dataset that is created; checked otherwise, unless None.
    indices
        Index entries of the added partitions, by column; on creation these are all indices, on update other
        columns than the indexed ones are ignored unless named in ``new_indices``. Where the header did not
        list the partitions so far, any column of them gets an index.
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
        state has such files, the write was committed before, maybe with the files of other attempts, and
        nothing changes. Empty if tasks run only once.
    pending
        Id of the operation on several datasets that creates this one, if others follow.
    replace_pending
        Whether a dataset that such an operation has left behind counts as absent when one is created.
    """

    uuid: str
    table: str = SINGLE_TABLE
    mode: Literal["create", "replace", "update", "upsert"] = "update"
    added: PartitionTable = attrs.field(factory=PartitionTable.empty)
    scope: Predicates | None = None
    expected: pa.StringArray | None = None
    inputs: pa.StringArray | None = None
    places: pa.StringArray | None = None
    schema: SchemaWrapper | None = None
    partition_keys: tuple[str, ...] | None = None
    indices: Mapping[str, IndexUpdate] = attrs.field(factory=dict)
    new_indices: frozenset[str] = frozenset()
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    merge_metadata: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None
    storage_format: str = "json"
    explicit: bool = True
    batch: tuple[str, int] | None = None
    write_id: str = ""
    pending: str = ""
    replace_pending: bool = False


@attrs.frozen
class CommitReceipt:
    """Old and new header and schema of a published commit: enough to undo it."""

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


class MissingIndexEntries(Exception):
    """Internal: the state has an index without entries in the change set."""

    def __init__(self, column: str, labels: pa.StringArray) -> None:
        super().__init__(column)
        self.column = column
        self.labels = labels


@attrs.frozen
class BaseState:
    """Newest state of a dataset and its blobs: what a change set is applied to."""

    uuid: str
    table: str
    #: key of the new header, and the version of the blob there
    header_key: str
    token: Any
    #: stored header, possibly at another key (format)
    old: HeaderBlob | None
    #: None if the dataset is absent or unreadable
    state: DatasetMetadata | None
    #: content and version of the schema file
    schema: bytes | None
    schema_token: Any

    @property
    def header(self) -> bytes | None:
        """Content of the stored header."""
        return None if self.old is None else self.old.content

    @property
    def schema_key(self) -> str:
        """Storage key of the schema file."""
        return schema_key(self.uuid, self.table)

    @property
    def record(self) -> CommitRecord | None:
        """Commit record of the state; None if there is none."""
        return None if self.state is None else parse_record(self.state.extra)

    @property
    def is_confirmed(self) -> bool:
        """Whether the header has the tombstones of all garbage collections of this dataset."""
        return self.state is not None and (self.record is None or self.record.unconfirmed is None)

    def published(
        self, header: bytes, token: Any, schema: bytes | None, new: DatasetMetadata
    ) -> CommitReceipt:
        """Receipt of a commit on top of this state."""
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
