"""Scan of the files of a task: the newest version of each cell (merge on read)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import Ints, Mask
from kartothek_cube.core.copying import replace_fields
from kartothek_cube.core.expressions.literal import LiteralType
from kartothek_cube.core.expressions.predicate import AllOf, all_of, imply, tree_mask
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.kernels.encode import combine_keys, encode_ordered, group_codes
from kartothek_cube.io_components.kernels.sort import equal_neighbours, last_occurrence_mask
from kartothek_cube.io_components.query.logical_plan import Role
from kartothek_cube.io_components.query.physical_plan import (
    DatasetScan,
    Predicates,
    ScanContext,
    ScanTask,
    match_partitions,
)
from kartothek_cube.io_components.query.row_batch import RowBatch
from kartothek_cube.io_components.scan import FileRows, Scan, run_scans


@attrs.frozen
class PartitionedFiles:
    """Files of one dataset, those of a physical partition next to each other, in commit order."""

    scan: DatasetScan
    #: storage keys
    keys: tuple[str, ...]
    #: values of the partition keys of each file
    partition_keys: dict[str, pa.Array]
    #: physical partition of each file, ascending
    partition_ids: Ints
    #: whether the ids are those of the seed; else its partitions share the files
    aligned: bool

    def __len__(self) -> int:
        return len(self.keys)

    def overlapping(self) -> Mask:
        """Mask of the files that share their physical partition."""
        numbers = self.partition_ids - self.partition_ids[:1]
        mask: Mask = np.bincount(numbers)[numbers] > 1
        return mask

    def between(self, start: int, stop: int) -> PartitionedFiles:
        """The files of consecutive physical partitions."""
        if start == 0 and stop > self.partition_ids[-1:].max(initial=-1):
            return self
        low, high = np.searchsorted(self.partition_ids, [start, stop]).tolist()
        return attrs.evolve(
            self,
            keys=self.keys[low:high],
            partition_keys={c: array.slice(low, high - low) for c, array in self.partition_keys.items()},
            partition_ids=self.partition_ids[low:high],
        )


def group_files_by_partition(context: ScanContext, task: ScanTask) -> list[PartitionedFiles]:
    """Files of each dataset of a task, the seed first, without those that match no partition of the seed."""
    seed = _group_files(context, task, 0, None)
    return [seed, *(_group_files(context, task, number, seed) for number in range(1, len(context.scans)))]


def _group_files(
    context: ScanContext, task: ScanTask, number: int, seed: PartitionedFiles | None
) -> PartitionedFiles:
    scan, files = context.scans[number], task.files[number]
    partition_keys = files.partition_values(scan)
    aligned = seed is None or scan.alignment == seed.scan.alignment
    if files.cached_ids is not None:
        ids = files.cached_ids
    elif seed is None or not aligned:
        ids = group_codes([partition_keys[column] for column in scan.alignment], len(files.labels))
    else:
        left, right = match_partitions(
            seed.partition_keys, partition_keys, scan, len(seed), len(files.labels)
        )
        seed_ids = np.full(max(left.max(initial=-1), right.max(initial=-1)) + 1, -1, np.int64)
        seed_ids[left] = seed.partition_ids
        ids = seed_ids[right]
    keys = files.storage_keys(scan)
    if len(keys) != 1 or ids[0] < 0:
        order = np.argsort(ids, kind="stable")
        order = order[np.searchsorted(ids[order], 0) :]
        keys = tuple([keys[i] for i in order.tolist()])
        partition_keys = {column: array.take(pa.array(order)) for column, array in partition_keys.items()}
        ids = ids[order]
    return PartitionedFiles(scan, keys, partition_keys, ids, aligned)


def load_rows(
    blobs: BlobStore,
    datasets: Sequence[PartitionedFiles],
    group_predicates: Predicates,
    cells: Sequence[pa.Table] = (),
) -> list[RowBatch]:
    """
    Rows of datasets that meet the predicates; of each cell of the seed the version written last.

    Of the cells of another dataset the join takes the last version. Rows of cells that are not in ``cells``,
    tables of dimensions, may be missing.
    """
    if not datasets:
        return []
    predicates = [_select_predicates(files.scan, group_predicates) for files in datasets]
    scans = [_make_scan(files, on_rows, cells) for files, on_rows in zip(datasets, predicates, strict=True)]
    found = run_scans(blobs, scans)
    return [_newest_rows(*each) for each in zip(datasets, found, predicates, strict=True)]


def _select_predicates(scan: DatasetScan, group_predicates: Predicates) -> Predicates:
    columns = {*scan.dimensions, *scan.payload}
    return scan.predicates + tuple([p for p in group_predicates if p[0] in columns])


def _newest_rows(files: PartitionedFiles, read: FileRows, predicates: Predicates) -> RowBatch:
    scan = files.scan
    rows = RowBatch(scan, read.table, read.lengths, files.partition_keys, files.partition_ids)
    rows = rows.append_partition_keys(scan.columns)
    is_overlapping = len(files) > 1 and bool(files.overlapping().any())
    if scan.role is Role.SEED or is_overlapping:
        rows = _deduplicate_cells(rows.combine_chunks(scan.dimensions))
    if is_overlapping and len(predicates) > len(scan.dimension_predicates):
        rows = rows.filter(tree_mask(rows.table, AllOf(predicates)).to_numpy(zero_copy_only=False))
    return rows


def _make_scan(files: PartitionedFiles, predicates: Predicates, cells: Sequence[pa.Table]) -> Scan:
    """Scan of the files, filtered by what holds for all versions of a cell."""
    # Only a file that is alone in its partition may be filtered by conditions on payload while reading: else
    # a newer version of a cell that fails the condition has to replace an older one that meets it.
    scan = files.scan
    stored = [column for column in scan.columns if column not in scan.partition_keys]
    dimensions = [c for c in scan.dimensions if c not in scan.partition_keys]
    in_file = [p for p in predicates if p[0] not in scan.partition_keys]
    of_single_file = _with_implied(in_file, scan, stored)
    filters = [of_single_file] * len(files)
    if len(files) > 1 and of_single_file is not None:
        stable = [p for p in in_file if p[0] in scan.dimensions or p in scan.dimension_predicates]
        of_overlapping_file = _with_implied(stable, scan, dimensions)
        filters = [of_overlapping_file if other else of_single_file for other in files.overlapping().tolist()]
    # columns that are null in all files; payload stays null, other partitions may type it
    types = pa.schema([(c, scan.schema.field(c).type if c in dimensions else pa.null()) for c in stored])
    # all versions of a cell have its dimensions
    shared = [table.select([c for c in table.column_names if c in dimensions]) for table in cells]
    return Scan(
        files.keys, stored, types, filters, scan.mapping, [table for table in shared if table.num_columns]
    )


def _with_implied(
    predicates: Sequence[LiteralType], scan: DatasetScan, columns: Collection[str]
) -> AllOf | None:
    """The predicates, and what the filters of the joined rows imply about columns; None for nothing."""
    return all_of([*predicates, *(imply(node, columns) for node in scan.implied)])


def _deduplicate_cells(rows: RowBatch) -> RowBatch:
    """Only the last version of each cell within a physical partition."""
    dimensions = rows.columns(rows.scan.dimensions)
    equal = equal_neighbours(dimensions, len(rows), rows.partition_starts())
    if equal is not None:
        # versions of a cell are next to each other: rows of a projection, for example
        rows = rows.filter(np.append(~equal, [True] * bool(len(rows)))) if equal.any() else rows
        return replace_fields(rows, is_sorted=True)
    keys = [encode_ordered(pa.array(rows.row_partition_ids())), *map(encode_ordered, dimensions)]
    mask = last_occurrence_mask(*combine_keys(keys, len(rows)))
    return rows if mask is None else rows.filter(mask)
