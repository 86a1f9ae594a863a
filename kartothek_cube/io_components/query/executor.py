"""Executor of query tasks: scan and join the datasets block by block, sort the rows, split them by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core import tuning
from kartothek_cube.core.arrow.pandas_conversion import align_date_units
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.expressions.predicate import AllOf, Node, columns_of, tree_mask
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.query.frame_conversion import FrameBuilder, frame_of_table, frames_of_slices
from kartothek_cube.io_components.query.group_output import (
    BlockRows,
    are_sorted,
    end_rows,
    group_rows,
    make_output,
    sort_table,
)
from kartothek_cube.io_components.query.join import join
from kartothek_cube.io_components.query.logical_plan import Role
from kartothek_cube.io_components.query.physical_plan import (
    Group,
    PhysicalPlan,
    Predicates,
    ScanContext,
    ScanFiles,
    ScanTask,
    column_fraction,
)
from kartothek_cube.io_components.query.row_batch import RowBatch, load_rows
from kartothek_cube.io_components.runtime import available_cores, mean_size, ordered_map, split_by_weight
from kartothek_cube.io_components.scan import concat_tables

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_frames(context: ScanContext, task: ScanTask) -> list[pd.DataFrame]:
    """DataFrames of a task, with the same unit of dates in all of them."""
    bounds, blocks = _run_blocks(context, task)
    # a projection may lack columns that the rows are sorted by
    is_complete = {*context.sort_columns} <= {*context.output.names}
    if len(bounds) > 1 and task.groups is None and context.dtype_backend is None and is_complete:
        return _build_frame(context, bounds, blocks)
    return _convert_blocks(context, task.groups, list(blocks))


def _build_frame(
    context: ScanContext, bounds: Sequence[tuple[int, int]], blocks: Iterator[BlockRows]
) -> list[pd.DataFrame]:
    """The frame of all blocks, none if they have no rows; those that are sorted are copied one by one."""
    builder = FrameBuilder(context.output)
    last: list[pa.Table | None] = []
    for (_, stop), block in zip(bounds, blocks, strict=True):
        if not len(block.table):
            continue
        ends = end_rows(context, block)
        table = make_output(context, [block.table])
        if not are_sorted([*last, ends]) or not builder.accepts(table):
            first = [BlockRows(builder.to_table(), np.empty(0, np.int64))] if len(builder) else []
            return _convert_blocks(context, None, [*first, block, *blocks])
        expected, tables = (len(builder) + len(table)) * bounds[-1][1] // stop, [table]
        del block, table
        builder.append(tables, expected)
        last = [ends]
    return _align_dates(context, [builder.finish()]) if len(builder) else []


def _convert_blocks(
    context: ScanContext, groups: Sequence[Group] | None, blocks: list[BlockRows]
) -> list[pd.DataFrame]:
    """Frames of the groups of all blocks, or of all rows; ``blocks`` is emptied."""
    rows = group_rows(context, groups, blocks)
    if rows is None:
        return []
    table, bounds = rows
    if len(bounds) == 2:
        del rows
        tables = [table]
        del table
        return [frame_of_result(context, tables)]
    return _align_dates(context, frames_of_slices(table, bounds, context.dtype_backend))


def frame_of_result(context: ScanContext, tables: list[pa.Table]) -> pd.DataFrame:
    """DataFrame of the only table in a list, which is emptied, with the types of the plan."""
    return _align_dates(context, [frame_of_table(tables, context.dtype_backend)])[0]


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
        files=plan.n_files,
    )


def run_frame_blocks(context: ScanContext, tasks: Iterable[ScanTask]) -> list[pd.DataFrame]:
    """Frames of several tasks; groups without rows are absent."""
    return [frame for task in tasks for frame in run_frames(context, task)]


def run_single_frame(context: ScanContext, task: ScanTask | None) -> pd.DataFrame:
    """Frame of a task with at most one group; without task or rows, the planned columns and types."""
    frames = [] if task is None else run_frames(context, task)
    return frames[0] if frames else frame_of_result(context, [context.output.empty_table()])


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
    _, blocks = _run_blocks(context, task)
    rows = group_rows(context, task.groups, list(blocks))
    return [] if rows is None else rows.tables()


def _run_blocks(context: ScanContext, task: ScanTask) -> tuple[list[tuple[int, int]], Iterator[BlockRows]]:
    """Partitions of the blocks of a task, and their joined rows."""
    blobs = context.open_store()
    datasets = task.files(context)
    if not len(datasets[0]):
        return [], iter(())
    aligned = [files for files in datasets if files.aligned]
    shared = _load(blobs, [files for files in datasets if not files.aligned], task.predicates)
    process = partial(_run_block, context, blobs, aligned, shared, task.predicates)
    bounds = list(pairwise(_block_bounds(blobs, aligned).tolist()))
    return bounds, ordered_map(process, bounds, available_cores())


def _block_bounds(blobs: BlobStore, datasets: Sequence[ScanFiles]) -> Ints:
    """Bounds of the blocks of physical partitions, which are read and joined one by one."""
    n_partitions = int(datasets[0].partition_ids[-1]) + 1
    if n_partitions == 1:
        return np.array([0, 1])
    weights = np.zeros(n_partitions)
    for files in filter(len, datasets):
        sample = files.keys[:: max(1, len(files) // tuning.SAMPLE)]
        size = mean_size(blobs, sample) if blobs.is_local else tuning.REMOTE_FILE_BYTES
        weights += np.bincount(files.partition_ids, minlength=n_partitions) * (
            size * column_fraction(files.scan)
        )
    return split_by_weight(weights, 1, tuning.BLOCK_BYTES)


def _run_block(
    context: ScanContext,
    blobs: BlobStore,
    datasets: Sequence[ScanFiles],
    shared: Mapping[str, RowBatch],
    predicates: Predicates,
    bounds: tuple[int, int],
) -> BlockRows:
    """Joined rows of consecutive physical partitions, with the columns of the result."""
    block = [files.between(*bounds) for files in datasets]
    rows = {**shared, **_load(blobs, block, predicates, _cells_of(shared.values()))}
    seed, *others = [rows[scan.name] for scan in context.scans]
    for other in others:
        seed = join(seed, other)
    seed = _filter_joined(seed, context.join_filters).append_partition_keys(
        context.sort_columns or context.output.names
    )
    names = dict.fromkeys([*context.output.names, *context.sort_columns])
    present = set(seed.table.column_names)
    table = seed.table.select([name for name in names if name in present])
    return BlockRows(table, seed.partition_starts() if seed.is_sorted else None)


def _load(
    blobs: BlobStore,
    datasets: Sequence[ScanFiles],
    predicates: Predicates,
    cells: Sequence[pa.Table] = (),
) -> dict[str, RowBatch]:
    """Rows by dataset id. Restricted datasets come first: their cells restrict the others."""
    filtered = [files for files in datasets if files.scan.is_filtered]
    loaded = load_rows(blobs, filtered, predicates, cells)
    others = [files for files in datasets if not files.scan.is_filtered]
    loaded += load_rows(blobs, others, predicates, [*cells, *_cells_of(loaded)])
    return {rows.scan.name: rows for rows in loaded}


def _cells_of(loaded: Iterable[RowBatch]) -> list[pa.Table]:
    """Cells of the restricted datasets, one table for each that has few."""
    return [
        rows.table.select(rows.scan.dimensions)
        for rows in loaded
        if rows.scan.role is not Role.LEFT
        and rows.scan.is_filtered
        and rows.scan.dimensions
        and len(rows) <= tuning.MAX_RESTRICTING_CELLS
    ]


def _filter_joined(rows: RowBatch, filters: Sequence[Node]) -> RowBatch:
    """Only the joined rows that meet all filters."""
    if not filters:
        return rows
    node = AllOf(tuple(filters))
    rows = rows.append_partition_keys(sorted(columns_of(node)))
    mask = tree_mask(rows.table, node)
    return rows if mask.true_count == len(rows) else rows.filter(mask.to_numpy(zero_copy_only=False))
