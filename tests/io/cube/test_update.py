"""Replacing partitions of a cube: remove and append in one commit."""

import warnings

import pytest

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.dataset import DatasetMetadata
from tests.support import cubes
from tests.support.cubes import wrong

MORE, MORE_ENRICH = cubes.frame(x=[5], p=[0], v1=[15]), cubes.frame(x=[5], p=[1], v2=[25])


def update(driver, store, data, conditions, ids, **kwargs):
    arguments = {"remove_conditions": conditions, "ktk_cube_dataset_ids": ids, **kwargs}
    return driver.update_cube(data=data, cube=cubes.CUBE, store=store, **arguments)


@pytest.mark.parametrize(
    "data, conditions, ids, seed, enrich",
    [
        (MORE, C("p") == 0, ["seed", "enrich"], [11, 15], [21]),
        (MORE, (C("p") > 0) & (C("p") < 2), ["seed"], [10, 15], [20, 21]),
        (MORE, [C("p").isin([0, 7])], ["seed"], [11, 15], [20, 21]),
        ({"seed": MORE, "enrich": MORE_ENRICH}, C("p") == 1, ["seed", "enrich"], [10, 15], [20, 25]),
        ({}, C("p") == 0, [], [10, 11], [20, 21]),
    ],
)
def test_update_removes_then_appends(driver, built, data, conditions, ids, seed, enrich):
    result = update(driver, built, data, conditions, ids, rows_outside="append")
    assert set(result) == set(ids)
    for id_, dataset in result.items():
        assert dataset == DatasetMetadata.load_from_store(f"cube++{id_}", built())
    assert payload(built, "cube++seed", "v1") == seed
    assert payload(built, "cube++enrich", "v2") == enrich
    cubes.check_integrity(built)


def payload(store, uuid, column):
    """Give the values of the files of a dataset."""
    return sorted(value for content in cubes.file_contents(store, uuid) for value in content[column])


def test_kept_partitions_stay_in_front_and_other_datasets_untouched(driver, built):
    kept = [label for label in cubes.file_keys(built, "cube++seed") if label.startswith("p=1")]
    before = {key: data for key, data in cubes.snapshot(built).items() if "enrich" in key}
    update(driver, built, cubes.frame(x=[0, 5], p=[0, 0], v1=[1, 15]), C("p") == 0, ["seed"])
    assert list(cubes.file_keys(built, "cube++seed"))[:1] == kept
    found = cubes.rows(driver.query_cube(cube=cubes.CUBE, store=built))
    assert found == {"p": [0, 1, 0], "v1": [1, 11, 15], "v2": [20, 21, None], "x": [0, 1, 5]}
    assert {key: data for key, data in cubes.snapshot(built).items() if "enrich" in key} == before


# refusals ----------------------------------------------------------------------------------------

NO_UPDATE = {
    "condition on a dimension": wrong("x", remove_conditions=C("x") == 0),
    "condition on payload": wrong("v1", remove_conditions=(C("p") == 0) & (C("v1") == 0)),
    "condition on nothing known": wrong("z", remove_conditions=C("z") == 0),
    "condition of the wrong type": wrong("p", "int64", "a", error=TypeError, remove_conditions=C("p") == "a"),
    "unknown ids": wrong("a, b", ktk_cube_dataset_ids=["seed", "b", "a"]),
    "not announced": wrong("seed", "enrich", ktk_cube_dataset_ids=["enrich"]),
    "nothing announced": wrong("seed", ktk_cube_dataset_ids=[]),
    "index missing": wrong("v1", "seed", cube=cubes.CUBE.copy(index_columns=["v1"])),
    "metadata": wrong("int", error=TypeError, metadata=1),
    "no partition": wrong("seed", "p", data=MORE.drop(columns="p")),
    "unknown rows_outside": wrong(
        "rows_outside is 'raise', 'warn' or 'append', got 'keep'", rows_outside="keep"
    ),
}


@pytest.mark.parametrize("expected, arguments", NO_UPDATE.values(), ids=NO_UPDATE)
def test_wrong_input_is_refused_before_anything_is_written(driver, built, expected, arguments):
    defaults = {"data": MORE, "remove_conditions": C("p") == 0, "ktk_cube_dataset_ids": ["seed"]}
    with cubes.refuses(built, *expected):
        driver.update_cube(**{"cube": cubes.CUBE, "store": built, **defaults, **arguments})


OUTSIDE = r"do not select 1 of 2 written partitions, such as p=1"


def test_rows_outside_of_the_removed_partitions_are_refused_unless_asked_for(driver, built):
    more = cubes.frame(x=[5, 6], p=[0, 1], v1=[30, 31])
    with cubes.refuses(built, ValueError, OUTSIDE, "rows_outside"):
        update(driver, built, more, C("p") == 0, ["seed"], rows_outside="raise")
    with pytest.warns(UserWarning, match=OUTSIDE + r"\. Rows that"):
        update(driver, built, more, C("p") == 0, ["seed"], rows_outside="warn")
    found = cubes.rows(driver.query_cube(cube=cubes.CUBE, store=built, datasets=["seed"]))
    assert sorted(found["x"]) == [1, 5, 6]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*remove_conditions")
        update(driver, built, more[:1], C("p") == 0, ["seed"])
        update(driver, built, more, None, ["seed"])
        update(driver, built, more, C("p") == 0, ["seed"], rows_outside="append")


def test_only_the_facade_of_kartothek_appends_rows_outside_by_default(driver, built, facade):
    more = cubes.frame(x=[5, 6], p=[0, 1], v1=[30, 31])
    if facade.startswith("bag"):
        with pytest.warns(UserWarning, match=OUTSIDE):
            update(driver, built, more, C("p") == 0, ["seed"])
        return
    with cubes.refuses(built, ValueError, "rows_outside='append'"):
        update(driver, built, more, C("p") == 0, ["seed"])
