"""The frames a cube query gives: columns, order of rows, types."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.api import cube as api
from tests.support.cubes import CUBE, build, frame

#: the dtype of text in a frame made by the installed pandas
TEXT = pd.Series(["a"]).dtype
DATE = datetime.date
STAMP = pd.Timestamp


def test_columns_are_sorted_text_and_rows_are_numbered(driver, store_factory):
    build(store_factory, seed=frame(z=[1, 2], x=[0, 1], p=[1, 0], A=[1, 2], b=[1, 2]))
    (result,) = driver.query_cube(cube=CUBE, store=store_factory)
    assert list(result.columns) == ["A", "b", "p", "x", "z"]
    assert {type(name) for name in result.columns} == {str}
    assert isinstance(result.index, pd.RangeIndex)
    assert result.index.equals(pd.RangeIndex(2))


# types -------------------------------------------------------------------------------------------

STAMPS = [STAMP("2020-01-01"), STAMP("2020-01-01 01:02:03.000004")]
#: values, and their dtype beside a missing value
PAYLOAD = {
    "bool": ([True, False], "object"),
    **{f"int{n}": (np.array([-1, 1], f"int{n}"), "float64") for n in (8, 16, 32, 64)},
    **{f"uint{n}": (np.array([1, 2], f"uint{n}"), "float64") for n in (8, 16, 32, 64)},
    "float32": (np.array([0.5, 1.5], "float32"), "float32"),
    "float64": ([0.5, 1.5], "float64"),
    "str": (["a", "b"], TEXT),
    "bytes": ([b"a", b"b"], "object"),
    "date": ([DATE(2020, 1, 1), DATE(2020, 1, 2)], "datetime64[ns]"),
    "timestamp": (STAMPS, "datetime64[ns]"),
    "timestamp in us": (np.array(["2020-01-01", "2020-01-02"], "M8[us]"), "datetime64[ns]"),
    "category": (pd.Categorical(["b", "a"]), TEXT),
    "null": ([None, None], "object"),
}


def type_of(driver, dtype):
    """The dtype in results of a façade: frames of Spark have microseconds always."""
    return "datetime64[us]" if driver.name == "spark" and dtype == "datetime64[ns]" else dtype


def columns_of(values):
    """Give a frame of one payload column."""
    return pd.DataFrame({"x": [0, 1], "p": [0, 1], "v": pd.Series(values)})


@pytest.mark.parametrize("values, dtype", PAYLOAD.values(), ids=PAYLOAD.keys())
@pytest.mark.parametrize("partition", [1, 2], ids=["cell", "partition"])
def test_types_of_payload_where_a_partner_is_missing(driver, store_factory, values, dtype, partition):
    build(store_factory, seed=frame(x=[0, 1, 2], p=[0, 1, partition]), enrich=columns_of(values))
    (result,) = driver.query_cube(cube=CUBE, store=store_factory)
    assert result["v"].dtype == type_of(driver, dtype)
    assert [pd.isna(value) for value in result["v"]] == [value is None for value in [*values, None]]
    assert list(result["v"][:1]) == list(pd.Series(values[:1]).astype(dtype))


def test_types_do_not_change_because_another_partition_is_empty(driver, store_factory):
    enrich = frame(x=[0], p=[0], v2=np.array([1], dtype="int8"), v3=[True])
    build(store_factory, seed=frame(x=[0, 1], p=[0, 1], v1=[5, 6]), enrich=enrich)
    for condition in (api.C("x") == 0, api.C("v1") == 5, api.C("v2") == 1, api.C("p") == 0):
        (result,) = driver.query_cube(cube=CUBE, store=store_factory, conditions=condition)
        found = {name: str(dtype) for name, dtype in result.dtypes.items()}
        assert found == {"p": "int64", "v1": "int64", "v2": "int8", "v3": "bool", "x": "int64"}


def dtypes(results, column):
    """Give the dtype of a column in each frame."""
    return [str(df[column].dtype) for df in results]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_group_without_partner_has_the_type_of_the_other_groups(driver, store_factory, dtype):
    enrich = frame(x=[1, 5], p=[1, 2], w=np.array([1.5, 2.5], dtype=dtype))
    build(store_factory, seed=frame(x=[0, 1, 2], p=[0, 1, 2]), enrich=enrich)
    found = driver.query_cube(cube=CUBE, store=store_factory, partition_by="p")
    assert dtypes(found, "w") == [dtype] * 3
    for condition in (api.C("x") == 0, api.C("p") == 2):
        assert dtypes(driver.query_cube(cube=CUBE, store=store_factory, conditions=condition), "w") == [dtype]


def test_all_frames_have_the_widest_type_whatever_is_asked_for(driver, store_factory):
    cube = CUBE.copy(index_columns=["i1"])
    narrow = frame(x=[0, 1, 2], p=[0, 1, 2], v1=np.array([1, 2, 3], dtype="int8"), i1=["a", "b", "a"])
    build(store_factory, cube, seed=narrow)
    wide = frame(x=[3], p=[1], v1=np.array([300], dtype="int16"), i1=["b"])
    api.append_to_cube(data=wide, cube=cube, store=store_factory)
    for arguments, expected in (
        ({}, [[1, 2, 3, 300]]),
        ({"partition_by": "p"}, [[1], [2, 300], [3]]),
        ({"partition_by": "i1"}, [[1, 3], [2, 300]]),
        ({"conditions": api.C("v1") < 3}, [[1, 2]]),
        ({"conditions": api.C("p") == 0}, [[1]]),
    ):
        found = driver.query_cube(cube=cube, store=store_factory, **arguments)
        assert dtypes(found, "v1") == ["int16"] * len(expected)
        assert [df["v1"].tolist() for df in found] == expected


def test_lists_of_numbers_in_groups_are_as_wide_as_the_widest(store_factory):
    def seed(x, values, width):
        return pa.table({"x": [x], "p": [x], "v1": pa.array([values], pa.list_(width))})

    api.build_cube(data=seed(0, [1, 2], pa.int8()), cube=CUBE, store=store_factory)
    for number, (values, width) in enumerate([([3], pa.int64()), ([], pa.int8())], 1):
        api.append_to_cube(data=seed(number, values, width), cube=CUBE, store=store_factory)
    tables = api.query_cube_arrow(CUBE, store_factory, partition_by="p")
    assert [t["v1"].type.value_type for t in tables] == [pa.int64()] * 3
    assert [t["v1"].to_pylist() for t in tables] == [[[1, 2]], [[3]], [[]]]


KEYS = {
    "int": ([1, 2], "int64"),
    "int8": (np.array([-1, 1], dtype="int8"), "int64"),
    "uint8": (np.array([1, 2], dtype="uint8"), "uint64"),
    "float": ([-0.5, 1.5], "float64"),
    "float32": (np.array([0.1, 1e10], dtype="float32"), "float64"),
    "bool": ([False, True], "bool"),
    "str": (["a", "b"], TEXT),
    "special": (["=?%/&", "ä ö"], TEXT),
    "category": (pd.Categorical(["a", "b"]), TEXT),
    "date": ([DATE(2020, 1, 1), DATE(2020, 1, 2)], "datetime64[ns]"),
    "timestamp": (STAMPS, "datetime64[ns]"),
}


@pytest.mark.parametrize("values, dtype", KEYS.values(), ids=KEYS.keys())
def test_cells_may_be_of_any_type(driver, store_factory, values, dtype):
    """Join by a dimension of that type; the order of rows is the order of its values."""
    build(
        store_factory,
        seed=frame(x=list(values)[::-1], p=[0, 0], v1=[2, 1]).astype({"x": pd.Series(values).dtype}),
        enrich=frame(x=values, p=[0, 0], v2=[3, 4]),
        whole=frame(x=values[1:], v3=[5]),
    )
    (result,) = driver.query_cube(cube=CUBE, store=store_factory)
    assert list(result["x"]) == list(pd.Series(values).astype(dtype))
    assert [list(result[name]) for name in ("v1", "v2")] == [[1, 2], [3, 4]]
    assert list(result["v3"])[1] == 5 and pd.isna(result["v3"][0])


FAR, OLD, NEAR = DATE(9999, 12, 31), DATE(1, 1, 1), DATE(2020, 1, 1)


@pytest.fixture
def far_dates(store_factory):
    """Dates that datetime64[ns] cannot hold: cells, partitions, indexed and other payload."""
    cube = CUBE.copy(index_columns=["i1"])
    data = frame(x=[FAR, NEAR, OLD, NEAR], p=[NEAR, FAR, OLD, NEAR], i1=[NEAR, NEAR, FAR, OLD])
    data["v1"] = [FAR, NEAR, None, OLD]
    api.build_cube({"seed": data, "enrich": data[["x", "p"]].assign(v2=NEAR)}, cube, store_factory)
    return cube, data


def _dates(frames):
    """Rows of several frames as dates."""
    columns = ["i1", "p", "v1", "v2", "x"]
    return sorted(
        tuple(None if pd.isna(value) else value.date() for value in row)
        for df in frames
        for row in df[columns].itertuples(index=False)
    )


@pytest.mark.parametrize("partition_by", [None, "p", "i1", "x"])
def test_dates_that_nanoseconds_do_not_hold_are_returned(driver, store_factory, far_dates, partition_by):
    cube, data = far_dates
    frames = driver.query_cube(cube=cube, store=store_factory, partition_by=partition_by)
    expected = data.assign(v2=NEAR)[["i1", "p", "v1", "v2", "x"]].itertuples(index=False)
    assert str(_dates(frames)) == str(sorted(tuple(None if pd.isna(v) else v for v in r) for r in expected))
    assert {str(df["v2"].dtype) for df in frames} == {"datetime64[ns]"}


@pytest.mark.parametrize("partition_by", [None, "p", "i1", "x"])
def test_dates_have_one_type_in_all_groups_of_a_query(store_factory, far_dates, partition_by):
    frames = api.query_cube(far_dates[0], store_factory, partition_by=partition_by)
    expected = {"i1": "[s]", "p": "[s]", "v1": "[s]", "v2": "[ns]", "x": "[s]"}
    for df in frames:
        assert df.dtypes.map(str).to_dict() == {name: f"datetime64{unit}" for name, unit in expected.items()}
    assert len(pd.concat(frames)) == 4


@pytest.mark.parametrize("partition_by", [None, "p", "x"])
def test_dask_puts_partitions_with_all_dates_together(store_factory, far_dates, partition_by):
    cube, data = far_dates
    result = api.query_cube_dataframe(cube, store_factory, partition_by=partition_by).compute()
    assert sorted(result["x"]) == sorted(map(STAMP, data["x"]))
    assert sorted(result["v1"].dropna()) == sorted(map(STAMP, data["v1"].dropna()))


def test_rows_of_a_result_with_far_dates_can_be_filtered(store_factory, far_dates):
    (result,) = api.query_cube(far_dates[0], store_factory)
    assert len((api.C("x") > STAMP(NEAR)).filter_df(result)) == 1
    assert len(((api.C("x") == STAMP(FAR)) & (api.C("v2") == STAMP(NEAR))).filter_df(result)) == 1
