"""Spark as executor: tasks become rows of a DataFrame, and a function of `_worker` runs over them.

The tasks of a write are the rows themselves: frames that are shuffled by partition.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import pyarrow as pa
from pyspark import cloudpickle

from kartothek_cube.io.spark import _worker
from kartothek_cube.io.spark._session import (
    active_session,
    check_python,
    explain_error,
    job_description,
    no_pandas_warnings,
    remedy,
)
from kartothek_cube.io.spark._types import arrow_schema, spark_schema
from kartothek_cube.io_components.job import Answer, Context, Executor, Job, Result, Task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ("execute_on_frames", "raise_first", "results_as_spark_dataframe", "session_executor")

Tables = TypeVar("Tables", bound=Iterable[pa.Table])

#: number of tasks up to which Spark distributes them by itself; above, each gets a partition of its own
_FEW_TASKS = 64
_OUTCOMES = "id int, outcome binary"


def session_executor(spark: SparkSession | None) -> Executor:
    """The executor of a session, by default of the active one."""
    return _SessionExecutor(active_session(spark))


@attrs.frozen
class _SessionExecutor:
    """Runs the tasks of a job on Spark's executors if there are several, all else on the driver."""

    spark: SparkSession

    def __call__(self, job: Job[Context, Task, Result, Answer], /) -> Answer:
        if job.prepare is not None:
            job.prepare()
        return job.finish(self._run_tasks(job))

    def _run_tasks(self, job: Job[Context, Task, Result, Answer]) -> list[Result]:
        tasks = list(job.tasks)
        if len(tasks) <= 1:
            return [job.run(job.context, task) for task in tasks]
        function = partial(_worker.run_tasks, job.run, job.context)
        return _results(_distribute(self.spark, tasks, function, _OUTCOMES, "call"), job.description)


def execute_on_frames(
    job: Job[Context, tuple[str, DataFrame], Result, Answer], first: Iterable[Result] = ()
) -> Answer:
    """
    Run a job whose tasks are frames and their names.

    Each partition of a frame is a task: ``run`` gets the name and Arrow batches. ``first`` are results that
    ``finish`` gets before those of tasks. Jobs of writes have no step before their tasks.
    """
    frames = list(job.tasks)
    if not frames:
        return job.finish(first)
    check_python(frames[0][1].sparkSession)
    # what executors have of a frame are batches
    run: Callable[[Context, Any], Result] = job.run
    outcomes = [
        _map_batches(df, partial(_worker.run_named, run, job.context, name), _OUTCOMES, f"{job.name}_{name}")
        for name, df in frames
    ]
    df = reduce(lambda a, b: a.unionAll(b), outcomes)
    return job.finish([*first, *_results(df, job.description)])


def results_as_spark_dataframe(
    spark: SparkSession, job: Job[Context, Task, Tables, Answer], schema: StructType
) -> DataFrame:
    """The rows of the tables that tasks give, in the order of the tasks."""
    function = partial(_worker.table_batches, job.run, job.context, arrow_schema(schema))
    return _distribute(spark, list(job.tasks), function, schema, job.name)


def _distribute(
    spark: SparkSession,
    tasks: list[Task],
    function: Callable[[_worker.Batches], _worker.Batches],
    schema: StructType | str,
    name: str,
) -> DataFrame:
    """A frame of what executors make of tasks; its rows come in the order of the tasks."""
    check_python(spark)
    rows = [range(len(tasks)), [pickle.dumps(task) for task in tasks]]
    table = pa.table(
        [pa.array(c, f.type) for c, f in zip(rows, _worker.TASKS, strict=True)], schema=_worker.TASKS
    )
    with no_pandas_warnings():
        df = spark.createDataFrame(table, spark_schema(_worker.TASKS))  # Connect finds none without rows
    if len(tasks) > _FEW_TASKS:
        df = df.repartitionById(len(tasks), "id")
    return _map_batches(df, function, schema, name)


def _map_batches(
    df: DataFrame, function: Callable[[_worker.Batches], _worker.Batches], schema: StructType | str, name: str
) -> DataFrame:
    """Let executors call a function of `_worker` over the batches of a frame."""
    pickled, columns, help_text = cloudpickle.dumps(function), list(df.columns), remedy()

    # pickled by value: executors without this package can still raise the error below
    def on_executor(batches: _worker.Batches) -> _worker.Batches:
        try:
            from kartothek_cube.io.spark._worker import run
        except ImportError as error:
            raise RuntimeError(f"{error}. {help_text}") from error
        yield from run(pickled, batches, columns)

    on_executor.__name__ = on_executor.__qualname__ = name
    plain = df.toDF(*(f"c{number}" for number in range(len(columns))))  # Spark takes "a.b" for a path
    with no_pandas_warnings():
        return plain.mapInArrow(on_executor, schema)


def _results(df: DataFrame, description: str) -> list[Any]:
    """Compute the outcomes of tasks: their results; the first exception among them is raised."""
    try:
        with job_description(df.sparkSession, description), no_pandas_warnings():
            table = df.toArrow()
    except Exception as error:  # Py4JError where the JVM itself failed, and Connect knows no py4j
        reason = explain_error(error)
        if reason is None:
            raise
        # dozens of lines of Python, Py4J and Java say no more; they are still in __context__
        raise reason from None
    return raise_first(_worker.unpickle(outcome.as_py()) for outcome in table.sort_by("id").column("outcome"))


def raise_first(outcomes: Iterable[Any]) -> list[Any]:
    """The results among outcomes; the first exception is raised."""
    results = list(outcomes)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
