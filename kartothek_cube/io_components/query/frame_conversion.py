"""Results of a query as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core import tuning
from kartothek_cube.core.pandas_conversion import DtypeBackend, to_pandas
from kartothek_cube.io_components import kernels

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
_WITH_NULLS = (pat.is_floating, pat.is_timestamp, pat.is_date, pat.is_string)
# new in pandas 3
_FROM_BLOCKS: Callable[..., pd.DataFrame] | None = getattr(
    getattr(pd.api, "internals", None), "create_dataframe_from_blocks", None
)


@lru_cache(maxsize=1)
def text_dtype() -> Any:
    """Dtype of text in pandas; options and installed packages decide on it."""
    return pa.table({"_": [""]}).to_pandas().dtypes["_"]


# Cached: 10 % of the time of a query for few rows, a quarter of that of 400 small frames.
@lru_cache(maxsize=64)
def _column_index(names: tuple[str, ...]) -> pd.Index[Any]:
    return pd.Index(names)


@lru_cache(maxsize=64)
def _row_index(length: int) -> pd.RangeIndex:
    return pd.RangeIndex(length)


def _stored_as(column: pa.ChunkedArray) -> Any:
    """Dtype of numbers and times that pandas stores bit by bit as Arrow does, and of texts; else None."""
    dtype = column.type
    if dtype.id in _TEXT_IDS:
        return text_dtype() if isinstance(text_dtype(), pd.StringDtype) else None
    if dtype.id not in _BITWISE_IDS or (column.null_count and dtype.id not in _NULLABLE_IDS):
        return None
    return None if pat.is_timestamp(dtype) and dtype.tz is not None else np.dtype(dtype.to_pandas_dtype())


def _copy_columns(tables: list[pa.Table], dtypes: list[Any]) -> pd.DataFrame:
    """DataFrame of the only table in a list."""
    # Columns are released once they are copied, and writing to the frame needs no copy.
    table = tables.pop()
    names, length = table.column_names, len(table)
    columns = dict(zip(names, table.columns, strict=True))
    del table
    by_dtype: dict[np.dtype[Any], list[str]] = {}
    blocks: list[_Block] = []
    for name, dtype in zip(names, dtypes, strict=True):
        if isinstance(dtype, np.dtype):
            by_dtype.setdefault(dtype, []).append(name)
        elif dtype is not None:
            blocks.append((dtype.__from_arrow__(columns.pop(name)), [name]))
    for dtype, members in by_dtype.items():
        values: Any = kernels.allocate_array(len(members) * length, dtype).reshape(len(members), length)
        # two threads take 0.027 s for 1.5 million rows of 12 columns, one 0.043
        kernels.for_each_column(partial(_copy_column, columns, members, values), len(members), length)
        if dtype.kind == "M":  # pandas would wrap each slice of it
            values = pd.Series(values.ravel(), copy=False).array.reshape(values.shape)  # type: ignore[attr-defined]
        blocks.append((values, members))
    if columns:
        arrays = {**to_pandas(pa.table(columns))}
        for values, members in blocks:
            arrays |= zip(members, [values] if values.ndim == 1 else values, strict=True)
        return pd.DataFrame({name: arrays[name] for name in names}, pd.RangeIndex(length), copy=False)
    # The general way calls 600 Python functions, for 1 ms; this one 60.
    positions = {name: number for number, name in enumerate(names)}
    numbered = [(values, np.array([positions[name] for name in members])) for values, members in blocks]
    assert _FROM_BLOCKS is not None
    # views of its own, as users may name index and columns
    return _FROM_BLOCKS(numbered, _row_index(length).view(), _column_index(tuple(names)).view())


def _copy_column(columns: dict[str, pa.ChunkedArray], members: list[str], values: Array, number: int) -> None:
    position = 0
    for chunk in columns.pop(members[number]).chunks:
        values[number, position : position + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
        position += len(chunk)


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
        # nulls change the type of other columns in pandas, as they do with integers
        if column.null_count and not any(is_kind(column.type) for is_kind in _WITH_NULLS):
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
    # metadata may name extension types
    if backend is None and _FROM_BLOCKS is not None and not tables[0].schema.metadata:
        dtypes = [*map(_stored_as, tables[0].columns)]
        # NumPy takes None for float64 in comparisons
        n_others = sum(dtype is None for dtype in dtypes)
        if n_others < len(dtypes) and (n_others == 0 or len(dtypes) <= MAX_COLUMNS):
            return _cut(_copy_columns(tables, dtypes), bounds)
    return _cut(to_pandas(tables.pop(), dtype_backend=backend), bounds)


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
