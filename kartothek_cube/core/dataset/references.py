"""Storage keys of a dataset: header, schema, index and data files."""

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
    """Possible keys of the header of a dataset."""
    return [metadata_key_from_uuid(uuid, fmt) for fmt in ("json", "msgpack")]


def is_header_key(key: str) -> bool:
    """Whether a key is that of the header of any dataset."""
    return "/" not in key and key.endswith(_HEADERS)


def table_names(dataset: DatasetMetadata, blobs: BlobStore) -> list[str]:
    """Names of the tables; without partitions, the directories with a schema file."""
    if dataset.tables:
        return dataset.tables
    folders = [
        key.rstrip("/").rpartition("/")[2] for key in blobs.list_dir(f"{dataset.uuid}/") if key.endswith("/")
    ]
    tables = [
        f
        for f in folders
        if f != INDICES_DIRECTORY and blobs.exists(f"{dataset.uuid}/{f}/{TABLE_METADATA_FILE}")
    ]
    return tables or [dataset.table_name]


def schema_keys(dataset: DatasetMetadata, blobs: BlobStore) -> list[str]:
    """Keys of the schema files of all tables."""
    return [schema_key(dataset.uuid, table) for table in table_names(dataset, blobs)]


def index_keys(dataset: DatasetMetadata) -> list[str]:
    """Keys of the files of secondary indices."""
    explicit = (i for i in dataset.indices.values() if isinstance(i, ExplicitSecondaryIndex))
    return sorted(i.index_storage_key for i in explicit if i.index_storage_key)


def data_keys(dataset: DatasetMetadata, tables: Iterable[str] | None = None) -> list[str]:
    """Keys of the data files of all or some tables, in header order."""
    files = dataset.partition_table.files
    selected = files if tables is None else {t: files[t] for t in tables if t in files}
    return [key for keys in selected.values() for key in pa.array(keys).to_pylist()]
