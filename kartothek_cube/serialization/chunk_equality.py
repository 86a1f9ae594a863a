"""Equality of columns of two Parquet files by their encoded pages, which are smaller than the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.arrow.pandas_conversion import to_memory
from kartothek_cube.serialization.parquet_reader import ParquetColumns
from kartothek_cube.serialization.ranged_read import chunks_of

__all__ = ("ChunkCache", "have_equal_pages")

_Pages: TypeAlias = list[tuple[tuple[Any, ...], bytes | None]]

#: bytes per row above which comparing pages costs as much as decoding them
_BYTES_PER_ROW = 0.5


def have_equal_pages(a: ParquetColumns, b: ParquetColumns, columns: Sequence[str]) -> bool:
    """Whether columns of two files have equal pages, so that their values are equal row by row."""
    # Writers produce equal pages from equal values in equal order; different pages may hold equal values.
    if len(a) != len(b):
        return False
    chunks, other_chunks = _chunks(a, columns), _chunks(b, columns)
    # descriptions are cheap to compare, and differ for most columns that differ
    if not chunks or [description for description, _, _ in chunks] != [
        description for description, _, _ in other_chunks
    ]:
        return False
    for (_, start, length), (_, other_start, _) in zip(chunks, other_chunks, strict=True):
        pages = a.content(start, length)
        if pages is None or pages != b.content(other_start, length):
            return False
    return True


class ChunkCache:
    """Key columns of the previously read file, reused if the encoded pages are identical."""

    # In a grid of shops and days, partitioned by shops, the days are the same in all files.

    def __init__(self) -> None:
        self._last: dict[str, tuple[_Pages, pa.ChunkedArray]] = {}

    def provide(self, file: ParquetColumns, columns: Sequence[str]) -> None:
        """Set columns of a file that equal those of the previous file."""
        for column in columns:
            last = self._last.get(column)
            if last is not None and last[0] == _small_pages(file, column):
                file.set_decoded(column, last[1])

    def keep(self, file: ParquetColumns, columns: Sequence[str]) -> None:
        """Cache decoded columns with small pages; their memory is shared and becomes immutable."""
        for column in columns:
            values, last = file.get_decoded(column), self._last.get(column)
            if values is None or (last is not None and last[1] is values):
                continue
            pages = _small_pages(file, column)
            if pages is not None:
                values = _freeze(to_memory(pa.table({column: values})).column(0))
                self._last[column] = pages, values
                file.set_decoded(column, values)


def _freeze(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same column with immutable buffers (slices), which `zero_copy_view` does not pass on to users."""
    chunks = []
    for chunk in column.chunks:
        buffers = [buffer if buffer is None else buffer.slice() for buffer in chunk.buffers()]
        chunks.append(pa.Array.from_buffers(chunk.type, len(chunk), buffers, chunk.null_count, chunk.offset))
    return pa.chunked_array(chunks, column.type)


def _small_pages(file: ParquetColumns, column: str) -> _Pages | None:
    """Content of a column and how to decode it; None if it is large."""
    chunks = _chunks(file, [column])
    if not chunks or sum(length for _, _, length in chunks) > _BYTES_PER_ROW * len(file):
        return None
    pages = [(description, file.content(start, length)) for description, start, length in chunks]
    return None if any(content is None for _, content in pages) else pages


def _chunks(file: ParquetColumns, columns: Sequence[str]) -> list[tuple[tuple[Any, ...], int, int]]:
    """Encoding, start and length of each column in each row group; empty if unknown."""
    # Pages describe their encoding themselves, but for the codec.
    schema, footer, descriptions = file.metadata.schema, file.footer, []
    for name in columns:
        number = _position(schema, name)
        if footer is None or number is None:
            return []
        leaf = schema.column(number)
        dtype = (file.arrow_type(name), leaf.physical_type, leaf.length)
        levels = (leaf.max_definition_level, leaf.max_repetition_level)
        chunks = chunks_of(footer, name)
        if len(chunks) != file.metadata.num_row_groups:
            return []
        descriptions += [((dtype, levels, c.codec, c.values, c.length), c.start, c.length) for c in chunks]
    return descriptions


def _position(schema: pq.ParquetSchema, name: str) -> int | None:
    """Number of a flat column; None for others."""
    numbers = [number for number, leaf in enumerate(schema.names) if leaf == name]
    return numbers[0] if len(numbers) == 1 and schema.column(numbers[0]).path == name else None
