"""Datasets with dask bags: they are input of writes and result of reads; the work is done when computed.

Examples
--------
>>> import dask.bag as db
>>> import pandas as pd
>>> from storefact import get_store_from_url
>>> store = get_store_from_url("hmemory://")
>>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY_CODE": ["DE", "IT", "DE"]})
>>> bag = db.from_sequence([cities])
>>> stored = store_bag_as_dataset(bag, store, "geodata", partition_on="COUNTRY_CODE")
>>> _ = stored.compute(scheduler="sync")
>>> frames = read_dataset_as_dataframe_bag("geodata", store)
>>> frames.map(len).compute(scheduler="sync")
[2, 1]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dask.bag import Bag, Item
from dask.task_spec import TaskRef

from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend
from kartothek_cube.core.expressions.predicate import PredicatesType
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.history import AsOf
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.store.resolve import lazy_store
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io.dask._dask_executor import (
    answer_as_bag,
    answer_as_item,
    picklable_store,
    results_as_bag,
)
from kartothek_cube.io_components.arguments import MetadataInput, dataset_factory
from kartothek_cube.io_components.read.dataset_read import (
    FrameOptions,
    plan_read,
    read_dataset_job,
    read_frames,
)
from kartothek_cube.io_components.runtime import batched
from kartothek_cube.io_components.utils import normalize_arg
from kartothek_cube.io_components.write.build_index import build_index_job
from kartothek_cube.io_components.write.dataset_commit import update_dataset_job, write_inputs
from kartothek_cube.io_components.write.dataset_plan import MetadataMerger, plan_store, with_write_id
from kartothek_cube.serialization import DataFrameSerializer

__all__ = ("build_dataset_indices__bag", "read_dataset_as_dataframe_bag", "store_bag_as_dataset")


def _partition_size(partition_size: int | None, elements: int) -> int:
    """Elements per partition, by default as :func:`dask.bag.from_sequence` chooses them."""
    return max(1, math.ceil(math.sqrt(elements) / 10)) if partition_size is None else partition_size


def read_dataset_as_dataframe_bag(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    columns: list[str] | None = None,
    predicate_pushdown_to_io: bool = True,
    categoricals: list[str] | None = None,
    dates_as_object: bool = True,
    predicates: PredicatesType = None,
    factory: DatasetFactory | None = None,
    dispatch_by: str | Sequence[str] | None = None,
    partition_size: int | None = None,
    *,
    table_name: str | None = None,
    as_of: AsOf | None = None,
    dtype_backend: DtypeBackend | None = None,
) -> Bag:
    """
    Read a dataset, an element per partition or group.

    See :func:`kartothek_cube.io.eager.read_dataset_as_dataframes`. The read is planned when the graph is
    built. ``partition_size`` elements form a partition of the bag: by default 1, more from 100 elements on. A
    categorical column with an index has the same categories in all frames: all values of the index.
    """
    plan = plan_read(
        dataset_uuid,
        picklable_store(store),
        factory,
        columns=columns,
        predicate_pushdown_to_io=predicate_pushdown_to_io,
        categoricals=categoricals,
        predicates=predicates,
        dispatch_by=dispatch_by,
        table_name=table_name,
        row_index=True,
        same_categories=True,
        as_of=as_of,
    )
    options, tasks = FrameOptions(plan.context, dates_as_object, dtype_backend), plan.tasks()
    blocks = batched(tasks, _partition_size(partition_size, len(tasks)))
    return results_as_bag(read_dataset_job(options, blocks, read_frames, "partitions"), flatten=True)


def store_bag_as_dataset(
    bag: Bag,
    store: StoreInput,
    dataset_uuid: str | None = None,
    metadata: MetadataInput = None,
    df_serializer: DataFrameSerializer | None = None,
    overwrite: bool = False,
    metadata_merger: MetadataMerger | None = None,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    partition_on: str | Sequence[str] | None = None,
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT,
    secondary_indices: str | Sequence[str] | None = None,
    table_name: str = SINGLE_TABLE,
) -> Item:
    """
    Store a new dataset; see :func:`kartothek_cube.io.eager.store_dataframes_as_dataset`.

    ``bag`` is a bag of its inputs. One task writes each partition of the bag, the last task publishes the
    dataset; arguments are checked when the graph is built.
    """
    if not isinstance(bag, Bag):
        raise TypeError(f"bag must be a dask bag but is {type(bag).__name__}")
    plan = plan_store(
        lazy_store(store),
        dataset_uuid,
        metadata=metadata,
        partition_on=partition_on,
        df_serializer=df_serializer,
        overwrite=overwrite,
        secondary_indices=secondary_indices,
        metadata_storage_format=metadata_storage_format,
        metadata_version=metadata_version,
        metadata_merger=metadata_merger,
        table_name=table_name,
    )
    partitions = [TaskRef((bag.name, i)) for i in range(bag.npartitions)]
    return answer_as_item(update_dataset_job(with_write_id(plan), partitions, write_inputs), [bag])


def build_dataset_indices__bag(
    store: StoreInput | None,
    dataset_uuid: str | None,
    columns: str | Sequence[str],
    partition_size: int | None = None,
    factory: DatasetFactory | None = None,
) -> Bag:
    """
    Add or rebuild secondary indices; see :func:`kartothek_cube.io.eager.build_dataset_indices`.

    A task reads ``partition_size`` partitions of the dataset: by default 1, more from 100 partitions on. The
    only element of the bag is the dataset.
    """
    dataset = dataset_factory(dataset_uuid, picklable_store(store), factory)
    size = _partition_size(partition_size, len(dataset.dataset_metadata.partition_table))
    return answer_as_bag(build_index_job(dataset, normalize_arg("columns", columns) or [], size))
