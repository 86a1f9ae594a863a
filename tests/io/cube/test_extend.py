"""Extending a cube by datasets, and replacing them."""

import pytest

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DatasetExistsError
from tests.support import cubes
from tests.support.cubes import CUBE, ENRICH, SEED, aborts, dataset_ids, frame, header, refuses, rows, wrong

NEW = frame(x=[0, 1], p=[0, 1], v3=[30, 31])


def test_extend_adds_datasets_and_touches_no_other(driver, built):
    before = cubes.snapshot(built)
    result = driver.extend_cube(data={"new": NEW}, cube=CUBE, store=built, metadata={"new": {"a": 1}})
    after = cubes.snapshot(built)
    assert {key: after[key] for key in before} == before
    assert result == {"new": DatasetMetadata.load_from_store("cube++new", built())}
    assert header(built, "cube++new")["metadata"]["a"] == 1
    assert header(built, "cube++new")["metadata"]["ktk_cube_is_seed"] is False
    found = rows(driver.query_cube(cube=CUBE, store=built))
    assert found == {"p": [0, 1], "v1": [10, 11], "v2": [20, 21], "v3": [30, 31], "x": [0, 1]}


def test_partition_on_may_name_datasets_that_do_not_come_now(driver, built):
    driver.extend_cube(data={"new": NEW}, cube=CUBE, store=built, partition_on={"later": [], "new": ["p"]})
    assert dataset_ids(built) == {"enrich", "new", "seed"}


def test_nothing_to_extend(driver, built):
    with cubes.unchanged(built):
        assert driver.extend_cube(data={}, cube=CUBE, store=built) == {}


# replacing ---------------------------------------------------------------------------------------


def test_overwrite_replaces_a_dataset_and_its_metadata(driver, built):
    arguments = {"overwrite": True, "metadata": {"enrich": {"new": 1}}}
    driver.extend_cube(data={"enrich": NEW.iloc[:1]}, cube=CUBE, store=built, **arguments)
    found = rows(driver.query_cube(cube=CUBE, store=built))
    assert found == {"p": [0, 1], "v1": [10, 11], "v3": [30, None], "x": [0, 1]}
    stored = header(built, "cube++enrich")["metadata"]
    assert stored["new"] == 1 and "c" not in stored


def test_a_column_can_move_between_replaced_datasets(driver, built):
    driver.extend_cube(data={"new": NEW.assign(v4=0)}, cube=CUBE, store=built)
    data = {"enrich": ENRICH.assign(v3=[1, 2]), "new": frame(x=[0, 1], p=[0, 1], v4=[5, 6])}
    driver.extend_cube(data=data, cube=CUBE, store=built, overwrite=True)
    found = rows(driver.query_cube(cube=CUBE, store=built, payload_columns=["v3", "v4"]))
    assert found == {"p": [0, 1], "v3": [1, 2], "v4": [5, 6], "x": [0, 1]}


REPLACED = [
    ({"enrich": frame(x=["a"], p=[0], v3=[1])}, ["x", "int64", "string"]),
    ({"enrich": NEW, "new": NEW}, ["v3", "enrich", "new"]),
]


@pytest.mark.parametrize("data, fragments", REPLACED, ids=["type", "payload"])
def test_failed_overwrite_restores_what_was_there(driver, built, data, fragments):
    expected = rows(driver.query_cube(cube=CUBE, store=built))
    with aborts(built, *fragments):
        driver.extend_cube(data=data, cube=CUBE, store=built, overwrite=True)
    assert dataset_ids(built) == {"seed", "enrich"}
    assert rows(driver.query_cube(cube=CUBE, store=built)) == expected


# refusals ----------------------------------------------------------------------------------------

EXISTS = "'cube++enrich' already exists. Pass overwrite=True to replace it, or choose another id."
NULL = {"new": frame(x=[0], p=[0], v3=[None])}
NO_EXTEND = {
    "seed": wrong("seed", data={"seed": SEED}),
    "frame without id is the seed": wrong("seed", data=SEED),
    "exists": wrong(EXISTS, error=DatasetExistsError, data={"enrich": NEW}),
    "payload exists": wrong("new", "v1", "v2", data={"new": NEW.assign(v1=1, v2=2)}),
    "payload exists elsewhere": wrong("enrich", "v1", data={"enrich": ENRICH.assign(v1=1)}, overwrite=True),
    "unfit cube": wrong("x", data={"new": NEW}, cube=CUBE.copy(dimension_columns=["y"])),
    "index missing": wrong("v1", "seed", data={"new": NEW}, cube=CUBE.copy(index_columns=["v1"])),
    "no partition": wrong("new", "p", data={"new": NEW.drop(columns="p")}),
    "null": wrong("index", "v3", "new", data=NULL, cube=CUBE.copy(index_columns=["v3"])),
    "duplicate cells": wrong(
        "new", "p, x", "3", "7", "v3", data={"new": frame(x=[7, 7], p=[3, 3], v3=[1, 2])}
    ),
    "metadata": wrong("other, seed", data={"new": NEW}, metadata={"other": {}, "seed": {}}),
}


@pytest.mark.parametrize("expected, arguments", NO_EXTEND.values(), ids=NO_EXTEND)
def test_wrong_input_is_refused_before_anything_is_written(driver, built, expected, arguments):
    with refuses(built, *expected):
        driver.extend_cube(**{"cube": CUBE, "store": built, **arguments})


ABORTED = [
    ({"new2": NEW, "new1": NEW}, ["v3", "new1, new2"]),
    ({"new": frame(x=["a"], p=[0], v3=[1])}, ["int64"]),
    ({"new": frame(x=[0], p=["a"], v3=[1])}, ["int64"]),
    ({"new": frame(x=[0.5], p=[0], v3=[1])}, ["int64"]),
    ({"new": NEW.iloc[:0]}, ["new"]),
]


@pytest.mark.parametrize(
    "data, fragments", ABORTED, ids=["payload twice", "type of a cell", "of a partition", "float", "no rows"]
)
def test_datasets_that_do_not_fit_are_rolled_back(driver, built, data, fragments):
    with aborts(built, *fragments):
        driver.extend_cube(data=data, cube=CUBE, store=built)
