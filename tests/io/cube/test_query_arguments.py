"""Arguments of a cube query: their forms, and what is refused when the query is planned."""

import copy

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.api.cube import C, Conjunction, discover_datasets
from kartothek_cube.io import eager
from tests.support.cubes import CUBE, frame, groups, refuses, rows, wrong

XY = CUBE.copy(dimension_columns=["x", "y"], index_columns=["i1"])


@pytest.fixture
def built(driver, store_factory):
    """A store with a cube of two datasets."""
    data = {
        "seed": frame(x=[0, 1], y=[1, 0], p=[0, 1], v1=[10, 11]),
        "enrich": frame(x=[0, 1], y=[1, 0], p=[0, 1], i1=["a", "b"], v2=[0.5, 1.5]),
    }
    driver.build_cube(data=data, cube=XY, store=store_factory)
    return store_factory


FULL = {"i1": ["a", "b"], "p": [0, 1], "v1": [10, 11], "v2": [0.5, 1.5], "x": [0, 1], "y": [1, 0]}
FIRST = {"i1": ["a"], "p": [0], "v1": [10], "v2": [0.5], "x": [0], "y": [1]}


def only(*names):
    """Give these columns of the full result."""
    return {name: FULL[name] for name in names}


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, FULL),
        ({"conditions": None}, FULL),
        ({"conditions": []}, FULL),
        ({"conditions": Conjunction([])}, FULL),
        ({"conditions": C("v1") == 10}, FIRST),
        ({"conditions": [C("v1") == 10, C("x") < 1]}, FIRST),
        ({"conditions": (C("v1") == 10) & (C("x") < 1)}, FIRST),
        ({"conditions": iter([C("v1") == 10])}, FIRST),
        ({"conditions": C("i1") == b"a"}, FIRST),
        ({"conditions": C("i1") == np.str_("a")}, FIRST),
        ({"datasets": ["seed", "enrich"]}, FULL),
        ({"datasets": {"enrich", "seed"}}, FULL),
        ({"datasets": "seed"}, only("p", "v1", "x", "y")),
        ({"datasets": ["seed"]}, only("p", "v1", "x", "y")),
        ({"dimension_columns": ["x", "y"]}, FULL),
        ({"dimension_columns": ("y", "x")}, {name: values[::-1] for name, values in FULL.items()}),
        ({"payload_columns": []}, only("p", "x", "y")),
        ({"payload_columns": "v2"}, only("p", "v2", "x", "y")),
        ({"payload_columns": {"v1", "v2"}}, only("p", "v1", "v2", "x", "y")),
        ({"payload_columns": ["x", "p", "i1"]}, only("i1", "p", "x", "y")),
        ({"payload_columns": ["v2", "v2"]}, only("p", "v2", "x", "y")),
        ({"partition_by": []}, FULL),
    ],
)
def test_forms_of_arguments(driver, built, arguments, expected):
    fresh = copy.deepcopy(arguments)  # an iterator serves once
    assert rows(driver.query_cube(cube=XY, store=built, **fresh)) == expected


@pytest.mark.parametrize("partition_by", ["i1", ["i1"], ("p", "x")])
def test_forms_of_partition_by(driver, built, partition_by):
    assert len(groups(driver.query_cube(cube=XY, store=built, partition_by=partition_by))) == 2


def test_datasets_may_be_given_as_loaded(driver, built):
    datasets = discover_datasets(XY, built)
    driver.append_to_cube(data=frame(x=[2], y=[2], p=[2], v1=[12]), cube=XY, store=built)
    assert rows(driver.query_cube(cube=XY, store=built, datasets=datasets)) == FULL
    del datasets["enrich"]
    assert rows(driver.query_cube(cube=XY, store=built, datasets=datasets)) == only("p", "v1", "x", "y")


def test_what_an_operation_returns_can_be_queried(driver, store_factory):
    datasets = driver.build_cube(data=frame(x=[0], p=[0], v1=[1]), cube=CUBE, store=store_factory)
    found = rows(driver.query_cube(cube=CUBE, store=store_factory, datasets=datasets))
    assert found == {"p": [0], "v1": [1], "x": [0]}


NO_QUERY = {
    "condition columns": wrong("a, b", conditions=(C("b") == 1) & (C("a") == 1) & (C("v1") == 1)),
    "condition on a dataset left out": wrong("v2", conditions=C("v2") == 1.0, datasets="seed"),
    "no condition": wrong(error=TypeError, conditions=[1]),
    "unknown datasets": wrong("a, b", datasets=["seed", "b", "a"]),
    "without seed": wrong("seed", datasets=["enrich"]),
    "no dataset": wrong("seed", datasets=[]),
    "dimensions in a set": wrong("set", error=TypeError, dimension_columns={"x"}),
    "unknown dimensions": wrong("a, z", dimension_columns=["z", "x", "a"]),
    "payload as dimension": wrong("v1", dimension_columns=["v1"]),
    "no dimension": wrong("imension", dimension_columns=[]),
    "dimension twice": wrong("x", dimension_columns=["x", "x"]),
    "partition_by in a set": wrong("set", error=TypeError, partition_by={"x"}),
    "unknown partition_by": wrong("a, z", partition_by=["z", "i1", "a"]),
    "partition_by without index": wrong("v1, v2", partition_by=["v2", "i1", "v1"]),
    "unknown payload": wrong("a, b", payload_columns=["b", "v1", "a"]),
    "payload of a dataset left out": wrong("v2", payload_columns=["v2"], datasets="seed"),
    "unfit cube": wrong("y", cube=XY.copy(dimension_columns=["x", "v1"])),
    "cube with an index that is missing": wrong("v1", "seed", cube=XY.copy(index_columns=["v1"])),
}


@pytest.mark.parametrize("expected, arguments", NO_QUERY.values(), ids=NO_QUERY)
def test_wrong_arguments(driver, built, expected, arguments):
    with refuses(built, *expected):
        driver.query_cube(**{"cube": XY, "store": built, **arguments})


@pytest.mark.parametrize(
    "condition, expected, got",
    [
        *((C(column) == "a", "int64", "str") for column in ("v1", "x", "p")),
        (C("v1") == True, "int64", "bool"),  # noqa: E712
        (C("v1").isin([1, "a"]), "int64", "str"),
        (C("v1").in_interval(1, "a"), "int64", "str"),
        (C("v1") == pd.Timestamp("2020"), "int64", "Timestamp"),
        (C("i1") == 1, "string", "int"),
        (C("v2") == True, "double", "bool"),  # noqa: E712
        (C("v1").startswith("a"), "int64", "str"),
        (C("v1").between(1, "a"), "int64", "str"),
        ((C("v2") > 1) | (C("v1") == "a"), "int64", "str"),
        (~((C("v2") > 1) & (C("v1") == "a")), "int64", "str"),
        (C("v2") < "a", "double", "str"),
    ],
    ids=str,
)
def test_values_of_the_wrong_type(driver, built, condition, expected, got):
    column = getattr(condition, "column", "v1")
    with refuses(built, TypeError, column, expected, got):
        driver.query_cube(cube=XY, store=built, conditions=condition)


def test_technical_columns_are_invisible(driver, store_factory):
    seed = pd.DataFrame({"x": [0], "p": [0], "KLEE_TS": [pd.Timestamp("2020")], "__a": [1], "_b": [2]})
    metadata = {"ktk_cube_is_seed": True}
    metadata |= {"ktk_cube_dimension_columns": ["x"], "ktk_cube_partition_columns": ["p"]}
    keys = {"partition_on": ["p"], "secondary_indices": ["x"]}
    eager.store_dataframes_as_dataset(store_factory, "cube++seed", [seed], metadata=metadata, **keys)
    assert rows(driver.query_cube(cube=CUBE, store=store_factory)) == {"_b": [2], "p": [0], "x": [0]}
    # those that kartothek stored stay
    driver.append_to_cube(data=seed.assign(x=1), cube=CUBE, store=store_factory)
    payload = ({"payload_columns": [name]} for name in ("__a", "KLEE_TS"))
    for arguments in (*payload, {"conditions": C("__a") == 1}):
        with pytest.raises(ValueError, match=r"__a|KLEE_TS"):
            driver.query_cube(cube=CUBE, store=store_factory, **arguments)
