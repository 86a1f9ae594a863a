"""Checks of arguments that the dask façades of cubes share."""

from __future__ import annotations

import os
from collections.abc import Mapping

from kartothek_cube.core.cube.consistency import get_dataset_columns
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store.resolve import lazy_store
from kartothek_cube.core.typing import StoreFactory, StoreFactoryInput

__all__ = ("as_factory", "check_blocksize", "ensure_valid_cube_indices")


def as_factory(store: StoreFactoryInput) -> StoreFactory:
    """
    The factory with which tasks of a graph open a store: a factory, or that of a URL or directory.

    >>> as_factory("hfs:///data")
    UrlStoreFactory('hfs:///data')
    """
    if isinstance(store, str | os.PathLike):
        return lazy_store(store)
    if not callable(store):
        raise TypeError(
            "store must be a factory (a function without arguments that opens the store), a directory or a "
            f"URL but is {type(store).__name__}"
        )
    return store


def check_blocksize(blocksize: object) -> None:
    """
    Check the number of items per task.

    >>> check_blocksize(0)
    Traceback (most recent call last):
    ...
    ValueError: blocksize must be > 0 but is 0
    """
    if not isinstance(blocksize, int) or isinstance(blocksize, bool):
        raise TypeError(f"blocksize must be an integer but is {type(blocksize).__name__}")
    if blocksize <= 0:
        raise ValueError(f"blocksize must be > 0 but is {blocksize}")


def ensure_valid_cube_indices(existing_datasets: Mapping[str, DatasetMetadata], cube: Cube) -> Cube:
    """Extend a cube by the indices of its datasets; ValueError if a dataset lacks one of the cube."""
    indexed: set[str] = set()
    for name, dataset in sorted(existing_datasets.items()):
        required = set(cube.index_columns) & get_dataset_columns(dataset)
        missing = required - set(dataset.secondary_indices)
        if missing:
            raise ValueError(
                f"Dataset {name!r} has no index on {', '.join(sorted(missing))}, which is an index column of "
                f"{cube}; indexed are: {', '.join(sorted(dataset.secondary_indices)) or 'none'}"
            )
        indexed |= set(dataset.secondary_indices)
    key_columns = {*cube.dimension_columns, *cube.partition_columns}
    return cube.copy(
        index_columns=set(cube.index_columns) | (indexed - key_columns),
        suppress_index_on=set(cube.suppress_index_on) - indexed,
    )
