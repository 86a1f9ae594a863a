"""What every driver of stores has to do, whatever is behind it; subclasses name the store."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kartothek_cube.core.store import BlobStore, PreconditionFailed, open_blobs

BAD_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/.",
    "./a",
    "a/../b",
    "../a",
    "a\0b",
    "a\n",
    "ä",
    "a*",
    "a:b",
]


class StoreContract:
    """Subclasses give ``store``, a user's store, and the back door that reads and writes behind our back."""

    #: class of the driver that has to be chosen
    driver: type[BlobStore]
    can_swap: bool
    #: do listings tell size and time?
    tells_details: bool

    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        raise NotImplementedError("subclasses give the store")

    def look(self, store: Any, key: str) -> bytes:
        return store.get(key)

    def plant(self, store: Any, key: str, data: bytes) -> None:
        store.put(key, data)

    @pytest.fixture
    def blobs(self, store: Any) -> BlobStore:
        return open_blobs(store)

    # which driver

    def test_driver(self, blobs, store):
        assert type(blobs) is self.driver
        assert blobs.store is store
        assert blobs.can_swap is self.can_swap
        assert open_blobs(blobs) is blobs

    @pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_does_not_travel(self, blobs, duplicate):
        with pytest.raises(TypeError, match="pass the factory"):
            duplicate(blobs)

    # reading

    def test_reads_what_others_wrote(self, blobs, store):
        self.plant(store, "d/t/x=1/f.parquet", b"0123456789")
        assert blobs.get("d/t/x=1/f.parquet") == b"0123456789"
        assert blobs.get_with_token("d/t/x=1/f.parquet")[0] == b"0123456789"
        assert blobs.size("d/t/x=1/f.parquet") == 10
        assert blobs.exists("d/t/x=1/f.parquet")
        with blobs.open_read("d/t/x=1/f.parquet") as file:
            file.seek(-2, 2)
            assert file.read() == b"89"

    @pytest.mark.parametrize(
        "start, length, expected",
        [
            (0, 4, b"0123"),
            (3, 2, b"34"),
            (8, 5, b"89"),
            (10, 1, b""),
            (20, 1, b""),
            (3, 0, b""),
            (0, 10, b"0123456789"),
        ],
    )
    def test_range(self, blobs, store, start, length, expected):
        self.plant(store, "f", b"0123456789")
        assert blobs.get_range("f", start, length) == expected

    @pytest.mark.parametrize("ranges", [[], [(3, 2)], [(0, 1), (4, 3), (9, 1)], [(8, 2), (0, 10), (5, 1)]])
    def test_several_ranges(self, blobs, store, ranges):
        self.plant(store, "f", b"0123456789")
        found = [bytes(part) for part in blobs.get_ranges("f", ranges)]
        assert found == [b"0123456789"[start : start + length] for start, length in ranges]

    @pytest.mark.parametrize("data", [b"", b"1", b"0123456789"])
    @pytest.mark.parametrize("length", [1, 4, 10, 100])
    def test_tail(self, blobs, store, data, length):
        self.plant(store, "f", data)
        assert blobs.get_tail("f", length) == (data[-length:], len(data))

    @pytest.mark.parametrize("start, length", [(-1, 1), (0, -1)])
    def test_negative_range(self, blobs, store, start, length):
        self.plant(store, "f", b"0123456789")
        with pytest.raises(ValueError, match="cannot read"):
            blobs.get_range("f", start, length)

    @pytest.mark.parametrize("key", ["f", "d/f", "d/t/f", "x/f/y"])
    @pytest.mark.parametrize(
        "read",
        [
            lambda blobs, key: blobs.get(key),
            lambda blobs, key: blobs.get_with_token(key),
            lambda blobs, key: blobs.get_range(key, 0, 1),
            lambda blobs, key: blobs.get_range(key, 0, 0),
            lambda blobs, key: blobs.get_ranges(key, [(0, 1), (5, 1)]),
            lambda blobs, key: blobs.get_tail(key, 1),
            lambda blobs, key: blobs.size(key),
            lambda blobs, key: blobs.open_read(key),
        ],
        ids=[
            "get",
            "get_with_token",
            "get_range",
            "get_nothing",
            "get_ranges",
            "get_tail",
            "size",
            "open_read",
        ],
    )
    def test_missing(self, blobs, store, read, key):
        self.plant(store, "d/t/g", b"1")
        self.plant(store, "x/f", b"1")
        with pytest.raises(KeyError, match=key):
            read(blobs, key)
        assert not blobs.exists(key)

    # writing

    @pytest.mark.parametrize("durable", [False, True])
    @pytest.mark.parametrize("data", [b"", b"new", b"x" * 3_000_000], ids=["empty", "small", "large"])
    @pytest.mark.parametrize("key", ["f", "d/t/f.parquet"])
    def test_put(self, blobs, store, key, data, durable):
        self.plant(store, key, b"something longer than new")
        blobs.put(key, data, durable=durable)
        assert self.look(store, key) == data
        assert [blob.key for blob in blobs.list("")] == [key]

    @pytest.mark.parametrize(
        "data",
        [bytearray(b"new"), memoryview(b"xnewx")[1:4], pa.py_buffer(b"new")],
        ids=lambda d: type(d).__name__,
    )
    def test_put_other_buffers(self, blobs, store, data):
        blobs.put("a", data)
        token = blobs.put_if("b", data, None)
        assert self.look(store, "a") == self.look(store, "b") == b"new"
        assert blobs.get_with_token("b") == (b"new", token)

    @pytest.mark.parametrize("durable", [False, True])
    def test_open_write(self, blobs, store, durable):
        with blobs.open_write("d/t/f.parquet", durable=durable) as sink:
            self.write(sink, b"new")
            assert not blobs.exists("d/t/f.parquet")
        assert self.look(store, "d/t/f.parquet") == b"new"
        assert [blob.key for blob in blobs.list("")] == ["d/t/f.parquet"]

    @pytest.mark.parametrize("before", [None, b"old"])
    def test_open_write_that_fails_changes_nothing(self, blobs, store, before):
        if before is not None:
            self.plant(store, "d/f", before)
        with pytest.raises(KeyboardInterrupt), blobs.open_write("d/f") as sink:
            self.write(sink, b"half")
            raise KeyboardInterrupt
        assert [blob.key for blob in blobs.list("")] == ([] if before is None else ["d/f"])
        assert before is None or self.look(store, "d/f") == before

    def write(self, sink: Any, data: bytes) -> None:
        if isinstance(sink, str):
            Path(sink).write_bytes(data)
        else:
            sink.write(data)

    # swapping

    @pytest.mark.parametrize("key", ["f", "d/f"])
    def test_swap(self, blobs, store, key):
        first = blobs.put_if(key, b"1", None)
        assert blobs.get_with_token(key) == (b"1", first)
        second = blobs.put_if(key, b"2", first)
        assert first != second
        assert self.look(store, key) == b"2"
        blobs.delete_if(key, second)
        assert not blobs.exists(key)
        blobs.put_if(key, b"3", None)
        assert self.look(store, key) == b"3"

    @pytest.mark.parametrize(
        "interfere",
        [
            lambda self, store, blobs: self.plant(store, "f", b"xx"),
            lambda self, store, blobs: blobs.put("f", b"x"),
            lambda self, store, blobs: blobs.put_if("f", b"x", blobs.get_with_token("f")[1]),
            lambda self, store, blobs: blobs.delete(["f"]),
        ],
        ids=["written by others", "put", "swapped", "deleted"],
    )
    def test_stale_token(self, blobs, store, interfere):
        token = blobs.put_if("f", b"1", None)
        interfere(self, store, blobs)
        there = blobs.exists("f") and self.look(store, "f")
        with pytest.raises(PreconditionFailed, match="'f' was"):
            blobs.put_if("f", b"2", token)
        with pytest.raises(PreconditionFailed):
            blobs.delete_if("f", token)
        assert (blobs.exists("f") and self.look(store, "f")) == there

    def test_create_only_once(self, blobs, store):
        self.plant(store, "f", b"1")
        with pytest.raises(PreconditionFailed):
            blobs.put_if("f", b"2", None)
        assert self.look(store, "f") == b"1"

    @pytest.mark.parametrize("there", [False, True])
    def test_delete_if_needs_a_version(self, blobs, store, there):
        if there:
            self.plant(store, "f", b"1")
        with pytest.raises(PreconditionFailed):
            blobs.delete_if("f", None)
        assert blobs.exists("f") is there

    # deleting

    def test_delete(self, blobs, store):
        for key in ("f", "d/f", "d/g", "d.f", "e/t/f"):
            self.plant(store, key, b"1")
        blobs.delete(iter(["f", "d/f", "e/t/f", "missing", "d/missing", "d/f/missing", "f"]))
        assert [blob.key for blob in blobs.list("")] == ["d.f", "d/g"]

    def test_delete_wants_several_keys(self, blobs, store):
        self.plant(store, "f", b"1")
        with pytest.raises(TypeError, match="'f'"):
            blobs.delete("f")
        assert blobs.exists("f")

    def test_delete_checks_all_keys_first(self, blobs, store):
        self.plant(store, "f", b"1")
        with pytest.raises(ValueError, match="illegal key"):
            blobs.delete(["f", "../f"])
        assert blobs.exists("f")

    # listing

    KEYS = ("a.b", "a/b.c/d", "a/b/c", "a/bc/d/e", "ab/c", "b/c")

    @pytest.mark.parametrize(
        "prefix", ["", "a", "a/", "a/b", "a/b/", "a/bc/d/", "ab", "b/c", "x", "a/x", "a/b/c/d", "x/y/"]
    )
    def test_list(self, blobs, store, prefix):
        for key in self.KEYS:
            self.plant(store, key, b"123")
        found = blobs.list(prefix)
        assert [blob.key for blob in found] == [key for key in self.KEYS if key.startswith(prefix)]
        if self.tells_details:
            assert all(blob.size == 3 and 0 <= time.time() + 1 - blob.mtime < 60 for blob in found)
        else:
            assert all(blob.size is blob.mtime is None for blob in found)

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
    def test_list_dir(self, blobs, store, prefix, expected):
        for key in self.KEYS:
            self.plant(store, key, b"123")
        assert blobs.list_dir(prefix) == expected

    def test_list_empty_store(self, blobs):
        assert blobs.list("") == blobs.list("d/") == blobs.list_dir("") == blobs.list_dir("d/") == []

    @pytest.mark.parametrize("prefix", ["/", "../", "a//", "a/../", "./", "a\0"])
    @pytest.mark.parametrize("method", ["list", "list_dir"])
    def test_illegal_prefix(self, blobs, method, prefix):
        with pytest.raises(ValueError, match="illegal prefix"):
            getattr(blobs, method)(prefix)

    # keys

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_illegal_key(self, blobs, key):
        calls = [
            lambda: blobs.get(key),
            lambda: blobs.get_with_token(key),
            lambda: blobs.get_range(key, 0, 1),
            lambda: blobs.get_ranges(key, [(0, 1)]),
            lambda: blobs.get_tail(key, 1),
            lambda: blobs.size(key),
            lambda: blobs.exists(key),
            lambda: blobs.open_read(key),
            lambda: blobs.local_path(key),
            lambda: blobs.put(key, b""),
            lambda: blobs.put(key, b"", durable=True),
            lambda: blobs.put_if(key, b"", None),
            lambda: blobs.delete_if(key, None),
            lambda: blobs.delete([key]),
            lambda: blobs.open_write(key).__enter__(),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="illegal key"):
                call()


class SwapContract(StoreContract):
    """What drivers that can compare and swap have to do, too."""

    can_swap = True

    def test_threads_lose_no_update(self, blobs, store):
        blobs.put("counter", b"0")
        with ThreadPoolExecutor(4) as pool:
            # each one with a driver of its own, as in separate operations
            list(pool.map(lambda _: count_up(open_blobs(store), 25), range(4)))
        assert blobs.get("counter") == b"100"

    def test_threads_create_once(self, blobs, store):
        barrier = threading.Barrier(4)

        def create(number: int) -> int:
            barrier.wait()
            try:
                blobs.put_if("d/f", b"%d" % number, None)
            except PreconditionFailed:
                return 0
            return 1

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(create, range(4))) == 1


def count_up(blobs: BlobStore, times: int) -> None:
    """Add 1 to a counter, so many times, whoever else does."""
    for _ in range(times):
        while True:
            value, token = blobs.get_with_token("counter")
            try:
                blobs.put_if("counter", b"%d" % (int(value) + 1), token)
            except PreconditionFailed:
                continue
            break
