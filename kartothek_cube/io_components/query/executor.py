"""Executor of query tasks: scan and join the datasets block by block, sort the rows, split them by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial, reduce
from itertools import compress, pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from kartothek_cube.core import arrow, history, hooks, pandas_conversion, tuning
from kartothek_cube.core.arrow import Floats, Ints, Mask
from kartothek_cube.core.expressions import AllOf, LiteralType, all_of, columns_of, imply, tree_mask
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components import kernels
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.query.frame_conversion import frame_of_table, frames_of_slices
from kartothek_cube.io_components.query.logical_plan import Role
from kartothek_cube.io_components.query.physical_plan import (
    DatasetScan,
    Group,
    PhysicalPlan,
    Predicates,
    ScanContext,
    ScanFiles,
    ScanTask,
    match_partitions,
)
from kartothek_cube.io_components.runtime import available_cores, ordered_map, split_by_weight
from kartothek_cube.io_components.scan import (
    BYTES_PER_VALUE,
    ROW_NUMBER,
    FileRows,
    Scan,
    concat_tables,
    estimate_bytes,
    run_scans,
)

#: a position is the number of the physical partition, and in these bits the number of the row in its file
_FILE_BITS = 32
_IN_FILE = (1 << _FILE_BITS) - 1

Rows = TypeVar("Rows", pd.DataFrame, pa.Table)


def run_frames(context: ScanContext, task: ScanTask) -> list[pd.DataFrame]:
    """DataFrames of a task, with the same unit of dates in all of them."""
    tables, bounds = group_rows(context, task)
    if len(bounds) < 3:
        return [frame_of_table(tables, context.dtype_backend)] if tables else []
    frames = frames_of_slices(tables[0], bounds, context.dtype_backend)
    if context.dtype_backend is None and any(map(pa.types.is_date, context.output.types)):
        # datetime64[s] for all if a column of one has dates that datetime64[ns] cannot hold
        pandas_conversion.align_date_units(frames)
    return frames


def query_job(
    plan: PhysicalPlan, tasks: Iterable[Any], run: Callable[[ScanContext, Any], Any], step: str = "group"
) -> Job[list[Any]]:
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


def _finish_query(plan: PhysicalPlan, results: Iterable[Any]) -> list[Any]:
    parts: list[Any] = list(results)
    # frames of a task, or its only one
    announce_query(plan, sum(sum(map(len, part)) if isinstance(part, list) else len(part) for part in parts))
    return parts


def announce_query(plan: PhysicalPlan, n_rows: int | None = None) -> None:
    """Call the hooks of queries, if there were any when this one was planned."""
    if plan.info is None:
        return
    event = hooks.QueryEvent(
        cube=plan.files[0].dataset.uuid.rpartition("++")[0],
        versions={files.dataset.uuid: history.version_number(files.dataset) for files in plan.files},
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


def run_single_frame(context: ScanContext, task: ScanTask | None) -> pd.DataFrame:
    """Frame of a task with at most one group; without task or rows, the planned columns and types."""
    frames = [] if task is None else run_frames(context, task)
    return frames[0] if frames else frame_of_table([context.output.empty_table()], context.dtype_backend)


def query_table(plan: PhysicalPlan, limit: int | None = None) -> pa.Table:
    """The rows of a query without groups as one table, which has none if nothing matches."""
    table = run_table(plan, limit)
    announce_query(plan, len(table))
    return table


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
        table = concat_tables(tables, context.scans[0].uuid)
        tables = [kernels.sort_rows(table, context.sort_columns)]
    table = tables[0] if tables else context.output.empty_table()
    # a limit may be an integer that Arrow does not have
    return table if limit is None else table.slice(0, min(limit, len(table)))


def _block_ends(n_partitions: int, limit: int | None) -> list[int]:
    """Ends of blocks of partitions: all at once, or 1, 1, 2, 4, ... so that few more than needed are read."""
    ends = [0]
    if limit is not None:
        # doubled, as tables of datasets without partitions are read once per block
        ends += [1 << i for i in range(n_partitions.bit_length()) if 1 << i < n_partitions]
    return [*ends, n_partitions] if n_partitions else ends


def run_task(context: ScanContext, task: ScanTask) -> list[pa.Table]:
    """Sorted tables of a task, with the columns of ``context.output``: one per group that has rows."""
    tables, bounds = group_rows(context, task)
    return [tables[0].slice(start, stop - start) for start, stop in pairwise(bounds.tolist())]


#: files of physical partitions that are read and joined at once, and rows of their restricted datasets
_Block: TypeAlias = "tuple[Sequence[ScanFiles], Sequence[RowBatch]]"


class _OtherCellsError(Exception):
    """The cells of files are not those of the digests in their names."""


def _run_blocks(context: ScanContext, task: ScanTask, *, trust_names: bool = True) -> list[BlockRows]:
    """Joined rows of the partitions of a task, block by block."""
    blobs = context.open_store()
    datasets = task.files(context)
    if not trust_names:
        datasets = tuple([attrs.evolve(f, scan=attrs.evolve(f.scan, trusts_names=False)) for f in datasets])
    if not len(datasets[0]):
        return []
    aligned = [files for files in datasets if files.aligned]
    unaligned = [files for files in datasets if not files.aligned]
    shared = _load(blobs, unaligned, task.predicates) if unaligned else []
    n_partitions = int(datasets[0].partition_ids[-1]) + 1
    blocks = _split_into_blocks(blobs, aligned, n_partitions, task.predicates, shared)
    run = partial(_run_block, context, blobs, shared, task.predicates)
    threads = max(available_cores(), 1 if blobs.is_local else tuning.REMOTE_BLOCKS)
    return list(ordered_map(run, blocks, threads))


def _split_into_blocks(
    blobs: BlobStore,
    datasets: Sequence[ScanFiles],
    n_partitions: int,
    predicates: Predicates,
    shared: list[RowBatch],
) -> Iterator[_Block]:
    """Blocks of partitions. Restricted datasets come first: partitions without their cells are not read."""
    filtered = [f for f in datasets if f.scan.is_restricting]
    others = [f for f in datasets if not f.scan.is_restricting]
    size = tuning.BLOCK_BYTES * (tuning.FILTERED_BLOCKS if filtered else 1)
    if not others or not filtered:
        weights = _partition_bytes(blobs, datasets, n_partitions)
        for start, stop in pairwise(split_by_weight(weights, 1, size).tolist()):
            files_of_block = [files.between(start, stop) for files in datasets]
            yield _with_rows(files_of_block, predicates, shared), ()
        return
    # as many as restrict the scans of the others, or cells of a block
    cell_bytes = max(
        BYTES_PER_VALUE * sum(len(files.scan.columns) for files in others),
        tuning.BLOCK_BYTES // max(tuning.MAX_RESTRICTING_CELLS, 1),
    )
    weights = _partition_bytes(blobs, filtered, n_partitions)
    for first, last in pairwise(split_by_weight(weights, 1, size).tolist()):
        block = _with_rows([files.between(first, last) for files in datasets], predicates, shared)
        rows = load_rows(blobs, [f for f in block if f.scan.is_restricting], predicates, shared)
        counts = np.min([batch.count_partitions(n_partitions) for batch in rows], axis=0)
        read = [f.in_partitions(counts > 0) for f in block if not f.scan.is_restricting]
        needed = np.minimum(_partition_bytes(blobs, read, n_partitions), counts * cell_bytes)
        bounds = first + split_by_weight(needed[first:last], 1, tuning.BLOCK_BYTES)
        for start, stop in pairwise(bounds.tolist()):
            if counts[start:stop].any():
                restricted = [batch.between(start, stop) for batch in rows]
                yield [files.between(start, stop) for files in read], restricted


def _with_rows(datasets: list[ScanFiles], predicates: Predicates, shared: list[RowBatch]) -> list[ScanFiles]:
    """The files of a block, with their numbers of rows if the digests of cells in their names are equal."""
    # Conditions on one of them then select rows of the others by number.
    # of 5 M cells of two datasets, a condition that leaves 1 % takes 0.4 of the time
    seed, *others = datasets
    cells = seed.cells() if others and not predicates else None
    if cells is None:
        return datasets
    is_same = [
        files.scan.dimensions == seed.scan.dimensions
        and np.array_equal(files.partition_ids, seed.partition_ids)
        and files.cells() == cells
        for files in others
    ]
    same = [seed, *compress(others, is_same)]
    joined = [*(files.scan for files in datasets if files not in same), *(batch.scan for batch in shared)]
    # the same conditions on dimensions leave the same rows of all
    is_filtered = any(f.scan.is_filtered or f.scan.predicates != seed.scan.predicates for f in same)
    if len(same) == 1 or not (is_filtered or any(scan.role is Role.RESTRICTED for scan in joined)):
        return datasets
    n_rows = np.array(cells[0])
    return [attrs.evolve(files, rows=n_rows) if files in same else files for files in datasets]


def _partition_bytes(blobs: BlobStore, datasets: Sequence[ScanFiles], n_partitions: int) -> Floats:
    """Bytes of the columns needed of each physical partition."""
    weights = np.zeros(n_partitions)
    # a single partition is one block of any size
    for files in filter(len, datasets if n_partitions > 1 else ()):
        size = estimate_bytes(blobs, files.keys, *files.scan.count_columns())
        weights += np.bincount(files.partition_ids, minlength=n_partitions) * size
    return weights


def _run_block(
    context: ScanContext, blobs: BlobStore, shared: list[RowBatch], predicates: Predicates, block: _Block
) -> BlockRows:
    """Joined rows of a block, with the columns of the result."""
    files, restricted = block[0], [*shared, *block[1]]
    loaded = _load(blobs, files, predicates, restricted)
    rows = {batch.scan.name: batch for batch in [*restricted, *loaded]}
    seed, *others = [rows[scan.name] for scan in context.scans]
    for other in others:
        seed = join(seed, other)
    if context.join_filters:
        node = AllOf(context.join_filters)
        seed = seed.append_partition_keys(sorted(columns_of(node)))
        mask = tree_mask(seed.table, node)
        seed = seed if mask.true_count == len(seed) else seed.filter(mask.to_numpy(zero_copy_only=False))
    seed = seed.append_partition_keys(context.sort_columns or context.output.names)
    names = dict.fromkeys([*context.output.names, *context.sort_columns])
    present = set(seed.table.column_names)
    table = seed.table.select([name for name in names if name in present])
    return BlockRows(table, seed.partition_starts() if seed.is_sorted else None)


def _load(
    blobs: BlobStore, datasets: Sequence[ScanFiles], predicates: Predicates, known: Sequence[RowBatch] = ()
) -> list[RowBatch]:
    """Rows of datasets. Restricted datasets come first: their cells, and those known, restrict the others."""
    filtered = [files for files in datasets if files.scan.is_filtered]
    others = [files for files in datasets if not files.scan.is_filtered]
    loaded = load_rows(blobs, filtered, predicates, known) if filtered else []
    numbered = [files for files in others if files.rows is not None]
    restricting = [*known, *loaded]
    if len(numbered) > 1 and _cells_of(restricting) and not any(r.is_numbered for r in restricting):
        # cells restrict the first, and its positions the others
        loaded += load_rows(blobs, numbered[:1], predicates, [*known, *loaded])
        others.remove(numbered[0])
    return loaded + load_rows(blobs, others, predicates, [*known, *loaded]) if others else loaded


def _cells_of(loaded: Iterable[RowBatch]) -> list[pa.Table]:
    """Cells of the restricted datasets, one table for each that has few."""
    return [
        rows.table.select(rows.scan.dimensions)
        for rows in loaded
        if rows.scan.is_restricting and rows.scan.dimensions and len(rows) <= tuning.MAX_RESTRICTING_CELLS
    ]


def _numbered_cells(loaded: Iterable[RowBatch]) -> RowBatch | None:
    """Cells, with positions, that all numbered batches have; None if there is no such batch, or for many."""
    batches = [batch for batch in loaded if batch.is_numbered]
    if not batches:
        return None
    common: Ints = reduce(partial(np.intersect1d, assume_unique=True), (b.positions() for b in batches))
    if len(common) > tuning.MAX_RESTRICTING_CELLS:
        return None
    first = batches[0]
    cells = attrs.evolve(first, table=first.table.select([*first.scan.dimensions, ROW_NUMBER]))
    return cells if len(common) == len(cells) else cells.filter(np.isin(cells.positions(), common))


def _row_numbers(files: ScanFiles, cells: RowBatch) -> Ints:
    """Numbers of the rows of cells in all files, one after the other."""
    assert files.rows is not None
    positions = cells.positions()
    ids: Ints = positions >> _FILE_BITS
    numbers: Ints = np.minimum(files.partition_ids.searchsorted(ids), len(files) - 1)
    is_read = files.partition_ids[numbers] == ids
    starts: Ints = np.cumsum(files.rows) - files.rows
    selected: Ints = (starts[numbers] + (positions & _IN_FILE))[is_read]
    return selected


def _check_cells(expected: RowBatch, rows: RowBatch) -> None:
    """Raise an error if the rows that were selected by number are not those of the cells."""
    is_read = np.isin(expected.row_partition_ids(), rows.partition_ids)
    expected = expected if is_read.all() else expected.filter(is_read)
    names = [*rows.scan.dimensions, ROW_NUMBER]
    # of maybe different widths or units
    pairs = map(kernels.unify_types, expected.columns(names), rows.columns(names))
    if len(expected) != len(rows) or not all(x.equals(y) for x, y in pairs):
        raise _OtherCellsError


def _with_positions(files: ScanFiles, n_rows: Ints, read: FileRows) -> pa.Table:
    """The rows with their positions, which are comparable with those of other datasets."""
    numbers = read.table.column(ROW_NUMBER).to_numpy()
    in_file = numbers - np.repeat(np.cumsum(n_rows) - n_rows, read.lengths)
    if ((in_file < 0) | (in_file >= np.repeat(n_rows, read.lengths))).any():
        raise _OtherCellsError
    positions = np.repeat(files.partition_ids << _FILE_BITS, read.lengths) | in_file
    index = read.table.column_names.index(ROW_NUMBER)
    return arrow.replace_columns(read.table, {index: pa.array(positions)})


class BlockRows(NamedTuple):
    """Joined rows of consecutive physical partitions."""

    table: pa.Table
    #: where the partitions begin, but for the first, if the rows of each are sorted; else None
    starts: Ints | None


def group_rows(context: ScanContext, task: ScanTask) -> tuple[list[pa.Table], Ints]:
    """One table with the sorted rows of the groups that have rows, if there are any, and bounds of these."""
    try:
        blocks = _run_blocks(context, task)
    except _OtherCellsError:
        # another program has replaced files under their names: only the cells in the files are right
        blocks = _run_blocks(context, task, trust_names=False)
    if not blocks:
        return [], np.zeros(1, np.int64)
    starts = blocks[0].starts if len(blocks) == 1 else None
    is_one_partition = starts is not None and not len(starts)
    is_sorted = is_one_partition or _are_sorted(context, blocks)
    table = concat_tables([block.table for block in blocks], context.scans[0].uuid)
    table = pandas_conversion.cast_to_schema(table, context.output)
    order = None
    if context.sort_columns and not is_sorted:
        order = kernels.sort_order([table.column(column) for column in context.sort_columns], len(table))
    blocks.clear()
    bounds = np.array([0, len(table)])
    if task.groups is not None:
        order, bounds = _order_by_group(context, task.groups, table, order)
    if len(bounds) < 2 or not len(table):
        return [], bounds[:1]
    table = table.select(context.output.names)
    if order is not None:
        schema, columns = table.schema, table.columns
        del table  # so that each column is released when it has been sorted
        table = pa.Table.from_arrays(kernels.take_columns(columns, order), schema=schema)
    return [table], bounds


def _are_sorted(context: ScanContext, blocks: Sequence[BlockRows]) -> bool:
    """Whether rows are sorted and unique, by those where partitions, whose rows are, begin and end."""
    ends = []
    for block in blocks:
        if block.starts is None:
            return False
        keys = block.table.select(context.sort_columns)
        numbers = np.unique(np.concatenate([[0], block.starts, block.starts - 1, [len(keys) - 1]]))
        ends.append(keys.take(pa.array(numbers)) if len(keys) else keys)
    rows = arrow.concat_promoted(ends)
    return kernels.strictly_increasing(rows.columns, len(rows))


def _order_by_group(
    context: ScanContext, groups: Sequence[Group], table: pa.Table, order: Ints | None
) -> tuple[Ints | None, Ints]:
    """Positions of the rows of all groups, group by group, and bounds of the groups that have rows."""
    fields = [context.output.field(name) for name in context.partition_by]
    values = [pa.array(c, f.type) for c, f in zip(zip(*groups, strict=True), fields, strict=True)]
    keys = [table.column(name) for name in context.partition_by]
    numbers = kernels.lookup_keys(keys, values, len(table), len(groups))
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


@attrs.frozen
class RowBatch:
    """Rows of one dataset, those of a physical partition next to each other."""

    scan: DatasetScan
    #: dimensions and payload
    table: pa.Table
    #: number of rows from each file
    counts: Ints
    #: values of the partition keys of each file
    keys: dict[str, pa.Array]
    #: physical partition of each file, ascending
    partition_ids: Ints
    #: whether the rows of each physical partition are sorted by the dimensions, and no cell repeats
    is_sorted: bool = False

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_numbered(self) -> bool:
        """Whether the positions of the rows are known."""
        return ROW_NUMBER in self.table.column_names

    def positions(self) -> Ints:
        """For each row its position, the same in all datasets with its cell."""
        positions: Ints = self.table.column(ROW_NUMBER).to_numpy()
        return positions

    def file_numbers(self) -> npt.NDArray[np.int32]:
        """For each row the number of its file."""
        return np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)

    def row_partition_ids(self) -> Ints:
        """For each row its physical partition."""
        return np.repeat(self.partition_ids, self.counts)

    def partition_starts(self) -> Ints:
        """Positions of the rows that begin a new physical partition, without the first."""
        if len(self.partition_ids) == 1:
            return np.empty(0, dtype=np.int64)
        ends = np.cumsum(self.counts)[:-1][self.partition_ids[1:] != self.partition_ids[:-1]]
        inner: Ints = np.unique(ends[(ends > 0) & (ends < len(self))])
        return inner

    def count_partitions(self, size: int) -> Ints:
        """Number of rows of each physical partition, of which there are so many."""
        return np.bincount(self.partition_ids, self.counts, size).astype(np.int64)

    def between(self, start: int, stop: int) -> RowBatch:
        """The rows of consecutive physical partitions."""
        low, high = self.partition_ids.searchsorted([start, stop]).tolist()
        first, last = int(self.counts[:low].sum()), int(self.counts[:high].sum())
        return attrs.evolve(
            self,
            table=self.table.slice(first, last - first),
            counts=self.counts[low:high],
            keys={column: values.slice(low, high - low) for column, values in self.keys.items()},
            partition_ids=self.partition_ids[low:high],
        )

    def columns(self, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Columns by name."""
        return [self.table.column(name) for name in names]

    def append_columns(self, columns: Iterable[tuple[str, pa.Array | pa.ChunkedArray]]) -> RowBatch:
        """The rows with more columns."""
        return attrs.evolve(self, table=arrow.append_columns(self.table, columns))

    def combine_chunks(self, columns: Iterable[str]) -> RowBatch:
        """The rows with one chunk per column: each comparison would copy them otherwise."""
        positions = map(self.table.column_names.index, columns)
        chunked = {i: column for i in positions if (column := self.table.column(i)).num_chunks != 1}
        single = {position: kernels.to_single_array(column) for position, column in chunked.items()}
        return attrs.evolve(self, table=arrow.replace_columns(self.table, single)) if single else self

    def append_partition_keys(self, columns: Iterable[str]) -> RowBatch:
        """The rows with those of the columns that are partition keys and not in the table."""
        present = {*self.table.column_names}
        names = [c for c in columns if c in self.keys and c not in present]
        if not names:
            return self
        return self.append_columns([(name, kernels.repeat(self.keys[name], self.counts)) for name in names])

    def filter(self, mask: Mask) -> RowBatch:
        """Only the rows of a mask."""
        counts = np.bincount(self.file_numbers()[mask], minlength=len(self.counts)).astype(np.int64)
        return attrs.evolve(self, table=self.table.filter(pa.array(mask)), counts=counts)

    def take_sorted(self, positions: Ints) -> RowBatch:
        """Rows at positions that sort them by physical partition and dimensions."""
        # rows of the files of a partition mix: all of them count as rows of its first file, which has the
        # same alignment; other keys are columns of the table by now
        arrays = kernels.take_columns(self.table.columns, positions)
        partitions = self.partition_ids.searchsorted(self.row_partition_ids()[positions])
        counts = np.bincount(partitions, minlength=len(self.counts)).astype(np.int64)
        return attrs.evolve(
            self,
            table=pa.Table.from_arrays(arrays, schema=self.table.schema),
            counts=counts,
            keys={column: self.keys[column] for column in self.scan.alignment},
            is_sorted=True,
        )


def load_rows(
    blobs: BlobStore, datasets: list[ScanFiles], group_predicates: Predicates, known: Sequence[RowBatch] = ()
) -> list[RowBatch]:
    """Rows of datasets that meet the predicates; of each cell of the seed the version written last."""
    # Of the cells of another dataset the join takes the last version. Rows of cells that the `known`
    # restricted datasets lack may be missing.
    cells, numbered = _cells_of(known), _numbered_cells(known)
    predicates = [
        files.scan.predicates
        + tuple([p for p in group_predicates if p[0] in (*files.scan.dimensions, *files.scan.payload)])
        for files in datasets
    ]
    # a dataset with conditions of its own may lack rows, which looks the same as wrong names
    by_number = [None if f.rows is None or f.scan.is_filtered else numbered for f in datasets]
    scans = [
        _make_scan(files, on_rows, cells) if selected is None else _scan_numbered(files, on_rows, selected)
        for files, on_rows, selected in zip(datasets, predicates, by_number, strict=True)
    ]
    found = run_scans(blobs, scans)
    batches = [_newest_rows(*each) for each in zip(datasets, found, predicates, strict=True)]
    for batch, selected in zip(batches, by_number, strict=True):
        if selected is not None:
            _check_cells(selected, batch)
    return batches


def _scan_numbered(files: ScanFiles, predicates: Predicates, cells: RowBatch) -> Scan:
    """Scan of the rows of cells, by their numbers."""
    # Polars decodes all rows of all columns for a condition on numbers alone: 1,500 of 1,500,000 rows of 11
    # columns take 0.037 s, and with a condition on a column of the file, which all rows meet, 0.028
    stored = [(c, "!=", pd.NA) for c in files.scan.dimensions if c not in files.scan.partition_keys]
    scan = _make_scan(files, (*predicates, *stored[:1]), ())
    return scan._replace(rows=_row_numbers(files, cells))


def _newest_rows(files: ScanFiles, read: FileRows, predicates: Predicates) -> RowBatch:
    scan = files.scan
    table = read.table if files.rows is None else _with_positions(files, files.rows, read)
    rows = RowBatch(scan, table, read.lengths, files.partition_keys, files.partition_ids)
    rows = rows.append_partition_keys(scan.columns)
    is_overlapping = len(files) > 1 and bool(files.overlapping().any())
    if scan.role is Role.SEED or is_overlapping:
        rows = _deduplicate_cells(rows.combine_chunks(scan.dimensions))
    if is_overlapping and len(predicates) > len(scan.dimension_predicates):
        rows = rows.filter(tree_mask(rows.table, AllOf(predicates)).to_numpy(zero_copy_only=False))
    return rows


def _make_scan(files: ScanFiles, predicates: Predicates, cells: Sequence[pa.Table]) -> Scan:
    """Scan of the files, filtered by what holds for all versions of a cell."""
    # Only a file that is alone in its partition may be filtered by conditions on payload while reading: else
    # a newer version of a cell that fails the condition has to replace an older one that meets it.
    scan = files.scan
    stored = [column for column in scan.columns if column not in scan.partition_keys]
    dimensions = [c for c in scan.dimensions if c not in scan.partition_keys]
    in_file = [p for p in predicates if p[0] not in scan.partition_keys]
    of_single_file = _with_implied(in_file, scan, stored)
    filters = [of_single_file] * len(files)
    if len(files) > 1 and of_single_file is not None:
        stable = [p for p in in_file if p[0] in scan.dimensions or p in scan.dimension_predicates]
        of_overlapping_file = _with_implied(stable, scan, dimensions)
        filters = [of_overlapping_file if other else of_single_file for other in files.overlapping().tolist()]
    # columns that are null in all files; payload stays null, other partitions may type it
    own = {c: scan.schema.field(c).type for c in stored}
    typed = {*dimensions, *(c for c, t in own.items() if arrow.has_far_times(t) or pa.types.is_timestamp(t))}
    types = pa.schema([(c, t if c in typed else pa.null()) for c, t in own.items()])
    # all versions of a cell have its dimensions
    shared = [table.select([c for c in table.column_names if c in dimensions]) for table in cells]
    restricting = [table for table in shared if table.num_columns]
    return Scan(files.keys, stored, types, filters, scan.mapping, restricting, files.rows)


def _with_implied(predicates: Sequence[LiteralType], scan: DatasetScan, columns: list[str]) -> AllOf | None:
    """The predicates, and what the filters of the joined rows imply about columns; None for nothing."""
    return all_of([*predicates, *(imply(node, columns) for node in scan.implied)])


def _deduplicate_cells(rows: RowBatch) -> RowBatch:
    """Only the last version of each cell within a physical partition, sorted by the dimensions."""
    dimensions = rows.columns(rows.scan.dimensions)
    equal = kernels.equal_neighbours(dimensions, len(rows), rows.partition_starts())
    if equal is not None:
        # versions of a cell are next to each other: rows of a projection, for example
        rows = rows.filter(np.append(~equal, [True] * bool(len(rows)))) if equal.any() else rows
        return attrs.evolve(rows, is_sorted=True)
    keys = [*map(kernels.encode_ordered, [pa.array(rows.row_partition_ids()), *dimensions])]
    return rows.take_sorted(kernels.last_rows(*kernels.combine_keys(keys, len(rows))))


def join(left: RowBatch, right: RowBatch) -> RowBatch:
    """Rows of the seed with the payload of another dataset, of each of its cells the version written last."""
    # An inner join drops the rows of the seed without a match; a left join gives them nulls.
    matches = _match_cells(left, right)
    if left.is_numbered and right.is_numbered:
        _check_positions(left, right, matches)
    if matches is None:
        return left.append_columns((column, right.table.column(column)) for column in right.scan.payload)
    missing = int(matches.min(initial=0)) < 0
    if missing and right.scan.role is Role.RESTRICTED:
        left, matches, missing = left.filter(matches >= 0), matches[matches >= 0], False
    return left.append_columns(
        (column, kernels.take_values(right.table.column(column), matches, missing=missing))
        for column in right.scan.payload
    )


def _check_positions(left: RowBatch, right: RowBatch, matches: Ints | None) -> None:
    """Raise an error if cells have other positions in both: rows of a third dataset may be missing."""
    a, b = left.positions(), right.positions()
    if matches is not None:
        a, b = a[matches >= 0], b[matches[matches >= 0]]
    if not np.array_equal(a, b):
        raise _OtherCellsError


def _have_equal_cells(left: RowBatch, right: RowBatch) -> bool:
    """Whether both have the same cells row by row."""
    a, b = left.scan, right.scan
    if len(left) != len(right) or a.dimensions != b.dimensions or a.alignment != b.alignment:
        return False
    n_partitions = int(max(left.partition_ids.max(initial=-1), right.partition_ids.max(initial=-1))) + 1
    if not np.array_equal(left.count_partitions(n_partitions), right.count_partitions(n_partitions)):
        return False
    pairs = zip(left.columns(a.dimensions), right.columns(b.dimensions), strict=True)
    return all(x.type == y.type and x.equals(y) for x, y in pairs)


def _match_cells(left: RowBatch, right: RowBatch) -> Ints | None:
    """For each row of ``left`` the row of ``right`` with its cell, or -1; None for equal cells."""
    if _have_equal_cells(left, right):
        return None
    dimensions = right.scan.dimensions
    left_keys, right_keys = left.columns(dimensions), right.columns(dimensions)
    left_ids, right_ids = left.partition_ids, right.partition_ids
    if left.scan.alignment != right.scan.alignment:
        lengths = len(left_ids), len(right_ids)
        left_ids, right_ids = match_partitions(left.keys, right.keys, right.scan, *lengths)
    codes = kernels.encode_keys(left_keys, right_keys, len(left), len(right))
    # Cells mostly determine their partition. Then the codes of both would only take a larger table.
    matches = kernels.lookup_codes(*codes)
    in_partition = _stay_in_partition(matches, left.counts, left_ids, right.counts, right_ids)
    if in_partition and _is_unique(codes.right, codes.bound):
        return matches
    ids = kernels.encode_keys([pa.array(left_ids)], [pa.array(right_ids)], len(left_ids), len(right_ids))
    rows = kernels.JoinCodes(np.repeat(ids.left, left.counts), np.repeat(ids.right, right.counts), ids.bound)
    return kernels.lookup_codes(*kernels.combine_codes(rows, codes))


def _stay_in_partition(
    matches: Ints, left_counts: Ints, left_ids: Ints, right_counts: Ints, right_ids: Ints
) -> bool:
    """Whether all rows match none or one of their partition; arrays of 8 bytes per row would cost more."""
    if (right_ids[1:] < right_ids[:-1]).any():
        return False
    ends = np.append(0, np.cumsum(right_counts))
    starts = np.cumsum(left_counts) - left_counts
    (used,) = left_counts.nonzero()
    if not len(used):
        return True
    first, last = (ends[right_ids.searchsorted(left_ids[used], side)] for side in ("left", "right"))
    # unsigned, no match is greater than all others
    lowest = np.minimum.reduceat(matches.view(np.uint64), starts[used])
    highest = np.maximum.reduceat(matches, starts[used])
    return bool(((lowest >= first.astype(np.uint64)) & (highest < last)).all())


def _is_unique(codes: Ints, bound: int) -> bool:
    """Whether no code repeats, but for -1."""
    present = codes[codes >= 0]
    # of sorted files, without another sort: half of the time of a join of 100,000 rows
    if bool((present[1:] > present[:-1]).all()):
        return True
    if not kernels.is_dense(bound, len(codes)):
        return len(np.unique(present)) == len(present)
    seen = np.zeros(bound, dtype=bool)
    seen[present] = True
    return int(np.count_nonzero(seen)) == len(present)
