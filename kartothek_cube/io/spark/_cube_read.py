"""Queries of cubes with Spark: planned on the driver, read and joined by tasks, without a shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import as_table, to_memory
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.typing import ConditionsInput, DatasetsInput
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.spark import _worker
from kartothek_cube.io.spark._session import active_session, workers
from kartothek_cube.io.spark._spark_executor import distribute_tasks
from kartothek_cube.io.spark._stores import picklable_store
from kartothek_cube.io.spark._types import arrow_schema, spark_schema
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, split_into_tasks
from kartothek_cube.io_components.query.planner import plan_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ("map_cube_spark", "query_cube_spark")


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
    Query a cube; see :func:`kartothek_cube.io.eager_cube.query_cube`.

    The query is planned at once and sees the cube as it is now. Tasks read and join co-located files; nothing
    is shuffled. Rows of a group of ``partition_by`` are consecutive, groups are sorted; to process them as a
    whole, use :func:`map_cube_spark`. Naive timestamps are ``timestamp_ntz``, zoned ones ``timestamp``, and
    missing numbers null. Executors must be able to open ``store``.
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
    return _query_frame(session, plan, spark_schema(plan.context.output), None, f"query_{cube.uuid_prefix}")


def map_cube_spark(
    func: Callable[[pa.Table], Any],
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
    return _query_frame(session, plan, spark_types, func, f"map_{cube.uuid_prefix}")


def _query_frame(
    spark: SparkSession,
    plan: PhysicalPlan,
    schema: StructType,
    function: Callable[[pa.Table], Any] | None,
    name: str,
) -> DataFrame:
    querying = _worker.QueryContext(plan.context, arrow_schema(schema), function)
    return distribute_tasks(
        spark, split_into_tasks(plan, workers(spark)), _worker.query, querying, schema, name
    )


def _schema_of(func: Callable[[pa.Table], Any], plan: PhysicalPlan) -> StructType:
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


def _with_known_types(schema: pa.Schema, result: Any, query_schema: pa.Schema) -> pa.Schema:
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
