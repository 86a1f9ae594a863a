"""Chunks of a stream of sorted record batches: tables that end where a logical partition ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from kartothek_cube.io_components.kernels.encode import combine_keys, encode_ordered

__all__ = ("CHUNK_ROWS", "rechunk_by_rows", "rechunk_by_partition")

#: rows of a table: at this size the fixed cost of writing a file is small compared with its rows
CHUNK_ROWS = 1 << 17


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


def rechunk_by_rows(batches: Iterable[pa.RecordBatch], rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
    """
    Tables of exactly ``rows`` rows, but for the last one.

    >>> [len(table) for table in rechunk_by_rows([pa.record_batch({"DAY": [1, 2, 3]})] * 2, rows=4)]
    [4, 2]
    """
    pending: list[pa.RecordBatch] = []
    n_pending = 0
    for batch in filter(len, batches):
        while n_pending + len(batch) >= rows:
            yield pa.Table.from_batches([*pending, batch.slice(0, rows - n_pending)])
            batch, pending, n_pending = batch.slice(rows - n_pending), [], 0
        if len(batch):
            pending.append(batch)
            n_pending += len(batch)
    if pending:
        yield pa.Table.from_batches(pending)
