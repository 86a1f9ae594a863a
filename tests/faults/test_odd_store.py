"""Stores that list what was there a while ago, or are told everything twice: datasets stay whole."""

import pytest

from kartothek_cube.core.errors import KartothekCubeError, MultiTableCommitAborted
from tests.support import crash
from tests.support.cubes import filled, memory, snapshot
from tests.support.stores import Same, WrapperStore

LISTINGS = {"keys", "iter_keys", "iter_prefixes"}


class StaleStore(WrapperStore):
    """Listings tell what was there some changes ago; everything else is as it is now."""

    def __init__(self, store, changes):
        super().__init__(store)
        self.changes, self.states = changes, [sorted(store.keys())]

    def call(self, method, *args):
        if method not in LISTINGS:
            return super().call(method, *args)
        return getattr(self._then(), method)(*args)

    def _then(self):
        now = sorted(self._dstore.keys())
        if now != self.states[-1]:
            self.states.append(now)
        return filled(dict.fromkeys(self.states[-1 - min(self.changes, len(self.states) - 1)], b""))


class RepeatingStore(WrapperStore):
    """Each request that changes something arrives twice."""

    def call(self, method, *args):
        if method in ("put", "delete"):
            super().call(method, *args)
        return super().call(method, *args)


def _prepared(operation):
    """Give stores as they are before an operation, and the rows before and after it."""
    stores = [memory(), memory()]
    place = crash.Place(*(Same.of(store) for store in stores))
    operation.before(place)
    before = [snapshot(lambda s=store: s) for store in stores]
    old = crash.contents(place)
    operation.run(place)
    return [filled(content) for content in before], old, crash.contents(place)


@pytest.mark.slow("one run per listing")
@pytest.mark.parametrize("changes", [1, 2, 5, 1000])
@pytest.mark.parametrize("name", crash.OPERATIONS)
def test_listings_of_the_past(name, changes):
    operation = crash.OPERATIONS[name]
    (store, other), old, new = _prepared(operation)
    stale = crash.Place(*(Same.of(StaleStore(s, changes)) for s in (store, other)))
    done = _is_done(operation, stale)
    healthy = crash.Place(Same.of(store), Same.of(other))
    if done and name not in ("delete", "copy"):  # of what is listed
        assert crash.contents(healthy) == new
    crash.check_old_or_new(healthy, old, new)


def _is_done(operation, place):
    try:
        operation.run(place)
    except (KartothekCubeError, MultiTableCommitAborted):
        return False
    except ValueError as error:
        if "is missing" not in str(error):  # a cube that was built a moment ago is not listed yet
            raise
        return False
    return True


@pytest.mark.parametrize("name", crash.OPERATIONS)
def test_requests_that_arrive_twice(name):
    operation = crash.OPERATIONS[name]
    (store, other), _, new = _prepared(operation)
    operation.run(crash.Place(Same.of(RepeatingStore(store)), Same.of(RepeatingStore(other))))
    healthy = crash.Place(Same.of(store), Same.of(other))
    assert crash.contents(healthy) == new
