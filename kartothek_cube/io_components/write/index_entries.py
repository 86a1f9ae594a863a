"""Index entries: which values a column has in which partition, out of tables or read back from files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import Ints, widen
from kartothek_cube.core.commit.change import IndexUpdate
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.kernels.sort import strictly_increasing
from kartothek_cube.io_components.read.data_files import read_files

__all__ = ("index_entries", "index_entries_of", "read_index_entries")


def index_entries(
    values: pa.ChunkedArray, starts: Ints, labels: pa.StringArray, dtype: pa.DataType
) -> IndexUpdate:
    """Entries of one column of a table whose partitions begin at `starts`; nulls are not indexed."""
    partition = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))
    distinct, codes, partitions = _distinct_pairs(values, partition, len(starts))
    if pa.types.is_null(distinct.type) or not distinct.type.equals(widen(dtype)):
        distinct = distinct.cast(widen(dtype))
    return IndexUpdate(IndexColumns.from_pairs(distinct.take(pa.array(codes)), labels, partitions), labels)


def _distinct_pairs(
    values: pa.ChunkedArray, partition: Ints, n_partitions: int
) -> tuple[pa.Array, Ints, Ints]:
    """Distinct values, and the distinct pairs of value code and partition."""
    array = values.combine_chunks()
    if isinstance(array, pa.Array) and len(array) and strictly_increasing([array], len(array)):
        return array, np.arange(len(array)), partition
    array = (
        array.dictionary_encode()
        if not pa.types.is_null(values.type)
        else pa.array([], pa.null()).dictionary_encode()
    )
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    distinct = array.dictionary
    if not len(distinct):
        return distinct, np.empty(0, np.int64), np.empty(0, np.int64)
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        partition = partition[valid]
        array = array.drop_null()
    codes = array.indices.to_numpy().astype(np.int64)
    key = codes * n_partitions + partition
    size = len(distinct) * n_partitions
    # marking all pairs in a mask is linear, while np.unique sorts; the mask must not outgrow the rows by much
    if size <= max(8 * len(key), 1 << 16):
        present = np.zeros(size, dtype=bool)
        present[key] = True
        key = np.flatnonzero(present)
    else:
        key = np.unique(key)
    return distinct, key // n_partitions, key % n_partitions


def index_entries_of(
    column: str, labels: Sequence[str], tables: Iterable[pa.Table], dtype: pa.DataType
) -> IndexUpdate:
    """Index entries of partitions, from one table per label in the same order."""
    columns = [table.column(column).cast(dtype) for table in tables]
    starts = np.cumsum([0, *map(len, columns)])[:-1]
    values = pa.chunked_array([chunk for rows in columns for chunk in rows.chunks], type=dtype)
    return index_entries(values, starts.astype(np.int64), pa.array(labels, pa.string()), dtype)


def read_index_entries(
    blobs: BlobStore, uuid: str, table: str, added: PartitionTable, column: str, labels: Sequence[str]
) -> IndexUpdate:
    """Read the index entries that the tasks of a write did not collect back from the files."""
    derived = PartitionTable.from_labels(uuid, table, labels).files[table].to_pylist()
    positions = added.positions(labels)
    # the keys of added partitions need not follow from their labels
    own = added.files[table].to_pylist() if len(added) else []
    keys = [own[position] if position >= 0 else key for position, key in zip(positions, derived, strict=True)]
    dataset = DatasetMetadata.load_from_store(uuid, blobs)
    dtype = arrow_schema(dataset).field(column).type
    tables = read_files(blobs, keys, [column], mapping=dataset.column_mapping)
    return index_entries_of(column, labels, tables, dtype)
