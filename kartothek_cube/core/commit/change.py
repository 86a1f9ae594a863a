"""A change of a dataset as data: the updates, and the requirements that the newest state has to meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import Mask
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.errors import ConcurrentWriteError, DatasetExistsError, DatasetNotFoundError
from kartothek_cube.core.history import OperationInfo
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.naming import SINGLE_TABLE
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.evolution import SchemaUpdate
from kartothek_cube.core.schema.wrapper import SchemaWrapper

__all__ = (
    "ChangeSet",
    "DatasetAbsent",
    "DatasetPresent",
    "IndexUpdate",
    "InputsPresent",
    "MissingIndexEntries",
    "NoUnseenPartitions",
    "Predicates",
    "Requirement",
    "SamePartitionKeys",
    "WriteMode",
)

Predicates = list[list[tuple[str, str, Any]]]
MetadataMerger = Callable[[list[dict[str, Any]]], dict[str, Any]]


class WriteMode(Enum):
    """What a change does with the state that it meets."""

    #: the dataset must not exist
    CREATE = "create"
    #: the old state, if any, is replaced as a whole
    REPLACE = "replace"
    #: the dataset must exist
    UPDATE = "update"
    #: updated if it exists, else created
    UPSERT = "upsert"

    @property
    def is_create(self) -> bool:
        """Whether the dataset must not exist."""
        return self is WriteMode.CREATE


@attrs.frozen
class IndexUpdate:
    """Index entries of one column, and the labels of the partitions that they cover."""

    entries: IndexColumns
    covered: pa.StringArray


class MissingIndexEntries(Exception):
    """Internal: the state has an index for which the change brings no entries."""

    def __init__(self, column: str, labels: pa.StringArray) -> None:
        super().__init__(column)
        self.column = column
        self.labels = labels


@attrs.frozen
class ChangeSet:
    """Updates of one dataset, with the requirements under which they may be committed."""

    uuid: str
    table: str = SINGLE_TABLE
    mode: WriteMode = WriteMode.UPDATE
    #: new partitions; their data files are stored already
    added: PartitionTable = attrs.field(factory=PartitionTable.empty)
    #: partitions to remove, as a predicate on indexed columns; None for none, ``[]`` for all
    remove_where: Predicates | None = None
    #: labels of the partitions that the added ones replace (compaction)
    replaces: pa.StringArray | None = None
    #: for each added partition the replaced label whose place in the order of commit it takes; None: the end
    replaces_at: pa.StringArray | None = None
    #: schema of the added partitions
    schema: SchemaWrapper | None = None
    #: partition keys of a new dataset; an existing one must have the same, unless None
    partition_keys: tuple[str, ...] | None = None
    #: whether the added partitions may have other columns than the state; files then lack some
    merge_schema: bool = False
    #: changes of the schema, and columns that it must not change, with the reason
    schema_update: SchemaUpdate | None = None
    fixed_columns: Mapping[str, str] = attrs.field(factory=dict)
    #: index entries of the added partitions. A new dataset gets exactly these indices; an update ignores
    #: columns without an index that are not in `new_indices`, unless its header lists no partitions
    indices: Mapping[str, IndexUpdate] = attrs.field(factory=dict)
    #: columns of `indices` whose index is added or rebuilt; their entries cover all partitions
    new_indices: frozenset[str] = frozenset()
    #: user metadata to set; by default its keys replace stored ones
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    merge_metadata: MetadataMerger | None = None
    #: format of the header of a new dataset
    storage_format: str = "json"
    #: whether the header of a new dataset lists its partitions
    explicit: bool = True
    #: stream and number of its batch; not newer than the last committed one: nothing changes
    batch: tuple[str, int] | None = None
    #: part of all file names of this write, of all attempts of its tasks. If the newest state has such files,
    #: the write is committed already and nothing changes. Empty if tasks run only once
    write_id: str = ""
    #: what the history tells of the operation
    info: OperationInfo | None = None
    #: requirements beside those that follow from the fields above
    requires: tuple[Requirement, ...] = ()

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """All requirements, in the order in which they are checked."""
        if self.mode is WriteMode.REPLACE:
            return self.requires
        implied: list[Requirement] = []
        if self.mode.is_create:
            implied.append(DatasetAbsent())
        if self.mode is WriteMode.UPDATE:
            implied.append(DatasetPresent())
        if self.partition_keys is not None:
            implied.append(SamePartitionKeys(self.partition_keys))
        implied.extend(self.requires)
        if self.replaces is not None:
            implied.append(InputsPresent(self.replaces))
        return tuple(implied)

    def removal_mask(self, state: DatasetMetadata) -> Mask:
        """Mask of the partitions of a state that `remove_where` selects, without the added ones."""
        mask = np.zeros(len(state.partition_table), dtype=bool)
        if self.remove_where is not None:
            mask[select_partitions(state, self.remove_where or None)] = True
            own = state.partition_table.positions(self.added.labels)
            mask[own[own >= 0]] = False
        return mask


class Requirement(Protocol):
    """What a change requires of the newest state."""

    def check(self, state: DatasetMetadata | None, change: ChangeSet) -> None:
        """Raise if the state does not meet the requirement; None is the state of an absent dataset."""


@attrs.frozen
class DatasetAbsent:
    """The dataset does not exist."""

    def check(self, state: DatasetMetadata | None, change: ChangeSet) -> None:
        """Raise DatasetExistsError if it does."""
        if state is not None:
            raise DatasetExistsError(change.uuid)


@attrs.frozen
class DatasetPresent:
    """The dataset exists."""

    def check(self, state: DatasetMetadata | None, change: ChangeSet) -> None:
        """Raise DatasetNotFoundError if it does not."""
        if state is None:
            raise DatasetNotFoundError(change.uuid)


@attrs.frozen
class SamePartitionKeys:
    """An existing dataset has these partition keys."""

    partition_keys: tuple[str, ...]

    def check(self, state: DatasetMetadata | None, change: ChangeSet) -> None:
        """Raise ValueError if it has others."""
        if state is not None and list(self.partition_keys) != list(state.partition_keys or []):
            raise ValueError(
                f"Incompatible set of partition keys for dataset {change.uuid}: it is partitioned by "
                f"{list(state.partition_keys or [])}, but {list(self.partition_keys)} was given"
            )


@attrs.frozen
class NoUnseenPartitions:
    """The change removes no other partitions than those that its predicate selected when it was planned."""

    labels: pa.StringArray

    def check(self, state: DatasetMetadata | None, change: ChangeSet) -> None:
        """Raise ConcurrentWriteError if another writer has added one since."""
        if state is None or change.remove_where is None:
            return
        unseen = change.removal_mask(state)
        seen = state.partition_table.positions(self.labels)
        unseen[seen[seen >= 0]] = False
        if unseen.any():
            raise ConcurrentWriteError(
                change.uuid, state.partition_table.labels.filter(pa.array(unseen)).to_pylist()
            )


@attrs.frozen
class InputsPresent:
    """The partitions that the added ones were made of are still there."""

    labels: pa.StringArray

    def check(self, state: DatasetMetadata | None, change: ChangeSet) -> None:
        """Raise ConcurrentWriteError if one was replaced or removed."""
        if state is None:
            return
        absent = state.partition_table.positions(self.labels) < 0
        if absent.any():
            raise ConcurrentWriteError(
                change.uuid,
                self.labels.filter(pa.array(absent)).to_pylist(),
                "They were replaced or removed since this operation read them. Repeat it.",
            )
