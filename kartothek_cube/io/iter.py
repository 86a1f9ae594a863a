"""Datasets with pandas, frame by frame: readers and writers hold one input or result in memory at a time.

Examples
--------
>>> import pandas as pd
>>> from storefact import get_store_from_url
>>> store = get_store_from_url("hmemory://")
>>> days = (pd.DataFrame({"DAY": [day], "AVG_TEMP": [6]}) for day in range(3))
>>> len(update_dataset_from_dataframes__iter(days, store, "weather").partitions)
3
>>> for df in read_dataset_as_dataframes__iterator("weather", store):
...     print(df["DAY"].tolist())
[0]
[1]
[2]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from kartothek_cube.core.commit.change import MetadataMerger
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.arguments import MetadataInput
from kartothek_cube.io_components.facade import facade
from kartothek_cube.io_components.job import execute
from kartothek_cube.io_components.read.dataset_arguments import ReadDataset
from kartothek_cube.io_components.read.dataset_read import frame_of_table, run_each
from kartothek_cube.io_components.write.dataset_plan import OnConflict, plan_dataset_update, plan_store
from kartothek_cube.io_components.write.validation import DatasetInput, iter_inputs
from kartothek_cube.io_components.write.write_commit import write_dataset_job
from kartothek_cube.io_components.write.write_plan import SchemaMode, WritePlan
from kartothek_cube.io_components.write.write_tasks import write_part
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "read_dataset_as_dataframes__iter",
    "read_dataset_as_dataframes__iterator",
    "store_dataframes_as_dataset__iter",
    "update_dataset_from_dataframes__iter",
)


def _read(read: ReadDataset) -> Iterator[pd.DataFrame]:
    plan = read.plan()
    options = read.options(plan)
    for table in run_each(plan, threads=1):
        yield frame_of_table(options, table)


def _write(plan: WritePlan, df_generator: DatasetInput) -> DatasetMetadata:
    return execute(write_dataset_job(plan, iter_inputs(df_generator), write_part))


read_dataset_as_dataframes__iterator = facade(
    __name__,
    "read_dataset_as_dataframes__iterator",
    ReadDataset,
    _read,
    "The read is planned when the first frame is taken; each frame is read when it is taken.",
)
# the same name as those of the other functions
read_dataset_as_dataframes__iter = read_dataset_as_dataframes__iterator


def update_dataset_from_dataframes__iter(
    df_generator: DatasetInput,
    store: StoreInput | None = None,
    dataset_uuid: str | None = None,
    delete_scope: Sequence[dict[str, Any]] | None = None,
    metadata: MetadataInput = None,
    df_serializer: DataFrameSerializer | None = None,
    metadata_merger: MetadataMerger | None = None,
    default_metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: str | Sequence[str] | None = None,
    sort_partitions_by: str | Sequence[str] | None = None,
    secondary_indices: str | Sequence[str] | None = None,
    factory: DatasetFactory | None = None,
    table_name: str = SINGLE_TABLE,
    *,
    on_conflict: OnConflict = "raise",
    schema_mode: SchemaMode = "strict",
) -> DatasetMetadata:
    """
    Remove partitions and add others, in one step.

    See :func:`kartothek_cube.io.eager.update_dataset_from_dataframes`. Each input of ``df_generator`` is
    written before the next one is taken. If the generator fails, the dataset stays as it is.
    """
    plan = plan_dataset_update(
        dataset_uuid,
        store,
        factory,
        delete_scope=delete_scope,
        metadata=metadata,
        df_serializer=df_serializer,
        metadata_merger=metadata_merger,
        default_metadata_version=default_metadata_version,
        partition_on=partition_on,
        sort_partitions_by=sort_partitions_by,
        secondary_indices=secondary_indices,
        table_name=table_name,
        on_conflict=on_conflict,
        schema_mode=schema_mode,
    )
    return _write(plan, df_generator)


def store_dataframes_as_dataset__iter(
    df_generator: DatasetInput,
    store: StoreInput,
    dataset_uuid: str | None = None,
    metadata: MetadataInput = None,
    partition_on: str | Sequence[str] | None = None,
    df_serializer: DataFrameSerializer | None = None,
    overwrite: bool = False,
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    secondary_indices: str | Sequence[str] | None = None,
    table_name: str = SINGLE_TABLE,
) -> DatasetMetadata:
    """
    Store a new dataset.

    See :func:`kartothek_cube.io.eager.store_dataframes_as_dataset`. Each input of ``df_generator`` is written
    before the next one is taken; the dataset appears at the end.
    """
    plan = plan_store(
        store,
        dataset_uuid,
        metadata=metadata,
        partition_on=partition_on,
        df_serializer=df_serializer,
        overwrite=overwrite,
        secondary_indices=secondary_indices,
        metadata_storage_format=metadata_storage_format,
        metadata_version=metadata_version,
        table_name=table_name,
    )
    return _write(plan, df_generator)
