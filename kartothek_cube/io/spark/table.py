"""A cube as a lazy table: the columns and filters of a chain of calls decide what is read."""

from __future__ import annotations

import base64
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pickle import PicklingError
from typing import Any, TypeAlias
from uuid import uuid4

import attrs
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from kartothek_cube.core import arrow
from kartothek_cube.core.cube.conditions import Condition, ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput, find_cube
from kartothek_cube.core.cube.implied_conditions import decode_java
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io.spark import _conversion, _datasource_options, _session
from kartothek_cube.io.spark._spark_executor import unpickle
from kartothek_cube.io.spark.cube import query_as_frame
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.logical_plan import QueryCube
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, plan_query

__all__ = ("CubeTable", "spark_table")

Step: TypeAlias = Callable[[DataFrame], DataFrame]

_OPTIMIZED = re.compile(r"== Optimized Logical Plan ==\n(.*)\n\n== Physical Plan", re.DOTALL)
#: conditions in the text of a plan that :class:`_FilterReader` made fail
_ANSWER = re.compile(r"<conditions ([A-Za-z0-9+/=]*)>")
#: the id of a column in the text of a plan
_ID = re.compile(r"#(\d+)L?")
#: filters with one value
_FILTERS = ("StringStartsWith", *(kind.__name__ for kind in _conversion.COMPARISONS))
#: methods of a DataFrame whose result is another lazy table
_STEPS = (
    *("agg", "alias", "distinct", "drop", "dropDuplicates", "dropna", "fillna", "filter", "limit", "orderBy"),
    *("replace", "select", "selectExpr", "sort", "toDF", "transform", "where", "withColumn"),
    *("withColumnRenamed", "withColumns", "withColumnsRenamed"),
)
#: attributes of a DataFrame that need no rows
_WITHOUT_ROWS = ("_session", "columns", "dtypes", "isStreaming", "printSchema", "schema", "sparkSession")


class CubeTable:
    """A cube to select from; made by :func:`spark_table`.

    It is a :class:`pyspark.sql.DataFrame` with all of its methods and its columns. Those that select, filter,
    sort and aggregate rows give another table; all others are those of the DataFrame that it stands for,
    :meth:`frame`.
    """

    def __init__(
        self,
        query: Callable[[PhysicalPlan, list[Condition], list[str]], DataFrame],
        spark: SparkSession,
        plan: Callable[[], PhysicalPlan],
        types: pa.Schema,
        name: str,
        steps: tuple[Step, ...] = (),
        opaque: DataFrame | None = None,
    ) -> None:
        self._query = query
        self._spark = spark
        self._plan = plan
        self._types = types
        self._cells = _conversion.spark_schema(types)
        #: the same with names that are unambiguous in texts of plans, and as attributes of filters
        self._plain = _conversion.spark_schema(
            pa.schema([(f"plain{n}", f.type) for n, f in enumerate(types)])
        )
        #: of the rows of the cube; columns of this table are known by it, whichever frame stands for it
        self._name = name
        self._steps = steps
        self._cached: DataFrame | None = None
        # Spark optimizes neither through nor into a function, so what is above it is what it needs
        with _session.no_pandas_warnings():
            self._opaque = opaque or self._apply(
                spark.range(1).mapInArrow(_pass_on, self._plain).toDF(*self._cells.names)
            )

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The kind of DataFrame of the session: ``isinstance`` asks for it."""
        return type(self._opaque)

    def __dir__(self) -> list[str]:
        return dir(self._opaque)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled: Spark pickles what functions for tasks refer to."""
        raise PicklingError(f"A table of Spark cannot be sent to tasks. {_session.INSIDE_TASKS}")

    def frame(self) -> DataFrame:
        """The DataFrame, planned now, which reads what its expressions and conditions leave."""
        if self._cached is not None:
            return self._cached
        whole = self._plan()
        types = self._current_types(whole)
        if not types.equals(self._types):
            # Spark has optimized the expressions for types that are narrower than those of the rows now
            args = self._query, self._spark, self._plan, types, self._name, self._steps
            return CubeTable(*args).frame()
        lines = self._optimized_plan() if self._steps else []
        leaves = [line for line in lines if f"MapInArrow {_pass_on.__name__}(" in line]
        conditions, columns = [], self._cells.names
        # of several uses of the rows, each has other filters
        if len(leaves) == 1:
            conditions, columns = self._pushed_conditions(), self._needed_columns(lines, leaves[0])
        df = self._query(whole, conditions, columns)
        # Expressions may name columns that Spark's optimizer found to be irrelevant, as in "x IN (NULL)".
        # By position, as Spark takes names for the same that differ in case only.
        f, given = _session.column_functions(df), {name: f"c{i}" for i, name in enumerate(df.columns)}
        nothing = f.lit(None)
        cells = [
            (f.col(given[name]) if name in given else nothing.cast(self._cells[name].dataType)).alias(name)
            for name in self._cells.names
        ]
        return self._apply(df.toDF(*given.values()).select(*cells))

    def persist(self, *level: Any) -> CubeTable:
        """Cache the rows: from now on, the table and those made of it have the rows of now."""
        self._cached = self.frame().persist(*level)
        return self

    cache = persist

    def unpersist(self, blocking: bool = False) -> CubeTable:
        """Delete cached rows: from now on, calls read the cube again."""
        if self._cached is not None:
            self._cached.unpersist(blocking)
            self._cached = None
        return self

    def count(self) -> int:
        """Number of rows; reads no column that is not needed for it."""
        return int(self.selectExpr("count(*)").collect()[0][0])

    def groupBy(self, *columns: Any) -> Any:
        """Group the rows; as in :class:`pyspark.sql.DataFrame`."""
        return _GroupedTable(self, columns)

    groupby = groupBy

    def call_method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The table that a method of DataFrames makes of this one."""
        return self.add_step(lambda df: getattr(df, name)(*args, **kwargs))

    def add_step(self, step: Step) -> Any:
        """The table that a function of DataFrames makes of this one; of cached rows, the DataFrame."""
        if self._cached is not None:
            return step(self._cached)
        with _session.no_pandas_warnings():
            opaque = step(self._opaque)
        steps = (*self._steps, step)
        args = self._query, self._spark, self._plan, self._types, self._name, steps
        return CubeTable(*args, opaque)

    def _current_types(self, whole: PhysicalPlan) -> pa.Schema:
        """The columns of this table with the types that they have now."""
        current = whole.context.output.remove_metadata()
        known = set(current.names)
        return pa.schema([current.field(f.name) if f.name in known else f for f in self._types])

    def _apply(self, cells: DataFrame) -> DataFrame:
        df = cells.alias(self._name)
        for step in self._steps:
            df = step(df)
        return df

    def _pushed_conditions(self) -> list[Condition]:
        """Conditions that follow from those of Spark, as its optimizer pushes them down."""
        if not _session.is_connect(self._opaque):
            columns = dict(zip(self._plain.names, self._cells.names, strict=True))
            return _conversion.to_conditions(_find_filters(self._opaque, columns), self._types)[0]
        return self._conditions_of_source()

    def _conditions_of_source(self) -> list[Condition]:
        """The conditions for clients of Spark Connect, which see the text of plans alone."""
        types = arrow.encode_schema(self._types)
        source = self._spark.read.format(FilterSource.name()).option("types", types).schema(self._cells)
        # off by default: without `register`, all files would be read
        with _session.changed_setting(self._spark, _session.PUSHDOWN, "true"):
            match = _ANSWER.search(_explain(self._apply(source.load())))
        conditions: list[Condition] = unpickle(base64.b64decode(match.group(1))) if match else []
        return conditions

    def _optimized_plan(self) -> list[str]:
        """Lines of the plan, as Spark's optimizer leaves it."""
        # texts of plans leave out columns beyond this number
        with _session.changed_setting(self._spark, "spark.sql.debug.maxToStringFields", "1000000"):
            # columns of the result under new names, so that the plan mentions all of them
            text = _explain(self._opaque.toDF(*(f"c{number}" for number in range(len(self._opaque.columns)))))
        match = _OPTIMIZED.search(text)
        return match.group(1).splitlines() if match else []

    def _needed_columns(self, plan: list[str], leaf: str) -> list[str]:
        """Columns of the cube that a plan uses above the line of its rows."""
        ids = _ID.findall(leaf.partition(", [")[2])
        if len(ids) != len(self._cells.names):
            return self._cells.names
        used = {number for line in plan if line is not leaf for number in _ID.findall(line)}
        return [name for name, number in zip(self._cells.names, ids, strict=True) if number in used]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _STEPS:
            return partial(self.call_method, name)
        if name in _WITHOUT_ROWS:
            return getattr(self._opaque, name)
        if name in self._opaque.columns and not hasattr(type(self._opaque), name):
            return self[name]
        return getattr(self.frame(), name)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, list | tuple):
            return self.select(*item)
        if not isinstance(item, str | int):
            return self.where(item)
        columns = self._opaque.columns
        name = columns[item] if isinstance(item, int) else item
        # not the column of a frame: each call has another one
        col = _session.column_functions(self._opaque).col
        path = _session.quote_column(name) if name in columns else name
        own = col(f"{self._name}.{path}")
        try:
            _ = self._opaque.select(own).schema
        except AnalysisException:  # computed by a step, so that it does not belong to the cube
            _ = self._opaque.select(col(path)).schema  # raises what Spark raises for an unknown column
            return col(path)
        return own

    def __repr__(self) -> str:
        return f"CubeTable[{', '.join(self._opaque.columns)}]"


class _GroupedTable:
    """The groups of a table: their aggregates are a table as well."""

    def __init__(self, table: CubeTable, columns: tuple[Any, ...]) -> None:
        self._table = table
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        if name in ("agg", "avg", "count", "max", "mean", "min", "sum"):
            return partial(self._aggregate, name)
        return getattr(self._table.frame().groupBy(*self._columns), name)

    def _aggregate(self, name: str, *args: Any) -> Any:
        return self._table.add_step(lambda df: getattr(df.groupBy(*self._columns), name)(*args))


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stand for the rows of a cube in plans; never called."""
    yield from batches


class FilterSource(ds.DataSource):
    """A data source without rows, whose plan shows the filters that were pushed to it."""

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "kartothek_cube_filters"

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """The reader that answers."""
        return _FilterReader(arrow.decode_schema(self.options["types"]))


class _FilterReader(ds.DataSourceReader):
    def __init__(self, types: pa.Schema) -> None:
        self._types = types

    @_datasource_options.concise_errors
    def pushFilters(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        """Answer by an error: its text is all that comes back from where Spark plans."""
        conditions, _ = _conversion.to_conditions(filters, self._types)
        raise ValueError(f"<conditions {base64.b64encode(pickle.dumps(conditions)).decode()}>")

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read nothing."""
        return iter(())


def _find_filters(df: DataFrame, columns: Mapping[str, str]) -> list[ds.Filter]:
    """Filters that Spark's optimizer pushes down to the only rows of a cube in a plan, on named columns."""
    leaves: list[tuple[Any, Any]] = []

    def visit(node: Any, parent: Any) -> None:
        children = node.children()
        if node.nodeName() == "MapInArrow" and children.apply(0).nodeName() == "Range":
            leaves.append((node, parent))
        for number in range(children.size()):
            visit(children.apply(number), node)

    classic: Any = df
    visit(classic._jdf.queryExecution().optimizedPlan(), None)
    if len(leaves) != 1 or leaves[0][1] is None or leaves[0][1].nodeName() != "Filter":
        return []
    package = classic.sparkSession._jvm.org.apache.spark.sql.execution.datasources
    strategy = getattr(getattr(package, "DataSourceStrategy$"), "MODULE$")
    filters, expressions = [], [leaves[0][1].condition()]
    while expressions:
        expression = expressions.pop()
        if expression.nodeName() == "And":
            expressions += [expression.right(), expression.left()]
        elif (translated := strategy.translateFilter(expression, True)).isDefined():
            # without those of other kinds or values: nothing is implied by them
            with suppress(KeyError, ValueError, TypeError, OverflowError, pa.ArrowException):
                filters.append(_decode_filter(translated.get(), columns))
    return filters


def _decode_filter(java: Any, columns: Mapping[str, str]) -> ds.Filter:
    """A filter of a data source in the JVM as one of PySpark; KeyError for others, as of structs."""
    kind = java.getClass().getSimpleName()
    if kind == "Not":
        return ds.Not(_decode_filter(java.child(), columns))
    if kind not in ("IsNotNull", "In", *_FILTERS):
        raise KeyError(kind)
    column = (columns[java.attribute()],)
    if kind == "IsNotNull":
        return ds.IsNotNull(column)
    if kind == "In":
        return ds.In(column, tuple(decode_java(value).as_py() for value in java.values()))
    compare: Callable[[tuple[str, ...], Any], ds.Filter] = getattr(ds, kind)
    return compare(column, decode_java(java.value()).as_py())


def _explain(df: Any) -> str:
    """The text of ``df.explain(True)``, which is not printed: other threads print at the same time."""
    if _session.is_connect(df):
        return str(df._explain_string(True))
    return str(df._jdf.queryExecution().toString())


def spark_table(
    cube: Cube | str,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    *,
    as_of: CubeAsOf | None = None,
    changed_since: CubeAsOf | None = None,
    spark: SparkSession | None = None,
) -> CubeTable:
    """A cube as a table from which ``select`` reads what it needs, without naming payload columns.

    Parameters
    ----------
    cube, store, conditions, datasets, as_of, changed_since, spark
        As in :func:`kartothek_cube.io.spark.cube.query_cube_spark`.

    Returns
    -------
    CubeTable
        A DataFrame. The conditions of ``where`` prune files as those of ``conditions`` do, if they compare
        columns with constants.

    Raises
    ------
    ValueError, TypeError
        As :func:`kartothek_cube.io.spark.cube.query_cube_spark`.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> from kartothek_cube.io.eager_cube import build_cube
    >>> from kartothek_cube.io.spark import local_session
    >>> session = local_session(2)
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pa.table({"CITY": ["Ulm", "Bath"], "COUNTRY_CODE": ["DE", "UK"], "LATITUDE": [48.4, 51.4]})
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> _ = build_cube(cities, cube, store)
    >>> table = spark_table(cube, store)
    >>> table.where(table.LATITUDE > 50).select("CITY").collect()
    [Row(CITY='Bath')]
    """
    cube = find_cube(cube, store)
    session, factory = _session.active_session(spark), _session.picklable_store(store)
    session.dataSource.register(FilterSource)
    whole: QueryCube[StoreInput] = QueryCube(
        cube, factory, conditions, datasets, as_of=as_of, changed_since=changed_since
    )
    fixed = {*cube.dimension_columns, *cube.partition_columns}

    def run_query(plan: PhysicalPlan, pushed: list[Condition], columns: list[str]) -> DataFrame:
        payload = [name for name in columns if name not in fixed]
        return query_as_frame(attrs.evolve(whole, payload_columns=payload), session, plan, pushed)

    plan = partial(plan_query, whole)
    types = plan().context.output.remove_metadata()
    return CubeTable(run_query, session, plan, types, f"kartothek_cube_{uuid4().hex}")
