"""The driver for any simplekv store: in memory, below decorators, and around others."""

import io
import threading
import warnings

import pytest
from simplekv import KeyValueStore
from simplekv.decorator import PrefixDecorator, ReadOnlyDecorator, URLEncodeKeysDecorator
from simplekv.memory import DictStore
from storefact import get_store_from_url

from kartothek_cube.core.store import NoCompareAndSwapWarning, PreconditionFailed, open_blobs
from kartothek_cube.core.store.resolve import GenericBlobStore
from kartothek_cube.testing import CompareAndSwapContract, StoreContract
from tests.support import stores
from tests.support.cubes import memory


def directory(tmp_path, wrapper: type[KeyValueStore] = stores.WrapperStore) -> KeyValueStore:
    return wrapper(get_store_from_url(f"hfs://{tmp_path}/store?create_if_missing=true"))


def prefixed() -> KeyValueStore:
    store = memory()
    store.put("other", b"not ours")
    return PrefixDecorator("pre/", store)


class TestSwap(CompareAndSwapContract):
    driver = GenericBlobStore

    @pytest.fixture(params=[memory, prefixed, lambda: stores.CountingStore(memory())])
    def store(self, request):
        return request.param()


class TestOthers(StoreContract):
    driver = GenericBlobStore

    @pytest.fixture(params=[directory, lambda _: stores.MinimalStore(), lambda _: stores.MinimalIterStore()])
    def store(self, request, tmp_path):
        return request.param(tmp_path)


def test_deletion_of_a_key_that_another_process_deleted():
    class Slow(stores.MinimalStore):
        def delete(self, key):
            del self.content[key]
            super().delete(key)

    store = Slow()
    store.put("f", b"1")
    with pytest.warns(NoCompareAndSwapWarning), pytest.raises(PreconditionFailed):
        open_blobs(store).delete_if("f", b"1")


def test_stores_of_one_dictionary_swap_with_each_other():
    first = memory()
    first.put("f", b"1")
    second = type(first)(first.d)
    assert first is not second
    token = open_blobs(first).get_with_token("f")[1]
    open_blobs(second).put_if("f", b"2", token)
    with pytest.raises(PreconditionFailed):
        open_blobs(first).put_if("f", b"3", token)


def test_wrappers_see_every_call():
    store = stores.CountingStore(memory())
    blobs = open_blobs(store)
    token = blobs.put_if("d/f", b"1", None)
    blobs.put("d/g", b"1")
    blobs.get("d/f")
    blobs.size("d/f")
    assert blobs.exists("d/f")
    blobs.list("d/")
    blobs.list_dir("d/")
    blobs.delete(["d/g"])
    blobs.delete_if("d/f", token)
    once = dict.fromkeys(("open", "__contains__", "iter_keys", "iter_prefixes"), 1)
    assert store.counts == {"get": 3, "put": 2, "delete": 2, **once}


def test_reading_needs_no_write():
    store = memory()
    store.put("d/f", b"1")
    blobs = open_blobs(stores.ReadOnlyStore(store))
    assert blobs.get_with_token("d/f")[0] == b"1"
    assert blobs.list_dir("d/") == ["d/f"]
    with pytest.raises(PermissionError):
        blobs.put("d/f", b"2")


@pytest.mark.parametrize("prefix, expected", [("", ["d/", "e"]), ("d/", ["d/f", "d/g/"]), ("e", ["e"])])
def test_store_without_prefixes(prefix, expected):
    store = memory()
    for key in ("d/f", "d/g/h", "d/g/i", "e"):
        store.put(key, b"1")
    assert open_blobs(ReadOnlyDecorator(store)).list_dir(prefix) == expected


def test_keys_and_methods_that_a_store_does_not_have():
    with pytest.raises(io.UnsupportedOperation, match="ReadOnlyDecorator has no method 'put'"):
        open_blobs(ReadOnlyDecorator(memory())).put("f", b"1")
    with pytest.raises(ValueError, match="d/f"):
        open_blobs(DictStore()).put("d/f", b"1")
    blobs = open_blobs(URLEncodeKeysDecorator(DictStore()))
    blobs.put("d/f", b"1")
    assert blobs.get("d/f") == b"1"

    class OnlyForFiles:
        def get(self, key):
            return b"1"

        def open(self, key):
            return io.BytesIO(b"1")

    with pytest.raises(io.UnsupportedOperation, match="OnlyForFiles has no method '__contains__'"):
        open_blobs(OnlyForFiles()).exists("f")


def test_files_with_illegal_names_are_no_blobs():
    store = memory()
    store.d.update({"d/f": b"1", "d/../f": b"1", "d//f": b"1", "d/é": b"1"})
    blobs = open_blobs(store)
    assert [blob.key for blob in blobs.list("d")] == ["d/f"]
    assert blobs.list_dir("d/") == ["d/f"]


def test_prefix_that_the_store_ignores():
    class Careless(stores.WrapperStore):
        def iter_keys(self, prefix=""):
            return super().iter_keys()

        def iter_prefixes(self, delimiter, prefix=""):
            return super().iter_prefixes(delimiter)

    store = memory()
    store.put("d", b"1")
    store.put("e", b"1")
    blobs = open_blobs(Careless(store))
    assert [blob.key for blob in blobs.list("e")] == blobs.list_dir("e") == ["e"]


class Stream(io.RawIOBase):
    """A file as it comes over a network: to be read once, from the start."""

    def __init__(self, data: bytes) -> None:
        self._rest = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._rest.read(size)


class Bare:
    """As `Stream`, and not even a file by type."""

    def __init__(self, data: bytes) -> None:
        self.read = io.BytesIO(data).read

    def close(self) -> None: ...


@pytest.mark.parametrize("kind", [Stream, Bare])
def test_streams_that_cannot_seek(kind):
    class Streaming(stores.WrapperStore):
        def open(self, key):
            return kind(self.get(key))

    store = Streaming(memory())
    store.put("f", b"0123456789")
    blobs = open_blobs(store)
    assert blobs.size("f") == 10
    with blobs.open_read("f") as file:
        assert file.seek(-1, 2) == 9


def test_dictionary_that_changes_while_it_is_listed():
    store = memory()
    store.put("d/f", b"1")

    class Changing(type(store)):
        def iter_keys(self, prefix=""):
            for number, key in enumerate(super().iter_keys(prefix)):
                yield key
                if number == 0 and len(self.d) < 5:
                    self.d[f"d/{len(self.d)}"] = b"1"

    assert len(open_blobs(Changing(store.d)).list("d/")) == 5


def test_other_errors_of_listing_surface():
    store = stores.FaultyStore(memory()).fail("iter_keys", error=stores.InjectedError("no network"))
    with pytest.raises(stores.InjectedError, match="no network"):
        open_blobs(store).list("d/")


class TestNoSwap:
    @pytest.fixture
    def store(self, tmp_path):
        # a class of its own: the warning comes once per class
        class Other(stores.WrapperStore):
            pass

        return directory(tmp_path, Other)

    def test_warns_once_per_class(self, store):
        with pytest.warns(NoCompareAndSwapWarning, match="Other cannot compare and swap"):
            token = open_blobs(store).put_if("f", b"1", None)
        token = open_blobs(store).put_if("f", b"2", token)
        open_blobs(store).delete_if("f", token)

    def test_warning_as_error_comes_before_the_write(self, store):
        with warnings.catch_warnings(), pytest.raises(NoCompareAndSwapWarning):
            warnings.simplefilter("error")
            open_blobs(store).put_if("f", b"1", None)
        assert "f" not in store

    def test_reading_does_not_warn(self, store):
        store.put("f", b"1")
        assert open_blobs(store).get_with_token("f")[0] == b"1"


@pytest.mark.parametrize(
    "change, waits",
    [
        (lambda blobs: blobs.put("f", b"3", durable=True), True),
        (lambda blobs: blobs.delete(["f"]), True),
        (lambda blobs: blobs.put("d/f", b"3"), False),
        (lambda blobs: blobs.get("f"), False),
    ],
)
def test_what_waits_for_a_swap_by_others(change, waits):
    store = stores.FaultyStore(memory())
    blobs = open_blobs(store)
    token = blobs.put_if("f", b"1", None)
    thread = threading.Thread(target=change, args=(blobs,))

    def interfere() -> None:
        thread.start()
        thread.join(timeout=0.05 if waits else 10)
        assert thread.is_alive() is waits

    store.fail("put", error=interfere)
    blobs.put_if("f", b"2", token)
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert len(store.happened) == 1
