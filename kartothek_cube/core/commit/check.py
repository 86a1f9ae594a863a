"""Whether the files of a commit are there to stay: a garbage collection may have taken them for garbage."""

from __future__ import annotations

from collections.abc import Sequence, Set

from kartothek_cube.core._header import parse_header
from kartothek_cube.core.commit.header import header_format, read_versioned
from kartothek_cube.core.commit.retry import attempts, retry_request
from kartothek_cube.core.commit_record import parse_record
from kartothek_cube.core.errors import ConcurrentWriteError, UnknownOutcomeError
from kartothek_cube.core.store import BlobStore, PreconditionFailed
from kartothek_cube.core.tombstones import (
    TOMBSTONES_KEY,
    list_tombstone_files,
    tombstone_name,
    tombstoned_files,
)

__all__ = ("check_files", "confirm_first_commit")

#: entries in an answer of an object store to a listing
_PAGE = 1000


def check_files(
    blobs: BlobStore, uuid: str, files: Sequence[str], tombstones: Set[str], *, others: int = 0
) -> None:
    """
    Check that the files of a commit exist and that no garbage collection is about to delete one.

    Called after the base was read and before the header is swapped: a collection that begins in between
    changes the header, so that the swap fails.

    Parameters
    ----------
    blobs, uuid
        Store and dataset.
    files
        Keys of the files.
    tombstones
        Names of files that are being deleted.
    others
        How many files the dataset has beside these, about.

    Raises
    ------
    ConcurrentWriteError
        A file is gone, or has a tombstone.
    """
    if tombstones:
        _refuse(uuid, [key for key in files if tombstone_name(key) in tombstones])
    # local files cost less one by one; elsewhere it is the number of requests that counts
    if not blobs.is_local and len(files) > 1 + (others + len(files)) // _PAGE:
        stored = {blob.key for blob in blobs.list(f"{uuid}/")}
        files = [key for key in files if key not in stored]
    # a listing may be outdated
    _refuse(uuid, [key for key in files if not blobs.exists(key)])


def confirm_first_commit(
    blobs: BlobStore, uuid: str, header_key: str, files: Sequence[str], commit: str
) -> set[str]:
    """
    Check the files of the commit that has created a dataset, and take it back if they are deleted.

    There was no header in which a garbage collection could have put tombstones. It puts a tombstone file,
    then looks for a header, and spares what that refers to. So either it has seen the header, or its
    tombstones are seen here. If it has finished already, files are missing: these are looked for second.

    Parameters
    ----------
    blobs, uuid, header_key
        Store, dataset, and where its header is.
    files
        Keys of the files that the header refers to.
    commit
        Id of the commit, in its record.

    Returns
    -------
    set of str
        Names of the files that have tombstones; none of them is one of ``files``.

    Raises
    ------
    ConcurrentWriteError
        The commit was taken back.
    UnknownOutcomeError
        The store does not answer; the header is there.
    """

    def look() -> set[str]:
        tombstones = tombstoned_files({TOMBSTONES_KEY: list_tombstone_files(blobs, uuid)})
        check_files(blobs, uuid, files, tombstones)
        return tombstones

    try:
        try:
            return retry_request(look)
        except ConcurrentWriteError:
            if retry_request(lambda: _take_back(blobs, header_key, commit)):
                raise
            # another commit is built on this one: it saw that no collection concerns these files, and any
            # that has begun since has seen the header
            return set()
    except OSError as error:
        raise UnknownOutcomeError(uuid, str(error)) from error


def _take_back(blobs: BlobStore, header_key: str, commit: str) -> bool:
    """Delete the header of a first commit; False if another commit has been built on it."""
    for _ in attempts():
        content, token = read_versioned(blobs, header_key)
        if content is None:
            return True
        record = parse_record(parse_header(content, header_format(header_key), header_key))
        if record is None or record.unconfirmed != commit:
            return False
        try:
            blobs.delete_if(header_key, token)
        except PreconditionFailed:
            # tombstones of another collection came in between
            continue
        return True
    return False


def _refuse(uuid: str, gone: Sequence[str]) -> None:
    if gone:
        raise ConcurrentWriteError(
            uuid,
            detail=f"Files of this commit were deleted while it was under way, such as {gone[0]}: a cleanup "
            "or garbage collection ran at the same time. Write again, and give cleanups a retention. If none "
            "is running, one has died: run it again before you write.",
        )
