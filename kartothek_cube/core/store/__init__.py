"""The stores below the library: one small protocol (`BlobStore`) and its drivers.

Users pass a simplekv store, a factory of one, or a URL; `open_blobs` turns any of them into a `BlobStore`:

``blob_store``        the protocol, its value types and its errors; rules for keys
``resolve``           URL, factory or store -> store, factory or driver (`lazy_store`, `open_blobs`); driver
                      for all other kinds of stores, by simplekv's documented methods only
``local``             driver for directories: atomic, durable, compare-and-swap under a file lock
``object_store``      URLs, driver and simplekv store of S3, Google Cloud Storage and Azure

A new kind of store is a subclass of `BlobStore`, whose factory users pass as a store. `register_scheme` gives
it URLs, `register_driver` existing simplekv stores.
"""

# ruff: noqa: F403 - this module only re-exports names

from __future__ import annotations

from kartothek_cube.core.store import blob_store
from kartothek_cube.core.store.blob_store import *
from kartothek_cube.core.store.resolve import open_blobs, register_driver, register_scheme

__all__ = (*blob_store.__all__, "open_blobs", "register_driver", "register_scheme")
