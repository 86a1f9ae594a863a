"""Writing cubes with Spark: one job shuffles and writes, one commit on the driver ends it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.typing import ConditionsInput, CubeMetadata
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io._executor import execute
from kartothek_cube.io.spark._input import SparkInput, frames_of
from kartothek_cube.io.spark._stores import picklable_store
from kartothek_cube.io.spark._write import check_file_rows, write_cube
from kartothek_cube.io_components.write import cube_write as _write
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
    Store a new cube.

    What the schema of the input tells is checked at once. Then one job shuffles the rows by the partition
    columns; its tasks check, sort and write one logical partition after the other. The commit happens in this
    process. If a task or the commit fails, the store is as before, and what was written is deleted.

    Parameters
    ----------
    data
        A Spark DataFrame (the seed), or a dict of dataset id to DataFrame.
    cube
        Specification of the cube.
    store
        Store, factory or URL; executors must be able to open it.
    metadata, overwrite, partition_on, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.build_cube`.
    max_rows_per_file
        Partitions with more rows are written by several tasks into several files. They are counted first, so
        that the input is computed twice; cache it if that takes long. Without this limit, a partition is one
        file and has to fit into the memory of a task.

    Returns
    -------
    dict
        Dataset id to metadata.

    Raises
    ------
    TypeError
        If the input is no Spark DataFrame, or a column has a type that cannot be stored.
    ValueError, RuntimeError, MultiTableCommitAborted
        As :func:`kartothek_cube.io.eager_cube.build_cube`; also if the store is in the memory of this
        process.

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
    plan = _write.plan_build(
        cube, picklable_store(store), frames, metadata, overwrite, partition_on, df_serializer
    )
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
    Add datasets, and with them columns, to a cube.

    Parameters
    ----------
    data
        Dict of dataset id to Spark DataFrame.
    cube, store, metadata, overwrite, partition_on, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.extend_cube`.
    max_rows_per_file
        As in :func:`build_cube_from_spark`.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError, TypeError, RuntimeError, MultiTableCommitAborted
        As :func:`kartothek_cube.io.eager_cube.extend_cube`.
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = _write.plan_extend(
        cube, picklable_store(store), frames, metadata, overwrite, partition_on, df_serializer
    )
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
    Add partitions to datasets of a cube. A cell that is there already is hidden by the new one.

    Parameters
    ----------
    data
        A Spark DataFrame (for the seed), or a dict of dataset id to DataFrame.
    cube, store, metadata, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.append_to_cube`.
    max_rows_per_file
        As in :func:`build_cube_from_spark`.

    Returns
    -------
    dict
        Dataset id to metadata of what was written.

    Raises
    ------
    ValueError, TypeError, MultiTableCommitAborted
        As :func:`kartothek_cube.io.eager_cube.append_to_cube`.
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = _write.plan_append(cube, picklable_store(store), frames, metadata, df_serializer)
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
    Replace partitions of datasets: what meets the conditions goes, the input comes, in one commit each.

    Parameters
    ----------
    data
        A Spark DataFrame (for the seed), or a dict of dataset id to DataFrame; ``{}`` if there is none.
    cube, store, remove_conditions, ktk_cube_dataset_ids, metadata, df_serializer
        As in :func:`kartothek_cube.io.eager_cube.update_cube`.
    max_rows_per_file
        As in :func:`build_cube_from_spark`.

    Returns
    -------
    dict
        Dataset id to metadata of the updated datasets.

    Raises
    ------
    ValueError, TypeError, ConcurrentWriteError, MultiTableCommitAborted
        As :func:`kartothek_cube.io.eager_cube.update_cube`.
    """
    check_file_rows(max_rows_per_file)
    frames = frames_of(data, cube.seed_dataset)
    plan = _write.plan_update(
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
    """
    Remove partitions. That is a commit on the driver; files stay until :func:`cleanup_cube_spark`.

    Parameters
    ----------
    cube, store, conditions, ktk_cube_dataset_ids, metadata
        As in :func:`kartothek_cube.io.eager_cube.remove_partitions`.

    Returns
    -------
    dict
        Dataset id to metadata of all datasets of the cube.

    Raises
    ------
    ValueError
        For conditions on other than partition columns, and for unknown datasets.
    """
    job = _write.remove_partitions_job(cube, store, conditions, ktk_cube_dataset_ids, metadata)
    return execute(job)
