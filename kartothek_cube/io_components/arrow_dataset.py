"""Lazy datasets: cubes and datasets as ``pyarrow.dataset.Dataset`` and LazyFrame, planned on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from contextvars import Context, copy_context
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, get_args

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow import acero, fs

from kartothek_cube.core.arrow import cast_column, zero_column_table
from kartothek_cube.core.cube import consistency, discover, implied_conditions
from kartothek_cube.core.cube.conditions import ConditionsInput, Conjunction
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions import Tree
from kartothek_cube.core.factory import DatasetAsOf
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import StoreFactory, open_blobs
from kartothek_cube.io_components import dataset_read, runtime
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf, datasets_as_of
from kartothek_cube.io_components.query import executor, logical_plan, physical_plan
from kartothek_cube.io_components.scan import count_rows

if TYPE_CHECKING:
    import polars

#: rows of a batch, as in pyarrow
_BATCH_SIZE = 1 << 17

Columns: TypeAlias = Sequence[str] | Mapping[str, pc.Expression] | None
"""Columns of a scan: names, expressions by name, or None for all."""

TimestampUnit: TypeAlias = Literal["s", "ms", "us", "ns"]
"""Unit of all timestamps."""


class _NoFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """Handler of a file system without files; the error of opening one names the method to call."""

    def _fail(self, *arguments: object) -> NoReturn:
        raise NotImplementedError(
            "a dataset of kartothek_cube has no files that pyarrow could scan; "
            "pass its scanner(...).to_reader() or to_table(...) instead"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NoFiles)

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, _NoFiles)

    def __hash__(self) -> int:
        return hash(_NoFiles)

    def get_type_name(self) -> str:
        return "kartothek_cube"

    def normalize_path(self, path: str) -> str:
        return path

    get_file_info = get_file_info_selector = open_input_file = open_input_stream = _fail
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _fail
    move = copy_file = open_output_stream = open_append_stream = _fail


def _unreadable_dataset(schema: pa.Schema) -> pads.Dataset:
    files, form = fs.PyFileSystem(_NoFiles()), pads.IpcFileFormat()
    fragment = form.make_fragment("cube", filesystem=files)
    return pads.FileSystemDataset([fragment], schema, form, filesystem=files)


class LazyDataset(pads.UnionDataset):  # type: ignore[misc]
    """Rows of a cube or a dataset for other engines, as a ``pyarrow.dataset.Dataset``.

    DuckDB, Polars and whatever reads datasets of pyarrow or the Arrow C stream can query it. Nothing is read
    before a scan, and each scan sees one snapshot, the newest one unless the dataset was opened otherwise.
    The columns of a scan decide which files and which parts of them are opened; what a filter implies about
    single columns prunes partitions, indices and row groups. The whole filter is evaluated on the rows.
    """

    def __init__(
        self, source: CubeSource | DatasetSource, *, schema: pa.Schema, filters: Sequence[pc.Expression] = ()
    ) -> None:
        super().__init__(schema, [_unreadable_dataset(schema)])
        self._source = source
        self._filters = tuple(filters)
        # the limit of threads and the listener for progress, which threads of engines do not have
        self._context = copy_context()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LazyDataset, self._source, schema=self.schema, filters=self._filters), ()

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        batch_size: int = _BATCH_SIZE,
        *,
        condition: implied_conditions.ImpliedCondition | None = None,
        **options: object,
    ) -> LazyScanner:
        """Plan a scan of the rows that match a condition as well; options of pyarrow change nothing."""
        # pyarrow's methods to read rows (`to_table`, `to_batches`, `head`, `take`) call this one
        if isinstance(columns, str):
            raise TypeError("columns is a list of names, got a single one")
        schema: pa.Schema = self.schema
        filters = [*self._filters, *(() if filter is None else (filter,))]
        combined = reduce(and_, filters) if filters else None
        projected = list(columns.values()) if isinstance(columns, Mapping) else []
        computed = [*projected, *filters]
        names = [] if isinstance(columns, Mapping) else list(schema.names if columns is None else columns)
        needed = {*names, *_columns_of(computed, schema)}
        unknown = needed - set(schema.names)
        if unknown:
            raise ValueError(f"no column {', '.join(sorted(map(str, unknown)))} in {self._source}")
        read = [name for name in schema.names if name in needed] or schema.names[:1]
        read_schema = pa.schema([schema.field(name) for name in read])
        if combined is not None:
            # a mistake is an error, whether the plan leaves any rows or not
            read_schema.empty_table().filter(combined)
        of_filters = None if combined is None else implied_conditions.imply_condition(combined, schema)
        implied = [each for each in (condition, of_filters) if each is not None]
        condition = Conjunction(implied) if implied else None
        return LazyScanner(
            scan=self._context.copy().run(lambda: self._source.plan(read, condition)),
            read_schema=read_schema,
            columns=dict(columns) if isinstance(columns, Mapping) else names,
            filter=combined,
            batch_size=batch_size,
            dataset_schema=schema,
            context=self._context,
        )

    def count_rows(
        self, filter: pc.Expression | None = None, batch_size: int = _BATCH_SIZE, **options: object
    ) -> int:
        """Number of rows; without a filter, mostly from the footers of the files."""
        return self.scanner((), filter, batch_size).count_rows()

    def filter(self, expression: pc.Expression) -> LazyDataset:
        """Return the dataset of the rows for which an expression is true."""
        return LazyDataset(self._source, schema=self.schema, filters=(*self._filters, expression))

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Refuse, as the types are those of the store."""
        raise NotImplementedError("the schema of a cube is that of its store; cast the columns of the result")

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        """Refuse, as single files do not have the rows of a cube."""
        raise NotImplementedError("single files do not have the rows of a cube; use to_batches()")

    def sort_by(self, sorting: str | list[tuple[str, str]], **options: object) -> pads.InMemoryDataset:
        """All rows in another order, in memory."""
        return pads.InMemoryDataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: pads.Dataset, *args: Any, **options: Any) -> pads.InMemoryDataset:
        """Join with another dataset, in memory."""
        left, right = (pads.InMemoryDataset(dataset.to_table()) for dataset in (self, right_dataset))
        return left.join(right, *args, **options)

    def join_asof(self, right_dataset: pads.Dataset, *args: Any, **options: Any) -> pads.InMemoryDataset:
        """As-of join with another dataset, in memory."""
        left, right = (pads.InMemoryDataset(dataset.to_table()) for dataset in (self, right_dataset))
        return left.join_asof(right, *args, **options)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        filters = "".join(f"\nfilter: {expression}" for expression in self._filters)
        return f"<{self._source}>\n{self.schema.to_string(show_schema_metadata=False)}{filters}"


def _columns_of(expressions: Iterable[pc.Expression], schema: pa.Schema) -> set[str]:
    """Columns that expressions need: all where that is not known."""
    columns: set[str] = set()
    for expression in expressions:
        decoded = implied_conditions.decode_expression(expression)
        columns |= set(schema.names) if decoded is None else implied_conditions.fields_of(decoded)
    return columns


@attrs.frozen(repr=False, eq=False)
class LazyScanner:
    """Planned scan, with the methods of ``pyarrow.dataset.Scanner``."""

    # It reads only when the consumer asks for the next batch, and a few partitions ahead: the scanner of C++
    # reads its source to the end even if the consumer stops.

    scan: CubeScan | FileScan
    #: columns that are read
    read_schema: pa.Schema
    #: columns of the result: names, or expressions by name
    columns: Sequence[str] | Mapping[str, pc.Expression]
    filter: pc.Expression | None
    batch_size: int
    dataset_schema: pa.Schema
    context: Context

    @property
    def projected_schema(self) -> pa.Schema:
        """Columns and types of the result."""
        return self._project(self.read_schema.empty_table()).schema

    def to_reader(self) -> pa.RecordBatchReader:
        """Stream of the result."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_batches(self, *, sequential: bool = False) -> Iterator[pa.RecordBatch]:
        """Batches of the result, none of them empty; ``sequential``: nothing is read ahead."""
        for table in self._tables(sequential=sequential):
            yield from table.to_batches(max_chunksize=self.batch_size)

    def to_table(self) -> pa.Table:
        """All rows of the result."""
        return pa.Table.from_batches(self.to_batches(), schema=self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows of the result; reading stops when there are enough."""
        batches: list[pa.RecordBatch] = []
        missing = num_rows
        for table in self._tables(sequential=True) if num_rows > 0 else ():
            # Arrow does not bound slices, nor count rows in `concat_tables`, of tables without columns
            count = min(missing, len(table))
            batches += table.slice(0, count).to_batches()
            missing -= count
            if not missing:
                break
        return pa.Table.from_batches(batches, schema=self.projected_schema)

    def take(self, indices: pa.Array | Sequence[int]) -> pa.Table:
        """Rows of the result by number."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """Number of rows of the result."""
        count = self.context.copy().run(self.scan.count_rows) if self.filter is None else None
        if count is not None:
            return count
        return sum(self._filter(table).num_rows for table in self._read(sequential=False))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _tables(self, *, sequential: bool = False) -> Iterator[pa.Table]:
        for table in self._read(sequential=sequential):
            filtered = self._filter(table)
            if filtered.num_rows:
                yield self._project(filtered)

    def _read(self, *, sequential: bool) -> Iterator[pa.Table]:
        """Tables of the source, read in the context in which the dataset was opened."""
        context, tables = self.context.copy(), self.scan.tables(sequential=sequential)
        while (table := context.run(next, tables, None)) is not None:
            yield table

    def _filter(self, table: pa.Table) -> pa.Table:
        typed = cast_table(table, self.read_schema)
        return typed if self.filter is None else typed.filter(self.filter)

    def _project(self, table: pa.Table) -> pa.Table:
        if not isinstance(self.columns, Mapping):
            return table.select(list(self.columns))
        source = acero.TableSourceNodeOptions(table)
        project = acero.ProjectNodeOptions(list(self.columns.values()), list(self.columns))
        steps = [acero.Declaration("table_source", source), acero.Declaration("project", project)]
        # several threads would change the order of the rows
        return acero.Declaration.from_sequence(steps).to_table(use_threads=False)


def in_unit(schema: pa.Schema, unit: TimestampUnit) -> pa.Schema:
    """The schema with all timestamps in a unit."""
    if unit not in get_args(TimestampUnit):
        known = ", ".join(map(repr, get_args(TimestampUnit)))
        raise ValueError(f"timestamp_unit is one of {known}, got {unit!r}")
    types = [pa.timestamp(unit, t.tz) if pa.types.is_timestamp(t) else t for t in schema.types]
    return pa.schema(list(zip(schema.names, types, strict=True)))


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Lossless cast of the columns of a schema, in its order."""
    columns = [cast_column(table.column(field.name), field.type, field.name) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema) if columns else zero_column_table(len(table))


# -- polars -------------------------------------------------------------------------------------------------


def scan_lazily(dataset: LazyDataset) -> polars.LazyFrame:
    """LazyFrame that scans a dataset each time it is collected."""
    import polars
    from polars.io.plugins import register_io_source

    schema: pa.Schema = dataset.schema
    empty = polars.DataFrame(schema.empty_table())

    def scan(
        columns: list[str] | None, predicate: polars.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[polars.DataFrame]:
        selected = schema.names if columns is None else columns
        # the predicate decides about rows, not its translation: NaN is the greatest value for polars
        needed = selected if predicate is None else [*selected, *predicate.meta.root_names()]
        # a limit counts rows before the predicate: polars gives both for head(n).filter(...)
        condition = None
        if predicate is not None and n_rows is None:
            condition = implied_conditions.imply_polars(predicate, schema)
        size = _BATCH_SIZE if batch_size is None else max(1, batch_size)
        read = list(dict.fromkeys(needed)) or schema.names[:1]
        scanner = dataset.scanner(read, batch_size=size, condition=condition)
        # by index: to `select`, names may be patterns
        first = empty[read]
        # a mistake is an error, whether the plan leaves any rows or not
        yield (first if predicate is None else first.filter(predicate))[selected]
        missing = n_rows
        for batch in scanner.to_batches(sequential=True) if missing is not None else scanner.to_batches():
            frame = polars.DataFrame(batch)
            if missing is not None:
                frame = frame.head(missing)
                missing -= frame.height
            frame = frame if predicate is None else frame.filter(predicate)
            # without columns, a frame has no rows: those of the first column are counted
            yield frame[selected or schema.names[:1]]
            if missing == 0:
                return

    return register_io_source(scan, schema=empty.schema)


@attrs.frozen
class CubeScan:
    """Scan of the cells of a cube, partition by partition, in bounded memory."""

    plan: physical_plan.PhysicalPlan
    columns: tuple[str, ...]

    def tables(self, *, sequential: bool = False) -> Iterator[pa.Table]:
        """Rows of some partitions at a time, few of the first ones."""
        return executor.announce_end(self.plan, self._tables(sequential=sequential))

    def _tables(self, *, sequential: bool) -> Iterator[pa.Table]:
        if self.plan.is_empty:
            return
        runtime.progress_add_total(self.plan.n_files)
        tasks = list(physical_plan.plan_iteration(self.plan))
        threads = 1 if sequential else runtime.available_cores()
        # one thread per task: more of them than cores wait for each other
        is_parallel = threads > 1 and len(tasks) > 2 and open_blobs(self.plan.context.store).is_local
        read = partial(self._read, threads=1 if is_parallel else None)
        for table in runtime.prefetch_map(read, tasks, threads):
            if table is not None:
                yield table

    def count_rows(self) -> int | None:
        """Number of rows, if most of it is in footers; None otherwise."""
        context = self.plan.context
        (seed, *others), files = context.scans, self.plan.files[0]
        if others or seed.predicates or context.join_filters:
            return None
        if self.plan.is_empty:
            executor.announce_query(self.plan, 0)
            return 0
        # the cells in one file are unique; those of several may be versions of the same cell
        is_single = files.count_files() == 1
        blobs = context.open_store()
        keys = files.of_partitions(np.flatnonzero(is_single)).keys
        if not all(key.endswith(PARQUET_FILE_SUFFIX) for key in keys):
            return None
        remaining = self.plan.partition_tasks(np.flatnonzero(~is_single)[:, None])
        tables = runtime.prefetch_map(self._read, remaining, runtime.available_cores())
        n_rows = count_rows(blobs, keys) + sum(len(table) for table in tables if table is not None)
        executor.announce_query(self.plan, n_rows)
        return n_rows

    def _read(self, task: physical_plan.ScanTask, threads: int | None = None) -> pa.Table | None:
        # consumers are promised no order: partition by partition, nothing is sorted
        unsorted = attrs.evolve(self.plan.context, sort_columns=())
        context, task = physical_plan.project(unsorted, task, self.columns)
        with nullcontext() if threads is None else runtime.limit_threads(threads):
            tables = executor.run_task(context, task)
        return tables[0] if tables else None


@attrs.frozen(repr=False)
class CubeSource:
    """The cells of a cube: rows of the seed, with the columns of all datasets."""

    # Or the rows of one dataset of the cube, of each cell the version written last.

    cube: Cube = attrs.field()
    store: StoreFactory
    conditions: ConditionsInput = None
    datasets: discover.DatasetsInput = None
    as_of: CubeAsOf | None = None
    dataset_id: str | None = None

    @cube.validator
    def _check(self, attribute: object, value: object) -> None:
        ensure_cube(value)

    def __repr__(self) -> str:
        if self.dataset_id is None:
            return f"cube {self.cube.uuid_prefix}"
        return f"dataset {self.cube.ktk_dataset_uuid(self.dataset_id)}"

    def read_schema(self) -> pa.Schema:
        """Columns and types as they are now."""
        return self._plan(None, self.conditions).context.output

    def plan(self, columns: Sequence[str], condition: implied_conditions.ImpliedCondition | None) -> CubeScan:
        """Plan a scan of the current snapshot; rows that do not meet the condition may be in it."""
        more = () if condition is None else (condition,)
        conditions = implied_conditions.join_conditions(self.conditions, more)
        try:
            plan = self._plan(columns, conditions)
        except (NotImplementedError, TypeError, ValueError):
            # a filter that conditions cannot express is evaluated on the rows only; other errors come again
            if condition is None:
                raise
            plan = self._plan(columns, self.conditions)
        return CubeScan(plan, tuple(columns))

    def _plan(self, columns: Sequence[str] | None, conditions: ConditionsInput) -> physical_plan.PhysicalPlan:
        cube, datasets, as_of, name = self.cube, self.datasets, self.as_of, self.dataset_id
        if name is not None:
            dataset, as_of = self._load_dataset(name), None
            own, keys = consistency.get_dataset_columns(dataset), dataset.partition_keys or ()
            dimensions = [column for column in cube.dimension_columns if column in own]
            partition_columns = [column for column in cube.partition_columns if column in keys]
            datasets = {name: dataset}
            cube = Cube(dimensions, partition_columns, cube.uuid_prefix, name, suppress_index_on=dimensions)
        return physical_plan.plan_table(
            logical_plan.QueryTable(cube, self.store, conditions, datasets, columns=columns, as_of=as_of)
        )

    def _load_dataset(self, name: str) -> DatasetMetadata:
        prefix = self.cube.uuid_prefix
        datasets: Mapping[str, DatasetMetadata]
        if self.as_of is not None:
            datasets = datasets_as_of(self.cube, self.store, self.as_of)
        else:
            datasets = discover.select_datasets(self.cube, self.store, name)
        if name not in datasets:
            known = discover.discover_datasets_unchecked(prefix, self.store, load_schema=False)
            discover.choose_datasets(self.cube, name, known)
        return datasets[name]


@attrs.frozen
class FileScan:
    """Scan of the files of a dataset."""

    plan: dataset_read.ReadPlan

    def tables(self, *, sequential: bool = False) -> Iterator[pa.Table]:
        """Rows of some files at a time, few of the first ones."""
        count = len(self.plan.partitions)
        if not count:
            return
        tasks = self.plan.block_tasks(runtime.scan_bounds(np.full(count, self.plan.file_bytes())))
        read = partial(dataset_read.run_read, self.plan.context)
        yield from runtime.prefetch_map(read, tasks, 1 if sequential else runtime.available_cores())

    def count_rows(self) -> int | None:
        """Number of rows, if it is in footers; None otherwise."""
        keys: list[str] = self.plan.partitions.files[self.plan.context.table].to_pylist()
        if self.plan.context.where is not None or not all(k.endswith(PARQUET_FILE_SUFFIX) for k in keys):
            return None
        return count_rows(open_blobs(self.plan.context.store), keys)


@attrs.frozen(repr=False)
class DatasetSource:
    """All rows of a dataset."""

    dataset_uuid: str
    store: StoreFactory
    table_name: str | None = None
    as_of: DatasetAsOf | None = None

    def __repr__(self) -> str:
        return f"dataset {self.dataset_uuid}"

    def read_schema(self) -> pa.Schema:
        """Columns and types as they are now."""
        return dataset_read.empty_table(self._plan(None, None).context).schema.remove_metadata()

    def plan(self, columns: Sequence[str], condition: implied_conditions.ImpliedCondition | None) -> FileScan:
        """Plan a scan of the current snapshot."""
        if condition is not None:
            schema = self._plan(None, None).context.schema
            where = Conjunction(condition).to_tree({field.name: field.type for field in schema})
            try:
                return FileScan(self._plan(columns, where))
            except (NotImplementedError, TypeError, ValueError):
                # a filter that predicates cannot express is evaluated on the rows only
                pass
        return FileScan(self._plan(columns, None))

    def _plan(self, columns: Sequence[str] | None, where: Tree | None) -> dataset_read.ReadPlan:
        names, table = None if columns is None else list(columns), self.table_name
        read = partial(dataset_read.DatasetRead, self.dataset_uuid, self.store, names)
        return read(predicates=where, table_name=table, as_of=self.as_of).plan()
