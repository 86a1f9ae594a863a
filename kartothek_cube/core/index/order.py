"""The order of index entries: which values count, where they rank, and which pairs are duplicates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

__all__ = ("order", "rank", "sorted_within", "not_null_mask")

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


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
