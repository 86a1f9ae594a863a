"""The indices of a dataset as one frame: joined by partition, filtered by predicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.index.columns import IndexColumns
from kartothek_cube.core.index.frames import partition_frame, partition_rows
from kartothek_cube.core.predicates import ConjunctionType, PredicatesType, check_predicates
from kartothek_cube.core.prune import conjunction_mask

if TYPE_CHECKING:
    from kartothek_cube.core.dataset.base import DatasetMetadataBase

__all__ = ("index_rows", "indices_as_dataframe")

Ints = npt.NDArray[np.int64]


def indices_as_dataframe(
    dataset: DatasetMetadataBase,
    columns: Sequence[str] | None,
    date_as_object: bool,
    predicates: PredicatesType,
) -> pd.DataFrame:
    """
    Index data as a frame; the work of ``DatasetMetadataBase.get_indices_as_dataframe``.

    Parameters
    ----------
    dataset
        A dataset with loaded partition indices.
    columns
        Distinct columns; None: all.
    date_as_object, predicates
        As there.

    Returns
    -------
    pandas.DataFrame
    """
    rows, values = index_rows(dataset, columns, predicates)
    return partition_frame(dataset.partition_table.labels.take(pa.array(rows)), values, date_as_object)


def index_rows(
    dataset: DatasetMetadataBase, columns: Sequence[str] | None, predicates: PredicatesType
) -> tuple[Ints, dict[str, pa.Array]]:
    """
    Index data joined by partition, as columns.

    Parameters
    ----------
    dataset
        A dataset with loaded partition indices.
    columns, predicates
        As in :func:`indices_as_dataframe`.

    Returns
    -------
    rows
        Positions of the partitions in the order of commit, one per partition and combination of values.
    values
        Per column the values, one for each of the rows.
    """
    check_predicates(predicates)
    parts = _index_data(dataset, columns)
    found = [_rows(dataset, parts, conjunction) for conjunction in predicates or [[]]]
    rows, ids = found[0] if len(found) == 1 else _union(found)
    return rows, {c: data.values.take(pa.array(i)) for (c, data), i in zip(parts.items(), ids, strict=True)}


def _index_data(dataset: DatasetMetadataBase, columns: Sequence[str] | None) -> dict[str, IndexColumns]:
    wanted = sorted(dataset.indices) if columns is None else columns
    unknown = set(wanted) - set(dataset.indices)
    if unknown:
        raise ValueError(
            f"Dataset {dataset.uuid!r}: {unknown_names('index column', unknown, dataset.index_columns)}"
        )
    data = {column: dataset.indices[column].columns_data for column in wanted}
    missing = sorted(column for column, columns_data in data.items() if columns_data is None)
    if missing:
        raise RuntimeError(
            f"Dataset {dataset.uuid!r}: indices are not loaded: {', '.join(missing)}; "
            "call load_all_indices() first"
        )
    return {column: columns_data for column, columns_data in data.items() if columns_data is not None}


def _rows(
    dataset: DatasetMetadataBase, parts: dict[str, IndexColumns], conjunction: ConjunctionType
) -> tuple[Ints, list[Ints]]:
    """Partitions and value ids that meet all literals; those on columns of the frame also pick values."""
    table = dataset.partition_table
    possible = conjunction_mask(dataset, conjunction)
    entries = []
    for column, data in parts.items():
        mask = np.ones(len(data), dtype=bool)
        for _, op, value in (literal for literal in conjunction if literal[0] == column):
            mask &= dataset.indices[column].mask(op, value)
        ids, positions = data.value_ids(), data.positions(table)
        good = (
            mask[ids] & (positions >= 0) & possible[positions]
            if len(table)
            else np.zeros(len(ids), dtype=bool)
        )
        entries.append((positions[good], ids[good]))
    rows, picked = partition_rows(entries, len(table))
    return (rows, picked) if entries else (rows[possible], [])


def _union(found: Sequence[tuple[Ints, list[Ints]]]) -> tuple[Ints, list[Ints]]:
    """Rows that occur at least once, in order of partition and values."""
    stacked = np.concatenate([np.stack([rows, *ids], axis=1) for rows, ids in found])
    unique = np.unique(stacked, axis=0)
    return unique[:, 0], [unique[:, i] for i in range(1, unique.shape[1])]
