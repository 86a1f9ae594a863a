"""The drivers of stores: open what users pass as a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from simplekv import KeyValueStore

from kartothek_cube.core.store.base import BlobStore
from kartothek_cube.core.store.obstore.url import SCHEMES, parse_url
from kartothek_cube.core.store.resolve import ensure_store, register_scheme
from kartothek_cube.core.store.simplekv_driver import GenericBlobStore
from kartothek_cube.core.typing import StoreInput

__all__ = ("open_blobs", "register_driver")

_DRIVERS: list[tuple[Callable[[Any], bool], Callable[[Any], BlobStore]]] = []
_LOCAL_PACKAGES = {"simplekv", "storefact", "minimalkv"}
_LOCAL_CLASSES = {"FilesystemStore", "HFilesystemStore", "WebFilesystemStore"}


def register_driver(matches: Callable[[Any], bool], driver: Callable[[Any], BlobStore]) -> None:
    """Serve matching stores by a driver; drivers registered later are asked first.

    Parameters
    ----------
    matches
        Function of the user's store: whether the driver serves it.
    driver
        Function of the user's store that returns its `BlobStore`.
    """
    _DRIVERS.insert(0, (matches, driver))


def open_blobs(store: StoreInput | BlobStore) -> BlobStore:
    """Open a store, factory or URL; a `BlobStore` is returned unchanged. Errors as those of `ensure_store`.

    >>> blobs = open_blobs("hmemory://")
    >>> blobs.put("sales/table/_common_metadata", b"PAR1", durable=True)
    >>> blobs.list("sales/")
    [Blob(key='sales/table/_common_metadata', size=None, mtime=None)]
    """
    if isinstance(store, BlobStore):
        return store
    opened = ensure_store(store)
    for matches, driver in _DRIVERS:
        if matches(opened):
            return driver(opened)
    return GenericBlobStore(opened)


def _is_directory(store: Any) -> bool:
    """Whether this is exactly a store in a directory; subclasses and patched methods may differ."""
    kind = type(store)
    return (
        os.name == "posix"
        and kind.__name__ in _LOCAL_CLASSES
        and kind.__module__.partition(".")[0] in _LOCAL_PACKAGES
        and not any(callable(getattr(kind, name, None)) for name in vars(store))
        and isinstance(store.root, str)
    )


def _open_directory(store: Any) -> BlobStore:
    # needs fcntl, which only POSIX systems have
    from kartothek_cube.core.store.local import LocalBlobStore

    return LocalBlobStore(store)


def _is_object_store(store: Any) -> bool:
    return type(store).__module__ == f"{__package__}.obstore.store"


def _open_object_store(store: Any) -> BlobStore:
    from kartothek_cube.core.store.obstore.driver import ObjectBlobStore

    return ObjectBlobStore(store)


def _open_url(url: str) -> KeyValueStore:
    from kartothek_cube.core.store.obstore.store import open_url

    return open_url(url)


register_driver(_is_directory, _open_directory)
register_driver(_is_object_store, _open_object_store)
register_scheme(*SCHEMES, opener=_open_url, check=parse_url)
