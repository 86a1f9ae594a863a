"""Headers and schemas in the store: reading with a version, compare-and-swap, conditional undo, deletion."""

from __future__ import annotations

from typing import Any

from kartothek_cube.core.commit.backoff import attempts
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import ConcurrentWriteError, CorruptDatasetError, UnknownOutcomeError
from kartothek_cube.core.naming import metadata_key_from_uuid
from kartothek_cube.core.store import BlobStore, FlushError, PreconditionFailed

__all__ = (
    "check_one_header",
    "delete_blob",
    "delete_headers",
    "header_format",
    "other_header_key",
    "read_versioned",
    "render",
    "restore_if_ours",
    "compare_and_swap_header",
)


def header_format(key: str) -> str:
    """The format of a header, which its key tells."""
    return "json" if key.endswith(".json") else "msgpack"


def render(state: DatasetMetadata, key: str) -> bytes:
    """The header of a state, in the format that its key tells."""
    return state.to_json() if header_format(key) == "json" else state.to_msgpack()


def read_versioned(blobs: BlobStore, key: str) -> tuple[bytes | None, Any]:
    """Content and version of a blob; None for both if there is none."""
    try:
        return blobs.get_with_token(key)
    except KeyError:
        return None, None


def compare_and_swap_header(
    blobs: BlobStore, uuid: str, key: str, content: bytes, old: bytes | None, token: Any
) -> Any:
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

    Returns
    -------
    Token
        Version of the new header.

    Raises
    ------
    PreconditionFailed
        Somebody else was faster. If only the answer to our put was lost, it is our header that is there, and
        there is no error.
    OSError
        The store failed, and our header is not there.
    UnknownOutcomeError
        The store failed, and it does not tell whether our header got there before another one, or whether
        it is on disk.
    """
    try:
        return blobs.put_if(key, content, token)
    except PreconditionFailed:
        found, version = read_versioned(blobs, key)
        if found != content:
            raise
        return version
    except FlushError as failure:
        # to find our header there proves nothing: it may be gone after a power failure
        raise UnknownOutcomeError(uuid, str(failure)) from failure
    except OSError as failure:
        try:
            found, version = read_versioned(blobs, key)
        except OSError:
            raise UnknownOutcomeError(uuid, str(failure)) from failure
        if found == content:
            return version
        if found == old:
            raise
        raise UnknownOutcomeError(uuid, str(failure)) from failure


def other_header_key(uuid: str, key: str) -> str:
    """Where the header of a dataset would be in the other format."""
    (other,) = {metadata_key_from_uuid(uuid, fmt) for fmt in ("json", "msgpack")} - {key}
    return other


def check_one_header(blobs: BlobStore, uuid: str, key: str) -> None:
    """
    Check that a dataset has no header in the other format.

    Raises
    ------
    CorruptDatasetError
        It has.
    """
    other = other_header_key(uuid, key)
    if blobs.exists(other):
        raise CorruptDatasetError(
            key,
            f"there is another header of this dataset, {other!r}, and it is unknown which one holds its "
            "state. Delete the outdated one, or write the dataset again with overwrite=True",
        )


def delete_blob(blobs: BlobStore, key: str) -> bool:
    """
    Delete a blob at a fixed key in the newest version, whatever that is; False if there was none.

    By condition also here: a plain deletion that arrives late would meet a blob that was put since.
    """
    for _ in attempts():
        content, token = read_versioned(blobs, key)
        if content is None:
            return False
        try:
            blobs.delete_if(key, token)
        except PreconditionFailed:
            continue
        except OSError:
            if blobs.exists(key):
                raise
            # only the answer was lost
        return True
    raise ConcurrentWriteError(key)


def delete_headers(blobs: BlobStore, uuid: str) -> bool:
    """
    Delete a dataset by its header, in both formats; False if there was none.

    JSON comes last: it wins over the other format, so that readers never see an older state in between.
    """
    found = [delete_blob(blobs, metadata_key_from_uuid(uuid, kind)) for kind in ("msgpack", "json")]
    return any(found)


def restore_if_ours(
    blobs: BlobStore, key: str, ours: bytes | None, old: bytes | None, *, delete: bool = False
) -> bool:
    """
    Put back what we replaced, if what is there is still ours; False if it is another's.

    What was not there before stays unless ``delete`` is set: a schema may be that of another writer, with the
    same content, and is garbage at worst.
    """
    found, token = read_versioned(blobs, key)
    if ours is None or found != ours or old == ours:
        return found == old
    try:
        if old is not None:
            blobs.put_if(key, old, token)
        elif delete:
            blobs.delete_if(key, token)
    except PreconditionFailed:
        return False
    return True
