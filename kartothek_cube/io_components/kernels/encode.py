"""Values of columns as numbers: comparable codes of keys, dictionaries, hashes of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import tuning
from kartothek_cube.core.arrow.arrays import replace_columns
from kartothek_cube.core.arrow.types import Ints, with_far_times
from kartothek_cube.io_components.kernels.take import Column, as_chunked, to_single_array

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
    """
    Codes that compare as the values do, nulls last.

    >>> encode_ordered(pa.array(["Hamburg", "Dresden", "Hamburg"]))
    Codes(values=array([1, 0, 1]), bound=3)
    """
    chunked = as_chunked(column)
    values = integers(chunked)
    if values is None:
        return rank_values(chunked)
    if not len(values):
        return Codes(values, 1)
    low, high = int(values.min()), int(values.max())
    if not is_dense(high - low, len(values)):
        return rank_values(chunked)
    return Codes(values - low if low else values, high - low + 1)


def rank_values(column: pa.ChunkedArray) -> Codes:
    """Dense ranks by value, nulls last."""
    column = normalize_zeros(decode_dictionary(column))
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


def group_codes(columns: Sequence[Column], length: int) -> Ints:
    """Dense codes 0, 1, ... of the value tuples, in the order of the values."""
    return make_dense(*combine_keys([encode_ordered(column) for column in columns], length))


def join_codes(
    left: Sequence[Column], right: Sequence[Column], n_left: int, n_right: int
) -> tuple[Ints, Ints]:
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
    schemas = [pa.schema([("c", left.type)]), pa.schema([("c", right.type)])]
    common = pa.unify_schemas(schemas, promote_options="permissive").field("c").type
    try:
        return left.cast(common), right.cast(common)
    except pa.ArrowInvalid:
        far = with_far_times(common)
        if far.equals(common):
            raise
        return left.cast(far), right.cast(far)


def decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a dictionary-encoded column; other columns unchanged."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def normalize_zeros(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats with 0.0 for -0.0, which are one value but two bit patterns; other columns unchanged."""
    if pa.types.is_floating(column.type):
        return pc.add(column, pa.scalar(0.0, column.type))
    return column


def categorize(
    table: pa.Table,
    columns: Sequence[str],
    lengths: Sequence[int],
    dictionaries: Mapping[str, pa.Array] | None = None,
) -> pa.Table:
    """
    Encode columns of the rows of several files with one dictionary each, unless a dictionary is given.

    A dictionary holds the values of the longest file in the order of their first appearance, then the
    others sorted, as in kartothek.

    >>> table = pa.table({"CITY": ["Kiel", "Ulm", "Bonn", "Ulm"]})
    >>> categorize(table, ["CITY"], [1, 3]).column("CITY").chunk(0).dictionary.to_pylist()
    ['Ulm', 'Bonn', 'Kiel']
    """
    positions = {name: position for position, name in enumerate(table.column_names)}
    encoded = {
        positions[column]: _encode_column(table.column(column), lengths, (dictionaries or {}).get(column))
        for column in columns
    }
    return replace_columns(table, encoded)


def _encode_column(
    values: pa.ChunkedArray, lengths: Sequence[int], categories: pa.Array | None
) -> pa.ChunkedArray:
    if categories is not None:
        values = values.cast(categories.type)
    elif pa.types.is_null(values.type):
        values = values.cast(pa.string())
    if categories is None:
        categories = _collect_categories(values, lengths)
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


def _hashes(df: pd.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    return np.asarray(pd.util.hash_pandas_object(df[list(columns)], index=False), np.uint64)


def hash_rows(df: pd.DataFrame, columns: Sequence[str]) -> int:
    """
    Sum of the hashes of all rows, modulo 2**64; dates are objects.

    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> hash_rows(cities, ["CITY"]) == hash_rows(cities[::-1], ["CITY"])
    True
    """
    return int(_hashes(df, columns).sum(dtype=np.uint64))


def hash_groups(df: pd.DataFrame, columns: Sequence[str], keys: Sequence[str]) -> pd.Series[int]:
    """Sum of the hashes of the rows of each group, by key; rows with a missing key are in no group."""
    hashes = pd.Series(_hashes(df, columns), dtype="uint64")
    return hashes.groupby([df[key].reset_index(drop=True) for key in keys]).sum()


def merge_hashes(hashes: Iterable[pd.Series[int]]) -> pd.Series[int]:
    """Hashes of groups whose rows are in several frames; ``hashes`` has one entry per frame, at least one."""
    concatenated = pd.concat(list(hashes))
    return concatenated.groupby(level=list(range(concatenated.index.nlevels))).sum()
