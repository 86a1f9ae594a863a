"""Functions that run on executors, from Arrow batches to Arrow batches."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import as_table, to_memory
from kartothek_cube.core.arrow.types import Frame
from kartothek_cube.core.errors import KartothekCubeError
from kartothek_cube.io.spark._types import to_spark, to_storage_types
from kartothek_cube.io_components.job import Context, Task
from kartothek_cube.io_components.kernels.sort import rechunk_by_partition
from kartothek_cube.io_components.query.executor import run_task
from kartothek_cube.io_components.query.physical_plan import ScanContext, ScanTask
from kartothek_cube.io_components.read.dataset_read import FrameOptions, ReadTask, run_read
from kartothek_cube.io_components.write.merge import MergeContext, MergedPartitions, run_merge
from kartothek_cube.io_components.write.table_writer import Written
from kartothek_cube.io_components.write.write_plan import WritePlan
from kartothek_cube.io_components.write.write_tasks import write_stream

__all__ = (
    "OUTCOMES",
    "TASKS",
    "Batches",
    "MapFunction",
    "NamedBatches",
    "attempt",
    "batches_of",
    "map_group",
    "merge_rows",
    "read_block",
    "run",
    "run_named",
    "run_tasks",
    "table_batches",
    "unpickle",
    "write_rows",
)

Batches: TypeAlias = Iterator[pa.RecordBatch]
#: name of a frame, and rows of one of its partitions
NamedBatches: TypeAlias = tuple[str, Batches]
#: function of users from the rows of a group to other rows
MapFunction: TypeAlias = Callable[[pa.Table], Frame | None]

#: rows per batch for Spark
_BATCH_ROWS = 1 << 16
#: a task in a row
TASKS = pa.schema([("id", pa.int32()), ("task", pa.binary())])
#: the result of a task, or its error
OUTCOMES = pa.schema([("id", pa.int32()), ("outcome", pa.binary())])

#: errors in the data, which another attempt would meet again; Spark repeats tasks after all others
_FINAL = (KartothekCubeError, ValueError, TypeError, KeyError, RuntimeError, PermissionError)


def run(pickled: bytes, batches: Batches, columns: Sequence[str]) -> Batches:
    """Call a pickled function over batches."""
    return _function(pickled)(batch.rename_columns(columns) for batch in batches)


@lru_cache(maxsize=4)
def _function(pickled: bytes) -> Callable[[Batches], Batches]:
    """The unpickled function; cached, so that a process opens a store once."""
    function: Callable[[Batches], Batches] = unpickle(pickled)
    return function


def unpickle(data: bytes) -> Any:
    """An object of the driver in a task, or of a task in the driver."""
    return pickle.loads(data)  # noqa: S301  Spark itself runs what the driver pickled


def _tasks(batches: Batches) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        for number, task in zip(batch.column("id").to_pylist(), batch.column("task"), strict=True):
            yield number, unpickle(task.as_py())


def attempt(function: Callable[[], object]) -> bytes:
    """Result or error of a function, pickled: Spark would turn an exception into a Java stack trace."""
    try:
        return pickle.dumps(function())
    except _FINAL as error:
        return pickle.dumps(_portable(error))


def _portable(error: Exception) -> Exception:
    """The error itself, or one of the same text that survives pickle."""
    try:
        unpickle(pickle.dumps(error))
    except Exception:  # whatever an exception class may do when it is pickled
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


# -- jobs ----------------------------------------------------------------------------------------------------


def run_tasks(function: Callable[[Context, Task], object], context: Context, batches: Batches) -> Batches:
    """Run each task of a job; yields its outcome."""
    for number, task in _tasks(batches):
        yield _outcome(number, partial(function, context, task))


def run_named(
    function: Callable[[Context, NamedBatches], object], context: Context, name: str, batches: Batches
) -> Batches:
    """Run a task of a job whose input are the rows of a partition; yields its outcome."""
    yield _outcome(0, partial(function, context, (name, batches)))


def _outcome(number: int, function: Callable[[], object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": number, "outcome": attempt(function)}], schema=OUTCOMES)


def table_batches(
    function: Callable[[Context, Task], Iterable[pa.Table]],
    context: Context,
    target: pa.Schema,
    batches: Batches,
) -> Batches:
    """Run each task of a job whose results are tables; yields their rows."""
    for _, task in _tasks(batches):
        for table in function(context, task):
            yield from batches_of(table, target)


def batches_of(table: pa.Table, target: pa.Schema) -> Batches:
    """Rows in batches and types of Spark."""
    for start in range(0, len(table), _BATCH_ROWS):
        yield from to_spark(table.slice(start, _BATCH_ROWS), target).combine_chunks().to_batches()


# -- tasks ---------------------------------------------------------------------------------------------------


def map_group(function: MapFunction, context: ScanContext, task: ScanTask) -> Iterator[pa.Table]:
    """What a function makes of each group of a task; None is for no rows."""
    for table in run_task(context, task):
        try:
            result = function(to_memory(table))
        except Exception as error:
            # without the traceback of this library, to which Spark would add its own
            raise RuntimeError(_describe_failure(function, context, table, error)) from None
        if result is not None:
            yield as_table(result)


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


def read_block(options: FrameOptions, tasks: Iterable[ReadTask]) -> Iterator[pa.Table]:
    """Rows of each of several tasks."""
    return (run_read(options.read, task) for task in tasks)


def write_rows(plan: WritePlan, rows: NamedBatches, *, file_rows: int | None = None) -> Written:
    """Check, sort, index and write rows of a dataset; with a row limit, they come sorted by cell."""
    name, batches = rows
    context = plan.changes[name].context
    tables = rechunk_by_partition(batches, context.partition_on, limit=file_rows)
    stored = (to_storage_types(table, context.types) for table in tables)
    return write_stream(plan, name, stored, ordered=file_rows is not None)


def merge_rows(context: MergeContext, rows: NamedBatches) -> MergedPartitions:
    """Merge rows with the stored ones, one physical partition after the other."""
    types = context.plan.dataset.context.types
    tables = rechunk_by_partition(rows[1], context.keys)
    return run_merge(context, (to_storage_types(table, types) for table in tables))
