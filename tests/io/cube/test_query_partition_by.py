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
        ("p", {}, "p x v2", [([0, 0], [0, 1], [20, None]), ([1, 1], [2, 3], [22, 23])]),
        ("i2", {}, "i2 x v1", [([1], [2], [12]), ([2, 2], [0, 3], [10, 13])]),
        (
            ["i1", "p"],
            {},
            "i1 x p",
            [(["a"], [1], [0]), (["a"], [2], [1]), (["b"], [0], [0]), (["c"], [3], [1])],
        ),
        (["i2", "i1"], {}, "i2 i1 x", [([1], ["a"], [2]), ([2], ["b"], [0]), ([2], ["c"], [3])]),
        ("i1", {"conditions": C("v2") > 20}, "i1 x", [(["a"], [2]), (["c"], [3])]),
        ("i1", {"conditions": C("v1") > 99}, "i1 x", []),
    ],
)
def test_groups_are_sorted_and_hold_their_rows(driver, built, partition_by, arguments, columns, expected):
    found = groups(driver.query_cube(cube=CUBE_I, store=built, partition_by=partition_by, **arguments))
    assert [tuple(group[column] for column in columns.split()) for group in found] == expected


VALUES = {
    "str": ["a", "b"],
    "float": [-1.5, 0.5],
    "bool": [False, True],
    "date": [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)],
    "timestamp": [pd.Timestamp("2020-01-01 01:02:03.000004"), pd.Timestamp("2020-01-02")],
}


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


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_dimension_without_index_may_have_any_type(driver, store_factory, values):
    cube = CUBE.copy(suppress_index_on=["x"])
    build(store_factory, cube, seed=frame(x=values, p=[0, 0], v1=[1, 2]), enrich=frame(x=values[:1], v2=[1]))
    build_dataset_indices(store_factory, "cube++enrich", ["x"])
    found = groups(driver.query_cube(cube=cube, store=store_factory, partition_by="x"))
    assert [(group["v1"], group["v2"]) for group in found] == [([1], [1]), ([2], [None])]
