"""Delete rows that meet conditions from cubes and datasets: partitions are removed, or written again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Generic, Literal, TypeAlias, cast

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core import expressions, history, naming, partition
from kartothek_cube.core.arrow import Ints, Mask, to_numpy
from kartothek_cube.core.cube import consistency, constants, discover
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions import AllOf, reduce_to_columns, tree_mask
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.store import StoreInput, open_blobs
from kartothek_cube.io_components import dataset_arguments, dataset_read, runtime
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import CountsByDataset, Job
from kartothek_cube.io_components.kernels import group_codes, join_codes, lookup_keys
from kartothek_cube.io_components.query import executor, logical_plan
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, ScanContext, ScanTask, plan_query
from kartothek_cube.io_components.scan import count_rows
from kartothek_cube.io_components.write import cube_writes, rewrite, table_writer
from kartothek_cube.io_components.write.dataset_writes import UpdateDataset
from kartothek_cube.io_components.write.rewrite import PartitionFiles, RewriteContext, Rewritten
from kartothek_cube.serialization import DataFrameSerializer

#: columns of the answer
_COUNTS = ("rows_deleted", "partitions")


@attrs.frozen(kw_only=True)
class DeleteContext(RewriteContext):
    """The same, and how cells are read: those to delete, and all of the seed."""

    query: ScanContext
    seed: ScanContext


@attrs.frozen(eq=False)
class DeleteTask:
    """Physical partitions of datasets, and what finds the cells whose rows are deleted from them."""

    partitions: tuple[PartitionFiles, ...]
    #: None if all rows are deleted
    scan: ScanTask | None
    #: all cells of the seed, where several may share a row
    seed: tuple[ScanTask, ...] = ()


@attrs.frozen
class DeleteRows(Generic[StoreT]):
    """Delete the cells that meet conditions, with their rows in all datasets, by one commit.

    The conditions are those of a query: what :func:`query_cube` returns for them is deleted. Partitions whose
    rows are all deleted, by their partition columns, are removed without being read. The others are
    written again without the rows, and without versions of cells that newer files hide. The old files stay
    until :func:`cleanup_cube`, and :func:`rollback_cube` brings the rows back until then.

    Parameters
    ----------
    conditions
        Conditions on any columns of the cube, or their text; ``"all"`` deletes all rows.
    datasets, ktk_cube_dataset_ids
        Datasets to delete the rows from; all by default. Without the seed, the cells stay, and lose the
        columns of these datasets. With the seed only, the rows of the others stay, which no query returns
        unless the cell is written again. In a dataset that lacks a dimension or partition column, cells may
        share a row, which is deleted with the last of them.

    Returns
    -------
    dict
        Dataset id to the numbers of ``rows_deleted`` and of changed ``partitions``. Of partitions that are
        not read, all rows in their files count, with versions of cells that newer files hide.

    Raises
    ------
    ValueError
        For no conditions, and for unknown columns and datasets.
    TypeError
        If a condition has a value of the wrong type.
    ConcurrentWriteError
        Another writer changed a partition of which rows are deleted, or the schema. Nothing is changed:
        repeat the call.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, query_cube_df
    >>> from kartothek_cube.io.eager_cube import delete_rows
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = build_cube(cities, cube, store)
    >>> delete_rows(cube, store, "CITY == Bonn")
    {'seed': {'rows_deleted': 1, 'partitions': 1}}
    >>> query_cube_df(cube, store)["CITY"].tolist()
    ['Rom', 'Ulm']
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    conditions: ConditionsInput | Literal["all"]
    ktk_cube_dataset_ids: str | Iterable[str] | None = None
    df_serializer: DataFrameSerializer | None = None
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)
    publish: bool = attrs.field(default=True, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[CountsByDataset]:
        """Rewrite the partitions that have such cells, then commit all at once."""
        cube, store = self.cube, self.store
        existing = discover.discover_datasets(cube, store)
        names = discover.choose_datasets(cube, self.ktk_cube_dataset_ids, existing)
        datasets = {name: existing[name] for name in cube.commit_order(names)}
        is_all = isinstance(self.conditions, str) and self.conditions == "all"
        conditions = None if is_all else self.conditions
        query = plan_query(logical_plan.QueryCube(cube, store, conditions, existing, payload_columns=()))
        seed = plan_query(logical_plan.QueryCube(cube, store, None, existing, payload_columns=()))
        logical = query.logical_plan
        where = AllOf((*(p for own in logical.predicates.values() for p in own), *logical.join_filters))
        cube_writes.check_is_full_removal("conditions", self.conditions, is_full=not where.operands)
        plan = cube_writes.plan_existing("delete_rows", cube, store, datasets, None, self.df_serializer)
        plan = plan.stage(publish=self.publish)
        context = DeleteContext.of(plan, datasets, query=query.context, seed=seed.context)
        tasks = _make_tasks(cube, datasets, query, seed, where)
        finish = partial(rewrite.finish_rewrite, names=_COUNTS, unchanged=True)
        title = f"delete rows of cube {cube.uuid_prefix}"
        return rewrite.rewrite_job("delete_rows", title, context, tasks, run_delete, finish, query.n_files)


def _make_tasks(
    cube: Cube, datasets: Mapping[str, DatasetMetadata], query: PhysicalPlan, seed: PhysicalPlan, where: AllOf
) -> list[DeleteTask]:
    """One task per physical partition of the seed, and one per dataset whose rows several cells may share."""
    columns, files = cube.partition_columns, query.files[0]
    n_partitions = query.n_partitions
    first_files = np.unique(files.partition_ids, return_index=True)[1]
    firsts = pa.array(files.positions[first_files])
    values = [files.all_keys[column].take(firsts) for column in columns]
    tasks = []
    members: dict[str, dict[int, Ints]] = {}
    for name, dataset in datasets.items():
        table = dataset.partition_table
        if not len(table):
            continue
        keys = table.keys(dataset.partition_keys, dataset.schema)
        own = [keys[column] for column in columns if column in keys]
        stored = {*consistency.arrow_schema(dataset).names}
        is_shared = len(own) < len(columns) or not stored.issuperset(cube.dimension_columns)
        if is_shared or not where.operands:
            part = PartitionFiles.of(name, table, partition.group_positions(group_codes(own, len(table))))
            if not where.operands:
                tasks.append(DeleteTask((part,), None))
            elif n_partitions:
                all_cells = seed.partition_tasks(np.arange(seed.n_partitions)[:, None])
                tasks.append(DeleteTask((part,), query.single_task(), tuple(all_cells)))
            continue
        codes, own_codes = join_codes(values, own, n_partitions, len(table))
        number_of_code = {code: number for number, code in enumerate(codes.tolist())}
        affected = np.flatnonzero(np.isin(own_codes, codes))
        groups = [affected[group] for group in partition.group_positions(own_codes[affected])]
        members[name] = {number_of_code[int(own_codes[group[0]])]: group for group in groups}
    # by the partition columns, all rows meet the conditions
    table = pa.table([*values, firsts], names=[*columns, ""])
    is_whole = to_numpy(tree_mask(table, reduce_to_columns(where, columns)))
    for mask in (is_whole, ~is_whole):
        for numbers in rewrite.cut_tasks(np.flatnonzero(mask).tolist(), n_partitions):
            parts = [
                PartitionFiles.of(name, datasets[name].partition_table, [own[n] for n in numbers if n in own])
                for name, own in members.items()
            ]
            (scan,) = [None] if mask is is_whole else query.partition_tasks([np.array(numbers)])
            tasks.append(DeleteTask(tuple(part for part in parts if len(part)), scan))
    return [task for task in tasks if task.partitions]


def run_delete(context: DeleteContext, task: DeleteTask) -> list[Rewritten]:
    """Write what is left of the physical partitions that have cells which meet the conditions."""
    if task.scan is None:
        return [_delete_all(context, part) for part in task.partitions]
    tables = executor.run_task(context.query, task.scan)
    if not tables:
        return []
    (cells,) = tables
    types = context.stored[task.partitions[0].name].schema
    cell = [column for column in cells.column_names if column in types.names]
    keys = cells.select(cell)
    for scan in task.seed:
        for stored in executor.run_task(context.seed, scan):
            stays = stored.filter(pa.array(_find(stored, cells) < 0))
            keys = keys.filter(pa.array(_find(keys, stays.select(cell)) < 0))
    return [
        _delete_cells(context, block, keys)
        for part in task.partitions
        for block in part.split(context.stored[part.name])
    ]


def _find(rows: pa.Table, cells: pa.Table) -> Ints:
    """For each row the position of its cell; -1 for none."""
    columns = [rows.column(name) for name in cells.column_names]
    return lookup_keys(columns, cells.columns, len(rows), len(cells))


def _delete_all(context: RewriteContext, part: PartitionFiles) -> Rewritten:
    stored = context.stored[part.name]
    keys = part.files.files[stored.spec.table].to_pylist()
    if all(key.endswith(naming.PARQUET_FILE_SUFFIX) for key in keys):
        n_rows = count_rows(open_blobs(stored.spec.store), keys)
    else:
        n_rows = len(stored.read(part.files).table)
    labels = part.files.labels
    return Rewritten(part.name, labels, labels, [], _counts(n_rows, len(part)))


def _delete_cells(context: DeleteContext, block: PartitionFiles, cells: pa.Table) -> Rewritten:
    runtime.progress_add_total(len(block.files))
    rows, _ = rewrite.read_visible(context.stored[block.name], block)
    numbers = rows.column(rewrite.PARTITION).to_numpy()
    return _keep_rest(context, block, rows.drop_columns(rewrite.PARTITION), numbers, _find(rows, cells) >= 0)


def _keep_rest(
    context: RewriteContext, block: PartitionFiles, rows: pa.Table, numbers: Ints, is_deleted: Mask
) -> Rewritten:
    """Write what is left of the partitions with deleted rows, by the number of the partition of each row."""
    is_changed = np.bincount(numbers[is_deleted], minlength=len(block)) > 0
    remaining = rows.filter(pa.array(is_changed[numbers] & ~is_deleted))
    write = partial(table_writer.write_table, context.plan.specs[block.name], threads=1)
    counts = _counts(is_deleted.sum(), is_changed.sum())
    return rewrite.replace_files(block, is_changed, remaining, write, counts)


def _counts(rows_deleted: int, partitions: int) -> pa.Table:
    return pa.table([[int(rows_deleted)], [int(partitions)]], names=_COUNTS)


# -- single datasets -----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class DeleteFromDatasetContext(RewriteContext):
    """The same, and what deleted rows meet."""

    where: expressions.Tree | None


DeleteFilesTask: TypeAlias = tuple[PartitionFiles, bool]
"""Files of a dataset, and whether all of their rows are deleted."""


@attrs.frozen
class DeleteDatasetRows:
    """Delete the rows of a dataset that meet predicates, by one commit.

    What :func:`read_table` returns for the predicates is deleted. Partitions whose rows are all deleted, by
    their partition keys, are removed without being read. Others that may have such rows, by partition
    keys, indices and statistics, are written again without them. The old files stay until
    :func:`garbage_collect_dataset`, and :func:`rollback_dataset` brings the rows back until then. Rows that
    others append meanwhile stay.

    Parameters
    ----------
    predicates
        Predicates as in :func:`read_table`; ``"all"`` deletes all rows.
    df_serializer
        How files are written; Parquet with SNAPPY by default.

    Returns
    -------
    dict
        The numbers of ``rows_deleted`` and of changed ``partitions``.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        For no predicates and for unknown columns, and if the dataset belongs to a cube: use
        :func:`~kartothek_cube.io.eager_cube.delete_rows`.
    TypeError
        If a predicate has a value of the wrong type.
    ConcurrentWriteError
        Another writer removed or replaced a partition of which rows are deleted. Nothing is changed: repeat
        the call.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import delete_dataset_rows
    >>> from kartothek_cube.api.dataset import read_table, store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> delete_dataset_rows("geodata", store, [[("CITY", "==", "Bonn")]])
    {'rows_deleted': 1, 'partitions': 1}
    >>> sorted(read_table("geodata", store)["CITY"])
    ['Rom', 'Ulm']
    """

    dataset_uuid: str | None = None
    store: StoreInput | None = None
    predicates: expressions.PredicatesType | Literal["all"] = None
    df_serializer: DataFrameSerializer | None = None
    factory: DatasetFactory | None = None
    publish: bool = attrs.field(default=True, kw_only=True)

    def job(self, blocksize: int | None = None) -> Job[dict[str, int]]:
        """Rewrite the files that have such rows, then commit."""
        dataset = dataset_arguments.dataset_factory(self.dataset_uuid, self.store, self.factory)
        state, predicates = dataset.dataset_metadata, self.predicates
        dimensions = constants.KTK_CUBE_METADATA_DIMENSION_COLUMNS
        if consistency.read_specification(state.metadata, dimensions) is not None:
            # without the newest version of a cell, queries would return an older one
            raise ValueError(
                f"Dataset {state.uuid!r} belongs to a cube: use delete_rows(cube, store, conditions)"
            )
        is_full = not dataset_arguments.normalize_arg("predicates", predicates)
        cube_writes.check_is_full_removal("predicates", predicates, is_full=is_full)
        where = None if isinstance(predicates, str) and predicates == "all" else predicates
        read = dataset_read.ReadDataset(factory=dataset, predicates=where).plan()
        update = UpdateDataset(factory=dataset, df_serializer=self.df_serializer, publish=self.publish)
        plan = attrs.evolve(update.plan(), info=history.describe_operation("delete_rows"))
        spec, n_files = plan.spec, len(read.partitions)
        filters = dataset_read.remaining_filters(read.context, read.partitions)
        tasks = []
        for is_whole in (True, False):
            positions = [i for i, f in enumerate(filters) if f is not False and (f is True) == is_whole]
            for own in rewrite.cut_tasks(positions, n_files):
                # each file by itself, as a dataset may be one large partition
                files = PartitionFiles.of(spec.name, read.partitions, [np.array([i]) for i in own])
                tasks.append((files, is_whole))
        context = DeleteFromDatasetContext.of(plan, {spec.name: state}, where=read.context.where)
        name, title = "delete_dataset_rows", f"delete rows of dataset {state.uuid}"
        run = run_delete_from_dataset
        return rewrite.rewrite_job(name, title, context, tasks, run, _finish, n_files)


def run_delete_from_dataset(context: DeleteFromDatasetContext, task: DeleteFilesTask) -> list[Rewritten]:
    """Write what is left of files of which rows are deleted."""
    files, is_whole = task
    if is_whole:
        return [_delete_all(context, files)]
    return [_delete_matches(context, block) for block in files.split(context.stored[files.name])]


def _delete_matches(context: DeleteFromDatasetContext, block: PartitionFiles) -> Rewritten:
    rows, lengths = context.stored[block.name].read(block.files)
    is_deleted = to_numpy(tree_mask(rows, context.where))
    return _keep_rest(context, block, rows, np.repeat(block.numbers, lengths), is_deleted)


def _finish(context: DeleteFromDatasetContext, tasks: Iterable[Iterable[Rewritten]]) -> dict[str, int]:
    counts = rewrite.finish_rewrite(context, tasks, names=_COUNTS, unchanged=False)
    return cast("dict[str, int]", counts) if context.plan.staged_id else counts[context.plan.spec.name]
