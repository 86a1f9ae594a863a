"""Index data as pandas objects: flat series of one index, and the frame of several joined by partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.index.columns import IndexColumns
from kartothek_cube.core.types import to_memory, to_pandas

__all__ = ("PARTITION", "flat_series", "values_to_numpy", "partition_frame", "partition_rows")

#: name of the column of labels; no indexed column may have it
PARTITION = "partition"

Ints = npt.NDArray[np.int64]


def flat_series(
    column: str, columns: IndexColumns, compact: bool, partitions_as_index: bool, date_as_object: bool
) -> pd.Series[Any]:
    """
    One index as a series.

    Parameters
    ----------
    column
        The indexed column.
    columns
        Index data.
    compact
        One row per value (or partition) with a list, instead of one per pair.
    partitions_as_index
        Labels as index and values as data, instead of the reverse.
    date_as_object
        Dates as :class:`datetime.date` instead of ``datetime64[ns]``.

    Returns
    -------
    pandas.Series

    Examples
    --------
    >>> columns = IndexColumns.from_pairs(pa.array([1, 1, 2]), ["a1", "b2", "a1"])
    >>> flat_series("STORE_ID", columns, compact=True, partitions_as_index=True, date_as_object=False)
    partition
    a1    [1, 2]
    b2       [1]
    Name: STORE_ID, dtype: object
    """
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
    labels = columns.entry_labels().to_numpy(zero_copy_only=False)
    order = np.argsort(labels, kind="stable")
    names, starts = np.unique(labels[order], return_index=True)
    lists = [part.tolist() for part in np.split(entries[order], starts[1:])] if len(names) else []
    data = pd.Series(lists, dtype=object).to_numpy()
    index = _series(PARTITION, pa.array(names, pa.string()), date_as_object)
    return pd.Series(data, index=pd.Index(index), name=column, dtype=object)


def values_to_numpy(columns: IndexColumns, date_as_object: bool) -> npt.NDArray[Any]:
    """
    The values of an index as a numpy array.

    Parameters
    ----------
    columns
        Index data.
    date_as_object
        Dates as :class:`datetime.date` instead of ``datetime64[ns]``.

    Returns
    -------
    numpy.ndarray
        Text and bytes as objects, timestamps as ``datetime64[ns]`` (UTC if they have a zone), dates that do
        not fit that as ``datetime64[s]``.
    """
    values = columns.values
    if pat.is_date(values.type) and date_as_object:
        dates = np.empty(len(values), dtype=object)
        dates[:] = values.to_pylist()
        return dates
    if pat.is_date(values.type):
        values = to_memory(pa.table({"": values}), dates_as_object=False).column(0)
    array: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array


def partition_rows(parts: Sequence[tuple[Ints, Ints]], n_partitions: int) -> tuple[Ints, list[Ints]]:
    """
    Inner join of several indices by partition.

    Parameters
    ----------
    parts
        Per index its entries as positions of partitions (-1 for unknown ones) and value ids.
    n_partitions
        Number of partitions.

    Returns
    -------
    partitions
        Per row of the join the position of the partition; ascending.
    ids
        Per index and row the id of the value; ascending within a partition, the last index fastest.

    Examples
    --------
    >>> x = np.array([0, 0, 1]), np.array([0, 1, 1])
    >>> y = np.array([0, 1]), np.array([5, 6])
    >>> rows, ids = partition_rows([x, y], 2)
    >>> rows.tolist(), [i.tolist() for i in ids]
    ([0, 0, 1], [[0, 1, 1], [5, 5, 6]])
    """
    ordered = []
    total = np.ones(n_partitions, dtype=np.int64)
    for positions, ids in parts:
        order = np.lexsort([ids, positions])
        order = order[positions[order] >= 0]
        counts = np.bincount(positions[order], minlength=n_partitions)
        ordered.append((ids[order], counts, np.cumsum(counts) - counts))
        total = total * counts
    partitions = np.repeat(np.arange(n_partitions, dtype=np.int64), total)
    rest = np.arange(len(partitions)) - np.repeat(np.cumsum(total) - total, total)
    columns = []
    for ids, counts, starts in reversed(
        ordered
    ):  # the number of the row within its partition, digit by digit
        columns.append(ids[starts[partitions] + rest % counts[partitions]])
        rest = rest // counts[partitions]
    return partitions, columns[::-1]


def partition_frame(
    labels: pa.StringArray, columns: Mapping[str, pa.Array], date_as_object: bool
) -> pd.DataFrame:
    """
    A frame with one row per label.

    Parameters
    ----------
    labels
        The index; it may repeat.
    columns
        The columns.
    date_as_object
        Dates as :class:`datetime.date` instead of ``datetime64[ns]``.

    Returns
    -------
    pandas.DataFrame
    """
    table = pa.table({PARTITION: labels, **columns})
    return to_pandas(table, dates_as_object=date_as_object).set_index(PARTITION)


def _series(name: str, values: pa.Array, date_as_object: bool) -> pd.Series[Any]:
    return to_pandas(pa.table({name: values}), dates_as_object=date_as_object)[name]
