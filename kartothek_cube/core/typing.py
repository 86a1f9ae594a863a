"""Types of arguments that occur everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from simplekv import KeyValueStore

__all__ = ("StoreFactory", "StoreInput")

StoreFactory: TypeAlias = Callable[[], KeyValueStore]
"""Makes a store; the picklable form of stores."""

StoreInput: TypeAlias = str | KeyValueStore | StoreFactory
"""What users may pass as ``store``: a URL, a store, or a factory."""
