"""Order of rows by key columns: sorting, runs of equal keys, chunks of sorted streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow.types import Ints, Mask
from kartothek_cube.io_components.kernels.encode import (
    combine_keys,
    decode_dictionary,
    encode_ordered,
    integers,
    is_dense,
)
from kartothek_cube.io_components.kernels.take import Column, as_chunked, take_values

#: rows of a table: at this size the fixed cost of writing a file is small compared with its rows
CHUNK_ROWS = 1 << 17


def strictly_increasing(columns: Sequence[Column], length: int) -> bool:
    """Whether the key strictly increases from row to row: the rows are sorted and unique."""
    equal = equal_neighbours(columns, length)
    return equal is not None and not equal.any()


def equal_neighbours(columns: Sequence[Column], length: int, block_starts: Ints | None = None) -> Mask | None:
    """For each row but the last: has the next row of its block its key? None if a block is not sorted."""
    equal = np.ones(max(length - 1, 0), dtype=bool)
    if block_starts is not None:
        equal[block_starts - 1] = False
    for column in columns:
        if not equal.any():
            break
        steps = _compare_neighbours(column)
        if steps is None or not (steps[0] | ~equal).all():
            return None
        equal &= steps[1]
    return equal


def _compare_neighbours(column: Column) -> tuple[Mask, Mask] | None:
    """For each row but the last: is the next value at least its own, is it equal; None if one is null."""
    chunked = as_chunked(column)
    if chunked.null_count:
        return None
    values = _rank_codes(chunked) if pa.types.is_dictionary(chunked.type) else integers(chunked)
    if values is not None:
        before, after = values[:-1], values[1:]
        return after >= before, after == before
    chunked = decode_dictionary(chunked)
    first, second = chunked.slice(0, len(chunked) - 1), chunked.slice(1)
    ordered, equal = pc.greater_equal(second, first), pc.equal(second, first)
    return ordered.to_numpy(zero_copy_only=False), equal.to_numpy(zero_copy_only=False)


def _rank_codes(column: pa.ChunkedArray) -> Ints | None:
    """Numbers that compare as encoded texts do; None for other types and several dictionaries."""
    # comparing the texts takes several times as long
    if column.num_chunks != 1 or not pa.types.is_string(column.type.value_type):
        return None
    chunk = column.chunk(0)
    if chunk.dictionary.null_count:
        return None
    ranks: Ints = pc.rank(chunk.dictionary, tiebreaker="dense").to_numpy().astype(np.int64)
    values: Ints = ranks[chunk.indices.to_numpy()]
    return values


def sort_order(columns: Sequence[Column], length: int) -> Ints | None:
    """Stable order that sorts the rows by the columns; None if they are sorted already."""
    if strictly_increasing(columns, length):
        return None
    codes, bound = combine_keys([encode_ordered(column) for column in columns], length)
    if length < 2 or bool((codes[1:] >= codes[:-1]).all()):
        return None
    if is_dense(bound, length):
        # counting sort; it keeps one row per code, so it holds for unique keys only
        order = np.full(bound, -1, dtype=np.int64)
        order[codes] = np.arange(length)
        order = order[order >= 0]
        if len(order) == length:
            return order
    return np.argsort(codes, kind="stable")


def last_occurrence_mask(codes: Ints, bound: int) -> Mask | None:
    """Mask of the last row of each code; None if no code occurs twice."""
    length = len(codes)
    if length < 2:
        return None
    if is_dense(bound, length):
        last = np.full(bound, -1, dtype=np.int64)
        last[codes] = np.arange(length)
        keep = last[codes] == np.arange(length)
    else:
        keep = np.zeros(length, dtype=bool)
        keep[length - 1 - np.unique(codes[::-1], return_index=True)[1]] = True
    return None if keep.all() else keep


def rechunk_by_partition(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], rows: int = CHUNK_ROWS, limit: int | None = None
) -> Iterator[pa.Table]:
    """
    Tables of about ``rows`` rows that end where a logical partition ends, never empty.

    A partition of more than ``limit`` rows is cut. Without ``keys`` all rows are one partition.

    >>> batch = pa.record_batch({"COUNTRY_CODE": ["DE", "DE", "FR", "UK"], "DAY": [1, 2, 1, 1]})
    >>> [len(table) for table in rechunk_by_partition([batch, batch.slice(3)], ["COUNTRY_CODE"], rows=3)]
    [3, 2]
    """
    pending: list[pa.RecordBatch] = []
    n_pending = 0
    for batch in batches:
        while len(batch):
            head = batch if limit is None else batch.slice(0, limit - n_pending)
            batch = batch.slice(len(head))
            pending.append(head)
            n_pending += len(head)
            full = n_pending == limit
            if n_pending < rows and not full:
                continue
            end = _last_end(pending, keys)
            if end is None and not full:
                continue
            pending[-1], tail = head.slice(0, end), head.slice(len(head) if end is None else end)
            yield pa.Table.from_batches(filter(len, pending))
            pending, n_pending = [tail] if len(tail) else [], len(tail)
    if pending:
        yield pa.Table.from_batches(pending)


def _last_end(pending: Sequence[pa.RecordBatch], keys: Sequence[str]) -> int | None:
    """Where the last partition begins in the last batch; None if it began in an earlier one."""
    if not keys:
        return None
    # the row before the last batch tells whether a partition begins with its first row
    batches = [pending[-2].slice(len(pending[-2]) - 1), pending[-1]] if len(pending) > 1 else [pending[-1]]
    table = pa.Table.from_batches(batches, schema=pending[-1].schema)
    codes, _ = combine_keys([encode_ordered(table.column(key)) for key in keys], len(table))
    starts = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    if not len(starts):
        return None
    return int(starts[-1]) - (len(batches) - 1)


def sort_rows(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Sort rows by columns, nulls last; the sort is stable, and sorted rows are not copied."""
    order = sort_order([table.column(column) for column in columns], len(table)) if columns else None
    if order is None:
        return table
    arrays = [take_values(column, order, missing=False) for column in table.columns]
    return pa.Table.from_arrays(arrays, schema=table.schema)


def last_rows_mask(columns: Sequence[Column], length: int) -> Mask | None:
    """Mask of the last row of each key; None if no key repeats."""
    return last_occurrence_mask(*combine_keys([encode_ordered(column) for column in columns], length))
