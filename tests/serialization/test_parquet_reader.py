"""Equality of columns by their pages: whatever it says, the values must be equal if it says so."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.core.arrow.pandas_conversion import as_table, to_pandas
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.serialization import ParquetSerializer
from kartothek_cube.serialization.parquet_reader import ChunkCache, ParquetColumns, have_equal_pages

TYPES = [pa.int64(), pa.int8(), pa.timestamp("us"), pa.date32(), pa.uint32()]
WRITERS = {
    "ours": lambda table, sink: ParquetSerializer("ZSTD").write_table(table, sink),
    "plain": lambda table, sink: pq.write_table(table, sink, use_dictionary=False, compression="none"),
    "groups": lambda table, sink: pq.write_table(table, sink, row_group_size=2),
}


def written(table, writer="ours"):
    sink = io.BytesIO()
    WRITERS[writer](table, sink)
    return sink.getvalue()


def equal(a, b, columns=("x",)):
    with ParquetColumns(a, "a") as left, ParquetColumns(b, "b") as right:
        return have_equal_pages(left, right, columns)


@pytest.mark.parametrize("writer", WRITERS)
@given(st.data())
def test_equal_pages_hold_equal_values(writer, data):
    values = st.lists(st.sampled_from([0, 1, 2, None]), max_size=6)
    left, right = data.draw(values), data.draw(values)
    dtype, other = data.draw(st.sampled_from(TYPES)), data.draw(st.sampled_from(TYPES))
    a = pa.table({"x": pa.array(left, dtype)})
    b = pa.table({"x": pa.array(right, other)})
    assert not equal(written(a, writer), written(b, writer)) or a.equals(b)


@pytest.mark.parametrize("writer", WRITERS)
@given(st.lists(st.integers(0, 5) | st.none(), min_size=1, max_size=9))
def test_our_files_with_the_same_cells_have_equal_pages(writer, values):
    cells = pa.table({"x": pa.array(values, pa.int64())})
    other = cells.append_column("v", pa.array([f"text {value}" for value in values]))
    assert equal(written(cells, writer), written(other, writer))


@pytest.mark.parametrize(
    "table, column",
    [
        (pa.table({"x": [[1], [2]]}), "x"),
        (pa.table({"x": [{"y": 1}, {"y": 2}]}), "x"),
        (pa.table({"x": [{"y": 1}, {"y": 2}]}), "y"),
        (pa.table({"y": [1, 2]}), "x"),
    ],
    ids=["list", "struct", "field", "missing"],
)
def test_columns_that_are_not_flat(table, column):
    content = written(table, "plain")
    assert not equal(content, content, [column])


def test_handles_are_not_moved():
    content = written(pa.table({"x": [1, 2]}))
    handle = io.BytesIO(content)
    with ParquetColumns(handle, "a") as left, ParquetColumns(content, "b") as right:
        assert not have_equal_pages(left, right, ["x"])
        assert left.table(["x"]).equals(right.table(["x"]))


def test_broken_footers_make_nothing_equal_that_is_not():
    content = written(pa.table({"x": [1, 2, 3], "y": [1, 2, 3]}))
    values = pq.read_table(io.BytesIO(content), columns=["x"])
    length = int.from_bytes(content[-8:-4], "little")
    for position in range(len(content) - 8 - length, len(content) - 8):
        for change in (1, 0x10, 0xFF):
            broken = bytearray(content)
            broken[position] ^= change
            try:
                if equal(content, bytes(broken)):
                    with ParquetColumns(bytes(broken), "b") as file:
                        found = file.table(["x"])
                    assert found.column("x").equals(values.column("x"))
            except CorruptDatasetError:
                pass


@pytest.mark.parametrize("writer", WRITERS)
@given(st.data())
def test_what_is_provided_is_what_the_file_holds(writer, data):
    """Files one after the other, with the memory of the ones before, and without."""
    last = ChunkCache()
    dtype = data.draw(st.sampled_from([*TYPES, pa.string(), pa.timestamp("us", "UTC")]))
    for _ in range(3):
        values = data.draw(st.lists(st.sampled_from([0, 1, None]), min_size=1, max_size=4)) * 300
        texts = [None if value is None else str(value) for value in values]
        table = pa.table({"x": pa.array(texts if dtype == pa.string() else values, dtype)})
        content = written(table, writer)
        with ParquetColumns(content, "a") as file, ParquetColumns(content, "b") as other:
            last.provide(file, ["x", "missing"])
            assert file.table(["x"]).equals(other.table(["x"]), check_metadata=True)
            file.load(["x"])
            last.keep(file, ["x", "missing"])
            known = file.get_decoded("x")
            last.provide(other, ["x"])
            assert other.get_decoded("x") is None or other.get_decoded("x").to_pylist() == known.to_pylist()


def test_repeated_pages_are_decoded_once():
    last, table = (
        ChunkCache(),
        pa.table({"x": [0, 1] * 1000, "y": pa.array([0, 1] * 1000, pa.timestamp("us"))}),
    )
    contents = [written(table.append_column("v", pa.array([n] * 2000))) for n in range(2)]
    with ParquetColumns(contents[0], "a") as file:
        file.load(["x", "y"])
        last.keep(file, ["x", "y", "v"])
    with ParquetColumns(contents[1], "b") as file:
        last.provide(file, ["x", "y", "v"])
        assert [file.get_decoded(column) is None for column in ("x", "y", "v")] == [False, False, True]
        assert file.table().to_pydict() == {**table.to_pydict(), "v": [1] * 2000}


def test_large_pages_are_not_remembered():
    last, content = ChunkCache(), written(pa.table({"x": np.arange(2000) * 7}), "plain")
    for _ in range(2):
        with ParquetColumns(content, "a") as file:
            last.provide(file, ["x"])
            assert file.get_decoded("x") is None
            file.load(["x"])
            last.keep(file, ["x"])


def test_what_pandas_should_know_stays_with_provided_columns():
    sink, last = io.BytesIO(), ChunkCache()
    frame = pd.DataFrame({"x": pd.array([1, 2] * 1000, dtype="Int64"), "v": 1})
    ParquetSerializer("ZSTD").write_table(as_table(frame), sink)
    for _ in range(2):
        with ParquetColumns(sink.getvalue(), "a") as file:
            last.provide(file, ["x"])
            found = to_pandas(file.table(["x"]))
            assert found["x"].dtype == "Int64"
            file.load(["x"])
            last.keep(file, ["x"])
