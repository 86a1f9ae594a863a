"""Order of rows, and cutting streams of batches into tables."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.io_components.kernels.sort import rechunk_by_partition, strictly_increasing

rows = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"])), max_size=30).map(sorted)


def batches_of(values, cuts) -> list[pa.RecordBatch]:
    """Batches that end at the cuts; some are empty."""
    table = pa.table(
        {
            "p": pa.array([p for p, _ in values], pa.int64()),
            "q": pa.array([q for _, q in values], pa.string()),
            "v": pa.array(range(len(values)), pa.int64()),
        }
    )
    ends = sorted(min(cut, len(values)) for cut in cuts)
    pairs = itertools.pairwise([0, *ends, len(values)])
    empty = pa.RecordBatch.from_pylist([], schema=table.schema)
    return [next(iter(table.slice(a, b - a).combine_chunks().to_batches()), empty) for a, b in pairs]


@pytest.mark.parametrize("keys", [["p"], ["p", "q"]])
@settings(deadline=None)
@given(values=rows, cuts=st.lists(st.integers(0, 30), max_size=5), size=st.integers(1, 10))
def test_no_partition_is_in_two_tables(keys, values, cuts, size):
    tables = list(rechunk_by_partition(batches_of(values, cuts), keys, size))
    assert [v for t in tables for v in t["v"].to_pylist()] == list(range(len(values)))
    parts = [{tuple(row[k] for k in keys) for row in t.to_pylist()} for t in tables]
    assert all(not a & b for a, b in itertools.combinations(parts, 2))
    assert all(len(t) for t in tables)


@settings(deadline=None)
@given(
    values=rows,
    cuts=st.lists(st.integers(0, 30), max_size=5),
    size=st.integers(1, 10),
    limit=st.integers(1, 10),
)
def test_a_limit_cuts_partitions_only_where_it_has_to(values, cuts, size, limit):
    tables = list(rechunk_by_partition(batches_of(values, cuts), ["p"], size, limit))
    assert [v for t in tables for v in t["v"].to_pylist()] == list(range(len(values)))
    assert all(0 < len(t) <= limit for t in tables)
    for before, after in itertools.pairwise(tables):
        if before["p"][-1] == after["p"][0]:
            assert len(before) == limit


def test_without_keys_all_is_one_partition():
    batches = batches_of([(0, "a")] * 9, [2, 5])
    assert [len(t) for t in rechunk_by_partition(batches, [], 1)] == [9]


def test_only_one_table_is_held():
    taken = []

    def source():
        for number, batch in enumerate(batches_of([(0, "a"), (1, "a"), (2, "a")], [1, 2])):
            taken.append(number)
            yield batch

    tables = rechunk_by_partition(source(), ["p"], 1)
    next(tables)
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
        assert strictly_increasing([column, numbers], len(cells)) == expected
