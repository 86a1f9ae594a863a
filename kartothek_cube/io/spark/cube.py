"""Cubes with Spark: DataFrames in, DataFrames out; plans and commits happen on the driver.

Examples
--------
>>> import pyarrow as pa, tempfile
>>> from kartothek_cube.core.cube.cube import Cube
>>> from kartothek_cube.io.spark import local_session
>>> from kartothek_cube.io.spark.cube import query_cube_spark
>>> spark = local_session(2)
>>> store = f"hfs://{tempfile.mkdtemp()}"
>>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
>>> cities = pa.table({"CITY": ["Ulm", "Bath"], "COUNTRY_CODE": ["DE", "UK"], "LATITUDE": [48.4, 51.4]})
>>> sorted(build_cube_from_spark(spark.createDataFrame(cities), cube, store))
['seed']
>>> query_cube_spark(cube, store).orderBy("CITY").select("CITY", "LATITUDE").collect()
[Row(CITY='Bath', LATITUDE=51.4), Row(CITY='Ulm', LATITUDE=48.4)]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

import attrs
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arguments import alias_parameter
from kartothek_cube.core.arrow.pandas_conversion import as_table, to_memory
from kartothek_cube.core.arrow.types import Frame
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.spark._session import active_session, picklable_store, workers
from kartothek_cube.io.spark._spark_executor import (
    MapFunction,
    map_group,
    results_as_spark_dataframe,
    session_executor,
)
from kartothek_cube.io.spark._types import spark_schema
from kartothek_cube.io.spark._write import SparkInput, frames_of, merge_frame, write_cube
from kartothek_cube.io_components.job import Answer, Context, Job, Result, Task, execute
from kartothek_cube.io_components.maintenance.compact import compact_cube_job
from kartothek_cube.io_components.maintenance.copy import copy_cube_job, plan_copy
from kartothek_cube.io_components.maintenance.garbage import cube_garbage_job, delete_cube_job
from kartothek_cube.io_components.maintenance.history import CubeAsOf
from kartothek_cube.io_components.maintenance.stats import collect_stats_job
from kartothek_cube.io_components.query.executor import query_job, run_task
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, split_into_tasks
from kartothek_cube.io_components.query.planner import plan_query
from kartothek_cube.io_components.verify.cube_rules import verify_cube_job
from kartothek_cube.io_components.verify.report import Report
from kartothek_cube.io_components.write.cube_plan import (
    plan_append,
    plan_build,
    plan_extend,
    plan_merge,
    plan_update,
)
from kartothek_cube.io_components.write.merge import MergeContext, MergeResult
from kartothek_cube.io_components.write.validation import CubeMetadata
from kartothek_cube.io_components.write.write_commit import remove_partitions_job
from kartothek_cube.io_components.write.write_plan import CubeWritePlan, RowsOutside, SchemaMode
from kartothek_cube.serialization import DataFrameSerializer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = (
    "append_to_cube_from_spark",
    "build_cube_from_spark",
    "cleanup_cube_spark",
    "collect_stats_spark",
    "compact_cube_spark",
    "copy_cube_spark",
    "delete_cube_spark",
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


def _execute(job: Job[Context, Task, Result, Answer], session: SparkSession) -> Answer:
    return session_executor(session)(job)


def _merge(plan: CubeWritePlan, delete_column: str | None, df: DataFrame) -> MergeResult:
    return merge_frame(MergeContext(plan, delete_column), df)


def _query(plan: PhysicalPlan, cube: Cube, session: SparkSession) -> DataFrame:
    job = query_job(plan, split_into_tasks(plan, workers(session)), run_task)
    job = attrs.evolve(job, name=f"query_{cube.uuid_prefix}")
    return results_as_spark_dataframe(session, job, spark_schema(plan.context.output))


def map_cube_spark(
    func: MapFunction,
    cube: Cube,
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
    """
    Query a cube, and let a function transform each logical partition or group as a whole.

    ``func`` runs on executors: it takes a :class:`pyarrow.Table` of a group, sorted by cell, and returns any
    table that Arrow reads, or None for no rows. ``schema`` (a Spark schema, its DDL text or an Arrow schema)
    describes its result; by default ``func`` is called here with an empty table to find out. ``partition_by``
    are the columns of the groups, by default the partition columns of the cube.

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
    session = active_session(spark)
    groups = list(cube.partition_columns) if partition_by is None else partition_by
    plan = plan_query(
        cube, picklable_store(store), conditions, datasets, dimension_columns, groups, payload_columns
    )
    spark_types = _schema_of(func, plan) if schema is None else _as_spark_schema(schema)
    job = query_job(plan, split_into_tasks(plan, workers(session)), partial(map_group, func))
    return results_as_spark_dataframe(session, attrs.evolve(job, name=f"map_{cube.uuid_prefix}"), spark_types)


def _schema_of(func: MapFunction, plan: PhysicalPlan) -> StructType:
    """Schema of the result of the function for an empty table."""
    empty = to_memory(plan.context.output.empty_table())
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
    from pyspark.sql.types import StructType

    if isinstance(schema, pa.Schema):
        return spark_schema(schema)
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise TypeError(
            f"schema must be a Spark schema, its text, or an Arrow schema, but is {type(schema).__name__}"
        )
    return parsed


# -- generated by tools/make_facades.py from tools/facades.toml; do not edit -------------------------------


def build_cube_from_spark(
    data: SparkInput,
    cube: Cube,
    store: StoreInput,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Store a new cube.

    See :func:`kartothek_cube.io.eager_cube.build_cube`. ``data`` is a Spark DataFrame (the seed) or a dict of
    dataset id to DataFrame; executors must be able to open ``store``. One job shuffles and writes the rows,
    the driver commits. Partitions of more than ``max_rows_per_file`` rows are written by several tasks; they
    are counted first, so the input is computed twice. Without this limit, a partition has to fit into the
    memory of a task.
    """
    frames = frames_of(data, cube.seed_dataset, max_rows_per_file)
    plan = plan_build(cube, picklable_store(store), frames, metadata, overwrite, partition_on, df_serializer)
    return write_cube(plan, frames, max_rows_per_file)


def extend_cube_from_spark(
    data: SparkInput,
    cube: Cube,
    store: StoreInput,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Add datasets, and with them columns, to a cube.

    See :func:`kartothek_cube.io.eager_cube.extend_cube`. ``data``, ``store`` and ``max_rows_per_file`` are as
    in :func:`build_cube_from_spark`.
    """
    frames = frames_of(data, cube.seed_dataset, max_rows_per_file)
    plan = plan_extend(cube, picklable_store(store), frames, metadata, overwrite, partition_on, df_serializer)
    return write_cube(plan, frames, max_rows_per_file)


def append_to_cube_from_spark(
    data: SparkInput,
    cube: Cube,
    store: StoreInput,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    unique_cells: bool = False,
    schema_mode: SchemaMode = "strict",
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Add partitions to datasets of a cube.

    See :func:`kartothek_cube.io.eager_cube.append_to_cube`. ``data``, ``store`` and ``max_rows_per_file`` are
    as in :func:`build_cube_from_spark`. A dataset without rows in the input stays as it is.
    """
    frames = frames_of(data, cube.seed_dataset, max_rows_per_file)
    plan = plan_append(
        cube, picklable_store(store), frames, metadata, df_serializer, schema_mode, unique_cells=unique_cells
    )
    return write_cube(plan, frames, max_rows_per_file)


@alias_parameter("datasets", "ktk_cube_dataset_ids", required=True)
def update_cube_from_spark(
    data: SparkInput,
    cube: Cube,
    store: StoreInput,
    remove_conditions: ConditionsInput | Literal["all"],
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
    rows_outside: RowsOutside = "raise",
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Remove partitions of datasets and add others, in one commit per dataset.

    See :func:`kartothek_cube.io.eager_cube.update_cube`. ``data``, ``store`` and ``max_rows_per_file`` are as
    in :func:`build_cube_from_spark`; without input, ``data`` is ``{}``. Removal and input of a dataset are
    one commit.
    """
    frames = frames_of(data, cube.seed_dataset, max_rows_per_file)
    plan = plan_update(
        cube,
        picklable_store(store),
        remove_conditions,
        ktk_cube_dataset_ids,
        metadata,
        df_serializer,
        rows_outside=rows_outside,
    )
    return write_cube(plan, frames, max_rows_per_file)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def remove_partitions_spark(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput | Literal["all"] = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
    *,
    datasets: str | Iterable[str] | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Remove partitions.

    See :func:`kartothek_cube.io.eager_cube.remove_partitions`. All of it is done on the driver.
    """
    job = remove_partitions_job(cube, store, conditions, ktk_cube_dataset_ids, metadata)
    return execute(job)


def delete_cube_spark(
    cube: Cube, store: StoreInput, datasets: DatasetsInput = None, *, spark: SparkSession | None = None
) -> None:
    """
    Delete a cube or some of its datasets.

    See :func:`kartothek_cube.io.eager_cube.delete_cube`. Each task deletes 1,000 files.
    """
    session = active_session(spark)
    job = delete_cube_job(cube, picklable_store(store), datasets, _BLOCK)
    _execute(job, session)


def cleanup_cube_spark(
    cube: Cube, store: StoreInput, *, retention: timedelta | None = None, spark: SparkSession | None = None
) -> None:
    """
    Delete garbage: files of failed, overwritten or removed writes, to which no dataset refers.

    See :func:`kartothek_cube.io.eager_cube.cleanup_cube`. Each task deletes 1,000 files.
    """
    session = active_session(spark)
    job = cube_garbage_job(cube, picklable_store(store), retention, _BLOCK)
    _execute(job, session)


def copy_cube_spark(
    cube: Cube,
    src_store: StoreInput,
    tgt_store: StoreInput,
    overwrite: bool = False,
    datasets: DatasetsInput = None,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
    *,
    spark: SparkSession | None = None,
) -> None:
    """
    Copy a cube from one store to another.

    See :func:`kartothek_cube.io.eager_cube.copy_cube`. Each task copies 1,000 files; the driver commits the
    datasets.
    """
    session = active_session(spark)
    plan = plan_copy(
        cube,
        picklable_store(src_store),
        picklable_store(tgt_store),
        overwrite,
        datasets,
        renamed_cube_prefix,
        renamed_datasets,
    )
    _execute(copy_cube_job(plan, _BLOCK), session)


def collect_stats_spark(
    cube: Cube, store: StoreInput, datasets: DatasetsInput = None, *, spark: SparkSession | None = None
) -> dict[str, dict[str, int]]:
    """
    Count what is stored.

    See :func:`kartothek_cube.io.eager_cube.collect_stats`. Each task reads the footers of 1,000 files.
    """
    session = active_session(spark)
    job = collect_stats_job(cube, picklable_store(store), datasets, _BLOCK)
    return _execute(job, session)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def compact_cube_spark(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
    datasets: str | Iterable[str] | None = None,
    spark: SparkSession | None = None,
) -> dict[str, dict[str, int]]:
    """
    Merge the files of each physical partition into one, without cells that newer files hide.

    See :func:`kartothek_cube.io.eager_cube.compact_cube`. Each task compacts one physical partition; the
    driver commits.
    """
    session = active_session(spark)
    job = compact_cube_job(
        cube, picklable_store(store), conditions, ktk_cube_dataset_ids, df_serializer, min_files
    )
    return _execute(job, session)


@alias_parameter("datasets", "ktk_cube_dataset_ids")
def verify_cube_spark(
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
    datasets: str | Iterable[str] | None = None,
    spark: SparkSession | None = None,
) -> Report:
    """
    Check the datasets of a cube against their headers and the rules of the cube; nothing is changed.

    See :func:`kartothek_cube.io.eager_cube.verify_cube`. Headers are checked on the driver, files in tasks.
    """
    session = active_session(spark)
    job = verify_cube_job(cube, picklable_store(store), ktk_cube_dataset_ids, deep=deep)
    return _execute(job, session)


def merge_into_cube_from_spark(
    df: DataFrame,
    cube: Cube,
    store: StoreInput,
    dataset: str | None = None,
    metadata: Mapping[str, object] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    delete_column: str | None = None,
) -> MergeResult:
    """
    Update, insert and delete rows of a dataset by cell, in one commit.

    See :func:`kartothek_cube.io.eager_cube.merge_into_cube`. ``df`` is a Spark DataFrame. One job shuffles
    the rows by partition and rewrites the partitions that occur in them, the driver commits. A partition and
    its stored rows have to fit into the memory of a task.
    """
    plan = plan_merge(cube, picklable_store(store), dataset, metadata, df_serializer)
    return _merge(plan, delete_column, df)


def query_cube_spark(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """
    Query a cube as a Spark DataFrame.

    See :func:`kartothek_cube.io.eager_cube.query_cube`. The query is planned at once and sees the cube as it
    is now. Tasks read and join co-located files; nothing is shuffled. Rows of a group of ``partition_by`` are
    consecutive, groups are sorted; to process them as a whole, use :func:`map_cube_spark`. Naive timestamps
    are ``timestamp_ntz``, zoned ones ``timestamp``, and missing numbers null. Executors must be able to open
    ``store``.
    """
    session = active_session(spark)
    plan = plan_query(
        cube,
        picklable_store(store),
        conditions,
        datasets,
        dimension_columns,
        partition_by,
        payload_columns,
        as_of=as_of,
    )
    return _query(plan, cube, session)
