"""Key columns as integer codes: one comparable int64 per row instead of values of several types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.io_components.kernels.take import Column, as_chunked

__all__ = (
    "MAX_CODE",
    "combine_keys",
    "encode_ordered",
    "group_codes",
    "integers",
    "is_dense",
    "join_codes",
    "normalize_zeros",
    "unify_types",
)


#: combined codes stay below this: one more addition cannot overflow int64
MAX_CODE = 1 << 62


def is_dense(bound: int, length: int) -> bool:
    """
    Whether an array with one entry per possible code is cheaper than sorting or hashing the codes.

    It is at most four times as large as the data, or fits into the cache of a core (64 Ki entries).
    """
    return bound <= max(4 * length, 1 << 16)


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


def encode_ordered(column: Column) -> tuple[Ints, int]:
    """
    Codes that compare as the values do, nulls last; and their exclusive upper bound.

    >>> encode_ordered(pa.array(["Hamburg", "Dresden", "Hamburg"]))
    (array([1, 0, 1]), 3)
    """
    chunked = as_chunked(column)
    values = integers(chunked)
    if values is None:
        return rank_values(chunked)
    if not len(values):
        return values, 1
    low, high = int(values.min()), int(values.max())
    if not is_dense(high - low, len(values)):
        return rank_values(chunked)
    return values - low if low else values, high - low + 1


def rank_values(column: pa.ChunkedArray) -> tuple[Ints, int]:
    """Dense ranks by value, nulls last; and their exclusive upper bound."""
    column = normalize_zeros(decode_dictionary(column))
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


def combine_keys(encoded: Sequence[tuple[Ints, int]], length: int) -> tuple[Ints, int]:
    """One code per row for the tuples of values, ordered like them; and the exclusive upper bound."""
    if not encoded:
        return np.zeros(length, dtype=np.int64), 1
    codes, bound = encoded[0]
    for next_codes, next_bound in encoded[1:]:
        if bound * next_bound >= MAX_CODE:
            distinct, codes = np.unique(codes, return_inverse=True)
            bound = max(len(distinct), 1)
        codes = codes * next_bound + next_codes
        bound *= next_bound
    return codes, bound


def group_codes(columns: Sequence[Column], length: int) -> Ints:
    """Dense codes 0, 1, ... of the value tuples, in the order of the values."""
    return _make_dense(*combine_keys([encode_ordered(column) for column in columns], length))


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


def _make_dense(codes: Ints, bound: int) -> Ints:
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
    return left.cast(common), right.cast(common)


def decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a dictionary-encoded column; other columns unchanged."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def normalize_zeros(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats with 0.0 for -0.0, which are one value but two bit patterns; other columns unchanged."""
    if pa.types.is_floating(column.type):
        return pc.add(column, pa.scalar(0.0, column.type))
    return column
