"""Reads of datasets: arguments, plan (which files, in which groups), run (the files of one task)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import errors, evolution, expressions, naming, pruning, tuning
from kartothek_cube.core.arguments import CallerLine
from kartothek_cube.core.arrow import Ints, Mask, category_values, concat_promoted
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetAsOf, DatasetFactory
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.pandas_conversion import (
    DtypeBackend,
    cast_to_schema,
    check_dtype_backend,
    extension_dtypes,
    pandas_metadata,
)
from kartothek_cube.core.partition import PartitionTable, derived_keys
from kartothek_cube.core.schema import read_schema_metadata
from kartothek_cube.core.store import BlobStore, StoreFactory, StoreInput, open_blobs
from kartothek_cube.io_components.dataset_arguments import (
    check_columns,
    check_table,
    dataset_factory,
    normalize_arg,
)
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.kernels import categorize, group_codes, repeat
from kartothek_cube.io_components.runtime import available_cores, ordered_map
from kartothek_cube.io_components.scan import FileRows, Scan, estimate_bytes, read_file, read_files, run_scans
from kartothek_cube.serialization.parquet import read_footer, to_frame

Values = Mapping[str, pa.Array]


@attrs.frozen
class ReadContext:
    """State shared by all tasks that read one dataset."""

    store: StoreFactory
    uuid: str
    table: str
    #: types of all columns, with pandas metadata
    schema: pa.Schema
    #: not stored in the files
    partition_keys: tuple[str, ...] = ()
    #: columns of the result, in this order; None: partition keys, then the columns as the file has them
    columns: tuple[str, ...] | None = None
    #: predicate on the rows; None for all rows
    where: expressions.Tree | None = None
    #: columns by which rows are grouped
    dispatch_by: tuple[str, ...] = ()
    #: columns to dictionary-encode
    categoricals: tuple[str, ...] = ()
    #: their dictionaries, where all tasks share one
    categories: Mapping[str, pa.Array] = attrs.field(factory=dict, eq=False)
    #: whether the index of the stored frames is read, as an additional column
    row_index: bool = False
    #: how to read files that were written before a change of the schema
    mapping: evolution.ColumnMapping | None = attrs.field(default=None, eq=False, repr=False)
    #: whether numbers are as wide as in `schema`; else as in the files that a task reads
    has_widths: bool = False
    #: of frames
    dates_as_object: bool = True
    #: of frames; with a backend, types are those of the schema
    dtype_backend: DtypeBackend | None = None


@attrs.frozen
class ReadTask:
    """One table to read."""

    #: partition labels, in commit order
    labels: tuple[str, ...]
    #: storage keys, if they do not follow from the labels
    keys: tuple[str, ...] | None = None
    #: values of the ``dispatch_by`` columns of all rows
    group: tuple[Any, ...] = ()


@attrs.frozen
class ReadPlan:
    """Planned read."""

    context: ReadContext
    #: partitions that can hold matching rows
    partitions: PartitionTable
    #: values and positions in ``partitions`` of each group; None without ``dispatch_by``
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

    def block_tasks(self, bounds: Ints) -> list[ReadTask]:
        """Tasks over the partitions between the bounds, in the order of the result."""
        return [self._task(np.arange(start, stop), ()) for start, stop in itertools.pairwise(bounds.tolist())]

    def file_bytes(self) -> float:
        """Mean bytes of the columns that are read of a file, by a sample of the files."""
        context, files = self.context, self.partitions.files[self.context.table]
        sample = files.take(pa.array(np.arange(len(files))[:: max(1, len(files) // tuning.SAMPLE)]))
        stored = context.schema.names
        columns = len(stored if context.columns is None else context.columns)
        share = columns / max(len(stored), 1)
        return estimate_bytes(open_blobs(context.store), sample.to_pylist(), columns, share)

    def _task(self, positions: Ints | None, group: tuple[Any, ...]) -> ReadTask:
        partitions = self.partitions if positions is None else self.partitions.take(positions)
        uuid, table = self.context.uuid, self.context.table
        is_derived = partitions.has_derived_keys(uuid, table)
        keys = None if is_derived else tuple(partitions.files[table].to_pylist())
        return ReadTask(tuple(partitions.labels.to_pylist()), keys, group)


@attrs.frozen
class DatasetRead:
    """Arguments of a read of a dataset; each kind of read has some of them."""

    #: whether columns that are not named are in the order of the schema, rather than in that of each file
    in_schema_order: ClassVar[bool] = True
    #: whether the index of stored frames is kept, where a task reads one file of a dataset that stores it
    row_index: ClassVar[bool] = False

    dataset_uuid: str | None = None
    store: StoreInput | None = None
    columns: list[str] | None = None
    #: of kartothek, without effect: predicates are always evaluated by the scan
    predicate_pushdown_to_io: bool = True
    predicates: expressions.PredicatesType | expressions.Tree = None
    factory: DatasetFactory | None = None
    categoricals: list[str] | None = attrs.field(default=None, kw_only=True)
    dispatch_by: str | Sequence[str] | None = attrs.field(default=None, kw_only=True)
    table_name: str | None = attrs.field(default=None, kw_only=True)
    as_of: DatasetAsOf | None = attrs.field(default=None, kw_only=True)
    dates_as_object: bool = attrs.field(default=True, init=False)
    dtype_backend: DtypeBackend | None = attrs.field(default=None, init=False)

    @property
    def dispatch_argument(self) -> str:
        """The argument from which ``dispatch_by`` is."""
        return "dispatch_by"

    def plan(self, *, same_categories: bool = False) -> ReadPlan:
        """Plan the read; ``same_categories``: indexed categoricals have the same categories in all tasks."""
        dataset = dataset_factory(self.dataset_uuid, self.store, self.factory, as_of=self.as_of)
        table, schema = _table_and_schema(dataset, self.table_name)
        columns = _columns_of_table("columns", self.columns, table)
        selected = check_columns("columns", columns, schema.names, dataset.dataset_uuid)
        result_columns = schema.names if selected is None else selected
        columns = _columns_of_table("categoricals", self.categoricals, table)
        encoded = check_columns("categoricals", columns, result_columns, dataset.dataset_uuid) or ()
        _check_categoricals(schema, encoded)
        where = expressions.bind(self.predicates, schema)
        widths = dataset.dataset_metadata.widths
        if widths:
            fields = [field.with_type(evolution.narrow_type(field, widths)) for field in schema]
            schema = pa.schema(fields, schema.metadata)
        dispatch_by = normalize_arg("dispatch_by", self.dispatch_by)
        _check_dispatch(dataset.dataset_metadata, dispatch_by or (), self.dispatch_argument)
        context = ReadContext(
            store=dataset.store_factory,
            uuid=dataset.dataset_uuid,
            table=table,
            schema=schema,
            partition_keys=tuple(dataset.partition_keys),
            columns=tuple(schema.names) if selected is None and self.in_schema_order else selected,
            where=where,
            dispatch_by=tuple(dispatch_by or ()),
            categoricals=encoded,
            row_index=self.row_index and dispatch_by is None and not dataset.partition_keys,
            mapping=dataset.dataset_metadata.column_mapping,
            has_widths=widths is not None,
            dates_as_object=self.dates_as_object,
            dtype_backend=check_dtype_backend(self.dtype_backend),
        )
        shared = encoded if same_categories else ()
        loaded: DatasetMetadata = (
            dataset.load_indices({*context.dispatch_by, *shared}, dataset.store_factory)
            # the factory of a user keeps whole indices
            .load_indices(
                expressions.columns_of(where), dataset.store_factory, None if self.factory else where
            )
            .dataset_metadata
        )
        context = attrs.evolve(context, categories=_indexed_categories(loaded, shared))
        files = loaded.partition_table
        partitions = PartitionTable(files.labels, {table: files.files.get(table, [])})
        if dispatch_by is not None:
            return ReadPlan(context, partitions, tuple(dispatch_groups(loaded, dispatch_by, where)))
        if where is None:
            return ReadPlan(context, partitions)
        return ReadPlan(context, partitions.take(pruning.select_partitions(loaded, where)))


def _table_and_schema(factory: DatasetFactory, table_name: str | None) -> tuple[str, pa.Schema]:
    dataset = factory.dataset_metadata
    table = check_table(dataset, table_name)
    if dataset.schema is not None and dataset.table_name == table:
        return table, dataset.schema.internal()
    if not dataset.tables:
        return table, pa.schema([])
    return table, read_schema_metadata(dataset.uuid, open_blobs(factory.store_factory), table).internal()


def _columns_of_table(argument: str, columns: Any, table: str) -> Any:
    """The columns of a table in an argument, which in kartothek 5.3 is a dict of table to list."""
    if not isinstance(columns, Mapping):
        return columns
    CallerLine.find().warn(f"{argument} by table is deprecated: pass a list of columns", DeprecationWarning)
    errors.check_names(f"{argument}: ", "table", columns, (table,))
    return columns.get(table)


def _check_categoricals(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise TypeError for columns whose values cannot be encoded."""
    for field in map(schema.field, columns):
        if pa.types.is_nested(field.type):
            problem = f"categoricals: column {field.name!r} of type {field.type} cannot be categorical"
            raise TypeError(f"{problem}, because its values contain other values; leave it out")


def _indexed_categories(dataset: DatasetMetadata, columns: Sequence[str]) -> dict[str, pa.Array]:
    """Sorted distinct values of the indexed columns among ``columns``, by column; indices are loaded."""
    # each write has one zero in its labels, which may be the other one than that of another write
    partitioned = {c: dataset.key_columns()[c] for c in columns if c in dataset.partition_keys}
    keys = {column: category_values(values).unique() for column, values in partitioned.items()}
    loaded = {c: dataset.indices[c].columns_data for c in columns if c in dataset.secondary_indices}
    indices = {column: index.values for column, index in loaded.items() if index is not None}
    return {**indices, **{column: values.take(pc.sort_indices(values)) for column, values in keys.items()}}


def run_read(context: ReadContext, task: ReadTask, values: Values | None = None) -> pa.Table:
    """Rows of a task in the order of its partitions; ``values`` are its partition keys by file, if known."""
    keys = task.keys or derived_keys(f"{context.uuid}/{context.table}/", pa.array(task.labels, pa.string()))
    files = PartitionTable(task.labels, {context.table: keys})
    values = _key_values(context, files) if values is None else values
    # partition keys have the right value already
    pairs = zip(context.dispatch_by, task.group, strict=False)
    group = [(column, "==", value) for column, value in pairs if column not in context.partition_keys]
    rows = _read_rows(context, files, remaining_filters(context, files, values, group))
    table = rows.table
    for column in reversed(context.partition_keys):
        if column in values and (context.columns is None or column in context.columns):
            table = table.drop_columns([column]) if column in table.column_names else table
            table = table.add_column(0, column, repeat(values[column], rows.lengths))
    # files may have columns that are null throughout and absent in others, and so not in the schema
    in_schema, stored = set(context.schema.names), table.column_names
    names = [name for name in stored if name in in_schema] if context.columns is None else context.columns
    table = table.select([*names, *(n for n in stored if context.row_index and n not in in_schema)])
    if context.has_widths:
        table = cast_to_schema(table, context.schema)
    table = _with_key_dtypes(table, context)
    return categorize(table, context.categoricals, rows.lengths.tolist(), context.categories)


def _with_key_dtypes(table: pa.Table, context: ReadContext) -> pa.Table:
    """The table whose metadata has the pandas types of partition keys, which files do not know."""
    dtypes = extension_dtypes(context.schema)
    keys = {name: dtypes[name] for name in {*table.column_names}.intersection(context.partition_keys, dtypes)}
    if not keys:
        return table
    dtypes = extension_dtypes(table.schema) | keys
    return table.replace_schema_metadata({b"pandas": pandas_metadata(table.schema, dtypes)})


def _key_values(context: ReadContext, files: PartitionTable) -> Values:
    """Values of the partition keys by file, if a predicate or the result needs them."""
    needed = expressions.columns_of(context.where).union(context.columns or ())
    if context.columns is not None and needed.isdisjoint(context.partition_keys):
        return {}
    return files.keys(context.partition_keys, context.schema)


def remaining_filters(
    context: ReadContext,
    files: PartitionTable,
    values: Values | None = None,
    group: Sequence[expressions.LiteralType] = (),
) -> list[expressions.Tree | bool]:
    """Remaining predicate of each file: False if no row can match, True if all do."""
    length, where = len(files), expressions.all_of([context.where, *group])
    if where is None:
        return [True] * length
    keys = [c for c in context.partition_keys if c in expressions.columns_of(where)]
    if not keys:
        return [where] * length
    values = _key_values(context, files) if values is None else values
    # evaluated once per distinct key instead of once per file
    codes = group_codes([values[c] for c in keys], length)
    _, first_files = np.unique(codes, return_index=True)
    by_key = [expressions.simplify(where, {c: values[c][int(i)] for c in keys}) for i in first_files]
    return [by_key[code] for code in codes]


def _read_rows(
    context: ReadContext, files: PartitionTable, filters: list[expressions.Tree | bool]
) -> FileRows:
    """Rows of all files in which a row can match, with pandas types of the first one."""
    blobs, schema, mapping = open_blobs(context.store), context.schema, context.mapping
    matching = [i for i, where in enumerate(filters) if where is not False]
    keys: list[str] = files.files[context.table].take(pa.array(matching, pa.int64())).to_pylist()
    on_files = [None if isinstance(where, bool) else where for where in filters if where is not False]
    columns = None
    if context.columns is not None:
        needed = dict.fromkeys([*context.columns, *context.dispatch_by])
        columns = [c for c in needed if c not in context.partition_keys]
    lengths = np.zeros(len(files), np.int64)
    if not keys:
        return FileRows(schema.empty_table().select(schema.names if columns is None else columns), lengths)
    if context.row_index and keys[0].endswith(naming.PARQUET_FILE_SUFFIX):
        # a task with an index reads one file
        (key,), (where,) = keys, on_files
        table = read_file(blobs, key, columns, where, schema=schema, mapping=mapping, row_index=True)
        lengths[matching] = len(table)
        return FileRows(table, lengths)
    (rows,) = run_scans(blobs, [Scan(keys, columns, schema, on_files, mapping)])
    lengths[matching] = rows.lengths
    return FileRows(rows.table, lengths)


def run_each(plan: ReadPlan, threads: int | None = None) -> Iterator[pa.Table]:
    """Tables of all tasks of a plan, run in this process; one thread runs each when it is asked for."""
    tasks, values = plan.tasks(), _key_values(plan.context, plan.partitions)

    def run(number: int) -> pa.Table:
        if plan.groups is None:
            task_values = {column: array.slice(number, 1) for column, array in values.items()}
        else:
            positions = pa.array(plan.groups[number][1])
            task_values = {column: array.take(positions) for column, array in values.items()}
        return run_read(plan.context, tasks[number], task_values)

    if threads is None:
        threads = available_cores() if open_blobs(plan.context.store).is_local else tuning.REMOTE_REQUESTS
    return ordered_map(run, range(len(tasks)), threads)


def empty_table(context: ReadContext) -> pa.Table:
    """Result of a read without rows, with the types of the schema."""
    columns = list(context.schema.names) if context.columns is None else list(context.columns)
    table = context.schema.empty_table().select(columns)
    return categorize(table, context.categoricals, [], context.categories)


def read_frame(context: ReadContext, task: ReadTask | None) -> pd.DataFrame:
    """Frame of a task; without task, one without rows."""
    return frame_of_table(context, empty_table(context) if task is None else run_read(context, task))


def frame_of_table(context: ReadContext, table: pa.Table) -> pd.DataFrame:
    """DataFrame of a table that was read."""
    if context.dtype_backend is not None:
        table = cast_to_schema(table, context.schema)
    return to_frame(table, context.dates_as_object, context.categoricals, context.dtype_backend)


def read_frames(context: ReadContext, tasks: Iterable[ReadTask]) -> list[pd.DataFrame]:
    """Frames of several tasks."""
    return [read_frame(context, task) for task in tasks]


def read_dataset_job(
    context: ReadContext, tasks: Iterable[Any], run: Callable[[ReadContext, Any], Any], step: str
) -> Job[list[Any]]:
    """Read partitions or groups, or blocks of these; the answer is the list of their results."""
    return Job(
        name="read_dataset",
        description=f"read dataset {context.uuid}",
        context=context,
        tasks=tasks,
        run=run,
        finish=list,
        steps=("prepare", step, "done"),
    )


#: values of the dispatch columns, and positions of the partitions in commit order
Group: TypeAlias = tuple[tuple[Any, ...], Ints]


def _check_dispatch(dataset: DatasetMetadata, dispatch_by: Sequence[str], argument: str) -> None:
    """Raise RuntimeError if a column has no index."""
    if not set(dispatch_by) <= dataset.index_columns:
        raise RuntimeError(
            f"Columns of {argument} must be indexed. Requested: {', '.join(map(str, dispatch_by))}; "
            f"available in dataset {dataset.uuid!r}: {', '.join(sorted(dataset.index_columns)) or 'none'}. "
            "build_dataset_indices(store, dataset_uuid, columns) adds indices"
        )


def dispatch_groups(
    dataset: DatasetMetadata, dispatch_by: Sequence[str], where: expressions.Node | None
) -> list[Group]:
    """Combinations of indexed values that meet the predicates, sorted; their indices are loaded."""
    positions, values = pruning.index_rows(dataset.load_partition_indices(), dispatch_by, where)
    if not len(positions):
        return []
    columns = list(values.values())
    codes = group_codes(columns, len(positions))
    order = np.lexsort([positions, codes])
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    first_rows = pa.array(order[starts])
    members = np.split(positions[order], starts[1:])
    rows = [column.take(first_rows).to_pylist() for column in columns]
    tuples = zip(*rows, strict=True) if columns else [()]
    return list(zip(tuples, members, strict=True))


#: columns of the frames of row groups
_NUMBERS = (
    *("row_group_id", "row_group_compressed_size", "row_group_uncompressed_size", "number_rows_total"),
    *("number_row_groups", "serialized_size", "number_rows_per_row_group"),
)
_TYPES = {"partition_label": "object"} | dict.fromkeys(_NUMBERS, "int64")


def plan_footers(
    dataset: DatasetFactory, predicates: expressions.PredicatesType = None, frac: float = 1.0
) -> list[tuple[str, str]]:
    """Labels and keys of the files that predicates on indexed columns keep; or of a part, at least one."""
    share: Any = frac
    if not isinstance(share, int | float | np.number) or not 0 < share <= 1:
        raise ValueError(f"frac is {frac!r}, but has to be larger than 0 and smaller than or equal to 1")
    plan = DatasetRead(factory=dataset, predicates=predicates).plan()
    labels, files = plan.partitions.labels, plan.partitions.files[plan.context.table]
    length = len(labels)
    sample = sorted(random.sample(range(length), max(1, int(length * frac)))) if length else []
    rows = pa.array(sample, pa.int64())
    return list(zip(labels.take(rows).to_pylist(), files.take(rows).to_pylist(), strict=True))


def row_groups(store: StoreInput, label: str, key: str) -> pd.DataFrame:
    """Row groups of one file, numbered from 0; only its footer is read."""
    footer, _ = read_footer(open_blobs(store), key)
    totals = (footer.num_rows, footer.num_row_groups, footer.serialized_size)
    rows: list[tuple[Any, ...]] = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        uncompressed = sum(group.column(i).total_uncompressed_size for i in range(group.num_columns))
        rows.append((label, number, group.total_byte_size, uncompressed, *totals, group.num_rows))
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def no_row_groups() -> pd.DataFrame:
    """The frame of :func:`row_groups` without rows."""
    return pd.DataFrame({column: pd.Series(dtype=dtype) for column, dtype in _TYPES.items()})


@attrs.frozen
class ReadTable(DatasetRead):
    """Read a dataset into one frame.

    Parameters
    ----------
    dataset_uuid, store, predicate_pushdown_to_io, categoricals, dates_as_object, predicates
        As in :func:`read_dataset_as_dataframes`.
    factory, table_name, as_of, dtype_backend
        As there.
    columns
        Columns to read, in this order. None: all, partition keys first, the others sorted by name.

    Returns
    -------
    pandas.DataFrame
        With a new index. If nothing matches, it has no rows and the types of the schema.

    Raises
    ------
    KeyError, ValueError, TypeError, RuntimeError
        As :func:`read_dataset_as_dataframes`.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import read_table
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> read_table("geodata", store, predicates=[[("CITY", ">", "C")]])
      COUNTRY_CODE CITY
    0           DE  Ulm
    1           IT  Rom
    """

    categoricals: list[str] | None = None
    dates_as_object: bool = True
    predicates: expressions.PredicatesType = None
    factory: DatasetFactory | None = None
    dispatch_by: str | Sequence[str] | None = attrs.field(default=None, init=False)
    dtype_backend: DtypeBackend | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class ReadDataset(ReadTable):
    """Read a dataset, one frame per partition or per group.

    Parameters
    ----------
    columns
        Columns to read, in this order. None: partition keys, then the columns in the order of the file.
        ``[]``: rows without columns.
    predicate_pushdown_to_io
        Has no effect; accepted for compatibility with kartothek. Predicates are always pushed down.
    categoricals
        Columns that become unordered categoricals; not lists, structs and maps.
    dates_as_object
        Whether dates become :class:`datetime.date` objects; else ``datetime64[ns]``.
    predicates
        Rows to read: a list of conjunctions of ``(column, operator, value)``, one of which has to hold.
    factory
        The dataset itself, instead of ``dataset_uuid`` and ``store``.
    dispatch_by
        Indexed columns. The result has one frame for each combination of their values that the indices hold,
        with exactly the rows of these values. ``[]``: everything in one frame.
    table_name
        Table to read; required only for datasets with several tables.
    as_of
        Version or point in time of the state to read, which is kept until a cleanup
        (:func:`keep_dataset_history`), or a staged write (:ref:`staging`); by default the current state.
    dtype_backend
        ``"numpy_nullable"`` or ``"pyarrow"``: types that can hold missing values and do not depend on the
        values (:ref:`types`). By default NumPy types.

    Returns
    -------
    list of pandas.DataFrame
        Partitions in the order of commit, or groups sorted by their values. Partitions that cannot hold a
        matching row are absent. In a dataset without partition keys, frames keep the index with which they
        were stored; all others have a new one.

    Raises
    ------
    KeyError
        There is no such dataset.
    ValueError
        A column does not exist, or predicates have the wrong form.
    TypeError
        The value of a predicate does not fit its column, or a column of ``categoricals`` is nested.
    RuntimeError
        A column of ``dispatch_by`` has no index, or there are several tables.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.eager import read_dataset_as_dataframes
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> [df["CITY"].tolist() for df in read_dataset_as_dataframes("geodata", store)]
    [['Bonn', 'Ulm'], ['Rom']]
    """

    in_schema_order = False
    row_index = True

    dispatch_by: str | Sequence[str] | None = None


@attrs.frozen
class ReadTableArrow(DatasetRead):
    """Read a dataset into one Arrow table.

    Parameters
    ----------
    dataset_uuid, store, predicate_pushdown_to_io, predicates, factory, table_name, as_of
        As in :func:`read_dataset_as_dataframes`.
    columns
        Columns to read, in this order; by default all.
    categoricals
        Columns that are dictionary-encoded.

    Returns
    -------
    pyarrow.Table
        Columns have the types of the files, partition keys those of the schema: timestamps are in ns, or in
        us (:ref:`types`), dates stay dates, and missing values change no type.

    Raises
    ------
    KeyError, ValueError, TypeError, RuntimeError
        As :func:`read_dataset_as_dataframes`.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.arrow import read_table_arrow
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> read_table_arrow("geodata", store)["CITY"].to_pylist()
    ['Bonn', 'Rom']
    """

    categoricals: list[str] | None = None
    predicates: expressions.PredicatesType = None
    factory: DatasetFactory | None = None
    dispatch_by: str | Sequence[str] | None = attrs.field(default=None, init=False)


@attrs.frozen
class ReadTablesArrow(ReadTableArrow):
    """Parameters of façades whose result are several tables.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.arrow import read_dataset_as_arrow
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> [table["CITY"].to_pylist() for table in read_dataset_as_arrow("geodata", store)]
    [['Bonn'], ['Rom']]
    """

    in_schema_order = False

    dispatch_by: str | Sequence[str] | None = None


@attrs.frozen
class ReadBatches(DatasetRead):
    """Read a dataset as a stream for other engines (DuckDB, polars, Spark).

    Parameters
    ----------
    dataset_uuid, store, predicate_pushdown_to_io, predicates, factory, table_name, as_of
        As in :func:`read_dataset_as_dataframes`.
    columns
        Columns to read, in this order; by default all.

    Returns
    -------
    pyarrow.Table
        Columns have the types of the files, partition keys those of the schema: timestamps are in ns, or in
        us (:ref:`types`), dates stay dates, and missing values change no type.

    Raises
    ------
    KeyError, ValueError, TypeError, RuntimeError
        As :func:`read_dataset_as_dataframes`.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube.io.arrow import read_dataset_as_record_batches
    >>> from kartothek_cube.api.dataset import store_dataframes_as_dataset
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = store_dataframes_as_dataset(store, "geodata", [cities], partition_on="COUNTRY_CODE")
    >>> read_dataset_as_record_batches("geodata", store).read_all()["CITY"].to_pylist()
    ['Bonn', 'Rom']
    """

    predicates: expressions.PredicatesType = None
    factory: DatasetFactory | None = None
    categoricals: list[str] | None = attrs.field(default=None, init=False)
    dispatch_by: str | Sequence[str] | None = attrs.field(default=None, init=False)


@attrs.frozen
class ReadGroups(ReadBatches):
    """A read whose result are rows, those of a group together."""

    dispatch_by: str | Sequence[str] | None = None


@attrs.frozen
class RepeatedCells:
    """Cells that occur in several cube partitions."""

    count: int
    #: one of these cells, by dimension column
    example: Mapping[str, Any]
    #: two partitions with that cell, as in labels
    places: tuple[str, str]
    #: a file with that cell
    key: str

    def __str__(self) -> str:
        columns = ", ".join(sorted(self.example))
        verb = "cell of {} is" if self.count == 1 else "cells of {} are"
        return (
            f"{self.count} {verb.format(columns)} in several partitions, such as {dict(self.example)} in "
            f"{' and '.join(self.places)}"
        )


def find_repeated_cells(
    blobs: BlobStore,
    dimensions: Sequence[str],
    partition_columns: Sequence[str],
    files: PartitionTable,
    table: str,
    schema: pa.Schema,
    indices: Mapping[str, IndexColumns],
    is_new: Mask | None = None,
) -> RepeatedCells | None:
    """Find cells in files of different cube partitions; `is_new`: those of which one is in a new file."""
    # Opens only files that have, in each indexed dimension, a value that another partition has as well.
    if not len(files):
        return None
    folders = group_codes(list(files.keys(partition_columns, schema).values()), len(files))
    keep = np.ones(len(files), dtype=bool)
    for index in indices.values():
        positions = index.positions(files)
        is_stored = positions >= 0
        positions, values = positions[is_stored], index.value_ids()[is_stored]
        repeated = _is_repeated(values, folders[positions], None if is_new is None else is_new[positions])
        shared = np.zeros(len(files), dtype=bool)
        shared[positions[repeated]] = True
        keep &= shared
    candidates = np.flatnonzero(keep)
    if not len(np.unique(folders[candidates])) > 1:
        return None
    keys: list[str] = files.take(candidates).files[table].to_pylist()
    tables = list(read_files(blobs, keys, list(dimensions)))
    rows = concat_promoted(tables)
    row_files = np.repeat(candidates, [len(part) for part in tables])
    cells = group_codes([rows.column(column) for column in dimensions], len(rows))
    repeated = _is_repeated(cells, folders[row_files], None if is_new is None else is_new[row_files])
    if not repeated.any():
        return None
    same = np.flatnonzero(cells == cells[np.flatnonzero(repeated)[0]])
    first = row_files[same[0]]
    other = row_files[same[folders[row_files[same]] != folders[first]][0]]
    labels = [files.labels[int(position)].as_py().rpartition("/")[0] for position in (first, other)]
    return RepeatedCells(
        len(np.unique(cells[repeated])),
        {column: rows.column(column)[int(same[0])].as_py() for column in dimensions},
        (labels[0], labels[1]),
        files.take([int(first)]).files[table][0].as_py(),
    )


def _is_repeated(codes: Ints, folders: Ints, is_new: Mask | None) -> Mask:
    """Mask of the rows whose code occurs in several folders; `is_new`: and in a new row."""
    if not len(codes):
        return np.zeros(0, dtype=bool)
    size = int(codes.max()) + 1
    low, high = np.full(size, folders.max()), np.full(size, -1)
    np.minimum.at(low, codes, folders)
    np.maximum.at(high, codes, folders)
    repeated: Mask = low < high
    if is_new is not None:
        repeated &= np.bincount(codes[is_new], minlength=size) > 0
    return repeated[codes]
