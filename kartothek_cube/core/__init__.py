"""The table format: names, headers, schemas, partitions, indices, stores, commits, cubes."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "common_metadata": (
        "SchemaWrapper",
        "empty_dataframe_from_schema",
        "make_meta",
        "normalize_column_order",
        "normalize_type",
        "validate_compatible",
    ),
    "dataset": ("DatasetMetadata", "DatasetMetadataBase"),
    "factory": ("DatasetFactory",),
    "index": ("ExplicitSecondaryIndex", "IndexBase", "PartitionIndex"),
    "typing": ("StoreFactory", "StoreInput"),
    "store.resolve": ("ensure_store", "lazy_store"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import a name on first access: a module of core must not load all others."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
