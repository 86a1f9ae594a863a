"""Results of a query as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core import tuning
from kartothek_cube.core.pandas_conversion import DtypeBackend, to_pandas
from kartothek_cube.io_components.kernels import Column, allocate_array

Array: TypeAlias = npt.NDArray[Any]
#: values of some columns of a frame, and the names of these columns
_Block: TypeAlias = tuple[Any, list[str]]
#: pandas warns of frames of more than 100 blocks; each column from here is one, and users add some
MAX_COLUMNS = 50
#: small frames of a concatenation: a limit to the memory that is held twice
_BATCH = 50
# from 3 on, pandas copies what is part of another frame when it is written to, and not before
_COPIES_ON_WRITE = int(pd.__version__.split(".")[0]) >= 3
_NULLABLE_IDS = frozenset({pa.float32().id, pa.float64().id, pa.timestamp("ns").id})
#: types that pandas stores bit by bit as Arrow does, those above also with nulls
_BITWISE_IDS = _NULLABLE_IDS | {
    kind().id for kind in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64)
}
_TEXT_IDS = frozenset({pa.string().id, pa.large_string().id})
# new in pandas 3
_FROM_BLOCKS: Callable[..., pd.DataFrame] | None = getattr(
    getattr(pd.api, "internals", None), "create_dataframe_from_blocks", None
)


@lru_cache(maxsize=1)
def _text_dtype() -> Any:
    """How pandas stores text; options and installed packages decide on that."""
    return pa.table({"_": [""]}).to_pandas().dtypes["_"]


# Cached: 10 % of the time of a query for few rows, a quarter of that of 400 small frames.
@lru_cache(maxsize=64)
def _column_index(names: tuple[str, ...]) -> pd.Index[Any]:
    return pd.Index(names)


@lru_cache(maxsize=64)
def _row_index(length: int) -> pd.RangeIndex:
    return pd.RangeIndex(length)


def _numpy_dtype(column: pa.ChunkedArray) -> np.dtype[Any] | None:
    """How pandas stores a column of numbers or times, if that is bit by bit as in Arrow."""
    dtype = column.type
    if dtype.id not in _BITWISE_IDS or (column.null_count and dtype.id not in _NULLABLE_IDS):
        return None
    if pat.is_timestamp(dtype) and dtype.tz is not None:
        return None
    same: np.dtype[Any] = np.dtype(dtype.to_pandas_dtype())
    return same


def _is_text(column: pa.ChunkedArray) -> bool:
    return column.type.id in _TEXT_IDS and isinstance(_text_dtype(), pd.StringDtype)


class FrameBuilder:
    """A DataFrame of tables that follow each other, whose columns are released once they are copied."""

    # Numbers and times are copied into one array per type. Its length is an estimate, as memory that is not
    # used is never touched. So the decoded blocks of a query take the same memory in turn, where the system
    # would clear each page of a table of all of them.

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._length = 0
        #: one array per type, a row per column
        self._values: dict[np.dtype[Any], npt.NDArray[Any]] = {}
        #: names of the columns of each array
        self._names: dict[np.dtype[Any], list[str]] = {}
        #: the chunks of the other columns
        self._chunks: dict[str, list[pa.Array]] = {}

    def __len__(self) -> int:
        return self._length

    def append(self, tables: list[pa.Table], expected: int) -> None:
        """Add the rows of the only table in a list, which is emptied, with the columns of the schema.

        ``expected`` is the likely number of rows of all tables.
        """
        table = tables.pop()
        if not self._names and not self._chunks:
            for name, column in zip(table.column_names, table.columns, strict=True):
                dtype = _numpy_dtype(column)
                if dtype is None:
                    self._chunks[name] = []
                else:
                    self._names.setdefault(dtype, []).append(name)
        start, stop = self._length, self._length + len(table)
        columns = dict(zip(table.column_names, table.columns, strict=True))
        del table
        for name, chunks in self._chunks.items():
            chunks += columns.pop(name).chunks
        for dtype, names in self._names.items():
            values = self._reserve(dtype, stop, expected)
            for row, name in enumerate(names):
                position = start
                for chunk in columns.pop(name).chunks:
                    values[row, position : position + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
                    position += len(chunk)
        self._length = stop

    def accepts(self, table: pa.Table) -> bool:
        """Whether the columns of a table are stored as those before; nulls among integers are not."""
        kept = ((name, dtype) for dtype, names in self._names.items() for name in names)
        return all(_numpy_dtype(table.column(name)) == dtype for name, dtype in kept)

    def _reserve(self, dtype: np.dtype[Any], length: int, expected: int) -> npt.NDArray[Any]:
        values = self._values.get(dtype)
        if values is None or values.shape[1] < length:
            # a tenth more: an estimate that is too small costs a copy
            capacity = length if expected <= length else expected + expected // 10
            n_columns = len(self._names[dtype])
            larger = allocate_array(n_columns * capacity, dtype).reshape(n_columns, capacity)
            if values is not None:
                larger[:, : self._length] = values[:, : self._length]
            values = self._values[dtype] = larger
        return values

    def _other_columns(self) -> dict[str, pa.ChunkedArray]:
        types = dict(zip(self._schema.names, self._schema.types, strict=True))
        return {name: pa.chunked_array(chunks, types[name]) for name, chunks in self._chunks.items()}

    def to_table(self) -> pa.Table:
        """The rows so far, in the memory of this object; nulls of floats are NaN, as in frames."""
        columns: dict[str, Column] = {**self._other_columns()}
        for dtype, names in self._names.items():
            for name, row in zip(names, self._values[dtype], strict=True):
                columns[name] = pa.array(row[: self._length], self._schema.field(name).type)
        return pa.table([columns[name] for name in self._schema.names], schema=self._schema)

    def finish(self) -> pd.DataFrame:
        """The DataFrame of all rows."""
        (frame,) = self.cut([0, self._length])
        return frame

    def cut(self, bounds: Sequence[int]) -> Iterator[pd.DataFrame]:
        """DataFrames of consecutive rows; they share no row, so writing to one needs no copy."""
        names, others = self._schema.names, self._other_columns()
        self._chunks.clear()
        texts = [name for name, column in others.items() if _is_text(column)]
        blocks: list[_Block] = []
        for name in texts:
            blocks.append((_text_dtype().__from_arrow__(others.pop(name)), [name]))
        for dtype, columns in self._names.items():
            values: Any = self._values.pop(dtype)
            if dtype.kind == "M":  # pandas would wrap each slice of it
                values = pd.Series(values.ravel(), copy=False).array.reshape(values.shape)  # type: ignore[attr-defined]
            blocks.append((values, columns))
        if others or _FROM_BLOCKS is None:
            rows: dict[str, Any] = {}
            for values, columns in blocks:
                each = [values] if values.ndim == 1 else values
                rows |= {name: row[: self._length] for name, row in zip(columns, each, strict=True)}
            arrays = {**rows, **to_pandas(pa.table(others))} if others else rows
            index = pd.RangeIndex(self._length)
            frame = pd.DataFrame({name: arrays[name] for name in names}, index, copy=False)
            yield from _cut(frame, bounds)
            return
        # The general way calls 600 Python functions, for 1 ms; this one 60.
        positions = {name: number for number, name in enumerate(names)}
        numbers = [np.array([positions[name] for name in columns]) for _, columns in blocks]
        for start, stop in pairwise(bounds):
            part = [(values[..., start:stop], n) for (values, _), n in zip(blocks, numbers, strict=True)]
            # views of its own, as users may name index and columns
            yield _FROM_BLOCKS(part, _row_index(stop - start).view(), _column_index(tuple(names)).view())


def _builder(tables: list[pa.Table], backend: DtypeBackend | None, *, is_whole: bool) -> FrameBuilder | None:
    """The frame of the only table in a list; None, and the table stays, if pandas converts all of it."""
    (table,) = tables
    # metadata may name extension types
    if backend or _FROM_BLOCKS is None or table.schema.metadata:
        return None
    plain = [_is_text(column) or _numpy_dtype(column) is not None for column in table.columns]
    if not any(plain) or (not all(plain) and not (is_whole and len(plain) <= MAX_COLUMNS)):
        return None
    builder, length = FrameBuilder(table.schema), len(table)
    del table
    builder.append(tables, length)
    return builder


def frame_of_table(tables: list[pa.Table], backend: DtypeBackend | None = None) -> pd.DataFrame:
    """DataFrame of the only table in a list, which is emptied: the frame takes its memory."""
    (frame,) = _cut_table(tables, [0, len(tables[0])], backend)
    return frame


def frames_of_slices(
    table: pa.Table, bounds: npt.NDArray[np.int64], backend: DtypeBackend | None = None
) -> list[pd.DataFrame]:
    """One independent DataFrame per slice of a table, each as `frame_of_table` makes it."""
    alone = np.diff(bounds) >= tuning.SMALL_FRAME_ROWS
    for column in table.columns:
        if column.null_count and _depends_on_nulls(column.type):
            nulls = np.append(0, np.cumsum(column.is_null().to_numpy(zero_copy_only=False)))
            alone |= nulls[bounds[1:]] > nulls[bounds[:-1]]
    # columns get the same types in all slices between two that are converted alone
    batches = (bounds[:-1] - bounds[0]) // max(_BATCH * tuning.SMALL_FRAME_ROWS, 1)
    begins = alone.copy()
    begins[1:] |= alone[:-1] | (np.diff(batches) > 0)
    begins[:1] = True
    frames: list[pd.DataFrame] = []
    for start, stop in pairwise([*np.flatnonzero(begins).tolist(), len(alone)]):
        part = [table.slice(int(bounds[start]), int(bounds[stop] - bounds[start]))]
        frames += _cut_table(part, (bounds[start : stop + 1] - bounds[start]).tolist(), backend)
    return frames


def _cut_table(
    tables: list[pa.Table], bounds: Sequence[int], backend: DtypeBackend | None
) -> Iterator[pd.DataFrame]:
    """Frames of consecutive rows of the only table in a list, whose columns get the same types in each."""
    builder = _builder(tables, backend, is_whole=len(bounds) == 2)
    if builder is not None:
        return builder.cut(bounds)
    return _cut(to_pandas(tables.pop(), dtype_backend=backend), bounds)


def _depends_on_nulls(dtype: pa.DataType) -> bool:
    """Whether nulls change the type of a column in pandas, as they do with integers."""
    kinds = (pa.types.is_floating, pa.types.is_timestamp, pa.types.is_date, pa.types.is_string)
    return not any(is_kind(dtype) for is_kind in kinds)


def _cut(frame: pd.DataFrame, bounds: Sequence[int]) -> Iterator[pd.DataFrame]:
    if len(bounds) == 2:
        yield frame
        return
    for start, stop in pairwise(bounds):
        rows = frame.iloc[start:stop]
        if not _COPIES_ON_WRITE:
            rows = rows.copy()
        rows.index = pd.RangeIndex(stop - start)
        yield rows
