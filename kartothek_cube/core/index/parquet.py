"""The Parquet file of a secondary index ("Index files" in the specification)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow.arrays import copy_to_arrow_memory
from kartothek_cube.core.arrow.types import is_long, is_nested, widen
from kartothek_cube.core.arrow.typing import Ints
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.index.data import IndexColumns

__all__ = ("parse_index", "render_index")

_VALUES_PER_GROUP = 10_000
#: the labels of a row group have to fit into one Arrow array of strings
_ENTRIES_PER_GROUP = 4_000_000
_LABEL_COLUMN = "partition"


def render_index(column: str, columns: IndexColumns) -> bytes:
    """Content of an index file: one row per value with the list of its partitions.

    Examples
    --------
    >>> columns = IndexColumns.from_pairs(pa.array(["Rom"]), ["a1"])
    >>> parse_index(render_index("CITY", columns), "CITY", "key").to_dict()
    {'Rom': ['a1']}
    """
    # named explicitly: pyarrow's default name of the child depends on its version
    partitions = pa.list_(pa.field("item", pa.string()))
    values = _file_values(columns)
    schema = pa.schema([(column, values.type), (_LABEL_COLUMN, partitions)])
    sink = pa.BufferOutputStream()
    labels_repeat = len(columns.codes) > 2 * len(columns.labels)
    with pq.ParquetWriter(
        sink,
        schema,
        version="2.6",
        coerce_timestamps=None if _is_milliseconds(values.type) else "us",
        use_compliant_nested_type=False,
        use_dictionary=[f"{_LABEL_COLUMN}.list.item"] if labels_repeat else False,  # values are unique
    ) as writer:
        bounds = _row_groups(columns)
        for start, stop in pairwise(bounds.tolist()):
            _write_group(writer, schema, replace(columns, values=values), start, stop)
    return bytes(sink.getvalue())


def _file_values(columns: IndexColumns) -> pa.Array:
    """The values in the type that the index file had, if they all fit."""
    if columns.file_type is None:
        return columns.values
    try:
        return columns.values.cast(columns.file_type)
    except pa.ArrowInvalid:
        return columns.values  # microseconds, in an index of milliseconds


def _is_milliseconds(dtype: pa.DataType) -> bool:
    return bool(pat.is_timestamp(dtype) and dtype.unit == "ms")


def _row_groups(columns: IndexColumns) -> Ints:
    """Bounds of row groups; an empty index has one group without rows."""
    by_entries = columns.offsets[:-1] // _ENTRIES_PER_GROUP
    changes = np.flatnonzero(np.diff(by_entries)) + 1
    steps = np.arange(0, len(columns), _VALUES_PER_GROUP)
    inner = np.union1d(steps, changes)
    return np.append(inner if len(inner) else [0], len(columns)).astype(np.int64)


def _write_group(
    writer: pq.ParquetWriter, schema: pa.Schema, columns: IndexColumns, start: int, stop: int
) -> None:
    offsets = columns.offsets[start : stop + 1]
    labels = columns.labels.take(pa.array(columns.codes[offsets[0] : offsets[-1]]))
    starts = pa.array((offsets - offsets[0]).astype(np.int32))
    lists = pa.ListArray.from_arrays(starts, labels, type=schema.field(1).type)
    values = columns.values.slice(start, stop - start)
    try:
        writer.write_table(pa.Table.from_arrays([values, lists], schema=schema))
    except pa.ArrowInvalid as error:
        raise ValueError(f"The index on {schema.names[0]!r} cannot be stored: {error}") from error


def parse_index(buf: bytes, column: str, key: str) -> IndexColumns:
    """Index data of an index file; raises CorruptDatasetError."""
    try:
        table = _read_table(buf)
        _check_columns(table, column, key)
        table.validate(full=True)
        values = table.column(0).combine_chunks()
        values = values.cast(widen(values.type))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptDatasetError(
            key, f"it is no Parquet file of an index on {column!r} ({error})"
        ) from error
    lists = table.column(1)
    labels = pc.list_flatten(lists)
    if values.null_count or lists.null_count or labels.null_count:
        raise CorruptDatasetError(key, f"the index on {column!r} holds nulls")
    # encoded chunk by chunk: all labels together may be too long for one array
    encoded = labels.dictionary_encode().unify_dictionaries().combine_chunks()
    rows = np.repeat(np.arange(len(values)), pc.list_value_length(lists).to_numpy())
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    columns = IndexColumns.from_pairs(values, encoded.dictionary, codes, rows)
    dtype = table.schema.field(0).type
    # other libraries demand these types of an index that they have written
    return replace(columns, file_type=dtype) if is_long(dtype) or _is_milliseconds(dtype) else columns


def _read_table(buf: bytes) -> pa.Table:
    """Content of the file, with dictionary-encoded labels: most of them repeat."""
    content = copy_to_arrow_memory(buf)
    plain = pq.ParquetFile(pa.BufferReader(content))
    labels = [plain.schema.column(i).path for i in range(1, plain.metadata.num_columns)]
    file = pq.ParquetFile(pa.BufferReader(content), metadata=plain.metadata, read_dictionary=labels)
    # Arrow cannot read encoded lists of several row groups at once
    return pa.concat_tables([file.read_row_group(i) for i in range(file.num_row_groups)] or [plain.read()])


def _check_columns(table: pa.Table, column: str, key: str) -> None:
    if table.column_names != [column, _LABEL_COLUMN]:
        raise CorruptDatasetError(
            key, f"an index file has the columns {column!r} and 'partition', not {table.column_names}"
        )
    dtype, lists = table.schema.types
    if is_nested(dtype) or pat.is_null(dtype):
        raise CorruptDatasetError(key, f"values of type {dtype} cannot be indexed")
    if not (pat.is_list(lists) or pat.is_large_list(lists)) or widen(lists.value_type) != pa.string():
        raise CorruptDatasetError(key, f"'partition' is {lists}, not lists of strings")
