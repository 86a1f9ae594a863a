"""Results of a query as DataFrames, without holding them in Arrow and in pandas at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from typing import TypeVar

import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import align_date_units, to_pandas
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.query.executor import run_task
from kartothek_cube.io_components.query.output_buffer import MAX_COLUMNS, OutputBuffer, zero_copy_view
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, ScanContext, ScanTask

__all__ = (
    "frames_of_tables",
    "query_job",
    "run_frame_blocks",
    "run_frames",
    "run_single_frame",
)

Task = TypeVar("Task")
Result = TypeVar("Result")

#: tables with fewer rows are concatenated first: each conversion takes longer than copying that many
_SMALL = 1_000
#: rows of a concatenation: a limit to the memory that is held twice
_BATCH = 50_000
# from 3 on, pandas copies what is part of another frame when it is written to, and not before
_COPIES_ON_WRITE = int(pd.__version__.split(".")[0]) >= 3


def run_frames(context: ScanContext, task: ScanTask) -> list[pd.DataFrame]:
    """DataFrames of a task, with the same unit of dates in all of them."""
    # datetime64[s] for all if a column of one has dates that datetime64[ns] cannot hold
    frames = list(frames_of_tables(run_task(context, task, OutputBuffer())))
    align_date_units(frames)
    return frames


def _frame(tables: list[pa.Table]) -> pd.DataFrame:
    """DataFrame of the only table in a list, which is emptied; numbers and times are not copied."""
    table = tables.pop()
    names, index = table.column_names, pd.RangeIndex(len(table))
    arrays = {} if len(names) > MAX_COLUMNS else {name: zero_copy_view(table.column(name)) for name in names}
    tables.append(table.select([name for name in names if arrays.get(name) is None]))
    del table
    converted = to_pandas(tables.pop())
    if len(converted.columns) == len(names):
        return converted
    columns = {name: converted[name] if arrays[name] is None else arrays[name] for name in names}
    return pd.DataFrame(columns, index=index, copy=False)


def frames_of_tables(tables: list[pa.Table]) -> Iterator[pd.DataFrame]:
    """
    One independent DataFrame per table of the same columns; ``tables`` is emptied: frames take its memory.

    >>> tables = [pa.table({"CITY": ["Rom"]}), pa.table({"CITY": ["Ulm", "Bonn"]})]
    >>> [frame["CITY"].tolist() for frame in frames_of_tables(tables)], tables
    ([['Rom'], ['Ulm', 'Bonn']], [])
    """
    tables.reverse()
    while tables:
        batch = _next_batch(tables)
        if len(batch) == 1:
            yield _frame(batch)
        else:
            yield from _cut(to_pandas(pa.concat_tables(batch)), [0, *accumulate(map(len, batch))])


def _next_batch(tables: list[pa.Table]) -> list[pa.Table]:
    """Pop tables from the end of a list whose columns get the same types in pandas alone and together."""
    batch = [tables.pop()]
    schema, rows = batch[0].schema, len(batch[0])
    null_sensitive = [number for number, dtype in enumerate(schema.types) if _depends_on_nulls(dtype)]

    def fits(table: pa.Table) -> bool:
        return len(table) < _SMALL and not any(table.column(number).null_count for number in null_sensitive)

    if not schema.names or not fits(batch[0]):
        return batch
    while (
        tables
        and rows < _BATCH
        and tables[-1].schema.equals(schema, check_metadata=True)
        and fits(tables[-1])
    ):
        batch.append(tables.pop())
        rows += len(batch[-1])
    return batch


def _depends_on_nulls(dtype: pa.DataType) -> bool:
    """Whether nulls change the type of a column in pandas, as they do with integers."""
    kinds = (pa.types.is_floating, pa.types.is_timestamp, pa.types.is_date, pa.types.is_string)
    return not any(is_kind(dtype) for is_kind in kinds)


def _cut(frame: pd.DataFrame, bounds: list[int]) -> Iterator[pd.DataFrame]:
    for start, stop in pairwise(bounds):
        rows = frame.iloc[start:stop]
        if not _COPIES_ON_WRITE:
            rows = rows.copy()
        rows.index = pd.RangeIndex(stop - start)
        yield rows


def query_job(
    plan: PhysicalPlan, tasks: Iterable[Task], run: Callable[[ScanContext, Task], Result], step: str = "group"
) -> Job[ScanContext, Task, Result, list[Result]]:
    """Execute scan tasks, or blocks of these; the answer is the list of their results."""
    return Job(
        name="query_cube",
        description="query cube",
        context=plan.context,
        tasks=tasks,
        run=run,
        finish=list,
        steps=("prepare", step, "done"),
    )


def run_frame_blocks(context: ScanContext, tasks: Iterable[ScanTask]) -> list[pd.DataFrame]:
    """Frames of several tasks; groups without rows are absent."""
    return [frame for task in tasks for frame in run_frames(context, task)]


def run_single_frame(context: ScanContext, task: ScanTask | None) -> pd.DataFrame:
    """Frame of a task with at most one group; without task or rows, the planned columns and types."""
    frames = [] if task is None else run_frames(context, task)
    return frames[0] if frames else to_pandas(context.output.empty_table())
