"""Pages of flat columns, decoded in numpy: selected rows only, texts as codes of their dictionary."""
# pyarrow (26) decodes all rows of a row group: floats at 5 ns each, texts at 15. Here, pages without a
# selected row are not decompressed, floats are copied (2 ns with their checksum), and texts are the codes of
# their dictionary (5 ns), so that a condition is evaluated on distinct values. Other columns, and whatever is
# unusual or damaged, are left to pyarrow, which reads them or raises the error.

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow.arrays import copy_to_arrow_memory
from kartothek_cube.core.arrow.types import Ints, Mask

__all__ = ("decode_chunk", "is_decodable")

_PHYSICAL = {"INT32": "<i4", "INT64": "<i8", "FLOAT": "<f4", "DOUBLE": "<f8"}
# numbers of the Parquet format: codecs, kinds of pages, encodings
_CODECS = {0: None, 1: "snappy", 2: "gzip", 6: "zstd"}
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
# runs of codes and texts of different lengths are visited one by one: with more of them, pyarrow is faster
_MAX_RUNS = 1 << 10
_MAX_TEXTS = 1 << 10
# widest code that four bytes hold at any bit offset
_MAX_WIDTH = 25


def is_decodable(leaf: pq.ColumnSchema, dtype: pa.DataType) -> bool:
    """Whether the pages of a column hold the bits of its Arrow type, and no lists or structs."""
    if leaf.max_repetition_level or leaf.max_definition_level > 1:
        return False
    physical = leaf.physical_type
    if physical == "BYTE_ARRAY":
        return bool(dtype.equals(pa.string()) or dtype.equals(pa.binary()))
    if pat.is_float32(dtype) or pat.is_float64(dtype):
        return bool(physical == ("FLOAT" if pat.is_float32(dtype) else "DOUBLE"))
    if pat.is_integer(dtype) or pat.is_date32(dtype) or pat.is_timestamp(dtype):
        return bool(physical == ("INT64" if dtype.bit_width == 64 else "INT32"))
    return False


def decode_chunk(
    content: pa.Buffer,
    codec: int,
    length: int,
    leaf: pq.ColumnSchema,
    dtype: pa.DataType,
    positions: Ints | None = None,
) -> pa.Array | None:
    """
    Rows of a column chunk, all or those at ascending positions; None if pyarrow has to read it.

    Numbers without a dictionary are decoded, texts with a dictionary stay encoded by it.
    """
    try:
        return _ChunkDecoder(content, codec, leaf, dtype).decode(length, positions)
    except (ValueError, LookupError, TypeError, ArithmeticError, OSError, MemoryError):
        return None


class _Page(NamedTuple):
    """Header of a page, and where its content begins."""

    kind: int
    start: int
    size: int
    decompressed_size: int
    crc: int | None
    n_values: int
    encoding: int


class _ChunkDecoder:
    """Decoder of a column chunk; raises ValueError, LookupError and others for what it cannot decode."""

    def __init__(self, content: pa.Buffer, codec: int, leaf: pq.ColumnSchema, dtype: pa.DataType) -> None:
        name = _CODECS[codec]
        self._codec = None if name is None else pa.Codec(name)
        self._content, self._dtype = memoryview(content).cast("B"), dtype
        self._has_levels = leaf.max_definition_level > 0
        self._physical = _PHYSICAL.get(leaf.physical_type)
        self._dictionary: pa.Array | None = None

    def decode(self, length: int, positions: Ints | None) -> pa.Array:
        """Rows of the chunk, which has so many."""
        arrays: list[pa.Array] = []
        dictionary_page: _Page | None = None
        start = 0
        for page in self._pages():
            if page.kind == _DICTIONARY_PAGE:
                if self._physical is not None:
                    raise ValueError("numbers with a dictionary: pyarrow is as fast")
                dictionary_page = page
                continue
            rows = None
            if positions is not None:
                low, high = positions.searchsorted([start, start + page.n_values]).tolist()
                rows = positions[low:high] - start
            start += page.n_values
            if rows is not None and not len(rows):
                continue
            if self._physical is None and self._dictionary is None:
                if dictionary_page is None:
                    raise ValueError("texts without a dictionary")
                self._dictionary = _decode_texts(
                    self._read(dictionary_page), dictionary_page.n_values, self._dtype
                )
            arrays.append(self._decode_page(page, rows))
        if start != length:
            raise ValueError(f"{length} rows expected, {start} found")
        if not arrays:
            return pa.array([], self._dtype)
        values = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        if self._dictionary is None:
            return values
        return pa.DictionaryArray.from_arrays(values, self._dictionary, safe=False)

    def _pages(self) -> Iterator[_Page]:
        position = 0
        while position < len(self._content):
            fields, start = _read_struct(self._content, position)
            kind, size = fields[1], fields[3]
            own = fields[{_DATA_PAGE: 5, _DICTIONARY_PAGE: 7}[kind]]
            position = start + size
            if min(size, fields[2], own[1]) < 0 or position > len(self._content):
                raise ValueError("sizes in the header of a page")
            if kind == _DATA_PAGE and self._has_levels and own[3] != _RLE:
                raise ValueError("encoding of levels")
            yield _Page(kind, start, size, fields[2], fields.get(4), own[1], own[2])

    def _read(self, page: _Page) -> memoryview:
        """Content of a page, checked and decompressed."""
        stored = self._content[page.start : page.start + page.size]
        if page.crc is not None and zlib.crc32(stored) != page.crc & 0xFFFFFFFF:
            raise ValueError("checksum")
        if self._codec is None:
            return stored
        return memoryview(self._codec.decompress(pa.py_buffer(stored), page.decompressed_size)).cast("B")

    def _decode_page(self, page: _Page, rows: Ints | None) -> pa.Array:
        """Rows of a page: numbers, or codes of texts."""
        content = self._read(page)
        valid: Mask | None = None
        if self._has_levels:
            end = 4 + int.from_bytes(content[:4], "little")
            levels, content = content[4:end], content[end:]
            valid = _decode_levels(levels, page.n_values)
        n_stored = page.n_values if valid is None else int(np.count_nonzero(valid))
        if self._dictionary is None:
            if page.encoding != _PLAIN:
                raise ValueError("encoding")
            values = self._decode_numbers(content, n_stored)
            return values if valid is None and rows is None else _expand(values, valid, rows)
        if page.encoding not in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
            raise ValueError("texts without a dictionary")
        codes = _decode_runs(content[1:], content[0], n_stored) if n_stored else np.empty(0, np.int32)
        if int(codes.max(initial=0)) >= max(len(self._dictionary), 1):
            raise ValueError("a code that is not in the dictionary")
        return _expand(pa.array(codes), valid, rows)

    def _decode_numbers(self, content: memoryview, length: int) -> pa.Array:
        numbers = np.frombuffer(content, self._physical, length)
        if self._dtype.bit_width < 8 * numbers.itemsize:  # int8 and others, which are stored with 32 bits
            numbers = numbers.astype(self._dtype.to_pandas_dtype())
        return pa.Array.from_buffers(self._dtype, length, [None, copy_to_arrow_memory(numbers.data)])


def _expand(values: pa.Array, valid: Mask | None, rows: Ints | None) -> pa.Array:
    """Values at the rows of a page, with nulls where it stores none."""
    if valid is None:
        return values if rows is None else values.take(pa.array(rows))
    indices = np.cumsum(valid) - 1
    missing = ~valid
    if rows is not None:
        indices, missing = indices[rows], missing[rows]
    return values.take(pa.array(indices, mask=missing))


def _decode_texts(content: memoryview, length: int, dtype: pa.DataType) -> pa.Array:
    """Texts, each after its length in four bytes."""
    if not length:
        return pa.array([], dtype)
    size = int.from_bytes(content[:4], "little")
    data = np.frombuffer(content, np.uint8)
    if len(data) == length * (4 + size):
        table = data.reshape(length, 4 + size)
        if bool((table[:, :4] == table[0, :4]).all()):
            return _texts(dtype, np.arange(length + 1) * size, table[:, 4:])
    if length > _MAX_TEXTS:
        raise ValueError("many texts of different lengths")
    texts, position = [], 0
    for _ in range(length):
        start = position + 4
        position = start + int.from_bytes(content[position:start], "little")
        texts.append(content[start:position])
    if position > len(content):
        raise ValueError("the last text is cut")
    ends = np.cumsum([0, *map(len, texts)])
    return _texts(dtype, ends, np.frombuffer(b"".join(texts), np.uint8))


def _texts(dtype: pa.DataType, offsets: Ints, data: npt.NDArray[np.uint8]) -> pa.Array:
    if int(offsets[-1]) >= 1 << 31:
        raise ValueError("more than 2 GB of texts")
    buffers = [np.ascontiguousarray(values) for values in (offsets.astype(np.int32), data)]
    return pa.Array.from_buffers(
        dtype, len(offsets) - 1, [None, *(copy_to_arrow_memory(values.data) for values in buffers)]
    )


def _decode_levels(levels: memoryview, length: int) -> Mask | None:
    """Which rows have a value; None for all."""
    header, position = _read_varint(levels, 0)
    if header == length << 1 and levels[position] == 1:  # one run
        return None
    return _decode_runs(levels, 1, length).astype(bool)


def _decode_runs(data: memoryview, width: int, length: int) -> npt.NDArray[np.int32]:
    """Numbers of so many bits: runs of one value, and runs of packed values, eight at a time."""
    if not width:
        return np.zeros(length, np.int32)
    if width > _MAX_WIDTH:
        raise ValueError("wide codes")
    n_bytes = (width + 7) // 8
    # of each run: its length, the bytes of a packed one, the value (-1) of another
    lengths: list[int] = []
    packed: list[memoryview | bytes] = []
    values: list[int] = []
    position, missing = 0, length
    header, start = _read_varint(data, 0)
    if header & 1 and start == 1:
        # writers pack codes without repetitions in runs of one length: all of them at once
        n_values, stride = (header >> 1) * 8, 1 + (header >> 1) * width
        n_runs = min(length // n_values, len(data) // stride)
        runs = np.frombuffer(data, np.uint8, n_runs * stride).reshape(n_runs, stride)
        if bool((runs[:, 0] == header).all()):
            packed.append(runs[:, 1:].tobytes())
            values.append(-1)
            lengths.append(n_runs * n_values)
            position, missing = n_runs * stride, length - n_runs * n_values
    while missing > 0:
        header, start = _read_varint(data, position)
        if header & 1:
            n_values, position = (header >> 1) * 8, start + (header >> 1) * width
            packed.append(data[start:position])
            values.append(-1)
        else:
            n_values, position = header >> 1, start + n_bytes
            values.append(int.from_bytes(data[start:position], "little"))
        if position > len(data) or not n_values or len(lengths) == _MAX_RUNS:
            raise ValueError("runs")
        lengths.append(min(n_values, missing))
        missing -= n_values
    unpacked = _unpack(b"".join(packed), width)
    if len(packed) == len(lengths):
        return unpacked[:length]
    result = np.repeat(np.array(values, np.int32), lengths)
    is_packed = np.repeat(np.array(values) < 0, lengths)
    result[is_packed] = unpacked[: np.count_nonzero(is_packed)]
    return result


def _unpack(packed: bytes, width: int) -> npt.NDArray[np.int32]:
    """Numbers of so many bits, the first one in the lowest bits."""
    n_groups = len(packed) // width
    padded = packed + bytes(width + 4)
    values = np.empty((n_groups, 8), np.uint32)
    for number in range(8):  # the numbers of this place in all groups of eight
        byte, bit = divmod(number * width, 8)
        words = np.ndarray((n_groups,), "<u4", padded, byte, (width,))
        np.right_shift(words, bit, out=values[:, number])
    values &= np.uint32((1 << width) - 1)
    return values.reshape(-1).view(np.int32)


def _read_struct(data: memoryview, position: int) -> tuple[dict[int, Any], int]:
    """Fields of a struct in Thrift's compact protocol, by number, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[position]:
        kind = head & 0xF
        number += head >> 4
        position += 1
        if head < 0x10 or number in fields:
            raise ValueError("order of fields")
        if kind in (5, 6):  # integers
            value, position = _read_varint(data, position)
            fields[number] = value >> 1 ^ -(value & 1)
        elif kind in (1, 2):  # booleans
            fields[number] = kind == 1
        elif kind == 8:  # bytes, of statistics
            size, position = _read_varint(data, position)
            position += size
        elif kind == 12:
            fields[number], position = _read_struct(data, position)
        else:
            raise ValueError("kind of field")
    return fields, position + 1


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Number of one or more bytes, and where it ends."""
    value, shift = 0, 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
