"""The driver for directories: atomic, safe between processes, and never outside of its directory."""

import errno
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest
from simplekv.fs import FilesystemStore, WebFilesystemStore
from storefact import get_store_from_url

from kartothek_cube.core.store import NoCompareAndSwapWarning, local, open_blobs
from kartothek_cube.core.store.local import LocalBlobStore
from kartothek_cube.core.utils import ensure_store, lazy_store
from kartothek_cube.testing import CompareAndSwapContract

HEADER = "d.by-dataset-metadata.json"
TIME = "2020-01-01T01%3A01%3A01"
TEMPORARY = r"\.[0-9a-f]{32}\.tmp"


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root):
    return get_store_from_url(f"hfs://{root}?create_if_missing=true")


@pytest.fixture
def blobs(store):
    return open_blobs(store)


class TestContract(CompareAndSwapContract):
    driver = LocalBlobStore
    lists_details = True

    @pytest.fixture
    def store(self, root):
        return get_store_from_url(f"hfs://{root}?create_if_missing=true")

    def read_directly(self, store, key):
        return Path(os.path.abspath(store.root), key).read_bytes()

    def write_directly(self, store, key, data):
        path = Path(os.path.abspath(store.root), key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class TestMissingRoot(TestContract):
    """Nothing is there before the first write."""

    @pytest.fixture
    def store(self, root):
        return FilesystemStore(str(root / "new"))


class TestRelativeRoot(TestContract):
    @pytest.fixture
    def store(self, root, monkeypatch):
        root.mkdir()
        monkeypatch.chdir(root)
        return WebFilesystemStore("some/../where/", "http://localhost/")


class TestLinkedRoot(TestContract):
    @pytest.fixture
    def store(self, root, tmp_path):
        (tmp_path / "real").mkdir()
        root.symlink_to(tmp_path / "real")
        return FilesystemStore(str(root))


def test_driver_outlives_a_change_of_directory(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blobs = open_blobs(FilesystemStore("store"))
    monkeypatch.chdir("/")
    blobs.put("f", b"1")
    assert (root / "f").read_bytes() == b"1"


@pytest.mark.parametrize(
    "name, module, is_local",
    [
        ("HFilesystemStore", "minimalkv._hstores", True),
        ("HFilesystemStore", __name__, False),
        ("Special", "minimalkv._hstores", False),
    ],
)
def test_subclass_is_not_bypassed(root, name, module, is_local):
    kind = type(name, (FilesystemStore,), {"__module__": module})
    assert isinstance(open_blobs(kind(str(root))), LocalBlobStore) is is_local


def test_patched_instance_is_not_bypassed(store):
    store.get = store.get
    assert not isinstance(open_blobs(store), LocalBlobStore)


@pytest.mark.parametrize(
    "write, flushed",
    [
        (lambda blobs: blobs.put("d/t/f", b"1"), []),
        (lambda blobs: blobs.put("d/t/f", b"1", durable=True), ["file", "d/t", "d", ""]),
        (lambda blobs: blobs.put_if("d/f", b"1", None), ["file", "d", ""]),
        (lambda blobs: blobs.put_if("f", b"1", None), ["file", "", "above"]),
        (lambda blobs: blobs.put("f", b"1", durable=True), ["file", "", "above"]),
        (lambda blobs: blobs.put_if("old", b"1", blobs.get_with_token("old")[1]), ["file", ""]),
        (lambda blobs: blobs.flush(["old", "e/a/f", "e/b/f"]), ["", "e", "e/a", "e/b", *["file"] * 3]),
        (lambda blobs: blobs.flush(["e/a/f", "e/a/gone", "gone/f"]), ["", "e", "e/a", "file"]),
        (lambda blobs: blobs.flush([]), []),
        (lambda blobs: blobs.delete_if("old", blobs.get_with_token("old")[1]), [""]),
        (lambda blobs: blobs.delete(["e/a/f", "old"]), [""]),
        (lambda blobs: blobs.delete([]), []),
    ],
)
@pytest.mark.parametrize("durable", [True, False])
def test_what_is_flushed(store, root, monkeypatch, write, flushed, durable):
    seen = flushes(monkeypatch, root)
    store.durable = durable
    blobs = open_blobs(store)
    for key in ("old", "e/a/f", "e/b/f"):
        blobs.put(key, b"1")
    write(blobs)
    if "e" in flushed:
        # they are flushed at once
        seen.sort()
    if "above" in flushed:
        flushed = [*flushed[:-1], *["above"] * len(root.parents)]
    assert seen == (flushed if durable else [])


def test_files_go_when_no_header_needs_them(store, root, monkeypatch):
    """The header that no longer needs them is on disk, be it someone else who replaced or deleted it."""
    blobs = open_blobs(store)
    for key in ("a", "b", "e/a/f"):
        blobs.put(key, b"1")
    there = []
    before_flushes(monkeypatch, lambda path: there.append(sorted(blob.key for blob in blobs.list(""))))
    blobs.delete(["e/a/f", "a"])
    assert there == [["b", "e/a/f"]]


def test_errors_of_a_flush_are_raised(blobs, monkeypatch):
    keys = [f"d/{number}" for number in range(200)]
    for key in keys:
        blobs.put(key, b"1")

    def refuse(path: Path) -> None:
        if path.name == "150":
            raise OSError(errno.EIO, "no")

    before_flushes(monkeypatch, refuse)
    with pytest.raises(OSError, match="no"):
        blobs.flush(keys)


@pytest.mark.parametrize("scheme", ["fs", "hfs"])
@pytest.mark.parametrize("option, durable", [("", True), ("&durable=true", True), ("&durable=false", False)])
def test_option(root, monkeypatch, scheme, option, durable):
    url = f"{scheme}://{root}?create_if_missing=true{option}"
    seen = flushes(monkeypatch, root)
    for travelled in (url, lazy_store(url), pickle.loads(pickle.dumps(lazy_store(url)))):
        seen.clear()
        open_blobs(travelled).put("f", b"1", durable=True)
        assert bool(seen) is durable
    seen.clear()
    open_blobs(pickle.loads(pickle.dumps(ensure_store(url)))).put("f", b"1", durable=True)
    assert bool(seen) is durable


def test_wrong_option():
    with pytest.raises(ValueError, match="option 'durable' must be 'true' or 'false', got 'no'"):
        lazy_store("hfs:///data?durable=no")


def flushes(monkeypatch, root) -> list[str]:
    """What is flushed from now on: directories relative to the root, or that it is a file."""
    seen = []

    def note(path: Path) -> None:
        if path in root.parents:
            seen.append("above")
        else:
            seen.append(str(path.relative_to(root)).removeprefix(".") if path.is_dir() else "file")

    before_flushes(monkeypatch, note)
    return seen


def before_flushes(monkeypatch, action) -> None:
    """Call a function with the path of each file or directory that is about to be flushed."""
    flush = os.fsync

    def call(descriptor: int) -> None:
        action(Path(os.path.realpath(f"/proc/self/fd/{descriptor}")))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", call)


@pytest.mark.parametrize("mask, perm, mode", [(0o22, None, 0o644), (0o77, None, 0o600), (0o22, 0o640, 0o640)])
def test_permissions(root, mask, perm, mode):
    before = os.umask(mask)
    try:
        blobs = open_blobs(FilesystemStore(str(root), perm=perm))
        blobs.put("a", b"1")
        blobs.put("b", b"1", durable=True)
        blobs.put_if("c", b"1", None)
        with blobs.open_write("d") as path:
            Path(path).write_bytes(b"1")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in root.iterdir()} == {mode}


@pytest.mark.parametrize(
    "key, start",
    [
        ("d/t/x=1/0d34.parquet", "d/t/x=1/0d34"),
        (HEADER, "d"),
        (f"d/indices/x/{TIME}.000001.by-dataset-index.parquet", f"d/indices/x/{TIME}"),
        ("d/.hidden", "d/"),
        ("d/" + "x" * 250, "d/" + "x" * 200),
    ],
)
def test_name_of_temporary_file(blobs, root, key, start):
    with blobs.open_write(key) as path:
        assert re.fullmatch(re.escape(f"{root}/{start}") + TEMPORARY, path)
        Path(path).write_bytes(b"1")
        # garbage collection finds what a crash leaves
        assert [blob.key for blob in blobs.list(start)] == [path[len(str(root)) + 1 :]]
    assert [blob.key for blob in blobs.list("d")] == [key]


def test_crash_leaves_no_final_file(blobs, root):
    script = f"""
import os
from kartothek_cube.core.store import open_blobs
blobs = open_blobs("hfs://{root}")
with blobs.open_write("d/t/f.parquet") as path:
    open(path, "wb").write(b"half")
    os._exit(1)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 1
    (left,) = blobs.list("")
    assert re.fullmatch("d/t/f" + TEMPORARY, left.key)


def test_failed_write_leaves_no_directory(blobs, root):
    with pytest.raises(RuntimeError, match="no"), blobs.open_write("d/t/f"):
        raise RuntimeError("no")
    assert list(root.iterdir()) == []


def test_directory_is_no_blob(blobs, root):
    for _ in range(2):
        assert blobs.local_path("d/t/f") == str(root / "d/t/f")
        blobs.put("d/t/f", b"1")
    for key in ("d", "d/t"):
        with pytest.raises(KeyError):
            blobs.get(key)
        with pytest.raises(KeyError):
            blobs.size(key)
        assert not blobs.exists(key)
    blobs.delete(["d", "d/t"])
    assert blobs.get("d/t/f") == b"1"
    with pytest.raises(IsADirectoryError):
        blobs.put("d/t", b"1")
    assert [blob.key for blob in blobs.list("")] == ["d/t/f"]


def test_what_is_in_the_way_of_a_directory(blobs, root):
    blobs.put("d", b"1")
    (root / "link").symlink_to("nowhere")
    for key, error in (("d/f", NotADirectoryError), ("link/f", FileNotFoundError)):
        with pytest.raises(error):
            blobs.put(key, b"1")


def test_other_kinds_of_files_are_no_blobs(blobs, root):
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
        assert blobs.list("") == []
        assert blobs.list_dir("") == []
    with pytest.raises(KeyError):
        blobs.get("fifo")
    assert not blobs.exists("fifo")
    blobs.put("d/f", b"1")
    (root / "d" / "é").write_bytes(b"1")
    (root / "d" / "x:y").mkdir()
    (root / "d" / "x:y" / "f").write_bytes(b"1")
    assert [blob.key for blob in blobs.list("")] == ["d/f"]
    assert blobs.list_dir("d/") == ["d/f"]


def test_empty_directories_go(blobs, root):
    blobs.put("d/t/x=1/f", b"1")
    blobs.put("d/t/x=2/f", b"1")
    blobs.put("d/g", b"1")
    blobs.delete(["d/t/x=1/f"])
    assert not (root / "d/t/x=1").exists()
    blobs.delete(["d/t/x=2/f"])
    assert sorted(path.name for path in (root / "d").iterdir()) == ["g"]
    blobs.delete_if("d/g", blobs.get_with_token("d/g")[1])
    assert list(root.iterdir()) == []


def test_put_into_directories_that_others_remove(store):
    def work(name: str) -> None:
        blobs = open_blobs(store)
        for _ in range(200):
            blobs.put(f"d/t/{name}", b"1")
            assert blobs.get(f"d/t/{name}") == b"1"
            blobs.delete([f"d/t/{name}"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    assert open_blobs(store).list("") == []


def test_listing_while_files_come_and_go(blobs):
    blobs.put("d/t/stay", b"1")

    def churn() -> None:
        blobs.put("d/t/x/f", b"1")
        blobs.delete(["d/t/x/f"])

    with repeated(churn):
        for _ in range(200):
            assert "d/t/stay" in [blob.key for blob in blobs.list("d/")]
            assert "d/t/stay" in blobs.list_dir("d/t/")


@contextmanager
def repeated(work):
    """Do something again and again, in another thread, as long as the block runs."""
    done = threading.Event()

    def repeat() -> None:
        while not done.is_set():
            work()

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(repeat)
        try:
            yield
        finally:
            done.set()
        result.result()


def test_readers_see_whole_blobs(blobs, store):
    contents = {bytes([letter]) * 500_000 for letter in b"abc"}
    blobs.put("f", min(contents))

    def write() -> None:
        for content in contents:
            blobs.put("f", content)
            blobs.put("f", content, durable=True)

    with repeated(write):
        for _ in range(200):
            assert blobs.get("f") in contents
            assert store.get("f") in contents


def test_versions_differ_at_the_same_size_or_time(blobs, root):
    token = None
    seen = set()
    for number in range(300):
        token = blobs.put_if("f", b"%03d" % number, token)
        seen.add(token[1:])  # the inode is used again
    assert len(seen) == 300
    blobs.put("f", b"1")
    future = time.time_ns() + 10**12
    os.utime(root / "f", ns=(future, future))
    token = blobs.get_with_token("f")[1]
    assert blobs.put_if("f", b"2", token)[1] > future


def test_lock_dies_with_its_holder(blobs, root):
    """A process forked while the lock is held inherits it; the parent gives it back for both."""
    script = f"""
import os, sys, time
from kartothek_cube.core.store import local
with local.hold_lock("{root}"):
    child = os.fork()
    if not child:
        time.sleep(60)
print(child, flush=True)
"""
    # -W: the fork is on purpose
    command = [sys.executable, "-W", "ignore", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        try:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(blobs.put_if, "f", b"1", None).result(timeout=20)
        finally:
            os.kill(child, 9)


@pytest.mark.parametrize(
    "change, waits",
    [
        (lambda blobs: blobs.put_if("f", b"2", blobs.get_with_token("f")[1]), True),
        (lambda blobs: blobs.delete_if("f", blobs.get_with_token("f")[1]), True),
        (lambda blobs: blobs.put("f", b"2", durable=True), True),
        (lambda blobs: blobs.delete(["f"]), True),
        (lambda blobs: blobs.put("d/f", b"2"), False),
        (lambda blobs: blobs.delete(["d/f"]), False),
        (lambda blobs: blobs.get("f"), False),
        (lambda blobs: blobs.list(""), False),
    ],
)
def test_what_waits_for_a_swap_by_others(blobs, root, change, waits):
    for key in ("f", "d/f"):
        blobs.put(key, b"1")
    thread = threading.Thread(target=change, args=(blobs,))
    with local.hold_lock(str(root)):
        thread.start()
        thread.join(timeout=0.05 if waits else 10)
        assert thread.is_alive() is waits
        assert not waits or blobs.get("f") == b"1"
    thread.join(timeout=10)
    assert not thread.is_alive()


@pytest.mark.parametrize("code, raises", [(errno.EINVAL, False), (errno.EIO, True)])
def test_directories_that_cannot_be_flushed(blobs, monkeypatch, code, raises):
    def refuse(path: Path) -> None:
        if path.is_dir():
            raise OSError(code, "no")

    before_flushes(monkeypatch, refuse)
    with pytest.raises(OSError, match="no") if raises else nullcontext():
        blobs.put("d/f", b"1", durable=True)


def test_file_system_without_locks(store, root, monkeypatch):
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("kartothek_cube.core.store.local.fcntl.flock", refuse)
    monkeypatch.setattr("kartothek_cube.core.store.blob_store._WARNED", set())
    blobs = open_blobs(store)
    assert not blobs.can_swap
    with pytest.warns(NoCompareAndSwapWarning, match="HFilesystemStore"):
        token = blobs.put_if("f", b"1", None)
    blobs.put("f", b"2", durable=True)
    blobs.delete(["f"])
    assert blobs.put_if("f", b"3", None) != token


@pytest.fixture
def outside(tmp_path) -> Path:
    folder = tmp_path / "store2"  # its name starts like that of the store
    folder.mkdir()
    (folder / "f").write_bytes(b"secret")
    return folder


def call(blobs, key, name):
    return getattr(blobs, name)(key)


READS = ("get", "get_with_token", "size", "exists", "open_read", "local_path")
ACCESSES = {
    **{name: partial(call, name=name) for name in (*READS, "list", "list_dir")},
    "put": lambda blobs, key: blobs.put(key, b"1"),
    "put_if": lambda blobs, key: blobs.put_if(key, b"1", None),
    "open_write": lambda blobs, key: blobs.open_write(key).__enter__(),
    "delete": lambda blobs, key: blobs.delete([key]),
    "delete_if": lambda blobs, key: blobs.delete_if(key, ()),
}


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("target", ["{outside}", "../store2", "a/b"])
def test_directory_behind_a_link_is_refused(blobs, root, outside, access, target):
    (root / "a").mkdir()
    (root / "a/b").symlink_to("../../store2")
    (root / "d").symlink_to(target.format(outside=outside))
    for _ in range(2):
        with pytest.raises(PermissionError, match="out of the store"):
            ACCESSES[access](blobs, "d/f")
    assert [path.name for path in outside.iterdir()] == ["f"]
    assert (outside / "f").read_bytes() == b"secret"


@pytest.mark.parametrize("access", READS)
def test_file_behind_a_link_is_refused(blobs, root, outside, access):
    (root / "f").symlink_to(outside / "f")
    with pytest.raises(PermissionError, match="out of the store"):
        ACCESSES[access](blobs, "f")


def test_link_is_replaced_or_removed_but_not_its_target(blobs, root, outside):
    for name in "abc":
        (root / name).symlink_to(outside / "f")
    blobs.put("a", b"1")
    with blobs.open_write("b") as path:
        Path(path).write_bytes(b"1")
    blobs.delete(["c"])
    assert blobs.get("a") == blobs.get("b") == b"1"
    assert sorted(path.name for path in root.iterdir()) == ["a", "b"]
    assert (outside / "f").read_bytes() == b"secret"


def test_links_within_the_store_are_followed(blobs, root):
    blobs.put("real/f", b"1")
    (root / "d").symlink_to("real")
    (root / "g").symlink_to("real/f")
    assert blobs.get("d/f") == blobs.get("g") == b"1"
    assert blobs.exists("d/f")
    assert blobs.size("g") == 1
    token = blobs.get_with_token("g")[1]
    assert blobs.put_if("g", b"22", token) == blobs.get_with_token("g")[1]
    blobs.put("d/h", b"1")
    assert (root / "real/h").exists()


def test_listing_does_not_follow_links(blobs, root, outside):
    blobs.put("d/f", b"123")
    (root / "d/loop").symlink_to("..")
    (root / "d/out").symlink_to(outside)
    (root / "d/broken").symlink_to("nowhere")
    (root / "d/file").symlink_to("f")
    assert [(blob.key, blob.size) for blob in blobs.list("")] == [("d/f", 3), ("d/file", 3)]
    assert blobs.list_dir("d/") == ["d/f", "d/file"]


def test_broken_links_are_missing(blobs, root):
    (root / "f").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    with pytest.raises(KeyError):
        blobs.get("f")
    assert not blobs.exists("f")
    with pytest.raises(OSError, match=r"[Ss]ymbolic"):
        blobs.get("loop")
    blobs.put_if("f", b"1", None)
    assert blobs.get("f") == b"1"


def test_many_directories(blobs, monkeypatch):
    monkeypatch.setattr("kartothek_cube.core.store.local._MAX_CHECKED_FOLDERS", 10)
    for number in range(30):
        blobs.put(f"d/{number}/f", b"1")
    assert len(blobs.list("d/")) == 30
    assert len(blobs._checked_folders) <= 12


@pytest.mark.parametrize("size", [0, 6, 7, 8, 100])
def test_all_is_read_whatever_the_size_seemed_to_be(tmp_path, size):
    (tmp_path / "a").write_bytes(b"content")
    with open(tmp_path / "a", "rb") as file:
        assert local.read_all(file.fileno(), size) == b"content"
