"""Index entries out of tables: which values a column has in which partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.arrow.types import widen
from kartothek_cube.core.commit import IndexUpdate
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.io_components.kernels.sort import strictly_increasing

__all__ = ("index_entries", "index_entries_of", "merge_entries")

Ints = npt.NDArray[np.int64]


def merge_entries(entries: Sequence[IndexUpdate]) -> IndexUpdate:
    """
    Index entries of one column out of several places.

    Parameters
    ----------
    entries
        The entries, at least one; those of partitions without any value may be of type ``null``.

    Returns
    -------
    IndexEntries
    """
    typed = [e.entries.values.type for e in entries if not pa.types.is_null(e.entries.values.type)]
    merged = IndexColumns.merge([e.entries for e in entries], typed[0] if typed else pa.null())
    return IndexUpdate(merged, pa.concat_arrays([e.covered for e in entries]))


def index_entries(
    values: pa.ChunkedArray, starts: Ints, labels: pa.StringArray, dtype: pa.DataType
) -> IndexUpdate:
    """
    Index entries of one column of a table whose rows are written as several partitions.

    Parameters
    ----------
    values
        The column.
    starts
        Position of the first row of each partition.
    labels
        The partitions.
    dtype
        Type of the column; the entries have it in its widened form.

    Returns
    -------
    IndexEntries
        Nulls are not indexed.
    """
    piece = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))
    distinct, codes, pieces = _distinct_pairs(values, piece, len(starts))
    if pa.types.is_null(distinct.type) or not distinct.type.equals(widen(dtype)):
        distinct = distinct.cast(widen(dtype))
    return IndexUpdate(IndexColumns.from_pairs(distinct.take(pa.array(codes)), labels, pieces), labels)


def _distinct_pairs(values: pa.ChunkedArray, piece: Ints, n_pieces: int) -> tuple[pa.Array, Ints, Ints]:
    """Distinct values, and the distinct (value code, piece) pairs."""
    array = values.combine_chunks()
    if isinstance(array, pa.Array) and len(array) and strictly_increasing([array], len(array)):
        return array, np.arange(len(array)), piece
    array = (
        array.dictionary_encode()
        if not pa.types.is_null(values.type)
        else pa.array([], pa.null()).dictionary_encode()
    )
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    distinct = array.dictionary
    if not len(distinct):
        return distinct, np.empty(0, np.int64), np.empty(0, np.int64)
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        piece = piece[valid]
        array = array.drop_null()
    codes = array.indices.to_numpy().astype(np.int64)
    key = codes * n_pieces + piece
    size = len(distinct) * n_pieces
    if size <= max(8 * len(key), 1 << 16):
        present = np.zeros(size, dtype=bool)
        present[key] = True
        key = np.flatnonzero(present)
    else:
        key = np.unique(key)
    return distinct, key // n_pieces, key % n_pieces


def index_entries_of(
    column: str, labels: Sequence[str], tables: Iterable[pa.Table], dtype: pa.DataType
) -> IndexUpdate:
    """Index entries of partitions out of their tables, in the order of the labels."""
    found = list(tables)
    starts = np.cumsum([0, *(len(t) for t in found)])[:-1]
    rows = [t.column(column).cast(dtype) for t in found]
    values = pa.chunked_array([chunk for r in rows for chunk in r.chunks], type=dtype)
    return index_entries(values, starts.astype(np.int64), pa.array(labels, pa.string()), dtype)
