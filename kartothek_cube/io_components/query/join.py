"""Joins: how the payload of a dataset is added to the rows of the seed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.io_components.columns import take_values
from kartothek_cube.io_components.keys import encode_keys, is_dense, lookup_codes
from kartothek_cube.io_components.query.logical_plan import Role
from kartothek_cube.io_components.query.physical_plan import match_partitions
from kartothek_cube.io_components.query.row_batch import RowBatch


def join(left: RowBatch, right: RowBatch) -> RowBatch:
    """
    Rows of the seed with the payload of another dataset, of each of its cells the version written last.

    An inner join drops the rows of the seed without a match; a left join gives them nulls.
    """
    if _have_equal_cells(left, right):
        return left.append_columns((column, right.table.column(column)) for column in right.scan.payload)
    matches = _match_rows(left, right)
    missing = int(matches.min(initial=0)) < 0
    if missing and right.scan.role is Role.RESTRICTED:
        left, matches, missing = left.filter(matches >= 0), matches[matches >= 0], False
    return left.append_columns(
        (column, take_values(right.table.column(column), matches, missing=missing))
        for column in right.scan.payload
    )


def _have_equal_cells(left: RowBatch, right: RowBatch) -> bool:
    """Whether both have the same cells row by row."""
    a, b = left.scan, right.scan
    if len(left) != len(right) or a.dimensions != b.dimensions or a.alignment != b.alignment:
        return False
    pairs = zip(left.columns(a.dimensions), right.columns(b.dimensions), strict=True)
    return _partition_lengths(left) == _partition_lengths(right) and all(
        x.type == y.type and x.equals(y) for x, y in pairs
    )


def _partition_lengths(rows: RowBatch) -> dict[int, int]:
    """Number of rows of the physical partitions that have some."""
    lengths = np.bincount(rows.partition_ids, rows.counts).astype(np.int64)
    (ids,) = lengths.nonzero()
    return dict(zip(ids.tolist(), lengths[ids].tolist(), strict=True))


def _match_rows(left: RowBatch, right: RowBatch) -> Ints:
    """For each row of ``left`` the row of ``right`` with its key and partition, or -1."""
    dimensions = right.scan.dimensions
    left_keys, right_keys = left.columns(dimensions), right.columns(dimensions)
    left_ids, right_ids = _partition_ids(left, right)
    codes = encode_keys(left_keys, right_keys, len(left), len(right))
    # Cells mostly tell their partition. Then the codes of both would only take a larger table.
    matches = lookup_codes(*codes)
    in_partition = _stay_in_partition(matches, left.counts, left_ids, right.counts, right_ids)
    if in_partition and _is_unique(codes.right, codes.bound):
        return matches
    left_keys = [pa.array(np.repeat(left_ids, left.counts)), *left_keys]
    right_keys = [pa.array(np.repeat(right_ids, right.counts)), *right_keys]
    return lookup_codes(*encode_keys(left_keys, right_keys, len(left), len(right)))


def _stay_in_partition(
    matches: Ints, left_counts: Ints, left_ids: Ints, right_counts: Ints, right_ids: Ints
) -> bool:
    """Whether all rows match none or one of their partition; arrays of 8 bytes per row would cost more."""
    if (right_ids[1:] < right_ids[:-1]).any():
        return False
    ends = np.append(0, np.cumsum(right_counts))
    starts = np.cumsum(left_counts) - left_counts
    (used,) = left_counts.nonzero()
    if not len(used):
        return True
    first, last = (ends[right_ids.searchsorted(left_ids[used], side)] for side in ("left", "right"))
    # unsigned, no match is greater than all others
    lowest = np.minimum.reduceat(matches.view(np.uint64), starts[used])
    highest = np.maximum.reduceat(matches, starts[used])
    return bool(((lowest >= first.astype(np.uint64)) & (highest < last)).all())


def _is_unique(codes: Ints, bound: int) -> bool:
    if not is_dense(bound, len(codes)):
        return len(np.unique(codes)) == len(codes)
    return int(np.bincount(codes + 1, minlength=1)[1:].max(initial=0)) < 2


def _partition_ids(left: RowBatch, right: RowBatch) -> tuple[Ints, Ints]:
    """Common ids of the physical partitions, for each file of either table."""
    left_ids, right_ids = left.partition_ids, right.partition_ids
    if left.scan.alignment != right.scan.alignment:
        left_ids, right_ids = match_partitions(
            left.keys, right.keys, right.scan, len(left_ids), len(right_ids)
        )
    return left_ids, right_ids
