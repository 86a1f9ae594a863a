"""Conversion of index data from and to Python dicts and pandas."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.arrow.arrays import to_numpy
from kartothek_cube.core.arrow.casting import convert_plain, normalize_value
from kartothek_cube.core.arrow.pandas_conversion import to_memory, to_pandas
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.expressions.literal import is_null_value
from kartothek_cube.core.index.data import IndexColumns

_LOGGER = logging.getLogger(__name__)


def infer_dtype(values: Sequence[Any]) -> pa.DataType:
    """Arrow type of Python values, by the first one that is not null."""
    first = next((value for value in values if not is_null_value(value)), None)
    if isinstance(first, np.datetime64 | datetime.datetime):
        stamp = pd.Timestamp(first)
        return pa.timestamp("ns", None if stamp.tz is None else str(stamp.tz))
    try:
        return pa.array([first]).type
    except OverflowError:
        return pa.array([first], pa.uint64()).type


def value_array(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Lenient conversion of values without nulls to an array."""
    plain = convert_plain(values, dtype)
    if plain is not None:
        return plain
    converted = [normalize_value(dtype, value) for value in values]
    if not pat.is_timestamp(dtype):
        return pa.array(converted, dtype)
    stamps = np.array(converted, dtype="datetime64[ns]").view("i8")
    return pa.array(stamps, pa.int64()).cast(pa.timestamp("ns", dtype.tz)).cast(dtype)


def index_columns(
    column: str, data: Mapping[Any, Iterable[str]] | IndexColumns | None, dtype: pa.DataType | None
) -> IndexColumns | None:
    """Index data of a dict or of index data; None without data or type."""
    # Duplicates after conversion are merged with a warning.
    if data is None or dtype is None:
        return None
    if isinstance(data, IndexColumns):
        return data.cast(dtype)
    null = pd.Series(list(data), dtype=object).isna()
    present = {value: data[value] for value in compress(data, ~null.to_numpy())} if null.any() else data
    values = value_array(list(present), dtype)
    collisions = len(values) - len(values.unique())
    if collisions:
        _LOGGER.warning(
            "%s values of the index on %r are the same once they are %s; their partitions were united.",
            collisions,
            column,
            dtype,
        )
    return IndexColumns.from_dict(values, list(present.values()))


def inline_dict(columns: IndexColumns) -> dict[str, list[str]]:
    """Inline form of an index in a header, with string keys; UnicodeDecodeError for binary values."""
    values = columns.values
    if pat.is_date(values.type) or pat.is_timestamp(values.type):
        columns = columns.cast(pa.string())
    return {_json_key(value): labels for value, labels in columns.to_dict().items()}


def _json_key(value: Any) -> str:
    """String form of a key by the rules of the json module."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


#: name of the column of labels, reserved
PARTITION = "partition"


def flat_series(
    column: str, columns: IndexColumns, compact: bool, partitions_as_index: bool, date_as_object: bool
) -> pd.Series[Any]:
    """Index as a series, see ``IndexBase.as_flat_series``."""
    if compact and partitions_as_index:
        return _values_per_partition(column, columns, date_as_object)
    if compact:
        labels = pa.ListArray.from_arrays(pa.array(columns.offsets, pa.int32()), columns.entry_labels())
        index = _series(column, columns.values, date_as_object)
        return pd.Series(labels.to_pandas().to_numpy(), index=pd.Index(index), name=PARTITION, dtype=object)
    values = _series(column, columns.pairs()[0], date_as_object)
    partitions = _series(PARTITION, columns.entry_labels(), date_as_object)
    data, index = (values, partitions) if partitions_as_index else (partitions, values)
    return pd.Series(data.array, index=pd.Index(index), name=data.name)


def _values_per_partition(column: str, columns: IndexColumns, date_as_object: bool) -> pd.Series[Any]:
    """Lists of values by label; labels sorted."""
    entries = _series(column, columns.pairs()[0], date_as_object).astype(object).to_numpy()
    labels = to_numpy(columns.entry_labels())
    order = np.argsort(labels, kind="stable")
    names, starts = np.unique(labels[order], return_index=True)
    lists = [values.tolist() for values in np.split(entries[order], starts[1:])] if len(names) else []
    data = pd.Series(lists, dtype=object).to_numpy()
    index = _series(PARTITION, pa.array(names, pa.string()), date_as_object)
    return pd.Series(data, index=pd.Index(index), name=column, dtype=object)


def values_to_numpy(columns: IndexColumns, date_as_object: bool) -> npt.NDArray[Any]:
    """Values of an index as a numpy array, see ``IndexBase.observed_values``."""
    values = columns.values
    if pat.is_date(values.type) and date_as_object:
        dates = np.empty(len(values), dtype=object)
        dates[:] = values.to_pylist()
        return dates
    if pat.is_date(values.type):
        values = to_memory(pa.table({"": values}), dates_as_object=False).column(0)
    return to_numpy(values)


def partition_rows(entries: Sequence[tuple[Ints, Ints]], n_partitions: int) -> tuple[Ints, list[Ints]]:
    """Inner join of several indices by partition: positions of partitions, and value ids per index.

    Examples
    --------
    >>> x = np.array([0, 0, 1]), np.array([0, 1, 1])
    >>> y = np.array([0, 1]), np.array([5, 6])
    >>> rows, ids = partition_rows([x, y], 2)
    >>> rows.tolist(), [i.tolist() for i in ids]
    ([0, 0, 1], [[0, 1, 1], [5, 5, 6]])
    """
    # Entries are given as positions of partitions (-1 for unknown ones) and value ids. Rows are sorted by
    # partition and value ids, the last index fastest.
    ordered = []
    total = np.ones(n_partitions, dtype=np.int64)
    for positions, ids in entries:
        order = np.lexsort([ids, positions])
        order = order[positions[order] >= 0]
        counts = np.bincount(positions[order], minlength=n_partitions)
        ordered.append((ids[order], counts, np.cumsum(counts) - counts))
        total = total * counts
    partitions = np.repeat(np.arange(n_partitions, dtype=np.int64), total)
    row_numbers = np.arange(len(partitions)) - np.repeat(np.cumsum(total) - total, total)
    columns = []
    # the number of a row within its partition, in a number system whose bases are the counts
    for ids, counts, starts in reversed(ordered):
        columns.append(ids[starts[partitions] + row_numbers % counts[partitions]])
        row_numbers = row_numbers // counts[partitions]
    return partitions, columns[::-1]


def partition_frame(
    labels: pa.StringArray, columns: Mapping[str, pa.Array], date_as_object: bool
) -> pd.DataFrame:
    """Frame with one row per label, which is the index and may repeat."""
    table = pa.table({PARTITION: labels, **columns})
    return to_pandas(table, dates_as_object=date_as_object).set_index(PARTITION)


def _series(name: str, values: pa.Array, date_as_object: bool) -> pd.Series[Any]:
    return to_pandas(pa.table({name: values}), dates_as_object=date_as_object)[name]
