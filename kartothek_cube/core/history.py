"""Snapshots of datasets: archived on demand, listed, loaded as of a version or time."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeAlias

import attrs

from kartothek_cube.core import clock
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.loading import HeaderBlob, read_header
from kartothek_cube.core.errors import CorruptDatasetError, StateNotFoundError
from kartothek_cube.core.header import packb, parse_header, unpackb
from kartothek_cube.core.naming import HISTORY_DIRECTORY, TOMBSTONES_KEY, check_uuid
from kartothek_cube.core.schema.file import schema_from_bytes, schema_to_bytes
from kartothek_cube.core.store import BlobStore

__all__ = (
    "KEEP_HISTORY",
    "AsOf",
    "DatasetState",
    "OperationInfo",
    "annotate_operations",
    "archive_before",
    "archive_snapshot",
    "check_as_of",
    "describe_operation",
    "expire_snapshots",
    "list_expired_snapshots",
    "fingerprint",
    "history_folder",
    "is_before_key",
    "is_snapshot_key",
    "list_snapshots",
    "list_states",
    "load_snapshot",
    "load_state",
    "name_states",
    "operation_info",
    "retention_metadata",
    "select_state",
    "snapshot_retention",
    "state_as_of",
    "with_version",
)

# The current state is the header and nothing else, as the format demands. A dataset whose metadata say so
# (`KEEP_HISTORY`) numbers its states; before a commit replaces a header, it archives it with its schema under
# ``<uuid>/_history/``. Only committed headers are archived, and a writer that is killed between archiving,
# publication and expiry leaves a readable history: a snapshot of the current state is no second state.


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
    """Describe the operations that are planned within a ``with`` block, for the history of their datasets.

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


def retention_metadata(state: DatasetMetadata | None) -> dict[str, Any]:
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
    """Add the next version to a state that is about to be committed, if the dataset keeps snapshots."""
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
    """Version and time of a committed state; 0 for the state before the first versioned one."""
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
        # the next state has a later time
        later = time.astimezone(UTC) + _TICK
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    content = record.get("content")
    if time.tzinfo is None or not isinstance(content, str) or not 0 <= record["version"] < 10**9:
        return None
    return record["version"], later - _TICK, content


def _header_time(blobs: BlobStore, key: str) -> datetime:
    """Modification time of a header; now if the store does not tell."""
    times = [blob.mtime for blob in blobs.list(key) if blob.key == key and blob.mtime is not None]
    return min(datetime.fromtimestamp(times[0], UTC), _now()) if times else _now()


_BEFORE = ".before"
_TIME_FORMAT = "%Y%m%dT%H%M%S%fZ"
_NAME = re.compile(r"(?P<version>\d{10})-(?P<time>\d{8}T\d{12}Z)-(?P<digest>[0-9a-f]{16})\.state")


class DatasetState(NamedTuple):
    """State of a dataset, current or archived."""

    #: increases with each state
    version: int
    #: when it became the current state, UTC
    time: datetime
    current: bool
    #: storage key of the snapshot, of the header for the current state
    key: str


def history_folder(uuid: str) -> str:
    """Prefix of the keys of a dataset's snapshots."""
    check_uuid(uuid)
    return f"{uuid}/{HISTORY_DIRECTORY}/"


def is_snapshot_key(key: str) -> bool:
    """Whether a key in the history of a dataset is that of a snapshot."""
    return _parse_snapshot_key(key) is not None


def _parse_snapshot_key(key: str) -> DatasetState | None:
    match = _NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    try:
        time = datetime.strptime(match["time"], _TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        # such as a 32nd of January: not written by this library
        return None
    return DatasetState(int(match["version"]), time, False, key)


def is_before_key(key: str) -> bool:
    """Whether a key in the history of a dataset is that of the state before an operation."""
    return key.endswith(_BEFORE)


def archive_snapshot(blobs: BlobStore, state: DatasetMetadata, stored: HeaderBlob) -> str | None:
    """Archive a committed state; returns its key, None for one without partitions or schema."""
    # The key depends on the state only, so that concurrent writers archive it once.
    return _archive(blobs, state, stored, _snapshot_name(state, blobs, stored.key))


def archive_before(
    blobs: BlobStore, state: DatasetMetadata, stored: HeaderBlob, operation: str
) -> str | None:
    """Archive the state before an operation on several datasets, which readers see until it commits."""
    return _archive(blobs, state, stored, operation + _BEFORE)


def _archive(blobs: BlobStore, state: DatasetMetadata, stored: HeaderBlob, name: str) -> str | None:
    if state.schema is None or not state.explicit_partitions:
        return None
    content = {
        "format": stored.format,
        "header": bytes(stored.content),
        "schema": schema_to_bytes(state.schema),
        "table": state.table_name,
    }
    key = history_folder(state.uuid) + name
    blobs.put(key, packb(content), durable=True)
    return key


def _list_archive(uuid: str, blobs: BlobStore) -> list[DatasetState]:
    """Snapshots of a dataset, oldest first."""
    states = (_parse_snapshot_key(blob.key) for blob in blobs.list(history_folder(uuid)))
    return sorted(state for state in states if state is not None)


def _snapshot_name(state: DatasetMetadata, blobs: BlobStore, header_key: str) -> str:
    """File name of the snapshot of a state: the same with and without tombstones."""
    version, time = snapshot_version(state, blobs, header_key)
    return f"{version:010d}-{time.strftime(_TIME_FORMAT)}-{fingerprint(state)}.state"


def list_snapshots(blobs: BlobStore, current: DatasetMetadata, header_key: str) -> list[DatasetState]:
    """Snapshots of a dataset without that of the current state, oldest first."""
    current_key = history_folder(current.uuid) + _snapshot_name(current, blobs, header_key)
    return [snapshot for snapshot in _list_archive(current.uuid, blobs) if snapshot.key != current_key]


def list_expired_snapshots(uuid: str, blobs: BlobStore) -> list[str]:
    """Keys of snapshots beyond the retention of a dataset."""
    # None where the header has no retention: another library may have overwritten it.
    stored = read_header(uuid, blobs)
    current = DatasetMetadata.load_from_header(stored, uuid, blobs)
    if KEEP_HISTORY not in current.metadata:
        return []
    snapshots = list_snapshots(blobs, current, stored.key)
    expired = snapshots[: max(len(snapshots) - snapshot_retention(current.metadata), 0)]
    return sorted(snapshot.key for snapshot in expired)


def expire_snapshots(uuid: str, blobs: BlobStore) -> None:
    """Delete the snapshots beyond the retention; their files become garbage."""
    try:
        blobs.delete(list_expired_snapshots(uuid, blobs))
    except Exception:
        # The commit is done already, and the next commit or garbage collection expires them.
        return


def load_snapshot(uuid: str, blobs: BlobStore, key: str) -> DatasetMetadata:
    """Load a snapshot with its schema; raises KeyError if absent, CorruptDatasetError if damaged."""
    content = blobs.get(key)
    try:
        fields = unpackb(content)
    except ValueError as error:
        raise CorruptDatasetError(key, str(error)) from error
    types = {"format": str, "header": bytes, "schema": bytes, "table": str}
    if type(fields) is not dict or any(type(fields.get(name)) is not kind for name, kind in types.items()):
        raise CorruptDatasetError(key, "it is no copy of a state")
    if fields["format"] not in ("json", "msgpack"):
        raise CorruptDatasetError(key, f"the header has the unknown format {fields['format']!r}")
    header = parse_header(fields["header"], fields["format"], key)
    schema = schema_from_bytes(fields["schema"], key)
    state = DatasetMetadata.load_from_dict(header, blobs, schema=schema, table_name=fields["table"])
    if state.uuid != uuid:
        raise CorruptDatasetError(key, f"it is a state of dataset {state.uuid!r}")
    return state


AsOf: TypeAlias = int | str | datetime
"""A version, or a point in time (a text in ISO 8601 will do; without time zone it is UTC)."""


class _HasVersion(Protocol):
    @property
    def version(self) -> int: ...
    @property
    def time(self) -> datetime: ...


def list_states(uuid: str, blobs: BlobStore) -> list[DatasetState]:
    """Readable states of a dataset, oldest first, the current one last."""
    stored = read_header(uuid, blobs)
    current = DatasetMetadata.load_from_header(stored, uuid, blobs)
    version, time = snapshot_version(current, blobs, stored.key)
    return [*list_snapshots(blobs, current, stored.key), DatasetState(version, time, True, stored.key)]


def check_as_of(as_of: object) -> int | datetime:
    """Validate an ``as_of`` argument: version, or point in time (UTC without time zone)."""
    if isinstance(as_of, str):
        try:
            as_of = datetime.fromisoformat(as_of)
        except ValueError:
            raise ValueError(
                f"as_of is a version (int) or a point in time such as '2025-01-31T12:00:00', got {as_of!r}"
            ) from None
    if isinstance(as_of, datetime):
        try:
            return as_of.replace(tzinfo=UTC) if as_of.tzinfo is None else as_of.astimezone(UTC)
        except OverflowError:
            raise ValueError(f"as_of is beyond the range of UTC: {as_of}") from None
    if isinstance(as_of, int) and not isinstance(as_of, bool):
        return as_of
    raise TypeError(f"as_of is a version (int) or a point in time (datetime), got {as_of!r}")


def select_state(uuid: str, states: Sequence[DatasetState], as_of: AsOf) -> DatasetState | None:
    """State of a version, or newest one until a point in time; None if the dataset did not exist then."""
    version_or_time = check_as_of(as_of)
    if isinstance(version_or_time, int):
        matches = [state for state in states if state.version == version_or_time]
    else:
        matches = [state for state in states if state.time <= version_or_time]
        if not matches and states[0].version == 1:
            return None
    if matches:
        return matches[-1]
    raise StateNotFoundError(uuid, str(as_of), name_states(states))


def name_states(states: Sequence[_HasVersion]) -> str:
    """The range of states, for messages: one state, or the first and the last one."""
    if not states:
        return ""
    first, last = states[0], states[-1]
    text = f"{first.version} ({first.time.isoformat()})"
    return f"{text} to {last.version}" if last.version != first.version else text


def state_as_of(uuid: str, blobs: BlobStore, as_of: AsOf) -> DatasetMetadata:
    """Load the state of a dataset as of a version or time; raises StateNotFoundError."""
    check_as_of(as_of)
    states = list_states(uuid, blobs)
    state = select_state(uuid, states, as_of)
    if state is None:
        raise StateNotFoundError(uuid, str(as_of), name_states(states))
    return load_state(uuid, blobs, state)


def load_state(uuid: str, blobs: BlobStore, state: DatasetState) -> DatasetMetadata:
    """Load one of the states of a dataset; raises StateNotFoundError if it has expired meanwhile."""
    if state.current:
        dataset = DatasetMetadata.load_from_store(uuid, blobs)
        if snapshot_version(dataset, blobs, state.key)[0] == state.version:
            return dataset
        # replaced meanwhile by another commit, which has archived it
        snapshots = [snapshot for snapshot in list_states(uuid, blobs) if snapshot.version == state.version]
        if not snapshots:
            raise StateNotFoundError(uuid, str(state.version))
        state = snapshots[-1]
    try:
        return load_snapshot(uuid, blobs, state.key)
    except KeyError:
        raise StateNotFoundError(uuid, str(state.version)) from None
