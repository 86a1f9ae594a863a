"""The schema file of a table, ``_common_metadata``: content, reading and storing."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.arrow.pandas_metadata import with_pandas_metadata
from kartothek_cube.core.arrow.types import is_long
from kartothek_cube.core.caching import CACHE
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.naming import SINGLE_TABLE, schema_key
from kartothek_cube.core.schema.versions import VersionedSchema, decode_version, encode_version
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, get_required, open_blobs
from kartothek_cube.core.typing import StoreInput

__all__ = (
    "long_types",
    "read_schema_metadata",
    "schema_file_from_bytes",
    "schema_from_bytes",
    "schema_to_bytes",
    "store_schema_metadata",
)

#: rough size of a column in a parsed schema
_COLUMN_BYTES = 1 << 9


def schema_to_bytes(schema: SchemaWrapper | pa.Schema | VersionedSchema) -> bytes:
    """Content of a schema file: Parquet without row groups, timestamps in microseconds.

    Examples
    --------
    >>> import pyarrow as pa
    >>> schema_to_bytes(pa.schema([("CITY", pa.string())]))[:4]
    b'PAR1'
    """
    # kartothek 5.3 cannot read a schema file without pandas metadata, so missing ones are added.
    file = schema if isinstance(schema, VersionedSchema) else None
    plain = schema.schema if isinstance(schema, VersionedSchema) else schema
    wrapper = plain if isinstance(plain, SchemaWrapper) else SchemaWrapper(plain, "schema")
    internal = wrapper.internal()
    if internal.metadata is None:
        internal = with_pandas_metadata(internal)
    if file is not None:
        internal = internal.with_metadata({**internal.metadata, **encode_version(file)})
    sink = pa.BufferOutputStream()
    pq.write_metadata(internal, sink, version="2.6", coerce_timestamps="us", use_compliant_nested_type=False)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def schema_from_bytes(buf: bytes, origin: str, schema_version: str | None = None) -> SchemaWrapper:
    """Schema of a version in the content of a schema file; raises CorruptDatasetError (a ValueError)."""
    return schema_file_from_bytes(buf, origin).of(schema_version)


def schema_file_from_bytes(buf: bytes, origin: str) -> VersionedSchema:
    """All schema versions in the content of a schema file; raises CorruptDatasetError."""
    return CACHE.parse(
        ("schema", origin), bytes(buf), lambda content: _parse_schema_file(content, origin), _parsed_size
    )


def _read_arrow_schema(content: bytes, origin: str) -> pa.Schema:
    try:
        schema = pq.read_schema(pa.BufferReader(content))
        _ = schema.names  # decoded lazily: raises here if they are malformed
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDatasetError(origin, f"not the schema of a table: {error}") from error
    return schema


def _parse_schema_file(content: bytes, origin: str) -> VersionedSchema:
    schema = _read_arrow_schema(content, origin)
    if len(set(schema.names)) < len(schema.names):
        raise CorruptDatasetError(origin, "column names occur more than once")
    return decode_version(SchemaWrapper(schema, origin), schema.metadata, origin)


def _parsed_size(parsed: VersionedSchema) -> int:
    return _COLUMN_BYTES * (1 + len(parsed.schema))


def read_schema_metadata(
    dataset_uuid: str,
    store: StoreInput | BlobStore,
    table: str = SINGLE_TABLE,
    *,
    schema_version: str | None = None,
) -> SchemaWrapper:
    """
    Load the schema of a table.

    Parameters
    ----------
    dataset_uuid, table
        Dataset and table.
    store
        The store, its factory or URL.
    schema_version
        As in :func:`schema_from_bytes`.

    Returns
    -------
    SchemaWrapper
        Its origin is the storage key.

    Raises
    ------
    KeyError
        There is no schema file.
    CorruptDatasetError
        The file is no schema.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kartothek_cube.core.store import open_blobs
    >>> blobs = open_blobs("hmemory://")
    >>> store_schema_metadata(pa.schema([("CITY", pa.string())]), "sales", blobs)
    'sales/table/_common_metadata'
    >>> read_schema_metadata("sales", blobs).names
    ['CITY']
    """
    key = schema_key(dataset_uuid, table)
    return schema_from_bytes(get_required(open_blobs(store), key), key, schema_version)


def long_types(
    dataset_uuid: str, store: StoreInput | BlobStore, table: str = SINGLE_TABLE
) -> dict[str, pa.DataType]:
    """Columns with ``large_string`` or ``large_binary`` in the schema file, and these types."""
    # A SchemaWrapper does not contain them, but libraries that write them demand the same type of an index.
    key = schema_key(dataset_uuid, table)
    schema = _read_arrow_schema(get_required(open_blobs(store), key), key)
    return {field.name: field.type for field in schema if is_long(field.type)}


def store_schema_metadata(
    schema: SchemaWrapper | pa.Schema,
    dataset_uuid: str,
    store: StoreInput | BlobStore,
    table: str = SINGLE_TABLE,
) -> str:
    """
    Store the schema of a table.

    Parameters
    ----------
    schema
        The schema.
    dataset_uuid, table
        Dataset and table.
    store
        The store, its factory or URL.

    Returns
    -------
    str
        The storage key, ``<dataset uuid>/<table>/_common_metadata``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> store_schema_metadata(pa.schema([("CITY", pa.string())]), "sales", "hmemory://")
    'sales/table/_common_metadata'
    """
    key = schema_key(dataset_uuid, table)
    open_blobs(store).put(key, schema_to_bytes(schema), durable=True)
    return key
