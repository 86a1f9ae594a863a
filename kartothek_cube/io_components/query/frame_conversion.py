"""Results of a query as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core import tuning
from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend, to_pandas
from kartothek_cube.io_components.kernels.take import Column, allocate_array

Array: TypeAlias = npt.NDArray[Any]
#: values of some columns of a frame, and the positions of these columns
_Block: TypeAlias = tuple[Any, npt.NDArray[np.integer[Any]]]
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
    if pat.is_timestamp(dtype) and (dtype.unit != "ns" or dtype.tz is not None):
        return None
    same: np.dtype[Any] = np.dtype(dtype.to_pandas_dtype())
    return same


def _is_text(column: pa.ChunkedArray) -> bool:
    return column.type.id in _TEXT_IDS and isinstance(_text_dtype(), pd.StringDtype)


def _blocks(table: pa.Table) -> list[_Block] | None:
    """Blocks of a DataFrame with these rows; None unless all columns are numbers, times or text."""
    # metadata may name extension types
    if _FROM_BLOCKS is None or not table.num_columns or table.schema.metadata:
        return None
    columns = table.columns
    if not all(_is_text(column) or _numpy_dtype(column) is not None for column in columns):
        return None
    del table
    return _copy_columns(columns)


def _copy_columns(columns: list[pa.ChunkedArray]) -> list[_Block]:
    """One block per type of numbers, and one per column of text; entries of ``columns`` become None."""
    # Each column is released once it is copied: both copies of all would take twice the memory of the result.
    by_dtype: dict[np.dtype[Any], list[int]] = {}
    blocks: list[_Block] = []
    for position, column in enumerate(columns):
        dtype = _numpy_dtype(column)
        if dtype is None:
            blocks.append((_text_dtype().__from_arrow__(column), np.array([position])))
        else:
            by_dtype.setdefault(dtype, []).append(position)
    for dtype, positions in by_dtype.items():
        length = len(columns[positions[0]])
        values = allocate_array(len(positions) * length, dtype).reshape(len(positions), length)
        for row, position in enumerate(positions):
            column, columns[position] = columns[position], None
            stop = 0
            for chunk in column.chunks:
                start, stop = stop, stop + len(chunk)
                values[row, start:stop] = chunk.to_numpy(zero_copy_only=False)
        blocks.append((_wrap_times(values), np.array(positions)))
    return blocks


def _wrap_times(values: npt.NDArray[Any]) -> Any:
    """An array of times as pandas has them, which would wrap each slice otherwise; others as they are."""
    if values.dtype.kind != "M":
        return values
    return pd.Series(values.ravel(), copy=False).array.reshape(values.shape)  # type: ignore[attr-defined]


def _frame_of_blocks(blocks: list[_Block], length: int, names: tuple[str, ...]) -> pd.DataFrame:
    # The general way calls 600 Python functions, for 1 ms; this one 60.
    if _FROM_BLOCKS is None:
        raise NotImplementedError("pandas before 3 makes no frames of blocks")
    # views of its own, as users may name index and columns
    return _FROM_BLOCKS(blocks, _row_index(length).view(), _column_index(names).view())


def _frame(tables: list[pa.Table], backend: DtypeBackend | None) -> pd.DataFrame:
    """DataFrame of the only table in a list, which is emptied: columns are released as they are copied."""
    table = tables.pop()
    names, length = tuple(table.column_names), len(table)
    plain = None if backend or _FROM_BLOCKS is None or table.schema.metadata else _split_plain(table)
    if plain is None:
        return to_pandas(table, dtype_backend=backend)
    columns, others = plain
    del table, plain
    return _assemble(_copy_columns(columns), others, names, length)


def _assemble(blocks: list[_Block], others: pa.Table, names: tuple[str, ...], length: int) -> pd.DataFrame:
    """DataFrame of blocks, whose columns are numbered without the other ones, and a table of these."""
    if not others.num_columns:
        return _frame_of_blocks(blocks, length, names)
    converted = to_pandas(others)
    known = [name for name in names if name not in converted]
    arrays = {known[p]: values for block, positions in blocks for values, p in _rows(block, positions)}
    both = {name: arrays[name] if name in arrays else converted[name] for name in names}
    return pd.DataFrame(both, index=pd.RangeIndex(length), copy=False)


def _rows(block: Any, positions: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[Any, int]]:
    """Columns of a block with their positions."""
    if isinstance(block, pd.api.extensions.ExtensionArray) and block.ndim == 1:
        yield block, int(positions[0])
    else:
        yield from zip(block, positions.tolist(), strict=True)


def _split_plain(table: pa.Table) -> tuple[list[pa.ChunkedArray], pa.Table] | None:
    """Columns of numbers, times and text, and a table of the others; None if pandas converts all of them."""
    columns = table.columns
    is_plain = [_is_text(column) or _numpy_dtype(column) is not None for column in columns]
    if not any(is_plain) or (not all(is_plain) and len(columns) > MAX_COLUMNS):
        return None
    others = table.select([number for number, plain in enumerate(is_plain) if not plain])
    return [column for column, plain in zip(columns, is_plain, strict=True) if plain], others


def frames_of_tables(tables: list[pa.Table], backend: DtypeBackend | None = None) -> Iterator[pd.DataFrame]:
    """
    One independent DataFrame per table of the same columns; ``tables`` is emptied: frames take its memory.

    >>> tables = [pa.table({"CITY": ["Rom"]}), pa.table({"CITY": ["Ulm", "Bonn"]})]
    >>> [frame["CITY"].tolist() for frame in frames_of_tables(tables)], tables
    ([['Rom'], ['Ulm', 'Bonn']], [])
    """
    tables.reverse()
    if len(tables) == 1:
        yield _frame(tables, backend)
    while tables:
        batch = _next_batch(tables)
        if len(batch) == 1:
            yield _frame(batch, backend)
        else:
            yield from _cut_table(pa.concat_tables(batch), [0, *accumulate(map(len, batch))], backend)


class FrameBuilder:
    """A DataFrame of tables that follow each other, each of which is released once it is appended.

    >>> builder = FrameBuilder(pa.schema([("CITY", pa.string()), ("TEMP", pa.float64())]))
    >>> builder.append(pa.table({"CITY": ["Rom"], "TEMP": [6.0]}), expected=2)
    >>> builder.append(pa.table({"CITY": ["Ulm"], "TEMP": [8.0]}), expected=2)
    >>> builder.finish()["TEMP"].tolist()
    [6.0, 8.0]
    """

    # Numbers and times are copied into one array per type, whose length is an estimate: memory that is not
    # used is never touched. The decoded blocks take the same memory in turn, where a result of its own
    # would have each page of it cleared by the system.

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

    def append(self, table: pa.Table, expected: int) -> None:
        """Add rows of the schema; ``expected`` is the likely number of rows of all tables."""
        if not self._length:
            self._start(table)
        stop = self._length + len(table)
        for dtype, names in self._names.items():
            values = self._reserve(dtype, stop, expected)
            for row, name in enumerate(names):
                start = self._length
                for chunk in table.column(name).chunks:
                    values[row, start : start + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
                    start += len(chunk)
        for name, chunks in self._chunks.items():
            chunks += table.column(name).chunks
        self._length = stop

    def accepts(self, table: pa.Table) -> bool:
        """Whether the columns of a table are stored as those before; nulls among integers are not."""
        kept = ((name, dtype) for dtype, names in self._names.items() for name in names)
        return all(_numpy_dtype(table.column(name)) == dtype for name, dtype in kept)

    def _start(self, table: pa.Table) -> None:
        for name in self._schema.names:
            dtype = _numpy_dtype(table.column(name))
            if dtype is None:
                self._chunks[name] = []
            else:
                self._names.setdefault(dtype, []).append(name)

    def _reserve(self, dtype: np.dtype[Any], length: int, expected: int) -> npt.NDArray[Any]:
        values = self._values.get(dtype)
        if values is None or values.shape[1] < length:
            # a tenth more: an estimate that is too small costs a copy
            capacity = max(length, expected + expected // 10)
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
        others = self._other_columns()
        self._chunks.clear()
        texts = [name for name, column in others.items() if _is_text(column)]
        blocks: list[_Block] = []
        names = [name for name in self._schema.names if name in texts or name not in others]
        positions = {name: number for number, name in enumerate(names)}
        for name in texts:
            blocks.append((_text_dtype().__from_arrow__(others.pop(name)), np.array([positions[name]])))
        for dtype, columns in self._names.items():
            values = _wrap_times(self._values.pop(dtype))[:, : self._length]
            blocks.append((values, np.array([positions[name] for name in columns])))
        return _assemble(blocks, pa.table(others), tuple(self._schema.names), self._length)


def frames_of_slices(
    table: pa.Table, bounds: npt.NDArray[np.int64], backend: DtypeBackend | None = None
) -> list[pd.DataFrame]:
    """
    One independent DataFrame per slice of a table, as `frames_of_tables` makes of the slices.

    >>> table = pa.table({"CITY": ["Rom", "Ulm", "Bonn"]})
    >>> [frame["CITY"].tolist() for frame in frames_of_slices(table, np.array([0, 1, 3]))]
    [['Rom'], ['Ulm', 'Bonn']]
    """
    frames: list[pd.DataFrame] = []
    null_sensitive = [number for number, dtype in enumerate(table.schema.types) if _depends_on_nulls(dtype)]
    is_cut = bool(table.column_names) and not any(
        table.column(number).null_count for number in null_sensitive
    )
    is_cut = is_cut and int(np.diff(bounds).max(initial=0)) < tuning.SMALL_FRAME_ROWS
    start = 0
    while start < len(bounds) - 1:
        stop = int(bounds.searchsorted(bounds[start] + _BATCH * tuning.SMALL_FRAME_ROWS, "right")) - 1
        stop = min(max(stop, start + 1), len(bounds) - 1)
        part = (bounds[start : stop + 1] - bounds[start]).tolist()
        rows = table.slice(int(bounds[start]), part[-1])
        if is_cut:
            frames.extend(_cut_table(rows, part, backend))
        else:
            frames.extend(frames_of_tables([rows.slice(a, b - a) for a, b in pairwise(part)], backend))
        start = stop
    return frames


def _next_batch(tables: list[pa.Table]) -> list[pa.Table]:
    """Pop tables from the end of a list whose columns get the same types in pandas alone and together."""
    batch = [tables.pop()]
    schema, rows = batch[0].schema, len(batch[0])
    null_sensitive = [number for number, dtype in enumerate(schema.types) if _depends_on_nulls(dtype)]

    def fits(table: pa.Table) -> bool:
        return len(table) < tuning.SMALL_FRAME_ROWS and not any(
            table.column(number).null_count for number in null_sensitive
        )

    if not schema.names or not fits(batch[0]):
        return batch
    while (
        tables
        and rows < _BATCH * tuning.SMALL_FRAME_ROWS
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


def _cut_table(table: pa.Table, bounds: list[int], backend: DtypeBackend | None) -> Iterator[pd.DataFrame]:
    """Frames of consecutive rows of a table, whose columns get the same types in each of them."""
    blocks = None if backend else _blocks(table)
    if blocks is None:
        return _cut(to_pandas(table, dtype_backend=backend), bounds)
    return _cut_blocks(blocks, bounds, tuple(table.column_names))


def _cut_blocks(blocks: list[_Block], bounds: list[int], names: tuple[str, ...]) -> Iterator[pd.DataFrame]:
    """Frames of consecutive rows; they share no row, and so need no copies when they are written to."""
    for start, stop in pairwise(bounds):
        rows = [(values[..., start:stop], positions) for values, positions in blocks]
        yield _frame_of_blocks(rows, stop - start, names)


def _cut(frame: pd.DataFrame, bounds: list[int]) -> Iterator[pd.DataFrame]:
    for start, stop in pairwise(bounds):
        rows = frame.iloc[start:stop]
        if not _COPIES_ON_WRITE:
            rows = rows.copy()
        rows.index = pd.RangeIndex(stop - start)
        yield rows
