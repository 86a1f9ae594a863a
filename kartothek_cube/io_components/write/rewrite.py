"""Rewrites of partitions: read visible rows, change these, and replace the files; compactions and merges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import chain, pairwise
from typing import Any, Generic, Self, TypeVar, cast

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import (
    arguments,
    errors,
    naming,
    old_parquet,
    pandas_conversion,
    partition,
    pruning,
    tuning,
)
from kartothek_cube.core.arrow import Frame, Ints, Mask, append_columns, common_type
from kartothek_cube.core.commit.change import UnchangedPartitions
from kartothek_cube.core.cube import discover
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.evolution import ColumnMapping
from kartothek_cube.core.expressions import Node
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs
from kartothek_cube.io_components import kernels, runtime, scan
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Answer, CountsByDataset, Job, delete_on_failure
from kartothek_cube.io_components.write import cube_writes, table_writer, write_commit, write_tasks
from kartothek_cube.io_components.write.stored_rows import StoredRows, positions_by_text
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteResult, WriteSpec
from kartothek_cube.serialization import DataFrameSerializer, parquet

T = TypeVar("T")
TaskT = TypeVar("TaskT")
ContextT = TypeVar("ContextT", bound="RewriteContext")

#: bytes in files that are read at a time: enough that what is done per block does not count
_BLOCK_BYTES = 16 << 20
#: partitions differ in size
TASKS_PER_CORE = 4
_PARTITIONS_PER_TASK = 16
#: column with the number of the partition in its block
PARTITION = "__kartothek_cube_partition"


@attrs.frozen
class RewriteContext:
    """State shared by all tasks: the plan, and the scans of the rows of its datasets, by id."""

    plan: WritePlan
    stored: Mapping[str, StoredRows]

    @classmethod
    def of(cls, plan: WritePlan, datasets: Mapping[str, DatasetMetadata], **fields: Any) -> Self:
        """Rewrites of datasets in their current state."""
        stored = {name: StoredRows.of(spec, datasets[name]) for name, spec in plan.specs.items()}
        return cls(plan=plan, stored=stored, **fields)


@attrs.frozen(eq=False)
class PartitionFiles:
    """The files of some physical partitions of a dataset, in the order of commit within each of them."""

    #: id of the dataset
    name: str
    files: partition.PartitionTable
    #: number of the physical partition of each file: 0, 1, ...
    numbers: Ints
    #: how many physical partitions; of those that the dataset lacks there are no files
    count: int

    @classmethod
    def of(cls, name: str, files: partition.PartitionTable, members: Sequence[Ints]) -> PartitionFiles:
        """Physical partitions, from the positions of their files."""
        positions = np.concatenate([np.empty(0, np.int64), *members])
        numbers = np.repeat(np.arange(len(members)), list(map(len, members)))
        return cls(name, files.take(positions), numbers, len(members))

    def __len__(self) -> int:
        return self.count

    def split(self, stored: StoredRows) -> Iterator[PartitionFiles]:
        """Split into blocks that are read at once."""
        if not len(self):
            return
        blobs, keys = open_blobs(stored.spec.store), self.files.files[stored.spec.table].to_pylist()
        size = scan.estimate_bytes(blobs, keys, len(stored.schema), 1.0)
        weights = np.bincount(self.numbers, minlength=len(self)).astype(np.float64) * size
        bounds = runtime.split_by_weight(weights, 1, _BLOCK_BYTES).tolist()
        for start, stop in pairwise(bounds):
            yield self.select((np.arange(len(self)) >= start) & (np.arange(len(self)) < stop))

    def select(self, mask: Mask) -> PartitionFiles:
        """The physical partitions where the mask is true."""
        selected = mask[self.numbers]
        numbers = (np.cumsum(mask) - 1)[self.numbers[selected]]
        return PartitionFiles(self.name, self.files.filter(selected), numbers, int(np.count_nonzero(mask)))


def file_sizes(blobs: BlobStore, keys: Sequence[str]) -> Ints:
    """Bytes of files."""

    def read_size(key: str) -> int:
        # a cleanup has deleted the file: the read or the commit that follows says so
        with suppress(KeyError):
            return blobs.size(key)
        return 0

    sizes = runtime.ordered_map(read_size, keys, 1 if blobs.is_local else tuning.REMOTE_REQUESTS)
    return np.fromiter(sizes, np.int64, len(keys))


@attrs.frozen(eq=False)
class Rewritten:
    """Result of a task that rewrites partitions of a dataset."""

    #: id of the dataset
    name: str
    #: partitions that were read, and those of them that are replaced
    labels: pa.StringArray
    replaces: pa.StringArray
    #: one, or none where no row is left or nothing is replaced
    written: Sequence[WriteResult]
    #: numbers for the answer
    counts: pa.Table


def cut_tasks(members: Sequence[T], total: int) -> list[Sequence[T]]:
    """Physical partitions for each task, of so many in all."""
    size = -(-total // (TASKS_PER_CORE * runtime.available_cores()))
    return runtime.batched(members, max(1, min(size, _PARTITIONS_PER_TASK)))


def read_visible(stored: StoredRows, block: PartitionFiles) -> tuple[pa.Table, Ints]:
    """Visible rows with the number of their partition, sorted by cell; number of all rows by file."""
    rows, lengths = stored.read(block.files)
    numbers = pa.array(np.repeat(block.numbers, lengths))
    return stored.select_visible(rows.append_column(PARTITION, numbers), [PARTITION]), lengths


def replace_files(
    block: PartitionFiles,
    is_changed: Mask,
    rows: pa.Table,
    write: Callable[[pa.Table], WriteResult],
    counts: pa.Table,
) -> Rewritten:
    """Write the rows of the partitions that change."""
    replaced = block.files.filter(is_changed[block.numbers]).labels
    written = [write(rows)] if len(rows) else []
    return Rewritten(block.name, block.files.labels, replaced, written, counts)


def _concat(labels: Iterable[pa.StringArray]) -> pa.StringArray:
    return kernels.to_single_array(pa.chunked_array(list(labels), pa.string()))


def finish_rewrite(
    context: RewriteContext, tasks: Iterable[Iterable[Rewritten]], names: Sequence[str], *, unchanged: bool
) -> CountsByDataset:
    """Replace partitions of all datasets at once; `unchanged`: if they have no newer files."""
    plan, changes, counts = context.plan, {}, CountsByDataset()
    parts = list(chain.from_iterable(tasks))
    for name in sorted(plan.specs):
        own = [part for part in parts if part.name == name]
        counts[name] = {c: sum(int(pc.sum(part.counts[c]).as_py()) for part in own) for c in names}
        replaces = _concat(part.replaces for part in own)
        if not len(replaces):
            continue
        stored, spec = context.stored[name], plan.specs[name]
        written = spec.merge(result for part in own for result in part.written)
        folders = stored.folders(partition.PartitionTable.from_labels(spec.uuid, spec.table, replaces))
        # at the place of the newest input, the new file stays older than everything committed since
        places = dict(zip(folders.to_pylist(), replaces.to_pylist(), strict=True))
        requires = (
            (UnchangedPartitions(stored.partition_keys, folders.unique(), replaces),) if unchanged else ()
        )
        new = pa.array([places[f] for f in stored.folders(written.partitions()).to_pylist()])
        spec = spec.evolve_change(replaces=replaces, replaces_at=new, merge_schema=True, requires=requires)
        changes[name] = spec.change_set(written, plan.info)
    with delete_on_failure(partial(table_writer.delete_attempts, plan)):
        datasets = write_commit.commit_datasets(plan, changes, open_blobs(plan.store))
    return cast("CountsByDataset", datasets) if plan.staged_id else counts


def rewrite_job(
    name: str,
    description: str,
    context: ContextT,
    tasks: Sequence[TaskT],
    run: Callable[[ContextT, TaskT], list[Rewritten]],
    finish: Callable[[ContextT, Iterable[Any]], Answer],
    n_files: int,
) -> Job[Answer]:
    """Rewrite partitions in independent tasks, then replace their files by one commit."""
    return Job(
        name=name,
        description=description,
        context=attrs.evolve(context, plan=context.plan.without_commit_state()),
        tasks=tasks,
        run=run,
        finish=partial(finish, context),
        discard=partial(table_writer.delete_attempts, context.plan),
        steps=("prepare", "partition", "commit"),
        is_parallel=True,
        files=n_files,
    )


#: columns of the answer, of each dataset
_COUNTS = (
    "partitions",
    *(f"{what}_{when}" for when in ("before", "after") for what in ("files", "bytes", "rows")),
)


# -- plan ----------------------------------------------------------------------------------------------------


@attrs.frozen
class CompactCube(Generic[StoreT]):
    """Merge the files of each physical partition into one, without cells that newer files hide.

    Results of queries stay the same. One commit compacts all datasets; concurrent appends are allowed and
    stay newer. The old files stay until :func:`cleanup_cube`.

    Parameters
    ----------
    conditions
        Conditions on partition columns of the cube that select partitions; by default all.
    min_files
        Partitions with fewer files are left as they are. With 1, files that were written before a change of
        the schema (:doc:`/schema_evolution`) are rewritten with the current columns as well.

    Returns
    -------
    dict
        Dataset id to the number of examined ``partitions``, and their ``files_before``,
        ``files_after``, ``bytes_before``, ``bytes_after``, ``rows_before`` and ``rows_after``.

    Raises
    ------
    ValueError
        For conditions on other columns, and unknown datasets.
    ConcurrentWriteError
        A concurrent writer replaced or removed files, or dropped, renamed or widened columns. Nothing is
        changed: repeat the call.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube
    >>> from kartothek_cube.io.eager_cube import compact_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = append_to_cube(cities, cube, store)
    >>> counts = compact_cube(cube, store)["seed"]
    >>> counts["files_before"], counts["files_after"], counts["rows_before"], counts["rows_after"]
    (4, 2, 4, 2)
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    conditions: ConditionsInput = None
    ktk_cube_dataset_ids: str | Iterable[str] | None = None
    df_serializer: DataFrameSerializer | None = None
    min_files: int = attrs.field(default=2, kw_only=True)
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[CountsByDataset]:
        """Merge the files of partitions with several or outdated ones, then commit all at once."""
        if not arguments.is_count(self.min_files, 1):
            raise ValueError(f"min_files is a number of files, 1 or more, got {self.min_files!r}")
        return self.job_of_partitions(max(self.min_files, 2))

    def job_of_partitions(self, least: int) -> Job[CountsByDataset]:
        """The same, with the number of files of a partition in datasets without changes of the schema."""
        cube, store = self.cube, self.store
        existing = discover.discover_datasets(cube, store)
        conjunction = cube_writes.removal_conditions(cube, self.conditions, existing, "compact")
        names = discover.choose_datasets(cube, self.ktk_cube_dataset_ids, existing)
        datasets = {name: existing[name] for name in cube.commit_order(names)}
        plan = cube_writes.plan_existing("compact", cube, store, datasets, None, self.df_serializer)
        scopes = {name: cube_writes.partition_scope(conjunction, ds) for name, ds in datasets.items()}
        numbers = {n: least if ds.column_mapping is None else self.min_files for n, ds in datasets.items()}
        members = {n: _select_members(cube, datasets[n], scopes[n], numbers[n]) for n in datasets}
        n_partitions = sum(map(len, members.values()))
        parts = [(name, part) for name, own in members.items() for part in cut_tasks(own, n_partitions)]
        tasks = [PartitionFiles.of(n, datasets[n].partition_table, part) for n, part in parts]
        context, n_files = RewriteContext.of(plan, datasets), sum(len(task.files) for task in tasks)
        finish = partial(finish_rewrite, names=_COUNTS, unchanged=False)
        description = f"compact cube {cube.uuid_prefix}"
        return rewrite_job("compact_cube", description, context, tasks, run_compact, finish, n_files)


def _select_members(cube: Cube, dataset: DatasetMetadata, scope: Node | None, least: int) -> list[Ints]:
    """Files of each physical partition with enough of them."""
    rows = pruning.select_partitions(dataset, scope)
    keys = dataset.partition_table.keys(dataset.partition_keys, dataset.schema)
    own = [keys[c].take(pa.array(rows)) for c in cube.partition_columns if c in keys]
    codes = kernels.group_codes(own, len(rows))
    return [rows[positions] for positions in partition.group_positions(codes) if len(positions) >= least]


def compact_files_job(cube: Cube, store: StoreInput, keys: Set[str]) -> Job[CountsByDataset]:
    """Compact the physical partitions of some files."""
    job = CompactCube(cube, store, min_files=1).job_of_partitions(1)
    values = pa.array(sorted(keys), pa.string())
    tasks = []
    for task in job.tasks:
        is_chosen = pc.is_in(*task.files.files.values(), value_set=values)
        selected = task.select(np.bincount(task.numbers, is_chosen) > 0)
        tasks += [selected] if len(selected) else []
    return attrs.evolve(job, tasks=tasks, files=sum(len(task.files) for task in tasks))


# -- run -----------------------------------------------------------------------------------------------------


def run_compact(context: RewriteContext, task: PartitionFiles) -> list[Rewritten]:
    """Write the visible rows of physical partitions, each as one file."""
    stored = context.stored[task.name]
    return [_compact_block(context, stored, block) for block in task.split(stored)]


def _compact_block(context: RewriteContext, stored: StoredRows, block: PartitionFiles) -> Rewritten:
    # one file per value of further partition keys, where a dataset has such that the cube does not know
    spec, files, numbers = context.plan.specs[block.name], block.files, block.numbers
    blobs, keys = open_blobs(spec.store), files.files[spec.table].to_pylist()
    sizes = file_sizes(blobs, keys)
    rows, lengths = read_visible(stored, block)
    of_row = rows.column(PARTITION).to_numpy()
    codes = kernels.group_codes(list(files.keys(spec.partition_on, stored.schema).values()), len(files))
    is_changed = np.bincount(of_row, minlength=len(block)) < np.bincount(numbers, lengths, len(block))
    is_changed[numbers[np.bincount(codes)[codes] > 1]] = True
    for key, number in zip(keys, numbers, strict=True):
        is_changed[number] = is_changed[number] or _is_outdated(stored, blobs, key)
    is_replaced = is_changed[numbers]
    if not is_changed.all():
        rows = rows.filter(pa.array(is_changed[of_row]))
    name_files = partial(_name_files, stored, files.filter(is_replaced))
    write = partial(table_writer.write_table, spec, threads=1, name_files=name_files)
    part = replace_files(block, is_changed, rows.drop_columns(PARTITION), write, pa.table({}))
    new = [key for result in part.written for key in result.partitions().files[spec.table].to_pylist()]
    kept = sizes[~is_replaced]
    before = [len(keys), sizes.sum(), lengths.sum()]
    after = [len(kept) + len(new), kept.sum() + file_sizes(blobs, new).sum(), len(of_row)]
    counts = [[int(count)] for count in (len(block), *before, *after)]
    return attrs.evolve(part, counts=pa.table(counts, names=_COUNTS))


def _name_files(
    stored: StoredRows, replaced: partition.PartitionTable, labels: pa.StringArray
) -> pa.StringArray:
    """Labels of compacted files, with the files that they replace."""
    members: dict[str, list[str]] = {}
    for folder, label in zip(stored.folders(replaced).to_pylist(), replaced.labels.to_pylist(), strict=True):
        members.setdefault(folder, []).append(label)
    suffixes = {folder: partition.compacted_suffixes(own) for folder, own in members.items()}
    files = partition.PartitionTable.from_labels(stored.spec.uuid, stored.spec.table, labels)
    folders = stored.folders(files).to_pylist()
    return pa.array([f"{own}{next(suffixes[f])}" for own, f in zip(labels.to_pylist(), folders, strict=True)])


def _is_outdated(stored: StoredRows, blobs: BlobStore, key: str) -> bool:
    """Whether a file was written before a change of the schema that concerns it, or by an old library."""
    if not key.endswith(naming.PARQUET_FILE_SUFFIX):
        return False
    footer = parquet.read_footer(blobs, key)[0]
    if old_parquet.is_misread_by_others(footer):
        return True
    if stored.mapping is None:
        return False
    file_schema = footer.schema.to_arrow_schema()
    names = set(file_schema.names) - set(pandas_conversion.index_columns(file_schema))
    if names != set(stored.schema.names) - set(stored.spec.partition_on):
        return True
    types = [(file_schema.field(n).type, stored.schema.field(n).type) for n in sorted(names)]
    return any(pa.types.is_integer(old) and pa.types.is_floating(new) for old, new in types)


# -- merge ---------------------------------------------------------------------------------------------------


#: rows of a partition that were inserted, updated and deleted
_ROWS = ("rows_inserted", "rows_updated", "rows_deleted")
_MERGE_COUNTS = pa.schema([("partition", pa.string()), *((name, pa.int64()) for name in _ROWS)])


@attrs.frozen(kw_only=True)
class MergeContext(RewriteContext):
    """A planned merge into one dataset."""

    #: column of the input that marks cells to delete
    delete_column: str | None

    @property
    def spec(self) -> WriteSpec:
        """Specification of the write of the dataset."""
        return self.plan.spec

    @property
    def keys(self) -> list[str]:
        """Partition columns of the cube that the dataset has: a cell is identified within their values."""
        return self.stored[self.spec.name].keys


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
        rows = f"{self.rows_inserted} rows inserted, {self.rows_updated} updated, {self.rows_deleted} deleted"
        return f"<merge: {rows} in {errors.format_count(len(self.partitions), 'partition')}>"


def plan_merge(
    cube: Cube,
    store: StoreInput,
    dataset: str | None = None,
    metadata: Mapping[str, object] | None = None,
    df_serializer: Any = None,
    *,
    delete_column: str | None = None,
    publish: bool = True,
) -> MergeContext:
    """Plan to update, insert and delete cells of one dataset, by default the seed."""
    existing = cube_writes.load_datasets(cube, store)
    name = cube.seed_dataset if dataset is None else arguments.parse_name("dataset", dataset)
    datasets = {name: existing[name] for name in discover.choose_datasets(cube, name, existing)}
    user = None if metadata is None else dict.fromkeys(datasets, metadata)
    plan = cube_writes.plan_existing("merge", cube, store, datasets, user, df_serializer)
    plan = attrs.evolve(plan, keep_empty=True, commit_all=True).stage(publish=publish)
    return MergeContext.of(plan, datasets, delete_column=delete_column)


# -- checks --------------------------------------------------------------------------------------------------


def check_merge_input(context: MergeContext, table: pa.Table) -> None:
    """Check the columns of the input; of a table without rows, so that nothing has to be computed."""
    spec = context.spec
    table = write_tasks.derive_columns(spec, table)
    stored, names = set(spec.types), set(table.column_names)
    where, flag = f"dataset {context.spec.name!r}", context.delete_column
    if PARTITION in stored | names:
        raise ValueError(f"Merges reserve the column name {PARTITION!r}, which {where} has: rename it")
    if flag is not None:
        arguments.parse_name("delete_column", flag)
        if flag in stored:
            text = "give the flag a name of its own"
            raise ValueError(f"delete_column {flag!r} is a column of {where}; {text}")
        errors.check_names(f"delete_column of the input for {where}: ", "column", [flag], names)
        dtype = table.schema.field(flag).type
        if not (pa.types.is_boolean(dtype) or pa.types.is_null(dtype)):
            raise TypeError(f"delete_column {flag!r} must be boolean, but is {dtype}")
    unstored = f"The input for {where} has columns that are not stored: "
    remedy = ". Name another dataset by dataset=..., or add them by update_schema first"
    errors.check_names(unstored, "column", names - {flag}, stored, remedy)
    cube = context.plan.cube
    keys = {*cube.dimension_columns, *cube.partition_columns, *cube.index_columns}
    needed = {*spec.partition_on, *spec.indices, *(keys & stored)}
    # without its dimension, a column cannot be derived
    needed -= {t.name for t in cube.transforms if t.column not in names}
    remedy = ". A merge may leave out payload without an index only"
    errors.check_names(f"Missing columns in the input for {where}: ", "column", needed, names, remedy)
    write_tasks.prepare(context.plan, {context.spec.name: [_complete(context, table.slice(0, 0))]})


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


def run_merge(context: MergeContext, tables: Iterable[pa.Table]) -> list[Rewritten]:
    """Merge tables of whole physical partitions with the stored rows; no commit."""
    spec = context.spec
    # each task reads the state by itself, so that its size is not that of tasks; the commit checks it again
    state = DatasetMetadata.load_from_store(spec.uuid, open_blobs(spec.store))
    stored = StoredRows.of(spec, state)
    files = positions_by_text(stored.folders(state.partition_table))
    return [part for table in tables for part in _merge_table(context, stored, state, files, table)]


def _merge_table(
    context: MergeContext, stored: StoredRows, state: DatasetMetadata, files: dict[str, Ints], table: pa.Table
) -> Iterator[Rewritten]:
    """Merge the rows of several physical partitions, which the dataset may lack."""
    given = {*table.column_names}
    table = write_tasks.prepare_table(context.spec, [table])
    flags = np.zeros(len(table), dtype=bool)
    if context.delete_column is not None:
        column = table.column(context.delete_column).cast(pa.bool_())
        flags = pc.fill_null(column, False).to_numpy()
    rows = _complete(context, table, stored.mapping)
    # rows that do not fit the stored schema are refused before they are merged with stored ones
    write_tasks.prepare(context.plan, {context.spec.name: [rows]}, unique=False)
    types = context.spec.types
    keys = {c: rows.column(c) for c in context.keys}
    values = {c: key.cast(common_type(types[c], key.type)).combine_chunks() for c, key in keys.items()}
    found = list(positions_by_text(partition.join_components(values, len(rows))).items())
    members = [files.get(folder, np.empty(0, np.int64)) for folder, _ in found]
    partitions = state.partition_table or partition.PartitionTable.empty((stored.spec.table,))
    for block in PartitionFiles.of(context.spec.name, partitions, members).split(stored):
        chosen, found = found[: len(block)], found[len(block) :]
        positions = np.concatenate([own for _, own in chosen])
        numbers = np.repeat(np.arange(len(chosen)), [len(own) for _, own in chosen])
        own_rows = rows.take(pa.array(positions)).append_column(PARTITION, pa.array(numbers))
        folders = [folder for folder, _ in chosen]
        yield _merge_block(context, stored, block, folders, own_rows, given, flags[positions])


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
    names = stored.column_names
    both = rows.select(names)
    # without stored rows, those of the input keep their types
    both = scan.concat_tables([stored, both], source.spec.uuid) if len(stored) else both
    of_rows, of_cells = ([t.column(c) for c in (PARTITION, *source.cell)] for t in (rows, stored))
    matches = kernels.lookup_keys(of_rows, of_cells, len(rows), len(stored))
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
    chosen = ((both.column(c), from_input if c in given else kept) for c in names)
    arrays = [kernels.take_values(column, positions, missing=False) for column, positions in chosen]
    metadata = (stored if len(stored) else rows).schema.metadata
    merged = pa.Table.from_arrays(arrays, names=names).replace_schema_metadata(metadata)
    counts = pa.table([pa.array(folders, pa.string()), *map(pa.array, changes)], schema=_MERGE_COUNTS)
    return replace_files(block, is_changed, merged, partial(_write_merged, context), counts)


def _write_merged(context: MergeContext, rows: pa.Table) -> WriteResult:
    # tasks are the parallel unit
    prepared = write_tasks.prepare(context.plan, {context.spec.name: [rows]})
    return write_tasks.run_write(context.plan, prepared, threads=1)[context.spec.name]


# -- finish --------------------------------------------------------------------------------------------------


def finish_merge(context: MergeContext, tasks: Iterable[Iterable[Rewritten]]) -> MergeResult:
    """Commit what tasks wrote, if no other writer changed the partitions that they read."""
    parts, name = list(chain.from_iterable(tasks)), context.spec.name
    counts = pa.concat_tables([_MERGE_COUNTS.empty_table(), *(part.counts for part in parts)])
    counts = counts.combine_chunks().sort_by("partition")
    labels, replaces = _concat(part.labels for part in parts), _concat(part.replaces for part in parts)
    folders = kernels.to_single_array(counts.column("partition"))
    requires = (UnchangedPartitions(tuple(context.keys), folders, labels),)
    # without replaced partitions it might be another dataset of that name
    merges = len(replaces) > 0
    plan = context.plan.evolve_changes(replaces=replaces, requires=requires, merge_schema=merges)
    written = [{name: result} for part in parts for result in part.written]
    datasets = write_commit.finish_write(plan, written)
    return cast("MergeResult", datasets) if plan.staged_id else MergeResult(datasets[name], counts)


def merge_job(
    context: MergeContext, tasks: Sequence[TaskT], run: Callable[[MergeContext, TaskT], list[Rewritten]]
) -> Job[MergeResult]:
    """Merge the rows of physical partitions in independent tasks, then commit once."""
    description = f"merge into cube {context.plan.cube.uuid_prefix}: {context.spec.name}"
    return rewrite_job("merge_cube", description, context, tasks, run, finish_merge, 0)


def merge_cube_job(context: MergeContext, data: Frame) -> Job[MergeResult]:
    """Merge a frame, partition by partition."""
    if isinstance(data, Mapping):
        raise TypeError("A merge takes the rows of one dataset, which dataset=... names, got a dict")
    spec, data = context.spec, write_tasks.drop_types_if_empty(data)
    write_tasks.check_index(spec, data)
    table = pandas_conversion.as_table(data, spec.types)
    check_merge_input(context, table)
    # sorted by cell and checked as a whole, before anything is written
    rows = write_tasks.prepare_table(spec, [table])
    write_tasks.prepare(context.plan, {context.spec.name: [_complete(context, rows)]}, unique=False)
    task_rows = max(len(rows) // (TASKS_PER_CORE * runtime.available_cores()), 1)
    tables = kernels.rechunk_by_partition(rows.to_batches(), context.keys, task_rows)
    return merge_job(context, [[table] for table in tables], run_merge)
