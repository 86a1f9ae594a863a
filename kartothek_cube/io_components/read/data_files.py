"""Reading data files: many keys in, one Arrow table per key out, whatever the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import from_pandas
from kartothek_cube.core.arrow.types import widen
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.expressions.predicate import filter_mask
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore, get_required
from kartothek_cube.io_components.read.pandas_index import with_row_index
from kartothek_cube.io_components.runtime.threads import (
    REMOTE_REQUESTS,
    available_cores,
    ordered_map,
    progress_advance,
)
from kartothek_cube.serialization import DataFrameSerializer, ParquetSerializer, columns_to_read, fetch
from kartothek_cube.serialization.parquet_reader import ParquetColumns

__all__ = (
    "Content",
    "Raw",
    "concat_tables",
    "fetch_files",
    "zero_column_table",
    "open_columns",
    "read_files",
    "read_table_of_file",
    "read_threads",
)

#: a local file up to this size is read in one piece, which is cheaper than seeking in it
_SMALL = 1 << 20
#: below this mean size in bytes, threads cost more than they bring
_WORTH_A_THREAD = 1 << 16

Predicates = Sequence[tuple[str, str, Any]]
#: bytes of a file; a buffer may lack columns that nobody asked for
Raw: TypeAlias = bytes | pa.Buffer
#: a file that has been read or opened already
Content: TypeAlias = Raw | ParquetColumns


def read_table_of_file(
    blobs: BlobStore,
    key: str,
    columns: Sequence[str] | None = None,
    predicates: list[list[tuple[str, str, Any]]] | None = None,
    predicate_pushdown_to_io: bool = True,
    schema: pa.Schema | None = None,
    row_index: bool = False,
    content: Content | None = None,
) -> pa.Table:
    """
    Read one data file.

    Parameters
    ----------
    blobs
        Store.
    key
        Key of the file.
    columns
        Columns wanted; None for all.
    predicates
        Filter in disjunctive normal form.
    predicate_pushdown_to_io
        Whether statistics of row groups may be used.
    schema
        Types of columns of which the file holds nothing but nulls.
    row_index
        Whether the index of the stored frame is to be kept, as an additional column.
    content
        What is in the file, if it has been read or opened already.

    Raises
    ------
    CorruptDatasetError
        The file is no Parquet file, or damaged.
    MissingFileError
        There is no such file.
    """
    if isinstance(content, ParquetColumns):
        return content.read(columns, predicates, predicate_pushdown_to_io)
    if not key.endswith(PARQUET_FILE_SUFFIX):
        return _read_other(blobs, key, columns, predicates, schema)
    needed = None if row_index else columns_to_read(columns, predicates)
    source = _source(blobs, key, needed) if content is None else content
    read = partial(
        _PARQUET.read_table,
        columns=None if columns is None else list(columns),
        predicates=predicates,
        schema=schema,
        predicate_pushdown_to_io=predicate_pushdown_to_io,
    )
    try:
        try:
            table = read(source)
        except CorruptDatasetError:
            if not isinstance(source, pa.Buffer):
                raise
            # maybe only because parts of it were left out
            table = read(get_required(blobs, key))
        return with_row_index(table, source, predicates, schema) if row_index else table
    except CorruptDatasetError as exc:
        raise CorruptDatasetError(key, str(exc)) from exc
    except FileNotFoundError as exc:
        raise MissingFileError(key) from exc


_PARQUET = ParquetSerializer()


@contextmanager
def open_columns(
    blobs: BlobStore, key: str, content: Raw | None = None, threads: bool = True
) -> Iterator[ParquetColumns]:
    """
    Open a Parquet file whose columns are decoded when they are asked for.

    Parameters
    ----------
    blobs
        Store.
    key
        Key of the file.
    content
        What is in the file, if that has been read already.
    threads
        Whether Arrow may decode several columns at once.

    Raises
    ------
    CorruptDatasetError
        The file is no Parquet file, or damaged.
    MissingFileError
        There is no such file.
    """
    source = _source(blobs, key, None) if content is None else content
    try:
        file = ParquetColumns(source, key, threads=threads)
    except FileNotFoundError as exc:
        raise MissingFileError(key) from exc
    with file:
        yield file


def fetch_files(
    blobs: BlobStore, wanted: Sequence[tuple[str, Sequence[str] | None]], threads: int
) -> dict[str, Raw]:
    """
    Read files of a remote store, many at once.

    Parameters
    ----------
    blobs
        Store.
    wanted
        Keys of the files, and which of their columns are needed; None for all.
    threads
        How many requests may be under way at once.

    Returns
    -------
    dict
        Key to content, as from :func:`~kartothek_cube.serialization.fetch`. Files on a local disk and files
        that are no Parquet files are left out; these are better read one by one.
    """
    if blobs.is_local:
        return {}
    wanted = [item for item in wanted if item[0].endswith(PARQUET_FILE_SUFFIX)]
    contents = ordered_map(partial(_fetch_one, blobs), wanted, threads)
    return {key: content for (key, _), content in zip(wanted, contents, strict=True)}


def _fetch_one(blobs: BlobStore, item: tuple[str, Sequence[str] | None]) -> Raw:
    key, columns = item
    content = _fetched(blobs, key, columns) if blobs.has_ranges else get_required(blobs, key)
    progress_advance(len(content))
    return content


def _read_other(
    blobs: BlobStore,
    key: str,
    columns: Sequence[str] | None,
    predicates: list[list[tuple[str, str, Any]]] | None,
    schema: pa.Schema | None,
) -> pa.Table:
    """Read a file of a format that does not keep types, such as CSV: the schema tells them."""
    table = from_pandas(DataFrameSerializer.restore_dataframe(blobs.store, key))
    for position, field in enumerate(table.schema):
        wanted = (
            field.type if schema is None or field.name not in schema.names else schema.field(field.name).type
        )
        if not pa.types.is_null(wanted) and not wanted.equals(widen(field.type)):
            table = table.set_column(position, field.name, _retyped(table.column(position), wanted, key))
    if predicates is not None:
        table = table.filter(filter_mask(table, predicates))
    return table if columns is None else table.select(list(columns))


def _retyped(column: pa.ChunkedArray, wanted: pa.DataType, key: str) -> pa.ChunkedArray:
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), wanted)])
    try:
        return column.cast(wanted)
    except pa.ArrowException as exc:
        raise CorruptDatasetError(key, f"a column of type {column.type} holds no {wanted}: {exc}") from exc


def _source(blobs: BlobStore, key: str, columns: Sequence[str] | None) -> str | Raw:
    """A path for large local files, of which only the needed columns are read; the content otherwise."""
    if not blobs.is_local:
        return _fetch_one(blobs, (key, columns))
    with _opened(blobs, key) as file:
        size = os.fstat(file.fileno()).st_size
        progress_advance(size)
        if size <= _SMALL:
            return file.read()
    path = blobs.local_path(key)
    return blobs.get(key) if path is None else path


def _fetched(blobs: BlobStore, key: str, columns: Sequence[str] | None) -> Raw:
    try:
        return fetch(blobs, key, columns)
    except KeyError as exc:
        raise MissingFileError(key) from exc


def _opened(blobs: BlobStore, key: str) -> BinaryIO:
    try:
        return blobs.open_read(key)
    except KeyError as exc:
        raise MissingFileError(key) from exc


def read_threads(blobs: BlobStore, keys: Sequence[str]) -> int:
    """How many reads to overlap: by the size of a few files if they are local."""
    if len(keys) < 2:
        return 1
    if not blobs.is_local:
        return REMOTE_REQUESTS
    sample = keys[:: max(1, len(keys) // 8)]
    return available_cores() if sum(map(blobs.size, sample)) > _WORTH_A_THREAD * len(sample) else 1


def read_files(
    blobs: BlobStore,
    keys: Sequence[str],
    columns: Sequence[str] | None = None,
    predicates: Callable[[int], list[list[tuple[str, str, Any]]] | None] | None = None,
    predicate_pushdown_to_io: bool = True,
    schema: pa.Schema | None = None,
    then: Callable[[pa.Table], Any] | None = None,
    contents: Mapping[str, Content] | None = None,
    threads: int | None = None,
) -> Iterator[Any]:
    """
    Read data files, overlapping the reads where that pays.

    Parameters
    ----------
    blobs
        Store.
    keys
        Keys of the files.
    columns
        Columns wanted; None for all.
    predicates
        Filter for the file with the given number.
    predicate_pushdown_to_io, schema
        As in :func:`read_table_of_file`.
    then
        What to do with each table while it is fresh, on the thread that read it.
    contents
        What is in some of the files, as far as that has been read already.
    threads
        How many reads to overlap; None for as many as seem useful.

    Yields
    ------
    pyarrow.Table, or what ``then`` returns
        One per key, in order.
    """
    choose = predicates or (lambda number: None)
    read = partial(
        _read_numbered, blobs, columns, choose, predicate_pushdown_to_io, schema, then, contents or {}
    )
    return ordered_map(read, list(enumerate(keys)), threads or read_threads(blobs, keys))


def _read_numbered(
    blobs: BlobStore,
    columns: Sequence[str] | None,
    choose: Callable[[int], list[list[tuple[str, str, Any]]] | None],
    pushdown: bool,
    schema: pa.Schema | None,
    then: Callable[[pa.Table], Any] | None,
    contents: Mapping[str, Content],
    item: tuple[int, str],
) -> Any:
    number, key = item
    content = contents.get(key)
    table = read_table_of_file(blobs, key, columns, choose(number), pushdown, schema, content=content)
    return table if then is None else then(table)


def zero_column_table(length: int) -> pa.Table:
    """
    Rows without columns; most operations on such a table would forget how many there are.

    Parameters
    ----------
    length
        Number of rows.

    Returns
    -------
    pyarrow.Table

    Examples
    --------
    >>> len(no_columns(3))
    3
    """
    return pa.table({"_": pa.nulls(length)}).select([])


def concat_tables(tables: Sequence[pa.Table], schema: pa.Schema, origin: str) -> pa.Table:
    """
    One table of many, with the types of the files as far as they agree and the wider type where they don't.

    Parameters
    ----------
    tables
        Parts with the same columns.
    schema
        Columns and their types where there is no part, or where all parts hold nothing but nulls.
    origin
        Whose files these are, for messages.
    """
    if not tables:
        return schema.empty_table()
    if not tables[0].num_columns:
        return zero_column_table(sum(map(len, tables)))
    first = tables[0].schema.remove_metadata()
    if all(t.schema.equals(first, check_metadata=False) for t in tables[1:]):
        table = pa.concat_tables([t.replace_schema_metadata(None) for t in tables])
    else:
        try:
            table = pa.concat_tables(
                [t.replace_schema_metadata(None) for t in tables], promote_options="permissive"
            )
        except pa.ArrowException as exc:
            raise CorruptDatasetError(
                origin, f"its files have types that do not fit together: {exc}"
            ) from exc
    for i, field in enumerate(table.schema):
        if pa.types.is_null(field.type) and field.name in schema.names:
            wanted = schema.field(field.name).type
            if not pa.types.is_null(wanted):
                table = table.set_column(i, pa.field(field.name, wanted), table.column(i).cast(wanted))
    return table
