"""Cutting a stream of sorted record batches into tables that hold whole logical partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from kartothek_cube.io_components.kernels.keys import combine_keys, encode_ordered

__all__ = ("CHUNK_ROWS", "rechunk_by_rows", "rechunk_by_partition")

#: rows that are worth a table of their own
CHUNK_ROWS = 1 << 17


def rechunk_by_partition(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], rows: int = CHUNK_ROWS, limit: int | None = None
) -> Iterator[pa.Table]:
    """
    Tables that end where a logical partition ends; only one of them is held at a time.

    Parameters
    ----------
    batches
        Rows; those of a partition are next to each other.
    keys
        Columns whose values make a partition; none: all rows are one.
    rows
        When so many rows are held, all of them up to the end of the last whole partition become a table.
    limit
        Rows that a table may have; a partition that has more goes on in the next one.

    Yields
    ------
    pyarrow.Table
        Never empty.

    Examples
    --------
    >>> batch = pa.record_batch({"COUNTRY_CODE": ["DE", "DE", "FR", "UK"], "DAY": [1, 2, 1, 1]})
    >>> [len(table) for table in whole_partitions([batch, batch.slice(3)], ["COUNTRY_CODE"], rows=3)]
    [3, 2]
    """
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while len(batch):
            taken = batch if limit is None else batch.slice(0, limit - count)
            batch = batch.slice(len(taken))
            held.append(taken)
            count += len(taken)
            full = count == limit
            if count < rows and not full:
                continue
            end = _last_end(held, keys)
            if end is None and not full:
                continue
            held[-1], rest = taken.slice(0, end), taken.slice(len(taken) if end is None else end)
            yield pa.Table.from_batches(filter(len, held))
            held, count = [rest] if len(rest) else [], len(rest)
    if held:
        yield pa.Table.from_batches(held)


def _last_end(held: Sequence[pa.RecordBatch], keys: Sequence[str]) -> int | None:
    """Position in the last batch at which its last partition begins; None if that began before it."""
    if not keys:
        return None
    parts = [held[-2].slice(len(held[-2]) - 1), held[-1]] if len(held) > 1 else [held[-1]]
    table = pa.Table.from_batches(parts, schema=held[-1].schema)
    codes, _ = combine_keys([encode_ordered(table.column(key)) for key in keys], len(table))
    change = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    if not len(change):
        return None
    return int(change[-1]) - (len(parts) - 1)


def rechunk_by_rows(batches: Iterable[pa.RecordBatch], rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
    """
    Tables of exactly so many rows, but for the last one.

    Parameters
    ----------
    batches
        Rows.
    rows
        Rows per table.

    Yields
    ------
    pyarrow.Table

    Examples
    --------
    >>> [len(table) for table in tables_of([pa.record_batch({"DAY": [1, 2, 3]})] * 2, rows=4)]
    [4, 2]
    """
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in filter(len, batches):
        while count + len(batch) >= rows:
            yield pa.Table.from_batches([*held, batch.slice(0, rows - count)])
            batch, held, count = batch.slice(rows - count), [], 0
        if len(batch):
            held.append(batch)
            count += len(batch)
    if held:
        yield pa.Table.from_batches(held)
