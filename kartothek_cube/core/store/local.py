"""Driver for local directories: atomic and durable writes, compare-and-swap, no access outside."""

# ruff: noqa: D102 (the protocol documents the methods)

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache, wraps
from stat import S_ISLNK, S_ISREG
from typing import BinaryIO, ParamSpec, TypeVar
from urllib.parse import quote

from simplekv import KeyValueStore

from kartothek_cube.core.naming import name_too_long
from kartothek_cube.core.store import blob_store

# a FIFO must not block, and a symbolic link as last component is only followed after `_check_link`
_READ = os.O_RDONLY | os.O_NONBLOCK
_READ_NO_LINK = _READ | os.O_NOFOLLOW
_MAX_CHECKED_FOLDERS = 65_536
# after so many attempts, a removed temporary file is an error
_ATTEMPTS = 5
_CHUNK = 1 << 24
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
# how often a directory may be removed between its creation and that of its first file
_FOLDER_ATTEMPTS = 1000
_NAME_LENGTH = 200
# Files flushed concurrently: the file system commits its journal, and the disk empties its cache, once for
# many. 2,000 files of 20 kB take 0.5 s instead of 2 s on a fast disk, 1 s instead of 7 s on a slow one (with
# 16 threads 2 s); for few large files it makes no difference.
_FLUSHES = 64
# some file systems round times to 100 ns or 1 µs
_TICK_NS = 1_000
#: types of file systems of other machines, beside those of FUSE
_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"}
#: those that take `flock` on directories for a matter of one machine (by the source of Linux)
_LOCKED_BY_MACHINE = {"9p", "cifs", "nfs", "nfs4", "smb3"}
# errors of (mostly network) file systems that cannot lock or flush directories
_UNSUPPORTED = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _retry_if_removed(write: Callable[_P, _T]) -> Callable[_P, _T]:
    """Repeat a write whose temporary file a garbage collection without retention removed."""

    @wraps(write)
    def attempt(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for _ in range(_ATTEMPTS - 1):
            with suppress(FileNotFoundError):
                return write(*args, **kwargs)
        return write(*args, **kwargs)

    return attempt


class LocalBlobStore(blob_store.BlobStore):
    """Blobs in a local directory."""

    # Symbolic links are followed within the directory only. A version is inode, time of change and size; a
    # conditional write holds the lock (`flock`) of the directory while it compares and replaces.
    # A durable write returns when the file, its directory entry and all directories above it are on disk. No
    # file gets its final name durably, and none is deleted, before the files it depends on are on disk.
    # A store with `durable = False` (URL option `durable=false`) is never flushed.

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self._perm: int | None = store.perm
        self.root = os.path.abspath(store.root).rstrip("/")
        self._durable: bool = getattr(store, "durable", True)
        self._has_locks: bool | None = None
        # a file that vanishes while it is mapped into memory ends the process: Polars maps paths, not URLs
        self._is_on_network = is_on_network(self.root)
        self._checked_folders: set[str] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    @property
    def store(self) -> KeyValueStore:
        return self._store

    @property
    def can_swap(self) -> bool:
        # the locks of some do not hold for other machines
        return file_system(self.root) not in _LOCKED_BY_MACHINE and self._can_lock()

    def _can_lock(self) -> bool:
        if self._has_locks is None:
            try:
                self._has_locks = can_lock(self.root or "/")
            except FileNotFoundError:
                return True
        return self._has_locks

    # reading

    def get_with_token(self, key: str) -> tuple[bytes, blob_store.Token]:
        descriptor, info = self._open(key)
        try:
            # Content after token: a file changed in place meanwhile is newer than its token, so swaps fail.
            return read_all(descriptor, info.st_size), _token(info)
        finally:
            os.close(descriptor)

    @property
    def is_local(self) -> bool:
        return True

    @property
    def missing_directory(self) -> str | None:
        root = self.root or "/"
        return None if os.path.isdir(root) else root

    def size(self, key: str) -> int:
        info = self._stat(key)
        if info is None:
            raise KeyError(key)
        return info.st_size

    def open_read(self, key: str) -> BinaryIO:
        return os.fdopen(self._open(key)[0], "rb")

    def local_path(self, key: str) -> str:
        path = self._path(key)
        if os.path.islink(path):
            self._check_link(path)
        return path

    def remote_url(self, key: str) -> tuple[str, dict[str, str | int]] | None:
        return (f"file://{quote(self.local_path(key))}", {}) if self._is_on_network else None

    # writing

    @_retry_if_removed
    def put(self, key: str, data: blob_store.Data, *, durable: bool = False) -> None:
        with self._stage_file(key) as (descriptor, temporary, path):
            write_all(descriptor, data)
            self._replace_file(temporary, path, key, durable)

    @contextmanager
    def open_write(self, key: str, *, durable: bool = False) -> Iterator[str | BinaryIO]:
        with self._stage_file(key) as (_, temporary, path):
            yield temporary
            self._replace_file(temporary, path, key, durable)

    @_retry_if_removed
    def put_file(self, key: str, path: str, *, link: bool = False) -> bool:
        with self._stage_file(key) as (descriptor, temporary, final):
            is_linked = link and replace_by_link(path, temporary)
            if not is_linked:
                with open(path, "rb") as source, open(descriptor, "wb", closefd=False) as target:
                    shutil.copyfileobj(source, target, _CHUNK)
            self._replace_file(temporary, final, key, durable=False)
        return is_linked

    def flush(self, keys: Sequence[str]) -> None:
        if not self._durable:
            return
        paths, folders = [], set()
        for key in keys:
            paths.append(self._path(key))
            folder = key
            while folder:
                folder = folder.rpartition("/")[0]
                if folder in folders:
                    break
                folders.add(folder)
        sync_all(paths, [f"{self.root}/{folder}" for folder in folders])

    @_retry_if_removed
    def put_new(self, key: str, data: blob_store.Data) -> None:
        self._swap(key, data, None, durable=False)

    @_retry_if_removed
    def put_if(self, key: str, data: blob_store.Data, token: blob_store.Token | None) -> blob_store.Token:
        if not self.can_swap:
            blob_store.warn_no_swap(type(self._store))
        result = self._swap(key, data, token, durable=self._durable)
        try:
            self._sync_folders(key, created=token is None)
        except OSError as error:
            # no ordinary failure: the blob is visible, though not durable
            raise blob_store.FlushError(
                error.errno, f"{key!r} was written, but not flushed: {error}"
            ) from error
        return result

    def _swap(
        self, key: str, data: blob_store.Data, token: blob_store.Token | None, *, durable: bool
    ) -> blob_store.Token:
        with self._stage_file(key) as (descriptor, temporary, path):
            write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
            with self._hold_lock():
                current = self._stat(key)
                _compare(key, current, token)
                result = _token(set_unique_mtime(temporary, current.st_mtime_ns if current else 0))
                os.replace(temporary, path)
        return result

    def delete_if(self, key: str, token: blob_store.Token) -> None:
        if not self.can_swap:
            blob_store.warn_no_swap(type(self._store))
        path = self._path(key)
        try:
            with self._hold_lock():
                current = self._stat(key)
                if current is None:
                    raise blob_store.PreconditionFailed(key)
                _compare(key, current, token)
                os.unlink(path)
        except FileNotFoundError:
            raise blob_store.PreconditionFailed(key) from None
        if "/" not in key:
            self._sync_root()
        remove_empty(self.root, {key.rpartition("/")[0]})

    def delete(self, keys: Iterable[str]) -> None:
        keys = blob_store.check_keys(keys)
        if not keys:
            return
        for key in keys:
            if "/" not in key:
                # possibly a header: its deletion must not happen between comparison and replacement of a swap
                with suppress(FileNotFoundError, IsADirectoryError), self._hold_lock():
                    os.unlink(self._path(key))
        # These files are unreferenced because a header was replaced or deleted, possibly by another process
        # that has not flushed it yet: after a power failure, the old header would refer to deleted files.
        self._sync_root()
        folders = set()
        for key in keys:
            if "/" in key:
                with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    os.unlink(self._path(key))
                    folders.add(key.rpartition("/")[0])
        remove_empty(self.root, folders)

    # listing

    def list_dir(self, prefix: str) -> blob_store.Keys:
        folder, start = self._split_prefix(prefix)
        keys = []
        for key, entry in self._scan(folder, start):
            if entry.is_dir(follow_symlinks=False):
                keys.append(f"{key}/")
            elif entry.is_file():
                keys.append(key)
        return sorted(keys)

    def list(self, prefix: str) -> blob_store.Blobs:
        blobs = []
        pending = [self._split_prefix(prefix)]
        while pending:
            for key, entry in self._scan(*pending.pop()):
                if entry.is_dir(follow_symlinks=False):
                    pending.append((key, ""))
                # a file may be deleted during the listing
                elif entry.is_file():
                    with suppress(FileNotFoundError):
                        info = entry.stat()
                        blobs.append(blob_store.Blob(key, info.st_size, info.st_mtime))
        return sorted(blobs)

    def _split_prefix(self, prefix: str) -> tuple[str, str]:
        folder, _, start = blob_store.check_prefix(prefix).rpartition("/")
        self._check_folder(folder)
        return folder, start

    def _scan(self, folder: str, start: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield the entries of a directory whose names start with ``start`` and are legal in keys."""
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(f"{self.root}/{folder}") as entries:
            for entry in entries:
                if entry.name.startswith(start) and blob_store.is_key(entry.name):
                    yield (f"{folder}/{entry.name}" if folder else entry.name), entry

    # helpers

    def _path(self, key: str) -> str:
        folder = blob_store.check_key(key).rpartition("/")[0]
        if folder and folder not in self._checked_folders:  # not in `_check_folder`: each access comes here
            self._check_folder(folder)
        return f"{self.root}/{key}"

    def _check_folder(self, folder: str) -> None:
        """Refuse a directory that a symbolic link leads out of the store; check each one once."""
        if folder in self._checked_folders or not folder:
            return
        components = folder.split("/")
        for depth in range(1, len(components) + 1):
            above = "/".join(components[:depth])
            if above in self._checked_folders:
                continue
            path = f"{self.root}/{above}"
            try:
                mode = os.lstat(path).st_mode
            except (FileNotFoundError, NotADirectoryError):
                # no files below
                return
            if S_ISLNK(mode):
                self._check_link(path)
            if len(self._checked_folders) >= _MAX_CHECKED_FOLDERS:
                self._checked_folders.clear()
            self._checked_folders.add(above)

    def _check_link(self, path: str) -> None:
        inside = os.path.realpath(self.root or "/").rstrip("/") + "/"
        if not os.path.realpath(path).startswith(inside):
            raise PermissionError(errno.EACCES, "symbolic link leads out of the store", path)

    def _open(self, key: str) -> tuple[int, os.stat_result]:
        path = self._path(key)
        try:
            try:
                descriptor = os.open(path, _READ_NO_LINK)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EMLINK):
                    raise
                self._check_link(path)
                descriptor = os.open(path, _READ)
        except (FileNotFoundError, NotADirectoryError):
            raise KeyError(key) from None
        info = os.fstat(descriptor)
        if not S_ISREG(info.st_mode):
            os.close(descriptor)
            raise KeyError(key)
        return descriptor, info

    def _stat(self, key: str) -> os.stat_result | None:
        path = self._path(key)
        try:
            info = os.lstat(path)
            if S_ISLNK(info.st_mode):
                self._check_link(path)
                info = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return info if S_ISREG(info.st_mode) else None

    @contextmanager
    def _stage_file(self, key: str) -> Iterator[tuple[int, str, str]]:
        """Create a temporary file beside the final one, to replace it; remove it if the block raises."""
        try:
            path = self._path(key)
            descriptor, temporary = create_temporary(path, self._perm)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise name_too_long(max(key.split("/"), key=len)) from error
        try:
            yield descriptor, temporary, path
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
                remove_empty(self.root, {key.rpartition("/")[0]})
            raise
        finally:
            os.close(descriptor)

    def _replace_file(self, temporary: str, path: str, key: str, durable: bool) -> None:
        if not durable:
            os.replace(temporary, path)
            return
        if self._durable:
            sync(temporary)
        # possibly a header: its replacement must not happen between comparison and replacement of a swap
        with self._hold_lock():
            os.replace(temporary, path)
        self._sync_folders(key, created=True)

    def _sync_folders(self, key: str, *, created: bool) -> None:
        """Flush the directories from the file up to the root: any of them, and the root, may be new."""
        if not self._durable:
            return
        folder = key
        while folder:
            folder = folder.rpartition("/")[0]
            sync_folder(f"{self.root}/{folder}")
        # The root and directories above it may be new. A new root has no header, and its files are worthless
        # without one: so it is enough to flush the directories above when a header is created.
        above = self.root if created and "/" not in key else ""
        while above:
            above = above.rpartition("/")[0]
            # a directory without read permission was not created by this process
            with suppress(PermissionError):
                sync_folder(above or "/")

    def _sync_root(self) -> None:
        # a missing root: nothing was deleted
        with suppress(FileNotFoundError):
            if self._durable:
                sync_folder(self.root or "/")

    def _hold_lock(self) -> AbstractContextManager[None]:
        return hold_lock(self.root or "/") if self._can_lock() else nullcontext()


def _token(info: os.stat_result) -> blob_store.Token:
    return info.st_ino, info.st_mtime_ns, info.st_size


def _compare(key: str, current: os.stat_result | None, token: blob_store.Token | None) -> None:
    if token != (current and _token(current)):
        raise blob_store.PreconditionFailed(key)


# -- primitives of POSIX: temporary files, flock, fsync, race-free mkdir and rmdir --------------------------


def is_on_network(path: str) -> bool:
    """Whether a directory is on a file system of another machine, by the mounts of Linux."""
    kind = file_system(path)
    return kind in _NETWORK or kind.startswith("fuse.")


@lru_cache(maxsize=64)
def file_system(path: str) -> str:
    """Type of the file system of a directory; empty if the system does not know it."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return ""
    real = os.path.realpath(path) + "/"
    # the last mount at a point hides those before
    points = {point.replace("\\040", " ").rstrip("/") + "/": kind for point, kind in mounts}
    return points[max((point for point in points if real.startswith(point)), key=len, default="/")]


def create_temporary(path: str, perm: int | None) -> tuple[int, str]:
    """Create a file beside its final path, and the directory if needed; return its descriptor and path."""
    # The prefix lets garbage collections find the file; the suffix keeps it from being taken for a header.
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/{name.partition('.')[0][:_NAME_LENGTH]}.{os.urandom(16).hex()}.tmp"
    for _ in range(_FOLDER_ATTEMPTS):
        with suppress(FileNotFoundError):
            descriptor = os.open(temporary, _CREATE, 0o666)
            break
        # a concurrent deletion may remove the directory at any time, even while its parents are made
        with suppress(FileExistsError, FileNotFoundError):
            try:
                # mostly enough, and a tenth of the calls
                os.mkdir(folder)
            except FileNotFoundError:
                os.makedirs(folder)
    else:
        descriptor = os.open(temporary, _CREATE, 0o666)
    if perm is not None:
        os.fchmod(descriptor, perm)
    return descriptor, temporary


def read_all(descriptor: int, size: int) -> bytes:
    """Read up to the end in as few calls as possible: each call may switch to another thread."""
    # a short read is the end, or the system's limit per call
    content = os.read(descriptor, size + 1)
    if len(content) == size:
        return content
    chunks = [content]
    while chunks[-1]:
        chunks.append(os.read(descriptor, _CHUNK))
    return b"".join(chunks)


def write_all(descriptor: int, data: blob_store.Data) -> None:
    """Write all of the data, in as many calls as needed."""
    remaining = memoryview(data).cast("B")
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


# For the space, not the time: to adopt 1.08 GB in ten files takes 5.5 to 7.7 s of processor time with and
# without links, but these need no second 1.08 GB on the disk.
def replace_by_link(path: str, temporary: str) -> bool:
    """Replace a temporary file by a hard link to another file; False where this is impossible."""
    folder, _, name = temporary.rpartition("/")
    link = f"{folder}/{name.partition('.')[0]}.{os.urandom(16).hex()}.tmp"
    try:
        os.link(path, link)
    # another file system, no permission, too many links
    except OSError:
        return False
    os.replace(link, temporary)
    return True


def sync(path: str) -> None:
    """Flush a file to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Flush a directory to disk, if its file system supports it."""
    try:
        sync(path)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def sync_all(paths: Iterable[str], folders: Iterable[str]) -> None:
    """Flush files and directories to disk concurrently; missing ones are ignored."""
    # Not `syncfs`, though one call and five times as fast for thousands of small files: it waits for the
    # writes of all processes, does nothing on FUSE, reports errors since Linux 5.8 only, is missing on macOS.
    # It does not matter which process wrote a file: on Linux, fsync writes all of its pages, not only those
    # written through the descriptor. (NFS clients write a file to the server's disk when it is closed.)
    pending = deque([(sync, path) for path in paths] + [(sync_folder, path) for path in folders])
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                flush, path = pending.popleft()
            except IndexError:
                return
            try:
                flush(path)
            # a garbage collection deleted it: the commit checks its files after this
            except (FileNotFoundError, NotADirectoryError):
                continue
            except BaseException as error:
                errors.append(error)

    # these threads only wait for the disk; an executor takes more than twice as long for 500 files
    threads: list[threading.Thread] = []
    while len(pending) > 1 and len(threads) < _FLUSHES - 1:
        # clean directories are flushed faster than threads start: few are needed for them
        threads.append(threading.Thread(target=work))
        threads[-1].start()
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def set_unique_mtime(path: str, older: int) -> os.stat_result:
    """Set a time of change that no other version of the same blob had; return what the file has then."""
    # The kernel's timestamps advance every few milliseconds only, and inodes are reused at once: without
    # this, two versions could look alike.
    moment, step = max(time.time_ns(), older + _TICK_NS), _TICK_NS
    os.utime(path, ns=(moment, moment))
    # others have times of one or two seconds
    while (info := os.stat(path)).st_mtime_ns <= older:
        moment, step = moment + step, step * 10
        os.utime(path, ns=(moment, moment))
    return info


@contextmanager
def hold_lock(folder: str) -> Iterator[None]:
    """Hold the exclusive lock of a directory, also against other threads."""
    descriptor = os.open(folder, _DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # closing is not enough: a process forked meanwhile shares the descriptor, and so the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def can_lock(folder: str) -> bool:
    """Whether the directory's file system has locks."""
    descriptor = os.open(folder, _DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        return error.errno not in _UNSUPPORTED
    finally:
        os.close(descriptor)
    return True


def remove_empty(root: str, folders: set[str]) -> None:
    """Remove empty directories (paths relative to the root), then their empty parents, but never the root."""
    folders = folders - {""}
    while folders:
        parents = set()
        for folder in folders:
            # not empty, already removed, or in use by a writer: leave it
            with suppress(OSError):
                os.rmdir(f"{root}/{folder}")
                parents.add(folder.rpartition("/")[0])
        folders = parents - {""}
