"""Cubes with Spark: DataFrames in, DataFrames out; plans and commits happen on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ParamSpec

import attrs
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kartothek_cube.core.arrow import Frame
from kartothek_cube.core.cube.conditions import Condition, ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput, find_cube
from kartothek_cube.core.cube.implied_conditions import join_conditions
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.pandas_conversion import as_table
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.spark import _spark_executor as executor
from kartothek_cube.io.spark._conversion import spark_schema
from kartothek_cube.io.spark._parquet_scan import find_obstacle, scan_parquet
from kartothek_cube.io.spark._session import active_session, picklable_store, workers
from kartothek_cube.io.spark._spark_executor import MapFunction, SparkInput
from kartothek_cube.io_components.computed_dataset import ComputeDataset
from kartothek_cube.io_components.delete_rows import DeleteRows
from kartothek_cube.io_components.facade import Example, Operation, facade, plan_job, with_stores
from kartothek_cube.io_components.job import Answer, execute
from kartothek_cube.io_components.maintenance.copy import CopyCube
from kartothek_cube.io_components.maintenance.garbage import CleanupCube, DeleteCube
from kartothek_cube.io_components.maintenance.stats import CollectStats
from kartothek_cube.io_components.query.executor import announce_query, query_job, run_task
from kartothek_cube.io_components.query.logical_plan import QueryCube
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, plan_query, split_into_tasks
from kartothek_cube.io_components.verify.cube_rules import VerifyCube
from kartothek_cube.io_components.write import cube_writes
from kartothek_cube.io_components.write.build_index import BuildColumnStatistics
from kartothek_cube.io_components.write.rewrite import CompactCube, MergeContext, MergeResult, plan_merge
from kartothek_cube.io_components.write.write_commit import find_committed_batch
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "append_to_cube_from_spark",
    "build_column_statistics_spark",
    "build_cube_from_spark",
    "cleanup_cube_spark",
    "collect_stats_spark",
    "compact_cube_spark",
    "compute_dataset_spark",
    "copy_cube_spark",
    "delete_cube_spark",
    "delete_rows_spark",
    "extend_cube_from_spark",
    "map_cube_spark",
    "merge_into_cube_from_spark",
    "query_cube_spark",
    "remove_partitions_spark",
    "update_cube_from_spark",
    "verify_cube_spark",
)

#: keys that a task deletes, copies or counts
_BLOCK = 1000


def map_cube_spark(
    func: MapFunction,
    cube: Cube | str,
    store: StoreInput,
    schema: StructType | pa.Schema | str | None = None,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    spark: SparkSession | None = None,
) -> DataFrame:
    """Query a cube, and let a function transform each logical partition or group as a whole.

    Parameters
    ----------
    func
        Runs on executors: takes a :class:`pyarrow.Table` of a group, sorted by cell, and returns any table
        that Arrow reads, or None for no rows.
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    schema
        Columns of what ``func`` returns: a Spark schema, its DDL text or an Arrow schema. By default
        ``func`` is called here with an empty table to find out.
    conditions, datasets, dimension_columns, payload_columns
        As in :func:`query_cube_spark`.
    partition_by
        Columns of the groups, by default the partition columns of the cube.
    spark
        The session; by default the active one.

    Returns
    -------
    pyspark.sql.DataFrame
        The rows that ``func`` returns.

    Raises
    ------
    ValueError, TypeError
        As :func:`query_cube_spark`; also if the schema cannot be found out.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.compute as pc, tempfile
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube
    >>> from kartothek_cube.io.spark import local_session
    >>> from kartothek_cube.io.spark.cube import extend_cube_from_spark
    >>> spark = local_session(2)
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> people = pa.table({"CITY": ["Ulm", "Bonn"], "COUNTRY_CODE": ["DE", "DE"], "PEOPLE": [1, 3]})
    >>> _ = build_cube(people, cube, store)
    >>> def share(table):
    ...     total = pc.sum(table["PEOPLE"]).as_py() or 1
    ...     shares = pc.divide(table["PEOPLE"], float(total))
    ...     return table.drop_columns("PEOPLE").append_column("SHARE", shares)
    >>> frame = map_cube_spark(share, cube, store)
    >>> _ = extend_cube_from_spark({"shares": frame}, cube, store)
    >>> query_cube_spark(cube, store, payload_columns=["SHARE"]).orderBy("CITY").collect()
    [Row(CITY='Bonn', COUNTRY_CODE='DE', SHARE=0.75), Row(CITY='Ulm', COUNTRY_CODE='DE', SHARE=0.25)]
    """
    cube = find_cube(cube, store)
    session = active_session(spark)
    groups = list(cube.partition_columns) if partition_by is None else partition_by
    query = QueryCube(
        cube, picklable_store(store), conditions, datasets, dimension_columns, groups, payload_columns
    )
    plan = plan_query(query)
    announce_query(plan)
    spark_types = _schema_of(func, plan) if schema is None else _as_spark_schema(schema)
    job = query_job(plan, split_into_tasks(plan, workers(session)), partial(executor.map_group, func))
    return executor.results_as_spark_dataframe(
        session, attrs.evolve(job, name=f"map_{cube.uuid_prefix}: {plan.summary}"), spark_types
    )


def _schema_of(func: MapFunction, plan: PhysicalPlan) -> StructType:
    """Schema of the result of the function for an empty table."""
    empty = plan.context.output.empty_table()
    try:
        result = func(empty)
        table = None if result is None else as_table(result)
    except Exception as error:
        raise ValueError(
            f"The function fails for a table without rows ({type(error).__name__}: {error}), so that it is "
            "unknown which columns it gives: pass their schema"
        ) from error
    if table is None:
        raise ValueError("The function gives None for a table without rows: pass the schema of what it gives")
    return spark_schema(_with_known_types(table.schema, result, plan.context.output))


def _with_known_types(schema: pa.Schema, result: Frame, query_schema: pa.Schema) -> pa.Schema:
    """Schema of an empty frame; its object columns have the types of the query, as they could be anything."""
    if not isinstance(result, pd.DataFrame):
        return schema
    objects = {name for name, dtype in result.dtypes.items() if pd.api.types.is_object_dtype(dtype)}
    unclear = objects & set(query_schema.names)
    return pa.schema([query_schema.field(field.name) if field.name in unclear else field for field in schema])


def _as_spark_schema(schema: StructType | pa.Schema | str) -> StructType:
    if isinstance(schema, pa.Schema):
        return spark_schema(schema)
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise TypeError(
            f"schema must be a Spark schema, its text, or an Arrow schema, but is {type(schema).__name__}"
        )
    return parsed


# -- façades -------------------------------------------------------------------------------------------------

P = ParamSpec("P")

_EXAMPLE = Example(("from kartothek_cube.io.spark import local_session", "_ = local_session(2)"))
_TYPES = {"DataT": "SparkInput", "StoreT": "StoreInput"}


def _write(
    name: str, write: Callable[P, cube_writes.CubeWrite[SparkInput]]
) -> Callable[P, dict[str, DatasetMetadata]]:
    """The façade of a write: one shuffle by partition, then a commit."""

    def run(write: cube_writes.CubeWrite[SparkInput]) -> dict[str, DatasetMetadata]:
        max_rows: int | None = getattr(write, "max_rows_per_file", None)
        frames = executor.frames_of(write.data, write.cube.seed_dataset, max_rows)
        plan = with_stores(write, picklable_store).plan(frames)
        batch: tuple[str, int] | None = getattr(write, "batch", None)
        if batch is not None:
            plan = plan.evolve_changes(batch=batch)
            committed = find_committed_batch(plan)
            if committed is not None:
                return committed
        return executor.write_cube(plan, frames, max_rows)

    note = (
        "``data`` is a Spark DataFrame (the seed) or a dict of dataset id to DataFrame; executors must "
        "be able to open ``store``. One job shuffles and writes the rows, the driver commits."
    )
    example = Example(
        (
            "from kartothek_cube.io.spark import local_session",
            "data = {name: local_session(2).createDataFrame(df) for name, df in data.items()}",
        )
    )
    return facade(__name__, name, write, run, note, _TYPES, example=example)


def _spark(name: str, operation: Callable[P, Operation[Answer]], note: str) -> Callable[P, Answer]:
    """The façade that runs the tasks of a job on executors."""

    def run(operation: Operation[Answer]) -> Answer:
        job = plan_job(with_stores(operation, picklable_store), _BLOCK)
        return executor.execute_on_spark(job, getattr(operation, "spark", None))

    return facade(__name__, name, operation, run, note, _TYPES, example=_EXAMPLE)


@attrs.frozen
class _BuildCube(cube_writes.BuildCube[SparkInput, StoreInput]):
    max_rows_per_file: int | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _ExtendCube(cube_writes.ExtendCube[SparkInput, StoreInput]):
    max_rows_per_file: int | None = attrs.field(default=None, kw_only=True)


def _check_batch(_write: object, _field: object, batch: tuple[str, int] | None) -> None:
    given: object = batch
    if batch is None:
        return
    if not isinstance(given, tuple) or tuple(map(type, given)) != (str, int):
        raise TypeError(f"batch must be a tuple of the name of a stream and a number, but is {batch!r}")
    if batch[1] < 0:
        raise ValueError(f"The number of a batch must be >= 0 but is {batch[1]}")


@attrs.frozen
class _AppendToCube(cube_writes.AppendToCube[SparkInput, StoreInput]):
    max_rows_per_file: int | None = attrs.field(default=None, kw_only=True)
    batch: tuple[str, int] | None = attrs.field(default=None, kw_only=True, validator=_check_batch)


@attrs.frozen
class _UpdateCube(cube_writes.UpdateCube[SparkInput, StoreInput]):
    max_rows_per_file: int | None = attrs.field(default=None, kw_only=True)
    batch: tuple[str, int] | None = attrs.field(default=None, kw_only=True, validator=_check_batch)


@attrs.frozen
class _DeleteRows(DeleteRows[StoreInput]):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _DeleteCube(DeleteCube[StoreInput]):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _CleanupCube(CleanupCube[StoreInput]):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _CopyCube(CopyCube[StoreInput]):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _CollectStats(CollectStats[StoreInput]):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _CompactCube(CompactCube[StoreInput]):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _ComputeDataset(ComputeDataset[StoreInput]):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _BuildColumnStatistics(BuildColumnStatistics[StoreInput]):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _VerifyCube(VerifyCube[StoreInput]):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _QueryCube(QueryCube[StoreInput]):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


def _remove_partitions(operation: cube_writes.RemovePartitions[StoreInput]) -> dict[str, DatasetMetadata]:
    return execute(operation.job())


def query_as_frame(
    query: QueryCube[StoreInput],
    session: SparkSession,
    types: StructType | None = None,
    pushed: Sequence[Condition] = (),
) -> DataFrame:
    """The rows of a query, as tasks of this library or Spark itself read them.

    The latter with a schema only, which contains the columns and has their types. Of ``pushed`` conditions,
    which follow from what Spark evaluates, rows may be left that do not meet them.
    """
    query = with_stores(query, picklable_store)
    plan = plan_query(attrs.evolve(query, conditions=join_conditions(query.conditions, pushed)))
    announce_query(plan)
    schema = spark_schema(plan.context.output)
    # Spark shows the name in plans, and in those of its web UI
    name = f"query_{query.cube.uuid_prefix}: {plan.summary}"
    if types is not None:
        # numbers are narrower where the files that are read have no large ones
        schema = type(types)([types[name] for name in schema.names])
        own = () if query.conditions is None else plan_query(query).context.scans
        obstacle = (
            "it has conditions on rows" if any(scan.predicates or scan.implied for scan in own) else None
        )
        obstacle = obstacle or find_obstacle(plan, schema, session)
        if obstacle is None:
            return scan_parquet(plan, schema, session)
        name += f"; read in Python: {obstacle}"
    job = query_job(plan, split_into_tasks(plan, workers(session)), run_task)
    return executor.results_as_spark_dataframe(session, attrs.evolve(job, name=name), schema)


def _query(query: _QueryCube) -> DataFrame:
    return query_as_frame(query, active_session(query.spark))


build_cube_from_spark = _write("build_cube_from_spark", _BuildCube)
extend_cube_from_spark = _write("extend_cube_from_spark", _ExtendCube)
append_to_cube_from_spark = _write("append_to_cube_from_spark", _AppendToCube)
update_cube_from_spark = _write("update_cube_from_spark", _UpdateCube)
remove_partitions_spark = facade(
    __name__,
    "remove_partitions_spark",
    cube_writes.RemovePartitions[StoreInput],
    _remove_partitions,
    "All of it is done on the driver.",
    _TYPES,
    example=_EXAMPLE,
)
delete_rows_spark = _spark(
    "delete_rows_spark", _DeleteRows, "Each task rewrites up to 16 physical partitions; the driver commits."
)
delete_cube_spark = _spark("delete_cube_spark", _DeleteCube, "Each task deletes 1,000 files.")
cleanup_cube_spark = _spark("cleanup_cube_spark", _CleanupCube, "Each task deletes 1,000 files.")
copy_cube_spark = _spark(
    "copy_cube_spark", _CopyCube, "Each task copies 1,000 files; the driver commits the datasets."
)
compute_dataset_spark = _spark(
    "compute_dataset_spark", _ComputeDataset, "Each task computes one physical partition; the driver commits."
)
build_column_statistics_spark = _spark(
    "build_column_statistics_spark",
    _BuildColumnStatistics,
    "Each task reads the columns of 256 files; the driver commits.",
)
collect_stats_spark = _spark(
    "collect_stats_spark", _CollectStats, "Each task reads the footers of 1,000 files."
)
compact_cube_spark = _spark(
    "compact_cube_spark", _CompactCube, "Each task compacts up to 16 physical partitions; the driver commits."
)
verify_cube_spark = _spark(
    "verify_cube_spark", _VerifyCube, "Headers are checked on the driver, files in tasks."
)
_QUERY_EXAMPLE = """>>> import tempfile
>>> import pandas as pd
>>> from kartothek_cube import Cube, build_cube
>>> from kartothek_cube.io.spark import local_session
>>> from kartothek_cube.io.spark.cube import query_cube_spark
>>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
>>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
>>> _ = build_cube(cities, cube, store)
>>> query_cube_spark(cube, store, "COUNTRY_CODE == IT", spark=local_session(2)).collect()
[Row(CITY='Rom', COUNTRY_CODE='IT')]"""
query_cube_spark = facade(
    __name__,
    "query_cube_spark",
    _QueryCube,
    _query,
    "The query is planned at once and sees the cube as it is now. Tasks read and join co-located files; "
    "nothing is shuffled. Naive timestamps are ``timestamp_ntz``, zoned ones ``timestamp``, and missing "
    "numbers null. Executors must be able to open ``store``.",
    _TYPES,
    example=_QUERY_EXAMPLE,
    summary="Query a cube as a Spark DataFrame.",
    returns="Rows of a group of ``partition_by`` are consecutive, groups are sorted; to process them as "
    "a whole, use :func:`~kartothek_cube.io.spark.cube.map_cube_spark`.",
)


def merge_into_cube_from_spark(
    df: DataFrame,
    cube: Cube | str,
    store: StoreInput,
    dataset: str | None = None,
    metadata: Mapping[str, object] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    delete_column: str | None = None,
    publish: bool = True,
) -> MergeResult:
    """Update, insert and delete rows of a dataset by cell, in one commit.

    See :func:`kartothek_cube.io.eager_cube.merge_into_cube`. One job shuffles the rows by partition and
    rewrites the partitions that occur in them, the driver commits. A partition and its stored rows have to
    fit into the memory of a task.

    Parameters
    ----------
    df
        A Spark DataFrame.
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    dataset, metadata, df_serializer, delete_column, publish
        As in :func:`kartothek_cube.io.eager_cube.merge_into_cube`.

    Returns
    -------
    MergeResult
        The new state, and numbers of rows.

    Raises
    ------
    ValueError, DuplicateCellsError, ConcurrentWriteError
        As :func:`kartothek_cube.io.eager_cube.merge_into_cube`.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> from kartothek_cube.io.spark import local_session
    >>> changes = local_session(2).createDataFrame(pd.DataFrame({"CITY": ["Ulm"], "COUNTRY_CODE": ["DE"]}))
    >>> merge_into_cube_from_spark(changes, cube, store)
    <merge: 1 rows inserted, 0 updated, 0 deleted in 1 partition>
    """
    cube = find_cube(cube, store)
    plan = plan_merge(cube, picklable_store(store), dataset, metadata, df_serializer, publish=publish)
    return executor.merge_frame(MergeContext(plan, delete_column), df)
