"""Cubes with Spark: DataFrames in, DataFrames out; plans and commits happen on the driver."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import attrs
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from kartothek_cube.core import naming, pandas_conversion
from kartothek_cube.core.cube.conditions import Condition, ConditionsInput
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput, find_cube
from kartothek_cube.core.cube.implied_conditions import join_conditions
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io.spark import _session
from kartothek_cube.io.spark import _spark_executor as executor
from kartothek_cube.io.spark._conversion import arrow_schema, spark_schema
from kartothek_cube.io.spark._session import SessionArgument, picklable_store
from kartothek_cube.io.spark._spark_executor import MapFunction, SparkInput
from kartothek_cube.io_components import computed_dataset, delete_rows
from kartothek_cube.io_components.facade import Example, Operation, P, define_facade, facade, with_stores
from kartothek_cube.io_components.job import Answer, execute
from kartothek_cube.io_components.maintenance import copy, garbage, overview, verify_cube
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.executor import announce_query, query_job, run_task
from kartothek_cube.io_components.query.logical_plan import QueryCube
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, plan_query, split_into_tasks
from kartothek_cube.io_components.scan import CHECK_PAGES, read_columns
from kartothek_cube.io_components.write import build_index, cube_writes, write_commit
from kartothek_cube.io_components.write.rewrite import CompactCube, MergeResult, plan_merge
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
    as_of: CubeAsOf | None = None,
    changed_since: CubeAsOf | None = None,
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
    conditions, datasets, dimension_columns, payload_columns, as_of, changed_since
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
        As :func:`query_cube_spark`; also if the schema cannot be found out, or has two columns of one name.

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
    session = _session.active_session(spark)
    groups = list(cube.partition_columns) if partition_by is None else partition_by
    query = QueryCube(
        cube,
        picklable_store(store),
        conditions,
        datasets,
        dimension_columns,
        groups,
        payload_columns,
        as_of=as_of,
        changed_since=changed_since,
    )
    plan = plan_query(query)
    announce_query(plan)
    spark_types = _schema_of(func, plan) if schema is None else _as_spark_schema(schema)
    pandas_conversion.column_names(spark_types.names)
    tasks = split_into_tasks(plan, _session.workers(session))
    job = query_job(plan, tasks, partial(executor.map_group, func, arrow_schema(spark_types)))
    job = attrs.evolve(job, name=f"map_{cube.uuid_prefix}: {plan.summary}")
    return executor.results_as_spark_dataframe(session, job, spark_types)


def _schema_of(func: MapFunction, plan: PhysicalPlan) -> StructType:
    """Schema of the result of the function for an empty table."""
    empty = plan.context.output.empty_table()
    try:
        result = func(empty)
        table = None if result is None else pandas_conversion.as_table(result)
    except Exception as error:
        raise ValueError(
            f"The function fails for a table without rows ({type(error).__name__}: {error}), so that it is "
            "unknown which columns it gives: pass their schema"
        ) from error
    if table is None:
        raise ValueError("The function gives None for a table without rows: pass the schema of what it gives")
    fields = list(table.schema)
    if isinstance(result, pd.DataFrame):
        # they have the types of the query, as they could be anything
        objects = {name for name, dtype in result.dtypes.items() if pd.api.types.is_object_dtype(dtype)}
        unclear = objects.intersection(empty.schema.names)
        fields = [empty.schema.field(f.name) if f.name in unclear else f for f in fields]
    return spark_schema(pa.schema(fields))


def _as_spark_schema(schema: StructType | pa.Schema | str) -> StructType:
    if isinstance(schema, pa.Schema):
        return spark_schema(schema)
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise TypeError(
            f"schema must be a Spark schema, its text, or an Arrow schema, but is {type(schema).__name__}"
        )
    # values in lists, maps and structs may be null: Spark would fail in Java there, or find no null
    loose = spark_schema(arrow_schema(parsed))
    return StructType([StructField(f.name, loose[f.name].dataType, f.nullable, f.metadata) for f in parsed])


# -- queries -------------------------------------------------------------------------------------------------


def query_as_frame(
    query: QueryCube[StoreInput],
    session: SparkSession,
    whole: PhysicalPlan | None = None,
    pushed: Sequence[Condition] = (),
) -> DataFrame:
    """The rows of a query, read by tasks; or by Spark, which evaluates ``pushed`` conditions."""
    # Spark reads rows in the state and types of `whole`, the plan of all columns and none of these conditions
    query = with_stores(query, picklable_store)
    conditions = join_conditions(query.conditions, pushed)
    snapshot = None if whole is None else whole.snapshot
    plan = plan_query(attrs.evolve(query, conditions=conditions), snapshot)
    announce_query(plan)
    schema = spark_schema(plan.context.output)
    # Spark shows the name in plans, and in those of its web UI
    name = f"query_{query.cube.uuid_prefix}: {plan.summary}"
    if whole is not None:
        # numbers are narrower where the files that are read have no large ones
        schema = spark_schema(pa.schema([whole.context.output.field(name) for name in schema.names]))
        has_conditions = any(scan.predicates or scan.implied for scan in whole.context.scans)
        obstacle = "it has conditions on rows" if has_conditions else find_obstacle(plan, schema, session)
        if obstacle is None:
            return scan_parquet(plan, schema, session)
        name += f"; read in Python: {obstacle}"
    job = query_job(plan, split_into_tasks(plan, _session.workers(session)), run_task)
    return executor.results_as_spark_dataframe(session, attrs.evolve(job, name=name), schema)


# -- queries that Spark itself reads, without Python ---------------------------------------------------------

#: files whose footers are read to learn their types; Spark lists them one by one
_MAX_FILES = 1000
#: characters of patterns in paths of Hadoop
_PATTERN = re.compile(r"[{}\[\]*?\\]")
#: partition values that Spark decodes as this library does: it takes escapes for characters, not for UTF-8
_VALUES: dict[pa.DataType, str] = {
    pa.string(): r"(?!__HIVE_DEFAULT_PARTITION__/)(?:[A-Za-z0-9_.~-]|%[2-7][0-9A-F])+",
    pa.int64(): r"-?[0-9]{1,19}",
    pa.date32(): r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
}
_PLAIN_TYPES = (pa.bool_(), pa.string(), pa.binary(), pa.date32())
_LISTING_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"


def find_obstacle(plan: PhysicalPlan, schema: StructType, session: SparkSession) -> str | None:
    """Why Spark cannot read the files of a query by itself, in the types of a schema; None if it can."""
    context, files = plan.context, plan.files[0]
    scan, blobs = files.scan, context.open_store()
    if len(context.scans) > 1 or context.join_filters:
        return "it joins datasets"
    if plan.is_empty:
        return "there is no file to read"
    if (files.count_files() > 1).any():
        return "partitions have several files, which may hold versions of a cell; compact the cube"
    if scan.mapping is not None:
        return "files are older than the schema"
    keys = files.storage_keys()
    if len(keys) > _MAX_FILES:
        return f"it reads more than {_MAX_FILES:,} files"
    if os.environ.get(CHECK_PAGES):
        return f"Spark does not check pages, as {CHECK_PAGES} says"
    if not files.has_derived_keys or len(set(keys)) < len(keys):
        return "files are not those of the dataset alone"
    if not blobs.is_local or blobs.local_path(keys[0]) is None:
        return "the store is no local directory"
    if _PATTERN.search(f"{blobs.local_path(keys[0])}"):
        return "Spark takes the path for a pattern"
    types = {name: scan.schema.field(name).type for name in scan.partition_keys}
    # Spark does not decode names
    is_plain = (naming.quote(name) == name and not name.startswith((".", "_")) for name in types)
    if not all(is_plain) or not set(types.values()) <= set(_VALUES):
        return "Spark reads other types of partition columns"
    folders = "".join(f"{name}={_VALUES[dtype]}/" for name, dtype in types.items())
    label = re.compile(
        rf"{re.escape(f'{scan.uuid}/{scan.table}/')}{folders}[A-Za-z0-9][A-Za-z0-9_.-]*\.parquet"
    )
    if not all(map(label.fullmatch, keys)):
        return "Spark reads other values of partition columns, or other files"
    is_case_sensitive = _session.is_case_sensitive(session)
    fields = [field for field in arrow_schema(schema) if field.name not in types]
    for key in keys:
        columns = read_columns(blobs, key)
        stored = dict(zip(columns.names, columns.types, strict=True))
        for field in fields:
            if field.name not in stored or not _is_readable(stored[field.name], field.type):
                return f"Spark reads other types of column {field.name}"
        names = {*stored, *types}
        if not is_case_sensitive and len({name.lower() for name in names}) < len(names):
            return "columns differ in upper and lower case only"
    return None


def _is_readable(stored: pa.DataType, target: pa.DataType) -> bool:
    """Whether Spark reads exact values of a type out of files."""
    if pat.is_dictionary(stored):
        stored = stored.value_type
    if pat.is_timestamp(stored) and pat.is_timestamp(target):
        return stored.unit in ("ms", "us") and (stored.tz is None) == (target.tz is None)
    for kind in (pat.is_signed_integer, pat.is_floating):
        if kind(stored) and kind(target):
            return not pat.is_float16(stored) and bool(stored.bit_width <= target.bit_width)
    if pat.is_large_string(stored) or pat.is_large_binary(stored):
        stored = pa.string() if pat.is_large_string(stored) else pa.binary()
    return stored in _PLAIN_TYPES and bool(stored.equals(target))


def scan_parquet(plan: PhysicalPlan, schema: StructType, session: SparkSession) -> DataFrame:
    """The rows of a query without obstacles, as Spark reads its files."""
    blobs, files = plan.context.open_store(), plan.files[0]
    scan = files.scan
    paths = [f"file://{os.path.abspath(str(blobs.local_path(key)))}" for key in files.storage_keys()]
    root = paths[0][: paths[0].rindex(f"/{scan.uuid}/{scan.table}/")]
    reader = session.read.schema(schema).options(
        basePath=f"{root}/{scan.uuid}/{scan.table}",
        # options that sessions may have set: all files count, and days are those of the Gregorian calendar
        datetimeRebaseMode="CORRECTED",
        ignoreMissingFiles="false",
        ignoreCorruptFiles="false",
    )
    with _session.changed_setting(session, _LISTING_THRESHOLD, str(_MAX_FILES)):
        df = reader.parquet(*paths)
    f = _session.column_functions(df)
    columns = []
    for field in arrow_schema(schema):
        column = f.col(_session.quote_column(field.name))
        if pat.is_floating(field.type):
            column = f.nanvl(column, f.lit(None).cast(schema[field.name].dataType)).alias(field.name)
        columns.append(column)
    return df.select(*columns)


# -- façades -------------------------------------------------------------------------------------------------

_EXAMPLE = Example(("from kartothek_cube.io.spark import local_session", "_ = local_session(2)"))
_TYPES = {"DataT": "SparkInput", "StoreT": "StoreInput"}


def _write(
    name: str, write: Callable[P, cube_writes.CubeWrite[SparkInput]]
) -> Callable[P, dict[str, DatasetMetadata]]:
    """The façade of a write: one shuffle by partition, then a commit."""

    def run(write: cube_writes.CubeWrite[SparkInput]) -> dict[str, DatasetMetadata]:
        frames = executor.frames_of(write.data, write.cube.seed_dataset)
        plan = with_stores(write, picklable_store).plan(frames)
        batch: tuple[str, int] | None = getattr(write, "batch", None)
        committed = write_commit.find_committed_batch(plan, batch)
        if committed is not None:
            return committed
        plan = plan.evolve_changes(batch=batch)
        return executor.write_cube(plan, frames, getattr(write, "max_rows_per_file", None))

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
        blocksize: int | None = getattr(operation, "blocksize", _BLOCK)
        job = with_stores(operation, picklable_store).job(blocksize)
        return executor.execute_on_spark(job, getattr(operation, "spark", None))

    return facade(__name__, name, operation, run, note, _TYPES, example=_EXAMPLE)


@attrs.frozen(slots=False)
class _RowLimit:
    max_rows_per_file: int | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _BuildCube(_RowLimit, cube_writes.BuildCube[SparkInput, StoreInput]): ...


@attrs.frozen
class _ExtendCube(_RowLimit, cube_writes.ExtendCube[SparkInput, StoreInput]): ...


def _check_batch(_write: object, _field: object, batch: tuple[str, int] | None) -> None:
    given: object = batch
    if batch is None:
        return
    if not isinstance(given, tuple) or tuple(map(type, given)) != (str, int):
        raise TypeError(f"batch must be a tuple of the name of a stream and a number, but is {batch!r}")
    if batch[1] < 0:
        raise ValueError(f"The number of a batch must be >= 0 but is {batch[1]}")


@attrs.frozen(slots=False)
class _Batch(_RowLimit):
    batch: tuple[str, int] | None = attrs.field(default=None, kw_only=True, validator=_check_batch)


@attrs.frozen
class _AppendToCube(_Batch, cube_writes.AppendToCube[SparkInput, StoreInput]): ...


@attrs.frozen
class _UpdateCube(_Batch, cube_writes.UpdateCube[SparkInput, StoreInput]): ...


@attrs.frozen
class _DeleteRows(SessionArgument, delete_rows.DeleteRows[StoreInput]): ...


@attrs.frozen
class _DeleteCube(SessionArgument, garbage.DeleteCube[StoreInput]): ...


@attrs.frozen
class _CleanupCube(SessionArgument, garbage.CleanupCube[StoreInput]): ...


@attrs.frozen
class _CopyCube(SessionArgument, copy.CopyCube[StoreInput]): ...


@attrs.frozen
class _CollectStats(SessionArgument, overview.CollectStats[StoreInput]): ...


@attrs.frozen
class _CompactCube(SessionArgument, CompactCube[StoreInput]): ...


@attrs.frozen
class _ComputeDataset(SessionArgument, computed_dataset.ComputeDataset[StoreInput]): ...


@attrs.frozen
class _BuildColumnStatistics(SessionArgument, build_index.BuildColumnStatistics[StoreInput]):
    # that of the operation: its tasks read rows
    blocksize: ClassVar[int | None] = None


@attrs.frozen
class _VerifyCube(SessionArgument, verify_cube.VerifyCube[StoreInput]): ...


@attrs.frozen
class _QueryCube(SessionArgument, QueryCube[StoreInput]):
    """Parameters of the façade.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> from kartothek_cube.io.spark.cube import query_cube_spark
    >>> from kartothek_cube.io.spark import local_session
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> query_cube_spark(cube, store, "COUNTRY_CODE == IT", spark=local_session(2)).collect()
    [Row(CITY='Rom', COUNTRY_CODE='IT')]
    """


@define_facade(
    _QueryCube,
    _TYPES,
    returns="Rows of a group of ``partition_by`` are consecutive, groups are sorted; to process them as "
    "a whole, use :func:`~kartothek_cube.io.spark.cube.map_cube_spark`.",
)
def query_cube_spark(query: _QueryCube) -> DataFrame:
    """Query a cube as a Spark DataFrame.

    The query is planned at once and sees the cube as it is now. Tasks read and join co-located files; nothing
    is shuffled. Naive timestamps are ``timestamp_ntz``, zoned ones ``timestamp``, and missing numbers null.
    Executors must be able to open ``store``.
    """
    return query_as_frame(query, _session.active_session(query.spark))


@define_facade(cube_writes.RemovePartitions[StoreInput], _TYPES, example=_EXAMPLE)
def remove_partitions_spark(remove: cube_writes.RemovePartitions[StoreInput]) -> dict[str, DatasetMetadata]:
    """Remove partitions.

    All of it is done on the driver.
    """
    return execute(remove.job())


build_cube_from_spark = _write("build_cube_from_spark", _BuildCube)
extend_cube_from_spark = _write("extend_cube_from_spark", _ExtendCube)
append_to_cube_from_spark = _write("append_to_cube_from_spark", _AppendToCube)
update_cube_from_spark = _write("update_cube_from_spark", _UpdateCube)
delete_rows_spark = _spark(
    "delete_rows_spark", _DeleteRows, "Each task rewrites up to 16 physical partitions; the driver commits."
)
delete_cube_spark = _spark("delete_cube_spark", _DeleteCube, "Each task deletes 1,000 files.")
cleanup_cube_spark = _spark("cleanup_cube_spark", _CleanupCube, "Each task deletes 1,000 files.")
copy_cube_spark = _spark(
    "copy_cube_spark", _CopyCube, "Each task copies 1,000 files; the driver commits the datasets."
)
compute_dataset_spark = _spark(
    "compute_dataset_spark",
    _ComputeDataset,
    "A task computes a partition, or several small ones; the driver commits.",
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
    store = picklable_store(store)
    context = plan_merge(
        cube, store, dataset, metadata, df_serializer, delete_column=delete_column, publish=publish
    )
    return executor.merge_frame(context, df)
