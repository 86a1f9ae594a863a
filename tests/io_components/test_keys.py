"""Codes, order and lookup of keys, against brute force."""

import datetime
import itertools
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.io_components import kernels

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
    codes, bound = kernels.combine_keys([kernels.encode_ordered(arrow(c)) for c in columns], len(rows))
    assert all(0 <= code < bound for code in codes)
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            assert (codes[i] < codes[j]) == (a < b)
            assert (codes[i] == codes[j]) == (a == b)
    dense = kernels.group_codes([arrow(c) for c in columns], len(rows))
    assert sorted(set(dense.tolist())) == list(range(len(set(rows))))


@given(key_columns())
def test_sorting_and_uniqueness(columns: list[tuple[pa.DataType, list[object]]]) -> None:
    rows = list(zip(*(values for _, values in columns), strict=True))
    arrays = [arrow(c) for c in columns]
    assert kernels.strictly_increasing(arrays, len(rows)) == all(a < b for a, b in itertools.pairwise(rows))
    order = kernels.sort_order(arrays, len(rows))
    expected = sorted(range(len(rows)), key=lambda i: rows[i])
    assert (list(range(len(rows))) if order is None else order.tolist()) == expected
    keep = kernels.last_rows_mask(arrays, len(rows))
    expected_keep = [row not in rows[i + 1 :] for i, row in enumerate(rows)]
    assert ([True] * len(rows) if keep is None else keep.tolist()) == expected_keep


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=10))
def test_neighbours_are_not_compared_across_blocks(rows: list[tuple[int, int]]) -> None:
    rows = sorted(rows, key=lambda r: r[0])
    pairs = list(itertools.pairwise(rows))
    starts = np.array([i for i, (a, b) in enumerate(pairs, 1) if a[0] != b[0]], dtype=np.int64)
    equal = kernels.equal_neighbours([pa.array([r[1] for r in rows], pa.int64())], len(rows), starts)
    if all(a[0] < b[0] or a[1] <= b[1] for a, b in pairs):
        assert equal is not None
        assert equal.tolist() == [a == b for a, b in pairs]
    else:
        assert equal is None


def test_codes_of_wide_columns_nulls_and_zeros():
    ours, theirs = kernels.join_codes([pa.array([1, 300], pa.int64())], [pa.array([1, 2], pa.int8())], 2, 2)
    assert kernels.lookup_codes(ours, theirs, 10).tolist() == [0, -1]
    values = [-(2**63), 0, 2**63 - 1]
    columns = [pa.array([values[(i // 3**k) % 3] for i in range(3**5)], pa.int64()) for k in range(5)]
    codes, _ = kernels.combine_keys([(kernels.encode_ordered(c)[0], 1 << 40) for c in columns], 3**5)
    assert len(set(codes.tolist())) == 3**5
    codes, _ = kernels.encode_ordered(pa.array([None, "a", None, "b"]))
    assert codes[0] == codes[2] > codes[3] > codes[1]
    codes, _ = kernels.encode_ordered(pa.array([0.0, -0.0, 1.0]))
    assert codes[0] == codes[1] < codes[2]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=6))
def test_repeat_ranges(ranges: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in ranges], dtype=np.int64)
    positions, owner = kernels.expand_ranges(start, np.array([a + n for a, n in ranges], dtype=np.int64))
    expected = [(p, i) for i, (a, n) in enumerate(ranges) for p in range(a, a + n)]
    assert list(zip(positions.tolist(), owner.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2**62, 0, None]),
        pa.array([255, 1, 0], pa.uint8()),
        pa.array([float("nan"), -0.0, None], pa.float32()),
        pa.array([True, False, None]),
        pa.array([1, None, 3], pa.timestamp("ns", "Asia/Tokyo")),
        pa.array([1, None, 3], pa.date32()),
        pa.array([Decimal("1.25"), None, Decimal("3.00")], pa.decimal128(5, 2)),
        pa.array(["a", None, ""]),
        pa.array(["a", None, "a"]).dictionary_encode(),
        pa.array([[1], None, []]),
        pa.nulls(3),
    ],
    ids=lambda values: str(values.type),
)
def test_values_are_taken_by_position_and_are_null_without_one(values: pa.Array) -> None:
    column = pa.chunked_array([values.slice(0, 1), values.slice(1)])
    found = kernels.take_values(column, np.array([2, 0, 1]), missing=False)
    assert (found.type, str(found)) == (values.type, str(values.take(pa.array([2, 0, 1]))))
    found = kernels.take_values(column, np.array([2, -1, 0, 1, -1]), missing=True)
    assert (found.type, str(found)) == (values.type, str(values.take(pa.array([2, None, 0, 1, None]))))
    assert kernels.take_values(values.slice(0, 0), np.array([-1, -1]), missing=True).null_count == 2


rows = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"])), max_size=30).map(sorted)
CUTS = st.lists(st.integers(0, 30), max_size=5)


def batches_of(values, cuts) -> list[pa.RecordBatch]:
    """Batches that end at the cuts; some are empty."""
    schema = pa.schema([("p", pa.int64()), ("q", pa.string()), ("v", pa.int64())])
    table = pa.table([[p for p, _ in values], [q for _, q in values], [*range(len(values))]], schema=schema)
    ends = sorted(min(cut, len(values)) for cut in cuts)
    pairs = itertools.pairwise([0, *ends, len(values)])
    empty = pa.RecordBatch.from_pylist([], schema=table.schema)
    return [next(iter(table.slice(a, b - a).combine_chunks().to_batches()), empty) for a, b in pairs]


@pytest.mark.parametrize("keys", [["p"], ["p", "q"]])
@settings(deadline=None)
@given(values=rows, cuts=CUTS, size=st.integers(1, 10))
def test_no_partition_is_in_two_tables(keys, values, cuts, size):
    tables = list(kernels.rechunk_by_partition(batches_of(values, cuts), keys, size))
    assert [v for t in tables for v in t["v"].to_pylist()] == list(range(len(values)))
    parts = [{tuple(row[k] for k in keys) for row in t.to_pylist()} for t in tables]
    assert all(not a & b for a, b in itertools.combinations(parts, 2))
    assert all(len(t) for t in tables)


@settings(deadline=None)
@given(values=rows, cuts=CUTS, size=st.integers(1, 10), limit=st.integers(1, 10))
def test_a_limit_cuts_partitions_only_where_it_has_to(values, cuts, size, limit):
    tables = list(kernels.rechunk_by_partition(batches_of(values, cuts), ["p"], size, limit))
    assert [v for t in tables for v in t["v"].to_pylist()] == list(range(len(values)))
    assert all(0 < len(t) <= limit for t in tables)
    for before, after in itertools.pairwise(tables):
        if before["p"][-1] == after["p"][0]:
            assert len(before) == limit


def test_without_keys_all_is_one_partition():
    assert [len(t) for t in kernels.rechunk_by_partition(batches_of([(0, "a")] * 9, [2, 5]), [], 1)] == [9]


def test_only_one_table_is_held():
    taken = []

    def source():
        for number, batch in enumerate(batches_of([(0, "a"), (1, "a"), (2, "a")], [1, 2])):
            taken.append(number)
            yield batch

    next(kernels.rechunk_by_partition(source(), ["p"], 1))
    assert taken == [0, 1]


@given(
    cells=st.lists(st.tuples(st.sampled_from(["", "a", "b", "ü", "z"]), st.integers(0, 3)), max_size=6),
    in_order=st.booleans(),
    cut=st.integers(0, 6),
)
def test_encoded_texts_are_ordered_like_plain_ones(cells, in_order, cut):
    cells = sorted(set(cells)) if in_order else cells
    texts = pa.array([text for text, _ in cells], pa.string())
    numbers = pa.array([number for _, number in cells], pa.int64())
    expected = cells == sorted(set(cells))
    chunks = pa.chunked_array([texts[:cut].dictionary_encode(), texts[cut:].dictionary_encode()])
    for column in (texts, texts.dictionary_encode(), chunks):
        assert kernels.strictly_increasing([column, numbers], len(cells)) == expected


FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, None])


def key(value):
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


@st.composite
def sides(draw):
    """Draw the values of each key column of two sides."""
    known = [*(TYPES[name] for name in sorted(TYPES)), (pa.float64(), FLOATS)]
    kinds = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
    pools = [draw(st.lists(values | st.none(), min_size=1, max_size=4)) for _, values in kinds]
    row = st.tuples(*map(st.sampled_from, pools))
    return [dtype for dtype, _ in kinds], draw(st.lists(row, max_size=8)), draw(st.lists(row, max_size=8))


def columns_of(dtypes, rows):
    return [arrow((dtype, [row[i] for row in rows])) for i, dtype in enumerate(dtypes)]


@pytest.mark.parametrize("limit", [1 << 62, 4])
@given(sides())
def test_lookup_keys(limit, drawn):
    dtypes, left, right = drawn
    old, kernels.MAX_CODE = kernels.MAX_CODE, limit
    try:
        columns = columns_of(dtypes, left), columns_of(dtypes, right)
        found = kernels.lookup_keys(*columns, len(left), len(right))
        codes = kernels.join_codes(*columns, len(left), len(right))
    finally:
        kernels.MAX_CODE = old
    last = {k: number for number, k in enumerate([tuple(map(key, row)) for row in right])}
    expected = [last.get(tuple(map(key, row)), -1) for row in left]
    assert found.tolist() == expected
    for bound in (len(left) + len(right) + 1, 1 << 40):
        assert kernels.lookup_codes(*codes, bound).tolist() == expected


def test_without_key_columns_all_rows_are_alike():
    assert kernels.lookup_keys([], [], 2, 1).tolist() == [0, 0]
    assert kernels.lookup_keys([], [], 2, 0).tolist() == [-1, -1]


@pytest.mark.parametrize("few", ["left", "right"])
def test_numbers_far_from_each_other(few):
    low, high = -(2**63), 2**63 - 1
    left, right = [low, 0, high, 5], [high, 3, low]
    if few == "left":
        left, right = left[:1], [*right, *range(10, 90)]
    found = kernels.lookup_keys([pa.array(left)], [pa.array(right)], len(left), len(right))
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
)
def test_types_that_differ(left, right):
    wide = pa.float64() if pa.types.is_floating(left.type) else right.type
    values = right.to_pylist() if wide == right.type else right.cast(wide).to_pylist()
    expected = [values.index(v) if v in values else -1 for v in left.to_pylist()]
    assert kernels.lookup_keys([left], [right], 2, 2).tolist() == expected


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_columns_of_many_rows_are_sorted_by_several_threads(monkeypatch, cores):
    monkeypatch.setattr(kernels, "available_cores", lambda: cores)
    order = np.random.default_rng(0).permutation(2 * kernels.CHUNK_ROWS)
    texts = pa.array(order).cast(pa.string())
    table = pa.table({"x": order, "f": order / 2, "t": texts, "b": order % 2 == 0})
    assert kernels.sort_rows(table, ["x"]).equals(table.take(np.argsort(order)))


def test_many_rows():
    random = np.random.default_rng(0)
    left, right = random.integers(0, 10**9, 5_000), np.unique(random.integers(0, 10**9, 5_000))
    left[::2] = right[random.integers(0, len(right), 2_500)]
    found = kernels.lookup_keys([pa.array(left)], [pa.array(right)], len(left), len(right))
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
    assert kernels.lookup_keys([pa.array(left)], [pa.array(right)], length, len(right)).tolist() == expected


INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, st.integers(1, 2**63), st.lists(st.integers(0, 9), min_size=1), st.lists(INT64))
def test_numbers_of_a_grid_are_found_among_others(low, step, positions, others):
    """The days of a cube in nanoseconds, for example, are found without hashes."""
    days = [value for n in positions if (value := low + n * step) < 2**63]
    left = [*days, *others, *(value + 1 for value in days if value < 2**63 - 1)]
    columns = [pa.array(left, pa.int64())], [pa.array(days, pa.int64())]
    found = kernels.lookup_keys(*columns, len(left), len(days))
    last = {value: number for number, value in enumerate(days)}
    assert found.tolist() == [last.get(value, -1) for value in left]
