"""An inverted index as columns: sorted values, and for each of them the partitions that hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core.arrow.arrays import compact_buffers, label_array, lookup
from kartothek_cube.core.partition import PartitionTable

__all__ = (
    "IndexColumns",
    "not_null_mask",
    "order",
    "rank",
    "sorted_within",
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class IndexColumns:
    """
    Index data of one column; immutable.

    The partitions with value ``values[i]`` are ``labels[codes[k]]`` for ``offsets[i] <= k < offsets[i + 1]``.

    Attributes
    ----------
    values : pyarrow.Array
        Sorted, unique, without null and NaN.
    offsets : numpy.ndarray of int64
        One more than there are values.
    codes : numpy.ndarray of int32
        Positions in ``labels``; no value has a partition twice, every value has one.
    labels : pyarrow.StringArray
        Unique labels of partitions; some may occur in no value.
    file_type : pyarrow.DataType or None
        Type of the values in files, where that is another one: plateau writes ``large_string`` (on pandas 3)
        and milliseconds, and refuses to update an index of ``string`` or microseconds then.

    Examples
    --------
    >>> columns = IndexColumns.from_pairs(pa.array(["Rom", "Bonn", "Rom"]), ["a1", "a1", "b2"])
    >>> columns.to_dict()
    {'Bonn': ['a1'], 'Rom': ['a1', 'b2']}
    """

    values: pa.Array
    offsets: Ints
    codes: npt.NDArray[np.int32]
    labels: pa.StringArray
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
        """
        An index without values.

        Parameters
        ----------
        dtype
            Type of the values.
        file_type
            Type of the values in files, if it is another one.

        Returns
        -------
        IndexColumns
        """
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
        """
        Index data out of (value, partition) pairs in any order, with duplicates and nulls.

        Parameters
        ----------
        values
            One value per pair; or, with ``rows``, fewer. Nulls and NaN are left out.
        labels
            One label per pair; or, with ``codes``, unique labels.
        codes
            Per pair the position of its label.
        rows
            Per pair the position of its value.

        Returns
        -------
        IndexColumns
            The partitions of a value are in the order of the pairs.
        """
        names = label_array(labels)
        if codes is None:
            encoded = names.dictionary_encode()
            names, codes = encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False)
        entries: Ints = codes.astype(np.int64, copy=False)
        good = not_null_mask(values)
        if good is not None:
            kept = good if rows is None else good[rows]
            entries = entries[kept]
            rows = None if rows is None else (np.cumsum(good) - 1)[rows[kept]]
            values = values.filter(pa.array(good))
        distinct, ranks = rank(values)
        ranks = ranks if rows is None else ranks[rows]
        sorter = order(ranks, entries, max(len(names), 1))
        if sorter is not None:
            ranks, entries = ranks[sorter], entries[sorter]
        return cls._from_ranks(distinct, ranks, entries, names)

    @classmethod
    def from_dict(cls, values: pa.Array, lists: Sequence[Iterable[str]]) -> IndexColumns:
        """
        Index data out of one Python list of labels per value.

        Parameters
        ----------
        values
            Values in any order, with duplicates and nulls.
        lists
            Per value the labels of its partitions.

        Returns
        -------
        IndexColumns
        """
        columns = list(map(list, lists))
        rows = np.repeat(np.arange(len(values)), np.fromiter(map(len, columns), np.int64, len(columns)))
        encoded = label_array(list(chain.from_iterable(columns))).dictionary_encode()
        return cls.from_pairs(values, encoded.dictionary, encoded.indices.to_numpy(), rows)

    @classmethod
    def merge(cls, parts: Iterable[IndexColumns], dtype: pa.DataType) -> IndexColumns:
        """
        One index that holds the entries of several.

        Parameters
        ----------
        parts
            Indices of one column.
        dtype
            Type of the values of the result.

        Returns
        -------
        IndexColumns
            The partitions of a value are in the order of the parts; ``file_type`` is that of the first part
            that has one.
        """
        given = list(parts)
        filled = [part.cast(dtype) for part in given if len(part.codes)]
        merged = cls._merged(filled) if filled else cls.empty(dtype)
        file_type = next((part.file_type for part in given if part.file_type is not None), None)
        return replace(merged, file_type=file_type)

    @classmethod
    def _merged(cls, filled: Sequence[IndexColumns]) -> IndexColumns:
        if len(filled) == 1:
            return filled[0]
        labels = pa.concat_arrays([part.labels for part in filled])
        values = pa.concat_arrays([part.values for part in filled])
        if len(labels.unique()) == len(labels):
            return cls._interleaved(filled, *rank(values), labels)
        encoded = labels.dictionary_encode()
        codes = encoded.indices.to_numpy()[np.concatenate([part.codes for part in _numbered(filled)])]
        first = np.cumsum([0, *map(len, filled)])
        rows = np.concatenate([part.value_ids() + row for part, row in zip(filled, first, strict=False)])
        return cls.from_pairs(values, encoded.dictionary, codes, rows)

    @classmethod
    def _interleaved(
        cls, parts: Sequence[IndexColumns], values: pa.Array, ranks: Ints, labels: pa.StringArray
    ) -> IndexColumns:
        """Entries of parts that have no partition in common: all are kept, and none has to be compared."""
        ranks_of = np.split(ranks, np.cumsum([len(part) for part in parts])[:-1])
        counts_of = [np.diff(part.offsets) for part in parts]
        total = np.zeros(len(values), dtype=np.int64)
        for own, counts in zip(ranks_of, counts_of, strict=True):
            total[own] += counts
        offsets = np.concatenate([[0], np.cumsum(total)])
        free, codes = offsets[:-1].copy(), np.empty(offsets[-1], dtype=np.int32)
        for part, own, counts in zip(_numbered(parts), ranks_of, counts_of, strict=True):
            shift = np.repeat(free[own] - part.offsets[:-1], counts)
            codes[shift + np.arange(len(part.codes))] = part.codes
            free[own] += counts
        return cls(values, offsets, codes, labels)

    @classmethod
    def _from_ranks(cls, values: pa.Array, ranks: Ints, codes: Ints, labels: pa.StringArray) -> IndexColumns:
        """Entries sorted by value; values without entries are left out."""
        counts = np.bincount(ranks, minlength=len(values))
        if not counts.all():
            values, counts = values.filter(pa.array(counts > 0)), counts[counts > 0]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(values, offsets, codes.astype(np.int32), labels)

    def cast(self, dtype: pa.DataType) -> IndexColumns:
        """
        The same entries with values of a wider type, or another flavour of the type.

        Parameters
        ----------
        dtype
            Type wanted; has to keep the order of the values.

        Returns
        -------
        IndexColumns
            ``self`` if nothing changes.
        """
        if self.values.type.equals(dtype):
            return self
        return replace(self, values=self.values.cast(dtype))

    def value_ids(self) -> Ints:
        """
        Per entry the position of its value.

        Returns
        -------
        numpy.ndarray of int64
        """
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.offsets))

    def pairs(self) -> tuple[pa.Array, npt.NDArray[np.int32]]:
        """
        All entries.

        Returns
        -------
        values : pyarrow.Array
            Sorted.
        codes : numpy.ndarray of int32
            Per entry the position of its label.
        """
        return self.values.take(pa.array(self.value_ids())), self.codes

    def entry_labels(self) -> pa.StringArray:
        """
        Per entry the label of its partition.

        Returns
        -------
        pyarrow.StringArray
        """
        return self.labels.take(pa.array(self.codes))

    def select(self, mask: Mask) -> IndexColumns:
        """
        The entries of some values.

        Parameters
        ----------
        mask
            One bool per value.

        Returns
        -------
        IndexColumns
        """
        kept = np.repeat(mask, np.diff(self.offsets))
        counts = np.diff(self.offsets)[mask]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return replace(
            self, values=self.values.filter(pa.array(mask)), offsets=offsets, codes=self.codes[kept]
        )

    def labels_matching(self, mask: Mask) -> pa.StringArray:
        """
        Partitions that hold at least one of some values.

        Parameters
        ----------
        mask
            One bool per value.

        Returns
        -------
        pyarrow.StringArray
            In the order of ``labels``, each once.
        """
        hit = np.zeros(len(self.labels), dtype=bool)
        hit[self.codes[np.repeat(mask, np.diff(self.offsets))]] = True
        return self.labels.filter(pa.array(hit))

    def positions_matching(self, mask: Mask, table: PartitionTable) -> Mask:
        """
        Which partitions of a dataset hold at least one of some values.

        Parameters
        ----------
        mask
            One bool per value.
        table
            The dataset's partitions.

        Returns
        -------
        numpy.ndarray of bool
            One per partition of the table.
        """
        found = pc.is_in(table.labels, value_set=self.labels_matching(mask))
        result: Mask = found.to_numpy(zero_copy_only=False)
        return result

    def positions(self, table: PartitionTable) -> Ints:
        """
        Per entry where its partition stands in a dataset.

        Parameters
        ----------
        table
            The dataset's partitions.

        Returns
        -------
        numpy.ndarray of int64
            -1 for labels that are not there.
        """
        found: Ints = table.positions(self.labels)[self.codes]
        return found

    def find(self, value: pa.Scalar) -> int:
        """
        Position of one value.

        Parameters
        ----------
        value
            A value of the values' type.

        Returns
        -------
        int
            -1 if it is not there.
        """
        return int(pc.index(self.values, value).as_py())

    def labels_of(self, position: int) -> list[str]:
        """
        Partitions of one value.

        Parameters
        ----------
        position
            Position of the value; -1 stands for none.

        Returns
        -------
        list of str
        """
        if position < 0:
            return []
        codes = self.codes[self.offsets[position] : self.offsets[position + 1]]
        labels: list[str] = self.labels.take(pa.array(codes)).to_pylist()
        return labels

    def keep_labels(self, labels: Iterable[str] | pa.Array, *, invert: bool = False) -> IndexColumns:
        """
        The entries of some partitions; values left without partitions vanish.

        Parameters
        ----------
        labels
            The partitions.
        invert
            Keep all other partitions instead.

        Returns
        -------
        IndexColumns
            ``self`` if all entries stay.
        """
        known = pc.is_in(self.labels, value_set=label_array(labels)).to_numpy(zero_copy_only=False)
        kept = (known != invert)[self.codes]
        if kept.all():
            return self
        used, codes = np.unique(self.codes[kept], return_inverse=True)
        labels = self.labels.take(pa.array(used))
        found = self._from_ranks(self.values, self.value_ids()[kept], codes, labels)
        return replace(found, file_type=self.file_type)

    def drop_values(self, values: pa.Array) -> IndexColumns:
        """
        All entries but those of some values.

        Parameters
        ----------
        values
            Values of the index's type.

        Returns
        -------
        IndexColumns
            ``self`` if no such value is there.
        """
        gone = pc.is_in(self.values, value_set=values).to_numpy(zero_copy_only=False)
        return self.select(~gone) if gone.any() else self

    def equals(self, other: IndexColumns) -> bool:
        """
        Whether both hold the same entries, in whatever order the partitions of a value are.

        Parameters
        ----------
        other
            Other index data.

        Returns
        -------
        bool
        """
        if not (self.values.equals(other.values) and np.array_equal(self.offsets, other.offsets)):
            return False
        theirs = lookup(other.labels, self.labels)[other.codes]
        ids = self.value_ids()
        return bool(np.array_equal(sorted_within(ids, self.codes), sorted_within(ids, theirs)))

    def to_dict(self) -> dict[Any, list[str]]:
        """
        Value to labels, for users; nothing in this package loops over it.

        Returns
        -------
        dict
            Time stamps are :class:`numpy.datetime64` in ns (UTC if they have a zone).
        """
        if pat.is_timestamp(self.values.type):
            values = list(
                self.values.cast(pa.timestamp("ns", self.values.type.tz)).to_numpy(zero_copy_only=False)
            )
        else:
            values = self.values.to_pylist()
        labels = self.entry_labels().to_pylist()
        bounds = self.offsets.tolist()
        return {value: labels[bounds[i] : bounds[i + 1]] for i, value in enumerate(values)}


def _numbered(parts: Sequence[IndexColumns]) -> Iterator[IndexColumns]:
    """The parts with codes for the labels of all of them, one after the other."""
    start = 0
    for part in parts:
        yield replace(part, codes=part.codes + np.int32(start))
        start += len(part.labels)


def not_null_mask(values: pa.Array) -> Mask | None:
    """Mask of what is neither null nor NaN; None if that is everything."""
    if not values.null_count and not pat.is_floating(values.type):
        return None
    mask: Mask = pc.is_valid(values).to_numpy(zero_copy_only=False)
    if pat.is_floating(values.type):
        mask = mask & ~np.isnan(values.to_numpy(zero_copy_only=False))
    return None if mask.all() else mask


def rank(values: pa.Array) -> tuple[pa.Array, Ints]:
    """Sorted distinct values, and per value its position among them."""
    if pat.is_floating(values.type):
        values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 is 0.0
    if _is_strictly_sorted(values):
        return values, np.arange(len(values), dtype=np.int64)
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return encoded.dictionary.take(pa.array(order)), rank[encoded.indices.to_numpy()]


def _is_strictly_sorted(values: pa.Array) -> bool:
    if len(values) < 2:
        return True
    return bool(pc.all(pc.less(values.slice(0, len(values) - 1), values.slice(1))).as_py())


def order(ranks: Ints, codes: Ints, n_labels: int) -> Ints | None:
    """
    Positions that sort entries by value, first occurrences only; otherwise the order stays.

    None if that is how they are.
    """
    pairs = ranks * n_labels + codes
    if (pairs[1:] > pairs[:-1]).all():
        return None
    order = np.argsort(ranks, kind="stable")
    arranged = pairs[order]
    if (arranged[1:] > arranged[:-1]).all():
        return order
    first = np.sort(np.unique(pairs, return_index=True)[1])
    return first[np.argsort(ranks[first], kind="stable")]


def sorted_within(ids: Ints, codes: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """Codes sorted by id, and among equal ids by themselves."""
    return codes[np.lexsort([codes, ids])]
