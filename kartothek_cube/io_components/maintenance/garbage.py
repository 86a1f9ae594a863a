"""Deletion of datasets and cubes; garbage collection: delete unreferenced files under tombstones."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import UTC, timedelta
from functools import partial
from itertools import chain, groupby
from typing import Any, Generic

import attrs

from kartothek_cube.core import arguments, clock, dataset_files, errors, header, history, naming
from kartothek_cube.core.commit import atomic, header_store, operation
from kartothek_cube.core.commit.change import is_staged_committed
from kartothek_cube.core.cube import constants, discover
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.store import Blob, BlobStore, StoreFactory, StoreInput, blob_store, open_blobs
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.dataset_arguments import dataset_factory
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job, discard_results
from kartothek_cube.io_components.publication import delta_log
from kartothek_cube.io_components.runtime import batched, store_factory

_LOGGER = logging.getLogger(__name__)

#: how local stores name the file that will replace another one
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")


def list_garbage(
    dataset: DatasetFactory, retention: timedelta | None = None, *, newest_only: bool = False
) -> list[Blob]:
    """Files to which no state of a dataset and no published table refers; or not its newest state."""
    blobs, uuid = open_blobs(dataset.store_factory), dataset.dataset_uuid
    # younger files, and those of unknown age, stay: they may belong to a writer that has not committed yet
    limit = retention_cutoff(blobs, uuid, retention)
    temporary = [blob for blob in blobs.list(f"{uuid}.") if _is_temporary(blob.key)]
    try:
        tables = dataset_files.table_names(dataset.dataset_metadata, blobs)
    except errors.DatasetNotFoundError:
        # there are files of a deletion, a copy or a first write that was killed, or it is an error
        files = [blob for blob in blobs.list(f"{uuid}/") if "/" in blob.key.removeprefix(f"{uuid}/")]
        garbage = _select_garbage(blobs, [uuid], [*files, *temporary], set(), limit)
        if not garbage:
            raise
        return garbage
    # other keys with this prefix are not ours
    folders = (naming.INDICES_DIRECTORY, naming.HISTORY_DIRECTORY, naming.DELTA_LOG_DIRECTORY, *tables)
    prefixes = (*(f"{uuid}/{folder}/" for folder in folders), _deletions_folder(uuid))
    files = [blob for blob in blobs.list(f"{uuid}/") if blob.key.startswith(prefixes)] + temporary
    # after the listing: files of later commits are not in it
    current = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    if not current.explicit_partitions:
        # any data file may be a partition
        in_tables = tuple(f"{uuid}/{table}/" for table in tables)
        files = [blob for blob in files if not blob.key.startswith(in_tables) or _is_temporary(blob.key)]
    referenced = _newest_keys(blobs, current) if newest_only else _all_keys(blobs, current, files, limit)
    return _select_garbage(blobs, [uuid], files, referenced, limit)


def _select_garbage(
    blobs: BlobStore, uuids: Iterable[str], files: Iterable[Blob], referenced: Set[str], limit: float | None
) -> list[Blob]:
    """Files that are old and to which nothing refers, with the tombstones of datasets that are done."""
    garbage = []
    referenced = _fold(referenced)
    for blob in files:
        is_special = naming.is_header_key(blob.key) or header_store.is_tombstone_file(blob.key)
        if not is_special and blob.key.casefold() not in referenced and is_older(blob, limit):
            # listings of object stores show markers of directories, `p=1/`, as keys that no request finds
            garbage += [blob] if blob.size != 0 or blobs.exists(blob.key) else []
    for uuid in uuids:
        garbage += _list_finished_tombstones(blobs, uuid, garbage, limit)
    return sorted(garbage)


def _fold(keys: Iterable[str]) -> set[str]:
    """Keys without case: some file systems list a directory as another partition has spelt it."""
    # data files have unique names, so that no two keys become the same
    return {key.casefold() for key in keys}


def _newest_keys(blobs: BlobStore, dataset: DatasetMetadata) -> set[str]:
    """Files of the newest state, and of the one to which readers go back if it does not get committed."""
    keys = {*dataset_files.referenced_keys(dataset), *dataset_files.schema_keys(dataset, blobs)}
    participation = operation.pending_participation(dataset)
    if participation is None or not participation.before:
        return keys
    if operation.operation_status(blobs, dataset.uuid, participation) is operation.Status.COMMITTED:
        return keys
    # it was committed or aborted since, and this state is archived no more
    with suppress(KeyError):
        before = operation.load_before(blobs, dataset.uuid, participation)
        if before is not None:
            keys |= {participation.before, *dataset_files.referenced_keys(before)}
    return keys


def _all_keys(
    blobs: BlobStore, dataset: DatasetMetadata, files: Sequence[Blob], limit: float | None
) -> set[str]:
    """The same with files of archived states and of a published table; `files` were listed before."""
    # a snapshot that is not listed was archived since, for a commit that may have removed listed files
    old = [blob.key for blob in files if is_older(blob, limit)]
    log = [blob.key for blob in files if blob.key.startswith(delta_log.log_folder(dataset.uuid))]
    keys = _newest_keys(blobs, dataset) | history_keys(dataset, blobs, old)
    return keys | _table_keys(blobs, dataset.uuid, log)


def _list_finished_tombstones(
    blobs: BlobStore, uuid: str, garbage: Iterable[Blob], limit: float | None
) -> list[Blob]:
    """Tombstone files of killed collections whose files are all deleted, or garbage themselves."""
    # The files are listed after the tombstones were read: each was there when its tombstone was written.
    entries = header_store.list_tombstone_files(blobs, uuid)
    if not entries:
        return []
    present = blobs.list(f"{uuid}/")
    remaining = {header_store.tombstone_name(blob.key) for blob in present}
    remaining -= {header_store.tombstone_name(blob.key) for blob in garbage}
    own = {name: {naming.TOMBSTONES_KEY: {name: entry}} for name, entry in entries.items()}
    finished = {n for n, e in own.items() if header_store.list_tombstoned_files(e).isdisjoint(remaining)}
    old = [b for b in present if header_store.is_tombstone_file(b.key) and is_older(b, limit)]
    return [blob for blob in old if blob.key.rpartition("/")[2].partition(".")[0] in finished]


def history_keys(
    dataset: DatasetMetadata,
    blobs: BlobStore,
    deletable: Iterable[str] | None = None,
    *,
    with_current: bool = True,
) -> set[str]:
    """Snapshots that a cleanup keeps, with all their files; of superseded ones those not ``deletable``."""
    uuid = dataset.uuid
    listed = [blob.key for blob in blobs.list(history.history_folder(uuid)) if not _is_temporary(blob.key)]
    is_pinned = any(history.parse_pin(key) is not None for key in listed)
    # One of the current state, which a killed writer has left, will be put again under its name: a deletion
    # that arrives late would meet it.
    current = None
    with suppress(KeyError, errors.DatasetNotFoundError):  # the dataset is deleted at the moment
        current = history.current_snapshot(dataset, blobs)
    snapshots = [key for key in listed if history.parse_pin(key) is None and (with_current or key != current)]
    superseded = {key for key in snapshots if key != current}
    if history.snapshot_retention(dataset.metadata) is not None:
        superseded = set(history.list_expired_snapshots(uuid, blobs))
    if deletable is not None:
        superseded.intersection_update(deletable)
    keys = {key for key in snapshots if key not in superseded and not history.is_before_key(key)}
    # that of the current state has the files of the header, and may be torn after a power failure
    for key in filter(history.is_snapshot_key, keys - {current}):
        # a commit may expire it in the meantime
        with suppress(KeyError):
            keys.update(dataset_files.referenced_keys(history.load_snapshot(uuid, blobs, key)))
    return keys | _pinned_keys(blobs, uuid) if is_pinned else keys


def _pinned_keys(blobs: BlobStore, uuid: str) -> set[str]:
    """Pins of a dataset that count, with the files of the pinned states."""
    now = store_time(blobs, f"{uuid}.{gen_uuid()}.tmp")
    # after the clock: a pin that is found to have ended was not renewed under another name
    keys, read, pins = set[str](), set[str](), history.list_pins(uuid, blobs)
    while unread := [pin for pin in pins if pin.expires > now and pin.key not in read]:
        for pin in unread:
            read.add(pin.key)
            try:
                keys |= {pin.key, *dataset_files.referenced_keys(history.load_snapshot(uuid, blobs, pin.key))}
            except KeyError:
                # its reader has ended, or has renewed it under another name
                pins = history.list_pins(uuid, blobs)
    return keys


def _table_keys(blobs: BlobStore, uuid: str, log: Sequence[str]) -> set[str]:
    """Files of a published table with those of its log, except versions that were staged and are done."""
    if not log:
        return set()
    keys = {key for key in log if not _is_temporary(key)}
    names = [key.removeprefix(delta_log.log_folder(uuid)) for key in keys]
    staged = delta_log.list_finished_stages(uuid, names)
    return {*keys.difference(staged), *delta_log.published_keys(blobs, uuid)}


def _is_temporary(key: str) -> bool:
    """Whether a file is the temporary one of a killed writer to a local directory."""
    return _TEMPORARY.search(key) is not None


def delete_garbage(store: StoreInput, keys: Iterable[str], staged_id: str = "") -> None:
    """Delete garbage, or the files of a staged write, except for what was committed since it was listed."""
    # A writer may be about to commit a file, however old it is. So tombstones name the files from before
    # their deletion until they are gone, and the commit of one of them is refused. They are in the header of
    # the dataset; where there is none, in a file (kartothek_cube.core.commit.header_store).
    blobs, keys = open_blobs(store), {key for key in keys if not naming.is_header_key(key)}
    # Temporary files of local stores have unique names, so that no commit refers to them. They are deleted
    # first, as a full disk takes no tombstones.
    temporary = {key for key in keys if "/" not in key or _is_temporary(key)}
    blobs.delete(sorted(temporary))
    for uuid, own in groupby(sorted(keys - temporary), key=lambda key: key.partition("/")[0]):
        # a repetition deletes the remaining files under the same tombstones
        delete = partial(_delete_files, blobs, uuid, gen_uuid(), list(own), staged_id)
        header_store.retry_request(delete)


def _delete_files(blobs: BlobStore, uuid: str, collection: str, keys: Sequence[str], staged_id: str) -> None:
    def list_unused(state: DatasetMetadata) -> list[str]:
        """The keys to which a state does not refer; of a staged write, none once it is committed."""
        if staged_id and is_staged_committed(state, staged_id):
            return []
        used = _fold(_newest_keys(blobs, state))
        return [key for key in keys if key.casefold() not in used]

    for _ in header_store.attempts():
        state = None
        with suppress(errors.DatasetNotFoundError):
            state = _edit_tombstones(
                blobs, uuid, lambda s: header_store.add_tombstones(s.metadata, collection, list_unused(s))
            )
        if state is not None:
            # a publisher that reads the header from now on finds the tombstones; and the state that a reader
            # has pinned was the current one after the pin was put, so that a pin of these files is there now
            used = _table_keys(blobs, uuid, [blob.key for blob in blobs.list(delta_log.log_folder(uuid))])
            # a state that was archived since the files were listed keeps its files, too
            used = _fold(used | history_keys(state, blobs, keys))
            deleted = [key for key in list_unused(state) if key.casefold() not in used]
            return _delete_tombstoned(blobs, uuid, collection, deleted)
        if _delete_orphans(blobs, uuid, collection, keys):
            return None
    raise errors.ConcurrentWriteError(uuid)


def _delete_tombstoned(blobs: BlobStore, uuid: str, collection: str, keys: Sequence[str]) -> None:
    """Delete files that have tombstones in the header, then the tombstones."""
    # if this fails, a deletion may still be under way: the tombstones have to stay
    snapshots = [key for key in keys if history.is_snapshot_key(key)]
    if snapshots:
        # first, and durably: a power failure must not leave an older state without its files
        blobs.delete(snapshots)
        blobs.flush(snapshots)
    blobs.delete([key for key in keys if not history.is_snapshot_key(key)])
    names = {header_store.tombstone_name(key) for key in keys}
    with suppress(errors.DatasetNotFoundError):
        _edit_tombstones(blobs, uuid, lambda s: header_store.remove_tombstones(s.metadata, collection, names))


def _edit_tombstones(
    blobs: BlobStore, uuid: str, change: Callable[[DatasetMetadata], dict[str, Any]]
) -> DatasetMetadata:
    """Change the tombstones in the newest header; return its state."""

    def edit(state: DatasetMetadata) -> DatasetMetadata | None:
        metadata = change(state)
        return None if metadata == state.metadata else state.copy(metadata=metadata)

    return header_store.edit_header(blobs, uuid, edit)


def _delete_orphans(blobs: BlobStore, uuid: str, collection: str, keys: Sequence[str]) -> bool:
    """Delete files of a dataset without a header; False, without a deletion, if there is one now."""
    # The order matters: a first commit puts the schema, then the header, and then looks for tombstone files.
    # If there is no header after the tombstones were put, that commit will see them, and put another version
    # of the schema, which is not the one that was read here before.
    tombstone_file = header_store.put_tombstone_file(blobs, uuid, collection, keys)
    schemas = [key for key in keys if key.endswith(f"/{naming.TABLE_METADATA_FILE}")]
    versions = {key: header_store.read_versioned(blobs, key) for key in schemas}
    if any(blobs.exists(key) for key in naming.header_keys(uuid)):
        header_store.retry_request(lambda: blobs.delete([tombstone_file]))
        return False
    # a published table disappears as a whole, before its files do
    log = [key for key in keys if key.startswith(delta_log.log_folder(uuid))]
    delta_log.delete_log_files(blobs, uuid, (key.removeprefix(delta_log.log_folder(uuid)) for key in log))
    # tombstone files of earlier collections last: their files may be among the others
    last = [key for key in keys if header_store.is_tombstone_file(key)]
    blobs.delete([key for key in keys if key not in versions and key not in last and key not in log])
    for key, (content, token) in versions.items():
        if content is not None:
            # refused: a first commit has written it again, and needs it
            with suppress(blob_store.PreconditionFailed):
                blobs.delete_if(key, token)
    # a commit may have taken over the tombstones from their file
    with suppress(errors.DatasetNotFoundError):
        _edit_tombstones(blobs, uuid, lambda s: header_store.remove_tombstones(s.metadata, collection, set()))
    # alone: a repetition of all would use tombstones of its own, and leave these for a day
    header_store.retry_request(lambda: blobs.delete([*last, tombstone_file]))
    return True


def retention_cutoff(blobs: BlobStore, prefix: str, retention: timedelta | None) -> float | None:
    """The time before which a file must be written to be older than a retention; None for no retention."""
    if retention is None:
        return None
    if not isinstance(retention, timedelta):
        raise TypeError(f"retention is a datetime.timedelta, such as timedelta(hours=24), not {retention!r}")
    if retention < timedelta(0):
        raise ValueError(f"retention is the age below which files stay, so it can't be negative: {retention}")
    return store_time(blobs, f"{prefix}.{gen_uuid()}.tmp") - retention.total_seconds()


def store_time(blobs: BlobStore, key: str) -> float:
    """Time of the store, which stamps an empty file that is written, listed and deleted."""
    # the store stamps files with its own clock, which may differ from ours by hours
    local_time = clock.datetime_utcnow().replace(tzinfo=UTC).timestamp()
    try:
        blobs.put(key, b"")
        try:
            times = [blob.mtime for blob in blobs.list(key) if blob.key == key]
        finally:
            blobs.delete([key])
    except OSError:
        # a read-only store: our clock has to do
        return local_time
    # the same where the store has no times
    return local_time if not times or times[0] is None else times[0]


def with_sizes(blobs: BlobStore, listed: Iterable[Blob]) -> list[Blob]:
    """Listed blobs with their sizes, also where listings of a store have none."""
    result = []
    for blob in listed:
        # deleted since the listing
        with suppress(KeyError):
            result.append(blob if blob.size is not None else blob._replace(size=blobs.size(blob.key)))
    return result


def is_older(blob: Blob, limit: float | None) -> bool:
    """Whether a blob is older than a cut-off; one of unknown age is not."""
    return limit is None or (blob.mtime is not None and blob.mtime <= limit)


# -- cubes ---------------------------------------------------------------------------------------------------


def list_cube_garbage(
    cube: Cube, store: StoreInput | BlobStore, retention: timedelta | None = None
) -> list[Blob]:
    """Files of a cube to which neither a newest nor an archived state refers, nor a published table."""
    blobs = open_blobs(store)
    prefix = cube.uuid_prefix + constants.KTK_CUBE_UUID_SEPARATOR
    limit = retention_cutoff(blobs, prefix, retention)
    # before the headers: files of later commits are not in the listing
    files = blobs.list(prefix)
    # nothing to clean up in a store without cubes, and no other cube that the name can be mistaken for
    if not files and (blobs.missing_directory is not None or discover.list_cubes(blobs)):
        raise discover.cube_not_found(cube.uuid_prefix, blobs)
    referenced: set[str] = set()
    for name in discover.discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs):
        try:
            # without schemas: a missing one must not make garbage of the other files
            dataset = DatasetMetadata.load_from_store(cube.ktk_dataset_uuid(name), blobs, load_schema=False)
        except errors.DatasetNotFoundError:
            continue
        own = [blob for blob in files if blob.key.startswith(f"{dataset.uuid}/")]
        referenced |= _all_keys(blobs, dataset, own, limit)
    uuids = {blob.key.partition("/")[0] for blob in files if header_store.is_tombstone_file(blob.key)}
    return _select_garbage(blobs, sorted(uuids), files, referenced, limit)


@attrs.frozen
class CleanupCube(Generic[StoreT]):
    """Delete garbage: files of failed, overwritten or removed writes, to which no dataset refers.

    Older states, and files that only they have, are deleted unless the retention or
    :func:`keep_cube_history` keeps them; the log says how many.

    Raises
    ------
    ValueError
        There is no such cube.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, remove_partitions
    >>> from kartothek_cube.api.cube import list_cube_garbage
    >>> from kartothek_cube.io.eager_cube import cleanup_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = remove_partitions(cube, store, "COUNTRY_CODE == DE")
    >>> _ = cleanup_cube(cube, store)
    >>> list_cube_garbage(cube, store)
    []
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    retention: timedelta | None = attrs.field(default=None, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[None]:
        """Delete the files with the prefix of a cube that no dataset refers to."""
        blobs = open_blobs(self.store)
        records = _read_records(self.cube, blobs)
        finish_operations(self.cube, blobs, records)
        _delete_hidden(self.cube, blobs, records, self.retention)
        keys = [blob.key for blob in list_cube_garbage(self.cube, blobs, self.retention)]
        _report_states(f"Cleanup of cube {self.cube.uuid_prefix}", keys)
        description = f"clean up cube {self.cube.uuid_prefix}"
        return _garbage_job("cleanup_cube", description, store_factory(self.store), keys, blocksize)


def count_states(keys: Iterable[str]) -> int:
    """Number of older states of datasets that are deleted with some files."""
    return sum(map(history.is_snapshot_key, keys))


def _report_states(name: str, keys: Sequence[str]) -> None:
    n_states = count_states(keys)
    if n_states:
        files, states = errors.format_count(len(keys), "file"), errors.format_count(n_states, "older state")
        _LOGGER.info("%s deletes %s: %s of datasets can no longer be read", name, files, states)


@attrs.frozen
class CollectDatasetGarbage:
    """Delete garbage: files of failed, overwritten or removed writes, to which the dataset does not refer.

    Older states, and files that only they have, are deleted unless a retention or
    :func:`keep_dataset_history` keeps them.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import ensure_store
    >>> from kartothek_cube.io.eager import garbage_collect_dataset
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> from kartothek_cube.io.eager import write_single_partition
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Bonn", "Rom"]})])
    >>> before = set(ensure_store(store).keys())
    >>> _ = write_single_partition(store, "geodata", pd.DataFrame({"CITY": ["Ulm"]}))  # never committed
    >>> _ = garbage_collect_dataset("geodata", store)
    >>> set(ensure_store(store).keys()) == before
    True
    """

    dataset_uuid: str | None = None
    store: StoreInput | None = None
    factory: DatasetFactory | None = None
    retention: timedelta | None = attrs.field(default=None, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[None]:
        """Delete the files in the directories of a dataset that it does not refer to."""
        dataset = dataset_factory(self.dataset_uuid, self.store, self.factory)
        keys = [blob.key for blob in list_garbage(dataset, self.retention)]
        _report_states(f"Garbage collection of dataset {dataset.dataset_uuid}", keys)
        description = f"collect garbage of dataset {dataset.dataset_uuid}"
        return _garbage_job("collect_garbage", description, dataset.store_factory, keys, blocksize)


def finish_operations(
    cube: Cube, store: StoreInput, records: Mapping[str, header.CommitRecord] | None = None
) -> None:
    """Abort the operations on several datasets whose writer was killed."""
    blobs = open_blobs(store)
    records = _read_records(cube, blobs) if records is None else records
    for name, record in records.items():
        if record.participation is not None and record.participation.before is not None:
            atomic.finish_operation(blobs, cube.ktk_dataset_uuid(name))
    for name in [name for name, record in records.items() if record.reserved]:
        # its deletion has failed. Refused: an operation was aborted since, or a build takes its place
        with suppress(errors.DatasetNotFoundError, blob_store.PreconditionFailed):
            _delete_reserved(cube, blobs, cube.ktk_dataset_uuid(name))


def _delete_reserved(cube: Cube, blobs: BlobStore, uuid: str) -> None:
    """Delete a header without a dataset, unless a dataset takes part in an operation that it has aborted."""
    # such an operation commits as soon as the note of its abort is gone; what is aborted later changes the
    # header, which is read first
    stored = dataset_files.read_header(uuid, blobs, with_token=True)
    record = operation.parse_stored_record(stored, uuid)
    parts = [other.participation for other in _read_records(cube, blobs).values()]
    pending = {part.operation for part in parts if part is not None}
    if record is not None and record.reserved and pending.isdisjoint(record.aborted):
        blobs.delete_if(stored.key, stored.token)


def _read_records(cube: Cube, blobs: BlobStore) -> dict[str, header.CommitRecord]:
    """The records of the datasets of a cube whose headers have one."""
    names = sorted(discover.discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs))
    records = {name: operation.read_record(blobs, cube.ktk_dataset_uuid(name)) for name in names}
    return {name: record for name, record in records.items() if record is not None}


def _delete_hidden(
    cube: Cube, blobs: BlobStore, records: Mapping[str, header.CommitRecord], retention: timedelta | None
) -> None:
    """Delete the headers of datasets that a rollback has hidden and of which no older state is kept."""
    for name in [name for name, record in records.items() if record.hidden]:
        uuid = cube.ktk_dataset_uuid(name)
        limit = retention_cutoff(blobs, f"{uuid}/", retention)
        # refused: the dataset was created again
        with suppress(errors.DatasetNotFoundError, blob_store.PreconditionFailed):
            stored = dataset_files.read_header(uuid, blobs, with_token=True)
            state = DatasetMetadata.load_from_header(stored, uuid, blobs)
            if not operation.is_hidden(state) or operation.resolve_pending(blobs, state) is not state:
                continue
            old = [b.key for b in blobs.list(history.history_folder(uuid)) if is_older(b, limit)]
            if history_keys(state, blobs, old, with_current=False):
                continue
            seed = cube.ktk_dataset_uuid(cube.seed_dataset)
            operation.count_deleted_versions(blobs, seed, [uuid])
            blobs.delete_if(stored.key, stored.token)
            operation.forget_participants(blobs, seed, [uuid])


def delete_files_job(
    name: str,
    description: str,
    store: StoreFactory,
    blocks: Iterable[Sequence[str]],
    prepare: Callable[[], None] | None = None,
    first_step: str = "prepare",
    run: Callable[[StoreFactory, Sequence[str]], None] = delete_garbage,
) -> Job[None]:
    """Delete files in blocks, as garbage; after `prepare`, which is the deletion of headers."""
    return Job(
        name=name,
        description=description,
        context=store,
        tasks=blocks,
        run=run,
        finish=discard_results,
        merge=discard_results,
        prepare=prepare,
        steps=(first_step, "files", "done"),
    )


def _garbage_job(
    name: str, description: str, store: StoreFactory, keys: Sequence[str], blocksize: int | None
) -> Job[None]:
    """Delete listed garbage in blocks."""
    prepare = None
    snapshots = list(filter(history.is_snapshot_key, keys))
    if snapshots and blocksize and blocksize < len(keys):
        # before the files that they need, which blocks delete in any order
        prepare = partial(delete_garbage, store, snapshots)
        keys = [key for key in keys if not history.is_snapshot_key(key)]
    return delete_files_job(name, description, store, _cut(keys, blocksize), prepare)


def _cut(keys: Sequence[str], blocksize: int | None) -> list[Sequence[str]]:
    """Blocks of files; all in one by default."""
    return batched(keys, blocksize or max(len(keys), 1))


# -- deletion -----------------------------------------------------------------------------------------------


# Headers are deleted first: a dataset exists as a whole or not at all, and files that remain are garbage.


def _order_keys(keys: Iterable[str]) -> list[str]:
    """Published tables disappear as a whole, before their files do."""
    return sorted(keys, key=lambda key: (naming.DELTA_LOG_DIRECTORY not in key.split("/"), key))


def _delete_dataset_header(store: StoreInput, uuid: str, unless: Sequence[str] = ()) -> None:
    header_store.delete_headers(open_blobs(store), uuid, unless)


def _deletions_folder(uuid: str) -> str:
    """Prefix of the keys of the lists of files of deletions, by which a repetition goes on."""
    return f"{uuid}/_deletions/"


def _list_unfinished(cube: Cube, blobs: BlobStore) -> set[str]:
    """Ids of datasets without a header, of which files are left by a deletion that was killed."""
    start = cube.uuid_prefix + constants.KTK_CUBE_UUID_SEPARATOR
    names = {name.removeprefix(start)[:-1] for name in blobs.list_dir(start) if name.endswith("/")}
    names -= discover.discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs)
    return {name for name in names if name and blobs.list(_deletions_folder(start + name))}


def _list_files_left(blobs: BlobStore, uuid: str, lists: Iterable[str]) -> set[str]:
    """The files that deletions of a dataset have left, and their tombstones."""
    keys: set[str] = set()
    for key in lists:
        # a list that is deleted since is that of a deletion that has finished
        with suppress(KeyError, ValueError):
            files = json.loads(blobs.get(key))
            keys.update(file for file in files if isinstance(file, str) and file.startswith(f"{uuid}/"))
    garbage = map(Blob, [*keys, *lists])
    return keys | {blob.key for blob in _list_finished_tombstones(blobs, uuid, garbage, None)}


def _list_by_dataset(keys: Iterable[str]) -> dict[str, list[str]]:
    """Files to delete, by the key of a new list of those of one dataset."""
    groups = groupby(sorted(keys), key=lambda key: key.partition("/")[0])
    return {f"{_deletions_folder(uuid)}{gen_uuid()}.json": list(own) for uuid, own in groups}


def _delete_listed(store: StoreInput, keys: Sequence[str]) -> None:
    """Delete files as garbage, then the lists that name them."""
    lists = [key for key in keys if key.startswith(_deletions_folder(key.partition("/")[0]))]
    delete_garbage(store, set(keys).difference(lists))
    header_store.retry_request(partial(open_blobs(store).delete, lists))


def _delete_cube_headers(
    seed: str,
    uuids: Sequence[str],
    deleted: Sequence[str],
    store: StoreInput,
    lists: Mapping[str, Sequence[str]],
    replaced: Sequence[str],
) -> None:
    """Delete datasets of a cube, the seed first if it is among them; others are deleted already."""
    blobs = open_blobs(store)
    # information of headers alone must not be lost with them, should this process be killed
    for key, files in lists.items():
        blobs.put(key, json.dumps(files).encode(), durable=True)
    header_store.retry_request(partial(blobs.delete, replaced))
    if seed in uuids:
        _delete_dataset_header(blobs, seed)
    others = [uuid for uuid in uuids if uuid != seed]
    if seed not in uuids:
        with suppress(errors.DatasetNotFoundError):
            operation.count_deleted_versions(blobs, seed, others)
    for uuid in others:
        # a seed that is there again is that of a new cube, and so are its other datasets
        _delete_dataset_header(blobs, uuid, naming.header_keys(seed) if seed in uuids else ())
    if seed not in uuids:
        # else readers would look for them, should one be created at the moment
        forget = partial(operation.forget_participants, blobs, seed, [*others, *deleted])
        with suppress(errors.DatasetNotFoundError):
            header_store.retry_request(forget)


def _list_cube_files(datasets: Iterable[DatasetMetadata], blobs: BlobStore) -> list[str]:
    """All files of datasets but headers."""
    tracked: set[str] = set()
    for dataset in datasets:
        tracked.update(dataset_files.referenced_keys(dataset), dataset_files.schema_keys(dataset, blobs))
        tracked |= history_keys(dataset, blobs, ())
        tracked.update(blob.key for blob in blobs.list(history.history_folder(dataset.uuid)))
        log = [blob.key for blob in blobs.list(delta_log.log_folder(dataset.uuid))]
        tracked.update(log)
        # the files of a damaged log are not known and stay; it is no reason to keep the others
        with suppress(errors.CorruptDatasetError):
            tracked |= delta_log.published_keys(blobs, dataset.uuid) if log else set()
    return _order_keys(tracked)


@attrs.frozen
class DeleteCube(Generic[StoreT]):
    """Delete a cube or some of its datasets.

    Files that belong to no state of a dataset, such as replaced indices and those of failed writes, stay
    until :func:`cleanup_cube` deletes them, which is possible before and after. A deletion that was
    interrupted is repeated.

    Parameters
    ----------
    datasets
        Ids, or a dict of id to metadata; by default all datasets of the cube.

    Raises
    ------
    ValueError
        There is no such cube or dataset.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store
    >>> from kartothek_cube.io.eager_cube import delete_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = delete_cube(cube, store)
    >>> list(ensure_store(store).keys())
    []
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    datasets: discover.DatasetsInput = None

    def job(self, blocksize: int | None = None) -> Job[None]:
        """Delete the headers of a cube, then all other files in any order."""
        cube, store, datasets = self.cube, self.store, self.datasets
        blobs = open_blobs(store)
        if datasets is None:
            # also those of an operation that has not committed
            finish_operations(cube, store)
        unfinished = set() if isinstance(datasets, Mapping) else _list_unfinished(cube, blobs)
        if datasets is not None and not isinstance(datasets, Mapping):
            requested = arguments.parse_name_set("datasets", datasets)
            unfinished &= requested
            datasets = requested - unfinished
        try:
            selected = discover.select_datasets(cube, store, datasets)
        except errors.CubeNotFoundError:
            # a repetition succeeds where the name cannot stand for that of another cube
            if blobs.missing_directory is not None or discover.list_cubes(blobs):
                raise
            selected = {}
        if not isinstance(datasets, Mapping):
            # also those that a rollback has hidden
            for name, record in _read_records(cube, blobs).items():
                if record.hidden and (datasets is None or name in datasets):
                    # deleted since
                    with suppress(errors.DatasetNotFoundError):
                        selected[name] = DatasetMetadata.load_from_store(cube.ktk_dataset_uuid(name), blobs)
        keys = _list_cube_files(selected.values(), blobs)
        # the seed first: without it there is no cube any more
        uuids = [selected[name].uuid for name in cube.join_order(selected)]
        deleted = [cube.ktk_dataset_uuid(name) for name in sorted(unfinished)]
        replaced: list[str] = []
        for uuid in (*uuids, *deleted):
            lists = [blob.key for blob in blobs.list(_deletions_folder(uuid))]
            keys += _list_files_left(blobs, uuid, lists) if uuid in deleted else []
            replaced += lists
        blocks = _cut(_order_keys(set(keys)), blocksize)
        new = [_list_by_dataset(block) for block in blocks]
        seed, factory = cube.ktk_dataset_uuid(cube.seed_dataset), store_factory(store)
        all_lists = dict(chain.from_iterable(block.items() for block in new))
        prepare = partial(_delete_cube_headers, seed, uuids, deleted, factory, all_lists, replaced)
        tasks = [[*block, *lists] for block, lists in zip(blocks, new, strict=True)]
        title, run = f"delete cube {cube.uuid_prefix}", _delete_listed
        return delete_files_job("delete_cube", title, factory, tasks, prepare, "headers", run)


@attrs.frozen
class DeleteDataset:
    """Delete a dataset: its header first, so that it exists as a whole or not at all, then its files.

    A repetition deletes the files that an interrupted call has left. Other keys with this prefix stay.

    Raises
    ------
    KeyError
        There is no such dataset.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import ensure_store
    >>> from kartothek_cube.io.eager import delete_dataset
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> _ = store_dataframes_as_dataset(store, "geodata", [pd.DataFrame({"CITY": ["Rom"]})])
    >>> _ = delete_dataset("geodata", store)
    >>> list(ensure_store(store).keys())
    []
    """

    dataset_uuid: str | None = None
    store: StoreInput | None = None
    factory: DatasetFactory | None = None

    def job(self, blocksize: int | None = None) -> Job[None]:
        """Delete the header of a dataset, then its files in any order."""
        dataset = dataset_factory(self.dataset_uuid, self.store, self.factory, load_schema=False)
        keys = {blob.key for blob in list_garbage(dataset, newest_only=True)}
        with suppress(errors.DatasetNotFoundError):
            # without a header, there must be files at least
            current, blobs = dataset.dataset_metadata, open_blobs(dataset.store_factory)
            keys |= {*dataset_files.referenced_keys(current), *dataset_files.schema_keys(current, blobs)}
        store, description = dataset.store_factory, f"delete dataset {dataset.dataset_uuid}"
        delete = partial(_delete_dataset_header, store, dataset.dataset_uuid)
        blocks = _cut(_order_keys(keys), blocksize)
        return delete_files_job("delete_dataset", description, store, blocks, delete, "header")
