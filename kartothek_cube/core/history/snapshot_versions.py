"""Numbers of the states of a dataset that keeps them, in its metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kartothek_cube.core import clock
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.naming import TOMBSTONES_KEY
from kartothek_cube.core.store import BlobStore

__all__ = (
    "KEEP_HISTORY",
    "VERSION",
    "fingerprint",
    "retained_metadata",
    "snapshot_version",
    "snapshot_retention",
    "with_version",
)

#: metadata key: how many states are kept beside the current one
KEEP_HISTORY = "kartothek_cube_keep_history"
#: metadata key: number and time of a state
VERSION = "kartothek_cube_version"

_TICK = timedelta(microseconds=1)


def snapshot_retention(metadata: Mapping[str, Any]) -> int:
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


def retained_metadata(state: DatasetMetadata | None) -> dict[str, Any]:
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
    if not snapshot_retention(metadata):
        return new.copy(metadata=metadata) if VERSION in new.metadata else new
    version, time = 1, _now()
    if old is not None:
        last, since = snapshot_version(old, blobs, header_key)
        version, time = last + 1, max(time, since + _TICK)
    record = {"version": version, "time": time.isoformat(), "content": _digest(new, metadata)}
    return new.copy(metadata={**metadata, VERSION: record})


def _now() -> datetime:
    return clock.datetime_utcnow().replace(tzinfo=UTC)


def fingerprint(state: DatasetMetadata) -> str:
    """Digest of all that a commit can change, without the number and time of the state."""
    return _digest(state, {key: value for key, value in state.metadata.items() if key != VERSION})


def _digest(state: DatasetMetadata, metadata: Mapping[str, Any]) -> str:
    start = f"{state.uuid}/"  # which is another one in copies of the dataset
    keys = {c: (i.index_storage_key or "").removeprefix(start) for c, i in state.secondary_indices.items()}
    # tombstones come and go without a change of the state
    own = {key: value for key, value in metadata.items() if key != TOMBSTONES_KEY}
    rest = json.dumps([own, keys, list(state.partition_keys)], sort_keys=True, default=str)
    labels = "\n".join(state.partition_table.labels.to_pylist())
    return hashlib.sha256(f"{rest}\n{labels}".encode()).hexdigest()[:16]


def snapshot_version(state: DatasetMetadata, blobs: BlobStore, header_key: str) -> tuple[int, datetime]:
    """
    Version and time of a published state, which may be the work of a writer that knows no versions.

    Parameters
    ----------
    state
        The state.
    blobs, header_key
        The store, and where its header is.

    Returns
    -------
    version
        0 for the state that was there when somebody asked for a history first.
    time
        When it was published, UTC.
    """
    record = _record(state)
    if record is not None and record[2] == fingerprint(state):
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
