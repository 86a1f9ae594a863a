"""Writers of one cube that meet: a second one commits while the first is under way."""

import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.cube.conditions import C
from tests.support.cubes import CUBE, SEED, build, check_integrity, file_contents, frame, memory
from tests.support.stores import FaultyStore, Same

#: where the second writer comes in: while data files are written, or between reading the state and the commit
MOMENTS = ["cube++seed/table/p=", "cube++seed/indices/"]


def interrupted(inner, moment, other):
    """Give a store in which ``other`` happens at a moment, on the same data."""
    return Same.of(FaultyStore(inner).fail("put", key=moment, error=lambda: other(Same.of(inner))))


def append(p, v):
    return lambda store: api.append_to_cube(frame(x=[p + 5], p=[p], v1=[v]), CUBE, store)


def update(p, v):
    return lambda store: api.update_cube(frame(x=[p + 5], p=[p], v1=[v]), CUBE, store, C("p") == p, ["seed"])


def remove(p):
    return lambda store: api.remove_partitions(CUBE, store, C("p") == p)


def values(inner):
    """Give the payload of all files and check the rest."""
    check_integrity(Same.of(inner))
    return sorted(value for content in file_contents(Same.of(inner), "cube++seed") for value in content["v1"])


PAIRS = {
    "appends": (append(0, 20), append(0, 30), [10, 11, 20, 30]),
    "appends elsewhere": (append(0, 20), append(2, 30), [10, 11, 20, 30]),
    "append, update elsewhere": (append(0, 20), update(1, 30), [10, 20, 30]),
    "append, update": (append(0, 20), update(0, 30), [11, 20, 30]),
    "append, remove": (append(0, 20), remove(0), [11, 20]),
    "update, append elsewhere": (update(0, 20), append(1, 30), [11, 20, 30]),
    "updates elsewhere": (update(0, 20), update(1, 30), [20, 30]),
    "update, remove elsewhere": (update(0, 20), remove(1), [20]),
}


@pytest.mark.parametrize("moment", MOMENTS, ids=["data", "commit"])
@pytest.mark.parametrize("first, second, expected", PAIRS.values(), ids=PAIRS)
def test_writers_that_do_not_harm_each_other_both_succeed(moment, first, second, expected):
    build(Same.of(inner := memory()), seed=SEED)
    first(interrupted(inner, moment, second))
    assert values(inner) == expected


def test_a_rollback_keeps_what_others_committed():
    """An extension cannot put its header after somebody else appended to the seed."""
    build(Same.of(inner := memory()), seed=SEED)
    faulty = FaultyStore(inner)
    faulty.fail("put", key="cube++new/table/p=", error=lambda: append(0, 30)(Same.of(inner)))
    faulty.fail("put", key="cube++new.by-dataset-metadata", error=PermissionError("header"))
    with pytest.raises(PermissionError):
        api.extend_cube({"new": frame(x=[5], p=[0], v2=[1])}, CUBE, Same.of(faulty))
    assert len(faulty.happened) == 2
    assert values(inner) == [10, 11, 30]
