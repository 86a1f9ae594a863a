"""Datasets with Spark: DataFrames in, DataFrames out; plans and commits happen on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kartothek_cube.core.commit.change import MetadataMerger
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.spark import _spark_executor as executor
from kartothek_cube.io.spark._conversion import spark_schema
from kartothek_cube.io.spark._session import active_session, picklable_store, workers
from kartothek_cube.io_components.arguments import MetadataInput, dataset_factory
from kartothek_cube.io_components.dataset_read import FrameOptions, ReadGroups, read_dataset_job
from kartothek_cube.io_components.facade import Example, facade, with_stores
from kartothek_cube.io_components.maintenance.garbage import CollectDatasetGarbage
from kartothek_cube.io_components.write.build_index import BuildDatasetIndices
from kartothek_cube.io_components.write.dataset_writes import Names, StoreDataset, UpdateDataset
from kartothek_cube.io_components.write.write_commit import finish_dataset_write
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "build_dataset_indices_spark",
    "garbage_collect_dataset_spark",
    "read_dataset_as_spark",
    "store_dataset_from_spark",
    "update_dataset_from_spark",
)

#: keys that a task deletes
_BLOCK = 1000
#: partitions whose index entries a task collects
_PARTITIONS = 100


D = TypeVar("D", ReadGroups, BuildDatasetIndices, CollectDatasetGarbage, UpdateDataset)


def _with_dataset(operation: D) -> D:
    """The operation on a dataset with a store that executors can open."""
    dataset = dataset_factory(operation.dataset_uuid, operation.store, operation.factory)
    dataset = dataset.copy(store_factory=picklable_store(dataset.store_factory))
    return attrs.evolve(operation, dataset_uuid=None, store=None, factory=dataset)


@attrs.frozen
class _ReadDataset(ReadGroups):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _BuildDatasetIndices(BuildDatasetIndices):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class _CollectDatasetGarbage(CollectDatasetGarbage):
    spark: SparkSession | None = attrs.field(default=None, kw_only=True)


def _build_indices(build: _BuildDatasetIndices) -> DatasetMetadata:
    return executor.execute_on_spark(_with_dataset(build).job(_PARTITIONS), build.spark)


def _collect_garbage(collect: _CollectDatasetGarbage) -> None:
    executor.execute_on_spark(_with_dataset(collect).job(_BLOCK), collect.spark)


def _read(read: _ReadDataset) -> DataFrame:
    session = active_session(read.spark)
    plan = _with_dataset(read).plan()
    context = plan.context
    schema = spark_schema(pa.schema([context.schema.field(name) for name in context.columns or ()]))
    if not schema.names:
        raise ValueError(f"Dataset {context.uuid!r}: a DataFrame of Spark needs at least one column")
    job = read_dataset_job(
        FrameOptions(context),
        executor.split_into_blocks(plan, workers(session)),
        executor.read_block,
        "block",
    )
    return executor.results_as_spark_dataframe(
        session, attrs.evolve(job, name=f"read_{context.uuid}"), schema
    )


# -- façades -------------------------------------------------------------------------------------------------


@attrs.frozen
class _StoreDataset(StoreDataset):
    """Parameters of the façade.

    Parameters
    ----------
    df
        A Spark DataFrame.
    """

    df: DataFrame
    store: StoreInput
    dataset_uuid: str | None
    metadata: MetadataInput = None
    partition_on: Names = None
    df_serializer: DataFrameSerializer | None = None
    overwrite: bool = False
    secondary_indices: Names = None
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT
    metadata_version: int = DEFAULT_METADATA_VERSION
    table_name: str = SINGLE_TABLE
    sort_partitions_by: Names = attrs.field(default=None, kw_only=True)
    max_rows_per_file: int | None = attrs.field(default=None, kw_only=True)
    metadata_merger: None = attrs.field(default=None, init=False)


@attrs.frozen
class _UpdateDataset(UpdateDataset):
    """Parameters of the façade.

    Parameters
    ----------
    df
        A Spark DataFrame, or None to only remove partitions.
    """

    df: DataFrame | None
    store: StoreInput | None = None
    dataset_uuid: str | None = None
    delete_scope: Sequence[dict[str, Any]] | None = None
    metadata: MetadataInput = None
    df_serializer: DataFrameSerializer | None = None
    metadata_merger: MetadataMerger | None = None
    default_metadata_version: int = DEFAULT_METADATA_VERSION
    partition_on: Names = None
    sort_partitions_by: Names = None
    secondary_indices: Names = None
    table_name: str = SINGLE_TABLE
    factory: DatasetFactory | None = None
    max_rows_per_file: int | None = attrs.field(default=None, kw_only=True)


def _store(store: _StoreDataset) -> DatasetMetadata:
    frame = executor.frames_of({"": store.df}, "", store.max_rows_per_file)[""]
    plan = with_stores(store, picklable_store).plan()
    if frame is None:
        raise TypeError("Expected a Spark DataFrame, but got None")
    return executor.write_dataset(plan, frame, store.max_rows_per_file)


def _update(update: _UpdateDataset) -> DatasetMetadata:
    frame = executor.frames_of({"": update.df}, "", update.max_rows_per_file)[""]
    plan = _with_dataset(update).plan()
    if frame is None:
        return finish_dataset_write(plan, [])
    return executor.write_dataset(plan, frame, update.max_rows_per_file)


_NOTE = (
    "One job shuffles the rows by the partition columns and writes them, and the driver commits; after a "
    "failure, the files are deleted. Executors must be able to open ``store``."
)
_SESSION = "from kartothek_cube.io.spark import local_session"
_WRITE = Example((_SESSION, "data = local_session(2).createDataFrame(pd.concat(data))"))
store_dataset_from_spark = facade(
    __name__, "store_dataset_from_spark", _StoreDataset, _store, _NOTE, example=_WRITE
)
update_dataset_from_spark = facade(
    __name__, "update_dataset_from_spark", _UpdateDataset, _update, _NOTE, example=_WRITE
)
read_dataset_as_spark = facade(
    __name__,
    "read_dataset_as_spark",
    _ReadDataset,
    _read,
    "The read is planned at once and sees the dataset as it is now. Executors must be able to open "
    "``store``.",
    summary="Read a dataset as a Spark DataFrame.",
    example=Example((_SESSION, "_ = local_session(2)"), "{}.toArrow().to_reader()"),
    returns="Columns are those of the schema by default. Rows of each group of ``dispatch_by`` are "
    "consecutive, groups are sorted.",
)
build_dataset_indices_spark = facade(
    __name__,
    "build_dataset_indices_spark",
    _BuildDatasetIndices,
    _build_indices,
    "Each task reads 100 partitions; the driver commits.",
    example=Example((_SESSION, "_ = local_session(2)")),
)
garbage_collect_dataset_spark = facade(
    __name__,
    "garbage_collect_dataset_spark",
    _CollectDatasetGarbage,
    _collect_garbage,
    "Each task deletes 1,000 files.",
    example=Example((_SESSION, "_ = local_session(2)")),
)
