"""Lazy datasets: what looks like a ``pyarrow.dataset.Dataset`` and plans each scan on demand; LazyFrames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow import acero, fs

from kartothek_cube.core.arrow import cast_column
from kartothek_cube.core.cube.conditions import Conjunction
from kartothek_cube.core.cube.implied_conditions import (
    ImpliedCondition,
    decode_expression,
    fields_of,
    imply_condition,
    imply_polars,
)

if TYPE_CHECKING:
    import polars

#: rows of a batch, as in pyarrow
_BATCH_SIZE = 1 << 17

Columns: TypeAlias = Sequence[str] | Mapping[str, pc.Expression] | None
"""Columns of a scan: names, expressions by name, or None for all."""

TimestampUnit: TypeAlias = Literal["s", "ms", "us", "ns"]
"""Unit of all timestamps."""


class SourceScan(ABC):
    """Planned scan of one snapshot; it can be read several times."""

    @abstractmethod
    def tables(self, *, sequential: bool = False) -> Iterator[pa.Table]:
        """Rows with at least the columns of the scan; ``sequential``: nothing is read ahead."""

    @abstractmethod
    def count_rows(self) -> int | None:
        """Number of rows; None if they have to be read."""


class RowSource(ABC):
    """What a lazy dataset reads from; it can be pickled if its store can."""

    @abstractmethod
    def read_schema(self) -> pa.Schema:
        """Columns and types as they are now."""

    @abstractmethod
    def plan(self, columns: Sequence[str], condition: ImpliedCondition | None) -> SourceScan:
        """Plan a scan of the current snapshot; rows that do not meet the condition may be in it."""


class _NoFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """Handler of a file system without files; opening one tells what to call instead."""

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
    return pads.FileSystemDataset(
        [form.make_fragment("cube", filesystem=files)], schema, form, filesystem=files
    )


class LazyDataset(pads.UnionDataset):  # type: ignore[misc]
    """Rows of a cube or a dataset for other engines, as a ``pyarrow.dataset.Dataset``.

    DuckDB, Polars and whatever reads datasets of pyarrow or the Arrow C stream can query it. Nothing is read
    before a scan, and each scan sees one snapshot, the newest one unless the dataset was opened otherwise.
    The columns of a scan decide which files and which parts of them are opened; what a filter implies about
    single columns prunes partitions, indices and row groups. The whole filter is evaluated on the rows.
    """

    def __init__(
        self, source: RowSource, *, schema: pa.Schema, filters: Sequence[pc.Expression] = ()
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
        condition: ImpliedCondition | None = None,
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
        unknown = set(names) - set(schema.names)
        if unknown:
            raise ValueError(f"no column {', '.join(sorted(unknown))} in {self._source}")
        needed = {*names, *_columns_of(computed, schema)}
        read = [name for name in schema.names if name in needed] or schema.names[:1]
        of_filters = None if combined is None else imply_condition(combined, schema)
        implied = [each for each in (condition, of_filters) if each is not None]
        return LazyScanner(
            scan=self._context.copy().run(self._source.plan, read, Conjunction(implied) if implied else None),
            read_schema=pa.schema([schema.field(name) for name in read]),
            columns=dict(columns) if isinstance(columns, Mapping) else names,
            filter=combined,
            batch_size=batch_size,
            dataset_schema=schema,
            context=self._context,
        )

    def count_rows(
        self,
        filter: pc.Expression | None = None,
        batch_size: int = _BATCH_SIZE,
        **options: object,
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
        decoded = decode_expression(expression)
        columns |= set(schema.names) if decoded is None else fields_of(decoded)
    return columns


@attrs.frozen(repr=False, eq=False)
class LazyScanner:
    """Planned scan, with the methods of ``pyarrow.dataset.Scanner``.

    It reads only when the consumer asks for the next batch, and a few partitions ahead: the scanner of C++
    reads its source to the end even if the consumer stops.
    """

    scan: SourceScan
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
        tables: list[pa.Table] = []
        missing = num_rows
        for table in self._tables(sequential=True) if num_rows > 0 else ():
            tables.append(table.slice(0, missing))
            missing -= len(tables[-1])
            if not missing:
                break
        return pa.concat_tables(tables) if tables else self.projected_schema.empty_table()

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
        columns = [cast_column(table.column(f.name), f.type, f.name) for f in self.read_schema]
        typed = pa.Table.from_arrays(columns, schema=self.read_schema)
        return typed if self.filter is None else typed.filter(self.filter)

    def _project(self, table: pa.Table) -> pa.Table:
        if not isinstance(self.columns, Mapping):
            return table.select(list(self.columns))
        steps = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration(
                "project", acero.ProjectNodeOptions(list(self.columns.values()), list(self.columns))
            ),
        ]
        # several threads would change the order of the rows
        return acero.Declaration.from_sequence(steps).to_table(use_threads=False)


def in_unit(schema: pa.Schema, unit: TimestampUnit) -> pa.Schema:
    """The schema with all timestamps in a unit."""
    return pa.schema(
        [(f.name, pa.timestamp(unit, f.type.tz) if pa.types.is_timestamp(f.type) else f.type) for f in schema]
    )


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
        is_filter = predicate is not None and n_rows is None
        scanner = dataset.scanner(
            columns=list(dict.fromkeys(needed)) or schema.names[:1],
            condition=imply_polars(predicate, schema) if predicate is not None and is_filter else None,
            **({} if batch_size is None else {"batch_size": max(1, batch_size)}),
        )
        yield empty.select(selected)
        missing = n_rows
        for batch in scanner.to_batches(sequential=True) if missing is not None else scanner.to_batches():
            frame = polars.DataFrame(batch)
            if missing is not None:
                frame = frame.head(missing)
                missing -= frame.height
            frame = frame if predicate is None else frame.filter(predicate)
            # without columns, a frame has no rows: those of the first column are counted
            yield frame.select(selected or schema.names[:1])
            if missing == 0:
                return

    return register_io_source(scan, schema=empty.schema)
