"""Executor of a query task: scan and join the datasets block by block, sort the rows, split them by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import attrs
import pyarrow as pa

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.io_components.query.file_groups import (
    PartitionedFiles,
    block_bounds,
    block_threads,
    group_files_by_partition,
    row_counts,
)
from kartothek_cube.io_components.query.group_output import GroupedBatch, GroupSplitter
from kartothek_cube.io_components.query.join import join
from kartothek_cube.io_components.query.late_materialization import scan_colocated
from kartothek_cube.io_components.query.output_buffer import OutputBuffer
from kartothek_cube.io_components.query.physical_plan import Predicates, ScanContext, ScanTask
from kartothek_cube.io_components.query.row_batch import RowBatch, concat_rows
from kartothek_cube.io_components.query.scan import load_rows, stored_columns
from kartothek_cube.io_components.read.data_files import FileBytes, Source, fetch_files, open_columns
from kartothek_cube.io_components.runtime.progress import progress_add_total
from kartothek_cube.io_components.runtime.threads import ordered_map
from kartothek_cube.serialization.chunk_equality import ChunkCache

__all__ = ("run_task",)

#: rows of a broadcast side times blocks: each block searches all rows of the side, and above this limit
#: one join with all rows of the seed is cheaper although it waits for all blocks
_BROADCAST_ROWS = 1 << 22


def run_task(context: ScanContext, task: ScanTask, buffer: OutputBuffer | None = None) -> list[pa.Table]:
    """
    Sorted tables of a task, with the columns of ``context.output``: one per group that has rows.

    Rows of a task without groups are written to ``buffer``, which becomes the memory of one DataFrame.
    """
    blobs = open_blobs(context.store)
    progress_add_total(sum(len(files.labels) for files in task.files))
    datasets = group_files_by_partition(context, task)
    if not len(datasets[0]):
        return []
    bounds = block_bounds(blobs, datasets).tolist()
    n_blocks = len(bounds) - 1
    shared = [load_rows(blobs, files, task.predicates) for files in datasets if not files.aligned]
    broadcast, deferred = _split_broadcast(shared, n_blocks)
    threads = block_threads(blobs, datasets, n_blocks)
    pipeline = _BlockPipeline(
        context=context,
        blobs=blobs,
        datasets=[files for files in datasets if files.aligned],
        predicates=task.predicates,
        broadcast=broadcast,
        file_threads=threads.files,
        single_block=n_blocks == 1,
    )
    splitter = GroupSplitter.of(context, task.groups, int(datasets[0].partition_ids[-1]) + 1)
    if not deferred:
        if buffer is not None and not _filters_rows(context, task):
            counts = row_counts(blobs, datasets[0], n_blocks)
            buffer.reserve(counts, context.output.names, context.sort_columns)
        process = partial(_process_block, pipeline, splitter, buffer if task.groups is None else None)
        batches = list(ordered_map(process, list(enumerate(pairwise(bounds))), threads.blocks))
        if buffer is not None:
            buffer.release()
    else:
        seed = concat_rows(list(ordered_map(pipeline, list(pairwise(bounds)), threads.blocks)), pa.schema([]))
        for rows in deferred:
            seed = join(seed, rows)
        batches = [splitter.split(seed)]
    return splitter.concat_groups(batches, blobs)


def _filters_rows(context: ScanContext, task: ScanTask) -> bool:
    """Whether conditions may drop rows of the files, or rows are split into groups."""
    return task.groups is not None or any(scan.predicates for scan in context.scans)


class _SharedRows(NamedTuple):
    """Rows of datasets that all partitions of the seed share, by when they are joined."""

    #: joined to every block
    broadcast: list[RowBatch]
    #: joined once, after all blocks
    deferred: list[RowBatch]


def _split_broadcast(shared: Sequence[RowBatch], n_blocks: int) -> _SharedRows:
    """Choose the datasets to join to every block: all for a single block, else the small ones."""
    sides = _SharedRows([], [])
    for rows in shared:
        small = n_blocks == 1 or len(rows) * n_blocks <= _BROADCAST_ROWS
        (sides.broadcast if small else sides.deferred).append(rows)
    return sides


@attrs.frozen
class _BlockPipeline:
    """Scan and join of a block of physical partitions; called on many threads."""

    context: ScanContext
    blobs: BlobStore
    #: files of the datasets that are partitioned like the seed, the seed first
    datasets: Sequence[PartitionedFiles]
    predicates: Predicates
    broadcast: Sequence[RowBatch]
    file_threads: int
    single_block: bool
    #: key columns of the file read last, which the next one often repeats
    chunk_cache: ChunkCache = attrs.field(factory=ChunkCache)

    def __call__(self, bounds: tuple[int, int]) -> RowBatch:
        """Joined rows of the physical partitions between the bounds."""
        datasets = [files.between(*bounds) for files in self.datasets]
        fetched = self._fetch(datasets)
        try:
            return self._scan_and_join(datasets, fetched)
        except CorruptDatasetError:
            if not any(isinstance(file, pa.Buffer) for file in fetched.values()):
                raise
            # a buffer holds only the requested ranges of a file: those may be too few, and the file valid
            return self._scan_and_join(datasets, self._fetch(datasets, whole_files=True))

    def _scan_and_join(self, datasets: list[PartitionedFiles], fetched: Mapping[str, FileBytes]) -> RowBatch:
        with ExitStack() as stack:
            seed, *others = self._open(datasets, fetched, stack)
            colocated = scan_colocated(seed, others, self.predicates, self.chunk_cache)
            rows, remaining = colocated or (self._load(seed), others)
            for files in remaining:
                rows = join(rows, self._load(files))
        for shared in self.broadcast:
            rows = join(rows, shared)
        return rows

    def _load(self, files: PartitionedFiles) -> RowBatch:
        return load_rows(self.blobs, files, self.predicates, self.file_threads)

    def _fetch(
        self, datasets: Sequence[PartitionedFiles], *, whole_files: bool = False
    ) -> dict[str, FileBytes]:
        """Files of a remote store, all of them or only the columns to read."""
        requests = [
            (key, None if whole_files else stored_columns(files.scan))
            for files in datasets
            for key in files.keys
        ]
        return fetch_files(self.blobs, requests, self.file_threads)

    def _open(
        self, datasets: Sequence[PartitionedFiles], fetched: Mapping[str, FileBytes], stack: ExitStack
    ) -> list[PartitionedFiles]:
        """Open each Parquet file that is the only one of its dataset in the block."""
        sources: dict[str, Source] = {**fetched}
        for files in datasets:
            if len(files) == 1 and files.keys[0].endswith(PARQUET_FILE_SUFFIX):
                key = files.keys[0]
                columns = open_columns(self.blobs, key, fetched.get(key), threads=self.single_block)
                sources[key] = stack.enter_context(columns)
        return [attrs.evolve(files, sources=sources) for files in datasets]


def _process_block(
    pipeline: _BlockPipeline,
    splitter: GroupSplitter,
    buffer: OutputBuffer | None,
    numbered_bounds: tuple[int, tuple[int, int]],
) -> GroupedBatch:
    number, bounds = numbered_bounds
    batch = splitter.split(pipeline(bounds))
    if buffer is None:
        return batch
    groups = [rows._replace(table=buffer.write_block(number, rows.table)) for rows in batch.groups]
    return attrs.evolve(batch, groups=groups)
