"""The table format: names, headers, schemas, partitions, indices, stores, commits, cubes."""

from __future__ import annotations

from typing import Any

from kartothek_cube.kartothek_paths import load_name, names_of

__all__ = names_of("core")


def __getattr__(name: str) -> Any:
    """Import a name on first access: a module of core must not load all others."""
    return load_name("core", name)
