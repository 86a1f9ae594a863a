"""Loading the rows of one dataset of a query: its files, each cell in the version written last."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.expressions.predicate import filter_mask
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.kernels.encode import combine_keys, encode_ordered
from kartothek_cube.io_components.kernels.sort import last_occurrence_mask, strictly_increasing
from kartothek_cube.io_components.query.column_widths import widths_of_files
from kartothek_cube.io_components.query.file_groups import PartitionedFiles
from kartothek_cube.io_components.query.physical_plan import DatasetScan
from kartothek_cube.io_components.query.row_batch import RowBatch
from kartothek_cube.io_components.read.data_files import concat_tables, read_files

__all__ = ("Literals", "empty_scan", "load_rows", "pushdown_predicates", "stored_columns")

Ints: TypeAlias = npt.NDArray[np.int64]
Literals: TypeAlias = tuple[tuple[str, str, Any], ...]

#: rows from which on looking at a single file pays
_MIN_ROWS_TO_CHECK_ORDER = 1 << 12


def load_rows(
    blobs: BlobStore, files: PartitionedFiles, literals: Literals, threads: int | None = None
) -> RowBatch:
    """
    Load one dataset.

    Parameters
    ----------
    blobs
        The store.
    files
        What to load.
    literals
        What the rows have to fulfil besides the conditions of the query, if the dataset has the columns.
    threads
        How many files to read at once; None for as many as seem useful.

    Returns
    -------
    Rows
        Of each cell the version written last, and only if that meets the conditions.
    """
    source = files.source
    pushed = pushdown_predicates(source, literals)
    shared = _has_overlapping_files(files.unit)
    parts = _read(blobs, files, shared, pushed, threads)
    rows = RowBatch(
        source=source,
        table=concat_tables([table for table, _ in parts], _schema(source), source.uuid),
        counts=np.array([len(table) for table, _ in parts], dtype=np.int64),
        keys=files.constants,
        unit=files.unit,
        sorted=not shared.any() and all(is_sorted for _, is_sorted in parts),
        widths=widths_of_files([table.schema for table, _ in parts], files.unit),
    )
    rows.add_constants([column for column in source.columns if column in source.partition_keys])
    if not rows.sorted:
        _deduplicate_cells(rows)
    if shared.any() and len(pushed) > len(source.dimension_predicates):
        rows.keep(filter_mask(rows.table, [list(pushed)]).to_numpy(zero_copy_only=False))
    return rows


def empty_scan(files: PartitionedFiles) -> RowBatch | None:
    """
    No rows of a dataset, with the types that they would have; None if that takes as long as loading them.

    Parameters
    ----------
    files
        What is not loaded.
    """
    source, file = files.source, files.opened()
    if file is None:
        return None
    table = file.table(stored_columns(source), pa.array(np.zeros(len(file), dtype=bool)))
    table = concat_tables([table], _schema(source), source.uuid)
    rows = RowBatch(source, table, np.zeros(1, dtype=np.int64), files.constants, files.unit, sorted=True)
    rows.add_constants([column for column in source.columns if column in source.partition_keys])
    return rows


def pushdown_predicates(source: DatasetScan, literals: Literals) -> Literals:
    """All that the rows of a dataset have to fulfil."""
    own = {*source.dimensions, *source.payload}
    return source.predicates + tuple(literal for literal in literals if literal[0] in own)


def stored_columns(source: DatasetScan) -> list[str]:
    """Columns to read from the files; partition keys are not in them."""
    return [column for column in source.columns if column not in source.partition_keys]


def _schema(source: DatasetScan) -> pa.Schema:
    """Types where no file knows one: payload may get it from other partitions."""
    known = source.dimensions
    return pa.schema(
        [(c, source.schema.field(c).type if c in known else pa.null()) for c in stored_columns(source)]
    )


def _has_overlapping_files(unit: Ints) -> npt.NDArray[np.bool_]:
    """Which files share their physical partition with another file; ``unit`` is sorted."""
    shared = np.zeros(len(unit), dtype=bool)
    same = unit[1:] == unit[:-1]
    shared[1:] |= same
    shared[:-1] |= same
    return shared


def _read(
    blobs: BlobStore,
    files: PartitionedFiles,
    shared: npt.NDArray[np.bool_],
    pushed: Literals,
    threads: int | None,
) -> list[tuple[pa.Table, bool]]:
    """
    Read the files, filtered by what holds for all versions of a cell; tell which are sorted by cell.

    Only if a file is alone in its partition may conditions on payload be applied while reading: with
    more than one, a newer version of a cell that fails the condition has to hide an older one that meets
    it.
    """
    source = files.source
    in_file = [p for p in pushed if p[0] not in source.partition_keys]
    stable = [p for p in in_file if p[0] in source.dimensions or p in source.dimension_predicates]
    full, part = ([in_file] if in_file else None), ([stable] if stable else None)
    dimensions = [c for c in source.dimensions if c not in source.partition_keys]
    certain = len(dimensions) == len(source.dimensions)

    def inspect(table: pa.Table) -> tuple[pa.Table, bool]:
        # the columns are still in the cache of the core that decoded them; small files are seen together
        if not certain or len(table) < _MIN_ROWS_TO_CHECK_ORDER:
            return table, False
        return table, strictly_increasing([table.column(c) for c in dimensions], len(table))

    return list(
        read_files(
            blobs,
            files.keys,
            stored_columns(source),
            lambda i: part if shared[i] else full,
            then=inspect,
            contents=files.contents,
            threads=threads,
        )
    )


def _deduplicate_cells(rows: RowBatch) -> None:
    """Drop all but the last version of each cell within a physical partition."""
    dimensions = rows.columns(rows.source.dimensions)
    rows.sorted = strictly_increasing(dimensions, len(rows), rows.unit_starts())
    if rows.sorted:
        return
    codes, bound = combine_keys(
        [encode_ordered(pa.array(rows.row_units())), *map(encode_ordered, dimensions)], len(rows)
    )
    keep = last_occurrence_mask(codes, bound)
    if keep is not None:
        rows.keep(keep)
