"""Loading the rows of one dataset of a query: its files, each cell in the version written last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.predicates import filter_mask
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.columns import (
    combine,
    gather,
    group_codes,
    join_codes,
    last_of_each,
    ordinals,
    strictly_increasing,
)
from kartothek_cube.io_components.cube.query.layout import DatasetFiles, QueryContext, Source, Task
from kartothek_cube.io_components.files import concat, no_columns, read_files

__all__ = ("Rows", "load_rows", "take_rows")

Ints: TypeAlias = npt.NDArray[np.int64]
Literals: TypeAlias = tuple[tuple[str, str, Any], ...]

#: rows from which on looking at a single file pays
_WORTH_A_LOOK = 1 << 12


@attrs.define
class Rows:
    """
    Rows of one dataset, those of a physical partition next to each other.

    Attributes
    ----------
    source
        The dataset.
    table
        Its dimensions and payload.
    counts
        Number of rows from each file.
    keys
        Values of the partition keys of each file.
    unit
        Physical partition of each file, ascending.
    sorted
        Whether cells are known to be sorted and unique within each physical partition.
    """

    source: Source
    table: pa.Table
    counts: Ints
    keys: dict[str, pa.Array]
    unit: Ints
    sorted: bool = False

    def __len__(self) -> int:
        return len(self.table)

    @property
    def file(self) -> npt.NDArray[np.int32]:
        """For each row the number of its file."""
        return np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)

    def row_units(self) -> Ints:
        """For each row its physical partition."""
        return np.repeat(self.unit, self.counts)

    def unit_starts(self) -> Ints:
        """Positions of the rows that begin a new physical partition, without the first."""
        ends = np.cumsum(self.counts)[:-1][self.unit[1:] != self.unit[:-1]]
        inner: Ints = np.unique(ends[(ends > 0) & (ends < len(self))])
        return inner

    def columns(self, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Columns by name."""
        return [self.table.column(name) for name in names]

    def constant(self, column: str) -> pa.Array:
        """A partition key as a column."""
        return self.keys[column].take(pa.array(self.file))

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the rows that are not in a mask."""
        self.counts = _counts(self.file[mask], len(self.counts))
        self.table = self.table.filter(pa.array(mask))

    def pick(self, positions: Ints) -> None:
        """Keep the rows at ascending positions."""
        self.counts = _counts(self.file[positions], len(self.counts))
        self.table = take_rows(self.table, positions)


def _counts(files: npt.NDArray[np.int32], n_files: int) -> Ints:
    return np.bincount(files, minlength=n_files).astype(np.int64)


def take_rows(table: pa.Table, positions: Ints) -> pa.Table:
    """Rows of a table at the given positions, also if it has no columns."""
    if not table.num_columns:
        return no_columns(len(positions))
    return pa.Table.from_arrays(
        [gather(c, positions, missing=False) for c in table.columns], schema=table.schema
    )


def load_rows(
    blobs: BlobStore, context: QueryContext, task: Task, number: int, seed: Rows | None = None
) -> Rows:
    """
    Load one dataset of a task.

    Parameters
    ----------
    blobs
        The store.
    context, task
        What to load.
    number
        Which source of the context.
    seed
        Rows of the seed, to which the physical partitions of other datasets are numbered alike.

    Returns
    -------
    Rows
        Of each cell the version written last, and only if that meets the conditions.
    """
    source, files = context.sources[number], task.files[number]
    labels = PartitionTable.from_labels(source.uuid, source.table, pa.array(files.labels, pa.string()))
    keys = labels.keys(list(source.partition_keys), source.schema)
    order, unit = _unit_order(source, files, keys, seed)
    shared = _shares_unit(unit)
    own = set(source.dimensions) | set(source.payload)
    pushed = source.predicates + tuple(literal for literal in task.literals if literal[0] in own)
    parts = _read(blobs, source, files, order, shared, pushed)
    tables = [table for table, _ in parts]
    rows = Rows(
        source=source,
        table=concat(tables, pa.schema([source.schema.field(c) for c in _stored(source)]), source.uuid),
        counts=np.array([len(t) for t in tables], dtype=np.int64),
        keys={column: array.take(pa.array(order)) for column, array in keys.items()},
        unit=unit,
        sorted=not shared.any() and all(is_sorted for _, is_sorted in parts),
    )
    for column in source.columns:
        if column in source.partition_keys:
            rows.table = rows.table.append_column(column, rows.constant(column))
    if not rows.sorted:
        _keep_last(rows)
    if shared.any() and len(pushed) > len(source.dimension_predicates):
        rows.keep(filter_mask(rows.table, [list(pushed)]).to_numpy(zero_copy_only=False))
    return rows


def _stored(source: Source) -> list[str]:
    """Columns to read from the files; partition keys are not in them."""
    return [c for c in source.columns if c not in source.partition_keys]


def _unit_order(
    source: Source, files: DatasetFiles, keys: dict[str, pa.Array], seed: Rows | None
) -> tuple[Ints, Ints]:
    """
    Order in which to read files, and the physical partition of each in that order.

    Files of one partition stay in commit order.
    """
    if seed is None:
        unit = group_codes([keys[c] for c in source.alignment], len(files.labels))
    else:
        shared = [c for c in source.alignment if c in seed.keys]
        ours = [seed.keys[c] for c in shared]
        _, unit = join_codes(ours, [keys[c] for c in shared], len(seed.unit), len(files.labels))
    order = np.argsort(unit, kind="stable")
    return order, unit[order]


def _shares_unit(unit: Ints) -> npt.NDArray[np.bool_]:
    """Which files share their physical partition with another file; ``unit`` is sorted."""
    shared = np.zeros(len(unit), dtype=bool)
    same = unit[1:] == unit[:-1]
    shared[1:] |= same
    shared[:-1] |= same
    return shared


def _read(
    blobs: BlobStore,
    source: Source,
    files: DatasetFiles,
    order: Ints,
    shared: npt.NDArray[np.bool_],
    pushed: Literals,
) -> list[tuple[pa.Table, bool]]:
    """
    Read the files, filtered by what holds for all versions of a cell; tell which are sorted by cell.

    Only if a file is alone in its partition may conditions on payload be applied while reading: with
    more than one, a newer version of a cell that fails the condition has to hide an older one that meets
    it.
    """
    in_file = [p for p in pushed if p[0] not in source.partition_keys]
    stable = [p for p in in_file if p[0] in source.dimensions or p in source.dimension_predicates]
    full, part = ([in_file] if in_file else None), ([stable] if stable else None)
    keys = files.storage_keys(source)
    dimensions = [c for c in source.dimensions if c not in source.partition_keys]
    certain = len(dimensions) == len(source.dimensions)

    def inspect(table: pa.Table) -> tuple[pa.Table, bool]:
        # the columns are still in the cache of the core that decoded them; small files are seen together
        if not certain or len(table) < _WORTH_A_LOOK:
            return table, False
        return table, strictly_increasing([table.column(c) for c in dimensions], len(table))

    return list(
        read_files(
            blobs,
            [keys[i] for i in order],
            _stored(source),
            lambda i: part if shared[i] else full,
            then=inspect,
        )
    )


def _keep_last(rows: Rows) -> None:
    """Drop all but the last version of each cell within a physical partition."""
    dimensions = rows.columns(rows.source.dimensions)
    rows.sorted = strictly_increasing(dimensions, len(rows), rows.unit_starts())
    if rows.sorted:
        return
    codes, bound = combine([ordinals(pa.array(rows.row_units())), *map(ordinals, dimensions)], len(rows))
    keep = last_of_each(codes, bound)
    if keep is not None:
        rows.keep(keep)
