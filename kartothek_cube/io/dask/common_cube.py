"""Checks of arguments that the dask façades of cubes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kartothek_cube.core.cube.consistency import get_dataset_columns
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata

__all__ = ("check_blocksize", "check_store", "ensure_valid_cube_indices")


def check_store(store: Any) -> None:
    """
    Check that a store can travel to the tasks of a graph.

    Raises
    ------
    TypeError
        It is not a factory; names its class.

    Examples
    --------
    >>> check_store("hfs:///data")
    Traceback (most recent call last):
    ...
    TypeError: store must be a factory (a function without arguments that opens the store) but is str
    """
    if not callable(store):
        raise TypeError(
            "store must be a factory (a function without arguments that opens the store) "
            f"but is {type(store).__name__}"
        )


def check_blocksize(blocksize: Any) -> None:
    """
    Check how many pieces of work a task gets.

    Raises
    ------
    TypeError
        It is no integer.
    ValueError
        It is not positive.

    Examples
    --------
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
    """
    Extend the specification of a cube by the indices that its datasets have.

    Parameters
    ----------
    existing_datasets
        Datasets by id.
    cube
        The specification.

    Returns
    -------
    Cube

    Raises
    ------
    ValueError
        The specification wants an index on a column of a dataset that has none there.
    """
    found: set[str] = set()
    for name, dataset in sorted(existing_datasets.items()):
        wanted = set(cube.index_columns) & get_dataset_columns(dataset)
        missing = wanted - set(dataset.secondary_indices)
        if missing:
            raise ValueError(
                f"Dataset {name!r} has no index on {', '.join(sorted(missing))}, which is an index column of "
                f"{cube}; indexed are: {', '.join(sorted(dataset.secondary_indices)) or 'none'}"
            )
        found |= set(dataset.secondary_indices)
    own = {*cube.dimension_columns, *cube.partition_columns}
    return cube.copy(
        index_columns=set(cube.index_columns) | (found - own),
        suppress_index_on=set(cube.suppress_index_on) - found,
    )
