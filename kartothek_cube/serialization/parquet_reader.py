"""Columns of Parquet files: decoded on demand, filtered, compared by their encoded pages."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow.arrays import (
    boolean_array,
    convert_layouts,
    copy_to_arrow_memory,
    true_positions,
    zero_column_table,
)
from kartothek_cube.core.arrow.pandas_conversion import (
    extension_dtypes,
    index_columns,
    pandas_metadata,
    to_memory,
)
from kartothek_cube.core.arrow.tables import replace_columns
from kartothek_cube.core.arrow.types import Ints, storage_type
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions.predicate import (
    PredicatesType,
    bind,
    check_columns,
    columns_in_predicates,
    filter_mask,
)
from kartothek_cube.core.schema.evolution import ColumnMapping
from kartothek_cube.serialization._generic import columns_to_read
from kartothek_cube.serialization.ranged_read import ColumnChunk, chunks_of

__all__ = ("ChunkCache", "ParquetColumns", "Source", "have_equal_pages", "read_parquet", "type_null_columns")

Source: TypeAlias = str | bytes | bytearray | memoryview | pa.Buffer | BinaryIO

_NULL_ID = pa.null().id
_CONTENT = (bytes, bytearray, memoryview, pa.Buffer)

_Pages: TypeAlias = list[tuple[tuple[Any, ...], bytes]]

# bytes per row above which comparing pages costs as much as decoding them
_BYTES_PER_ROW = 0.5
# most bytes of a code: dictionaries of common writers have 1 MB at most
_BYTES_PER_CODE = 3
# cells below which starting threads takes longer than decoding
_MIN_CELLS_THREADS = 100_000
# longest footer that is parsed byte by byte, and the bytes behind it: its length, and a magic number
_MAX_FOOTER = 64 << 10
_END = 8
# rows below which decoding all columns at once is faster than decoding those of the predicates first
_MIN_ROWS_LATE = 10_000
# fast path: most pandas metadata have no index column and no extension type, and need no parsing
_HAS_INDEX_COLUMNS = re.compile(rb'"index_columns":\s*\[\s*"')
_HAS_EXTENSION_TYPES = re.compile(rb'"numpy_type":\s*"(string|boolean|U?Int\d+|Float\d+)"')


class FlatColumn(NamedTuple):
    """Column without lists or structs: its description, type in Arrow, and chunks by row group."""

    leaf: pq.ColumnSchema
    dtype: pa.DataType
    chunks: list[ColumnChunk]


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
        self._selected: dict[str, tuple[Ints, pa.ChunkedArray]] = {}
        self._chunks: dict[str, FlatColumn | None] = {}
        self._small_pages: dict[str, _Pages | None] = {}
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

    def content(self, start: int, length: int) -> pa.Buffer | None:
        """Bytes of the file; None if it is not ours to read."""
        if self._input is None or not 0 <= start <= start + length <= self._input.size():
            return None
        # pyarrow does not use the position. read_at() would copy to memory of Python, at ten times the cost
        self._input.seek(start)
        return self._input.read_buffer(length)

    @cached_property
    def _footer(self) -> bytes | None:
        """The footer as bytes; None if they are unavailable or many."""
        length = self._file.metadata.serialized_size
        if self._input is None or length > _MAX_FOOTER:
            return None
        content = self.content(self._input.size() - length - _END, length)
        return None if content is None else content.to_pybytes()

    def chunks(self, column: str) -> FlatColumn | None:
        """Where the values of a flat column are; None for others, and where the footer does not tell."""
        if column not in self._chunks:
            self._chunks[column] = self._find_chunks(column)
        return self._chunks[column]

    def _find_chunks(self, column: str) -> FlatColumn | None:
        names, footer = self._leaf_names, self._footer
        if footer is None or names.count(column) != 1:
            return None
        leaf = self._file.metadata.schema.column(names.index(column))
        chunks = chunks_of(footer, column)
        if leaf.path != column or len(chunks) != self._file.metadata.num_row_groups:
            return None
        return FlatColumn(leaf, self.arrow_type(column), chunks)

    @cached_property
    def _leaf_names(self) -> list[str]:
        """Names of the columns without lists and structs, and of the innermost fields of the others."""
        names: list[str] = self._file.metadata.schema.names
        return names

    def small_pages(self, column: str) -> _Pages | None:
        """Content of a column and how to decode it; None if it is large."""
        if column not in self._small_pages:
            self._small_pages[column] = self._read_small_pages(column)
        return self._small_pages[column]

    def _read_small_pages(self, column: str) -> _Pages | None:
        chunks = _chunks(self, [column])
        if not chunks or sum(length for _, _, length in chunks) > _BYTES_PER_ROW * len(self):
            return None
        contents = [self.content(start, length) for _, start, length in chunks]
        pairs = zip(chunks, contents, strict=True)
        # bytes, as a buffer may be part of the whole file
        pages = [(description, content.to_pybytes()) for (description, _, _), content in pairs if content]
        return pages if len(pages) == len(chunks) else None

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
        """Columns of matching rows; `pushdown` decodes only what these rows need."""
        if predicates is None:
            return self.table(columns)
        self.check(predicates)
        if not pushdown or not self.use_late_materialization:
            self.load(columns_to_read(columns, predicates) or self.names)
        return self.table(columns, self.select(predicates))

    def load(self, columns: Collection[str], *, encoded: bool = False) -> None:
        """Decode columns that are needed in full; texts stay ``encoded`` if that is faster."""
        missing = [column for column in columns if column not in self._decoded]
        if encoded and (texts := [column for column in missing if self._has_dictionary(column)]):
            self._decoded.update(
                zip(texts, self._decode_stored(texts, None, encoded=True).columns, strict=True)
            )
            self._metadata = self._schema_of_file.metadata
            missing = [column for column in missing if column not in texts]
        if missing:
            table = self._decode(missing)
            self._metadata = table.schema.metadata
            self._decoded.update(zip(table.column_names, table.columns, strict=True))

    def _has_dictionary(self, column: str) -> bool:
        """Whether a column of texts is stored as codes of a dictionary."""
        if self._mapping is not None or not self.use_late_materialization or not self._is_text(column):
            return False
        flat = self.chunks(column)
        # writers give up large dictionaries: the texts that follow would have to be hashed
        return flat is not None and all(
            0 < chunk.dictionary_length >= chunk.length - _BYTES_PER_CODE * chunk.values
            for chunk in flat.chunks
        )

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

    def select(self, predicates: PredicatesType, rows: Ints | None = None) -> Ints:
        """Ascending positions of matching rows, among all rows or some; what is decoded in full is kept."""
        if predicates is None:
            return np.arange(len(self)) if rows is None else rows
        if len(predicates) > 1:
            return self._select(predicates, rows)
        # column by column, those of cheap types first: the next ones are decoded in matching rows only
        columns = sorted({column for column, _, _ in predicates[0]}, key=self._decoding_cost)
        for column in columns:
            rows = self._select([[literal for literal in predicates[0] if literal[0] == column]], rows)
            if not len(rows):
                break
        return np.empty(0, np.int64) if rows is None else rows

    def _decoding_cost(self, column: str) -> tuple[bool, bool, str]:
        return column not in self._decoded, self._is_text(column), column

    def _select(self, predicates: PredicatesType, rows: Ints | None) -> Ints:
        columns = sorted(columns_in_predicates(predicates))
        if rows is None:
            self.load(columns, encoded=True)
            table = pa.table({column: self._decoded[column] for column in columns})
        else:
            table = self._rows_of(columns, rows)
        matches = true_positions(filter_mask(table, predicates))
        if rows is None:
            return matches
        selected, table = rows[matches], table.take(pa.array(matches))
        self._selected.update((column, (selected, table.column(column))) for column in columns)
        return selected

    def table(
        self, columns: Sequence[str] | None = None, rows: Ints | None = None, keep: Collection[str] = ()
    ) -> pa.Table:
        """
        Columns, by default all but the pandas index, at ascending positions, with types of memory.

        Those in ``keep`` are decoded in the same pass as the others, and kept if they are decoded in full.
        """
        if rows is not None and len(rows) == len(self):
            rows = None
        if columns is None and not self._decoded:
            table = self._decode(None)
        else:
            table = self._rows_of(self.names if columns is None else columns, rows, keep)
        if columns is None and _HAS_INDEX_COLUMNS.search((table.schema.metadata or {}).get(b"pandas", b"")):
            table = table.drop_columns(index_columns(table.schema))
        return type_null_columns(to_memory(_drop_foreign_metadata(table)), self._schema)

    def _rows_of(self, columns: Sequence[str], rows: Ints | None, keep: Collection[str] = ()) -> pa.Table:
        missing = list(dict.fromkeys(column for column in columns if column not in self._decoded))
        if not columns:
            return zero_column_table(len(self) if rows is None else len(rows))
        if len(missing) == len(columns) and rows is None:
            return self._decode(missing)
        arrays = {column: self._decoded[column] for column in columns if column not in missing}
        if rows is not None:
            selection = _selection(rows, len(self))
            arrays = {column: _take(values, selection) for column, values in arrays.items()}
            for column in self._selected.keys() & set(missing):
                earlier, values = self._selected[column]
                if earlier is rows:
                    arrays[column] = values
                    missing.remove(column)
                elif bool(np.isin(rows, earlier, assume_unique=True).all()):
                    arrays[column] = values.take(pa.array(earlier.searchsorted(rows)))
                    missing.remove(column)
        if missing:
            table = self._decode(missing) if rows is None else self._decode_rows(missing, rows, keep)
            self._metadata = table.schema.metadata
            arrays.update(zip(table.column_names, table.columns, strict=True))
        return pa.Table.from_arrays(
            [arrays[column] for column in columns], names=list(columns), metadata=self._metadata
        )

    def _decode_rows(self, columns: list[str], rows: Ints, keep: Collection[str]) -> pa.Table:
        """Rows at ascending positions; row groups without any are left out."""
        # Statistics in the footer could exclude row groups earlier, but pyarrow (26) ends the process if a
        # broken footer contradicts itself there.
        groups, positions = self._groups_of(rows)
        # codes of all rows and texts of the selected ones take half the time of texts of all rows
        texts = [column for column in columns if self._has_dictionary(column)]
        others = [column for column in columns if column not in texts]
        tables = [self._decode(others, groups)] if others else []
        if texts:
            tables.append(self._decode_stored(texts, groups, encoded=True))
        if groups is None and keep:
            full = {c: table.column(c) for table in tables for c in table.column_names if c in keep}
            self._decoded.update(full)
        selection = _selection(positions, len(tables[0]))
        decoded = {c: _take(table.column(c), selection) for table in tables for c in table.column_names}
        return pa.Table.from_arrays(
            [decoded[column] for column in columns], names=columns, metadata=tables[0].schema.metadata
        )

    def _groups_of(self, rows: Ints) -> tuple[list[int] | None, Ints]:
        """Row groups with any of the rows, None for all, and positions among the rows of these groups."""
        if self._file.metadata.num_row_groups == 1 and len(rows):
            return None, rows
        ends = np.cumsum([0, *self._group_lengths()])
        bounds = rows.searchsorted(ends)
        groups = np.flatnonzero(np.diff(bounds))
        skipped = ends[groups] - np.cumsum(np.append(0, np.diff(ends)[groups]))[:-1]
        return groups.tolist(), rows - np.repeat(skipped, np.diff(bounds)[groups])

    def _is_text(self, column: str) -> bool:
        dtype = self.arrow_type(column)
        return bool(pat.is_string(dtype) or pat.is_binary(dtype))

    def _group_lengths(self) -> list[int]:
        metadata = self._file.metadata
        return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]

    def _count_rows(self, groups: list[int] | None) -> int:
        if groups is None:
            return len(self)
        lengths = self._group_lengths()
        return sum(lengths[number] for number in groups)

    def _decode(self, columns: list[str] | None, groups: list[int] | None = None) -> pa.Table:
        mapping = self._mapping
        if mapping is None:
            return self._decode_stored(columns, groups)
        names = self.names if columns is None else columns
        check_columns(names, self.names, self._name)
        in_file = set(self._file.schema_arrow.names)
        stored = [name for column in names if (name := mapping.stored_name(column, in_file)) is not None]
        length = self._count_rows(groups)
        table = self._decode_stored(stored, groups) if stored else pa.table({})
        return mapping.adapt(table, names, length)

    def _decode_stored(
        self, columns: list[str] | None, groups: list[int] | None, *, encoded: bool = False
    ) -> pa.Table:
        """Columns as the file has them; texts ``encoded`` by its dictionary, in a third of the time."""
        with self._convert_errors():
            metadata = self._file.metadata
            threads = self._threads and _use_threads(metadata, columns)
            file = _open(self._input, metadata, columns) if encoded else self._file
            if groups is None:
                table = file.read(columns, use_threads=threads)
            else:
                table = file.read_row_groups(groups, columns, use_threads=threads)
        names = table.column_names
        if len(set(names)) < len(names):
            raise CorruptDatasetError(self._name, "column names occur more than once")
        length = self._count_rows(groups)
        if table.num_rows != length and (columns or groups is None):
            raise CorruptDatasetError(self._name, f"{length} rows expected, {table.num_rows} found")
        if columns is not None and len(names) < len(columns):
            check_columns(columns, self._file.schema_arrow.names, self._name)
        if encoded:
            # pyarrow (26) does not check the codes of damaged files
            for chunk in itertools.chain.from_iterable(column.chunks for column in table.columns):
                if _max_code(chunk.indices) >= max(len(chunk.dictionary), 1):
                    raise CorruptDatasetError(self._name, "the code of a text is not in its dictionary")
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


def _open(
    file: pa.NativeFile | BinaryIO,
    metadata: pq.FileMetaData | None = None,
    encoded_columns: list[str] | None = None,
) -> pq.ParquetFile:
    # the system or this process has the content in memory already
    buffered = not isinstance(file, pa.NativeFile)
    return pq.ParquetFile(
        file,
        metadata=metadata,
        read_dictionary=encoded_columns,
        pre_buffer=buffered,
        page_checksum_verification=True,
    )


def _selection(rows: Ints, length: int) -> pa.Array:
    """Ascending positions, or the mask of these if they are most of so many rows."""
    if 4 * len(rows) < 3 * length:
        return pa.array(rows)
    # a filter copies runs: it is three times as fast as taking row by row if few rows are left out
    mask = np.zeros(length, np.bool_)
    mask[rows] = True
    return boolean_array(mask)


def _take(column: pa.ChunkedArray, selection: pa.Array) -> pa.ChunkedArray:
    return column.filter(selection) if pat.is_boolean(selection.type) else column.take(selection)


def _max_code(codes: pa.Array) -> int:
    """Largest code of a column; 0 without any."""
    # a fifth of the time of Arrow's function, which nulls need
    return int(pc.max(codes).as_py() or 0) if codes.null_count else int(codes.to_numpy().max(initial=0))


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


def type_null_columns(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """Cast columns that are null in a file to their type in a schema."""
    if schema is None:
        return table
    columns = {
        position: table.column(position).cast(storage_type(schema.field(field.name).type))
        for position, field in enumerate(table.schema)
        if field.type.id == _NULL_ID and schema.get_field_index(field.name) >= 0
    }
    return replace_columns(table, columns)


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
        pages, other_pages = a.content(start, length), b.content(other_start, length)
        if pages is None or other_pages is None or not pages.equals(other_pages):
            return False
    return True


class ChunkCache:
    """Key columns of the previously read file, reused if the encoded pages are identical."""

    # In a grid of shops and days, partitioned by shops, the days are the same in all files: then a query by
    # pyarrow takes 10 to 20 % less time, and scans by Polars take as long.

    def __init__(self) -> None:
        self._last: dict[str, tuple[_Pages, pa.ChunkedArray]] = {}

    def provide(self, file: ParquetColumns, columns: Sequence[str]) -> None:
        """Set columns of a file that equal those of the previous file."""
        for column in columns:
            last = self._last.get(column)
            if last is not None and last[0] == file.small_pages(column):
                file.set_decoded(column, last[1])

    def keep(self, file: ParquetColumns, columns: Sequence[str]) -> None:
        """Cache decoded columns with small pages; their memory is shared and becomes immutable."""
        for column in columns:
            values, last = file.get_decoded(column), self._last.get(column)
            if values is None or (last is not None and last[1] is values):
                continue
            pages = file.small_pages(column)
            if pages is not None:
                if not pat.is_dictionary(values.type):
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


def _chunks(file: ParquetColumns, columns: Sequence[str]) -> list[tuple[tuple[Any, ...], int, int]]:
    """Encoding, start and length of each column in each row group; empty if unknown."""
    # Pages describe their encoding themselves, but for the codec.
    descriptions = []
    for name in columns:
        flat = file.chunks(name)
        if flat is None:
            return []
        leaf = flat.leaf
        dtype = (flat.dtype, leaf.physical_type, leaf.length)
        levels = (leaf.max_definition_level, leaf.max_repetition_level)
        descriptions += [
            ((dtype, levels, c.codec, c.values, c.length), c.start, c.length) for c in flat.chunks
        ]
    return descriptions
