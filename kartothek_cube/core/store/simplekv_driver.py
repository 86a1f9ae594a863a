"""Driver for any store with simplekv's methods; it uses only these, so that wrappers see every call."""

# ruff: noqa: D102 (the protocol documents the methods)

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, BinaryIO, cast

from simplekv import KeyValueStore

from kartothek_cube.core.store import blob_store

# All drivers of one dictionary share a lock; dictionaries may share one, too.
_LOCKS = tuple(threading.RLock() for _ in range(64))
# how often a dictionary may change while it is listed
_ATTEMPTS = 1000


class GenericBlobStore(blob_store.BlobStore):
    """Blobs in a simplekv store, or in any object with the same methods.

    In-memory stores (``DictStore``, also below decorators) compare and swap under a lock, since no other
    process can access them. Other stores read, compare and put.
    """

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        dictionary = _find_dictionary(store)
        self._can_swap = dictionary is not None
        self._lock = _LOCKS[(id(store if dictionary is None else dictionary) >> 4) % len(_LOCKS)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"

    @property
    def store(self) -> KeyValueStore:
        return self._store

    @property
    def can_swap(self) -> bool:
        return self._can_swap

    # reading

    def get(self, key: str) -> bytes:
        with _missing_as_key_error(key):
            data: bytes = self._get_method("get")(blob_store.check_key(key))
            return data

    def get_with_token(self, key: str) -> tuple[bytes, blob_store.Token]:
        data = self.get(key)
        return data, data

    def size(self, key: str) -> int:
        with self.open_read(key) as file:
            return file.seek(0, io.SEEK_END)

    def exists(self, key: str) -> bool:
        return bool(self._get_method("__contains__")(blob_store.check_key(key)))

    def open_read(self, key: str) -> BinaryIO:
        with _missing_as_key_error(key):
            file = self._get_method("open")(blob_store.check_key(key))
        if _is_seekable(file):
            return cast(BinaryIO, file)
        file.close()
        return io.BytesIO(self.get(key))

    # writing

    def put(self, key: str, data: blob_store.Data, *, durable: bool = False) -> None:
        put = self._get_method("put")
        # durable: possibly a header, which must not be put between comparison and replacement of a swap
        with self._lock if durable else nullcontext():
            put(blob_store.check_key(key), bytes(data))

    def put_if(self, key: str, data: blob_store.Data, token: blob_store.Token | None) -> blob_store.Token:
        content = bytes(data)
        with self._hold_if_current(key, token):
            self._get_method("put")(key, content)
        return content

    def delete_if(self, key: str, token: blob_store.Token) -> None:
        if token is None:
            raise blob_store.PreconditionFailed(blob_store.check_key(key))
        delete = self._get_method("delete")
        with self._hold_if_current(key, token):
            try:
                delete(key)
            except KeyError:
                # a writer of another process deleted it after the comparison
                raise blob_store.PreconditionFailed(key) from None

    def delete(self, keys: Iterable[str]) -> None:
        delete = self._get_method("delete")
        for key in blob_store.check_keys(keys):
            # Headers have no "/" in their keys: their deletion must not happen within a swap.
            # simplekv does not define the deletion of a missing key: some stores ignore it, some raise.
            with nullcontext() if "/" in key else self._lock, suppress(KeyError):
                delete(key)

    @contextmanager
    def _hold_if_current(self, key: str, token: blob_store.Token | None) -> Iterator[None]:
        blob_store.check_key(key)
        if not self.can_swap:
            blob_store.warn_no_swap(type(self._store))
        with self._lock:
            try:
                current = self.get(key)
            except KeyError:
                current = None
            if current != token:
                raise blob_store.PreconditionFailed(key)
            yield

    # listing

    def list_dir(self, prefix: str) -> blob_store.Keys:
        if not hasattr(self._store, "iter_prefixes"):
            return super().list_dir(prefix)
        blob_store.check_prefix(prefix)
        prefixes = self._list_retrying(lambda: self._store.iter_prefixes("/", prefix))
        return sorted(
            {key for key in prefixes if key.startswith(prefix) and blob_store.is_key(key.removesuffix("/"))}
        )

    def list(self, prefix: str) -> blob_store.Blobs:
        blob_store.check_prefix(prefix)
        has_iterator = getattr(self._store, "iter_keys", None) is not None
        listing = self._get_method("iter_keys" if has_iterator else "keys")
        keys = self._list_retrying(lambda: listing(prefix))
        return [
            blob_store.Blob(key) for key in sorted(keys) if key.startswith(prefix) and blob_store.is_key(key)
        ]

    def _list_retrying(self, listing: Callable[[], Iterable[str]]) -> blob_store.Keys:
        for _ in range(_ATTEMPTS):
            try:
                return list(listing())
            except RuntimeError:
                # a dictionary changed during its iteration
                if not self.can_swap:
                    raise
        return list(listing())

    def _get_method(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] | None = getattr(self._store, name, None)
        if method is None:
            raise io.UnsupportedOperation(f"{type(self._store).__name__} has no method {name!r}")
        return method


def _find_dictionary(store: Any) -> object | None:
    """Dictionary of an in-memory store, also below decorators; None for other stores."""
    while hasattr(store, "_dstore"):
        store = store._dstore
    if any(kind.__name__ == "DictStore" for kind in type(store).__mro__):
        return getattr(store, "d", None)
    return None


def _is_seekable(file: Any) -> bool:
    try:
        return bool(file.seekable())
    except AttributeError:
        return False


@contextmanager
def _missing_as_key_error(key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise KeyError(key) from None
