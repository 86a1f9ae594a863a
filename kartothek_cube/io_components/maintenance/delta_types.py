"""Content of Delta actions: types of columns, values of partition keys, statistics out of Parquet footers."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

__all__ = (
    "NoDeltaTypeError",
    "decode_schema",
    "encode_schema",
    "file_schema",
    "file_stats",
    "has_null_type",
    "partition_texts",
    "schema_string",
    "table_type",
    "unite_types",
    "value_ranges",
)

#: as JSON: the name of a primitive type, or an object
DeltaType: TypeAlias = str | dict[str, Any]

#: columns with statistics, as other writers of the format do by default
_STATS_COLUMNS = 32
#: characters of a text in statistics; without a bound readers open the file
_STATS_TEXT = 64

_PRIMITIVES: dict[pa.DataType, str] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
}
#: types that readers of Delta tables, Spark among them, take out of Parquet files as another one
_READ_AS: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_MAX_PRECISION = 38


@attrs.frozen
class NoDeltaTypeError(Exception):
    """Internal: a type that a Delta table does not have."""

    dtype: pa.DataType


def table_type(dtype: pa.DataType) -> pa.DataType:
    """The type as which a Delta table has a column of Parquet files; raises NoDeltaTypeError.

    >>> table_type(pa.uint16()), table_type(pa.dictionary(pa.int32(), pa.large_string()))
    (DataType(int32), DataType(string))
    """
    if pat.is_null(dtype) or dtype in _PRIMITIVES:
        return dtype
    if dtype in _READ_AS:
        return _READ_AS[dtype]
    if pat.is_dictionary(dtype):
        return table_type(dtype.value_type)
    if pat.is_timestamp(dtype) and dtype.unit != "ns":
        return pa.timestamp("us", None if dtype.tz is None else "UTC")
    if pat.is_fixed_size_binary(dtype):
        return pa.binary()
    if pat.is_decimal(dtype) and dtype.precision <= _MAX_PRECISION and 0 <= dtype.scale <= dtype.precision:
        return pa.decimal128(dtype.precision, dtype.scale)
    if pat.is_list(dtype) or pat.is_large_list(dtype) or pat.is_fixed_size_list(dtype):
        return pa.list_(table_type(dtype.value_type))
    if pat.is_map(dtype):
        return pa.map_(table_type(dtype.key_type), table_type(dtype.item_type))
    if pat.is_struct(dtype) and dtype.num_fields:
        return pa.struct([(field.name, table_type(field.type)) for field in dtype])
    raise NoDeltaTypeError(dtype)


def unite_types(types: Iterable[pa.DataType]) -> pa.DataType:
    """The type of a column whose files have these types, all from :func:`table_type`; raises ArrowException.

    >>> unite_types([pa.int8(), pa.null(), pa.int32()])
    DataType(int32)
    """
    schemas = [pa.schema([("column", dtype)]) for dtype in dict.fromkeys(types)]
    return pa.unify_schemas(schemas, promote_options="permissive").field("column").type


def _delta_type(dtype: pa.DataType) -> DeltaType:
    if dtype in _PRIMITIVES:
        return _PRIMITIVES[dtype]
    if pat.is_decimal(dtype):
        return f"decimal({dtype.precision},{dtype.scale})"
    if pat.is_list(dtype):
        return {"type": "array", "elementType": _delta_type(dtype.value_type), "containsNull": True}
    if pat.is_map(dtype):
        types = {"keyType": _delta_type(dtype.key_type), "valueType": _delta_type(dtype.item_type)}
        return {"type": "map", **types, "valueContainsNull": True}
    if pat.is_struct(dtype):
        return _struct(dtype)
    raise NoDeltaTypeError(dtype)


def _struct(fields: Iterable[pa.Field]) -> dict[str, Any]:
    described = [
        {"name": field.name, "type": _delta_type(field.type), "nullable": True, "metadata": {}}
        for field in fields
    ]
    return {"type": "struct", "fields": described}


def schema_string(schema: pa.Schema) -> str:
    """``schemaString`` of a table with columns of types from :func:`table_type`.

    >>> schema_string(pa.schema([("QTY", pa.int16())]))
    '{"type": "struct", "fields": [{"name": "QTY", "type": "short", "nullable": true, "metadata": {}}]}'
    """
    return json.dumps(_struct(schema))


def has_null_type(dtype: pa.DataType) -> bool:
    """Whether a type, or a part of it, is that of a column without values."""
    return pat.is_null(dtype) or any(has_null_type(dtype.field(n).type) for n in range(dtype.num_fields))


def encode_schema(schema: pa.Schema) -> str:
    """A schema as text, for the configuration of a table."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Reverse :func:`encode_schema`; raises ValueError."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


# -- partition keys --------------------------------------------------------------------------------------


def partition_texts(values: pa.Array) -> list[str | None]:
    """Values of a partition key as the protocol writes them.

    >>> partition_texts(pa.array([True, None])), partition_texts(pa.array([1.5, float("inf")]))
    (['true', None], ['1.5', 'Infinity'])
    """
    dtype = values.type
    if pat.is_timestamp(dtype):
        values = pc.cast(values, pa.timestamp("us", dtype.tz), safe=False)
    return [None if value is None else _partition_text(value) for value in values.to_pylist()]


def _partition_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _FLOATS.get(str(value), str(value))
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return _format_time(value)
        return value.isoformat(" ", "microseconds" if value.microsecond else "seconds")
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value)


_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _format_time(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


# -- footers ---------------------------------------------------------------------------------------------


def file_schema(footer: pq.FileMetaData) -> pa.Schema:
    """Arrow schema of a file, without metadata."""
    return footer.schema.to_arrow_schema().remove_metadata()


def file_stats(footer: pq.FileMetaData, schema: pa.Schema, columns: Sequence[str]) -> str:
    """``stats`` of a file, as JSON; `columns` come first where a file has more than have statistics."""
    flat = _flat_columns(schema)
    order = [name for name in dict.fromkeys([*columns, *flat]) if name in flat][:_STATS_COLUMNS]
    stats: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in order:
        chunks = [_chunk_statistics(footer, group, flat[name]) for group in range(footer.num_row_groups)]
        known = [chunk for chunk in chunks if chunk is not None]
        if len(known) < len(chunks) or not chunks:
            continue
        if all(chunk.has_null_count for chunk in known):
            stats["nullCount"][name] = sum(chunk.null_count for chunk in known)
        bounds = _bounds(known, schema.field(name).type)
        if bounds is not None:
            low, high = (_stats_value(bound) for bound in bounds)
            if low is not None:
                stats["minValues"][name] = low
            # NaN is not part of footers, and larger than all other numbers for most readers
            if high is not None and not pat.is_floating(schema.field(name).type):
                stats["maxValues"][name] = high
    return json.dumps(stats, separators=(",", ":"))


def value_ranges(
    footer: pq.FileMetaData, schema: pa.Schema, columns: Iterable[str]
) -> dict[str, tuple[Any, Any]]:
    """Smallest and largest value of those columns for which the footer has both."""
    flat, ranges = _flat_columns(schema), {}
    for name in columns:
        if name in flat:
            chunks = [_chunk_statistics(footer, group, flat[name]) for group in range(footer.num_row_groups)]
            known = [chunk for chunk in chunks if chunk is not None]
            bounds = _bounds(known, schema.field(name).type) if chunks and len(known) == len(chunks) else None
            if bounds is not None:
                ranges[name] = bounds
    return ranges


def _flat_columns(schema: pa.Schema) -> dict[str, int]:
    """Position of the column chunk of each column that has one."""
    positions, position = {}, 0
    for field in schema:
        leaves = _count_leaves(field.type)
        if leaves == 1 and not pat.is_nested(field.type):
            positions[field.name] = position
        position += leaves
    return positions


def _count_leaves(dtype: pa.DataType) -> int:
    if not pat.is_nested(dtype):
        return 1
    return sum(_count_leaves(dtype.field(number).type) for number in range(dtype.num_fields))


def _chunk_statistics(footer: pq.FileMetaData, group: int, column: int) -> Any:
    chunk = footer.row_group(group).column(column)
    return chunk.statistics if chunk.is_stats_set else None


def _bounds(chunks: Sequence[Any], dtype: pa.DataType) -> tuple[Any, Any] | None:
    """Bounds of a column in all row groups; None where the footer has none that other engines share."""
    if not (pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_temporal(dtype) or _is_text(dtype)):
        return None
    # a row group of nulls has no bounds
    filled = [chunk for chunk in chunks if chunk.has_min_max or chunk.num_values]
    if not filled or not all(chunk.has_min_max for chunk in filled):
        return None
    try:
        return min(chunk.min for chunk in filled), max(chunk.max for chunk in filled)
    except (OverflowError, ValueError, TypeError):
        # times beyond those of Python, texts that are no UTF-8
        return None


def _is_text(dtype: pa.DataType) -> bool:
    if pat.is_dictionary(dtype):
        return _is_text(dtype.value_type)
    return bool(pat.is_string(dtype) or pat.is_large_string(dtype))


def _stats_value(value: Any) -> int | float | str | None:
    if isinstance(value, datetime):
        return _format_time(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= _STATS_TEXT else None
    return value if isinstance(value, int) else None
