"""Operations on several datasets that are refused or fail: all of it is undone, what others wrote stays."""

import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.errors import ConcurrentWriteError
from tests.support.cubes import CUBE, HEADER, frame, memory
from tests.support.stores import FaultyStore, Same

SEED, EXTRA = frame(x=[0, 1, 2], p=[0, 0, 1], v=[0, 1, 2]), frame(x=[0, 1, 2], p=[0, 0, 1], w=[0, 1, 2])


@pytest.fixture
def store():
    store = memory()
    api.build_cube({"seed": SEED, "extra": EXTRA}, CUBE, Same.of(store))
    return store


def rows(store, *columns):
    df = api.query_cube(CUBE, Same.of(store))[0].sort_values("x")
    return df[list(columns)].astype("float").to_numpy().tolist()


def refused_update(store, meanwhile):
    """Update both datasets; the seed is refused since another process has added cells to the partition."""

    def act():
        meanwhile()
        api.append_to_cube(frame(x=[7], p=[0], v=[7]), CUBE, Same.of(store))

    # the header of the other dataset is put already
    slow = FaultyStore(store).fail("put", key="cube++seed/_history/", error=act)
    data = {"seed": SEED.iloc[:2].assign(v=-1), "extra": EXTRA.iloc[:2].assign(w=-1)}
    with pytest.raises(ConcurrentWriteError):
        api.update_cube(data, CUBE, Same.of(slow), api.C("p") == 0, ["seed", "extra"])


WAITS = pytest.mark.slow("waits between attempts")
OTHERS = {
    "nothing": (lambda store: None, [[0, 0], [1, 1], [2, 2]]),
    # their rows hide those that come back, as these are older
    "append": pytest.param(
        lambda store: api.append_to_cube({"extra": frame(x=[1, 7], p=[0, 0], w=[5, 6])}, CUBE, store),
        [[0, 0], [1, 5], [2, 2], [7, 6]],
        marks=WAITS,
    ),
    # they abort the operation, and replace the partitions of the state before it
    "replace": pytest.param(
        lambda store: api.update_cube(
            {"extra": EXTRA.iloc[:2].assign(w=9)}, CUBE, store, api.C("p") == 0, ["extra"]
        ),
        [[0, 9], [1, 9], [2, 2]],
        marks=WAITS,
    ),
}


@pytest.mark.parametrize("write, expected", OTHERS.values(), ids=OTHERS)
def test_a_refused_update_is_undone(store, write, expected):
    refused_update(store, lambda: write(Same.of(store)))
    assert rows(store, "x", "w")[: len(expected)] == expected
    assert rows(store, "x", "v") == [[0, 0], [1, 1], [2, 2], [7, 7]]
    assert api.verify_cube(CUBE, Same.of(store)).ok


@pytest.mark.parametrize("method", ["get", "iter_keys", "put"])
def test_a_request_that_is_lost_after_the_last_header(method):
    """The outcome is known: the operation must not fail."""
    losing = FaultyStore(store := memory())
    lose = lambda: losing.fail(method, error=OSError("one lost request"))  # noqa: E731
    losing.fail("put", key=f"cube++seed{HEADER}", after=True, error=lose)
    api.build_cube({"seed": SEED, "extra": EXTRA}, CUBE, Same.of(losing))
    assert [fault.method for fault in losing.happened] == ["put", method]
    assert len(rows(store, "x", "v", "w")) == 3


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_copy_is_of_one_state_of_the_source(store, overwrite):
    """Whatever is committed to the source while files are copied."""
    target = memory()
    if overwrite:
        api.build_cube(SEED, CUBE, Same.of(target))

    def act():
        api.append_to_cube(frame(x=[7], p=[0], v=[7]), CUBE, Same.of(store))
        api.append_to_cube({"extra": frame(x=[7], p=[0], w=[7])}, CUBE, Same.of(store))

    slow = FaultyStore(target)
    slow.fail("put", key="cube++extra/table/p=", error=act)
    api.copy_cube(CUBE, Same.of(store), Same.of(slow), overwrite)
    assert api.verify_cube(CUBE, Same.of(target)).ok
    assert rows(target, "x", "w")[:3] == [[0, 0], [1, 1], [2, 2]]


def test_a_copy_does_not_replace_what_was_built_meanwhile(store):
    target = memory()
    slow = FaultyStore(target)
    # the last request before the header is put
    slow.fail("iter_keys", key="cube++seed/", error=lambda: api.build_cube(SEED.assign(v=9), CUBE, target))
    with pytest.raises(RuntimeError, match="exists"):
        api.copy_cube(CUBE, Same.of(store), Same.of(slow), datasets=["seed"])
    assert rows(target, "v") == [[9], [9], [9]]
    assert api.verify_cube(CUBE, Same.of(target)).ok


def test_a_build_that_fails_at_its_last_header_is_undone_as_a_whole(caplog):
    refused = PermissionError("refused")
    failing = FaultyStore(store := memory()).fail("put", key=f"cube++seed{HEADER}", error=refused)
    with pytest.raises(PermissionError):
        api.build_cube({"seed": SEED, "extra": EXTRA}, CUBE, Same.of(failing))
    assert not [key for key in store.keys() if HEADER in key]
    assert not caplog.messages
