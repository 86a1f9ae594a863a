"""What this process parsed last, remembered by the very bytes that it was parsed from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

__all__ = ("ParseCache",)

ParsedT = TypeVar("ParsedT")


class _Entry(NamedTuple, Generic[ParsedT]):
    content: bytes
    parsed: ParsedT
    size: int


class ParseCache(Generic[ParsedT]):
    """
    Results of parsing; for use by several threads.

    Parameters
    ----------
    capacity
        How many bytes are kept, of contents and results together.
    smallest
        Shorter contents are parsed in no time, and not kept.

    Examples
    --------
    >>> cache = ParseCache[int](capacity=1000, smallest=2)
    >>> cache.parse("DAY", b"0017", int, lambda number: 8)
    17
    """

    def __init__(self, capacity: int, smallest: int) -> None:
        self._capacity, self._smallest = capacity, smallest
        self._entries: OrderedDict[Hashable, _Entry[ParsedT]] = OrderedDict()
        self._used = 0
        self._lock = Lock()

    def parse(
        self,
        key: Hashable,
        content: bytes,
        parse: Callable[[bytes], ParsedT],
        size: Callable[[ParsedT], int],
    ) -> ParsedT:
        """
        Parse a content, unless that was done before.

        Parameters
        ----------
        key
            Where the content comes from.
        content
            The content.
        parse
            Parses it.
        size
            Tells the bytes that a result takes.

        Returns
        -------
        object
        """
        with self._lock:
            known = self._entries.get(key)
            if known is not None:
                self._entries.move_to_end(key)
        if known is not None and known.content == content:
            return known.parsed
        parsed = parse(content)
        self.remember(key, content, parsed, size(parsed))
        return parsed

    def remember(self, key: Hashable, content: bytes, parsed: ParsedT, size: int) -> None:
        """
        Keep a result, and forget the ones that were not used for the longest time.

        Parameters
        ----------
        key, content
            As in :meth:`parse`.
        parsed
            The result; nobody may change it any more.
        size
            Bytes that it takes.
        """
        total = size + len(content)
        with self._lock:
            self._forget(self._entries.pop(key, None))
            if len(content) < self._smallest or total > self._capacity:
                return
            self._entries[key] = _Entry(content, parsed, total)
            self._used += total
            while self._used > self._capacity:
                self._forget(self._entries.popitem(last=False)[1])

    def _forget(self, entry: _Entry[ParsedT] | None) -> None:
        self._used -= 0 if entry is None else entry.size

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._used = 0
