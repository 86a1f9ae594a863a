"""Scan of data files: storage keys in, one Arrow table per file out, for all kinds of stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.arrow.arrays import convert_layouts, copy_to_arrow_memory, zero_column_table
from kartothek_cube.core.arrow.pandas_conversion import from_pandas, to_memory
from kartothek_cube.core.arrow.tables import replace_columns
from kartothek_cube.core.arrow.types import number_bits, widen, with_number_bits
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.expressions.predicate import PredicatesType, filter_mask
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.schema.evolution import ColumnMapping
from kartothek_cube.core.schema.widths import column_widths, widest
from kartothek_cube.core.store import BlobStore, get_required
from kartothek_cube.io_components.read.pandas_index import with_row_index
from kartothek_cube.io_components.read.prefetch import FileBytes, fetch_file
from kartothek_cube.io_components.runtime import (
    REMOTE_REQUESTS,
    available_cores,
    batched,
    ordered_map,
    progress_advance,
)
from kartothek_cube.serialization import DataFrameSerializer, columns_to_read
from kartothek_cube.serialization.parquet_reader import ParquetColumns, read_parquet, type_null_columns
from kartothek_cube.serialization.ranged_read import read_footer

__all__ = (
    "WORTH_A_THREAD",
    "Source",
    "concat_tables",
    "count_rows",
    "file_widths",
    "fit_widths",
    "open_columns",
    "read_files",
    "read_small_files",
    "read_table_of_file",
    "read_threads",
)

#: a local file up to this size is read in one piece, which is cheaper than seeking in it
_SMALL = 1 << 20
#: the same for files of which some columns are compared with those of other files, or decoded in some rows
_SMALL_OF_FEW_COLUMNS = 1 << 17
#: below this mean size of files in bytes, threads cost more than they bring
WORTH_A_THREAD = 1 << 16
#: files whose sizes are taken for those of all
_SAMPLE = 8
#: mean size of files up to which the checks of a file take as long as its columns
_SMALL_TO_READ_AT_ONCE = 1 << 19

#: files whose footers are read to plan a query; of more, columns have the types of the schema
_MAX_FOOTERS = 64

#: a file that has been read or opened
Source: TypeAlias = FileBytes | ParquetColumns


def read_table_of_file(
    blobs: BlobStore,
    key: str,
    columns: Sequence[str] | None = None,
    predicates: PredicatesType = None,
    predicate_pushdown_to_io: bool = True,
    schema: pa.Schema | None = None,
    row_index: bool = False,
    source: Source | None = None,
    mapping: ColumnMapping | None = None,
) -> pa.Table:
    """
    Read one data file, or its ``source`` if it has been read or opened.

    ``schema`` types columns that are null in the file; ``row_index`` adds the index of the stored frame;
    ``mapping`` gives the columns of the dataset if the file was written before a change of its schema.
    """
    if isinstance(source, ParquetColumns):
        return source.read(columns, predicates, predicate_pushdown_to_io)
    if not key.endswith(PARQUET_FILE_SUFFIX):
        try:
            return _read_untyped(blobs, key, columns, predicates, schema, mapping)
        except KeyError as exc:
            raise MissingFileError(key) from exc
    needed = None if row_index else columns_to_read(columns, predicates)
    path_or_bytes = _locate(blobs, key, needed) if source is None else source
    read = partial(
        read_parquet,
        name="Parquet data",
        columns=None if columns is None else list(columns),
        predicates=predicates,
        schema=schema,
        pushdown=predicate_pushdown_to_io,
        mapping=mapping,
    )
    try:
        try:
            table = read(path_or_bytes)
        except CorruptDatasetError:
            if not isinstance(path_or_bytes, pa.Buffer):
                raise
            # a buffer holds only the requested ranges of a file: those may be too few, and the file valid
            table = read(get_required(blobs, key))
        return with_row_index(table, path_or_bytes, predicates, schema) if row_index else table
    except CorruptDatasetError as exc:
        raise CorruptDatasetError(key, exc.problem) from exc
    except FileNotFoundError as exc:
        # a path was resolved before: a concurrent garbage collection may have deleted the file since
        raise MissingFileError(key) from exc


@contextmanager
def open_columns(
    blobs: BlobStore,
    key: str,
    source: FileBytes | None = None,
    threads: bool = True,
    mapping: ColumnMapping | None = None,
) -> Iterator[ParquetColumns]:
    """Parquet file whose columns are decoded on demand; ``threads`` lets Arrow decode several at once."""
    path_or_bytes = _locate(blobs, key, None, _SMALL_OF_FEW_COLUMNS) if source is None else source
    try:
        file = ParquetColumns(path_or_bytes, key, threads=threads, mapping=mapping)
    except FileNotFoundError as exc:
        raise MissingFileError(key) from exc
    with file:
        yield file


def count_rows(blobs: BlobStore, keys: Sequence[str]) -> int:
    """Rows in Parquet files, from their footers."""
    threads = 1 if blobs.is_local else REMOTE_REQUESTS
    return sum(ordered_map(lambda key: int(read_footer(blobs, key)[0].num_rows), keys, threads))


def file_widths(
    blobs: BlobStore, keys: Sequence[str], schema: pa.Schema, mapping: ColumnMapping | None = None
) -> dict[str, int]:
    """Bits of the columns of numbers in a schema, in the widest of some files; read from their footers."""
    full, widths = column_widths(schema), dict[str, int]()
    if len(keys) > _MAX_FOOTERS:
        return full
    # files of numbers that are as wide as in the schema tell it at once
    for batch in batched(keys, 1 if blobs.is_local else REMOTE_REQUESTS):
        read = partial(_widths_of_file, blobs, schema=schema, mapping=mapping)
        widths = widest([widths, *ordered_map(read, batch, len(batch))])
        if all(widths.get(name) == bits for name, bits in full.items()):
            break
    return {name: bits for name, bits in widths.items() if name in full}


def _widths_of_file(
    blobs: BlobStore, key: str, schema: pa.Schema, mapping: ColumnMapping | None
) -> dict[str, int]:
    if not key.endswith(PARQUET_FILE_SUFFIX):
        return column_widths(schema)
    try:
        file_schema = read_footer(blobs, key)[0].schema.to_arrow_schema()
    except (MissingFileError, CorruptDatasetError):
        # if a query needs rows of this file, that fails, and says why
        return {}
    return column_widths(file_schema if mapping is None else mapping.schema_of(file_schema))


def _read_untyped(
    blobs: BlobStore,
    key: str,
    columns: Sequence[str] | None,
    predicates: PredicatesType,
    schema: pa.Schema | None,
    mapping: ColumnMapping | None,
) -> pa.Table:
    """Read a file of a format without types, such as CSV, with those of the schema."""
    table = from_pandas(DataFrameSerializer.restore_dataframe(blobs.store, key))
    if mapping is not None:
        table = mapping.adapt_all(table)
    types = {field.name: field.type for field in schema or ()}
    typed = {}
    for position, field in enumerate(table.schema):
        dtype = types.get(field.name, field.type)
        if not pa.types.is_null(dtype) and not dtype.equals(widen(field.type)):
            typed[position] = _cast(table.column(position), dtype, key)
    table = replace_columns(table, typed)
    if predicates is not None:
        table = table.filter(filter_mask(table, predicates))
    return table if columns is None else table.select(list(columns))


def _cast(column: pa.ChunkedArray, dtype: pa.DataType, key: str) -> pa.ChunkedArray:
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), dtype)])
    try:
        return column.cast(dtype)
    except pa.ArrowException as exc:
        raise CorruptDatasetError(key, f"a column of type {column.type} holds no {dtype}: {exc}") from exc


def _locate(
    blobs: BlobStore, key: str, columns: Sequence[str] | None, small: int = _SMALL
) -> str | FileBytes:
    """Path of a large local file, of which only the needed columns are read; else the content."""
    if not blobs.is_local:
        return fetch_file(blobs, key, columns)
    try:
        content = blobs.get_small(key, small)
    except KeyError as exc:
        raise MissingFileError(key) from exc
    progress_advance(content if isinstance(content, int) else len(content))
    if isinstance(content, bytes):
        return content
    path = blobs.local_path(key)
    return blobs.get(key) if path is None else path


def read_threads(blobs: BlobStore, keys: Sequence[str]) -> int:
    """How many reads to overlap: many in a remote store, one per core for local files that are large."""
    if len(keys) < 2:
        return 1
    if not blobs.is_local:
        return REMOTE_REQUESTS
    sample = keys[:: max(1, len(keys) // _SAMPLE)]
    return available_cores() if sum(map(blobs.size, sample)) > WORTH_A_THREAD * len(sample) else 1


def read_files(
    blobs: BlobStore,
    keys: Sequence[str],
    columns: Sequence[str] | None = None,
    predicates: Callable[[int], PredicatesType] | None = None,
    predicate_pushdown_to_io: bool = True,
    schema: pa.Schema | None = None,
    then: Callable[[pa.Table], Any] | None = None,
    sources: Mapping[str, Source] | None = None,
    threads: int | None = None,
    mapping: ColumnMapping | None = None,
) -> Iterator[Any]:
    """
    One table per key, in order, or what ``then`` makes of it on the thread that read it.

    ``predicates`` gives the filter of the file with a number; ``sources`` are files that have been read or
    opened; the other arguments are those of :func:`read_table_of_file`.
    """

    def read(numbered_key: tuple[int, str]) -> Any:
        number, key = numbered_key
        table = read_table_of_file(
            blobs,
            key,
            columns,
            None if predicates is None else predicates(number),
            predicate_pushdown_to_io,
            schema,
            source=None if sources is None else sources.get(key),
            mapping=mapping,
        )
        return table if then is None else then(table)

    return ordered_map(read, list(enumerate(keys)), threads or read_threads(blobs, keys))


def read_small_files(
    blobs: BlobStore, keys: Sequence[str], columns: Sequence[str], sources: Mapping[str, Source]
) -> list[pa.Table] | None:
    """
    One table per small or fetched Parquet file, all with the same types; None if `read_files` is needed.

    Types are checked and converted once for all files: for files of 10,000 rows, this takes half of the time.
    """
    if len(keys) < 2 or not columns or not keys[0].endswith(PARQUET_FILE_SUFFIX):
        return None
    if not blobs.is_local and not all(isinstance(sources.get(key), (bytes, pa.Buffer)) for key in keys):
        return None
    sample = keys[:: max(1, len(keys) // _SAMPLE)]
    try:
        if blobs.is_local and sum(map(blobs.size, sample)) > _SMALL_TO_READ_AT_ONCE * len(sample):
            return None
        tables = [_read_small_file(blobs, key, columns, sources.get(key)) for key in keys]
    # the other function says which file has which problem
    except (KeyError, OSError, ValueError, pa.ArrowException):
        return None
    schema = tables[0].schema
    if schema.names != list(columns) or not all(table.schema.equals(schema) for table in tables):
        return None
    rows = to_memory(convert_layouts(pa.concat_tables(tables)))
    lengths = [len(table) for table in tables]
    stops = accumulate(lengths)
    return [rows.slice(stop - length, length) for stop, length in zip(stops, lengths, strict=True)]


def _read_small_file(blobs: BlobStore, key: str, columns: Sequence[str], source: Source | None) -> pa.Table:
    if isinstance(source, pa.Buffer):
        content = source
    else:
        content = copy_to_arrow_memory(source if isinstance(source, bytes) else blobs.get(key))
    with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as file:
        table = file.read(list(columns), use_threads=False)
        if table.num_rows != file.metadata.num_rows:
            raise ValueError(f"{file.metadata.num_rows} rows expected, {table.num_rows} found")
    if source is None:
        progress_advance(content.size)
    return table.replace_schema_metadata(None)


def concat_tables(tables: Sequence[pa.Table], schema: pa.Schema, origin: str) -> pa.Table:
    """
    Concatenate tables of the same columns, with the wider type where types differ.

    ``schema`` has the types of columns that are null in all tables; ``origin`` names the files in errors.
    """
    if not tables:
        return schema.empty_table()
    if not tables[0].num_columns:
        return zero_column_table(sum(map(len, tables)))
    tables_without_metadata = [table.replace_schema_metadata(None) for table in tables]
    first = tables_without_metadata[0].schema
    if len(tables) == 1:
        result = tables_without_metadata[0]
    elif all(table.schema.equals(first) for table in tables_without_metadata[1:]):
        result = pa.concat_tables(tables_without_metadata)
    else:
        try:
            result = pa.concat_tables(tables_without_metadata, promote_options="permissive")
        except pa.ArrowException as exc:
            message = f"its files have types that do not fit together: {exc}"
            raise CorruptDatasetError(origin, message) from exc
    return type_null_columns(result, schema)


def fit_widths(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast numbers to the width that they have in a schema, into which they fit; other types stay.

    >>> schema = pa.schema([("TEMP", pa.float32()), ("CITY", pa.string())])
    >>> fit_widths(pa.table({"TEMP": [6.0], "CITY": ["Ulm"]}), schema).schema.types
    [DataType(float), DataType(string)]
    """
    fields, columns = list(table.schema), table.columns
    changed = False
    for position, field in enumerate(fields):
        index = schema.get_field_index(field.name)
        target = field.type if index < 0 else schema.field(index).type
        width, stored = number_bits(target), number_bits(field.type)
        if width and stored != width:
            # a column of empty lists only may have no item type
            dtype = with_number_bits(field.type, width) if stored else target
            fields[position], columns[position] = field.with_type(dtype), columns[position].cast(dtype)
            changed = True
    return (
        pa.Table.from_arrays(columns, schema=pa.schema(fields, table.schema.metadata)) if changed else table
    )
