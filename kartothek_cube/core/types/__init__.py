"""Arrow types: widening, conversion of values, parsing of partition values, frames to Arrow and back."""

from __future__ import annotations

from kartothek_cube.core.types.arrow import is_long, is_nested, memory_type, same_type, storage_type, widen
from kartothek_cube.core.types.frames import (
    align_date_units,
    as_table,
    dates_as_stamps,
    from_pandas,
    to_memory,
    to_pandas,
    to_storage,
)
from kartothek_cube.core.types.literals import bind_value, bind_values
from kartothek_cube.core.types.values import cast_column, normalize_value, parse_texts

__all__ = (
    "align_date_units",
    "as_table",
    "bind_value",
    "bind_values",
    "cast_column",
    "dates_as_stamps",
    "from_pandas",
    "is_long",
    "is_nested",
    "memory_type",
    "normalize_value",
    "parse_texts",
    "same_type",
    "storage_type",
    "to_memory",
    "to_pandas",
    "to_storage",
    "widen",
)
