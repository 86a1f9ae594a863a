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
from kartothek_cube.core.naming import validate_uuid
from kartothek_cube.core.schema.wrapper import SchemaWrapper

__all__ = ("COMMIT_RECORD", "CommitRecord", "Participation", "check_record", "embed_schema", "parse_record")

#: key of the field in the header
COMMIT_RECORD = "kartothek_cube"
#: bytes; guard against decompression bombs
_MAX_SCHEMA_BYTES = 1 << 26


@attrs.frozen
class Participation:
    """How a dataset takes part in an operation on several datasets, which another header decides."""

    #: id of the operation
    operation: str
    #: uuid of the dataset whose header decides, the seed of a cube
    coordinator: str
    #: lineage of that header: after a break nothing can be said about operations before it
    lineage: str
    #: key of the snapshot of the state before; "" if the dataset did not exist. None once the operation is
    #: known to be committed
    before: str | None = None
    #: id of the operation in which the state before took part
    previous: str | None = None
    #: whether the operation creates the coordinator, so that it is pending while there is none
    creates: bool = False

    def settled(self) -> Participation:
        """The same, of an operation that is known to be committed."""
        return attrs.evolve(self, before=None, previous=None, creates=False)


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
    #: Id of the chain of commits without one of other software, which drops the record
    lineage: str = ""
    #: whether other software wrote the dataset before this chain began: what it replaced is unknown
    interrupted: bool = False
    #: the last operation on several datasets that wrote this one
    participation: Participation | None = None
    #: of a coordinator: uuid of a dataset to id of the last committed operation that wrote it
    participants: Mapping[str, str] = attrs.field(factory=dict)
    #: of a coordinator: ids of operations that were aborted and must not commit any more
    aborted: tuple[str, ...] = ()
    #: whether the header only has aborted operations, and no dataset exists
    reserved: bool = False

    def to_field(self) -> dict[str, Any]:
        """The field of the header, without defaults."""
        values = {name: value for name, value in attrs.asdict(self).items() if value}
        if self.participation is not None:
            # an empty `before` says that the dataset did not exist
            pairs = attrs.asdict(self.participation).items()
            values["participation"] = {n: v for n, v in pairs if v is not None and v is not False}
        if self.aborted:
            values["aborted"] = list(self.aborted)
        # Objects first: the fast parser of headers takes the last '"}}}' for the end of the partitions.
        return dict(sorted(values.items(), key=lambda item: not isinstance(item[1], Mapping)))

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


def embed_schema(schema: SchemaWrapper | None) -> str | None:
    """A schema as text for a record."""
    if schema is None:
        return None
    content = schema.internal().serialize().to_pybytes()
    return base64.b64encode(zstandard.ZstdCompressor().compress(content)).decode()


def parse_record(header: Mapping[str, Any]) -> CommitRecord | None:
    """Record of a checked header; None if another library wrote it."""
    part = header.get(COMMIT_RECORD)
    if part is None:
        return None
    own = {name: value for name, value in part.items() if name in _TYPES}
    if "participation" in own:
        own["participation"] = Participation(
            **{k: v for k, v in own["participation"].items() if k in _PARTICIPATION_TYPES}
        )
    return CommitRecord(**{**own, "aborted": tuple(own.get("aborted", ()))})


_TYPES: dict[str, type] = {
    "commit": str,
    "schema": str,
    "unconfirmed": str,
    "lineage": str,
    "interrupted": bool,
    "participation": dict,
    "participants": dict,
    "aborted": list,
    "reserved": bool,
}
_PARTICIPATION_TYPES: dict[str, type] = {
    "operation": str,
    "coordinator": str,
    "lineage": str,
    "before": str,
    "previous": str,
    "creates": bool,
}
_REQUIRED = {"operation", "coordinator", "lineage"}


def check_record(header: Mapping[str, Any], key: str) -> None:
    """Raise CorruptDatasetError if the header has a malformed record."""
    part = header.get(COMMIT_RECORD)
    if part is not None and not _is_record(part):
        raise CorruptDatasetError(key, f"{COMMIT_RECORD!r} is no record of a commit")


def _is_record(part: Any) -> bool:
    if type(part) is not dict or "commit" not in part or not _has_types(part, _TYPES):
        return False
    participation = part.get("participation")
    if participation is not None:
        if not _has_types(participation, _PARTICIPATION_TYPES) or not participation.keys() >= _REQUIRED:
            return False
        if not validate_uuid(participation["coordinator"]):
            return False
    texts = [*part.get("participants", {}).items(), *((text, text) for text in part.get("aborted", ()))]
    return all(type(text) is str for pair in texts for text in pair)


def _has_types(values: Mapping[str, Any], types: Mapping[str, type]) -> bool:
    return all(type(value) is types[name] for name, value in values.items() if name in types)
