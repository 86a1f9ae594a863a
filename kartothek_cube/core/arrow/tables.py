"""Arrow tables with other columns, all at once: methods of tables copy the list of columns per call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa


def replace_columns(table: pa.Table, columns: Mapping[int, pa.ChunkedArray]) -> pa.Table:
    """Table with other columns at some positions.

    >>> replace_columns(pa.table({"a": [1], "b": [2]}), {1: pa.chunked_array([["x"]])}).to_pylist()
    [{'a': 1, 'b': 'x'}]
    """
    if not columns:
        return table
    fields = [
        pa.field(field.name, columns[position].type) if position in columns else field
        for position, field in enumerate(table.schema)
    ]
    arrays = [columns.get(position, column) for position, column in enumerate(table.columns)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, table.schema.metadata))


def append_columns(table: pa.Table, columns: Iterable[tuple[str, pa.Array | pa.ChunkedArray]]) -> pa.Table:
    """Table with more columns at the end."""
    named = list(columns)
    if not named:
        return table
    fields = [*table.schema, *(pa.field(name, values.type) for name, values in named)]
    arrays = [*table.columns, *(values for _, values in named)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, table.schema.metadata))
