"""The process-wide caches: of parsed headers, schemas and indices, and of schemas of data files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import NamedTuple, TypeVar, cast

__all__ = ("CACHE", "FILE_SCHEMAS", "ParseCache", "clear")

ParsedT = TypeVar("ParsedT")


class _Entry(NamedTuple):
    content: bytes
    parsed: object
    size: int


class ParseCache:
    """Thread-safe cache of parsed blobs: least recently used ones are evicted beyond `capacity` bytes.

    An entry counts only if its content is equal: blobs of other stores or versions are never mixed up.

    Examples
    --------
    >>> cache = ParseCache(capacity=1000)
    >>> cache.parse("key", b"17", int, lambda parsed: 28)
    17
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._used = 0
        self._lock = Lock()

    def parse(
        self, key: Hashable, content: bytes, parse: Callable[[bytes], ParsedT], size: Callable[[ParsedT], int]
    ) -> ParsedT:
        """Parse a content, or return the cached result; `key` has the kind of the result and its origin."""
        entry = self._find(key)
        if entry is not None and entry.content == content:
            return cast(ParsedT, entry.parsed)
        parsed = parse(content)
        self.put(key, content, parsed, size(parsed))
        return parsed

    def get(self, key: Hashable, content: bytes | None = None) -> object | None:
        """The cached result for a key, of this content or of any; None if there is none."""
        entry = self._find(key)
        return None if entry is None or content not in (None, entry.content) else entry.parsed

    def _find(self, key: Hashable) -> _Entry | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        return entry

    def put(self, key: Hashable, content: bytes, parsed: object, size: int) -> None:
        """Cache a result of `size` bytes, which must not be changed any more."""
        total = size + len(content)
        with self._lock:
            replaced = self._entries.pop(key, None)
            self._used -= 0 if replaced is None else replaced.size
            if total > self._capacity:
                return
            self._entries[key] = _Entry(content, parsed, total)
            self._used += total
            while self._used > self._capacity:
                self._used -= self._entries.popitem(last=False)[1].size

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._used = 0


#: total bytes of contents and parsed objects; a header of a million partitions takes about 100 MB
CACHE = ParseCache(184 << 20)
#: apart, so that a scan of many files evicts no headers; of about 10,000 files with few columns
FILE_SCHEMAS = ParseCache(24 << 20)


def clear() -> None:
    """Free the memory of cached headers, schemas and indices, and of schemas of data files.

    A process keeps these, up to 208 MiB, and reuses them while the stored bytes are the same; data files
    never change. So there is no need to clear the cache for correct results, only to free memory or to
    measure cold reads.

    Examples
    --------
    >>> from kartothek_cube.core import caching
    >>> caching.clear()
    """
    CACHE.clear()
    FILE_SCHEMAS.clear()
