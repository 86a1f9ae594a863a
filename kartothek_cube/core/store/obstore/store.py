"""Object stores (S3, Google Cloud Storage, Azure) as simplekv stores, on top of obstore."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from simplekv import KeyValueStore, UrlMixin

from kartothek_cube.core.store.blob_store import check_key
from kartothek_cube.core.store.obstore.bucket import Bucket, open_remote
from kartothek_cube.core.store.obstore.url import Location, parse_url

_SIGNED_FOR = timedelta(hours=1)


class ObjectStore(UrlMixin, KeyValueStore):  # type: ignore[misc]
    """A bucket of S3, Google Cloud Storage or Azure as a simplekv store.

    It holds nothing but its location: it can be pickled, copied and sent to tasks, and used by threads and by
    forked processes. Connections are shared by all stores of the same location in a process.

    >>> ObjectStore(parse_url("s3://sales/2025?region=eu-west-1&secret_access_key=abc"))
    ObjectStore('s3://sales/2025')
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.bucket = Bucket(location)

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[Location]]:
        return type(self), (self.location,)

    def __copy__(self) -> ObjectStore:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ObjectStore:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and other.location == self.location

    def __hash__(self) -> int:
        return hash(self.location)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location.url!r})"

    def iter_keys(self, prefix: str = "") -> Iterator[str]:
        """Iterate over the keys that start with a prefix."""
        return (blob.key for blob in self.bucket.list(prefix))

    def iter_prefixes(self, delimiter: str, prefix: str = "") -> Iterator[str]:
        """Iterate over the distinct keys that start with a prefix, cut after the next delimiter."""
        if delimiter == "/":
            return iter(self.bucket.list_dir(prefix))
        prefixes: Iterator[str] = super().iter_prefixes(delimiter, prefix)
        return prefixes

    def _check_valid_key(self, key: str) -> None:
        check_key(key)

    def _has_key(self, key: str) -> bool:
        return self.bucket.exists(key)

    def _get(self, key: str) -> bytes:
        return self.bucket.get(key)[0]

    def _get_file(self, key: str, file: BinaryIO) -> str:
        for chunk in self.bucket.chunks(key):
            file.write(chunk)
        return key

    def _get_filename(self, key: str, filename: str) -> str:
        chunks = self.bucket.chunks(key)
        # a missing blob leaves no file behind
        first = next(chunks, b"")
        with open(filename, "wb") as file:
            file.write(first)
            file.writelines(chunks)
        return key

    def _open(self, key: str) -> BinaryIO:
        return open_remote(self.bucket, key)

    def _put(self, key: str, data: bytes) -> str:
        self.bucket.put(key, data)
        return key

    def _put_file(self, key: str, file: BinaryIO) -> str:
        self.bucket.put(key, file)
        return key

    def _put_filename(self, key: str, filename: str) -> str:
        self.bucket.put(key, Path(filename))
        return key

    def _delete(self, key: str) -> str:
        self.bucket.delete([key])
        return key

    def _url_for(self, key: str) -> str:
        return self.bucket.sign(key, _SIGNED_FOR)


def open_url(url: str) -> ObjectStore:
    """Open the store at a URL without a request; ValueError for an invalid URL, option or variable."""
    store = ObjectStore(parse_url(url))
    store.bucket.open()
    return store
