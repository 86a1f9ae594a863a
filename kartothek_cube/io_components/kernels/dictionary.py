"""Dictionary-encoded columns with the categories that kartothek users expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.dataset import DatasetMetadata

__all__ = ("categorize", "indexed_categories")


def categorize(
    table: pa.Table,
    columns: Sequence[str],
    lengths: Sequence[int],
    dictionaries: Mapping[str, pa.Array] | None = None,
) -> pa.Table:
    """
    Encode columns of the rows of several files with one dictionary each, unless a dictionary is given.

    A dictionary holds the values of the longest file in the order of their first appearance, then the
    others sorted, as in kartothek.

    >>> table = pa.table({"CITY": ["Kiel", "Ulm", "Bonn", "Ulm"]})
    >>> categorize(table, ["CITY"], [1, 3]).column("CITY").chunk(0).dictionary.to_pylist()
    ['Ulm', 'Bonn', 'Kiel']
    """
    for column in columns:
        position = table.column_names.index(column)
        categories = (dictionaries or {}).get(column)
        table = table.set_column(position, column, _encode(table.column(position), lengths, categories))
    return table


def _encode(values: pa.ChunkedArray, lengths: Sequence[int], categories: pa.Array | None) -> pa.ChunkedArray:
    if categories is not None:
        values = values.cast(categories.type)
    elif pa.types.is_null(values.type):
        values = values.cast(pa.string())
    if categories is None:
        categories = _categories(values, lengths)
    codes = pc.index_in(values, value_set=categories)
    # without rows, one empty chunk keeps the categories
    code_chunks = codes.chunks or [pa.array([], pa.int32())]
    chunks = [pa.DictionaryArray.from_arrays(chunk, categories) for chunk in code_chunks]
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


def indexed_categories(dataset: DatasetMetadata, columns: Sequence[str]) -> dict[str, pa.Array]:
    """Sorted distinct values of the indexed columns among ``columns``, by column; indices are loaded."""
    keys = {c: dataset.key_columns()[c].unique() for c in columns if c in dataset.partition_keys}
    loaded = {c: dataset.indices[c].columns_data for c in columns if c in dataset.secondary_indices}
    indices = {column: index.values for column, index in loaded.items() if index is not None}
    return {**indices, **{column: values.take(pc.sort_indices(values)) for column, values in keys.items()}}
