"""Writes of Spark frames: checks of schemas, a shuffle by partition, one Spark job, commit on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import attrs
import pyarrow as pa

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.io.spark._session import column_functions
from kartothek_cube.io.spark._spark_executor import execute_on_frames, merge_rows, write_rows
from kartothek_cube.io.spark._types import arrow_schema, check_types, to_storage_types
from kartothek_cube.io_components.write.merge import (
    MergeContext,
    MergedPartitions,
    MergeResult,
    check_merge_input,
    merge_job,
)
from kartothek_cube.io_components.write.table_writer import (
    delete_on_failure,
    delete_uncommitted_attempts,
)
from kartothek_cube.io_components.write.write_commit import check_schemas, write_dataset_job, write_job
from kartothek_cube.io_components.write.write_plan import CubeWritePlan, WritePlan
from kartothek_cube.io_components.write.write_tasks import check_announced, check_dataset_input

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SparkInput: TypeAlias = "DataFrame | Mapping[str, DataFrame | None]"
"""The frame of the seed, or frames by dataset id."""
Frames: TypeAlias = "Mapping[str, DataFrame | None]"

#: column with the number of tasks of a partition; no dataset can have it
_SHARES = "__kartothek_cube_shares"
#: hash buckets have unequal sizes, so their mean is smaller than a file may be
_UNEVEN = 1.05


# -- input ---------------------------------------------------------------------------------------------------


def _is_frame(obj: object) -> TypeGuard[DataFrame]:
    """Whether an object is a DataFrame of Spark, classic or Connect."""
    return any(
        base.__name__ == "DataFrame" and base.__module__.startswith("pyspark.sql")
        for base in type(obj).__mro__
    )


def frames_of(data: SparkInput | None, default: str, file_rows: int | None) -> Frames:
    """Input by dataset id; a single frame belongs to ``default``."""
    _check_file_rows(file_rows)
    if _is_frame(data):
        return {default: data}
    if not isinstance(data, Mapping):
        raise TypeError(_not_a_frame(data))
    for name, frame in data.items():
        if frame is not None and not _is_frame(frame):
            raise TypeError(f"Dataset {name}: {_not_a_frame(frame)}")
    return {str(name): frame for name, frame in data.items()}


def _not_a_frame(obj: object) -> str:
    return (
        "Expected a Spark DataFrame, or a dict of dataset id to Spark DataFrame, but got "
        f"{type(obj).__module__}.{type(obj).__name__}. Use kartothek_cube.io.spark.create_frame, or "
        "the functions of kartothek_cube.io.eager_cube and kartothek_cube.io.eager"
    )


def _check_file_rows(file_rows: object) -> None:
    if file_rows is None:
        return
    if not isinstance(file_rows, int) or isinstance(file_rows, bool):
        raise TypeError(f"max_rows_per_file must be an integer but is {type(file_rows).__name__}")
    if file_rows <= 0:
        raise ValueError(f"max_rows_per_file must be > 0 but is {file_rows}")


def _check_frame(df: DataFrame, dataset: str) -> None:
    """Check names and types of the columns of a frame."""
    names = list(df.columns)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Duplicate columns in dataset {dataset!r}: {', '.join(twice)}")
    if df.sparkSession.conf.get("spark.sql.caseSensitive", "false") != "true":
        lower = [name.lower() for name in names]
        alike = sorted(name for name in names if lower.count(name.lower()) > 1)
        if alike:
            raise ValueError(
                f"Columns of dataset {dataset!r} differ in upper and lower case only: {', '.join(alike)}. "
                "Rename them, or set spark.sql.caseSensitive to true"
            )
    check_types(df.schema, dataset)


def _empty_table(df: DataFrame, stored: Mapping[str, pa.DataType]) -> pa.Table:
    """A frame without rows, in the types that would be stored."""
    return to_storage_types(arrow_schema(df.schema).empty_table(), stored)


# -- writes --------------------------------------------------------------------------------------------------


def write_cube(plan: CubeWritePlan, frames: Frames, file_rows: int | None) -> dict[str, DatasetMetadata]:
    """Write frames to a cube; after a failure the files are deleted and the cube is unchanged."""
    check_announced(plan, frames)
    inputs = {name: df for name, df in frames.items() if df is not None}
    for name, df in inputs.items():
        _check_frame(df, name)
    check_schemas(plan, {name: _empty_table(df, plan.specs[name].types) for name, df in inputs.items()})
    plan = plan.with_write_id()
    rows = []
    for name, df in inputs.items():
        cells = [c for c in plan.cube.dimension_columns if c in df.columns]
        rows.append((name, _shuffle_by_partition(df, plan.specs[name].partition_on, cells, file_rows)))
    job = write_job(plan, rows, partial(write_rows, file_rows=file_rows))
    job = attrs.evolve(job, name=plan.operation, description=f"{job.description}: {', '.join(inputs)}")
    # Spark runs no task for a frame without rows
    nothing = {name: plan.specs[name].merge(()) for name in frames}
    with delete_on_failure(partial(delete_attempts, plan)):
        return execute_on_frames(job, [nothing])


def write_dataset(plan: WritePlan, df: DataFrame, file_rows: int | None) -> DatasetMetadata:
    """Write a frame to a dataset; after a failure the files are deleted and the dataset is unchanged."""
    spec = plan.spec
    _check_frame(df, spec.uuid)
    nothing = check_dataset_input(spec, _empty_table(df, spec.types))
    plan = plan.with_write_id()
    cells = spec.sort_by or tuple(df.columns)
    rows = _shuffle_by_partition(df, spec.partition_on, cells, file_rows)
    run = partial(write_rows, file_rows=file_rows)
    job = attrs.evolve(write_dataset_job(plan, [(spec.uuid, rows)], run), name="write")
    with delete_on_failure(partial(delete_attempts, plan)):
        return execute_on_frames(job, [{spec.uuid: nothing}])


def merge_frame(context: MergeContext, df: DataFrame) -> MergeResult:
    """Merge a frame into a dataset; after a failure the files are deleted and the dataset is unchanged."""
    if not _is_frame(df):
        raise TypeError(_not_a_frame(df))
    _check_frame(df, context.name)
    types = context.spec.types
    check_merge_input(context, _empty_table(df, types))
    context = attrs.evolve(context, plan=context.plan.with_write_id())
    rows = _shuffle_by_partition(df, context.keys)
    # what executors have of a frame are batches
    run: Callable[[MergeContext, Any], MergedPartitions] = merge_rows
    job = merge_job(context, [(context.name, rows)], run)
    with delete_on_failure(partial(delete_attempts, context.plan)):
        return execute_on_frames(job)


def delete_attempts(plan: WritePlan) -> None:
    """Delete the files of a write that no commit refers to, also those of tasks whose results got lost."""
    for spec in plan.specs.values():
        delete_uncommitted_attempts(spec)


# -- shuffle -------------------------------------------------------------------------------------------------


def _shuffle_by_partition(
    df: DataFrame, keys: Sequence[str], cells: Sequence[str] = (), file_rows: int | None = None
) -> DataFrame:
    """Bring the rows of each logical partition together by one shuffle, sorted by partition."""
    names = [_quote(key) for key in keys]
    if file_rows is not None:
        return _split_large_partitions(df, names, [_quote(cell) for cell in cells], file_rows)
    if not keys:
        return df.repartition(1)
    return df.repartition(*names).sortWithinPartitions(*names)


def _split_large_partitions(df: DataFrame, keys: list[str], cells: list[str], file_rows: int) -> DataFrame:
    f = column_functions(df)
    shares = f.ceil(f.count(f.lit(1)) * _UNEVEN / file_rows).alias(_SHARES)
    counts = df.groupBy(*keys).agg(shares)
    large = counts.where(f.col(_SHARES) > 1)
    plain = [key[1:-1].replace("``", "`") for key in keys]
    marked = df.join(f.broadcast(large), plain, "left") if keys else df.crossJoin(f.broadcast(counts))
    share: Column = f.pmod(f.xxhash64(*cells), f.coalesce(f.col(_SHARES), f.lit(1)))
    sorted_rows = marked.repartition(*keys, share).sortWithinPartitions(*keys, *cells)
    return sorted_rows.select(*map(_quote, df.columns))


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
