"""Copies of the headers that were replaced: put, listed, thrown away, loaded."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from kartothek_cube.core.common_metadata import schema_from_bytes, schema_to_bytes
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.loading import HeaderBlob, read_header
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.header import codec
from kartothek_cube.core.header.parse import parse_header
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
    "is_snapshot_key",
    "archive_snapshot",
    "load_copy",
    "older_states",
    "expired_snapshots",
    "expire_snapshots",
)

_STAMP = "%Y%m%dT%H%M%S%fZ"
_NAME = re.compile(r"(?P<version>\d{10})-(?P<time>\d{8}T\d{12}Z)-(?P<digest>[0-9a-f]{16})\.state")


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


def history_folder(uuid: str) -> str:
    """
    What the keys of the history of a dataset begin with.

    Parameters
    ----------
    uuid
        The dataset.

    Returns
    -------
    str
    """
    check_uuid(uuid)
    return f"{uuid}/{HISTORY_DIRECTORY}/"


def is_snapshot_key(key: str) -> bool:
    """
    Whether a key in the history of a dataset is that of a copy.

    Parameters
    ----------
    key
        The key.

    Returns
    -------
    bool
    """
    return _NAME.fullmatch(key.rpartition("/")[2]) is not None


def archive_snapshot(blobs: BlobStore, state: DatasetMetadata, stored: HeaderBlob) -> str | None:
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

    Returns
    -------
    str or None
        Key of the snapshot.
    """
    if state.schema is None or not state.explicit_partitions:
        return None
    content = {
        "format": stored.format,
        "header": bytes(stored.content),
        "schema": schema_to_bytes(state.schema),
        "table": state.table_name,
    }
    key = history_folder(state.uuid) + _name(state, blobs, stored.key)
    blobs.put(key, codec.packb(content), durable=True)
    return key


def _copies(uuid: str, blobs: BlobStore) -> list[DatasetState]:
    """Copies of states, oldest first."""
    found = []
    folder = history_folder(uuid)
    for blob in blobs.list(folder):
        match = _NAME.fullmatch(blob.key.removeprefix(folder))
        if match is not None:
            time = datetime.strptime(match["time"], _STAMP).replace(tzinfo=UTC)
            found.append(DatasetState(int(match["version"]), time, False, blob.key))
    return sorted(found)


def _name(state: DatasetMetadata, blobs: BlobStore, header_key: str) -> str:
    """Name of the copy of a state: the same whether or not its header has tombstones."""
    version, time = snapshot_version(state, blobs, header_key)
    return f"{version:010d}-{time.strftime(_STAMP)}-{fingerprint(state)}.state"


def older_states(blobs: BlobStore, current: DatasetMetadata, header_key: str) -> list[DatasetState]:
    """The states of a dataset of which there are copies, oldest first, without the current one."""
    own = history_folder(current.uuid) + _name(current, blobs, header_key)
    return [copy for copy in _copies(current.uuid, blobs) if copy.key != own]


def expired_snapshots(uuid: str, blobs: BlobStore) -> list[str]:
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
    current = DatasetMetadata.load_from_header(stored, uuid, blobs)
    if KEEP_HISTORY not in current.metadata:
        return []
    older = older_states(blobs, current, stored.key)
    return sorted(copy.key for copy in older[: max(len(older) - snapshot_retention(current.metadata), 0)])


def expire_snapshots(uuid: str, blobs: BlobStore) -> None:
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
        blobs.delete(expired_snapshots(uuid, blobs))
    except (OSError, KeyError, ValueError):
        # the commit before is there; a header that another library has damaged since is not its failure
        return


def load_copy(uuid: str, blobs: BlobStore, key: str) -> DatasetMetadata:
    """
    Load a state out of its copy.

    Parameters
    ----------
    uuid
        The dataset.
    blobs
        The store.
    key
        Key of the copy.

    Returns
    -------
    DatasetMetadata
        With its schema.

    Raises
    ------
    KeyError
        There is no such copy (any more).
    CorruptDatasetError
        It is damaged.
    """
    content = blobs.get(key)
    try:
        parts = codec.unpackb(content)
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
