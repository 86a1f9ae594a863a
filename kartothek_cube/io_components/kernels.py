"""Kernels over columns: take, repeat, encode as numbers that order as the values do, sort, look up, hash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import arrow, tuning
from kartothek_cube.core.arrow import (
    Ints,
    Mask,
    category_values,
    concat_promoted,
    lookup,
    replace_columns,
    to_numpy,
)
from kartothek_cube.io_components.runtime import available_cores, ordered_map

Column: TypeAlias = pa.Array | pa.ChunkedArray
Columns: TypeAlias = Sequence[Column]


def as_chunked(column: Column) -> pa.ChunkedArray:
    """The column as a chunked array."""
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def expand_ranges(start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """All positions in half-open ranges, one range after the other; and for each the number of its range."""
    lengths = stop - start
    range_numbers = np.repeat(np.arange(len(start)), lengths)
    offsets = np.cumsum(lengths) - lengths
    return np.arange(len(range_numbers)) - offsets[range_numbers] + start[range_numbers], range_numbers


def take_values(column: Column, positions: Ints, *, missing: bool) -> pa.Array:
    """Values at the given positions; null at -1, which only ``missing`` allows."""
    values = to_single_array(column)
    if not missing:
        return values.take(pa.array(positions))
    if len(values) and pa.types.is_primitive(values.type):
        # positions with nulls take 1.6 (3 % missing) to 5 times as long (half of them): asv_bench, joins.py
        taken = values.take(pa.array(np.maximum(positions, 0)))
        return pc.if_else(pa.array(positions >= 0), taken, pa.scalar(None, values.type))
    return values.take(pa.array(positions, mask=positions < 0))


def take_columns(columns: list[pa.ChunkedArray], positions: Ints) -> list[pa.Array]:
    """Values of columns at the given positions; each entry of ``columns`` is released when it is taken."""
    indices = pa.array(positions)

    def take(number: int) -> None:
        columns[number] = to_single_array(columns[number]).take(indices)

    for_each_column(take, len(columns), len(positions))
    return columns


def for_each_column(function: Callable[[int], None], n_columns: int, n_rows: int) -> None:
    """Call a function, which releases the lock of Python, with the number of each column."""
    # a result as large as memory allows is processed column by column: both copies of all would not fit
    # starting threads takes longer than a few rows
    threads = min(available_cores(), 1 + n_rows // CHUNK_ROWS)
    for _ in ordered_map(function, range(n_columns), threads):
        pass


def repeat(values: pa.Array, times: Ints) -> pa.Array:
    """Each value repeated as often as its entry in ``times`` says."""
    # a third of the time of take: runs are filled
    (used,) = times.nonzero()
    if len(used) < len(times):
        values, times = values.take(pa.array(used)), times[used]
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pa.array(times.cumsum()), values))


def to_single_array(column: Column) -> pa.Array:
    """The values of a column as one array."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def allocate_array(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An uninitialised array in the memory pool of Arrow."""
    # NumPy returns large arrays to the system, which clears every page again for the next one;
    # Arrow's pool keeps them for the next block of rows
    dtype = np.dtype(dtype)
    return np.frombuffer(pa.allocate_buffer(length * dtype.itemsize), dtype, length)


def categorize(
    table: pa.Table,
    columns: Sequence[str],
    lengths: Sequence[int],
    dictionaries: Mapping[str, pa.Array] | None = None,
) -> pa.Table:
    """Encode columns of the rows of several files with one dictionary each, unless a dictionary is given.

    A dictionary holds the values of the longest file in the order of their first appearance, then the
    others sorted, as in kartothek.

    >>> table = pa.table({"CITY": ["Kiel", "Ulm", "Bonn", "Ulm"]})
    >>> categorize(table, ["CITY"], [1, 3]).column("CITY").chunk(0).dictionary.to_pylist()
    ['Ulm', 'Bonn', 'Kiel']
    """
    positions = {name: position for position, name in enumerate(table.column_names)}
    given = dictionaries or {}
    encoded = {positions[c]: _encode(table.column(c), lengths, given.get(c)) for c in columns}
    return replace_columns(table, encoded)


def _encode(values: pa.ChunkedArray, lengths: Sequence[int], categories: pa.Array | None) -> pa.ChunkedArray:
    values = category_values(values)
    if categories is None:
        values = values.cast(pa.string()) if pa.types.is_null(values.type) else values
        categories = _collect_categories(values, lengths)
    else:
        values = values.cast(categories.type)
    codes = pc.index_in(values, value_set=categories)
    # without rows, one empty chunk keeps the categories
    code_chunks = codes.chunks or [pa.array([], pa.int32())]
    chunks = [pa.DictionaryArray.from_arrays(chunk, categories) for chunk in code_chunks]
    return pa.chunked_array(chunks, type=pa.dictionary(pa.int32(), values.type))


def _collect_categories(values: pa.ChunkedArray, lengths: Sequence[int]) -> pa.Array:
    distinct = values.unique().drop_null()
    if len(lengths) < 2:
        return distinct
    longest = int(np.argmax(lengths))
    start = int(np.sum(lengths[:longest]))
    first = values.slice(start, lengths[longest]).unique().drop_null()
    others = distinct.filter(pc.invert(pc.is_in(distinct, value_set=first)))
    return pa.concat_arrays([first, others.take(pc.sort_indices(others))])


#: combined codes stay below this: one more addition cannot overflow int64
MAX_CODE = 1 << 62


class Codes(NamedTuple):
    """One code per row, and the exclusive upper bound of the codes."""

    values: Ints
    bound: int


def is_dense(bound: int, length: int) -> bool:
    """Whether a table with an entry per possible code is cheaper than sorting or hashing the codes."""
    return bound <= tuning.TABLE_CODES_PER_ROW * length


def integers(column: pa.ChunkedArray) -> Ints | None:
    """Values as int64 if the type is stored as integers and there is no null; None otherwise."""
    dtype = column.type
    if column.null_count or pa.types.is_uint64(dtype):
        return None
    if pa.types.is_timestamp(dtype) or pa.types.is_time64(dtype) or pa.types.is_duration(dtype):
        array = to_single_array(column).view(pa.int64())
    elif pa.types.is_date32(dtype):
        array = to_single_array(column).view(pa.int32())
    elif pa.types.is_boolean(dtype):
        array = to_single_array(column).cast(pa.int8())
    elif pa.types.is_integer(dtype):
        array = to_single_array(column)
    else:
        return None
    values: Ints = array.to_numpy().astype(np.int64, copy=False)
    return values


def encode_ordered(column: Column) -> Codes:
    """Codes that compare as the values do, nulls last."""
    chunked = as_chunked(column)
    values = integers(chunked)
    if values is not None and _is_dense_range(values):
        low, high = int(values.min()), int(values.max())
        return Codes(values - low if low else values, high - low + 1)
    runs = _find_runs(chunked)
    if runs is None:
        return rank_values(chunked)
    codes, bound = encode_ordered(runs.values)
    return Codes(np.repeat(codes, runs.lengths), bound)


def _is_dense_range(values: Ints) -> bool:
    return len(values) > 0 and is_dense(int(values.max()) - int(values.min()), len(values))


class _Runs(NamedTuple):
    """Runs of equal values, as in columns by which rows are sorted."""

    values: pa.Array
    lengths: Ints


def _find_runs(column: pa.ChunkedArray) -> _Runs | None:
    """Runs of a column; None for types without them, and where they are short."""
    # encoding a value per run takes a third of the time of encoding a million texts or days in runs of 100
    dtype = column.type
    if not (pa.types.is_integer(dtype) or pa.types.is_temporal(dtype) or pa.types.is_string(dtype)):
        return None
    encoded = pc.run_end_encode(to_single_array(column), run_end_type=pa.int64())
    if 2 * len(encoded.values) >= len(column):
        return None
    return _Runs(encoded.values, np.diff(encoded.run_ends.to_numpy(), prepend=0))


def rank_values(column: pa.ChunkedArray) -> Codes:
    """Dense ranks by value, nulls last."""
    column = arrow.normalize_zeros(decode_dictionary(column))
    if not len(column):
        return Codes(np.empty(0, np.int64), 1)
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order) + 1, dtype=np.int64)
    rank[order] = np.arange(len(order))
    rank[-1] = len(order)
    indices = encoded.indices.fill_null(len(order)) if encoded.null_count else encoded.indices
    return Codes(rank[indices.to_numpy()], len(order) + 1)


def combine_keys(encoded: Sequence[Codes], length: int) -> Codes:
    """Codes of the tuples of values, ordered like them."""
    if not encoded:
        return Codes(np.zeros(length, dtype=np.int64), 1)
    codes, bound = encoded[0]
    for next_codes, next_bound in encoded[1:]:
        if bound * next_bound >= MAX_CODE:
            distinct, codes = np.unique(codes, return_inverse=True)
            bound = max(len(distinct), 1)
        codes = codes * next_bound + next_codes
        bound *= next_bound
    return Codes(codes, bound)


def group_codes(columns: Columns, length: int) -> Ints:
    """Dense codes 0, 1, ... of the value tuples, in the order of the values."""
    return make_dense(*combine_keys([encode_ordered(column) for column in columns], length))


def join_codes(left: Columns, right: Columns, n_left: int, n_right: int) -> tuple[Ints, Ints]:
    """Dense codes for two tables, equal exactly where their value tuples are equal."""
    columns = []
    for a, b in zip(left, right, strict=True):
        a, b = unify_types(as_chunked(a), as_chunked(b))
        columns.append(pa.chunked_array([*a.chunks, *b.chunks], type=a.type))
    codes = group_codes(columns, n_left + n_right)
    return codes[:n_left], codes[n_left:]


def make_dense(codes: Ints, bound: int) -> Ints:
    """Codes without gaps, in the same order."""
    if is_dense(bound, len(codes)):
        present = np.zeros(bound, dtype=bool)
        present[codes] = True
        ranks: Ints = np.cumsum(present) - 1
        return ranks[codes]
    _, inverse = np.unique(codes, return_inverse=True)
    return inverse.astype(np.int64, copy=False)


def unify_types(left: pa.ChunkedArray, right: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Two columns cast to their common type, dictionaries decoded."""
    left, right = decode_dictionary(left), decode_dictionary(right)
    if left.type == right.type:
        return left, right
    values = concat_promoted([pa.table({"_": left}), pa.table({"_": right})]).column(0)
    return values.slice(0, len(left)), values.slice(len(left))


def decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a dictionary-encoded column; other columns unchanged."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _hashes(df: pd.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    return np.asarray(pd.util.hash_pandas_object(df[list(columns)], index=False), np.uint64)


def hash_rows(df: pd.DataFrame, columns: Sequence[str]) -> int:
    """Sum of the hashes of all rows, modulo 2**64; dates are objects."""
    return int(_hashes(df, columns).sum(dtype=np.uint64))


def hash_groups(df: pd.DataFrame, columns: Sequence[str], keys: Sequence[str]) -> pd.Series[int]:
    """Sum of the hashes of the rows of each group, by key; rows with a missing key are in no group."""
    hashes = pd.Series(_hashes(df, columns), dtype="uint64")
    return hashes.groupby([df[key].reset_index(drop=True) for key in keys]).sum()


def merge_hashes(hashes: Iterable[pd.Series[int]]) -> pd.Series[int]:
    """Hashes of groups whose rows are in several frames; ``hashes`` has one entry per frame, at least one."""
    concatenated = pd.concat(list(hashes))
    return concatenated.groupby(level=list(range(concatenated.index.nlevels))).sum()


#: rows of a table: at this size the fixed cost of writing a file is small compared with its rows
CHUNK_ROWS = 1 << 17


def strictly_increasing(columns: Columns, length: int) -> bool:
    """Whether the key strictly increases from row to row: the rows are sorted and unique."""
    equal = equal_neighbours(columns, length)
    return equal is not None and not equal.any()


def equal_neighbours(columns: Columns, length: int, block_starts: Ints | None = None) -> Mask | None:
    """For each row but the last: has the next row of its block its key? None if a block is not sorted."""
    is_greater = np.zeros(max(length - 1, 0), dtype=bool)
    if block_starts is not None:
        is_greater[block_starts - 1] = True
    for column in columns:
        if is_greater.all():
            break
        compare = _compare_neighbours(column)
        if compare is None:
            return None
        is_greater |= compare("greater")
        # the first column mostly decides alone
        if not is_greater.all() and not (is_greater | compare("equal")).all():
            return None
    return ~is_greater


def _compare_neighbours(column: Column) -> Callable[[str], Mask] | None:
    """Comparison of all values but the first with the value before; None if one is null."""
    chunked = as_chunked(column)
    if chunked.null_count:
        return None
    values = _rank_codes(chunked) if pa.types.is_dictionary(chunked.type) else integers(chunked)
    if values is not None:
        return lambda operation: getattr(np, operation)(values[1:], values[:-1])
    chunked = decode_dictionary(chunked)
    first, second = chunked.slice(0, len(chunked) - 1), chunked.slice(1)
    return lambda operation: getattr(pc, operation)(second, first).to_numpy(zero_copy_only=False)


def _rank_codes(column: pa.ChunkedArray) -> Ints | None:
    """Numbers that compare as encoded texts do; None for other types and several dictionaries."""
    # comparing the texts takes several times as long
    if column.num_chunks != 1 or not pa.types.is_string(column.type.value_type):
        return None
    chunk = column.chunk(0)
    if chunk.dictionary.null_count:
        return None
    ranks: Ints = pc.rank(chunk.dictionary, tiebreaker="dense").to_numpy().astype(np.int64)
    values: Ints = ranks[chunk.indices.to_numpy()]
    return values


def sort_order(columns: Columns, length: int) -> Ints | None:
    """Stable order that sorts the rows by the columns; None if they are sorted already."""
    if strictly_increasing(columns, length):
        return None
    codes = Codes(np.zeros(length, dtype=np.int64), 1)
    for column in columns:
        codes = combine_keys([codes, encode_ordered(column)], length)
        # the first columns may be unique already: cells mostly determine their partition
        if codes.bound >= length and is_dense(codes.bound, length):
            order = last_rows(*codes)
            if len(order) == length:
                return order
    values = codes.values
    if length < 2 or bool((values[1:] >= values[:-1]).all()):
        return None
    order = last_rows(*codes)
    return order if len(order) == length else np.argsort(values, kind="stable")


def last_rows(codes: Ints, bound: int) -> Ints:
    """Positions of the last row of each code, in the order of the codes."""
    if is_dense(bound, len(codes)):
        last = np.full(bound, -1, dtype=np.int64)
        last[codes] = np.arange(len(codes))
        return last[last >= 0]
    order = np.argsort(codes, kind="stable")
    ends: Ints = order[np.diff(codes[order], append=bound) != 0]
    return ends


def rechunk_by_partition(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], rows: int = CHUNK_ROWS, limit: int | None = None
) -> Iterator[pa.Table]:
    """Tables of about ``rows`` rows that end where a logical partition ends, never empty."""
    # A partition of more than `limit` rows is cut. Without `keys` all rows are one partition.
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
    """First row of the last partition in the last batch; None if it began in an earlier one."""
    if not keys:
        return None
    # the row before the last batch decides whether a partition begins with its first row
    batches = [pending[-2].slice(len(pending[-2]) - 1), pending[-1]] if len(pending) > 1 else [pending[-1]]
    table = pa.Table.from_batches(batches, schema=pending[-1].schema)
    codes, _ = combine_keys([encode_ordered(table.column(key)) for key in keys], len(table))
    starts = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    if not len(starts):
        return None
    return int(starts[-1]) - (len(batches) - 1)


def sort_rows(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Sort rows by columns, nulls last; the sort is stable, and sorted rows are not copied."""
    order = sort_order([table.column(column) for column in columns], len(table)) if columns else None
    if order is None:
        return table
    return pa.Table.from_arrays(take_columns(table.columns, order), schema=table.schema)


def last_rows_mask(columns: Columns, length: int) -> Mask | None:
    """Mask of the last row of each key; None if no key repeats."""
    last = last_rows(*combine_keys([encode_ordered(column) for column in columns], length))
    if len(last) == length:
        return None
    keep = np.zeros(length, dtype=bool)
    keep[last] = True
    return keep


class JoinCodes(NamedTuple):
    """Codes of two tables, -1 for keys that the shorter one lacks, and their exclusive upper bound."""

    left: Ints
    right: Ints
    bound: int


def lookup_keys(left: Columns, right: Columns, n_left: int, n_right: int) -> Ints:
    """For each row of ``left`` the last row of ``right`` with the same key, or -1."""
    # Nulls are equal to nulls, NaN to NaN, 0.0 to -0.0.
    return lookup_codes(*encode_keys(left, right, n_left, n_right))


def encode_keys(left: Columns, right: Columns, n_left: int, n_right: int) -> JoinCodes:
    """Codes of the keys of two tables, equal where the keys are."""
    if not left:
        return JoinCodes(np.zeros(n_left, np.int64), np.zeros(n_right, np.int64), 1)
    return reduce(combine_codes, map(_encode_pair, left, right))


def combine_codes(first: JoinCodes, second: JoinCodes) -> JoinCodes:
    """Codes of both keys as one, equal where both are."""
    if first.bound * second.bound >= MAX_CODE:
        first = _densify(first)
        second = _densify(second) if first.bound * second.bound >= MAX_CODE else second
    left = _combine(first.left, second.left, second.bound)
    right = _combine(first.right, second.right, second.bound)
    return JoinCodes(left, right, first.bound * second.bound)


def lookup_codes(left: Ints, right: Ints, bound: int) -> Ints:
    """Last position in ``right`` of each code of ``left``; -1 is no code, and the position of absent ones."""
    if is_dense(bound, len(left) + len(right)):
        position = np.full(bound + 1, -1, dtype=np.int64)
        position[right] = np.arange(len(right))
        position[-1] = -1
        # "wrap" makes the last one of -1
        return np.take(position, left, out=allocate_array(len(left), np.int64), mode="wrap")
    # in order but for absent ones
    is_sorted = (left[1:] >= left[:-1]) | (left[1:] < 0)
    if len(right) and is_sorted.all() and (right[1:] >= right[:-1]).all():
        # a fifth to a half of the time of hashes, as the search of each code starts at the one before
        nearest = np.maximum(right.searchsorted(left, "right") - 1, 0)
        return np.where((left >= 0) & (right[nearest] == left), nearest, -1)
    # the first match in reverse order is the last one
    from_end = pc.index_in(pa.array(left), value_set=pa.array(right[::-1])).fill_null(len(right))
    last = len(right) - 1 - from_end.to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(left < 0, -1, last)


def _densify(codes: JoinCodes) -> JoinCodes:
    """Smaller codes, equal where these are."""
    dense = _encode_by_hash(pa.array(codes.left), pa.array(codes.right))
    left, right = np.where(codes.left < 0, -1, dense.left), np.where(codes.right < 0, -1, dense.right)
    return JoinCodes(left, right, dense.bound)


def _combine(codes: Ints, next_codes: Ints, next_bound: int) -> Ints:
    combined: Ints = np.multiply(codes, next_bound, out=allocate_array(len(codes), np.int64))
    combined += next_codes
    if min(codes.min(initial=0), next_codes.min(initial=0)) < 0:
        combined[(codes < 0) | (next_codes < 0)] = -1
    return combined


def _encode_pair(left: Column, right: Column) -> JoinCodes:
    """Codes of two columns."""
    left, right = unify_types(as_chunked(left), as_chunked(right))
    values = integers(left), integers(right)
    numbers = None if values[0] is None or values[1] is None else (values[0], values[1])
    if numbers is not None and _is_dense_range(min(numbers, key=len)):
        return _encode_by_grid(*numbers)
    left_runs, right_runs = _find_runs(left), _find_runs(right)
    if left_runs is not None or right_runs is not None:
        pair = left_runs.values if left_runs else left, right_runs.values if right_runs else right
        codes = _encode_pair(*pair)
        left_codes = np.repeat(codes.left, left_runs.lengths) if left_runs else codes.left
        right_codes = np.repeat(codes.right, right_runs.lengths) if right_runs else codes.right
        return JoinCodes(left_codes, right_codes, codes.bound)
    if numbers is not None:
        return _encode_by_grid(*numbers)
    # equal floats must have equal bits to be found by their hash
    return _encode_by_hash(*(to_single_array(arrow.normalize_zeros(side)) for side in (left, right)))


def _encode_by_grid(left: Ints, right: Ints) -> JoinCodes:
    grid = _find_grid(min(left, right, key=len))
    if not is_dense(grid.size, len(left) + len(right)):
        return _encode_by_hash(pa.array(left), pa.array(right))
    return JoinCodes(grid.encode(left), grid.encode(right), grid.size)


class _Grid(NamedTuple):
    """Numbers with the same distance from each to the next: days in nanoseconds, for example."""

    low: int
    step: int
    size: int

    def encode(self, values: Ints) -> Ints:
        """Position of each value; -1 of those that are not in the grid, of less than 2**63 values."""
        # as unsigned numbers, distances below zero are the largest ones
        codes = np.subtract(values, self.low, out=allocate_array(len(values), np.int64)).view(np.uint64)
        is_other = None
        if self.step > 1:
            distances, step = codes, np.uint64(self.step)
            codes = np.floor_divide(distances, step, out=allocate_array(len(values), np.uint64))
            is_other = codes * step != distances
        too_large = codes >= self.size
        is_other = too_large if is_other is None else is_other | too_large
        if is_other.any():
            codes[is_other] = np.iinfo(np.uint64).max
        encoded: Ints = codes.view(np.int64)
        return encoded


def _find_grid(values: Ints) -> _Grid:
    """The grid with the largest step that has all values."""
    if not len(values):
        return _Grid(0, 1, 1)
    low, high = int(values.min()), int(values.max())
    if is_dense(high - low, len(values)):
        return _Grid(low, 1, high - low + 1)
    step = max(int(np.gcd.reduce((values - low).view(np.uint64))), 1)
    return _Grid(low, step, (high - low) // step + 1)


def _encode_by_hash(left: pa.Array, right: pa.Array) -> JoinCodes:
    """Numbers of the values in the dictionary of the shorter column."""
    swap = len(right) < len(left)
    shorter, longer = (right, left) if swap else (left, right)
    encoded = shorter.dictionary_encode(null_encoding="encode")
    codes, longer_codes = to_numpy(encoded.indices), lookup(longer, encoded.dictionary)
    if pa.types.is_integer(shorter.type):
        # so that codes of sorted rows are sorted
        ranks = np.append(to_numpy(pc.rank(encoded.dictionary)), 0).astype(np.int64) - 1
        codes, longer_codes = ranks[codes], ranks[longer_codes]
    codes, bound = codes.astype(np.int64, copy=False), max(len(encoded.dictionary), 1)
    return JoinCodes(longer_codes, codes, bound) if swap else JoinCodes(codes, longer_codes, bound)
