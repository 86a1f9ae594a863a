"""Requests to a bucket, with keys checked and errors translated; what store and driver have in common."""

from __future__ import annotations

import builtins
import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from kartothek_cube.core.store.base import Blob
from kartothek_cube.core.store.keys import check_key, check_prefix, is_key
from kartothek_cube.core.store.obstore.client import (
    Connection,
    ObjectStoreError,
    call_translated,
    library,
    sanitized,
)
from kartothek_cube.core.store.obstore.url import Location

__all__ = ("Bucket",)

Version: TypeAlias = tuple[tuple[str, str], ...]
"""ETag and, where it counts, version of a blob."""

Mode: TypeAlias = Literal["create"] | Version | None

# larger blobs are sent in parts of this size, several at once
_PART = 16 << 20
_PAGE = 1000
# of a request that is sent at once, and how long to wait for its answer
_SIGNED_FOR = timedelta(minutes=5)
_TIMEOUT_S = 30
# what servers answer to a range that starts behind the end
_BEHIND_END = (
    "416 Range Not Satisfiable",
    "non-partial response",
    "Wanted range starting at",
    "bytes 0--1/0",
)
_LISTS = builtins.list


class Bucket:
    """
    A bucket, or the part of it below a prefix.

    Parameters
    ----------
    location
        Where it is. Nothing is opened before the first request.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self._connection = Connection(location)

    def _call(self, name: str, key: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(library(self.location.kind).functions, name)
        return call_translated(self.location, key, function, self._connection.client, *args, **kwargs)

    def _body(self, key: str, result: Any) -> bytes:
        return bytes(call_translated(self.location, key, result.bytes))

    def open(self) -> Any:
        """Open the client of obstore, which checks options and environment."""
        return self._connection.client

    # reading

    def get(self, key: str) -> tuple[bytes, Version]:
        """Read a blob and its version; KeyError if there is none."""
        result = self._call("get", check_key(key), key)
        return self._body(key, result), self._version(result.meta)

    def chunks(self, key: str) -> Iterator[bytes]:
        """Read a blob piece by piece; KeyError if there is none."""
        result = self._call("get", check_key(key), key)
        stream = iter(result.stream())
        while (chunk := call_translated(self.location, key, next, stream, None)) is not None:
            yield bytes(chunk)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a part of a blob; fewer bytes, or none, where it ends before."""
        if length == 0:
            self.head(key)
            return b""
        try:
            return bytes(self._call("get_range", check_key(key), key, start=start, end=start + length))
        except ObjectStoreError as error:
            if not _is_behind_end(error):
                raise
        # an empty blob has no ranges at all
        size: int = self.head(key)["size"]
        return self.get(key)[0][start : start + length] if start < size else b""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> _LISTS[Any]:
        """Read several parts, given by start and length, at once; they have to lie within the blob."""
        if len(ranges) == 1:
            return [self.get_range(key, *ranges[0])]
        starts = [start for start, _ in ranges]
        lengths = [length for _, length in ranges]
        found = self._call("get_ranges", check_key(key), key, starts=starts, lengths=lengths)
        return [memoryview(part) for part in found]

    def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """Read the last bytes of a blob, all if there are not so many, and tell its size."""
        if self.location.kind == "az":
            return self._tail_from_start(key, length)
        try:
            result = self._call("get", check_key(key), key, options={"range": {"suffix": length}})
        except ObjectStoreError as error:
            if not _is_behind_end(error):
                raise
            data = self.get(key)[0]
            return data[-length:], len(data)
        return self._body(key, result), result.meta["size"]

    def _tail_from_start(self, key: str, length: int) -> tuple[bytes, int]:
        """Azure has no ranges that count from the end: look at the start, which tells the size."""
        try:
            result = self._call("get", check_key(key), key, options={"range": (0, length)})
        except ObjectStoreError as error:
            if not _is_behind_end(error):
                raise
            return b"", 0
        size: int = result.meta["size"]
        data = self._body(key, result)
        return (data, size) if size <= length else (self.get_range(key, size - length, length), size)

    def head(self, key: str) -> Mapping[str, Any]:
        """Tell size and version of a blob; KeyError if there is none."""
        result: Mapping[str, Any] = self._call("head", check_key(key), key)
        return result

    def exists(self, key: str) -> bool:
        """Tell whether there is a blob."""
        try:
            self.head(key)
        except KeyError:
            return False
        return True

    def attributes(self, key: str) -> tuple[Mapping[str, str], Version]:
        """Tell the attributes that a blob was written with, and its version; KeyError if there is none."""
        result = self._call("get", check_key(key), key, options={"head": True})
        return result.attributes, self._version(result.meta)

    # writing

    def put(
        self, key: str, data: Any, mode: Mode = None, attributes: Mapping[str, str] | None = None
    ) -> Version:
        """
        Write a blob: content, path or file.

        Raises
        ------
        FileExistsError
            ``mode`` is given, and that version, or none for ``create``, is not there.
        """
        how: dict[str, Any] = {"chunk_size": _PART}
        if not isinstance(data, Path) and not hasattr(data, "read"):
            data = memoryview(data).cast("B")
            how["use_multipart"] = mode is None and data.nbytes > 2 * _PART
        if mode is not None:
            how["mode"] = mode if isinstance(mode, str) else dict(mode)
        if attributes:
            how["attributes"] = dict(attributes)
        return self._version(self._call("put", check_key(key), key, data, **how))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete blobs; missing ones are ignored."""
        pending = [_LISTS(dict.fromkeys(keys))]
        while pending:
            some = pending.pop()
            try:
                if some:
                    self._call("delete", some[0], some)
            except KeyError:
                # one is missing, and it is unknown whether the others are gone
                middle = len(some) // 2
                pending += [some[:middle], some[middle:]] if middle else []

    def delete_if(self, key: str, version: Version) -> None:
        """
        Delete a blob if it has a version, by a signed request of HTTP.

        Raises
        ------
        FileExistsError
            It has another one.
        KeyError
            There is none.
        ObjectStoreError
            The server has another answer, or none.
        """
        url: str = self._call("sign", check_key(key), "DELETE", key, _SIGNED_FOR)
        request = Request(url, method="DELETE", headers={"If-Match": dict(version)["e_tag"]})
        try:
            with urlopen(request, timeout=_TIMEOUT_S):
                return
        except HTTPError as error:
            code = error.code
            error.close()
        except (OSError, HTTPException) as error:
            raise ObjectStoreError(f"{self.location.url}: {sanitized(error, self.location)}") from None
        if code == HTTPStatus.PRECONDITION_FAILED:
            raise FileExistsError(errno.EEXIST, "another version is there", key)
        if code == HTTPStatus.NOT_FOUND:
            raise KeyError(key)
        raise ObjectStoreError(f"{self.location.url}: the answer to the deletion of {key!r} is {code}")

    def sign(self, key: str, expires: Any) -> str:
        """Make a URL that lets anybody read a blob for some time."""
        url: str = self._call("sign", check_key(key), "GET", key, expires)
        return url

    # listing

    def list(self, prefix: str) -> Iterator[Blob]:
        """List blobs, in the order of the store."""
        folder, _, start = check_prefix(prefix).rpartition("/")
        how = {"offset": offset} if (offset := self._before(prefix, start)) else {}
        stream = self._call("list", prefix, folder or None, chunk_size=_PAGE, **how)
        batches: Iterator[Any] = iter(stream)
        while (batch := call_translated(self.location, prefix, next, batches, None)) is not None:
            for entry in batch:
                key = entry["path"]
                if key.startswith(prefix):
                    if is_key(key):
                        yield Blob(key, entry["size"], entry["last_modified"].timestamp())
                elif how and key > prefix:
                    return

    def list_dir(self, prefix: str) -> _LISTS[str]:
        """List one level."""
        folder = check_prefix(prefix).rpartition("/")[0]
        found = self._call("list_with_delimiter", prefix, folder or None)
        names = [f"{path}/" for path in found["common_prefixes"]]
        names += [entry["path"] for entry in found["objects"]]
        return sorted(name for name in names if name.startswith(prefix) and is_key(name.removesuffix("/")))

    def _before(self, prefix: str, start: str) -> str | None:
        """
        Something that sorts just before a prefix.

        The library lists whole directories only; where listings are sorted, what comes before is left out.
        """
        if not start or self.location.kind == "az" or ("s3_express", "true") in self.location.options:
            return None
        smaller = chr(ord(prefix[-1]) - 1)
        smaller = "." if smaller == "/" else smaller
        return None if smaller < " " else f"{prefix[:-1]}{smaller}~"

    def _version(self, meta: Mapping[str, Any]) -> Version:
        names = ("e_tag", "version") if self.location.kind == "gs" else ("e_tag",)
        found = tuple((name, meta[name]) for name in names if meta[name] is not None)
        if not found:
            raise ObjectStoreError(f"{self.location.url} tells no ETag of its blobs")
        return found


def _is_behind_end(error: ObjectStoreError) -> bool:
    return any(text in str(error) for text in _BEHIND_END)
