"""The Spark data source ``format("kartothek_cube")``: reads, SQL views, writes and streams."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kartothek_cube.core.cube.conditions import Condition, parse_conditions
from kartothek_cube.core.cube.discover import discover_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io.spark import _datasource_writer
from kartothek_cube.io.spark._datasource_options import FORMAT, ReadOptions
from kartothek_cube.io.spark._error_messages import concise_errors
from kartothek_cube.io.spark._filters import to_conditions
from kartothek_cube.io.spark._stores import picklable_store
from kartothek_cube.io.spark._types import arrow_schema, spark_schema
from kartothek_cube.io.spark._worker import QueryContext, batches_of, unpickled
from kartothek_cube.io_components.query.executor import run_task
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, split_into_tasks
from kartothek_cube.io_components.query.planner import plan_query

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ("KartothekCubeDataSource", "data_source")

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
        self._querying: QueryContext | None = None

    @concise_errors
    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """
        Take filters that mean the same for a cube, and return the others.

        Only if ``push_filters`` says that no other scan shares them: Spark mixes up those of several scans.
        """
        if not (_SCANS_ARE_SEPARATE or self._options.push_filters):
            return filters
        self._conditions, remaining_filters = to_conditions(filters, _planned(self._options).context.output)
        return remaining_filters

    @concise_errors
    def partitions(self) -> Sequence[InputPartition]:
        """Cut the query into tasks."""
        tasks = split_into_tasks(self._planned(), self._workers, _TASKS_PER_WORKER)
        return [CubePartition(pickle.dumps(task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read, join and filter the files of a task."""
        if isinstance(partition, CubePartition) and self._querying is not None:
            for table in run_task(self._querying.context, unpickled(partition.task)):
                yield from batches_of(table, self._querying.target)

    def _planned(self) -> PhysicalPlan:
        """The query, planned once filters are known."""
        if self._plan is None:
            self._plan = _planned(self._options, self._conditions, self._schema)
            self._querying = QueryContext(self._plan.context, arrow_schema(self._schema))
        return self._plan

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for tasks before it asks for partitions; they need no more than this
        self._planned()
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
        return spark_schema(_planned(ReadOptions.of(self.options)).context.output)

    @concise_errors
    def reader(self, schema: StructType) -> CubeReader:
        """The reader of a cube."""
        return CubeReader(ReadOptions.of(self.options), schema, self.workers)

    @concise_errors
    def writer(self, schema: StructType, overwrite: bool) -> _datasource_writer.CubeWriter:
        """The writer of a frame."""
        return _datasource_writer.batch_writer(self.options, schema, overwrite)

    @concise_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> _datasource_writer.CubeStreamWriter:
        """The writer of the batches of a stream; ``overwrite``: each batch replaces all earlier ones."""
        return _datasource_writer.stream_writer(self.options, schema, overwrite)


def data_source(workers: int) -> type[KartothekCubeDataSource]:
    """The data source for a session with this many workers, which it cannot determine by itself."""
    return type("KartothekCubeDataSource", (KartothekCubeDataSource,), {"workers": workers})


def _planned(
    options: ReadOptions, conditions: Sequence[Condition] = (), schema: StructType | None = None
) -> PhysicalPlan:
    store = picklable_store(options.store)
    cube, datasets = discover_cube(options.cube, store, options.datasets)
    columns = options.columns if schema is None else schema.names
    plan = plan_query(
        cube,
        store,
        conditions=[*_given(options.conditions, datasets), *conditions],
        datasets=datasets if options.as_of is None else options.datasets,
        dimension_columns=options.dimension_columns,
        payload_columns=columns,
        as_of=options.as_of,
    )
    if schema is not None:
        _check_schema(schema, plan)
    return plan


def _given(text: str | None, datasets: Mapping[str, DatasetMetadata]) -> Sequence[Condition]:
    if text is None:
        return ()
    schemas = [dataset.schema.internal() for dataset in datasets.values() if dataset.schema is not None]
    types = {field.name: field.type for schema in schemas for field in schema}
    return parse_conditions(text, types).conditions


def _check_schema(expected: StructType, plan: PhysicalPlan) -> None:
    types = {field.name: field.dataType for field in spark_schema(plan.context.output)}
    for field in expected:
        if field.dataType != types[field.name]:
            raise ValueError(
                f"Column {field.name!r} of the cube has type {types[field.name].simpleString()}, but the "
                f"schema says {field.dataType.simpleString()}: leave the schema out, and cast the column"
            )
