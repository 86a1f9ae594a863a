"""Publishing a change by compare-and-swap on the header: again and again until nobody else was faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.commit.apply import apply, last_batch
from kartothek_cube.core.commit.base import Base
from kartothek_cube.core.commit.check import check_again, check_files
from kartothek_cube.core.commit.delta import Delta, IndexEntries, MissingIndexEntries, Published
from kartothek_cube.core.commit.header import (
    check_one_header,
    current,
    drop_other_format,
    render,
    restore,
    swap,
)
from kartothek_cube.core.commit.retry import attempts
from kartothek_cube.core.common_metadata import schema_file_from_bytes, schema_to_bytes
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.load import StoredHeader
from kartothek_cube.core.errors import (
    ConcurrentWriteError,
    CorruptDatasetError,
    DatasetNotFoundError,
    MissingFileError,
    UnknownOutcomeError,
)
from kartothek_cube.core.history import keep_state, prune, states_to_keep, with_version
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.naming import metadata_key_from_uuid, schema_key
from kartothek_cube.core.prune import load_needed_indices
from kartothek_cube.core.schema.lineage import lineage_of, successor
from kartothek_cube.core.store import BlobStore, PreconditionFailed

__all__ = ("Base", "commit", "publish", "read_base")


Result = tuple[DatasetMetadata, Published]


def commit(
    blobs: BlobStore,
    delta: Delta,
    index_entries: Callable[[str, Sequence[str]], IndexEntries] | None = None,
) -> Result:
    """
    Publish a change: apply it to the newest state, write it if nobody else was faster, else start again.

    Parameters
    ----------
    blobs
        Store.
    delta
        The change. Its data files are stored already.
    index_entries
        Reads the index entries of a column for the given partitions from their files; asked for when the
        newest state has an index that the writers of the partitions did not know of.

    Returns
    -------
    state
        The new state, as loading it gives.
    published
        What was replaced, for :func:`~kartothek_cube.core.commit.rollback`.

    Raises
    ------
    ConcurrentWriteError
        If others were faster again and again, or wrote to the partitions that the change removes.
    UnknownOutcomeError
        If the store does not tell whether the change got through.
    """
    states_to_keep(delta.metadata)
    for _ in attempts():
        try:
            return _try(blobs, delta)
        except PreconditionFailed:
            continue
        except MissingIndexEntries as missing:
            if index_entries is None:
                raise ValueError(
                    f"Partitions without entries for the index on {missing.column} of dataset {delta.uuid}"
                ) from None
            delta = _with_entries(delta, missing, index_entries)
        except MissingFileError as missing:
            # a faster writer replaced it, and a collection took it, before we got to it
            if _refers_to(blobs, delta.uuid, missing.key):
                raise
        except UnknownOutcomeError:
            settled = _settled(blobs, delta)
            if settled is None:
                raise
            return settled
    raise ConcurrentWriteError(delta.uuid, delta.added.labels.to_pylist())


def _refers_to(blobs: BlobStore, uuid: str, key: str) -> bool:
    state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    return any(getattr(index, "index_storage_key", None) == key for index in state.indices.values())


def _with_entries(
    delta: Delta, missing: MissingIndexEntries, read: Callable[[str, Sequence[str]], IndexEntries]
) -> Delta:
    found = read(missing.column, missing.labels.to_pylist())
    known = delta.indices.get(missing.column)
    if known is not None:
        merged = IndexColumns.merge([known.entries, found.entries], found.entries.values.type)
        found = IndexEntries(merged, pa.concat_arrays([known.covered, found.covered]))
    return attrs.evolve(delta, indices={**delta.indices, missing.column: found})


def _settled(blobs: BlobStore, delta: Delta) -> Result | None:
    """The state, if it shows that a change whose answer was lost did get through."""
    try:
        base = _load(blobs, delta)
    except OSError:
        return None
    return _unchanged(base) if _is_done(base.state, delta) else None


def _try(blobs: BlobStore, delta: Delta) -> Result:
    base = _load(blobs, delta)
    if _is_done(base.state, delta):
        return _unchanged(base)
    new = apply(base.state, delta)
    added = [key for keys in delta.added.files.values() for key in keys.to_pylist()]
    result = publish(blobs, base, new, added, replace=delta.mode == "replace")
    if delta.mode == "replace":
        drop_other_format(blobs, delta.uuid, base.header_key)
    return result


def publish(
    blobs: BlobStore, base: Base, new: DatasetMetadata, files: Sequence[str], *, replace: bool = False
) -> Result:
    """
    Put a state in place of the one that was read: new indices, the schema, and the header as the last thing.

    Parameters
    ----------
    blobs
        Store.
    base
        What was read.
    new
        The new state; indices without storage key are loaded.
    files
        Files that have to exist when the header is put.
    replace
        Whether the new state takes nothing over from the old one.

    Returns
    -------
    state, published
        As :func:`commit`.

    Raises
    ------
    PreconditionFailed
        Somebody else was faster; nothing has changed.
    ConcurrentWriteError
        Files of the commit are gone; nothing has changed.
    OSError, UnknownOutcomeError
        The store failed.
    """
    written: list[str] = []
    schema = None
    try:
        new = with_version(_store_indices(blobs, new, written), base.state, blobs, base.header_key)
        header = render(new, base.header_key)
        schema = _put_schema(blobs, base, new, replace)
        if states_to_keep(new.metadata) and base.state is not None and base.old is not None:
            keep_state(blobs, base.state, base.old)
        blobs.flush([*files, *written])
        check_files(blobs, base, [*files, *written])
        swap(blobs, base.uuid, base.header_key, header, _at(base), base.token)
        if base.old is None:
            check_again(blobs, base, [*files, *written], header)
    except (PreconditionFailed, ConcurrentWriteError):
        blobs.delete(_unreferenced(blobs, base.uuid, written))
        restore(blobs, base.schema_key, schema, base.schema)
        raise
    except OSError:
        with suppress(OSError, PreconditionFailed):
            _mend_schema(blobs, base, schema)
        raise
    if _keeps(new) or _keeps(base.state):
        prune(base.uuid, blobs)
    return new, base.published(header, schema)


def _at(base: Base) -> bytes | None:
    """The header at the key of the new one."""
    return base.header if base.old is not None and base.old.key == base.header_key else None


def _keeps(state: DatasetMetadata | None) -> bool:
    """Whether a dataset has, or may have, copies of older states."""
    try:
        return state is not None and states_to_keep(state.metadata) > 0
    except ValueError:
        return False


def read_base(blobs: BlobStore, uuid: str, table: str) -> Base:
    """
    Read a dataset in order to change it.

    Parameters
    ----------
    blobs
        Store.
    uuid, table
        The dataset.

    Returns
    -------
    Base

    Raises
    ------
    DatasetNotFoundError
        There is no such dataset.
    """
    schema, schema_token = current(blobs, schema_key(uuid, table))
    state, key, token, header = DatasetMetadata.load_with_token(uuid, blobs)
    stored = StoredHeader(key, header, "json" if key.endswith(".json") else "msgpack", token)
    return Base(uuid, table, key, token, stored, state, schema, schema_token)


def _load(blobs: BlobStore, delta: Delta) -> Base:
    """The newest state with the indices that will change; a schema is read before the header it goes with."""
    wanted = metadata_key_from_uuid(delta.uuid, delta.storage_format)
    schema = current(blobs, schema_key(delta.uuid, delta.table))
    try:
        base = read_base(blobs, delta.uuid, delta.table)
    except DatasetNotFoundError:
        return Base(delta.uuid, delta.table, wanted, None, None, None, *schema)
    except (CorruptDatasetError, KeyError, NotImplementedError):
        if delta.mode != "replace":
            raise
        content, token = current(blobs, wanted)
        old = None if content is None else StoredHeader(wanted, content, delta.storage_format, token)
        return Base(delta.uuid, delta.table, wanted, token, old, None, *schema)
    if delta.mode == "replace" and base.header_key != wanted:
        return attrs.evolve(base, header_key=wanted, token=current(blobs, wanted)[1])
    if delta.mode in ("create", "replace"):
        return base
    check_one_header(blobs, delta.uuid, base.header_key)
    return attrs.evolve(base, state=_with_indices(blobs, base.state, delta))


def _with_indices(blobs: BlobStore, state: Any, delta: Delta) -> DatasetMetadata:
    if not state.explicit_partitions:  # the files of this very change are there already
        ours = state.partition_table.positions(delta.added.labels)
        theirs = np.ones(len(state.partition_table), dtype=bool)
        theirs[ours[ours >= 0]] = False
        state = state.copy(partitions=state.partition_table.filter(theirs))
    touched = set(state.secondary_indices) - delta.new_indices
    scope_columns = {literal[0] for conjunction in delta.scope or () for literal in conjunction}
    if not len(delta.added) and delta.scope is None and delta.inputs is None:
        touched = set()
    found: DatasetMetadata = load_needed_indices(state, touched | scope_columns, blobs)
    return found


def _is_done(state: DatasetMetadata | None, delta: Delta) -> bool:
    """Whether this very commit got through already: its labels are UUIDs, nobody else adds them."""
    if state is None:
        return False
    if delta.batch is not None:
        last = last_batch(state, delta.batch[0])
        if last is not None and last >= delta.batch[1]:
            return True
    if not len(delta.added):
        return False
    if delta.write_id and pc.any(pc.match_substring(state.partition_table.labels, delta.write_id)).as_py():
        return True
    return bool((state.partition_table.positions(delta.added.labels) >= 0).all())


def _unchanged(base: Base) -> Result:
    """The state as loading it gives, secondary indices by key only."""
    state: Any = base.state
    unloaded = {column: index.unload() for column, index in state.secondary_indices.items()}
    return state.copy(indices=unloaded), base.published(base.header or b"", None)


def _put_schema(blobs: BlobStore, base: Base, new: DatasetMetadata, replace: bool) -> bytes | None:
    """Write the schema unless it is there; until the header follows, each header finds its own in it."""
    if new.schema is None:
        return None
    try:
        old = None if base.schema is None else schema_file_from_bytes(base.schema, base.schema_key)
    except CorruptDatasetError:
        if base.state is not None:
            raise
        old = None
    lineage = lineage_of(new.metadata)
    same = old is not None and old.schema.equals(new.schema, check_metadata=replace)
    if same and old is not None and old.of(lineage).equals(new.schema):
        return None
    replaced = None if base.state is None else lineage_of(base.state.metadata)
    content = schema_to_bytes(successor(new.schema, lineage, old, replaced))
    blobs.put_if(base.schema_key, content, base.schema_token)
    return content


def _mend_schema(blobs: BlobStore, base: Base, ours: bytes | None) -> None:
    """Put the schema of the header that is there first; ours stays known, should our header arrive late."""
    content, token = current(blobs, base.schema_key)
    if ours is None or content != ours or base.state is None or base.state.schema is None:
        return
    lineage = lineage_of(base.state.metadata)
    old = schema_file_from_bytes(ours, base.schema_key)
    file = successor(base.state.schema, lineage, old, lineage)
    blobs.put_if(base.schema_key, schema_to_bytes(file), token)


def _store_indices(blobs: BlobStore, state: DatasetMetadata, written: list[str]) -> DatasetMetadata:
    """Write the changed indices; the result refers to all of them by key."""
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


def _unreferenced(blobs: BlobStore, uuid: str, written: Sequence[str]) -> list[str]:
    """
    Index files that no state knows.

    The answer to our put may be lost and a newer state, made of ours, be there: it still refers to them.
    """
    if not written:
        return []
    try:
        state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    except DatasetNotFoundError:
        return list(written)
    except (CorruptDatasetError, OSError, KeyError, NotImplementedError):
        # garbage at worst
        return []
    used = {index.index_storage_key for index in state.secondary_indices.values()}
    return [key for key in written if key not in used]
