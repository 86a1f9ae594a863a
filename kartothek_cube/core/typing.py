"""Types of arguments that occur everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

from simplekv import KeyValueStore

__all__ = ("StoreFactory", "StoreFactoryInput", "StoreInput")

StoreFactory: TypeAlias = Callable[[], KeyValueStore]
"""Makes a store; the picklable form of stores."""

StoreInput: TypeAlias = str | os.PathLike[str] | KeyValueStore | StoreFactory
"""What users may pass as ``store``: a URL, a directory, a store, or a factory."""

StoreFactoryInput: TypeAlias = str | os.PathLike[str] | StoreFactory
"""What graphs of dask accept as ``store``, as their tasks open it: a URL, a directory, or a factory."""
