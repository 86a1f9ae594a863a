"""Column statistics: what they keep is what the rows can match; damaged files prune nothing."""

import math
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.core import pruning
from kartothek_cube.core.arrow import widen
from kartothek_cube.core.expressions import literal_mask
from kartothek_cube.core.naming import statistics_key
from kartothek_cube.core.store import open_blobs
from tests.support.predicates import KINDS, literals, tables

LABELS = pa.array(["a", "b", "c"])


def collect(values, cuts=(), labels=LABELS):
    starts = np.array([0, *sorted(cuts)], dtype=np.int64)
    columns = {"v": pa.chunked_array([values.cast(widen(values.type))])}
    return pruning.collect_statistics(columns, starts, labels[: len(starts)])


def read_again(table):
    blobs = open_blobs("hmemory://")
    name = pruning.store_statistics(blobs, "sales", table)
    return pruning.load_statistics(blobs, statistics_key("sales", name))


def mask(table, op, value):
    return pruning.statistics_mask(table.column("v").combine_chunks(), op, value, "v").to_pylist()


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_partition_is_pruned_only_if_none_of_its_rows_match(name, data):
    """For `<` and the like, and for nulls, no other partition is kept either."""
    values = data.draw(tables([name])).column(name).combine_chunks()
    cuts = data.draw(st.lists(st.integers(0, len(values)), max_size=2))
    _, op, value = data.draw(literals(name))
    kept = mask(read_again(collect(values, cuts)), op, value)
    bounds = [0, *sorted(cuts), len(values)]
    parts = [values[start:stop].cast(widen(values.type)) for start, stop in pairwise(bounds)]
    exact = [pc.any(literal_mask(part, op, value), min_count=0).as_py() for part in parts]
    assert all(keep for keep, matches in zip(kept, exact) if matches)
    is_exact = op in ("<", "<=", ">", ">=")
    for part, keep, matches in zip(parts, kept, exact):
        present = part.filter(pc.invert(pc.is_null(part, nan_is_null=pa.types.is_floating(part.type))))
        if len(part) and (is_exact or len(present.unique()) <= 1):
            assert keep == matches
        if not len(part):
            assert keep  # it has no entry


@pytest.mark.parametrize("length", [1024, 1025])
def test_partitions_with_long_texts_have_no_entry(length):
    table = collect(pa.array(["b" * length, "b"]), [1])
    assert mask(table, ">", "bb") == [True, False]
    assert mask(table, ">", "c") == [length > 1024, False]


def test_later_statistics_take_precedence_and_partitions_without_are_kept():
    first, second = collect(pa.array([1, 2]), [1]), collect(pa.array([5]), labels=LABELS[1:])
    merged = pruning.merge_statistics([first, second], pa.array(["c", "b", "a"]))
    assert mask(merged, ">", 4) == [True, True, False]


def test_nan_counts_as_null():
    table = collect(pa.array([math.nan, 1.0, math.nan]), [1, 2])
    assert mask(table, "in", [None]) == [True, False, True]
    assert mask(table, "!=", 2.0) == [False, True, False]


def test_an_unknown_number_of_nulls_prunes_no_search_for_nulls():
    entries = pa.array([{"minimum": 1, "maximum": 2, "nulls": nulls} for nulls in (None, 0, 1)])
    table = pa.table({"partition": LABELS[:3], "v": entries})
    assert mask(table, "in", [None]) == [True, False, True]


@pytest.mark.parametrize(
    "content",
    [
        *(b"no Parquet", pa.table({"label": LABELS}), pa.table({"partition": pa.array(["a", "a"])})),
        pa.table({"partition": pa.array([None], pa.string())}),
        # a text that is no UTF-8
        pa.table({"partition": ["a"], "v": pa.array([b"\xff"]).view(pa.string())}),
    ],
)
def test_a_damaged_file_prunes_nothing(content, caplog):
    blobs, key = open_blobs("hmemory://"), statistics_key("sales", "0d34")
    if isinstance(content, pa.Table):
        content = blobs.get(statistics_key("sales", pruning.store_statistics(blobs, "sales", content)))
        with pytest.raises(ValueError, match=r"partition|UTF8"):
            pruning.parse_statistics(content)
    blobs.put(key, content)
    assert pruning.load_statistics(blobs, key) is None
    assert "nothing is pruned" in caplog.text
    assert pruning.load_statistics(blobs, statistics_key("sales", "0d35")) is None


@pytest.mark.parametrize("values, expected", [([1, 2, 3], []), ([1, 2, 4], ["v"]), ([1, 2, None], ["v"])])
def test_wrong_entries_are_found(values, expected):
    stored = collect(pa.array(values, pa.int64()), [1, 2])
    assert pruning.differing_columns(stored, collect(pa.array([1, 2, 3]), [1, 2])) == expected


def test_the_types_of_values_are_kept():
    for kind in KINDS.values():
        table = collect(pa.array(kind.cells, kind.dtype))
        assert read_again(table).schema == table.schema
    assert pruning.statistics_file("sales", {pruning.STATISTICS: "../x"}) is None
