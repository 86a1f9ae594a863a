"""A change of a dataset as data: updates, requirements on the newest state, and the state after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from enum import Enum
from functools import reduce
from typing import Any, Protocol, Self

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import clock, dataset_files, errors, evolution, expressions, history, naming, pruning
from kartothek_cube.core.arrow import Mask, common_type, has_far_times, to_numpy
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable, partition_folders
from kartothek_cube.core.schema import SchemaWrapper

MetadataMerger = Callable[[list[dict[str, Any]]], dict[str, Any]]


class WriteMode(Enum):
    """Effect of a change on the state that it meets."""

    #: the dataset must not exist
    CREATE = "create"
    #: the old state, if any, is replaced as a whole
    REPLACE = "replace"
    #: the dataset must exist
    UPDATE = "update"
    #: updated if it exists, else created
    UPSERT = "upsert"


@attrs.frozen
class IndexUpdate:
    """Index entries of one column, and the labels of the partitions that they cover."""

    entries: IndexColumns
    covered: pa.StringArray

    @classmethod
    def empty(cls, dtype: pa.DataType, file_type: pa.DataType | None = None) -> IndexUpdate:
        """An update without entries and partitions."""
        return cls(IndexColumns.empty(dtype, file_type), pa.array([], pa.string()))

    @classmethod
    def merge(cls, updates: Sequence[IndexUpdate]) -> IndexUpdate:
        """Merge at least one update; those of partitions without values may be of type null."""
        dtype = reduce(common_type, [update.entries.values.type for update in updates])
        entries = IndexColumns.merge([update.entries for update in updates], dtype)
        return cls(entries, pa.concat_arrays([update.covered for update in updates]))


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
    table: str = naming.SINGLE_TABLE
    mode: WriteMode = WriteMode.UPDATE
    #: new partitions; their data files are stored already
    added: PartitionTable = attrs.field(factory=PartitionTable.empty)
    #: partitions to remove, by indexed columns; None for none
    remove_where: expressions.Node | None = None
    #: whether partitions that have the key values of added ones are removed as well
    overwrites_partitions: bool = False
    #: labels of the partitions that the added ones replace (compaction)
    replaces: pa.StringArray | None = None
    #: for each added partition the replaced label whose place in the order of commit it takes; None: the end
    replaces_at: pa.StringArray | None = None
    #: schema of the added partitions
    schema: SchemaWrapper | None = None
    #: bits of the columns of numbers in the added files; None if that is not known
    widths: evolution.Widths | None = None
    #: partition keys of a new dataset; an existing one must have the same, unless None
    partition_keys: tuple[str, ...] | None = None
    #: whether the added partitions may have other columns than the state; files then lack some. Also where
    #: they replace others: a column that was added since has its default in them
    merge_schema: bool = False
    #: changes of the schema, and columns that it must not change, with the reason
    schema_update: evolution.SchemaUpdate | None = None
    fixed_columns: Mapping[str, str] = attrs.field(factory=dict)
    #: index entries of the added partitions. A new dataset gets exactly these indices; an update ignores
    #: columns without an index that are not in `new_indices`, unless its header lists no partitions
    indices: Mapping[str, IndexUpdate] = attrs.field(factory=dict)
    #: columns of `indices` whose index is added or rebuilt; their entries cover all partitions
    new_indices: frozenset[str] = frozenset()
    #: statistics of the added partitions, or of all; None: the stored ones stay
    statistics: pa.Table | None = None
    #: user metadata to set; by default its keys replace stored ones
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    merge_metadata: MetadataMerger | None = None
    #: format of the header of a new dataset
    storage_format: str = "json"
    #: whether the header of a new dataset lists its partitions
    explicit: bool = True
    #: stream and number of its batch; not newer than the last committed one: nothing changes
    batch: tuple[str, int] | None = None
    #: id of a staged write, and the day when it was staged; None if it is committed at once
    staged: tuple[str, str] | None = None
    #: labels of the seed in whose files the cells of the added rows were found; None if no rule asks for that
    seed_labels: pa.StringArray | None = None
    #: added rows, for messages and hooks
    rows: int = 0
    #: part of all file names of this write, of all attempts of its tasks. If the newest state has such files,
    #: the write is committed already and nothing changes. Empty if tasks run only once
    write_id: str = ""
    #: description of the operation in the history
    info: history.OperationInfo | None = None
    #: requirements beside those that follow from the fields above; an absent dataset meets them
    requires: tuple[Requirement, ...] = ()

    @property
    def files(self) -> list[str]:
        """Keys of the files of which none may be deleted before the commit."""
        keys = [key for keys in self.added.files.values() for key in keys.to_pylist()]
        if keys or self.staged is None:
            return keys
        # a marker, so that to discard the write, which has no data files, deletes something as well
        return [f"{self.uuid}/{naming.INDICES_DIRECTORY}/staged/{self.staged[0]}"]

    def check_requirements(self, state: DatasetMetadata | None) -> None:
        """Raise unless the change may be applied to the newest state; None is that of an absent dataset."""
        if self.mode is WriteMode.CREATE and state is not None:
            for requirement in self.requires:
                requirement.check(state, self)
            raise errors.DatasetExistsError(self.uuid)
        if self.mode is WriteMode.UPDATE and state is None:
            if self.staged is not None:
                detail = "The dataset was deleted since the write was staged. Write again."
                raise errors.ConcurrentWriteError(self.uuid, detail=detail)
            raise errors.DatasetNotFoundError(self.uuid)
        if self.staged is not None and not _is_recent(self.staged[1], clock.datetime_utcnow().date()):
            raise ValueError(
                f"The write to dataset {self.uuid!r} was staged on {self.staged[1]}: it can be published "
                f"within {_STAGED_DAYS} days. Write again"
            )
        keys = None if self.mode is WriteMode.REPLACE or state is None else list(state.partition_keys or [])
        if keys is not None and self.partition_keys is not None and list(self.partition_keys) != keys:
            raise ValueError(
                f"Incompatible set of partition keys for dataset {self.uuid}: it is partitioned by "
                f"{keys}, but {list(self.partition_keys)} was given"
            )
        if state is None:
            return
        for requirement in self.requires:
            requirement.check(state, self)
        if self.replaces is not None and self.mode is not WriteMode.REPLACE:
            absent = state.partition_table.positions(self.replaces) < 0
            if absent.any():
                labels = self.replaces.filter(pa.array(absent)).to_pylist()
                detail = "They were replaced or removed since this operation read them. Repeat it."
                raise errors.ConcurrentWriteError(self.uuid, labels, detail)

    def is_index_rebuild(self, state: DatasetMetadata | None) -> bool:
        """Whether the change only rebuilds indices that a state has, as a repair does."""
        others = (len(self.added), self.metadata, self.schema_update, self.batch)
        removals = (self.remove_where, self.replaces)
        if state is None or any(others) or any(removal is not None for removal in removals):
            return False
        return bool(self.new_indices) and self.new_indices <= state.secondary_indices.keys()

    def removal_mask(self, state: DatasetMetadata) -> Mask:
        """Mask of the partitions of a state that are removed by their key values, without the added ones."""
        table, keys = state.partition_table, state.partition_keys or ()
        mask = np.zeros(len(table), dtype=bool)
        if self.remove_where is not None:
            mask[pruning.select_partitions(state, self.remove_where)] = True
        if self.overwrites_partitions and len(self.added):
            written = partition_folders(self.added, keys, keys, state.schema)
            mask |= to_numpy(pc.is_in(partition_folders(table, keys, keys, state.schema), value_set=written))
        return mask & (self.added.positions(table.labels) < 0) if mask.any() else mask


class Requirement(Protocol):
    """Requirement of a change on the newest state, unless the dataset is absent."""

    def check(self, state: DatasetMetadata, change: ChangeSet) -> None:
        """Raise if the state does not meet the requirement."""


@attrs.frozen
class NoUnseenPartitions:
    """The change removes no other partitions than those that its predicate selected when it was planned."""

    labels: pa.StringArray

    def check(self, state: DatasetMetadata, change: ChangeSet) -> None:
        """Raise ConcurrentWriteError if another writer has added one since."""
        labels = state.partition_table.labels
        unseen = change.removal_mask(state) & ~to_numpy(pc.is_in(labels, value_set=self.labels))
        if unseen.any():
            raise errors.ConcurrentWriteError(change.uuid, labels.filter(pa.array(unseen)).to_pylist())


@attrs.frozen
class UnchangedMetadata:
    """An entry of the metadata is that from which the change was computed."""

    key: str
    value: object
    #: action of another writer that sets it
    action: str

    def check(self, state: DatasetMetadata, change: ChangeSet) -> None:
        """Raise ConcurrentWriteError if another writer has set it since."""
        if state.metadata.get(self.key) != self.value:
            detail = f"Another writer has {self.action} since this operation began. Repeat it."
            raise errors.ConcurrentWriteError(change.uuid, detail=detail)


@attrs.frozen
class UnchangedPartitions:
    """Some physical partitions have no other files than those that the change was computed from."""

    #: partition columns of the cube that the dataset has
    columns: tuple[str, ...]
    #: values of these columns, as in labels
    folders: pa.StringArray
    labels: pa.StringArray

    @classmethod
    def of_dataset(cls, state: DatasetMetadata) -> Self:
        """The dataset as a whole has no other files than a state."""
        return cls((), pa.array([""]), state.partition_table.labels)

    def check(self, state: DatasetMetadata, change: ChangeSet) -> None:
        """Raise ConcurrentWriteError if another writer has added one since."""
        table = state.partition_table
        folders = partition_folders(table, self.columns, state.partition_keys or (), state.schema)
        expected = pa.concat_arrays([self.labels, change.added.labels])
        touched = pc.is_in(folders, value_set=self.folders)
        unseen = pc.and_not(touched, pc.is_in(table.labels, value_set=expected))
        if pc.any(unseen).as_py():
            raise errors.ConcurrentWriteError(change.uuid, table.labels.filter(unseen).to_pylist())


#: metadata key of the last committed batch of each stream
BATCHES = "kartothek_cube_batches"
#: metadata key of the staged writes that are committed: the day of each when it was staged, by id
STAGED = "kartothek_cube_staged"
#: days in which a staged write can be committed; ids are kept for twice as long, which covers wrong clocks
_STAGED_DAYS = 30


def apply(state: DatasetMetadata | None, change: ChangeSet) -> DatasetMetadata:
    """The state after a change whose requirements are met; changed indices have no storage key yet."""
    if state is None or change.mode is WriteMode.REPLACE:
        new = _create(state, change)
    else:
        new = _update(state, change)
    _check_times(new)
    if change.batch is not None:
        stream, number = change.batch
        new = new.copy(metadata={**new.metadata, BATCHES: {**entries_of(new, BATCHES), stream: number}})
    # the ids of the state before, also where that is replaced, and not those that a user passes on with the
    # metadata of another dataset
    ids = entries_of(state, STAGED)
    if change.staged is not None:
        write_id, day = change.staged
        recent = {key: old for key, old in ids.items() if _is_recent(old, day, 2 * _STAGED_DAYS)}
        ids = {**recent, write_id: day}
    return with_staged_ids(new, ids)


def with_staged_ids(state: DatasetMetadata, ids: Mapping[str, object]) -> DatasetMetadata:
    """The state with other ids of committed staged writes."""
    if not ids and STAGED not in state.metadata:
        return state
    others = {key: value for key, value in state.metadata.items() if key != STAGED}
    return state.copy(metadata={**others, STAGED: dict(ids)} if ids else others)


def is_staged_committed(state: DatasetMetadata, write_id: str) -> bool:
    """Whether a staged write is committed to a dataset, whatever has become of its partitions."""
    return write_id in entries_of(state, STAGED)


def _is_recent(day: object, now: object, days: int = _STAGED_DAYS) -> bool:
    """Whether less than some days lie between two days, as dates or texts; False for what is no day."""
    with suppress(ValueError):
        return abs(date.fromisoformat(str(now)) - date.fromisoformat(str(day))) <= timedelta(days)
    return False


def _check_times(state: DatasetMetadata) -> None:
    """Raise ValueError for labels with nanoseconds if other times of the column are out of their range."""
    keys, schema = state.partition_keys or (), state.schema
    far = [] if schema is None else [key for key in keys if has_far_times(schema.field(key).type)]
    if far:
        try:
            state.partition_table.keys(keys, schema)
        except errors.CorruptDatasetError as error:
            raise ValueError(
                f"Dataset {state.uuid!r}: partition column {', '.join(far)} has nanoseconds, and years that "
                "they do not reach; round the times, as by .dt.floor('us')"
            ) from error


def last_batch(dataset: DatasetMetadata, stream: str) -> int | None:
    """Number of the last batch of a stream that was committed to a dataset; None if there was none."""
    number = entries_of(dataset, BATCHES).get(stream)
    return number if isinstance(number, int) else None


def check_settings(metadata: Mapping[str, Any]) -> None:
    """Raise ValueError for a malformed setting."""
    history.snapshot_retention(metadata)
    if not pruning.is_statistics_setting(metadata.get(pruning.STATISTICS)):
        raise ValueError(
            f"{pruning.STATISTICS!r} in the metadata is the list of columns with statistics, or None; "
            f"it is {metadata[pruning.STATISTICS]!r}"
        )
    if metadata.get(naming.PUBLISH) not in (None, *naming.TABLE_FORMATS):
        names = ", ".join(map(repr, naming.TABLE_FORMATS))
        raise ValueError(
            f"{naming.PUBLISH!r} in the metadata is the format in which commits publish the dataset "
            f"({names}), or None; it is {metadata[naming.PUBLISH]!r}"
        )


def inherited_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata that survive an overwrite or a rollback."""
    kept = (history.KEEP_HISTORY, naming.PUBLISH, naming.CONTRACT)
    return {key: metadata[key] for key in kept if key in metadata}


def cube_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Those of them that new datasets of a cube inherit from its seed."""
    return {key: value for key, value in inherited_settings(metadata).items() if key != naming.CONTRACT}


def entries_of(dataset: DatasetMetadata | None, key: str) -> dict[str, Any]:
    """The dict in the metadata of a dataset at a key that commits add to; empty if there is none."""
    entries = None if dataset is None else dataset.metadata.get(key)
    return entries if isinstance(entries, dict) else {}


def _create(state: DatasetMetadata | None, change: ChangeSet) -> DatasetMetadata:
    inherited = inherited_settings({} if state is None else state.metadata)
    labels, schema = change.added.labels, change.schema
    # a listing may find other files than this commit added
    widths = _added_widths(change) if change.explicit else None
    return DatasetMetadata(
        uuid=change.uuid,
        partitions=change.added,
        metadata={**inherited, **_metadata({}, change)},
        indices={column: _new_index(change, column, labels, schema) for column in change.indices},
        explicit_partitions=change.explicit,
        partition_keys=list(change.partition_keys or ()),
        schema=schema,
        table_name=change.table,
        extra=evolution.with_widths({}, schema, widths),
    )


def _update(state: DatasetMetadata, change: ChangeSet) -> DatasetMetadata:
    removed = change.removal_mask(state)
    if change.replaces is not None:
        removed[state.partition_table.positions(change.replaces)] = True
    partitions = _partitions(state, change, removed)
    metadata = _metadata(state.metadata, change)
    metadata.setdefault("creation_time", state.metadata.get("creation_time"))
    if naming.EVOLUTION in state.metadata:
        # older files cannot be read without it, whatever a user's function makes of the metadata
        metadata[naming.EVOLUTION] = state.metadata[naming.EVOLUTION]
    schema = compute_schema(state, change)
    if change.merge_schema and state.schema is not None and change.schema is not None:
        metadata = evolution.merge_evolution(state.schema, change.schema, metadata, state.uuid)
    if change.schema_update is not None and schema is not None:
        keys, indexed = state.partition_keys or (), dict.fromkeys(state.secondary_indices, "indexed")
        fixed = {**indexed, **change.fixed_columns, **dict.fromkeys(keys, "a partition key")}
        schema, metadata = change.schema_update.apply(schema, metadata, keys, fixed, state.uuid)
    removed_labels = state.partition_table.labels.filter(pa.array(removed))
    return state.copy(
        partitions=partitions,
        metadata=metadata,
        indices=_update_indices(state, change, removed_labels, partitions, schema),
        schema=schema,
        explicit_partitions=True,
        extra=evolution.with_widths(state.extra, schema, _widths(state, change, bool(removed.all()))),
    )


def update_statistics(old: pa.Table | None, new: DatasetMetadata, change: ChangeSet) -> pa.Table | None:
    """Statistics of the state after a change, of those before; None without any."""
    if old is not None and change.schema_update is not None:
        old = change.schema_update.apply_to_statistics(old)
    if new.schema is None:
        return None
    columns, schema = pruning.statistics_columns(new.metadata), new.schema.internal()
    tables = [table for table in (old, change.statistics) if table is not None]
    tables = [pruning.select_statistics(table, columns, schema) for table in tables]
    merged = pruning.merge_statistics(tables, new.partition_table.labels)
    return merged if merged.num_columns > 1 else None


def _added_widths(change: ChangeSet) -> evolution.Widths | None:
    return change.widths if len(change.added) else {}


def _widths(state: DatasetMetadata, change: ChangeSet, is_emptied: bool) -> evolution.Widths | None:
    """The bits of the columns of numbers after an update; None if that is not known of all files."""
    widths = {} if is_emptied else state.widths
    added = _added_widths(change)
    if widths is None or added is None or state.schema is None:
        return None
    if len(change.added) and not is_emptied:
        # columns without an entry are as wide as in the schema
        widths = {**evolution.column_widths(state.schema.internal()), **widths}
    if change.schema_update is not None:
        widths = change.schema_update.apply_to_widths(widths)
    return evolution.widest([widths, added])


def _metadata(stored: Mapping[str, Any], change: ChangeSet) -> dict[str, Any]:
    """Merged metadata without what only updates of the schema set; users may pass on another dataset's."""
    merged = {**stored, **change.metadata}
    if change.merge_metadata is not None:
        # the user's function may change what it gets, and states are shared
        merged = change.merge_metadata([dataset_files.copy_json(dict(stored)), dict(change.metadata)])
    return {key: value for key, value in merged.items() if key != naming.EVOLUTION}


def _partitions(state: DatasetMetadata, change: ChangeSet, removed: Mask) -> PartitionTable:
    """The remaining partitions and the added ones, in the order of commit."""
    table = state.partition_table
    remaining_positions = np.flatnonzero(~removed)
    remaining = table.take(remaining_positions) if len(remaining_positions) < len(table) else table
    if not len(change.added):
        return remaining
    partitions = remaining.concat(change.added) if len(remaining) else change.added
    if change.replaces_at is None:
        return partitions
    place = np.concatenate([remaining_positions, table.positions(change.replaces_at)])
    return partitions.take(np.argsort(place, kind="stable"))


def _update_indices(
    state: DatasetMetadata,
    change: ChangeSet,
    removed: pa.StringArray,
    partitions: PartitionTable,
    schema: SchemaWrapper | None,
) -> dict[str, Any]:
    result = {}
    # built from entries of all partitions: any index, where the header did not list these
    new = {*change.new_indices}
    if not state.explicit_partitions:
        new |= {*change.indices, *state.secondary_indices}
    for column, index in state.indices.items():
        if column in (state.partition_keys or ()) or column in new:
            continue
        if len(change.added):
            added = _new_index(change, column, change.added.labels, schema)
            if added.dtype != index.dtype:
                # only one of both has times that nanoseconds do not hold
                dtype = common_type(index.dtype, added.dtype)
                index, added = index.copy(dtype=dtype), added.copy(dtype=dtype)
            index = index.replace_partitions(removed, added) if len(removed) else index.update(added)
        elif len(removed):
            index = index.remove_partitions(removed)
        result[column] = index
    if schema is not None and (absent := new.difference(schema.names)):
        detail = f"Column {min(absent)} was renamed or dropped since this operation read it. Repeat it."
        raise errors.ConcurrentWriteError(change.uuid, detail=detail)
    for column in sorted(new):
        result[column] = _new_index(change, column, partitions.labels, schema)
    return result


def _new_index(
    change: ChangeSet, column: str, labels: pa.StringArray, schema: SchemaWrapper | None
) -> ExplicitSecondaryIndex:
    """Index of the entries of a change, which have to cover the partitions with some labels."""
    update = change.indices.get(column)
    covered = pa.array([], pa.string()) if update is None else update.covered
    missing = labels.filter(pc.invert(pc.is_in(labels, value_set=covered)))
    if update is None or len(missing):
        raise MissingIndexEntries(column, missing)
    entries = update.entries.keep_labels(labels) if len(covered) > len(labels) else update.entries
    dtype = entries.values.type
    if schema is not None and column in schema.names and not pa.types.is_null(schema.field(column).type):
        dtype = schema.field(column).type
    return ExplicitSecondaryIndex(column, entries, dtype=dtype)


def compute_schema(state: DatasetMetadata, change: ChangeSet) -> SchemaWrapper | None:
    """The schema that knows most: a column that was null so far may get a type."""
    if change.schema is None:
        return state.schema
    if state.schema is None or not (len(state.schema) or len(state.partition_table)):
        return change.schema
    stored = state.metadata if change.merge_schema else None
    keys = state.partition_keys or ()
    try:
        united = evolution.unite_schemas(state.schema, change.schema, keys, stored, change.uuid, change.table)
    except ValueError as error:
        if change.replaces is None:
            raise
        problem = str(error)
    else:
        # a replacement brings no columns that the state does not have, or has no more
        if change.replaces is None or united is None or len(united) == len(state.schema):
            return united
        problem = f"Gone: {', '.join(sorted(set(united.names) - set(state.schema.names)))}"
    detail = f"The schema was changed since this operation read the dataset. Repeat it. {problem}"
    raise errors.ConcurrentWriteError(change.uuid, change.replaces.to_pylist(), detail)
