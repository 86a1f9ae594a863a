"""The ``pandas`` metadata of a schema: written for kartothek 5.3, read without trusting it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

__all__ = (
    "EXTENSION_DTYPES",
    "check_single_index",
    "extension_dtypes",
    "index_columns",
    "pandas_metadata",
    "pandas_types",
    "with_pandas_metadata",
)

#: pandas extension types with which a column comes back if its metadata says so; the Arrow type each needs
EXTENSION_DTYPES = {
    "string": "string",
    "boolean": "bool",
    "Int8": "int8",
    "Int16": "int16",
    "Int32": "int32",
    "Int64": "int64",
    "UInt8": "uint8",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
    "Float32": "float",
    "Float64": "double",
}
_PANDAS_TYPES = {
    "string": "unicode",
    "binary": "bytes",
    "null": "empty",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date",
}
_COLUMN_INDEX = {
    "field_name": None,
    "metadata": {"encoding": "UTF-8"},
    "name": None,
    "numpy_type": "object",
    "pandas_type": "unicode",
}


def pandas_metadata(schema: pa.Schema, extensions: Mapping[str, str] | None = None) -> bytes:
    """The ``pandas`` metadata of a table without an index, as JSON with sorted keys."""
    extensions = extensions or {}
    content = {
        "column_indexes": [_COLUMN_INDEX],
        "columns": [_column(field, extensions.get(field.name)) for field in schema],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "index_columns": [],
        "pandas_version": pd.__version__,
    }
    return json.dumps(content, sort_keys=True).encode()


def with_pandas_metadata(schema: pa.Schema, extensions: Mapping[str, str] | None = None) -> pa.Schema:
    """Replace all metadata of a schema by new pandas metadata."""
    plain = [pa.field(field.name, field.type) for field in schema]
    return pa.schema(plain, metadata={"pandas": pandas_metadata(schema, extensions)})


def extension_dtypes(schema: pa.Schema) -> dict[str, str]:
    """Pandas extension type by column, as far as the metadata fits the Arrow types."""
    if not schema.metadata or b"pandas" not in schema.metadata:
        return {}
    dtypes = {}
    for entry in _entries(_load(schema), "columns"):
        name, dtype = entry.get("field_name") or entry.get("name"), entry.get("numpy_type")
        if isinstance(name, str) and isinstance(dtype, str) and dtype in EXTENSION_DTYPES:
            index = schema.get_field_index(name)
            if index >= 0 and str(schema.field(index).type) in _arrow_names(dtype):
                dtypes[name] = dtype
    return dtypes


def index_columns(schema: pa.Schema) -> list[str]:
    """Columns of the schema that hold the index of the original frame."""
    if not schema.metadata or b"pandas" not in schema.metadata:
        return []
    entry = _load(schema).get("index_columns")
    names = entry if isinstance(entry, list) else []
    return [name for name in names if isinstance(name, str) and schema.get_field_index(name) >= 0]


def check_single_index(schema: pa.Schema) -> None:
    """Raise NotImplementedError for the schema of a frame with a MultiIndex."""
    index_names = index_columns(schema)
    if len(index_names) > 1:
        raise NotImplementedError(
            "A frame with a MultiIndex cannot be stored; call reset_index(). "
            f"Index: {', '.join(index_names)}."
        )


def _load(schema: pa.Schema) -> dict[str, Any]:
    """The pandas metadata as a dict; empty if it is no JSON object."""
    try:
        content = json.loads(schema.metadata[b"pandas"])
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _entries(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    listed = content.get(key)
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _arrow_names(dtype: str) -> tuple[str, ...]:
    return (
        (EXTENSION_DTYPES[dtype], "large_string", "string_view")
        if dtype == "string"
        else (EXTENSION_DTYPES[dtype],)
    )


def _column(field: pa.Field, extension: str | None) -> dict[str, Any]:
    pandas_type, numpy_type, details = pandas_types(field.type)
    return {
        "field_name": field.name,
        "metadata": details,
        "name": field.name,
        "numpy_type": extension or numpy_type,
        "pandas_type": pandas_type,
    }


def pandas_types(t: pa.DataType) -> tuple[str, str, dict[str, Any] | None]:
    """``pandas_type``, ``numpy_type`` and ``metadata`` of a column of an Arrow type.

    Examples
    --------
    >>> import pyarrow as pa
    >>> pandas_types(pa.string())
    ('unicode', 'object', None)
    """
    details: dict[str, Any] | None = None
    if pat.is_timestamp(t) and t.tz:
        details = {"timezone": t.tz}
    elif pat.is_decimal(t):
        details = {"precision": t.precision, "scale": t.scale}
    return _pandas_type(t), _numpy_type(t), details


def _pandas_type(t: pa.DataType) -> str:
    if pat.is_timestamp(t):
        return "datetimetz" if t.tz else "datetime"
    if pat.is_list(t):
        return f"list[{_pandas_type(t.value_type)}]"
    if pat.is_decimal(t):
        return "decimal"
    if pat.is_time(t):
        return "time"
    return _PANDAS_TYPES.get(str(t), str(t))


def _numpy_type(t: pa.DataType) -> str:
    if pat.is_timestamp(t):
        return "datetime64[ns]"
    if pat.is_boolean(t) or pat.is_integer(t) or pat.is_floating(t):
        return _PANDAS_TYPES.get(str(t), str(t))
    return "object"
