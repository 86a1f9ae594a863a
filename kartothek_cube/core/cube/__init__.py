"""Cubes: specification, conditions of queries, constants."""

# ruff: noqa: F403 - this module only re-exports names

from __future__ import annotations

from typing import Any

from kartothek_cube.core.cube import conditions, constants
from kartothek_cube.core.cube.conditions import *
from kartothek_cube.core.cube.cube import Cube as Cube

__all__ = (*conditions.__all__, *constants.__all__, "Cube")


def __getattr__(name: str) -> Any:
    """Pass constants on; ``KTK_CUBE_DF_SERIALIZER`` is created on first access."""
    if name not in constants.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(constants, name)
