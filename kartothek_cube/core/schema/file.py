"""The schema file of a table, ``_common_metadata``: content with its schema versions, reading and storing."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.arrow import is_long
from kartothek_cube.core.caching import CACHE
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.naming import SINGLE_TABLE, schema_key
from kartothek_cube.core.pandas_conversion import with_pandas_metadata
from kartothek_cube.core.schema.evolution import EVOLUTION
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, get_required, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.core.uuid import gen_uuid

# The format keeps the schema in a file at a fixed key, so that replacing a dataset by one with another schema
# takes two puts. A writer that is killed in between would leave the old header with the new schema. Therefore
# a schema file says for which headers it was written (all with one ``creation_time``, which updates keep: the
# schema version) and holds the schemas of the versions it replaces. Other readers ignore this metadata. Only
# the last few are kept: readers of an older header take the schema in its commit record.

#: key in the metadata of the Parquet file
VERSIONS_KEY = b"kartothek_cube"
#: kept schemas of other versions; fewer writers replace one dataset at the same moment
_MAX_VERSIONS = 8


class VersionedSchema(NamedTuple):
    """Content of a schema file: the current schema, its version, and schemas of other versions."""

    schema: SchemaWrapper
    #: None if the writer has not recorded it
    version: str | None = None
    others: Mapping[str, SchemaWrapper] = {}

    def of(self, version: str | None) -> SchemaWrapper:
        """Schema of a version; the current one if the version is unknown."""
        return self.schema if version is None else self.others.get(version, self.schema)

    def has(self, version: str | None) -> bool:
        """Whether it holds the schema of a version, as far as it is known."""
        return None in (version, self.version) or version == self.version or version in self.others


def schema_version_of(metadata: Any) -> str | None:
    """Schema version of a header, by its metadata."""
    version = metadata.get("creation_time") if isinstance(metadata, Mapping) else None
    if not isinstance(version, str):
        return None
    # updates of a dataset keep its creation time, and those of its schema need a version of their own
    evolution = metadata.get(EVOLUTION)
    return f"{version} {evolution.get('version')}" if isinstance(evolution, Mapping) else version


def next_version(
    schema: SchemaWrapper,
    version: str | None,
    old: VersionedSchema | None,
    replaced: tuple[str | None, SchemaWrapper] | None,
) -> VersionedSchema:
    """Schema file to write over another one; `replaced`: version and schema of the stored header."""
    # It keeps the schemas of the stored header and of headers that other writers are about to put.
    schemas = {} if old is None else dict(old.others)
    for present in ((old.version, old.schema) if old is not None else None, replaced):
        if present is not None and present[0] is not None:
            schemas.pop(present[0], None)  # the version of the stored header comes last and is never cut off
            schemas[present[0]] = present[1]
    others = {key: other for key, other in schemas.items() if key != version}
    return VersionedSchema(schema, version, dict(list(others.items())[-_MAX_VERSIONS:]))


def encode_version(file: VersionedSchema) -> dict[bytes, bytes]:
    """Metadata of a schema file that hold its versions."""
    # The id makes the content unique: stores compare contents, and a conditional deletion must not take a
    # rewritten schema for the one that was read.
    content: dict[str, Any] = {"creation_time": file.version, "commit": gen_uuid()}
    if file.others:
        content["others"] = {
            version: base64.b64encode(other.internal().serialize().to_pybytes()).decode()
            for version, other in file.others.items()
        }
    return {VERSIONS_KEY: json.dumps(content).encode()}


def decode_version(
    schema: SchemaWrapper, metadata: Mapping[bytes, bytes] | None, origin: str
) -> VersionedSchema:
    """Decode the versions of a schema file; raises CorruptDatasetError."""
    raw = (metadata or {}).get(VERSIONS_KEY)
    if raw is None:
        return VersionedSchema(schema)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptDatasetError(origin, f"its schema versions are no JSON ({error})") from error
    version = content.get("creation_time") if isinstance(content, dict) else 0
    others = content.get("others", {}) if isinstance(content, dict) else {}
    if not isinstance(version, str | None) or not isinstance(others, dict) or len(others) > _MAX_VERSIONS:
        raise CorruptDatasetError(origin, "its schema versions have another structure")
    return VersionedSchema(
        schema, version, {key: _parse_schema(text, origin) for key, text in others.items()}
    )


def _parse_schema(text: Any, origin: str) -> SchemaWrapper:
    try:
        content = base64.b64decode(text, validate=True)
        return SchemaWrapper(pa.ipc.read_schema(pa.py_buffer(content)), origin)
    except (TypeError, binascii.Error, pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDatasetError(origin, f"one of its schema versions is no schema: {error}") from error


#: rough size of a column in a parsed schema
_COLUMN_BYTES = 1 << 9


def schema_to_bytes(schema: SchemaWrapper | pa.Schema | VersionedSchema) -> bytes:
    """Content of a schema file: Parquet without row groups, timestamps in microseconds."""
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
    exact: bool = False,
) -> SchemaWrapper:
    """Load the schema of a table; its origin is the storage key.

    ``schema_version`` is as in `schema_from_bytes`; ``exact`` requires that version. A missing file, or one
    that does not hold the required version, is a KeyError, one that is no schema a CorruptDatasetError.

    >>> blobs = open_blobs("hmemory://")
    >>> _ = store_schema_metadata(pa.schema([("CITY", pa.string())]), "sales", blobs)
    >>> read_schema_metadata("sales", blobs).names
    ['CITY']
    """
    key = schema_key(dataset_uuid, table)
    file = schema_file_from_bytes(get_required(open_blobs(store), key), key)
    if exact and not file.has(schema_version):
        raise KeyError(key)
    return file.of(schema_version)


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
    """Store the schema of a table; returns its storage key.

    >>> store_schema_metadata(pa.schema([("CITY", pa.string())]), "sales", "hmemory://")
    'sales/table/_common_metadata'
    """
    key = schema_key(dataset_uuid, table)
    open_blobs(store).put(key, schema_to_bytes(schema), durable=True)
    return key
