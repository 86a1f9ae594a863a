"""Executor of query tasks: scan and join the datasets block by block, sort the rows, split them by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from kartothek_cube.core import hooks, tuning
from kartothek_cube.core.arrow import Ints, concat_promoted
from kartothek_cube.core.expressions import AllOf, Node, columns_of, tree_mask
from kartothek_cube.core.history import version_number
from kartothek_cube.core.pandas_conversion import align_date_units, cast_to_schema
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.columns import take_columns
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.keys import lookup_keys, sort_order, strictly_increasing
from kartothek_cube.io_components.query.frame_conversion import FrameBuilder, frame_of_table, frames_of_slices
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
from kartothek_cube.io_components.query.row_batch import RowBatch, join, load_rows
from kartothek_cube.io_components.runtime import available_cores, ordered_map, split_by_weight
from kartothek_cube.io_components.scan import concat_tables, estimate_size

#: bytes of a number or a time, and of the position of a text
BYTES_PER_VALUE = 8

Task = TypeVar("Task")
Result = TypeVar("Result")
Rows = TypeVar("Rows", pd.DataFrame, pa.Table)


def run_frames(context: ScanContext, task: ScanTask) -> list[pd.DataFrame]:
    """DataFrames of a task, with the same unit of dates in all of them."""
    blocks = _run_blocks(context, task)
    first = list(islice(blocks, 1))
    # a projection may lack columns that the rows are sorted by
    is_complete = {*context.sort_columns} <= {*context.output.names}
    is_single = all(block.done == 1 for block in first)
    if is_single or task.groups is not None or context.dtype_backend is not None or not is_complete:
        return _convert_blocks(context, task.groups, [*first, *blocks])
    return _build_frame(context, chain(first, blocks))


def _build_frame(context: ScanContext, blocks: Iterator[BlockRows]) -> list[pd.DataFrame]:
    """The frame of all blocks, none if they have no rows; those that are sorted are copied one by one."""
    builder = FrameBuilder(context.output)
    last: list[pa.Table | None] = []
    for block in blocks:
        if not len(block.table):
            continue
        ends = end_rows(context, block)
        table = make_output(context, [block.table])
        if not are_sorted([*last, ends]) or not builder.accepts(table):
            first = [BlockRows(builder.to_table(), np.empty(0, np.int64), block.done)] if len(builder) else []
            return _convert_blocks(context, None, [*first, block, *blocks])
        expected, tables = int((len(builder) + len(table)) / block.done), [table]
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
        finish=list if plan.info is None else partial(_finish_query, plan),
        steps=("prepare", step, "done"),
        files=plan.n_files,
    )


def _finish_query(plan: PhysicalPlan, results: Iterable[Result]) -> list[Result]:
    parts: list[Any] = list(results)
    # frames of a task, or its only one
    announce_query(plan, sum(sum(map(len, part)) if isinstance(part, list) else len(part) for part in parts))
    return parts


def _finish_table(plan: PhysicalPlan, tables: Iterable[pa.Table]) -> pa.Table:
    (table,) = tables
    announce_query(plan, len(table))
    return table


def announce_query(plan: PhysicalPlan, n_rows: int | None = None) -> None:
    """Call the hooks of queries, if there were any when this one was planned."""
    if plan.info is None:
        return
    event = hooks.QueryEvent(
        cube=plan.files[0].dataset.uuid.rpartition("++")[0],
        versions={files.dataset.uuid: version_number(files.dataset) for files in plan.files},
        rows=n_rows,
        files=plan.n_files,
        seconds=plan.info.seconds() or 0.0,
        message=plan.info.message,
        job=plan.info.job,
    )
    hooks.call_hooks(hooks.QUERY_HOOKS, event)


def announce_end(plan: PhysicalPlan, parts: Iterator[Rows]) -> Iterator[Rows]:
    """The parts of a result; hooks are called after the last one, or when the reader stops."""
    if plan.info is None:
        return parts

    def count() -> Iterator[Rows]:
        n_rows = 0
        with suppress(GeneratorExit):
            for part in parts:
                n_rows += len(part)
                yield part
        announce_query(plan, n_rows)

    return count()


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
        finish=partial(_finish_table, plan),
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
    rows = group_rows(context, task.groups, list(_run_blocks(context, task)))
    return [] if rows is None else rows.tables()


class _Block(NamedTuple):
    """Physical partitions that are read and joined at once."""

    files: Sequence[ScanFiles]
    #: rows of the restricted datasets
    restricted: Sequence[RowBatch]
    #: number of the partition after it, of those of the task
    stop: int


def _run_blocks(context: ScanContext, task: ScanTask) -> Iterator[BlockRows]:
    """Joined rows of the partitions of a task, block by block."""
    blobs = context.open_store()
    datasets = task.files(context)
    if not len(datasets[0]):
        return
    aligned = [files for files in datasets if files.aligned]
    shared = _load(blobs, [files for files in datasets if not files.aligned], task.predicates)
    n_partitions = int(datasets[0].partition_ids[-1]) + 1
    blocks = _split_into_blocks(blobs, aligned, n_partitions, task.predicates, _cells_of(shared))
    run = partial(_run_block, context, blobs, shared, task.predicates, n_partitions)
    yield from ordered_map(run, blocks, max(available_cores(), 1 if blobs.is_local else tuning.REMOTE_BLOCKS))


def _split_into_blocks(
    blobs: BlobStore,
    datasets: Sequence[ScanFiles],
    n_partitions: int,
    predicates: Predicates,
    cells: Sequence[pa.Table],
) -> Iterator[_Block]:
    """Blocks of partitions. Restricted datasets come first: partitions without their cells are not read."""
    filtered = [f for f in datasets if f.scan.is_filtered and f.scan.role is not Role.LEFT]
    others = [files for files in datasets if files not in filtered]
    size = tuning.BLOCK_BYTES * (tuning.FILTERED_BLOCKS if filtered else 1)
    if not others or not filtered:
        weights = _partition_bytes(blobs, datasets, n_partitions)
        for start, stop in pairwise(split_by_weight(weights, 1, size).tolist()):
            yield _Block([files.between(start, stop) for files in datasets], (), stop)
        return
    # as many as restrict the scans of the others, or cells of a block
    cell_bytes = max(
        BYTES_PER_VALUE * sum(len(files.scan.columns) for files in others),
        tuning.BLOCK_BYTES // max(tuning.MAX_RESTRICTING_CELLS, 1),
    )
    weights = _partition_bytes(blobs, filtered, n_partitions)
    for first, last in pairwise(split_by_weight(weights, 1, size).tolist()):
        rows = load_rows(blobs, [files.between(first, last) for files in filtered], predicates, cells)
        counts = np.min([batch.count_partitions(n_partitions) for batch in rows], axis=0)
        read = [files.between(first, last).in_partitions(counts > 0) for files in others]
        needed = np.minimum(_partition_bytes(blobs, read, n_partitions), counts * cell_bytes)
        bounds = first + split_by_weight(needed[first:last], 1, tuning.BLOCK_BYTES)
        for start, stop in pairwise(bounds.tolist()):
            if counts[start:stop].any():
                restricted = [batch.between(start, stop) for batch in rows]
                yield _Block([files.between(start, stop) for files in read], restricted, stop)


def _partition_bytes(
    blobs: BlobStore, datasets: Sequence[ScanFiles], n_partitions: int
) -> npt.NDArray[np.float64]:
    """Bytes in files, of the columns needed, of each physical partition."""
    weights = np.zeros(n_partitions)
    # a single partition is one block of any size
    for files in filter(len, datasets if n_partitions > 1 else ()):
        size = estimate_size(blobs, files.keys) * column_fraction(files.scan)
        weights += np.bincount(files.partition_ids, minlength=n_partitions) * size
    return weights


def _run_block(
    context: ScanContext,
    blobs: BlobStore,
    shared: Sequence[RowBatch],
    predicates: Predicates,
    n_partitions: int,
    block: _Block,
) -> BlockRows:
    """Joined rows of a block, with the columns of the result."""
    restricted = [*shared, *block.restricted]
    rows = {
        r.scan.name: r for r in [*restricted, *_load(blobs, block.files, predicates, _cells_of(restricted))]
    }
    seed, *others = [rows[scan.name] for scan in context.scans]
    for other in others:
        seed = join(seed, other)
    seed = _filter_joined(seed, context.join_filters).append_partition_keys(
        context.sort_columns or context.output.names
    )
    names = dict.fromkeys([*context.output.names, *context.sort_columns])
    present = set(seed.table.column_names)
    table = seed.table.select([name for name in names if name in present])
    return BlockRows(table, seed.partition_starts() if seed.is_sorted else None, block.stop / n_partitions)


def _load(
    blobs: BlobStore,
    datasets: Sequence[ScanFiles],
    predicates: Predicates,
    cells: Sequence[pa.Table] = (),
) -> list[RowBatch]:
    """Rows of datasets. Restricted datasets come first: their cells restrict the others."""
    filtered = [files for files in datasets if files.scan.is_filtered]
    loaded = load_rows(blobs, filtered, predicates, cells)
    others = [files for files in datasets if not files.scan.is_filtered]
    return loaded + load_rows(blobs, others, predicates, [*cells, *_cells_of(loaded)])


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


class BlockRows(NamedTuple):
    """Joined rows of consecutive physical partitions."""

    table: pa.Table
    #: where the partitions begin, but for the first, if the rows of each are sorted; else None
    starts: Ints | None
    #: share of the partitions of the task that are behind the end of the block, from 0 to 1
    done: float


class GroupedTable(NamedTuple):
    """Rows of consecutive groups, and the bounds of each group from 0 on."""

    table: pa.Table
    bounds: Ints

    def tables(self) -> list[pa.Table]:
        """One table per group."""
        bounds = self.bounds.tolist()
        return [self.table.slice(start, stop - start) for start, stop in pairwise(bounds)]


def group_rows(
    context: ScanContext, groups: Sequence[Group] | None, blocks: list[BlockRows]
) -> GroupedTable | None:
    """Sorted rows of the groups that have rows, with the columns of the result; ``blocks`` is emptied."""
    if not blocks:
        return None
    starts = blocks[0].starts if len(blocks) == 1 else None
    is_one_partition = starts is not None and not len(starts)
    is_sorted = is_one_partition or are_sorted([end_rows(context, block) for block in blocks])
    table = make_output(context, [block.table for block in blocks])
    order = None
    if context.sort_columns and not is_sorted:
        order = sort_order([table.column(column) for column in context.sort_columns], len(table))
    blocks.clear()
    bounds = np.array([0, len(table)])
    if groups is not None:
        order, bounds = _order_by_group(context, groups, table, order)
    if len(bounds) < 2 or not len(table):
        return None
    table = table.select(context.output.names)
    if order is not None:
        schema, columns = table.schema, table.columns
        del table  # so that each column is released when it has been sorted
        table = pa.Table.from_arrays(take_columns(columns, order), schema=schema)
    return GroupedTable(table, bounds)


def make_output(context: ScanContext, tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of several tables in the types of the result."""
    return cast_to_schema(concat_tables(tables, context.output, context.scans[0].uuid), context.output)


def end_rows(context: ScanContext, block: BlockRows) -> pa.Table | None:
    """Sort columns of the rows where partitions begin and end; None if the rows of one are not sorted."""
    if block.starts is None:
        return None
    keys = block.table.select(context.sort_columns)
    if not len(keys):
        return keys
    ends = np.unique(np.concatenate([[0], block.starts, block.starts - 1, [len(keys) - 1]]))
    return keys.take(pa.array(ends))


def are_sorted(ends: Sequence[pa.Table | None]) -> bool:
    """Whether rows are sorted and unique, by those where partitions begin and end."""
    tables = [table for table in ends if table is not None]
    if len(tables) < len(ends):
        return False
    rows = concat_promoted(tables)
    return strictly_increasing(rows.columns, len(rows))


def _order_by_group(
    context: ScanContext, groups: Sequence[Group], table: pa.Table, order: Ints | None
) -> tuple[Ints | None, Ints]:
    """Positions of the rows of all groups, group by group, and bounds of the groups that have rows."""
    fields = [context.output.field(name) for name in context.partition_by]
    values = [pa.array(c, f.type) for c, f in zip(zip(*groups, strict=True), fields, strict=True)]
    keys = [table.column(name) for name in context.partition_by]
    numbers = lookup_keys(keys, values, len(table), len(groups))
    if order is not None:
        numbers = numbers[order]
    if len(numbers) > 1 and not bool((numbers[1:] >= numbers[:-1]).all()):
        narrow = numbers.astype(np.int16) if len(groups) < 1 << 15 else numbers  # NumPy sorts these by radix
        by_group = np.argsort(narrow, kind="stable")
        numbers = numbers[by_group]
        order = by_group if order is None else order[by_group]
    # predicates by column let rows of groups of other tasks pass: they come first
    start = int(np.searchsorted(numbers, 0))
    if start:
        order = (np.arange(len(numbers)) if order is None else order)[start:]
        numbers = numbers[start:]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    return order, np.append(starts, len(numbers))


def sort_table(table: pa.Table, sort_columns: Sequence[str]) -> pa.Table:
    """Rows of a table, sorted; as they are without columns to sort by."""
    if not sort_columns:
        return table
    order = sort_order([table.column(c) for c in sort_columns], len(table))
    if order is None:
        return table
    schema, columns = table.schema, table.columns
    del table  # so that each column is released when it has been sorted
    return pa.Table.from_arrays(take_columns(columns, order), schema=schema)
