"""Constants of cubes: names, metadata keys and storage of their datasets."""
# ``KTK_CUBE_DF_SERIALIZER`` is created on first access: ``core`` must not import ``serialization``.

from __future__ import annotations

import importlib
from typing import Any

__all__ = (
    "KTK_CUBE_DF_SERIALIZER",
    "KTK_CUBE_METADATA_DIMENSION_COLUMNS",
    "KTK_CUBE_METADATA_KEY_IS_SEED",
    "KTK_CUBE_METADATA_STORAGE_FORMAT",
    "KTK_CUBE_METADATA_VERSION",
    "KTK_CUBE_UUID_SEPARATOR",
    "KTK_CUBE_UUID_SEPERATOR",
)

KTK_CUBE_DF_SERIALIZER: Any
"""Serialiser of the data files of cubes: Parquet with ZSTD compression."""

KTK_CUBE_METADATA_KEY_IS_SEED = "ktk_cube_is_seed"
KTK_CUBE_METADATA_DIMENSION_COLUMNS = "ktk_cube_dimension_columns"
KTK_CUBE_METADATA_PARTITION_COLUMNS = "ktk_cube_partition_columns"
KTK_CUBE_METADATA_SUPPRESS_INDEX_ON = "ktk_cube_suppress_index_on"

# The names in the cube specification. Both sets are written; when reading, the first set wins
# (`read_specification`).
KLEE_METADATA_KEY_IS_SEED = "klee_is_seed"
KLEE_METADATA_DIMENSION_COLUMNS = "klee_dimension_columns"
KLEE_METADATA_PARTITION_COLUMNS = "klee_partition_columns"
KLEE_METADATA_TIMESTAMP_COLUMN = "klee_timestamp_column"

KLEE_TIMESTAMP_COLUMN = "KLEE_TS"
"""The only timestamp column that old cubes may have as their last partition key."""

KTK_CUBE_METADATA_STORAGE_FORMAT = "json"
KTK_CUBE_METADATA_VERSION = 4

KTK_CUBE_UUID_SEPARATOR = "++"
"""Separator of the uuid prefix of the cube and the id of the dataset; neither may contain it."""

KTK_CUBE_UUID_SEPERATOR = KTK_CUBE_UUID_SEPARATOR  # kartothek's spelling


def __getattr__(name: str) -> Any:
    """Create ``KTK_CUBE_DF_SERIALIZER`` on first access."""
    if name != "KTK_CUBE_DF_SERIALIZER":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    serialization = importlib.import_module("kartothek_cube.serialization")
    serializer = serialization.ParquetSerializer(compression="ZSTD")
    globals()[name] = serializer
    return serializer
