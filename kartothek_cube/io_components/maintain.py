"""Looking after a dataset: what is garbage, what goes when it is deleted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import history_folder, is_copy, load_copy, outdated
from kartothek_cube.core.naming import INDICES_DIRECTORY, TABLE_METADATA_FILE, schema_key
from kartothek_cube.core.store import Blob, BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.age import age_limit, is_older
from kartothek_cube.io_components.keys import data_keys, header_keys, index_keys

__all__ = ("history_keys", "list_garbage", "plan_delete", "plan_garbage", "run_delete")

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
    tables = _tables(dataset.dataset_metadata, blobs)
    limit = age_limit(blobs, uuid, retention)
    found = [blob for folder in (INDICES_DIRECTORY, *tables) for blob in blobs.list(f"{uuid}/{folder}/")]
    current = _reload(dataset, blobs)
    if not current.explicit_partitions:
        found = [blob for blob in found if _is_internal(blob.key, uuid)]
    found += [blob for blob in blobs.list(f"{uuid}.") if _is_temporary(blob.key)]
    found += blobs.list(history_folder(uuid))
    tracked = {*data_keys(current), *index_keys(current), *(schema_key(uuid, table) for table in tables)}
    if history:
        tracked |= history_keys(uuid, blobs, [blob for blob in found if not is_older(blob, limit)])
    return sorted(blob for blob in found if blob.key not in tracked and is_older(blob, limit))


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
    going = set(outdated(uuid, blobs)) - {blob.key for blob in young}
    keys = set()
    for blob in blobs.list(history_folder(uuid)):
        if blob.key in going or _is_temporary(blob.key):
            continue
        keys.add(blob.key)
        if is_copy(blob.key):
            with suppress(KeyError):  # a commit threw it away meanwhile
                state = load_copy(uuid, blobs, blob.key)
                keys.update((*data_keys(state), *index_keys(state)))
    return keys


def _reload(dataset: DatasetFactory, blobs: BlobStore) -> DatasetMetadata:
    return DatasetMetadata.load_from_store(dataset.dataset_uuid, blobs, load_schema=False)


def _tables(dataset: DatasetMetadata, blobs: BlobStore) -> list[str]:
    """Names of the tables; where there are no partitions to tell, a table is what has a schema."""
    if dataset.tables:
        return dataset.tables
    folders = [
        key.rstrip("/").rpartition("/")[2] for key in blobs.list_dir(f"{dataset.uuid}/") if key.endswith("/")
    ]
    others = [
        f
        for f in folders
        if f != INDICES_DIRECTORY and blobs.exists(f"{dataset.uuid}/{f}/{TABLE_METADATA_FILE}")
    ]
    return others or [dataset.table_name]


def _is_internal(key: str, uuid: str) -> bool:
    """Whether no user put this here: where files are the partitions, others may have put some."""
    return key.startswith(f"{uuid}/{INDICES_DIRECTORY}/") or _is_temporary(key)


def _is_temporary(key: str) -> bool:
    """Whether a writer to a local directory left this when it died."""
    return _TEMPORARY.search(key) is not None


def plan_delete(dataset: DatasetFactory) -> list[list[str]]:
    """
    Keys of a whole dataset, in the order in which they have to go.

    Parameters
    ----------
    dataset
        The dataset; its schema is not needed.

    Returns
    -------
    list of list of str
        Garbage, indices, data files, schemas, and last the headers: until then the dataset can be deleted
        again.

    Raises
    ------
    KeyError
        There is no such dataset.
    """
    current = dataset.dataset_metadata
    tables = _tables(current, open_blobs(dataset.store_factory))
    return [
        [blob.key for blob in list_garbage(dataset, history=False)],
        index_keys(current),
        data_keys(current),
        [schema_key(current.uuid, table) for table in tables],
        header_keys(current.uuid),
    ]


def run_delete(store: StoreInput, keys: Iterable[str]) -> None:
    """
    Delete keys.

    Parameters
    ----------
    store
        Store, factory or URL.
    keys
        The keys; those that are gone already do not matter.
    """
    open_blobs(store).delete(keys)
