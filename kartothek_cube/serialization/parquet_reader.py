"""One Parquet file: its footer, and its rows by pyarrow, which compares pages with their checksums."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core import arrow, expressions
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.pandas_conversion import extension_dtypes, from_file, index_columns, pandas_metadata
from kartothek_cube.core.schema.evolution import ColumnMapping
from kartothek_cube.core.store import BlobStore

Source: TypeAlias = str | bytes | bytearray | memoryview | pa.Buffer | BinaryIO

_NULL_ID = pa.null().id
_CONTENT = (bytes, bytearray, memoryview, pa.Buffer)


def read_parquet(
    source: Source,
    name: str,
    columns: Sequence[str] | None = None,
    predicates: expressions.PredicatesType | expressions.Tree = None,
    schema: pa.Schema | None = None,
    mapping: ColumnMapping | None = None,
) -> pa.Table:
    """Columns of the rows that meet the predicates, with types of memory; all but the pandas index for None.

    ``schema`` is that of the dataset: predicates are checked against it, and it types columns that are null
    in the file. ``mapping`` gives the columns of the dataset if the file was written before a change of its
    schema. ``name`` is that of the file in errors.
    """
    with _convert_errors(source, name), _open(source) as file:
        stored = file.schema_arrow
        available = stored if mapping is None else mapping.schema_of(stored)
        where = expressions.bind(predicates, available if schema is None else schema)
        if columns is None:
            names = (columns_of_file(stored) if mapping is None else available).names
        else:
            names = list(dict.fromkeys([*columns, *sorted(expressions.columns_of(where))]))
        expressions.check_columns([*names, *expressions.columns_of(where)], available.names, name)
        if len(set(stored.names)) < len(stored.names):
            repeated = next(column for column in stored.names if stored.names.count(column) > 1)
            raise CorruptDatasetError(name, f"it has a column more than once: {repeated}")
        table = _decode(file, names, mapping)
        if len(table) != file.metadata.num_rows:
            raise CorruptDatasetError(name, f"{file.metadata.num_rows} rows expected, {len(table)} found")
    table = type_null_columns(from_file(_drop_foreign_metadata(table), schema), schema)
    if where is not None:
        table = table.filter(expressions.tree_mask(table, where))
    if columns is None or names == list(columns):
        return table
    return table.select(list(columns)) if columns else arrow.zero_column_table(len(table))


def _decode(file: pq.ParquetFile, columns: Sequence[str], mapping: ColumnMapping | None) -> pa.Table:
    length, in_file = file.metadata.num_rows, file.schema_arrow.names
    if mapping is None:
        if not columns:
            return arrow.zero_column_table(length)
        return arrow.convert_layouts(file.read(list(columns)))
    stored = [n for column in columns if (n := mapping.stored_name(column, in_file)) is not None]
    table = arrow.convert_layouts(file.read(stored)) if stored else pa.table({})
    return mapping.adapt(table, columns, length)


def _open(source: Source) -> pq.ParquetFile:
    if isinstance(source, _CONTENT):
        # a thread of Arrow that releases memory of Python while the process exits aborts it
        source = pa.BufferReader(
            source if isinstance(source, pa.Buffer) else arrow.copy_to_arrow_memory(source)
        )
    return pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)


@contextmanager
def _convert_errors(source: Source, name: str) -> Iterator[None]:
    """Convert errors of broken content; connection errors and caller mistakes pass."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        raise CorruptDatasetError(name, f"not a readable Parquet file: {error}") from error
    except OSError as error:
        # Arrow raises OSError for broken pages and footers, too; system errors have an errno
        if error.errno is not None or not isinstance(source, (str, *_CONTENT)):
            raise
        raise CorruptDatasetError(name, f"not a readable Parquet file: {error}") from error


def columns_of_file(schema: pa.Schema) -> pa.Schema:
    """Schema of a file without the pandas index and all metadata but pandas extension types."""
    hidden = index_columns(schema)
    fields = [field.remove_metadata() for field in schema if field.name not in hidden]
    extensions = extension_dtypes(schema)
    plain = pa.schema(fields)
    return plain.with_metadata({"pandas": pandas_metadata(plain, extensions)}) if extensions else plain


def _drop_foreign_metadata(table: pa.Table) -> pa.Table:
    """Drop all metadata but pandas extension types."""
    metadata = table.schema.metadata
    if metadata is None or not table.num_columns:  # without columns, the number of rows would be lost
        return table
    return table.replace_schema_metadata(columns_of_file(table.schema).metadata)


def type_null_columns(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """Cast columns that are null in a file to their type in a schema."""
    if schema is None:
        return table
    columns = {
        position: table.column(position).cast(arrow.memory_type(schema.field(field.name).type))
        for position, field in enumerate(table.schema)
        if field.type.id == _NULL_ID and schema.get_field_index(field.name) >= 0
    }
    return arrow.replace_columns(table, columns)


def read_footer(blobs: BlobStore, key: str) -> tuple[pq.FileMetaData, int]:
    """Footer and size of a data file; raises MissingFileError or CorruptDatasetError."""
    try:
        file = blobs.open_read(key)
    except KeyError as error:
        raise MissingFileError(key) from error
    with file:
        try:
            footer = pq.read_metadata(pa.PythonFile(file, mode="r"))
        except (pa.ArrowException, OSError) as error:
            if _is_store_error(error):
                raise
            raise CorruptDatasetError(key, f"its footer is not readable: {error}") from error
        return footer, file.seek(0, io.SEEK_END)


def _is_store_error(error: Exception) -> bool:
    """Whether the store failed, not the parser, which raises OSErrors without errno."""
    return isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None)
