"""Cells that were written several times: the row that was committed last is the one that a query sees."""

import pytest

from kartothek_cube.api import cube as api
from tests.support.cubes import CUBE, build, frame, groups, rows

CUBE_I = CUBE.copy(index_columns=["i1", "i2"])


def append(store, cube=CUBE, **datasets):
    """Append to a cube, eagerly."""
    api.append_to_cube(data=datasets, cube=cube, store=store)


def query(driver, store, cube=CUBE, **arguments):
    return rows(driver.query_cube(cube=cube, store=store, **arguments))


XP = {"x": [0, 1], "p": [0, 0]}
BOTH = {"seed": frame(**XP, v1=[10, 11]), "enrich": frame(**XP, v2=[20, 21])}
#: what is built, what is appended one after the other, and what a query sees then
APPENDS = {
    "last row": (
        {"seed": frame(**XP, v1=[10, 11])},
        [{"seed": frame(x=[1], p=[0], v1=[value])} for value in (30, 20, 50, 40)],
        frame(**XP, v1=[10, 40]),
    ),
    "nulls hide values": (
        {"seed": frame(**XP, v1=[1.5, 2.5])},
        [{"seed": frame(x=[0], p=[0], v1=[float("nan")])}],
        frame(**XP, v1=[None, 2.5]),
    ),
    "both": (
        BOTH,
        [{"seed": frame(x=[0, 2], p=[0, 0], v1=[30, 32]), "enrich": frame(x=[2], p=[0], v2=[42])}],
        frame(x=[0, 1, 2], p=[0, 0, 0], v1=[30, 11, 32], v2=[20, 21, 42]),
    ),
}


@pytest.mark.parametrize("built, appended, expected", APPENDS.values(), ids=APPENDS)
def test_the_row_committed_last_wins(driver, store_factory, built, appended, expected):
    build(store_factory, **built)
    for datasets in appended:
        append(store_factory, **datasets)
    assert query(driver, store_factory) == rows([expected])


# conditions see what is visible ------------------------------------------------------------------


@pytest.fixture
def overlaid(store_factory):
    """A store whose cell x=0 was written twice, in the seed and in an enrichment."""
    build(store_factory, CUBE_I, seed=BOTH["seed"].assign(i1="a"), enrich=BOTH["enrich"].assign(i2="c"))
    more = {"seed": frame(x=[0], p=[0], v1=[30], i1=["b"]), "enrich": frame(x=[0], p=[0], v2=[40], i2=["d"])}
    append(store_factory, CUBE_I, **more)
    return store_factory


C = api.C
#: cells -> conditions
VISIBLE = {
    None: [
        *(C("v1") == 10, C("v2") == 20, C("x") == 9, C("p") == 9, C("x").isin([])),
        (C("i1") == "a") & (C("i2") == "d"),
        (C("i1") == "a") & (C("x") == 0),
    ],
    (0,): [C("v1") == 30, C("i1") == "b", C("v2") == 40, C("i2") == "d", C("x") == 0]
    + [(C("i1") == "b") & other for other in (C("v2") == 40, C("x") == 0)],
    (1,): [C("v1") <= 11, C("i1") == "a", C("i1") != "b", C("v2") <= 21, C("i2") == "c"],
}


@pytest.mark.parametrize("cells", VISIBLE)
def test_a_condition_does_not_uncover_a_hidden_row(driver, overlaid, cells):
    for condition in VISIBLE[cells]:
        # which row is visible does not depend on the columns that are asked for
        for payload in (None, [], ["v1"], ["i1"]):
            found = query(driver, overlaid, CUBE_I, conditions=condition, payload_columns=payload)
            assert (tuple(found["x"]) if found else None) == cells, (condition, payload)


@pytest.mark.parametrize(
    "partition_by, expected",
    [("i1", [("a", [1], [11]), ("b", [0], [30])]), ("i2", [("c", [1], [11]), ("d", [0], [30])])],
)
def test_groups_do_not_uncover_hidden_rows(driver, overlaid, partition_by, expected):
    found = groups(driver.query_cube(cube=CUBE_I, store=overlaid, partition_by=partition_by))
    assert [(group[partition_by][0], group["x"], group["v1"]) for group in found] == expected
