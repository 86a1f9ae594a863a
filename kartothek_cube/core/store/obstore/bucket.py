"""Requests to a bucket, with checked keys and translated errors; shared by store and driver."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from kartothek_cube.core.store.blob_store import Blob, Keys, check_key, check_prefix, is_key
from kartothek_cube.core.store.obstore.client import (
    Connection,
    ObjectStoreError,
    call_translated,
    load_library,
    remove_secrets,
)
from kartothek_cube.core.store.obstore.url import Location

Version: TypeAlias = tuple[tuple[str, str], ...]
"""ETag and, where it counts, version of a blob."""

Mode: TypeAlias = Literal["create"] | Version | None

# larger blobs are sent in parts of this size, concurrently
_PART = 16 << 20
_PAGE = 1000
# a signed request is sent at once; how long to wait for its response
_SIGNED_FOR = timedelta(minutes=5)
_TIMEOUT_S = 30
# servers' responses to a range that starts behind the end
_BEHIND_END = (
    "416 Range Not Satisfiable",
    "non-partial response",
    "Wanted range starting at",
    "bytes 0--1/0",
)


class Bucket:
    """A bucket, or its part below a prefix; nothing is opened before the first request."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._connection = Connection(location)

    def _call(self, name: str, key: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(load_library(self.location.kind).functions, name)
        return call_translated(self.location, key, function, self._connection.client, *args, **kwargs)

    def _read_body(self, key: str, result: Any) -> bytes:
        return bytes(call_translated(self.location, key, result.bytes))

    def open(self) -> Any:
        """Open the client of obstore, which checks options and environment."""
        return self._connection.client

    # reading

    def get(self, key: str) -> tuple[bytes, Version]:
        """Read a blob and its version; KeyError if there is none."""
        result = self._call("get", check_key(key), key)
        return self._read_body(key, result), self._get_version(result.meta)

    def chunks(self, key: str) -> Iterator[bytes]:
        """Read a blob in chunks; KeyError if there is none."""
        result = self._call("get", check_key(key), key)
        stream = iter(result.stream())
        while (chunk := call_translated(self.location, key, next, stream, None)) is not None:
            yield bytes(chunk)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a range of a blob, of at least one byte; fewer bytes, or none, where it ends before."""
        content = self._call_range("get_range", key, start=start, end=start + length)
        return self.get(key)[0][start : start + length] if content is None else bytes(content)

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """Read the last bytes of a blob (all bytes of a shorter one), and its size."""
        if self.location.kind == "az":
            return self._get_tail_on_azure(key, length)
        result = self._call_range("get", key, options={"range": {"suffix": length}})
        if result is None:
            data = self.get(key)[0]
            return data[-length:], len(data)
        return self._read_body(key, result), result.meta["size"]

    def _get_tail_on_azure(self, key: str, length: int) -> tuple[bytes, int]:
        """Read the end on Azure, which lacks suffix ranges: a read of the start returns the size."""
        result = self._call_range("get", key, options={"range": (0, length)})
        if result is None:
            return b"", 0
        size: int = result.meta["size"]
        data = self._read_body(key, result)
        return data if size <= length else self.get_range(key, size - length, length), size

    def _call_range(self, name: str, key: str, **kwargs: Any) -> Any | None:
        """Result of a request for a range; None if the blob is empty, or the server ignores ranges."""
        try:
            return self._call(name, check_key(key), key, **kwargs)
        except ObjectStoreError as error:
            if any(text in str(error) for text in _BEHIND_END):
                return None
            raise

    def head(self, key: str) -> Mapping[str, Any]:
        """Size and version of a blob; KeyError if there is none."""
        result: Mapping[str, Any] = self._call("head", check_key(key), key)
        return result

    def exists(self, key: str) -> bool:
        """Whether there is a blob."""
        try:
            self.head(key)
        except KeyError:
            return False
        return True

    def attributes(self, key: str) -> tuple[Mapping[str, str], Version]:
        """Attributes that a blob was written with, and its version; KeyError if there is none."""
        result = self._call("get", check_key(key), key, options={"head": True})
        return result.attributes, self._get_version(result.meta)

    # writing

    def put(
        self, key: str, data: Any, mode: Mode = None, attributes: Mapping[str, str] | None = None
    ) -> Version:
        """Write a blob (content, path or file); FileExistsError if ``mode`` forbids it."""
        options: dict[str, Any] = {"chunk_size": _PART}
        if not isinstance(data, Path) and not hasattr(data, "read"):
            data = memoryview(data).cast("B")
            options["use_multipart"] = mode is None and data.nbytes > 2 * _PART
        if mode is not None:
            options["mode"] = mode if isinstance(mode, str) else dict(mode)
        if attributes:
            options["attributes"] = dict(attributes)
        return self._get_version(self._call("put", check_key(key), key, data, **options))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete blobs; missing ones are ignored."""
        pending = [list(dict.fromkeys(keys))]
        while pending:
            batch = pending.pop()
            try:
                if batch:
                    self._call("delete", batch[0], batch)
            except KeyError:
                # one key is missing, and it is unknown whether the others were deleted
                middle = len(batch) // 2
                pending += [batch[:middle], batch[middle:]] if middle else []

    def delete_if(self, key: str, version: Version) -> None:
        """Delete a blob of a certain version; FileExistsError for another one, KeyError for none."""
        url: str = self._call("sign", check_key(key), "DELETE", key, _SIGNED_FOR)
        # a request of our own: obstore deletes without conditions only
        request = Request(url, method="DELETE", headers={"If-Match": dict(version)["e_tag"]})
        try:
            with urlopen(request, timeout=_TIMEOUT_S):
                return
        except HTTPError as error:
            code = error.code
            error.close()
        except (OSError, HTTPException) as error:
            raise ObjectStoreError(f"{self.location.url}: {remove_secrets(error, self.location)}") from None
        if code == HTTPStatus.PRECONDITION_FAILED:
            raise FileExistsError(errno.EEXIST, "another version is there", key)
        if code == HTTPStatus.NOT_FOUND:
            raise KeyError(key)
        raise ObjectStoreError(f"{self.location.url}: the answer to the deletion of {key!r} is {code}")

    def sign(self, key: str, expires: Any) -> str:
        """Make a URL that grants read access to a blob for some time."""
        return str(self._call("sign", check_key(key), "GET", key, expires))

    # listing

    def list(self, prefix: str) -> Iterator[Blob]:
        """List blobs, in the order of the store."""
        folder, _, start = check_prefix(prefix).rpartition("/")
        options = {"offset": offset} if (offset := self._listing_offset(prefix, start)) else {}
        stream = self._call("list", prefix, folder or None, chunk_size=_PAGE, **options)
        batches: Iterator[Any] = iter(stream)
        while (batch := call_translated(self.location, prefix, next, batches, None)) is not None:
            for entry in batch:
                key = entry["path"]
                if key.startswith(prefix):
                    if is_key(key):
                        yield Blob(key, entry["size"], entry["last_modified"].timestamp())
                elif options and key > prefix:
                    return

    def list_dir(self, prefix: str) -> Keys:
        """List one level."""
        folder = check_prefix(prefix).rpartition("/")[0]
        level = self._call("list_with_delimiter", prefix, folder or None)
        names = [f"{path}/" for path in level["common_prefixes"]]
        names += [entry["path"] for entry in level["objects"]]
        return sorted(name for name in names if name.startswith(prefix) and is_key(name.removesuffix("/")))

    def _listing_offset(self, prefix: str, start: str) -> str | None:
        """A key just before a prefix, as offset of a listing; None if listings are unsorted."""
        # obstore lists whole directories only; where listings are sorted, the offset skips most other keys
        if not start or self.location.kind == "az" or ("s3_express", "true") in self.location.options:
            return None
        smaller = chr(ord(prefix[-1]) - 1)
        smaller = "." if smaller == "/" else smaller
        return None if smaller < " " else f"{prefix[:-1]}{smaller}~"

    def _get_version(self, meta: Mapping[str, Any]) -> Version:
        names = ("e_tag", "version") if self.location.kind == "gs" else ("e_tag",)
        version = tuple((name, meta[name]) for name in names if meta[name] is not None)
        if not version:
            raise ObjectStoreError(f"{self.location.url} returns no ETag of its blobs")
        return version


_TAIL = 64 << 10
_BUFFER = 1 << 20


# obstore.open_reader takes more requests. To read the footer, a value and then all of a file: 4 instead of 1
# (up to 64 kB), 4 instead of 3 (200 kB), 7 instead of 3 (5 MB).
class _RemoteFile(io.RawIOBase):
    """A blob as an unbuffered file; its end is fetched when it is opened."""

    def __init__(self, source: Bucket, key: str) -> None:
        super().__init__()
        self._source = source
        self._key = key
        self._tail, self._size = source.get_tail(key, _TAIL)
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position."""
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if position < 0:
            raise ValueError(f"negative position in {self._key!r}")
        self._position = position
        return position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer up to the end of the blob."""
        length = min(len(buffer), max(0, self._size - self._position))
        if length:
            buffer[:length] = self._fetch(self._position, length)
            self._position += length
        return length

    def readall(self) -> bytes:
        """Read all remaining bytes in one request."""
        length = max(0, self._size - self._position)
        data = self._fetch(self._position, length) if length else b""
        self._position += len(data)
        return data

    def _fetch(self, start: int, length: int) -> bytes:
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            return self._tail[start - tail_start : start - tail_start + length]
        data = self._source.get_range(self._key, start, min(start + length, tail_start) - start)
        return data + self._tail[: max(0, start + length - tail_start)]


def open_remote(source: Bucket, key: str) -> BinaryIO:
    """Open a blob as a buffered file; KeyError if there is none."""
    return cast(BinaryIO, io.BufferedReader(_RemoteFile(source, key), _BUFFER))
