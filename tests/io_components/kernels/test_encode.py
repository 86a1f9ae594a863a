"""Key columns as codes, against brute force in Python."""

from __future__ import annotations

import datetime
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.io_components.kernels.encode import combine_keys, encode_ordered, group_codes, join_codes
from kartothek_cube.io_components.kernels.search import lookup_codes
from kartothek_cube.io_components.kernels.sort import (
    equal_neighbours,
    last_occurrence_mask,
    sort_order,
    strictly_increasing,
)
from kartothek_cube.io_components.kernels.take import expand_ranges, take_values

DAYS = st.dates(datetime.date(1700, 1, 1), datetime.date(2200, 1, 1))
TYPES = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small ints": (pa.int64(), st.integers(-3, 3)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "string": (pa.string(), st.text(max_size=3)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), DAYS),
    "binary": (pa.binary(), st.binary(max_size=2)),
}


@st.composite
def key_columns(draw: st.DrawFn, n_columns: int = 2) -> list[tuple[pa.DataType, list[object]]]:
    length = draw(st.integers(0, 12))
    columns = []
    for _ in range(draw(st.integers(1, n_columns))):
        dtype, values = TYPES[draw(st.sampled_from(sorted(TYPES)))]
        pool = draw(st.lists(values, min_size=1, max_size=5))
        columns.append((dtype, [draw(st.sampled_from(pool)) for _ in range(length)]))
    return columns


def arrow(column: tuple[pa.DataType, list[object]], pieces: int = 2) -> pa.ChunkedArray:
    dtype, values = column
    array = pa.array(values, dtype)
    cut = len(values) // pieces
    return pa.chunked_array([array[:cut], array[cut:]])


@given(key_columns())
def test_codes_compare_like_the_values(columns: list[tuple[pa.DataType, list[object]]]) -> None:
    rows = list(zip(*(values for _, values in columns), strict=True))
    codes, bound = combine_keys([encode_ordered(arrow(c)) for c in columns], len(rows))
    assert all(0 <= code < bound for code in codes)
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            assert (codes[i] < codes[j]) == (a < b)
            assert (codes[i] == codes[j]) == (a == b)
    dense = group_codes([arrow(c) for c in columns], len(rows))
    assert sorted(set(dense.tolist())) == list(range(len(set(rows))))


@given(key_columns())
def test_sorting_and_uniqueness(columns: list[tuple[pa.DataType, list[object]]]) -> None:
    rows = list(zip(*(values for _, values in columns), strict=True))
    arrays = [arrow(c) for c in columns]
    assert strictly_increasing(arrays, len(rows)) == all(a < b for a, b in itertools.pairwise(rows))
    order = sort_order(arrays, len(rows))
    expected = sorted(range(len(rows)), key=lambda i: rows[i])
    assert (list(range(len(rows))) if order is None else order.tolist()) == expected
    keep = last_occurrence_mask(*combine_keys([encode_ordered(a) for a in arrays], len(rows)))
    expected_keep = [row not in rows[i + 1 :] for i, row in enumerate(rows)]
    assert ([True] * len(rows) if keep is None else keep.tolist()) == expected_keep


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=10))
def test_neighbours_are_not_compared_across_blocks(rows: list[tuple[int, int]]) -> None:
    rows = sorted(rows, key=lambda r: r[0])
    pairs = list(itertools.pairwise(rows))
    starts = np.array([i for i, (a, b) in enumerate(pairs, 1) if a[0] != b[0]], dtype=np.int64)
    equal = equal_neighbours([pa.array([r[1] for r in rows], pa.int64())], len(rows), starts)
    if all(a[0] < b[0] or a[1] <= b[1] for a, b in pairs):
        assert equal is not None
        assert equal.tolist() == [a == b for a, b in pairs]
    else:
        assert equal is None


@given(st.data())
def test_lookup_finds_partners(data: st.DataObject) -> None:
    dtype, values = TYPES[data.draw(st.sampled_from(sorted(TYPES)))]
    left = data.draw(st.lists(values, max_size=8))
    right = data.draw(st.lists(values, max_size=8))
    ours, theirs = join_codes([pa.array(left, dtype)], [pa.array(right, dtype)], len(left), len(right))
    bound = len(left) + len(right) + 1
    expected = [max((i for i, other in enumerate(right) if other == v), default=-1) for v in left]
    assert lookup_codes(ours, theirs, bound).tolist() == expected
    assert lookup_codes(ours, theirs, 1 << 40).tolist() == expected


def test_join_codes_of_different_widths() -> None:
    ours, theirs = join_codes([pa.array([1, 300], pa.int64())], [pa.array([1, 2], pa.int8())], 2, 2)
    assert lookup_codes(ours, theirs, 10).tolist() == [0, -1]


def test_codes_do_not_overflow_with_many_wide_columns() -> None:
    values = [-(2**63), 0, 2**63 - 1]
    columns = [pa.array([values[(i // 3**k) % 3] for i in range(3**5)], pa.int64()) for k in range(5)]
    codes, _ = combine_keys([(encode_ordered(c)[0], 1 << 40) for c in columns], 3**5)
    assert len(set(codes.tolist())) == 3**5


def test_nulls_are_equal_and_last() -> None:
    codes, _ = encode_ordered(pa.array([None, "a", None, "b"]))
    assert codes[0] == codes[2] > codes[3] > codes[1]


def test_negative_zero_is_zero() -> None:
    codes, _ = encode_ordered(pa.array([0.0, -0.0, 1.0]))
    assert codes[0] == codes[1] < codes[2]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=6))
def test_repeat_ranges(ranges: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in ranges], dtype=np.int64)
    stop = np.array([a + n for a, n in ranges], dtype=np.int64)
    positions, owner = expand_ranges(start, stop)
    expected = [(p, i) for i, (a, n) in enumerate(ranges) for p in range(a, a + n)]
    assert list(zip(positions.tolist(), owner.tolist(), strict=True)) == expected


@pytest.mark.parametrize("dtype", [pa.int64(), pa.float32(), pa.string(), pa.bool_()])
def test_gather(dtype: pa.DataType) -> None:
    column = pa.chunked_array([pa.array([1, 0]).cast(dtype), pa.array([1]).cast(dtype)])
    values = column.to_pylist()
    assert take_values(column, np.array([2, 0, 1]), missing=False).to_pylist() == [
        values[2],
        values[0],
        values[1],
    ]
    assert take_values(column, np.array([2, -1]), missing=True).to_pylist() == [values[2], None]
