"""Intermediate result of a query: rows, and the files they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.arrow.arrays import append_columns, replace_columns
from kartothek_cube.core.arrow.types import Ints, Mask
from kartothek_cube.core.copying import replace_fields
from kartothek_cube.io_components.kernels.take import repeat, take_values, to_single_array
from kartothek_cube.io_components.query.physical_plan import DatasetScan


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

    def columns(self, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Columns by name."""
        return [self.table.column(name) for name in names]

    def append_columns(self, columns: Iterable[tuple[str, pa.Array | pa.ChunkedArray]]) -> RowBatch:
        """The rows with more columns."""
        return replace_fields(self, table=append_columns(self.table, columns))

    def combine_chunks(self, columns: Iterable[str]) -> RowBatch:
        """The rows with one chunk per column: each comparison would copy them otherwise."""
        positions = [self.table.column_names.index(column) for column in columns]
        single = {position: to_single_array(self.table.column(position)) for position in positions}
        return replace_fields(self, table=replace_columns(self.table, single))

    def append_partition_keys(self, columns: Iterable[str]) -> RowBatch:
        """The rows with those of the columns that are partition keys and not in the table."""
        present = {*self.table.column_names}
        names = [c for c in columns if c in self.keys and c not in present]
        return self.append_columns((name, self._repeat_key(name)) for name in names)

    def _repeat_key(self, column: str) -> pa.Array:
        values = self.keys[column]
        # several times as fast as take: a tenth of the time of a query of 2 million rows with two keys
        if pa.types.is_integer(values.type) and not values.null_count:
            return repeat(values, self.counts)
        return values.take(pa.array(self.file_numbers()))

    def filter(self, mask: Mask) -> RowBatch:
        """Only the rows of a mask."""
        counts = np.bincount(self.file_numbers()[mask], minlength=len(self.counts)).astype(np.int64)
        return replace_fields(self, table=self.table.filter(pa.array(mask)), counts=counts)


def take_columns(columns: list[pa.ChunkedArray], positions: Ints) -> list[pa.Array]:
    """Values of columns at the given positions; each entry of ``columns`` is released when it is taken."""
    # a result as large as memory allows is sorted column by column: both copies of all would not fit
    taken = []
    for number in range(len(columns)):
        column, columns[number] = columns[number], None
        taken.append(take_values(column, positions, missing=False))
    return taken
