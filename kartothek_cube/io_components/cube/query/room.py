"""Memory for a result in which blocks put their rows where these belong, before the other rows are known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

__all__ = ("Room",)

Ints: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[Any]

#: pandas warns of frames of more pieces than that, and each column from here is one
_MAX_COLUMNS = 100


class Room:
    """
    Arrays that become the columns of a DataFrame, filled block by block, by several threads.

    Numbers and naive time stamps are held once then: what Arrow has of them is gone with the block. Other
    columns, and blocks that turn out to be of another type or length, are left as they are.

    Examples
    --------
    >>> room = Room()
    >>> room.divide([2, 1])
    >>> italy, germany = pa.table({"AVG_TEMP": [16, 9]}), pa.table({"AVG_TEMP": [11]})
    >>> blocks = [room.put(0, italy, ["AVG_TEMP"]), room.put(1, germany, ["AVG_TEMP"])]
    >>> table = pa.concat_tables(blocks)
    >>> room.filled(table)
    {'AVG_TEMP': array([16,  9, 11])}
    """

    def __init__(self) -> None:
        self._bounds: list[int] | None = None
        self._arrays: dict[tuple[str, np.dtype[Any]], Array] = {}

    def divide(self, rows: Sequence[int] | None) -> None:
        """
        Make room for blocks; without that, none is taken in.

        Parameters
        ----------
        rows
            How many rows each of them has, unless some are dropped; None if that is not known.
        """
        self._bounds = None if rows is None else [0, *accumulate(rows)]

    def put(self, number: int, table: pa.Table, columns: Collection[str]) -> pa.Table:
        """
        Move columns of a block to where they belong.

        Parameters
        ----------
        number
            Of the block.
        table
            Its rows.
        columns
            Which ones to move.

        Returns
        -------
        pyarrow.Table
            The same rows.
        """
        if self._bounds is None or not columns or len(columns) > _MAX_COLUMNS:
            return table
        start, stop = self._bounds[number : number + 2]
        if len(table) != stop - start or not len(table):
            return table
        moved = [
            self._moved(name, values, start) if name in columns else values
            for name, values in zip(table.column_names, table.columns, strict=True)
        ]
        return pa.Table.from_arrays(moved, schema=table.schema)

    def filled(self, table: pa.Table) -> dict[str, Array]:
        """
        Columns of which all rows are here, in their order.

        Parameters
        ----------
        table
            All rows, from :meth:`put`.

        Returns
        -------
        dict
            Name of the column to its values.
        """
        if self._bounds is None or len(table) != self._bounds[-1]:
            return {}
        return {
            name: array
            for (name, _), array in self._arrays.items()
            if name in table.column_names and _is_whole(table.column(name), array)
        }

    def _moved(self, name: str, values: pa.ChunkedArray, start: int) -> pa.Array | pa.ChunkedArray:
        dtype = _dtype(values.type)
        # an array can tell missing numbers and times from others, but not missing integers
        if dtype is None or (dtype.kind not in "fM" and values.null_count):
            return values
        array = self._array(name, dtype)
        if array is None:
            return values
        _fill(array, start, values)
        return pa.Array.from_buffers(values.type, len(values), [None, pa.py_buffer(array)], 0, start)

    def _array(self, name: str, dtype: np.dtype[Any]) -> Array | None:
        """The array of a column; None if the files claim more rows than memory could hold."""
        if (name, dtype) not in self._arrays and self._bounds is not None:
            try:
                # another thread may be as fast: the first one wins
                self._arrays.setdefault((name, dtype), np.empty(self._bounds[-1], dtype))
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


def _is_whole(column: pa.ChunkedArray, array: Array) -> bool:
    """Whether a column is an array from its first to its last value."""
    position, address = 0, array.ctypes.data
    for chunk in filter(len, column.chunks):
        buffer = chunk.buffers()[1]
        if chunk.offset != position or buffer is None or buffer.address != address or chunk.null_count:
            return False
        position += len(chunk)
    return position == len(array)
