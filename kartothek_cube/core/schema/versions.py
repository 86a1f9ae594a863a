"""Which schema belongs to which header: marks in ``_common_metadata`` that make two puts look like one.

The format keeps the schema in a file of its own at a fixed key, so that replacing a dataset by one with
another schema takes two puts. A writer that dies between them would leave the old header with the new schema.
Therefore a schema file says for which line of headers it was written (all headers with one ``creation_time``,
which updates keep) and holds the schemas of the lines that it replaces. Other readers of the format don't see
these marks.
"""

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

__all__ = ("MARK", "VersionedSchema", "schema_version_of", "encode_version", "parse_marks", "next_version")

#: key in the metadata of the Parquet file
MARK = b"kartothek_cube"
#: schemas of other lines that are kept; more writers than this do not replace one dataset at the same moment
_MOST = 8


class VersionedSchema(NamedTuple):
    """
    Content of a schema file.

    Attributes
    ----------
    schema
        The schema that everybody sees.
    lineage
        Line of headers for which it was written; None if the writer did not say.
    others
        Schemas of other lines.
    """

    schema: SchemaWrapper
    lineage: str | None = None
    others: Mapping[str, SchemaWrapper] = {}

    def of(self, lineage: str | None) -> SchemaWrapper:
        """The schema that belongs to a header."""
        return self.schema if lineage is None else self.others.get(lineage, self.schema)


def schema_version_of(metadata: Any) -> str | None:
    """
    The line of headers to which a header belongs.

    Parameters
    ----------
    metadata
        Its ``metadata``.

    Returns
    -------
    str or None

    Examples
    --------
    >>> lineage_of({"creation_time": "2020-01-01T00:00:00"})
    '2020-01-01T00:00:00'
    """
    found = metadata.get("creation_time") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, str) else None


def next_version(
    schema: SchemaWrapper, lineage: str | None, old: VersionedSchema | None, replaced: str | None
) -> VersionedSchema:
    """
    The schema file to write over another one.

    Parameters
    ----------
    schema
        The new schema.
    lineage
        Line of the header that will be put with it.
    old
        What is there.
    replaced
        Line of the header that is there.

    Returns
    -------
    SchemaFile
        It knows the schemas of the header that is there and of those that others are about to put.
    """
    known: dict[str, SchemaWrapper] = {}
    if old is not None:
        known = dict(old.others)
        for line in (old.lineage, replaced):
            if line is not None:
                known.pop(line, None)  # the line of the header that is there comes last, and is never cut off
                known[line] = old.of(line)
    others = {line: other for line, other in known.items() if line != lineage}
    return VersionedSchema(schema, lineage, dict(list(others.items())[-_MOST:]))


def encode_version(file: VersionedSchema) -> dict[bytes, bytes]:
    """
    What to add to the metadata of a schema file.

    Parameters
    ----------
    file
        Its content.

    Returns
    -------
    dict
    """
    # the id makes each version differ from all others: stores compare contents, and a deletion by condition
    # must not take a schema that was written again for the one that it has read
    content: dict[str, Any] = {"creation_time": file.lineage, "commit": gen_uuid()}
    if file.others:
        content["others"] = {
            line: base64.b64encode(other.internal().serialize().to_pybytes()).decode()
            for line, other in file.others.items()
        }
    return {MARK: json.dumps(content).encode()}


def parse_marks(
    schema: SchemaWrapper, metadata: Mapping[bytes, bytes] | None, origin: str
) -> VersionedSchema:
    """
    Read the marks of a schema file.

    Parameters
    ----------
    schema
        Its schema.
    metadata
        Its metadata.
    origin
        Its storage key.

    Returns
    -------
    SchemaFile

    Raises
    ------
    CorruptDatasetError
        The marks are no such marks.
    """
    raw = (metadata or {}).get(MARK)
    if raw is None:
        return VersionedSchema(schema)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptDatasetError(origin, f"its marks are no JSON ({error})") from error
    lineage = content.get("creation_time") if isinstance(content, dict) else 0
    others = content.get("others", {}) if isinstance(content, dict) else {}
    if not isinstance(lineage, str | None) or not isinstance(others, dict) or len(others) > _MOST:
        raise CorruptDatasetError(origin, "its marks have another structure than this library gives them")
    return VersionedSchema(schema, lineage, {line: _schema(text, origin) for line, text in others.items()})


def _schema(text: Any, origin: str) -> SchemaWrapper:
    try:
        content = base64.b64decode(text, validate=True)
        return SchemaWrapper(pa.ipc.read_schema(pa.py_buffer(content)), origin)
    except (TypeError, binascii.Error, pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDatasetError(origin, f"a schema in its marks is none: {error}") from error
