"""Merge rows into a dataset of a cube by cell: update, insert, delete; only touched partitions change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow import Frame, Ints, Mask, append_columns, common_type
from kartothek_cube.core.commit.change import UnchangedPartitions
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import choose_datasets, load_snapshot
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.pandas_conversion import as_table
from kartothek_cube.core.partition import group_positions, join_components, partition_folders
from kartothek_cube.core.schema.evolution import ColumnMapping
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.job import Job, delete_on_failure
from kartothek_cube.io_components.kernels import lookup_keys, rechunk_by_partition, take_values
from kartothek_cube.io_components.runtime import available_cores
from kartothek_cube.io_components.scan import concat_tables
from kartothek_cube.io_components.write.cube_writes import plan_existing
from kartothek_cube.io_components.write.rewrite import (
    PARTITION,
    TASKS_PER_CORE,
    PartitionFiles,
    Rewritten,
    collect_parts,
    number_rows,
    read_visible,
    replace_files,
)
from kartothek_cube.io_components.write.stored_rows import StoredRows
from kartothek_cube.io_components.write.table_writer import delete_attempts, delete_uncommitted
from kartothek_cube.io_components.write.write_commit import finish_write
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteResult, WriteSpec
from kartothek_cube.io_components.write.write_tasks import derive_columns, prepare, prepare_table, run_write

Input = TypeVar("Input")

#: rows of a partition that were inserted, updated and deleted
_COUNTS = pa.schema(
    [
        ("partition", pa.string()),
        ("rows_inserted", pa.int64()),
        ("rows_updated", pa.int64()),
        ("rows_deleted", pa.int64()),
    ]
)


@attrs.frozen
class MergeContext:
    """A planned merge into one dataset."""

    plan: WritePlan
    #: column of the input that marks cells to delete
    delete_column: str | None = None

    @property
    def spec(self) -> WriteSpec:
        """The specification of the dataset."""
        return next(iter(self.plan.specs.values()))

    @property
    def keys(self) -> tuple[str, ...]:
        """Partition columns of the cube that the dataset has: a cell is identified within their values."""
        stored = self.spec.types
        return tuple(c for c in self.plan.cube.partition_columns if c in stored)


@attrs.frozen
class MergeResult:
    """The result of a merge.

    Examples
    --------
    >>> counts = {"partition": ["DAY=1"], "rows_inserted": [2], "rows_updated": [1], "rows_deleted": [0]}
    >>> MergeResult(None, pa.table(counts))
    <merge: 2 rows inserted, 1 updated, 0 deleted in 1 partition>
    """

    #: the new state
    dataset: DatasetMetadata | None
    #: ``partition`` as in labels, with its ``rows_inserted``, ``rows_updated`` and ``rows_deleted``
    partitions: pa.Table

    @property
    def rows_inserted(self) -> int:
        """Number of cells that were new."""
        return self._sum("rows_inserted")

    @property
    def rows_updated(self) -> int:
        """Number of cells that existed and have new values."""
        return self._sum("rows_updated")

    @property
    def rows_deleted(self) -> int:
        """Number of cells that were deleted."""
        return self._sum("rows_deleted")

    def _sum(self, column: str) -> int:
        return int(pc.sum(self.partitions[column]).as_py() or 0)

    def __repr__(self) -> str:
        count = len(self.partitions)
        return (
            f"<merge: {self.rows_inserted} rows inserted, {self.rows_updated} updated, "
            f"{self.rows_deleted} deleted in {count} partition{'' if count == 1 else 's'}>"
        )


def plan_merge(
    cube: Cube,
    store: StoreInput,
    dataset: str | None = None,
    metadata: Mapping[str, object] | None = None,
    df_serializer: Any = None,
    *,
    publish: bool = True,
) -> WritePlan:
    """Plan to update, insert and delete cells of one dataset, by default the seed."""
    ensure_cube(cube)
    existing = load_snapshot(cube, open_blobs(store), None).datasets
    names = choose_datasets(cube, [cube.seed_dataset if dataset is None else dataset], existing)
    datasets = {name: existing[name] for name in names}
    user = None if metadata is None else dict.fromkeys(names, metadata)
    plan = plan_existing("merge", cube, store, datasets, user, df_serializer)
    return attrs.evolve(plan, keep_empty=True, commit_all=True).stage(publish=publish)


# -- checks --------------------------------------------------------------------------------------------------


def check_merge_input(context: MergeContext, table: pa.Table) -> None:
    """Check the columns of the input; of a table without rows, so that nothing has to be computed."""
    spec = context.spec
    table = derive_columns(spec, table)
    stored, names = set(spec.types), set(table.column_names)
    where, flag = f"dataset {context.spec.name!r}", context.delete_column
    if PARTITION in stored | names:
        raise ValueError(f"Merges reserve the column name {PARTITION!r}, which {where} has: rename it")
    if flag is not None:
        if flag in stored:
            raise ValueError(
                f"delete_column {flag!r} is a column of {where}; give the flag a name of its own"
            )
        if flag not in names:
            raise ValueError(
                f"delete_column of the input for {where}: {unknown_names('column', [flag], names)}"
            )
        dtype = table.schema.field(flag).type
        if not (pa.types.is_boolean(dtype) or pa.types.is_null(dtype)):
            raise TypeError(f"delete_column {flag!r} must be boolean, but is {dtype}")
    new = names - stored - {flag}
    if new:
        raise ValueError(
            f"The input for {where} has columns that are not stored: {unknown_names('column', new, stored)}. "
            "Add them by update_schema first"
        )
    cube = context.plan.cube
    keys = {*cube.dimension_columns, *cube.partition_columns, *cube.index_columns}
    needed = {*spec.partition_on, *spec.indices, *(keys & stored)}
    if needed - names:
        raise ValueError(
            f"Missing columns in the input for {where}: {unknown_names('column', needed - names, names)}. "
            "A merge may leave out payload without an index only"
        )
    prepare(context.plan, {context.spec.name: [_complete(context, table.slice(0, 0))]})


def _complete(context: MergeContext, rows: pa.Table, mapping: ColumnMapping | None = None) -> pa.Table:
    """Rows with all stored columns: those that the input lacks have the default of inserted rows."""
    if context.delete_column is not None:
        rows = rows.drop_columns(context.delete_column)
    types, names = context.spec.types, set(rows.column_names)
    # without a type, so that they do not widen the numbers of stored rows
    missing = {column: pa.nulls(len(rows)) for column in types if column not in names}
    if mapping is not None:
        columns = [column for column in missing if column in mapping.columns]
        defaults = mapping.adapt(rows.select([]), columns, len(rows)).columns
        missing |= {c: values.cast(types[c]) for c, values in zip(columns, defaults, strict=True)}
    return append_columns(rows, missing.items())


# -- run -----------------------------------------------------------------------------------------------------


def run_merge(context: MergeContext, tables: Iterable[pa.Table]) -> Rewritten:
    """Merge tables of whole physical partitions with the stored rows; no commit."""
    spec = context.spec
    # each task reads the state by itself, so that its size is not that of tasks; the commit checks it again
    state = DatasetMetadata.load_from_store(spec.uuid, open_blobs(spec.store))
    stored = StoredRows.of(spec, state)
    folders = partition_folders(state.partition_table, context.keys, state.partition_keys, state.schema)
    files = _positions_by_value(folders)
    blocks = (part for table in tables for part in _merge_table(context, stored, state, files, table))
    return _merge_parts(context, collect_parts(context.plan, blocks))


def _positions_by_value(texts: pa.StringArray) -> dict[str, Ints]:
    encoded = texts.dictionary_encode()
    codes = encoded.indices.to_numpy()
    return {encoded.dictionary[int(codes[group[0]])].as_py(): group for group in group_positions(codes)}


def _merge_table(
    context: MergeContext,
    stored: StoredRows,
    state: DatasetMetadata,
    files: Mapping[str, Ints],
    table: pa.Table,
) -> Iterator[Rewritten]:
    """Merge the rows of several physical partitions; those that the dataset lacks are written together."""
    given = {*table.column_names}
    table = prepare_table(context.spec, [table])
    flags = np.zeros(len(table), dtype=bool)
    if context.delete_column is not None:
        column = table.column(context.delete_column).cast(pa.bool_())
        flags = pc.fill_null(column, False).to_numpy()
    rows = _complete(context, table, stored.mapping)
    # what does not fit the stored schema is refused before it meets stored rows
    prepare(context.plan, {context.spec.name: [rows]}, unique=False)
    types = context.spec.types
    keys = {c: rows.column(c) for c in context.keys}
    values = {c: key.cast(common_type(types[c], key.type)).combine_chunks() for c, key in keys.items()}
    found, new = [], []
    for folder, positions in _positions_by_value(join_components(values, len(rows))).items():
        if folder in files:
            found.append((folder, positions))
        else:
            new.append((folder, rows.take(pa.array(positions[~flags[positions]]))))
    part = PartitionFiles.of(context.spec.name, state.partition_table, [files[folder] for folder, _ in found])
    for block in part.split(stored):
        chosen, found = found[: len(block)], found[len(block) :]
        positions = np.concatenate([own for _, own in chosen])
        numbers = np.repeat(np.arange(len(chosen)), [len(own) for _, own in chosen])
        own_rows = number_rows(rows.take(pa.array(positions)), numbers)
        folders = [folder for folder, _ in chosen]
        yield _merge_block(context, stored, block, folders, own_rows, given, flags[positions])
    if new:
        own_folders, tables = zip(*new, strict=True)
        inserted, nothing = pa.concat_tables(tables), part.select(np.zeros(len(part), bool))
        counts = _counts(own_folders, list(map(len, tables)))
        yield replace_files(nothing, np.empty(0, bool), inserted, partial(_write, context), counts)


def _merge_block(
    context: MergeContext,
    source: StoredRows,
    block: PartitionFiles,
    folders: Sequence[str],
    rows: pa.Table,
    given: Collection[str],
    deleted: Mask,
) -> Rewritten:
    """Merge rows with those of several stored partitions; only those that change are written."""
    # several partitions at a time, so that the partition is part of what identifies a cell
    stored, _ = read_visible(source, block)
    names, schema = stored.column_names, source.schema.append(rows.schema.field(PARTITION))
    both = concat_tables([stored, rows.select(names)], schema, source.spec.uuid)
    of_rows, of_cells = ([t.column(c) for c in (PARTITION, *source.cell)] for t in (rows, stored))
    matches = lookup_keys(of_rows, of_cells, len(rows), len(stored))
    matched = matches >= 0
    inserted, updated, removed = ~matched & ~deleted, matched & ~deleted, matched & deleted
    of_row, of_stored = (t.column(PARTITION).to_numpy() for t in (rows, stored))
    changes = [np.bincount(of_row[m], minlength=len(block)) for m in (inserted, updated, removed)]
    is_changed: Mask = np.sum(changes, axis=0) > 0
    added = len(stored) + np.arange(len(rows))
    stays = is_changed[of_stored]
    stays[matches[removed]] = False
    # updated rows take the places of stored ones, so that rows stay sorted
    newest = np.arange(len(stored))
    newest[matches[updated]] = added[updated]
    from_input = np.concatenate([newest[stays], added[inserted]])
    # columns that the input lacks keep their values
    kept = np.concatenate([np.flatnonzero(stays), added[inserted]])
    names.remove(PARTITION)
    arrays = [take_values(both.column(c), from_input if c in given else kept, missing=False) for c in names]
    merged = pa.Table.from_arrays(arrays, names=names).replace_schema_metadata(stored.schema.metadata)
    return replace_files(block, is_changed, merged, partial(_write, context), _counts(folders, *changes))


def _write(context: MergeContext, rows: pa.Table) -> WriteResult:
    # tasks are the parallel unit
    name = context.spec.name
    return run_write(context.plan, prepare(context.plan, {name: [rows]}), threads=1)[name]


def _counts(folders: Sequence[str], *counts: Sequence[int] | Ints) -> pa.Table:
    """Rows of partitions that were inserted, updated and deleted; none if not given."""
    none = np.zeros(len(folders), dtype=np.int64)
    columns = [*counts, *[none] * (len(_COUNTS) - 1 - len(counts))]
    return pa.table([pa.array(folders, pa.string()), *map(pa.array, columns)], schema=_COUNTS)


def _nothing(context: MergeContext) -> Rewritten:
    labels = pa.array([], pa.string())
    return Rewritten(context.spec.name, labels, labels, {}, _COUNTS.empty_table())


def _merge_parts(context: MergeContext, parts: Iterable[Rewritten]) -> Rewritten:
    return Rewritten.merge([_nothing(context), *parts])


# -- finish --------------------------------------------------------------------------------------------------


def finish_merge(context: MergeContext, parts: Iterable[Rewritten]) -> MergeResult:
    """Commit what tasks wrote, if no other writer changed the partitions that they read."""
    merged = _merge_parts(context, parts)
    counts = merged.counts.combine_chunks().sort_by("partition")
    requirement = UnchangedPartitions(
        context.keys, counts.column("partition").combine_chunks().cast(pa.string()), merged.labels
    )
    plan = context.plan.evolve_changes(
        replaces=merged.replaces,
        requires=(requirement,),
        # without replaced partitions it might be another dataset of that name
        merge_schema=len(merged.replaces) > 0,
    )
    with delete_on_failure(partial(delete_uncommitted, plan.store, merged.written.values())):
        datasets = finish_write(plan, [merged.written])
    if plan.staged_id:
        return cast("MergeResult", datasets)
    return MergeResult(datasets[context.spec.name], counts)


def merge_job(
    context: MergeContext, tasks: Iterable[Input], run: Callable[[MergeContext, Input], Rewritten]
) -> Job[MergeContext, Input, Rewritten, MergeResult]:
    """Merge the rows of physical partitions in independent tasks, then commit once."""
    cube = context.plan.cube
    return Job(
        name="merge_cube",
        description=f"merge into cube {cube.uuid_prefix}: {context.spec.name}",
        context=attrs.evolve(context, plan=context.plan.without_commit_state()),
        tasks=tasks,
        run=run,
        finish=partial(finish_merge, context),
        merge=partial(_merge_parts, context),
        discard=partial(delete_attempts, context.plan),
        steps=("prepare", "write", "commit"),
    )


def _run_table(context: MergeContext, table: pa.Table) -> Rewritten:
    return run_merge(context, [table])


def merge_cube_job(context: MergeContext, data: Frame) -> Job[MergeContext, pa.Table, Rewritten, MergeResult]:
    """Merge a frame, partition by partition."""
    spec = context.spec
    table = as_table(data, spec.types)
    check_merge_input(context, table)
    # sorted by cell and checked as a whole, before anything is written
    rows = prepare_table(spec, [data])
    prepare(context.plan, {context.spec.name: [_complete(context, rows)]}, unique=False)
    task_rows = max(len(rows) // (TASKS_PER_CORE * available_cores()), 1)
    tables = rechunk_by_partition(rows.to_batches(), context.keys, task_rows)
    return merge_job(context, list(tables), _run_table)
