"""Dictionary-encoded columns with the categories that kartothek users expect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ("categorize",)


def categorize(table: pa.Table, columns: Sequence[str], lengths: Sequence[int]) -> pa.Table:
    """
    Encode columns of the rows of several files with one dictionary each.

    Parameters
    ----------
    table
        Rows of all files.
    columns
        Columns to encode.
    lengths
        Rows of each file.

    Returns
    -------
    pyarrow.Table
        A dictionary holds the values of the longest file in the order of their first appearance, then all
        others sorted.

    Examples
    --------
    >>> table = pa.table({"CITY": ["Kiel", "Ulm", "Bonn", "Ulm"]})
    >>> categorize(table, ["CITY"], [1, 3]).column("CITY").chunk(0).dictionary.to_pylist()
    ['Ulm', 'Bonn', 'Kiel']
    """
    for column in columns:
        position = table.column_names.index(column)
        table = table.set_column(position, column, _encode(table.column(position), lengths))
    return table


def _encode(values: pa.ChunkedArray, lengths: Sequence[int]) -> pa.ChunkedArray:
    if pa.types.is_null(values.type):
        values = values.cast(pa.string())
    categories = _categories(values, lengths)
    codes = pc.index_in(values, value_set=categories)
    chunks = [pa.DictionaryArray.from_arrays(chunk, categories) for chunk in codes.chunks]
    return pa.chunked_array(chunks, type=pa.dictionary(pa.int32(), values.type))


def _categories(values: pa.ChunkedArray, lengths: Sequence[int]) -> pa.Array:
    distinct = values.unique().drop_null()
    if len(lengths) < 2:
        return distinct
    longest = int(np.argmax(lengths))
    start = int(np.sum(lengths[:longest]))
    first = values.slice(start, lengths[longest]).unique().drop_null()
    others = distinct.filter(pc.invert(pc.is_in(distinct, value_set=first)))
    return pa.concat_arrays([first, others.take(pc.sort_indices(others))])
