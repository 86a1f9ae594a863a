"""Output of a query task: sort the joined rows, and split them into groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.io_components.kernels.search import lookup_keys
from kartothek_cube.io_components.kernels.sort import sort_order, strictly_increasing
from kartothek_cube.io_components.query.physical_plan import Group, ScanContext
from kartothek_cube.io_components.query.row_batch import take_columns
from kartothek_cube.io_components.scan import concat_tables, fit_widths


class BlockRows(NamedTuple):
    """Joined rows of consecutive physical partitions."""

    table: pa.Table
    #: where the partitions begin, but for the first, if the rows of each are sorted; else None
    starts: Ints | None


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
    table = concat_tables([block.table for block in blocks], context.output, context.scans[0].uuid)
    order = None
    keys = [table.column(column) for column in context.sort_columns]
    if keys and not _is_sorted(keys, blocks):
        order = sort_order(keys, len(table))
    blocks.clear()
    del keys
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
    return GroupedTable(fit_widths(table, context.output), bounds)


def _is_sorted(keys: Sequence[pa.ChunkedArray], blocks: Sequence[BlockRows]) -> bool:
    """Whether the rows of all blocks are sorted, by the order in partitions and the rows at their ends."""
    starts, n_rows = [], 0
    for block in blocks:
        if block.starts is None:
            return False
        starts += [np.array([n_rows]), n_rows + block.starts]
        n_rows += len(block.table)
    first = np.concatenate(starts)
    if len(first) < 2:
        return True
    ends = np.unique(np.concatenate([first, first - 1]).clip(0, max(n_rows - 1, 0)))
    return not n_rows or strictly_increasing([key.take(pa.array(ends)) for key in keys], len(ends))


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
