"""Headers and schema files in the store: read with version, compare-and-swap and backoff, restore, delete."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

from kartothek_cube.core import clock
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.loading import read_header
from kartothek_cube.core.errors import ConcurrentWriteError, CorruptDatasetError, UnknownOutcomeError
from kartothek_cube.core.header import COMMIT_RECORD
from kartothek_cube.core.naming import header_keys
from kartothek_cube.core.store import BlobStore, FlushError, PreconditionFailed
from kartothek_cube.core.uuid import gen_uuid

__all__ = (
    "attempts",
    "check_one_header",
    "compare_and_swap_header",
    "delete_blob",
    "delete_headers",
    "edit_header",
    "header_format",
    "other_header_key",
    "read_versioned",
    "render",
    "restore_if_ours",
    "retry_request",
)

T = TypeVar("T")

#: attempts before a writer gives up against faster ones; with the pauses below this is about a minute
_ATTEMPTS = 60
_LONGEST_PAUSE_S = 2.0
#: stores repeat requests themselves; this is for errors that remain
_REPETITIONS = 3
_PAUSE_S = 0.1


def attempts() -> Iterator[int]:
    """Count attempts, with a pause before each but the first that grows and is random.

    >>> next(attempts())
    0
    """
    # random, so that writers that met once do not meet again
    yield 0
    for attempt in range(1, _ATTEMPTS):
        clock.sleep(min(_LONGEST_PAUSE_S, 0.005 * 1.5 ** (attempt - 1)) * random.random())
        yield attempt


def retry_request(request: Callable[[], T]) -> T:
    """Repeat a request that fails, a few times."""
    # for requests after a successful commit: a lost one must not turn it into an error
    for attempt in range(_REPETITIONS):
        if attempt:
            clock.sleep(_PAUSE_S * attempt)
        try:
            return request()
        except OSError as error:
            failure = error
    raise failure


def header_format(key: str) -> str:
    """The format of the header at a key."""
    return "json" if key.endswith(".json") else "msgpack"


def render(state: DatasetMetadata, key: str) -> bytes:
    """Render the header of a state in the format of its key."""
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
    """Put a header if the stored one is that which was read; return its version."""
    try:
        return blobs.put_if(key, content, token)
    except PreconditionFailed:
        stored, version = read_versioned(blobs, key)
        if stored != content:
            raise
        # the client repeated a request whose answer was lost: our header is the stored one
        return version
    except FlushError as failure:
        # to find our header there proves nothing: it may be gone after a power failure
        raise UnknownOutcomeError(uuid, str(failure)) from failure
    except OSError as failure:
        try:
            stored, version = read_versioned(blobs, key)
        except OSError:
            raise UnknownOutcomeError(uuid, str(failure)) from failure
        if stored == content:
            # only the answer was lost
            return version
        if stored == old:
            raise
        # ours may have been there before the one of another writer
        raise UnknownOutcomeError(uuid, str(failure)) from failure


def edit_header(
    blobs: BlobStore, uuid: str, change: Callable[[DatasetMetadata], DatasetMetadata | None]
) -> DatasetMetadata:
    """Change fields of the newest header by compare-and-swap; None from `change` leaves it as it is."""
    # The new header has an id of its own, as any commit: a writer that has read an older one must notice.
    for _ in attempts():
        stored = read_header(uuid, blobs, with_token=True)
        state = DatasetMetadata.load_from_header(stored, uuid, blobs)
        new = change(state)
        if new is None:
            return state
        record = new.extra.get(COMMIT_RECORD)
        if record is not None:
            new = new.copy(extra={**new.extra, COMMIT_RECORD: {**record, "commit": gen_uuid()}})
        try:
            compare_and_swap_header(
                blobs, uuid, stored.key, render(new, stored.key), stored.content, stored.token
            )
        except PreconditionFailed:
            # another writer was faster: decide again on its state
            continue
        return state
    raise ConcurrentWriteError(uuid)


def other_header_key(uuid: str, key: str) -> str:
    """The key of the header in the other format."""
    (other,) = set(header_keys(uuid)) - {key}
    return other


def check_one_header(blobs: BlobStore, uuid: str, key: str) -> None:
    """Raise CorruptDatasetError if a dataset has headers in both formats."""
    other = other_header_key(uuid, key)
    if blobs.exists(other):
        raise CorruptDatasetError(
            key,
            f"there is another header of this dataset, {other!r}, and it is unknown which one holds its "
            "state. Delete the outdated one, or write the dataset again with overwrite=True",
        )


def delete_blob(blobs: BlobStore, key: str, unless: Iterable[str] = ()) -> bool:
    """Delete the newest version of a blob at a fixed key; False if there is none, or another one exists."""
    # By condition also here: a plain deletion that arrives late would meet a blob that was put since.
    for _ in attempts():
        content, token = read_versioned(blobs, key)
        if content is None or any(blobs.exists(other) for other in unless):
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


def delete_headers(blobs: BlobStore, uuid: str, unless: Collection[str] = ()) -> bool:
    """Delete a dataset by its header, in both formats; False if there was none, or one of others exists."""
    # JSON last: it wins over the other format, so that readers never see an older state in between.
    deleted = [delete_blob(blobs, key, unless) for key in reversed(header_keys(uuid))]
    return any(deleted)


def restore_if_ours(
    blobs: BlobStore, key: str, put: bytes | None, old: bytes | None, *, delete: bool = False
) -> bool:
    """Put back the replaced content if the stored one is still ours; False if it is another writer's."""
    # What did not exist before stays unless `delete` is set: a schema may be that of another writer, with the
    # same content, and is garbage at worst.
    stored, token = read_versioned(blobs, key)
    if put is None or stored != put or old == put:
        return stored == old
    try:
        if old is not None:
            blobs.put_if(key, old, token)
        elif delete:
            blobs.delete_if(key, token)
    except PreconditionFailed:
        # another writer was faster: it is no longer ours
        return False
    return True
