"""For each row of one table the row of another with the same key, by codes instead of by values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.io_components.kernels.keys import Column, Ints, as_chunked, integers, to_single_array

__all__ = ("lookup_join",)

#: codes below this leave room for a product in int64
_LIMIT = 1 << 62


def lookup_join(left: Sequence[Column], right: Sequence[Column], n_left: int, n_right: int) -> Ints:
    """
    Position of the row of ``right`` with the same values, for each row of ``left``.

    Parameters
    ----------
    left, right
        Key columns, in the same order. Nulls are equal to nulls, NaN to NaN, 0.0 to -0.0. The rows of
        ``right`` are unique.
    n_left, n_right
        Numbers of rows (needed where there is no column).

    Returns
    -------
    numpy.ndarray of int64
        -1 where there is none.

    Examples
    --------
    >>> partners([pa.array(["Rom", "Bonn", "Ulm"])], [pa.array(["Ulm", "Rom"])], 3, 2).tolist()
    [1, -1, 0]
    """
    if not left:
        return np.full(n_left, n_right - 1, dtype=np.int64)
    length = _period(left[0]) if len(left) == 1 else None
    if length is not None:
        return np.resize(lookup_join([left[0].slice(0, length)], right, length, n_right), n_left)
    ours, theirs, bound = _common_codes(left[0], right[0])
    for a, b in zip(left[1:], right[1:], strict=True):
        more, other_more, more_bound = _common_codes(a, b)
        if bound * more_bound >= _LIMIT:
            ours, theirs, bound = _densify(ours, theirs)
        ours, theirs = _combine_codes(ours, more, more_bound), _combine_codes(theirs, other_more, more_bound)
        bound *= more_bound
    return _positions(ours, theirs, bound)


def _period(column: Column) -> int | None:
    """After how many rows the values are the same again, and again to the end, as days in a grid are."""
    values = integers(as_chunked(column))
    if values is None or not len(values):
        return None
    again = np.flatnonzero(values[1:] == values[0])
    length = int(again[0]) + 1 if len(again) else 0
    if not 0 < 2 * length <= len(values) or not np.array_equal(values[length:], values[:-length]):
        return None
    return length


def _positions(ours: Ints, theirs: Ints, bound: int) -> Ints:
    """Where each code is among the others; -1 is no code."""
    if bound <= max(4 * (len(ours) + len(theirs)), 1 << 16):
        position = np.full(bound + 1, -1, dtype=np.int64)
        position[theirs] = np.arange(len(theirs))
        position[-1] = -1
        return position[ours]
    found = pc.index_in(pa.array(ours), value_set=pa.array(theirs)).fill_null(-1)
    positions: Ints = np.where(ours < 0, -1, found.to_numpy(zero_copy_only=False))
    return positions


def _densify(ours: Ints, theirs: Ints) -> tuple[Ints, Ints, int]:
    """Smaller codes."""
    left, right, bound = _hashed(pa.array(ours), pa.array(theirs))
    return np.where(ours < 0, -1, left), np.where(theirs < 0, -1, right), bound


def _combine_codes(codes: Ints, more: Ints, bound: int) -> Ints:
    mixed = codes * bound + more
    mixed[(codes < 0) | (more < 0)] = -1
    return mixed


def _common_codes(left: Column, right: Column) -> tuple[Ints, Ints, int]:
    """Codes of two columns, equal where the values are; -1 for values that the smaller one has not."""
    ours, theirs = _of_one_type(as_chunked(left), as_chunked(right))
    numbers, others = integers(ours), integers(theirs)
    if numbers is None or others is None:
        return _hashed(_comparable(ours), _comparable(theirs))
    few = numbers if len(numbers) < len(others) else others
    low, high = (int(few.min()), int(few.max())) if len(few) else (0, 0)
    if high - low > max(4 * (len(numbers) + len(others)), 1 << 16):
        return _hashed(pa.array(numbers), pa.array(others))
    return _offset_codes(numbers, low, high), _offset_codes(others, low, high), high - low + 1


def _offset_codes(numbers: Ints, low: int, high: int) -> Ints:
    """Distance from the lowest number; -1 outside of the range."""
    if not len(numbers) or (int(numbers.min()) >= low and int(numbers.max()) <= high):
        return numbers - low
    return np.where((numbers >= low) & (numbers <= high), numbers - low, -1)


def _hashed(left: pa.Array, right: pa.Array) -> tuple[Ints, Ints, int]:
    """Numbers of the values in the smaller column, -1 for others."""
    swap = len(right) < len(left)
    few, many = (right, left) if swap else (left, right)
    encoded = few.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy().astype(np.int64)
    found = pc.index_in(many, value_set=encoded.dictionary).fill_null(-1)
    others = found.to_numpy(zero_copy_only=False).astype(np.int64)
    bound = max(len(encoded.dictionary), 1)
    return (others, codes, bound) if swap else (codes, others, bound)


def _of_one_type(left: pa.ChunkedArray, right: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    left, right = _decoded(left), _decoded(right)
    if left.type == right.type:
        return left, right
    both = [pa.schema([("c", left.type)]), pa.schema([("c", right.type)])]
    wide = pa.unify_schemas(both, promote_options="permissive").field("c").type
    return left.cast(wide), right.cast(wide)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _comparable(column: pa.ChunkedArray) -> pa.Array:
    """Values in one piece, that are equal where their bits are."""
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))
    return to_single_array(column)
