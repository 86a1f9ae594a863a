"""Output of a query task: sort the joined rows, and split them into groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.arrays import concat_promoted
from kartothek_cube.core.arrow.pandas_conversion import cast_to_schema
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.io_components.columns import take_columns
from kartothek_cube.io_components.keys import lookup_keys, sort_order, strictly_increasing
from kartothek_cube.io_components.query.physical_plan import Group, ScanContext
from kartothek_cube.io_components.scan import concat_tables


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
