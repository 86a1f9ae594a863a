"""Cubes: specification, conditions of queries, constants."""

from __future__ import annotations

from typing import Any

from kartothek_cube.core.cube import constants
from kartothek_cube.core.cube.conditions import (
    C,
    Condition,
    Conjunction,
    EqualityCondition,
    GreaterEqualCondition,
    GreaterThanCondition,
    InequalityCondition,
    InIntervalCondition,
    IsInCondition,
    LessEqualCondition,
    LessThanCondition,
    SimpleCondition,
    VirtualColumn,
)
from kartothek_cube.core.cube.constants import (
    KTK_CUBE_METADATA_DIMENSION_COLUMNS,
    KTK_CUBE_METADATA_KEY_IS_SEED,
    KTK_CUBE_METADATA_STORAGE_FORMAT,
    KTK_CUBE_METADATA_VERSION,
    KTK_CUBE_UUID_SEPARATOR,
    KTK_CUBE_UUID_SEPERATOR,
)
from kartothek_cube.core.cube.cube import Cube

__all__ = (
    "KTK_CUBE_DF_SERIALIZER",
    "KTK_CUBE_METADATA_DIMENSION_COLUMNS",
    "KTK_CUBE_METADATA_KEY_IS_SEED",
    "KTK_CUBE_METADATA_STORAGE_FORMAT",
    "KTK_CUBE_METADATA_VERSION",
    "KTK_CUBE_UUID_SEPARATOR",
    "KTK_CUBE_UUID_SEPERATOR",
    "C",
    "Condition",
    "Conjunction",
    "Cube",
    "EqualityCondition",
    "GreaterEqualCondition",
    "GreaterThanCondition",
    "InIntervalCondition",
    "InequalityCondition",
    "IsInCondition",
    "LessEqualCondition",
    "LessThanCondition",
    "SimpleCondition",
    "VirtualColumn",
)

KTK_CUBE_DF_SERIALIZER: Any


def __getattr__(name: str) -> Any:
    """Pass ``KTK_CUBE_DF_SERIALIZER`` on, which is created on first access."""
    if name != "KTK_CUBE_DF_SERIALIZER":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return constants.KTK_CUBE_DF_SERIALIZER
