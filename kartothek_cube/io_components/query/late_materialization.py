"""Loading the seed together with datasets that hold the same cells in the same order, without a join."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.io_components.kernels.sort import strictly_increasing
from kartothek_cube.io_components.query.file_groups import PartitionedFiles
from kartothek_cube.io_components.query.physical_plan import DatasetScan
from kartothek_cube.io_components.query.row_batch import RowBatch
from kartothek_cube.io_components.query.scan import Literals, pushdown_predicates, stored_columns
from kartothek_cube.serialization.chunk_equality import ChunkCache, have_equal_pages
from kartothek_cube.serialization.parquet_reader import ParquetColumns

__all__ = ("scan_colocated",)


def scan_colocated(
    seed: PartitionedFiles, others: Sequence[PartitionedFiles], literals: Literals, last: ChunkCache
) -> tuple[RowBatch, list[PartitionedFiles]] | None:
    """
    Load the seed, and with it the payload of the datasets whose files hold exactly its cells.

    These are found by comparing the bytes of the key columns, which need not be decoded twice then; and the
    conditions on all of these datasets together tell for which rows the other columns have to be decoded.

    Parameters
    ----------
    seed
        Files of the seed, opened.
    others
        Files of other datasets for the same physical partitions.
    literals
        What the rows have to fulfil besides the conditions of the query.
    last
        What the cells of another partition were.

    Returns
    -------
    tuple of Rows and list of FileSet, or None
        The seed with the payload of those datasets, and the datasets that have to be joined; None if the seed
        is not a single, large file that is sorted by cell.
    """
    first, source = seed.opened(), seed.source
    dimensions = list(source.dimensions)
    if (
        first is None
        or not first.use_late_materialization
        or not set(dimensions) <= set(stored_columns(source))
    ):
        return None
    last.provide(first, dimensions)
    twins, rest = _split_colocated(first, seed, others)
    asked = [
        (first, _file_predicates(source, literals)),
        *((f, _payload_predicates(s, literals)) for f, s in twins),
    ]
    masks = _masks(asked)
    mask = reduce(pc.and_, masks) if masks else None
    # Conditions on dimensions leave all versions of a cell or none, and without twins all versions that a
    # load of its own would see: then the order of what is left tells enough, else that of all rows.
    cells_only = not twins or all(column in dimensions for _, literals in asked for column, _, _ in literals)
    all_rows = mask is not None and not cells_only and mask.true_count > 0
    if all_rows and not strictly_increasing(first.decoded(dimensions), len(first)):
        return None
    if mask is None:
        first.load(stored_columns(source))
    last.keep(first, dimensions)
    table = first.table(dimensions, mask)
    if not all_rows and not strictly_increasing(table.columns, len(table)):
        return None
    for file, owner in [(first, source), *twins]:
        payload = [column for column in stored_columns(owner) if column not in dimensions]
        for name, values in zip(payload, file.table(payload, mask).columns, strict=True):
            table = table.append_column(name, values)
    rows = RowBatch(source, table, np.array([len(table)]), seed.constants, seed.unit, sorted=True)
    rows.add_constants([column for column in source.columns if column in source.partition_keys])
    return rows, rest


def _file_predicates(source: DatasetScan, literals: Literals) -> Literals:
    return tuple(p for p in pushdown_predicates(source, literals) if p[0] not in source.partition_keys)


def _payload_predicates(source: DatasetScan, literals: Literals) -> Literals:
    """What does not follow from the cells being those of the seed."""
    return tuple(p for p in _file_predicates(source, literals) if p[0] not in source.dimensions)


def _split_colocated(
    first: ParquetColumns, seed: PartitionedFiles, others: Sequence[PartitionedFiles]
) -> tuple[list[tuple[ParquetColumns, DatasetScan]], list[PartitionedFiles]]:
    """Files whose rows are the cells of the seed, row by row; and the other datasets."""
    twins, rest = [], []
    dimensions = seed.source.dimensions
    for other in others:
        file, source = other.opened(), other.source
        if (
            file is not None
            and source.dimensions == dimensions
            and set(source.columns) <= set(stored_columns(source))
            and have_equal_pages(first, file, dimensions)
        ):
            twins.append((file, source))
        else:
            rest.append(other)
    return twins, rest


def _masks(files: Sequence[tuple[ParquetColumns, Literals]]) -> list[pa.BooleanArray]:
    """Rows that meet the conditions on each file that there are some on; up to the first without a match."""
    restricted = [(file, [list(literals)]) for file, literals in files if literals]
    for file, predicates in restricted:
        file.check(predicates)
    masks: list[pa.BooleanArray] = []
    for file, predicates in restricted:
        if all(mask.true_count for mask in masks):
            masks.append(file.mask(predicates))
    return masks
