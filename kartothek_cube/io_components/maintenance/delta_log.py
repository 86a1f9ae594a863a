"""The Delta log of a published dataset: replay it, add a version, spare its files from garbage collection."""
# Rules of the Delta protocol that this module relies on: version N is the file ``<N>.json``, created once by
# put-if-absent; a version has one action per line; a checkpoint holds the state up to its version and is
# optional. Readers ignore other names in the directory.

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.naming import DELTA_LOG_DIRECTORY, check_uuid
from kartothek_cube.core.store import BlobStore, get_required
from kartothek_cube.core.uuid import gen_uuid

__all__ = (
    "Action",
    "LogState",
    "add_version",
    "data_key",
    "list_finished_stages",
    "list_log",
    "log_folder",
    "newest_record",
    "published_keys",
    "read_log",
    "stage_version",
    "table_path",
)

#: an action of the protocol, as its JSON
Action: TypeAlias = dict[str, Any]

#: what a ``commitInfo`` calls a publication
OPERATION = "PUBLISH"
#: versions from one checkpoint to the next: readers open at most so many JSON files
_CHECKPOINT_INTERVAL = 20
_VERSION = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_STAGES = "_staged/"
_STAGE = re.compile(_STAGES + r"(\d{20})\.[0-9a-f]+\.json")
_REMEDY = "delete the directory and publish the dataset again"
#: characters of a path that stay as they are; ``%`` of our labels becomes ``%25``
_SAFE = "/=_.-~"


@attrs.frozen
class LogState:
    """The newest version of a log."""

    #: -1 if there is none
    version: int = -1
    #: path to the ``add`` action of each file
    files: Mapping[str, Action] = attrs.field(factory=dict)
    metadata: Action | None = None
    protocol: Action | None = None
    #: what the newest version tells of the dataset; None if this library has not written it
    record: Mapping[str, str] | None = None


def log_folder(uuid: str) -> str:
    """Prefix of the keys of the log of a dataset."""
    check_uuid(uuid)
    return f"{uuid}/{DELTA_LOG_DIRECTORY}/"


def table_path(uuid: str, key: str) -> str:
    """Path of a data file in actions: relative to the table, URL-encoded.

    >>> table_path("sales", "sales/table/SHOP=K%C3%B6ln/0d34.parquet")
    'table/SHOP=K%25C3%25B6ln/0d34.parquet'
    """
    return quote(key.removeprefix(f"{uuid}/"), safe=_SAFE)


def data_key(uuid: str, path: str) -> str:
    """Reverse :func:`table_path`.

    >>> data_key("sales", "table/SHOP=K%25C3%25B6ln/0d34.parquet")
    'sales/table/SHOP=K%C3%B6ln/0d34.parquet'
    """
    return f"{uuid}/{unquote(path)}"


def list_log(blobs: BlobStore, uuid: str) -> list[str]:
    """Names of the files of a log, without the directory; empty if the dataset is not published."""
    folder = log_folder(uuid)
    return [blob.key.removeprefix(folder) for blob in blobs.list(folder)]


def _versions(names: Sequence[str], pattern: re.Pattern[str]) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def read_log(blobs: BlobStore, uuid: str, names: Sequence[str] | None = None) -> LogState:
    """Replay a log; raises CorruptDatasetError if a version is missing or malformed."""
    listed = list_log(blobs, uuid) if names is None else names
    versions = _versions(listed, _VERSION)
    checkpoints = _versions(listed, _CHECKPOINT)
    if not versions:
        return LogState()
    newest = versions[-1]
    # one of a version that is listed: its writer has put the version first
    start = max((number for number in checkpoints if number <= newest), default=-1)
    replay = _Replay()
    if start >= 0:
        for action in _read_checkpoint(blobs, _key(uuid, start, "checkpoint.parquet")):
            replay.apply(action)
    needed = range(start + 1, newest + 1)
    missing = sorted(set(needed) - set(versions))
    if missing:
        raise CorruptDatasetError(_key(uuid, missing[0]), f"this version is missing; {_REMEDY}")
    for number in needed:
        for action in _read_version(blobs, _key(uuid, number)):
            replay.apply(action)
    record = replay.record if newest > start else _record_of(_read_version(blobs, _key(uuid, newest)))
    return LogState(newest, replay.files, replay.metadata, replay.protocol, record)


class _Replay:
    def __init__(self) -> None:
        self.files: dict[str, Action] = {}
        self.metadata: Action | None = None
        self.protocol: Action | None = None
        self.record: Mapping[str, str] | None = None

    def apply(self, action: Action) -> None:
        if "add" in action:
            self.files[action["add"]["path"]] = action["add"]
        elif "remove" in action:
            self.files.pop(action["remove"]["path"], None)
        elif "metaData" in action:
            self.metadata = action["metaData"]
        elif "protocol" in action:
            self.protocol = action["protocol"]
        elif "commitInfo" in action:
            self.record = _record_of([action])


def _key(uuid: str, version: int, suffix: str = "json") -> str:
    return f"{log_folder(uuid)}{version:020d}.{suffix}"


def _read_version(blobs: BlobStore, key: str) -> list[Action]:
    try:
        actions = [json.loads(line) for line in get_required(blobs, key).splitlines() if line.strip()]
        if all(_is_action(action) for action in actions):
            return actions
    except ValueError:
        pass
    raise CorruptDatasetError(key, f"it is no version of a Delta log; {_REMEDY}")


def _is_action(action: Any) -> bool:
    if not isinstance(action, dict) or not all(isinstance(part, dict) for part in action.values()):
        return False
    return all(isinstance(action[n].get("path"), str) for n in ("add", "remove") if n in action)


def _record_of(actions: Sequence[Action]) -> Mapping[str, str] | None:
    """What the ``commitInfo`` of a version tells of the dataset; None if another library wrote it."""
    for action in actions:
        info = action.get("commitInfo", {})
        parameters = info.get("operationParameters")
        if info.get("operation") == OPERATION and isinstance(parameters, dict):
            return {name: value for name, value in parameters.items() if isinstance(value, str)}
    return None


def newest_record(blobs: BlobStore, uuid: str) -> tuple[str, int, Mapping[str, str] | None] | None:
    """Key and number of the newest version, and what it tells of the dataset; None without a version."""
    versions = _versions(list_log(blobs, uuid), _VERSION)
    if not versions:
        return None
    key = _key(uuid, versions[-1])
    return key, versions[-1], _record_of(_read_version(blobs, key))


# -- garbage collection ----------------------------------------------------------------------------------


def published_keys(blobs: BlobStore, uuid: str) -> set[str]:
    """Data files that a published table shows, or is about to show: garbage collection keeps them."""
    # Order matters: a publisher stages its files, then reads the header, then puts the version. A collection
    # writes tombstones into the header, then calls this. So either the files are seen here, or the
    # publisher has read a header of which no file has a tombstone.
    names = list_log(blobs, uuid)
    if not names:
        return set()
    paths = set(read_log(blobs, uuid, names).files)
    newest = max(_versions(names, _VERSION), default=-1)
    for name in names:
        match = _STAGE.fullmatch(name)
        if match is not None and int(match[1]) > newest:
            # Removed since: its version is listed next time, or was given up. Unreadable: its publisher died,
            # or has not read the header yet.
            with suppress(KeyError, CorruptDatasetError):
                actions = _read_version(blobs, log_folder(uuid) + name)
                paths.update(action["add"]["path"] for action in actions if "add" in action)
    if _versions(list_log(blobs, uuid), _VERSION)[-1:] != ([newest] if newest >= 0 else []):
        # another version since: a staged file may have become it between the two requests
        return published_keys(blobs, uuid)
    return {data_key(uuid, path) for path in paths}


def list_finished_stages(uuid: str, names: Sequence[str]) -> list[str]:
    """Keys of staged versions whose number is taken: they can become a version no more."""
    newest = max(_versions(names, _VERSION), default=-1)
    stages = [(name, _STAGE.fullmatch(name)) for name in names]
    return [log_folder(uuid) + name for name, match in stages if match and int(match[1]) <= newest]


# -- new versions ----------------------------------------------------------------------------------------


def stage_version(blobs: BlobStore, uuid: str, version: int, actions: Sequence[Action]) -> str:
    """Put a version under another name, so that no collection deletes its files; return the key."""
    key = f"{log_folder(uuid)}{_STAGES}{version:020d}.{gen_uuid()}.json"
    blobs.put(key, _to_lines(actions))
    return key


def add_version(blobs: BlobStore, uuid: str, state: LogState, actions: Sequence[Action]) -> LogState:
    """Put the next version; raises PreconditionFailed if another publisher was faster."""
    version = state.version + 1
    blobs.put_if(_key(uuid, version), _to_lines(actions), None)
    replay = _Replay()
    replay.files, replay.metadata, replay.protocol = dict(state.files), state.metadata, state.protocol
    for action in actions:
        replay.apply(action)
    new = LogState(version, replay.files, replay.metadata, replay.protocol, replay.record)
    if version and version % _CHECKPOINT_INTERVAL == 0:
        # the version is there: readers without the checkpoint open more files
        with suppress(OSError):
            _put_checkpoint(blobs, uuid, new)
    return new


def _to_lines(actions: Sequence[Action]) -> bytes:
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


_TEXT, _LONG, _MAP = pa.string(), pa.int64(), pa.map_(pa.string(), pa.string())
_CHECKPOINT_SCHEMA = pa.schema(
    [
        ("txn", pa.struct([("appId", _TEXT), ("version", _LONG), ("lastUpdated", _LONG)])),
        (
            "add",
            pa.struct(
                [
                    ("path", _TEXT),
                    ("partitionValues", _MAP),
                    ("size", _LONG),
                    ("modificationTime", _LONG),
                    ("dataChange", pa.bool_()),
                    ("stats", _TEXT),
                ]
            ),
        ),
        ("remove", pa.struct([("path", _TEXT), ("deletionTimestamp", _LONG), ("dataChange", pa.bool_())])),
        (
            "metaData",
            pa.struct(
                [
                    ("id", _TEXT),
                    ("name", _TEXT),
                    ("description", _TEXT),
                    ("format", pa.struct([("provider", _TEXT), ("options", _MAP)])),
                    ("schemaString", _TEXT),
                    ("partitionColumns", pa.list_(_TEXT)),
                    ("configuration", _MAP),
                    ("createdTime", _LONG),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(_TEXT)),
                    ("writerFeatures", pa.list_(_TEXT)),
                ]
            ),
        ),
    ]
)


def _put_checkpoint(blobs: BlobStore, uuid: str, state: LogState) -> None:
    # Without ``remove`` actions, which only VACUUM needs: this library collects the garbage of the dataset.
    adds = [{"add": {**add, "dataChange": False}} for add in state.files.values()]
    rows = [{"protocol": state.protocol}, {"metaData": state.metadata}, *adds]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, _CHECKPOINT_SCHEMA), sink, compression="snappy")
    # durable: readers prefer it to the versions
    key = _key(uuid, state.version, "checkpoint.parquet")
    blobs.put(key, sink.getvalue().to_pybytes(), durable=True)
    pointer = {"version": state.version, "size": len(rows)}
    blobs.put(f"{log_folder(uuid)}_last_checkpoint", json.dumps(pointer).encode(), durable=True)


def _read_checkpoint(blobs: BlobStore, key: str) -> list[Action]:
    try:
        content = io.BytesIO(get_required(blobs, key))
        table = pq.read_table(content, columns=["add", "metaData", "protocol"])
        rows = table.to_pylist(maps_as_pydicts="strict")
    except (pa.ArrowException, OSError) as error:
        raise CorruptDatasetError(
            key, f"the checkpoint of the Delta log is not readable ({error}); {_REMEDY}"
        ) from error
    return [{name: part} for row in rows for name, part in row.items() if part is not None]
