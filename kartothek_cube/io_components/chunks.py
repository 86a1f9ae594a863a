"""Cutting a stream of sorted record batches into tables that hold whole logical partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from kartothek_cube.io_components.columns import combine, ordinals

__all__ = ("CHUNK_ROWS", "tables_of", "whole_partitions")

#: rows that are worth a table of their own
CHUNK_ROWS = 1 << 17


def whole_partitions(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], rows: int = CHUNK_ROWS
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
    for batch in filter(len, batches):
        held.append(batch)
        count += len(batch)
        if count < rows:
            continue
        end = _last_end(held, keys)
        if end is None:
            continue
        held[-1] = batch.slice(0, end)
        yield pa.Table.from_batches(filter(len, held))
        held, count = [batch.slice(end)], len(batch) - end
    if held:
        yield pa.Table.from_batches(held)


def _last_end(held: Sequence[pa.RecordBatch], keys: Sequence[str]) -> int | None:
    """Position in the last batch at which its last partition begins; None if that began before it."""
    if not keys:
        return None
    parts = [held[-2].slice(len(held[-2]) - 1), held[-1]] if len(held) > 1 else [held[-1]]
    table = pa.Table.from_batches(parts, schema=held[-1].schema)
    codes, _ = combine([ordinals(table.column(key)) for key in keys], len(table))
    change = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    if not len(change):
        return None
    return int(change[-1]) - (len(parts) - 1)


def tables_of(batches: Iterable[pa.RecordBatch], rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
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
