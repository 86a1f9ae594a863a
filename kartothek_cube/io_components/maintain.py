"""Looking after a dataset: what is garbage, what goes when it is deleted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, timedelta

from kartothek_cube.core import _time
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import INDICES_DIRECTORY, TABLE_METADATA_FILE, schema_key
from kartothek_cube.core.store import Blob, BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.keys import data_keys, header_keys, index_keys

__all__ = ("plan_delete", "plan_garbage", "run_delete")

#: how local stores name the file that will replace another one
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")


def plan_garbage(dataset: DatasetFactory, retention: timedelta | None = None) -> list[str]:
    """
    Keys in the directories of a dataset that it does not refer to.

    Parameters
    ----------
    dataset
        The dataset; it is read again after the keys are listed, so that what is committed meanwhile is kept.
    retention
        Files younger than this are no garbage: they may belong to a writer that has not committed yet. Files
        of unknown age count as young. None: age does not matter.

    Returns
    -------
    list of str
        Sorted.

    Raises
    ------
    KeyError
        There is no such dataset.
    """
    blobs, uuid = open_blobs(dataset.store_factory), dataset.dataset_uuid
    tables = _tables(dataset.dataset_metadata, blobs)
    found = [blob for folder in (INDICES_DIRECTORY, *tables) for blob in blobs.list(f"{uuid}/{folder}/")]
    current = _reload(dataset, blobs)
    if not current.explicit_partitions:
        found = [blob for blob in found if _is_internal(blob.key, uuid)]
    found += [blob for blob in blobs.list(f"{uuid}.") if _is_temporary(blob.key)]
    tracked = {*data_keys(current), *index_keys(current), *(schema_key(uuid, table) for table in tables)}
    return sorted(blob.key for blob in found if blob.key not in tracked and _is_old(blob, retention))


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


def _is_old(blob: Blob, retention: timedelta | None) -> bool:
    if retention is None:
        return True
    now = _time.datetime_utcnow().replace(tzinfo=UTC).timestamp()
    return blob.mtime is not None and blob.mtime <= now - retention.total_seconds()


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
        plan_garbage(dataset),
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
