import datetime
from functools import partial

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.core.store import open_blobs
from kartothek_cube.serialization import (
    CsvSerializer,
    DataFrameSerializer,
    ParquetSerializer,
    check_predicates,
    filter_array_like,
    filter_df,
    filter_df_from_predicates,
)

DAY = datetime.date(2020, 1, 1)


@pytest.fixture
def blobs():
    return open_blobs("hmemory://")


@pytest.mark.parametrize("serializer", [ParquetSerializer(), CsvSerializer(), CsvSerializer(compress=False)])
def test_dispatch_by_suffix(blobs, serializer):
    df = pd.DataFrame({"x": [1, 2], "y": ["a", "b"]})
    key = serializer.store(blobs, "dir/key", df)
    pd.testing.assert_frame_equal(DataFrameSerializer.restore_dataframe(blobs, key), df)
    options = {"predicates": [[("x", ">", 1)]], "categories": ["y"], "predicate_pushdown_to_io": False}
    found = DataFrameSerializer.restore_dataframe(blobs, key, columns=["y"], **options)
    assert found.to_dict("list") == {"y": ["b"]}
    assert found.dtypes["y"] == "category"


@pytest.mark.parametrize("kind", [lambda b: b, lambda b: b.store, lambda b: lambda: b.store])
def test_all_kinds_of_stores(blobs, kind):
    key = ParquetSerializer().store(kind(blobs), "key", pd.DataFrame({"x": [1]}))
    assert ParquetSerializer.restore_dataframe(kind(blobs), key)["x"].tolist() == [1]


@pytest.mark.parametrize("url", ["hmemory://", "hfs://{}"])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_missing_key(tmp_path, url, suffix):
    with pytest.raises(KeyError, match=rf"key\.{suffix}"):
        DataFrameSerializer.restore_dataframe(url.format(tmp_path), f"key.{suffix}")


def test_unknown_suffix(blobs):
    with pytest.raises(ValueError, match=r"key\.foo.*\.csv, \.csv\.gz, \.parquet"):
        DataFrameSerializer.restore_dataframe(blobs, "key.foo")


def test_own_serializer(blobs, monkeypatch):
    class Own(CsvSerializer):
        @staticmethod
        def restore_dataframe(store, key, **kwargs):
            return pd.DataFrame({"key": [key]})

    monkeypatch.setattr(DataFrameSerializer, "_serializers", dict(DataFrameSerializer._serializers))
    DataFrameSerializer.register_serializer(".own", Own)
    assert DataFrameSerializer.restore_dataframe(blobs, "a.own")["key"].tolist() == ["a.own"]


@pytest.mark.parametrize("serializer", [ParquetSerializer(), CsvSerializer()])
@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"filter_query": "x == 1", "predicates": [[("x", "==", 1)]]}, "either predicates or filter_query"),
        ({"predicates": []}, "Empty predicates"),
        ({"columns": ["x", "zz"]}, "zz"),
        ({"predicates": [[("zz", "==", 1)]]}, "zz"),
        ({"predicates": [[("zz", "==", 1)]], "columns": ["x"]}, "zz"),
        ({"filter_query": "x == 1", "columns": ["zz"]}, "zz"),
    ],
)
def test_wrong_arguments(blobs, serializer, kwargs, message):
    key = serializer.store(blobs, "key", pd.DataFrame({"x": [1]}))
    with pytest.raises(ValueError, match=message):
        serializer.restore_dataframe(blobs, key, **kwargs)


@pytest.mark.parametrize("serializer", [ParquetSerializer(), CsvSerializer()])
@pytest.mark.parametrize(
    "kwargs, expected",
    [
        ({"columns": ["y", "x"]}, {"y": ["a", "b", "c"], "x": [1, 2, 3]}),
        ({"filter_query": "x > 1", "columns": ["y"]}, {"y": ["b", "c"]}),
        ({"predicates": [[("x", ">", 1)]], "columns": ["y"]}, {"y": ["b", "c"]}),
        ({"predicates": [[("x", ">", 5)]], "columns": ["y"]}, {"y": []}),
    ],
)
def test_columns_and_filters(blobs, serializer, kwargs, expected):
    key = serializer.store(blobs, "key", pd.DataFrame({"x": [1, 2, 3], "y": ["a", "b", "c"]}))
    df = serializer.restore_dataframe(blobs, key, **kwargs)
    assert df.to_dict("list") == expected
    assert list(df.columns) == list(expected)
    # Parquet files keep the index
    stored = ["abc".index(y) for y in expected["y"]]
    assert df.index.tolist() == ([*range(len(df))] if isinstance(serializer, CsvSerializer) else stored)


@pytest.mark.parametrize("serializer", [ParquetSerializer(), CsvSerializer()])
@pytest.mark.parametrize("predicates, rows", [(None, 3), ([[("x", ">", 1)]], 2)])
def test_rows_without_columns(blobs, serializer, predicates, rows):
    key = serializer.store(blobs, "key", pd.DataFrame({"x": [1, 2, 3]}))
    assert serializer.restore_dataframe(blobs, key, columns=[], predicates=predicates).shape == (rows, 0)


def test_filter_df():
    df = pd.DataFrame({"x": [1, 2]})
    assert filter_df(df, None) is df
    assert filter_df(df, "x > 1").index.tolist() == [1]
    empty = df.iloc[:0]
    assert filter_df(empty, "zz > 1") is empty


def test_filter_df_from_predicates():
    df = pd.DataFrame({"x": [1, 2, 3], "y": ["a", None, "c"]}, index=[5, 6, 7])
    assert filter_df_from_predicates(df, None) is df
    either = [[("x", ">", 1), ("y", "==", "c")], [("x", "==", 1)]]
    assert filter_df_from_predicates(df, either).index.tolist() == [5, 7]
    assert filter_df_from_predicates(df, [[("y", "!=", "a")]]).index.tolist() == [7]
    with pytest.raises(ValueError, match="zz"):
        filter_df_from_predicates(df, [[("zz", "==", 1)]])
    with pytest.raises(TypeError, match="'x'"):
        filter_df_from_predicates(df.iloc[:0], [[("x", "==", "a")]])


@pytest.mark.parametrize(
    "array",
    [
        np.array([3, 1, 2]),
        pd.Series([3, 1, 2], index=[7, 8, 9]),
        pd.Index([3, 1, 2]),
        pd.Categorical([3, 1, 2], categories=[2, 3, 1]),
        pd.array([3, 1, 2], dtype="Int64"),
    ],
)
def test_filter_array_like(array):
    assert filter_array_like(array, ">", 1).tolist() == [True, False, True]
    assert filter_array_like(array, "in", [1, 9]).tolist() == [False, True, False]


def test_filter_array_like_mask_and_out():
    array, mask, out = np.array([1, 2, 3]), np.array([True, True, False]), np.zeros(3, dtype=bool)
    assert filter_array_like(array, ">", 1, mask=mask, out=out) is out
    assert out.tolist() == [False, True, False]
    assert mask.tolist() == [True, True, False]
    assert filter_array_like(array, "<", 2, mask, mask) is mask
    assert mask.tolist() == [True, False, False]
    result = filter_array_like(array, ">", 1)
    result[0] = True  # it is the caller's


@pytest.mark.parametrize("op", ["<", "<=", ">", ">="])
@pytest.mark.parametrize("null", [None, float("nan"), pd.NaT])
@pytest.mark.parametrize("array", [np.array([1.0]), np.array(["a"], dtype=object), np.array([True])], ids=str)
def test_nulls_have_no_order(blobs, array, null, op):
    if null is None:
        with pytest.raises(TypeError, match=f"'v1'.* not by {op}"):
            filter_array_like(array, op, None, column_name="v1")
    # predicates are wrong in themselves, whatever the column is
    df, predicates, messages = pd.DataFrame({"v1": array}), [[("v1", op, null)]], set()
    key = ParquetSerializer().store(blobs, "x", df)
    read = partial(ParquetSerializer.restore_dataframe, blobs, key, predicates=predicates)
    check = partial(check_predicates, predicates)
    for function in (read, check, partial(filter_df_from_predicates, df, predicates)):
        with pytest.raises(ValueError, match=f"'v1'.*by ==, != and in only, not by {op}") as error:
            function()
        messages.add(str(error.value))
    assert len(messages) == 1


def test_filter_array_like_names_the_column():
    with pytest.raises(TypeError, match="'v1'"):
        filter_array_like(np.array([1]), "==", "a", column_name="v1")
    with pytest.raises(TypeError, match="'v1' holds values of several types"):
        filter_array_like(np.array([1, "a"], dtype=object), "==", 1, column_name="v1")


DATES = pd.Series([DAY, datetime.date(2020, 1, 2), None], dtype=object)
STAMPS = pd.Series(["2020-01-01", "2020-01-01 12:00", None], dtype="datetime64[ns]")


@pytest.mark.parametrize(
    "array, op, value, expected",
    [
        (DATES, "==", pd.Timestamp(DAY), [True, False, False]),
        (DATES, "<", np.datetime64("2020-01-01T12:00"), [True, False, False]),
        (DATES, "in", [pd.Timestamp(DAY), None], [True, False, True]),
        (DATES.replace(DAY, datetime.date.max), ">", pd.Timestamp("2020-01-02"), [True, False, False]),
        (STAMPS, "==", DAY, [True, False, False]),
        (STAMPS, ">", DAY, [False, True, False]),
        (STAMPS, "in", [DAY], [True, False, False]),
    ],
)
def test_dates_and_time_stamps(array, op, value, expected):
    assert filter_array_like(array, op, value).tolist() == expected
    with pytest.raises(TypeError):
        filter_array_like(array, op, value, strict_date_types=True)
