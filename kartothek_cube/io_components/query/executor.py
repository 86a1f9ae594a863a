"""Executor of query tasks: scan and join the datasets block by block, sort the rows, split them by group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from itertools import compress, pairwise
from operator import itemgetter
from typing import NamedTuple, TypeVar

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import align_date_units, cast_to_schema
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.copying import replace_fields
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions.predicate import AllOf, Node, columns_of, tree_mask
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.query.dynamic_filter import load_filtered_datasets
from kartothek_cube.io_components.query.frame_conversion import (
    OutputBuffer,
    frames_of_slices,
    frames_of_tables,
)
from kartothek_cube.io_components.query.group_output import (
    GroupedBatch,
    GroupedTable,
    GroupSplitter,
    sort_table,
)
from kartothek_cube.io_components.query.join import join, join_by_order
from kartothek_cube.io_components.query.physical_plan import (
    PhysicalPlan,
    Predicates,
    ScanContext,
    ScanTask,
    column_fraction,
)
from kartothek_cube.io_components.query.row_batch import RowBatch, concat_rows
from kartothek_cube.io_components.query.scan import (
    PartitionedFiles,
    group_files_by_partition,
    load_rows,
    scan_colocated,
    stored_columns,
)
from kartothek_cube.io_components.read.data_files import (
    WORTH_A_THREAD,
    Source,
    concat_tables,
    open_columns,
)
from kartothek_cube.io_components.read.prefetch import FileBytes, FilePrefetcher, FileRequest, fetch_file
from kartothek_cube.io_components.runtime import (
    available_cores,
    batched,
    mean_size,
    ordered_map,
    progress_add_total,
    split_by_weight,
    take_turn,
)
from kartothek_cube.serialization.parquet_reader import ChunkCache
from kartothek_cube.serialization.ranged_read import read_footer

__all__ = (
    "frames_of_result",
    "prefetch_tasks",
    "query_job",
    "query_table_job",
    "run_frame_blocks",
    "run_frames",
    "run_single_frame",
    "run_table",
    "run_task",
)

#: limits of what is read of the next tasks: requests that hide their latency, and memory
_FILES_AHEAD, _BYTES_AHEAD = 32, 64 << 20
Task = TypeVar("Task")
Result = TypeVar("Result")
#: rows of a broadcast side times blocks: each block searches all rows of the side, and above this limit
#: one join with all rows of the seed is cheaper although it waits for all blocks
_BROADCAST_ROWS = 1 << 22
#: bytes in the files of a block: its columns fit into the cache of a core, and outweigh the cost of a block
_BLOCK = 1 << 20
#: a physical partition of this many bytes is a block of its own: late materialisation needs single files
_MIN_BLOCK_BYTES = 1 << 17
#: bytes in the files of a block of an unsorted scan without predicates, if its partitions are smaller than
#: `_BLOCK`: joins and checks of order take as long for few rows as for many
_PLAIN_BLOCK = 1 << 22
#: files of a dataset whose sizes are taken for those of all
_SAMPLE = 4
#: slices of blocks per thread, if conditions drop rows
_SLICES = 2
#: local files of a short task, unless they are large
_FEW_FILES = 16
#: rows of all datasets in a block that has been read: the keys to join fit into the cache of a core
_BLOCK_ROWS = 1 << 17
#: blocks of fewer rows are joined and sorted together: the calls cost more than the rows
_FEW_ROWS = 1 << 13


def run_frames(context: ScanContext, task: ScanTask) -> list[pd.DataFrame]:
    """DataFrames of a task, with the same unit of dates in all of them."""
    with take_turn(_is_short(context, task)):
        return _make_frames(context, task)


def _is_short(context: ScanContext, task: ScanTask) -> bool:
    return context.open_store().is_local and sum(len(files.labels) for files in task.files) <= _FEW_FILES


def _make_frames(context: ScanContext, task: ScanTask) -> list[pd.DataFrame]:
    backend = context.dtype_backend
    groups = _run_groups(context, task, OutputBuffer() if backend is None else None)
    if len(groups) == 1 and len(groups[0].bounds) > 2:
        table, bounds = groups.pop()
        if backend is not None:
            table = cast_to_schema(table, context.output)
        return _align_dates(context, frames_of_slices(table, bounds, backend))
    tables = [group.table for group in groups]
    groups.clear()  # so that frames take the memory of the tables
    return frames_of_result(context, tables)


def frames_of_result(context: ScanContext, tables: list[pa.Table]) -> list[pd.DataFrame]:
    """DataFrames of the tables of a query, with the same types in all of them; ``tables`` is emptied."""
    if context.dtype_backend is not None:
        tables[:] = [cast_to_schema(table, context.output) for table in tables]
    return _align_dates(context, list(frames_of_tables(tables, context.dtype_backend)))


def _align_dates(context: ScanContext, frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
    if context.dtype_backend is None and any(pa.types.is_date(field.type) for field in context.output):
        # datetime64[s] for all if a column of one has dates that datetime64[ns] cannot hold
        align_date_units(frames)
    return frames


def query_job(
    plan: PhysicalPlan, tasks: Iterable[Task], run: Callable[[ScanContext, Task], Result], step: str = "group"
) -> Job[ScanContext, Task, Result, list[Result]]:
    """Execute scan tasks, or blocks of these; the answer is the list of their results."""
    return Job(
        name="query_cube",
        description="query cube",
        context=plan.context,
        tasks=tasks,
        run=run,
        finish=list,
        steps=("prepare", step, "done"),
    )


def run_frame_blocks(context: ScanContext, tasks: Iterable[ScanTask]) -> list[pd.DataFrame]:
    """Frames of several tasks; groups without rows are absent."""
    return [frame for task in tasks for frame in run_frames(context, task)]


def run_single_frame(context: ScanContext, task: ScanTask | None) -> pd.DataFrame:
    """Frame of a task with at most one group; without task or rows, the planned columns and types."""
    frames = [] if task is None else run_frames(context, task)
    return frames[0] if frames else frames_of_result(context, [context.output.empty_table()])[0]


def query_table_job(
    plan: PhysicalPlan, limit: int | None = None
) -> Job[PhysicalPlan, int | None, pa.Table, pa.Table]:
    """Read a query without groups into one table, which has no rows if nothing matches."""
    return Job(
        name="query_cube",
        description="query cube",
        context=plan,
        tasks=[limit],
        run=run_table,
        finish=lambda tables: next(iter(tables)),
        steps=("prepare", "group", "done"),
    )


def run_table(plan: PhysicalPlan, limit: int | None = None) -> pa.Table:
    """Table of a plan without groups; with a limit, files are read until there are so many rows."""
    context, n_rows = plan.context, 0
    tables: list[pa.Table] = []
    for start, stop in pairwise(_block_ends(plan.n_partitions, limit)):
        if limit is not None and n_rows >= limit:
            break
        (task,) = plan.slice_tasks(np.array([start, stop]))
        tables += run_task(context, task)
        n_rows = sum(map(len, tables))
    if len(tables) > 1:
        table = concat_tables(tables, context.output, context.scans[0].uuid)
        tables = [sort_table(table, context.sort_columns)]
    table = tables[0] if tables else context.output.empty_table()
    return table if limit is None else table.slice(0, limit)


def _block_ends(n_partitions: int, limit: int | None) -> list[int]:
    """Ends of blocks of partitions: all at once, or 1, 1, 2, 4, ... so that few more than needed are read."""
    ends = [0]
    if limit is not None:
        # doubled, as tables of datasets without partitions are read once per block
        ends += [1 << i for i in range(n_partitions.bit_length()) if 1 << i < n_partitions]
    return [*ends, n_partitions] if n_partitions else ends


def run_task(context: ScanContext, task: ScanTask) -> list[pa.Table]:
    """Sorted tables of a task, with the columns of ``context.output``: one per group that has rows."""
    with take_turn(_is_short(context, task)):
        return [table for groups in _run_groups(context, task) for table in groups.tables()]


def _run_groups(
    context: ScanContext, task: ScanTask, buffer: OutputBuffer | None = None
) -> list[GroupedTable]:
    """
    Sorted rows of a task, with the columns of ``context.output``, by groups.

    Rows of a task without groups are written to ``buffer``, which becomes the memory of one DataFrame.
    """
    blobs = context.open_store()
    progress_add_total(sum(len(files.labels) for files in task.files))
    datasets = group_files_by_partition(context, task)
    if not len(datasets[0]):
        return []
    if blobs.is_local:
        return _run_blocks(context, task, buffer, datasets, None)
    with task.prefetcher or FilePrefetcher(blobs, _file_requests(datasets)) as prefetcher:
        return _run_blocks(context, task, buffer, datasets, prefetcher)


def prefetch_tasks(context: ScanContext, tasks: Sequence[ScanTask]) -> Iterator[ScanTask]:
    """The tasks; from the second on, the files of the next ones are read while one is processed."""
    # not with the first: a consumer may need no more than that
    blobs = context.open_store()
    if blobs.is_local:
        yield from tasks
        return
    remaining, ahead = deque(tasks), deque[ScanTask]()
    allowed = 1
    try:
        while remaining or ahead:
            while remaining and len(ahead) < allowed:
                requests = _file_requests(group_files_by_partition(context, remaining[0]))
                prefetcher = FilePrefetcher(blobs, requests)
                ahead.append(attrs.evolve(remaining.popleft(), prefetcher=prefetcher))
            task = ahead.popleft()
            yield task
            used = task.prefetcher
            if used is not None:
                allowed = 1 + int(min(_FILES_AHEAD / max(len(used), 1), _BYTES_AHEAD / max(used.nbytes, 1)))
            del task, used
    finally:
        for task in ahead:
            if task.prefetcher is not None:
                task.prefetcher.close()


def _run_blocks(
    context: ScanContext,
    task: ScanTask,
    buffer: OutputBuffer | None,
    datasets: Sequence[PartitionedFiles],
    prefetcher: FilePrefetcher | None,
) -> list[GroupedTable]:
    """Process the files of a task block by block; those of a remote store while others are being fetched."""
    blobs = context.open_store()
    file_sizes = _mean_file_sizes(blobs, datasets, prefetcher)
    # late materialisation and equal cells, for which a partition is a block of its own, are of no use here
    is_plain = not context.sort_columns or (prefetcher is not None and len(datasets) == 1)
    aligned = [(files, size) for files, size in zip(datasets, file_sizes, strict=True) if files.aligned]
    filtered = load_filtered_datasets(
        blobs,
        [files for files, _ in aligned],
        [size for _, size in aligned],
        task.predicates,
        # without predicates, blocks are as fast for unsorted rows, and groups are split on all cores
        allow_plain=bool(context.sort_columns) and task.groups is None,
    )
    if filtered is None:
        bounds = _block_bounds(datasets, file_sizes, plain=is_plain).tolist()
    else:
        filtered = _join_while_ordered(filtered)
        bounds = _join_bounds(filtered, int(datasets[0].partition_ids[-1]) + 1).tolist()
    n_blocks = len(bounds) - 1
    shared = [load_rows(blobs, files, task.predicates) for files in datasets if not files.aligned]
    # joined to every block; or, if they are large, once to the rows of all blocks
    is_small = [n_blocks == 1 or len(rows) * n_blocks <= _BROADCAST_ROWS for rows in shared]
    deferred = [rows for rows, small in zip(shared, is_small, strict=True) if not small]
    if filtered is None:
        threads = _block_threads(datasets, file_sizes, n_blocks)
    else:
        threads = _BlockThreads(min(n_blocks, available_cores()), 1)
    pipeline = _BlockPipeline(
        blobs=blobs,
        prefetcher=prefetcher,
        datasets=[files for files, _ in aligned],
        filtered=filtered,
        predicates=task.predicates,
        broadcast=list(compress(shared, is_small)),
        file_threads=threads.files,
        single_block=n_blocks == 1,
    )
    # blocks that overlap are sorted at the end in any case
    splitter = GroupSplitter.of(context, task.groups, defer_sort=prefetcher is not None and n_blocks > 1)
    if not deferred:
        drops_rows = bool(context.join_filters) or any(scan.predicates for scan in context.scans)
        if buffer is not None and task.groups is None and not drops_rows:
            if filtered is None or n_blocks == 1:
                counts = _row_counts(blobs, datasets[0], n_blocks)
            else:
                counts = [len(filtered[0].between(*block)) for block in pairwise(bounds)]
            buffer.reserve(counts, context.output.names, context.sort_columns)
        process = partial(_process_blocks, pipeline, splitter, buffer if task.groups is None else None)
        blocks = list(enumerate(pairwise(bounds)))
        # rows of several blocks are joined, sorted and split at once if conditions leave few of them
        size = -(-n_blocks // (threads.blocks * _SLICES)) if drops_rows and prefetcher is None else 1
        slices = ordered_map(process, batched(blocks, size), threads.blocks)
        batches = [batch for batches in slices for batch in batches]
        if buffer is not None:
            buffer.release()
    else:
        scanned = list(ordered_map(pipeline.scan, list(pairwise(bounds)), threads.blocks))
        seed = pipeline.join_broadcast(concat_rows(scanned, pa.schema([])))
        for rows in deferred:
            seed = join(seed, rows)
        batches = [splitter.split(_filter_joined(seed, context.join_filters))]
    return splitter.concat_groups(batches)


@attrs.frozen
class _BlockPipeline:
    """Scan and join of blocks of physical partitions; called on many threads."""

    blobs: BlobStore
    #: of a store that is not local
    prefetcher: FilePrefetcher | None
    #: files of the datasets that are partitioned like the seed, the seed first
    datasets: Sequence[PartitionedFiles]
    predicates: Predicates
    broadcast: Sequence[RowBatch]
    file_threads: int
    single_block: bool
    #: key columns of the file read last, which the next one often repeats
    chunk_cache: ChunkCache = attrs.field(factory=ChunkCache)
    #: rows of the datasets, if they have been read by filtered scans
    filtered: Sequence[RowBatch] | None = None

    def scan(self, bounds: tuple[int, int]) -> RowBatch:
        """Rows of the physical partitions between the bounds, joined with those of aligned datasets."""
        if self.filtered is not None:
            return reduce(join, [rows.between(*bounds) for rows in self.filtered])
        datasets = [files.between(*bounds) for files in self.datasets]
        prefetcher = self.prefetcher
        if prefetcher is None:
            return self._scan_and_join(datasets, {})
        keys = [key for files in datasets for key in files.keys if key in prefetcher]
        fetched = {key: prefetcher.take(key) for key in keys}
        try:
            return self._scan_and_join(datasets, fetched)
        except CorruptDatasetError:
            ranges = [key for key, file in fetched.items() if isinstance(file, pa.Buffer)]
            if not ranges:
                raise
            # a buffer holds only the requested ranges of a file: those may be too few, and the file valid
            fetched.update((key, fetch_file(self.blobs, key, None)) for key in ranges)
            return self._scan_and_join(datasets, fetched)

    def _scan_and_join(self, datasets: list[PartitionedFiles], fetched: Mapping[str, FileBytes]) -> RowBatch:
        with ExitStack() as stack:
            seed, *others = self._open(datasets, fetched, stack)
            colocated = scan_colocated(seed, others, self.predicates, self.chunk_cache)
            rows, remaining = colocated or (self._load(seed), others)
            for files in remaining:
                rows = join(rows, self._load(files))
        return rows

    def join_broadcast(self, rows: RowBatch) -> RowBatch:
        """The rows with the payload of the datasets that all blocks share."""
        for shared in self.broadcast:
            rows = join(rows, shared)
        return rows

    def _load(self, files: PartitionedFiles) -> RowBatch:
        return load_rows(self.blobs, files, self.predicates, self.file_threads)

    def _open(
        self, datasets: Sequence[PartitionedFiles], fetched: Mapping[str, FileBytes], stack: ExitStack
    ) -> list[PartitionedFiles]:
        """Open each Parquet file that is the only one of its dataset in the block."""
        sources: dict[str, Source] = {**fetched}
        for files in datasets:
            if len(files) == 1 and files.keys[0].endswith(PARQUET_FILE_SUFFIX):
                key = files.keys[0]
                columns = open_columns(
                    self.blobs, key, fetched.get(key), threads=self.single_block, mapping=files.scan.mapping
                )
                sources[key] = stack.enter_context(columns)
        return [replace_fields(files, sources=sources) for files in datasets]


def _process_blocks(
    pipeline: _BlockPipeline,
    splitter: GroupSplitter,
    buffer: OutputBuffer | None,
    blocks: Sequence[tuple[int, tuple[int, int]]],
) -> list[GroupedBatch]:
    """Scan consecutive blocks; join and split them one by one, or several with few rows."""
    results: list[GroupedBatch] = []
    pending: list[RowBatch] = []
    for number, bounds in blocks:
        pending.append(pipeline.scan(bounds))
        if number != blocks[-1][0] and sum(map(len, pending)) < _FEW_ROWS:
            continue
        rows = pipeline.join_broadcast(concat_rows(list(filter(len, pending)) or pending[:1], pa.schema([])))
        pending.clear()
        batch = splitter.split(_filter_joined(rows, splitter.context.join_filters))
        if buffer is not None:
            groups = [rows._replace(table=buffer.write_block(number, rows.table)) for rows in batch.groups]
            batch = attrs.evolve(batch, groups=groups)
        results.append(batch)
    return results


def _filter_joined(rows: RowBatch, filters: Sequence[Node]) -> RowBatch:
    """Only the joined rows that meet all filters."""
    if not filters:
        return rows
    node = AllOf(tuple(filters))
    rows = rows.append_partition_keys(sorted(columns_of(node)))
    mask = tree_mask(rows.table, node)
    return rows if mask.true_count == len(rows) else rows.filter(mask.to_numpy(zero_copy_only=False))


def _file_requests(datasets: Sequence[PartitionedFiles]) -> list[FileRequest]:
    """Parquet files of the datasets that are partitioned like the seed, in the order of the blocks."""
    requests: list[tuple[int, FileRequest]] = []
    for files in datasets:
        if files.aligned:
            columns, share = stored_columns(files.scan), column_fraction(files.scan)
            requests += [
                (partition, FileRequest(key, columns, share))
                for partition, key in zip(files.partition_ids.tolist(), files.keys, strict=True)
                if key.endswith(PARQUET_FILE_SUFFIX)
            ]
    return [request for _, request in sorted(requests, key=itemgetter(0))]


def _mean_file_sizes(
    blobs: BlobStore, datasets: Sequence[PartitionedFiles], prefetcher: FilePrefetcher | None
) -> list[float]:
    """Mean bytes of the files of each dataset, from a sample; 0 if they do not matter, or cost requests."""
    matter = any(len(files) > 1 for files in datasets)
    return [_mean_size(blobs, files, prefetcher) if matter else 0.0 for files in datasets]


def _mean_size(blobs: BlobStore, files: PartitionedFiles, prefetcher: FilePrefetcher | None) -> float:
    if prefetcher is None:
        return mean_size(blobs, files.keys[:: max(1, len(files) // _SAMPLE)])
    # the first file is there first
    return float(prefetcher.size(files.keys[0])) if len(files) and files.keys[0] in prefetcher else 0.0


def _block_bounds(datasets: Sequence[PartitionedFiles], file_sizes: Sequence[float], *, plain: bool) -> Ints:
    """Bounds of the blocks of physical partitions; each block is read and joined by one thread."""
    n_partitions = int(datasets[0].partition_ids[-1]) + 1
    if n_partitions == 1:
        return np.array([0, 1])
    weights = np.zeros(n_partitions)
    for files, size in zip(datasets, file_sizes, strict=True):
        if files.aligned and len(files):
            count = np.bincount(files.partition_ids, minlength=n_partitions)
            weights += count * (size * column_fraction(files.scan))
    is_plain = plain and not any(files.scan.predicates or files.scan.implied for files in datasets)
    if weights.mean() >= (_BLOCK if is_plain else _MIN_BLOCK_BYTES):
        return np.arange(n_partitions + 1)
    return split_by_weight(weights, 1, _PLAIN_BLOCK if is_plain else _BLOCK)


def _join_while_ordered(batches: Sequence[RowBatch]) -> list[RowBatch]:
    """The seed with the payload of batches that need no lookup of each key, and the batches after them."""
    seed, *others = batches
    while others and (rows := join_by_order(seed, others[0])) is not None:
        seed = rows
        del others[0]
    return [seed, *others]


def _join_bounds(batches: Sequence[RowBatch], n_partitions: int) -> Ints:
    """Bounds of the blocks of physical partitions whose rows have been read; each is joined by one thread."""
    if len(batches) == 1:
        return np.array([0, n_partitions])
    weights = np.zeros(n_partitions)
    for rows in batches:
        weights += np.bincount(rows.partition_ids, rows.counts, n_partitions)
    return split_by_weight(weights, 1, _BLOCK_ROWS)


class _BlockThreads(NamedTuple):
    """How many blocks are processed at once, and how many files of each are read at once."""

    blocks: int
    files: int


def _block_threads(
    datasets: Sequence[PartitionedFiles], file_sizes: Sequence[float], n_blocks: int
) -> _BlockThreads:
    """Threads for the blocks of a task, by the size of its files."""
    sizes = zip(datasets, file_sizes, strict=True)
    cores = available_cores() if any(len(f) > 1 and size > WORTH_A_THREAD for f, size in sizes) else 1
    return _BlockThreads(min(n_blocks, cores), -(-cores // n_blocks))


def _row_counts(blobs: BlobStore, files: PartitionedFiles, n_blocks: int) -> list[int] | None:
    """Rows in each block of a dataset; None if that is not cheap: each block is one local Parquet file."""
    if n_blocks == 1 or not blobs.is_local or len(files) != n_blocks:
        return None
    if not all(key.endswith(PARQUET_FILE_SUFFIX) for key in files.keys):
        return None
    return [read_footer(blobs, key)[0].num_rows for key in files.keys]
