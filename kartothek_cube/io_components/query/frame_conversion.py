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

from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend, to_pandas
from kartothek_cube.io_components.kernels.take import to_single_array

__all__ = (
    "frames_of_slices",
    "frames_of_tables",
    "zero_copy_view",
)

Array: TypeAlias = npt.NDArray[Any]
#: values of some columns of a frame, and the positions of these columns
_Block: TypeAlias = tuple[Any, npt.NDArray[np.integer[Any]]]
#: pandas warns of frames of more than 100 blocks; each column from here is one, and users add some
MAX_COLUMNS = 50
#: tables with fewer rows are concatenated first: each conversion takes longer than copying that many
_SMALL = 1_000
#: frames of fewer rows are made of their blocks, with a copy of numbers and times
_MAX_COPIED = 10_000
#: rows of a concatenation: a limit to the memory that is held twice
_BATCH = 50_000
# from 3 on, pandas copies what is part of another frame when it is written to, and not before
_COPIES_ON_WRITE = int(pd.__version__.split(".")[0]) >= 3
_TIMESTAMP_ID = pa.timestamp("ns").id
_NULLABLE_IDS = frozenset({pa.float32().id, pa.float64().id, _TIMESTAMP_ID})
#: types that pandas stores bit by bit as Arrow does, those above also with nulls
_BITWISE_IDS = _NULLABLE_IDS | {
    kind().id for kind in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64)
}
_TEXT_IDS = frozenset({pa.string().id, pa.large_string().id})
# new in pandas 3
_FROM_BLOCKS: Callable[..., pd.DataFrame] | None = getattr(
    getattr(pd.api, "internals", None), "create_dataframe_from_blocks", None
)


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


def _blocks(table: pa.Table) -> list[_Block] | None:
    """Blocks of a DataFrame with these rows; None unless all columns are numbers, times or text."""
    names = table.column_names
    if _FROM_BLOCKS is None or not len(table) or not 0 < len(names) <= MAX_COLUMNS:
        return None
    # metadata may name extension types
    if table.schema.metadata or not isinstance(_text_dtype(), pd.StringDtype):
        return None
    blocks: list[_Block] = []
    for position, column in enumerate(table.columns):
        values: Any
        dtype = column.type
        if dtype.id in _TEXT_IDS:
            values = _text_dtype().__from_arrow__(column)
        elif dtype.id in _BITWISE_IDS and (not column.null_count or dtype.id in _NULLABLE_IDS):
            if dtype.id == _TIMESTAMP_ID and (dtype.unit != "ns" or dtype.tz is not None):
                return None
            # a copy, as memory of Arrow may be shared and immutable
            values = np.array(column.to_numpy(), ndmin=2)
        else:
            return None
        blocks.append((values, np.array([position])))
    return blocks


def _frame_of_blocks(blocks: list[_Block], length: int, names: tuple[str, ...]) -> pd.DataFrame:
    # The general way calls 600 Python functions, for 1 ms; this one 60.
    if _FROM_BLOCKS is None:
        raise NotImplementedError("pandas before 3 makes no frames of blocks")
    # views of its own, as users may name index and columns
    return _FROM_BLOCKS(blocks, _row_index(length).view(), _column_index(names).view())


def _frame(tables: list[pa.Table], backend: DtypeBackend | None) -> pd.DataFrame:
    """DataFrame of the only table in a list, which is emptied; numbers and times are not copied."""
    table = tables.pop()
    blocks = None if backend or len(table) > _MAX_COPIED else _blocks(table)
    if blocks is not None:
        return _frame_of_blocks(blocks, len(table), tuple(table.column_names))
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
    if len(tables) == 1:
        yield _frame(tables, backend)
    while tables:
        batch = _next_batch(tables)
        if len(batch) == 1:
            yield _frame(batch, backend)
        else:
            yield from _cut_table(pa.concat_tables(batch), [0, *accumulate(map(len, batch))], backend)


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
    is_cut = is_cut and int(np.diff(bounds).max(initial=0)) < _SMALL
    start = 0
    while start < len(bounds) - 1:
        stop = int(bounds.searchsorted(bounds[start] + _BATCH, "right")) - 1
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


def _cut_table(table: pa.Table, bounds: list[int], backend: DtypeBackend | None) -> Iterator[pd.DataFrame]:
    """Frames of consecutive rows of a table, whose columns get the same types in each of them."""
    blocks = None if backend else _blocks(table)
    if blocks is None:
        return _cut(to_pandas(table, dtype_backend=backend), bounds)
    return _cut_blocks(blocks, bounds, tuple(table.column_names))


def _cut_blocks(blocks: list[_Block], bounds: list[int], names: tuple[str, ...]) -> Iterator[pd.DataFrame]:
    """Frames of consecutive rows; they share no row, and so need no copies when they are written to."""
    united = _unite_blocks(blocks)
    for start, stop in pairwise(bounds):
        rows = [(values[..., start:stop], positions) for values, positions in united]
        yield _frame_of_blocks(rows, stop - start, names)


def _unite_blocks(blocks: list[_Block]) -> list[_Block]:
    """Fewer blocks: one for all columns of a NumPy type."""
    by_type: dict[np.dtype[Any], list[_Block]] = {}
    united = []
    for block in blocks:
        values = block[0]
        if isinstance(values, np.ndarray):
            by_type.setdefault(values.dtype, []).append(block)
        else:
            united.append(block)
    for same in by_type.values():
        arrays, positions = zip(*same, strict=True)
        values = np.concatenate(arrays)
        if values.dtype.kind == "M":  # pandas would wrap each slice of it
            values = pd.Series(values.ravel(), copy=False).array.reshape(values.shape)  # type: ignore[attr-defined]
        united.append((values, np.concatenate(positions)))
    return united


def _cut(frame: pd.DataFrame, bounds: list[int]) -> Iterator[pd.DataFrame]:
    for start, stop in pairwise(bounds):
        rows = frame.iloc[start:stop]
        if not _COPIES_ON_WRITE:
            rows = rows.copy()
        rows.index = pd.RangeIndex(stop - start)
        yield rows
