"""From joined rows to the result: sorted, split into groups, put together in the order of the groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.kernels.search import lookup_join
from kartothek_cube.io_components.kernels.sort import sort_order, strictly_increasing
from kartothek_cube.io_components.kernels.take import Column, take_values
from kartothek_cube.io_components.query.column_widths import Widths, bits, fit, stored_bits, with_bits
from kartothek_cube.io_components.query.physical_plan import ScanContext
from kartothek_cube.io_components.query.row_batch import RowBatch, take_each, take_rows
from kartothek_cube.io_components.read.data_files import concat_tables

__all__ = ("GroupSplitter", "GroupedBatch")

Ints: TypeAlias = npt.NDArray[np.int64]

#: pieces that have at least so many rows on average are compared by their first and last rows only
_LONG = 100
#: blocks with fewer rows per group are split together
_SPLIT_FROM = 1000
#: column with the physical partition of each row; users have no columns of such names
_UNIT = "__unit"


def sort_result(rows: RowBatch, sort_columns: Sequence[str]) -> pa.Table:
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
    if rows.sorted and _partitions_sorted(rows, sort_columns):
        return rows.table
    return _sorted(rows.table, sort_columns)


def _sorted(table: pa.Table, sort_columns: Sequence[str]) -> pa.Table:
    order = sort_order([table.column(c) for c in sort_columns], len(table))
    if order is None:
        return table
    schema, columns = table.schema, table.columns
    del table
    return pa.Table.from_arrays(take_each(columns, order), schema=schema)


def _partitions_sorted(rows: RowBatch, sort_columns: Sequence[str]) -> bool:
    """Whether the last cell of each partition comes before the first of the next: then all is sorted."""
    dimensions = rows.source.dimensions
    if tuple(sort_columns[: len(dimensions)]) != dimensions:
        return False
    starts = rows.unit_starts()
    if not len(starts):
        return True
    edges = np.sort(np.concatenate([starts - 1, starts]))
    return _boundaries_sorted(
        [take_values(c, edges, missing=False) for c in rows.columns(dimensions)], len(edges)
    )


def _boundaries_sorted(cells: Sequence[Column], length: int) -> bool:
    """Whether, in a list of the last row of a piece and the first one of the next, each pair is in order."""
    within = np.arange(2, length, 2)  # a piece of one row is its own last and first
    return strictly_increasing(cells, length, within)


@attrs.frozen
class GroupedBatch:
    """
    Sorted rows of some blocks, split into groups.

    Attributes
    ----------
    groups
        Number of the group, and its rows; with the columns of the result, and those by which it is sorted.
    widths
        Widths of the columns in the files that these rows come from; one column per group.
    units
        Physical partitions that the rows come from.
    rest
        Rows that are still to be split, with all columns that are needed for that.
    """

    groups: list[tuple[int, pa.Table]]
    widths: Widths
    units: Ints
    rest: pa.Table | None = None


@attrs.frozen
class GroupSplitter:
    """
    The groups of a task.

    Numbers in a group are as wide as in the files of the physical partitions that its rows come from,
    whatever else the task reads: so a group has the same types, whichever groups are read with it.

    Attributes
    ----------
    context
        What the tasks of the query share.
    values
        For each ``partition_by`` column its value in each group; None if there is one group with all rows.
    columns
        Columns whose numbers can be of different width.
    widths
        For each of these columns how wide it is in the files of each physical partition.
    """

    context: ScanContext
    values: tuple[pa.Array, ...] | None
    columns: tuple[str, ...]
    widths: Widths

    @classmethod
    def of(
        cls, context: ScanContext, groups: Sequence[tuple[Any, ...]] | None, n_units: int
    ) -> GroupSplitter:
        """Make the groups with these value tuples, out of so many physical partitions."""
        keys = context.sources[0].partition_keys  # in no file: they have the type of the schema
        numbers = tuple(f.name for f in context.output if bits(f.type) and f.name not in keys)
        widths = np.zeros((len(numbers), n_units), np.int8)
        if groups is None:
            return cls(context, None, numbers, widths)
        types = [context.output.field(name).type for name in context.partition_by]
        columns = zip(*groups, strict=True)
        values = tuple(pa.array(c, type=t) for c, t in zip(columns, types, strict=True))
        return cls(context, values, numbers, widths)

    def split(self, rows: RowBatch) -> GroupedBatch:
        """
        Sort and split the joined rows of a block.

        Parameters
        ----------
        rows
            Rows of the seed with all payload. Other threads may split those of other physical partitions.

        Returns
        -------
        Piece
            Rows of a group keep their order.
        """
        units = self._note_widths(rows)
        if self.values is not None and self._differ(units):
            rows.table = rows.table.append_column(_UNIT, pa.array(rows.row_units().astype(np.int32)))
        table = self._select(sort_result(rows, self.context.sort_columns))
        del rows
        if self.values is not None and len(table) < _SPLIT_FROM * len(self.values[0]):
            return GroupedBatch([], self.widths[:, :0], units, table)
        return self._split(table, units)

    def _note_widths(self, rows: RowBatch) -> Ints:
        """Keep the widths of a block; return the physical partitions that its rows come from."""
        units: Ints = np.unique(rows.unit)
        schema = rows.table.schema
        whole = np.array([bits(schema.field(c).type) for c in self.columns], np.int8)
        self.widths[:, units] = whole.reshape(-1, 1)
        for column in rows.widths.keys() & set(self.columns):
            self.widths[self.columns.index(column), rows.unit] = rows.widths[column]
        return np.unique(rows.unit[rows.counts > 0])

    def _differ(self, units: Ints) -> bool:
        widths = self.widths[:, units]
        return bool((widths != widths[:, :1]).any())

    def _select(self, table: pa.Table) -> pa.Table:
        """The columns of the result, those by which it is sorted, and the partitions if they are there."""
        wanted = dict.fromkeys([*self.context.output.names, *self.context.sort_columns, _UNIT])
        return table.select([name for name in wanted if name in table.column_names])

    def _split(self, result: pa.Table, units: Ints) -> GroupedBatch:
        if self.values is None:
            return GroupedBatch(
                [(0, result)], self.widths[:, units].max(axis=1, keepdims=True, initial=0), units
            )
        numbers = lookup_join(
            [result.column(name) for name in self.context.partition_by],
            self.values,
            len(result),
            len(self.values[0]),
        )
        order = _stable_order(numbers, len(self.values[0]))
        if order is not None:
            result, numbers = take_rows(result, order), numbers[order]
        found = np.unique(numbers[numbers >= 0])
        starts, stops = np.searchsorted(numbers, found, "left"), np.searchsorted(numbers, found, "right")
        widths = np.repeat(self.widths[:, units[:1]], len(found), axis=1)
        if _UNIT in result.column_names:
            row_units = result.column(_UNIT).to_numpy()
            result = result.drop_columns(_UNIT)
            for number in np.flatnonzero((self.widths[:, units] != self.widths[:, units[:1]]).any(axis=1)):
                widths[number] = np.maximum.reduceat(self.widths[number][row_units], starts)
        bounds = zip(found.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return GroupedBatch(
            [(number, result.slice(start, stop - start)) for number, start, stop in bounds], widths, units
        )

    def _split_waiting(self, waiting: list[GroupedBatch]) -> GroupedBatch:
        """Concatenate and split the rest of some pieces."""
        units = np.concatenate([piece.units for piece in waiting])
        tables = [piece.rest for piece in waiting if piece.rest is not None]
        if self._differ(units):
            tables = [_with_units(t, p.units) for t, p in zip(tables, waiting, strict=True)]
        rows = concat_tables(tables, self.context.output, self.context.sources[0].uuid)
        return self._split(_sorted(rows, self.context.sort_columns), units)

    def concat_groups(self, pieces: list[GroupedBatch], blobs: BlobStore) -> list[pa.Table]:
        """
        Put the rows of each group together.

        Parameters
        ----------
        pieces
            What :meth:`split` made of the blocks of the task, in their order. The list is emptied, so that
            what is sorted goes away column by column.
        blobs
            The store.

        Returns
        -------
        list of pyarrow.Table
            One per group that has rows, sorted.
        """
        waiting = [piece for piece in pieces if piece.rest is not None and len(piece.rest)]
        if waiting:
            pieces.append(self._split_waiting(waiting))
            waiting.clear()
        by_group: dict[int, list[pa.Table]] = {}
        widths: dict[int, Widths] = {}
        while pieces:
            piece = pieces.pop(0)
            for (number, table), narrow in zip(piece.groups, piece.widths.T, strict=True):
                if len(table):
                    by_group.setdefault(number, []).append(table)
                    known = widths.get(number)
                    widths[number] = narrow if known is None else np.maximum(known, narrow)
                del table
            del piece
        schemas: dict[bytes, pa.Schema] = {}
        tables = []
        for number in sorted(by_group):
            key = widths[number].tobytes()
            if key not in schemas:
                schemas[key] = self._schema(widths[number], blobs)
            tables.append(self._whole(by_group.pop(number), schemas[key]))
        return tables

    def _schema(self, widths: Widths, blobs: BlobStore) -> pa.Schema:
        """The types of a group."""
        schema = self.context.output
        for column, width in zip(self.columns, widths.tolist(), strict=True):
            width = width or stored_bits(self.context, blobs, column)
            position = schema.get_field_index(column)
            schema = schema.set(position, pa.field(column, with_bits(schema.field(position).type, width)))
        return schema

    def _whole(self, tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
        """One sorted table of several; their list is emptied."""
        origin, sort_columns = self.context.sources[0].uuid, list(self.context.sort_columns)
        whole = [concat_tables(tables, schema, origin)]
        in_order = len(tables) == 1 or self._ascend(tables, len(whole[0]))
        tables.clear()
        table = whole.pop() if in_order else _sorted(whole.pop(), sort_columns)
        return fit(table.select(schema.names), schema)

    def _ascend(self, tables: list[pa.Table], length: int) -> bool:
        """Whether each of these tables, as far as they are long, begins after the end of the one before."""
        if length <= _LONG * len(tables):
            return False
        rows = [row for a, b in pairwise(tables) for row in (a.slice(len(a) - 1), b.slice(0, 1))]
        edges = [t.select(list(self.context.sort_columns)) for t in rows]
        table = concat_tables(edges, self.context.output, self.context.sources[0].uuid)
        return _boundaries_sorted(table.columns, len(table))


def _with_units(table: pa.Table, units: Ints) -> pa.Table:
    """Rows with their physical partition; if they had no such column, one stands for all."""
    if _UNIT in table.column_names:
        return table
    return table.append_column(_UNIT, pa.array(np.full(len(table), units[0], np.int32)))


def _stable_order(numbers: Ints, bound: int) -> Ints | None:
    """Order that sorts the numbers and leaves equal ones as they are; None if they are sorted."""
    if len(numbers) < 2 or bool((numbers[1:] >= numbers[:-1]).all()):
        return None
    narrow = numbers.astype(np.int16) if bound < 1 << 15 else numbers  # short integers are sorted by radix
    return np.argsort(narrow, kind="stable")
