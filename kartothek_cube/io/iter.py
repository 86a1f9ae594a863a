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

from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions.predicate import PredicatesType
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import AsOf
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io._local_executor import execute
from kartothek_cube.io_components.arguments import MetadataInput
from kartothek_cube.io_components.read.dataset_read import FrameOptions, frame_of_table, plan_read, run_each
from kartothek_cube.io_components.write.dataset_commit import update_dataset_job, write_input
from kartothek_cube.io_components.write.dataset_plan import (
    MetadataMerger,
    OnConflict,
    SchemaMode,
    plan_store,
    plan_update,
)
from kartothek_cube.io_components.write.validation import DatasetInput, iter_inputs
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "read_dataset_as_dataframes__iter",
    "read_dataset_as_dataframes__iterator",
    "store_dataframes_as_dataset__iter",
    "update_dataset_from_dataframes__iter",
)


def read_dataset_as_dataframes__iterator(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    columns: list[str] | None = None,
    predicate_pushdown_to_io: bool = True,
    categoricals: list[str] | None = None,
    dates_as_object: bool = True,
    predicates: PredicatesType = None,
    factory: DatasetFactory | None = None,
    dispatch_by: str | Sequence[str] | None = None,
    *,
    table_name: str | None = None,
    as_of: AsOf | None = None,
    dtype_backend: DtypeBackend | None = None,
) -> Iterator[pd.DataFrame]:
    """
    Read a dataset frame by frame; see :func:`kartothek_cube.io.eager.read_dataset_as_dataframes`.

    The read is planned when the first frame is taken; each frame is read when it is taken.
    """
    plan = plan_read(
        dataset_uuid,
        store,
        factory,
        columns=columns,
        predicate_pushdown_to_io=predicate_pushdown_to_io,
        categoricals=categoricals,
        predicates=predicates,
        dispatch_by=dispatch_by,
        table_name=table_name,
        as_of=as_of,
        row_index=True,
    )
    options = FrameOptions(plan.context, dates_as_object, dtype_backend)
    for table in run_each(plan, threads=1):
        yield frame_of_table(options, table)


#: the same name as those of the other functions
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
    Remove and add partitions in one commit.

    See :func:`kartothek_cube.io.eager.update_dataset_from_dataframes`. Each input of ``df_generator`` is
    written before the next one is taken. If the generator fails, the dataset stays as it is.
    """
    plan = plan_update(
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
    return execute(update_dataset_job(plan, iter_inputs(df_generator), write_input))


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
    Store a new dataset; see :func:`kartothek_cube.io.eager.store_dataframes_as_dataset`.

    Each input of ``df_generator`` is written before the next one is taken; the dataset appears at the end.
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
    return execute(update_dataset_job(plan, iter_inputs(df_generator), write_input))
