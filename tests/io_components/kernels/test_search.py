"""Rows found by their keys, against brute force."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.io_components.kernels import search
from kartothek_cube.io_components.kernels.search import lookup_keys
from tests.io_components.kernels.test_encode import TYPES, arrow

FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, None])


def key(value):
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


@st.composite
def sides(draw):
    """Draw the values of each key column of two sides."""
    columns = [
        draw(st.sampled_from([*sorted(TYPES), "float with everything"]))
        for _ in range(draw(st.integers(1, 3)))
    ]
    kinds = [(pa.float64(), FLOATS) if c == "float with everything" else TYPES[c] for c in columns]
    pools = [draw(st.lists(values | st.none(), min_size=1, max_size=4)) for _, values in kinds]
    row = st.tuples(*map(st.sampled_from, pools))
    left = draw(st.lists(row, max_size=8))
    right = draw(st.lists(row, max_size=8))
    return [dtype for dtype, _ in kinds], left, right


def columns_of(dtypes, rows):
    return [arrow((dtype, [row[i] for row in rows])) for i, dtype in enumerate(dtypes)]


@pytest.mark.parametrize("limit", [1 << 62, 4])
@given(sides())
def test_lookup_keys(limit, drawn):
    dtypes, left, right = drawn
    old, search.MAX_CODE = search.MAX_CODE, limit
    try:
        found = lookup_keys(columns_of(dtypes, left), columns_of(dtypes, right), len(left), len(right))
    finally:
        search.MAX_CODE = old
    keys = [tuple(map(key, row)) for row in right]
    last = {k: number for number, k in enumerate(keys)}
    expected = [last.get(tuple(map(key, row)), -1) for row in left]
    assert found.tolist() == expected


def test_without_key_columns_all_rows_are_alike():
    assert lookup_keys([], [], 2, 1).tolist() == [0, 0]
    assert lookup_keys([], [], 2, 0).tolist() == [-1, -1]


@pytest.mark.parametrize("few", ["left", "right"])
def test_numbers_far_from_each_other(few):
    low, high = -(2**63), 2**63 - 1
    left, right = [low, 0, high, 5], [high, 3, low]
    if few == "left":
        left, right = left[:1], [*right, *range(10, 90)]
    found = lookup_keys([pa.array(left)], [pa.array(right)], len(left), len(right))
    assert found.tolist() == [right.index(v) if v in right else -1 for v in left]


@pytest.mark.parametrize(
    "left, right",
    [
        (pa.array([1, 300], pa.int64()), pa.array([1, 44], pa.int8())),
        (pa.array([1.0, 2.5]), pa.array([2, 1], pa.int32())),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "c"])),
        (pa.array([1, 2], pa.timestamp("us")), pa.array([1000, 3], pa.timestamp("ns"))),
        (pa.array([None, None], pa.null()), pa.array([1, None], pa.int64())),
    ],
    ids=["widths", "kinds", "dictionary", "units", "null"],
)
def test_types_that_differ(left, right):
    wide = pa.float64() if pa.types.is_floating(left.type) else right.type
    values = right.to_pylist() if wide == right.type else right.cast(wide).to_pylist()
    expected = [values.index(v) if v in values else -1 for v in left.to_pylist()]
    assert lookup_keys([left], [right], 2, 2).tolist() == expected


def test_many_rows():
    random = np.random.default_rng(0)
    left, right = random.integers(0, 10**9, 5_000), np.unique(random.integers(0, 10**9, 5_000))
    left[::2] = right[random.integers(0, len(right), 2_500)]
    found = lookup_keys([pa.array(left)], [pa.array(right)], len(left), len(right))
    assert (found >= 0).tolist() == np.isin(left, right).tolist()
    assert (right[found[found >= 0]] == left[found >= 0]).all()


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(1, 12),
    st.none() | st.tuples(st.integers(0, 40), st.integers(0, 4)),
)
def test_rows_that_come_again_and_again(values, length, change):
    left = (values * length)[:length]
    if change:
        left[change[0] % length] = change[1]
    right = [2, 0, 4, 1]
    expected = [right.index(v) if v in right else -1 for v in left]
    assert lookup_keys([pa.array(left)], [pa.array(right)], length, len(right)).tolist() == expected


INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, st.integers(1, 2**63), st.lists(st.integers(0, 9), min_size=1), st.lists(INT64))
def test_numbers_of_a_grid_are_found_among_others(low, step, positions, others):
    """The days of a cube in nanoseconds, for example, are found without hashes."""
    days = [value for n in positions if (value := low + n * step) < 2**63]
    left = [*days, *others, *(value + 1 for value in days if value < 2**63 - 1)]
    found = lookup_keys([pa.array(left, pa.int64())], [pa.array(days, pa.int64())], len(left), len(days))
    last = {value: number for number, value in enumerate(days)}
    assert found.tolist() == [last.get(value, -1) for value in left]
