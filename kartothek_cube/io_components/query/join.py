"""Joins: how the payload of a dataset is added to the rows of the seed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.io_components.kernels.encode import fits_table
from kartothek_cube.io_components.kernels.search import encode_keys, lookup_codes
from kartothek_cube.io_components.kernels.take import take_values
from kartothek_cube.io_components.query.logical_plan import Role
from kartothek_cube.io_components.query.physical_plan import match_partitions
from kartothek_cube.io_components.query.row_batch import RowBatch

__all__ = ("join",)


def join(left: RowBatch, right: RowBatch) -> RowBatch:
    """
    Rows of the seed with the payload of another dataset, of each of its cells the version written last.

    An inner join drops the rows of the seed without a match; a left join gives them nulls.
    """
    if _have_equal_cells(left, right):
        return left.append_columns((column, right.table.column(column)) for column in right.scan.payload)
    matches = _match_rows(left, right)
    missing = bool((matches < 0).any())
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
    return all(x.type == y.type and x.equals(y) for x, y in pairs) and np.array_equal(
        left.row_partition_ids(), right.row_partition_ids()
    )


def _match_rows(left: RowBatch, right: RowBatch) -> Ints:
    """For each row of ``left`` the row of ``right`` with its key and partition, or -1."""
    dimensions = right.scan.dimensions
    left_keys, right_keys = left.columns(dimensions), right.columns(dimensions)
    left_ids, right_ids = _partition_ids(left, right)
    codes = encode_keys(left_keys, right_keys, len(left), len(right))
    # Cells mostly tell their partition. Then the codes of both would only take a larger table.
    matches = lookup_codes(*codes)
    if _is_unique(codes.right, codes.bound):
        is_other = (matches >= 0) & (left_ids != right_ids[matches]) if len(right) else matches >= 0
        return np.where(is_other, -1, matches) if is_other.any() else matches
    left_keys = [pa.array(left_ids), *left_keys]
    right_keys = [pa.array(right_ids), *right_keys]
    return lookup_codes(*encode_keys(left_keys, right_keys, len(left), len(right)))


def _is_unique(codes: Ints, bound: int) -> bool:
    if not fits_table(bound, len(codes)):
        return len(np.unique(codes)) == len(codes)
    return int(np.bincount(codes + 1, minlength=1)[1:].max(initial=0)) < 2


def _partition_ids(left: RowBatch, right: RowBatch) -> tuple[Ints, Ints]:
    """Common ids of the physical partitions, for each row of either table."""
    left_ids, right_ids = left.partition_ids, right.partition_ids
    if left.scan.alignment != right.scan.alignment:
        left_ids, right_ids = match_partitions(
            left.keys, right.keys, right.scan, len(left_ids), len(right_ids)
        )
    return np.repeat(left_ids, left.counts), np.repeat(right_ids, right.counts)
