"""Which cubes and datasets a store holds, found with one listing and one header per dataset."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from kartothek_cube.core.arguments import alias_parameter, converter_str_set, converter_str_set_optional
from kartothek_cube.core.commit.consistent_read import read_consistently
from kartothek_cube.core.cube.consistency import check_cube, check_datasets, get_dataset_columns
from kartothek_cube.core.cube.constants import (
    KLEE_METADATA_DIMENSION_COLUMNS,
    KLEE_METADATA_KEY_IS_SEED,
    KLEE_METADATA_PARTITION_COLUMNS,
    KLEE_METADATA_TIMESTAMP_COLUMN,
    KLEE_TIMESTAMP_COLUMN,
    KTK_CUBE_METADATA_DIMENSION_COLUMNS,
    KTK_CUBE_METADATA_KEY_IS_SEED,
    KTK_CUBE_METADATA_PARTITION_COLUMNS,
    KTK_CUBE_METADATA_SUPPRESS_INDEX_ON,
    KTK_CUBE_UUID_SEPARATOR,
)
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import CorruptDatasetError, DatasetNotFoundError, unknown_names
from kartothek_cube.core.naming import METADATA_BASE_SUFFIX, METADATA_FORMAT_JSON, METADATA_FORMAT_MSGPACK
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput

__all__ = (
    "discover_cube",
    "discover_datasets",
    "discover_datasets_unchecked",
    "discover_ktk_cube_dataset_ids",
)

_LOGGER = logging.getLogger(__name__)

DatasetsInput: TypeAlias = str | Iterable[str] | Mapping[str, DatasetMetadata] | None
"""Datasets of a cube: ids, or loaded datasets by id; None for all."""


def discover_ktk_cube_dataset_ids(uuid_prefix: str, store: StoreInput | BlobStore) -> set[str]:
    """
    Ids of all datasets of a cube, found by one listing of the top level of the store.

    Parameters
    ----------
    uuid_prefix
        Prefix of the cube.
    store
        Store, factory or URL.

    Returns
    -------
    set of str
        The parts of the dataset uuids behind ``++``; empty if there is no such cube.
    """
    start = uuid_prefix + KTK_CUBE_UUID_SEPARATOR
    suffixes = tuple(METADATA_BASE_SUFFIX + fmt for fmt in (METADATA_FORMAT_JSON, METADATA_FORMAT_MSGPACK))
    ids = set()
    for name in open_blobs(store).list_dir(start):
        for suffix in suffixes:
            if name.startswith(start) and name.endswith(suffix):
                ids.add(name[len(start) : -len(suffix)])
    return ids - {""}


@alias_parameter("datasets", "filter_ktk_cube_dataset_ids")
def discover_datasets_unchecked(
    uuid_prefix: str,
    store: StoreInput | BlobStore,
    filter_ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    load_schema: bool = True,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Load the datasets of a cube in one state, without checking that they form one.

    Parameters
    ----------
    uuid_prefix
        Prefix of the cube.
    store
        Store, factory or URL.
    datasets, filter_ktk_cube_dataset_ids
        Only these ids; those that do not exist are absent in the result.
    load_schema
        Whether schemas are read.

    Returns
    -------
    dict
        Dataset id to metadata, sorted by id. An operation on several datasets is seen as a
        whole, or not at all. A dataset whose header or schema is gone is left out, with a
        warning in the log.
    """
    wanted = converter_str_set_optional(filter_ktk_cube_dataset_ids)
    blobs = open_blobs(store)
    start = uuid_prefix + KTK_CUBE_UUID_SEPARATOR

    def is_wanted(uuid: str) -> bool:
        return uuid.startswith(start) and (wanted is None or uuid.removeprefix(start) in wanted)

    def load(uuid: str) -> DatasetMetadata | None:
        try:
            return DatasetMetadata.load_from_store(uuid, blobs, load_schema)
        except DatasetNotFoundError:
            # deleted since it was listed
            return None
        except KeyError as error:
            _LOGGER.warning("Skip dataset %s, part of it is missing: %s", uuid, error)
            return None

    states = {}
    for name in sorted(discover_ktk_cube_dataset_ids(uuid_prefix, blobs)):
        state = load(start + name) if is_wanted(start + name) else None
        if state is not None:
            states[start + name] = state
    cut = read_consistently(blobs, states, load, is_wanted)
    return {uuid.removeprefix(start): state for uuid, state in sorted(cut.items())}


def existing_dataset_ids(uuid_prefix: str, store: StoreInput) -> set[str]:
    """Ids of the datasets of a cube, without those of an operation that has not committed."""
    blobs = open_blobs(store)
    try:
        return set(discover_datasets_unchecked(uuid_prefix, blobs, load_schema=False))
    except (CorruptDatasetError, NotImplementedError):
        # of a damaged dataset only the key is known
        return discover_ktk_cube_dataset_ids(uuid_prefix, blobs)


@alias_parameter("datasets", "filter_ktk_cube_dataset_ids")
def discover_datasets(
    cube: Cube,
    store: StoreInput,
    filter_ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Load the headers of the datasets of a cube and check that they form it.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    datasets, filter_ktk_cube_dataset_ids
        Only these ids.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    ValueError
        If a wanted dataset does not exist, or if the datasets do not form the cube.
    """
    ensure_cube(cube)
    wanted = converter_str_set_optional(filter_ktk_cube_dataset_ids)
    store = open_existing(cube.uuid_prefix, store)
    stored = discover_datasets_unchecked(cube.uuid_prefix, store, wanted)
    if wanted is not None:
        missing = wanted - set(stored)
        if missing:
            raise _not_found(cube, missing, discover_ktk_cube_dataset_ids(cube.uuid_prefix, store))
    check_cube(stored, cube)
    return stored


@alias_parameter("datasets", "filter_ktk_cube_dataset_ids")
def discover_cube(
    uuid_prefix: str,
    store: StoreInput,
    filter_ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> tuple[Cube, dict[str, DatasetMetadata]]:
    """
    Recover the specification of a cube from what is stored.

    Parameters
    ----------
    uuid_prefix
        Prefix of the cube.
    store
        Store, factory or URL.
    datasets, filter_ktk_cube_dataset_ids
        Only these ids; must contain the seed.

    Returns
    -------
    tuple
        The cube, and dataset id to metadata with partition indices loaded.

    Raises
    ------
    ValueError
        If there is no such cube or its datasets do not form one.
    NotImplementedError
        For old cubes with an unusual timestamp column.
    """
    store = open_existing(uuid_prefix, store)
    stored = discover_datasets_unchecked(uuid_prefix, store, filter_ktk_cube_dataset_ids)
    seed = _find_seed(uuid_prefix, stored)
    metadata = stored[seed].metadata
    dimensions = _first(metadata, KTK_CUBE_METADATA_DIMENSION_COLUMNS, KLEE_METADATA_DIMENSION_COLUMNS)
    if dimensions is None:
        raise ValueError(
            f'Could not recover dimension columns from seed dataset ("{seed}") of cube "{uuid_prefix}": '
            f"its metadata has no {KTK_CUBE_METADATA_DIMENSION_COLUMNS}"
        )
    partitions = _partition_columns(uuid_prefix, seed, stored[seed])
    indexed = set().union(*(_indexed(ds) for ds in stored.values()))
    cube = Cube(
        uuid_prefix=uuid_prefix,
        dimension_columns=_names(dimensions, "dimension columns", seed),
        partition_columns=partitions,
        seed_dataset=seed,
        index_columns=indexed - set(dimensions) - set(partitions) - {KLEE_TIMESTAMP_COLUMN},
        suppress_index_on=_names(
            metadata.get(KTK_CUBE_METADATA_SUPPRESS_INDEX_ON) or (), "suppress_index_on", seed
        ),
    )
    return cube, check_datasets(stored, cube)


def _first(metadata: Mapping[str, Any], *keys: str) -> Any:
    return next((metadata[key] for key in keys if metadata.get(key) is not None), None)


def _names(value: Any, what: str, seed: str) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError(
            f"The {what} in the metadata of seed dataset {seed!r} are not a list of names: {value!r}"
        )
    return list(value)


def _find_seed(uuid_prefix: str, datasets: Mapping[str, DatasetMetadata]) -> str:
    seeds = [
        name
        for name, ds in datasets.items()
        if _first(ds.metadata, KTK_CUBE_METADATA_KEY_IS_SEED, KLEE_METADATA_KEY_IS_SEED) is True
    ]
    if not seeds:
        raise ValueError(
            f'Could not find seed dataset for cube "{uuid_prefix}". '
            f"Datasets with this prefix: {', '.join(datasets) or 'none'}"
        )
    if len(seeds) > 1:
        raise ValueError(
            f'Found multiple possible seed datasets for cube "{uuid_prefix}": {", ".join(seeds)}'
        )
    return seeds[0]


def _partition_columns(uuid_prefix: str, seed: str, dataset: DatasetMetadata) -> list[str]:
    stored = _first(dataset.metadata, KTK_CUBE_METADATA_PARTITION_COLUMNS, KLEE_METADATA_PARTITION_COLUMNS)
    timestamp = dataset.metadata.get(KLEE_METADATA_TIMESTAMP_COLUMN)
    if stored is not None:
        columns = _names(stored, "partition columns", seed)
    else:
        keys = list(dataset.partition_keys or [])
        if not keys:
            raise ValueError(f'Seed dataset ("{seed}") of cube "{uuid_prefix}" has no partition keys')
        if len(keys) < 2:
            raise ValueError(
                f'Seed dataset ("{seed}") of cube "{uuid_prefix}" has only a single partition key '
                f"({keys[0]}), "
                "an old cube needs at least one beside the timestamp column"
            )
        columns, timestamp = keys[:-1], timestamp or keys[-1]
    if timestamp is not None and timestamp != KLEE_TIMESTAMP_COLUMN:
        raise NotImplementedError(
            f'Can only read old cubes with timestamp column "{KLEE_TIMESTAMP_COLUMN}", but got "{timestamp}"'
        )
    return columns


def _indexed(dataset: DatasetMetadata) -> set[str]:
    """Columns with an index beyond the partition keys that the header implies."""
    return (set(dataset.indices) - set(dataset.partition_keys or [])) & get_dataset_columns(dataset)


def choose_datasets(cube: Cube, ids: str | Iterable[str] | None, existing: Collection[str]) -> set[str]:
    """The dataset ids that a user gave, all of which have to exist; None for all existing ones."""
    chosen = set(existing) if ids is None else set(converter_str_set(ids))
    if chosen - set(existing):
        raise _not_found(cube, chosen - set(existing), existing)
    return chosen


def _not_found(cube: Cube, missing: Collection[str], existing: Collection[str]) -> ValueError:
    return ValueError(
        f"Could not find datasets of cube {cube.uuid_prefix}: " + unknown_names("dataset", missing, existing)
    )


def select_datasets(
    cube: Cube, store: StoreInput, datasets: DatasetsInput, *, must_exist: bool = True
) -> dict[str, DatasetMetadata]:
    """The ``datasets`` argument: all, ids, or loaded headers; those without a schema are absent."""
    ensure_cube(cube)
    if isinstance(datasets, Mapping):
        return dict(datasets)
    blobs = open_existing(cube.uuid_prefix, store)
    wanted = converter_str_set_optional(datasets)
    if wanted is not None and must_exist:
        choose_datasets(cube, wanted, discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs))
    return discover_datasets_unchecked(cube.uuid_prefix, blobs, wanted)


def open_existing(uuid_prefix: str, store: StoreInput | BlobStore) -> BlobStore:
    """Open a store to read a cube from it; ValueError if its directory does not exist."""
    blobs = open_blobs(store)
    directory = blobs.missing_directory
    if directory is not None:
        raise ValueError(f"Could not find cube {uuid_prefix}: there is no directory {directory}")
    return blobs
