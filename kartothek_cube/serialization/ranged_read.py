"""Of a Parquet file behind a network, fetches the footer and the columns needed, in one or two requests."""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from kartothek_cube.core.store import BlobStore

__all__ = ("ColumnChunk", "chunks_of", "fetch")

Ranges: TypeAlias = list[tuple[int, int]]

#: the end of a file that is read first; a whole file, if it is not larger
TAIL = 64 << 10
#: bytes that are rather read in vain than left out by another request
GAP = 4 << 20
_MAGIC = b"PAR1"
_LENGTH = 8
# what Arrow reads behind a column chunk, because old writers counted too short
_PADDING = 128


def fetch(blobs: BlobStore, key: str, columns: Collection[str] | None) -> bytes | pa.Buffer:
    """
    Fetch what is needed of a Parquet file.

    Parameters
    ----------
    blobs
        Store.
    key
        Key of the file.
    columns
        Columns needed; None for all.

    Returns
    -------
    bytes or pyarrow.Buffer
        The file; what is not needed of a large one may be zeros, which take no memory. If such a file turns
        out to be broken, that may be our fault: fetch it again with ``columns=None``.

    Raises
    ------
    KeyError
        There is no such file.
    """
    if columns is None:
        return blobs.get(key)
    tail, size = blobs.get_tail(key, TAIL)
    if len(tail) == size:
        return tail
    needed = _needed(tail, size, columns)
    if needed is None:
        return blobs.get(key)
    parts = blobs.get_ranges(key, needed) if needed else []
    content = mmap.mmap(-1, size)
    for (start, length), part in zip(needed, parts, strict=True):
        content[start : start + length] = part
    content[size - len(tail) :] = tail
    return pa.py_buffer(content)


def _needed(tail: bytes, size: int, columns: Collection[str]) -> Ranges | None:
    """Ranges to be read before the tail; None for the whole file: its footer is too long or unusual."""
    start_of_tail = size - len(tail)
    length = int.from_bytes(tail[-_LENGTH:-4], "little")
    if tail[-4:] != _MAGIC or length + _LENGTH > len(tail):
        return None
    chunks = _chunks(tail, length, columns)
    if chunks is None or any(start < 0 or end <= start or end > size for start, end in chunks):
        return None
    ranges: Ranges = []
    for start, end in sorted(chunks):
        end = min(end + _PADDING, start_of_tail)
        if start >= start_of_tail:
            break
        if ranges and start - sum(ranges[-1]) <= GAP:
            first = ranges[-1][0]
            ranges[-1] = first, max(end, sum(ranges[-1])) - first
        else:
            ranges.append((start, end - start))
    return ranges


def _chunks(tail: bytes, length: int, columns: Collection[str]) -> list[tuple[int, int]] | None:
    """Start and end of the chunks of these columns; None if they are not in the same number of row groups."""
    footer = tail[-length - _LENGTH : -_LENGTH]
    found = [chunks_of(footer, column) for column in columns]
    # no column at all: the number of rows is wanted, which the footer tells
    if len({len(chunks) for chunks in found}) > 1 or any(not chunks for chunks in found):
        return None
    return [(chunk.start, chunk.start + chunk.length) for chunks in found for chunk in chunks]


class ColumnChunk(NamedTuple):
    """What the footer tells of a column in a row group: codec, number of values, first byte, bytes."""

    codec: int
    values: int
    start: int
    length: int


def chunks_of(footer: bytes, column: str) -> list[ColumnChunk]:
    """
    Where the values of a flat column are, by row group.

    pyarrow (26) would tell, but ends the process when it looks at a chunk whose description is broken.

    Parameters
    ----------
    footer
        The footer of a Parquet file, without length and magic number.
    column
        Name of the column.
    """
    return [_chunk(match) for match in _pattern(column).finditer(footer)]


@lru_cache(maxsize=4096)
def _pattern(column: str) -> re.Pattern[bytes]:
    """
    How the footer speaks of a chunk of a flat column.

    In Thrift's compact protocol: the path (a list of one text, field 3), codec (4), number of values (5),
    size without compression (6), size (7), offset of data (9) and, after that, of the dictionary (11).
    """
    name = column.encode()
    number = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
    path = rb"\x19\x18" + re.escape(_varint(len(name)) + name)
    fields = rb"\x15(%b)\x16(%b)\x16%b\x16(%b)\x26(%b)(?:\x26(%b))?" % ((number,) * 6)
    return re.compile(path + fields, re.DOTALL)


def _chunk(match: re.Match[bytes]) -> ColumnChunk:
    codec, count, size, data, dictionary = match.groups()
    start = _number(data)
    if dictionary is not None and 0 < _number(dictionary) < start:
        start = _number(dictionary)
    return ColumnChunk(_number(codec), _number(count), start, _number(size))


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def _number(data: bytes) -> int:
    """A signed number, of which small ones are short whatever their sign."""
    value = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data))
    return value >> 1 ^ -(value & 1)
