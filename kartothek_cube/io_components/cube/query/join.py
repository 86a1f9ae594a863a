"""Joining the rows of a dataset to those of the seed, by looking at how they lie instead of hashing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.io_components.columns import (
    changes,
    combine,
    gather,
    join_codes,
    lookup,
    lookup_values,
    ordinals,
    seek,
)
from kartothek_cube.io_components.cube.query.rows import Rows

__all__ = ("chain", "join")

Ints: TypeAlias = npt.NDArray[np.int64]


def join(seed: Rows, other: Rows) -> None:
    """
    Add the payload of another dataset to the rows of the seed.

    Parameters
    ----------
    seed
        Gets the columns; loses the rows without partner if the other dataset is restricted.
    other
        At most one row per cell and physical partition.
    """
    positions: Ints | None = None
    if not _same_cells(seed, other) and not _narrowed(seed, other):
        positions = _partner_rows(seed, other)
        if other.source.how == "inner" and len(positions) and positions.min() < 0:
            found = positions >= 0
            seed.keep(found)
            positions = positions[found]
    missing = positions is not None and bool(len(positions)) and int(positions.min()) < 0
    for column in other.source.payload:
        values = other.table.column(column)
        if positions is not None:
            values = gather(values, positions, missing=missing)
        seed.table = seed.table.append_column(column, values)


def _unit_codes(seed: Rows, other: Rows) -> tuple[Ints, Ints]:
    """Common numbers of the physical partitions, per file of either side."""
    shared = [c for c in other.source.alignment if c in seed.keys]
    return join_codes(
        [seed.keys[c] for c in shared], [other.keys[c] for c in shared], len(seed.unit), len(other.unit)
    )


def _same_cells(seed: Rows, other: Rows) -> bool:
    """Whether both sides have the same cells row by row; then columns are put side by side."""
    if len(seed) != len(other) or seed.source.dimensions != other.source.dimensions:
        return False
    if seed.source.alignment != other.source.alignment:
        return False
    ours, theirs = _unit_codes(seed, other)
    one_to_one = np.array_equal(ours, theirs) and np.array_equal(seed.counts, other.counts)
    if not one_to_one and not np.array_equal(np.repeat(ours, seed.counts), np.repeat(theirs, other.counts)):
        return False
    pairs = zip(seed.columns(seed.source.dimensions), other.columns(other.source.dimensions), strict=True)
    return all(a.type == b.type and a.equals(b) for a, b in pairs)


def _narrowed(seed: Rows, other: Rows) -> bool:
    """
    Reduce both sides to their common cells by looking up the few rows of a restricted dataset in the seed.

    Returns
    -------
    bool
        Whether that was possible; both sides are as before if not.
    """
    if other.source.how != "inner" or not seed.sorted or len(other) * 8 > len(seed):
        return False
    if seed.source.dimensions != other.source.dimensions or seed.source.alignment != other.source.alignment:
        return False
    ours, theirs = _unit_codes(seed, other)
    bounds = np.concatenate([[0], np.cumsum(seed.counts)])
    low = np.repeat(bounds[np.searchsorted(ours, theirs, "left")], other.counts)
    high = np.repeat(bounds[np.searchsorted(ours, theirs, "right")], other.counts)
    dimensions = seed.source.dimensions
    found = seek(seed.columns(dimensions), other.columns(dimensions), low, high)
    if found is None:
        return False
    other.keep(found >= 0)
    found = found[found >= 0]
    order = np.argsort(found, kind="stable")
    if not np.array_equal(order, np.arange(len(order))):
        other.table = pa.Table.from_arrays(
            [gather(c, order, missing=False) for c in other.table.columns], schema=other.table.schema
        )
    seed.pick(found[order])
    return True


def _partner_rows(seed: Rows, other: Rows) -> Ints:
    """For each row of the seed the row of the other dataset with the same cell, or -1."""
    dimensions = other.source.dimensions
    starts = _run_starts(seed, dimensions)
    left = seed.columns(dimensions)
    if starts is not None:
        left = [gather(column, starts, missing=False) for column in left]
    right = other.columns(dimensions)
    found: Ints | None = None
    if len(dimensions) == 1 and not [c for c in other.source.alignment if c in seed.keys]:
        found = lookup_values(left[0], right[0])
    if found is None:
        found = _lookup_codes(seed, other, starts, left, right)
    if starts is not None:
        found = np.repeat(found, np.diff(np.append(starts, len(seed))))
    return found


def _lookup_codes(
    seed: Rows, other: Rows, starts: Ints | None, left: Sequence[Any], right: Sequence[pa.ChunkedArray]
) -> Ints:
    """Partners by codes of physical partition and dimensions."""
    ours, theirs = _unit_codes(seed, other)
    units = np.repeat(ours, seed.counts)
    units = units if starts is None else units[starts]
    n_left, n_right = len(units), len(other)
    bound = int(max(ours.max(initial=0), theirs.max(initial=0))) + 1
    parts = [(np.concatenate([units, np.repeat(theirs, other.counts)]), bound)]
    parts += [ordinals(chain(a, b)) for a, b in zip(left, right, strict=True)]
    codes, bound = combine(parts, n_left + n_right)
    return lookup(codes[:n_left], codes[n_left:], bound)


def chain(a: Any, b: pa.ChunkedArray) -> pa.ChunkedArray:
    """Two columns one after the other, in a type that holds both."""
    left = a if isinstance(a, pa.ChunkedArray) else pa.chunked_array([a])
    if left.type != b.type:
        both = [pa.schema([("c", left.type)]), pa.schema([("c", b.type)])]
        wide = pa.unify_schemas(both, promote_options="permissive").field("c").type
        left, b = left.cast(wide), b.cast(wide)
    return pa.chunked_array([*left.chunks, *b.chunks], type=left.type)


def _run_starts(seed: Rows, dimensions: Sequence[str]) -> Ints | None:
    """Where the key changes from row to row, if rows are sorted by it and it does so rarely."""
    own = seed.source.dimensions
    if (
        not seed.sorted
        or len(seed) < 2
        or len(dimensions) == len(own)
        or own[: len(dimensions)] != tuple(dimensions)
    ):
        return None
    starts = np.flatnonzero(changes(seed.columns(dimensions), len(seed), seed.unit_starts()))
    return starts if len(starts) * 2 < len(seed) else None
