"""Scan of one dataset: its files, and of each cell the version written last (merge on read)."""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import Ints, Mask
from kartothek_cube.core.expressions.predicate import filter_mask
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.kernels.encode import combine_keys, encode_ordered
from kartothek_cube.io_components.kernels.sort import last_occurrence_mask, strictly_increasing
from kartothek_cube.io_components.query.column_widths import widths_of_files
from kartothek_cube.io_components.query.file_groups import PartitionedFiles
from kartothek_cube.io_components.query.physical_plan import DatasetScan, Predicates
from kartothek_cube.io_components.query.row_batch import RowBatch
from kartothek_cube.io_components.read.data_files import concat_tables, read_files

__all__ = ("load_rows", "pushdown_predicates", "stored_columns")


#: the order of smaller files is checked once for all of them: a check per file costs more than its rows
_MIN_ROWS_TO_CHECK_ORDER = 1 << 12


def load_rows(
    blobs: BlobStore, files: PartitionedFiles, group_predicates: Predicates, threads: int | None = None
) -> RowBatch:
    """Rows of one dataset that meet the predicates, of each cell the version written last."""
    scan = files.scan
    predicates = pushdown_predicates(scan, group_predicates)
    overlapping = _has_overlapping_files(files.partition_ids)
    file_rows = _read_files(blobs, files, overlapping, predicates, threads)
    tables = [rows.table for rows in file_rows]
    rows = RowBatch(
        scan=scan,
        table=concat_tables(tables, _null_types(scan), scan.uuid),
        counts=np.array([len(table) for table in tables], dtype=np.int64),
        keys=files.partition_keys,
        partition_ids=files.partition_ids,
        sorted=not overlapping.any() and all(rows.sorted for rows in file_rows),
        widths=widths_of_files([table.schema for table in tables], files.partition_ids),
    ).append_partition_keys(scan.columns)
    if not rows.sorted:
        rows = _deduplicate_cells(rows)
    if overlapping.any() and len(predicates) > len(scan.dimension_predicates):
        rows = rows.filter(filter_mask(rows.table, [list(predicates)]).to_numpy(zero_copy_only=False))
    return rows


def pushdown_predicates(scan: DatasetScan, group_predicates: Predicates) -> Predicates:
    """All that the rows of a dataset have to meet: conditions of the query, and the groups of the task."""
    columns = {*scan.dimensions, *scan.payload}
    return scan.predicates + tuple(predicate for predicate in group_predicates if predicate[0] in columns)


def stored_columns(scan: DatasetScan) -> list[str]:
    """Columns to read from the files; partition keys are not stored in them."""
    return [column for column in scan.columns if column not in scan.partition_keys]


def _null_types(scan: DatasetScan) -> pa.Schema:
    """Types of columns that are null in all files; payload stays null, other partitions may type it."""
    return pa.schema(
        [(c, scan.schema.field(c).type if c in scan.dimensions else pa.null()) for c in stored_columns(scan)]
    )


def _has_overlapping_files(partition_ids: Ints) -> Mask:
    """Mask of the files that share their physical partition with another file; ids are sorted."""
    overlapping = np.zeros(len(partition_ids), dtype=bool)
    same = partition_ids[1:] == partition_ids[:-1]
    overlapping[1:] |= same
    overlapping[:-1] |= same
    return overlapping


class _FileRows(NamedTuple):
    """Rows of one file, and whether they are known to be sorted and unique by cell."""

    table: pa.Table
    sorted: bool


def _read_files(
    blobs: BlobStore,
    files: PartitionedFiles,
    overlapping: Mask,
    predicates: Predicates,
    threads: int | None,
) -> list[_FileRows]:
    """Read the files, filtered by what holds for all versions of a cell."""
    # Only a file that is alone in its partition may be filtered by conditions on payload while reading: else
    # a newer version of a cell that fails the condition has to replace an older one that meets it.
    scan = files.scan
    in_file = [p for p in predicates if p[0] not in scan.partition_keys]
    stable = [p for p in in_file if p[0] in scan.dimensions or p in scan.dimension_predicates]
    of_single_file, of_overlapping_file = ([in_file] if in_file else None), ([stable] if stable else None)
    dimensions = [c for c in scan.dimensions if c not in scan.partition_keys]
    all_dimensions_stored = len(dimensions) == len(scan.dimensions)

    def check_order(table: pa.Table) -> _FileRows:
        # on the thread that decoded the columns: they are still in the cache of its core
        if not all_dimensions_stored or len(table) < _MIN_ROWS_TO_CHECK_ORDER:
            return _FileRows(table, False)
        return _FileRows(table, strictly_increasing([table.column(c) for c in dimensions], len(table)))

    return list(
        read_files(
            blobs,
            files.keys,
            stored_columns(scan),
            lambda i: of_overlapping_file if overlapping[i] else of_single_file,
            then=check_order,
            sources=files.sources,
            threads=threads,
        )
    )


def _deduplicate_cells(rows: RowBatch) -> RowBatch:
    """Only the last version of each cell within a physical partition."""
    dimensions = rows.columns(rows.scan.dimensions)
    if strictly_increasing(dimensions, len(rows), rows.partition_starts()):
        return attrs.evolve(rows, sorted=True)
    keys = [encode_ordered(pa.array(rows.row_partition_ids())), *map(encode_ordered, dimensions)]
    mask = last_occurrence_mask(*combine_keys(keys, len(rows)))
    return rows if mask is None else rows.filter(mask)
