"""The index of frames: kept by files of datasets without partition keys, no column of any dataset."""

import json

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pyarrow as pa
import pytest

from kartothek_cube.api import dataset as api
from tests.support.cubes import parquet_bytes
from tests.support.stored_files import contents, frame, keys

INDICES = {
    "default": pd.RangeIndex(4),
    "slice": pd.RangeIndex(10, 14),
    "steps": pd.RangeIndex(40, 0, -10),
    "named range": pd.RangeIndex(4, name="n"),
    "integers": pd.Index([7, 5, 5, -1]),
    "texts": pd.Index(["d", "c", "b", "a"]),
    "named": pd.Index(["d", "c", "b", "a"], name="x"),
    "times": pd.date_range("2020-01-31", periods=4, unit="ns", freq=None),
    "zoned": pd.date_range("2020-01-31", periods=4, tz="Europe/Berlin", unit="ns", name="t"),
    "floats": pd.Index([1.5, np.nan, 0.0, -1.0]),
    "far times": pd.Index(np.array(["2020-01-31", "9999-12-31", "NaT", "0001-01-01"], "datetime64[us]")),
}


@pytest.fixture(params=INDICES)
def df(request):
    return frame(x=[1, 2, 3, 4], y=["a", "b", "a", "b"]).set_axis(INDICES[request.param])


@pytest.fixture(params=["eager", "iter"])
def read(request):
    if request.param == "eager":
        return api.read_dataset_as_dataframes
    return lambda *args, **kwargs: list(api.read_dataset_as_dataframes__iterator(*args, **kwargs))


def same(left: pd.DataFrame, right: pd.DataFrame) -> None:
    """The kind of a range index does not matter."""
    pdt.assert_frame_equal(left, right, check_index_type="equiv", check_freq=False)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"t": np.array(["9999-12-31", "2020-01-31", "NaT", "0001-01-01"], "datetime64[us]")},
        {"__index_level_0__": 1},
    ],
    ids=["alone", "beside times that nanoseconds do not hold", "before a column of its name in files"],
)
def test_index_comes_back(memory, df, read, more):
    df, expected = df.assign(**more), df.assign(**{name: more[name] for name in more if name == "t"})
    dataset = api.store_dataframes_as_dataset(memory, "u", [df, df.iloc[1:3]])
    assert sorted(dataset.schema.names) == sorted(expected)
    first, second = read("u", memory)
    same(first, expected)
    same(second, expected.iloc[1:3])


@pytest.mark.parametrize("columns", [None, ["x"], []])
@pytest.mark.parametrize("predicates, kept", [([[("y", "==", "b")]], [1, 3]), ([[("x", ">", 7)]], [])])
def test_index_of_matching_rows(memory, df, read, columns, predicates, kept):
    api.store_dataframes_as_dataset(memory, "u", [df])
    (found,) = read("u", memory, predicates=predicates, columns=columns)
    expected = df.iloc[kept]
    if columns is not None:
        expected = expected[columns]
    same(found, expected)


def test_index_of_everything_is_fresh(memory, df):
    api.store_dataframes_as_dataset(memory, "u", [df])
    plain = df.reset_index(drop=True)
    pdt.assert_frame_equal(api.read_table("u", memory), plain)
    pdt.assert_frame_equal(api.read_dataset_as_dataframes("u", memory, dispatch_by=[])[0], plain)
    assert api.read_dataset_as_arrow("u", memory)[0].column_names == ["x", "y"]


def test_sorting_resets_the_index(memory, df, read):
    api.update_dataset_from_dataframes([df], memory, "u", sort_partitions_by="x")
    pdt.assert_frame_equal(read("u", memory)[0], df.reset_index(drop=True))


def test_partition_keys_leave_no_index(memory, df, read):
    api.store_dataframes_as_dataset(memory, "u", [df], partition_on="y")
    assert all(set(content) == {"x"} for content in contents(memory))
    assert [found.index.tolist() for found in read("u", memory)] == [[0, 1], [0, 1]]


def test_files_of_pandas_itself(memory, df, read):
    """Such as kartothek 5.3 wrote them."""
    api.store_dataframes_as_dataset(memory, "u", [df.reset_index(drop=True)])
    _replace(memory, pa.Table.from_pandas(df))
    same(read("u", memory)[0], df)
    pdt.assert_frame_equal(api.read_table("u", memory), df.reset_index(drop=True))


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "no json",
        "[]",
        '{"index_columns": 1}',
        '{"index_columns": ["z"], "columns": 7}',
        '{"index_columns": [["x"]], "columns": [1]}',
        '{"index_columns": [{"kind": "range", "start": "a", "step": null}]}',
        '{"index_columns": [{"kind": "range", "start": true, "step": true}]}',
        '{"index_columns": [{"kind": "range", "start": 9223372036854775808, "step": 1}]}',
        '{"index_columns": ["x", "y"]}',
        json.dumps({"index_columns": [{"kind": "range", "start": 0, "step": 1, "name": 5}]}),
    ],
)
def test_metadata_that_make_no_sense(memory, read, metadata):
    plain = frame(x=[1, 2], y=["a", "b"])
    api.store_dataframes_as_dataset(memory, "u", [plain])
    table = pa.Table.from_pandas(plain, preserve_index=False).replace_schema_metadata(
        None if metadata is None else {"pandas": metadata}
    )
    _replace(memory, table)
    if metadata == '{"index_columns": ["x", "y"]}':
        assert read("u", memory)[0].index.tolist() == [0, 1]
    else:
        same(read("u", memory)[0], plain)


def _replace(store, table):
    (key,) = [key for key in keys(store) if key.endswith(".parquet")]
    store().put(key, parquet_bytes(table, coerce_timestamps="us"))
