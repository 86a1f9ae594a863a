"""Partition pruning by partition keys and loaded indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow.arrays import to_numpy
from kartothek_cube.core.arrow.types import Ints, Mask
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.expressions.literal import LiteralType, bind_literal
from kartothek_cube.core.expressions.predicate import (
    ConjunctionType,
    PredicatesType,
    check_predicates,
    literal_mask,
)
from kartothek_cube.core.index import IndexBase, PartitionIndex
from kartothek_cube.core.index.conversion import partition_frame, partition_rows
from kartothek_cube.core.index.data import IndexColumns
from kartothek_cube.core.partition import PartitionTable


class IndexedDataset(Protocol):
    """What pruning needs of a dataset."""

    @property
    def uuid(self) -> str:
        """Name of the dataset."""

    @property
    def partition_table(self) -> PartitionTable:
        """The partitions."""

    @property
    def partition_keys(self) -> Sequence[str]:
        """Partition columns, in order."""

    @property
    def indices(self) -> Mapping[str, IndexBase]:
        """Index of each column."""

    @property
    def index_columns(self) -> set[str]:
        """Columns with an index, partition keys included."""

    def key_columns(self) -> Mapping[str, pa.Array]:
        """Typed values of the partition keys by column."""


def select_partitions(dataset: IndexedDataset, predicates: PredicatesType) -> Ints:
    """Positions of the partitions that can hold rows which match the predicates; None selects all."""
    if predicates is None:
        return np.arange(len(dataset.partition_table), dtype=np.int64)
    kept = np.zeros(len(dataset.partition_table), dtype=bool)
    for conjunction in predicates:
        kept |= _conjunction_mask(dataset, conjunction)
    return np.flatnonzero(kept).astype(np.int64)


def _conjunction_mask(dataset: IndexedDataset, conjunction: ConjunctionType) -> Mask:
    """Mask of the partitions that can hold rows which match all literals of a conjunction."""
    # Literals on columns without partition key or loaded index do not prune.
    kept: Mask | None = None
    for literal in conjunction:
        mask = _literal_mask(dataset, literal)
        if mask is not None:
            kept = mask if kept is None else kept & mask
    return np.ones(len(dataset.partition_table), dtype=bool) if kept is None else kept


def _literal_mask(dataset: IndexedDataset, literal: LiteralType) -> Mask | None:
    """Mask of the partitions that can match a literal; None if it does not prune."""
    column, op, value = literal
    if column in dataset.partition_keys:
        return to_numpy(literal_mask(dataset.key_columns()[column], op, value, column))
    index = dataset.indices.get(column)
    if index is None or index.columns_data is None:
        return None
    value_mask = index.mask(op, value)
    if not isinstance(index, PartitionIndex) and _matches_nulls(index.columns_data.values.type, literal):
        return None  # nulls are not indexed: any partition may hold some
    return index.columns_data.positions_matching(value_mask, dataset.partition_table)


def _matches_nulls(dtype: pa.DataType, literal: LiteralType) -> bool:
    column, op, value = literal
    bound = bind_literal(dtype, op, value, column)
    return bound.kind == "null" or bound.or_null


def indices_as_dataframe(
    dataset: IndexedDataset,
    columns: Sequence[str] | None,
    date_as_object: bool,
    predicates: PredicatesType,
) -> pd.DataFrame:
    """Index data as a frame, see ``DatasetMetadataBase.get_indices_as_dataframe``."""
    rows, values = index_rows(dataset, columns, predicates)
    return partition_frame(dataset.partition_table.labels.take(pa.array(rows)), values, date_as_object)


def index_rows(
    dataset: IndexedDataset, columns: Sequence[str] | None, predicates: PredicatesType
) -> tuple[Ints, dict[str, pa.Array]]:
    """Index data joined by partition: positions of partitions, and the values of each column."""
    # One row per partition and combination of values; partition indices must be loaded.
    check_predicates(predicates)
    indices = _index_data(dataset, columns)
    results = [_rows(dataset, indices, conjunction) for conjunction in predicates or [[]]]
    rows, ids = results[0] if len(results) == 1 else _union(results)
    return rows, {c: data.values.take(pa.array(i)) for (c, data), i in zip(indices.items(), ids, strict=True)}


def _index_data(dataset: IndexedDataset, columns: Sequence[str] | None) -> dict[str, IndexColumns]:
    names = sorted(dataset.indices) if columns is None else columns
    unknown = set(names) - set(dataset.indices)
    if unknown:
        raise ValueError(
            f"Dataset {dataset.uuid!r}: {unknown_names('index column', unknown, dataset.index_columns)}"
        )
    data = {column: dataset.indices[column].columns_data for column in names}
    missing = sorted(column for column, columns_data in data.items() if columns_data is None)
    if missing:
        raise RuntimeError(
            f"Dataset {dataset.uuid!r}: indices are not loaded: {', '.join(missing)}; "
            "call load_all_indices() first"
        )
    return {column: columns_data for column, columns_data in data.items() if columns_data is not None}


def _rows(
    dataset: IndexedDataset, indices: dict[str, IndexColumns], conjunction: ConjunctionType
) -> tuple[Ints, list[Ints]]:
    """Partitions and value ids that match all literals of a conjunction."""
    # Literals on columns of the frame also select values within a partition.
    table = dataset.partition_table
    possible = _conjunction_mask(dataset, conjunction)
    entries = []
    for column, data in indices.items():
        mask = np.ones(len(data), dtype=bool)
        for _, op, value in (literal for literal in conjunction if literal[0] == column):
            mask &= dataset.indices[column].mask(op, value)
        ids, positions = data.value_ids(), data.positions(table)
        is_match = (
            mask[ids] & (positions >= 0) & possible[positions]
            if len(table)
            else np.zeros(len(ids), dtype=bool)
        )
        entries.append((positions[is_match], ids[is_match]))
    rows, value_ids = partition_rows(entries, len(table))
    return (rows, value_ids) if entries else (rows[possible], [])


def _union(results: Sequence[tuple[Ints, list[Ints]]]) -> tuple[Ints, list[Ints]]:
    """Distinct rows, sorted by partition and values."""
    stacked = np.concatenate([np.stack([rows, *ids], axis=1) for rows, ids in results])
    unique = np.unique(stacked, axis=0)
    return unique[:, 0], [unique[:, i] for i in range(1, unique.shape[1])]
