"""Snapshots of datasets: archived on demand, listed, loaded as of a version or time."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias, cast

import attrs
import numpy as np
import pandas as pd

from kartothek_cube.core import clock, errors, hooks, naming
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset_files import HeaderBlob, read_header
from kartothek_cube.core.header import packb, parse_header, parse_record, unpackb
from kartothek_cube.core.schema import SchemaWrapper, schema_file_from_bytes, schema_to_bytes
from kartothek_cube.core.store import BlobStore

# The current state is the header and nothing else, as the format demands. Commits number the states in their
# record (`kartothek_cube.core.header`); before a commit replaces a header, it archives it with its schema
# under ``<uuid>/_history/``. A cleanup deletes these snapshots, unless it has a retention or the metadata of
# the dataset say how many to keep (`KEEP_HISTORY`; 0: none is archived). Only committed headers are archived,
# and a writer that is killed between archiving, commit and expiry leaves a readable history: a snapshot of
# the current state is no second state.


#: metadata key: number of snapshots to keep; absent or None: all until a cleanup
KEEP_HISTORY = "kartothek_cube_keep_history"

_TICK = timedelta(microseconds=1)


@attrs.frozen
class OperationInfo:
    """Description of an operation in the history."""

    #: such as "append"; "" if unknown
    name: str = ""
    #: of the user
    message: str | None = None
    #: information about the job that runs it, as JSON
    job: Mapping[str, Any] | None = None
    #: version of this library; "" if unknown
    library: str = ""
    #: when it was planned, for hooks; not stored
    started: datetime | None = None

    def to_field(self) -> dict[str, Any]:
        """The field of a version record, without defaults."""
        names = ("name", "message", "job", "library")
        return {name: value for name in names if (value := getattr(self, name))}

    def seconds(self) -> float | None:
        """Seconds since it was planned."""
        return None if self.started is None else (_now() - self.started).total_seconds()


_ANNOTATIONS: ContextVar[OperationInfo | None] = ContextVar("_ANNOTATIONS", default=None)


@contextmanager
def annotate_operations(
    message: str | None = None,
    job: Mapping[str, Any] | str | None = None,
    *,
    run: str | int | None = None,
    revision: str | None = None,
) -> Iterator[None]:
    """Describe the operations that are planned within a ``with`` block, for the history of their datasets.

    The data source of Spark plans in a process of its own, which knows no description.

    Parameters
    ----------
    message
        Why the operation takes place.
    job
        Which job runs it: its name, or keys and values that JSON can express. The name has the key ``name``.
    run, revision
        Which run of the job, and of which revision of its code: values of the keys ``run`` and ``revision``.

    Raises
    ------
    TypeError
        The message is no text, or JSON cannot express the job.

    Examples
    --------
    >>> with annotate_operations("late readings", job="nightly load", run=17, revision="4c1e2a9"):
    ...     pass  # append_to_cube(...)
    """
    if message is not None and not isinstance(message, str):
        raise TypeError(f"message is a text, but it is {message!r}")
    given = {"run": run, "revision": revision}
    try:
        if not isinstance(job, Mapping | str | None):
            raise TypeError("it is no dict")
        details = {"name": job} if isinstance(job, str) else dict(job or {})
        details |= {key: value for key, value in given.items() if value is not None}
        content = json.loads(json.dumps(details, allow_nan=False)) or None
    except (TypeError, ValueError) as error:
        shown = f"{job!r}, {run!r} and {revision!r}: {error}"
        problem = f"job is a dict that JSON can express, as run and revision are values, but they are {shown}"
        raise TypeError(problem) from error
    with hooks.set_variable(_ANNOTATIONS, OperationInfo("", message, content)):
        yield


def describe_operation(name: str) -> OperationInfo:
    """An operation by its name, with the annotations of the user."""
    annotations = _ANNOTATIONS.get() or OperationInfo()
    started = _now() if hooks.COMMIT_HOOKS or hooks.QUERY_HOOKS else None
    return OperationInfo(name, annotations.message, annotations.job, naming.library_version(), started)


def operation_info(state: DatasetMetadata) -> OperationInfo:
    """Description of the operation that made a state; empty if the state has none."""
    record = parse_record(state.extra)
    field = (record.version or {}).get("operation") if record is not None else None
    if not isinstance(field, dict):
        return OperationInfo()
    types = {"name": str, "message": str, "job": dict, "library": str}
    return OperationInfo(**{n: field[n] for n, kind in types.items() if isinstance(field.get(n), kind)})


def snapshot_retention(
    metadata: Mapping[str, Any], source: str = f"{KEEP_HISTORY!r} in the metadata"
) -> int | None:
    """Number of snapshots to keep; None: all until a cleanup. Raises ValueError for malformed metadata."""
    retention = metadata.get(KEEP_HISTORY)
    if retention is not None and (type(retention) is not int or retention < 0):
        meaning = "the number of states to keep, 0 or more, or None to keep all of them until a cleanup"
        raise ValueError(f"{source} is {meaning}; it is {retention!r}")
    return retention


@attrs.frozen
class Version:
    """The place of a state in the history of its dataset."""

    #: increases with each state
    number: int
    #: when it was committed, UTC; increases as well
    time: datetime
    #: id, 16 hexadecimal digits
    state: str
    #: time of the first state of the dataset, if that is known
    since: datetime | None = None
    #: of a seed: versions of deleted datasets, which count in the version of the cube, so that none repeats
    deleted: int = 0


def make_version(
    old: DatasetMetadata | None, blobs: BlobStore, header_key: str, commit_id: str, info: OperationInfo | None
) -> dict[str, Any]:
    """The field of the version in the record of a commit that replaces a state; None for the first one."""
    time = _now()
    version = Version(1, time, "", time)
    if old is not None:
        last = _version_to_note(old, blobs, header_key)
        version = attrs.evolve(last, number=last.number + 1, time=max(time, last.time + _TICK))
    field = _version_field(attrs.evolve(version, state=commit_id[-16:]))
    operation = None if info is None else info.to_field()
    return {**field, "operation": operation} if operation else field


def note_version(state: DatasetMetadata, blobs: BlobStore, header_key: str) -> dict[str, Any]:
    """The field of the version of a state of other software, before its header is put again."""
    return _version_field(_version_to_note(state, blobs, header_key))


def _version_to_note(state: DatasetMetadata, blobs: BlobStore, header_key: str) -> Version:
    if (recorded := recorded_version(state)) is not None:
        return recorded
    # other software has dropped it; datasets that are in no cube have none
    deleted = _load_deleted_versions(state.uuid, blobs) if "++" in state.uuid else 0
    return attrs.evolve(version_of(state, blobs, header_key), deleted=deleted)


def _version_field(version: Version) -> dict[str, Any]:
    field: dict[str, Any] = {
        "number": version.number,
        "time": version.time.isoformat(),
        "state": version.state,
    }
    if version.since is not None:
        field["since"] = version.since.isoformat()
    if version.deleted:
        field["deleted"] = version.deleted
    return field


def _now() -> datetime:
    return clock.datetime_utcnow().replace(tzinfo=UTC)


def fingerprint(state: DatasetMetadata) -> str:
    """Digest of the content of a state: all that a commit can change, without its version."""
    prefix = f"{state.uuid}/"  # removed: copies of the dataset have another one
    keys = {c: (i.index_storage_key or "").removeprefix(prefix) for c, i in state.secondary_indices.items()}
    # tombstones change without a change of the state
    metadata = {key: value for key, value in state.metadata.items() if key != naming.TOMBSTONES_KEY}
    text = json.dumps([metadata, keys, list(state.partition_keys)], sort_keys=True, default=str)
    labels = "\n".join(state.partition_table.labels.to_pylist())
    return hashlib.sha256(f"{text}\n{labels}".encode()).hexdigest()[:16]


def version_of(state: DatasetMetadata, blobs: BlobStore, header_key: str) -> Version:
    """Version of a committed state; one of other software follows the newest snapshot."""
    version = recorded_version(state)
    if version is not None:
        return version
    # Other software drops the record and archives nothing, so that the state which it replaced is lost.
    time, digest = _header_time(blobs, header_key), fingerprint(state)
    for snapshot in _list_archive(state.uuid, blobs)[-1:]:
        if snapshot.key.endswith(f"-{digest}.state"):
            # a writer was killed after it had archived this very state
            return Version(snapshot.version, snapshot.time, digest)
        return Version(snapshot.version + 2, max(time, snapshot.time + _TICK), digest)
    return Version(0, time, digest)


def _load_deleted_versions(uuid: str, blobs: BlobStore) -> int:
    """Versions of deleted datasets, by the newest snapshot with a record."""
    for snapshot in reversed(_list_archive(uuid, blobs)):
        # one that is expired since, or damaged, is no reason to fail
        with suppress(KeyError, errors.CorruptDatasetError):
            version = recorded_version(load_snapshot(uuid, blobs, snapshot.key))
            if version is not None:
                return version.deleted
    return 0


def recorded_version(state: DatasetMetadata) -> Version | None:
    """The version in the record of a state; None for a state of other software."""
    record = parse_record(state.extra)
    field = {} if record is None or record.version is None else record.version
    number, state_id, time = field.get("number"), field.get("state"), _parse_time(field.get("time"))
    if time is None or type(number) is not int or not 0 <= number < 10**9:
        return None
    if not isinstance(state_id, str) or not re.fullmatch("[0-9a-f]{16}", state_id):
        return None
    deleted = field.get("deleted")
    since = _parse_time(field.get("since"))
    return Version(number, time, state_id, since, deleted if type(deleted) is int else 0)


def version_number(state: DatasetMetadata | None) -> int | None:
    """The number of the version in the record of a state; None without one."""
    version = None if state is None else recorded_version(state)
    return None if version is None else version.number


def _parse_time(text: Any) -> datetime | None:
    """A point in time that has a successor, in UTC; None for anything else."""
    try:
        time = datetime.fromisoformat(text)
        return None if time.tzinfo is None else time.astimezone(UTC) + _TICK - _TICK
    except (TypeError, ValueError, OverflowError):
        return None


def _header_time(blobs: BlobStore, key: str) -> datetime:
    """Modification time of a header; now if the store has none."""
    times = [blob.mtime for blob in blobs.list(key) if blob.key == key and blob.mtime is not None]
    return min(datetime.fromtimestamp(times[0], UTC), _now()) if times else _now()


BEFORE = ".before"
_TIME_FORMAT = "%Y%m%dT%H%M%S%fZ"
_NAME = re.compile(r"(?P<version>\d{10})-(?P<time>\d{8}T\d{12}Z)-(?P<state>[0-9a-f]{16})\.state")


class DatasetState(NamedTuple):
    """State of a dataset, current or archived."""

    #: increases with each state
    version: int
    #: when it became the current state, UTC
    time: datetime
    current: bool
    #: storage key of the snapshot, of the header for the current state
    key: str
    #: time of the first state of the dataset, if that is known; of the current state only
    since: datetime | None = None


def history_folder(uuid: str) -> str:
    """Prefix of the keys of a dataset's snapshots."""
    naming.check_uuid(uuid)
    return f"{uuid}/{naming.HISTORY_DIRECTORY}/"


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
    return key.endswith(BEFORE)


def archive(blobs: BlobStore, state: DatasetMetadata, stored: HeaderBlob, name: str) -> str | None:
    """Archive a committed state; returns its key, None for one without partitions or schema."""
    if state.schema is None or not state.explicit_partitions:
        return None
    return _put_state(blobs, state, bytes(stored.content), stored.format, name)


def _put_state(blobs: BlobStore, state: DatasetMetadata, header: bytes, format: str, name: str) -> str:
    schema = schema_to_bytes(cast(SchemaWrapper, state.schema))
    key = history_folder(state.uuid) + name
    # a commit flushes it with its other files, before its header
    blobs.put(key, packb({"format": format, "header": header, "schema": schema, "table": state.table_name}))
    return key


# A pin is a snapshot that a reader puts, with an expiry in its name. Until then, garbage collections keep it
# and its files.


class Pin(NamedTuple):
    """A pinned state of a dataset."""

    #: storage key
    key: str
    #: name of the state in a token
    state: str
    #: when it stops to count, by the clock of the store; seconds since 1970
    expires: int
    #: id of the reader
    id: str


_PIN = re.compile(
    r"(?P<state>\d{10}-\d{8}T\d{12}Z-[0-9a-f]{16})-(?P<expires>\d{10})-(?P<id>[0-9a-f]{32})\.pin"
)


def put_pin(blobs: BlobStore, state: DatasetMetadata, state_name: str, expires: int, pin_id: str) -> str:
    """Pin a state of a dataset; returns the key of the pin."""
    return _put_state(blobs, state, state.to_json(), "json", f"{state_name}-{expires:010d}-{pin_id}.pin")


def parse_pin(key: str) -> Pin | None:
    """The pin with a storage key; None if that is no key of a pin."""
    match = _PIN.fullmatch(key.rpartition("/")[2])
    return None if match is None else Pin(key, match["state"], int(match["expires"]), match["id"])


def list_pins(uuid: str, blobs: BlobStore, state_name: str = "") -> list[Pin]:
    """Pins of a dataset, also expired ones; those of one state."""
    pins = (parse_pin(blob.key) for blob in blobs.list(history_folder(uuid) + state_name))
    return [pin for pin in pins if pin is not None]


def _list_archive(uuid: str, blobs: BlobStore) -> list[DatasetState]:
    """Snapshots of a dataset, oldest first."""
    states = (_parse_snapshot_key(blob.key) for blob in blobs.list(history_folder(uuid)))
    return sorted(state for state in states if state is not None)


def snapshot_name(state: DatasetMetadata, blobs: BlobStore, header_key: str) -> str:
    """File name of the snapshot of a state: the same with and without tombstones."""
    version = version_of(state, blobs, header_key)
    return f"{version.number:010d}-{version.time.strftime(_TIME_FORMAT)}-{version.state}.state"


def current_snapshot(state: DatasetMetadata, blobs: BlobStore) -> str:
    """Key of the snapshot of the current state, which the next commit archives."""
    # a header of other software has a version by its content
    header_key = "" if recorded_version(state) is not None else read_header(state.uuid, blobs).key
    return history_folder(state.uuid) + snapshot_name(state, blobs, header_key)


def list_snapshots(blobs: BlobStore, current: DatasetMetadata, header_key: str) -> list[DatasetState]:
    """Snapshots of a dataset without that of the current state, oldest first."""
    current_key = history_folder(current.uuid) + snapshot_name(current, blobs, header_key)
    return [snapshot for snapshot in _list_archive(current.uuid, blobs) if snapshot.key != current_key]


def list_expired_snapshots(uuid: str, blobs: BlobStore) -> list[str]:
    """Keys of the snapshots of a dataset beyond the number that it keeps."""
    stored = read_header(uuid, blobs)
    current = DatasetMetadata.load_from_header(stored, uuid, blobs)
    retention = snapshot_retention(current.metadata)
    if retention is None:
        return []
    snapshots = list_snapshots(blobs, current, stored.key)
    version = recorded_version(current)
    own = snapshots if version is None else _drop_predecessor(snapshots, version.since)
    kept = set(own[max(len(own) - retention, 0) :])
    return [snapshot.key for snapshot in snapshots if snapshot not in kept]


def expire_snapshots(uuid: str, blobs: BlobStore) -> None:
    """Delete the snapshots beyond the number that a dataset keeps; their files become garbage."""
    # The commit is done already, and after a failure the next commit or garbage collection expires them.
    with suppress(Exception):
        expired = list_expired_snapshots(uuid, blobs)
        blobs.delete(expired)
        # a power failure after the next cleanup must not leave a state without its files
        blobs.flush(expired)


def load_snapshot(uuid: str, blobs: BlobStore, key: str) -> DatasetMetadata:
    """Load a snapshot with its schema; raises KeyError if absent, CorruptDatasetError if damaged."""
    content = blobs.get(key)
    try:
        fields = unpackb(content)
    except ValueError as error:
        raise errors.CorruptDatasetError(key, str(error)) from error
    types = {"format": str, "header": bytes, "schema": bytes, "table": str}
    if type(fields) is not dict or any(type(fields.get(name)) is not kind for name, kind in types.items()):
        raise errors.CorruptDatasetError(key, "it is no copy of a state")
    if fields["format"] not in ("json", "msgpack"):
        raise errors.CorruptDatasetError(key, f"the header has the unknown format {fields['format']!r}")
    header = parse_header(fields["header"], fields["format"], key)
    schema = schema_file_from_bytes(fields["schema"], key).schema
    state = DatasetMetadata.load_from_dict(header, blobs, schema=schema, table_name=fields["table"])
    if state.uuid != uuid:
        raise errors.CorruptDatasetError(key, f"it is a state of dataset {state.uuid!r}")
    return state


AsOf: TypeAlias = int | str | datetime
"""A version, or a point in time (a text in ISO 8601 will do; without time zone it is UTC)."""


def list_states(uuid: str, blobs: BlobStore, stored: HeaderBlob | None = None) -> list[DatasetState]:
    """Readable states of a dataset, oldest first, that of its header last, which is read unless given."""
    stored = stored or read_header(uuid, blobs)
    current = DatasetMetadata.load_from_header(stored, uuid, blobs)
    version = version_of(current, blobs, stored.key)
    newest = DatasetState(version.number, version.time, True, stored.key, version.since)
    return [*_drop_predecessor(list_snapshots(blobs, current, stored.key), version.since), newest]


def _drop_predecessor(snapshots: list[DatasetState], since: datetime | None) -> list[DatasetState]:
    """Snapshots without those of a former dataset of this name, which other software does not delete."""
    # the numbers of versions begin again with the new dataset
    return [snapshot for snapshot in snapshots if since is None or snapshot.time >= since]


def check_as_of(as_of: object, name: str = "as_of") -> int | datetime:
    """Version or time of an argument (UTC without time zone), also as a scalar of NumPy."""
    if isinstance(as_of, str):
        try:
            as_of = datetime.fromisoformat(as_of)
        except ValueError:
            raise ValueError(
                f"{name} is a version (int) or a point in time such as '2025-01-31T12:00:00', got {as_of!r}"
            ) from None
    if isinstance(as_of, np.datetime64 | datetime) and not pd.isna(as_of):
        try:
            time = as_of if isinstance(as_of, datetime) else pd.Timestamp(as_of)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (OverflowError, ValueError):
            # years of NumPy go further than those of Python
            raise ValueError(f"{name} is beyond the range of UTC: {as_of}") from None
    if not isinstance(as_of, bool) and isinstance(as_of, Integral):
        return int(as_of)
    # a state in the history has a version; pins, and changes of a cube, have a token
    attribute = next((name for name in ("version", "token") if hasattr(as_of, name)), None)
    given = repr(as_of) if attribute is None else f"{type(as_of).__name__}; pass its {attribute}"
    raise TypeError(f"{name} is a version (int) or a point in time (datetime), got {given}")


def select_state(uuid: str, states: Sequence[DatasetState], as_of: AsOf) -> DatasetState | None:
    """State of a version, or newest one until a point in time; None if the dataset did not exist then."""
    version_or_time = check_as_of(as_of)
    if isinstance(version_or_time, int):
        matches = [state for state in states if state.version == version_or_time]
    else:
        matches = [state for state in states if state.time <= version_or_time]
        since = states[-1].since
        if not matches and (states[0].version == 1 or (since is not None and version_or_time < since)):
            return None
    if matches:
        return matches[-1]
    raise errors.StateNotFoundError(uuid, str(as_of), name_states(states))


def name_states(states: Sequence[Any]) -> str:
    """The range of states, for messages: one state, or the first and the last one."""
    if not states:
        return ""
    first, last = states[0], states[-1]
    text = f"{first.version} (since {first.time.isoformat()})"
    return f"{text} to {last.version}" if last.version != first.version else text


#: why a state that the history of a dataset lists cannot be read
HIDDEN = "A rollback had hidden the dataset then."


def load_state(uuid: str, blobs: BlobStore, state: DatasetState) -> DatasetMetadata:
    """Load one of the states of a dataset; raises StateNotFoundError if it has expired meanwhile."""
    if naming.is_header_key(state.key):
        dataset = DatasetMetadata.load_from_store(uuid, blobs)
        if version_of(dataset, blobs, state.key).number == state.version:
            return dataset
        # replaced meanwhile by another commit, which has archived it
        snapshots = [snapshot for snapshot in list_states(uuid, blobs) if snapshot.version == state.version]
        if not snapshots:
            raise errors.StateNotFoundError(uuid, str(state.version))
        state = snapshots[-1]
    try:
        return load_snapshot(uuid, blobs, state.key)
    except KeyError:
        raise errors.StateNotFoundError(uuid, str(state.version)) from None
