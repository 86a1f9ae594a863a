"""Widths of numbers: how many bits the numbers of a column have in the data files of a dataset, at most.

Schemas have the widest type of each kind, files the type that was written. So that all results have one type,
which is known before a file is opened, headers have a record: the columns whose numbers are narrower than in
the schema. It is a field of the header beside the commit record and not part of the metadata of users: other
libraries ignore and drop the fields that they do not know, so that they leave no record that is out of date
when they add files. Without a record, only the files tell. A commit to such a dataset does not begin one,
unless no older file is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from kartothek_cube.core.arrow.types import number_bits, with_number_bits
from kartothek_cube.core.schema.wrapper import SchemaWrapper

#: field of headers: bits of the columns whose numbers are narrower than in the schema
WIDTHS_KEY = "kartothek_cube_widths"

Widths: TypeAlias = Mapping[str, int]
"""Column to bits of its numbers."""


def column_widths(schema: pa.Schema) -> dict[str, int]:
    """Bits of all columns of numbers, or of lists of numbers.

    >>> column_widths(pa.schema([("CITY", pa.string()), ("TEMP", pa.float32()), ("DAY", pa.int64())]))
    {'TEMP': 32, 'DAY': 64}
    """
    return {field.name: bits for field in schema if (bits := number_bits(field.type))}


def widest(parts: Iterable[Widths]) -> dict[str, int]:
    """The widest numbers of each column; a column may be missing, or null, in some of the parts.

    >>> widest([{"TEMP": 32, "DAY": 8}, {"DAY": 16}])
    {'TEMP': 32, 'DAY': 16}
    """
    widths: dict[str, int] = {}
    for part in parts:
        for name, bits in part.items():
            widths[name] = max(bits, widths.get(name, 0))
    return widths


def narrow_type(field: pa.Field, widths: Widths) -> pa.DataType:
    """The type of a column of a schema with the width of its numbers in files.

    >>> narrow_type(pa.field("TEMP", pa.float64()), {"TEMP": 32})
    DataType(float)
    """
    return with_number_bits(field.type, widths[field.name]) if field.name in widths else field.type


def with_widths(
    extra: Mapping[str, Any], schema: SchemaWrapper | None, widths: Widths | None
) -> dict[str, Any]:
    """Fields of a header with another record, or without one."""
    fields = {name: value for name, value in extra.items() if name != WIDTHS_KEY}
    if widths is None or schema is None:
        return fields
    full = column_widths(schema.internal())
    return {**fields, WIDTHS_KEY: {name: w for name, w in widths.items() if w < full.get(name, 0)}}


def parse_widths(extra: Mapping[str, Any]) -> Widths | None:
    """The record in the fields of a header; None if there is none, or no record of this library."""
    record = extra.get(WIDTHS_KEY)
    if not isinstance(record, dict) or not all(bits in (8, 16, 32) for bits in record.values()):
        return None
    return record
