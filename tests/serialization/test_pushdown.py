from __future__ import annotations

import io
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.core.predicates import filter_mask
from kartothek_cube.core.types import as_table, to_pandas
from kartothek_cube.core.types.pandas_metadata import with_pandas_metadata
from kartothek_cube.serialization import ParquetSerializer, filter_df_from_predicates
from kartothek_cube.serialization._row_groups import matching_row_groups
from tests.support.predicates import KINDS, brute_force, predicates_of, rows_of, tables

#: microseconds is all that a file holds
STORABLE = sorted(set(KINDS) - {"timestamp_ns"})
INTEGERS = {"int8": "Int8", "int64": "Int64", "uint8": "UInt8", "uint64": "UInt64"}


@pytest.mark.parametrize("name", STORABLE)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_all_ways_to_filter_agree(name, data):
    names = [name, *data.draw(st.lists(st.sampled_from(STORABLE).filter(name.__ne__), max_size=1))]
    table = data.draw(tables(names))
    table = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    sink = io.BytesIO()
    ParquetSerializer(chunk_size=2).write_table(table, sink)
    for _ in range(3):
        predicates = data.draw(predicates_of(names))
        expected = brute_force(rows_of(table), predicates)
        for pushdown in (True, False):
            found = ParquetSerializer.read_table(
                sink.getvalue(), ["row"], predicates, predicate_pushdown_to_io=pushdown
            )
            assert found["row"].to_pylist() == expected
        assert table.filter(filter_mask(table, predicates))["row"].to_pylist() == expected
        df = to_pandas(as_table(with_nullable_integers(table)), dates_as_object=True)
        assert filter_df_from_predicates(df, predicates)["row"].tolist() == expected


def with_nullable_integers(table):
    extensions = {name: INTEGERS[name] for name in table.column_names if name in INTEGERS}
    return table.cast(with_pandas_metadata(table.schema, extensions))


def groups(values, predicates, size=2, **kwargs):
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": values}), sink, row_group_size=size, **kwargs)
    file = pq.ParquetFile(io.BytesIO(sink.getvalue()))
    return matching_row_groups(file.metadata, file.schema_arrow, predicates)


def chunk_values():
    return pa.array([1, 2, 5, 5, None, None, 7, None])


@pytest.mark.parametrize(
    "op, value, expected",
    [
        ("==", 2, [0]),
        ("==", 3, []),
        ("!=", 5, [0, 3]),
        ("<", 2, [0]),
        ("<=", 1, [0]),
        (">", 5, [3]),
        (">=", 5, [1, 3]),
        ("in", [2, 7], [0, 3]),
        ("in", [3, 6], []),
        ("in", [], []),
        ("in", [3, None], [2, 3]),
        ("not in", [5], [0, 1, 2, 3]),
        (">", 10**30, []),
        ("<", 10**30, [0, 1, 2, 3]),
    ],
)
def test_row_groups_are_skipped(op, value, expected):
    kept = groups(chunk_values(), [[("x", op, value)]])
    # a group of nulls only has no minimum and maximum, so it cannot be told apart
    assert set(kept) - {2} == set(expected) - {2}
    assert set(expected) <= set(kept)


def test_row_groups_of_conjunctions():
    values = chunk_values()
    assert groups(values, [[("x", ">", 1), ("x", "<", 1)]]) == [2]
    assert groups(values, [[("x", "==", 1)], [("x", "==", 7)]]) == [0, 2, 3]
    assert groups(values, None) == [0, 1, 2, 3]


def test_row_groups_without_nulls_are_skipped():
    assert groups(pa.array([1, 2, None, 4]), [[("x", "in", [None])]]) == [1]


def test_row_groups_with_nan_are_kept():
    assert groups(pa.array([5.0, math.nan, 5.0, 5.0]), [[("x", "==", math.nan)]]) == [0, 1]
    assert groups(pa.array([math.nan, math.nan]), [[("x", ">", 1.0)]]) == [0]


def test_row_groups_without_statistics_are_kept():
    assert groups(chunk_values(), [[("x", "==", 3)]], write_statistics=False) == [0, 1, 2, 3]
    assert groups(pa.nulls(2), [[("x", "!=", None)]]) == [0]


def test_nested_columns_beside_the_filter():
    table = pa.table({"x": [1, 2, 3], "l": [["a"], [], None], "x.l": [7, 8, 9]})
    sink = io.BytesIO()
    ParquetSerializer(chunk_size=1).write_table(table, sink)
    found = ParquetSerializer.read_table(sink.getvalue(), ["l", "x.l"], [[("x.l", ">", 7), ("x", "<", 3)]])
    assert found.to_pylist() == [{"l": [], "x.l": 8}]


def test_large_files_are_pruned_and_filtered():
    df = pd.DataFrame({"x": np.arange(20_000), "y": np.arange(20_000) % 7})
    sink = io.BytesIO()
    ParquetSerializer().write_table(as_table(df), sink)
    for x, expected in [(15_000, [15_000 % 7]), (20_000, [])]:
        found = ParquetSerializer.read_table(sink.getvalue(), ["y"], [[("x", "==", x)]])
        assert found["y"].to_pylist() == expected
