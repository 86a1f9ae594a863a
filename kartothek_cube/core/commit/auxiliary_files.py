"""Schema and index files of a commit: written before the header, put back or deleted if the header fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from contextlib import suppress

from kartothek_cube.core.commit.base_state import BaseState
from kartothek_cube.core.commit.change import WriteMode
from kartothek_cube.core.commit.header_store import attempts, read_versioned
from kartothek_cube.core.commit.tombstones import tombstone_name
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.references import index_keys
from kartothek_cube.core.errors import CorruptDatasetError, DatasetNotFoundError
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.schema.file import (
    next_version,
    schema_file_from_bytes,
    schema_to_bytes,
    schema_version_of,
)
from kartothek_cube.core.store import BlobStore, PreconditionFailed

__all__ = (
    "put_schema",
    "put_tombstoned_schema_again",
    "refers_to",
    "restore_schema",
    "store_indices",
    "list_unreferenced_indices",
)

_LOGGER = logging.getLogger(__name__)


def put_schema(
    blobs: BlobStore, base: BaseState, new: DatasetMetadata, mode: WriteMode, content: bytes | None
) -> bytes | None:
    """Write the schema file of a new state unless the stored one holds its schema; return what was put."""
    if new.schema is None:
        return None
    try:
        old = None if base.schema is None else schema_file_from_bytes(base.schema, base.schema_key)
    except CorruptDatasetError:
        if base.state is not None:
            raise
        # left by a dataset that is damaged or deleted, and replaced now
        old = None
    replace = mode is WriteMode.REPLACE
    version = schema_version_of(new.metadata)
    # a first commit always writes the file: a collection may be about to delete the stored one
    same = base.old is not None and old is not None and old.schema.equals(new.schema, check_metadata=replace)
    if same and old is not None and old.of(version).equals(new.schema):
        return None
    replaced = None if base.state is None else schema_version_of(base.state.metadata)
    if content is None or base.state is not None:
        # old and new schema in one file: until the header follows, each header finds its own in it
        content = schema_to_bytes(next_version(new.schema, version, old, replaced))
    blobs.put_if(base.schema_key, content, base.schema_token)
    return content


def restore_schema(blobs: BlobStore, base: BaseState, put: bytes | None) -> None:
    """Put the schema of the stored header first again, after a header could not be written."""
    content, token = read_versioned(blobs, base.schema_key)
    if put is None or content != put or base.state is None or base.state.schema is None:
        return
    version = schema_version_of(base.state.metadata)
    # our schema stays in the file, should the write of our header land late
    file = next_version(base.state.schema, version, schema_file_from_bytes(put, base.schema_key), version)
    blobs.put_if(base.schema_key, schema_to_bytes(file), token)


def put_tombstoned_schema_again(
    blobs: BlobStore, base: BaseState, new: DatasetMetadata, tombstones: Set[str]
) -> None:
    """Write the schema file of a first commit again if a collection is deleting it, or has deleted it."""
    if new.schema is None:
        return
    # another version than the collection has read, so that its deletion by condition fails
    file = schema_to_bytes(next_version(new.schema, schema_version_of(new.metadata), None, None))
    try:
        for attempt in attempts():
            content, token = read_versioned(blobs, base.schema_key)
            # after a refused put: the collection deleted the file, or another commit put a newer one
            if content is not None and (attempt or tombstone_name(base.schema_key) not in tombstones):
                return
            with suppress(PreconditionFailed):
                blobs.put_if(base.schema_key, file, token)
                return
    except OSError as error:
        # the header holds the schema, too, and the next commit or repair puts the file again
        _LOGGER.warning("The schema file of dataset %s may be missing: %s", base.uuid, error)


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


def list_unreferenced_indices(blobs: BlobStore, uuid: str, written: Sequence[str]) -> list[str]:
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
    used = index_keys(state)
    return [key for key in written if key not in used]


def refers_to(blobs: BlobStore, uuid: str, key: str) -> bool:
    """Whether the newest state of a dataset refers to an index file."""
    state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    return key in index_keys(state)
