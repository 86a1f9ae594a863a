"""Ranged reads of remote Parquet files: footers, and needed column chunks in one or two requests."""

from __future__ import annotations

import io
import mmap
import re
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.caching import FOOTERS
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.store import BlobStore, PreconditionFailed, Token

__all__ = ("ColumnChunk", "chunks_of", "fetch", "read_footer")

#: bytes at the end of a file that are read first; the whole of a smaller file
TAIL = 64 << 10
#: largest gap between ranges that is read instead of making another request
GAP = 4 << 20
_MAGIC = b"PAR1"
_LENGTH = 8
# bytes that Arrow reads behind a column chunk, as old writers recorded sizes that are too small
_PADDING = 128


class _Ending(NamedTuple):
    """End of a file, with its footer; the size of the file, and its version if the store tells it."""

    content: bytes
    size: int
    token: Token | None


class _Range(NamedTuple):
    """Bytes to read at once, and what of them is needed; all by first byte and end."""

    start: int
    end: int
    chunks: list[tuple[int, int]]


def fetch(blobs: BlobStore, key: str, columns: Collection[str] | None) -> bytes | pa.Buffer:
    """Needed column chunks of a Parquet file, or all of it; raises KeyError."""
    # Other chunks of a large file are zeros, which take no memory. If such a file turns out to be broken,
    # this may be the cause: fetch it again with ``columns=None``.
    if columns is None:
        return blobs.get(key)
    cached = _cached_footer(blobs, key)
    if cached is not None:
        content = _fetch_chunks(blobs, key, columns, cached, is_cached=True)
        if content is not None:
            return content
    ending = _Ending(*blobs.get_tail_with_token(key, TAIL))
    if len(ending.content) == ending.size:
        return ending.content
    content = _fetch_chunks(blobs, key, columns, ending, is_cached=False)
    if content is None:
        return blobs.get(key)
    _cache_footer(blobs, key, ending)
    return content


def _fetch_chunks(
    blobs: BlobStore, key: str, columns: Collection[str], ending: _Ending, *, is_cached: bool
) -> pa.Buffer | None:
    """The chunks that a footer describes; None if it is too long or unusual, or that of another version."""
    ranges = _needed_ranges(ending, columns)
    if ranges is None or (is_cached and not ranges):
        return None
    requests = [(needed.start, needed.end - needed.start) for needed in ranges]
    try:
        if is_cached:
            contents = blobs.get_ranges(key, requests, ending.token)
        else:
            contents = blobs.get_ranges(key, requests) if requests else []
    except PreconditionFailed:
        return None
    # memory of this process only: shared one, the default, takes twice the time
    content = mmap.mmap(-1, ending.size, access=mmap.ACCESS_COPY)
    for needed, data in zip(ranges, contents, strict=True):
        view = memoryview(data)
        if len(view) != needed.end - needed.start:
            return None
        # not what lies between: memory that is not written to is not taken
        for start, end in needed.chunks:
            content[start:end] = view[start - needed.start : end - needed.start]
    content[ending.size - len(ending.content) :] = ending.content
    return pa.py_buffer(content)


def _cached_footer(blobs: BlobStore, key: str) -> _Ending | None:
    cached = None if blobs.identity is None else FOOTERS.get((blobs.identity, key))
    return cached if isinstance(cached, _Ending) else None


def _cache_footer(blobs: BlobStore, key: str, ending: _Ending) -> None:
    """Keep a footer for later queries, which then need one request instead of two."""
    if blobs.identity is not None and ending.token is not None:
        footer = ending.content[-_footer_length(ending.content) - _LENGTH :]
        FOOTERS.put((blobs.identity, key), footer, _Ending(footer, ending.size, ending.token), len(key))


def _footer_length(tail: bytes) -> int:
    return int.from_bytes(tail[-_LENGTH:-4], "little")


def _needed_ranges(ending: _Ending, columns: Collection[str]) -> list[_Range] | None:
    """Ranges to read before the end; None for the whole file, if its footer is too long or unusual."""
    tail, size = ending.content, ending.size
    start_of_tail = size - len(tail)
    length = _footer_length(tail)
    if tail[-4:] != _MAGIC or length + _LENGTH > len(tail):
        return None
    chunks = _chunks(tail, length, columns)
    if chunks is None or any(start < 0 or end <= start or end > size for start, end in chunks):
        return None
    ranges: list[_Range] = []
    for start, end in sorted(chunks):
        end = min(end + _PADDING, start_of_tail)
        if start >= start_of_tail:
            break
        if ranges and start - ranges[-1].end <= GAP:
            last = ranges[-1]
            ranges[-1] = _Range(last.start, max(end, last.end), [*last.chunks, (start, end)])
        else:
            ranges.append(_Range(start, end, [(start, end)]))
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
