"""What the wrapper stores of the tests promise."""

import pytest
from storefact import get_store_from_url

from tests.support.stores import Died, FaultyStore


@pytest.fixture
def store():
    result = get_store_from_url("hmemory://")
    result.put("d/f", b"1")
    return result


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
