"""Maintenance of a dataset: which files are garbage, and its deletion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, timedelta
from functools import partial
from itertools import groupby
from typing import Any

from kartothek_cube.core import clock
from kartothek_cube.core.commit.backoff import attempts, retry_request
from kartothek_cube.core.commit.header_store import compare_and_swap_header, read_versioned, render
from kartothek_cube.core.commit.tombstones import (
    add_tombstones,
    is_tombstone_file,
    list_tombstone_files,
    put_tombstone_file,
    remove_tombstones,
    tombstone_entries,
    tombstone_name,
    tombstoned_files,
)
from kartothek_cube.core.cube.constants import KTK_CUBE_UUID_SEPARATOR
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import discover_datasets_unchecked
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.references import (
    data_keys,
    header_keys,
    index_keys,
    is_header_key,
    schema_keys,
    table_names,
)
from kartothek_cube.core.errors import ConcurrentWriteError, DatasetNotFoundError
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.header.commit_record import COMMIT_RECORD
from kartothek_cube.core.history import (
    KEEP_HISTORY,
    expired_snapshots,
    history_folder,
    is_snapshot_key,
    load_copy,
)
from kartothek_cube.core.naming import INDICES_DIRECTORY, TABLE_METADATA_FILE, TOMBSTONES_KEY
from kartothek_cube.core.store import Blob, BlobStore, PreconditionFailed, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.utils.ktk_adapters import get_dataset_keys

__all__ = (
    "delete_garbage",
    "finished_tombstones",
    "history_keys",
    "is_older",
    "list_cube_garbage",
    "list_garbage",
    "plan_cube_garbage",
    "plan_garbage",
    "retention_cutoff",
    "with_sizes",
)

#: how local stores name the file that will replace another one
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")


def plan_garbage(dataset: DatasetFactory, retention: timedelta | None = None) -> list[str]:
    """
    Keys in the directories of a dataset that it does not refer to.

    Parameters
    ----------
    dataset, retention
        As in :func:`list_garbage`.

    Returns
    -------
    list of str
        Sorted.

    Raises
    ------
    KeyError
        There is no such dataset.
    """
    return [blob.key for blob in list_garbage(dataset, retention)]


def list_garbage(
    dataset: DatasetFactory, retention: timedelta | None = None, *, history: bool = True
) -> list[Blob]:
    """
    Files in the directories of a dataset that neither it nor a kept state of it refers to.

    Parameters
    ----------
    dataset
        The dataset; it is read again after the keys are listed, so that what is committed meanwhile is kept.
    retention
        Files younger than this are no garbage: they may belong to a writer that has not committed yet. Files
        of unknown age count as young. None: age does not matter.
    history
        Whether older states of the dataset and their files are kept.

    Returns
    -------
    list of Blob
        Sorted by key.

    Raises
    ------
    KeyError
        There is no such dataset.
    CorruptDatasetError
        The copy of a state cannot be read, so that nobody knows which files it needs.
    """
    blobs, uuid = open_blobs(dataset.store_factory), dataset.dataset_uuid
    try:
        tables = table_names(dataset.dataset_metadata, blobs)
    except DatasetNotFoundError:
        found = _list_orphans(blobs, uuid, retention)
        if not found:
            raise
        return found
    limit = retention_cutoff(blobs, uuid, retention)
    found = [blob for folder in (INDICES_DIRECTORY, *tables) for blob in blobs.list(f"{uuid}/{folder}/")]
    current = _reload(dataset, blobs)
    if not current.explicit_partitions:
        found = [blob for blob in found if _is_internal(blob.key, uuid)]
    found += [blob for blob in blobs.list(f"{uuid}.") if _is_temporary(blob.key)]
    found += blobs.list(history_folder(uuid))
    tracked = {*data_keys(current), *index_keys(current), *schema_keys(current, blobs)}
    if history:
        tracked |= history_keys(uuid, blobs, [blob for blob in found if not is_older(blob, limit)])
    garbage = [blob for blob in found if blob.key not in tracked and is_older(blob, limit)]
    return sorted(garbage + finished_tombstones(blobs, uuid, garbage, limit))


def _list_orphans(blobs: BlobStore, uuid: str, retention: timedelta | None) -> list[Blob]:
    """What a deletion, a copy or a first write that died has left of a dataset without a header."""
    limit = retention_cutoff(blobs, uuid, retention)
    files = [blob for blob in blobs.list(f"{uuid}/") if "/" in blob.key.removeprefix(f"{uuid}/")]
    garbage = [blob for blob in files if not is_tombstone_file(blob.key) and is_older(blob, limit)]
    garbage += [blob for blob in blobs.list(f"{uuid}.") if _is_temporary(blob.key) and is_older(blob, limit)]
    return sorted(garbage + finished_tombstones(blobs, uuid, garbage, limit))


def finished_tombstones(
    blobs: BlobStore, uuid: str, garbage: Iterable[Blob], limit: float | None
) -> list[Blob]:
    """
    Tombstone files of collections that have died, if none of their files is left but ``garbage``.

    The files are listed after the tombstones were read: each was there when its tombstone was written.
    """
    entries = list_tombstone_files(blobs, uuid)
    if not entries:
        return []
    present = blobs.list(f"{uuid}/")
    left = {tombstone_name(blob.key) for blob in present} - {tombstone_name(blob.key) for blob in garbage}
    names = {name: tombstoned_files({TOMBSTONES_KEY: {name: entry}}) for name, entry in entries.items()}
    finished = {name for name, files in names.items() if not files & left}
    return [
        blob
        for blob in present
        if is_tombstone_file(blob.key)
        and is_older(blob, limit)
        and blob.key.rpartition("/")[2].partition(".")[0] in finished
    ]


def history_keys(uuid: str, blobs: BlobStore, young: Iterable[Blob] = ()) -> set[str]:
    """
    Keys of the copies of older states that are kept, and all files to which these refer.

    Parameters
    ----------
    uuid
        The dataset, which exists.
    blobs
        The store.
    young
        Files that stay whatever they are.

    Returns
    -------
    set of str

    Raises
    ------
    CorruptDatasetError
        A copy cannot be read.
    """
    expired = set(expired_snapshots(uuid, blobs)) - {blob.key for blob in young}
    keys = set()
    for blob in blobs.list(history_folder(uuid)):
        if blob.key in expired or _is_temporary(blob.key):
            continue
        keys.add(blob.key)
        if is_snapshot_key(blob.key):
            with suppress(KeyError):  # a commit has expired it meanwhile
                state = load_copy(uuid, blobs, blob.key)
                keys.update((*data_keys(state), *index_keys(state)))
    return keys


def _reload(dataset: DatasetFactory, blobs: BlobStore) -> DatasetMetadata:
    return DatasetMetadata.load_from_store(dataset.dataset_uuid, blobs, load_schema=False)


def _is_internal(key: str, uuid: str) -> bool:
    """Whether no user put this here: where files are the partitions, others may have put some."""
    return key.startswith(f"{uuid}/{INDICES_DIRECTORY}/") or _is_temporary(key)


def _is_temporary(key: str) -> bool:
    """Whether a writer to a local directory left this when it died."""
    return _TEMPORARY.search(key) is not None


def delete_garbage(store: StoreInput, keys: Iterable[str]) -> None:
    """
    Delete garbage, unless it has been committed meanwhile.

    A writer may be about to commit a file, however old it is. So tombstones name the files from before their
    deletion until they are gone: the commit of one of them is refused, whenever it comes. They are in the
    header of the dataset; where there is none, in a file (:mod:`kartothek_cube.core.commit.tombstones`).

    Parameters
    ----------
    store
        Store, factory or URL.
    keys
        What was found to be garbage. Headers are never deleted.

    Raises
    ------
    ConcurrentWriteError
        Others were faster again and again; files may be left.
    """
    blobs, keys = open_blobs(store), sorted(key for key in keys if not is_header_key(key))
    for uuid, own in groupby(keys, key=_dataset_of):
        if uuid is None:
            # temporary files of local stores, which have unique names
            blobs.delete(list(own))
        else:
            # a repetition finds what is left, under the same tombstones
            collection, files = gen_uuid(), list(own)
            retry_request(partial(_delete_files, blobs, uuid, collection, files))


def _dataset_of(key: str) -> str | None:
    """The dataset of a file; None for what lies at the top, which is left from a header."""
    uuid, separator, _ = key.partition("/")
    return uuid if separator else None


def _delete_files(blobs: BlobStore, uuid: str, collection: str, keys: Sequence[str]) -> None:
    for _ in attempts():
        state = None
        with suppress(DatasetNotFoundError):
            state = _edit_tombstones(
                blobs, uuid, lambda s: add_tombstones(s.metadata, collection, _unused(s, keys, blobs))
            )
        if state is not None:
            return _delete_tombstoned(blobs, uuid, collection, _unused(state, keys, blobs))
        if _delete_orphans(blobs, uuid, collection, keys):
            return None
    raise ConcurrentWriteError(uuid)


def _delete_tombstoned(blobs: BlobStore, uuid: str, collection: str, keys: Sequence[str]) -> None:
    """Delete files that have tombstones in the header, then the tombstones."""
    # if this fails, a deletion may still be under way: the tombstones have to stay
    blobs.delete(keys)
    names = {tombstone_name(key) for key in keys}
    with suppress(DatasetNotFoundError):
        _edit_tombstones(blobs, uuid, lambda s: remove_tombstones(s.metadata, collection, names))


def _unused(state: DatasetMetadata, keys: Sequence[str], blobs: BlobStore) -> list[str]:
    """The keys to which a state does not refer."""
    used = {*data_keys(state), *index_keys(state), *schema_keys(state, blobs)}
    return [key for key in keys if key not in used]


def _edit_tombstones(
    blobs: BlobStore, uuid: str, change: Callable[[DatasetMetadata], dict[str, Any]]
) -> DatasetMetadata:
    """
    Change the tombstones in the newest header; give the state.

    The new header has an id of its own, as any commit: a writer that has read an older one must notice.
    """
    for _ in attempts():
        state, key, token, header = DatasetMetadata.load_with_token(uuid, blobs, load_schema=False)
        metadata = change(state)
        if metadata == state.metadata:
            return state
        record = state.extra.get(COMMIT_RECORD)
        extra = (
            state.extra
            if record is None
            else {**state.extra, COMMIT_RECORD: {**record, "commit": gen_uuid()}}
        )
        new = render(state.copy(metadata=metadata, extra=extra), key)
        try:
            compare_and_swap_header(blobs, uuid, key, new, header, token)
        except PreconditionFailed:
            continue
        return state
    raise ConcurrentWriteError(uuid)


def _delete_orphans(blobs: BlobStore, uuid: str, collection: str, keys: Sequence[str]) -> bool:
    """
    Delete files of a dataset without a header; False if there is one now, and nothing was deleted.

    The order matters: a first commit puts the schema, then the header, and then looks for tombstone files. If
    there is no header after the tombstones were put, that commit will see them, and put another version of
    the schema, which is not the one that was read here before.
    """
    tombstones = put_tombstone_file(blobs, uuid, collection, keys)
    schemas = [key for key in keys if key.endswith(f"/{TABLE_METADATA_FILE}")]
    versions = {key: read_versioned(blobs, key) for key in schemas}
    if any(blobs.exists(key) for key in header_keys(uuid)):
        retry_request(lambda: blobs.delete([tombstones]))
        return False
    # tombstones of earlier collections go last: what they are about may be among the other files
    last = [key for key in keys if is_tombstone_file(key)]
    blobs.delete([key for key in keys if key not in versions and key not in last])
    for key, (content, token) in versions.items():
        if content is not None:
            # written again by a first commit, which needs it
            with suppress(PreconditionFailed):
                blobs.delete_if(key, token)
    _remove_from_header(blobs, uuid, collection)
    # alone: a repetition of all would use tombstones of its own, and leave these for a day
    retry_request(lambda: blobs.delete([*last, tombstones]))
    return True


def _remove_from_header(blobs: BlobStore, uuid: str, collection: str) -> None:
    """Remove tombstones that a commit has taken over from their file."""
    with suppress(DatasetNotFoundError):
        state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
        if collection in tombstone_entries(state.metadata):
            _edit_tombstones(blobs, uuid, lambda s: remove_tombstones(s.metadata, collection, set()))


def retention_cutoff(blobs: BlobStore, prefix: str, retention: timedelta | None) -> float | None:
    """
    The time before which a file has to be written to be older than a retention.

    The store stamps files with its own clock, which may differ from ours by hours. So its clock is read: by
    writing an empty file, looking at its stamp, and deleting it. Where that is not possible, because the
    store is read-only or tells no times, our clock has to do.

    Parameters
    ----------
    blobs
        The store.
    prefix
        What the key of that file begins with.
    retention
        Files younger than this are not old; None: age does not matter.

    Returns
    -------
    float or None
        Seconds since 1970, UTC, comparable with :attr:`~kartothek_cube.core.store.Blob.mtime`.

    Raises
    ------
    ValueError
        The retention is negative.
    TypeError
        It is no timedelta.
    """
    if retention is None:
        return None
    if not isinstance(retention, timedelta):
        raise TypeError(f"retention is a datetime.timedelta, such as timedelta(hours=24), not {retention!r}")
    if retention < timedelta(0):
        raise ValueError(f"retention is the age below which files stay, so it can't be negative: {retention}")
    return _clock(blobs, f"{prefix}.{gen_uuid()}.tmp") - retention.total_seconds()


def _clock(blobs: BlobStore, key: str) -> float:
    ours = clock.datetime_utcnow().replace(tzinfo=UTC).timestamp()
    try:
        blobs.put(key, b"")
        try:
            found = [blob.mtime for blob in blobs.list(key) if blob.key == key]
        finally:
            blobs.delete([key])
    except OSError:
        return ours
    return ours if not found or found[0] is None else found[0]


def with_sizes(blobs: BlobStore, found: Iterable[Blob]) -> list[Blob]:
    """
    Entries of a listing with their sizes, also where the store does not tell these in listings.

    Parameters
    ----------
    blobs
        The store.
    found
        The entries.

    Returns
    -------
    list of Blob
        Without those that are gone.
    """
    result = []
    for blob in found:
        with suppress(KeyError):
            result.append(blob if blob.size is not None else blob._replace(size=blobs.size(blob.key)))
    return result


def is_older(blob: Blob, limit: float | None) -> bool:
    """
    Whether a file is older than a limit; one of unknown age is not.

    Parameters
    ----------
    blob
        Entry of a listing.
    limit
        From :func:`retention_cutoff`; None: age does not matter.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_older(Blob("sales/table/a1.parquet", mtime=100.0), limit=200.0)
    True
    """
    return limit is None or (blob.mtime is not None and blob.mtime <= limit)


# -- delete and clean up ---------------------------------------------------------------------------


def plan_cube_garbage(cube: Cube, store: StoreInput, retention: timedelta | None = None) -> list[str]:
    """
    Keys with the prefix of a cube that none of its readable datasets refers to.

    Parameters
    ----------
    cube, store, retention
        As in :func:`list_garbage`.

    Returns
    -------
    list of str
        Sorted.
    """
    return [blob.key for blob in list_cube_garbage(cube, store, retention)]


def list_cube_garbage(cube: Cube, store: StoreInput, retention: timedelta | None = None) -> list[Blob]:
    """
    Files with the prefix of a cube to which no readable dataset, and no kept state of one, refers.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    retention
        Files younger than this are no garbage: they may belong to a writer that has not committed yet. Files
        of unknown age count as young. None: age does not matter.

    Returns
    -------
    list of Blob
        Sorted by key.

    Raises
    ------
    CorruptDatasetError
        A header, or the copy of an older state, cannot be read.
    """
    ensure_cube(cube)
    blobs = open_blobs(store)
    prefix = cube.uuid_prefix + KTK_CUBE_UUID_SEPARATOR
    limit = retention_cutoff(blobs, prefix, retention)
    # before the headers: what is committed later is not in the list
    found = blobs.list(prefix)
    tracked: set[str] = set()
    # without schemas: one that is missing makes no garbage of the rest
    datasets = discover_datasets_unchecked(cube.uuid_prefix, blobs, load_schema=False)
    for dataset in datasets.values():
        uuid = dataset.uuid
        tracked.update((*get_dataset_keys(dataset), *schema_keys(dataset, blobs)))
        if KEEP_HISTORY in dataset.metadata or any(b.key.startswith(history_folder(uuid)) for b in found):
            young = [b for b in found if not is_older(b, limit) and b.key.startswith(history_folder(uuid))]
            tracked |= history_keys(uuid, blobs, young)
    garbage = [
        blob
        for blob in found
        if not (blob.key in tracked or is_header_key(blob.key) or is_tombstone_file(blob.key))
        and is_older(blob, limit)
    ]
    for uuid in sorted({blob.key.partition("/")[0] for blob in found if is_tombstone_file(blob.key)}):
        garbage += finished_tombstones(blobs, uuid, garbage, limit)
    return sorted(garbage)


# -- stats -----------------------------------------------------------------------------------------


# -- copy ------------------------------------------------------------------------------------------
