"""Types of arguments that functions of cubes share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from kartothek_cube.core.arrow.types import Frame
from kartothek_cube.core.cube.conditions import Condition, Conjunction, Disjunction
from kartothek_cube.core.dataset import DatasetMetadata

__all__ = ("ConditionsInput", "CubeElement", "CubeInput", "CubeMetadata", "DatasetsInput")


ConditionsInput: TypeAlias = (
    Condition | Conjunction | Disjunction | Iterable[Condition | Disjunction] | str | None
)
"""Conditions that all have to hold; or their text, as in ``"TEMP > 10 & DAY >= 2024-01-05"``."""

DatasetsInput: TypeAlias = str | Iterable[str] | Mapping[str, DatasetMetadata] | None
"""Datasets of a cube: ids, or loaded datasets by id; None for all."""

CubeElement: TypeAlias = Frame | Mapping[str, Frame | None] | None
"""Frame of the seed, or a dict of dataset id to frame."""

CubeInput: TypeAlias = CubeElement | Iterable[CubeElement]
"""Input of a write."""

CubeMetadata: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Metadata to store, by dataset id."""
