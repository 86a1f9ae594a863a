"""Arguments of cube writes: metadata and partition keys by dataset, the serializer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kartothek_cube.core.arguments import converter_str_tupleset
from kartothek_cube.core.cube.constants import (
    KLEE_METADATA_DIMENSION_COLUMNS,
    KLEE_METADATA_KEY_IS_SEED,
    KLEE_METADATA_PARTITION_COLUMNS,
    KTK_CUBE_DF_SERIALIZER,
    KTK_CUBE_METADATA_DIMENSION_COLUMNS,
    KTK_CUBE_METADATA_KEY_IS_SEED,
    KTK_CUBE_METADATA_PARTITION_COLUMNS,
    KTK_CUBE_METADATA_SUPPRESS_INDEX_ON,
)
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.serialization import DataFrameSerializer

__all__ = ("Metadata", "check_cube_serializer", "check_metadata", "cube_metadata", "cube_partition_on")

Metadata = Mapping[str, Mapping[str, Any]]


def check_metadata(metadata: Metadata | None, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Check the ``metadata`` argument of a cube write; a copy, empty for None."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise TypeError(
            f"Provided metadata should be a dict of dataset id to dict, but is {type(metadata).__name__}"
        )
    existing = set(names)
    unknown = set(metadata) - existing
    if unknown:
        raise ValueError(
            "Provided metadata for otherwise unspecified datasets: "
            + unknown_names("dataset", unknown, existing)
        )
    for name, values in metadata.items():
        if not isinstance(values, Mapping):
            raise TypeError(
                f"Provided metadata for dataset {name} should be a dict, but is {type(values).__name__}"
            )
        try:
            json.dumps(dict(values))
        except TypeError as exc:
            raise TypeError(f"Provided metadata for dataset {name} cannot be stored as JSON: {exc}") from exc
    return {name: dict(values) for name, values in metadata.items()}


def check_cube_serializer(serializer: Any) -> DataFrameSerializer:
    """Check the ``df_serializer`` argument of a cube write; Parquet with ZSTD by default."""
    if serializer is None:
        default: DataFrameSerializer = KTK_CUBE_DF_SERIALIZER
        return default
    if not isinstance(serializer, DataFrameSerializer):
        raise TypeError(f"df_serializer should be a DataFrameSerializer, but is {type(serializer).__name__}")
    return serializer


def cube_metadata(cube: Cube, name: str, user: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a dataset ("Metadata" in the cube format), under old and new names."""
    dimensions, partitions = list(cube.dimension_columns), list(cube.partition_columns)
    is_seed = name == cube.seed_dataset
    return {
        **user,
        KTK_CUBE_METADATA_DIMENSION_COLUMNS: dimensions,
        KTK_CUBE_METADATA_KEY_IS_SEED: is_seed,
        KTK_CUBE_METADATA_PARTITION_COLUMNS: partitions,
        KTK_CUBE_METADATA_SUPPRESS_INDEX_ON: sorted(cube.suppress_index_on),
        KLEE_METADATA_DIMENSION_COLUMNS: dimensions,
        KLEE_METADATA_KEY_IS_SEED: is_seed,
        KLEE_METADATA_PARTITION_COLUMNS: partitions,
    }


def cube_partition_on(
    cube: Cube, name: str, partition_on: Mapping[str, Iterable[str]] | None
) -> tuple[str, ...]:
    """Partition keys of a dataset; by default the partition columns of the cube."""
    columns = tuple(cube.partition_columns)
    if partition_on is not None and name in partition_on:
        try:
            columns = converter_str_tupleset(partition_on[name])
        except ValueError as exc:
            raise ValueError(f"partition_on of dataset {name}: {exc}") from exc
    if name == cube.seed_dataset and columns != tuple(cube.partition_columns):
        raise ValueError(
            f"Seed dataset {name} must have the partition columns of the cube: expected "
            f"[{', '.join(cube.partition_columns)}], but partition_on is [{', '.join(columns)}]"
        )
    return columns
