"""How old files are: by the clock of the store, whatever the clock of this machine says."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, timedelta

from kartothek_cube.core import clock
from kartothek_cube.core.store import Blob, BlobStore
from kartothek_cube.core.uuid import gen_uuid

__all__ = ("retention_cutoff", "is_older", "with_sizes")


def retention_cutoff(blobs: BlobStore, prefix: str, retention: timedelta | None) -> float | None:
    """
    The time before which a file has to be written to be older than a retention.

    The store stamps files with its own clock, which may differ from ours by hours. So its clock is read: by
    writing an empty file, looking at its stamp, and deleting it. Where that is not possible, because the
    store is read-only or tells no times, our clock has to do.

    Parameters
    ----------
    blobs
        The store.
    prefix
        What the key of that file begins with.
    retention
        Files younger than this are not old; None: age does not matter.

    Returns
    -------
    float or None
        Seconds since 1970, UTC, comparable with :attr:`~kartothek_cube.core.store.Blob.mtime`.

    Raises
    ------
    ValueError
        The retention is negative.
    TypeError
        It is no timedelta.
    """
    if retention is None:
        return None
    if not isinstance(retention, timedelta):
        raise TypeError(f"retention is a datetime.timedelta, such as timedelta(hours=24), not {retention!r}")
    if retention < timedelta(0):
        raise ValueError(f"retention is the age below which files stay, so it can't be negative: {retention}")
    return _clock(blobs, f"{prefix}.{gen_uuid()}.tmp") - retention.total_seconds()


def _clock(blobs: BlobStore, key: str) -> float:
    ours = clock.datetime_utcnow().replace(tzinfo=UTC).timestamp()
    try:
        blobs.put(key, b"")
        try:
            found = [blob.mtime for blob in blobs.list(key) if blob.key == key]
        finally:
            blobs.delete([key])
    except OSError:
        return ours
    return ours if not found or found[0] is None else found[0]


def with_sizes(blobs: BlobStore, found: Iterable[Blob]) -> list[Blob]:
    """
    Entries of a listing with their sizes, also where the store does not tell these in listings.

    Parameters
    ----------
    blobs
        The store.
    found
        The entries.

    Returns
    -------
    list of Blob
        Without those that are gone.
    """
    result = []
    for blob in found:
        with suppress(KeyError):
            result.append(blob if blob.size is not None else blob._replace(size=blobs.size(blob.key)))
    return result


def is_older(blob: Blob, limit: float | None) -> bool:
    """
    Whether a file is older than a limit; one of unknown age is not.

    Parameters
    ----------
    blob
        Entry of a listing.
    limit
        From :func:`retention_cutoff`; None: age does not matter.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_older(Blob("sales/table/a1.parquet", mtime=100.0), limit=200.0)
    True
    """
    return limit is None or (blob.mtime is not None and blob.mtime <= limit)
