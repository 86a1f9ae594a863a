"""The files of a query task by physical partition, and how to cut the task into blocks of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.kernels.encode import group_codes, join_codes
from kartothek_cube.io_components.query.physical_plan import (
    DatasetScan,
    ScanContext,
    ScanTask,
    column_fraction,
)
from kartothek_cube.io_components.read.data_files import Content, read_threads
from kartothek_cube.io_components.runtime.task_sizing import mean_size, split_by_weight
from kartothek_cube.io_components.runtime.threads import REMOTE_REQUESTS, available_cores
from kartothek_cube.serialization.footers import read_footer
from kartothek_cube.serialization.parquet_reader import ParquetColumns

__all__ = ("PartitionedFiles", "block_bounds", "block_threads", "file_sets", "row_counts")

Ints: TypeAlias = npt.NDArray[np.int64]

#: bytes in files that make a block: its columns fit into the cache of a core, and are worth the overhead
_BLOCK = 1 << 20
#: bytes in the files of a physical partition that is a block of its own: shortcuts need that
_MIN_BLOCK_BYTES = 1 << 17
#: files that are looked at to know how large they are
_SAMPLE = 4
#: blocks per request that is under way to a remote store
_REMOTE_BLOCKS = 8


@attrs.frozen
class PartitionedFiles:
    """
    Files of one dataset, those of a physical partition next to each other, in commit order.

    Attributes
    ----------
    source
        The dataset.
    keys
        Storage keys.
    constants
        Values of the partition keys of each file.
    unit
        Physical partition of each file, ascending.
    aligned
        Whether the physical partitions are numbered as those of the seed; else those of the seed share them.
    contents
        Files that have been read or opened already, by key.
    """

    source: DatasetScan
    keys: tuple[str, ...]
    constants: dict[str, pa.Array]
    unit: Ints
    aligned: bool
    contents: Mapping[str, Content] = attrs.field(factory=dict, repr=False, eq=False)

    def __len__(self) -> int:
        return len(self.keys)

    def opened(self) -> ParquetColumns | None:
        """The file, if it is the only one and has been opened."""
        content = self.contents.get(self.keys[0]) if len(self.keys) == 1 else None
        return content if isinstance(content, ParquetColumns) else None

    def between(self, start: int, stop: int) -> PartitionedFiles:
        """The files of some consecutive partitions."""
        low, high = np.searchsorted(self.unit, [start, stop]).tolist()
        return PartitionedFiles(
            source=self.source,
            keys=self.keys[low:high],
            constants={column: array.slice(low, high - low) for column, array in self.constants.items()},
            unit=self.unit[low:high],
            aligned=self.aligned,
            contents=self.contents,
        )


def file_sets(context: ScanContext, task: ScanTask) -> list[PartitionedFiles]:
    """
    Sort the files of a task by physical partition.

    Parameters
    ----------
    context, task
        The task.

    Returns
    -------
    list of FileSet
        The seed first. Files that have no partner in the seed are left out.
    """
    seed = _file_set(context, task, 0, None)
    return [seed, *(_file_set(context, task, number, seed) for number in range(1, len(context.sources)))]


def _file_set(
    context: ScanContext, task: ScanTask, number: int, seed: PartitionedFiles | None
) -> PartitionedFiles:
    source, files = context.sources[number], task.files[number]
    constants = files.partition_values(source)
    aligned = seed is None or source.alignment == seed.source.alignment
    unit = group_codes([constants[column] for column in source.alignment], len(files.labels))
    if seed is not None and aligned:
        unit = _partner_units(seed, source, constants, len(files.labels))
    order = np.argsort(unit, kind="stable")
    order = order[np.searchsorted(unit[order], 0) :]
    keys = files.storage_keys(source)
    return PartitionedFiles(
        source=source,
        keys=tuple(keys[i] for i in order.tolist()),
        constants={column: array.take(pa.array(order)) for column, array in constants.items()},
        unit=unit[order],
        aligned=aligned,
    )


def _partner_units(
    seed: PartitionedFiles, source: DatasetScan, constants: dict[str, pa.Array], n_files: int
) -> Ints:
    """Number of the seed's physical partition for each file, -1 where there is none."""
    ours, theirs = join_codes(
        [seed.constants[column] for column in source.alignment],
        [constants[column] for column in source.alignment],
        len(seed.keys),
        n_files,
    )
    unit_of = np.full(max(int(ours.max(initial=-1)), int(theirs.max(initial=-1))) + 1, -1, dtype=np.int64)
    unit_of[ours] = seed.unit
    return unit_of[theirs]


def block_bounds(blobs: BlobStore, sets: Sequence[PartitionedFiles]) -> Ints:
    """
    Cut the physical partitions of the seed into blocks; each is read and joined by one thread.

    Parameters
    ----------
    blobs
        The store.
    sets
        Files of the datasets; those that are not aligned do not count.

    Returns
    -------
    numpy.ndarray of int64
        From 0 to the number of physical partitions.
    """
    n_units = int(sets[0].unit[-1]) + 1
    if n_units == 1:
        return np.array([0, 1])
    aligned = [files for files in sets if files.aligned and len(files)]
    counts = [np.bincount(files.unit, minlength=n_units) for files in aligned]
    if not blobs.is_local:  # the sizes would cost requests, too
        total = np.sum(counts, axis=0).astype(np.float64)
        return split_by_weight(total, 1, int(np.ceil(total.sum() / (_REMOTE_BLOCKS * REMOTE_REQUESTS))))
    samples = [files.keys[:: max(1, len(files) // _SAMPLE)] for files in aligned]
    sizes = [
        mean_size(blobs, keys) * column_fraction(files.source)
        for files, keys in zip(aligned, samples, strict=True)
    ]
    weights = np.sum([size * count for size, count in zip(sizes, counts, strict=True)], axis=0)
    return (
        np.arange(n_units + 1) if weights.mean() >= _MIN_BLOCK_BYTES else split_by_weight(weights, 1, _BLOCK)
    )


def block_threads(blobs: BlobStore, sets: Sequence[PartitionedFiles], n_blocks: int) -> tuple[int, int]:
    """
    How many threads to use.

    Parameters
    ----------
    blobs
        The store.
    sets
        Files of the datasets.
    n_blocks
        Number of blocks.

    Returns
    -------
    blocks
        How many blocks to work on at once.
    files
        How many files of a block to read at once.
    """
    if not blobs.is_local:
        return min(n_blocks, REMOTE_REQUESTS), -(-REMOTE_REQUESTS // n_blocks)
    large = any(read_threads(blobs, files.keys) > 1 for files in sets if len(files) > 1)
    cores = available_cores() if large else 1
    return min(n_blocks, cores), -(-cores // n_blocks)


def row_counts(blobs: BlobStore, files: PartitionedFiles, n_blocks: int) -> list[int] | None:
    """
    Number of rows in each block of a dataset, if that is cheap to know.

    Parameters
    ----------
    blobs
        The store.
    files
        Its files.
    n_blocks
        How many blocks there are.

    Returns
    -------
    list of int or None
        None unless there are several blocks, each of one file on a local disk.
    """
    if n_blocks == 1 or not blobs.is_local or len(files) != n_blocks:
        return None
    if not all(key.endswith(PARQUET_FILE_SUFFIX) for key in files.keys):
        return None
    return [read_footer(blobs, key)[0].num_rows for key in files.keys]
