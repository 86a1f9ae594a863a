"""Consistency rules of cubes, checked on headers and schemas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from kartothek_cube.core.cube.constants import KLEE_TIMESTAMP_COLUMN, KTK_CUBE_METADATA_VERSION
from kartothek_cube.core.index import ExplicitSecondaryIndex, PartitionIndex
from kartothek_cube.core.naming import SINGLE_TABLE
from kartothek_cube.core.schema.compare import validate_shared_columns

if TYPE_CHECKING:
    from kartothek_cube.core.cube.cube import Cube
    from kartothek_cube.core.dataset import DatasetMetadata

__all__ = (
    "arrow_schema",
    "check_cube",
    "check_datasets",
    "get_cube_payload",
    "get_dataset_columns",
    "get_payload_subset",
)


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def get_dataset_columns(dataset: DatasetMetadata) -> set[str]:
    """
    Columns of a dataset that a user can see.

    Parameters
    ----------
    dataset
        A dataset with its schema loaded.

    Returns
    -------
    set of str
        All columns of the schema except internal ones: those that start with two underscores, and the
        time stamp column of old cubes.
    """
    if dataset.schema is None:
        return set()
    return {
        str(name)
        for name in dataset.schema.names
        if not name.startswith("__") and name != KLEE_TIMESTAMP_COLUMN
    }


def arrow_schema(dataset: DatasetMetadata) -> pa.Schema:
    """Schema of a dataset of a cube, without metadata; raises ValueError if it is not loaded."""
    if dataset.schema is None:
        raise ValueError(f"The schema of dataset {dataset.uuid} is not loaded")
    return dataset.schema.internal().remove_metadata()


def get_payload_subset(columns: Iterable[str], cube: Cube) -> set[str]:
    """Payload columns among the given ones: neither dimension nor partition columns."""
    return set(columns) - set(cube.dimension_columns) - set(cube.partition_columns)


def get_cube_payload(datasets: Mapping[str, DatasetMetadata], cube: Cube) -> set[str]:
    """Payload columns of all datasets together."""
    return set().union(*(get_payload_subset(get_dataset_columns(ds), cube) for ds in datasets.values()))


def check_datasets(datasets: Mapping[str, DatasetMetadata], cube: Cube) -> dict[str, DatasetMetadata]:
    """
    Check that datasets form the given cube, and load their partition indices.

    Parameters
    ----------
    datasets, cube
        As in :func:`check_cube`.

    Returns
    -------
    dict
        The same datasets with their partition indices loaded.

    Raises
    ------
    ValueError
        As :func:`check_cube`.
    """
    check_cube(datasets, cube)
    return {name: datasets[name].load_partition_indices() for name in sorted(datasets)}


def check_cube(datasets: Mapping[str, DatasetMetadata], cube: Cube) -> None:
    """
    Check that datasets form the given cube (see "Format" in the cube specification).

    Parameters
    ----------
    datasets
        Dataset id (the part behind ``++``) to metadata with a loaded schema.
    cube
        The cube that they shall form.

    Raises
    ------
    ValueError
        If a rule does not hold; the text names the dataset and the columns.
    """
    if cube.seed_dataset not in datasets:
        raise ValueError(
            f"Seed dataset ({cube.seed_dataset}) is missing. "
            f"The cube {cube.uuid_prefix} has: {_join(datasets) or 'no dataset'}"
        )
    for check in (_check_version, _check_table):
        for name in sorted(datasets):
            check(name, datasets[name])
    _check_overlap(datasets, cube)
    validate_shared_columns([datasets[name].schema for name in sorted(datasets)], ignore_pandas=True)
    for name in sorted(datasets):
        _check_partition_keys(name, datasets[name], cube)
    for name in sorted(datasets):
        _check_dimensions(name, datasets[name], cube)
    for name in sorted(datasets):
        _check_indices(name, datasets[name], cube)


def _check_version(name: str, dataset: DatasetMetadata) -> None:
    if dataset.metadata_version != KTK_CUBE_METADATA_VERSION:
        raise ValueError(
            f"Invalid metadata version in dataset {name}: {dataset.metadata_version}, "
            f"a cube needs version {KTK_CUBE_METADATA_VERSION}"
        )


def _check_table(name: str, dataset: DatasetMetadata) -> None:
    tables = set(dataset.tables)
    if tables != {SINGLE_TABLE} or dataset.schema is None:
        raise ValueError(
            f"Invalid table(s) in dataset {name}: a dataset of a cube has exactly the table "
            f"{SINGLE_TABLE!r}, "
            f"this one has: {_join(tables) or 'none'}"
        )


def _check_overlap(datasets: Mapping[str, DatasetMetadata], cube: Cube) -> None:
    owners: dict[str, list[str]] = {}
    for name in sorted(datasets):
        for column in get_payload_subset(get_dataset_columns(datasets[name]), cube):
            owners.setdefault(column, []).append(name)
    clashes = {column: names for column, names in owners.items() if len(names) > 1}
    if clashes:
        text = "; ".join(f"{column} in {', '.join(names)}" for column, names in sorted(clashes.items()))
        raise ValueError(
            f"Found columns present in multiple datasets: {text}. A payload column belongs to one dataset"
        )


def _check_partition_keys(name: str, dataset: DatasetMetadata, cube: Cube) -> None:
    keys = list(dataset.partition_keys or [])
    if name == cube.seed_dataset:
        missing = set(cube.partition_columns) - set(keys)
        if missing:
            raise ValueError(
                f"Seed dataset {name!r} has missing partition keys: {_join(missing)} "
                f"(it is partitioned by: {_join(keys) or 'nothing'})"
            )
    unused = (set(cube.partition_columns) & get_dataset_columns(dataset)) - set(keys)
    if unused:
        raise ValueError(
            f"Unspecified but provided partition columns in dataset {name!r}: {_join(unused)}. A cube "
            f"partition column "
            "that a dataset contains must be one of its partition keys"
        )


def _check_dimensions(name: str, dataset: DatasetMetadata, cube: Cube) -> None:
    columns = get_dataset_columns(dataset)
    dimensions = set(cube.dimension_columns)
    if name == cube.seed_dataset:
        missing = dimensions - columns
        if missing:
            raise ValueError(f"Seed dataset {name!r} has missing dimension columns: {_join(missing)}")
    elif not dimensions & columns:
        raise ValueError(
            f"Dataset {name!r} must have at least one of the following dimension columns: {_join(dimensions)}"
        )


def _check_indices(name: str, dataset: DatasetMetadata, cube: Cube) -> None:
    columns = get_dataset_columns(dataset)
    keys = set(dataset.partition_keys or [])
    of_any_kind = columns & set(cube.index_columns)
    explicit: set[str] = set()
    if name == cube.seed_dataset:
        explicit = set(cube.dimension_columns) - set(cube.suppress_index_on)
    for column in sorted(keys | of_any_kind | explicit):
        index = dataset.indices.get(column)
        if index is None and column in keys - explicit:
            continue  # built from the labels
        if index is None and column not in keys:
            raise ValueError(f"ExplicitSecondaryIndex is missing in dataset {name!r} for column: {column}")
        if column in keys - explicit and not isinstance(index, PartitionIndex):
            expected = "PartitionIndex"
        elif column in explicit and not isinstance(index, ExplicitSecondaryIndex):
            expected = "ExplicitSecondaryIndex"
        else:
            continue
        raise ValueError(
            f"Wrong index type in dataset {name!r} for column {column}: "
            f"expected {expected} but got {type(index).__name__}"
        )
