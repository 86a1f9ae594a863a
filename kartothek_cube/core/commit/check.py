"""Whether the files of a commit are still there: a collection may have taken them for garbage."""

from __future__ import annotations

from collections.abc import Sequence

from kartothek_cube.core.commit.base import Base
from kartothek_cube.core.commit.going import file_name, going
from kartothek_cube.core.commit.header import restore
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.core.store import BlobStore

__all__ = ("check_again", "check_files")

#: entries in an answer of an object store to a listing
_PAGE = 1000


def check_files(blobs: BlobStore, base: Base, files: Sequence[str]) -> None:
    """
    Make sure that no collection took files of a commit for garbage while it was under way, or is about to.

    Parameters
    ----------
    blobs
        Store.
    base
        What the commit starts from.
    files
        Its files.

    Raises
    ------
    ConcurrentWriteError
        If one is gone, or going.
    """
    doomed = set() if base.state is None else going(base.state.metadata)
    if doomed:
        _refuse(base.uuid, [key for key in files if file_name(key) in doomed])
    there = 0 if base.state is None else len(base.state.partition_table)
    # local files cost less one by one; elsewhere it is the number of requests that counts
    if not blobs.is_local and len(files) > 1 + (there + len(files)) // _PAGE:
        stored = {blob.key for blob in blobs.list(f"{base.uuid}/")}
        files = [key for key in files if key not in stored]
    # a listing may be outdated
    _refuse(base.uuid, [key for key in files if not blobs.exists(key)])


def check_again(blobs: BlobStore, base: Base, files: Sequence[str], header: bytes) -> None:
    """
    Take the first header of a dataset back if files are gone: no header told the collection to leave them.

    Parameters
    ----------
    blobs, base, files
        As in :func:`check_files`.
    header
        What was published.

    Raises
    ------
    ConcurrentWriteError
        If one is gone.
    """
    try:
        check_files(blobs, base, files)
    except ConcurrentWriteError:
        restore(blobs, base.header_key, header, None, delete=True)
        raise


def _refuse(uuid: str, gone: Sequence[str]) -> None:
    if gone:
        raise ConcurrentWriteError(
            uuid,
            detail=f"Files of this commit were deleted while it was under way, such as {gone[0]}: a cleanup "
            "or garbage collection ran at the same time. Write again, and give cleanups a retention.",
        )
