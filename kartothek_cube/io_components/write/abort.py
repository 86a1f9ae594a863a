"""Delete the uncommitted files of a write that failed."""

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
    """Delete written data files, except for those that did reach a dataset by a commit."""
    blobs = open_blobs(store)
    for result in results:
        if len(result.labels):
            keys = result.partitions().files[result.table].to_pylist()
            tracked = _tracked(blobs, result.uuid)
            blobs.delete([key for key in keys if key not in tracked])


def delete_uncommitted_attempts(context: WriteContext) -> None:
    """Delete the files of all attempts of a write, except for those that did reach the dataset."""
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
