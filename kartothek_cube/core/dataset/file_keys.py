"""Storage keys of the files of a dataset."""

from __future__ import annotations

from kartothek_cube.core.dataset.loading import tables_with_schema
from kartothek_cube.core.dataset.metadata import DatasetMetadataBase
from kartothek_cube.core.naming import schema_key
from kartothek_cube.core.store import BlobStore


def table_names(dataset: DatasetMetadataBase, blobs: BlobStore) -> list[str]:
    """Names of the tables; without partitions, the directories with a schema file."""
    return dataset.tables or tables_with_schema(dataset.uuid, blobs) or [dataset.table_name]


def schema_keys(dataset: DatasetMetadataBase, blobs: BlobStore) -> list[str]:
    """Keys of the schema files of all tables."""
    return [schema_key(dataset.uuid, table) for table in table_names(dataset, blobs)]


def index_keys(dataset: DatasetMetadataBase) -> list[str]:
    """Keys of the files of secondary indices."""
    return sorted(i.index_storage_key for i in dataset.secondary_indices.values() if i.index_storage_key)


def data_keys(dataset: DatasetMetadataBase) -> list[str]:
    """Keys of the data files of all tables, in header order."""
    return [key for keys in dataset.partition_table.files.values() for key in keys.to_pylist()]


def file_keys(dataset: DatasetMetadataBase) -> list[str]:
    """Keys of all files to which the header refers: data files and secondary indices."""
    return [*data_keys(dataset), *index_keys(dataset)]
