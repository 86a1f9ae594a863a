"""Picklable stores, which executors open once per process."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

from simplekv import KeyValueStore

from kartothek_cube.core.store.resolve import ensure_store, lazy_store, to_url
from kartothek_cube.core.typing import StoreFactory, StoreInput

__all__ = ("CachedStoreFactory", "picklable_store")


class CachedStoreFactory:
    """Factory of a store that is opened when first needed, once per process."""

    def __init__(self, factory: StoreFactory) -> None:
        self._factory = factory
        self._store: KeyValueStore | None = None

    def __call__(self) -> KeyValueStore:
        """The open store."""
        if self._store is None:
            self._store = ensure_store(self._factory)
        return self._store

    def __getstate__(self) -> StoreFactory:
        return self._factory

    def __setstate__(self, factory: StoreFactory) -> None:
        self._factory, self._store = factory, None


def picklable_store(store: StoreInput) -> CachedStoreFactory:
    """
    A factory for a store that executors can open; relative paths are those of this process.

    >>> picklable_store("hmemory://")
    Traceback (most recent call last):
    ...
    ValueError: Spark's executors cannot open a store in the memory of the driver: use ...
    """
    if isinstance(store, CachedStoreFactory):
        return store
    factory = CachedStoreFactory(lazy_store(store))
    innermost = _unwrap_store(factory())
    if _is_in_memory(innermost):
        raise ValueError(
            "Spark's executors cannot open a store in the memory of the driver: use a directory that all of "
            "them see (hfs:///data), or an object store (s3://bucket)."
        )
    root = getattr(innermost, "root", None)
    if isinstance(store, str | os.PathLike) and isinstance(root, str):
        return CachedStoreFactory(lazy_store(_absolute_url(to_url(store), root)))
    return factory


def _absolute_url(url: str, root: str) -> str:
    """The URL of a directory as executors find it, which work in another one."""
    return re.sub(
        r"^(h?fs)://[^?#]*", lambda scheme: f"{scheme[1]}://{quote(os.path.abspath(root))}", url, count=1
    )


def _unwrap_store(store: object) -> object:
    while hasattr(store, "_dstore"):
        store = store._dstore
    return store


def _is_in_memory(store: object) -> bool:
    return any(
        base.__name__ == "DictStore" and base.__module__.partition(".")[0] in ("simplekv", "minimalkv")
        for base in type(store).__mro__
    )
