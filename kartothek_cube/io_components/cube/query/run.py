"""Executing a query task: load the datasets, join them cell by cell, sort, split into groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.columns import combine, lookup, ordinals, sort_order, strictly_increasing
from kartothek_cube.io_components.cube.query.join import chain, join
from kartothek_cube.io_components.cube.query.layout import QueryContext, Task
from kartothek_cube.io_components.cube.query.rows import Rows, load_rows, take_rows
from kartothek_cube.io_components.execute import expect_files

__all__ = ("run_task",)

Ints: TypeAlias = npt.NDArray[np.int64]


def run_task(context: QueryContext, task: Task) -> list[pa.Table]:
    """
    Execute one task.

    Parameters
    ----------
    context
        What all tasks of the query share.
    task
        Which files to read and which groups to make of their rows.

    Returns
    -------
    list of pyarrow.Table
        One table per group with rows, in the order of ``task.groups``; at most one without groups. Rows are
        sorted, columns are those of ``context.output``.
    """
    blobs = open_blobs(context.store)
    expect_files(sum(len(files.labels) for files in task.files))
    seed = load_rows(blobs, context, task, 0)
    for number in range(1, len(context.sources)):
        join(seed, load_rows(blobs, context, task, number, seed))
    table = _sorted(seed, context)
    return [t for t in _split(table, context, task) if len(t)]


def _sorted(seed: Rows, context: QueryContext) -> pa.Table:
    """The rows with their partition columns, sorted."""
    table = seed.table
    for column in context.sort_columns:
        if column not in table.column_names:
            table = table.append_column(column, seed.constant(column))
    if seed.sorted and _units_ascend(seed, context.sort_columns):
        return table
    order = sort_order([table.column(c) for c in context.sort_columns], len(table))
    return table if order is None else take_rows(table, order)


def _units_ascend(seed: Rows, sort_columns: Sequence[str]) -> bool:
    """Whether the last cell of each partition comes before the first of the next: then all is sorted."""
    dimensions = seed.source.dimensions
    if tuple(sort_columns[: len(dimensions)]) != dimensions:
        return False
    starts = seed.unit_starts()
    edges = np.sort(np.concatenate([starts - 1, starts]))
    if not len(edges):
        return True
    cells = [column.take(pa.array(edges)) for column in seed.columns(dimensions)]
    within = np.arange(2, len(edges), 2)  # a partition of one row is its own last and first
    return strictly_increasing(cells, len(edges), within)


def _split(table: pa.Table, context: QueryContext, task: Task) -> list[pa.Table]:
    """Tables of the groups; rows keep their order."""
    table, keys = table.select(context.output.names), table
    if task.groups is None:
        return [table]
    number = _group_numbers(keys, context, task.groups)
    order = np.argsort(number, kind="stable")
    bounds = np.searchsorted(number[order], np.arange(len(task.groups) + 1))
    if not np.array_equal(order, np.arange(len(order))):
        table = take_rows(table, order)
    return [table.slice(bounds[i], bounds[i + 1] - bounds[i]) for i in range(len(task.groups))]


def _group_numbers(table: pa.Table, context: QueryContext, groups: Sequence[tuple[Any, ...]]) -> Ints:
    """Number of the group that each row belongs to, -1 for none."""
    values = [
        pa.array(column, type=context.output.field(name).type)
        for name, column in zip(context.partition_by, zip(*groups, strict=True), strict=True)
    ]
    rows = [table.column(name) for name in context.partition_by]
    codes, bound = combine(
        [ordinals(chain(r, pa.chunked_array([v]))) for r, v in zip(rows, values, strict=True)], 0
    )
    return lookup(codes[: len(table)], codes[len(table) :], bound)
