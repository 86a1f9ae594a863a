"""Inverted indices as columns, with their files; those on partition keys, and those on data columns."""

from __future__ import annotations

import copy
import datetime
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress, pairwise
from typing import Any, NamedTuple, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core import (
    arguments,
    arrow,
    clock,
    errors,
    expressions,
    naming,
    old_parquet,
    pandas_conversion,
)
from kartothek_cube.core.caching import CACHE
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.store import BlobStore, PreconditionFailed, StoreInput, get_required, open_blobs

__all__ = ("ExplicitSecondaryIndex", "IndexBase", "IndexColumns", "PartitionIndex")

_LOGGER = logging.getLogger(__name__)

ValueType = TypeVar("ValueType")
IndexDictType = dict[ValueType, list[str]]


#: name of the column of labels, reserved
PARTITION = "partition"


@dataclass(frozen=True, eq=False, repr=False)
class IndexColumns:
    """Index data of one column; immutable."""

    # Partitions with `values[i]`: `labels[codes[k]]` for `offsets[i] <= k < offsets[i + 1]`.

    #: sorted, unique, without null and NaN
    values: pa.Array
    #: one more than there are values
    offsets: arrow.Ints
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
        values, labels = map(arrow.compact_buffers, (self.values, self.labels))
        return IndexColumns, (values, self.offsets, self.codes, labels, self.file_type)

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
        names = arrow.label_array(labels)
        if codes is None:
            encoded = names.dictionary_encode()
            names, codes = encoded.dictionary, arrow.to_numpy(encoded.indices)
        not_null = ~arrow.to_numpy(arrow.is_null(values))
        if not not_null.all():
            kept = not_null if rows is None else not_null[rows]
            codes = codes[kept]
            rows = None if rows is None else (np.cumsum(not_null) - 1)[rows[kept]]
            values = values.filter(pa.array(not_null))
        values = arrow.normalize_zeros(values)
        if rows is None and _is_increasing(values):
            # an index file of 20 million cells: 0.5 instead of 1.2 s
            return cls(values, np.arange(len(values) + 1), codes.astype(np.int32, copy=False), names)
        distinct, ranks = rank(values)
        if rows is None and len(distinct) == len(values):
            # one entry per value: an index of 5 million cells is made in 0.25 instead of 0.5 s
            ordered = np.empty(len(codes), np.int32)
            ordered[ranks] = codes
            return cls(distinct, np.arange(len(distinct) + 1), ordered, names)
        ranks = ranks if rows is None else ranks[rows]
        sorter = order(ranks, codes, max(len(names), 1))
        if sorter is not None:
            ranks, codes = ranks[sorter], codes[sorter]
        return cls._from_counts(distinct, np.bincount(ranks, minlength=len(distinct)), codes, names)

    @classmethod
    def from_dict(cls, values: pa.Array, lists: Sequence[Iterable[str]]) -> IndexColumns:
        """Index data of one list of labels per value."""
        columns = list(map(list, lists))
        rows = np.repeat(np.arange(len(values)), np.fromiter(map(len, columns), np.int64, len(columns)))
        return cls.from_pairs(values, list(chain.from_iterable(columns)), rows=rows)

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
            starts = zip(filled, label_starts, row_starts, strict=False)
            pairs = [(index.codes + label, index.value_ids() + row) for index, label, row in starts]
            codes, rows = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
            values = pa.concat_arrays([index.values for index in filled])
            merged = cls.from_pairs(values, labels.dictionary, arrow.to_numpy(labels.indices)[codes], rows)
        file_type = next((index.file_type for index in indices if index.file_type is not None), None)
        return replace(merged, file_type=file_type)

    @classmethod
    def from_mask(cls, values: pa.Array, is_entry: arrow.Mask, labels: pa.StringArray) -> IndexColumns:
        """Index data of sorted distinct values, nulls last, from a row for each and a column per label."""
        n_values = len(values) - int(np.count_nonzero(arrow.is_null(values)))
        is_entry = is_entry[:n_values]
        # `nonzero` takes four times as long
        codes = np.broadcast_to(np.arange(len(labels), dtype=np.int32), is_entry.shape)[is_entry]
        return cls._from_counts(values[:n_values], is_entry.sum(axis=1), codes, labels)

    @classmethod
    def _from_counts(
        cls, values: pa.Array, counts: arrow.Ints, codes: npt.NDArray[np.integer[Any]], labels: pa.StringArray
    ) -> IndexColumns:
        """Index data of entries sorted by value, of which each value has some or none; these are dropped."""
        if not counts.all():
            values, counts = values.filter(pa.array(counts > 0)), counts[counts > 0]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(values, offsets, codes.astype(np.int32, copy=False), labels)

    def cast(self, dtype: pa.DataType) -> IndexColumns:
        """Cast the values to a type that keeps their order."""
        return self if self.values.type.equals(dtype) else replace(self, values=self.values.cast(dtype))

    def value_ids(self) -> arrow.Ints:
        """Position of the value of each entry."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.offsets))

    def pairs(self) -> tuple[pa.Array, npt.NDArray[np.int32]]:
        """Value and label code of each entry, sorted by value."""
        return self.values.take(pa.array(self.value_ids())), self.codes

    def entry_labels(self) -> pa.StringArray:
        """Label of each entry."""
        return self.labels.take(pa.array(self.codes))

    def select(self, mask: arrow.Mask) -> IndexColumns:
        """Entries of the values where the mask is true."""
        return self._keep_entries(np.repeat(mask, np.diff(self.offsets)))

    def labels_matching(self, mask: arrow.Mask) -> pa.StringArray:
        """Distinct partitions with a value where the mask is true, in the order of `labels`."""
        (matching,) = mask.nonzero()
        if len(matching) == 1:  # a point query does not look at the entries of other values
            codes = self.codes[self.offsets[matching[0]] : self.offsets[matching[0] + 1]]
            return self.labels.take(pa.array(np.sort(codes)))
        is_match = np.zeros(len(self.labels), dtype=bool)
        # of 20 million values with one partition each, 0.05 instead of 0.4 s
        is_single = len(self.codes) == len(self)
        is_match[self.codes[mask if is_single else np.repeat(mask, np.diff(self.offsets))]] = True
        return self.labels.filter(pa.array(is_match))

    def positions(self, table: PartitionTable) -> arrow.Ints:
        """Position in a dataset of each entry's partition, -1 for unknown ones."""
        positions: arrow.Ints = table.positions(self.labels)[self.codes]
        return positions

    def keep_labels(self, labels: Iterable[str] | pa.Array, *, invert: bool = False) -> IndexColumns:
        """Entries of some partitions, or of all others (`invert`); itself if nothing changes."""
        is_listed = arrow.to_numpy(pc.is_in(self.labels, value_set=arrow.label_array(labels)))
        kept = (is_listed != invert)[self.codes]
        return self if kept.all() else self._keep_entries(kept)

    def _keep_entries(self, kept: arrow.Mask) -> IndexColumns:
        codes = self.codes[kept]
        is_used = np.bincount(codes, minlength=len(self.labels)) > 0
        counts = np.add.reduceat(kept, self.offsets[:-1], dtype=np.int64)
        codes = (np.cumsum(is_used) - 1)[codes]
        remaining = self._from_counts(self.values, counts, codes, self.labels.filter(pa.array(is_used)))
        return replace(remaining, file_type=self.file_type)

    def replace_labels(self, labels: pa.StringArray, added: IndexColumns) -> IndexColumns | None:
        """Entries with those of some partitions replaced; None unless others have the same values instead."""
        is_replaced = arrow.to_numpy(pc.is_in(self.labels, value_set=labels))
        (entries,) = is_replaced[self.codes].nonzero()
        if len(entries) != len(added.codes) or not len(entries):
            return None
        old, (values, new) = self.codes[entries], added.pairs()
        ids = np.searchsorted(self.offsets, entries, side="right") - 1
        new_codes = np.full(len(self.labels), -1)
        new_codes[old] = new
        used = new_codes[new_codes >= 0]
        is_one_to_one = np.array_equal(new_codes[old], new) and len(np.unique(used)) == len(used)
        if not is_one_to_one or not self.values.take(pa.array(ids)).equals(values):
            return None
        known = pa.concat_arrays([self.labels, added.labels])
        sources = np.where(new_codes < 0, np.arange(len(self.labels)), len(self.labels) + new_codes)
        renamed = known.take(pa.array(sources))
        has_unused = bool((is_replaced & (new_codes < 0)).any())
        return None if has_unused or len(renamed.unique()) < len(renamed) else replace(self, labels=renamed)

    def equals(self, other: IndexColumns) -> bool:
        """Whether both hold the same entries; the order of the partitions of a value does not matter."""
        if not (self.values.equals(other.values) and np.array_equal(self.offsets, other.offsets)):
            return False
        ids = self.value_ids()
        both = self.codes, arrow.lookup(other.labels, self.labels)[other.codes]
        own, others = (codes[np.lexsort([codes, ids])] for codes in both)
        return bool(np.array_equal(own, others))

    def to_dict(self) -> dict[Any, list[str]]:
        """Value to labels, for users; timestamps are :class:`numpy.datetime64` (UTC if zoned)."""
        if pat.is_timestamp(self.values.type):
            values = list(arrow.to_numpy(arrow.cast_times(self.values, arrow.storage_type(self.values.type))))
        else:
            values = self.values.to_pylist()
        labels = self.entry_labels().to_pylist()
        bounds = self.offsets.tolist()
        return {value: labels[bounds[i] : bounds[i + 1]] for i, value in enumerate(values)}


def _is_increasing(values: pa.Array) -> bool:
    """Whether values are sorted and distinct."""
    return len(values) < 2 or bool(pc.all(pc.less(values[:-1], values[1:])).as_py())


def rank(values: pa.Array) -> tuple[pa.Array, arrow.Ints]:
    """Sorted distinct values, and the position of each value among them."""
    values = arrow.normalize_zeros(values)
    if _is_increasing(values):
        return values, np.arange(len(values), dtype=np.int64)
    if pat.is_primitive(values.type) and not pat.is_floating(values.type):
        # this sort merges the sorted runs of several indices: of 1.5 million values in 0.03 instead of 0.2 s
        numbers = arrow.to_numpy(values)
        sorter = np.argsort(numbers, kind="stable")
        is_new = np.append([True], numbers[sorter[1:]] != numbers[sorter[:-1]])
        ranks = np.empty(len(values), np.int64)
        ranks[sorter] = np.cumsum(is_new) - 1
        return values.take(pa.array(sorter[is_new])), ranks
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return encoded.dictionary.take(pa.array(order)), rank[encoded.indices.to_numpy()]


def order(ranks: arrow.Ints, codes: npt.NDArray[np.integer[Any]], n_labels: int) -> arrow.Ints | None:
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


#: 1.5 million values take .18 s to write and read, in groups of 10,000 .31
_VALUES_PER_GROUP = 1 << 17
#: the labels of a row group have to fit into one Arrow array of strings
_ENTRIES_PER_GROUP = 4_000_000


#: named explicitly: pyarrow's default name of the child depends on its version
_LABELS = pa.list_(pa.field("item", pa.string()))
_ENCODED_LABELS = pa.list_(pa.field("item", pa.dictionary(pa.int32(), pa.string())))


def render_index(column: str, columns: IndexColumns) -> bytes:
    """Content of an index file: one row per value with the list of its partitions."""
    values = columns.values
    if columns.file_type is not None:
        with suppress(pa.ArrowInvalid):  # microseconds, in an index of milliseconds
            values = values.cast(columns.file_type)
    schema = pa.schema([(column, values.type), (PARTITION, _LABELS)])
    sink = pa.BufferOutputStream()
    labels_repeat = len(columns.codes) > 2 * len(columns.labels)
    # 1.5 million repeated labels take 0.06 s as a dictionary, of which readers do not know, as texts 0.15
    encoded = schema.set(1, pa.field(PARTITION, _ENCODED_LABELS)) if labels_repeat else schema
    with pq.ParquetWriter(
        sink,
        encoded,
        version="2.6",
        coerce_timestamps=None if _is_milliseconds(values.type) else "us",
        use_compliant_nested_type=False,
        use_dictionary=[f"{PARTITION}.list.item"] if labels_repeat else False,  # values are unique
        column_encoding={column: "DELTA_BINARY_PACKED"} if arrow.is_packable(values.type) else None,
        # those of labels, which no reader uses, take a quarter of the time and half of the file
        write_statistics=[column],
        store_schema=False,
    ) as writer:
        for start, stop in pairwise(_row_groups(columns).tolist()):
            _write_group(writer, replace(columns, values=values), start, stop)
        writer.add_key_value_metadata({"ARROW:schema": arrow.encode_schema(schema)})
    return bytes(sink.getvalue())


def _is_milliseconds(dtype: pa.DataType) -> bool:
    return bool(pat.is_timestamp(dtype) and dtype.unit == "ms")


def _row_groups(columns: IndexColumns) -> arrow.Ints:
    """Bounds of row groups; an empty index has one group without rows."""
    starts = columns.offsets[:-1]
    changes = starts.searchsorted(np.arange(_ENTRIES_PER_GROUP, columns.offsets[-1], _ENTRIES_PER_GROUP))
    inner = np.union1d(np.arange(0, len(columns), _VALUES_PER_GROUP), changes[changes < len(columns)])
    return np.append(inner if len(inner) else [0], len(columns)).astype(np.int64)


def _write_group(writer: pq.ParquetWriter, columns: IndexColumns, start: int, stop: int) -> None:
    offsets, schema = columns.offsets[start : stop + 1], writer.schema
    dtype = schema.field(1).type
    codes = columns.codes[offsets[0] : offsets[-1]]
    if pat.is_dictionary(dtype.value_type):
        # those of other groups would be written, too
        is_used = np.bincount(codes, minlength=len(columns.labels)) > 0
        codes = (np.cumsum(is_used, dtype=np.int32) - 1)[codes]
        labels = pa.DictionaryArray.from_arrays(codes, columns.labels.filter(pa.array(is_used)))
    else:
        labels = columns.labels.take(pa.array(codes))
    starts = pa.array((offsets - offsets[0]).astype(np.int32))
    lists = pa.ListArray.from_arrays(starts, labels, type=dtype)
    values = columns.values.slice(start, stop - start)
    try:
        writer.write_table(pa.Table.from_arrays([values, lists], schema=schema))
    except pa.ArrowInvalid as error:
        raise ValueError(f"The index on {schema.names[0]!r} cannot be stored: {error}") from error


def parse_index(buf: bytes, column: str, key: str, row_groups: Sequence[int] | None = None) -> IndexColumns:
    """Index data of an index file, or of some of its row groups; raises CorruptDatasetError."""
    try:
        table = _read_table(buf, row_groups)
        _check_columns(table, column, key)
        table.validate(full=True)
        values = _from_file(table.column(0).combine_chunks())
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = f"it is no Parquet file of an index on {column!r} ({error})"
        raise errors.CorruptDatasetError(key, problem) from error
    lists = table.column(1)
    labels = pc.list_flatten(lists)
    if values.null_count or lists.null_count or labels.null_count:
        raise errors.CorruptDatasetError(key, f"the index on {column!r} holds nulls")
    # encoded chunk by chunk: the labels of all chunks may be too long for one array
    encoded = labels.dictionary_encode().unify_dictionaries().combine_chunks()
    lengths, codes = arrow.to_numpy(pc.list_value_length(lists)), arrow.to_numpy(encoded.indices)
    rows = None if (lengths == 1).all() else np.repeat(np.arange(len(values)), lengths)
    columns = IndexColumns.from_pairs(values, encoded.dictionary, codes, rows)
    dtype = table.schema.field(0).type
    # other libraries demand these types of an index that they have written
    return replace(columns, file_type=dtype) if arrow.is_long(dtype) or _is_milliseconds(dtype) else columns


def _from_file(values: pa.Array) -> pa.Array:
    return arrow.cast_times(values, arrow.storage_type(arrow.widen(values.type)))


#: masks row groups by the arrays of their lowest and highest values
SelectGroups = Callable[[pa.Array, pa.Array], pa.BooleanArray]


class _Part(NamedTuple):
    """Row groups of an index file, and their bytes if it is a single one."""

    row_groups: list[int]
    content: bytes | None


def _select_row_groups(buf: bytes, dtype: pa.DataType | None, select: SelectGroups) -> _Part | None:
    """The row groups of an index file that are needed; None for all."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(buf))
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        # others may store bounds of other kinds
        if len(groups) < 2 or not metadata.created_by.startswith("parquet-cpp-arrow"):
            return None
        bounds = [group.column(0).statistics for group in groups]
        if not all(each is not None and each.has_min_max for each in bounds):
            return None
        file_type = metadata.schema.to_arrow_schema().field(0).type
        low, high = (
            _from_file(pa.array([getattr(each, name) for each in bounds], file_type))
            for name in ("min", "max")
        )
    except (pa.ArrowException, OSError):
        # damaged: `parse_index` says so
        return None
    if dtype is not None and not low.type.equals(dtype):
        return None
    needed = arrow.to_numpy(select(low, high))
    if needed.all():
        return None
    numbers = np.flatnonzero(needed).tolist()
    return _Part(numbers, _content_of(buf, groups[numbers[0]]) if len(numbers) == 1 else None)


def _content_of(buf: bytes, group: pq.RowGroupMetaData) -> bytes:
    """Bytes of the columns of a row group, which Arrow writes one after the other."""
    first, last = group.column(0), group.column(group.num_columns - 1)
    start, end = (c.dictionary_page_offset or c.data_page_offset for c in (first, last))
    return buf[start : end + last.total_compressed_size]


def _read_table(buf: bytes, row_groups: Sequence[int] | None) -> pa.Table:
    """Content of the file, with dictionary-encoded labels: most of them repeat."""
    content = arrow.copy_to_arrow_memory(buf)
    plain = pq.ParquetFile(pa.BufferReader(content))
    labels = [plain.schema.column(i).path for i in range(1, plain.metadata.num_columns)]
    file = pq.ParquetFile(pa.BufferReader(content), metadata=plain.metadata, read_dictionary=labels)
    # Arrow cannot read encoded lists of several row groups at once
    numbers = range(file.num_row_groups) if row_groups is None else row_groups
    table = pa.concat_tables([file.read_row_group(i) for i in numbers] or [plain.read_row_groups([])])
    return old_parquet.cast_times(table, plain.metadata)


def _check_columns(table: pa.Table, column: str, key: str) -> None:
    if table.column_names != [column, PARTITION]:
        problem = f"an index file has the columns {column!r} and 'partition', not {table.column_names}"
        raise errors.CorruptDatasetError(key, problem)
    dtype, lists = table.schema.types
    if pat.is_nested(dtype) or pat.is_null(dtype):
        raise errors.CorruptDatasetError(key, f"values of type {dtype} cannot be indexed")
    if not (pat.is_list(lists) or pat.is_large_list(lists)) or arrow.widen(lists.value_type) != pa.string():
        raise errors.CorruptDatasetError(key, f"'partition' is {lists}, not lists of strings")


# -- indices -------------------------------------------------------------------------------------------------


class IndexBase(arguments.CopyMixin):
    """Inverted index of a column: the partitions of each value.

    Parameters
    ----------
    column
        The indexed column.
    index_dct
        Value to labels of partitions, or :class:`IndexColumns`; None: not loaded.
    dtype
        Type of the values; taken from the first value if missing.
    normalize_dtype
        Widen the type (``int8`` to ``int64``), as schemas do.

    Attributes
    ----------
    column : str
    dtype : pyarrow.DataType or None
        None for an index that is not loaded and whose type is unknown.
    columns_data : IndexColumns or None
        The index data; None if it is not loaded.
    creation_time : datetime.datetime
        When the object was made; naive UTC.

    Raises
    ------
    ValueError
        The column is called ``partition``, which no index can have.
    NotImplementedError
        Values of that type have no order: lists, or nothing but nulls.

    Examples
    --------
    >>> index = IndexBase("CITY", {"Rom": ["a1", "b2"], "Bonn": ["a1"]})
    >>> index.query("Rom")
    ['a1', 'b2']
    >>> sorted(index.eval_operator("<", "C"))
    ['a1']
    """

    def __init__(
        self,
        column: str,
        index_dct: Mapping[Any, Iterable[str]] | IndexColumns | None = None,
        dtype: pa.DataType | None = None,
        normalize_dtype: bool = True,
    ) -> None:
        if dtype is None and isinstance(index_dct, IndexColumns):
            dtype = index_dct.values.type
        elif dtype is None and index_dct:
            dtype = infer_dtype(list(cast(Mapping[Any, Any], index_dct)))
        if dtype is not None:
            if pat.is_nested(dtype) or pat.is_null(dtype):
                problem = f"Column {column!r} of type {dtype} cannot be indexed: its values have no order"
                raise NotImplementedError(problem)
            dtype = arrow.widen(dtype) if normalize_dtype else dtype
        self.column = column
        self.dtype = dtype
        self.normalize_dtype = normalize_dtype
        self.creation_time = clock.datetime_utcnow()
        self.columns_data = index_columns(column, index_dct, dtype)
        self._index_dct: dict[Any, list[str]] | None = None

    @property
    def loaded(self) -> bool:
        """Whether the index data is there."""
        return self.columns_data is not None

    @property
    def index_dct(self) -> dict[Any, list[str]]:
        """Value to labels, built when first asked for; empty if the index is not loaded."""
        if self._index_dct is None:
            self._index_dct = {} if self.columns_data is None else self.columns_data.to_dict()
        return self._index_dct

    def copy(self, **kwargs: Any) -> Self:
        """Rebuild the index through its constructor, with some of its arguments changed."""
        kwargs.setdefault("index_dct", self.columns_data)
        return super().copy(**kwargs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IndexBase):
            return NotImplemented
        if type(self) is not type(other) or self.column != other.column:
            return False
        if self.dtype is not None and other.dtype is not None and not self.dtype.equals(other.dtype):
            return False
        if self.columns_data is None or other.columns_data is None:
            return self.columns_data is other.columns_data
        return self.columns_data.equals(other.columns_data)

    def __repr__(self) -> str:
        data = "not loaded" if self.columns_data is None else f"{len(self.columns_data)} values"
        return f"{type(self).__name__}(column={self.column!r}, dtype={self.dtype}, {data})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index_dct": None}

    def _data(self) -> IndexColumns:
        if self.columns_data is None:
            raise RuntimeError(f"The index on column {self.column!r} is not loaded; call load() first")
        return self.columns_data

    @staticmethod
    def normalize_value(dtype: pa.DataType | None, value: Any) -> Any:
        """Convert a value to its form in an index; lenient (``"1"`` is 1 for integers).

        Raises
        ------
        ValueError
            The type is not known, or a text cannot be parsed.
        TypeError
            The value cannot be converted without loss.
        NotImplementedError
            Columns of this type hold no index.

        Examples
        --------
        >>> IndexBase.normalize_value(pa.int64(), "17")
        17
        """
        return arrow.normalize_value(dtype, value)

    def query(self, value: Any) -> list[str]:
        """Partitions that hold a value, which is cast leniently; none if no partition has it."""
        return list(self._labels_of(value).to_pylist())

    def _labels_of(self, value: Any) -> pa.StringArray:
        data, position = self._data(), -1
        # nulls are never indexed, not even as the text "None"
        if not expressions.is_null_value(value):
            position = pc.index(data.values, value_array([value], data.values.type)[0]).as_py()
        codes = data.codes[data.offsets[position] : data.offsets[position + 1]]  # none at position -1
        return data.labels.take(pa.array(codes))

    def partitions_with(self, value: Any, table: PartitionTable) -> arrow.Mask:
        """Mask of the partitions of a dataset with a value, which is cast leniently."""
        return arrow.to_numpy(pc.is_in(table.labels, value_set=self._labels_of(value)))

    def mask(self, op: str, value: Any) -> arrow.Mask:
        """Mask of the values that match an operator and a value of the column's type."""
        return arrow.to_numpy(expressions.literal_mask(self._data().values, op, value, self.column))

    def eval_operator(self, op: str, value: Any) -> set[str]:
        """Partitions with a value that matches a predicate; types are strict.

        Raises
        ------
        TypeError
            The value does not fit the column.
        NotImplementedError
            Unknown operator.
        """
        return set(self._data().labels_matching(self.mask(op, value)).to_pylist())

    def observed_values(self, date_as_object: bool = True) -> npt.NDArray[Any]:
        """All values, sorted; dates as :class:`datetime.date` or as ``datetime64[ns]``.

        Times with a zone are :class:`pandas.Timestamp`.
        """
        table = pa.table({"": self._data().values})
        return pandas_conversion.to_pandas(table, dates_as_object=date_as_object)[""].to_numpy()

    def as_flat_series(
        self,
        compact: bool = False,
        partitions_as_index: bool = False,
        date_as_object: bool = False,
        predicates: expressions.PredicatesType = None,
    ) -> pd.Series[Any]:
        """The index as a series of pairs.

        Parameters
        ----------
        compact
            One row per value (or partition) with a list, instead of one per pair.
        partitions_as_index
            Labels as index and values as data, instead of the reverse.
        date_as_object
            Dates as :class:`datetime.date` instead of ``datetime64[ns]``.
        predicates
            Keep only matching values; literals on other columns are ignored, and if a conjunction has no
            literal on this column nothing is filtered.

        Returns
        -------
        pandas.Series
        """
        data = self._data()
        on_column = expressions.filter_predicates_by_column(predicates, [self.column])
        if predicates is not None and on_column is not None and len(on_column) == len(predicates):
            values = pa.table({self.column: data.values})
            data = data.select(arrow.to_numpy(expressions.tree_mask(values, expressions.to_tree(on_column))))
        pairs = pa.table({"value": data.pairs()[0], "label": data.entry_labels()})
        frame = pandas_conversion.to_pandas(pairs, dates_as_object=date_as_object)
        key, value = ("label", "value") if partitions_as_index else ("value", "label")
        if compact:
            series = frame.groupby(key, sort=partitions_as_index)[value].agg(list).astype(object)
        else:
            series = pd.Series(frame[value].array, index=pd.Index(frame[key]))
        names = {"value": self.column, "label": PARTITION}
        return series.rename(names[value]).rename_axis(names[key])

    def to_dict(self) -> dict[Any, list[str]]:
        """Value to labels: a copy of :attr:`index_dct`."""
        return {value: list(labels) for value, labels in self.index_dct.items()}

    def _to_inline(self) -> dict[str, list[str]]:
        """Form in a header, with string keys; empty if not loaded; UnicodeDecodeError for binary values."""
        columns = self.columns_data
        if columns is None:
            return {}
        dtype = columns.values.type
        # booleans as the json module writes them
        if pat.is_date(dtype) or pat.is_timestamp(dtype) or pat.is_boolean(dtype):
            columns = columns.cast(pa.string())
        entries = columns.to_dict().items()
        return {v.decode("utf-8") if isinstance(v, bytes) else str(v): labels for v, labels in entries}

    def update(self, index: IndexBase, inplace: bool = False) -> Self:
        """Add the entries of another index on the same column.

        Parameters
        ----------
        index
            The other index.
        inplace
            Change this object too.

        Returns
        -------
        IndexBase
            ``self`` if there is nothing to add. The result of a change has no storage key.

        Raises
        ------
        TypeError
            It is no index, or its values have another type.
        ValueError
            It is an index on another column.
        """
        if not isinstance(index, IndexBase):
            raise TypeError(f"Expected an index to update with, got {type(index).__name__}")
        if index.column != self.column:
            raise ValueError(f"Cannot update an index on {self.column!r} with one on {index.column!r}")
        if not index.columns_data:
            return self
        data = self._data()
        if index.dtype is None or not index.dtype.equals(self.dtype):
            problem = f"Cannot update an index of {self.dtype} ({self.column!r}) with one of {index.dtype}"
            raise TypeError(problem)
        merged = IndexColumns.merge([data, index.columns_data], self.dtype)
        return self if len(merged.codes) == len(data.codes) else self._replace_data(merged, inplace)

    def remove_partitions(self, list_of_partitions: Iterable[str] | pa.Array, inplace: bool = False) -> Self:
        """Remove all entries of some partitions; the result is as that of :meth:`update`."""
        return self._replace_data(self._data().keep_labels(list_of_partitions, invert=True), inplace)

    def replace_partitions(self, labels: pa.StringArray, index: Self) -> Self:
        """Replace the entries of some partitions by those of another index of the same type."""
        data, added = self._data(), index.columns_data
        # a correction of payload, the same cells in another file: of 1.5 million 0.01 instead of 0.09 s
        renamed = None if added is None else data.replace_labels(labels, added)
        if renamed is not None:
            return self._replace_data(renamed)
        return self.remove_partitions(labels).update(index)

    def remove_values(self, list_of_values: Iterable[Any], inplace: bool = False) -> Self:
        """Remove values, which are cast leniently; the result is as that of :meth:`update`."""
        data = self._data()
        values = [value for value in list_of_values if not expressions.is_null_value(value)]
        kept = ~arrow.to_numpy(pc.is_in(data.values, value_set=value_array(values, data.values.type)))
        return self._replace_data(data if kept.all() else data.select(kept), inplace)

    def _replace_data(self, columns: IndexColumns, inplace: bool = False) -> Self:
        if columns is self.columns_data:
            return self
        if not inplace:
            return self.copy(index_dct=columns)
        self.columns_data, self._index_dct = columns, None
        return self


class PartitionIndex(IndexBase):
    """Index on a partition key, made from the labels of the partitions.

    Parameters
    ----------
    column, index_dct, normalize_dtype
        As in :class:`IndexBase`.
    dtype
        Type of the values; mandatory.

    Raises
    ------
    ValueError
        No type is given.
    """

    def __init__(
        self,
        column: str,
        index_dct: Mapping[Any, Iterable[str]] | IndexColumns | None = None,
        dtype: pa.DataType | None = None,
        normalize_dtype: bool = True,
    ) -> None:
        if dtype is None:
            raise ValueError(f"A partition index needs the type of its column {column!r}")
        super().__init__(column, index_dct, dtype, normalize_dtype)


class ExplicitSecondaryIndex(IndexBase):
    """Index on a column of the data, stored in a file of its own.

    Parameters
    ----------
    column, index_dct, dtype, normalize_dtype
        As in :class:`IndexBase`.
    index_storage_key
        Where the index is stored.

    Attributes
    ----------
    index_storage_key : str or None
        None for an index that is not stored, or was changed since.

    Raises
    ------
    ValueError
        Neither data nor key is given, or data without values and without type.

    Examples
    --------
    >>> index = ExplicitSecondaryIndex("CITY", {"Rom": ["a1"]})
    >>> index.store("hmemory://", "geodata").startswith("geodata/indices/CITY/")
    True
    """

    def __init__(
        self,
        column: str,
        index_dct: Mapping[Any, Iterable[str]] | IndexColumns | None = None,
        index_storage_key: str | None = None,
        dtype: pa.DataType | None = None,
        normalize_dtype: bool = True,
    ) -> None:
        if column == PARTITION:
            reason = "the labels of partitions have this name. Rename the column."
            raise ValueError(f"A column named {PARTITION!r} cannot be indexed: {reason}")
        if index_dct is None and index_storage_key is None:
            raise ValueError(f"An index on {column!r} needs data or a storage key")
        if dtype is None and isinstance(index_dct, Mapping) and not index_dct:
            if index_storage_key is None:
                raise ValueError(f"An index on {column!r} without values needs a type")
            index_dct = None
        super().__init__(column, index_dct, dtype, normalize_dtype)
        self.index_storage_key = index_storage_key

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ExplicitSecondaryIndex) and self.index_storage_key != other.index_storage_key:
            return False
        return super().__eq__(other)

    @staticmethod
    def from_v2(column: str, dct_or_str: str | Mapping[Any, Iterable[str]]) -> ExplicitSecondaryIndex:
        """Read an index from its form in the header: its storage key, or value to labels."""
        if isinstance(dct_or_str, str):
            return ExplicitSecondaryIndex(column, index_storage_key=dct_or_str)
        return ExplicitSecondaryIndex(column, dct_or_str)

    def copy(self, **kwargs: Any) -> Self:
        """Rebuild the index through its constructor, with some of its arguments changed.

        The copy has no storage key unless one is given: the file holds what this index does. Without any
        arguments it keeps the key.
        """
        if kwargs:
            kwargs.setdefault("index_storage_key", None)
        return super().copy(**kwargs)

    def _replace_data(self, columns: IndexColumns, inplace: bool = False) -> Self:
        if inplace and columns is not self.columns_data:
            self.index_storage_key = None
        return super()._replace_data(columns, inplace)

    def load(self, store: StoreInput | BlobStore) -> Self:
        """Read the index data from a store, factory or URL; ``self`` if it is loaded already.

        Raises
        ------
        KeyError
            There is no such file.
        CorruptDatasetError
            The file is not one of an index on this column, or has values of another type.
        """
        return self.load_entries(open_blobs(store), None)

    def load_entries(self, blobs: BlobStore, select: SelectGroups | None) -> Self:
        """Read the index data; with `select`, at least the entries of the row groups that it selects."""
        if self.columns_data is not None:
            return self
        key = str(self.index_storage_key)
        content, cache_key = get_required(blobs, key), ("index", key, self.column)
        part = None
        if select is not None and CACHE.get(cache_key, content) is None:
            # one value of 20 million takes 0.01 s, where all take 1.2 s and more memory than the cache has
            part = _select_row_groups(content, self.dtype, select)
        numbers, compared = (None, content) if part is None else part
        parse = partial(parse_index, content, self.column, key, numbers)
        if compared is None:
            columns = parse()
        else:
            # a row group again: 0.0003 s, where parsing it takes 0.003
            key_of_part = cache_key if numbers is None else (*cache_key, *numbers)
            columns = CACHE.parse(key_of_part, compared, lambda _: parse(), _memory_size)
        dtype = self.dtype
        if dtype is not None:
            # a file without Arrow's own schema says UTC or nothing, whatever the zone is
            columns = columns.cast(arrow.with_zone_of(columns.values.type, dtype))
        file_dtype = columns.values.type
        if not (dtype is None or arrow.same_type(dtype, file_dtype)):
            problem = f"it holds values of type {file_dtype}, column {self.column!r} is {dtype}"
            raise errors.CorruptDatasetError(key, problem)
        if dtype is None or not dtype.equals(file_dtype):
            # also where the schema, of another library, does not show that there are far times
            dtype = file_dtype if dtype is None else arrow.common_type(dtype, file_dtype)
            return self.copy(index_dct=columns, dtype=dtype, index_storage_key=key)
        # the usual case without the constructor, whose checks take longer than reading the file
        index = copy.copy(self)
        index.columns_data = columns
        return index

    def unload(self) -> Self:
        """Forget the index data, keep the key; raises RuntimeError if the index was never stored."""
        if self.index_storage_key is None:
            problem = f"The index on column {self.column!r} is not stored yet; store() it before unloading"
            raise RuntimeError(problem)
        index = copy.copy(self)
        index.columns_data = None
        return index

    def store(self, store: StoreInput | BlobStore, dataset_uuid: str) -> str:
        """Write the index to a file of a dataset.

        Returns
        -------
        str
            Key of the file: the one the index has, if it belongs to the dataset; else a new one with the time
            stamp of this object, or the next free one if a file of that time exists.
        """
        blobs = open_blobs(store)
        folder = f"{dataset_uuid}/{naming.INDICES_DIRECTORY}/"
        if self.index_storage_key and self.index_storage_key.startswith(folder):
            blobs.put(self.index_storage_key, render_index(self.column, self._data()), durable=True)
            return self.index_storage_key
        key = self.store_new(blobs, dataset_uuid)
        blobs.flush([key])
        return key

    def store_new(self, blobs: BlobStore, dataset_uuid: str) -> str:
        """Write the index to a new file, which a commit makes durable; return its key."""
        data = self._data()
        content = render_index(self.column, data)
        stamp = self.creation_time
        while True:
            key = naming.index_key(dataset_uuid, self.column, stamp)
            try:
                blobs.put_new(key, content)
            except PreconditionFailed:
                stamp += datetime.timedelta(microseconds=1)
            else:
                # a process that appends often need not parse it
                if data.values.type.equals(arrow.widen(data.values.type)):
                    CACHE.put(("index", key, self.column), content, data, _memory_size(data))
                self.index_storage_key = key
                return key


def _memory_size(columns: IndexColumns) -> int:
    return sum(part.nbytes for part in (columns.values, columns.offsets, columns.codes, columns.labels))


def merge_indices(list_of_indices: Iterable[Mapping[str, IndexBase]]) -> dict[str, IndexBase]:
    """Merge the indices, by column, of several sets of partitions."""
    by_column: dict[str, list[IndexBase]] = {}
    for indices in list_of_indices:
        for column, index in indices.items():
            by_column.setdefault(column, []).append(index)
    return {column: _merge(indices) for column, indices in by_column.items()}


def _merge(indices: list[IndexBase]) -> IndexBase:
    first, *others = indices
    if not others:
        return first
    types = {index.dtype for index in indices}
    if len(types) > 1:
        problem = f"Indices on {first.column!r} have different types: {', '.join(sorted(map(str, types)))}"
        raise TypeError(problem)
    return first._replace_data(IndexColumns.merge([index._data() for index in indices], first.dtype))


def remove_partitions_from_indices(
    index_dict: Mapping[str, IndexBase], partitions: Iterable[str] | pa.Array
) -> dict[str, IndexBase]:
    """Remove partitions, by their labels, from several indices."""
    labels = arrow.label_array(partitions)
    return {column: index.remove_partitions(labels) for column, index in index_dict.items()}


def filter_indices(
    index_dict: Mapping[str, IndexBase], partitions: Iterable[str] | pa.Array
) -> dict[str, IndexBase]:
    """Keep only some partitions, by their labels, in several indices."""
    labels = arrow.label_array(partitions)
    return {c: index._replace_data(index._data().keep_labels(labels)) for c, index in index_dict.items()}


# -- conversion of values -----------------------------------------------------------------------------------


def infer_dtype(values: Sequence[Any]) -> pa.DataType:
    """Arrow type of Python values, by the first one that is not null."""
    first = next((value for value in values if not expressions.is_null_value(value)), None)
    if isinstance(first, np.datetime64 | datetime.datetime):
        stamp = pd.Timestamp(first)
        dtype = pa.timestamp("ns", None if stamp.tz is None else str(stamp.tz))
        try:
            value_array([value for value in values if not expressions.is_null_value(value)], dtype)
        except ValueError:
            return arrow.with_far_times(dtype)
        return dtype
    try:
        return pa.array([first]).type
    except OverflowError:
        return pa.array([first], pa.uint64()).type


def value_array(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Lenient conversion of values without nulls to an array."""
    plain = arrow.convert_plain(values, dtype)
    if plain is not None:
        return plain
    converted = [arrow.normalize_value(dtype, value) for value in values]
    if not pat.is_timestamp(dtype):
        return pa.array(converted, dtype)
    dtype_in_memory = arrow.memory_type(dtype)
    stamps = np.array(converted, dtype=f"datetime64[{dtype_in_memory.unit}]").view("i8")
    return pa.array(stamps, pa.int64()).cast(dtype_in_memory).cast(dtype)


def index_columns(
    column: str, data: Mapping[Any, Iterable[str]] | IndexColumns | None, dtype: pa.DataType | None
) -> IndexColumns | None:
    """Index data of a dict or of index data; None without data or type."""
    # Duplicates after conversion are merged with a warning.
    if data is None or dtype is None:
        return None
    if isinstance(data, IndexColumns):
        return data.cast(dtype)
    null = pd.Series(list(data), dtype=object).isna()
    present = {value: data[value] for value in compress(data, ~null.to_numpy())} if null.any() else data
    values = value_array(list(present), dtype)
    collisions = len(values) - len(values.unique())
    if collisions:
        text = "%s values of the index on %r are the same once they are %s; their partitions were united."
        _LOGGER.warning(text, collisions, column, dtype)
    return IndexColumns.from_dict(values, list(present.values()))
