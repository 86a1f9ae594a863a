"""Archived snapshots of datasets: archive, list, expire, load."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from kartothek_cube.core.common_metadata import schema_from_bytes, schema_to_bytes
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.loading import HeaderBlob, read_header
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.header.parse import packb, parse_header, unpackb
from kartothek_cube.core.history.snapshot_versions import (
    KEEP_HISTORY,
    fingerprint,
    snapshot_retention,
    snapshot_version,
)
from kartothek_cube.core.naming import HISTORY_DIRECTORY, check_uuid
from kartothek_cube.core.store import BlobStore

__all__ = (
    "DatasetState",
    "history_folder",
    "is_before_key",
    "is_snapshot_key",
    "archive_before",
    "archive_snapshot",
    "load_snapshot",
    "list_snapshots",
    "expired_snapshots",
    "expire_snapshots",
)

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
    return _NAME.fullmatch(key.rpartition("/")[2]) is not None


def is_before_key(key: str) -> bool:
    """Whether a key in the history of a dataset is that of the state before an operation."""
    return key.endswith(_BEFORE)


def archive_snapshot(blobs: BlobStore, state: DatasetMetadata, stored: HeaderBlob) -> str | None:
    """Archive a published state; returns its key, None for one without partitions or schema."""
    # The key depends on the state only, so that concurrent writers archive it once.
    content = _pack(state, stored)
    if content is None:
        return None
    key = history_folder(state.uuid) + _snapshot_name(state, blobs, stored.key)
    blobs.put(key, content, durable=True)
    return key


def archive_before(
    blobs: BlobStore, state: DatasetMetadata, stored: HeaderBlob, operation: str
) -> str | None:
    """Archive the state before an operation on several datasets, which readers see until it commits."""
    content = _pack(state, stored)
    if content is None:
        return None
    key = f"{history_folder(state.uuid)}{operation}{_BEFORE}"
    blobs.put(key, content, durable=True)
    return key


def _pack(state: DatasetMetadata, stored: HeaderBlob) -> bytes | None:
    if state.schema is None or not state.explicit_partitions:
        return None
    content = {
        "format": stored.format,
        "header": bytes(stored.content),
        "schema": schema_to_bytes(state.schema),
        "table": state.table_name,
    }
    return packb(content)


def _list_archive(uuid: str, blobs: BlobStore) -> list[DatasetState]:
    """Snapshots of a dataset, oldest first."""
    snapshots = []
    folder = history_folder(uuid)
    for blob in blobs.list(folder):
        match = _NAME.fullmatch(blob.key.removeprefix(folder))
        if match is not None:
            time = datetime.strptime(match["time"], _TIME_FORMAT).replace(tzinfo=UTC)
            snapshots.append(DatasetState(int(match["version"]), time, False, blob.key))
    return sorted(snapshots)


def _snapshot_name(state: DatasetMetadata, blobs: BlobStore, header_key: str) -> str:
    """File name of the snapshot of a state: the same with and without tombstones."""
    version, time = snapshot_version(state, blobs, header_key)
    return f"{version:010d}-{time.strftime(_TIME_FORMAT)}-{fingerprint(state)}.state"


def list_snapshots(blobs: BlobStore, current: DatasetMetadata, header_key: str) -> list[DatasetState]:
    """Snapshots of a dataset without that of the current state, oldest first."""
    current_key = history_folder(current.uuid) + _snapshot_name(current, blobs, header_key)
    return [snapshot for snapshot in _list_archive(current.uuid, blobs) if snapshot.key != current_key]


def expired_snapshots(uuid: str, blobs: BlobStore) -> list[str]:
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
        blobs.delete(expired_snapshots(uuid, blobs))
    except (OSError, KeyError, ValueError):
        # The commit is published already, and the next commit or garbage collection expires them.
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
