"""Datasets with Spark: DataFrames in, DataFrames out; plans and commits happen on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame

from kartothek_cube.core.commit.change import MetadataMerger
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io.spark import _spark_executor as executor
from kartothek_cube.io.spark._conversion import spark_schema
from kartothek_cube.io.spark._session import SessionArgument, active_session, picklable_store, workers
from kartothek_cube.io_components.dataset_arguments import MetadataInput, dataset_factory
from kartothek_cube.io_components.dataset_read import ReadGroups, read_dataset_job
from kartothek_cube.io_components.delete_rows import DeleteDatasetRows
from kartothek_cube.io_components.facade import Example, define_facade, with_stores
from kartothek_cube.io_components.maintenance.garbage import CollectDatasetGarbage
from kartothek_cube.io_components.write.build_index import BuildDatasetIndices
from kartothek_cube.io_components.write.dataset_writes import Names, StoreDataset, UpdateDataset
from kartothek_cube.io_components.write.write_commit import finish_dataset_write
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "build_dataset_indices_spark",
    "delete_dataset_rows_spark",
    "garbage_collect_dataset_spark",
    "read_dataset_as_spark",
    "store_dataset_from_spark",
    "update_dataset_from_spark",
)

#: keys that a task deletes
_BLOCK = 1000
#: partitions whose index entries a task collects
_PARTITIONS = 100


D = TypeVar("D", ReadGroups, BuildDatasetIndices, CollectDatasetGarbage, DeleteDatasetRows, UpdateDataset)


def _with_dataset(operation: D) -> D:
    """The operation on a dataset with a store that executors can open."""
    dataset = dataset_factory(operation.dataset_uuid, operation.store, operation.factory)
    dataset = dataset.copy(store_factory=picklable_store(dataset.store_factory))
    return attrs.evolve(operation, dataset_uuid=None, store=None, factory=dataset)


@attrs.frozen
class _ReadDataset(SessionArgument, ReadGroups): ...


@attrs.frozen
class _BuildDatasetIndices(SessionArgument, BuildDatasetIndices): ...


@attrs.frozen
class _DeleteDatasetRows(SessionArgument, DeleteDatasetRows): ...


@attrs.frozen
class _CollectDatasetGarbage(SessionArgument, CollectDatasetGarbage): ...


# -- façades -------------------------------------------------------------------------------------------------


_SESSION = ("from kartothek_cube.io.spark import local_session", "_ = local_session(2)")
_WRITE = Example((_SESSION[0], "data = local_session(2).createDataFrame(pd.concat(data))"))


@attrs.frozen
class _StoreDataset(StoreDataset):
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


@define_facade(_StoreDataset, example=_WRITE)
def store_dataset_from_spark(store: _StoreDataset) -> DatasetMetadata:
    """Store a new dataset.

    One job shuffles the rows by the partition columns and writes them, and the driver commits; after a
    failure, the files are deleted. Executors must be able to open ``store``.
    """
    executor.check_frame(store.df)
    plan = with_stores(store, picklable_store).plan()
    return executor.write_dataset(plan, store.df, store.max_rows_per_file)


@define_facade(_UpdateDataset, example=_WRITE)
def update_dataset_from_spark(update: _UpdateDataset) -> DatasetMetadata:
    """Remove partitions and add others, in one step. A dataset that does not exist is created.

    One job shuffles the rows by the partition columns and writes them, and the driver commits; after a
    failure, the files are deleted. Executors must be able to open ``store``.
    """
    if update.df is not None:
        executor.check_frame(update.df)
    plan = _with_dataset(update).plan()
    if update.df is None:
        return finish_dataset_write(plan, [])
    return executor.write_dataset(plan, update.df, update.max_rows_per_file)


@define_facade(
    _ReadDataset,
    example=Example(_SESSION, "{}.toArrow().to_reader()"),
    returns="Columns are those of the schema by default. Rows of each group of ``dispatch_by`` are "
    "consecutive, groups are sorted.",
)
def read_dataset_as_spark(read: _ReadDataset) -> DataFrame:
    """Read a dataset as a Spark DataFrame.

    The read is planned at once and sees the dataset as it is now. Executors must be able to open ``store``.
    """
    session = active_session(read.spark)
    plan = _with_dataset(read).plan()
    context = plan.context
    schema = spark_schema(pa.schema([context.schema.field(name) for name in context.columns or ()]))
    if not schema.names:
        raise ValueError(f"Dataset {context.uuid!r}: a DataFrame of Spark needs at least one column")
    blocks = executor.split_into_blocks(plan, workers(session))
    job = read_dataset_job(context, blocks, executor.read_block, "block")
    job = attrs.evolve(job, name=f"read_{context.uuid}")
    return executor.results_as_spark_dataframe(session, job, schema)


@define_facade(_BuildDatasetIndices, example=Example(_SESSION))
def build_dataset_indices_spark(build: _BuildDatasetIndices) -> DatasetMetadata:
    """Add secondary indices to a dataset, or rebuild existing ones. Only these columns are read.

    Each task reads 100 partitions; the driver commits.
    """
    return executor.execute_on_spark(_with_dataset(build).job(_PARTITIONS), build.spark)


@define_facade(_DeleteDatasetRows, example=Example(_SESSION))
def delete_dataset_rows_spark(delete: _DeleteDatasetRows) -> dict[str, int]:
    """Delete the rows of a dataset that meet predicates, by one commit.

    Each task rewrites up to 16 files; the driver commits.
    """
    return executor.execute_on_spark(_with_dataset(delete).job(), delete.spark)


@define_facade(_CollectDatasetGarbage, example=Example(_SESSION))
def garbage_collect_dataset_spark(collect: _CollectDatasetGarbage) -> None:
    """Delete garbage: files of failed, overwritten or removed writes, to which the dataset does not refer.

    Each task deletes 1,000 files.
    """
    executor.execute_on_spark(_with_dataset(collect).job(_BLOCK), collect.spark)
