"""Cube queries that give a frame per value of index columns."""

import datetime

import pandas as pd
import pytest

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.io.eager import build_dataset_indices
from tests.support.cubes import CUBE, build, frame, groups

CUBE_I = CUBE.copy(index_columns=["i1", "i2"])
SEED = frame(x=[0, 1, 2, 3], p=[0, 0, 1, 1], i1=["b", "a", "a", "c"], v1=[10, 11, 12, 13])
ENRICH = frame(x=[0, 2, 3, 7], p=[0, 1, 1, 1], i2=[2, 1, 2, 3], v2=[20, 22, 23, 27])


@pytest.fixture
def built(store_factory):
    """A store with a cube of two indexed datasets."""
    build(store_factory, CUBE_I, seed=SEED, enrich=ENRICH)
    return store_factory


@pytest.mark.parametrize(
    "partition_by, arguments, columns, expected",
    [
        ("i1", {}, "i1 x", [(["a", "a"], [1, 2]), (["b"], [0]), (["c"], [3])]),
        ("x", {}, "x v1", [([0], [10]), ([1], [11]), ([2], [12]), ([3], [13])]),
        ("p", {}, "p x v2", [([0, 0], [0, 1], [20, None]), ([1, 1], [2, 3], [22, 23])]),
        ("i2", {}, "i2 x v1", [([1], [2], [12]), ([2, 2], [0, 3], [10, 13])]),
        (
            ["i1", "p"],
            {},
            "i1 x p",
            [(["a"], [1], [0]), (["a"], [2], [1]), (["b"], [0], [0]), (["c"], [3], [1])],
        ),
        (
            ["p", "i1"],
            {},
            "p x i1",
            [([0], [1], ["a"]), ([0], [0], ["b"]), ([1], [2], ["a"]), ([1], [3], ["c"])],
        ),
        (["i2", "i1"], {}, "i2 i1 x", [([1], ["a"], [2]), ([2], ["b"], [0]), ([2], ["c"], [3])]),
        ("i1", {"conditions": C("x") >= 2}, "i1 x", [(["a"], [2]), (["c"], [3])]),
        ("i1", {"conditions": C("i1") < "b"}, "i1 x", [(["a", "a"], [1, 2])]),
        ("i1", {"conditions": C("v2") > 20}, "i1 x", [(["a"], [2]), (["c"], [3])]),
        ("i2", {"conditions": C("v1") == 11}, "i2 x", []),
        ("i1", {"conditions": C("v1") > 99}, "i1 x", []),
        ("p", {"datasets": "seed"}, "p x", [([0, 0], [0, 1]), ([1, 1], [2, 3])]),
    ],
)
def test_groups_are_sorted_and_hold_their_rows(driver, built, partition_by, arguments, columns, expected):
    found = groups(driver.query_cube(cube=CUBE_I, store=built, partition_by=partition_by, **arguments))
    assert [tuple(group[column] for column in columns.split()) for group in found] == expected


@pytest.mark.parametrize("payload, names", [([], "i1 p x"), (["v2"], "i1 p v2 x"), (None, "i1 i2 p v1 v2 x")])
def test_the_columns_are_part_of_the_result(driver, built, payload, names):
    for result in driver.query_cube(cube=CUBE_I, store=built, partition_by="i1", payload_columns=payload):
        assert list(result.columns) == names.split()


def test_each_group_is_sorted_and_numbered_from_zero(driver, store_factory):
    cube = CUBE.copy(dimension_columns=["x", "y"], index_columns=["i1"])
    build(store_factory, cube, seed=frame(x=[1, 0, 0, 1], y=[0, 1, 1, 1], p=[1, 1, 0, 0], i1=[1, 2, 1, 1]))
    found = driver.query_cube(cube=cube, store=store_factory, partition_by="i1", dimension_columns=["y", "x"])
    assert groups(found) == [
        {"i1": [1, 1, 1], "p": [1, 0, 0], "x": [1, 0, 1], "y": [0, 1, 1]},
        {"i1": [2], "p": [1], "x": [0], "y": [1]},
    ]
    assert [list(df.index) for df in found] == [[0, 1, 2], [0]]


VALUES = {
    "int": [1, 2],
    "str": ["a", "b"],
    "float": [-1.5, 0.5],
    "bool": [False, True],
    "date": [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)],
    "timestamp": [pd.Timestamp("2020-01-01 01:02:03.000004"), pd.Timestamp("2020-01-02")],
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("column", ["x", "p", "i1"])
def test_values_of_every_type(driver, store_factory, column, values):
    seed = frame(n=[0, 1], x=[0, 0], p=[0, 0], i1=[0, 0], v1=[5, 6]).assign(**{column: values[::-1]})
    cube = CUBE.copy(dimension_columns=["n", "x"], index_columns=["i1"])
    build(store_factory, cube, seed=seed)
    found = groups(driver.query_cube(cube=cube, store=store_factory, partition_by=column))
    is_date = isinstance(values[0], datetime.date)
    expected = [pd.Timestamp(value) if is_date else value for value in values]
    assert [(group[column], group["v1"]) for group in found] == [([expected[0]], [6]), ([expected[1]], [5])]


BY_I1 = [(["a", "a"], [1, 2]), (["b"], [0]), (["c"], [3])]
WITH_NULLS = {
    "seed": frame(x=[0, 1, 2, 3], p=[0, 0, 0, 1], v1=pd.Series(["a", None, "b", None], dtype=object))
}
WITH_KEY = {"seed": SEED, "enrich": frame(x=[0, 1, 2], p=[0, 0, 1], a=["m", "n", "m"])}
UNPARTITIONED = {"seed": SEED, "enrich": frame(x=[0, 1, 3], i2=[1, 2, 1])}
#: indices of the cube, datasets, partition keys, column to group by, groups and their cells
OTHER_INDICES = {
    "nulls are in no group": ([], WITH_NULLS, {}, "v1", [(["a"], [0]), (["b"], [2])]),
    "index that the query does not name": (["i1"], {"seed": SEED}, {}, "i1", BY_I1),
    "extra partition key": ([], WITH_KEY, {"enrich": ["p", "a"]}, "a", [(["m", "m"], [0, 2]), (["n"], [1])]),
    "dataset without partitions": (["i2"], UNPARTITIONED, {}, "i2", [([1, 1], [0, 3]), ([2], [1])]),
}


@pytest.mark.parametrize(
    "indices, datasets, keys, column, expected", OTHER_INDICES.values(), ids=OTHER_INDICES
)
def test_indices_and_keys_of_datasets(driver, store_factory, indices, datasets, keys, column, expected):
    build(store_factory, CUBE.copy(index_columns=indices), partition_on=keys, **datasets)
    if column == "v1":
        build_dataset_indices(store_factory, "cube++seed", ["v1"])
    found = groups(driver.query_cube(cube=CUBE, store=store_factory, partition_by=column))
    assert [(group[column], group["x"]) for group in found] == expected


@pytest.mark.parametrize("payload_columns", [None, [], ["v1"]])
@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, [[0], [1], [2], [3]]),
        ({"conditions": C("x") != 2}, [[0], [1], [3]]),
        ({"conditions": C("v1") > 10}, [[1], [2], [3]]),
        ({"conditions": C("v2") > 20}, [[2], [3]]),
        ({"conditions": C("x") > 9}, []),
        ({"partition_by": ["p", "x"]}, [[0], [1], [2], [3]]),
    ],
    ids=str,
)
def test_a_dimension_that_only_another_dataset_has_an_index_of_loses_no_rows(
    driver, store_factory, arguments, expected, payload_columns
):
    cube = CUBE.copy(suppress_index_on=["x"])
    build(store_factory, cube, seed=SEED, enrich=ENRICH)
    build_dataset_indices(store_factory, "cube++enrich", ["x"])
    arguments = {"partition_by": "x", "payload_columns": payload_columns, **arguments}
    found = groups(driver.query_cube(cube=cube, store=store_factory, **arguments))
    assert [group["x"] for group in found] == expected


@pytest.mark.parametrize("values", list(VALUES.values())[1:], ids=list(VALUES)[1:])
def test_a_dimension_without_index_may_have_any_type(driver, store_factory, values):
    cube = CUBE.copy(suppress_index_on=["x"])
    build(store_factory, cube, seed=frame(x=values, p=[0, 0], v1=[1, 2]), enrich=frame(x=values[:1], v2=[1]))
    build_dataset_indices(store_factory, "cube++enrich", ["x"])
    found = groups(driver.query_cube(cube=cube, store=store_factory, partition_by="x"))
    assert [(group["v1"], group["v2"]) for group in found] == [([1], [1]), ([2], [None])]
