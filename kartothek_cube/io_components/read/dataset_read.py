"""Reading a dataset: plan (which files, in which groups), run (the files of one task, as an Arrow table)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.common_metadata import read_schema_metadata
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.expressions.predicate import (
    ConjunctionType,
    PredicatesType,
    bind,
    columns_in_predicates,
    evaluate_constants,
    literal_mask,
)
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import AsOf
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.partition.storage_keys import derived_keys
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.arguments import check_columns, check_table, dataset_factory
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.kernels.dictionary import categorize, indexed_categories
from kartothek_cube.io_components.kernels.keys import group_codes
from kartothek_cube.io_components.read.data_files import (
    concat_tables,
    read_files,
    read_table_of_file,
    read_threads,
)
from kartothek_cube.io_components.read.groups import Group, check_dispatch, dispatch_groups
from kartothek_cube.io_components.read.pandas_index import to_frame
from kartothek_cube.io_components.runtime.threads import ordered_map
from kartothek_cube.io_components.utils import normalize_args

__all__ = (
    "FrameOptions",
    "ReadContext",
    "ReadPlan",
    "ReadTask",
    "empty_table",
    "plan_read",
    "read_dataset_job",
    "read_frame",
    "read_frames",
    "run_each",
    "run_read",
)

Values = Mapping[str, pa.Array]
Task = TypeVar("Task")
Result = TypeVar("Result")


@attrs.frozen
class ReadContext:
    """
    What all tasks that read one dataset share.

    Attributes
    ----------
    store
        Factory of the store.
    uuid, table
        The dataset.
    schema
        Types of its columns, with pandas metadata.
    partition_keys
        Its partition keys, which are not in the files.
    columns
        Columns wanted, in this order; None: partition keys, then the columns as the file has them.
    predicates
        Which rows are wanted.
    pushdown
        Whether statistics of row groups may be used.
    dispatch_by
        Columns by which rows are grouped.
    categoricals
        Columns to be dictionary-encoded.
    categories
        Their dictionaries, where they are known already.
    row_index
        Whether the index of the stored frames is wanted, as an additional column.
    """

    store: StoreFactory
    uuid: str
    table: str
    schema: pa.Schema
    partition_keys: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    predicates: PredicatesType = None
    pushdown: bool = True
    dispatch_by: tuple[str, ...] = ()
    categoricals: tuple[str, ...] = ()
    categories: Mapping[str, pa.Array] = attrs.field(factory=dict, eq=False)
    row_index: bool = False


@attrs.frozen
class ReadTask:
    """
    One table to read.

    Attributes
    ----------
    labels
        Partitions, in the order of commit.
    keys
        Their files, where these do not follow from the labels.
    group
        Values of the ``dispatch_by`` columns that rows must have.
    """

    labels: tuple[str, ...]
    keys: tuple[str, ...] | None = None
    group: tuple[Any, ...] = ()


@attrs.frozen
class ReadPlan:
    """
    A planned read.

    Attributes
    ----------
    context
        Shared by all tasks.
    partitions
        Partitions that can hold rows that are wanted.
    groups
        Values and positions in ``partitions`` of each group; None without ``dispatch_by``.
    """

    context: ReadContext
    partitions: PartitionTable
    groups: tuple[Group, ...] | None = attrs.field(default=None, eq=False)

    def tasks(self) -> list[ReadTask]:
        """One task per partition or group, in the order of the result."""
        if self.groups is not None:
            return [self._task(positions, values) for values, positions in self.groups]
        task = self._task(None, ())
        if task.keys is None:
            return [ReadTask((label,)) for label in task.labels]
        return [ReadTask((label,), (key,)) for label, key in zip(task.labels, task.keys, strict=True)]

    def single_task(self) -> ReadTask | None:
        """All partitions as one task; None if there is nothing to read."""
        return self._task(None, ()) if len(self.partitions) else None

    def block_tasks(self, bounds: npt.NDArray[np.int64]) -> list[ReadTask]:
        """Tasks over the partitions between the bounds, in the order of the result."""
        return [self._task(np.arange(start, stop), ()) for start, stop in itertools.pairwise(bounds.tolist())]

    def _task(self, positions: npt.NDArray[np.int64] | None, group: tuple[Any, ...]) -> ReadTask:
        chosen = self.partitions if positions is None else self.partitions.take(positions)
        derived = PartitionTable.from_labels(self.context.uuid, self.context.table, chosen.labels)
        follow = derived.files[self.context.table].equals(chosen.files[self.context.table])
        keys = None if follow else tuple(chosen.files[self.context.table].to_pylist())
        return ReadTask(tuple(chosen.labels.to_pylist()), keys, group)


# -- plan ----------------------------------------------------------------------------------------------------


@normalize_args
def plan_read(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    columns: Any = None,
    predicate_pushdown_to_io: bool = True,
    categoricals: Any = None,
    predicates: PredicatesType = None,
    dispatch_by: Any = None,
    table_name: str | None = None,
    in_schema_order: bool = False,
    row_index: bool = False,
    same_categories: bool = False,
    as_of: AsOf | None = None,
) -> ReadPlan:
    """
    Plan a read: the header, the schema and the needed indices are read, no data file is.

    Parameters
    ----------
    dataset_uuid, store, factory, columns, predicate_pushdown_to_io, categoricals, predicates
        As in :func:`kartothek_cube.io.eager.read_dataset_as_dataframes`.
    dispatch_by, table_name
        As there.
    in_schema_order
        Whether ``columns=None`` means the columns in the order of the schema rather than of each file.
    row_index
        Whether the index of stored frames is wanted, where a task reads one file of a dataset that keeps it.
    same_categories
        Whether categoricals with an index have the same dictionary in all tasks: all values of the dataset.
    as_of
        As in the façades.

    Returns
    -------
    ReadPlan

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError, TypeError
        An argument does not fit the dataset.
    RuntimeError
        A column to dispatch by has no index, or the dataset has several tables and none is named.
    """
    found = dataset_factory(dataset_uuid, store, factory, as_of=as_of)
    table, schema = _table_and_schema(found, table_name)
    wanted = check_columns("columns", columns, schema.names, found.dataset_uuid)
    shown = schema.names if wanted is None else wanted
    categories = check_columns("categoricals", categoricals, shown, found.dataset_uuid) or ()
    bind(predicates, schema)
    context = ReadContext(
        store=found.store_factory,
        uuid=found.dataset_uuid,
        table=table,
        schema=schema,
        partition_keys=tuple(found.partition_keys),
        columns=tuple(schema.names) if wanted is None and in_schema_order else wanted,
        predicates=predicates,
        pushdown=predicate_pushdown_to_io,
        dispatch_by=tuple(dispatch_by or ()),
        categoricals=categories,
        row_index=row_index and dispatch_by is None and not found.partition_keys,
    )
    return _planned(context, found, table, dispatch_by, categories if same_categories else ())


def _table_and_schema(factory: DatasetFactory, table_name: str | None) -> tuple[str, pa.Schema]:
    dataset = factory.dataset_metadata
    table = check_table(dataset, table_name)
    if dataset.schema is not None and dataset.table_name == table:
        return table, dataset.schema.internal()
    if not dataset.tables:
        return table, pa.schema([])
    return table, read_schema_metadata(dataset.uuid, open_blobs(factory.store_factory), table).internal()


def _planned(
    context: ReadContext,
    factory: DatasetFactory,
    table: str,
    dispatch_by: Sequence[str] | None,
    same_categories: Sequence[str],
) -> ReadPlan:
    needed = columns_in_predicates(context.predicates) | set(dispatch_by or ()) | set(same_categories)
    check_dispatch(factory.dataset_metadata, dispatch_by or ())
    dataset: DatasetMetadata = factory.load_indices(needed, factory.store_factory).dataset_metadata
    context = attrs.evolve(context, categories=indexed_categories(dataset, same_categories))
    labels, files = dataset.partition_table.labels, dataset.partition_table.files
    partitions = PartitionTable(labels, {table: files.get(table, [])})
    if dispatch_by is not None:
        return ReadPlan(context, partitions, tuple(dispatch_groups(dataset, dispatch_by, context.predicates)))
    if context.predicates is None:
        return ReadPlan(context, partitions)
    return ReadPlan(context, partitions.take(select_partitions(dataset, context.predicates)))


# -- run -----------------------------------------------------------------------------------------------------


def run_read(context: ReadContext, task: ReadTask, values: Values | None = None) -> pa.Table:
    """
    Read the files of one task.

    Parameters
    ----------
    context
        What all tasks share.
    task
        Which files, and which of their rows.
    values
        Values of the partition keys by file, if they are known already.

    Returns
    -------
    pyarrow.Table
        Rows in the order of the partitions; types as in the files, categoricals are dictionaries.
    """
    keys = task.keys or derived_keys(f"{context.uuid}/{context.table}/", pa.array(task.labels, pa.string()))
    files = PartitionTable(task.labels, {context.table: keys})
    values = _key_values(context, files) if values is None else values
    literals = _group_literals(context, task)
    filters = _filters(context, values, len(files), [p for p in literals if not isinstance(p[2], bytes)])
    tables = _read(open_blobs(context.store), context, files, filters, values)
    late = [p for p in literals if isinstance(p[2], bytes)]
    tables = [_matching(table, late) for table in tables] if late else tables
    order = _output_columns(context, tables)
    tables = [table.select(order) for table in tables]
    known = [context.schema.field(column) for column in order if column in context.schema.names]
    table = concat_tables(tables, pa.schema(known), context.uuid)
    if order:
        table = table.replace_schema_metadata(_pandas_metadata(context, tables))
    return categorize(table, context.categoricals, [len(t) for t in tables], context.categories)


def _key_values(context: ReadContext, files: PartitionTable) -> Values:
    """Values of the partition keys by file, if anybody wants them."""
    wanted = columns_in_predicates(context.predicates)
    if context.columns is not None and not set(context.partition_keys) & (wanted | set(context.columns)):
        return {}
    return files.keys(context.partition_keys, context.schema)


def _group_literals(context: ReadContext, task: ReadTask) -> ConjunctionType:
    """What rows have to meet to be in the group of the task; partition keys have the right value already."""
    pairs = zip(context.dispatch_by, task.group, strict=False)
    return [(column, "==", value) for column, value in pairs if column not in context.partition_keys]


def _filters(
    context: ReadContext, values: Values, length: int, literals: ConjunctionType
) -> list[PredicatesType | bool]:
    """What is left to be checked in each file: False if no row can match, None if all do."""
    predicates = context.predicates
    if literals:
        predicates = [[*conjunction, *literals] for conjunction in predicates or [[]]]
    known = [c for c in context.partition_keys if c in columns_in_predicates(predicates)]
    if not known:
        return [predicates] * length
    codes = group_codes([values[c] for c in known], length)
    _, first = np.unique(codes, return_index=True)
    left = [evaluate_constants(predicates, {c: values[c][int(i)] for c in known}) for i in first]
    return [None if left[code] is True else left[code] for code in codes]


def _read(
    blobs: BlobStore,
    context: ReadContext,
    files: PartitionTable,
    filters: Sequence[PredicatesType | bool],
    values: Values,
) -> list[pa.Table]:
    """The tables of all files in which a row can match, with their partition keys as columns."""
    rows = [i for i, left in enumerate(filters) if left is not False]
    keys = files.files[context.table].take(pa.array(rows, pa.int64())).to_pylist()
    columns, pushdown, schema = _stored_columns(context), context.pushdown, context.schema
    choose: Callable[[int], Any] = lambda number: filters[rows[number]]  # noqa: E731
    tables: Iterator[pa.Table]
    if context.row_index:
        read = partial(read_table_of_file, blobs, row_index=True)
        tables = (read(key, columns, choose(i), pushdown, schema) for i, key in enumerate(keys))
    else:
        tables = read_files(blobs, keys, columns, choose, pushdown, schema)
    return [_with_keys(context, table, values, row) for table, row in zip(tables, rows, strict=True)]


def _stored_columns(context: ReadContext) -> list[str] | None:
    """Columns to read from the files."""
    if context.columns is None:
        return None
    extra = [c for c in context.dispatch_by if c not in context.columns]
    return [c for c in (*context.columns, *extra) if c not in context.partition_keys]


def _with_keys(context: ReadContext, table: pa.Table, values: Values, row: int) -> pa.Table:
    for column in reversed(context.partition_keys):
        if column not in values or not (context.columns is None or column in context.columns):
            continue
        if column in table.column_names:
            table = table.drop_columns([column])
        constant = _repeated(values[column][row], len(table))
        table = table.add_column(0, column, constant)
    return table


def _repeated(value: pa.Scalar, length: int) -> pa.Array:
    """One value many times; numpy is several times as fast where it has the type."""
    if pa.types.is_integer(value.type) or pa.types.is_floating(value.type):
        return pa.array(np.full(length, value.as_py(), value.type.to_pandas_dtype()))
    return pa.repeat(value, length)


def _matching(table: pa.Table, literals: ConjunctionType) -> pa.Table:
    for column, op, value in literals:
        table = table.filter(literal_mask(table.column(column), op, value, column))
    return table


def _output_columns(context: ReadContext, tables: Sequence[pa.Table]) -> list[str]:
    if context.columns is None:
        return list(tables[0].column_names) if tables else list(context.schema.names)
    extra = set(tables[0].column_names) - set(context.schema.names) if tables and context.row_index else set()
    return [*context.columns, *extra]


def _pandas_metadata(context: ReadContext, tables: Sequence[pa.Table]) -> Any:
    """What tells pandas extension types: the first file, or the schema if there is none."""
    return tables[0].schema.metadata if tables else context.schema.metadata


def run_each(plan: ReadPlan, threads: int | None = None) -> Iterator[pa.Table]:
    """
    Execute all tasks of a plan in this process.

    Parameters
    ----------
    plan
        The plan.
    threads
        How many tasks may be under way at once; with 1, each is executed when its table is asked for. By
        default as many as pay.

    Yields
    ------
    pyarrow.Table
        One per task, in order.
    """
    tasks, values = plan.tasks(), _key_values(plan.context, plan.partitions)

    def run(number: int) -> pa.Table:
        if plan.groups is None:
            own = {column: array.slice(number, 1) for column, array in values.items()}
        else:
            positions = pa.array(plan.groups[number][1])
            own = {column: array.take(positions) for column, array in values.items()}
        return run_read(plan.context, tasks[number], own)

    if threads is None and len(tasks) > 1:
        keys = plan.partitions.files[plan.context.table].slice(0, len(tasks)).to_pylist()
        threads = read_threads(open_blobs(plan.context.store), keys)
    return ordered_map(run, range(len(tasks)), threads or 1)


def empty_table(context: ReadContext) -> pa.Table:
    """
    The result of a read without rows, with the types of the schema.

    Parameters
    ----------
    context
        The read.

    Returns
    -------
    pyarrow.Table
    """
    order = list(context.schema.names) if context.columns is None else list(context.columns)
    table = context.schema.empty_table().select(order)
    return categorize(table, context.categoricals, [], context.categories)


@attrs.frozen
class FrameOptions:
    """What tasks that read frames share."""

    read: ReadContext
    dates_as_object: bool = True


def read_frame(options: FrameOptions, task: ReadTask | None) -> pd.DataFrame:
    """Frame of a task; without task, one without rows."""
    table = empty_table(options.read) if task is None else run_read(options.read, task)
    return to_frame(table, options.dates_as_object, options.read.categoricals)


def read_frames(options: FrameOptions, tasks: Iterable[ReadTask]) -> list[pd.DataFrame]:
    """Frames of several tasks."""
    return [read_frame(options, task) for task in tasks]


def read_dataset_job(
    options: FrameOptions, tasks: Iterable[Task], run: Callable[[FrameOptions, Task], Result], step: str
) -> Job[FrameOptions, Task, Result, list[Result]]:
    """Read partitions or groups, or blocks of these; the answer is the list of their results."""
    return Job(
        name="read_dataset",
        description=f"read dataset {options.read.uuid}",
        context=options,
        tasks=tasks,
        run=run,
        finish=list,
        steps=("prepare", step, "done"),
    )
