"""Ranged reads of remote Parquet files: footers, and needed column chunks in one or two requests."""

from __future__ import annotations

import io
import mmap
import re
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.store import BlobStore

__all__ = ("ColumnChunk", "chunks_of", "fetch", "read_footer")

Ranges: TypeAlias = list[tuple[int, int]]

#: bytes at the end of a file that are read first; the whole of a smaller file
TAIL = 64 << 10
#: largest gap between ranges that is read instead of making another request
GAP = 4 << 20
_MAGIC = b"PAR1"
_LENGTH = 8
# bytes that Arrow reads behind a column chunk, as old writers recorded sizes that are too small
_PADDING = 128


def fetch(blobs: BlobStore, key: str, columns: Collection[str] | None) -> bytes | pa.Buffer:
    """Needed column chunks of a Parquet file, or all of it; raises KeyError."""
    # Other chunks of a large file are zeros, which take no memory. If such a file turns out to be broken,
    # this may be the cause: fetch it again with ``columns=None``.
    if columns is None:
        return blobs.get(key)
    tail, size = blobs.get_tail(key, TAIL)
    if len(tail) == size:
        return tail
    needed = _needed_ranges(tail, size, columns)
    if needed is None:
        return blobs.get(key)
    contents = blobs.get_ranges(key, needed) if needed else []
    content = mmap.mmap(-1, size)
    for (start, length), chunk in zip(needed, contents, strict=True):
        content[start : start + length] = chunk
    content[size - len(tail) :] = tail
    return pa.py_buffer(content)


def _needed_ranges(tail: bytes, size: int, columns: Collection[str]) -> Ranges | None:
    """Ranges to read before the tail; None for the whole file, if its footer is too long or unusual."""
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
    """Start and end of the chunks of some columns; None if their numbers of row groups differ."""
    footer = tail[-length - _LENGTH : -_LENGTH]
    by_column = [chunks_of(footer, column) for column in columns]
    # without columns, only the number of rows is needed, which is part of the footer
    if len({len(chunks) for chunks in by_column}) > 1 or any(not chunks for chunks in by_column):
        return None
    return [(chunk.start, chunk.start + chunk.length) for chunks in by_column for chunk in chunks]


class ColumnChunk(NamedTuple):
    """Column chunk in a row group: codec, number of values, first byte, bytes, those of the dictionary."""

    codec: int
    values: int
    start: int
    length: int
    dictionary_length: int


def chunks_of(footer: bytes, column: str) -> list[ColumnChunk]:
    """Chunks of a flat column by row group, out of the footer without length and magic number."""
    # pyarrow (26) can tell them, but ends the process if the metadata of a chunk are broken.
    return [_chunk(match) for match in _pattern(column).finditer(footer)]


@lru_cache(maxsize=4096)
def _pattern(column: str) -> re.Pattern[bytes]:
    """Pattern of the metadata of a chunk of a flat column in the footer."""
    # Thrift's compact protocol: path (a list of one text, field 3), codec (4), number of values (5), size
    # without compression (6), size (7), offset of data (9) and, after that, of the dictionary (11).
    name = column.encode()
    number = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
    path = rb"\x19\x18" + re.escape(_varint(len(name)) + name)
    fields = rb"\x15(%b)\x16(%b)\x16%b\x16(%b)\x26(%b)(?:\x26(%b))?" % ((number,) * 6)
    return re.compile(path + fields, re.DOTALL)


def _chunk(match: re.Match[bytes]) -> ColumnChunk:
    codec, count, size, data, dictionary = match.groups()
    start, dictionary_length = _number(data), 0
    if dictionary is not None and 0 < _number(dictionary) < start:
        dictionary_length = start - _number(dictionary)
    return ColumnChunk(
        _number(codec), _number(count), start - dictionary_length, _number(size), dictionary_length
    )


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def _number(data: bytes) -> int:
    """Zigzag-encoded number: small ones are short, whatever their sign."""
    value = 0
    for byte in reversed(data):
        value = value << 7 | byte & 0x7F
    return value >> 1 ^ -(value & 1)


def read_footer(blobs: BlobStore, key: str) -> tuple[pq.FileMetaData, int]:
    """Footer and size of a data file; raises MissingFileError or CorruptDatasetError."""
    try:
        file = blobs.open_read(key)
    except KeyError as error:
        raise MissingFileError(key) from error
    with file:
        try:
            footer = pq.read_metadata(pa.PythonFile(file, mode="r"))
        except (pa.ArrowException, OSError) as error:
            if _is_store_error(error):
                raise
            raise CorruptDatasetError(key, f"its footer is not readable: {error}") from error
        return footer, file.seek(0, io.SEEK_END)


def _is_store_error(error: Exception) -> bool:
    """Whether the store failed, not the parser, which raises OSErrors without errno."""
    return isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None)
