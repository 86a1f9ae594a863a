"""Datasets with pandas, frame by frame: readers and writers hold one input or result in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pandas as pd

from kartothek_cube.core.commit.change import MetadataMerger
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io_components import dataset_read, facade, job
from kartothek_cube.io_components.dataset_arguments import MetadataInput
from kartothek_cube.io_components.write.dataset_writes import Names, StoreDataset, UpdateDataset
from kartothek_cube.io_components.write.write_commit import write_dataset_job
from kartothek_cube.io_components.write.write_tasks import DatasetInput, iter_inputs, write_part
from kartothek_cube.serialization import DataFrameSerializer

__all__ = ["read_dataset_as_dataframes__iter", "read_dataset_as_dataframes__iterator"]
__all__ += ["store_dataframes_as_dataset__iter", "update_dataset_from_dataframes__iter"]


@facade.define_facade(dataset_read.ReadDataset)
def read_dataset_as_dataframes__iterator(read: dataset_read.ReadDataset) -> Iterator[pd.DataFrame]:
    """Read a dataset, one frame per partition or per group.

    The read is planned when the first frame is taken; each frame is read when it is taken.
    """
    plan = read.plan()
    for table in dataset_read.run_each(plan, threads=1):
        yield dataset_read.frame_of_table(plan.context, table)


# the same name as those of the other functions
read_dataset_as_dataframes__iter = read_dataset_as_dataframes__iterator


@attrs.frozen
class _UpdateDataset(UpdateDataset):
    df_generator: DatasetInput
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
    factory: DatasetFactory | None = None
    table_name: str = SINGLE_TABLE


@attrs.frozen
class _StoreDataset(StoreDataset):
    df_generator: DatasetInput
    store: StoreInput
    dataset_uuid: str | None = None
    metadata: MetadataInput = None
    partition_on: Names = None
    df_serializer: DataFrameSerializer | None = None
    overwrite: bool = False
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT
    metadata_version: int = DEFAULT_METADATA_VERSION
    secondary_indices: Names = None
    table_name: str = SINGLE_TABLE


@facade.define_facade(_UpdateDataset)
def update_dataset_from_dataframes__iter(update: _UpdateDataset) -> DatasetMetadata:
    """Remove partitions and add others, in one step. A dataset that does not exist is created.

    Each input is written before the next one is taken. If the iterable fails, the dataset stays as it is.
    """
    return job.execute(write_dataset_job(update.plan(), iter_inputs(update.df_generator), write_part))


@facade.define_facade(_StoreDataset)
def store_dataframes_as_dataset__iter(store: _StoreDataset) -> DatasetMetadata:
    """Store a new dataset.

    Each input is written before the next one is taken; the dataset appears at the end.
    """
    return job.execute(write_dataset_job(store.plan(), iter_inputs(store.df_generator), write_part))
