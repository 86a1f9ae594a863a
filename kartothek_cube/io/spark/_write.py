"""Writes of Spark frames: check of schemas, one Spark job for all datasets, commit on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import as_table
from kartothek_cube.core.common_metadata import make_meta
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import UnknownOutcomeError
from kartothek_cube.io.spark import _worker
from kartothek_cube.io.spark._input import check_frame, empty_table, shuffle_by_partition
from kartothek_cube.io.spark._session import check_python
from kartothek_cube.io.spark._spark_executor import outcome_frame, outcomes, raise_first
from kartothek_cube.io_components.write.abort import delete_uncommitted_attempts
from kartothek_cube.io_components.write.cube_commit import check_schemas
from kartothek_cube.io_components.write.cube_plan import CubeWritePlan
from kartothek_cube.io_components.write.cube_write import check_announced, prepare
from kartothek_cube.io_components.write.incremental import commit_parts, without_commit_state
from kartothek_cube.io_components.write.plan import with_write_id
from kartothek_cube.io_components.write.table_writer import WriteContext, WriteResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ("check_file_rows", "check_input", "delete_on_failure", "write_cube")

Frames = Mapping[str, "DataFrame | None"]


def check_file_rows(file_rows: Any) -> None:
    """Check a limit of rows per file."""
    if file_rows is None:
        return
    if not isinstance(file_rows, int) or isinstance(file_rows, bool):
        raise TypeError(f"max_rows_per_file must be an integer but is {type(file_rows).__name__}")
    if file_rows <= 0:
        raise ValueError(f"max_rows_per_file must be > 0 but is {file_rows}")


def check_input(plan: CubeWritePlan, schemas: Mapping[str, pa.Table]) -> None:
    """Check the columns of the input, given as tables without rows, before any of it is computed."""
    check_announced(plan, schemas)
    prepare(plan, {name: [table] for name, table in schemas.items()})
    metas = {}
    for name, table in schemas.items():
        context = plan.changes[name].context
        metas[name] = make_meta(
            as_table(table), f"{context.uuid}/{context.table}", partition_keys=list(context.partition_on)
        )
    check_schemas(plan, metas)


def write_cube(plan: CubeWritePlan, frames: Frames, file_rows: int | None) -> dict[str, DatasetMetadata]:
    """Write frames to a cube; after a failure the files are deleted and the cube is unchanged."""
    check_announced(plan, frames)
    inputs = {name: df for name, df in frames.items() if df is not None}
    for name, df in inputs.items():
        check_frame(df, name)
    check_input(plan, {name: empty_table(df, plan.constraints[name].types) for name, df in inputs.items()})
    plan = with_write_id(plan)
    # Spark runs no task for a frame without rows
    contexts = {name: plan.changes[name].context for name in frames}
    nothing = {name: WriteResult(context.uuid, context.table) for name, context in contexts.items()}
    with delete_on_failure(change.context for change in plan.changes.values()):
        return commit_parts(plan, [nothing, *_written(plan, inputs, file_rows)])


@contextmanager
def delete_on_failure(contexts: Iterable[WriteContext]) -> Iterator[None]:
    """Delete what was written if the block fails, unless it may have been committed all the same."""
    try:
        yield
    except UnknownOutcomeError:
        raise
    except BaseException:
        for context in contexts:
            delete_uncommitted_attempts(context)
        raise


def _written(
    plan: CubeWritePlan, frames: Mapping[str, DataFrame], file_rows: int | None
) -> list[dict[str, WriteResult]]:
    if not frames:
        return []
    spark = next(iter(frames.values())).sparkSession
    check_python(spark)
    slim = without_commit_state(plan)
    parts = [_outcomes_of(slim, name, df, file_rows) for name, df in frames.items()]
    text = f"{plan.operation} cube {plan.cube.uuid_prefix}: {', '.join(frames)}"
    return raise_first(outcomes(spark, reduce(lambda a, b: a.unionAll(b), parts), text))


def _outcomes_of(plan: CubeWritePlan, name: str, df: DataFrame, file_rows: int | None) -> DataFrame:
    change, constraints = plan.changes[name], plan.constraints[name]
    cells = [c for c in plan.cube.dimension_columns if c in df.columns]
    rows = shuffle_by_partition(df, constraints.partition_on, cells, file_rows)
    only = CubeWritePlan(plan.operation, plan.cube, plan.store, {name: change}, {name: constraints})
    writing = _worker.CubeWriteContext(only, name, file_rows)
    return outcome_frame(rows, _worker.write_cube, writing, f"{plan.operation}_{name}")
