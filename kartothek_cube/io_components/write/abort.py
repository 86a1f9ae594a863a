"""Throwing away what a write that failed has left in the store."""

from __future__ import annotations

from collections.abc import Iterable

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.references import data_keys
from kartothek_cube.core.errors import DatasetNotFoundError
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.write.table_writer import WriteContext, WriteResult

__all__ = ("delete_uncommitted", "delete_uncommitted_attempts")


def delete_uncommitted(store: StoreInput, results: Iterable[WriteResult]) -> None:
    """
    Delete data files to which no dataset refers.

    Parameters
    ----------
    store
        Store, factory or URL.
    results
        What was written. Files that did reach a dataset, by a commit whose answer was lost, stay.
    """
    blobs = open_blobs(store)
    for result in results:
        if len(result.labels):
            keys = result.partitions().files[result.table].to_pylist()
            tracked = _tracked(blobs, result.uuid)
            blobs.delete([key for key in keys if key not in tracked])


def delete_uncommitted_attempts(context: WriteContext) -> None:
    """
    Delete the data files of all attempts to write a dataset that bear the same id, known or lost.

    Parameters
    ----------
    context
        The write, with its ``write_id``. Files that did reach the dataset stay.
    """
    blobs = open_blobs(context.store)
    folder = f"{context.uuid}/{context.table}/"
    keys = [
        blob.key for blob in blobs.list(folder) if blob.key.rpartition("/")[2].startswith(context.write_id)
    ]
    if keys and context.write_id:
        tracked = _tracked(blobs, context.uuid)
        blobs.delete([key for key in keys if key not in tracked])


def _tracked(blobs: BlobStore, uuid: str) -> set[str]:
    try:
        return set(data_keys(DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)))
    except DatasetNotFoundError:
        return set()
