"""The commit of a written dataset."""

from __future__ import annotations

from functools import partial

from kartothek_cube.core.commit import ChangeSet, CommitReceipt, commit
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.write.index_entries import read_index_entries

__all__ = ("commit_change",)


def commit_change(blobs: BlobStore, change: ChangeSet) -> tuple[DatasetMetadata, CommitReceipt]:
    """Commit a change; entries of indices that its tasks did not know of are read back from the files."""
    return commit(blobs, change, partial(read_index_entries, blobs, change.uuid, change.table, change.added))
