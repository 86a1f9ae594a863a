"""Key columns as integer codes: equality, order, uniqueness and lookup of cells by vector operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.io_components.kernels.allocate import allocate_array

__all__ = (
    "as_chunked",
    "run_starts_mask",
    "combine_keys",
    "take_values",
    "group_codes",
    "integers",
    "join_codes",
    "last_occurrence_mask",
    "lookup",
    "encode_ordered",
    "repeat",
    "expand_ranges",
    "search_sorted",
    "to_single_array",
    "sort_order",
    "strictly_increasing",
)

Column: TypeAlias = pa.Array | pa.ChunkedArray
Ints: TypeAlias = npt.NDArray[np.int64]

#: codes of this size still leave room for a product with a small factor in int64
_LIMIT = 1 << 62


def as_chunked(column: Column) -> pa.ChunkedArray:
    """The column as a chunked array."""
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def integers(column: pa.ChunkedArray) -> Ints | None:
    """Values as int64 if the type is stored as integers and there is no null; None otherwise."""
    dtype = column.type
    if column.null_count or pa.types.is_uint64(dtype):
        return None
    if pa.types.is_timestamp(dtype) or pa.types.is_time64(dtype) or pa.types.is_duration(dtype):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(dtype):
        column = column.cast(pa.int32())
    elif pa.types.is_boolean(dtype):
        column = column.cast(pa.int8())
    elif not pa.types.is_integer(dtype):
        return None
    values: Ints = column.to_numpy().astype(np.int64, copy=False)
    return values


def _ranks(column: pa.ChunkedArray) -> tuple[Ints, int]:
    """Dense ranks by value, nulls last."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))  # -0.0 and 0.0 are one value
    if not len(column):
        return np.empty(0, np.int64), 1
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order) + 1, dtype=np.int64)
    rank[order] = np.arange(len(order))
    rank[-1] = len(order)
    indices = encoded.indices.fill_null(len(order)) if encoded.null_count else encoded.indices
    return rank[indices.to_numpy()], len(order) + 1


def encode_ordered(column: Column) -> tuple[Ints, int]:
    """
    Codes that compare as the values of a column do.

    Parameters
    ----------
    column
        Values of any sortable type.

    Returns
    -------
    codes
        One non-negative int64 per row; nulls get the highest code.
    bound
        All codes are below it.

    Examples
    --------
    >>> ordinals(pa.array(["Hamburg", "Dresden", "Hamburg"]))[0].tolist()
    [1, 0, 1]
    """
    chunked = as_chunked(column)
    values = integers(chunked)
    if values is None:
        return _ranks(chunked)
    if not len(values):
        return values, 1
    low, high = int(values.min()), int(values.max())
    if high - low > max(4 * len(values), 1 << 16):
        return _ranks(chunked)
    return values - low if low else values, high - low + 1


def combine_keys(parts: Sequence[tuple[Ints, int]], length: int) -> tuple[Ints, int]:
    """
    One code per row out of the codes of several columns, ordered like the tuples of values.

    Parameters
    ----------
    parts
        Codes and bounds, as from :func:`ordinals`; the first column counts most.
    length
        Number of rows (needed where there is no column).

    Returns
    -------
    codes, bound
    """
    if not parts:
        return np.zeros(length, dtype=np.int64), 1
    codes, bound = parts[0]
    for more, more_bound in parts[1:]:
        if bound * more_bound >= _LIMIT:
            distinct, codes = np.unique(codes, return_inverse=True)
            bound = max(len(distinct), 1)
        codes = codes * more_bound + more
        bound *= more_bound
    return codes, bound


def group_codes(columns: Sequence[Column], length: int) -> Ints:
    """Dense codes 0, 1, ... of the value tuples, in the order of the values."""
    codes, bound = combine_keys([encode_ordered(c) for c in columns], length)
    return _dense(codes, bound)[0]


def _dense(codes: Ints, bound: int) -> tuple[Ints, int]:
    if bound <= max(4 * len(codes), 1 << 16):
        present = np.zeros(bound, dtype=bool)
        present[codes] = True
        rank = np.cumsum(present) - 1
        return rank[codes], int(present.sum())
    distinct, inverse = np.unique(codes, return_inverse=True)
    return inverse.astype(np.int64, copy=False), len(distinct)


def join_codes(
    left: Sequence[Column], right: Sequence[Column], n_left: int, n_right: int
) -> tuple[Ints, Ints]:
    """Dense codes that are equal exactly where the value tuples of two sides are equal."""
    parts = []
    for a, b in zip(left, right, strict=True):
        parts.append(encode_ordered(_concat(a, b)))
    codes, bound = combine_keys(parts, n_left + n_right)
    dense = _dense(codes, bound)[0]
    return dense[:n_left], dense[n_left:]


def _concat(a: Column, b: Column) -> pa.ChunkedArray:
    left, right = as_chunked(a), as_chunked(b)
    if left.type != right.type:
        target = pa.unify_schemas(
            [pa.schema([("c", left.type)]), pa.schema([("c", right.type)])], promote_options="permissive"
        )
        left, right = left.cast(target.field("c").type), right.cast(target.field("c").type)
    return pa.chunked_array([*left.chunks, *right.chunks], type=left.type)


def expand_ranges(start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """
    All positions of many half-open ranges, one range after the other.

    Returns
    -------
    positions
        The positions.
    owner
        For each of them the number of its range.

    Examples
    --------
    >>> positions, owner = repeat_ranges(np.array([0, 5]), np.array([2, 6]))
    >>> positions.tolist(), owner.tolist()
    ([0, 1, 5], [0, 0, 1])
    """
    lengths = stop - start
    owner = np.repeat(np.arange(len(start)), lengths)
    offsets = np.cumsum(lengths) - lengths
    return np.arange(len(owner)) - offsets[owner] + start[owner], owner


def strictly_increasing(columns: Sequence[Column], length: int, starts: Ints | None = None) -> bool:
    """
    Whether the value tuples strictly increase from row to row; then they are sorted and unique.

    Parameters
    ----------
    columns
        Key columns, the first counts most.
    length
        Number of rows.
    starts
        Positions of rows that begin a new block; they are not compared with the row before.
    """
    if length < 2:
        return True
    undecided: npt.NDArray[np.bool_] | None = None
    if starts is not None:
        undecided = np.ones(length - 1, dtype=bool)
        undecided[starts - 1] = False
        if not undecided.any():
            return True
    for number, column in enumerate(columns, 1):
        last = number == len(columns)
        steps = _steps(column, strict=last)
        if steps is None:
            return False
        ordered, equal = steps
        if not (ordered if undecided is None else ordered | ~undecided).all():
            return False
        if equal is not None:
            undecided = equal if undecided is None else undecided & equal
            if not undecided.any():
                return True
    return bool(columns)


def _steps(
    column: Column, *, strict: bool
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_] | None] | None:
    """
    For each row but the first whether its value is not below that of the row before, and whether it is equal.

    If only larger values will do (``strict``), equality is left out. None if that does not tell the order.
    """
    chunked = as_chunked(column)
    if chunked.null_count:
        return None
    values = integers(chunked)
    if values is not None:
        before, after = values[:-1], values[1:]
        return (after > before, None) if strict else (after >= before, after == before)
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.cast(chunked.type.value_type)
    first, second = chunked.slice(0, len(chunked) - 1), chunked.slice(1)
    ordered = (pc.greater if strict else pc.greater_equal)(second, first).to_numpy(zero_copy_only=False)
    return ordered, None if strict else pc.equal(second, first).to_numpy(zero_copy_only=False)


def sort_order(columns: Sequence[Column], length: int) -> Ints | None:
    """Stable order that sorts the rows by the columns; None if they are sorted already."""
    if strictly_increasing(columns, length):
        return None
    codes, bound = combine_keys([encode_ordered(c) for c in columns], length)
    if length < 2 or bool((codes[1:] >= codes[:-1]).all()):
        return None
    if bound <= max(4 * length, 1 << 16):
        order = np.full(bound, -1, dtype=np.int64)
        order[codes] = np.arange(length)
        order = order[order >= 0]
        if len(order) == length:  # no two rows are equal
            return order
    return np.argsort(codes, kind="stable")


def last_occurrence_mask(codes: Ints, bound: int) -> npt.NDArray[np.bool_] | None:
    """Mask of the last row of each code; None if no code occurs twice."""
    length = len(codes)
    if length < 2:
        return None
    if bound <= max(4 * length, 1 << 16):
        last = np.full(bound, -1, dtype=np.int64)
        last[codes] = np.arange(length)
        keep = last[codes] == np.arange(length)
    else:
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        keep = np.ones(length, dtype=bool)
        keep[order[:-1]] = ordered[1:] != ordered[:-1]
    return None if keep.all() else keep


def lookup(left: Ints, right: Ints, bound: int) -> Ints:
    """
    Position in ``right`` of each code in ``left``, -1 where it is missing.

    Parameters
    ----------
    left, right
        Codes below ``bound``; those of ``right`` are unique.
    bound
        Upper bound of the codes.
    """
    if bound <= max(4 * (len(left) + len(right)), 1 << 16):
        position = np.full(bound, -1, dtype=np.int64)
        position[right] = np.arange(len(right))
        return position[left]
    found = pc.index_in(pa.array(left), value_set=pa.array(right))
    positions: Ints = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return positions


def search_sorted(rows: Sequence[Column], needles: Sequence[Column], low: Ints, high: Ints) -> Ints | None:
    """
    Binary search for cells in sorted rows: for few needles much cheaper than looking at all rows.

    Parameters
    ----------
    rows
        Key columns, sorted and unique within each range that is searched.
    needles
        Key columns of the cells to find.
    low, high
        For each needle the half-open range of rows to search.

    Returns
    -------
    numpy.ndarray of int64 or None
        Row of each needle, -1 if it is missing; None if the types can't be searched like that.
    """
    for column, wanted in zip(rows, needles, strict=True):
        values, keys = integers(as_chunked(column)), integers(as_chunked(wanted))
        if values is None or keys is None or column.type != wanted.type:
            return None
        low, high = (
            _bound(values, keys, low, high, strict=True),
            _bound(values, keys, low, high, strict=False),
        )
    return np.where(high > low, low, -1)


def _bound(values: Ints, keys: Ints, low: Ints, high: Ints, *, strict: bool) -> Ints:
    """In each range the first row that is not below (``strict``) or that is above the key."""
    low, high = low.copy(), high.copy()
    open_ = np.flatnonzero(low < high)
    while len(open_):
        middle = (low[open_] + high[open_]) >> 1
        found, key = values[middle], keys[open_]
        before = found < key if strict else found <= key
        low[open_[before]] = middle[before] + 1
        high[open_[~before]] = middle[~before]
        open_ = open_[low[open_] < high[open_]]
    return low


def take_values(column: Column, positions: Ints, *, missing: bool) -> pa.Array:
    """
    Values at the given positions.

    Parameters
    ----------
    column
        Source.
    positions
        Where to take them; -1 gives null if ``missing`` is set.
    missing
        Whether there may be a -1.
    """
    values = to_single_array(column)
    if missing:
        return values.take(pa.array(positions, mask=positions < 0))
    bits = _bits(values)
    if bits is None:
        return values.take(pa.array(positions))
    # they are all within bounds; NumPy takes a detour if it has to check that
    taken = np.take(bits, positions, out=allocate_array(len(positions), bits.dtype), mode="clip")
    return _from_bits(taken, values.type)


def repeat(column: Column, times: Ints) -> pa.Array:
    """
    Each value so many times.

    Parameters
    ----------
    column
        The values.
    times
        How often to repeat each of them.

    Examples
    --------
    >>> repeat(pa.array(["Rom", "Ulm"]), np.array([2, 1])).to_pylist()
    ['Rom', 'Rom', 'Ulm']
    """
    values = to_single_array(column)
    bits = _bits(values)
    if bits is None:
        return values.take(pa.array(np.repeat(np.arange(len(values)), times)))
    if len(times) and bool((times == times[0]).all()):
        repeated = allocate_array(len(bits) * int(times[0]), bits.dtype)
        repeated.reshape(len(bits), -1)[:] = bits[:, np.newaxis]
    else:
        repeated = np.repeat(bits, times)
    return _from_bits(repeated, values.type)


def _bits(values: pa.Array) -> npt.NDArray[Any] | None:
    """Values as unsigned integers of their width; None if there are nulls, or values have no fixed width."""
    if values.null_count or not is_fixed(values.type):
        return None
    width = values.type.bit_width // 8
    return np.frombuffer(values.buffers()[1], f"u{width}", len(values), values.offset * width)


def _from_bits(bits: npt.NDArray[Any], dtype: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(dtype, len(bits), [None, pa.py_buffer(bits)])


def run_starts_mask(columns: Sequence[Column], length: int, starts: Ints) -> npt.NDArray[np.bool_]:
    """
    Whether the value tuple of each row differs from that of the row before.

    Parameters
    ----------
    columns
        Key columns without nulls.
    length
        Number of rows.
    starts
        Rows that count as different whatever their values are.
    """
    mask = np.zeros(length, dtype=bool)
    mask[:1] = True
    mask[starts] = True
    for column in columns:
        chunked = as_chunked(column)
        values = integers(chunked)
        if values is not None:
            mask[1:] |= values[1:] != values[:-1]
        else:
            codes, _ = _ranks(chunked)
            mask[1:] |= codes[1:] != codes[:-1]
    return mask


def to_single_array(column: Column) -> pa.Array:
    """The values of a column in one piece; without a copy, if its chunks lie next to each other in memory."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if not column.num_chunks:
        return pa.array([], type=column.type)
    whole = _adjacent(column)
    return pa.concat_arrays(column.chunks) if whole is None else whole


def _adjacent(column: pa.ChunkedArray) -> pa.Array | None:
    """The chunks as one array over their common buffer."""
    if not is_fixed(column.type) or column.null_count:
        return None
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    buffer = chunks[0].buffers()[1] if chunks else None
    if buffer is None or buffer.size * 8 < len(column) * column.type.bit_width:
        return None
    position = start = chunks[0].offset
    for chunk in chunks:
        if chunk.offset != position or chunk.buffers()[1].address != buffer.address:
            return None
        position += len(chunk)
    return pa.Array.from_buffers(column.type, len(column), [None, buffer], 0, start)


def is_fixed(dtype: pa.DataType) -> bool:
    """Whether values of a type take the same number of whole bytes, at most eight."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_temporal)
    return any(is_kind(dtype) for is_kind in kinds) and bool(dtype.bit_width <= 64)
