"""Results of a query as DataFrames, written into a buffer block by block and never held twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend, to_pandas
from kartothek_cube.io_components.kernels.take import to_single_array

__all__ = (
    "MAX_COLUMNS",
    "OutputBuffer",
    "frames_of_tables",
    "zero_copy_view",
)

Array: TypeAlias = npt.NDArray[Any]
#: pandas warns of frames of more than 100 blocks; each column from here is one, and users add some
MAX_COLUMNS = 50
#: tables with fewer rows are concatenated first: each conversion takes longer than copying that many
_SMALL = 1_000
#: rows of a concatenation: a limit to the memory that is held twice
_BATCH = 50_000
# from 3 on, pandas copies what is part of another frame when it is written to, and not before
_COPIES_ON_WRITE = int(pd.__version__.split(".")[0]) >= 3


class OutputBuffer:
    """
    Arrays that become the columns of a DataFrame, filled block by block by several threads.

    Numbers and naive timestamps are held once: not in Arrow and in pandas at the same time. Other columns,
    and blocks of an unexpected type or length, stay in Arrow.

    >>> buffer = OutputBuffer()
    >>> buffer.reserve([2, 1], columns=["AVG_TEMP"], sort_columns=["CITY_ID"])
    >>> italy = buffer.write_block(0, pa.table({"CITY_ID": [3, 5], "AVG_TEMP": [16, 9]}))
    >>> germany = buffer.write_block(1, pa.table({"CITY_ID": [8], "AVG_TEMP": [11]}))
    >>> zero_copy_view(pa.concat_tables([italy, germany])["AVG_TEMP"])
    array([16,  9, 11])
    """

    def __init__(self) -> None:
        self._bounds: list[int] | None = None
        self._columns: frozenset[str] = frozenset()
        self._sort_columns: frozenset[str] = frozenset()
        self._arrays: dict[tuple[str, np.dtype[Any]], Array] = {}

    def reserve(
        self, row_counts: Sequence[int] | None, columns: Collection[str], sort_columns: Collection[str]
    ) -> None:
        """Reserve memory for blocks of these lengths; without that, or for None, they stay in Arrow."""
        if row_counts is not None and len(columns) <= MAX_COLUMNS:
            self._bounds = [0, *accumulate(row_counts)]
            self._columns, self._sort_columns = frozenset(columns), frozenset(sort_columns)

    def write_block(self, number: int, table: pa.Table) -> pa.Table:
        """The rows of a block, with columns in the buffer where that is possible."""
        bounds = self._bounds
        if bounds is None or not len(table) or len(table) != bounds[number + 1] - bounds[number]:
            return table
        columns = [
            self._write_column(name, values, bounds[number], bounds[-1]) if name in self._columns else values
            for name, values in zip(table.column_names, table.columns, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=table.schema)

    def release(self) -> None:
        """Release the arrays; they last as long as a table uses them."""
        self._arrays.clear()

    def _write_column(
        self, name: str, values: pa.ChunkedArray, start: int, total: int
    ) -> pa.Array | pa.ChunkedArray:
        dtype = _numpy_dtype(values.type)
        if dtype is None:
            return values
        # NumPy has missing floats (NaN) and times (NaT), but no missing integers; and in sort_columns, by
        # which rows are sorted later, a null is not a NaN
        if values.null_count and (dtype.kind not in "fM" or name in self._sort_columns):
            return values
        array = self._array(name, dtype, total)
        if array is None:
            return values
        position = start
        for chunk in values.chunks:
            array[position : position + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
            position += len(chunk)
        return pa.Array.from_buffers(values.type, len(values), [None, pa.py_buffer(array)], 0, start)

    def _array(self, name: str, dtype: np.dtype[Any], total: int) -> Array | None:
        """The array of a column; None if it cannot be allocated."""
        if (name, dtype) not in self._arrays:
            try:
                # setdefault, as another thread may have allocated it in the meantime
                self._arrays.setdefault((name, dtype), np.empty(total, dtype))
            except (MemoryError, ValueError):
                # damaged footers may claim more rows than memory can hold; the error comes with the rows
                return None
        return self._arrays[name, dtype]


def _numpy_dtype(dtype: pa.DataType) -> np.dtype[Any] | None:
    """How pandas stores a column, if that is bit by bit as in Arrow."""
    if pat.is_integer(dtype) or pat.is_floating(dtype) or dtype == pa.timestamp("ns"):
        same: np.dtype[Any] = np.dtype(dtype.to_pandas_dtype())
        return same
    return None


def zero_copy_view(column: pa.ChunkedArray) -> Array | None:
    """
    The values of a column as a writable array in the same memory; None where that is not possible.

    >>> zero_copy_view(pa.chunked_array([[16, 9]]))
    array([16,  9])
    """
    dtype = _numpy_dtype(column.type)
    if dtype is None or column.null_count or not len(column):
        return None
    values = to_single_array(column)
    buffer = values.buffers()[1]
    # a view would keep all of a much larger buffer alive
    if not buffer.is_mutable or buffer.size > 2 * len(values) * dtype.itemsize:
        return None
    return np.frombuffer(buffer, dtype)[values.offset : values.offset + len(values)]


def _frame(tables: list[pa.Table], backend: DtypeBackend | None) -> pd.DataFrame:
    """DataFrame of the only table in a list, which is emptied; numbers and times are not copied."""
    table = tables.pop()
    names, index = table.column_names, pd.RangeIndex(len(table))
    viewed = names if not backend and len(names) <= MAX_COLUMNS else ()
    arrays = {name: zero_copy_view(table.column(name)) for name in viewed}
    tables.append(table.select([name for name in names if arrays.get(name) is None]))
    del table
    converted = to_pandas(tables.pop(), dtype_backend=backend)
    if len(converted.columns) == len(names):
        return converted
    columns = {name: converted[name] if arrays.get(name) is None else arrays[name] for name in names}
    return pd.DataFrame(columns, index=index, copy=False)


def frames_of_tables(tables: list[pa.Table], backend: DtypeBackend | None = None) -> Iterator[pd.DataFrame]:
    """
    One independent DataFrame per table of the same columns; ``tables`` is emptied: frames take its memory.

    >>> tables = [pa.table({"CITY": ["Rom"]}), pa.table({"CITY": ["Ulm", "Bonn"]})]
    >>> [frame["CITY"].tolist() for frame in frames_of_tables(tables)], tables
    ([['Rom'], ['Ulm', 'Bonn']], [])
    """
    tables.reverse()
    while tables:
        batch = _next_batch(tables)
        if len(batch) == 1:
            yield _frame(batch, backend)
        else:
            frame = to_pandas(pa.concat_tables(batch), dtype_backend=backend)
            yield from _cut(frame, [0, *accumulate(map(len, batch))])


def _next_batch(tables: list[pa.Table]) -> list[pa.Table]:
    """Pop tables from the end of a list whose columns get the same types in pandas alone and together."""
    batch = [tables.pop()]
    schema, rows = batch[0].schema, len(batch[0])
    null_sensitive = [number for number, dtype in enumerate(schema.types) if _depends_on_nulls(dtype)]

    def fits(table: pa.Table) -> bool:
        return len(table) < _SMALL and not any(table.column(number).null_count for number in null_sensitive)

    if not schema.names or not fits(batch[0]):
        return batch
    while (
        tables
        and rows < _BATCH
        and tables[-1].schema.equals(schema, check_metadata=True)
        and fits(tables[-1])
    ):
        batch.append(tables.pop())
        rows += len(batch[-1])
    return batch


def _depends_on_nulls(dtype: pa.DataType) -> bool:
    """Whether nulls change the type of a column in pandas, as they do with integers."""
    kinds = (pa.types.is_floating, pa.types.is_timestamp, pa.types.is_date, pa.types.is_string)
    return not any(is_kind(dtype) for is_kind in kinds)


def _cut(frame: pd.DataFrame, bounds: list[int]) -> Iterator[pd.DataFrame]:
    for start, stop in pairwise(bounds):
        rows = frame.iloc[start:stop]
        if not _COPIES_ON_WRITE:
            rows = rows.copy()
        rows.index = pd.RangeIndex(stop - start)
        yield rows
