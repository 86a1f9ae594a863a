"""Equality of columns of two Parquet files by their encoded pages, which are much smaller than the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from kartothek_cube.serialization._fetch import chunks_of
from kartothek_cube.serialization.columns import ParquetColumns

__all__ = ("have_equal_pages",)


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


def _chunks(file: ParquetColumns, columns: Sequence[str]) -> list[tuple[tuple[Any, ...], int, int]]:
    """
    For each column in each row group how to decode it, where it begins, and how many bytes it has.

    How values are encoded is told by the pages themselves, all but the codec.
    """
    schema, footer, found = file.metadata.schema, file.footer(), []
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
