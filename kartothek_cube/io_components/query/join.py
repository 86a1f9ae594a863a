"""Joining the rows of a dataset to those of the seed, by looking at how they lie instead of hashing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.io_components.kernels.encode import join_codes
from kartothek_cube.io_components.kernels.search import lookup_join, search_sorted
from kartothek_cube.io_components.kernels.sort import run_starts_mask
from kartothek_cube.io_components.kernels.take import repeat, take_values
from kartothek_cube.io_components.query.column_widths import bits
from kartothek_cube.io_components.query.row_batch import RowBatch, take_rows

__all__ = ("join",)

Ints: TypeAlias = npt.NDArray[np.int64]


def join(seed: RowBatch, other: RowBatch) -> None:
    """
    Add the payload of another dataset to the rows of the seed.

    Parameters
    ----------
    seed
        Gets the columns; loses the rows without partner if the other dataset is restricted.
    other
        At most one row per cell and physical partition.
    """
    _join_widths(seed, other)
    if _is_positional_join(seed, other) or _search_join(seed, other):
        for column in other.source.payload:
            seed.table = seed.table.append_column(column, other.table.column(column))
        return
    starts = _run_starts(seed, other.source.dimensions)
    found = _lookup_rows(seed, other, starts)
    if other.source.how == "inner" and bool((found < 0).any()):
        if starts is not None:
            found, starts = np.repeat(found, np.diff(np.append(starts, len(seed)))), None
        seed.keep(found >= 0)
        found = found[found >= 0]
    _append(seed, other, found, starts)


def _join_widths(seed: RowBatch, other: RowBatch) -> None:
    """Keep the widths of the payload where they differ between partitions, or a partition has no partner."""
    schema = other.table.schema
    numbers = [c for c in other.source.payload if bits(schema.field(c).type)]
    # without files, only partition keys have a type, and that is always the one of the schema
    if not numbers or not len(other.unit):
        return
    partner = _partner_files(seed, other)
    if other.source.how == "inner" or bool((partner >= 0).all()):  # each row that is left has a partner
        numbers = [column for column in numbers if column in other.widths]
    for column in numbers:
        seed.widths[column] = np.where(partner >= 0, other.widths_of(column)[partner], 0).astype(np.int8)


def _partner_files(seed: RowBatch, other: RowBatch) -> Ints:
    """For each file of the seed one of the other dataset with its partition, or -1."""
    if seed.source.alignment == other.source.alignment:
        ours, theirs = seed.unit, other.unit  # numbered alike
    else:
        ours, theirs = _partition_ids(seed, other)
    order = np.argsort(theirs, kind="stable")
    position = np.minimum(np.searchsorted(theirs[order], ours), len(theirs) - 1)
    return np.where(theirs[order][position] == ours, order[position], -1)


def _append(seed: RowBatch, other: RowBatch, found: Ints, starts: Ints | None) -> None:
    """Add the payload at these positions; one of them per run of rows if there are starts."""
    missing = bool((found < 0).any())
    times = None if starts is None else np.diff(np.append(starts, len(seed)))
    for column in other.source.payload:
        values = take_values(other.table.column(column), found, missing=missing)
        seed.table = seed.table.append_column(column, values if times is None else repeat(values, times))


def _partition_ids(seed: RowBatch, other: RowBatch) -> tuple[Ints, Ints]:
    """Common numbers of the physical partitions, per file of either side."""
    shared = [c for c in other.source.alignment if c in seed.keys]
    return join_codes(
        [seed.keys[c] for c in shared], [other.keys[c] for c in shared], len(seed.unit), len(other.unit)
    )


def _is_copartitioned(seed: RowBatch, other: RowBatch) -> bool:
    """Whether both have the same dimensions, and the same columns tell their physical partitions."""
    a, b = seed.source, other.source
    return a.dimensions == b.dimensions and a.alignment == b.alignment


def _is_positional_join(seed: RowBatch, other: RowBatch) -> bool:
    """Whether both sides have the same cells row by row; then columns are put side by side."""
    if len(seed) != len(other) or not _is_copartitioned(seed, other):
        return False
    ours, theirs = _partition_ids(seed, other)
    one_to_one = np.array_equal(ours, theirs) and np.array_equal(seed.counts, other.counts)
    if not one_to_one and not np.array_equal(np.repeat(ours, seed.counts), np.repeat(theirs, other.counts)):
        return False
    pairs = zip(seed.columns(seed.source.dimensions), other.columns(other.source.dimensions), strict=True)
    return all(a.type == b.type and a.equals(b) for a, b in pairs)


def _search_join(seed: RowBatch, other: RowBatch) -> bool:
    """
    Reduce both sides to their common cells by looking up the few rows of a restricted dataset in the seed.

    Returns
    -------
    bool
        Whether that was possible; both sides are as before if not.
    """
    if other.source.how != "inner" or not seed.sorted or len(other) * 8 > len(seed):
        return False
    if not _is_copartitioned(seed, other):
        return False
    found = _search_keys(seed, other, *_partition_ids(seed, other))
    if found is None:
        return False
    other.keep(found >= 0)
    found = found[found >= 0]
    order = np.argsort(found, kind="stable")
    other.table = take_rows(other.table, order)
    seed.pick(found[order])
    return True


def _search_keys(rows: RowBatch, few: RowBatch, codes: Ints, few_codes: Ints) -> Ints | None:
    """For each of a few rows the position among sorted rows, by binary search; None if types prevent that."""
    bounds = np.concatenate([[0], np.cumsum(rows.counts)])
    low = np.repeat(bounds[np.searchsorted(codes, few_codes, "left")], few.counts)
    high = np.repeat(bounds[np.searchsorted(codes, few_codes, "right")], few.counts)
    dimensions = rows.source.dimensions
    return search_sorted(rows.columns(dimensions), few.columns(dimensions), low, high)


def _lookup_rows(seed: RowBatch, other: RowBatch, starts: Ints | None) -> Ints:
    """For each row of the seed, or each run of rows, the row of the other dataset with its cell, or -1."""
    dimensions = other.source.dimensions
    ours, theirs = _partition_ids(seed, other)
    if other.sorted and len(seed) * 8 <= len(other) and _is_copartitioned(seed, other):
        found = _search_keys(other, seed, theirs, ours)
        if found is not None:
            return found
    left, right = seed.columns(dimensions), other.columns(dimensions)
    if starts is not None:
        left = [take_values(column, starts, missing=False) for column in left]
    length = len(seed) if starts is None else len(starts)
    if len(np.unique(np.append(ours, theirs))) < 2:
        return lookup_join(left, right, length, len(other))
    units = np.repeat(ours, seed.counts)
    units = units if starts is None else units[starts]
    others = np.repeat(theirs, other.counts)
    return lookup_join([pa.array(units), *left], [pa.array(others), *right], length, len(other))


def _run_starts(seed: RowBatch, dimensions: Sequence[str]) -> Ints | None:
    """Where the key changes from row to row, if rows are sorted by it and it does so rarely."""
    own = seed.source.dimensions
    if (
        not seed.sorted
        or len(seed) < 2
        or len(dimensions) == len(own)
        or own[: len(dimensions)] != tuple(dimensions)
    ):
        return None
    starts = np.flatnonzero(run_starts_mask(seed.columns(dimensions), len(seed), seed.unit_starts()))
    return starts if len(starts) * 2 < len(seed) else None
