"""The Spark data source ``format("kartothek_cube")``: reads, SQL views, writes and streams."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.types as pat
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import DataType, StructType

from kartothek_cube.core.arrow.types import number_bits, with_number_bits
from kartothek_cube.core.cube.conditions import C, Condition
from kartothek_cube.core.cube.consistency import get_dataset_columns
from kartothek_cube.core.cube.discover import discover_cube
from kartothek_cube.core.cube.implied_conditions import join_conditions
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import KartothekCubeError, unknown_names
from kartothek_cube.core.expressions import bind
from kartothek_cube.io.spark import _datasource_writer
from kartothek_cube.io.spark._datasource_options import (
    FORMAT,
    ReadOptions,
    StreamOptions,
    concise_errors,
    keep_options,
    table_options,
)
from kartothek_cube.io.spark._datasource_stream import CubeStreamReader, FailedStreamReader
from kartothek_cube.io.spark._session import picklable_store
from kartothek_cube.io.spark._spark_executor import batches_of, hide_traceback, unpickle
from kartothek_cube.io.spark._types import arrow_schema, spark_schema
from kartothek_cube.io_components.query.cube_query import QueryCube
from kartothek_cube.io_components.query.executor import run_task
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, ScanContext, split_into_tasks
from kartothek_cube.io_components.query.planner import plan_query

#: tasks per worker; each costs some 40 ms more than in `mapInArrow`
_TASKS_PER_WORKER = 2
#: Spark 4.1 to 4.3 hand what one scan of a table pushed to all others, in the same query and in later ones.
#: They do so no longer since limits are pushed as well.
_SCANS_ARE_SEPARATE = hasattr(DataSourceReader, "pushLimit")


class CubePartition(InputPartition):
    """A pickled task of a query."""

    def __init__(self, task: bytes) -> None:
        super().__init__(None)
        self.task = task


class CubeReader(DataSourceReader):
    """Reads a query in tasks that run ``workers`` at a time."""

    def __init__(self, options: ReadOptions, schema: StructType, workers: int) -> None:
        self._options = options
        self._schema = schema
        self._workers = workers
        self._conditions: list[Condition] = []
        self._plan: PhysicalPlan | None = None
        self._context: ScanContext | None = None

    @property
    def takes_filters(self) -> bool:
        """Whether filters of Spark become part of the plan."""
        return _SCANS_ARE_SEPARATE or self._options.push_filters

    @concise_errors
    def pushFilters(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        """
        Take filters that mean the same for a cube, and return the others.

        Only if ``push_filters`` says that no other scan shares them: Spark mixes up those of several scans.
        """
        if not self.takes_filters:
            return filters
        self._conditions, remaining_filters = to_conditions(
            filters, _plan_query(self._options, schema=self._schema).context.output
        )
        return remaining_filters

    @concise_errors
    def partitions(self) -> Sequence[InputPartition]:
        """Cut the query into tasks."""
        tasks = split_into_tasks(self.plan_query(), self._workers, _TASKS_PER_WORKER)
        return [CubePartition(pickle.dumps(task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read, join and filter the files of a task."""
        if isinstance(partition, CubePartition) and self._context is not None:
            with hide_traceback():
                for table in run_task(self._context, unpickle(partition.task)):
                    yield from batches_of(table, arrow_schema(self._schema))

    def plan_query(self) -> PhysicalPlan:
        """The query, planned once filters are known."""
        if self._plan is None:
            self._plan = _plan_query(self._options, self._conditions, self._schema)
            self._context = self._plan.context
        return self._plan

    def __getstate__(self) -> dict[str, object]:
        # Spark pickles the reader for tasks before it asks for partitions; they need no more than this
        self.plan_query()
        return {**self.__dict__, "_plan": None}


class KartothekCubeDataSource(DataSource):
    """Cubes as tables of Spark; see :func:`kartothek_cube.io.spark.register`."""

    #: number of tasks that a session runs at the same time
    workers = 8

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return FORMAT

    @concise_errors
    def schema(self) -> StructType:
        """Columns and types of a cube."""
        options = ReadOptions.of(table_options(self.options, StructType()))
        return keep_options(self.options, spark_schema(_columns(options)))

    @concise_errors
    def reader(self, schema: StructType) -> CubeReader:
        """The reader of a cube."""
        reader = CubeReader(ReadOptions.of(table_options(self.options, schema)), schema, self.workers)
        if not reader.takes_filters:
            # an error while Spark pickles the reader would be less clear
            reader.plan_query()
        return reader

    def streamReader(self, schema: StructType) -> CubeStreamReader | FailedStreamReader:
        """The reader of what is appended to a dataset."""
        try:
            return self._stream_reader(schema)
        except (KartothekCubeError, ValueError, TypeError) as error:
            return FailedStreamReader(error)

    def _stream_reader(self, schema: StructType) -> CubeStreamReader:
        options = StreamOptions.of(table_options(self.options, schema))
        cube, datasets = discover_cube(options.read.cube, picklable_store(options.read.store))
        name, names = options.read.dataset or cube.seed_dataset, ", ".join(sorted(datasets))
        _check_name(name, datasets)
        missing = set(schema.names) - get_dataset_columns(datasets[name])
        if missing:
            raise ValueError(
                f"Format {FORMAT}: a stream reads one dataset, and {name!r} has no column(s) "
                f"{', '.join(sorted(missing))}; name it in the option 'dataset': {names}"
            )
        return CubeStreamReader(options, cube.ktk_dataset_uuid(name), schema, self.workers)

    @concise_errors
    def writer(self, schema: StructType, overwrite: bool) -> _datasource_writer.CubeWriter:
        """The writer of a frame."""
        # not with the options of a table: columns that were read from it keep them, wherever they are written
        return _datasource_writer.batch_writer(self.options, schema, overwrite)

    @concise_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> _datasource_writer.CubeStreamWriter:
        """The writer of the batches of a stream; ``overwrite``: each batch replaces all earlier ones."""
        return _datasource_writer.stream_writer(self.options, schema, overwrite)


def data_source(workers: int) -> type[KartothekCubeDataSource]:
    """The data source for a session with this many workers, which it cannot determine by itself."""
    return type("KartothekCubeDataSource", (KartothekCubeDataSource,), {"workers": workers})


def _columns(options: ReadOptions) -> pa.Schema:
    """Columns of a table, with their types."""
    columns = _plan_query(options).context.output
    if options.dataset is None or options.columns is not None:
        return columns
    _, datasets = discover_cube(options.cube, picklable_store(options.store))
    _check_name(options.dataset, datasets)
    own = get_dataset_columns(datasets[options.dataset])
    return pa.schema([field for field in columns if field.name in own])


def _check_name(name: str, datasets: Mapping[str, DatasetMetadata]) -> None:
    if name not in datasets:
        raise ValueError(f"Format {FORMAT}: {unknown_names('dataset', [name], sorted(datasets))}")


def _plan_query(
    options: ReadOptions, conditions: Sequence[Condition] = (), schema: StructType | None = None
) -> PhysicalPlan:
    store = picklable_store(options.store)
    cube, datasets = discover_cube(options.cube, store, options.datasets)
    columns = options.columns if schema is None else schema.names
    if schema is not None and options.as_of is None:
        _check_names(schema, datasets)
    query = QueryCube(
        cube,
        store,
        conditions=join_conditions(options.conditions, conditions),
        datasets=datasets if options.as_of is None else options.datasets,
        dimension_columns=options.dimension_columns,
        payload_columns=columns,
        as_of=options.as_of,
    )
    plan = plan_query(query)
    if schema is not None:
        _check_types(schema, plan)
    return plan


def _check_names(expected: StructType, datasets: Mapping[str, DatasetMetadata]) -> None:
    missing = set(expected.names).difference(*map(get_dataset_columns, datasets.values()))
    if missing:
        raise ValueError(
            f"Format {FORMAT}: the cube has no column(s) {', '.join(sorted(missing))} of this table or "
            "schema. A table does not follow changes of the cube: drop and create it"
        )


def _check_types(expected: StructType, plan: PhysicalPlan) -> None:
    output = plan.context.output
    types = {field.name: field.dataType for field in spark_schema(output)}
    for field in expected:
        # numbers are narrower in the files that are read than in all, or than they were
        if field.dataType not in _wider_types(output.field(field.name).type, field.name):
            raise ValueError(
                f"Column {field.name!r} of the cube has type {types[field.name].simpleString()}, but the "
                f"schema says {field.dataType.simpleString()}: leave the schema out, and cast the column"
            )


def _wider_types(dtype: pa.DataType, column: str) -> list[DataType]:
    """The types of Spark that hold a type of Arrow, and its numbers with more bits."""
    bits = [bits for bits in (8, 16, 32, 64) if bits > number_bits(dtype) > 0]
    types = [dtype, *(with_number_bits(dtype, width) for width in bits)]
    return [field.dataType for field in spark_schema(pa.schema([(column, t) for t in types]))]


# -- filters -------------------------------------------------------------------------------------------------

#: Spark knows microseconds, the library nanoseconds; Spark sees times rounded down
_MICROSECOND = pd.Timedelta(1, "us")
#: Spark hands decimals over rounded to 28 digits: those that have as many may be others
_MAX_DIGITS = 28
#: and the days that the Gregorian calendar left out, 1582-10-05 to 1582-10-14, as the one that followed
_FIRST_GREGORIAN_DAY = date(1582, 10, 15).toordinal()
#: "not in" becomes one condition per value
_MANY = 100

_COMPARISONS: Mapping[type, Callable[[Any, Any], Condition]] = {
    ds.EqualTo: lambda c, v: c == v,
    ds.EqualNullSafe: lambda c, v: c == v,
    ds.GreaterThan: lambda c, v: c > v,
    ds.GreaterThanOrEqual: lambda c, v: c >= v,
    ds.LessThan: lambda c, v: c < v,
    ds.LessThanOrEqual: lambda c, v: c <= v,
}


def to_conditions(filters: Sequence[ds.Filter], schema: pa.Schema) -> tuple[list[Condition], list[ds.Filter]]:
    """
    Conditions that follow from filters, and the filters that Spark still has to evaluate.

    >>> schema = pa.schema([("CITY", pa.string()), ("DAY", pa.int64())])
    >>> filters = [ds.IsNotNull(("DAY",)), ds.GreaterThan(("DAY",), 3), ds.StringEndsWith(("CITY",), "burg")]
    >>> conditions, left = to_conditions(filters, schema)
    >>> print(*conditions, left)
    DAY > 3 [StringEndsWith(attribute=('CITY',), value='burg')]
    """
    conditions: list[Condition] = []
    remaining_filters: list[ds.Filter] = []
    not_null = []
    for item in filters:
        if isinstance(item, ds.IsNotNull):
            not_null.append(item)
            continue
        translated, same = _translate(item, schema)
        if not _bindable(translated, schema):
            translated, same = [], False
        conditions += translated
        if not same:
            remaining_filters.append(item)
    # no condition matches a null
    valid = {condition.column for condition in conditions}
    remaining_filters += [item for item in not_null if _column(item) not in valid]
    return conditions, remaining_filters


def _column(item: ds.Filter) -> str:
    path: tuple[str, ...] = getattr(item, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _bindable(conditions: Sequence[Condition], schema: pa.Schema) -> bool:
    try:
        for condition in conditions:
            bind([condition.predicate_part], schema)
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


def _translate(item: ds.Filter, schema: pa.Schema) -> tuple[list[Condition], bool]:
    """Conditions that follow from a filter, and whether they are equivalent to it."""
    inner = item.child if isinstance(item, ds.Not) else item
    column = _column(inner)
    if column not in schema.names:
        return [], False
    dtype = schema.field(column).type
    try:
        return (_translate_plain if inner is item else _translate_negated)(inner, column, dtype)
    except (TypeError, ValueError, OverflowError):
        return [], False


def _translate_plain(item: ds.Filter, column: str, dtype: pa.DataType) -> tuple[list[Condition], bool]:
    if isinstance(item, ds.StringStartsWith) and pat.is_string(dtype):
        return _prefix(column, item.value), False
    if isinstance(item, ds.In):
        return _one_of(column, [_value(v, dtype) for v in item.value if v is not None], dtype)
    compare, operand = _COMPARISONS.get(type(item)), getattr(item, "value", None)
    if compare is None or operand is None:
        return [], False
    value = _value(operand, dtype)
    if pat.is_timestamp(dtype):
        return _instant(type(item), column, value), True
    return [compare(C(column), value)], True


def _translate_negated(item: ds.Filter, column: str, dtype: pa.DataType) -> tuple[list[Condition], bool]:
    if pat.is_timestamp(dtype) or not isinstance(item, ds.EqualTo | ds.In):
        return [], False
    values = [item.value] if isinstance(item, ds.EqualTo) else list(item.value)
    if len(values) > _MANY or any(value is None for value in values):
        return [], False
    return [C(column) != _value(value, dtype) for value in values], True


def _value(value: Any, dtype: pa.DataType) -> Any:
    """A value of Spark in the type of the column; ValueError where it cannot be compared like that."""
    if isinstance(value, Decimal) and len(value.as_tuple().digits) >= _MAX_DIGITS:
        raise ValueError(value)
    if isinstance(value, date) and value.toordinal() <= _FIRST_GREGORIAN_DAY:
        raise ValueError(value)
    if pat.is_integer(dtype) and isinstance(value, Decimal):
        if value != value.to_integral_value():
            raise ValueError(value)
        return int(value)
    if pat.is_timestamp(dtype):
        stamp = pd.Timestamp(value)
        return stamp if dtype.tz is None else stamp.tz_convert(dtype.tz)
    if isinstance(value, float) and value != value:
        raise ValueError("NaN is equal to nothing here, and to itself in Spark")
    return value


def _instant(kind: type, column: str, value: pd.Timestamp) -> list[Condition]:
    """A comparison of times that Spark sees rounded down to microseconds."""
    c, after = C(column), value + _MICROSECOND
    if kind is ds.GreaterThanOrEqual:
        return [c >= value]
    if kind is ds.LessThan:
        return [c < value]
    if kind is ds.GreaterThan:
        return [c >= after]
    if kind is ds.LessThanOrEqual:
        return [c < after]
    return [c >= value, c < after]


def _one_of(column: str, values: list[Any], dtype: pa.DataType) -> tuple[list[Condition], bool]:
    if not values:
        return [], False
    if pat.is_timestamp(dtype):
        return [C(column) >= min(values), C(column) < max(values) + _MICROSECOND], False
    return [C(column).isin(values)], True


def _prefix(column: str, prefix: str) -> list[Condition]:
    """A range that contains all texts with a prefix; Spark evaluates the rest."""
    if not prefix:
        return []
    after = ord(prefix[-1]) + 1
    if 0xD800 <= after <= 0xDFFF or after > 0x10FFFF:  # no character
        return [C(column) >= prefix]
    return [C(column) >= prefix, C(column) < prefix[:-1] + chr(after)]
