"""Discovery of cubes and datasets in a store."""

from __future__ import annotations

from kartothek_cube.core.cube.discover import (
    discover_cube,
    discover_datasets,
    discover_datasets_unchecked,
    discover_ktk_cube_dataset_ids,
)

__all__ = (
    "discover_cube",
    "discover_datasets",
    "discover_datasets_unchecked",
    "discover_ktk_cube_dataset_ids",
)
