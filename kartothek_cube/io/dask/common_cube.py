"""What the dask façades of cubes share: checks of arguments, operations in blocks, the façade of Delayed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import attrs
from dask.delayed import Delayed

from kartothek_cube.core.cube.consistency import get_dataset_columns
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store.resolve import lazy_store
from kartothek_cube.core.typing import StoreFactory, StoreFactoryInput
from kartothek_cube.io.dask._dask_executor import answer_as_delayed
from kartothek_cube.io_components.facade import Example, Operation, facade, plan_job, with_stores
from kartothek_cube.io_components.maintenance.copy import CopyCube
from kartothek_cube.io_components.maintenance.garbage import CleanupCube, DeleteCube
from kartothek_cube.io_components.maintenance.stats import CollectStats

P = ParamSpec("P")
T = TypeVar("T")

#: types that signatures name
TYPES = {"StoreT": "StoreFactoryInput"}
#: how examples compute
SYNC = "{}.compute(scheduler='sync')"

#: what tasks of graphs do, by operation
_TASKS = {
    "delete_cube": "Headers are deleted first, then ``blocksize`` files per task.",
    "cleanup_cube": "Garbage is listed when the graph is built, ``blocksize`` files are deleted per task.",
    "copy_cube": (
        "Arguments are checked when the graph is built; to tell the stores apart, a key is put and "
        "deleted. Each task copies ``blocksize`` files, the last one commits the datasets."
    ),
    "collect_stats": "Each task reads the footers of ``blocksize`` files.",
    "compact_cube": "The partitions to compact are chosen when the graph is built; each task compacts one.",
    "verify_cube": "Headers and the existence of files are checked when the graph is built, files in tasks.",
}


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


# -- operations that tasks do in blocks ----------------------------------------------------------------------


@attrs.frozen
class DeleteCubeBlocks(DeleteCube[StoreFactoryInput]):
    """Delete files in blocks."""

    blocksize: int = 100


@attrs.frozen
class CleanupCubeBlocks(CleanupCube[StoreFactoryInput]):
    """Delete garbage in blocks."""

    blocksize: int = 100


@attrs.frozen
class CopyCubeBlocks(CopyCube[StoreFactoryInput]):
    """Copy files in blocks."""

    blocksize: int = 100


@attrs.frozen
class CollectStatsBlocks(CollectStats[StoreFactoryInput]):
    """Count files in blocks."""

    blocksize: int = 100


def with_factories(operation: T) -> T:
    """The operation with factories as stores; its block size is checked."""
    operation = with_stores(operation, as_factory)
    check_blocksize(getattr(operation, "blocksize", 1))
    return operation


def tasks_note(name: str) -> str:
    """What tasks of a graph do, for the documentation of a façade."""
    return next((note for operation, note in _TASKS.items() if name.startswith(operation)), "")


def delayed_facade(module: str, name: str, operation: Callable[P, Operation[Any]]) -> Callable[P, Delayed]:
    """The façade whose functions return the answer of a job as a Delayed."""

    def run(operation: Operation[Any]) -> Delayed:
        return answer_as_delayed(plan_job(with_factories(operation)))

    note = f"The Delayed gives the result. {tasks_note(name)}".strip()
    return facade(module, name, operation, run, note, TYPES, example=Example(value=SYNC))
