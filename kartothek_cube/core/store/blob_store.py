"""The protocol of all drivers of stores, with its value types, its errors, and checks of keys."""

from __future__ import annotations

import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from simplekv import KeyValueStore
from simplekv.contrib import VALID_NON_NUM_EXTENDED

from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.naming import EXTERNAL_INDEX_SUFFIX

__all__ = ["Blob", "BlobStore", "FlushError", "NoCompareAndSwapWarning", "PreconditionFailed"]
__all__ += ["StoreFactory", "StoreFactoryInput", "StoreInput", "Token"]
__all__ += ["check_key", "check_keys", "check_owned", "check_owned_keys", "check_prefix", "get_required"]

Data: TypeAlias = bytes | bytearray | memoryview
"""Content to put; a ``pyarrow.Buffer`` is accepted as well."""

Token: TypeAlias = Any
"""Version of a blob (e.g. an ETag): opaque; only comparable by ``==`` within one process and driver."""


StoreFactory: TypeAlias = Callable[[], KeyValueStore]
"""Makes a store; the picklable form of stores."""

StoreInput: TypeAlias = str | os.PathLike[str] | KeyValueStore | StoreFactory
"""Type of the argument ``store``: a URL, a directory, a store, or a factory."""

StoreFactoryInput: TypeAlias = str | os.PathLike[str] | StoreFactory
"""Type of the argument ``store`` for dask, whose tasks open it: a URL, a directory, or a factory."""


class Blob(NamedTuple):
    """An entry of a listing.

    Attributes
    ----------
    key
        Key of the blob.
    size
        Number of bytes; None if the store's listings lack it.
    mtime
        Time of the last change in seconds since 1970 (UTC); None if the store's listings lack it.
    """

    key: str
    size: int | None = None
    mtime: float | None = None


Blobs: TypeAlias = list[Blob]
Keys: TypeAlias = list[str]


class PreconditionFailed(Exception):
    """A conditional write was refused: the blob does not have the expected version.

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
    """A store cannot compare and swap: of two concurrent commits one may be lost."""


class BlobStore(ABC):
    """Access to the blobs of a store.

    A kind of store has seven methods: `get_with_token`, `size`, `put`, `put_if`, `delete_if`, `delete` and
    `list`. The others have defaults made of these, to override where the store can do better. Functions that
    take a store also take a factory of a `BlobStore`; see `kartothek_cube.testing` for its tests.

    Every method checks its keys (`check_key`, `check_keys`, `check_prefix`, ValueError); reading a missing
    key is a KeyError. Objects may be shared between threads, but not pickled: pass their factory.
    """

    @property
    def store(self) -> KeyValueStore:
        """The user's store, for serializers that users bring along."""
        return self

    @property
    def can_swap(self) -> bool:
        """Whether `put_if` and `delete_if` are atomic; if not, they read, compare and write, and warn."""
        return True

    @property
    def is_local(self) -> bool:
        """Whether blobs are local files; otherwise accesses are requests, which should overlap."""
        return self.local_path("_") is not None

    @property
    def identity(self) -> Hashable | None:
        """Identity of this store in its process, for caches; None to cache nothing."""
        return None

    @property
    def missing_directory(self) -> str | None:
        """The directory of the store if it does not exist yet, for messages about missing data."""
        return None

    def get(self, key: str) -> bytes:
        """Read a blob.

        Raises
        ------
        KeyError
            There is no such blob.
        """
        return self.get_with_token(key)[0]

    @abstractmethod
    def get_with_token(self, key: str) -> tuple[bytes, Token]:
        """Read a blob and its version, for `put_if` and `delete_if`.

        Raises
        ------
        KeyError
            There is no such blob.
        """

    @abstractmethod
    def size(self, key: str) -> int:
        """Return the number of bytes of a blob.

        Raises
        ------
        KeyError
            There is no such blob.
        """

    def exists(self, key: str) -> bool:
        """Whether there is a blob with that key."""
        with suppress(KeyError):
            self.size(key)
            return True
        return False

    def open_read(self, key: str) -> BinaryIO:
        """Open a blob as a seekable file, to be closed by the caller.

        Raises
        ------
        KeyError
            There is no such blob.
        """
        return BytesIO(self.get(key))

    def local_path(self, key: str) -> str | None:
        """Path of a present or future blob in the local file system; None in other stores.

        Raises
        ------
        PermissionError
            It is a symbolic link out of the store.
        """
        check_key(key)
        return None

    def remote_url(self, key: str) -> tuple[str, dict[str, str | int]] | None:
        """URL of a blob, and options of a client of its store; None for a store without URLs or on a disk."""
        check_key(key)
        return None

    @abstractmethod
    def put(self, key: str, data: Data, *, durable: bool = False) -> None:
        """Create or replace a blob atomically: readers see the old or the new content, whole.

        Parameters
        ----------
        key
            Key of the blob.
        data
            Its content.
        durable
            Survive a power failure from now on (headers, schemas, indices). Data files are not written
            durably: a commit makes all of its files durable at once, by `flush`.
        """

    @contextmanager
    def open_write(self, key: str, *, durable: bool = False) -> Iterator[str | BinaryIO]:
        """Create or replace a blob with a writer of files.

        The context is the path of a temporary file (local stores) or a binary file in memory (others). Its
        content becomes the blob when the block ends, and is dropped when the block raises.

        Parameters
        ----------
        key
            Key of the blob.
        durable
            As in `put`.
        """
        check_key(key)
        buffer = BytesIO()
        yield buffer
        self.put(key, buffer.getbuffer(), durable=durable)

    def put_new(self, key: str, data: Data) -> None:
        """Create a blob, not durably; raise PreconditionFailed if it exists.

        Parameters
        ----------
        key
            Key of the blob.
        data
            Its content.
        """
        self.put_if(key, data, None)

    def put_file(self, key: str, path: str, *, link: bool = False) -> bool:
        """Create or replace a blob with the content of a local file, not durably.

        Parameters
        ----------
        key
            Key of the blob.
        path
            Path of the file.
        link
            Let the blob and the file share their content by a hard link, where this is possible. Neither may
            be written in place from now on.

        Returns
        -------
        bool
            Whether they share their content.
        """
        with open(path, "rb") as file:
            self.put(key, file.read())
        return False

    def flush(self, keys: Sequence[str]) -> None:  # noqa: B027 (only directories have something to do)
        """Make blobs durable that any process has put without ``durable``.

        Only directories need it: object stores keep what they have acknowledged, memory never survives its
        process.

        Parameters
        ----------
        keys
            Keys of the blobs; missing ones are ignored.
        """

    @abstractmethod
    def put_if(self, key: str, data: Data, token: Token | None) -> Token:
        """Create or replace a blob, durably, if its version is the expected one.

        Parameters
        ----------
        key
            Key of the blob.
        data
            Its new content.
        token
            Expected version, from `get_with_token` or `put_if`; None: the blob must not exist.

        Returns
        -------
        Token
            The new version.

        Raises
        ------
        PreconditionFailed
            The blob has another version, or does not exist; nothing was written.
        """

    @abstractmethod
    def delete_if(self, key: str, token: Token) -> None:
        """Delete a blob if its version is the expected one; durably if its key has no ``/`` (a header).

        Raises
        ------
        PreconditionFailed
            The blob has another version, or does not exist; nothing was deleted.
        """

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete blobs; missing ones are ignored. All keys are checked before the first deletion.

        Keys without ``/`` (headers) are deleted first, and durably: a header restored by a power failure
        would refer to deleted files.
        """

    def list_dir(self, prefix: str) -> Keys:
        """List one level: keys that start with ``prefix``, cut after the next ``/``; sorted, distinct."""
        tails = (blob.key.removeprefix(prefix).partition("/") for blob in self.list(prefix))
        return sorted({prefix + name + slash for name, slash, _ in tails})

    @abstractmethod
    def list(self, prefix: str) -> Blobs:
        """List the blobs whose keys start with ``prefix``, sorted by key.

        Files whose names are no legal keys are no blobs.
        """

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied: pass the factory of the store")


_WARNED: set[type] = set()


def get_required(blobs: BlobStore, key: str) -> bytes:
    """Content of a file that the state of a dataset refers to; MissingFileError if it is missing."""
    try:
        return blobs.get(key)
    except KeyError as error:
        raise MissingFileError(key) from error


def warn_no_swap(kind: type) -> None:
    """Warn, once per class of stores, that concurrent commits may be lost."""
    if kind in _WARNED:
        return
    _WARNED.add(kind)
    warnings.warn(
        f"{kind.__module__}.{kind.__qualname__} cannot compare and swap: of two concurrent commits to a "
        "dataset one may be lost. Let one writer work at a time, or use a local disk or an object store.",
        NoCompareAndSwapWarning,
        stacklevel=3,
    )


_CHARACTERS = re.escape(VALID_NON_NUM_EXTENDED.replace("/", "").replace(".", "")) + "0-9a-zA-Z"
# without look-ahead, so that Arrow (RE2) understands it: no component is empty, '.' or '..'
_COMPONENT = rf"(?:\.?[{_CHARACTERS}][{_CHARACTERS}.]*|\.\.[{_CHARACTERS}.]+)"
_KEY = rf"{_COMPONENT}(?:/{_COMPONENT})*"
_IS_KEY = re.compile(_KEY).fullmatch
#: for errors
KEY_RULE = (
    f"a key is made of letters, digits, spaces and the characters {VALID_NON_NUM_EXTENDED.strip()}, "
    "with no empty, '.' or '..' component"
)


def is_key(key: object) -> bool:
    """Whether this is a legal key."""
    return isinstance(key, str) and _IS_KEY(key) is not None


def check_key(key: str) -> str:
    """Check a key: simplekv's extended alphabet, no empty, ``.`` or ``..`` component (ValueError)."""
    # `key` may be anything that a user gave
    if type(key) is str and _IS_KEY(key) is not None:
        return key
    raise ValueError(f"illegal key {key!r}: {KEY_RULE}")


def check_keys(keys: Iterable[str]) -> list[str]:
    """Check several keys (ValueError); a single string is a TypeError."""
    if isinstance(keys, str | bytes):
        raise TypeError(f"expected several keys, got one string: {keys!r}")
    return [check_key(key) for key in keys]


def check_prefix(prefix: str) -> str:
    """Check the start of a key, which may end inside a component (ValueError)."""
    # a letter completes any open component
    if is_key(prefix + "a"):
        return prefix
    raise ValueError(f"illegal prefix of keys: {prefix!r}")


def check_owned(key: Any, uuid: str) -> str:
    """Check a key read from a dataset's metadata: a file in ``<uuid>/``, or a legacy index file."""
    if is_key(key):
        name = key.removeprefix(f"{uuid}.")
        is_legacy_index = name != key and "/" not in name and name[1:].endswith(EXTERNAL_INDEX_SUFFIX)
        if is_legacy_index or key.startswith(f"{uuid}/"):
            return str(key)
    raise _foreign_key_error(key, uuid)


def check_owned_keys(keys: pa.StringArray | pa.ChunkedArray, uuid: str) -> None:
    """Check keys of data files read from a dataset's metadata in one vector: each must be ``<uuid>/...``."""
    is_owned = pc.and_(pc.starts_with(keys, f"{uuid}/"), pc.match_substring_regex(keys, rf"\A{_KEY}\z"))
    is_owned = pc.fill_null(is_owned, False)
    if not pc.all(is_owned, min_count=0).as_py():
        raise _foreign_key_error(keys[pc.index(is_owned, False).as_py()].as_py(), uuid)


def _foreign_key_error(key: object, uuid: str) -> CorruptDatasetError:
    if isinstance(key, str) and key.startswith(f"{uuid}/") and "//" in key:
        # kartothek does not quote slashes, and does not read these values back either
        return CorruptDatasetError(
            key,
            f"dataset {uuid!r} refers to it, but most stores cannot hold a key with '//', as kartothek makes "
            "of partition values that end in '/' or contain '//'. Write the dataset again with other values",
        )
    return CorruptDatasetError(
        key if isinstance(key, str) else repr(key),
        f"dataset {uuid!r} refers to it, but owns only what starts with '{uuid}/'; its metadata is damaged",
    )
