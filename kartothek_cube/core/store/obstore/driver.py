"""Driver for object stores: ranged reads, compare-and-swap by ETags, bulk deletion."""

# ruff: noqa: D102 (the protocol documents the methods)

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from kartothek_cube.core.store.base import (
    Blobs,
    BlobStore,
    Data,
    Keys,
    PreconditionFailed,
    Token,
    warn_no_swap,
)
from kartothek_cube.core.store.keys import check_key, check_keys
from kartothek_cube.core.store.obstore.bucket import Version
from kartothek_cube.core.store.obstore.client import ObjectStoreError
from kartothek_cube.core.store.obstore.reader import open_remote
from kartothek_cube.core.store.obstore.store import ObjectStore
from kartothek_cube.core.store.obstore.url import Location

__all__ = ("ObjectBlobStore",)

# attribute of what a conditional write wrote; letters only, since proxies and Azure are choosy
_MARK = "kartothekwrite"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
# whether a server of S3's protocol compares and swaps, and whether one deletes by condition; found out once
_CAN_SWAP: dict[Location, bool] = {}
_CAN_DELETE: dict[Location, bool] = {}


class ObjectBlobStore(BlobStore):
    """
    Blobs in a bucket of S3, Google Cloud Storage or Azure.

    Versions are ETags (on Google Cloud Storage with the generation), compared by the server. Servers that
    only speak the protocol of S3 are asked once per process whether they do that, too; if they do not,
    conditional writes read, compare and put, and warn.

    ``delete_if`` sends a signed request of its own, as the library deletes without conditions. Services are
    asked once per process whether they compare (S3 and Azure do); with others it compares first and deletes
    then, so that a blob which is put in between is lost.

    Parameters
    ----------
    store
        The user's store.

    Examples
    --------
    >>> from kartothek_cube.core.store import open_blobs
    >>> open_blobs("s3://sales/2025?region=eu-west-1")
    ObjectBlobStore('s3://sales/2025')
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._bucket = store.bucket

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store.location.url!r})"

    @property
    def store(self) -> ObjectStore:
        return self._store

    @property
    def can_swap(self) -> bool:
        location = self._store.location
        found = _CAN_SWAP.get(location)
        if found is None:
            found = _CAN_SWAP[location] = _is_known_to_swap(location) or self._swaps()
        return found

    @property
    def is_local(self) -> bool:
        return False

    @property
    def has_ranges(self) -> bool:
        return True

    # reading

    def get(self, key: str) -> bytes:
        return self._bucket.get(key)[0]

    def get_with_token(self, key: str) -> tuple[bytes, Token]:
        return self._bucket.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"cannot read {length} bytes from offset {start} of {key!r}")
        return self._bucket.get_range(key, start, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        return self._bucket.get_ranges(key, ranges)

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        return self._bucket.get_tail(key, length)

    def size(self, key: str) -> int:
        size: int = self._bucket.head(key)["size"]
        return size

    def exists(self, key: str) -> bool:
        return self._bucket.exists(key)

    def open_read(self, key: str) -> BinaryIO:
        return open_remote(self._bucket, key)

    def local_path(self, key: str) -> None:
        check_key(key)

    # writing

    def put(self, key: str, data: Data, *, durable: bool = False) -> None:
        self._bucket.put(key, data)

    @contextmanager
    def open_write(self, key: str, *, durable: bool = False) -> Iterator[str | BinaryIO]:
        check_key(key)
        buffer = io.BytesIO()
        yield buffer
        self._bucket.put(key, buffer.getbuffer())

    def put_if(self, key: str, data: Data, token: Token | None) -> Token:
        check_key(key)
        if not self.can_swap:
            return self._put_compared(key, data, token)
        mark = uuid.uuid4().hex
        try:
            return self._bucket.put(key, data, "create" if token is None else token, {_MARK: mark})
        except FileExistsError:
            found = self._marked(key, mark)
        except NotImplementedError:
            _CAN_SWAP[self._store.location] = False
            return self._put_compared(key, data, token)
        except ObjectStoreError as error:
            found = self._found_after(error, key, mark)
        if found is None:
            raise PreconditionFailed(key)
        return found

    def delete_if(self, key: str, token: Token) -> None:
        check_key(key)
        if token is None:
            raise PreconditionFailed(key)
        if self._deletes_by_condition():
            try:
                self._bucket.delete_if(key, token)
            except (FileExistsError, KeyError):
                raise PreconditionFailed(key) from None
            return
        if self._current(key) != token:
            raise PreconditionFailed(key)
        self._bucket.delete([key])

    def delete(self, keys: Iterable[str]) -> None:
        self._bucket.delete(check_keys(keys))

    def _marked(self, key: str, mark: str) -> Version | None:
        """
        Version of a blob if a certain write wrote it.

        The answer to a write may be lost; the library then tries again and is told that the blob has changed.
        """
        try:
            attributes, version = self._bucket.attributes(key)
        except KeyError:
            return None
        return version if attributes.get(_MARK) == mark else None

    def _found_after(self, error: ObjectStoreError, key: str, mark: str) -> Version:
        """Version after a write that failed, if it happened nevertheless."""
        try:
            found = self._marked(key, mark)
        except OSError:
            raise error from None
        if found is None:
            raise error
        return found

    def _current(self, key: str) -> Version | None:
        try:
            return self._bucket.attributes(key)[1]
        except KeyError:
            return None

    def _put_compared(self, key: str, data: Data, token: Token | None) -> Token:
        warn_no_swap(type(self._store))
        if self._current(key) != token:
            raise PreconditionFailed(key)
        return self._bucket.put(key, data)

    def _deletes_by_condition(self) -> bool:
        """Ask the server to delete a version that is not there; one that refuses compares."""
        location = self._store.location
        found = _CAN_DELETE.get(location)
        if found is not None:
            return found
        key = f"kartothek_cube-probe-{uuid.uuid4().hex}"
        self._bucket.put(key, b"")
        try:
            self._bucket.delete_if(key, (("e_tag", '"0"'),))
        except FileExistsError:
            found = True
        except (OSError, ValueError, KeyError, NotImplementedError):
            # credentials that cannot sign, a proxy or a certificate that only the library knows of
            found = False
        else:
            found = False
        self._bucket.delete([key])
        _CAN_DELETE[location] = found
        return found

    def _swaps(self) -> bool:
        """Ask the server to replace a version that cannot be there; one that obliges does not compare."""
        key = f"kartothek_cube-probe-{uuid.uuid4().hex}"
        try:
            self._bucket.put(key, b"", (("e_tag", '"0"'),))
        except FileExistsError:
            return True
        except NotImplementedError:
            return False
        except ObjectStoreError as error:
            if "501 Not Implemented" in str(error):
                return False
            raise
        self._bucket.delete([key])
        return False

    # listing

    def list_dir(self, prefix: str) -> Keys:
        return self._bucket.list_dir(prefix)

    def list(self, prefix: str) -> Blobs:
        return sorted(self._bucket.list(prefix))


def _is_known_to_swap(location: Location) -> bool:
    """The three clouds do; others, behind an endpoint of S3's protocol, may do or not."""
    if location.kind != "s3":
        return True
    given = [dict(location.options).get("endpoint"), *(os.environ.get(name) for name in _ENDPOINTS)]
    endpoint = next(filter(None, given), None)
    return endpoint is None or (urlsplit(endpoint).hostname or "").endswith(".amazonaws.com")
