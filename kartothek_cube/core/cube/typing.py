"""Types of arguments that functions of cubes share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import pandas as pd
import pyarrow as pa

from kartothek_cube.core.cube.condition_types import Condition, Conjunction
from kartothek_cube.core.dataset import DatasetMetadata

__all__ = (
    "ArrowStream",
    "ConditionsInput",
    "CubeElement",
    "CubeInput",
    "CubeMetadata",
    "DatasetsInput",
    "Frame",
)


class ArrowStream(Protocol):
    """Tables of other libraries, such as polars, that Arrow reads without a copy."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hand out a stream of record batches."""


ConditionsInput: TypeAlias = Condition | Conjunction | Iterable[Condition] | None
"""Conditions that all have to hold."""

DatasetsInput: TypeAlias = str | Iterable[str] | Mapping[str, DatasetMetadata] | None
"""Datasets of a cube: ids, or loaded datasets by id; None for all."""

Frame: TypeAlias = pd.DataFrame | pa.Table | pa.RecordBatch | ArrowStream
"""A table of input."""

CubeElement: TypeAlias = Frame | Mapping[str, Frame | None] | None
"""Frame of the seed, or a dict of dataset id to frame."""

CubeInput: TypeAlias = CubeElement | Iterable[CubeElement]
"""Input of a write."""

CubeMetadata: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Metadata to store, by dataset id."""
