"""Index files of a commit: written before the header, deleted if it could not be written."""

from __future__ import annotations

from collections.abc import Sequence

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import CorruptDatasetError, DatasetNotFoundError
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.store import BlobStore

__all__ = ("refers_to", "store_indices", "unreferenced_indices")


def store_indices(blobs: BlobStore, state: DatasetMetadata, written: list[str]) -> DatasetMetadata:
    """Write the changed indices, adding their keys to `written`; the result refers to all indices by key."""
    indices = {}
    for column, index in state.indices.items():
        if not isinstance(index, ExplicitSecondaryIndex):
            continue
        if index.index_storage_key is None:
            key = index.store(blobs, state.uuid)
            written.append(key)
            index = ExplicitSecondaryIndex(column=column, index_storage_key=key, dtype=index.dtype)
        indices[column] = index.unload()
    return state.copy(indices=indices)


def unreferenced_indices(blobs: BlobStore, uuid: str, written: Sequence[str]) -> list[str]:
    """Those of the written index files to which the newest state does not refer."""
    if not written:
        return []
    # the answer to our put may be lost and a newer state be built on ours, which still refers to them
    try:
        state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    except DatasetNotFoundError:
        return list(written)
    except (CorruptDatasetError, OSError, KeyError, NotImplementedError):
        # unknown: files that stay are garbage at worst
        return []
    used = {index.index_storage_key for index in state.secondary_indices.values()}
    return [key for key in written if key not in used]


def refers_to(blobs: BlobStore, uuid: str, key: str) -> bool:
    """Whether the newest state of a dataset refers to an index file."""
    state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    return any(getattr(index, "index_storage_key", None) == key for index in state.indices.values())
