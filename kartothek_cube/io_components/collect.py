"""Deleting garbage while others write: no commit can refer to a file that goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from kartothek_cube.core.commit.going import mark, unmark
from kartothek_cube.core.commit.header import render, swap
from kartothek_cube.core.commit.retry import attempts
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import ConcurrentWriteError, DatasetNotFoundError
from kartothek_cube.core.store import BlobStore, PreconditionFailed, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.keys import data_keys, index_keys

__all__ = ("run_collect",)


def run_collect(store: StoreInput, keys: Iterable[str]) -> None:
    """
    Delete garbage, unless somebody has committed it meanwhile.

    A writer may be about to commit a file, however old it is. So the header says which files go before they
    go, and not any longer when they are gone: the commit of one of them is refused, whenever it comes.

    Parameters
    ----------
    store
        Store, factory or URL.
    keys
        What was found to be garbage.

    Raises
    ------
    ConcurrentWriteError
        Others were faster again and again; files may be left.
    """
    blobs, keys = open_blobs(store), sorted(keys)
    for uuid, own in groupby(keys, key=_dataset_of):
        if uuid is None:
            blobs.delete(list(own))
        else:
            _collect(blobs, uuid, list(own))


def _dataset_of(key: str) -> str | None:
    """The dataset of a file; None for what lies at the top, which is left from a header."""
    uuid, separator, _ = key.partition("/")
    return uuid if separator else None


def _collect(blobs: BlobStore, uuid: str, keys: Sequence[str]) -> None:
    collection = gen_uuid()
    try:
        before, after, state = _edit(blobs, uuid, lambda metadata: mark(metadata, collection, keys))
    except DatasetNotFoundError:
        blobs.delete(list(keys))
        return
    used = {*data_keys(state), *index_keys(state)}
    # if this fails, nobody knows what is still deleted later: the mark has to stay
    blobs.delete([key for key in keys if key not in used])
    with suppress(DatasetNotFoundError):
        _edit(blobs, uuid, lambda metadata: unmark(metadata, collection), {after: before})


def _edit(
    blobs: BlobStore,
    uuid: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    known: dict[bytes, bytes] | None = None,
) -> tuple[bytes, bytes, DatasetMetadata]:
    """Change the metadata of the newest state; give the header before and after, and the state."""
    for _ in attempts():
        state, key, token, header = DatasetMetadata.load_with_token(uuid, blobs, load_schema=False)
        new = (known or {}).get(header) or render(state.copy(metadata=change(dict(state.metadata))), key)
        try:
            swap(blobs, uuid, key, new, header, token)
        except PreconditionFailed:
            continue
        return header, new, state
    raise ConcurrentWriteError(uuid)
