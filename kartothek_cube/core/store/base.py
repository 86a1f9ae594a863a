"""The protocol that all drivers of stores fulfil, with its value types and its errors."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeAlias

from simplekv import KeyValueStore

from kartothek_cube.core.errors import MissingFileError

__all__ = (
    "Blob",
    "BlobStore",
    "Data",
    "NoCompareAndSwapWarning",
    "PreconditionFailed",
    "Token",
    "get_required",
    "warn_no_swap",
)

Data: TypeAlias = bytes | bytearray | memoryview
"""What can be put; a ``pyarrow.Buffer`` will do as well."""

Token: TypeAlias = Any
"""Version of a blob: opaque, comparable with ``==`` only, worth nothing in another process or driver."""


class Blob(NamedTuple):
    """An entry of a listing.

    Attributes
    ----------
    key
        Key of the blob.
    size
        Number of bytes; None if the store does not tell in a listing.
    mtime
        Time of the last change in seconds since 1970 (UTC); None if the store does not tell.
    """

    key: str
    size: int | None = None
    mtime: float | None = None


Blobs: TypeAlias = list[Blob]
Keys: TypeAlias = list[str]
Buffers: TypeAlias = list[Any]


class PreconditionFailed(Exception):
    """A conditional write was refused: the blob is not the one that the token stands for.

    Parameters
    ----------
    key
        Key of the blob.

    Examples
    --------
    >>> str(PreconditionFailed("sales++seed.by-dataset-metadata.json"))
    "'sales++seed.by-dataset-metadata.json' was created, changed or deleted by someone else"
    """

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"{self.key!r} was created, changed or deleted by someone else"


class FlushError(OSError):
    """A write is visible, but could not be flushed to disk: a power failure may undo it."""


class NoCompareAndSwapWarning(UserWarning):
    """A store cannot compare and swap: of two commits at the same time one may be lost."""


class BlobStore(ABC):
    """Access to the blobs of a store.

    Every method checks its keys (`kartothek_cube.core.store.keys.check_key`, ValueError); a missing key is a
    KeyError wherever something is read. Objects may be shared between threads, but do not travel to other
    processes: factories do.
    """

    @property
    @abstractmethod
    def store(self) -> KeyValueStore:
        """The user's store, for serializers that the user brings along."""

    @property
    @abstractmethod
    def can_swap(self) -> bool:
        """Whether `put_if` and `delete_if` are one step; if not, they read, compare and write, and warn."""

    @property
    def is_local(self) -> bool:
        """Whether blobs are files of this machine; otherwise accesses are requests, and overlapping pays."""
        return self.local_path("_") is not None

    @property
    def has_ranges(self) -> bool:
        """Whether a part of a blob is sent, and not all of it, if a part is asked for."""
        return False

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Read a blob.

        Raises
        ------
        KeyError
            There is no such blob.
        """

    @abstractmethod
    def get_with_token(self, key: str) -> tuple[bytes, Token]:
        """Read a blob and the version that was read, for `put_if` and `delete_if`.

        Raises
        ------
        KeyError
            There is no such blob.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read ``length`` bytes from offset ``start`` on; fewer (or none) where the blob ends before.

        Raises
        ------
        KeyError
            There is no such blob.
        ValueError
            ``start`` or ``length`` is negative.
        """

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Buffers:
        """
        Read several parts of a blob in one go: the requests overlap.

        Parameters
        ----------
        key
            Key of the blob.
        ranges
            Start and length of each part, within the blob.

        Returns
        -------
        list of bytes-like

        Raises
        ------
        KeyError
            There is no such blob.
        """
        return [self.get_range(key, start, length) for start, length in ranges]

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """
        Read the end of a blob, in one request where the store can.

        Parameters
        ----------
        key
            Key of the blob.
        length
            Number of bytes.

        Returns
        -------
        bytes, int
            The last bytes, all of them if there are not so many, and the size of the blob.

        Raises
        ------
        KeyError
            There is no such blob.
        """
        size = self.size(key)
        start = max(0, size - length)
        return self.get_range(key, start, size - start), size

    @abstractmethod
    def size(self, key: str) -> int:
        """Tell the number of bytes of a blob.

        Raises
        ------
        KeyError
            There is no such blob.
        """

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Tell whether there is a blob of that key."""

    @abstractmethod
    def open_read(self, key: str) -> BinaryIO:
        """Open a blob as a seekable file, to be closed by the caller.

        Raises
        ------
        KeyError
            There is no such blob.
        """

    @abstractmethod
    def local_path(self, key: str) -> str | None:
        """Tell where in the local file system a blob is or would be; None in other stores.

        Raises
        ------
        PermissionError
            It is a symbolic link out of the store.
        """

    @abstractmethod
    def put(self, key: str, data: Data, *, durable: bool = False) -> None:
        """Create or replace a blob; readers see the old content or the new one, whole.

        Parameters
        ----------
        key
            Key of the blob.
        data
            Its content.
        durable
            Survive a power failure from now on (headers, schemas, indices). Data files go without: a commit
            makes all of its files durable at once, by `flush`.
        """

    @abstractmethod
    def open_write(self, key: str, *, durable: bool = False) -> AbstractContextManager[str | BinaryIO]:
        """Create or replace a blob by a writer of files.

        The context is the path of a temporary file (local stores) or a binary file in memory (others). Its
        content becomes the blob when the block ends, and is thrown away when the block raises.

        Parameters
        ----------
        key
            Key of the blob.
        durable
            As in `put`.
        """

    def flush(self, keys: Sequence[str]) -> None:  # noqa: B027 (only directories have something to do)
        """Make blobs that were put without ``durable`` survive a power failure, whichever process put them.

        Other stores than local directories keep what they have acknowledged (object stores), or never survive
        their process (memory): there is nothing to do.

        Parameters
        ----------
        keys
            Keys of the blobs; missing ones are ignored.
        """

    @abstractmethod
    def put_if(self, key: str, data: Data, token: Token | None) -> Token:
        """Create or replace a blob, durably, if it is still the one that was read.

        Parameters
        ----------
        key
            Key of the blob.
        data
            Its new content.
        token
            Version that must be there, from `get_with_token` or `put_if`; None: no blob must be there.

        Returns
        -------
        Token
            Version that is there now.

        Raises
        ------
        PreconditionFailed
            Another version is there, or none; nothing was written.
        """

    @abstractmethod
    def delete_if(self, key: str, token: Token) -> None:
        """Delete a blob if it is still the one that was read; durably if it lies at the top (a header).

        Raises
        ------
        PreconditionFailed
            Another version is there, or none; nothing was deleted.
        """

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete blobs; missing ones are ignored. All keys are checked before the first one is deleted.

        Those at the top (headers) are deleted first, and durably: a header that a power failure brought back
        would refer to files that are gone.
        """

    @abstractmethod
    def list_dir(self, prefix: str) -> Keys:
        """List one level: keys that start with ``prefix``, cut after the next ``/``; sorted, each once."""

    @abstractmethod
    def list(self, prefix: str) -> Blobs:
        """List the blobs whose keys start with ``prefix``, sorted by key.

        Files whose names are no legal keys are no blobs.
        """

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} does not travel between processes: pass the factory of the store"
        )


_WARNED: set[type] = set()


def get_required(blobs: BlobStore, key: str) -> bytes:
    """
    The content of a file that the state of a dataset refers to.

    Raises
    ------
    MissingFileError
        There is no such file.
    """
    try:
        return blobs.get(key)
    except KeyError as error:
        raise MissingFileError(key) from error


def warn_no_swap(kind: type) -> None:
    """Warn, once per class of stores, that commits are not safe from each other.

    Parameters
    ----------
    kind
        Class of the user's store.
    """
    if kind in _WARNED:
        return
    _WARNED.add(kind)
    warnings.warn(
        f"{kind.__module__}.{kind.__qualname__} cannot compare and swap: if two commits to a dataset meet, "
        "one of them may be lost. Let one writer work at a time, or use a directory or an object store.",
        NoCompareAndSwapWarning,
        stacklevel=3,
    )
