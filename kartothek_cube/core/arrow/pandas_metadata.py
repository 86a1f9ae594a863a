"""The ``pandas`` metadata of a schema: written so that kartothek 5.3 reads it, read without trusting it."""

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
    """
    The ``pandas`` metadata of a table of this schema without an index, as JSON with sorted keys.

    Parameters
    ----------
    schema
        Storage types only (:func:`~kartothek_cube.core.arrow.types.storage_type`).
    extensions
        Column to pandas extension type (:data:`EXTENSION_DTYPES`), if it is not the plain one.

    Returns
    -------
    bytes

    Examples
    --------
    >>> import pyarrow as pa
    >>> b'"pandas_type": "unicode"' in pandas_metadata(pa.schema([("COUNTRY_CODE", pa.string())]))
    True
    """
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
    """
    The schema with fresh pandas metadata and no other.

    Parameters
    ----------
    schema, extensions
        As in :func:`pandas_metadata`.

    Returns
    -------
    pyarrow.Schema

    Examples
    --------
    >>> import pyarrow as pa
    >>> list(with_pandas_metadata(pa.schema([("CITY", pa.string())])).metadata)
    [b'pandas']
    """
    plain = [pa.field(field.name, field.type) for field in schema]
    return pa.schema(plain, metadata={"pandas": pandas_metadata(schema, extensions)})


def extension_dtypes(schema: pa.Schema) -> dict[str, str]:
    """
    The columns that come back with a pandas extension type, as far as the metadata can be believed.

    Parameters
    ----------
    schema
        A schema, for example of a file.

    Returns
    -------
    dict of str to str
        Column to name of the pandas type.

    Examples
    --------
    >>> import pyarrow as pa
    >>> extension_dtypes(pa.schema([("CITY", pa.string())]))
    {}
    """
    if not schema.metadata or b"pandas" not in schema.metadata:
        return {}
    found = {}
    for entry in _entries(_load(schema), "columns"):
        name, dtype = entry.get("field_name") or entry.get("name"), entry.get("numpy_type")
        if isinstance(name, str) and isinstance(dtype, str) and dtype in EXTENSION_DTYPES:
            index = schema.get_field_index(name)
            if index >= 0 and str(schema.field(index).type) in _arrow_names(dtype):
                found[name] = dtype
    return found


def index_columns(schema: pa.Schema) -> list[str]:
    """
    Columns of the schema that hold the index of the frame it was made from.

    Parameters
    ----------
    schema
        A schema, for example of a file.

    Returns
    -------
    list of str

    Examples
    --------
    >>> import pyarrow as pa
    >>> index_columns(pa.schema([("CITY", pa.string())]))
    []
    """
    if not schema.metadata or b"pandas" not in schema.metadata:
        return []
    listed = _load(schema).get("index_columns")
    names = listed if isinstance(listed, list) else []
    return [name for name in names if isinstance(name, str) and schema.get_field_index(name) >= 0]


def check_single_index(schema: pa.Schema) -> None:
    """
    Refuse the schema of a frame with a MultiIndex.

    Parameters
    ----------
    schema
        A schema made by pandas.

    Raises
    ------
    NotImplementedError
        It has more than one index column.

    Examples
    --------
    >>> import pyarrow as pa
    >>> check_single_index(pa.schema([("CITY", pa.string())]))
    """
    index = index_columns(schema)
    if len(index) > 1:
        raise NotImplementedError(
            f"A frame with a MultiIndex cannot be stored; call reset_index(). Index: {', '.join(index)}."
        )


def _load(schema: pa.Schema) -> dict[str, Any]:
    """The metadata as a dict; somebody else's metadata that is no JSON object counts as none."""
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
    """
    How pandas metadata describes a column of an Arrow type.

    Parameters
    ----------
    t
        A storage type.

    Returns
    -------
    tuple
        ``pandas_type``, ``numpy_type`` and ``metadata``.

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
