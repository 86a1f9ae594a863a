"""Maintenance of cubes with Spark: delete, clean up, copy, count, compact, check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.typing import ConditionsInput, DatasetsInput
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.spark._session import active_session
from kartothek_cube.io.spark._spark_executor import execute
from kartothek_cube.io.spark._stores import picklable_store
from kartothek_cube.io_components.maintenance.compact import compact_cube_job
from kartothek_cube.io_components.maintenance.cube_copy import copy_cube_job, plan_copy
from kartothek_cube.io_components.maintenance.delete import delete_cube_job
from kartothek_cube.io_components.maintenance.garbage import cube_garbage_job
from kartothek_cube.io_components.maintenance.stats import collect_stats_job
from kartothek_cube.io_components.verify.cube_rules import verify_cube_job
from kartothek_cube.io_components.verify.report import Report
from kartothek_cube.serialization import DataFrameSerializer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = (
    "cleanup_cube_spark",
    "collect_stats_spark",
    "compact_cube_spark",
    "copy_cube_spark",
    "delete_cube_spark",
    "verify_cube_spark",
)

#: keys that a task deletes, copies or counts
_BLOCK = 1000


def delete_cube_spark(
    cube: Cube, store: StoreInput, datasets: DatasetsInput = None, *, spark: SparkSession | None = None
) -> None:
    """Delete a cube, 1,000 files per task; see :func:`kartothek_cube.io.eager_cube.delete_cube`."""
    session = active_session(spark)
    execute(session, delete_cube_job(cube, picklable_store(store), datasets, _BLOCK))


def cleanup_cube_spark(
    cube: Cube,
    store: StoreInput,
    *,
    retention: timedelta | None = None,
    spark: SparkSession | None = None,
) -> None:
    """Delete garbage, 1,000 files per task; see :func:`kartothek_cube.io.eager_cube.cleanup_cube`."""
    session = active_session(spark)
    execute(session, cube_garbage_job(cube, picklable_store(store), retention, _BLOCK))


def copy_cube_spark(
    cube: Cube,
    src_store: StoreInput,
    tgt_store: StoreInput,
    overwrite: bool = False,
    datasets: DatasetsInput = None,
    renamed_cube_prefix: str | None = None,
    renamed_datasets: Mapping[str, str] | None = None,
    *,
    spark: SparkSession | None = None,
) -> None:
    """
    Copy a cube; see :func:`kartothek_cube.io.eager_cube.copy_cube`.

    Each task copies 1,000 files; the driver publishes the datasets.
    """
    session = active_session(spark)
    plan = plan_copy(
        cube,
        picklable_store(src_store),
        picklable_store(tgt_store),
        overwrite,
        datasets,
        renamed_cube_prefix,
        renamed_datasets,
    )
    execute(session, copy_cube_job(plan, _BLOCK))


def collect_stats_spark(
    cube: Cube, store: StoreInput, datasets: DatasetsInput = None, *, spark: SparkSession | None = None
) -> dict[str, dict[str, int]]:
    """Count what is stored; see :func:`kartothek_cube.io.eager_cube.collect_stats`."""
    session = active_session(spark)
    return execute(session, collect_stats_job(cube, picklable_store(store), datasets, _BLOCK))


def compact_cube_spark(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    min_files: int = 2,
    spark: SparkSession | None = None,
) -> dict[str, dict[str, int]]:
    """
    Compact a cube; see :func:`kartothek_cube.io.eager_cube.compact_cube`.

    Each task compacts one physical partition; the driver commits.
    """
    session, factory = active_session(spark), picklable_store(store)
    job = compact_cube_job(cube, factory, conditions, ktk_cube_dataset_ids, df_serializer, min_files)
    return execute(session, job)


def verify_cube_spark(
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
    spark: SparkSession | None = None,
) -> Report:
    """Check a cube; see :func:`kartothek_cube.io.eager_cube.verify_cube`."""
    session = active_session(spark)
    return execute(session, verify_cube_job(cube, picklable_store(store), ktk_cube_dataset_ids, deep=deep))
