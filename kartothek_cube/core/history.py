"""Older states of a dataset: kept on demand next to it, listed, loaded as of a time or version.

The current state is the header and nothing else, as the format demands. A dataset whose metadata say so
(`KEEP_HISTORY`) numbers its states; before a commit replaces a header, it puts a copy of it, with the schema,
under ``<uuid>/_history/``. Only headers that were published are copied, and whatever dies between copy,
publication and clean-up leaves a readable history: a copy of the current state is no second state.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from kartothek_cube.core import _time, _zmsgpack
from kartothek_cube.core._dataset_load import StoredHeader, read_header
from kartothek_cube.core._header import parse_header
from kartothek_cube.core.common_metadata import schema_from_bytes, schema_to_bytes
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import CorruptDatasetError, StateNotFoundError
from kartothek_cube.core.naming import HISTORY_DIRECTORY, check_uuid
from kartothek_cube.core.store import Blob, BlobStore

__all__ = (
    "KEEP_HISTORY",
    "AsOf",
    "DatasetState",
    "check_as_of",
    "history_blobs",
    "inherited",
    "keep_state",
    "load_state",
    "outdated",
    "prune",
    "select_state",
    "state_as_of",
    "states",
    "states_to_keep",
    "with_version",
)

#: metadata key: how many states are kept beside the current one
KEEP_HISTORY = "kartothek_cube_keep_history"
#: metadata key: number and time of a state
VERSION = "kartothek_cube_version"

_STAMP = "%Y%m%dT%H%M%S%fZ"
_NAME = re.compile(r"(?P<version>\d{10})-(?P<time>\d{8}T\d{12}Z)-(?P<digest>[0-9a-f]{16})\.state")
_TICK = timedelta(microseconds=1)

AsOf: TypeAlias = int | str | datetime
"""A version, or a point in time (a text in ISO 8601 will do; without time zone it is UTC)."""


class DatasetState(NamedTuple):
    """
    A state of a dataset.

    Attributes
    ----------
    version
        Its number; later states have higher ones.
    time
        When it became the current state, UTC.
    current
        Whether it still is.
    key
        Storage key of its copy; that of the header for the current one.
    """

    version: int
    time: datetime
    current: bool
    key: str


# -- settings ------------------------------------------------------------------------------------------------


def states_to_keep(metadata: Mapping[str, Any]) -> int:
    """
    How many states beside the current one are kept.

    Parameters
    ----------
    metadata
        Metadata of a dataset.

    Returns
    -------
    int
        0 if it does not say.

    Raises
    ------
    ValueError
        It says something that is no number.

    Examples
    --------
    >>> states_to_keep({"kartothek_cube_keep_history": 7}), states_to_keep({})
    (7, 0)
    """
    found = metadata.get(KEEP_HISTORY, 0)
    if type(found) is not int or found < 0:
        raise ValueError(
            f"{KEEP_HISTORY!r} in the metadata is the number of states to keep, 0 or more; it is {found!r}"
        )
    return found


def inherited(state: DatasetMetadata | None) -> dict[str, Any]:
    """
    Metadata that a dataset keeps when it is overwritten, which is when its history is wanted most.

    Parameters
    ----------
    state
        What is overwritten.

    Returns
    -------
    dict
    """
    known = {} if state is None else state.metadata
    return {KEEP_HISTORY: known[KEEP_HISTORY]} if KEEP_HISTORY in known else {}


# -- versions ------------------------------------------------------------------------------------------------


def with_version(
    new: DatasetMetadata, old: DatasetMetadata | None, blobs: BlobStore, header_key: str
) -> DatasetMetadata:
    """
    Number a state that is about to be published, if its dataset keeps states.

    Parameters
    ----------
    new
        The state; its indices are stored.
    old
        The one that it follows.
    blobs, header_key
        The store, and where the header is.

    Returns
    -------
    DatasetMetadata
    """
    metadata = {key: value for key, value in new.metadata.items() if key != VERSION}
    if not states_to_keep(metadata):
        return new.copy(metadata=metadata) if VERSION in new.metadata else new
    version, time = 1, _now()
    if old is not None:
        last, since = _position(old, blobs, header_key)
        version, time = last + 1, max(time, since + _TICK)
    record = {"version": version, "time": time.isoformat(), "content": _digest(new, metadata)}
    return new.copy(metadata={**metadata, VERSION: record})


def _now() -> datetime:
    return _time.datetime_utcnow().replace(tzinfo=UTC)


def _digest(state: DatasetMetadata, metadata: Mapping[str, Any]) -> str:
    """Fingerprint of all that a commit can change; tells whether a version number is that of this state."""
    keys = {column: index.index_storage_key for column, index in state.secondary_indices.items()}
    rest = json.dumps([metadata, keys, list(state.partition_keys)], sort_keys=True, default=str)
    labels = "\n".join(state.partition_table.labels.to_pylist())
    return hashlib.sha256(f"{rest}\n{labels}".encode()).hexdigest()[:16]


def _position(state: DatasetMetadata, blobs: BlobStore, header_key: str) -> tuple[int, datetime]:
    """Version and time of a published state, which may be the work of a writer that knows no versions."""
    record = _record(state)
    metadata = {key: value for key, value in state.metadata.items() if key != VERSION}
    if record is not None and record[2] == _digest(state, metadata):
        return record[:2]
    written = _written(blobs, header_key)
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


def _written(blobs: BlobStore, key: str) -> datetime:
    """When a header was put, as far as the store tells."""
    times = [blob.mtime for blob in blobs.list(key) if blob.key == key and blob.mtime is not None]
    return min(datetime.fromtimestamp(times[0], UTC), _now()) if times else _now()


# -- copies --------------------------------------------------------------------------------------------------


def keep_state(blobs: BlobStore, state: DatasetMetadata, stored: StoredHeader) -> None:
    """
    Put a copy of a published state; the same state gives the same key, whoever copies it.

    Parameters
    ----------
    blobs
        The store.
    state
        The state. One that does not list its partitions, or has no schema, is not kept.
    stored
        Its header.
    """
    if state.schema is None or not state.explicit_partitions:
        return
    version, time = _position(state, blobs, stored.key)
    digest = hashlib.sha256(stored.content).hexdigest()[:16]
    content = {
        "format": stored.format,
        "header": bytes(stored.content),
        "schema": schema_to_bytes(state.schema),
        "table": state.table_name,
    }
    key = f"{_folder(state.uuid)}{version:010d}-{time.strftime(_STAMP)}-{digest}.state"
    blobs.put(key, _zmsgpack.packb(content), durable=True)


def _folder(uuid: str) -> str:
    check_uuid(uuid)
    return f"{uuid}/{HISTORY_DIRECTORY}/"


def _copies(uuid: str, blobs: BlobStore) -> list[DatasetState]:
    """Copies of states, oldest first."""
    found = []
    for blob in blobs.list(_folder(uuid)):
        match = _NAME.fullmatch(blob.key.removeprefix(_folder(uuid)))
        if match is not None:
            time = datetime.strptime(match["time"], _STAMP).replace(tzinfo=UTC)
            found.append(DatasetState(int(match["version"]), time, False, blob.key))
    return sorted(found)


def states(uuid: str, blobs: BlobStore) -> list[DatasetState]:
    """
    The states of a dataset that can be read, oldest first.

    Parameters
    ----------
    uuid
        The dataset.
    blobs
        The store.

    Returns
    -------
    list of DatasetState
        The current one comes last.

    Raises
    ------
    DatasetNotFoundError
        There is no such dataset.
    """
    return _states(uuid, blobs, read_header(uuid, blobs))


def _states(uuid: str, blobs: BlobStore, stored: StoredHeader) -> list[DatasetState]:
    state = DatasetMetadata.load_from_header(stored, uuid, blobs)
    version, time = _position(state, blobs, stored.key)
    digest = hashlib.sha256(stored.content).hexdigest()[:16]
    older = [copy for copy in _copies(uuid, blobs) if not copy.key.endswith(f"-{digest}.state")]
    return [*older, DatasetState(version, time, True, stored.key)]


def outdated(uuid: str, blobs: BlobStore) -> list[str]:
    """
    Copies beyond those that a dataset keeps.

    Parameters
    ----------
    uuid
        The dataset.
    blobs
        The store.

    Returns
    -------
    list of str
        Keys. None where the header does not say how many are kept: another library may have overwritten it.
    """
    stored = read_header(uuid, blobs)
    metadata = parse_header(stored.content, stored.format, stored.key).get("metadata")
    if not isinstance(metadata, dict) or KEEP_HISTORY not in metadata:
        return []
    copies = _copies(uuid, blobs)
    digest = hashlib.sha256(stored.content).hexdigest()[:16]
    older = [copy for copy in copies if not copy.key.endswith(f"-{digest}.state")]
    kept = older[max(len(older) - states_to_keep(metadata), 0) :]
    return sorted({copy.key for copy in older} - {copy.key for copy in kept})


def prune(uuid: str, blobs: BlobStore) -> None:
    """
    Delete the copies beyond those that a dataset keeps; their files are garbage from then on.

    A failure does not matter: the next commit or garbage collection does the same.

    Parameters
    ----------
    uuid
        The dataset.
    blobs
        The store.
    """
    try:
        blobs.delete(outdated(uuid, blobs))
    except (OSError, KeyError):
        return


# -- reading -------------------------------------------------------------------------------------------------


def check_as_of(as_of: object) -> int | datetime:
    """
    The ``as_of`` argument: a version, or a point in time.

    Parameters
    ----------
    as_of
        An int, a datetime (pandas' as well) or a text in ISO 8601; without time zone it is UTC.

    Returns
    -------
    int or datetime.datetime

    Raises
    ------
    TypeError, ValueError
        It is something else.

    Examples
    --------
    >>> check_as_of("2020-01-31 12:00")
    datetime.datetime(2020, 1, 31, 12, 0, tzinfo=datetime.timezone.utc)
    """
    if isinstance(as_of, str):
        as_of = datetime.fromisoformat(as_of)
    if isinstance(as_of, datetime):
        return as_of.replace(tzinfo=UTC) if as_of.tzinfo is None else as_of.astimezone(UTC)
    if isinstance(as_of, int) and not isinstance(as_of, bool):
        return as_of
    raise TypeError(f"as_of is a version (int) or a point in time (datetime), got {as_of!r}")


def select_state(uuid: str, known: Sequence[DatasetState], as_of: AsOf) -> DatasetState | None:
    """
    The state of a version, or the newest one that is not newer than a point in time.

    Parameters
    ----------
    uuid
        The dataset.
    known
        Its states, oldest first.
    as_of
        Version or time.

    Returns
    -------
    DatasetState or None
        None if the dataset did not exist then.

    Raises
    ------
    StateNotFoundError
        The state is not kept (any more).
    """
    wanted = check_as_of(as_of)
    if isinstance(wanted, int):
        matches = [state for state in known if state.version == wanted]
    else:
        matches = [state for state in known if state.time <= wanted]
        if not matches and known[0].version == 1:
            return None
    if matches:
        return matches[-1]
    first = known[0]
    raise StateNotFoundError(
        uuid, str(as_of), f"{first.version} ({first.time.isoformat()}) to {known[-1].version}"
    )


def state_as_of(uuid: str, blobs: BlobStore, as_of: AsOf) -> DatasetMetadata:
    """
    Load a state of a dataset.

    Parameters
    ----------
    uuid
        The dataset.
    blobs
        The store.
    as_of
        Version or time.

    Returns
    -------
    DatasetMetadata
        With its schema.

    Raises
    ------
    DatasetNotFoundError
        There is no such dataset.
    StateNotFoundError
        The state is not kept (any more), or the dataset did not exist then.
    CorruptDatasetError
        The copy of the state is damaged.
    """
    check_as_of(as_of)
    known = states(uuid, blobs)
    state = select_state(uuid, known, as_of)
    if state is None:
        raise StateNotFoundError(uuid, str(as_of), f"1 ({known[0].time.isoformat()}), its first one")
    return load_state(uuid, blobs, state)


def load_state(uuid: str, blobs: BlobStore, state: DatasetState) -> DatasetMetadata:
    """
    Load a state.

    Parameters
    ----------
    uuid
        The dataset.
    blobs
        The store.
    state
        One of :func:`states`.

    Returns
    -------
    DatasetMetadata
        With its schema.

    Raises
    ------
    StateNotFoundError
        It was thrown away meanwhile.
    CorruptDatasetError
        The copy is damaged.
    """
    if state.current:
        found = DatasetMetadata.load_from_store(uuid, blobs)
        if _position(found, blobs, state.key)[0] == state.version:
            return found
        # somebody committed meanwhile: then there is a copy
        moved = [copy for copy in _copies(uuid, blobs) if copy.version == state.version]
        if not moved:
            raise StateNotFoundError(uuid, str(state.version), "")
        state = moved[-1]
    try:
        content = blobs.get(state.key)
    except KeyError:
        raise StateNotFoundError(uuid, str(state.version), "") from None
    return _from_copy(uuid, blobs, state.key, content)


def _from_copy(uuid: str, blobs: BlobStore, key: str, content: bytes) -> DatasetMetadata:
    try:
        parts = _zmsgpack.unpackb(content)
    except ValueError as error:
        raise CorruptDatasetError(key, str(error)) from error
    types = {"format": str, "header": bytes, "schema": bytes, "table": str}
    if type(parts) is not dict or any(type(parts.get(part)) is not kind for part, kind in types.items()):
        raise CorruptDatasetError(key, "it is no copy of a state")
    if parts["format"] not in ("json", "msgpack"):
        raise CorruptDatasetError(key, f"the header has the unknown format {parts['format']!r}")
    header = parse_header(parts["header"], parts["format"], key)
    schema = schema_from_bytes(parts["schema"], key)
    state = DatasetMetadata.load_from_dict(header, blobs, schema=schema, table_name=parts["table"])
    if state.uuid != uuid:
        raise CorruptDatasetError(key, f"it is a state of dataset {state.uuid!r}")
    return state


def history_blobs(uuid: str, blobs: BlobStore) -> list[Blob]:
    """
    Everything in the history of a dataset.

    Parameters
    ----------
    uuid
        The dataset.
    blobs
        The store.

    Returns
    -------
    list of Blob
    """
    return blobs.list(_folder(uuid))
