"""Delete datasets and cubes: the headers first, then their files as garbage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from kartothek_cube.core.commit.header_store import delete_headers, retry_request
from kartothek_cube.core.commit.operation import forget_participants
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput, select_datasets
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.references import file_keys, schema_keys
from kartothek_cube.core.errors import CorruptDatasetError, DatasetNotFoundError
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import KEEP_HISTORY, history_folder
from kartothek_cube.core.naming import DELTA_LOG_DIRECTORY, header_keys
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.maintenance.delta_log import log_folder, published_keys
from kartothek_cube.io_components.maintenance.garbage import (
    delete_files_job,
    finish_operations,
    history_keys,
    list_garbage,
)
from kartothek_cube.io_components.runtime import store_factory

# Headers are deleted first: a dataset exists as a whole or not at all, and files that remain are garbage.


def _list_dataset_files(dataset: DatasetFactory) -> list[str]:
    """All files of a dataset but headers, of which at least one must exist; its schema is not needed."""
    keys = {blob.key for blob in list_garbage(dataset, newest_only=True)}
    with suppress(DatasetNotFoundError):
        current = dataset.dataset_metadata
        blobs = open_blobs(dataset.store_factory)
        keys |= {*file_keys(current), *schema_keys(current, blobs)}
    return _order_keys(keys)


def _order_keys(keys: Iterable[str]) -> list[str]:
    """Published tables disappear as a whole, before their files do."""
    return sorted(keys, key=lambda key: (DELTA_LOG_DIRECTORY not in key.split("/"), key))


def _delete_dataset_header(uuid: str, store: StoreInput) -> None:
    retry_request(partial(delete_headers, open_blobs(store), uuid))


def _delete_cube_headers(seed: str, uuids: Sequence[str], store: StoreInput) -> None:
    """Delete datasets of a cube, the seed first if it is among them."""
    blobs = open_blobs(store)
    if seed in uuids:
        retry_request(partial(delete_headers, blobs, seed))
    others = [uuid for uuid in uuids if uuid != seed]
    for uuid in others:
        # a seed that is there again is that of a new cube, and so are its other datasets
        unless = header_keys(seed) if seed in uuids else ()
        retry_request(partial(delete_headers, blobs, uuid, unless))
    if seed not in uuids:
        # else readers would look for them, should one be created at the moment
        with suppress(DatasetNotFoundError):
            retry_request(partial(forget_participants, blobs, seed, others))


def _list_cube_files(datasets: Iterable[DatasetMetadata], blobs: BlobStore) -> list[str]:
    """All files of datasets but headers."""
    tracked: set[str] = set()
    for dataset in datasets:
        tracked.update(file_keys(dataset), schema_keys(dataset, blobs))
        if KEEP_HISTORY in dataset.metadata:
            tracked |= history_keys(dataset.uuid, blobs)
            tracked.update(blob.key for blob in blobs.list(history_folder(dataset.uuid)))
        log = [blob.key for blob in blobs.list(log_folder(dataset.uuid))]
        tracked.update(log)
        # a damaged log does not tell its files, which stay; it is no reason to keep the others
        with suppress(CorruptDatasetError):
            tracked |= published_keys(blobs, dataset.uuid) if log else set()
    return _order_keys(tracked)


def delete_cube_job(
    cube: Cube, store: StoreInput, datasets: DatasetsInput = None, blocksize: int | None = None
) -> Job[StoreFactory, Sequence[str], None, None]:
    """Delete the headers of a cube, then all other files in any order."""
    if datasets is None:
        # also those of an operation that has not committed
        finish_operations(cube, store)
    selected = select_datasets(cube, store, datasets)
    keys = _list_cube_files(selected.values(), open_blobs(store))
    description = f"delete cube {cube.uuid_prefix}"
    factory, seed = store_factory(store), cube.ktk_dataset_uuid(cube.seed_dataset)
    # the seed first: without it there is no cube any more
    uuids = [selected[name].uuid for name in cube.join_order(selected)]
    delete = partial(_delete_cube_headers, seed, uuids, factory)
    return delete_files_job("delete_cube", description, factory, keys, blocksize, delete, "headers")


def delete_dataset_job(
    dataset: DatasetFactory, blocksize: int | None = None
) -> Job[StoreFactory, Sequence[str], None, None]:
    """Delete the header of a dataset, then its files in any order."""
    keys, description = _list_dataset_files(dataset), f"delete dataset {dataset.dataset_uuid}"
    factory = dataset.store_factory
    delete = partial(_delete_dataset_header, dataset.dataset_uuid, factory)
    return delete_files_job("delete_dataset", description, factory, keys, blocksize, delete, "header")
