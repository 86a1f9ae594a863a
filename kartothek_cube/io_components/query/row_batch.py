"""Intermediate result of a query: rows, the files they come from, and the widths of their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.arrow.arrays import zero_column_table
from kartothek_cube.core.arrow.tables import append_columns, replace_columns
from kartothek_cube.core.arrow.types import Ints, Mask
from kartothek_cube.core.copying import replace_fields
from kartothek_cube.io_components.kernels.take import repeat, take_values
from kartothek_cube.io_components.query.physical_plan import DatasetScan
from kartothek_cube.io_components.read.data_files import concat_tables
from kartothek_cube.io_components.runtime import available_cores, ordered_map

__all__ = (
    "RowBatch",
    "Widths",
    "bits",
    "concat_rows",
    "fit",
    "take_columns",
    "take_rows",
    "widths_of_files",
    "with_bits",
)

Widths: TypeAlias = npt.NDArray[np.int8]
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_FLOATS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
_BITS = {t.id: width for kind in (_SIGNED, _UNSIGNED, _FLOATS) for width, t in kind.items()}
#: with fewer values to take, starting threads costs more
_THREADS_FROM = 1 << 20


def bits(dtype: pa.DataType) -> int:
    """
    Bits of a number, or of the numbers in a list; 0 for other types.

    >>> bits(pa.int8()), bits(pa.list_(pa.float32())), bits(pa.string())
    (8, 32, 0)
    """
    width = _BITS.get(dtype.id)
    while width is None and pat.is_list(dtype):
        dtype = dtype.value_type
        width = _BITS.get(dtype.id)
    return width or 0


def with_bits(dtype: pa.DataType, width: int) -> pa.DataType:
    """
    The type of the same kind whose numbers have so many bits; types without numbers are unchanged.

    >>> with_bits(pa.list_(pa.uint64()), 16)
    ListType(list<item: uint16>)
    """
    if _BITS.get(dtype.id) == width:
        return dtype
    if pat.is_list(dtype):
        return pa.list_(dtype.value_field.with_type(with_bits(dtype.value_type, width)))
    for kind, is_kind in (
        (_SIGNED, pat.is_signed_integer),
        (_UNSIGNED, pat.is_unsigned_integer),
        (_FLOATS, pat.is_floating),
    ):
        if is_kind(dtype):
            return kind[width]
    return dtype


def widths_of_files(schemas: Sequence[pa.Schema], partition_ids: Ints) -> dict[str, Widths]:
    """
    Bits per file of the columns that differ between files; those of the widest file of its partition.

    >>> narrow, wide = pa.schema([("v", pa.int8())]), pa.schema([("v", pa.int64())])
    >>> widths_of_files([narrow, narrow, wide], np.array([0, 1, 1]))
    {'v': array([ 8, 64, 64], dtype=int8)}
    """
    if not schemas or all(schema.equals(schemas[0]) for schema in schemas[1:]):
        return {}
    names = schemas[0].names
    table = np.array([[bits(schema.field(name).type) for name in names] for schema in schemas], np.int8)
    starts = np.flatnonzero(np.append(True, partition_ids[1:] != partition_ids[:-1]))
    times = np.diff(np.append(starts, len(partition_ids)))
    widths = {}
    for name, column in zip(names, table.T, strict=True):
        if bool((column != column[0]).any()):
            widths[name] = np.repeat(np.maximum.reduceat(column, starts), times)
    return widths


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast numbers to the width in a schema of the same columns; they fit."""
    columns = {}
    for position, (stored, target) in enumerate(zip(table.schema.types, schema.types, strict=True)):
        if stored == target:
            continue
        width = bits(target)
        if width and bits(stored) != width:
            # a column of empty lists only may have no item type
            dtype = with_bits(stored, width) if bits(stored) else target
            columns[position] = table.column(position).cast(dtype)
    return replace_columns(table, columns)


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
    #: whether cells are known to be sorted and unique within each physical partition
    sorted: bool = False
    #: bits of the numbers in the physical partition of each file, for columns where that differs
    widths: dict[str, Widths] = attrs.field(factory=dict)

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

    def widths_of(self, column: str) -> Widths:
        """Bits of the numbers of a column in the physical partition of each file."""
        widths = self.widths.get(column)
        if widths is not None:
            return widths
        return np.full(len(self.counts), bits(self.table.schema.field(column).type), np.int8)

    def columns(self, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Columns by name."""
        return [self.table.column(name) for name in names]

    def append_columns(self, columns: Iterable[tuple[str, pa.Array | pa.ChunkedArray]]) -> RowBatch:
        """The rows with more columns."""
        return replace_fields(self, table=append_columns(self.table, columns))

    def append_partition_keys(self, columns: Iterable[str]) -> RowBatch:
        """The rows with those of the columns that are partition keys and not in the table."""
        stored = set(self.table.column_names)
        names = [c for c in columns if c in self.keys and c not in stored]
        return self.append_columns((name, self._repeat_key(name)) for name in names)

    def _repeat_key(self, column: str) -> pa.Array:
        values = self.keys[column]
        # several times as fast as take: a tenth of the time of a query of 2 million rows with two keys
        if pa.types.is_integer(values.type) and not values.null_count:
            return repeat(values, self.counts)
        return values.take(pa.array(self.file_numbers()))

    def between(self, start: int, stop: int) -> RowBatch:
        """The rows of consecutive physical partitions."""
        low, high = np.searchsorted(self.partition_ids, [start, stop]).tolist()
        if high - low == len(self.partition_ids):
            return self
        files = slice(low, high)
        first, length = int(self.counts[:low].sum()), int(self.counts[files].sum())
        return attrs.evolve(
            self,
            table=self.table.slice(first, length),
            counts=self.counts[files],
            keys={column: values[files] for column, values in self.keys.items()},
            partition_ids=self.partition_ids[files],
            widths={column: widths[files] for column, widths in self.widths.items()},
        )

    def filter(self, mask: Mask) -> RowBatch:
        """Only the rows of a mask."""
        counts = self._count_rows(self.file_numbers()[mask])
        return attrs.evolve(self, table=self.table.filter(pa.array(mask)), counts=counts)

    def take(self, positions: Ints) -> RowBatch:
        """Only the rows at ascending positions."""
        counts = self._count_rows(self.file_numbers()[positions])
        return attrs.evolve(self, table=take_rows(self.table, positions), counts=counts)

    def _count_rows(self, file_numbers: npt.NDArray[np.int32]) -> Ints:
        return np.bincount(file_numbers, minlength=len(self.counts)).astype(np.int64)


def take_rows(table: pa.Table, positions: Ints) -> pa.Table:
    """Rows of a table at the given positions, also if it has no columns."""
    if not table.num_columns:
        return zero_column_table(len(positions))
    return pa.Table.from_arrays(take_columns(table.columns, positions), schema=table.schema)


def take_columns(columns: list[pa.ChunkedArray], positions: Ints) -> list[pa.Array]:
    """Values of columns at the given positions; each entry of ``columns`` is released when it is taken."""

    # a result as large as memory allows is sorted column by column: both copies of all would not fit
    def take(number: int) -> pa.Array:
        column, columns[number] = columns[number], None
        return take_values(column, positions, missing=False)

    threads = available_cores() if len(positions) * len(columns) >= _THREADS_FROM else 1
    return list(ordered_map(take, range(len(columns)), threads))


def concat_rows(batches: Sequence[RowBatch], schema: pa.Schema) -> RowBatch:
    """Rows of consecutive physical partitions as one batch; ``schema`` types columns that are all null."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    return RowBatch(
        scan=first.scan,
        table=concat_tables([batch.table for batch in batches], schema, first.scan.uuid),
        counts=np.concatenate([batch.counts for batch in batches]),
        keys={key: pa.concat_arrays([batch.keys[key] for batch in batches]) for key in first.keys},
        partition_ids=np.concatenate([batch.partition_ids for batch in batches]),
        sorted=all(batch.sorted for batch in batches),
        widths=_concat_widths(batches),
    )


def _concat_widths(batches: Sequence[RowBatch]) -> dict[str, Widths]:
    schemas = [batch.table.schema for batch in batches]
    differing = {column for batch in batches for column in batch.widths}
    differing |= widths_of_files(schemas, np.arange(len(batches))).keys()
    return {column: np.concatenate([batch.widths_of(column) for batch in batches]) for column in differing}
