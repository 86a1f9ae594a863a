"""Functions that run on executors, from Arrow batches to Arrow batches."""

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
from kartothek_cube.io_components.kernels.sort import rechunk_by_partition
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

#: rows per batch for Spark
BATCH_ROWS = 1 << 16
#: a task in a row
TASKS = pa.schema([("id", pa.int32()), ("task", pa.binary())])
#: the result of a task, or its error
OUTCOMES = pa.schema([("id", pa.int32()), ("outcome", pa.binary())])

#: errors in the data, which another attempt would meet again; Spark repeats tasks after all others
_FINAL = (KartothekCubeError, ValueError, TypeError, KeyError, RuntimeError)


def run(pickled: bytes, batches: Batches, columns: Sequence[str]) -> Batches:
    """Call a pickled function of this module over batches."""
    function, shared = _shared(pickled)
    result: Batches = function(shared, (batch.rename_columns(columns) for batch in batches))
    return result


@lru_cache(maxsize=4)
def _shared(pickled: bytes) -> tuple[Callable[..., Batches], Any]:
    """The unpickled function and context; cached, so that a process opens a store once."""
    function, shared = unpickled(pickled)
    return function, shared


def unpickled(data: bytes) -> Any:
    """An object of the driver in a task, or of a task in the driver."""
    return pickle.loads(data)  # noqa: S301  Spark itself runs what the driver pickled


def _tasks(batches: Batches) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        for number, task in zip(batch.column("id").to_pylist(), batch.column("task"), strict=True):
            yield number, unpickled(task.as_py())


def attempt(function: Callable[[], Any]) -> bytes:
    """Result or error of a function, pickled: Spark would turn an exception into a Java stack trace."""
    try:
        result = function()
    except _FINAL as error:
        result = _portable(error)
    return pickle.dumps(result)


def outcome_of(number: int, function: Callable[[], Any]) -> pa.RecordBatch:
    """Result or error of a function, as a row with the number of its task."""
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
    """What the tasks of a query share: scan, types that Spark expects, function of the user."""

    context: ScanContext
    target: pa.Schema
    function: Callable[[pa.Table], Any] | None = None


def query(shared: QueryContext, batches: Batches) -> Batches:
    """Read and join the files of tasks, and transform each group."""
    for _, task in _tasks(batches):
        for table in run_task(shared.context, task):
            rows = table if shared.function is None else transformed(shared.function, table)
            if rows is not None:
                yield from batches_of(rows, shared.target)


def transformed(function: Callable[[pa.Table], Any], table: pa.Table) -> pa.Table | None:
    """Result of the user's function as an Arrow table; None for no rows."""
    result = function(to_memory(table))
    return None if result is None else as_table(result)


def batches_of(table: pa.Table, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows in batches and types of Spark."""
    for start in range(0, len(table), BATCH_ROWS):
        yield from to_spark(table.slice(start, BATCH_ROWS), target).combine_chunks().to_batches()


@attrs.frozen
class TableReadContext:
    """What the tasks that read a dataset share: the read, and the types that Spark expects."""

    context: ReadContext
    target: pa.Schema


def read(shared: TableReadContext, batches: Batches) -> Batches:
    """Read the files of blocks of tasks."""
    for _, tasks in _tasks(batches):
        for task in tasks:
            yield from batches_of(run_read(shared.context, task), shared.target)


# -- writes --------------------------------------------------------------------------------------------------


@attrs.frozen
class CubeWriteContext:
    """What the tasks that write one dataset of a cube share; with a row limit, rows come sorted by cell."""

    plan: CubeWritePlan
    name: str
    file_rows: int | None = None


def write_cube(shared: CubeWriteContext, batches: Batches) -> Batches:
    """Check, sort, index and write rows, one logical partition after the other; yields one outcome."""
    constraints, ordered = shared.plan.constraints[shared.name], shared.file_rows is not None
    tables = rechunk_by_partition(batches, constraints.partition_on, limit=shared.file_rows)
    rows = (to_storage_types(table, constraints.types) for table in tables)
    yield outcome_of(0, partial(write_stream, shared.plan, shared.name, rows, ordered=ordered))


@attrs.frozen
class DatasetWriteContext:
    """What the tasks that write a dataset share: how to write, and types of stored columns."""

    context: WriteContext
    types: Mapping[str, pa.DataType]
    file_rows: int | None = None


def write_dataset(shared: DatasetWriteContext, batches: Batches) -> Batches:
    """Write rows, one logical partition after the other; yields one outcome."""
    tables = rechunk_by_partition(batches, shared.context.partition_on, limit=shared.file_rows)
    rows = (to_storage_types(table, shared.types) for table in tables)
    yield outcome_of(0, partial(run_updates, shared.context, rows))


# -- everything else -----------------------------------------------------------------------------------------


@attrs.frozen
class Call:
    """A function and its first argument, shared by all tasks."""

    function: Callable[[Any, Any], Any]
    shared: Any


def call_each(shared: Call, batches: Batches) -> Batches:
    """Call a function for each task; yields one outcome per task."""
    for number, task in _tasks(batches):
        yield outcome_of(number, partial(shared.function, shared.shared, task))
