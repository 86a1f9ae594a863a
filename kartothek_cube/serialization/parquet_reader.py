"""One Parquet file: its footer, its rows by pyarrow, which checks pages, and the index of its frame."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core import arrow, expressions, pandas_conversion
from kartothek_cube.core.arrow import Ints, copy_to_arrow_memory
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.evolution import ColumnMapping
from kartothek_cube.core.expressions import Tree, tree_mask
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
    table = type_null_columns(pandas_conversion.from_file(_drop_foreign_metadata(table), schema), schema)
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
    hidden = pandas_conversion.index_columns(schema)
    fields = [field.remove_metadata() for field in schema if field.name not in hidden]
    extensions = pandas_conversion.extension_dtypes(schema)
    plain = pa.schema(fields)
    return (
        plain.with_metadata({"pandas": pandas_conversion.pandas_metadata(plain, extensions)})
        if extensions
        else plain
    )


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


#: pandas' own name for an index in a file
_COLUMN = "__index_level_0__"
_NAME = b"index_name"


def as_table_with_index(df: pd.DataFrame, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """Arrow table of a frame and its index: a range is in the metadata, others are an additional column.

    >>> as_table_with_index(pd.DataFrame({"CITY": ["Rom"]}, index=["IT"])).column_names
    ['CITY', '__index_level_0__']
    >>> as_table_with_index(pd.DataFrame({"CITY": ["Rom"]})).column_names
    ['CITY']
    """
    table = pandas_conversion.from_pandas(df, types)
    index = df.index
    if isinstance(index, pd.RangeIndex):
        if (index.start, index.step, index.name) == (0, 1, None):
            return table
        range_entry = {"kind": "range", "start": index.start, "step": index.step, "stop": index.stop}
        return _set_index_metadata(table, {**range_entry, "name": _text(index.name)}, None)
    column = pandas_conversion.from_pandas(index.to_frame(index=False, name=_COLUMN)).column(0)
    pandas_type, numpy_type, details = pandas_conversion.pandas_types(column.type)
    types = {"pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": details}
    entry = {"field_name": _COLUMN, "name": _text(index.name), **types}
    return _set_index_metadata(table.append_column(_COLUMN, column), _COLUMN, entry)


def _text(name: object) -> str | None:
    return None if name is None else str(name)


def _set_index_metadata(
    table: pa.Table, index: str | dict[str, Any], column: dict[str, Any] | None
) -> pa.Table:
    """The table with an index in its pandas metadata."""
    content = json.loads(table.schema.metadata[b"pandas"])
    content["index_columns"] = [index]
    content["columns"] += [column] if column else []
    return table.replace_schema_metadata({b"pandas": json.dumps(content, sort_keys=True).encode()})


def with_row_index(
    table: pa.Table, source: str | bytes, where: Tree | None, schema: pa.Schema | None
) -> pa.Table:
    """Add the index of the stored frame to the rows read of a file, unless it is 0, 1, 2, ..."""
    # a thread of Arrow that releases memory of Python while the process exits aborts it
    content = copy_to_arrow_memory(source) if isinstance(source, bytes) else source
    file = pq.ParquetFile(pa.BufferReader(content) if isinstance(content, pa.Buffer) else content)
    name, index = _stored_index(file)
    if where is not None:
        rows = _matching_rows(source, where, schema)
        index = pa.array(rows) if index is None else index.take(pa.array(rows))
    if index is None and name is None:
        return table
    index = pa.array(np.arange(len(table))) if index is None else index
    field = pa.field(_COLUMN, index.type, metadata={} if name is None else {_NAME: name})
    return table.append_column(field, index)


def _stored_index(file: pq.ParquetFile) -> tuple[str | None, Any]:
    """Name and values of the index; no values for a plain range or an unknown index."""
    schema = file.schema_arrow
    listed, name = _listed_index(schema)
    if isinstance(listed, str) and listed in schema.names:
        # a thread of Arrow would release the memory of Python
        return name, pandas_conversion.from_file(file.read([listed], use_threads=False)).column(0)
    if not isinstance(listed, dict) or listed.get("kind") != "range":
        return None, None
    start, step = listed.get("start"), listed.get("step")
    if type(start) is not int or type(step) is not int or (start, step) == (0, 1):
        return name, None
    return name, pa.array(start + step * np.arange(file.metadata.num_rows))


def _listed_index(schema: pa.Schema) -> tuple[Any, str | None]:
    """Index entry of the pandas metadata, and its name; other libraries write it, so types are checked."""
    try:
        content = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except (ValueError, RecursionError):
        return None, None
    listed = content.get("index_columns") if isinstance(content, dict) else None
    if not isinstance(listed, list) or len(listed) != 1:
        return None, None
    (index,) = listed
    columns = content.get("columns") if isinstance(content.get("columns"), list) else []
    entries = [index] if isinstance(index, dict) else [c for c in columns if isinstance(c, dict)]
    names = [e.get("name") for e in entries if e is index or e.get("field_name") == index]
    name = names[0] if names else None
    return index, name if isinstance(name, str) and name != _COLUMN else None


def _matching_rows(source: str | bytes, where: Tree, schema: pa.Schema | None) -> Ints:
    """Positions of the rows that match; only the columns of the filter are read for that."""
    table = read_parquet(source, "Parquet data", sorted(expressions.columns_of(where)), schema=schema)
    return np.flatnonzero(tree_mask(table, where).to_numpy(zero_copy_only=False))


def to_frame(
    table: pa.Table,
    dates_as_object: bool,
    categories: Iterable[str] = (),
    dtype_backend: pandas_conversion.DtypeBackend | None = None,
) -> pd.DataFrame:
    """DataFrame of a table, with the index of :func:`with_row_index`."""
    df = pandas_conversion.to_pandas(
        table, dates_as_object=dates_as_object, categories=categories, dtype_backend=dtype_backend
    )
    if _COLUMN not in table.column_names:
        return df
    name = (table.schema.field(_COLUMN).metadata or {}).get(_NAME)
    return df.set_index(_COLUMN).rename_axis(index=None if name is None else name.decode())
