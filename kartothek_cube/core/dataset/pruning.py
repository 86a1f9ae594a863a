"""Which partitions can hold rows that meet predicates, as far as partition keys and loaded indices tell."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.expressions.literal import bind_literal
from kartothek_cube.core.expressions.predicate import (
    ConjunctionType,
    LiteralType,
    PredicatesType,
    check_predicates,
    literal_mask,
)
from kartothek_cube.core.index import PartitionIndex
from kartothek_cube.core.index.conversion import partition_frame, partition_rows
from kartothek_cube.core.index.data import IndexColumns
from kartothek_cube.core.store import BlobStore
from kartothek_cube.core.typing import StoreInput

if TYPE_CHECKING:
    from kartothek_cube.core.dataset.base import DatasetMetadataBase

__all__ = (
    "conjunction_mask",
    "index_rows",
    "indices_as_dataframe",
    "load_needed_indices",
    "select_partitions",
)

Mask = npt.NDArray[np.bool_]
DatasetT = TypeVar("DatasetT", bound="DatasetMetadataBase")


def select_partitions(dataset: DatasetMetadataBase, predicates: PredicatesType) -> npt.NDArray[np.int64]:
    """
    Partitions that can hold rows which meet predicates.

    Parameters
    ----------
    dataset
        A dataset with its schema; of its secondary indices those count that are loaded.
    predicates
        The predicates; None selects all partitions.

    Returns
    -------
    numpy.ndarray of int64
        Positions in the order of commit. A partition that is not among them has no matching row; one that is
        among them need not have one.

    Raises
    ------
    TypeError
        A value does not fit its column.

    Examples
    --------
    >>> from kartothek_cube.core.dataset import DatasetMetadata
    >>> from kartothek_cube.core.index import ExplicitSecondaryIndex
    >>> from kartothek_cube.core.partition import PartitionTable
    >>> table = PartitionTable.from_labels("geodata", "table", ["a1", "b2"])
    >>> cities = ExplicitSecondaryIndex("CITY", {"Rom": ["a1", "b2"], "Bonn": ["a1"]})
    >>> dataset = DatasetMetadata("geodata", table, indices={"CITY": cities})
    >>> select_partitions(dataset, [[("CITY", "<", "C"), ("DAY", "==", 17)]]).tolist()
    [0]
    """
    if predicates is None:
        return np.arange(len(dataset.partition_table), dtype=np.int64)
    kept = np.zeros(len(dataset.partition_table), dtype=bool)
    for conjunction in predicates:
        kept |= conjunction_mask(dataset, conjunction)
    return np.flatnonzero(kept).astype(np.int64)


def conjunction_mask(dataset: DatasetMetadataBase, conjunction: ConjunctionType) -> Mask:
    """
    Partitions that can hold rows which meet all literals of a conjunction.

    Parameters
    ----------
    dataset
        As in :func:`select_partitions`.
    conjunction
        The literals; those on columns without partition key or loaded index do not restrict.

    Returns
    -------
    numpy.ndarray of bool
        One per partition.
    """
    kept = np.ones(len(dataset.partition_table), dtype=bool)
    for literal in conjunction:
        mask = _literal_partitions(dataset, literal)
        if mask is not None:
            kept &= mask
    return kept


def _literal_partitions(dataset: DatasetMetadataBase, literal: LiteralType) -> Mask | None:
    """Partitions that one literal leaves; None if it says nothing about them."""
    column, op, value = literal
    if column in dataset.partition_keys:
        found = literal_mask(dataset.key_columns()[column], op, value, column)
        result: Mask = found.to_numpy(zero_copy_only=False)
        return result
    index = dataset.indices.get(column)
    if index is None or index.columns_data is None:
        return None
    mask = index.mask(op, value)
    if not isinstance(index, PartitionIndex) and _sees_nulls(index.columns_data.values.type, literal):
        return None  # nulls are not indexed: any partition may have some
    return index.columns_data.positions_matching(mask, dataset.partition_table)


def _sees_nulls(dtype: pa.DataType, literal: LiteralType) -> bool:
    column, op, value = literal
    bound = bind_literal(dtype, op, value, column)
    return bound.kind == "null" or bound.or_null


def load_needed_indices(
    dataset: DatasetT, columns: Collection[str], store: StoreInput | BlobStore
) -> DatasetT:
    """
    Load just the indices of some columns.

    Parameters
    ----------
    dataset
        A dataset with its schema.
    columns
        Any columns; those without an index do not matter.
    store
        Store, factory or URL.

    Returns
    -------
    DatasetMetadataBase
        ``dataset`` itself if there is nothing to load.

    Raises
    ------
    KeyError
        The file of an index is missing.
    CorruptDatasetError
        It is not the file of an index on its column.
    """
    return dataset._load_indices(sorted(set(columns) - set(dataset.partition_keys)), store)


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
