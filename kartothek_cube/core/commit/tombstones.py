"""Tombstones: files that a garbage collection is deleting; no commit may refer to one of them.

They are kept where every commit of the dataset meets them by compare-and-swap: in the metadata of the
header. For a dataset without a header, each collection writes a tombstone file below ``<uuid>/_tombstones/``
before it looks for a header, and the first commit of a dataset lists them after it has put its header. At
least one of the two therefore sees the other.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from kartothek_cube.core import clock
from kartothek_cube.core.commit.header_store import attempts, header_format, read_versioned, retry_request
from kartothek_cube.core.errors import ConcurrentWriteError, KartothekCubeError, UnknownOutcomeError
from kartothek_cube.core.header import parse_header, parse_record
from kartothek_cube.core.naming import INDICES_DIRECTORY, TABLE_METADATA_FILE, TOMBSTONES_KEY, check_uuid
from kartothek_cube.core.store import BlobStore, PreconditionFailed

_DIRECTORY = "_tombstones"
_SUFFIX = ".json"
#: Tombstones of a collection that seems to be killed are kept this long: it may be slow, and a copy of a
#: dataset may write a file of the same name again.
_LIFETIME = timedelta(days=1)


def tombstone_name(key: str) -> str:
    """What identifies a file within its dataset: the last part of its key, which holds a UUID.

    >>> tombstone_name("sales/table/DAY=2020-01-01/2f1d.parquet")
    '2f1d.parquet'
    >>> tombstone_name("sales/indices/DAY/2020.by-dataset-index.parquet")
    'DAY/2020.by-dataset-index.parquet'
    """
    parts = key.split("/")
    # the name of an index file is a time and that of a schema is fixed: their directory makes them unique
    whole = parts[1:2] == [INDICES_DIRECTORY] or parts[-1] == TABLE_METADATA_FILE
    return "/".join(parts[-2:]) if whole else parts[-1]


def list_tombstoned_files(metadata: Mapping[str, Any]) -> set[str]:
    """Names of the files under deletion, according to the metadata of a header."""
    return {name for entry in tombstone_entries(metadata).values() for name in _names(entry)}


def add_tombstones(metadata: Mapping[str, Any], collection: str, keys: Iterable[str]) -> dict[str, Any]:
    """Metadata with the tombstones of files that a collection is about to delete."""
    return {**metadata, TOMBSTONES_KEY: {**tombstone_entries(metadata), collection: _entry(keys)}}


def remove_tombstones(
    metadata: Mapping[str, Any], collection: str, deleted: Collection[str]
) -> dict[str, Any]:
    """Metadata without the tombstones of a collection that has finished deleting these names."""
    # Those of another one, which was killed, are removed as well once they are old and all their files are
    # deleted: a file whose name holds a UUID is never written again.
    entries = {
        name: entry
        for name, entry in tombstone_entries(metadata).items()
        if name != collection and not (_is_old(entry) and _names(entry) <= set(deleted))
    }
    return inherit_tombstones(metadata, entries)


def inherit_tombstones(metadata: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with exactly these tombstones; every commit inherits those of the header that it replaces."""
    others = {key: value for key, value in metadata.items() if key != TOMBSTONES_KEY}
    return {**others, TOMBSTONES_KEY: dict(entries)} if entries else others


def tombstone_entries(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Tombstones in the metadata of a header, by collection."""
    entries = metadata.get(TOMBSTONES_KEY)
    return dict(entries) if isinstance(entries, dict) else {}


def _entry(keys: Iterable[str]) -> dict[str, Any]:
    now = clock.datetime_utcnow().isoformat()
    return {"since": now, "files": sorted({tombstone_name(key) for key in keys})}


def _names(entry: Any) -> set[str]:
    names = entry.get("files") if isinstance(entry, dict) else None
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _is_old(entry: Any) -> bool:
    try:
        return abs(clock.datetime_utcnow() - datetime.fromisoformat(entry["since"])) >= _LIFETIME
    except (TypeError, KeyError, ValueError):
        # written by other software: it protects nothing that this library wrote
        return True


# datasets without a header ---------------------------------------------------------------------------------


def put_tombstone_file(blobs: BlobStore, uuid: str, collection: str, keys: Iterable[str]) -> str:
    """Put the tombstones of files of a dataset without a header; return the key of their file."""
    check_uuid(uuid)
    key = f"{uuid}/{_DIRECTORY}/{collection}{_SUFFIX}"
    blobs.put(key, json.dumps(_entry(keys)).encode(), durable=True)
    return key


def is_tombstone_file(key: str) -> bool:
    """Whether a key of a dataset is that of a tombstone file."""
    return key.split("/")[1:-1] == [_DIRECTORY] and key.endswith(_SUFFIX)


def list_tombstone_files(blobs: BlobStore, uuid: str) -> dict[str, Any]:
    """Tombstones in files, by collection, as those in a header."""
    folder = f"{uuid}/{_DIRECTORY}/"
    entries = {}
    for blob in blobs.list(folder):
        if blob.key.endswith(_SUFFIX):
            # a file that is deleted since is that of a collection that has finished
            with suppress(KeyError):
                collection = blob.key.removeprefix(folder).removesuffix(_SUFFIX)
                entries[collection] = _parse(blobs.get(blob.key))
    return entries


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        # not written by this library, which puts the file in one piece
        return {}


#: entries in an answer of an object store to a listing
_PAGE = 1000


def check_files(
    blobs: BlobStore, uuid: str, files: Sequence[str], tombstones: Set[str], *, others: int = 0
) -> None:
    """Raise ConcurrentWriteError if a file of a commit is missing or has a tombstone."""
    # Called after the base was read and before the header is swapped: a collection that begins in between
    # changes the header, so that the swap fails.
    if tombstones:
        _refuse(uuid, [key for key in files if tombstone_name(key) in tombstones])
    _refuse(uuid, missing_files(blobs, uuid, files, others=others))


def missing_files(blobs: BlobStore, uuid: str, keys: Sequence[str], *, others: int = 0) -> list[str]:
    """Files of a dataset that do not exist; `others` is the number of its other files."""
    # local files cost less one by one; elsewhere it is the number of requests that counts
    if not blobs.is_local and len(keys) > 1 + (others + len(keys)) // _PAGE:
        stored = {blob.key for blob in blobs.list(f"{uuid}/")}
        keys = [key for key in keys if key not in stored]
    # a listing may be outdated
    return [key for key in keys if not blobs.exists(key)]


def confirm_first_commit(
    blobs: BlobStore, uuid: str, header_key: str, files: Sequence[str], commit: str
) -> set[str]:
    """Check the files of a first commit again, undo it if one is missing; return all tombstoned names."""
    # There was no header in which a garbage collection could have put tombstones. It puts a tombstone file,
    # then looks for a header, and spares the files of that header. So either it has seen the header, or its
    # tombstones are seen here. If it has finished already, files are missing: these are checked second.

    def check() -> set[str]:
        tombstones = list_tombstoned_files({TOMBSTONES_KEY: list_tombstone_files(blobs, uuid)})
        check_files(blobs, uuid, files, tombstones)
        return tombstones

    try:
        try:
            return retry_request(check)
        except ConcurrentWriteError:
            if retry_request(lambda: _undo_first_commit(blobs, header_key, commit)):
                raise
            # another commit is built on this one: it saw that no collection concerns these files, and any
            # that has begun since has seen the header
            return set()
    except KartothekCubeError:
        raise
    except Exception as error:
        raise UnknownOutcomeError(uuid, str(error)) from error


def _undo_first_commit(blobs: BlobStore, header_key: str, commit: str) -> bool:
    """Delete the header of a first commit; False if another commit is built on it."""
    for _ in attempts():
        content, token = read_versioned(blobs, header_key)
        if content is None:
            return True
        record = parse_record(parse_header(content, header_format(header_key), header_key))
        if record is None or record.unconfirmed != commit:
            return False
        try:
            blobs.delete_if(header_key, token)
        except PreconditionFailed:
            # tombstones of another collection came in between
            continue
        return True
    return False


def _refuse(uuid: str, missing: Sequence[str]) -> None:
    if missing:
        raise ConcurrentWriteError(
            uuid,
            detail=f"Files of this commit were deleted while it was under way, such as {missing[0]}: a "
            "cleanup or garbage collection ran at the same time. Write again, and give cleanups a retention. "
            "If none is running, one has died: run it again before you write.",
        )
