"""Headers and schemas in the store: what is there, whether a swap got through, what is put back."""

from __future__ import annotations

from typing import Any

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import CorruptDatasetError, UnknownOutcomeError
from kartothek_cube.core.naming import metadata_key_from_uuid
from kartothek_cube.core.store import BlobStore, PreconditionFailed

__all__ = ("check_one_header", "current", "drop_other_format", "render", "restore", "swap")


def render(state: DatasetMetadata, key: str) -> bytes:
    """The header of a state, in the format that its key tells."""
    return state.to_json() if key.endswith(".json") else state.to_msgpack()


def current(blobs: BlobStore, key: str) -> tuple[bytes | None, Any]:
    """Content and version of a blob; None for both if there is none."""
    try:
        return blobs.get_with_token(key)
    except KeyError:
        return None, None


def swap(blobs: BlobStore, uuid: str, key: str, content: bytes, old: bytes | None, token: Any) -> None:
    """
    Put a header if the one that was read is still there.

    Parameters
    ----------
    blobs
        The store.
    uuid
        The dataset.
    key
        Key of the header.
    content
        The new header.
    old, token
        Content and version of the one that was read; None if there was none.

    Raises
    ------
    PreconditionFailed
        Somebody else was faster. If only the answer to our put was lost, it is our header that is there, and
        there is no error.
    OSError
        The store failed, and our header is not there.
    UnknownOutcomeError
        The store failed, and it does not tell whether our header got there before another one.
    """
    try:
        blobs.put_if(key, content, token)
    except PreconditionFailed:
        if current(blobs, key)[0] != content:
            raise
    except OSError as failure:
        try:
            found = current(blobs, key)[0]
        except OSError:
            raise UnknownOutcomeError(uuid, str(failure)) from failure
        if found == content:
            return
        if found == old:
            raise
        raise UnknownOutcomeError(uuid, str(failure)) from failure


def _other_header(blobs: BlobStore, uuid: str, key: str) -> str | None:
    """Key of the header in the other format, if there is one."""
    (other,) = {metadata_key_from_uuid(uuid, fmt) for fmt in ("json", "msgpack")} - {key}
    return other if blobs.exists(other) else None


def check_one_header(blobs: BlobStore, uuid: str, key: str) -> None:
    """
    Check that a dataset has no header in the other format.

    Raises
    ------
    CorruptDatasetError
        It has.
    """
    other = _other_header(blobs, uuid, key)
    if other is not None:
        raise CorruptDatasetError(
            key,
            f"there is another header of this dataset, {other!r}, and it is unknown which one holds its "
            "state. Delete the outdated one, or write the dataset anew with overwrite=True",
        )


def drop_other_format(blobs: BlobStore, uuid: str, key: str) -> None:
    """A dataset has one header; a leftover in the other format would win or linger."""
    other = _other_header(blobs, uuid, key)
    if other is not None:
        blobs.delete([other])


def restore(
    blobs: BlobStore, key: str, ours: bytes | None, old: bytes | None, *, delete: bool = False
) -> None:
    """
    Put back what we replaced, if what is there is still ours.

    What was not there before stays unless ``delete`` is set: a schema may be that of another writer, with the
    same content, and is garbage at worst.
    """
    found, token = current(blobs, key)
    if ours is None or found != ours or old == ours:
        return
    try:
        if old is not None:
            blobs.put_if(key, old, token)
        elif delete:
            blobs.delete_if(key, token)
    except PreconditionFailed:
        return
