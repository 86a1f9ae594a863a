"""Equality of columns of two Parquet files by their encoded pages, which are much smaller than the values."""

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

#: with more bytes per row, to compare pages costs as much as to decode them
_BYTES_PER_ROW = 0.5


def have_equal_pages(a: ParquetColumns, b: ParquetColumns, columns: Sequence[str]) -> bool:
    """
    Whether two files hold some columns in the same bytes, so that the values must be equal row by row.

    Writers that are given the same values, in the same order, write the same pages. If this is false, the
    values may be equal nevertheless.

    Parameters
    ----------
    a, b
        The files.
    columns
        Columns of both that are not nested.

    Returns
    -------
    bool

    Examples
    --------
    >>> import pyarrow as pa
    >>> def written(**columns):
    ...     sink = pa.BufferOutputStream()
    ...     pq.write_table(pa.table(columns), sink)
    ...     return ParquetColumns(sink.getvalue(), "")
    >>> weather, people = written(CITY=["Rom"], AVG_TEMP=[16]), written(CITY=["Rom"], POPULATION=[2_800_000])
    >>> have_equal_pages(weather, people, ["CITY"])
    True
    """
    if len(a) != len(b):
        return False
    ours, theirs = _chunks(a, columns), _chunks(b, columns)
    # descriptions are cheap to compare, and differ for most columns that differ
    if not ours or [description for description, _, _ in ours] != [
        description for description, _, _ in theirs
    ]:
        return False
    for (_, start, length), (_, other_start, _) in zip(ours, theirs, strict=True):
        pages = a.content(start, length)
        if pages is None or pages != b.content(other_start, length):
            return False
    return True


class ChunkCache:
    """
    Columns of the file that was read last, for the next one, which often has the same pages.

    In a grid of shops and days, partitioned by shops, the days are the same in all files.

    Examples
    --------
    >>> last, files = LastPages(), []
    >>> for temperature in (16, 21):
    ...     sink = pa.BufferOutputStream()
    ...     days = pa.array([n % 10 for n in range(1000)], pa.date32())
    ...     weather = pa.table({"DAY": days, "AVG_TEMP": [temperature] * 1000})
    ...     pq.write_table(weather, sink, compression="zstd")
    ...     files.append(ParquetColumns(sink.getvalue(), ""))
    >>> files[0].load(["DAY"])
    >>> last.keep(files[0], ["DAY"])
    >>> last.provide(files[1], ["DAY", "AVG_TEMP"])
    >>> files[1].known("DAY") is not None, files[1].known("AVG_TEMP") is not None
    (True, False)
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[_Pages, pa.ChunkedArray]] = {}

    def provide(self, file: ParquetColumns, columns: Sequence[str]) -> None:
        """
        Tell a file what some of its columns hold, if that is known.

        Parameters
        ----------
        file
            A file of which these columns have not been decoded yet.
        columns
            Their names.
        """
        for column in columns:
            last = self._last.get(column)
            if last is not None and last[0] == _small_pages(file, column):
                file.set_decoded(column, last[1])

    def keep(self, file: ParquetColumns, columns: Sequence[str]) -> None:
        """
        Remember what some columns hold, as far as they are decoded and their pages are small.

        From then on, the memory of these columns is shared, and must not be written to.

        Parameters
        ----------
        file, columns
            As for :meth:`provide`.
        """
        for column in columns:
            values, last = file.known(column), self._last.get(column)
            if values is None or (last is not None and last[1] is values):
                continue
            pages = _small_pages(file, column)
            if pages is not None:
                values = _read_only(to_memory(pa.table({column: values})).column(0))
                self._last[column] = pages, values
                file.set_decoded(column, values)


def _read_only(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same column in the same memory, of which nobody takes over what others use."""
    chunks = []
    for chunk in column.chunks:
        buffers = [buffer if buffer is None else buffer.slice() for buffer in chunk.buffers()]
        chunks.append(pa.Array.from_buffers(chunk.type, len(chunk), buffers, chunk.null_count, chunk.offset))
    return pa.chunked_array(chunks, column.type)


def _small_pages(file: ParquetColumns, column: str) -> _Pages | None:
    """The bytes of a column and how to decode them, if they are few."""
    chunks = _chunks(file, [column])
    if not chunks or sum(length for _, _, length in chunks) > _BYTES_PER_ROW * len(file):
        return None
    parts = [(description, file.content(start, length)) for description, start, length in chunks]
    return None if any(content is None for _, content in parts) else parts


def _chunks(file: ParquetColumns, columns: Sequence[str]) -> list[tuple[tuple[Any, ...], int, int]]:
    """
    For each column in each row group how to decode it, where it begins, and how many bytes it has.

    How values are encoded is told by the pages themselves, all but the codec.
    """
    schema, footer, found = file.metadata.schema, file.footer, []
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
        found += [((dtype, levels, c.codec, c.values, c.length), c.start, c.length) for c in chunks]
    return found


def _position(schema: pq.ParquetSchema, name: str) -> int | None:
    """Number of a column that is not nested."""
    found = [number for number, leaf in enumerate(schema.names) if leaf == name]
    return found[0] if len(found) == 1 and schema.column(found[0]).path == name else None
