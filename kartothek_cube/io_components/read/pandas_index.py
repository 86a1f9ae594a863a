"""Index of frames, which files of datasets without partition keys keep as pandas does; not a column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.arrow import Ints, copy_to_arrow_memory
from kartothek_cube.core.expressions import Tree, columns_of, tree_mask
from kartothek_cube.core.pandas_conversion import (
    DtypeBackend,
    from_file,
    from_pandas,
    pandas_types,
    to_pandas,
)
from kartothek_cube.serialization import ParquetSerializer

#: pandas' own name for an index in a file
_COLUMN = "__index_level_0__"
_NAME = b"index_name"


def as_table_with_index(df: pd.DataFrame, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """Arrow table of a frame and its index: a range is in the metadata, others are an additional column.

    >>> as_table_with_index(pd.DataFrame({"CITY": ["Rom"]}, index=["IT"])).column_names
    ['CITY', '__index_level_0__']
    >>> as_table_with_index(pd.DataFrame({"CITY": ["Rom"]})).column_names
    ['CITY']
    """
    table = from_pandas(df, types)
    index = df.index
    if isinstance(index, pd.RangeIndex):
        if (index.start, index.step, index.name) == (0, 1, None):
            return table
        range_entry = {"kind": "range", "start": index.start, "step": index.step, "stop": index.stop}
        return _set_index_metadata(table, {**range_entry, "name": _text(index.name)}, None)
    column = from_pandas(index.to_frame(index=False, name=_COLUMN)).column(0)
    pandas_type, numpy_type, details = pandas_types(column.type)
    types = {"pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": details}
    entry = {"field_name": _COLUMN, "name": _text(index.name), **types}
    return _set_index_metadata(table.append_column(_COLUMN, column), _COLUMN, entry)


def _text(name: object) -> str | None:
    return None if name is None else str(name)


def _set_index_metadata(
    table: pa.Table, index: str | dict[str, Any], column: dict[str, Any] | None
) -> pa.Table:
    """The table with an index in its pandas metadata."""
    content = json.loads(table.schema.metadata[b"pandas"])
    content["index_columns"] = [index]
    content["columns"] += [column] if column else []
    return table.replace_schema_metadata({b"pandas": json.dumps(content, sort_keys=True).encode()})


def with_row_index(
    table: pa.Table, source: str | bytes, where: Tree | None, schema: pa.Schema | None
) -> pa.Table:
    """Add the index of the stored frame to the rows read of a file, unless it is 0, 1, 2, ..."""
    # a thread of Arrow that releases memory of Python while the process exits aborts it
    content = copy_to_arrow_memory(source) if isinstance(source, bytes) else source
    file = pq.ParquetFile(pa.BufferReader(content) if isinstance(content, pa.Buffer) else content)
    name, index = _stored_index(file)
    if where is not None:
        rows = _matching_rows(source, where, schema)
        index = pa.array(rows) if index is None else index.take(pa.array(rows))
    if index is None and name is None:
        return table
    index = pa.array(np.arange(len(table))) if index is None else index
    field = pa.field(_COLUMN, index.type, metadata={} if name is None else {_NAME: name})
    return table.append_column(field, index)


def _stored_index(file: pq.ParquetFile) -> tuple[str | None, Any]:
    """Name and values of the index; no values for a plain range or an unknown index."""
    schema = file.schema_arrow
    listed, name = _listed_index(schema)
    if isinstance(listed, str) and listed in schema.names:
        # a thread of Arrow would release the memory of Python
        return name, from_file(file.read([listed], use_threads=False)).column(0)
    if not isinstance(listed, dict) or listed.get("kind") != "range":
        return None, None
    start, step = listed.get("start"), listed.get("step")
    if type(start) is not int or type(step) is not int or (start, step) == (0, 1):
        return name, None
    return name, pa.array(start + step * np.arange(file.metadata.num_rows))


def _listed_index(schema: pa.Schema) -> tuple[Any, str | None]:
    """Index entry of the pandas metadata, and its name; other libraries write it, so types are checked."""
    try:
        content = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except (ValueError, RecursionError):
        return None, None
    listed = content.get("index_columns") if isinstance(content, dict) else None
    if not isinstance(listed, list) or len(listed) != 1:
        return None, None
    (index,) = listed
    columns = content.get("columns") if isinstance(content.get("columns"), list) else []
    entries = [index] if isinstance(index, dict) else [c for c in columns if isinstance(c, dict)]
    names = [e.get("name") for e in entries if e is index or e.get("field_name") == index]
    name = names[0] if names else None
    return index, name if isinstance(name, str) and name != _COLUMN else None


def _matching_rows(source: str | bytes, where: Tree, schema: pa.Schema | None) -> Ints:
    """Positions of the rows that match; only the columns of the filter are read for that."""
    table = ParquetSerializer.read_table(source, sorted(columns_of(where)), schema=schema)
    return np.flatnonzero(tree_mask(table, where).to_numpy(zero_copy_only=False))


def to_frame(
    table: pa.Table,
    dates_as_object: bool,
    categories: Iterable[str] = (),
    dtype_backend: DtypeBackend | None = None,
) -> pd.DataFrame:
    """DataFrame of a table, with the index of :func:`with_row_index`."""
    df = to_pandas(table, dates_as_object=dates_as_object, categories=categories, dtype_backend=dtype_backend)
    if _COLUMN not in table.column_names:
        return df
    name = (table.schema.field(_COLUMN).metadata or {}).get(_NAME)
    return df.set_index(_COLUMN).rename_axis(index=None if name is None else name.decode())
