"""Results that are filled block by block: the frames are those of the rows put together at the end."""

from __future__ import annotations

import datetime
import itertools
import tempfile
import weakref
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.io import eager_cube
from kartothek_cube.io_components.kernels.sort import sort_order
from kartothek_cube.io_components.query import executor, frame_conversion
from kartothek_cube.io_components.query.frame_conversion import OutputBuffer, zero_copy_view
from kartothek_cube.io_components.query.row_batch import take_columns
from kartothek_cube.serialization import parquet_reader
from tests.support.cubes import as_dict

VALUES = {
    "int": (pa.int64(), [1, -2]),
    "short": (pa.uint8(), [1, 255]),
    "bool": (pa.bool_(), [True, False]),
    "float": (pa.float64(), [-0.0, float("nan"), 1.5]),
    "time": (pa.timestamp("ns"), [0, 1]),
    "zone": (pa.timestamp("ns", "UTC"), [0, 1]),
    "day": (pa.date32(), [datetime.date(2020, 1, 1)]),
    "text": (pa.string(), ["a", ""]),
    "null": (pa.null(), [None]),
}
HELD = {"int", "short", "float", "time"}
CUBE = Cube(dimension_columns=["x"], partition_columns=["p"], uuid_prefix="cube")


@pytest.fixture
def each_file_a_block():
    """Let small files be treated as large ones."""
    with mock.patch.object(executor, "_MIN_BLOCK_BYTES", 0):
        yield


def write_blocks(buffer, tables):
    """Give all rows, after each block was put where it belongs."""
    return pa.concat_tables([buffer.write_block(number, table) for number, table in enumerate(tables)])


def reserve_blocks(lengths, columns=("v",)):
    """Make buffer for rows of these columns, and of one to sort by."""
    buffer = OutputBuffer()
    buffer.reserve(lengths, [*columns, "x"], ["x"])
    return buffer


def blocks(*lists):
    """Make blocks of one column, and of one to sort by."""
    return [pa.table({"v": values, "x": [0] * len(values)}) for values in lists]


@given(st.data())
def test_values_in_the_buffer_are_not_copied(data):
    kinds = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    names = [f"v{number}" for number in range(len(kinds))]
    tables, with_null = [], set()
    for length in data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)):
        arrays = []
        for name, kind in zip(names, kinds, strict=True):
            dtype, values = VALUES[kind]
            choices = st.sampled_from([*values, *data.draw(st.sampled_from([[], [None]]))])
            arrays.append(pa.array(data.draw(st.lists(choices, min_size=length, max_size=length)), dtype))
            if arrays[-1].null_count:
                with_null.add(name)
        tables.append(pa.table([*arrays, pa.array([0] * length, pa.int64())], [*names, "x"]))
    table = write_blocks(reserve_blocks([len(table) for table in tables], names), tables)
    whole = pa.concat_tables(tables).to_pandas()
    for name, kind in zip(names, kinds, strict=True):
        array = zero_copy_view(table[name])
        held = kind in HELD and (kind in ("float", "time") or name not in with_null)
        assert (array is not None) == (held and len(whole) > 0)
        if array is not None:
            np.testing.assert_array_equal(array, whole[name].to_numpy())
            assert array.dtype == whole[name].dtype
            address = next(chunk for chunk in table[name].chunks if len(chunk)).buffers()[1].address
            assert array.ctypes.data == address


def pieces(column):
    """Count the places in memory where a column is."""
    return len({chunk.buffers()[1].address for chunk in column.chunks})


@pytest.mark.parametrize("sizes, places", [([2, 2], 2), ([3, 1], 1), ([1, 1], 2), ([4, 4], 2)])
def test_blocks_of_another_length_stay_in_arrow(sizes, places):
    table = write_blocks(reserve_blocks(sizes), blocks([1, 2, 3], [4]))
    assert table["v"].to_pylist() == [1, 2, 3, 4]
    assert pieces(table["v"]) == places
    assert zero_copy_view(table["v"]).tolist() == [1, 2, 3, 4]


def test_blocks_of_another_type_stay_in_arrow():
    buffer = reserve_blocks([1, 1])
    tables = [
        pa.table({"v": pa.array([n], dtype), "x": [n]}) for n, dtype in enumerate([pa.int8(), pa.int64()])
    ]
    found = [buffer.write_block(number, table) for number, table in enumerate(tables)]
    table = pa.concat_tables(found, promote_options="permissive")
    assert table["v"].to_pylist() == [0, 1]
    assert pieces(table["v"]) == 2


def test_rows_that_have_to_be_sorted_go_column_by_column():
    buffer = reserve_blocks([2, 1])
    tables = [pa.table({"v": [1, 2], "x": [0, 2]}), pa.table({"v": [3], "x": [1]})]
    columns = write_blocks(buffer, tables).columns
    buffer.release()
    arrays = [weakref.ref(column.chunk(0).buffers()[1]) for column in columns]
    taken = take_columns(columns, np.array([0, 2, 1]))
    assert [column.to_pylist() for column in taken] == [[1, 3, 2], [0, 1, 2]]
    assert columns == [None, None]
    assert [array() for array in arrays] == [None, None]


@pytest.mark.parametrize("dtype", [pa.timestamp("ns"), pa.float64()])
def test_keys_that_are_missing_are_sorted_as_such(dtype):
    tables = [pa.table({"v": [n], "x": pa.array([x], dtype)}) for n, x in enumerate([None, 1])]
    table = write_blocks(reserve_blocks([1, 1]), tables)
    assert table["x"].null_count == 1
    assert sort_order([table["x"]], 2).tolist() == [1, 0]


def test_without_division_nothing_is_write_blocks():
    (table,) = blocks([1])
    assert OutputBuffer().write_block(0, table) is table


@pytest.mark.parametrize("claim", [1 << 50, 1 << 62])
def test_lengths_that_no_memory_could_hold(claim):
    assert reserve_blocks([2, claim]).write_block(0, blocks([1, 2])[0])["v"].to_pylist() == [1, 2]


def test_a_small_part_of_a_large_buffer_is_copied():
    column = pa.chunked_array([np.arange(100)])
    assert zero_copy_view(column.slice(10, 20)) is None
    assert zero_copy_view(column.slice(10, 60)).tolist() == list(range(10, 70))


def test_immutable_memory_is_copied():
    constant = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(bytes(16))])
    assert zero_copy_view(pa.chunked_array([constant])) is None


def grid(n=6):
    """Give cells, the same ones in each partition."""
    return pd.DataFrame(list(itertools.product(range(n), range(3))), columns=["x", "p"])


@st.composite
def partial_columns(draw, df, name):
    """Give some rows of a dataset with a payload of some kind, at times with nulls."""
    kind = draw(st.sampled_from(["int", "float", "bool", "time", "text"]))
    values = {"int": [1, 2], "float": [0.5, None], "bool": [True, False], "text": ["a", None]}
    values["time"] = [pd.Timestamp("2020"), None]
    chosen = draw(st.lists(st.sampled_from(values[kind]), min_size=len(df), max_size=len(df)))
    series = pd.Series(chosen, index=df.index, dtype="datetime64[ns]" if kind == "time" else None)
    keep = draw(st.lists(st.booleans(), min_size=len(df), max_size=len(df)))
    return df.assign(**{name: series})[keep if any(keep) and draw(st.booleans()) else [True] * len(df)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_queries_give_the_same_frames_with_and_without_buffer(data):
    cells = grid()
    seed = cells if data.draw(st.booleans()) else cells.assign(x=cells.x + 100 * cells.p)
    datasets = {"seed": seed, "enrich": data.draw(partial_columns(seed, "v1"))}
    datasets["other"] = data.draw(partial_columns(seed, "v2"))
    with tempfile.TemporaryDirectory() as directory:
        store = f"hfs://{directory}"
        eager_cube.build_cube(data=datasets, cube=CUBE, store=store)
        with mock.patch.object(executor, "_row_counts", return_value=None):
            (expected,) = eager_cube.query_cube(cube=CUBE, store=store)
        with mock.patch.object(executor, "_MIN_BLOCK_BYTES", 0):
            (found,) = eager_cube.query_cube(cube=CUBE, store=store)
    pd.testing.assert_frame_equal(found, expected, check_index_type="exact")
    merged = seed.merge(datasets["enrich"], how="left").merge(datasets["other"], how="left")
    merged = merged.sort_values(["x", "p"], ignore_index=True)[list(found.columns)]
    assert as_dict(found) == as_dict(merged)


def disk(tmp_path):
    """Give the URL of a store in a directory."""
    return f"hfs://{tmp_path}?create_if_missing=true"


def test_columns_of_large_files_are_held_once(tmp_path, each_file_a_block, monkeypatch):
    seed = grid().assign(v0=0.5, v1="a")
    seed["x"] += 100 * seed["p"]
    eager_cube.build_cube(data=seed, cube=CUBE, store=disk(tmp_path))
    tables = []
    monkeypatch.setattr(frame_conversion, "_MAX_COPIED", 0)
    take_over = frame_conversion.zero_copy_view
    monkeypatch.setattr(
        frame_conversion, "zero_copy_view", lambda column: tables.append(column) or take_over(column)
    )
    (df,) = eager_cube.query_cube(cube=CUBE, store=disk(tmp_path))
    assert [pieces(column) for column in tables] == [1, 1, 3, 1]
    df.loc[0, "v0"] = 2.0
    df["x"] += 1
    assert df["v0"].tolist()[:2] == [2.0, 0.5]


@pytest.mark.parametrize("min_rows", [0, 10_000])
def test_groups_are_independent_of_each_other(tmp_path, each_file_a_block, min_rows, monkeypatch):
    """Also if their cells are the same, and were decoded once."""
    monkeypatch.setattr(parquet_reader, "_MIN_ROWS_LATE", min_rows)
    cube = Cube(dimension_columns=["x", "y"], partition_columns=["p"], uuid_prefix="cube")
    cells = pd.DataFrame(list(itertools.product(range(20), range(200), range(3))), columns=["x", "y", "p"])
    eager_cube.build_cube(data=cells.assign(v0=0.5), cube=cube, store=disk(tmp_path))
    found = eager_cube.query_cube(cube=cube, store=disk(tmp_path), partition_by="p")
    for df in found:
        for column in df:
            df.loc[0, column] += 7
    for p, df in enumerate(found):
        assert df.iloc[0][["x", "y", "p", "v0"]].tolist() == [7, 7, p + 7, 7.5]
        expected = cells[cells.p == p].assign(v0=0.5)[1:].reset_index(drop=True)
        pd.testing.assert_frame_equal(df[1:].reset_index(drop=True)[expected.columns], expected)


def test_a_file_that_claims_more_rows_than_it_has(tmp_path, each_file_a_block, monkeypatch):
    eager_cube.build_cube(data=grid(), cube=CUBE, store=disk(tmp_path))
    counts = executor.read_footer
    claims = iter([1 << 50, 6, 6])

    def lie(blobs, key):
        footer, size = counts(blobs, key)
        return mock.Mock(num_rows=next(claims, footer.num_rows)), size

    monkeypatch.setattr(executor, "read_footer", lie)
    (df,) = eager_cube.query_cube(cube=CUBE, store=disk(tmp_path))
    assert len(df) == len(grid())


def test_a_broken_footer(tmp_path, each_file_a_block):
    eager_cube.build_cube(data=grid(), cube=CUBE, store=disk(tmp_path))
    next(tmp_path.rglob("table/p=*/*.parquet")).write_bytes(b"PAR1")
    with pytest.raises(CorruptDatasetError, match=r"\.parquet"):
        eager_cube.query_cube(cube=CUBE, store=disk(tmp_path))


def test_wide_results_are_left_in_one_piece(tmp_path, each_file_a_block, monkeypatch):
    monkeypatch.setattr(frame_conversion, "MAX_COLUMNS", 2)
    eager_cube.build_cube(data=grid().assign(v0=1), cube=CUBE, store=disk(tmp_path))
    (df,) = eager_cube.query_cube(cube=CUBE, store=disk(tmp_path))
    assert len(df._mgr.blocks) == 1
