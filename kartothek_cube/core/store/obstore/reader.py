"""A blob behind a network as a seekable file that fetches what is read, and its end in advance."""

from __future__ import annotations

import io
from typing import BinaryIO, Protocol, cast

__all__ = ("RemoteFile", "open_remote")

_TAIL = 64 << 10
_BUFFER = 1 << 20


class _Ranges(Protocol):
    def get_tail(self, key: str, length: int) -> tuple[bytes, int]: ...

    def get_range(self, key: str, start: int, length: int) -> bytes: ...


class RemoteFile(io.RawIOBase):
    """
    A blob as an unbuffered file; small ones take one request in all.

    Parameters
    ----------
    source
        Answers to requests for ranges.
    key
        Key of the blob.
    """

    def __init__(self, source: _Ranges, key: str) -> None:
        super().__init__()
        self._source = source
        self._key = key
        self._tail, self._size = source.get_tail(key, _TAIL)
        self._position = 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be positioned."""
        return True

    def tell(self) -> int:
        """Tell the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position."""
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if position < 0:
            raise ValueError(f"negative position in {self._key!r}")
        self._position = position
        return position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as the blob reaches."""
        length = min(len(buffer), max(0, self._size - self._position))
        if length:
            buffer[:length] = self._fetch(self._position, length)
            self._position += length
        return length

    def readall(self) -> bytes:
        """Read the rest, in one request."""
        length = max(0, self._size - self._position)
        data = self._fetch(self._position, length) if length else b""
        self._position += len(data)
        return data

    def _fetch(self, start: int, length: int) -> bytes:
        known = self._size - len(self._tail)
        if start >= known:
            return self._tail[start - known : start - known + length]
        data = self._source.get_range(self._key, start, min(start + length, known) - start)
        return data + self._tail[: max(0, start + length - known)]


def open_remote(source: _Ranges, key: str) -> BinaryIO:
    """
    Open a blob as a buffered file.

    Parameters
    ----------
    source
        Answers to requests for ranges.
    key
        Key of the blob.

    Returns
    -------
    file

    Raises
    ------
    KeyError
        There is no such blob.
    """
    return cast(BinaryIO, io.BufferedReader(RemoteFile(source, key), _BUFFER))
