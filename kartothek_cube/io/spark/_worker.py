"""What runs on executors: one function of this module per kind of job, between Arrow batches."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import attrs
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import as_table, to_memory
from kartothek_cube.core.errors import KartothekCubeError
from kartothek_cube.io.spark._types import to_spark, to_storage_types
from kartothek_cube.io_components.kernels.rechunk import rechunk_by_partition
from kartothek_cube.io_components.query.executor import run_task
from kartothek_cube.io_components.query.physical_plan import ScanContext
from kartothek_cube.io_components.read.dataset_read import ReadContext, run_read
from kartothek_cube.io_components.write.cube_plan import CubeWritePlan
from kartothek_cube.io_components.write.dataset_commit import run_updates
from kartothek_cube.io_components.write.incremental import write_stream
from kartothek_cube.io_components.write.table_writer import WriteContext

__all__ = (
    "BATCH_ROWS",
    "OUTCOMES",
    "TASKS",
    "Call",
    "CubeWriteContext",
    "DatasetWriteContext",
    "QueryContext",
    "TableReadContext",
    "attempt",
    "batches_of",
    "call_each",
    "outcome_of",
    "query",
    "read",
    "run",
    "transformed",
    "unpickled",
    "write_cube",
    "write_dataset",
)

Batches = Iterator[pa.RecordBatch]

#: rows that are handed to Spark at once
BATCH_ROWS = 1 << 16
#: a task in a row
TASKS = pa.schema([("id", pa.int32()), ("task", pa.binary())])
#: what came out of a task, or why nothing did
OUTCOMES = pa.schema([("id", pa.int32()), ("outcome", pa.binary())])

#: what is wrong with the data, and would be so in another attempt; everything else is for Spark to try again
_FINAL = (KartothekCubeError, ValueError, TypeError, KeyError, RuntimeError)


def run(pickled: bytes, batches: Batches, columns: Sequence[str]) -> Batches:
    """
    Call a function of this module.

    Parameters
    ----------
    pickled
        The function, and what all its tasks share.
    batches
        Its input.
    columns
        Names of the columns of the input.

    Returns
    -------
    iterator of pyarrow.RecordBatch
    """
    function, shared = _shared(pickled)
    result: Batches = function(shared, (batch.rename_columns(columns) for batch in batches))
    return result


@lru_cache(maxsize=4)
def _shared(pickled: bytes) -> tuple[Callable[..., Batches], Any]:
    """The same objects for all tasks of a process, so that a store is opened once."""
    function, shared = unpickled(pickled)
    return function, shared


def unpickled(data: bytes) -> Any:
    """What the driver sent to this task, or a task to the driver."""
    return pickle.loads(data)  # noqa: S301  Spark itself runs what the driver pickled


def _tasks(batches: Batches) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        for number, task in zip(batch.column("id").to_pylist(), batch.column("task"), strict=True):
            yield number, unpickled(task.as_py())


def attempt(function: Callable[[], Any]) -> bytes:
    """
    What a function returns or raises, pickled: Spark would make a Java stack trace of an exception.

    Parameters
    ----------
    function
        Does the work.
    """
    try:
        result = function()
    except _FINAL as error:
        result = _portable(error)
    return pickle.dumps(result)


def outcome_of(number: int, function: Callable[[], Any]) -> pa.RecordBatch:
    """
    The attempt to call a function, as a row.

    Parameters
    ----------
    number
        Which task it is.
    function
        Does the work.
    """
    return pa.RecordBatch.from_pylist([{"id": number, "outcome": attempt(function)}], schema=OUTCOMES)


def _portable(error: Exception) -> Exception:
    """The error itself, or one of the same text that survives pickle."""
    try:
        unpickled(pickle.dumps(error))
    except Exception:  # whatever an exception class may do when it is pickled
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


# -- queries -------------------------------------------------------------------------------------------------


@attrs.frozen
class QueryContext:
    """
    What the tasks of a query share.

    Attributes
    ----------
    context
        The query.
    target
        Columns and types that Spark expects.
    function
        What to make of the table of each group; None: nothing.
    """

    context: ScanContext
    target: pa.Schema
    function: Callable[[pa.Table], Any] | None = None


def query(shared: QueryContext, batches: Batches) -> Batches:
    """
    Read, join, and transform.

    Parameters
    ----------
    shared
        The query.
    batches
        Tasks.

    Yields
    ------
    pyarrow.RecordBatch
    """
    for _, task in _tasks(batches):
        for table in run_task(shared.context, task):
            rows = table if shared.function is None else transformed(shared.function, table)
            if rows is not None:
                yield from batches_of(rows, shared.target)


def transformed(function: Callable[[pa.Table], Any], table: pa.Table) -> pa.Table | None:
    """
    What the user's function makes of a table.

    Parameters
    ----------
    function
        Takes an Arrow table, gives any kind of table, or None for no rows.
    table
        The table.
    """
    result = function(to_memory(table))
    return None if result is None else as_table(result)


def batches_of(table: pa.Table, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows as Spark takes them, some at a time."""
    for start in range(0, len(table), BATCH_ROWS):
        yield from to_spark(table.slice(start, BATCH_ROWS), target).combine_chunks().to_batches()


@attrs.frozen
class TableReadContext:
    """
    What the tasks that read a dataset share.

    Attributes
    ----------
    context
        The read.
    target
        Columns and types that Spark expects.
    """

    context: ReadContext
    target: pa.Schema


def read(shared: TableReadContext, batches: Batches) -> Batches:
    """
    Read partitions.

    Parameters
    ----------
    shared
        The read.
    batches
        Tasks, each of them several tasks of the read.

    Yields
    ------
    pyarrow.RecordBatch
    """
    for _, tasks in _tasks(batches):
        for task in tasks:
            yield from batches_of(run_read(shared.context, task), shared.target)


# -- writes --------------------------------------------------------------------------------------------------


@attrs.frozen
class CubeWriteContext:
    """
    What the tasks that write one dataset of a cube share.

    Attributes
    ----------
    plan
        The write, without what only its commit needs.
    name
        Dataset id.
    file_rows
        Rows that a file may have, if that is limited; rows come sorted by cell then.
    """

    plan: CubeWritePlan
    name: str
    file_rows: int | None = None


def write_cube(shared: CubeWriteContext, batches: Batches) -> Batches:
    """
    Check, sort, index and write rows, partition by partition.

    Parameters
    ----------
    shared
        The write.
    batches
        Rows, those of a logical partition next to each other.

    Yields
    ------
    pyarrow.RecordBatch
        One outcome: what was written, by dataset id.
    """
    change, ordered = shared.plan.changes[shared.name], shared.file_rows is not None
    tables = rechunk_by_partition(batches, change.rules.partition_on, limit=shared.file_rows)
    rows = (to_storage_types(table, change.types) for table in tables)
    yield outcome_of(0, partial(write_stream, shared.plan, shared.name, rows, ordered=ordered))


@attrs.frozen
class DatasetWriteContext:
    """
    What the tasks that write a dataset share.

    Attributes
    ----------
    context
        How to write.
    types
        Types that columns have in the dataset already.
    file_rows
        Rows that a file may have, if that is limited.
    """

    context: WriteContext
    types: Mapping[str, pa.DataType]
    file_rows: int | None = None


def write_dataset(shared: DatasetWriteContext, batches: Batches) -> Batches:
    """
    Write rows, partition by partition.

    Parameters
    ----------
    shared
        The write.
    batches
        Rows, those of a logical partition next to each other.

    Yields
    ------
    pyarrow.RecordBatch
        One outcome: what was written.
    """
    tables = rechunk_by_partition(batches, shared.context.partition_on, limit=shared.file_rows)
    rows = (to_storage_types(table, shared.types) for table in tables)
    yield outcome_of(0, partial(run_updates, shared.context, rows))


# -- everything else -----------------------------------------------------------------------------------------


@attrs.frozen
class Call:
    """
    What tasks share that are calls of a function.

    Attributes
    ----------
    function
        What to call, ``function(shared, task)``.
    shared
        Its first argument.
    """

    function: Callable[[Any, Any], Any]
    shared: Any


def call_each(shared: Call, batches: Batches) -> Batches:
    """
    Call a function for each task.

    Parameters
    ----------
    shared
        The function.
    batches
        Tasks.

    Yields
    ------
    pyarrow.RecordBatch
        One outcome per task.
    """
    for number, task in _tasks(batches):
        yield outcome_of(number, partial(shared.function, shared.shared, task))
