"""Rows and values of a cube query: the seed gives the cells, the other datasets are joined to them."""

import itertools

import pytest

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.io.eager import build_dataset_indices
from tests.support.cubes import CUBE, build, file_keys, frame, rows

SEED = frame(x=[0, 1, 2, 3], p=[0, 0, 1, 1], v1=[10, 11, 12, 13])


def query(driver, store, cube=CUBE, **arguments):
    return rows(driver.query_cube(cube=cube, store=store, **arguments))


# inner and left ----------------------------------------------------------------------------------

ENRICHED = {
    "a": frame(x=[0, 1, 2, 7], p=[0, 0, 1, 1], a=[0, 1, 2, 7]),
    "b": frame(x=[1, 2, 3, 4], p=[0, 1, 1, 9], b=[1, 2, 3, 4]),
    "c": frame(x=[0], p=[0], c=[0]),
}


FIRST = {"a": [0, 1, 2, None], "b": [None, 1, 2, 3], "c": [0, None, None, None]}
ALL = {**FIRST, "p": [0, 0, 1, 1], "v1": [10, 11, 12, 13], "x": [0, 1, 2, 3]}
RESTRICTED = {
    "seed": (C("v1") >= 12, {"a": [2, None], "b": [2, 3], "c": [None, None], "p": [1, 1], "x": [2, 3]}),
    "one": (C("a") >= 0, {"b": [None, 1, 2], "p": [0, 0, 1], "x": [0, 1, 2]}),
    "two": ((C("a") >= 1) & (C("b") <= 3), {"c": [None, None], "p": [0, 1], "x": [1, 2]}),
    "partition missing": (C("c") == 0, {"a": [0], "b": [None], "p": [0], "x": [0]}),
    "no row": ((C("c") == 0) & (C("b") == 1), None),
    "nothing": (None, ALL),
}


@pytest.mark.parametrize("conditions, expected", RESTRICTED.values(), ids=RESTRICTED)
@pytest.mark.parametrize("order", list(itertools.permutations("abc"))[::2], ids="".join)
def test_restricted_datasets_join_inner_others_left(driver, store_factory, order, conditions, expected):
    build(store_factory, seed=SEED, **{id_: ENRICHED[id_] for id_ in order})
    payload = [name for name in "abc" if expected and name in expected]
    arguments = {"conditions": conditions, "payload_columns": payload} if conditions is not None else {}
    assert query(driver, store_factory, **arguments) == expected


@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize("indexed", [False, True])
def test_conditions_on_dimensions_and_partitions_do_not_restrict(driver, store_factory, indexed, partitioned):
    enrich = ENRICHED["a"].iloc[:2] if partitioned else ENRICHED["a"].iloc[:2].drop(columns="p")
    build(store_factory, seed=SEED, enrich=enrich)
    if indexed:
        build_dataset_indices(store_factory, "cube++enrich", ["x"])
    for condition, cells in (
        *((condition, [0, 1, 2, 3]) for condition in (C("x") >= 0, C("p") >= 0, C("a").in_interval())),
        (C("x").isin([1, 3]), [1, 3]),
        (C("p") == 1, [2, 3]),
    ):
        result = query(driver, store_factory, conditions=condition, payload_columns=["a"])
        expected = [cell if cell < 2 else None for cell in cells]
        assert (result["x"], result["a"]) == (cells, expected), condition


# alignment ---------------------------------------------------------------------------------------

PQ = CUBE.copy(partition_columns=["p", "q"])
GRID = frame(x=[0, 0, 0, 1], p=[0, 0, 1, 1], q=["a", "b", "a", "b"], v1=[10, 11, 12, 13])


@pytest.mark.parametrize(
    "enrich, expected",
    [
        (frame(x=[0, 0], p=[0, 1], q=["a", "b"], v2=[20, 21]), [20, None, None, None]),
        (frame(x=[0, 1], q=["a", "b"], v2=[20, 21]), [20, None, 20, 21]),
        (frame(x=[0, 1], p=[1, 1], v2=[20, 21]), [None, None, 20, 21]),
        (frame(x=[0, 1], v2=[20, 21]), [20, 20, 20, 21]),
        (frame(x=[0, 0], p=[0, 7], q=["a", "a"], v2=[20, 21]), [20, None, None, None]),
    ],
    ids=["p and q", "q", "p", "none", "unknown partition"],
)
def test_a_dataset_joins_every_seed_partition_its_keys_fit(driver, store_factory, enrich, expected):
    build(store_factory, PQ, seed=GRID, enrich=enrich)
    # rows come sorted by x, p, q
    result = query(driver, store_factory, cube=PQ)
    assert (result["v2"], result["v1"]) == (expected, [10, 11, 12, 13])
    result = query(driver, store_factory, cube=PQ, conditions=C("v2") >= 0)
    found = [(seed, value) for seed, value in zip([10, 11, 12, 13], expected) if value is not None]
    assert list(zip(result["v1"], result["v2"])) == found


# which datasets take part ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, needed",
    [
        ({"payload_columns": ["v1"]}, False),
        ({"payload_columns": ["x", "p"]}, False),
        ({"payload_columns": ["v1"], "conditions": C("x") >= 0}, False),
        ({"payload_columns": ["v1"], "conditions": C("a").in_interval()}, False),
        ({"datasets": "seed"}, False),
        ({"payload_columns": ["a"]}, True),
        ({"payload_columns": ["v1"], "conditions": C("a") >= 0}, True),
        ({}, True),
    ],
)
def test_a_dataset_that_gives_nothing_is_not_read(driver, store_factory, arguments, needed):
    build(store_factory, seed=SEED, enrich=ENRICHED["a"])
    for key in file_keys(store_factory, "cube++enrich").values():
        store_factory().delete(key)
    if needed:
        with pytest.raises((KeyError, OSError)):
            query(driver, store_factory, **arguments)
    else:
        assert query(driver, store_factory, **arguments)["x"] == [0, 1, 2, 3]


def test_a_dataset_without_partitions_left(driver, store_factory):
    build(store_factory, seed=SEED, enrich=ENRICHED["a"])
    driver.remove_partitions(cube=CUBE, store=store_factory, conditions="all", ktk_cube_dataset_ids="enrich")
    assert query(driver, store_factory)["a"] == [None] * 4
    assert query(driver, store_factory, conditions=C("a") == 0) is None
