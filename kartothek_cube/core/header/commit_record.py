"""The commit record: the field of a header that identifies the commit which wrote it."""
# A field of its own beside those of the specification. Other readers ignore it, and other writers of the
# format (kartothek 5.3, plateau) drop it, so that a record always belongs to the header that holds it.

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import attrs
import pyarrow as pa
import zstandard

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.uuid import gen_uuid

__all__ = ("COMMIT_RECORD", "CommitRecord", "check_record", "new_record", "parse_record")

#: key of the field in the header
COMMIT_RECORD = "kartothek_cube"
#: bytes; guard against decompression bombs
_MAX_SCHEMA_BYTES = 1 << 26


@attrs.frozen
class CommitRecord:
    """Identity and status of the commit that wrote a header."""

    #: Id that no other header has. Stores that compare contents (S3 by the ETag, dictionaries) would take a
    #: header for an earlier one of the same content, and a compare-and-swap would succeed although other
    #: writers had committed in between (the ABA problem).
    commit: str
    #: the schema, for readers that find the schema file missing
    schema: str | None = None
    #: Id of the commit that created the dataset, until another commit is on top of it: a garbage collection
    #: that saw no header may be deleting its files.
    unconfirmed: str | None = None
    #: Id of the unfinished operation on several datasets that created this one: a repetition of the operation
    #: may replace it.
    pending: str | None = None

    def to_field(self) -> dict[str, str]:
        """The field of the header."""
        return {name: text for name, text in attrs.asdict(self).items() if text is not None}

    def embedded_schema(self, origin: str) -> SchemaWrapper | None:
        """The schema; None if there is none; raises CorruptDatasetError if it is damaged."""
        if self.schema is None:
            return None
        try:
            packed = base64.b64decode(self.schema, validate=True)
            if not 0 <= zstandard.frame_content_size(packed) <= _MAX_SCHEMA_BYTES:
                raise ValueError("its size is unknown or too large")
            content = zstandard.ZstdDecompressor().decompress(packed)
            return SchemaWrapper(pa.ipc.read_schema(pa.py_buffer(content)), origin)
        except (binascii.Error, zstandard.ZstdError, pa.ArrowException, OSError, ValueError) as error:
            raise CorruptDatasetError(
                origin,
                f"the copy of the schema in the header is damaged ({error}), and there is no schema file. "
                "Roll back to an earlier state, restore the header from a backup, or write the dataset again",
            ) from error


def new_record(
    schema: SchemaWrapper | None, *, first: bool = False, pending: str | None = None
) -> CommitRecord:
    """Record of a commit that is about to be published."""
    commit = gen_uuid()
    text = None
    if schema is not None:
        content = schema.internal().serialize().to_pybytes()
        text = base64.b64encode(zstandard.ZstdCompressor().compress(content)).decode()
    return CommitRecord(commit, text, commit if first else None, pending)


def parse_record(header: Mapping[str, Any]) -> CommitRecord | None:
    """Record of a checked header; None if another library wrote it."""
    part = header.get(COMMIT_RECORD)
    if part is None:
        return None
    return CommitRecord(part["commit"], part.get("schema"), part.get("unconfirmed"), part.get("pending"))


def check_record(header: Mapping[str, Any], key: str) -> None:
    """Raise CorruptDatasetError if the header has a malformed record."""
    part = header.get(COMMIT_RECORD)
    if part is None:
        return
    if type(part) is not dict or not all(type(text) is str for text in part.values()) or "commit" not in part:
        raise CorruptDatasetError(key, f"{COMMIT_RECORD!r} is no record of a commit")
