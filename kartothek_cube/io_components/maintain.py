"""Maintenance of a dataset: which files are garbage, and its deletion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import attrs

from kartothek_cube.core.commit import delete_headers
from kartothek_cube.core.commit.backoff import retry_request
from kartothek_cube.core.commit.tombstones import (
    is_tombstone_file,
    list_tombstone_files,
    tombstone_name,
    tombstoned_files,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DatasetNotFoundError
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import expired_snapshots, history_folder, is_snapshot_key, load_copy
from kartothek_cube.core.naming import INDICES_DIRECTORY, TOMBSTONES_KEY
from kartothek_cube.core.store import Blob, BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.age import is_older, retention_cutoff
from kartothek_cube.io_components.collect import delete_garbage
from kartothek_cube.io_components.keys import data_keys, index_keys, schema_keys, table_names

__all__ = (
    "DeletePlan",
    "finished_tombstones",
    "history_keys",
    "list_garbage",
    "plan_delete",
    "plan_garbage",
    "run_delete",
    "run_delete_headers",
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


@attrs.frozen
class DeletePlan:
    """
    What is deleted with datasets.

    Attributes
    ----------
    uuids
        The datasets. Their headers go first, in this order: a dataset is there as a whole or not at all.
    keys
        All other files. If they are not reached, they are garbage.
    """

    uuids: Sequence[str]
    keys: Sequence[str]


def plan_delete(dataset: DatasetFactory) -> DeletePlan:
    """
    Plan the deletion of a whole dataset; its schema is not needed.

    Raises
    ------
    KeyError
        There is no such dataset, and no file is left of one.
    """
    keys = {blob.key for blob in list_garbage(dataset, history=False)}
    with suppress(DatasetNotFoundError):
        current = dataset.dataset_metadata
        blobs = open_blobs(dataset.store_factory)
        keys |= {*index_keys(current), *data_keys(current), *schema_keys(current, blobs)}
    return DeletePlan([dataset.dataset_uuid], sorted(keys))


def run_delete_headers(store: StoreInput, uuids: Iterable[str]) -> None:
    """Delete datasets by their headers; their files are garbage from then on."""
    blobs = open_blobs(store)
    for uuid in uuids:
        retry_request(partial(delete_headers, blobs, uuid))


def run_delete(store: StoreInput, plan: DeletePlan) -> None:
    """Delete datasets; what is gone already does not matter."""
    run_delete_headers(store, plan.uuids)
    delete_garbage(store, plan.keys)
