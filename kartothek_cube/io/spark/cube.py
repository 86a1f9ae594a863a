"""Cubes with Spark: DataFrames in, DataFrames out; plans and commits happen on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.spark import _worker
from kartothek_cube.io.spark._input import frames_of
from kartothek_cube.io.spark._run import call_all, over_tasks
from kartothek_cube.io.spark._session import active_session, workers
from kartothek_cube.io.spark._store import travelling
from kartothek_cube.io.spark._types import arrow_schema, spark_schema
from kartothek_cube.io.spark._write import check_file_rows, write_cube
from kartothek_cube.io_components.cube import maintain
from kartothek_cube.io_components.cube import write as _write
from kartothek_cube.io_components.cube.history import CubeAsOf
from kartothek_cube.io_components.cube.query import QueryPlan, plan_query
from kartothek_cube.io_components.cube.query.pack import pack
from kartothek_cube.io_components.cube.transfer import copy_tasks, finish_copies, run_copy_task
from kartothek_cube.io_components.execute import blocks
from kartothek_cube.serialization import DataFrameSerializer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = (
    "append_to_cube_from_spark",
    "build_cube_from_spark",
    "cleanup_cube_spark",
    "collect_stats_spark",
    "copy_cube_spark",
    "delete_cube_spark",
    "extend_cube_from_spark",
    "map_cube_spark",
    "query_cube_spark",
    "remove_partitions_spark",
    "update_cube_from_spark",
)

Metadata = Mapping[str, Mapping[str, Any]]

#: keys that a task deletes, copies or counts
_BLOCK = 1000


# -- writes --------------------------------------------------------------------------------------------------


def build_cube_from_spark(
    data: Any,
    cube: Cube,
    store: StoreInput,
    metadata: Metadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Store a new cube.

    What the schema of the input tells is checked at once. Then one job shuffles the rows by the partition
    columns; its tasks check, sort and write one logical partition after the other. The commit happens in this
    process. If a task or the commit fails, the store is as before, and what was written is deleted.

    Parameters
    ----------
    data
        A Spark DataFrame (the seed), or a dict of dataset id to DataFrame.
    cube
        Specification of the cube.
    store
        Store, factory or URL; executors must be able to open it.
    metadata, overwrite, partition_on, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.build_cube`.
    max_rows_per_file
        Partitions with more rows are written by several tasks into several files. They are counted first, so
        that the input is computed twice; cache it if that takes long. Without this limit, a partition is one
        file and has to fit into the memory of a task.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    TypeError
        If the input is no Spark DataFrame, or a column has a type that cannot be stored.
    ValueError, RuntimeError, MultiTableCommitAborted
        As :func:`kartothek_cube.io.eager_cube.build_cube`; also if the store is in the memory of this
        process.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.spark import local_session
    >>> spark = local_session(2)
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pa.table({"CITY": ["Ulm", "Bath"], "COUNTRY_CODE": ["DE", "UK"], "LATITUDE": [48.4, 51.4]})
    >>> sorted(build_cube_from_spark(spark.createDataFrame(cities), cube, store))
    ['seed']
    >>> query_cube_spark(cube, store).orderBy("CITY").select("CITY", "LATITUDE").collect()
    [Row(CITY='Bath', LATITUDE=51.4), Row(CITY='Ulm', LATITUDE=48.4)]
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = _write.plan_build(
        cube, travelling(store), frames, metadata, overwrite, partition_on, df_serializer
    )
    return write_cube(plan, frames, max_rows_per_file)


def extend_cube_from_spark(
    data: Any,
    cube: Cube,
    store: StoreInput,
    metadata: Metadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Add datasets, and with them columns, to a cube.

    Parameters
    ----------
    data
        Dict of dataset id to Spark DataFrame.
    cube, store, metadata, overwrite, partition_on, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.extend_cube`.
    max_rows_per_file
        As in :func:`build_cube_from_spark`.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError, TypeError, RuntimeError, MultiTableCommitAborted
        As :func:`kartothek_cube.io.eager_cube.extend_cube`.
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = _write.plan_extend(
        cube, travelling(store), frames, metadata, overwrite, partition_on, df_serializer
    )
    return write_cube(plan, frames, max_rows_per_file)


def append_to_cube_from_spark(
    data: Any,
    cube: Cube,
    store: StoreInput,
    metadata: Metadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Add partitions to datasets of a cube. A cell that is there already is hidden by the new one.

    Parameters
    ----------
    data
        A Spark DataFrame (for the seed), or a dict of dataset id to DataFrame.
    cube, store, metadata, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.append_to_cube`.
    max_rows_per_file
        As in :func:`build_cube_from_spark`.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError, TypeError, MultiTableCommitAborted
        As :func:`kartothek_cube.io.eager_cube.append_to_cube`.
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = _write.plan_append(cube, travelling(store), frames, metadata, df_serializer)
    return write_cube(plan, frames, max_rows_per_file)


def update_cube_from_spark(
    data: Any,
    cube: Cube,
    store: StoreInput,
    remove_conditions: Any,
    ktk_cube_dataset_ids: str | Iterable[str],
    metadata: Metadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Replace partitions of datasets: what meets the conditions goes, the input comes, in one commit each.

    Parameters
    ----------
    data
        A Spark DataFrame (for the seed), or a dict of dataset id to DataFrame; ``{}`` if there is none.
    cube, store, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.update_cube`.
    max_rows_per_file
        As in :func:`build_cube_from_spark`.

    Returns
    -------
    dict
        Dataset id to metadata of the updated datasets.

    Raises
    ------
    ValueError, TypeError, ConcurrentWriteError, MultiTableCommitAborted
        As :func:`kartothek_cube.io.eager_cube.update_cube`.
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = _write.plan_update(
        cube, travelling(store), remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer
    )
    return write_cube(plan, frames, max_rows_per_file)


def remove_partitions_spark(
    cube: Cube,
    store: StoreInput,
    conditions: Any = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: Metadata | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Remove partitions. That is a commit on the driver; files stay until :func:`cleanup_cube_spark`.

    Parameters
    ----------
    cube, store, conditions, ktk_cube_dataset_ids, metadata
        As in :func:`kartothek_cube.io.eager_cube.remove_partitions`.

    Returns
    -------
    dict
        Dataset id to metadata of all datasets of the cube.

    Raises
    ------
    ValueError
        For conditions on other than partition columns, and for unknown datasets.
    """
    plan = _write.plan_remove(cube, store, conditions, ktk_cube_dataset_ids, metadata)
    return _write.finish_write(plan, {})


# -- queries -------------------------------------------------------------------------------------------------


def query_cube_spark(
    cube: Cube,
    store: StoreInput,
    conditions: Any = None,
    datasets: Any = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """
    Query a cube as if it were one DataFrame.

    The query is planned at once, and sees the cube as it is now. Tasks read the files that belong together
    and join them; nothing is shuffled.

    Parameters
    ----------
    cube, conditions, datasets, dimension_columns, payload_columns, as_of
        As in :func:`kartothek_cube.io.eager_cube.query_cube`.
    store
        Store, factory or URL; executors must be able to open it.
    partition_by
        Indexed columns. The rows of each group come in one piece, groups in the order of their values; to
        hand each of them to a function, use :func:`map_cube_spark`.
    spark
        The session; the active one by default.

    Returns
    -------
    pyspark.sql.DataFrame
        Columns are sorted by name. Types are those of ``kartothek_cube.io.spark._types``: naive time stamps
        are ``timestamp_ntz``, zoned ones ``timestamp``, missing numbers null.

    Raises
    ------
    ValueError, TypeError
        As :func:`kartothek_cube.io.eager_cube.query_cube`; also if the store is in the memory of this
        process, or a column has a type that Spark does not know.
    """
    session = active_session(spark)
    plan = plan_query(
        cube,
        travelling(store),
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
    conditions: Any = None,
    datasets: Any = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    spark: SparkSession | None = None,
) -> DataFrame:
    """
    Query a cube, and let a function transform each logical partition or group as a whole.

    Parameters
    ----------
    func
        Takes a :class:`pyarrow.Table` with the rows of a group, sorted by cell, and gives an Arrow table, a
        pandas DataFrame, or anything else that Arrow reads as a table; None for no rows. It runs on
        executors.
    cube, store, conditions, datasets, dimension_columns, payload_columns, spark
        As in :func:`query_cube_spark`.
    schema
        Columns and types that the function gives: a Spark schema, its DDL text, or an Arrow schema. By
        default the function is called here with a table without rows to find out.
    partition_by
        Indexed columns by whose values rows are grouped; by default the partition columns of the cube.

    Returns
    -------
    pyspark.sql.DataFrame
        What the function gave for all groups.

    Raises
    ------
    ValueError, TypeError
        As :func:`query_cube_spark`; also if the function does not say by itself what it gives.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.compute as pc, tempfile
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube
    >>> from kartothek_cube.io.spark import local_session
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
        cube, travelling(store), conditions, datasets, dimension_columns, groups, payload_columns
    )
    given = _schema_of(func, plan) if schema is None else _as_spark_schema(schema)
    return _query_frame(session, plan, given, func, f"map_{cube.uuid_prefix}")


def _query_frame(
    spark: SparkSession,
    plan: QueryPlan,
    schema: StructType,
    function: Callable[[pa.Table], Any] | None,
    name: str,
) -> DataFrame:
    querying = _worker.Querying(plan.context, arrow_schema(schema), function)
    return over_tasks(spark, pack(plan, workers(spark)), _worker.query, querying, schema, name)


def _schema_of(func: Callable[[pa.Table], Any], plan: QueryPlan) -> StructType:
    """What the function gives for no rows."""
    try:
        result = _worker.transformed(func, plan.context.output.empty_table())
    except Exception as error:
        raise ValueError(
            f"The function fails for a table without rows ({type(error).__name__}: {error}), so that it is "
            "unknown which columns it gives: pass their schema"
        ) from error
    if result is None:
        raise ValueError("The function gives None for a table without rows: pass the schema of what it gives")
    return spark_schema(result.schema)


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


# -- maintenance ---------------------------------------------------------------------------------------------


def delete_cube_spark(
    cube: Cube, store: StoreInput, datasets: Any = None, *, spark: SparkSession | None = None
) -> None:
    """
    Delete a cube or some of its datasets, with all files that they refer to.

    Parameters
    ----------
    cube, store, datasets
        As in :func:`kartothek_cube.io.eager_cube.delete_cube`.
    spark
        The session; the active one by default.
    """
    session, factory = active_session(spark), travelling(store)
    headers, others = maintain.plan_delete(cube, factory, datasets)
    maintain.run_delete(factory, headers)
    text = f"delete cube {cube.uuid_prefix}"
    call_all(session, maintain.run_delete, factory, blocks(others, _BLOCK), text)


def cleanup_cube_spark(
    cube: Cube,
    store: StoreInput,
    *,
    retention: timedelta | None = None,
    spark: SparkSession | None = None,
) -> None:
    """
    Remove what overwritten, failed or removed data left behind: keys of the cube that no dataset refers to.

    Parameters
    ----------
    cube, store, retention
        As in :func:`kartothek_cube.io.eager_cube.cleanup_cube`.
    spark
        The session; the active one by default.
    """
    session, factory = active_session(spark), travelling(store)
    keys = blocks(maintain.plan_cleanup(cube, factory, retention), _BLOCK)
    call_all(session, maintain.run_delete, factory, keys, f"clean up cube {cube.uuid_prefix}")


def copy_cube_spark(
    cube: Cube,
    src_store: StoreInput,
    tgt_store: StoreInput,
    overwrite: bool = False,
    datasets: Any = None,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
    *,
    spark: SparkSession | None = None,
) -> None:
    """
    Copy a cube from one store to another.

    Parameters
    ----------
    cube, src_store, tgt_store, overwrite, datasets, renamed_cube_prefix, renamed_datasets
        As in :func:`kartothek_cube.io.eager_cube.copy_cube`.
    spark
        The session; the active one by default.

    Raises
    ------
    ValueError, RuntimeError
        As :func:`kartothek_cube.io.eager_cube.copy_cube`.
    """
    session = active_session(spark)
    plan = maintain.plan_copy(
        cube,
        travelling(src_store),
        travelling(tgt_store),
        overwrite,
        datasets,
        renamed_cube_prefix,
        renamed_datasets,
    )
    call_all(session, run_copy_task, plan, copy_tasks(plan, _BLOCK), f"copy cube {cube.uuid_prefix}")
    finish_copies(plan)


def collect_stats_spark(
    cube: Cube, store: StoreInput, datasets: Any = None, *, spark: SparkSession | None = None
) -> dict[str, dict[str, int]]:
    """
    Count what is stored.

    Parameters
    ----------
    cube, store, datasets
        As in :func:`kartothek_cube.io.eager_cube.collect_stats`.
    spark
        The session; the active one by default.

    Returns
    -------
    dict
        As :func:`kartothek_cube.io.eager_cube.collect_stats`.
    """
    session, factory = active_session(spark), travelling(store)
    base, tasks = maintain.plan_stats(cube, factory, datasets, _BLOCK)
    counted = call_all(session, maintain.run_stats, factory, tasks, f"count cube {cube.uuid_prefix}")
    return maintain.sum_stats([base, *counted])
