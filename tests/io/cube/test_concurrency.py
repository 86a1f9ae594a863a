"""Writers of one cube that meet: a second one commits while the first is under way."""

import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.errors import ConcurrentWriteError
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


@pytest.mark.parametrize("moment", MOMENTS, ids=["data", "commit"])
@pytest.mark.parametrize(
    "second, expected", [(append(0, 30), [10, 11, 30]), (update(0, 30), [11, 30])], ids=["append", "update"]
)
def test_an_update_does_not_remove_what_it_has_not_seen(moment, second, expected):
    build(Same.of(inner := memory()), seed=SEED)
    with pytest.raises(ConcurrentWriteError, match="p=0"):
        update(0, 20)(interrupted(inner, moment, second))
    assert values(inner) == expected


@pytest.mark.parametrize("moment", MOMENTS, ids=["data", "commit"])
def test_of_two_builds_one_wins(moment):
    def again(store):
        api.build_cube(SEED.assign(v1=[30, 31]), CUBE, store)

    inner = memory()
    with pytest.raises(RuntimeError, match=r"cube\+\+seed"):
        api.build_cube(SEED, CUBE, interrupted(inner, moment, again))
    assert values(inner) == [30, 31]


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


def test_a_cleanup_keeps_the_files_of_a_writer_at_work():
    """The cleanup may take files that no header names yet; a commit must not name them then."""
    build(Same.of(inner := memory()), seed=SEED)
    store = interrupted(inner, "cube++seed/indices/", lambda s: api.cleanup_cube(CUBE, s))
    try:
        append(0, 20)(store)
    except (RuntimeError, ValueError, KeyError):
        assert values(inner) == [10, 11]
    else:
        assert values(inner) == [10, 11, 20]
