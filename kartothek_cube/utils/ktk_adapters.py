"""Adapters between datasets and cubes: visible columns, tracked keys, partitions as a frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import pandas as pd
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import to_pandas
from kartothek_cube.core.cube.consistency import get_dataset_columns
from kartothek_cube.core.cube.constants import KLEE_TIMESTAMP_COLUMN
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.metadata import file_keys
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import metadata_key_from_uuid, schema_key
from kartothek_cube.core.partition import Partition
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.store.resolve import lazy_store
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.serialization.parquet_reader import read_footer

__all__ = (
    "footer_stats",
    "get_dataset_columns",
    "get_dataset_keys",
    "get_partition_dataframe",
    "get_physical_partition_stats",
    "metadata_factory_from_dataset",
)


def get_dataset_keys(dataset: DatasetMetadata) -> set[str]:
    """Keys of a dataset that its header tracks: header, schemas, secondary indices, data files."""
    schemas = [schema_key(dataset.uuid, table) for table in dataset.tables]
    return {metadata_key_from_uuid(dataset.uuid), *schemas, *file_keys(dataset)}


def _no_store() -> NoReturn:
    raise NotImplementedError("This factory was made without a store and cannot load anything")


def metadata_factory_from_dataset(
    dataset: DatasetMetadata, with_schema: bool = True, store: StoreInput | None = None
) -> DatasetFactory:
    """A factory around metadata that is loaded already; without a store it can load nothing else."""
    factory = DatasetFactory(
        dataset_uuid=dataset.uuid,
        store_factory=_no_store if store is None else lazy_store(store),
        load_schema=with_schema,
    )
    factory._cache_metadata = dataset
    factory.is_loaded = True
    return factory


def footer_stats(blobs: BlobStore, key: str) -> tuple[int, int]:
    """Size in bytes and number of rows of a data file, by its footer."""
    footer, size = read_footer(blobs, key)
    return size, footer.num_rows


def get_physical_partition_stats(metapartitions: Iterable[Any], store: StoreInput) -> dict[str, int]:
    """Files of one physical partition, their rows and bytes; ``partitions`` is always 1."""
    blobs = open_blobs(store)
    partitions: list[Partition] = list(metapartitions)
    counted = [footer_stats(blobs, key) for partition in partitions for key in partition.files.values()]
    return {
        "blobsize": sum(size for size, _ in counted),
        "files": len(counted),
        "partitions": 1,
        "rows": sum(rows for _, rows in counted),
    }


def get_partition_dataframe(dataset: DatasetMetadata, cube: Cube) -> pd.DataFrame:
    """Frame of the partition keys of a dataset by label, sorted, without the timestamps of old cubes."""
    columns = sorted(c for c in dataset.partition_keys or () if c != KLEE_TIMESTAMP_COLUMN)
    table = dataset.partition_table
    keys = table.keys(list(dataset.partition_keys or ()), dataset.schema)
    frame = (
        to_pandas(pa.table({c: keys[c] for c in columns}))
        if columns
        else pd.DataFrame(index=range(len(table)))
    )
    frame.index = pd.Index(table.labels.to_pylist(), name="partition", dtype=object)
    return frame.sort_index()
