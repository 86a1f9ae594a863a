"""From joined rows to the result: sorted, split into groups, put together in the order of the groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.io_components.columns import Column, gather, sort_order, strictly_increasing
from kartothek_cube.io_components.cube.query.layout import QueryContext
from kartothek_cube.io_components.cube.query.rows import Rows, take_each, take_rows
from kartothek_cube.io_components.files import concat
from kartothek_cube.io_components.partners import partners

__all__ = ("Groups", "Piece", "in_order")

Ints: TypeAlias = npt.NDArray[np.int64]

#: pieces that have at least so many rows on average are compared by their first and last rows only
_LONG = 100
#: blocks with fewer rows per group are split together
_SPLIT_FROM = 1000


def in_order(rows: Rows, sort_columns: Sequence[str]) -> pa.Table:
    """
    The rows with their partition columns, sorted.

    Parameters
    ----------
    rows
        Rows of the seed with all payload.
    sort_columns
        By what to sort them: dimensions, then partition columns.

    Returns
    -------
    pyarrow.Table
    """
    rows.add_constants(sort_columns)
    if rows.sorted and _units_ascend(rows, sort_columns):
        return rows.table
    return _sorted(rows.table, sort_columns)


def _sorted(table: pa.Table, sort_columns: Sequence[str]) -> pa.Table:
    order = sort_order([table.column(c) for c in sort_columns], len(table))
    if order is None:
        return table
    schema, columns = table.schema, table.columns
    del table
    return pa.Table.from_arrays(take_each(columns, order), schema=schema)


def _units_ascend(rows: Rows, sort_columns: Sequence[str]) -> bool:
    """Whether the last cell of each partition comes before the first of the next: then all is sorted."""
    dimensions = rows.source.dimensions
    if tuple(sort_columns[: len(dimensions)]) != dimensions:
        return False
    starts = rows.unit_starts()
    if not len(starts):
        return True
    edges = np.sort(np.concatenate([starts - 1, starts]))
    return _edges_ascend([gather(c, edges, missing=False) for c in rows.columns(dimensions)], len(edges))


def _edges_ascend(cells: Sequence[Column], length: int) -> bool:
    """Whether, in a list of the last row of a piece and the first one of the next, each pair is in order."""
    within = np.arange(2, length, 2)  # a piece of one row is its own last and first
    return strictly_increasing(cells, length, within)


@attrs.frozen
class Piece:
    """
    What a block holds of the result.

    Attributes
    ----------
    schema
        Types of the columns of the result.
    groups
        Rows by the number of their group.
    rest
        Rows that are still to be split, with all columns that are needed for that.
    """

    schema: pa.Schema
    groups: list[tuple[int, pa.Table]]
    rest: pa.Table | None = None


@attrs.frozen
class Groups:
    """
    The groups of a task.

    Attributes
    ----------
    context
        What the tasks of the query share.
    values
        For each ``partition_by`` column its value in each group; None if there is one group with all rows.
    """

    context: QueryContext
    values: tuple[pa.Array, ...] | None

    @classmethod
    def of(cls, context: QueryContext, groups: Sequence[tuple[Any, ...]] | None) -> Groups:
        """Make the groups with these value tuples."""
        if groups is None:
            return cls(context, None)
        types = [context.output.field(name).type for name in context.partition_by]
        columns = zip(*groups, strict=True)
        return cls(context, tuple(pa.array(c, type=t) for c, t in zip(columns, types, strict=True)))

    def split(self, table: pa.Table, *, last: bool = False) -> Piece:
        """
        Split sorted rows.

        Parameters
        ----------
        table
            The rows.
        last
            Whether there is nothing that few rows can wait for.

        Returns
        -------
        Piece
            With the columns of the result, and those by which it is sorted; rows keep their order.
        """
        names = self.context.output.names
        result = table.select([*names, *(name for name in self.context.sort_columns if name not in names)])
        if self.values is None:
            return Piece(result.schema, [(0, result)])
        if not last and len(table) < _SPLIT_FROM * len(self.values[0]):
            return Piece(result.schema, [], table)
        numbers = partners(
            [table.column(name) for name in self.context.partition_by],
            self.values,
            len(table),
            len(self.values[0]),
        )
        order = _stable_order(numbers, len(self.values[0]))
        if order is not None:
            result, numbers = take_rows(result, order), numbers[order]
        found = np.unique(numbers[numbers >= 0])
        starts, stops = np.searchsorted(numbers, found, "left"), np.searchsorted(numbers, found, "right")
        bounds = zip(found.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return Piece(
            result.schema, [(number, result.slice(start, stop - start)) for number, start, stop in bounds]
        )

    def assemble(self, pieces: list[Piece]) -> list[pa.Table]:
        """
        Put the rows of each group together.

        Parameters
        ----------
        pieces
            What :meth:`split` made of the blocks of the task, in their order. The list is emptied, so that
            what is sorted goes away column by column.

        Returns
        -------
        list of pyarrow.Table
            One per group that has rows, sorted; all with the same types, wherever their rows come from.
        """
        waiting = [piece.rest for piece in pieces if piece.rest is not None]
        if waiting:
            rows = concat(waiting, self.context.output, self.context.sources[0].uuid)
            pieces.append(self.split(_sorted(rows, self.context.sort_columns), last=True))
        schemas: list[pa.Schema] = []
        by_group: dict[int, list[pa.Table]] = {}
        while pieces:
            piece = pieces.pop(0)
            if not any(piece.schema.equals(other, check_metadata=False) for other in schemas):
                schemas.append(piece.schema)
            for number, table in piece.groups:
                if len(table):
                    by_group.setdefault(number, []).append(table)
                del table
            del piece
        types = [schema.empty_table() for schema in schemas] if len(schemas) > 1 else []
        wanted = self.context.output.names
        return [self._whole(types, by_group.pop(number)).select(wanted) for number in sorted(by_group)]

    def _whole(self, types: list[pa.Table], tables: list[pa.Table]) -> pa.Table:
        """One sorted table of several; their list is emptied."""
        origin, sort_columns = self.context.sources[0].uuid, list(self.context.sort_columns)
        whole = [concat([*types, *tables], self.context.output, origin)]
        in_order = len(tables) == 1 or self._ascend(types, tables, len(whole[0]))
        tables.clear()
        return whole.pop() if in_order else _sorted(whole.pop(), sort_columns)

    def _ascend(self, types: list[pa.Table], tables: list[pa.Table], length: int) -> bool:
        """Whether each of these tables, as far as they are long, begins after the end of the one before."""
        if length <= _LONG * len(tables):
            return False
        rows = [row for a, b in pairwise(tables) for row in (a.slice(len(a) - 1), b.slice(0, 1))]
        edges = [t.select(list(self.context.sort_columns)) for t in [*types, *rows]]
        table = concat(edges, self.context.output, self.context.sources[0].uuid)
        return _edges_ascend(table.columns, len(table))


def _stable_order(numbers: Ints, bound: int) -> Ints | None:
    """Order that sorts the numbers and leaves equal ones as they are; None if they are sorted."""
    if len(numbers) < 2 or bool((numbers[1:] >= numbers[:-1]).all()):
        return None
    narrow = numbers.astype(np.int16) if bound < 1 << 15 else numbers  # short integers are sorted by radix
    return np.argsort(narrow, kind="stable")
