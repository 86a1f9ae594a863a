"""Helpers for frames of sorted rows, against what pandas itself says."""

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kartothek_cube.utils import pandas

KINDS = {
    "int8": lambda codes: pd.Series(codes, dtype="int8"),
    "float": lambda codes: pd.Series(codes, dtype="float64") / 2,
    "bool": lambda codes: pd.Series([code > 0 for code in codes], dtype=bool),
    "text": lambda codes: pd.Series(["aÄz"[code] for code in codes], dtype="str"),
    "object": lambda codes: pd.Series(["aÄz"[code] for code in codes], dtype=object),
    "nullable": lambda codes: pd.Series(codes, dtype="Int64"),
    "time": lambda codes: pd.Series(np.array(codes, dtype="datetime64[ns]")),
    "zoned": lambda codes: pd.Series(np.array(codes, dtype="datetime64[ns]")).dt.tz_localize("UTC"),
    "category": lambda codes: pd.Series(pd.Categorical(["acb"[code] for code in codes], [*"cab"])),
}


@st.composite
def frames(draw, columns=("x", "y"), max_size=8):
    size = draw(st.integers(0, max_size))
    codes = st.lists(st.integers(0, 2), min_size=size, max_size=size)
    kinds = {column: draw(st.sampled_from(sorted(KINDS))) for column in columns}
    data = {column: KINDS[kind](draw(codes)) for column, kind in kinds.items()}
    return pd.DataFrame({**data, "row": np.arange(size)})


COLUMNS = st.sampled_from([["x"], ["y", "x"], ["x", "y"]])


def expected_order(df, columns):
    """Rows in order, the first of equal ones first; categories by value."""
    keys = df[columns].apply(lambda s: s.astype("str") if s.dtype == "category" else s)
    return keys.sort_values(columns, kind="stable").index


@given(df=frames(), columns=COLUMNS)
def test_sorting(df, columns):
    order = expected_order(df, columns)
    done = pandas.sort_dataframe(df, iter(columns))
    pdt.assert_frame_equal(done, df.loc[order].reset_index(drop=True))
    assert pandas.is_dataframe_sorted(df, iter(columns)) is (list(order) == list(df.index)) is (done is df)
    assert pandas.sort_dataframe(done, columns) is done


@pytest.mark.parametrize("act", [pandas.is_dataframe_sorted, pandas.sort_dataframe])
def test_sorting_needs_columns(act):
    df = pd.DataFrame({"x": [2, 1]})
    with pytest.raises(ValueError, match="must contain at least 1 column"):
        act(df, [])
    with pytest.raises(KeyError, match="y"):
        act(df, ["x", "y"])


@given(df=frames(), columns=COLUMNS)
def test_duplicates(df, columns):
    df = pandas.sort_dataframe(df, columns)
    mask = pandas.mask_sorted_duplicates_keep_last(df, iter(columns))
    assert isinstance(mask, np.ndarray)
    assert mask.tolist() == df.duplicated(subset=columns, keep="last").tolist()
    rest = pandas.drop_sorted_duplicates_keep_last(df, iter(columns))
    pdt.assert_frame_equal(rest, df.drop_duplicates(subset=columns, keep="last"))
    assert mask.any() or rest is df


def test_duplicates_without_columns():
    df = pd.DataFrame({"x": [1, 1]})
    assert pandas.mask_sorted_duplicates_keep_last(df, []).tolist() == [False, False]
    assert pandas.drop_sorted_duplicates_keep_last(df, []) is df
    with pytest.raises(KeyError, match="y"):
        pandas.drop_sorted_duplicates_keep_last(df, ["y"])


def _plain(value):
    """Zoned times come back in UTC, without the zone."""
    return value.tz_localize(None) if isinstance(value, pd.Timestamp) else value


@given(df=frames(), columns=COLUMNS)
def test_aggregation(df, columns):
    found = pandas.aggregate_to_lists(df, iter(columns), "row")
    if df.empty:
        assert found is df
        return
    assert list(found.columns) == [*columns, "row"]
    assert sorted(row for rows in found["row"] for row in rows) == df["row"].tolist()
    for i, rows in enumerate(found["row"]):
        assert isinstance(rows, list) and rows == sorted(rows)
        for column in columns:
            assert {_plain(value) for value in df[column].iloc[rows]} == {_plain(found[column].iloc[i])}
    assert pandas.is_dataframe_sorted(found, columns)
    assert not pandas.mask_sorted_duplicates_keep_last(found, columns).any()


def test_aggregation_without_groups():
    df = pd.DataFrame({"x": [2, 1], "y": ["a", "b"]})
    pdt.assert_frame_equal(pandas.aggregate_to_lists(df, [], "x"), pd.DataFrame({"x": [[2, 1]]}))
    assert pandas.aggregate_to_lists(df.iloc[:0], [], "x").columns.tolist() == ["x", "y"]
    df = pd.DataFrame({"x": pd.Series([1, 1], dtype="Int64"), "y": [1, 2]})
    assert pandas.aggregate_to_lists(df, ["x"], "y").dtypes["x"] == "int64"


@given(st.lists(frames(), min_size=1, max_size=3).filter(lambda dfs: len({(*df.dtypes,) for df in dfs}) == 1))
def test_concatenation(dfs):
    turned = [df[df.columns[:: (-1) ** i]] for i, df in enumerate(dfs)]
    found = pandas.concat_dataframes(turned)
    pdt.assert_frame_equal(found, pd.concat(dfs, ignore_index=True))
    assert turned == []


def test_concatenation_of_one_and_of_others():
    df = pd.DataFrame({"x": [1]}, index=[7])
    assert pandas.concat_dataframes([df]) is df
    assert pandas.concat_dataframes(iter([df])) is df
    assert pandas.concat_dataframes([pd.DataFrame(index=[0, 1]), pd.DataFrame(index=[0])]).shape == (3, 0)
    default = pd.DataFrame({"x": [1]})
    assert pandas.concat_dataframes([], default) is default
    with pytest.raises(ValueError, match="Cannot concatenate 0 dataframes"):
        pandas.concat_dataframes(iter([]))
    dfs = [pd.DataFrame({"x": [1]}), pd.DataFrame({"x": [1], "y": [1]})]
    with pytest.raises(ValueError, match="Not all DataFrames have the same set of columns"):
        pandas.concat_dataframes(dfs)
    assert len(dfs) == 2


@given(st.sampled_from(["left", "right", "inner", "outer"]), frames(("x", "y")), frames(("x", "z")))
def test_join(how, left, right):
    left, right = left.drop(columns="row").assign(x=1), right.drop(columns="row").assign(x=1)
    expected = left.merge(right, on="x", how=how, sort=False)
    pdt.assert_frame_equal(pandas.merge_dataframes_robust(left, right, how), expected)


@pytest.mark.parametrize("how, rows", [("left", 2), ("right", 0), ("inner", 0), ("outer", 2)])
def test_join_without_common_columns(how, rows):
    left, right = pd.DataFrame({"x": [1, 2]}), pd.DataFrame({"y": [3, 4]})
    found = pandas.merge_dataframes_robust(left, right, how)
    assert sorted(found.itertuples(index=False, name=None)) == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert list(left) == ["x"]
    found = pandas.merge_dataframes_robust(left, right.iloc[:0], how)
    assert set(found.columns) == {"x", "y"} and len(found) == rows


def test_join_of_a_strange_kind():
    with pytest.raises((KeyError, ValueError)):
        pandas.merge_dataframes_robust(pd.DataFrame({"x": [1]}), pd.DataFrame({"y": [1]}), "odd")
