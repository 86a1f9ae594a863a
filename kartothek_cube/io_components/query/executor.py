"""Executing a query task: load the datasets block by block, join them cell by cell, sort and split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

import attrs
import pyarrow as pa

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.io_components.query.file_groups import (
    PartitionedFiles,
    block_bounds,
    block_threads,
    file_sets,
    row_counts,
)
from kartothek_cube.io_components.query.group_output import GroupedBatch, GroupSplitter
from kartothek_cube.io_components.query.join import join
from kartothek_cube.io_components.query.late_materialization import scan_colocated
from kartothek_cube.io_components.query.output_buffer import OutputBuffer
from kartothek_cube.io_components.query.physical_plan import ScanContext, ScanTask
from kartothek_cube.io_components.query.row_batch import RowBatch, concat_rows
from kartothek_cube.io_components.query.scan import Literals, empty_scan, load_rows, stored_columns
from kartothek_cube.io_components.read.data_files import Content, Raw, fetch_files, open_columns
from kartothek_cube.io_components.runtime.threads import ordered_map, progress_add_total
from kartothek_cube.serialization.chunk_equality import ChunkCache

__all__ = ("run_task",)

#: rows of a dataset without partitions that may be looked at in total, if every block looks at all of them
_BROADCAST_ROWS = 1 << 22


def run_task(context: ScanContext, task: ScanTask, room: OutputBuffer | None = None) -> list[pa.Table]:
    """
    Execute one task.

    Parameters
    ----------
    context
        What all tasks of the query share.
    task
        Which files to read and which groups to make of their rows.
    room
        Where to put the rows, if they are to be one DataFrame.

    Returns
    -------
    list of pyarrow.Table
        One table per group with rows, in the order of ``task.groups``; at most one without groups. Rows are
        sorted, columns are those of ``context.output``.
    """
    blobs = open_blobs(context.store)
    progress_add_total(sum(len(files.labels) for files in task.files))
    sets = file_sets(context, task)
    if not len(sets[0]):
        return []
    bounds = block_bounds(blobs, sets).tolist()
    shared = [load_rows(blobs, files, task.literals) for files in sets if not files.aligned]
    often, late = _split_broadcast(shared, len(bounds) - 1)
    threads, files_at_once = block_threads(blobs, sets, len(bounds) - 1)
    aligned = [files for files in sets if files.aligned]
    block = _BlockPipeline(context, blobs, aligned, task.literals, often, files_at_once, len(bounds) == 2)
    groups = GroupSplitter.of(context, task.groups, int(sets[0].unit[-1]) + 1)
    if not late:
        if room is not None and not _filters_rows(context, task):
            counts = row_counts(blobs, sets[0], len(bounds) - 1)
            room.reserve(counts, context.output.names, context.sort_columns)
        finish = partial(_process_block, block, groups, room if task.groups is None else None)
        pieces = list(ordered_map(finish, list(enumerate(pairwise(bounds))), threads))
        if room is not None:
            room.release()
    else:
        seed = concat_rows(list(ordered_map(block, list(pairwise(bounds)), threads)), pa.schema([]))
        for rows in late:
            join(seed, rows)
        pieces = [groups.split(seed)]
    return groups.concat_groups(pieces, blobs)


def _filters_rows(context: ScanContext, task: ScanTask) -> bool:
    """Whether conditions may drop rows of the files, or rows are split into groups."""
    return task.groups is not None or any(source.predicates for source in context.sources)


def _split_broadcast(shared: Sequence[RowBatch], n_blocks: int) -> tuple[list[RowBatch], list[RowBatch]]:
    """Datasets to join to every block, and large ones that are joined once to all rows."""
    often: list[RowBatch] = []
    late: list[RowBatch] = []
    for rows in shared:
        (often if n_blocks == 1 or len(rows) * n_blocks <= _BROADCAST_ROWS else late).append(rows)
    return often, late


@attrs.frozen
class _BlockPipeline:
    """Loads and joins what a block of physical partitions holds; runs on many threads."""

    context: ScanContext
    blobs: BlobStore
    sets: Sequence[PartitionedFiles]
    literals: Literals
    shared: Sequence[RowBatch]
    files_at_once: int
    alone: bool
    last: ChunkCache = attrs.field(factory=ChunkCache)

    def __call__(self, bounds: tuple[int, int]) -> RowBatch:
        """Join the rows of the physical partitions between the bounds."""
        sets = [files.between(*bounds) for files in self.sets]
        contents = self._fetched(sets)
        try:
            return self._joined(sets, contents)
        except CorruptDatasetError:
            if not any(isinstance(content, pa.Buffer) for content in contents.values()):
                raise
            # maybe only because parts of a file were left out
            return self._joined(sets, self._fetched(sets, whole=True))

    def _joined(self, sets: list[PartitionedFiles], contents: Mapping[str, Raw]) -> RowBatch:
        with ExitStack() as stack:
            sets = self._opened(sets, contents, stack)
            seed, others = scan_colocated(sets[0], sets[1:], self.literals, self.last) or (
                self._load(sets[0]),
                sets[1:],
            )
            for files in others:
                join(seed, self._load(files) if len(seed) else empty_scan(files) or self._load(files))
        for rows in self.shared:
            join(seed, rows)
        return seed

    def _load(self, files: PartitionedFiles) -> RowBatch:
        return load_rows(self.blobs, files, self.literals, self.files_at_once)

    def _fetched(self, sets: Sequence[PartitionedFiles], *, whole: bool = False) -> dict[str, Raw]:
        """Contents of files in a remote store, at least of the columns needed."""
        wanted = [(key, None if whole else stored_columns(s.source)) for s in sets for key in s.keys]
        return fetch_files(self.blobs, wanted, self.files_at_once)

    def _opened(
        self, sets: Sequence[PartitionedFiles], fetched: Mapping[str, Raw], stack: ExitStack
    ) -> list[PartitionedFiles]:
        """Open files that are alone in the block."""
        contents: dict[str, Content] = {**fetched}
        for files in sets:
            if len(files) == 1 and files.keys[0].endswith(PARQUET_FILE_SUFFIX):
                key = files.keys[0]
                opened = open_columns(self.blobs, key, fetched.get(key), threads=self.alone)
                contents[key] = stack.enter_context(opened)
        return [attrs.evolve(files, contents=contents) for files in sets]


def _process_block(
    block: _BlockPipeline,
    groups: GroupSplitter,
    room: OutputBuffer | None,
    numbered: tuple[int, tuple[int, int]],
) -> GroupedBatch:
    number, bounds = numbered
    piece = groups.split(block(bounds))
    if room is None:
        return piece
    return attrs.evolve(
        piece, groups=[(group, room.write_block(number, table)) for group, table in piece.groups]
    )
