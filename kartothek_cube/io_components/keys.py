"""Which keys of a store belong to a dataset or a cube, tracked by a header or left behind."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.naming import metadata_key_from_uuid

__all__ = ("data_keys", "header_keys", "index_keys")


def header_keys(uuid: str) -> list[str]:
    """Keys that the header of a dataset can have."""
    return [metadata_key_from_uuid(uuid, fmt) for fmt in ("json", "msgpack")]


def index_keys(dataset: DatasetMetadata) -> list[str]:
    """Files of the secondary indices."""
    explicit = (i for i in dataset.indices.values() if isinstance(i, ExplicitSecondaryIndex))
    return sorted(i.index_storage_key for i in explicit if i.index_storage_key)


def data_keys(dataset: DatasetMetadata, tables: Iterable[str] | None = None) -> list[str]:
    """Data files, of all tables or of the given ones, in header order."""
    files = dataset.partition_table.files
    chosen = files if tables is None else {t: files[t] for t in tables if t in files}
    return [key for keys in chosen.values() for key in pa.array(keys).to_pylist()]
