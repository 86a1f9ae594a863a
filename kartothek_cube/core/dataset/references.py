"""Which keys of a store belong to a dataset or a cube, tracked by a header or left behind."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.naming import (
    INDICES_DIRECTORY,
    METADATA_BASE_SUFFIX,
    METADATA_FORMAT_JSON,
    METADATA_FORMAT_MSGPACK,
    TABLE_METADATA_FILE,
    metadata_key_from_uuid,
    schema_key,
)
from kartothek_cube.core.store import BlobStore

__all__ = ("data_keys", "header_keys", "index_keys", "is_header_key", "schema_keys", "table_names")

_HEADERS = tuple(METADATA_BASE_SUFFIX + fmt for fmt in (METADATA_FORMAT_JSON, METADATA_FORMAT_MSGPACK))


def header_keys(uuid: str) -> list[str]:
    """Keys that the header of a dataset can have."""
    return [metadata_key_from_uuid(uuid, fmt) for fmt in ("json", "msgpack")]


def is_header_key(key: str) -> bool:
    """Whether a key is that of the header of some dataset."""
    return "/" not in key and key.endswith(_HEADERS)


def table_names(dataset: DatasetMetadata, blobs: BlobStore) -> list[str]:
    """Names of the tables; where there are no partitions to tell, a table is a directory with a schema."""
    if dataset.tables:
        return dataset.tables
    folders = [
        key.rstrip("/").rpartition("/")[2] for key in blobs.list_dir(f"{dataset.uuid}/") if key.endswith("/")
    ]
    others = [
        f
        for f in folders
        if f != INDICES_DIRECTORY and blobs.exists(f"{dataset.uuid}/{f}/{TABLE_METADATA_FILE}")
    ]
    return others or [dataset.table_name]


def schema_keys(dataset: DatasetMetadata, blobs: BlobStore) -> list[str]:
    """Schema files of the tables."""
    return [schema_key(dataset.uuid, table) for table in table_names(dataset, blobs)]


def index_keys(dataset: DatasetMetadata) -> list[str]:
    """Files of the secondary indices."""
    explicit = (i for i in dataset.indices.values() if isinstance(i, ExplicitSecondaryIndex))
    return sorted(i.index_storage_key for i in explicit if i.index_storage_key)


def data_keys(dataset: DatasetMetadata, tables: Iterable[str] | None = None) -> list[str]:
    """Data files, of all tables or of the given ones, in header order."""
    files = dataset.partition_table.files
    chosen = files if tables is None else {t: files[t] for t in tables if t in files}
    return [key for keys in chosen.values() for key in pa.array(keys).to_pylist()]
