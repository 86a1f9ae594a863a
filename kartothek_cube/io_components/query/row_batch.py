"""The rows of one dataset of a query: from which files and physical partitions they come, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.io_components.kernels.take import repeat, take_values
from kartothek_cube.io_components.query.column_widths import Widths, bits, widths_of_files
from kartothek_cube.io_components.query.physical_plan import DatasetScan
from kartothek_cube.io_components.read.data_files import concat_tables, zero_column_table
from kartothek_cube.io_components.runtime.threads import available_cores, ordered_map

__all__ = ("RowBatch", "concat_rows", "take_rows")

Ints: TypeAlias = npt.NDArray[np.int64]

#: with fewer values to take, starting threads costs more
_THREADS_FROM = 1 << 20


@attrs.define
class RowBatch:
    """
    Rows of one dataset, those of a physical partition next to each other.

    Attributes
    ----------
    source
        The dataset.
    table
        Its dimensions and payload.
    counts
        Number of rows from each file.
    keys
        Values of the partition keys of each file.
    unit
        Physical partition of each file, ascending.
    sorted
        Whether cells are known to be sorted and unique within each physical partition.
    widths
        How wide numbers are in the physical partition of each file, for columns where that differs.
    """

    source: DatasetScan
    table: pa.Table
    counts: Ints
    keys: dict[str, pa.Array]
    unit: Ints
    sorted: bool = False
    widths: dict[str, Widths] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def file(self) -> npt.NDArray[np.int32]:
        """For each row the number of its file."""
        return np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)

    def row_units(self) -> Ints:
        """For each row its physical partition."""
        return np.repeat(self.unit, self.counts)

    def unit_starts(self) -> Ints:
        """Positions of the rows that begin a new physical partition, without the first."""
        if len(self.unit) == 1:
            return np.empty(0, dtype=np.int64)
        ends = np.cumsum(self.counts)[:-1][self.unit[1:] != self.unit[:-1]]
        inner: Ints = np.unique(ends[(ends > 0) & (ends < len(self))])
        return inner

    def widths_of(self, column: str) -> Widths:
        """How wide numbers of a column are in the physical partition of each file."""
        known = self.widths.get(column)
        if known is not None:
            return known
        return np.full(len(self.counts), bits(self.table.schema.field(column).type), np.int8)

    def columns(self, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Columns by name."""
        return [self.table.column(name) for name in names]

    def constant(self, column: str) -> pa.Array:
        """A partition key as a column."""
        values = self.keys[column]
        if pa.types.is_integer(values.type) and not values.null_count:
            return repeat(values, self.counts)
        return values.take(pa.array(self.file))

    def add_constants(self, columns: Sequence[str]) -> None:
        """Add partition keys as columns, unless they are there."""
        for column in columns:
            if column not in self.table.column_names:
                self.table = self.table.append_column(column, self.constant(column))

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the rows that are not in a mask."""
        self.counts = self._counts(self.file[mask])
        self.table = self.table.filter(pa.array(mask))

    def pick(self, positions: Ints) -> None:
        """Keep the rows at ascending positions."""
        self.counts = self._counts(self.file[positions])
        self.table = take_rows(self.table, positions)

    def _counts(self, files: npt.NDArray[np.int32]) -> Ints:
        return np.bincount(files, minlength=len(self.counts)).astype(np.int64)


def take_rows(table: pa.Table, positions: Ints) -> pa.Table:
    """Rows of a table at the given positions, also if it has no columns."""
    if not table.num_columns:
        return zero_column_table(len(positions))
    return pa.Table.from_arrays(take_each(table.columns, positions), schema=table.schema)


def take_each(columns: list[pa.ChunkedArray], positions: Ints) -> list[pa.Array]:
    """
    Values of columns at the given positions.

    Parameters
    ----------
    columns
        The columns. The list is emptied: each of them goes away when its values have been taken.
    positions
        Rows.
    """

    def take(number: int) -> pa.Array:
        column, columns[number] = columns[number], None
        return take_values(column, positions, missing=False)

    threads = available_cores() if len(positions) * len(columns) >= _THREADS_FROM else 1
    return list(ordered_map(take, range(len(columns)), threads))


def concat_rows(parts: Sequence[RowBatch], schema: pa.Schema) -> RowBatch:
    """
    Rows of consecutive physical partitions as one.

    Parameters
    ----------
    parts
        At least one.
    schema
        Types of columns that are null in all parts.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return RowBatch(
        source=first.source,
        table=concat_tables([part.table for part in parts], schema, first.source.uuid),
        counts=np.concatenate([part.counts for part in parts]),
        keys={key: pa.concat_arrays([part.keys[key] for part in parts]) for key in first.keys},
        unit=np.concatenate([part.unit for part in parts]),
        sorted=all(part.sorted for part in parts),
        widths=_common_widths(parts),
    )


def _common_widths(parts: Sequence[RowBatch]) -> dict[str, Widths]:
    schemas = [part.table.schema for part in parts]
    differing = {column for part in parts for column in part.widths}
    differing |= widths_of_files(schemas, np.arange(len(parts))).keys()
    return {column: np.concatenate([part.widths_of(column) for part in parts]) for column in differing}
