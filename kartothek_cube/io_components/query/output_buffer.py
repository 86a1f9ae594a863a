"""Memory for a result in which blocks put their rows where these belong, before the other rows are known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.io_components.kernels.take import to_single_array

__all__ = ("MAX_COLUMNS", "OutputBuffer", "zero_copy_view")

Ints: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[Any]

#: pandas warns of frames of more than 100 pieces; each column from here is one, and users add some
MAX_COLUMNS = 50


class OutputBuffer:
    """
    Arrays that become the columns of a DataFrame, filled block by block, by several threads.

    Numbers and naive time stamps are held once then: what Arrow has of them is gone with the block, and if
    rows have to be sorted, column goes by column. Other columns, and blocks that turn out to be of another
    type or length, are left as they are.

    Examples
    --------
    >>> room = Room()
    >>> room.reserve([2, 1], columns=["AVG_TEMP"], keys=["CITY_ID"])
    >>> italy = room.write_block(0, pa.table({"CITY_ID": [3, 5], "AVG_TEMP": [16, 9]}))
    >>> germany = room.write_block(1, pa.table({"CITY_ID": [8], "AVG_TEMP": [11]}))
    >>> adopted(pa.concat_tables([italy, germany])["AVG_TEMP"])
    array([16,  9, 11])
    """

    def __init__(self) -> None:
        self._bounds: list[int] | None = None
        self._columns: frozenset[str] = frozenset()
        self._keys: frozenset[str] = frozenset()
        self._arrays: dict[tuple[str, np.dtype[Any]], Array] = {}

    def reserve(self, rows: Sequence[int] | None, columns: Collection[str], keys: Collection[str]) -> None:
        """
        Make room for blocks; without that, none is taken in.

        Parameters
        ----------
        rows
            How many rows each of them has, unless some are dropped; None if that is not known.
        columns
            What to take in.
        keys
            By what rows are sorted later: there, nulls stay what they are.
        """
        if rows is not None and len(columns) <= MAX_COLUMNS:
            self._bounds = [0, *accumulate(rows)]
            self._columns, self._keys = frozenset(columns), frozenset(keys)

    def write_block(self, number: int, table: pa.Table) -> pa.Table:
        """
        Move columns of a block to where they belong.

        Parameters
        ----------
        number
            Of the block.
        table
            Its rows.

        Returns
        -------
        pyarrow.Table
            The same rows.
        """
        bounds = self._bounds
        if bounds is None or not len(table) or len(table) != bounds[number + 1] - bounds[number]:
            return table
        moved = [
            self._moved(name, values, bounds[number], bounds[-1]) if name in self._columns else values
            for name, values in zip(table.column_names, table.columns, strict=True)
        ]
        return pa.Table.from_arrays(moved, schema=table.schema)

    def release(self) -> None:
        """Forget the arrays; they last as long as a table uses them."""
        self._arrays.clear()

    def _moved(
        self, name: str, values: pa.ChunkedArray, start: int, total: int
    ) -> pa.Array | pa.ChunkedArray:
        dtype = _dtype(values.type)
        # in an array, floats and times can be missing, but not integers
        if dtype is None or (values.null_count and (dtype.kind not in "fM" or name in self._keys)):
            return values
        array = self._array(name, dtype, total)
        if array is None:
            return values
        _fill(array, start, values)
        return pa.Array.from_buffers(values.type, len(values), [None, pa.py_buffer(array)], 0, start)

    def _array(self, name: str, dtype: np.dtype[Any], total: int) -> Array | None:
        """The array of a column; None if the files claim more rows than memory could hold."""
        if (name, dtype) not in self._arrays:
            try:
                # another thread may be as fast: the first one wins
                self._arrays.setdefault((name, dtype), np.empty(total, dtype))
            except (MemoryError, ValueError):
                return None
        return self._arrays[name, dtype]


def _fill(array: Array, start: int, values: pa.ChunkedArray) -> None:
    for chunk in values.chunks:
        array[start : start + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
        start += len(chunk)


def _dtype(dtype: pa.DataType) -> np.dtype[Any] | None:
    """How pandas holds a column, if that is just as Arrow does."""
    if pat.is_integer(dtype) or pat.is_floating(dtype) or dtype == pa.timestamp("ns"):
        same: np.dtype[Any] = np.dtype(dtype.to_pandas_dtype())
        return same
    return None


def zero_copy_view(column: pa.ChunkedArray) -> Array | None:
    """
    The values of a column that nobody else uses, as an array in the same memory.

    Parameters
    ----------
    column
        A column of a result.

    Returns
    -------
    numpy.ndarray or None
        May be written to. None where pandas wants other values, or where they are not in one piece.

    Examples
    --------
    >>> adopted(pa.chunked_array([[16, 9]]))
    array([16,  9])
    """
    dtype = _dtype(column.type)
    if dtype is None or column.null_count or not len(column):
        return None
    values = to_single_array(column)
    buffer = values.buffers()[1]
    # the rest of a much larger buffer would not be given back
    if not buffer.is_mutable or buffer.size > 2 * len(values) * dtype.itemsize:
        return None
    return np.frombuffer(buffer, dtype)[values.offset : values.offset + len(values)]
