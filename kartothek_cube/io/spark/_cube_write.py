"""Writes of cubes with Spark: one job shuffles and writes, the driver commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.typing import ConditionsInput, CubeMetadata
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io._local_executor import execute
from kartothek_cube.io.spark._input import SparkInput, frames_of
from kartothek_cube.io.spark._stores import picklable_store
from kartothek_cube.io.spark._write import check_file_rows, write_cube
from kartothek_cube.io_components.write.cube_plan import plan_append, plan_build, plan_extend, plan_update
from kartothek_cube.io_components.write.cube_write import remove_partitions_job
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "append_to_cube_from_spark",
    "build_cube_from_spark",
    "extend_cube_from_spark",
    "remove_partitions_spark",
    "update_cube_from_spark",
)


def build_cube_from_spark(
    data: SparkInput,
    cube: Cube,
    store: StoreInput,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Store a new cube; see :func:`kartothek_cube.io.eager_cube.build_cube`.

    ``data`` is a Spark DataFrame (the seed) or a dict of dataset id to DataFrame; executors must be able to
    open ``store``. The schema of the input is checked at once; one job shuffles and writes the rows, and the
    driver commits. Partitions of more than ``max_rows_per_file`` rows are written by several tasks; they are
    counted first, so the input is computed twice. Without this limit, a partition has to fit into the memory
    of a task.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.spark import local_session
    >>> from kartothek_cube.io.spark.cube import query_cube_spark
    >>> spark = local_session(2)
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pa.table({"CITY": ["Ulm", "Bath"], "COUNTRY_CODE": ["DE", "UK"], "LATITUDE": [48.4, 51.4]})
    >>> sorted(build_cube_from_spark(spark.createDataFrame(cities), cube, store))
    ['seed']
    >>> query_cube_spark(cube, store).orderBy("CITY").select("CITY", "LATITUDE").collect()
    [Row(CITY='Bath', LATITUDE=51.4), Row(CITY='Ulm', LATITUDE=48.4)]
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = plan_build(cube, picklable_store(store), frames, metadata, overwrite, partition_on, df_serializer)
    return write_cube(plan, frames, max_rows_per_file)


def extend_cube_from_spark(
    data: SparkInput,
    cube: Cube,
    store: StoreInput,
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Add datasets to a cube; see :func:`kartothek_cube.io.eager_cube.extend_cube`.

    ``data``, ``store`` and ``max_rows_per_file`` are as in :func:`build_cube_from_spark`.
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = plan_extend(cube, picklable_store(store), frames, metadata, overwrite, partition_on, df_serializer)
    return write_cube(plan, frames, max_rows_per_file)


def append_to_cube_from_spark(
    data: SparkInput,
    cube: Cube,
    store: StoreInput,
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Add partitions to datasets; see :func:`kartothek_cube.io.eager_cube.append_to_cube`.

    ``data``, ``store`` and ``max_rows_per_file`` are as in :func:`build_cube_from_spark`.
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = plan_append(cube, picklable_store(store), frames, metadata, df_serializer)
    return write_cube(plan, frames, max_rows_per_file)


def update_cube_from_spark(
    data: SparkInput,
    cube: Cube,
    store: StoreInput,
    remove_conditions: ConditionsInput,
    ktk_cube_dataset_ids: str | Iterable[str],
    metadata: CubeMetadata | None = None,
    df_serializer: DataFrameSerializer | None = None,
    *,
    max_rows_per_file: int | None = None,
) -> dict[str, DatasetMetadata]:
    """
    Replace partitions; see :func:`kartothek_cube.io.eager_cube.update_cube`.

    ``data``, ``store`` and ``max_rows_per_file`` are as in :func:`build_cube_from_spark`; without input,
    ``data`` is ``{}``.
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = plan_update(
        cube, picklable_store(store), remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer
    )
    return write_cube(plan, frames, max_rows_per_file)


def remove_partitions_spark(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
) -> dict[str, DatasetMetadata]:
    """Remove partitions, on the driver; see :func:`kartothek_cube.io.eager_cube.remove_partitions`."""
    job = remove_partitions_job(cube, store, conditions, ktk_cube_dataset_ids, metadata)
    return execute(job)
