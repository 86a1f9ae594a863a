"""Late materialisation of co-located datasets: files that hold the cells of the seed row by row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.io_components.kernels.sort import strictly_increasing
from kartothek_cube.io_components.query.file_groups import PartitionedFiles
from kartothek_cube.io_components.query.physical_plan import DatasetScan, Predicates
from kartothek_cube.io_components.query.row_batch import RowBatch
from kartothek_cube.io_components.query.scan import pushdown_predicates, stored_columns
from kartothek_cube.serialization.parquet_reader import ChunkCache, ParquetColumns, have_equal_pages

__all__ = ("ColocatedRows", "scan_colocated")


class ColocatedRows(NamedTuple):
    """Rows of the seed with the payload of the co-located datasets, and the datasets left to join."""

    rows: RowBatch
    remaining: list[PartitionedFiles]


class _ColumnFile(NamedTuple):
    """Opened file of a dataset, and the predicates that its columns have to meet."""

    columns: ParquetColumns
    scan: DatasetScan
    predicates: Predicates


def scan_colocated(
    seed: PartitionedFiles,
    others: Sequence[PartitionedFiles],
    group_predicates: Predicates,
    chunk_cache: ChunkCache,
) -> ColocatedRows | None:
    """
    Load the seed with the payload of all datasets whose files hold exactly its cells, in its order.

    None if the seed is not a single, large file that is sorted by cell.
    """
    # Equal bytes of the key columns prove equal cells, so that keys are decoded once. All predicates are
    # evaluated first; the other columns are decoded only where some row meets them.
    seed_columns, scan = seed.opened_file(), seed.scan
    dimensions = list(scan.dimensions)
    if (
        seed_columns is None
        or not seed_columns.use_late_materialization
        or not set(dimensions) <= set(stored_columns(scan))
    ):
        return None
    chunk_cache.provide(seed_columns, dimensions)
    colocated, remaining = _split_colocated(seed_columns, seed, others, group_predicates)
    files = [_ColumnFile(seed_columns, scan, _file_predicates(scan, group_predicates)), *colocated]
    masks = _predicate_masks(files)
    mask = reduce(pc.and_, masks) if masks else None
    # Predicates on dimensions keep all versions of a cell or none, and a seed that is read alone keeps the
    # versions that a scan of its own would see: then the order of the kept rows tells enough. Else a newer
    # version may have been dropped, and all rows have to be in order.
    on_cells_only = not colocated or all(p[0] in dimensions for file in files for p in file.predicates)
    check_all_rows = mask is not None and not on_cells_only and mask.true_count > 0
    if check_all_rows and not strictly_increasing(seed_columns.decoded(dimensions), len(seed_columns)):
        return None
    if mask is None:
        seed_columns.load(stored_columns(scan))
    chunk_cache.keep(seed_columns, dimensions)
    table = seed_columns.table(dimensions, mask)
    if not check_all_rows and not strictly_increasing(table.columns, len(table)):
        return None
    for file in files:
        payload = [column for column in stored_columns(file.scan) if column not in dimensions]
        for name, values in zip(payload, file.columns.table(payload, mask).columns, strict=True):
            table = table.append_column(name, values)
    counts = np.array([len(table)])
    rows = RowBatch(scan, table, counts, seed.partition_keys, seed.partition_ids, sorted=True)
    return ColocatedRows(rows.append_partition_keys(scan.columns), remaining)


def _file_predicates(scan: DatasetScan, group_predicates: Predicates) -> Predicates:
    return tuple(p for p in pushdown_predicates(scan, group_predicates) if p[0] not in scan.partition_keys)


def _split_colocated(
    seed_columns: ParquetColumns,
    seed: PartitionedFiles,
    others: Sequence[PartitionedFiles],
    group_predicates: Predicates,
) -> tuple[list[_ColumnFile], list[PartitionedFiles]]:
    """Files whose rows are the cells of the seed, row by row; and the other datasets."""
    colocated, remaining = [], []
    dimensions = seed.scan.dimensions
    for other in others:
        columns, scan = other.opened_file(), other.scan
        if (
            columns is not None
            and scan.dimensions == dimensions
            and set(scan.columns) <= set(stored_columns(scan))
            and have_equal_pages(seed_columns, columns, dimensions)
        ):
            # predicates on dimensions are evaluated on the seed, whose cells are the same
            on_payload = tuple(p for p in _file_predicates(scan, group_predicates) if p[0] not in dimensions)
            colocated.append(_ColumnFile(columns, scan, on_payload))
        else:
            remaining.append(other)
    return colocated, remaining


def _predicate_masks(files: Sequence[_ColumnFile]) -> list[pa.BooleanArray]:
    """Rows that meet the predicates of each file that has some; up to the first file without a match."""
    restricted = [(file.columns, [list(file.predicates)]) for file in files if file.predicates]
    for columns, predicates in restricted:
        columns.check(predicates)
    masks: list[pa.BooleanArray] = []
    for columns, predicates in restricted:
        if all(mask.true_count for mask in masks):
            masks.append(columns.mask(predicates))
    return masks
