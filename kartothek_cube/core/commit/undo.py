"""Taking back what was published, as long as nobody built on it."""

from __future__ import annotations

from kartothek_cube.core.commit.delta import Published
from kartothek_cube.core.commit.header import current, restore
from kartothek_cube.core.store import BlobStore

__all__ = ("rollback",)


def rollback(blobs: BlobStore, published: Published) -> None:
    """
    Take a commit back, if nobody has committed on top of it.

    Files written for the commit stay as garbage.

    Parameters
    ----------
    blobs
        Store.
    published
        As returned by :func:`~kartothek_cube.core.commit.commit`.
    """
    found, _ = current(blobs, published.header_key)
    if found != published.header:
        return
    restore(blobs, published.header_key, published.header, published.old_header, delete=True)
    restore(blobs, published.schema_key, published.schema, published.old_schema)
