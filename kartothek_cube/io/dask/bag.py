"""Datasets with dask bags: they are input of writes and result of reads; the work is done when computed."""

from __future__ import annotations

import math
from typing import Any

import attrs
from dask.bag import Bag, Item

from kartothek_cube.core.arguments import check_positive
from kartothek_cube.core.commit.change import MetadataMerger
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io.dask import _dask_executor as executor
from kartothek_cube.io_components import dataset_read, runtime
from kartothek_cube.io_components.dataset_arguments import MetadataInput, dataset_factory
from kartothek_cube.io_components.facade import Example, define_facade, with_stores
from kartothek_cube.io_components.write.build_index import BuildDatasetIndices
from kartothek_cube.io_components.write.dataset_writes import Names, StoreDataset
from kartothek_cube.io_components.write.write_commit import write_dataset_job
from kartothek_cube.io_components.write.write_tasks import write_parts
from kartothek_cube.serialization import DataFrameSerializer

__all__ = ("build_dataset_indices__bag", "read_dataset_as_dataframe_bag", "store_bag_as_dataset")


def _partition_size(partition_size: int | None, elements: int) -> int:
    """Elements per partition, by default as :func:`dask.bag.from_sequence` chooses them."""
    if partition_size is None:
        return max(1, math.ceil(math.sqrt(elements) / 10))
    check_positive("partition_size", partition_size)
    return partition_size


@attrs.frozen
class _ReadDataset(dataset_read.ReadDataset):
    partition_size: int | None = None


@attrs.frozen
class _BuildDatasetIndices(BuildDatasetIndices):
    partition_size: int | None = None
    # declared again to be the last parameter, as in kartothek
    factory: DatasetFactory | None = None


@define_facade(_ReadDataset, example=Example(value=executor.SYNC))
def read_dataset_as_dataframe_bag(read: _ReadDataset) -> Bag:
    """Read a dataset, an element per partition or group.

    The read is planned when the graph is built. A categorical column with an index has the same categories in
    all frames: all values of the index.
    """
    plan = with_stores(read, executor.picklable_store).plan(same_categories=True)
    tasks = plan.tasks()
    blocks = runtime.batched(tasks, _partition_size(read.partition_size, len(tasks)))
    job = dataset_read.read_dataset_job(plan.context, blocks, dataset_read.read_frames, "partitions")
    return executor.results_as_bag(job, flatten=True)


@define_facade(_BuildDatasetIndices, example=Example(value=f"{executor.SYNC}[0]"))
def build_dataset_indices__bag(build: _BuildDatasetIndices) -> Bag:
    """Add secondary indices to a dataset, or rebuild existing ones. Only these columns are read.

    The only element of the bag is the dataset.
    """
    dataset = dataset_factory(build.dataset_uuid, executor.picklable_store(build.store), build.factory)
    size = _partition_size(build.partition_size, len(dataset.dataset_metadata.partition_table))
    build = attrs.evolve(build, store=None, dataset_uuid=None, factory=dataset)
    return executor.answer_as_bag(build.job(size))


@attrs.frozen
class _StoreDataset(StoreDataset):
    bag: Bag
    store: StoreInput
    dataset_uuid: str | None = None
    metadata: MetadataInput = None
    df_serializer: DataFrameSerializer | None = None
    overwrite: bool = False
    metadata_merger: MetadataMerger | None = None
    metadata_version: int = DEFAULT_METADATA_VERSION
    partition_on: Names = None
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT
    secondary_indices: Names = None
    table_name: str = SINGLE_TABLE


_EXAMPLE = Example(("import dask.bag", "data = dask.bag.from_sequence(data)"), executor.SYNC)


@define_facade(_StoreDataset, example=_EXAMPLE)
def store_bag_as_dataset(store: _StoreDataset) -> Item:
    """Store a new dataset.

    One task writes each partition of the bag, the last one commits the dataset; arguments are checked when
    the graph is built.
    """
    plan, bag = with_stores(store, executor.picklable_store).plan(), store.bag
    tasks: list[Any] = executor.bag_partitions(bag, "bag")
    job = write_dataset_job(plan, tasks, write_parts)
    item: Item = Item.from_delayed(executor.answer_as_delayed(job, [bag]))
    return item
