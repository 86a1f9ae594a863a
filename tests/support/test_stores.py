"""What the wrapper stores of the tests promise."""

import pickle

import pytest
from storefact import get_store_from_url

from tests.support.stores import (
    CountingStore,
    Died,
    FaultyStore,
    InjectedError,
    LatencyStore,
    ReadOnlyStore,
    Same,
    UnpicklableStore,
    Wrapped,
    WrapperStore,
)


@pytest.fixture
def store():
    result = get_store_from_url("hmemory://")
    result.put("d/f", b"1")
    return result


@pytest.mark.parametrize(
    "kind", [WrapperStore, CountingStore, ReadOnlyStore, FaultyStore, LatencyStore, UnpicklableStore]
)
def test_wrappers_delegate(store, kind):
    wrapper = kind(store)
    assert wrapper.get("d/f") == wrapper.open("d/f").read() == b"1"
    assert wrapper.keys() == list(wrapper.iter_keys("d/")) == list(wrapper) == ["d/f"]
    assert list(wrapper.iter_prefixes("/")) == ["d/"]
    assert "d/f" in wrapper
    assert "f" not in wrapper
    if kind is not ReadOnlyStore:
        wrapper.put("g", b"2")
        wrapper.delete("d/f")
        assert store.keys() == ["g"]


def test_counting(store):
    wrapper = CountingStore(store)
    wrapper.get("d/f")
    wrapper.put("g", b"2")
    wrapper.get("g")
    assert wrapper.counts == {"get": 2, "put": 1}
    assert wrapper.log == [("get", "d/f"), ("put", "g"), ("get", "g")]
    assert pickle.loads(pickle.dumps(wrapper)).counts == {}
    wrapper.reset()
    assert not wrapper.counts
    assert not wrapper.log


@pytest.mark.parametrize("method, args", [("put", ("g", b"2")), ("delete", ("d/f",))])
def test_read_only(store, method, args):
    with pytest.raises(PermissionError, match=method):
        getattr(ReadOnlyStore(store), method)(*args)
    assert store.keys() == ["d/f"]


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


@pytest.mark.parametrize("after, expected", [(False, b"2"), (True, b"1")])
def test_something_happens_meanwhile(store, after, expected):
    wrapper = FaultyStore(store).fail("get", after=after, error=lambda: store.put("d/f", b"2"))
    assert wrapper.get("d/f") == expected
    assert store.get("d/f") == b"2"


def test_unpicklable_and_factories(store):
    with pytest.raises(TypeError, match="must not be pickled"):
        pickle.dumps(UnpicklableStore(store))
    factory = pickle.loads(pickle.dumps(Wrapped(LatencyStore, Same.of(store), (0.0,))))
    assert factory().get("d/f") == b"1"
    assert factory().seconds == 0.0
    assert factory() is not factory()
    assert pickle.loads(pickle.dumps(Same.of(store)))() is store
