"""A cube as a lazy table: the columns and filters of a chain of calls decide what is read."""

from __future__ import annotations

import base64
import io
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from kartothek_cube.core.cube.conditions import Condition, ConditionsInput, Conjunction, parse_conditions
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput, find_cube
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.spark._datasource_options import concise_errors
from kartothek_cube.io.spark._session import (
    active_session,
    column_functions,
    no_pandas_warnings,
    picklable_store,
)
from kartothek_cube.io.spark._spark_executor import unpickle
from kartothek_cube.io.spark._types import spark_schema
from kartothek_cube.io.spark.cube import query_cube_spark
from kartothek_cube.io.spark.datasource import to_conditions
from kartothek_cube.io_components.maintenance.history import CubeAsOf
from kartothek_cube.io_components.query.cube_query import QueryCube
from kartothek_cube.io_components.query.planner import plan_query

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ("CubeTable", "spark_table")

Step: TypeAlias = "Callable[[DataFrame], DataFrame]"

_OPTIMIZED = re.compile(r"== Optimized Logical Plan ==\n(.*?)\n\n== Physical Plan", re.DOTALL)
#: conditions in the text of a plan that :class:`_FilterReader` made fail
_ANSWER = re.compile(r"<conditions ([A-Za-z0-9+/=]*)>")
#: the id of a column in the text of a plan
_ID = re.compile(r"#(\d+)L?")
#: texts of plans leave out columns beyond this number
_MANY_FIELDS = "spark.sql.debug.maxToStringFields"


class CubeTable:
    """
    A cube to select from; made by :func:`spark_table`.

    ``select``, ``where`` and ``filter`` give another table. All other attributes and methods are those of the
    DataFrame that it stands for, :meth:`frame`.
    """

    def __init__(
        self,
        query: Callable[[list[str] | None, list[Condition]], DataFrame],
        spark: SparkSession,
        types: pa.Schema,
        steps: tuple[Step, ...] = (),
    ) -> None:
        self._query = query
        self._spark = spark
        self._types = types
        self._schema = spark_schema(types)
        self._steps = steps

    def select(self, *columns: Column | str) -> CubeTable:
        """Select columns and expressions; as in :class:`pyspark.sql.DataFrame`."""
        return self._with(lambda df: df.select(*columns))

    def where(self, condition: Column | str) -> CubeTable:
        """Keep the rows that meet a condition of Spark; as in :class:`pyspark.sql.DataFrame`."""
        return self._with(lambda df: df.where(condition))

    filter = where

    def _with(self, step: Step) -> CubeTable:
        return CubeTable(self._query, self._spark, self._types, (*self._steps, step))

    def frame(self) -> DataFrame:
        """The DataFrame, planned now, which reads what its expressions and conditions leave."""
        df = self._query(self._needed_columns(), self._pushed_conditions())
        # Expressions may name columns that Spark's optimizer found to be irrelevant, as in "x IN (NULL)".
        names = set(df.columns)
        irrelevant = [field for field in self._schema if field.name not in names]
        lit = column_functions(df).lit
        nulls = {field.name: lit(None).cast(field.dataType) for field in irrelevant}
        return self._apply(df.withColumns(nulls) if nulls else df)

    def _apply(self, df: DataFrame) -> DataFrame:
        for step in self._steps:
            df = step(df)
        return df

    def _pushed_conditions(self) -> list[Condition]:
        """Conditions that follow from those of Spark; its optimizer pushes them to a source of its own."""
        if not self._steps:
            return []
        types = base64.b64encode(self._types.serialize()).decode()
        source = self._spark.read.format(FilterSource.name()).option("types", types).schema(self._schema)
        match = _ANSWER.search(_explain(self._apply(source.load())))
        conditions: list[Condition] = unpickle(base64.b64decode(match.group(1))) if match else []
        return conditions

    def _needed_columns(self) -> list[str] | None:
        """Columns that Spark's optimizer leaves of the cube's; None for all of them."""
        before = self._spark.conf.get(_MANY_FIELDS)
        self._spark.conf.set(_MANY_FIELDS, "1000000")
        try:
            # Spark optimizes neither through nor into a function, so what is above it is what it needs
            with no_pandas_warnings():
                opaque = self._spark.range(1).mapInArrow(_pass_on, self._schema)
            chosen = self._apply(opaque)
            # columns of the result under new names, so that the plan mentions all of them
            text = _explain(chosen.toDF(*(f"c{number}" for number in range(len(chosen.columns)))))
        finally:
            if before is None:
                self._spark.conf.unset(_MANY_FIELDS)
            else:
                self._spark.conf.set(_MANY_FIELDS, before)
        match = _OPTIMIZED.search(text)
        lines = match.group(1).splitlines() if match else []
        leaves = [line for line in lines if "MapInArrow " in line]
        ids = _ID.findall(leaves[0].partition(", [")[2]) if len(leaves) == 1 else []
        if len(ids) != len(self._schema.names):
            return None
        used = {number for line in lines if line is not leaves[0] for number in _ID.findall(line)}
        return [name for name, number in zip(self._schema.names, ids, strict=True) if number in used]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.frame(), name)

    def __getitem__(self, item: Any) -> Any:
        return self.frame()[item]

    def __repr__(self) -> str:
        empty = self._spark.createDataFrame([], self._schema)
        return f"CubeTable[{', '.join(self._apply(empty).columns)}]"


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stand for the rows of a cube in plans; never called."""
    yield from batches


class FilterSource(DataSource):
    """A data source without rows, whose plan tells which filters were pushed to it."""

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "kartothek_cube_filters"

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader that answers."""
        return _FilterReader(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.options["types"]))))


class _FilterReader(DataSourceReader):
    def __init__(self, types: pa.Schema) -> None:
        self._types = types

    @concise_errors
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Answer by an error: its text is all that comes back from where Spark plans."""
        conditions, _ = to_conditions(filters, self._types)
        raise ValueError(f"<conditions {base64.b64encode(pickle.dumps(conditions)).decode()}>")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read nothing."""
        return iter(())


def _explain(df: DataFrame) -> str:
    text = io.StringIO()
    with redirect_stdout(text):
        df.explain(True)
    return text.getvalue()


def spark_table(
    cube: Cube | str,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    *,
    as_of: CubeAsOf | None = None,
    spark: SparkSession | None = None,
) -> CubeTable:
    """
    A cube as a table from which ``select`` reads what it needs, without naming payload columns.

    Parameters
    ----------
    cube, store, conditions, datasets, as_of, spark
        As in :func:`kartothek_cube.io.spark.cube.query_cube_spark`.

    Returns
    -------
    CubeTable
        Has the methods of a DataFrame. The conditions of ``where`` prune files as those of ``conditions`` do,
        if they compare columns with constants.

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
    >>> spark_table(cube, store).where("LATITUDE > 50").select("CITY").collect()
    [Row(CITY='Bath')]
    """
    cube = find_cube(cube, store)
    session, factory = active_session(spark), picklable_store(store)
    session.dataSource.register(FilterSource)
    types = plan_query(QueryCube(cube, factory, conditions, datasets, as_of=as_of)).context.output
    parsed = (
        parse_conditions(conditions, {f.name: f.type for f in types})
        if isinstance(conditions, str)
        else conditions
    )
    given = Conjunction(parsed).conditions
    fixed = {*cube.dimension_columns, *cube.partition_columns}

    def query(columns: list[str] | None, pushed: list[Condition]) -> DataFrame:
        payload = None if columns is None else [c for c in columns if c not in fixed]
        return query_cube_spark(
            cube,
            factory,
            [*given, *pushed],
            datasets,
            payload_columns=payload,
            as_of=as_of,
            spark=session,
        )

    return CubeTable(query, session, types)
