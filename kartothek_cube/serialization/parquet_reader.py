"""Columns of Parquet files: decoded on demand, filtered, compared by their encoded pages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow.arrays import convert_layouts, copy_to_arrow_memory
from kartothek_cube.core.arrow.pandas_conversion import (
    extension_dtypes,
    index_columns,
    pandas_metadata,
    to_memory,
)
from kartothek_cube.core.arrow.types import storage_type
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions.predicate import PredicatesType, bind, columns_in_predicates, filter_mask
from kartothek_cube.core.schema.evolution import ColumnMapping
from kartothek_cube.serialization._generic import check_columns, columns_to_read
from kartothek_cube.serialization.ranged_read import chunks_of

__all__ = ("ChunkCache", "ParquetColumns", "Source", "have_equal_pages", "read_parquet")

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

    # `mapping` gives the columns of the dataset if the file was written before a change of its schema.

    def __init__(
        self,
        source: Source,
        name: str,
        schema: pa.Schema | None = None,
        threads: bool = True,
        mapping: ColumnMapping | None = None,
    ) -> None:
        self._source, self._name, self._schema, self._threads = source, name, schema, threads
        self._mapping = mapping
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
            schema = self._file.schema_arrow
        return schema if self._mapping is None else self._mapping.schema_of(schema)

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
        self, columns: Sequence[str] | None = None, predicates: PredicatesType = None, pushdown: bool = True
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
        mapping = self._mapping
        if mapping is None:
            return self._decode_stored(columns, groups)
        names = self.names if columns is None else columns
        check_columns(names, self.names, self._name)
        in_file = self._file.schema_arrow.names
        stored = [name for column in names if (name := mapping.stored_name(column, in_file)) is not None]
        metadata = self._file.metadata
        length = (
            metadata.num_rows
            if groups is None
            else sum(metadata.row_group(number).num_rows for number in groups)
        )
        table = self._decode_stored(stored, groups) if stored else pa.table({})
        return mapping.adapt(table, names, length)

    def _decode_stored(self, columns: list[str] | None, groups: list[int] | None) -> pa.Table:
        """Columns as the file has them."""
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
            check_columns(columns, self._file.schema_arrow.names, self._name)
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
    mapping: ColumnMapping | None = None,
) -> pa.Table:
    """Read a file at once, see `ParquetColumns`."""
    with ParquetColumns(source, name, schema, mapping=mapping) as file:
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


_Pages: TypeAlias = list[tuple[tuple[Any, ...], bytes | None]]

#: bytes per row above which comparing pages costs as much as decoding them
_BYTES_PER_ROW = 0.5


def have_equal_pages(a: ParquetColumns, b: ParquetColumns, columns: Sequence[str]) -> bool:
    """Whether columns of two files have equal pages, so that their values are equal row by row."""
    # Writers produce equal pages from equal values in equal order; different pages may hold equal values.
    if len(a) != len(b):
        return False
    chunks, other_chunks = _chunks(a, columns), _chunks(b, columns)
    # descriptions are cheap to compare, and differ for most columns that differ
    if not chunks or [description for description, _, _ in chunks] != [
        description for description, _, _ in other_chunks
    ]:
        return False
    for (_, start, length), (_, other_start, _) in zip(chunks, other_chunks, strict=True):
        pages = a.content(start, length)
        if pages is None or pages != b.content(other_start, length):
            return False
    return True


class ChunkCache:
    """Key columns of the previously read file, reused if the encoded pages are identical."""

    # In a grid of shops and days, partitioned by shops, the days are the same in all files.

    def __init__(self) -> None:
        self._last: dict[str, tuple[_Pages, pa.ChunkedArray]] = {}

    def provide(self, file: ParquetColumns, columns: Sequence[str]) -> None:
        """Set columns of a file that equal those of the previous file."""
        for column in columns:
            last = self._last.get(column)
            if last is not None and last[0] == _small_pages(file, column):
                file.set_decoded(column, last[1])

    def keep(self, file: ParquetColumns, columns: Sequence[str]) -> None:
        """Cache decoded columns with small pages; their memory is shared and becomes immutable."""
        for column in columns:
            values, last = file.get_decoded(column), self._last.get(column)
            if values is None or (last is not None and last[1] is values):
                continue
            pages = _small_pages(file, column)
            if pages is not None:
                values = _freeze(to_memory(pa.table({column: values})).column(0))
                self._last[column] = pages, values
                file.set_decoded(column, values)


def _freeze(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same column with immutable buffers (slices), which `zero_copy_view` does not pass on to users."""
    chunks = []
    for chunk in column.chunks:
        buffers = [buffer if buffer is None else buffer.slice() for buffer in chunk.buffers()]
        chunks.append(pa.Array.from_buffers(chunk.type, len(chunk), buffers, chunk.null_count, chunk.offset))
    return pa.chunked_array(chunks, column.type)


def _small_pages(file: ParquetColumns, column: str) -> _Pages | None:
    """Content of a column and how to decode it; None if it is large."""
    chunks = _chunks(file, [column])
    if not chunks or sum(length for _, _, length in chunks) > _BYTES_PER_ROW * len(file):
        return None
    pages = [(description, file.content(start, length)) for description, start, length in chunks]
    return None if any(content is None for _, content in pages) else pages


def _chunks(file: ParquetColumns, columns: Sequence[str]) -> list[tuple[tuple[Any, ...], int, int]]:
    """Encoding, start and length of each column in each row group; empty if unknown."""
    # Pages describe their encoding themselves, but for the codec.
    schema, footer, descriptions = file.metadata.schema, file.footer, []
    for name in columns:
        number = _position(schema, name)
        if footer is None or number is None:
            return []
        leaf = schema.column(number)
        dtype = (file.arrow_type(name), leaf.physical_type, leaf.length)
        levels = (leaf.max_definition_level, leaf.max_repetition_level)
        chunks = chunks_of(footer, name)
        if len(chunks) != file.metadata.num_row_groups:
            return []
        descriptions += [((dtype, levels, c.codec, c.values, c.length), c.start, c.length) for c in chunks]
    return descriptions


def _position(schema: pq.ParquetSchema, name: str) -> int | None:
    """Number of a flat column; None for others."""
    numbers = [number for number, leaf in enumerate(schema.names) if leaf == name]
    return numbers[0] if len(numbers) == 1 and schema.column(numbers[0]).path == name else None
