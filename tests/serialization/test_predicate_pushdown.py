import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.core.expressions import to_tree, tree_mask
from kartothek_cube.core.pandas_conversion import as_table, to_pandas, with_pandas_metadata
from kartothek_cube.serialization import ParquetSerializer, filter_df_from_predicates
from kartothek_cube.serialization.parquet import read_parquet
from tests.support.predicates import KINDS, brute_force, predicates_of, rows_of, tables

#: microseconds is all that a file holds
STORABLE = sorted(set(KINDS) - {"timestamp_ns"})
INTEGERS = {"int8": "Int8", "int64": "Int64", "uint8": "UInt8", "uint64": "UInt64"}


@pytest.mark.slow("many random predicates")
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
        found = read_parquet(sink.getvalue(), "a file", ["row"], predicates)
        assert found["row"].to_pylist() == expected
        assert table.filter(tree_mask(table, to_tree(predicates)))["row"].to_pylist() == expected
        df = to_pandas(as_table(with_nullable_integers(table)), dates_as_object=True)
        assert filter_df_from_predicates(df, predicates)["row"].tolist() == expected


def with_nullable_integers(table):
    extensions = {name: INTEGERS[name] for name in table.column_names if name in INTEGERS}
    return table.cast(with_pandas_metadata(table.schema, extensions))


def test_nested_columns_beside_the_filter():
    table = pa.table({"x": [1, 2, 3], "l": [["a"], [], None], "x.l": [7, 8, 9]})
    sink = io.BytesIO()
    ParquetSerializer(chunk_size=1).write_table(table, sink)
    found = read_parquet(sink.getvalue(), "a file", ["l", "x.l"], [[("x.l", ">", 7), ("x", "<", 3)]])
    assert found.to_pylist() == [{"l": [], "x.l": 8}]


@pytest.mark.parametrize("columns", [None, ["y", "x"], ["y"], ["x"], []])
@pytest.mark.parametrize("x, rows", [(15_000, 1), (20_000, 0)])
def test_large_files(columns, x, rows):
    df = pd.DataFrame({"y": np.arange(20_000) % 7, "x": np.arange(20_000), "z": "a"})
    sink = io.BytesIO()
    ParquetSerializer(chunk_size=6_000).write_table(as_table(df), sink)
    found = read_parquet(sink.getvalue(), "a file", columns, [[("x", "==", x)]])
    expected = as_table(df).slice(x, rows).select(df.columns if columns is None else columns)
    assert found.num_rows == rows
    assert found.equals(expected)
