"""Files and directories under concurrent hands: temporary names, creation, locks, flushing to disk."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from kartothek_cube.core.store.base import Data

__all__ = (
    "can_lock",
    "create_temporary",
    "locked",
    "read_all",
    "remove_empty",
    "set_unique_mtime",
    "sync",
    "sync_all",
    "sync_folder",
    "write_all",
)

_CHUNK = 1 << 24
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
# how often a directory may vanish between its creation and its first file before we give up
_ATTEMPTS = 1000
_NAME_LENGTH = 200
# files flushed at once: the file system commits its journal, and the disk empties its cache, once for many of
# them. 2,000 files of 20 kB take 0.5 s instead of 2 s on a fast disk, 1 s instead of 7 s on a slow one (with
# 16 threads 2 s); for few large files it makes no difference.
_FLUSHES = 64
# some file systems round times to 100 ns or 1 µs
_TICK_NS = 1_000
# what file systems answer (network ones, mostly) that cannot lock or flush directories
_UNSUPPORTED = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def create_temporary(path: str, perm: int | None) -> tuple[int, str]:
    """Create a file beside its final place, and the directory if need be.

    Its name is ``<final name up to the first dot>.<32 hexadecimal digits>.tmp``: a garbage collection by
    prefix finds it, and nobody takes it for a header.

    Parameters
    ----------
    path
        Final path.
    perm
        Permissions; None: as the umask says.

    Returns
    -------
    tuple of int, str
        Descriptor (to be closed by the caller) and path.
    """
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/{name.partition('.')[0][:_NAME_LENGTH]}.{os.urandom(16).hex()}.tmp"
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            descriptor = os.open(temporary, _CREATE, 0o666)
            break
        # a deletion may remove the directory at any moment, even while its parents are made
        with suppress(FileExistsError):
            _make_folder(folder)
    else:
        descriptor = os.open(temporary, _CREATE, 0o666)
    if perm is not None:
        os.fchmod(descriptor, perm)
    return descriptor, temporary


def _make_folder(folder: str) -> None:
    """Make a directory; most often its parent is there already, and one call does it."""
    try:
        os.mkdir(folder)
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            os.makedirs(folder, exist_ok=True)


def read_all(descriptor: int, size: int) -> bytes:
    """Read from here to the end in as few calls as possible: at each of them, other threads may run first.

    Parameters
    ----------
    descriptor
        File descriptor.
    size
        How many bytes there seem to be.

    Returns
    -------
    bytes
    """
    # less than was asked for is all, or what a system gives at once
    content = os.read(descriptor, size + 1)
    if len(content) == size:
        return content
    parts = [content]
    while parts[-1]:
        parts.append(os.read(descriptor, _CHUNK))
    return b"".join(parts)


def write_all(descriptor: int, data: Data) -> None:
    """Write all of the data, however many calls it takes.

    Parameters
    ----------
    descriptor
        File descriptor.
    data
        Bytes-like object.
    """
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync(path: str) -> None:
    """Flush a file to disk.

    Parameters
    ----------
    path
        Path of a file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Flush a directory to disk, if its file system can.

    Parameters
    ----------
    path
        Path of a directory.
    """
    try:
        sync(path)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def sync_all(paths: Iterable[str], folders: Iterable[str]) -> None:
    """Flush files and directories to disk, many at once; those that are gone are ignored.

    ``syncfs`` would be one call, and five times as fast for thousands of small files. But it waits for all
    that any process has written to the file system, does nothing on FUSE, tells of errors since Linux 5.8
    only, and there is none on macOS.

    Parameters
    ----------
    paths
        Paths of files. It does not matter which process has written them: on Linux, ``fsync`` writes all that
        is in memory of a file, not only what came through the descriptor. (An NFS client sends a file to
        the server, and has it written there, when the file is closed.)
    folders
        Paths of directories.

    Raises
    ------
    OSError
        One of them could not be flushed.
    """
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
            # a collection took it: the commit looks whether its files are there after this
            except (FileNotFoundError, NotADirectoryError):
                continue
            except BaseException as error:
                errors.append(error)

    # these threads do nothing but wait for the disk
    threads = [threading.Thread(target=work) for _ in range(min(_FLUSHES, len(pending)) - 1)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def set_unique_mtime(path: str, older: int) -> None:
    """Give a file a time of change that no other version of the same blob had.

    The kernel's own time stamps advance every few milliseconds only, and inodes are used again at once: two
    versions could look alike.

    Parameters
    ----------
    path
        Path of the new version.
    older
        Time of change of the current version, in nanoseconds.
    """
    moment = max(time.time_ns(), older + _TICK_NS)
    os.utime(path, ns=(moment, moment))


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold the exclusive lock of a directory; it keeps out other threads, too.

    Parameters
    ----------
    folder
        Path of a directory.
    """
    descriptor = os.open(folder, _DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # closing is not enough: a process forked meanwhile shares the descriptor, and with it the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def can_lock(folder: str) -> bool:
    """Tell whether the directory's file system has locks; NFS has none for directories.

    Parameters
    ----------
    folder
        Path of a directory.

    Returns
    -------
    bool
    """
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
    """Remove directories that are empty, then their parents, but never the root.

    Parameters
    ----------
    root
        Path of the store.
    folders
        Paths relative to it.
    """
    folders = folders - {""}
    while folders:
        parents = set()
        for folder in folders:
            # not empty, already gone, or in the way of a writer: all the same
            with suppress(OSError):
                os.rmdir(f"{root}/{folder}")
                parents.add(folder.rpartition("/")[0])
        folders = parents - {""}
