"""Spark as an executor: tasks become rows of a DataFrame, and a function of `_worker` runs over them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark import cloudpickle

from kartothek_cube.io.spark import _worker
from kartothek_cube.io.spark._session import (
    check_python,
    explained,
    job_description,
    no_pandas_warnings,
    remedy,
)
from kartothek_cube.io.spark._types import spark_schema
from kartothek_cube.io_components.job import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ("distribute_tasks", "execute", "map_batches", "outcome_frame", "outcomes", "raise_first")

T = TypeVar("T")
Context = TypeVar("Context")
Result = TypeVar("Result")
Answer = TypeVar("Answer")

#: number of tasks up to which Spark distributes them by itself; above, each gets a partition of its own
_FEW_TASKS = 64
_OUTCOMES = "id int, outcome binary"


def map_batches(
    df: DataFrame, function: Callable[..., Any], shared: Any, schema: StructType | str, name: str
) -> DataFrame:
    """Let executors call a function of `_worker` over the batches of a frame."""
    pickled = cloudpickle.dumps((function, shared))
    columns, help_text = list(df.columns), remedy()

    # pickled by value: executors without this package can still raise the error below
    def on_executor(batches: Any) -> Any:
        try:
            from kartothek_cube.io.spark._worker import run
        except ImportError as error:
            raise RuntimeError(f"{error}. {help_text}") from error
        yield from run(pickled, batches, columns)

    on_executor.__name__ = on_executor.__qualname__ = name
    plain = df.toDF(*(f"c{number}" for number in range(len(columns))))  # Spark takes "a.b" for a path
    with no_pandas_warnings():
        return plain.mapInArrow(on_executor, schema)


def distribute_tasks(
    spark: SparkSession,
    tasks: Sequence[Any],
    function: Callable[..., Any],
    shared: Any,
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
    return map_batches(df, function, shared, schema, name)


def outcomes(spark: SparkSession, df: DataFrame, text: str) -> list[Any]:
    """Run a job whose tasks yield outcomes: results, and exceptions for wrong data."""
    try:
        with job_description(spark, text), no_pandas_warnings():
            table = df.toArrow()
    except Exception as error:  # Py4JError where the JVM itself failed, and Connect knows no py4j
        reason = explained(error)
        if reason is None:
            raise
        raise reason from error
    return [_worker.unpickled(outcome.as_py()) for outcome in table.sort_by("id").column("outcome")]


def outcome_frame(df: DataFrame, function: Callable[..., Any], shared: Any, name: str) -> DataFrame:
    """A frame of outcomes: what executors make of the rows of another frame."""
    return map_batches(df, function, shared, _OUTCOMES, name)


def execute(spark: SparkSession, job: Job[Context, T, Result, Answer]) -> Answer:
    """Run a job: its tasks on executors if there are several, all else on the driver."""
    if job.prepare is not None:
        job.prepare()
    return job.finish(_run_tasks(spark, job))


def _run_tasks(spark: SparkSession, job: Job[Context, T, Result, Answer]) -> list[Result]:
    tasks = list(job.tasks)
    if len(tasks) <= 1:
        return [job.run(job.context, task) for task in tasks]
    call = _worker.Call(job.run, job.context)
    df = distribute_tasks(spark, tasks, _worker.call_each, call, _OUTCOMES, "call")
    return raise_first(outcomes(spark, df, job.description))


def raise_first(results: list[Any]) -> list[Any]:
    """The results; the first exception among them is raised."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
