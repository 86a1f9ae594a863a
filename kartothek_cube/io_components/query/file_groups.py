"""Files of a query task by physical partition, and the blocks of partitions that it is processed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.typing import Ints
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.kernels.encode import group_codes, join_codes
from kartothek_cube.io_components.query.physical_plan import (
    DatasetScan,
    ScanContext,
    ScanTask,
    column_fraction,
)
from kartothek_cube.io_components.read.data_files import Source, read_threads
from kartothek_cube.io_components.runtime.threads import (
    REMOTE_REQUESTS,
    available_cores,
    mean_size,
    split_by_weight,
)
from kartothek_cube.serialization.footers import read_footer
from kartothek_cube.serialization.parquet_reader import ParquetColumns

__all__ = (
    "BlockThreads",
    "PartitionedFiles",
    "block_bounds",
    "block_threads",
    "group_files_by_partition",
    "row_counts",
)


#: bytes in the files of a block: its columns fit into the cache of a core, and outweigh the cost of a block
_BLOCK = 1 << 20
#: a physical partition of this many bytes is a block of its own: late materialisation needs single files
_MIN_BLOCK_BYTES = 1 << 17
#: files of a dataset whose sizes are taken for those of all
_SAMPLE = 4
#: blocks per concurrent request to a remote store: enough for the requests of one block to hide in the others
_REMOTE_BLOCKS = 8


@attrs.frozen
class PartitionedFiles:
    """Files of one dataset, those of a physical partition next to each other, in commit order."""

    scan: DatasetScan
    #: storage keys
    keys: tuple[str, ...]
    #: values of the partition keys of each file
    partition_keys: dict[str, pa.Array]
    #: physical partition of each file, ascending
    partition_ids: Ints
    #: whether the ids are those of the seed; else its partitions share the files
    aligned: bool
    #: files that have been read or opened, by storage key
    sources: Mapping[str, Source] = attrs.field(factory=dict, repr=False, eq=False)

    def __len__(self) -> int:
        return len(self.keys)

    def opened_file(self) -> ParquetColumns | None:
        """The file, if it is the only one and has been opened."""
        source = self.sources.get(self.keys[0]) if len(self.keys) == 1 else None
        return source if isinstance(source, ParquetColumns) else None

    def between(self, start: int, stop: int) -> PartitionedFiles:
        """The files of consecutive physical partitions."""
        low, high = np.searchsorted(self.partition_ids, [start, stop]).tolist()
        return attrs.evolve(
            self,
            keys=self.keys[low:high],
            partition_keys={c: array.slice(low, high - low) for c, array in self.partition_keys.items()},
            partition_ids=self.partition_ids[low:high],
        )


def group_files_by_partition(context: ScanContext, task: ScanTask) -> list[PartitionedFiles]:
    """Files of each dataset of a task, the seed first, without those that match no partition of the seed."""
    seed = _group_files(context, task, 0, None)
    return [seed, *(_group_files(context, task, number, seed) for number in range(1, len(context.scans)))]


def _group_files(
    context: ScanContext, task: ScanTask, number: int, seed: PartitionedFiles | None
) -> PartitionedFiles:
    scan, files = context.scans[number], task.files[number]
    partition_keys = files.partition_values(scan)
    aligned = seed is None or scan.alignment == seed.scan.alignment
    ids = group_codes([partition_keys[column] for column in scan.alignment], len(files.labels))
    if seed is not None and aligned:
        ids = _seed_partition_ids(seed, scan, partition_keys, len(files.labels))
    order = np.argsort(ids, kind="stable")
    order = order[np.searchsorted(ids[order], 0) :]
    keys = files.storage_keys(scan)
    return PartitionedFiles(
        scan=scan,
        keys=tuple(keys[i] for i in order.tolist()),
        partition_keys={column: array.take(pa.array(order)) for column, array in partition_keys.items()},
        partition_ids=ids[order],
        aligned=aligned,
    )


def _seed_partition_ids(
    seed: PartitionedFiles, scan: DatasetScan, partition_keys: dict[str, pa.Array], n_files: int
) -> Ints:
    """Physical partition of the seed for each file, -1 without one."""
    left, right = join_codes(
        [seed.partition_keys[column] for column in scan.alignment],
        [partition_keys[column] for column in scan.alignment],
        len(seed.keys),
        n_files,
    )
    seed_id_of_code = np.full(max(int(left.max(initial=-1)), int(right.max(initial=-1))) + 1, -1, np.int64)
    seed_id_of_code[left] = seed.partition_ids
    return seed_id_of_code[right]


def block_bounds(blobs: BlobStore, datasets: Sequence[PartitionedFiles]) -> Ints:
    """Bounds of the blocks of physical partitions; each block is read and joined by one thread."""
    n_partitions = int(datasets[0].partition_ids[-1]) + 1
    if n_partitions == 1:
        return np.array([0, 1])
    aligned = [files for files in datasets if files.aligned and len(files)]
    counts = [np.bincount(files.partition_ids, minlength=n_partitions) for files in aligned]
    if not blobs.is_local:  # sizes would cost requests
        total = np.sum(counts, axis=0).astype(np.float64)
        return split_by_weight(total, 1, int(np.ceil(total.sum() / (_REMOTE_BLOCKS * REMOTE_REQUESTS))))
    samples = [files.keys[:: max(1, len(files) // _SAMPLE)] for files in aligned]
    sizes = [
        mean_size(blobs, keys) * column_fraction(files.scan)
        for files, keys in zip(aligned, samples, strict=True)
    ]
    weights = np.sum([size * count for size, count in zip(sizes, counts, strict=True)], axis=0)
    if weights.mean() >= _MIN_BLOCK_BYTES:
        return np.arange(n_partitions + 1)
    return split_by_weight(weights, 1, _BLOCK)


class BlockThreads(NamedTuple):
    """How many blocks are processed at once, and how many files of each are read at once."""

    blocks: int
    files: int


def block_threads(blobs: BlobStore, datasets: Sequence[PartitionedFiles], n_blocks: int) -> BlockThreads:
    """Threads for the blocks of a task, by the store and the size of its files."""
    if not blobs.is_local:
        return BlockThreads(min(n_blocks, REMOTE_REQUESTS), -(-REMOTE_REQUESTS // n_blocks))
    large = any(read_threads(blobs, files.keys) > 1 for files in datasets if len(files) > 1)
    cores = available_cores() if large else 1
    return BlockThreads(min(n_blocks, cores), -(-cores // n_blocks))


def row_counts(blobs: BlobStore, files: PartitionedFiles, n_blocks: int) -> list[int] | None:
    """Rows in each block of a dataset; None if that is not cheap: each block is one local Parquet file."""
    if n_blocks == 1 or not blobs.is_local or len(files) != n_blocks:
        return None
    if not all(key.endswith(PARQUET_FILE_SUFFIX) for key in files.keys):
        return None
    return [read_footer(blobs, key)[0].num_rows for key in files.keys]
