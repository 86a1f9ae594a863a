"""DataFrames of many tables are those of each table, however they are made."""

import threading
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.core import tuning
from kartothek_cube.core.pandas_conversion import as_table, to_pandas
from kartothek_cube.io_components import kernels
from kartothek_cube.io_components.query import frame_conversion
from kartothek_cube.io_components.query.frame_conversion import frame_of_table, frames_of_slices
from tests.support.predicates import KINDS
from tests.support.predicates import tables as tables_of

MORE = pa.table({"list": [[], [1], None, [2, 3], [], []], "null": pa.nulls(6)})
MORE = MORE.append_column("zone", pa.array([0, 1, None, 2, 3, 4], pa.timestamp("ns", "UTC")))
NAMES = sorted(set(KINDS) - {"category", "large_string", "time"})


@given(st.data())
def test_frames_of_many_tables(data):
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    tables = data.draw(st.lists(tables_of(names), max_size=6))
    arrays = [[*table.columns, *MORE[: len(table)].columns] for table in tables]
    tables = [pa.table(columns, [*names, *MORE.column_names]) for columns in arrays]
    expected, lengths = [to_pandas(table) for table in tables], [*map(len, tables)]
    with mock.patch.object(tuning, "SMALL_FRAME_ROWS", data.draw(st.sampled_from([0, 2, 1000]))):
        sliced = [*frames_of_slices(pa.concat_tables(tables), np.cumsum([0, *lengths]))] if tables else []
    if tables:
        whole = pa.concat_tables(tables)
        pd.testing.assert_frame_equal(frame_of_table([whole]), to_pandas(whole), check_index_type="exact")
    for frames in ([frame_of_table([table]) for table in tables], sliced):
        for a, b in zip(frames, expected, strict=True):
            pd.testing.assert_frame_equal(a, b, check_index_type="exact", check_freq=True)
            assert type(a.index) is pd.RangeIndex


def test_extension_types_and_no_columns():
    frame = pd.DataFrame({"v": pd.array([1, None], "Int64"), "s": pd.array(["a", None], "string")})
    table = as_table(frame)
    pd.testing.assert_frame_equal(frame_of_table([table]), to_pandas(table))
    for found in frames_of_slices(pa.concat_tables([table, table]), np.array([0, 2, 4])):
        pd.testing.assert_frame_equal(found, to_pandas(table))
    empty = pa.table({"v": [1, 2]}).select([])
    assert len(frame_of_table([empty])) == 2


@pytest.mark.parametrize("copies_on_write", [frame_conversion._COPIES_ON_WRITE, False])
def test_frames_are_independent(copies_on_write, monkeypatch):
    monkeypatch.setattr(frame_conversion, "_COPIES_ON_WRITE", copies_on_write)
    table = pa.table({"v": [1, 2, 3, 4]})
    for first, second in (
        [frame_of_table([table.slice(0, 2)]), frame_of_table([table.slice(2)])],
        frames_of_slices(table, np.array([0, 2, 4])),
    ):
        first.loc[0, "v"] = 7
        first.index.name = first.columns.name = "name"
        assert first["v"].tolist() == [7, 2]
        assert second["v"].tolist() == [3, 4]
        assert (second.index.name, second.columns.name) == (None, None)
    assert table["v"].to_pylist() == [1, 2, 3, 4]


@pytest.mark.skipif(frame_conversion._FROM_BLOCKS is None, reason="with pandas 2, Arrow copies the columns")
@pytest.mark.parametrize("cores", [1, 3])
def test_columns_of_many_rows_are_copied_by_several_threads(monkeypatch, cores):
    monkeypatch.setattr(kernels, "available_cores", lambda: cores)
    threads = set()
    copy_column = frame_conversion._copy_column
    monkeypatch.setattr(
        frame_conversion, "_copy_column", lambda *a: (threads.add(threading.get_ident()), copy_column(*a))
    )
    half = pa.table({f"v{i}": np.arange(2 * kernels.CHUNK_ROWS) * float(i) for i in range(8)})
    table = pa.concat_tables([half, half.slice(1)])
    pd.testing.assert_frame_equal(frame_of_table([table]), to_pandas(table))
    assert (threading.get_ident() in threads) == (cores == 1)
