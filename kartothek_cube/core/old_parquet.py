"""Parquet files of Arrow before 0.14, which kartothek wrote until 2019: they have no logical types."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core import arrow, pandas_conversion

#: how Arrow called itself up to version 3.0
_CREATOR = "parquet-cpp version"


def has_untyped_nulls(footer: pq.FileMetaData) -> bool:
    """Whether a column holds nulls only, under a converted type that the format does not define."""
    return any(leaf.converted_type == "UNKNOWN" for leaf in _list_leaves(footer))


def is_misread_by_others(footer: pq.FileMetaData) -> bool:
    """Whether other libraries take times without a zone for those of UTC, or cannot read columns of nulls."""
    if has_untyped_nulls(footer):
        return True
    is_assumed = any(map(_is_assumed, _list_leaves(footer)))
    return is_assumed and any(arrow.contains_type(t, _is_local_time) for t in schema_of_footer(footer).types)


def schema_of_footer(footer: pq.FileMetaData) -> pa.Schema:
    """Arrow schema of any Parquet file, with the zones of times that were written."""
    return restore_zones(footer.schema.to_arrow_schema(), footer)


def restore_zones(schema: pa.Schema, footer: pq.FileMetaData) -> pa.Schema:
    """The same for a schema that Arrow made of the footer."""
    # Times without a logical type are of UTC by the format, but Arrow wrote times without a zone, and of
    # others, in the same way; the zones are in the pandas metadata.
    assumed = [leaf.path for leaf in _list_leaves(footer) if _is_assumed(leaf)]
    if not assumed:
        return schema
    entries = pandas_conversion.column_entries(schema)
    zones = {e.get("field_name"): (e.get("metadata") or {}).get("timezone") for e in entries}
    for position, field in enumerate(schema):
        name = field.name
        if any(path == name or path.startswith(f"{name}.") for path in assumed):
            dtype = arrow.without_zones(field.type)
            stored = pa.timestamp("us", zones.get(name))
            schema = schema.set(position, field.with_type(arrow.with_zone_of(dtype, stored)))
    return schema


def cast_times(table: pa.Table, footer: pq.FileMetaData) -> pa.Table:
    """Rows that Arrow read from a file, in the types of its schema by `schema_of_footer`."""
    schema = table.schema
    restored = restore_zones(schema, footer)
    return table if restored is schema else table.cast(restored)


def _list_leaves(footer: pq.FileMetaData) -> list[pq.ColumnSchema]:
    """Columns of a file of Arrow up to 3.0; none of other files."""
    if not footer.created_by.startswith(_CREATOR):
        return []
    return [footer.schema.column(number) for number in range(len(footer.schema))]


def _is_local_time(dtype: pa.DataType) -> bool:
    return pat.is_timestamp(dtype) and dtype.tz is None


def _is_assumed(leaf: pq.ColumnSchema) -> bool:
    return bool(json.loads(leaf.logical_type.to_json()).get("is_from_converted_type"))
