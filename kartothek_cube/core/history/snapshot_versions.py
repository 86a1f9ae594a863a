"""Version numbers and retention of snapshots, in the metadata of the dataset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from kartothek_cube.core import clock
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.naming import TOMBSTONES_KEY
from kartothek_cube.core.store import BlobStore

__all__ = (
    "KEEP_HISTORY",
    "VERSION",
    "OperationInfo",
    "annotate_operations",
    "describe_operation",
    "operation_info",
    "fingerprint",
    "retained_metadata",
    "snapshot_version",
    "snapshot_retention",
    "with_version",
)

#: metadata key: number of snapshots to keep
KEEP_HISTORY = "kartothek_cube_keep_history"
#: metadata key: version, time and fingerprint of a state
VERSION = "kartothek_cube_version"

_TICK = timedelta(microseconds=1)


@attrs.frozen
class OperationInfo:
    """What the history tells of an operation."""

    #: such as "append"; "" if unknown
    name: str = ""
    #: of the user
    message: str | None = None
    #: information about the job that runs it, as JSON
    job: Mapping[str, Any] | None = None

    def to_field(self) -> dict[str, Any]:
        """The field of a version record, without defaults."""
        return {name: value for name, value in attrs.asdict(self).items() if value}


_ANNOTATIONS: ContextVar[OperationInfo | None] = ContextVar("_ANNOTATIONS", default=None)


@contextmanager
def annotate_operations(message: str | None = None, job: Mapping[str, Any] | None = None) -> Iterator[None]:
    """
    Describe the operations that are planned within a ``with`` block, for the history of their datasets.

    Parameters
    ----------
    message
        Why the operation takes place.
    job
        Which job runs it: keys and values that JSON can express.

    Raises
    ------
    TypeError
        The message is no text, or JSON cannot express the job.

    Examples
    --------
    >>> with annotate_operations("nightly load", job={"run": 17}):
    ...     pass  # append_to_cube(...)
    """
    if message is not None and not isinstance(message, str):
        raise TypeError(f"message is a text, but it is {message!r}")
    try:
        content = None if job is None else json.loads(json.dumps(dict(job)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"job is a dict that JSON can express, but it is {job!r}: {error}") from error
    token = _ANNOTATIONS.set(OperationInfo("", message, content))
    try:
        yield
    finally:
        _ANNOTATIONS.reset(token)


def describe_operation(name: str) -> OperationInfo:
    """An operation by its name, with the annotations of the user."""
    return attrs.evolve(_ANNOTATIONS.get() or OperationInfo(), name=name)


def operation_info(state: DatasetMetadata) -> OperationInfo:
    """What a state tells of the operation that made it; without content if it tells nothing."""
    record = state.metadata.get(VERSION)
    field = record.get("operation") if isinstance(record, dict) and _record(state) else None
    if not isinstance(field, dict):
        return OperationInfo()
    name, message, job = field.get("name", ""), field.get("message"), field.get("job")
    return OperationInfo(
        name if isinstance(name, str) else "",
        message if isinstance(message, str) else None,
        job if isinstance(job, dict) else None,
    )


def snapshot_retention(metadata: Mapping[str, Any]) -> int:
    """Number of snapshots to keep, 0 by default; raises ValueError for malformed metadata."""
    retention = metadata.get(KEEP_HISTORY, 0)
    if type(retention) is not int or retention < 0:
        raise ValueError(
            f"{KEEP_HISTORY!r} in the metadata is the number of states to keep, 0 or more; "
            f"it is {retention!r}"
        )
    return retention


def retained_metadata(state: DatasetMetadata | None) -> dict[str, Any]:
    """Metadata that survive an overwrite: the snapshot retention."""
    metadata = {} if state is None else state.metadata
    return {KEEP_HISTORY: metadata[KEEP_HISTORY]} if KEEP_HISTORY in metadata else {}


def with_version(
    new: DatasetMetadata,
    old: DatasetMetadata | None,
    blobs: BlobStore,
    header_key: str,
    info: OperationInfo | None = None,
) -> DatasetMetadata:
    """Add the next version to a state that is about to be published, if the dataset keeps snapshots."""
    metadata = {key: value for key, value in new.metadata.items() if key != VERSION}
    if not snapshot_retention(metadata):
        return new.copy(metadata=metadata) if VERSION in new.metadata else new
    version, time = 1, _now()
    if old is not None:
        last, since = snapshot_version(old, blobs, header_key)
        version, time = last + 1, max(time, since + _TICK)
    record: dict[str, Any] = {"version": version, "time": time.isoformat(), "content": _digest(new, metadata)}
    if info is not None and info.to_field():
        record["operation"] = info.to_field()
    return new.copy(metadata={**metadata, VERSION: record})


def _now() -> datetime:
    return clock.datetime_utcnow().replace(tzinfo=UTC)


def fingerprint(state: DatasetMetadata) -> str:
    """Digest of all that a commit can change, without version and time."""
    return _digest(state, {key: value for key, value in state.metadata.items() if key != VERSION})


def _digest(state: DatasetMetadata, metadata: Mapping[str, Any]) -> str:
    prefix = f"{state.uuid}/"  # removed: copies of the dataset have another one
    keys = {c: (i.index_storage_key or "").removeprefix(prefix) for c, i in state.secondary_indices.items()}
    # tombstones change without a change of the state
    state_metadata = {key: value for key, value in metadata.items() if key != TOMBSTONES_KEY}
    text = json.dumps([state_metadata, keys, list(state.partition_keys)], sort_keys=True, default=str)
    labels = "\n".join(state.partition_table.labels.to_pylist())
    return hashlib.sha256(f"{text}\n{labels}".encode()).hexdigest()[:16]


def snapshot_version(state: DatasetMetadata, blobs: BlobStore, header_key: str) -> tuple[int, datetime]:
    """Version and time of a published state; 0 for the state before the first versioned one."""
    # A writer without support for versions keeps the old record, whose fingerprint does not match then.
    record = _record(state)
    if record is not None and record[2] == fingerprint(state):
        return record[:2]
    written = _header_time(blobs, header_key)
    if record is None:
        return 0, written
    return record[0] + 1, max(written, record[1] + _TICK)


def _record(state: DatasetMetadata) -> tuple[int, datetime, str] | None:
    record = state.metadata.get(VERSION)
    if not isinstance(record, dict) or type(record.get("version")) is not int:
        return None
    try:
        time = datetime.fromisoformat(record["time"])
    except (KeyError, TypeError, ValueError):
        return None
    content = record.get("content")
    if time.tzinfo is None or not isinstance(content, str) or not 0 <= record["version"] < 10**9:
        return None
    return record["version"], time.astimezone(UTC), content


def _header_time(blobs: BlobStore, key: str) -> datetime:
    """Modification time of a header; now if the store does not tell."""
    times = [blob.mtime for blob in blobs.list(key) if blob.key == key and blob.mtime is not None]
    return min(datetime.fromtimestamp(times[0], UTC), _now()) if times else _now()
