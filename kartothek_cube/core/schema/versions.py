"""Schema versions in the schema file, by which each header finds its own schema."""
# The format keeps the schema in a file at a fixed key, so that replacing a dataset by one with another schema
# takes two puts. A writer that dies in between would leave the old header with the new schema. Therefore a
# schema file says for which headers it was written (all with one ``creation_time``, which updates keep: the
# schema version) and holds the schemas of the versions it replaces. Other readers ignore this metadata.

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.uuid import gen_uuid

__all__ = (
    "VERSIONS_KEY",
    "VersionedSchema",
    "schema_version_of",
    "encode_version",
    "decode_version",
    "next_version",
)

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


def schema_version_of(metadata: Any) -> str | None:
    """Schema version of a header, by its metadata."""
    version = metadata.get("creation_time") if isinstance(metadata, Mapping) else None
    return version if isinstance(version, str) else None


def next_version(
    schema: SchemaWrapper, version: str | None, old: VersionedSchema | None, replaced: str | None
) -> VersionedSchema:
    """Schema file to write over another one."""
    # It keeps the schemas of the stored header and of headers that other writers are about to put.
    schemas: dict[str, SchemaWrapper] = {}
    if old is not None:
        schemas = dict(old.others)
        for present in (old.version, replaced):
            if present is not None:
                schemas.pop(present, None)  # the version of the stored header comes last and is never cut off
                schemas[present] = old.of(present)
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
        raise CorruptDatasetError(origin, f"its marks are no JSON ({error})") from error
    version = content.get("creation_time") if isinstance(content, dict) else 0
    others = content.get("others", {}) if isinstance(content, dict) else {}
    if not isinstance(version, str | None) or not isinstance(others, dict) or len(others) > _MAX_VERSIONS:
        raise CorruptDatasetError(origin, "its marks have another structure than this library gives them")
    return VersionedSchema(
        schema, version, {key: _parse_schema(text, origin) for key, text in others.items()}
    )


def _parse_schema(text: Any, origin: str) -> SchemaWrapper:
    try:
        content = base64.b64decode(text, validate=True)
        return SchemaWrapper(pa.ipc.read_schema(pa.py_buffer(content)), origin)
    except (TypeError, binascii.Error, pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDatasetError(origin, f"a schema in its marks is none: {error}") from error
