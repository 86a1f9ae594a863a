"""The contract of stores and their drivers."""

from __future__ import annotations

import copy
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar

import pyarrow as pa
import pytest
from simplekv import KeyValueStore

from kartothek_cube.core.store import BlobStore, NoCompareAndSwapWarning, PreconditionFailed, open_blobs

#: examples of keys that every driver refuses
ILLEGAL_KEYS = ["", "/", "/a", "a/", "a//b", ".", "..", "a/.", "./a", "a/../b", "../a"]
ILLEGAL_KEYS += ["a\0b", "a\n", "ä", "a*", "a:b"]


class StoreContract:
    """Tests of a store and of its driver; subclasses override the fixture ``store``.

    Override `read_directly` and `write_directly` if the store's own methods are under test as well.

    Attributes
    ----------
    driver
        Class of the driver that serves the store; None: any.
    can_swap
        Whether the driver compares and swaps; see `CompareAndSwapContract`.
    lists_details
        Whether listings have size and modification time.

    Examples
    --------
    >>> from simplekv.decorator import PrefixDecorator
    >>> from kartothek_cube import ensure_store
    >>> class TestMyStore(StoreContract):
    ...     @pytest.fixture
    ...     def store(self, tmp_path: Path) -> KeyValueStore:
    ...         return PrefixDecorator("prefix/", ensure_store(f"hfs://{tmp_path}"))
    """

    driver: ClassVar[type[BlobStore] | None] = None
    can_swap: ClassVar[bool] = False
    lists_details: ClassVar[bool] = False

    @pytest.fixture
    def store(self, tmp_path: Path) -> KeyValueStore:
        """An empty store, new for each test."""
        raise NotImplementedError("override the fixture `store`: an empty store, new for each test")

    def read_directly(self, store: KeyValueStore, key: str) -> bytes:
        """Read a blob without the driver."""
        return bytes(store.get(key))

    def write_directly(self, store: KeyValueStore, key: str, data: bytes) -> None:
        """Write a blob without the driver, as another program would."""
        store.put(key, data)

    @pytest.fixture
    def blobs(self, store: KeyValueStore) -> BlobStore:
        """The driver of the store."""
        return open_blobs(store)

    @pytest.fixture(autouse=True)
    def _ignore_missing_swap(self) -> Iterator[None]:
        with warnings.catch_warnings():
            if not self.can_swap:
                warnings.simplefilter("ignore", NoCompareAndSwapWarning)
            yield

    # which driver

    def test_driver(self, blobs: BlobStore, store: KeyValueStore) -> None:
        assert self.driver in (None, type(blobs))
        assert blobs.store is store
        assert blobs.can_swap is self.can_swap
        assert open_blobs(blobs) is blobs

    @pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_no_copies(self, blobs: BlobStore, duplicate: Callable[[BlobStore], object]) -> None:
        with pytest.raises(TypeError, match="pass the factory"):
            duplicate(blobs)

    # reading

    def test_reads_what_others_wrote(self, blobs: BlobStore, store: KeyValueStore) -> None:
        self.write_directly(store, "d/t/x=1/f.parquet", b"0123456789")
        assert blobs.get("d/t/x=1/f.parquet") == b"0123456789"
        assert blobs.get_with_token("d/t/x=1/f.parquet")[0] == b"0123456789"
        assert blobs.size("d/t/x=1/f.parquet") == 10
        assert blobs.exists("d/t/x=1/f.parquet")
        with blobs.open_read("d/t/x=1/f.parquet") as file:
            assert file.seek(-2, 2) == 8
            assert file.read() == b"89"
            assert file.read() == b""
            file.seek(3)
            assert file.read(2) == b"34"
            file.seek(0)
            assert file.read() == b"0123456789"

    def test_open_read_of_an_empty_blob(self, blobs: BlobStore, store: KeyValueStore) -> None:
        self.write_directly(store, "f", b"")
        assert blobs.size("f") == 0
        with blobs.open_read("f") as file:
            assert file.seek(0, 2) == 0
            assert file.read() == b""

    @pytest.mark.parametrize("key", ["f", "d/f", "d/t/f", "x/f/y"])
    @pytest.mark.parametrize("read", ["get", "get_with_token", "size", "open_read"])
    def test_missing(self, blobs: BlobStore, store: KeyValueStore, read: str, key: str) -> None:
        self.write_directly(store, "d/t/g", b"1")
        self.write_directly(store, "x/f", b"1")
        with pytest.raises(KeyError, match=key):
            getattr(blobs, read)(key)
        assert not blobs.exists(key)

    # writing

    @pytest.mark.parametrize("durable", [False, True])
    @pytest.mark.parametrize("data", [b"", b"new", b"x" * 3_000_000], ids=["empty", "small", "large"])
    @pytest.mark.parametrize("key", ["f", "d/t/f.parquet"])
    def test_put(self, blobs: BlobStore, store: KeyValueStore, key: str, data: bytes, durable: bool) -> None:
        self.write_directly(store, key, b"something longer than new")
        blobs.put(key, data, durable=durable)
        assert self.read_directly(store, key) == data
        assert [blob.key for blob in blobs.list("")] == [key]

    @pytest.mark.parametrize("data", [bytearray(b"new"), memoryview(b"xnewx")[1:4], pa.py_buffer(b"new")])
    def test_put_other_buffers(
        self, blobs: BlobStore, store: KeyValueStore, data: bytearray | memoryview
    ) -> None:
        blobs.put("a", data)
        token = blobs.put_if("b", data, None)
        assert self.read_directly(store, "a") == self.read_directly(store, "b") == b"new"
        assert blobs.get_with_token("b") == (b"new", token)

    @pytest.mark.parametrize("durable", [False, True])
    def test_open_write(self, blobs: BlobStore, store: KeyValueStore, durable: bool) -> None:
        with blobs.open_write("d/t/f.parquet", durable=durable) as sink:
            _write_to(sink, b"new")
            assert not blobs.exists("d/t/f.parquet")
        assert self.read_directly(store, "d/t/f.parquet") == b"new"
        assert [blob.key for blob in blobs.list("")] == ["d/t/f.parquet"]

    @pytest.mark.parametrize("before", [None, b"old"])
    def test_open_write_that_fails_changes_nothing(
        self, blobs: BlobStore, store: KeyValueStore, before: bytes | None
    ) -> None:
        if before is not None:
            self.write_directly(store, "d/f", before)
        with pytest.raises(KeyboardInterrupt), blobs.open_write("d/f") as sink:
            _write_to(sink, b"half")
            raise KeyboardInterrupt
        assert [blob.key for blob in blobs.list("")] == ([] if before is None else ["d/f"])
        assert before is None or self.read_directly(store, "d/f") == before

    # compare and swap

    @pytest.mark.parametrize("key", ["f", "d/f"])
    def test_swap(self, blobs: BlobStore, store: KeyValueStore, key: str) -> None:
        first = blobs.put_if(key, b"1", None)
        assert blobs.get_with_token(key) == (b"1", first)
        second = blobs.put_if(key, b"2", first)
        assert first != second
        assert self.read_directly(store, key) == b"2"
        blobs.delete_if(key, second)
        assert not blobs.exists(key)
        blobs.put_new(key, b"3")
        with pytest.raises(PreconditionFailed):
            blobs.put_new(key, b"4")
        assert self.read_directly(store, key) == b"3"

    @pytest.mark.parametrize(
        "interfere",
        [
            lambda self, store, blobs: self.write_directly(store, "f", b"xx"),
            lambda self, store, blobs: blobs.put("f", b"x"),
            lambda self, store, blobs: blobs.put_if("f", b"x", blobs.get_with_token("f")[1]),
            lambda self, store, blobs: blobs.delete(["f"]),
        ],
        ids=["written by others", "put", "swapped", "deleted"],
    )
    def test_stale_token(
        self,
        blobs: BlobStore,
        store: KeyValueStore,
        interfere: Callable[[StoreContract, KeyValueStore, BlobStore], object],
    ) -> None:
        token = blobs.put_if("f", b"1", None)
        interfere(self, store, blobs)
        current = blobs.exists("f") and self.read_directly(store, "f")
        with pytest.raises(PreconditionFailed, match="'f' was"):
            blobs.put_if("f", b"2", token)
        for outdated in (token, None):
            with pytest.raises(PreconditionFailed):
                blobs.delete_if("f", outdated)
        if current:
            with pytest.raises(PreconditionFailed):
                blobs.put_if("f", b"2", None)
        assert (blobs.exists("f") and self.read_directly(store, "f")) == current

    # deleting

    def test_delete(self, blobs: BlobStore, store: KeyValueStore) -> None:
        for key in ("f", "d/f", "d/g", "d.f", "e/t/f"):
            self.write_directly(store, key, b"1")
        blobs.delete(iter(["f", "d/f", "e/t/f", "missing", "d/missing", "d/f/missing", "f"]))
        assert [blob.key for blob in blobs.list("")] == ["d.f", "d/g"]

    def test_delete_checks_all_keys_first(self, blobs: BlobStore, store: KeyValueStore) -> None:
        self.write_directly(store, "f", b"1")
        with pytest.raises(TypeError, match="'f'"):
            blobs.delete("f")
        with pytest.raises(ValueError, match="illegal key"):
            blobs.delete(["f", "../f"])
        assert blobs.exists("f")

    # listing

    KEYS = ("a.b", "a/b.c/d", "a/b/c", "a/bc/d/e", "ab/c", "b/c")

    @pytest.mark.parametrize(
        "prefix", ["", "a", "a/", "a/b", "a/b/", "a/bc/d/", "ab", "b/c", "x", "a/x", "a/b/c/d", "x/y/"]
    )
    def test_list(self, blobs: BlobStore, store: KeyValueStore, prefix: str) -> None:
        for key in self.KEYS:
            self.write_directly(store, key, b"123")
        listed = blobs.list(prefix)
        assert [blob.key for blob in listed] == [key for key in self.KEYS if key.startswith(prefix)]
        for _, size, mtime in listed:
            assert size == (3 if self.lists_details else None)
            assert (mtime is not None) is self.lists_details
            assert mtime is None or 0 <= time.time() + 1 - mtime < 60

    @pytest.mark.parametrize(
        "prefix, expected",
        [
            ("", ["a.b", "a/", "ab/", "b/"]),
            ("a", ["a.b", "a/", "ab/"]),
            ("a/", ["a/b.c/", "a/b/", "a/bc/"]),
            ("a/b.", ["a/b.c/"]),
            ("a/b/", ["a/b/c"]),
            ("b/c", ["b/c"]),
            ("x", []),
            ("a/b/c/", []),
        ],
    )
    def test_list_dir(self, blobs: BlobStore, store: KeyValueStore, prefix: str, expected: list[str]) -> None:
        for key in self.KEYS:
            self.write_directly(store, key, b"123")
        assert blobs.list_dir(prefix) == expected

    def test_list_empty_store(self, blobs: BlobStore) -> None:
        assert blobs.list("") == blobs.list("d/") == []
        assert blobs.list_dir("") == blobs.list_dir("d/") == []

    @pytest.mark.parametrize("prefix", ["/", "../", "a//", "a/../", "./", "a\0"])
    @pytest.mark.parametrize("method", ["list", "list_dir"])
    def test_illegal_prefix(self, blobs: BlobStore, method: str, prefix: str) -> None:
        with pytest.raises(ValueError, match="illegal prefix"):
            getattr(blobs, method)(prefix)

    # keys

    @pytest.mark.parametrize("key", ILLEGAL_KEYS)
    def test_illegal_key(self, blobs: BlobStore, key: str) -> None:
        for read in ("get", "get_with_token", "size", "exists", "open_read", "local_path"):
            with pytest.raises(ValueError, match="illegal key"):
                getattr(blobs, read)(key)
        writes: list[Callable[[], object]] = [
            lambda: blobs.put(key, b""),
            lambda: blobs.put(key, b"", durable=True),
            lambda: blobs.put_if(key, b"", None),
            lambda: blobs.delete_if(key, None),
            lambda: blobs.delete([key]),
            lambda: blobs.open_write(key).__enter__(),
        ]
        for write in writes:
            with pytest.raises(ValueError, match="illegal key"):
                write()


class CompareAndSwapContract(StoreContract):
    """The same for stores whose driver compares and swaps, so that no concurrent commit is lost."""

    can_swap = True

    def test_threads_lose_no_update(self, blobs: BlobStore, store: KeyValueStore) -> None:
        blobs.put("counter", b"0")
        with ThreadPoolExecutor(4) as pool:
            # one driver per thread, as in separate operations
            list(pool.map(lambda _: increment_counter(open_blobs(store), 25), range(4)))
        assert blobs.get("counter") == b"100"

    def test_threads_create_once(self, blobs: BlobStore, store: KeyValueStore) -> None:
        barrier = threading.Barrier(4)

        def create(number: int) -> int:
            barrier.wait()
            with suppress(PreconditionFailed):
                blobs.put_if("d/f", b"%d" % number, None)
                return 1
            return 0

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(create, range(4))) == 1


def increment_counter(blobs: BlobStore, times: int) -> None:
    """Add 1 to the number in the blob ``counter``, repeatedly, beside concurrent writers."""
    for _ in range(times):
        while True:
            value, token = blobs.get_with_token("counter")
            with suppress(PreconditionFailed):
                blobs.put_if("counter", b"%d" % (int(value) + 1), token)
                break


def _write_to(sink: str | BinaryIO, data: bytes) -> None:
    if isinstance(sink, str):
        Path(sink).write_bytes(data)
    else:
        sink.write(data)
