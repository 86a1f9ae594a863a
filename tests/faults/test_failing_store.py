"""Stores that fail at each call in turn: each dataset is in its old or its new state, whole."""

import pytest

from kartothek_cube.core import clock
from kartothek_cube.core.errors import ConcurrentWriteError, MultiTableCommitAborted, UnknownOutcomeError
from tests.support import crash
from tests.support.cubes import filled, snapshot
from tests.support.stores import FaultyStore, InjectedError, Same

#: a build needs more; what needs fewer does nothing
MIN_CALLS = 8


@pytest.mark.slow("one run per request")
@pytest.mark.parametrize("lost", [False, True], ids=["fails", "answer lost"])
@pytest.mark.parametrize("name", crash.OPERATIONS)
def test_each_call_fails_once(name, lost, monkeypatch):
    monkeypatch.setattr(clock, "sleep", lambda seconds: None)
    operation = crash.OPERATIONS[name]
    before, old = _run(operation.before)
    _, new = _run(operation.run, before)
    for at in range(1, 200):
        store, other = (filled(content) for content in before)
        faulty = FaultyStore(store).fail("any", at=at, after=lost)
        place = crash.Place(Same.of(faulty), Same.of(other))
        assert _error(operation, place) in (None, "injected")
        if not faulty.happened:
            assert at > MIN_CALLS
            break
        healthy = crash.Place(Same.of(store), Same.of(other))
        crash.check_old_or_new(healthy, old, new)
        for cube, factory in healthy.cubes():
            assert set(factory().keys()) == crash.tracked(cube, factory)
    else:
        pytest.fail("more calls than anybody needs")


@pytest.mark.slow("one run per request")
@pytest.mark.parametrize("name", crash.OPERATIONS)
def test_a_process_that_dies(name, monkeypatch):
    """At each request to the store to which it writes; writers that meet what it has left wait in vain."""
    monkeypatch.setattr(clock, "sleep", lambda seconds: None)
    operation = crash.OPERATIONS[name]
    before, old = _run(operation.before)
    _, new = _run(operation.run, before)
    written, read = before[::-1] if name == "copy" else before
    other = Same.of(filled(read))

    def place(store):
        return crash.Place(other, store) if name == "copy" else crash.Place(store, other)

    stores = crash.stores_after_faults(written, lambda dying: operation.run(place(dying)))
    assert len(stores) >= MIN_CALLS
    for store in stores:
        healthy = place(Same.of(store))
        crash.check_old_or_new(healthy, old, new)
        for cube, factory in healthy.cubes():
            assert set(factory().keys()) == crash.tracked(cube, factory)


def _run(run, before=({}, {})):
    """Give what is stored, and the rows of each dataset, after something ran."""
    stores = [filled(content) for content in before]
    place = crash.Place(*(Same.of(store) for store in stores))
    run(place)
    return [snapshot(lambda s=store: s) for store in stores], crash.contents(place)


def _error(operation, place):
    """Give the first reason of an error."""
    try:
        operation.run(place)
    except (InjectedError, MultiTableCommitAborted, ConcurrentWriteError, UnknownOutcomeError) as error:
        first: BaseException = error
        while first.__cause__ or first.__context__:
            first = first.__cause__ or first.__context__
        return str(first)
    return None
