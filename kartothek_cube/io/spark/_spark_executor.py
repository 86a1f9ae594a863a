"""Spark as executor: tasks become rows of a DataFrame; those of a write are rows, shuffled by partition."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial, reduce
from itertools import pairwise
from typing import Any, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from kartothek_cube.core import arrow, errors, pandas_conversion, tuning
from kartothek_cube.core.arguments import check_positive
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io.spark import _conversion, _datasource_options, _session
from kartothek_cube.io_components import kernels, runtime
from kartothek_cube.io_components.dataset_read import ReadContext, ReadPlan, ReadTask, run_read
from kartothek_cube.io_components.job import Answer, Job, delete_on_failure
from kartothek_cube.io_components.query.executor import run_task
from kartothek_cube.io_components.query.physical_plan import ScanContext, ScanTask
from kartothek_cube.io_components.write import rewrite, write_commit, write_tasks
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteSpec, Written

#: number of tasks up to which Spark distributes them by itself; above, each gets a partition of its own
_FEW_TASKS = 64
#: rows of tasks, and of their results or errors
_PICKLED = pa.schema([("id", pa.int32()), ("pickled", pa.binary())])
_ROWS = _conversion.spark_schema(_PICKLED)


def execute_on_spark(job: Job[Answer], spark: SparkSession | None) -> Answer:
    """Run the tasks of a job on Spark's executors if there are several, all else on the driver."""
    spark = _session.active_session(spark)
    if job.prepare is not None:
        job.prepare()
    tasks = list(job.tasks)
    with delete_on_failure(job.discard):
        if len(tasks) <= 1:
            return job.finish([job.run(job.context, task) for task in tasks])
        function = partial(run_tasks, partial(job.run, job.context))
        return job.finish(_results(_distribute(spark, tasks, function, _ROWS, "call"), job.description))


def execute_on_frames(job: Job[Answer], first: Iterable[Any] = ()) -> Answer:
    """Run a job whose tasks are the partitions of named frames; ``first`` are results before theirs."""
    frames = list(job.tasks)
    if not frames:
        return job.finish(first)
    run = partial(job.run, job.context)
    outcomes = [
        _map_batches(df, partial(run_named, run, name), _ROWS, f"{job.name}_{name}") for name, df in frames
    ]
    df = reduce(lambda a, b: a.unionAll(b), outcomes)
    with delete_on_failure(job.discard):
        return job.finish([*first, *_results(df, job.description)])


def results_as_spark_dataframe(spark: SparkSession, job: Job[Answer], schema: StructType) -> DataFrame:
    """The rows of the tables that tasks give, in the order of the tasks."""
    function = partial(table_batches, partial(job.run, job.context), _conversion.arrow_schema(schema))
    return _distribute(spark, list(job.tasks), function, schema, job.name)


def _distribute(
    spark: SparkSession,
    tasks: list[Any],
    function: Callable[[Batches], Batches],
    schema: StructType,
    name: str,
) -> DataFrame:
    """A frame of what executors make of tasks; its rows come in the order of the tasks."""
    rows = {"id": range(len(tasks)), "pickled": [pickle.dumps(task) for task in tasks]}
    with _session.no_pandas_warnings():
        # Connect finds no schema without rows
        df = spark.createDataFrame(pa.table(rows, schema=_PICKLED), _ROWS)
    if len(tasks) > _FEW_TASKS:
        df = df.repartitionById(len(tasks), "id")
    return _map_batches(df, function, schema, name)


def _map_batches(
    df: DataFrame, function: Callable[[Batches], Batches], schema: StructType, name: str
) -> DataFrame:
    """Let executors call a function over the batches of a frame."""
    pickled, columns, help_text = cloudpickle.dumps(function), list(df.columns), _session.remedy()

    # pickled by value: executors without this package can still raise the error below
    def on_executor(batches: Batches) -> Batches:
        try:
            from kartothek_cube.io.spark._spark_executor import run
        except ImportError as error:
            raise RuntimeError(f"{error}. {help_text}") from error
        yield from run(pickled, batches, columns)

    on_executor.__name__ = on_executor.__qualname__ = name
    plain = df.toDF(*(f"c{number}" for number in range(len(columns))))  # Spark takes "a.b" for a path
    with _session.no_pandas_warnings():
        return plain.mapInArrow(on_executor, schema)


def _results(df: DataFrame, description: str) -> list[Any]:
    """Compute the outcomes of tasks: their results; the first exception among them is raised."""
    try:
        with _session.job_description(df.sparkSession, description), _session.no_pandas_warnings():
            table = df.toArrow()
    except Exception as error:  # Py4JError where the JVM itself failed, and Connect knows no py4j
        reason = _session.explain_error(error)
        if reason is None:
            raise
        # dozens of lines of Python, Py4J and Java say no more; they are still in __context__
        raise reason from None
    return results_of(table.sort_by("id").column("pickled").to_pylist())


def results_of(outcomes: Iterable[bytes]) -> list[Any]:
    """The results of tasks; the first exception among them is raised."""
    results = [unpickle(outcome) for outcome in outcomes]
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


# -- on executors --------------------------------------------------------------------------------------------


Batches: TypeAlias = Iterator[pa.RecordBatch]
#: name of a frame, and rows of one of its partitions
NamedBatches: TypeAlias = tuple[str, Batches]
#: function of users from the rows of a group to other rows
MapFunction: TypeAlias = Callable[[pa.Table], arrow.Frame | None]

#: rows per batch for Spark
_BATCH_ROWS = 1 << 16

#: errors in the data, which another attempt would meet again; Spark repeats tasks after all others
_FINAL = (errors.KartothekCubeError, ValueError, TypeError, KeyError, RuntimeError, PermissionError)


def run(pickled: bytes, batches: Batches, columns: Sequence[str]) -> Batches:
    """Call a pickled function over batches."""
    function: Callable[[Batches], Batches] = _unpickle_once(pickled)
    return function(batch.rename_columns(columns) for batch in batches)


def unpickle(data: bytes) -> Any:
    """An object of the driver in a task, or of a task in the driver."""
    return pickle.loads(data)  # noqa: S301  Spark itself runs what the driver pickled


#: functions and their contexts, so that a process opens a store once
_unpickle_once = lru_cache(maxsize=4)(unpickle)


def _tasks(batches: Batches) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        for number, task in zip(batch.column("id").to_pylist(), batch.column("pickled"), strict=True):
            yield number, unpickle(task.as_py())


def attempt(function: Callable[[], object]) -> bytes:
    """Result or error of a function, pickled: Spark would turn an exception into a Java stack trace."""
    try:
        with _conversion.spark_remedies():
            return pickle.dumps(function())
    except _FINAL as error:
        try:
            pickled = pickle.dumps(error)
            unpickle(pickled)
        except Exception:  # whatever an exception class may do when it is pickled
            pickled = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        return pickled


# -- jobs ----------------------------------------------------------------------------------------------------


def run_tasks(function: Callable[[Any], object], batches: Batches) -> Batches:
    """Run each task of a job; yields its outcome."""
    for number, task in _tasks(batches):
        yield _outcome(number, partial(function, task))


def run_named(function: Callable[[NamedBatches], object], name: str, batches: Batches) -> Batches:
    """Run a task of a job whose input are the rows of a partition; yields its outcome."""
    yield _outcome(0, partial(function, (name, batches)))


def _outcome(number: int, function: Callable[[], object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": number, "pickled": attempt(function)}], schema=_PICKLED)


def table_batches(
    function: Callable[[Any], Iterable[pa.Table]], target: pa.Schema, batches: Batches
) -> Batches:
    """Run each task of a job whose results are tables; yields their rows."""
    for _, task in _tasks(batches):
        with hide_traceback():
            for table in function(task):
                yield from batches_of(table, target)


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Of the error about files that are gone, Spark shows the text alone."""
    try:
        yield
    except errors.MissingFileError as error:
        # a worker ends after an error
        os.environ[_datasource_options.HIDE_TRACEBACK] = "1"
        raise RuntimeError(
            "This DataFrame reads the cube as it was when the frame was made, and a cleanup has deleted "
            f"files of that state since, such as {error.key}: make the frame again"
        ) from None


def batches_of(table: pa.Table, target: pa.Schema) -> Batches:
    """Rows in batches and types of Spark."""
    for start in range(0, len(table), _BATCH_ROWS):
        yield from _conversion.to_spark(table.slice(start, _BATCH_ROWS), target).combine_chunks().to_batches()


# -- tasks ---------------------------------------------------------------------------------------------------


def map_group(
    function: MapFunction, target: pa.Schema, context: ScanContext, task: ScanTask
) -> Iterator[pa.Table]:
    """Result of a function for each group of a task, in types of Spark; None stands for no rows."""
    for table in run_task(context, task):
        try:
            result = function(pandas_conversion.from_file(table))
        except Exception as error:
            # without the traceback of this library, to which Spark would add its own
            raise RuntimeError(_describe_failure(function, context, table, error)) from None
        if result is None:
            continue
        try:
            rows = _conversion.to_spark(pandas_conversion.as_table(result), target)
        except (TypeError, ValueError, NotImplementedError) as error:
            # it has no line of the function
            error = error.with_traceback(None)
            raise RuntimeError(_describe_failure(function, context, table, error)) from None
        yield rows


def _describe_failure(function: MapFunction, context: ScanContext, table: pa.Table, error: Exception) -> str:
    """Name the function, the group and the line at which a function of the user failed."""
    name = getattr(function, "__name__", type(function).__name__)
    columns = [c for c in context.partition_by if len(table) and c in table.column_names]
    group = ", ".join(f"{c}={table[c][0].as_py()!r}" for c in columns)
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    line = f" in {own[-1].filename}, line {own[-1].lineno}" if own else ""
    where = f" for {group}" if group else ""
    return f"Function {name} failed{where}{line}: {type(error).__name__}: {error}"


def split_into_blocks(plan: ReadPlan, workers: int) -> list[tuple[ReadTask, ...]]:
    """Blocks of consecutive partitions or groups of a read, about three for each worker."""
    count = len(plan.partitions)
    if not count or plan.groups == ():
        return []
    groups = None if plan.groups is None else plan.tasks()
    files = np.ones(count) if groups is None else np.array([len(task.labels) for task in groups])
    cuts = runtime.split_by_weight(files * plan.file_bytes(), 3 * workers, tuning.BLOCK_BYTES)
    if groups is None:
        return [(task,) for task in plan.block_tasks(cuts)]
    return [tuple(groups[start:stop]) for start, stop in pairwise(cuts.tolist())]


def read_block(context: ReadContext, tasks: Iterable[ReadTask]) -> Iterator[pa.Table]:
    """Rows of each of several tasks."""
    return (run_read(context, task) for task in tasks)


def write_rows(plan: WritePlan, rows: NamedBatches, *, file_rows: int | None = None) -> Written:
    """Check, sort, index and write rows of a dataset; with a row limit, they come sorted by cell."""
    name, batches = rows
    spec = plan.specs[name]
    tables = kernels.rechunk_by_partition(batches, spec.partition_on, limit=file_rows)
    stored = (_conversion.to_storage_types(table, spec.types) for table in tables)
    return write_tasks.write_stream(plan, name, stored, ordered=file_rows is not None)


def merge_rows(context: rewrite.MergeContext, rows: NamedBatches) -> list[rewrite.Rewritten]:
    """Merge rows with the stored ones, one physical partition after the other."""
    types = context.spec.types
    tables = kernels.rechunk_by_partition(rows[1], context.keys)
    return rewrite.run_merge(context, (_conversion.to_storage_types(table, types) for table in tables))


# -- writes: a shuffle by partition, one Spark job, commit on the driver -------------------------------------

SparkInput: TypeAlias = DataFrame | Mapping[str, DataFrame | None]
"""The frame of the seed, or frames by dataset id."""
Frames: TypeAlias = Mapping[str, DataFrame | None]

#: column with the number of tasks of a partition; no dataset can have it
_SHARES = "__kartothek_cube_shares"
#: hash buckets have unequal sizes, so their mean is smaller than a file may be
_UNEVEN = 1.05


# -- input ---------------------------------------------------------------------------------------------------


def frames_of(data: SparkInput | None, default: str) -> Frames:
    """Input by dataset id; a single frame belongs to ``default``."""
    if not isinstance(data, Mapping):
        check_frame(data)
        return {default: data}
    for name, frame in data.items():
        if frame is not None:
            check_frame(frame, f"Dataset {name}: ")
    return {str(name): frame for name, frame in data.items()}


def check_frame(obj: object, where: str = "") -> None:
    """Raise TypeError unless an object is a DataFrame of Spark, classic or Connect."""
    if not isinstance(obj, DataFrame):
        raise TypeError(
            f"{where}Expected a Spark DataFrame (of several, their union), or a dict of dataset id to these, "
            f"but got {type(obj).__module__}.{type(obj).__name__}. Use kartothek_cube.io.spark.create_frame, "
            "or the functions of kartothek_cube.io.eager_cube and kartothek_cube.io.eager"
        )
    if obj.isStreaming:
        raise TypeError(
            f"{where}A DataFrame of a stream has no end: write its batches by "
            f"writeStream.format({_datasource_options.FORMAT!r}), or by this function in foreachBatch"
        )


def _check_columns(df: DataFrame, dataset: str, stored: Mapping[str, pa.DataType]) -> pa.Table:
    """Check names and types of the columns of a frame; a table without rows, in the types to be stored."""
    names = list(df.columns)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Duplicate columns in dataset {dataset!r}: {', '.join(twice)}")
    _check_case(df, names, dataset)
    return _conversion.check_types(df.schema, dataset, stored)


def _check_case(df: DataFrame, names: Sequence[str], dataset: str) -> None:
    if not _session.is_case_sensitive(df.sparkSession):
        check_case(names, dataset, "Rename them, or set spark.sql.caseSensitive to true")


def check_case(names: Sequence[str], dataset: str, remedy: str) -> None:
    """Refuse columns whose names differ in case only: Spark ignores it by default."""
    lower = [name.lower() for name in names]
    alike = sorted(name for name in names if lower.count(name.lower()) > 1)
    if alike:
        raise ValueError(
            f"Columns of dataset {dataset!r} differ in upper and lower case only: {', '.join(alike)}. "
            + remedy
        )


# -- writes --------------------------------------------------------------------------------------------------


@_conversion.spark_remedies()
def write_cube(plan: WritePlan, frames: Frames, file_rows: int | None) -> dict[str, DatasetMetadata]:
    """Write frames to a cube; after a failure the files are deleted and the cube is unchanged."""
    write_tasks.check_announced(plan, frames)
    inputs = {name: df for name, df in frames.items() if df is not None}
    tables = {name: _check_columns(df, name, plan.specs[name].types) for name, df in inputs.items()}
    write_commit.check_schemas(plan, tables)
    for name, df in inputs.items():
        # new columns, which the schema takes
        _check_case(df, list(dict.fromkeys([*df.columns, *plan.specs[name].types])), name)
    rows = []
    for name, df in inputs.items():
        spec, cells = plan.specs[name], [c for c in plan.cube.dimension_columns if c in df.columns]
        df = _derive_columns(df, spec)
        rows.append((name, _shuffle_by_partition(df, spec.partition_on, cells, file_rows)))
    job = write_commit.write_job(plan, rows, partial(write_rows, file_rows=file_rows))
    job = attrs.evolve(job, name=plan.info.name, description=f"{job.description}: {', '.join(inputs)}")
    # Spark runs no task for a frame without rows
    nothing = {name: plan.specs[name].merge(()) for name in frames}
    return execute_on_frames(job, [nothing])


@_conversion.spark_remedies()
def write_dataset(plan: WritePlan, df: DataFrame, file_rows: int | None) -> DatasetMetadata:
    """Write a frame to a dataset; after a failure the files are deleted and the dataset is unchanged."""
    spec = plan.spec
    nothing = write_tasks.check_dataset_input(spec, _check_columns(df, spec.uuid, spec.types))
    # Spark neither hashes nor sorts maps
    cells = spec.sort_by or [f.name for f in df.schema if "map<" not in f.dataType.simpleString()]
    rows = _shuffle_by_partition(df, spec.partition_on, cells, file_rows)
    run = partial(write_rows, file_rows=file_rows)
    job = attrs.evolve(write_commit.write_dataset_job(plan, [(spec.uuid, rows)], run), name="write")
    return execute_on_frames(job, [{spec.uuid: nothing}])


@_conversion.spark_remedies()
def merge_frame(context: rewrite.MergeContext, df: DataFrame) -> rewrite.MergeResult:
    """Merge a frame into a dataset; after a failure the files are deleted and the dataset is unchanged."""
    check_frame(df)
    rewrite.check_merge_input(context, _check_columns(df, context.spec.name, context.spec.types))
    rows = _shuffle_by_partition(_derive_columns(df, context.spec), context.keys)
    # executors get a frame as batches
    run: Callable[[rewrite.MergeContext, Any], list[rewrite.Rewritten]] = merge_rows
    return execute_on_frames(rewrite.merge_job(context, [(context.spec.name, rows)], run))


# -- shuffle -------------------------------------------------------------------------------------------------


def _derive_columns(df: DataFrame, spec: WriteSpec) -> DataFrame:
    """The frame with the partition columns that are transforms, so that it can be shuffled by them."""
    missing = [transform for transform in spec.transforms(df.columns) if transform.name not in df.columns]
    if not missing:
        return df
    empty = _conversion.check_types(df.schema, spec.name, spec.types)
    derived = pa.schema([(t.name, t.apply(empty.column(t.column)).type) for t in missing])
    schema = type(df.schema)([*df.schema.fields, *_conversion.spark_schema(derived).fields])
    return _map_batches(df, partial(derive_batches, spec), schema, "derive")


def derive_batches(spec: WriteSpec, batches: Batches) -> Batches:
    """Batches with the partition columns that are transforms."""
    for batch in batches:
        names = set(batch.schema.names)
        for transform in spec.transforms(batch.schema.names):
            if transform.name in names:
                continue
            source = pa.table({transform.column: batch.column(transform.column)})
            values = _conversion.to_storage_types(source, spec.types).column(transform.column)
            try:
                derived = transform.apply(values.drop_null())
            except ValueError:
                derived = pa.nulls(0)
            if len(derived) < len(batch):
                # refused when the rows are written, with the error of all façades
                derived = pa.nulls(len(batch), transform.apply(values.slice(0, 0)).type)
            batch = batch.append_column(transform.name, derived)
        yield batch


def _shuffle_by_partition(
    df: DataFrame, keys: Sequence[str], cells: Sequence[str] = (), file_rows: int | None = None
) -> DataFrame:
    """Bring the rows of each logical partition together by one shuffle, sorted by partition."""
    df = _drop_collations(df)
    names = [_session.quote_column(key) for key in keys]
    if file_rows is not None:
        check_positive("max_rows_per_file", file_rows)
        f = _session.column_functions(df)
        shares = f.ceil(f.count(f.lit(1)) * _UNEVEN / file_rows).alias(_SHARES)
        counts = df.groupBy(*names).agg(shares)
        large = counts.where(f.col(_SHARES) > 1)
        # partitions of more rows than a file may have are divided by hashes of their cells
        marked = (
            df.join(f.broadcast(large), list(keys), "left") if keys else df.crossJoin(f.broadcast(counts))
        )
        cell_names = [_session.quote_column(cell) for cell in cells]
        share: Column = f.pmod(f.xxhash64(*cell_names), f.coalesce(f.col(_SHARES), f.lit(1)))
        sorted_rows = marked.repartition(*names, share).sortWithinPartitions(*names, *cell_names)
        return sorted_rows.select(*map(_session.quote_column, df.columns))
    if not keys:
        return df.repartition(1)
    return df.repartition(*names).sortWithinPartitions(*names)


def _drop_collations(df: DataFrame) -> DataFrame:
    """The frame with texts that are equal only if all characters are, as they are in partitions and cells."""
    f = _session.column_functions(df)
    plain = {
        field.name: f.col(_session.quote_column(field.name)).cast(StringType())
        for field in df.schema
        if isinstance(field.dataType, StringType) and field.dataType != StringType()
    }
    return df.withColumns(plain) if plain else df
