"""Output of a query task: sort the joined rows, split them into groups, concatenate each group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import Ints, widen
from kartothek_cube.io_components.kernels.encode import integers
from kartothek_cube.io_components.kernels.search import lookup_keys
from kartothek_cube.io_components.kernels.sort import run_starts_mask, sort_order, strictly_increasing
from kartothek_cube.io_components.kernels.take import Column, as_chunked, take_values
from kartothek_cube.io_components.query.physical_plan import Group, ScanContext
from kartothek_cube.io_components.query.row_batch import RowBatch, take_columns, take_rows
from kartothek_cube.io_components.read.data_files import concat_tables, fit_widths

__all__ = (
    "GroupRows",
    "GroupSplitter",
    "GroupedBatch",
    "GroupedTable",
    "sort_table",
)

#: tables of a group with at least so many rows on average are compared by their first and last rows only:
#: for shorter ones that costs as much as comparing all rows
_LONG = 100
#: batches with fewer rows per group are concatenated, then split: a slice costs as much as many rows
_SPLIT_FROM = 1000


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


def _partitions_sorted(rows: RowBatch, sort_columns: Sequence[str]) -> bool:
    """Whether the last cell of each partition comes before the first of the next: then all is sorted."""
    dimensions = rows.scan.dimensions
    if tuple(sort_columns[: len(dimensions)]) != dimensions:
        return False
    starts = rows.partition_starts()
    if not len(starts):
        return True
    boundaries = np.sort(np.concatenate([starts - 1, starts]))
    cells = [take_values(column, boundaries, missing=False) for column in rows.columns(dimensions)]
    return _boundaries_sorted(cells, len(boundaries))


def _boundaries_sorted(cells: Sequence[Column], length: int) -> bool:
    """Whether each pair (last row of a table, first row of the next) is in order."""
    # a table of one row is its own first and last row: the step within a table is not compared
    within_tables = np.arange(2, length, 2)
    return strictly_increasing(cells, length, within_tables)


class GroupRows(NamedTuple):
    """Rows of one group, with the columns of the result and those by which it is sorted."""

    number: int
    table: pa.Table
    sorted: bool = True


class GroupedTable(NamedTuple):
    """Rows of consecutive groups, in the types of the result, and the bounds of each group from 0 on."""

    table: pa.Table
    bounds: Ints

    def tables(self) -> list[pa.Table]:
        """One table per group."""
        if len(self.bounds) == 2:
            return [self.table]
        bounds = self.bounds.tolist()
        return [self.table.slice(start, stop - start) for start, stop in pairwise(bounds)]


@attrs.frozen
class GroupedBatch:
    """Rows of a block, split into groups; or to be split later, with those of other blocks."""

    groups: list[GroupRows] = attrs.field(factory=list)
    unsplit: pa.Table | None = None


@attrs.frozen
class GroupSplitter:
    """Split of the rows of a task into its groups."""

    context: ScanContext
    #: for each ``partition_by`` column its value in each group; None for one group with all rows
    values: tuple[pa.Array, ...] | None
    #: whether rows that are sorted again with those of other blocks stay as they are until then
    defer_sort: bool = False

    @classmethod
    def of(
        cls, context: ScanContext, groups: Sequence[Group] | None, *, defer_sort: bool = False
    ) -> GroupSplitter:
        """Splitter into the given groups."""
        if groups is None:
            return cls(context, None, defer_sort)
        # indices have the widest types
        types = [widen(context.output.field(name).type) for name in context.partition_by]
        columns = zip(*groups, strict=True)
        values = tuple(pa.array(c, type=t) for c, t in zip(columns, types, strict=True))
        return cls(context, values, defer_sort)

    def split(self, rows: RowBatch) -> GroupedBatch:
        """Sort and split the joined rows of a block."""
        sort_columns = self.context.sort_columns
        rows = rows.append_partition_keys(sort_columns or self.context.output.names)
        in_order = not sort_columns or (rows.sorted and _partitions_sorted(rows, sort_columns))
        table = rows.table
        del rows
        stays_whole = self.values is None or len(table) < _SPLIT_FROM * len(self.values[0])
        if not in_order and not (stays_whole and self.defer_sort):
            table, in_order = sort_table(table, sort_columns), True
        table = self._select(table)
        if self.values is None:
            return GroupedBatch([GroupRows(0, table, in_order)])
        return GroupedBatch(unsplit=table) if stays_whole else GroupedBatch(self._split(table))

    def _select(self, table: pa.Table) -> pa.Table:
        """The columns of the result, in its types, and those by which it is sorted."""
        output, stored = self.context.output, set(table.column_names)
        names = dict.fromkeys([*output.names, *self.context.sort_columns])
        return fit_widths(table.select([name for name in names if name in stored]), output)

    def _split(self, table: pa.Table) -> list[GroupRows]:
        """Rows by group."""
        numbers, split = self._arrange(table)
        return [GroupRows(n, rows) for n, rows in zip(numbers.tolist(), split.tables(), strict=True)]

    def _arrange(self, table: pa.Table) -> tuple[Ints, GroupedTable]:
        """Numbers of the groups that have rows, ascending, and these rows in the order of the groups."""
        if self.values is None:
            raise ValueError("a task without groups has nothing to split")
        keys = [table.column(name) for name in self.context.partition_by]
        starts = _run_starts(keys, len(table))
        first = keys if starts is None else take_columns(keys, starts)
        n_keys, n_groups = len(table) if starts is None else len(starts), len(self.values[0])
        numbers = lookup_keys(first, self.values, n_keys, n_groups)
        if starts is not None and not _is_ascending(numbers):
            numbers, starts = np.repeat(numbers, np.diff(np.append(starts, len(table)))), None
        if starts is None:
            order = _stable_order(numbers, n_groups)
            if order is not None:
                table, numbers = take_rows(table, order), numbers[order]
            starts = np.flatnonzero(np.diff(numbers, prepend=-2))
            numbers = numbers[starts]
        # predicates by column let rows of groups of other tasks pass: they come first
        bounds = np.append(starts, len(table))[int((numbers < 0).sum()) :]
        return numbers[numbers >= 0], GroupedTable(table.slice(bounds[0]), bounds - bounds[0])

    def _concat_unsplit(self, tables: list[pa.Table]) -> pa.Table:
        """Concatenate and sort the rows of blocks that are not split yet."""
        table = concat_tables(tables, self.context.output, self.context.scans[0].uuid)
        return sort_table(table, self.context.sort_columns)

    def concat_groups(self, batches: list[GroupedBatch]) -> list[GroupedTable]:
        """Sorted rows of the groups that have rows; ``batches``, in the order of the blocks, is emptied."""
        # emptied, and with each name deleted after use, so that sorting releases column by column
        unsplit = [rows for batch in batches if (rows := batch.unsplit) is not None and len(rows)]
        if unsplit and not any(batch.groups for batch in batches):
            batches.clear()
            table = self._concat_unsplit(unsplit)
            unsplit.clear()
            _, split = self._arrange(table)
            del table
            finished = split.table.select(self.context.output.names)
            return [GroupedTable(finished, split.bounds)] if len(split.bounds) > 1 else []
        if unsplit:
            batches.append(GroupedBatch(self._split(self._concat_unsplit(unsplit))))
            unsplit.clear()
        tables_by_group: dict[int, list[pa.Table]] = {}
        unsorted: set[int] = set()
        while batches:
            for number, table, in_order in batches.pop(0).groups:
                if len(table):
                    unsorted.update(() if in_order else (number,))
                    tables_by_group.setdefault(number, []).append(table)
                del table
        results = []
        for number in sorted(tables_by_group):
            table = self._concat_group(tables_by_group.pop(number), number not in unsorted)
            results.append(GroupedTable(table, np.array([0, len(table)])))
            del table
        return results

    def _concat_group(self, tables: list[pa.Table], is_sorted: bool) -> pa.Table:
        """One sorted table of several; their list is emptied."""
        output = self.context.output
        # the only reference is in a list, so that sort_table can release the columns one by one
        concatenated = [concat_tables(tables, output, self.context.scans[0].uuid)]
        in_order = is_sorted and (len(tables) == 1 or self._tables_in_order(tables, len(concatenated[0])))
        tables.clear()
        table = concatenated.pop() if in_order else sort_table(concatenated.pop(), self.context.sort_columns)
        return table.select(output.names)

    def _tables_in_order(self, tables: list[pa.Table], length: int) -> bool:
        """Whether each table begins after the end of the one before; False for short ones, unchecked."""
        if length <= _LONG * len(tables) or not self.context.sort_columns:
            return False
        rows = [row for a, b in pairwise(tables) for row in (a.slice(len(a) - 1), b.slice(0, 1))]
        boundaries = [t.select(list(self.context.sort_columns)) for t in rows]
        table = concat_tables(boundaries, self.context.output, self.context.scans[0].uuid)
        return _boundaries_sorted(table.columns, len(table))


def _run_starts(keys: Sequence[Column], length: int) -> Ints | None:
    """First rows of runs of equal keys; None if runs are short, or values not cheap to compare."""
    columns = [as_chunked(key) for key in keys]
    if not columns or any(column.null_count or integers(column) is None for column in columns):
        return None
    starts = np.flatnonzero(run_starts_mask(columns, length, np.empty(0, np.int64)))
    return None if 2 * len(starts) > length else starts


def _is_ascending(numbers: Ints) -> bool:
    """Whether each number but -1 is greater than the one before."""
    return bool((numbers[1:] > np.maximum(numbers[:-1], -1)).all())


def _stable_order(numbers: Ints, bound: int) -> Ints | None:
    """Stable order that sorts the numbers; None if they are sorted."""
    if len(numbers) < 2 or bool((numbers[1:] >= numbers[:-1]).all()):
        return None
    narrow = numbers.astype(np.int16) if bound < 1 << 15 else numbers  # NumPy sorts 16 bits by radix
    return np.argsort(narrow, kind="stable")
