"""Recovery of the schema of a dataset whose schema file is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from kartothek_cube.core.common_metadata import make_meta
from kartothek_cube.core.cube.constants import KTK_CUBE_UUID_SEPARATOR
from kartothek_cube.core.cube.discover import discover_datasets_unchecked
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.header.commit_record import parse_record
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX, schema_key
from kartothek_cube.core.schema.wrapper import SchemaWrapper, validate_compatible
from kartothek_cube.core.store import BlobStore
from kartothek_cube.serialization.ranged_read import read_footer

__all__ = ("recover_schema",)


def recover_schema(dataset: DatasetMetadata, blobs: BlobStore) -> SchemaWrapper | None:
    """The schema of a dataset from its header, or from its data files; None if a type is unknown."""
    # Footers do not have the types of partition keys, which other datasets of the cube have. A guess will not
    # do: a partition key "1" may be a text or a number.
    key = schema_key(dataset.uuid, dataset.table_name)
    record = parse_record(dataset.extra)
    embedded = None if record is None else record.embedded_schema(key)
    if embedded is not None:
        return embedded
    types = _key_types(dataset, blobs)
    if types is None:
        return None
    try:
        merged = validate_compatible([make_meta(schema, key) for schema in _file_schemas(dataset, blobs)])
    except (CorruptDatasetError, KeyError, ValueError):
        # damaged or missing data files are problems of their own
        return None
    if merged is None:
        return None
    file_schema = merged.internal()
    fields = [(name, dtype) for name, dtype in types.items() if name not in file_schema.names]
    schema = pa.schema([*fields, *((field.name, field.type) for field in file_schema)], file_schema.metadata)
    return make_meta(schema, key, partition_keys=dataset.partition_keys)


def _file_schemas(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[pa.Schema]:
    files = dataset.partition_table.files.get(dataset.table_name, pa.array([], pa.string()))
    for key in files.to_pylist():
        if key.endswith(PARQUET_FILE_SUFFIX):
            yield read_footer(blobs, key)[0].schema.to_arrow_schema()


def _key_types(dataset: DatasetMetadata, blobs: BlobStore) -> dict[str, pa.DataType] | None:
    """Types of the partition keys in other datasets of the cube; None if one is unknown."""
    missing = list(dataset.partition_keys)
    if not missing:
        return {}
    prefix, separator, _ = dataset.uuid.partition(KTK_CUBE_UUID_SEPARATOR)
    known_types: dict[str, pa.DataType] = {}
    if separator:
        for other in discover_datasets_unchecked(prefix, blobs).values():
            if other.schema is not None:
                known_types |= {name: other.schema.field(name).type for name in other.schema.names}
    return {name: known_types[name] for name in missing} if set(missing) <= set(known_types) else None
