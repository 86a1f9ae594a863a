"""Driver for object stores: compare-and-swap by ETags, bulk deletion."""

# ruff: noqa: D102 (the protocol documents the methods)

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import BinaryIO
from urllib.parse import urlsplit

from kartothek_cube.core.store.blob_store import (
    Blobs,
    BlobStore,
    Data,
    Keys,
    PreconditionFailed,
    Token,
    check_key,
    check_keys,
    warn_no_swap,
)
from kartothek_cube.core.store.obstore.bucket import Version, open_remote
from kartothek_cube.core.store.obstore.client import ObjectStoreError
from kartothek_cube.core.store.obstore.store import ObjectStore
from kartothek_cube.core.store.obstore.url import Location, client_options

# attribute that identifies a conditional write; letters only, since proxies and Azure accept few other names
_WRITE_ID = "kartothekwrite"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
# results of the probes: conditional writes, conditional deletions
_CAN_SWAP: dict[Location, bool] = {}
_CAN_DELETE: dict[Location, bool] = {}


class ObjectBlobStore(BlobStore):
    """Blobs in a bucket of S3, Google Cloud Storage or Azure.

    Versions are ETags (on Google Cloud Storage with the generation), compared by the server. Other servers
    of S3's protocol are probed once per process; if they do not compare, conditional writes read, compare
    and put, and warn.

    Conditional deletions are probed once per process, too; without them, `delete_if` compares before it
    deletes, so that a blob put in between is lost.

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
        if location not in _CAN_SWAP:
            _CAN_SWAP[location] = _is_known_to_swap(location) or self._probe_swap()
        return _CAN_SWAP[location]

    @property
    def identity(self) -> Location:
        return self._store.location

    # reading

    def get(self, key: str) -> bytes:
        return self._bucket.get(key)[0]

    def get_with_token(self, key: str) -> tuple[bytes, Token]:
        return self._bucket.get(key)

    def size(self, key: str) -> int:
        return int(self._bucket.head(key)["size"])

    def exists(self, key: str) -> bool:
        return self._bucket.exists(key)

    def remote_url(self, key: str) -> tuple[str, dict[str, str | int]]:
        location = self._store.location
        path = f"{location.prefix}/{check_key(key)}" if location.prefix else check_key(key)
        return f"{location.kind}://{location.bucket}/{path}", client_options(location)

    def open_read(self, key: str) -> BinaryIO:
        return open_remote(self._bucket, key)

    # writing

    def put(self, key: str, data: Data, *, durable: bool = False) -> None:
        self._bucket.put(key, data)

    def put_if(self, key: str, data: Data, token: Token | None) -> Token:
        check_key(key)
        if not self.can_swap:
            return self._compare_and_put(key, data, token)
        write_id = uuid.uuid4().hex
        try:
            return self._bucket.put(key, data, "create" if token is None else token, {_WRITE_ID: write_id})
        except FileExistsError:
            # the response to our write may be lost: obstore retries, and the server refuses the retry
            version = self._find_own_write(key, write_id)
        except NotImplementedError:
            _CAN_SWAP[self._store.location] = False
            return self._compare_and_put(key, data, token)
        except ObjectStoreError as error:
            version = self._resolve_failed_write(error, key, write_id)
        if version is None:
            raise PreconditionFailed(key)
        return version

    def delete_if(self, key: str, token: Token) -> None:
        check_key(key)
        if token is None:
            raise PreconditionFailed(key)
        if self._can_delete_if():
            try:
                self._bucket.delete_if(key, token)
            except (FileExistsError, KeyError):
                raise PreconditionFailed(key) from None
            return
        if self._current_version(key) != token:
            raise PreconditionFailed(key)
        self._bucket.delete([key])

    def delete(self, keys: Iterable[str]) -> None:
        self._bucket.delete(check_keys(keys))

    def _find_own_write(self, key: str, write_id: str) -> Version | None:
        """Version of a blob if our write wrote it; None otherwise."""
        try:
            attributes, version = self._bucket.attributes(key)
        except KeyError:
            return None
        return version if attributes.get(_WRITE_ID) == write_id else None

    def _resolve_failed_write(self, error: ObjectStoreError, key: str, write_id: str) -> Version:
        """Version after a failed write that was applied nevertheless; raises its error otherwise."""
        try:
            version = self._find_own_write(key, write_id)
        except OSError:
            raise error from None
        if version is None:
            raise error
        return version

    def _current_version(self, key: str) -> Version | None:
        try:
            return self._bucket.attributes(key)[1]
        except KeyError:
            return None

    def _compare_and_put(self, key: str, data: Data, token: Token | None) -> Token:
        warn_no_swap(type(self._store))
        if self._current_version(key) != token:
            raise PreconditionFailed(key)
        return self._bucket.put(key, data)

    def _can_delete_if(self) -> bool:
        """Probe conditional deletion: delete a version that does not exist, which has to fail."""
        location = self._store.location
        if location in _CAN_DELETE:
            return _CAN_DELETE[location]
        key = f"kartothek_cube-probe-{uuid.uuid4().hex}"
        self._bucket.put(key, b"")
        can_delete = False
        # other errors: credentials that cannot sign, or a proxy that only obstore is configured for
        with suppress(OSError, ValueError, KeyError, NotImplementedError):
            try:
                self._bucket.delete_if(key, (("e_tag", '"0"'),))
            except FileExistsError:
                can_delete = True
        self._bucket.delete([key])
        _CAN_DELETE[location] = can_delete
        return can_delete

    def _probe_swap(self) -> bool:
        """Probe conditional writes: replace a version that does not exist, which has to fail."""
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
    """Whether the store is one of the three clouds; other endpoints of S3's protocol are probed."""
    if location.kind != "s3":
        return True
    endpoints = [dict(location.options).get("endpoint"), *(os.environ.get(name) for name in _ENDPOINTS)]
    endpoint = next(filter(None, endpoints), None)
    return endpoint is None or (urlsplit(endpoint).hostname or "").endswith(".amazonaws.com")
