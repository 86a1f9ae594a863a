"""Inverted index as columns: sorted values, and the partitions of each; and its file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow import (
    Ints,
    Mask,
    cast_times,
    compact_buffers,
    copy_to_arrow_memory,
    is_long,
    is_nested,
    label_array,
    lookup,
    storage_type,
    to_numpy,
    widen,
)
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.partition import PartitionTable

#: name of the column of labels, reserved
PARTITION = "partition"


@dataclass(frozen=True, eq=False, repr=False)
class IndexColumns:
    """Index data of one column; immutable."""

    # Partitions with `values[i]`: `labels[codes[k]]` for `offsets[i] <= k < offsets[i + 1]`.

    #: sorted, unique, without null and NaN
    values: pa.Array
    #: one more than there are values
    offsets: Ints
    #: positions in `labels`; unique per value, at least one per value
    codes: npt.NDArray[np.int32]
    #: unique; some may have no value
    labels: pa.StringArray
    #: Type of the values in files, if it is another one: plateau writes ``large_string`` (on pandas 3) and
    #: milliseconds, and refuses to update an index of ``string`` or microseconds then.
    file_type: pa.DataType | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"IndexColumns({len(self)} values of type {self.values.type}, {len(self.codes)} entries)"

    def __reduce__(self) -> tuple[Callable[..., IndexColumns], tuple[Any, ...]]:
        return IndexColumns, (
            compact_buffers(self.values),
            self.offsets,
            self.codes,
            compact_buffers(self.labels),
            self.file_type,
        )

    @classmethod
    def empty(cls, dtype: pa.DataType, file_type: pa.DataType | None = None) -> IndexColumns:
        """Index without values."""
        offsets, codes = np.zeros(1, np.int64), np.empty(0, np.int32)
        return cls(pa.array([], dtype), offsets, codes, pa.array([], pa.string()), file_type)

    @classmethod
    def from_pairs(
        cls,
        values: pa.Array,
        labels: Iterable[str] | pa.Array,
        codes: npt.NDArray[np.integer[Any]] | None = None,
        rows: npt.NDArray[np.integer[Any]] | None = None,
    ) -> IndexColumns:
        """Index data of (value, partition) pairs in any order, with duplicates and nulls."""
        # With `codes`, labels are unique, and codes are their positions per pair; with `rows`, those of the
        # values. Partitions of a value keep the order of the pairs.
        names = label_array(labels)
        if codes is None:
            encoded = names.dictionary_encode()
            names, codes = encoded.dictionary, to_numpy(encoded.indices)
        entries: Ints = codes.astype(np.int64, copy=False)
        not_null = _not_null_mask(values)
        if not_null is not None:
            kept = not_null if rows is None else not_null[rows]
            entries = entries[kept]
            rows = None if rows is None else (np.cumsum(not_null) - 1)[rows[kept]]
            values = values.filter(pa.array(not_null))
        distinct, ranks = rank(values)
        return cls._sort_entries(distinct, ranks if rows is None else ranks[rows], entries, names)

    @classmethod
    def from_dict(cls, values: pa.Array, lists: Sequence[Iterable[str]]) -> IndexColumns:
        """Index data of one list of labels per value."""
        columns = list(map(list, lists))
        rows = np.repeat(np.arange(len(values)), np.fromiter(map(len, columns), np.int64, len(columns)))
        encoded = label_array(list(chain.from_iterable(columns))).dictionary_encode()
        return cls.from_pairs(values, encoded.dictionary, encoded.indices.to_numpy(), rows)

    @classmethod
    def merge(cls, indices: Iterable[IndexColumns], dtype: pa.DataType) -> IndexColumns:
        """Merge indices of one column; partitions of a value are in the order of the indices."""
        indices = list(indices)
        filled = [index.cast(dtype) for index in indices if len(index.codes)]
        merged = filled[0] if filled else cls.empty(dtype)
        if len(filled) > 1:
            labels = pa.concat_arrays([index.labels for index in filled]).dictionary_encode()
            label_starts = np.cumsum([0, *(len(index.labels) for index in filled)])
            row_starts = np.cumsum([0, *map(len, filled)])
            pairs = [
                (index.codes + label, index.value_ids() + row)
                for index, label, row in zip(filled, label_starts, row_starts, strict=False)
            ]
            codes, rows = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
            values = pa.concat_arrays([index.values for index in filled])
            distinct, ranks = _rank_sorted_runs(values)
            entries = to_numpy(labels.indices)[codes].astype(np.int64, copy=False)
            merged = cls._sort_entries(distinct, ranks[rows], entries, labels.dictionary)
        file_type = next((index.file_type for index in indices if index.file_type is not None), None)
        return replace(merged, file_type=file_type)

    @classmethod
    def _sort_entries(
        cls, values: pa.Array, ranks: Ints, codes: Ints, labels: pa.StringArray
    ) -> IndexColumns:
        """Index data of entries in any order, with duplicates."""
        sorter = order(ranks, codes, max(len(labels), 1))
        if sorter is not None:
            ranks, codes = ranks[sorter], codes[sorter]
        return cls._from_ranks(values, ranks, codes, labels)

    @classmethod
    def _from_ranks(cls, values: pa.Array, ranks: Ints, codes: Ints, labels: pa.StringArray) -> IndexColumns:
        """Index data of entries sorted by value; values without entries are dropped."""
        counts = np.bincount(ranks, minlength=len(values))
        if not counts.all():
            values, counts = values.filter(pa.array(counts > 0)), counts[counts > 0]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(values, offsets, codes.astype(np.int32), labels)

    def cast(self, dtype: pa.DataType) -> IndexColumns:
        """Cast the values to a type that keeps their order."""
        if self.values.type.equals(dtype):
            return self
        return replace(self, values=self.values.cast(dtype))

    def value_ids(self) -> Ints:
        """Position of the value of each entry."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.offsets))

    def pairs(self) -> tuple[pa.Array, npt.NDArray[np.int32]]:
        """Value and label code of each entry, sorted by value."""
        return self.values.take(pa.array(self.value_ids())), self.codes

    def entry_labels(self) -> pa.StringArray:
        """Label of each entry."""
        return self.labels.take(pa.array(self.codes))

    def select(self, mask: Mask) -> IndexColumns:
        """Entries of the values where the mask is true."""
        kept = np.repeat(mask, np.diff(self.offsets))
        counts = np.diff(self.offsets)[mask]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return replace(
            self, values=self.values.filter(pa.array(mask)), offsets=offsets, codes=self.codes[kept]
        )

    def labels_matching(self, mask: Mask) -> pa.StringArray:
        """Distinct partitions with a value where the mask is true, in the order of `labels`."""
        (matching,) = mask.nonzero()
        if len(matching) == 1:  # a point query does not look at the entries of other values
            codes = self.codes[self.offsets[matching[0]] : self.offsets[matching[0] + 1]]
            return self.labels.take(pa.array(np.sort(codes)))
        is_match = np.zeros(len(self.labels), dtype=bool)
        is_match[self.codes[np.repeat(mask, np.diff(self.offsets))]] = True
        return self.labels.filter(pa.array(is_match))

    def positions_matching(self, mask: Mask, table: PartitionTable) -> Mask:
        """Mask of the partitions of a dataset with a value where the mask is true."""
        return to_numpy(pc.is_in(table.labels, value_set=self.labels_matching(mask)))

    def positions(self, table: PartitionTable) -> Ints:
        """Position in a dataset of each entry's partition, -1 for unknown ones."""
        positions: Ints = table.positions(self.labels)[self.codes]
        return positions

    def keep_labels(self, labels: Iterable[str] | pa.Array, *, invert: bool = False) -> IndexColumns:
        """Entries of some partitions, or of all others (`invert`); itself if nothing changes."""
        is_listed = to_numpy(pc.is_in(self.labels, value_set=label_array(labels)))
        kept = (is_listed != invert)[self.codes]
        if kept.all():
            return self
        used, codes = np.unique(self.codes[kept], return_inverse=True)
        labels = self.labels.take(pa.array(used))
        remaining = self._from_ranks(self.values, self.value_ids()[kept], codes, labels)
        return replace(remaining, file_type=self.file_type)

    def equals(self, other: IndexColumns) -> bool:
        """Whether both hold the same entries; the order of the partitions of a value does not matter."""
        if not (self.values.equals(other.values) and np.array_equal(self.offsets, other.offsets)):
            return False
        other_codes = lookup(other.labels, self.labels)[other.codes]
        ids = self.value_ids()
        return bool(np.array_equal(_sort_within(ids, self.codes), _sort_within(ids, other_codes)))

    def to_dict(self) -> dict[Any, list[str]]:
        """Value to labels, for users; timestamps are :class:`numpy.datetime64` (UTC if zoned)."""
        if pat.is_timestamp(self.values.type):
            values = list(to_numpy(cast_times(self.values, storage_type(self.values.type))))
        else:
            values = self.values.to_pylist()
        labels = self.entry_labels().to_pylist()
        bounds = self.offsets.tolist()
        return {value: labels[bounds[i] : bounds[i + 1]] for i, value in enumerate(values)}


def _not_null_mask(values: pa.Array) -> Mask | None:
    """Mask of values that are neither null nor NaN; None if all are."""
    if not values.null_count and not pat.is_floating(values.type):
        return None
    mask: Mask = ~to_numpy(pc.is_null(values, nan_is_null=pat.is_floating(values.type)))
    return None if mask.all() else mask


def rank(values: pa.Array) -> tuple[pa.Array, Ints]:
    """Sorted distinct values, and the position of each value among them."""
    if pat.is_floating(values.type):
        values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 is 0.0
    if _is_strictly_sorted(values):
        return values, np.arange(len(values), dtype=np.int64)
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return encoded.dictionary.take(pa.array(order)), rank[encoded.indices.to_numpy()]


def _rank_sorted_runs(values: pa.Array) -> tuple[pa.Array, Ints]:
    """As `rank`, of the values of several indices, one after the other."""
    if pat.is_floating(values.type) or not pat.is_primitive(values.type):
        return rank(values)
    # this sort merges sorted runs: a tenth of the time of the hashes of 1.5 million values
    numbers = to_numpy(values)
    sorter = np.argsort(numbers, kind="stable")
    is_new = np.append([True], numbers[sorter[1:]] != numbers[sorter[:-1]])
    ranks = np.empty(len(values), np.int64)
    ranks[sorter] = np.cumsum(is_new) - 1
    return values.take(pa.array(sorter[is_new])), ranks


def _is_strictly_sorted(values: pa.Array) -> bool:
    return len(values) < 2 or bool(pc.all(pc.less(values[:-1], values[1:])).as_py())


def order(ranks: Ints, codes: Ints, n_labels: int) -> Ints | None:
    """Positions that sort entries stably by value and drop duplicates; None if nothing changes."""
    pairs = ranks * n_labels + codes
    if (pairs[1:] > pairs[:-1]).all():
        return None
    order = np.argsort(ranks, kind="stable")
    sorted_pairs = pairs[order]
    if (sorted_pairs[1:] > sorted_pairs[:-1]).all():
        return order
    first = np.sort(np.unique(pairs, return_index=True)[1])
    return first[np.argsort(ranks[first], kind="stable")]


def _sort_within(ids: Ints, codes: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """Codes sorted within each id."""
    return codes[np.lexsort([codes, ids])]


_VALUES_PER_GROUP = 10_000
#: the labels of a row group have to fit into one Arrow array of strings
_ENTRIES_PER_GROUP = 4_000_000


def render_index(column: str, columns: IndexColumns) -> bytes:
    """Content of an index file: one row per value with the list of its partitions."""
    # named explicitly: pyarrow's default name of the child depends on its version
    partitions = pa.list_(pa.field("item", pa.string()))
    values = _file_values(columns)
    schema = pa.schema([(column, values.type), (PARTITION, partitions)])
    sink = pa.BufferOutputStream()
    labels_repeat = len(columns.codes) > 2 * len(columns.labels)
    with pq.ParquetWriter(
        sink,
        schema,
        version="2.6",
        coerce_timestamps=None if _is_milliseconds(values.type) else "us",
        use_compliant_nested_type=False,
        use_dictionary=[f"{PARTITION}.list.item"] if labels_repeat else False,  # values are unique
    ) as writer:
        bounds = _row_groups(columns)
        for start, stop in pairwise(bounds.tolist()):
            _write_group(writer, schema, replace(columns, values=values), start, stop)
    return bytes(sink.getvalue())


def _file_values(columns: IndexColumns) -> pa.Array:
    """The values in the type that the index file had, if they all fit."""
    if columns.file_type is None:
        return columns.values
    try:
        return columns.values.cast(columns.file_type)
    except pa.ArrowInvalid:
        return columns.values  # microseconds, in an index of milliseconds


def _is_milliseconds(dtype: pa.DataType) -> bool:
    return bool(pat.is_timestamp(dtype) and dtype.unit == "ms")


def _row_groups(columns: IndexColumns) -> Ints:
    """Bounds of row groups; an empty index has one group without rows."""
    by_entries = columns.offsets[:-1] // _ENTRIES_PER_GROUP
    changes = np.flatnonzero(np.diff(by_entries)) + 1
    steps = np.arange(0, len(columns), _VALUES_PER_GROUP)
    inner = np.union1d(steps, changes)
    return np.append(inner if len(inner) else [0], len(columns)).astype(np.int64)


def _write_group(
    writer: pq.ParquetWriter, schema: pa.Schema, columns: IndexColumns, start: int, stop: int
) -> None:
    offsets = columns.offsets[start : stop + 1]
    labels = columns.labels.take(pa.array(columns.codes[offsets[0] : offsets[-1]]))
    starts = pa.array((offsets - offsets[0]).astype(np.int32))
    lists = pa.ListArray.from_arrays(starts, labels, type=schema.field(1).type)
    values = columns.values.slice(start, stop - start)
    try:
        writer.write_table(pa.Table.from_arrays([values, lists], schema=schema))
    except pa.ArrowInvalid as error:
        raise ValueError(f"The index on {schema.names[0]!r} cannot be stored: {error}") from error


def parse_index(buf: bytes, column: str, key: str) -> IndexColumns:
    """Index data of an index file; raises CorruptDatasetError."""
    try:
        table = _read_table(buf)
        _check_columns(table, column, key)
        table.validate(full=True)
        values = table.column(0).combine_chunks()
        values = cast_times(values, storage_type(widen(values.type)))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptDatasetError(
            key, f"it is no Parquet file of an index on {column!r} ({error})"
        ) from error
    lists = table.column(1)
    labels = pc.list_flatten(lists)
    if values.null_count or lists.null_count or labels.null_count:
        raise CorruptDatasetError(key, f"the index on {column!r} holds nulls")
    # encoded chunk by chunk: the labels of all chunks may be too long for one array
    encoded = labels.dictionary_encode().unify_dictionaries().combine_chunks()
    rows = np.repeat(np.arange(len(values)), pc.list_value_length(lists).to_numpy())
    codes = to_numpy(encoded.indices)
    columns = IndexColumns.from_pairs(values, encoded.dictionary, codes, rows)
    dtype = table.schema.field(0).type
    # other libraries demand these types of an index that they have written
    return replace(columns, file_type=dtype) if is_long(dtype) or _is_milliseconds(dtype) else columns


def _read_table(buf: bytes) -> pa.Table:
    """Content of the file, with dictionary-encoded labels: most of them repeat."""
    content = copy_to_arrow_memory(buf)
    plain = pq.ParquetFile(pa.BufferReader(content))
    labels = [plain.schema.column(i).path for i in range(1, plain.metadata.num_columns)]
    file = pq.ParquetFile(pa.BufferReader(content), metadata=plain.metadata, read_dictionary=labels)
    # Arrow cannot read encoded lists of several row groups at once
    return pa.concat_tables([file.read_row_group(i) for i in range(file.num_row_groups)] or [plain.read()])


def _check_columns(table: pa.Table, column: str, key: str) -> None:
    if table.column_names != [column, PARTITION]:
        raise CorruptDatasetError(
            key, f"an index file has the columns {column!r} and 'partition', not {table.column_names}"
        )
    dtype, lists = table.schema.types
    if is_nested(dtype) or pat.is_null(dtype):
        raise CorruptDatasetError(key, f"values of type {dtype} cannot be indexed")
    if not (pat.is_list(lists) or pat.is_large_list(lists)) or widen(lists.value_type) != pa.string():
        raise CorruptDatasetError(key, f"'partition' is {lists}, not lists of strings")
