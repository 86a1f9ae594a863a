"""Scan of the files of a task: the newest version of each cell (merge on read), late materialisation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.tables import append_columns
from kartothek_cube.core.arrow.types import Ints, Mask
from kartothek_cube.core.copying import replace_fields
from kartothek_cube.core.expressions.literal import LiteralType
from kartothek_cube.core.expressions.predicate import (
    PredicatesType,
    columns_in_predicates,
    disjunctive_form,
    filter_mask,
    imply,
)
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.kernels.encode import combine_keys, encode_ordered, group_codes
from kartothek_cube.io_components.kernels.sort import last_occurrence_mask, strictly_increasing
from kartothek_cube.io_components.query.physical_plan import (
    DatasetScan,
    Predicates,
    ScanContext,
    ScanTask,
    match_partitions,
)
from kartothek_cube.io_components.query.row_batch import RowBatch
from kartothek_cube.io_components.read.data_files import (
    Source,
    concat_tables,
    read_files,
    read_small_files,
    read_threads,
)
from kartothek_cube.io_components.read.filtered_scan import read_filtered_files
from kartothek_cube.serialization.parquet_reader import ChunkCache, ParquetColumns, have_equal_pages

__all__ = (
    "ColocatedRows",
    "PartitionedFiles",
    "file_predicates",
    "group_files_by_partition",
    "load_rows",
    "pushdown_predicates",
    "scan_colocated",
    "stored_columns",
)

#: the order of smaller files is checked once for all of them: a check per file costs more than its rows
_MIN_ROWS_TO_CHECK_ORDER = 1 << 12


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
    #: files that have been read or opened, by storage key
    sources: Mapping[str, Source] = attrs.field(factory=dict, repr=False, eq=False)

    def __len__(self) -> int:
        return len(self.keys)

    def opened_file(self) -> ParquetColumns | None:
        """The file, if it is the only one and has been opened."""
        source = self.sources.get(self.keys[0]) if len(self.keys) == 1 else None
        return source if isinstance(source, ParquetColumns) else None

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
    files: PartitionedFiles,
    group_predicates: Predicates,
    threads: int | None = None,
    *,
    filtered: bool = False,
) -> RowBatch:
    """
    Rows of one dataset that meet the predicates, of each cell the version written last.

    ``filtered`` reads them by `read_filtered_files` if that is possible.
    """
    scan = files.scan
    predicates = pushdown_predicates(scan, group_predicates)
    numbers = files.partition_ids - files.partition_ids[:1]
    overlapping = np.bincount(numbers)[numbers] > 1
    file_rows = _read_files(blobs, files, overlapping, predicates, threads, filtered=filtered)
    tables = [rows.table for rows in file_rows]
    rows = RowBatch(
        scan=scan,
        table=concat_tables(tables, _null_types(scan), scan.uuid),
        counts=np.array([len(table) for table in tables], dtype=np.int64),
        keys=files.partition_keys,
        partition_ids=files.partition_ids,
        sorted=not overlapping.any() and all(rows.sorted for rows in file_rows),
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


def file_predicates(scan: DatasetScan, group_predicates: Predicates) -> Predicates:
    """The same without predicates on partition keys, which files do not store."""
    return tuple(p for p in pushdown_predicates(scan, group_predicates) if p[0] not in scan.partition_keys)


def _with_implied(
    predicates: Sequence[LiteralType], scan: DatasetScan, columns: Collection[str]
) -> PredicatesType:
    """The predicates, and what the filters of the joined rows imply about columns; None for nothing."""
    implied = [node for n in scan.implied if (node := imply(n, columns)) is not None]
    return disjunctive_form([*predicates, *implied])


def stored_columns(scan: DatasetScan) -> list[str]:
    """Columns to read from the files; partition keys are not stored in them."""
    return [column for column in scan.columns if column not in scan.partition_keys]


def _null_types(scan: DatasetScan) -> pa.Schema:
    """Types of columns that are null in all files; payload stays null, other partitions may type it."""
    return pa.schema(
        [(c, scan.schema.field(c).type if c in scan.dimensions else pa.null()) for c in stored_columns(scan)]
    )


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
    *,
    filtered: bool,
) -> list[_FileRows]:
    """Read the files, filtered by what holds for all versions of a cell."""
    # Only a file that is alone in its partition may be filtered by conditions on payload while reading: else
    # a newer version of a cell that fails the condition has to replace an older one that meets it.
    scan = files.scan
    in_file = [p for p in predicates if p[0] not in scan.partition_keys]
    stable = [p for p in in_file if p[0] in scan.dimensions or p in scan.dimension_predicates]
    dimensions = [c for c in scan.dimensions if c not in scan.partition_keys]
    of_single_file = _with_implied(in_file, scan, stored_columns(scan))
    of_overlapping_file = _with_implied(stable, scan, dimensions)
    all_dimensions_stored = len(dimensions) == len(scan.dimensions)

    def check_order(table: pa.Table) -> _FileRows:
        # on the thread that decoded the columns: they are still in the cache of its core
        if not all_dimensions_stored or len(table) < _MIN_ROWS_TO_CHECK_ORDER:
            return _FileRows(table, False)
        return _FileRows(table, strictly_increasing([table.column(c) for c in dimensions], len(table)))

    if filtered:
        tables = read_filtered_files(blobs, files.keys, stored_columns(scan), of_single_file)
        if tables is not None:
            return list(map(check_order, tables))
    is_plain = of_single_file is None and of_overlapping_file is None and scan.mapping is None
    if is_plain and (threads or read_threads(blobs, files.keys)) == 1:
        tables = read_small_files(blobs, files.keys, stored_columns(scan), files.sources)
        if tables is not None:
            return [_FileRows(table, False) for table in tables]

    return list(
        read_files(
            blobs,
            files.keys,
            stored_columns(scan),
            lambda i: of_overlapping_file if overlapping[i] else of_single_file,
            then=check_order,
            sources=files.sources,
            threads=threads,
            mapping=scan.mapping,
        )
    )


def _deduplicate_cells(rows: RowBatch) -> RowBatch:
    """Only the last version of each cell within a physical partition."""
    dimensions = rows.columns(rows.scan.dimensions)
    if strictly_increasing(dimensions, len(rows), rows.partition_starts()):
        return replace_fields(rows, sorted=True)
    keys = [encode_ordered(pa.array(rows.row_partition_ids())), *map(encode_ordered, dimensions)]
    mask = last_occurrence_mask(*combine_keys(keys, len(rows)))
    return rows if mask is None else rows.filter(mask)


class ColocatedRows(NamedTuple):
    """Rows of the seed with the payload of the co-located datasets, and the datasets left to join."""

    rows: RowBatch
    remaining: list[PartitionedFiles]


class _ColumnFile(NamedTuple):
    """Opened file of a dataset, and the predicates that its columns have to meet."""

    columns: ParquetColumns
    scan: DatasetScan
    predicates: PredicatesType


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
    on_seed = _with_implied(file_predicates(scan, group_predicates), scan, stored_columns(scan))
    files = [_ColumnFile(seed_columns, scan, on_seed), *colocated]
    selected = _select_rows(files)
    # Predicates on dimensions keep all versions of a cell or none, and a seed that is read alone keeps the
    # versions that a scan of its own would see: then the order of the kept rows tells enough. Else a newer
    # version may have been dropped, and all rows have to be in order.
    on_cells_only = not colocated or all(
        columns_in_predicates(file.predicates) <= set(dimensions) for file in files
    )
    check_all_rows = selected is not None and not on_cells_only and len(selected) > 0
    if check_all_rows:
        seed_columns.load(dimensions, encoded=True)
        if not strictly_increasing(seed_columns.decoded(dimensions), len(seed_columns)):
            return None
    columns = [*dimensions, *(column for column in stored_columns(scan) if column not in dimensions)]
    if selected is None:
        seed_columns.load(columns)
        chunk_cache.keep(seed_columns, dimensions)
    # dimensions with small pages are decoded in full, as the next file may have the same
    repeated = [column for column in dimensions if seed_columns.small_pages(column) is not None]
    table = seed_columns.table(columns, selected, keep=repeated)
    if selected is not None and len(selected):
        chunk_cache.keep(seed_columns, dimensions)
    if not check_all_rows and not strictly_increasing(table.columns[: len(dimensions)], len(table)):
        return None
    for file in colocated:
        payload = [column for column in stored_columns(file.scan) if column not in dimensions]
        columns = file.columns.table(payload, selected).columns
        table = append_columns(table, zip(payload, columns, strict=True))
    counts = np.array([len(table)])
    rows = RowBatch(scan, table, counts, seed.partition_keys, seed.partition_ids, sorted=True)
    return ColocatedRows(rows.append_partition_keys(scan.columns), remaining)


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
            on_payload = [p for p in file_predicates(scan, group_predicates) if p[0] not in dimensions]
            payload = [column for column in stored_columns(scan) if column not in dimensions]
            colocated.append(_ColumnFile(columns, scan, _with_implied(on_payload, scan, payload)))
        else:
            remaining.append(other)
    return colocated, remaining


def _select_rows(files: Sequence[_ColumnFile]) -> Ints | None:
    """Positions of the rows that meet the predicates of all files; None without predicates."""
    restricted = [(file.columns, file.predicates) for file in files if file.predicates is not None]
    for columns, predicates in restricted:
        columns.check(predicates)
    rows: Ints | None = None
    for columns, predicates in restricted:
        if rows is None or len(rows):
            rows = columns.select(predicates, rows)
    return rows
