"""``ParquetColumns``: lazy columnar reader of Parquet files, safe against broken ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow.arrays import copy_to_arrow_memory
from kartothek_cube.core.arrow.layouts import convert_layouts
from kartothek_cube.core.arrow.pandas_conversion import to_memory
from kartothek_cube.core.arrow.pandas_metadata import extension_dtypes, index_columns, pandas_metadata
from kartothek_cube.core.arrow.types import storage_type
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions.predicate import PredicatesType, bind, columns_in_predicates, filter_mask
from kartothek_cube.serialization._util import check_columns, columns_to_read

__all__ = ("ParquetColumns", "Source", "read_parquet")

Source: TypeAlias = str | bytes | bytearray | memoryview | pa.Buffer | BinaryIO

_CONTENT = (bytes, bytearray, memoryview, pa.Buffer)

# cells below which starting threads takes longer than decoding
_MIN_CELLS_THREADS = 100_000
# longest footer that is parsed byte by byte
_MAX_TAIL = 64 << 10
# rows below which decoding all columns at once is faster than decoding those of the predicates first
_MIN_ROWS_LATE = 10_000
# fast path: most pandas metadata have no index column and no extension type, and need no parsing
_HAS_INDEX_COLUMNS = re.compile(rb'"index_columns":\s*\[\s*"')
_HAS_EXTENSION_TYPES = re.compile(rb'"numpy_type":\s*"(string|boolean|U?Int\d+|Float\d+)"')


class ParquetColumns:
    """An open Parquet file whose columns are decoded on access; raises CorruptDatasetError."""

    # `schema` is that of the dataset: predicates are checked against it, and null columns get its type.

    def __init__(
        self, source: Source, name: str, schema: pa.Schema | None = None, threads: bool = True
    ) -> None:
        self._source, self._name, self._schema, self._threads = source, name, schema, threads
        self._decoded: dict[str, pa.ChunkedArray] = {}
        self._metadata: dict[bytes, bytes] | None = None
        with self._convert_errors():
            self._input = _open_input(source)
            self._file = _open(source if self._input is None else self._input)
        if self._file.metadata.num_rows < 0:
            raise CorruptDatasetError(name, "the number of rows is negative")

    def __enter__(self) -> ParquetColumns:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if isinstance(self._source, str) and self._input is not None:
            self._input.close()

    def __len__(self) -> int:
        rows: int = self._file.metadata.num_rows
        return rows

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer. Statistics are off limits: contradictions in them end the process (pyarrow 26)."""
        return self._file.metadata

    @cached_property
    def _schema_of_file(self) -> pa.Schema:
        with self._convert_errors():
            return self._file.schema_arrow

    def arrow_type(self, column: str) -> pa.DataType:
        """Type of a column as it is decoded."""
        return self._schema_of_file.field(column).type

    def content(self, start: int, length: int) -> bytes | None:
        """Bytes of the file; None if they cannot be read without moving its position."""
        if self._input is None or not 0 <= start <= start + length <= self._input.size():
            return None
        content: bytes = self._input.read_at(length, start)
        return content

    @cached_property
    def footer(self) -> bytes | None:
        """The footer as bytes; None if they are unavailable or many."""
        size = 0 if self._input is None else self._input.size()
        tail = self.content(max(0, size - _MAX_TAIL), min(size, _MAX_TAIL)) or b""
        length = int.from_bytes(tail[-8:-4], "little")
        return tail[-8 - length : -8] if 0 < length + 8 <= len(tail) else None

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        names: list[str] = self._schema_of_file.names
        return names

    @property
    def use_late_materialization(self) -> bool:
        """Whether the file has so many rows that decoding some columns first pays."""
        return len(self) >= _MIN_ROWS_LATE

    def check(self, predicates: PredicatesType) -> None:
        """Check that the columns of predicates exist and that their values fit."""
        file_schema = self._schema_of_file
        bind(predicates, file_schema if self._schema is None else self._schema)
        check_columns(columns_in_predicates(predicates), file_schema.names, self._name)

    def read(
        self,
        columns: Sequence[str] | None = None,
        predicates: PredicatesType = None,
        pushdown: bool = True,
    ) -> pa.Table:
        """Columns of matching rows; `pushdown` decodes other columns in matching row groups only."""
        if predicates is None:
            return self.table(columns)
        self.check(predicates)
        if not pushdown or not self.use_late_materialization:
            self.load(columns_to_read(columns, predicates) or self.names)
        return self.table(columns, self.mask(predicates))

    def load(self, columns: Collection[str]) -> None:
        """Decode columns that are needed in full."""
        missing = [column for column in columns if column not in self._decoded]
        if missing:
            table = self._decode(missing)
            self._metadata = table.schema.metadata
            self._decoded.update(zip(table.column_names, table.columns, strict=True))

    def set_decoded(self, column: str, values: pa.ChunkedArray) -> None:
        """Set all values of a column, to save decoding it."""
        self._metadata = self._schema_of_file.metadata
        self._decoded[column] = values

    def get_decoded(self, column: str) -> pa.ChunkedArray | None:
        """All values of a column; None if it is not decoded."""
        return self._decoded.get(column)

    def decoded(self, columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """Columns in full, with types of the file or of memory."""
        self.load(columns)
        return [self._decoded[column] for column in columns]

    def mask(self, predicates: PredicatesType) -> pa.BooleanArray:
        """Mask of matching rows; the columns of the predicates stay decoded."""
        filtered = sorted(columns_in_predicates(predicates))
        self.load(filtered)
        return filter_mask(pa.table({column: self._decoded[column] for column in filtered}), predicates)

    def table(self, columns: Sequence[str] | None = None, mask: pa.BooleanArray | None = None) -> pa.Table:
        """Columns, by default all but the pandas index, of masked rows, with types of memory."""
        # Columns that are not decoded yet are decoded in row groups with a masked row.
        if mask is not None and mask.true_count == len(mask):
            mask = None
        if columns is None and not self._decoded:
            table = self._decode(None)
        else:
            table = self._rows_of(self.names if columns is None else columns, mask)
        if columns is None and _HAS_INDEX_COLUMNS.search((table.schema.metadata or {}).get(b"pandas", b"")):
            table = table.drop_columns(index_columns(table.schema))
        return _type_null_columns(to_memory(_drop_foreign_metadata(table)), self._schema)

    def _rows_of(self, columns: Sequence[str], mask: pa.BooleanArray | None) -> pa.Table:
        missing = list(dict.fromkeys(column for column in columns if column not in self._decoded))
        if len(missing) == len(columns) and mask is None:
            return self._decode(missing)
        if not columns:
            return pa.table({"_": pa.nulls(mask.true_count if mask is not None else len(self))}).select([])
        arrays = {column: self._decoded[column] for column in columns if column not in missing}
        if mask is not None:
            arrays = {column: values.filter(mask) for column, values in arrays.items()}
        if missing:
            table = self._decode(missing) if mask is None else self._read_masked(missing, mask)
            self._metadata = table.schema.metadata
            arrays.update(zip(table.column_names, table.columns, strict=True))
        return pa.Table.from_arrays(
            [arrays[column] for column in columns], names=list(columns), metadata=self._metadata
        )

    def _read_masked(self, columns: list[str], mask: pa.BooleanArray) -> pa.Table:
        """Read masked rows; row groups without any are left out."""
        # Statistics in the footer could exclude row groups earlier, but pyarrow (26) ends the process if a
        # broken footer contradicts itself there.
        metadata = self._file.metadata
        lengths = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        masks = [mask.slice(end - length, length) for end, length in zip(ends, lengths, strict=True)]
        groups = [number for number, group_mask in enumerate(masks) if group_mask.true_count]
        group_masks = pa.chunked_array([masks[number] for number in groups], type=pa.bool_())
        return self._decode(columns, groups).filter(group_masks)

    def _decode(self, columns: list[str] | None, groups: list[int] | None = None) -> pa.Table:
        with self._convert_errors():
            threads = self._threads and _use_threads(self._file.metadata, columns)
            if groups is None:
                table = self._file.read(columns, use_threads=threads)
            else:
                table = self._file.read_row_groups(groups, columns, use_threads=threads)
        names = table.column_names
        if len(set(names)) < len(names):
            raise CorruptDatasetError(self._name, "column names occur more than once")
        if groups is None and table.num_rows != len(self):
            raise CorruptDatasetError(self._name, f"{len(self)} rows expected, {table.num_rows} found")
        if columns is not None and len(names) < len(columns):
            check_columns(columns, self.names, self._name)
        return convert_layouts(table)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert errors of broken content; connection errors and caller mistakes pass."""
        try:
            yield
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
            raise CorruptDatasetError(self._name, f"not a readable Parquet file: {error}") from error
        except OSError as error:
            # Arrow raises OSError for broken pages and footers, too; system errors have an errno
            if error.errno is not None or not isinstance(self._source, (str, *_CONTENT)):
                raise
            raise CorruptDatasetError(self._name, f"not a readable Parquet file: {error}") from error


def read_parquet(
    source: Source,
    name: str,
    columns: Sequence[str] | None = None,
    predicates: PredicatesType = None,
    schema: pa.Schema | None = None,
    pushdown: bool = True,
) -> pa.Table:
    """Read a file at once, see `ParquetColumns`."""
    with ParquetColumns(source, name, schema) as file:
        return file.read(columns, predicates, pushdown)


def _open_input(source: Source) -> pa.NativeFile | None:
    """Positional access to the bytes of a source; None for open files."""
    if isinstance(source, _CONTENT):
        return pa.BufferReader(source if isinstance(source, pa.Buffer) else copy_to_arrow_memory(source))
    return pa.OSFile(source) if isinstance(source, str) else None


def _open(file: pa.NativeFile | BinaryIO) -> pq.ParquetFile:
    # the system or this process has the content in memory already
    buffered = not isinstance(file, pa.NativeFile)
    return pq.ParquetFile(file, pre_buffer=buffered, page_checksum_verification=True)


def _use_threads(metadata: pq.FileMetaData, columns: Collection[str] | None) -> bool:
    width = metadata.num_columns if columns is None else len(columns)
    return bool(metadata.num_rows * width >= _MIN_CELLS_THREADS)


def _drop_foreign_metadata(table: pa.Table) -> pa.Table:
    """Drop all metadata but pandas extension types."""
    metadata = table.schema.metadata
    if metadata is None or not table.num_columns:  # without columns, the number of rows would be lost
        return table
    if _HAS_EXTENSION_TYPES.search(metadata.get(b"pandas", b"")):
        extensions = extension_dtypes(table.schema)
        return table.replace_schema_metadata({"pandas": pandas_metadata(table.schema, extensions)})
    return table.replace_schema_metadata(None)


def _type_null_columns(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    if schema is None:
        return table
    for position, field in enumerate(table.schema):
        if pat.is_null(field.type) and schema.get_field_index(field.name) >= 0:
            dtype = storage_type(schema.field(field.name).type)
            table = table.set_column(
                position, pa.field(field.name, dtype), table.column(position).cast(dtype)
            )
    return table
