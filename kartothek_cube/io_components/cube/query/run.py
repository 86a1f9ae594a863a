"""Executing a query task: load the files of each dataset, join them cell by cell, sort, split into groups."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.predicates import filter_mask
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.io_components.columns import (
    combine,
    gather,
    group_codes,
    join_codes,
    last_of_each,
    lookup,
    ordinals,
    seek,
    sort_order,
    strictly_increasing,
)
from kartothek_cube.io_components.cube.query.plan import DatasetFiles, QueryContext, Source, Task
from kartothek_cube.io_components.files import concat, read_files

__all__ = ("run_task",)

Ints = npt.NDArray[np.int64]
Literals = tuple[tuple[str, str, Any], ...]


@attrs.define
class _Rows:
    """
    Rows of one dataset.

    ``file`` is the number of the file that each row came from, ``unit`` the physical partition of each file and
    ``keys`` the values of the partition keys of each file. ``sorted`` tells that cells are sorted and unique within
    each physical partition.
    """

    source: Source
    table: pa.Table
    file: npt.NDArray[np.int32]
    keys: dict[str, pa.Array]
    unit: Ints
    sorted: bool = False

    def take(self, picks: npt.NDArray[Any]) -> None:
        """Keep the rows of a mask, or those at the given positions in that order."""
        if picks.dtype == bool:
            self.table = self.table.filter(pa.array(picks))
        else:
            columns = [gather(column, picks, missing=False) for column in self.table.columns]
            self.table = _table(self.table.schema, columns, len(picks))
        self.file = self.file[picks]

    def row_units(self) -> Ints:
        return self.unit[self.file]

    def unit_starts(self) -> Ints:
        """Positions of the rows that begin a new physical partition."""
        if not len(self.file):
            return np.empty(0, dtype=np.int64)
        counts = np.bincount(self.file, minlength=len(self.unit))
        ends = np.cumsum(counts)[:-1][self.unit[1:] != self.unit[:-1]]
        inner: Ints = ends[(ends > 0) & (ends < len(self.file))]
        return inner

    def columns(self, names: Sequence[str]) -> list[pa.ChunkedArray]:
        return [self.table.column(name) for name in names]


def _table(schema: pa.Schema, columns: Sequence[Any], length: int) -> pa.Table:
    if len(schema) == 0:
        return _no_columns(length)
    return pa.Table.from_arrays(list(columns), schema=schema)


def _no_columns(length: int) -> pa.Table:
    """A table without columns that still knows its number of rows."""
    return pa.table({"_": pa.nulls(length)}).select([])


def run_task(context: QueryContext, task: Task) -> list[pa.Table]:
    """
    Execute one task.

    Parameters
    ----------
    context
        What all tasks of the query share.
    task
        Which files to read and which groups to make of their rows.

    Returns
    -------
    list of pyarrow.Table
        One table per group with rows, in the order of ``task.groups``; at most one without groups. Rows are
        sorted, columns are those of ``context.output``.
    """
    blobs = open_blobs(context.store)
    seed = _load(blobs, context, task, 0)
    rows = seed.table
    for number in range(1, len(context.sources)):
        other = _load(blobs, context, task, number, seed)
        rows = _join(seed, other)
        seed.table = rows
    table = _with_partition_columns(seed, context)
    table = _sorted(table, context)
    return [t for t in _split(table, context, task) if len(t)]


def _load(blobs: BlobStore, context: QueryContext, task: Task, number: int, seed: _Rows | None = None) -> _Rows:
    """Rows of one dataset: of each cell the version written last, and only if that meets the conditions."""
    source, files = context.sources[number], task.files[number]
    keys = PartitionTable.from_labels(source.uuid, source.table, pa.array(files.labels, pa.string())).keys(
        list(source.partition_keys), source.schema
    )
    order, unit = _unit_order(source, files, keys, seed)
    keys = {column: array.take(pa.array(order)) for column, array in keys.items()}
    shared = _shares_unit(unit)
    pushed = source.predicates + _group_literals(context, task, source)
    tables = _read(blobs, source, files, order, shared, pushed)
    rows = _Rows(
        source=source,
        table=concat(tables, pa.schema([source.schema.field(c) for c in _stored(source)]), source.uuid),
        file=np.repeat(np.arange(len(tables), dtype=np.int32), [len(t) for t in tables]),
        keys=keys,
        unit=unit,
    )
    _add_constants(rows)
    _keep_last(rows)
    if shared.any() and len(pushed) > len(source.dimension_predicates):
        rows.take(filter_mask(rows.table, [list(pushed)]).to_numpy(zero_copy_only=False))
    return rows


def _stored(source: Source) -> list[str]:
    """Columns to read from the files; partition keys are not in them."""
    return [c for c in source.columns if c not in source.partition_keys]


def _unit_order(
    source: Source, files: DatasetFiles, keys: dict[str, pa.Array], seed: _Rows | None
) -> tuple[Ints, Ints]:
    """
    Order in which to read files, and the physical partition of each in that order.

    Files of one partition stay in commit order. Other datasets use the numbers of the seed where they are
    partitioned alike.
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


def _group_literals(context: QueryContext, task: Task, source: Source) -> Literals:
    """Equality with the values of the group, if the task makes a single one."""
    if task.groups is None or len(task.groups) != 1:
        return ()
    own = set(source.dimensions) | set(source.payload)
    return tuple(
        (column, "==", value)
        for column, value in zip(context.partition_by, task.groups[0], strict=True)
        if column in own
    )


def _read(
    blobs: BlobStore,
    source: Source,
    files: DatasetFiles,
    order: Ints,
    shared: npt.NDArray[np.bool_],
    pushed: Literals,
) -> list[pa.Table]:
    """
    Read the files, filtered by what holds for all versions of a cell.

    Only if a file is alone in its partition may conditions on payload be applied while reading: with more than
    one, a newer version of a cell that fails the condition has to hide an older one that meets it.
    """
    in_file = [p for p in pushed if p[0] not in source.partition_keys]
    stable = [p for p in in_file if p[0] in source.dimensions or p in source.dimension_predicates]
    full, part = ([in_file] if in_file else None), ([stable] if stable else None)
    keys = files.storage_keys(source)
    return list(read_files(blobs, [keys[i] for i in order], _stored(source), lambda i: part if shared[i] else full))


def _add_constants(rows: _Rows) -> None:
    """Add the partition keys that are needed as columns."""
    for column in rows.source.columns:
        if column in rows.source.partition_keys:
            rows.table = rows.table.append_column(column, rows.keys[column].take(pa.array(rows.file)))


def _keep_last(rows: _Rows) -> None:
    """Drop all but the last version of each cell within a physical partition."""
    dimensions = rows.columns(rows.source.dimensions)
    if strictly_increasing(dimensions, len(rows.file), rows.unit_starts()):
        rows.sorted = True
        return
    codes, bound = combine([ordinals(pa.array(rows.row_units())), *map(ordinals, dimensions)], len(rows.file))
    keep = last_of_each(codes, bound)
    if keep is not None:
        rows.take(keep)


def _join(seed: _Rows, other: _Rows) -> pa.Table:
    """Add the payload of another dataset to the rows of the seed."""
    positions: Ints | None = None
    if not _same_cells(seed, other) and not _narrowed(seed, other):
        positions = _partner_rows(seed, other)
        if other.source.how == "inner" and len(positions) and positions.min() < 0:
            found = positions >= 0
            seed.take(found)
            positions = positions[found]
    table = seed.table
    missing = positions is not None and bool(len(positions)) and int(positions.min()) < 0
    for column in other.source.payload:
        values = other.table.column(column)
        if positions is not None:
            values = gather(values, positions, missing=missing)
        table = table.append_column(column, values)
    return table


def _narrowed(seed: _Rows, other: _Rows) -> bool:
    """
    Reduce both sides to their common cells by looking up the few rows of a restricted dataset in the seed.

    Returns
    -------
    bool
        Whether that was possible; both sides are as before if not.
    """
    if other.source.how != "inner" or not seed.sorted or len(other.file) * 8 > len(seed.file):
        return False
    if seed.source.dimensions != other.source.dimensions or seed.source.alignment != other.source.alignment:
        return False
    ours, theirs = _unit_codes(seed, other)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(seed.file, minlength=len(seed.unit)))])
    low = bounds[np.searchsorted(ours, theirs, "left")][other.file]
    high = bounds[np.searchsorted(ours, theirs, "right")][other.file]
    dimensions = seed.source.dimensions
    found = seek(seed.columns(dimensions), other.columns(dimensions), low, high)
    if found is None:
        return False
    other.take(found >= 0)
    found = found[found >= 0]
    order = np.argsort(found, kind="stable")
    other.take(order)
    seed.take(found[order])
    return True


def _same_cells(seed: _Rows, other: _Rows) -> bool:
    """Whether both sides have the same cells row by row; then columns are put side by side."""
    if len(seed.file) != len(other.file) or seed.source.dimensions != other.source.dimensions:
        return False
    if seed.source.alignment != other.source.alignment:
        return False
    pairs = zip(seed.columns(seed.source.dimensions), other.columns(other.source.dimensions), strict=True)
    if not all(a.type == b.type and a.equals(b) for a, b in pairs):
        return False
    ours, theirs = _unit_codes(seed, other)
    if len(seed.unit) == len(other.unit) and np.array_equal(ours, theirs) and np.array_equal(seed.file, other.file):
        return True
    return np.array_equal(ours[seed.file], theirs[other.file])


def _unit_codes(seed: _Rows, other: _Rows) -> tuple[Ints, Ints]:
    """Common numbers of the physical partitions, per file of either side."""
    shared = [c for c in other.source.alignment if c in seed.keys]
    return join_codes([seed.keys[c] for c in shared], [other.keys[c] for c in shared], len(seed.unit), len(other.unit))


def _partner_rows(seed: _Rows, other: _Rows) -> Ints:
    """For each row of the seed the row of the other dataset with the same cell, or -1."""
    dimensions = other.source.dimensions
    ours, theirs = _unit_codes(seed, other)
    starts = _run_starts(seed, dimensions)
    left_file, left = seed.file, seed.columns(dimensions)
    if starts is not None:
        left_file = seed.file[starts]
        left = [gather(column, starts, missing=False) for column in left]
    right = other.columns(dimensions)
    n_left, n_right = len(left_file), len(other.file)
    parts = [
        (
            np.concatenate([ours[left_file], theirs[other.file]]),
            int(max(ours.max(initial=0), theirs.max(initial=0))) + 1,
        )
    ]
    parts += [ordinals(_chain(a, b)) for a, b in zip(left, right, strict=True)]
    codes, bound = combine(parts, n_left + n_right)
    found = lookup(codes[:n_left], codes[n_left:], bound)
    if starts is not None:
        found = np.repeat(found, np.diff(np.append(starts, len(seed.file))))
    return found


def _chain(a: Any, b: pa.ChunkedArray) -> pa.ChunkedArray:
    left = a if isinstance(a, pa.ChunkedArray) else pa.chunked_array([a])
    if left.type != b.type:
        both = [pa.schema([("c", left.type)]), pa.schema([("c", b.type)])]
        wide = pa.unify_schemas(both, promote_options="permissive").field("c").type
        left, b = left.cast(wide), b.cast(wide)
    return pa.chunked_array([*left.chunks, *b.chunks], type=left.type)


def _run_starts(seed: _Rows, dimensions: Sequence[str]) -> Ints | None:
    """Where the key changes from row to row, if it does so much more rarely than every row."""
    n = len(seed.file)
    if n < 2 or set(dimensions) == set(seed.source.dimensions):
        return None
    change = np.empty(n, dtype=bool)
    change[0] = True
    np.not_equal(seed.file[1:], seed.file[:-1], out=change[1:])
    for column in seed.columns(dimensions):
        codes, _ = ordinals(column)
        change[1:] |= codes[1:] != codes[:-1]
    starts = np.flatnonzero(change)
    return starts if len(starts) * 2 < n else None


def _with_partition_columns(seed: _Rows, context: QueryContext) -> pa.Table:
    table = seed.table
    for column in context.sort_columns:
        if column not in table.column_names:
            table = table.append_column(column, seed.keys[column].take(pa.array(seed.file)))
    return table


def _sorted(table: pa.Table, context: QueryContext) -> pa.Table:
    order = sort_order([table.column(c) for c in context.sort_columns], len(table))
    return table if order is None else _take(table, order)


def _take(table: pa.Table, order: Ints) -> pa.Table:
    return _table(table.schema, [gather(c, order, missing=False) for c in table.columns], len(order))


def _split(table: pa.Table, context: QueryContext, task: Task) -> list[pa.Table]:
    """Tables of the groups; rows keep their order."""
    if task.groups is None:
        return [table.select(context.output.names)]
    number = _group_numbers(table, context, task.groups)
    order = np.argsort(number, kind="stable")
    ordered = number[order]
    bounds = np.searchsorted(ordered, np.arange(len(task.groups) + 1))
    if bounds[0] > 0 or not np.array_equal(order, np.arange(len(order))):
        table = _take(table.select(context.output.names), order)
    table = table.select(context.output.names)
    return [table.slice(a, b - a) for a, b in itertools.pairwise(bounds)]


def _group_numbers(table: pa.Table, context: QueryContext, groups: Sequence[tuple[Any, ...]]) -> Ints:
    """Number of the group that each row belongs to, -1 for none."""
    values = [
        pa.array(column, type=context.output.field(name).type)
        for name, column in zip(context.partition_by, zip(*groups, strict=True), strict=True)
    ]
    rows = [table.column(name) for name in context.partition_by]
    codes, bound = combine([ordinals(_chain(r, pa.chunked_array([v]))) for r, v in zip(rows, values, strict=True)], 0)
    return lookup(codes[: len(table)], codes[len(table) :], bound)
