"""Headers and schema files in the store: base of a commit, compare-and-swap, restore, delete, tombstones.

Tombstones are files that a garbage collection is deleting; no commit may refer to one of them. They are kept
where every commit of the dataset meets them by compare-and-swap: in the metadata of the header. For a dataset
without a header, each collection writes a tombstone file below ``<uuid>/_tombstones/`` before it looks for a
header, and the first commit of a dataset lists them after it has put its header. At least one of the two
therefore sees the other.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import attrs

from kartothek_cube.core import clock, dataset_files, errors, history, naming
from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBase
from kartothek_cube.core.header import COMMIT_RECORD, CommitRecord, Participation, parse_header, parse_record
from kartothek_cube.core.store import BlobStore, FlushError, PreconditionFailed
from kartothek_cube.core.uuid import gen_uuid

T = TypeVar("T")

#: attempts before a writer gives up against faster ones; with the pauses below this is about a minute
_ATTEMPTS = 60
_LONGEST_PAUSE_S = 2.0
#: stores repeat requests themselves; this is for errors that remain
_REPETITIONS = 3
_PAUSE_S = 0.1


def attempts() -> Iterator[int]:
    """Count attempts, with a pause before each but the first that grows and is random."""
    # random, so that writers that met once do not meet again
    yield 0
    for attempt in range(1, _ATTEMPTS):
        clock.sleep(min(_LONGEST_PAUSE_S, 0.005 * 1.5 ** (attempt - 1)) * random.random())
        yield attempt


def retry_request(request: Callable[[], T]) -> T:
    """Repeat a request that fails, a few times."""
    # For requests after a successful commit: a lost one must not turn it into an error. As in all modules
    # of this package, a failure is any error but those below: not all stores raise an OSError.
    for attempt in range(_REPETITIONS):
        if attempt:
            clock.sleep(_PAUSE_S * attempt)
        try:
            return request()
        except (PreconditionFailed, errors.KartothekCubeError, KeyError):
            raise
        except Exception as error:
            failure = error
    raise failure


def header_format(key: str) -> str:
    """The format of the header at a key."""
    return "json" if key.endswith(".json") else "msgpack"


def render(state: DatasetMetadataBase, key: str) -> bytes:
    """Render the header of a state in the format of its key."""
    return state.to_json() if header_format(key) == "json" else state.to_msgpack()


def read_versioned(blobs: BlobStore, key: str) -> tuple[bytes | None, Any]:
    """Content and version of a blob; None for both if there is none."""
    with suppress(KeyError):
        return blobs.get_with_token(key)
    return None, None


def compare_and_swap_header(
    blobs: BlobStore, uuid: str, key: str, content: bytes, old: bytes | None, token: Any
) -> Any:
    """Put a header if the stored one is that which was read; return its version."""
    try:
        return blobs.put_if(key, content, token)
    except PreconditionFailed:
        stored, version = read_versioned(blobs, key)
        if stored != content:
            raise
        # the client repeated a request whose answer was lost: our header is the stored one
        return version
    except FlushError as failure:
        # to find our header there proves nothing: it may be gone after a power failure
        raise errors.UnknownOutcomeError(uuid, str(failure)) from failure
    except Exception as failure:
        try:
            stored, version = read_versioned(blobs, key)
        except Exception:
            raise errors.UnknownOutcomeError(uuid, str(failure)) from failure
        if stored == content:
            # only the answer was lost
            return version
        # to a request that it has refused, a store has given an answer
        is_answer = blobs.is_local or isinstance(failure, PermissionError)
        if stored == old and (is_answer or _fence(blobs, uuid, key, old, token)):
            raise
        # ours may have been there before the one of another writer, or may still arrive
        raise errors.UnknownOutcomeError(uuid, str(failure)) from failure


def _fence(blobs: BlobStore, uuid: str, key: str, old: bytes | None, token: Any) -> bool:
    """Give a header another version, so that a put without an answer is refused should it arrive later."""
    # The caller undoes what belongs to its header, and deletes files that it names. A server may yet apply a
    # request that the client has given up, and its condition, the version that was read, would hold.
    if not naming.is_header_key(key):
        # a schema file that arrives late holds the schema before as well
        return True
    if old is None:
        return False
    # whatever the store raises, it is unknown then which of the headers is there
    with suppress(Exception):
        stored = dataset_files.HeaderBlob(key, old, header_format(key), token)
        content = render(_with_new_id(DatasetMetadata.load_from_header(stored, uuid, blobs)), key)
        if content != old:
            blobs.put_if(key, content, token)
            return True
    return False


def _with_new_id(state: DatasetMetadata) -> DatasetMetadata:
    """The same state as another commit; a writer that has read an older header notices."""
    record = state.extra.get(COMMIT_RECORD)
    if record is None:
        return state
    return state.copy(extra={**state.extra, COMMIT_RECORD: {**record, "commit": gen_uuid()}})


def edit_header(
    blobs: BlobStore, uuid: str, change: Callable[[DatasetMetadata], DatasetMetadata | None]
) -> DatasetMetadata:
    """Change fields of the newest header by compare-and-swap; None from `change` leaves it as it is."""
    for _ in attempts():
        stored = dataset_files.read_header(uuid, blobs, with_token=True)
        state = DatasetMetadata.load_from_header(stored, uuid, blobs)
        new = change(state)
        if new is None:
            return state
        if COMMIT_RECORD not in state.extra:
            # the version of a state of other software depends on the time of its header, which is put again
            own = parse_record(new.extra) or CommitRecord(gen_uuid(), lineage=gen_uuid(), interrupted=True)
            version = history.note_version(state, blobs, stored.key)
            new = new.copy(extra={**new.extra, COMMIT_RECORD: attrs.evolve(own, version=version).to_field()})
        header = render(_with_new_id(new), stored.key)
        # if another writer was faster: decide again on its state
        with suppress(PreconditionFailed):
            compare_and_swap_header(blobs, uuid, stored.key, header, stored.content, stored.token)
            return state
    raise errors.ConcurrentWriteError(uuid)


def other_header_key(uuid: str, key: str) -> str:
    """The key of the header in the other format."""
    return next(other for other in naming.header_keys(uuid) if other != key)


def is_outdated(content: bytes, key: str, state: DatasetMetadataBase) -> bool:
    """Whether a header is in msgpack, and other software has updated it to this state in JSON."""
    if key.endswith(".json"):
        return False
    # an update keeps the time of creation, which overwriting changes
    outdated = DatasetMetadata.from_buffer(content, header_format(key))
    return bool(outdated.metadata["creation_time"] == state.metadata["creation_time"])


def delete_header(blobs: BlobStore, key: str, unless: Iterable[str] = ()) -> None:
    """Delete the newest version of a header, unless there is none, or a blob of `unless` exists."""
    # By condition also here: a plain deletion that arrives late would meet a blob that was put since.
    failures, lineage = 0, None
    for _ in attempts():
        content, token = retry_request(partial(read_versioned, blobs, key))
        if content is None or (failures and _lineage(content, key) != lineage):
            # only the answer was lost; the header of a dataset that was created since stays
            return
        if any(retry_request(partial(blobs.exists, other)) for other in unless):
            return
        try:
            blobs.delete_if(key, token)
        except PreconditionFailed:
            continue
        except Exception:
            failures, lineage = failures + 1, _lineage(content, key)
            if failures == _REPETITIONS:
                raise
            continue
        return
    raise errors.ConcurrentWriteError(key)


def _lineage(content: bytes, key: str) -> str | None:
    """The lineage in a header: that of a dataset which is deleted and created again is another one."""
    with suppress(errors.CorruptDatasetError):
        record = parse_record(parse_header(content, header_format(key), key))
        return None if record is None else record.lineage
    return None


def delete_headers(blobs: BlobStore, uuid: str, unless: Collection[str] = ()) -> None:
    """Delete a dataset by its header, in both formats, unless a blob of `unless` exists."""
    # JSON last: it wins over the other format, so that readers never see an older state in between.
    for key in reversed(naming.header_keys(uuid)):
        delete_header(blobs, key, unless)


def restore_header(blobs: BlobStore, key: str, put: bytes, old: bytes | None) -> bool:
    """Put back the replaced header if the stored one is still ours; False if it is another writer's."""
    stored, token = read_versioned(blobs, key)
    if stored != put:
        return stored == old
    # if another writer is faster, it is no longer ours
    with suppress(PreconditionFailed):
        if old is None:
            blobs.delete_if(key, token)
        else:
            blobs.put_if(key, old, token)
        return True
    return False


# -- states -------------------------------------------------------------------------------------------------


@attrs.frozen
class BaseState:
    """The newest state of a dataset and how it is stored."""

    uuid: str
    table: str
    #: key of the new header, and the version of the blob at it
    header_key: str
    token: Any
    #: the stored header; None if there is none
    old: dataset_files.HeaderBlob | None
    #: the state to build on: that of the stored header, or the one before an aborted operation; None if there
    #: is none, or none that can be read
    state: DatasetMetadata | None
    #: content and version of the schema file
    schema: bytes | None
    schema_token: Any
    #: content of the stored header, whatever the state to build on
    stored: DatasetMetadata | None = None
    #: the commit record in it; None if it has none
    record: CommitRecord | None = None
    #: the participation that a new header inherits
    participation: Participation | None = None
    #: that in an aborted operation, if the state to build on is the one before it
    aborted: Participation | None = None

    @property
    def header(self) -> bytes | None:
        """Content of the stored header."""
        return None if self.old is None else self.old.content

    @property
    def schema_key(self) -> str:
        """Key of the schema file."""
        return naming.schema_key(self.uuid, self.table)

    @property
    def is_confirmed(self) -> bool:
        """Whether the header holds the tombstones of all collections that may concern this dataset."""
        return self.state is not None and (self.record is None or self.record.unconfirmed is None)


@attrs.frozen
class CommitReceipt:
    """Old and new header and schema of a commit: enough to undo it."""

    base: BaseState
    #: content and version of the new header
    header: bytes
    token: Any
    #: content of the schema file, if the commit wrote it
    schema: bytes | None
    state: DatasetMetadata
    #: key of the archived state before, if the commit is part of an operation on several datasets
    before: str = ""
    #: header to put in place of the new one once that operation is committed; empty for the same, settled
    final: bytes = b""
    #: rows that the commit has added, for hooks; None if that is not known
    rows: int | None = None
    #: whether the base is the new state, as the answer to the commit was lost
    is_landed: bool = False


def read_optional_base(blobs: BlobStore, uuid: str, table: str, header_key: str) -> BaseState:
    """Read a dataset, which may be absent, in order to change it or to put a first header at a given key."""
    # the schema before its header: a schema file that is newer than the header still knows its schema
    schema = read_versioned(blobs, naming.schema_key(uuid, table))
    try:
        old = dataset_files.read_header(uuid, blobs, with_token=True)
    except errors.DatasetNotFoundError:
        return BaseState(uuid, table, header_key, None, None, None, *schema)
    record = parse_record(dataset_files.parse_header_shared(old, uuid).header)
    if record is not None and record.reserved:
        # no dataset, but the first header takes the place of this one
        reserved = DatasetMetadata.load_from_header(old, uuid, blobs)
        return BaseState(uuid, table, old.key, old.token, old, None, *schema, reserved, record)
    # shared with the planner and with readers: a change makes a new state
    stored = DatasetMetadata.shared_from_header(old, uuid, blobs)
    participation = None if record is None else record.participation
    return BaseState(uuid, table, old.key, old.token, old, stored, *schema, stored, record, participation)


def read_replaced_base(blobs: BlobStore, uuid: str, table: str, header_key: str) -> BaseState:
    """Read a dataset, which may be absent or damaged, in order to put another header at a given key."""
    try:
        base = read_optional_base(blobs, uuid, table, header_key)
    except (errors.CorruptDatasetError, KeyError, NotImplementedError):
        # overwriting is how a user repairs a damaged dataset, or one of a version that cannot be read
        schema = read_versioned(blobs, naming.schema_key(uuid, table))
        content, token = read_versioned(blobs, header_key)
        old = None
        if content is not None:
            old = dataset_files.HeaderBlob(header_key, content, header_format(header_key), token)
        return BaseState(uuid, table, header_key, token, old, None, *schema)
    if base.header_key == header_key:
        return base
    return attrs.evolve(base, header_key=header_key, token=read_versioned(blobs, header_key)[1])


# -- tombstones ----------------------------------------------------------------------------------------------

_DIRECTORY = "_tombstones"
_SUFFIX = ".json"
#: Tombstones of a collection that seems to be killed are kept this long: it may be slow, and a copy of a
#: dataset may write a file of the same name again.
_LIFETIME = timedelta(days=1)


def tombstone_name(key: str) -> str:
    """Identity of a file within its dataset: the last part of its key, which holds a UUID.

    >>> tombstone_name("sales/table/DAY=2020-01-01/2f1d.parquet")
    '2f1d.parquet'
    >>> tombstone_name("sales/indices/DAY/2020.by-dataset-index.parquet")
    'DAY/2020.by-dataset-index.parquet'
    """
    parts = key.split("/")
    # the name of an index file is a time and that of a schema is fixed: their directory makes them unique
    whole = parts[1:2] == [naming.INDICES_DIRECTORY] or parts[-1] == naming.TABLE_METADATA_FILE
    return "/".join(parts[-2:]) if whole else parts[-1]


def list_tombstoned_files(metadata: Mapping[str, Any]) -> set[str]:
    """Names of the files under deletion, according to the metadata of a header."""
    return {name for entry in tombstone_entries(metadata).values() for name in _names(entry)}


def add_tombstones(metadata: Mapping[str, Any], collection: str, keys: Iterable[str]) -> dict[str, Any]:
    """Metadata with the tombstones of files that a collection is about to delete."""
    return {**metadata, naming.TOMBSTONES_KEY: {**tombstone_entries(metadata), collection: _entry(keys)}}


def remove_tombstones(metadata: Mapping[str, Any], collection: str, deleted: Set[str]) -> dict[str, Any]:
    """Metadata without the tombstones of a collection that has finished deleting these names."""
    # Those of another one, which was killed, are removed as well once they are old and all their files are
    # deleted: a file whose name holds a UUID is never written again.
    others = {name: entry for name, entry in tombstone_entries(metadata).items() if name != collection}
    done = {name for name, entry in others.items() if _is_old(entry) and _names(entry) <= deleted}
    return inherit_tombstones(metadata, {name: others[name] for name in others if name not in done})


def inherit_tombstones(metadata: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with exactly these tombstones; every commit inherits those of the header that it replaces."""
    others = {key: value for key, value in metadata.items() if key != naming.TOMBSTONES_KEY}
    return {**others, naming.TOMBSTONES_KEY: dict(entries)} if entries else others


def tombstone_entries(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Tombstones in the metadata of a header, by collection."""
    entries = metadata.get(naming.TOMBSTONES_KEY)
    return dict(entries) if isinstance(entries, dict) else {}


def _entry(keys: Iterable[str]) -> dict[str, Any]:
    return {"since": clock.datetime_utcnow().isoformat(), "files": sorted(set(map(tombstone_name, keys)))}


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
    naming.check_uuid(uuid)
    key = f"{uuid}/{_DIRECTORY}/{collection}{_SUFFIX}"
    blobs.put(key, json.dumps(_entry(keys)).encode(), durable=True)
    return key


def is_tombstone_file(key: str) -> bool:
    """Whether a key of a dataset is that of a tombstone file."""
    return key.split("/")[1:-1] == [_DIRECTORY] and key.endswith(_SUFFIX)


def list_tombstone_files(blobs: BlobStore, uuid: str) -> dict[str, Any]:
    """Tombstones in files, by collection, as those in a header."""
    folder = f"{uuid}/{_DIRECTORY}/"
    entries: dict[str, Any] = {}
    for key in [blob.key for blob in blobs.list(folder) if blob.key.endswith(_SUFFIX)]:
        collection = key.removeprefix(folder).removesuffix(_SUFFIX)
        try:
            entries[collection] = json.loads(blobs.get(key))
        except KeyError:
            # deleted since: that of a collection that has finished
            continue
        except (ValueError, RecursionError):
            # not written by this library, which puts the file in one piece
            entries[collection] = {}
    return entries


#: entries in an answer of an object store to a listing
_PAGE = 1000


def check_files(
    blobs: BlobStore, uuid: str, files: Sequence[str], tombstones: Set[str], *, others: int = 0
) -> None:
    """Raise ConcurrentWriteError if a file of a commit is missing or has a tombstone."""
    # Called after the base was read and before the header is swapped: a collection that begins in between
    # changes the header, so that the swap fails.
    missing = [key for key in files if tombstone_name(key) in tombstones] if tombstones else []
    missing = missing or missing_files(blobs, uuid, files, others=others)
    if missing:
        raise errors.ConcurrentWriteError(
            uuid,
            detail=f"Files of this commit were deleted while it was under way, such as {missing[0]}: a "
            "cleanup or garbage collection ran at the same time. Write again, and give cleanups a retention. "
            "If none is running, one has died: run it again before you write.",
        )


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
        tombstones = list_tombstoned_files({naming.TOMBSTONES_KEY: list_tombstone_files(blobs, uuid)})
        check_files(blobs, uuid, files, tombstones)
        return tombstones

    try:
        try:
            return retry_request(check)
        except errors.ConcurrentWriteError:
            if retry_request(lambda: _undo_first_commit(blobs, header_key, commit)):
                raise
            # another commit is built on this one: it saw that no collection concerns these files, and any
            # that has begun since has seen the header
            return set()
    except errors.KartothekCubeError:
        raise
    except Exception as error:
        raise errors.UnknownOutcomeError(uuid, str(error)) from error


def _undo_first_commit(blobs: BlobStore, header_key: str, commit: str) -> bool:
    """Delete the header of a first commit; False if another commit is built on it."""
    for _ in attempts():
        content, token = read_versioned(blobs, header_key)
        if content is None:
            return True
        record = parse_record(parse_header(content, header_format(header_key), header_key))
        if record is None or record.unconfirmed != commit:
            return False
        # tombstones of another collection may come in between
        with suppress(PreconditionFailed):
            blobs.delete_if(header_key, token)
            return True
    return False
