"""What the wrapper stores of the tests promise."""

import pytest
from storefact import get_store_from_url

from tests.support.stores import Died, FaultyStore, InjectedError


@pytest.fixture
def store():
    result = get_store_from_url("hmemory://")
    result.put("d/f", b"1")
    return result


def test_faults(store):
    wrapper = FaultyStore(store).fail("put", at=2)
    wrapper.put("a", b"")
    wrapper.get("a")
    with pytest.raises(InjectedError):
        wrapper.put("b", b"")
    wrapper.put("b", b"")
    assert [fault.method for fault in wrapper.happened] == ["put"]
    wrapper = FaultyStore(store).fail("put", key="metadata", after=True, error=TimeoutError("lost"))
    wrapper.put("a", b"")
    with pytest.raises(TimeoutError, match="lost"):
        wrapper.put("b.metadata", b"")
    assert "b.metadata" in store
    wrapper = FaultyStore(store).fail("get").fail("get", error=KeyError("d/f"))
    with pytest.raises(InjectedError):
        wrapper.get("d/f")
    with pytest.raises(KeyError):
        wrapper.get("d/f")
    assert wrapper.get("d/f") == b"1"


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_died_sends_no_more_requests(store, after):
    wrapper = FaultyStore(store).die("put", at=2, key="metadata", after=after)
    wrapper.put("a.metadata", b"")
    wrapper.put("b", b"")
    for method, *arguments in (("put", "c.metadata", b""), ("put", "d", b""), ("get", "b"), ("delete", "b")):
        with pytest.raises(Died):
            getattr(wrapper, method)(*arguments)
    assert len(wrapper.happened) == 1
    assert sorted(store.keys()) == ["a.metadata", "b", *["c.metadata"] * after, "d/f"]
