"""Partition pruning by partition keys, loaded indices and loaded column statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow import Ints, Mask, to_numpy
from kartothek_cube.core.column_statistics import statistics_mask
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.expressions import (
    LiteralType,
    Node,
    PredicatesType,
    bind_literal,
    evaluate,
    imply,
    literal_mask,
    to_tree,
    tree_mask,
)
from kartothek_cube.core.index import PartitionIndex
from kartothek_cube.core.index_columns import PARTITION, IndexColumns
from kartothek_cube.core.pandas_conversion import to_pandas
from kartothek_cube.core.transforms import read_transforms, refine

if TYPE_CHECKING:
    from kartothek_cube.core.dataset import DatasetMetadataBase


def select_partitions(dataset: DatasetMetadataBase, node: Node | None) -> Ints:
    """Positions of the partitions that can hold rows which match; None selects all."""
    return np.flatnonzero(_partition_mask(dataset, node)).astype(np.int64)


def imply_partition_keys(dataset: DatasetMetadataBase, node: Node) -> Node:
    """The same condition, with what it implies about partition keys that are transforms of other columns."""
    keys, schema = set(dataset.partition_keys), dataset.schema
    transforms = [t for t in read_transforms(dataset.metadata) or () if t.name in keys]
    if not transforms or schema is None:
        return node
    return refine(node, transforms, {field.name: field.type for field in schema})


def _partition_mask(dataset: DatasetMetadataBase, node: Node | None) -> Mask:
    length = len(dataset.partition_table)
    if node is None:
        return np.ones(length, dtype=bool)
    node = imply_partition_keys(dataset, node)
    return to_numpy(evaluate(node, lambda literal: _mask_of_literal(dataset, literal), length))


def _mask_of_literal(dataset: DatasetMetadataBase, literal: LiteralType) -> pa.BooleanArray:
    """Mask of the partitions that can match a literal."""
    column, op, value = literal
    if column in dataset.partition_keys:
        return literal_mask(dataset.key_columns()[column], op, value, column)
    index = dataset.indices.get(column)
    if index is not None and index.columns_data is not None:
        value_mask = index.mask(op, value)
        # nulls are not indexed: any partition may hold some
        if isinstance(index, PartitionIndex) or not _matches_nulls(index.columns_data.values.type, literal):
            return pa.array(index.columns_data.positions_matching(value_mask, dataset.partition_table))
    if index is None and dataset.statistics is not None and column in dataset.statistics.column_names:
        entries = dataset.statistics.column(column).combine_chunks()
        return statistics_mask(entries, op, value, column)
    return pa.repeat(True, len(dataset.partition_table))


def _matches_nulls(dtype: pa.DataType, literal: LiteralType) -> bool:
    column, op, value = literal
    bound = bind_literal(dtype, op, value, column)
    return bound.kind == "null" or bound.or_null


def indices_as_dataframe(
    dataset: DatasetMetadataBase,
    columns: Sequence[str] | None,
    date_as_object: bool,
    predicates: PredicatesType,
) -> pd.DataFrame:
    """Index data as a frame, see ``DatasetMetadataBase.get_indices_as_dataframe``."""
    rows, values = index_rows(dataset, columns, to_tree(predicates))
    columns = pa.table({PARTITION: dataset.partition_table.labels.take(pa.array(rows)), **values})
    return to_pandas(columns, dates_as_object=date_as_object).set_index(PARTITION)


def index_rows(
    dataset: DatasetMetadataBase, columns: Sequence[str] | None, node: Node | None
) -> tuple[Ints, dict[str, pa.Array]]:
    """Index data joined by partition: positions of partitions, and the values of each column."""
    # One row per partition and combination of values; partition indices must be loaded.
    indices = _index_data(dataset, columns)
    rows, ids = _join(dataset, indices, node)
    if node is not None:
        ids_of = dict(zip(indices, ids, strict=True))

        def mask_of_literal(literal: LiteralType) -> pa.BooleanArray:
            column, op, value = literal
            if column in ids_of:
                return pa.array(dataset.indices[column].mask(op, value)[ids_of[column]])
            return _mask_of_literal(dataset, literal).take(pa.array(rows))

        matching = to_numpy(evaluate(node, mask_of_literal, len(rows)))
        rows, ids = rows[matching], [each[matching] for each in ids]
    return rows, {c: data.values.take(pa.array(i)) for (c, data), i in zip(indices.items(), ids, strict=True)}


def _index_data(dataset: DatasetMetadataBase, columns: Sequence[str] | None) -> dict[str, IndexColumns]:
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


def _join(
    dataset: DatasetMetadataBase, indices: Mapping[str, IndexColumns], node: Node | None
) -> tuple[Ints, list[Ints]]:
    """Positions of partitions and value ids by index, of all rows that can match, and maybe more."""
    table = dataset.partition_table
    possible = _partition_mask(dataset, node)
    entries = []
    for column, data in indices.items():
        ids, positions = data.value_ids(), data.positions(table)
        implied = None if node is None else imply(node, {column})
        is_match = to_numpy(tree_mask(pa.table({column: data.values}), implied))[ids] & (positions >= 0)
        if len(table):
            is_match &= possible[positions]
        entries.append((positions[is_match], ids[is_match]))
    rows, value_ids = join_index_entries(entries, len(table))
    return (rows, value_ids) if entries else (rows[possible], [])


def join_index_entries(entries: Sequence[tuple[Ints, Ints]], n_partitions: int) -> tuple[Ints, list[Ints]]:
    """Inner join of several indices by partition: positions of partitions, and value ids per index.

    >>> x = np.array([0, 0, 1]), np.array([0, 1, 1])
    >>> y = np.array([0, 1]), np.array([5, 6])
    >>> rows, ids = join_index_entries([x, y], 2)
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
