"""Deletion of garbage while others write: no commit can refer to a file that is deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

from kartothek_cube.core.commit.backoff import attempts, retry_request
from kartothek_cube.core.commit.header_store import compare_and_swap_header, read_versioned, render
from kartothek_cube.core.commit.tombstones import (
    add_tombstones,
    is_tombstone_file,
    put_tombstone_file,
    remove_tombstones,
    tombstone_entries,
    tombstone_name,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import ConcurrentWriteError, DatasetNotFoundError
from kartothek_cube.core.header.commit_record import COMMIT_RECORD
from kartothek_cube.core.naming import TABLE_METADATA_FILE
from kartothek_cube.core.store import BlobStore, PreconditionFailed, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.keys import data_keys, header_keys, index_keys, is_header_key, schema_keys

__all__ = ("delete_garbage",)


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
        blobs.delete([tombstones])
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
    blobs.delete([*last, tombstones])
    return True


def _remove_from_header(blobs: BlobStore, uuid: str, collection: str) -> None:
    """Remove tombstones that a commit has taken over from their file."""
    with suppress(DatasetNotFoundError):
        state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
        if collection in tombstone_entries(state.metadata):
            _edit_tombstones(blobs, uuid, lambda s: remove_tombstones(s.metadata, collection, set()))
