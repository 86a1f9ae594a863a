"""Equality of columns by their pages: whatever it says, the values must be equal if it says so."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.serialization import ParquetSerializer
from kartothek_cube.serialization.columns import ParquetColumns
from kartothek_cube.serialization.pages import have_equal_pages

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
