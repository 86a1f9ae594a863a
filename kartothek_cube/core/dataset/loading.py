"""From the store to a dataset: header, schema, index keys, and partitions that no header lists."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow.arrays import abbreviate
from kartothek_cube.core.caching import ParseCache
from kartothek_cube.core.common_metadata import read_schema_metadata
from kartothek_cube.core.errors import DatasetNotFoundError, unknown_names
from kartothek_cube.core.header.commit_record import parse_record
from kartothek_cube.core.header.fast_parse import split_header
from kartothek_cube.core.header.parse import HEADER_KEYS, check_header, parse_header
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexBase
from kartothek_cube.core.naming import (
    INDICES_DIRECTORY,
    PARQUET_FILE_SUFFIX,
    SINGLE_TABLE,
    metadata_key_from_uuid,
    schema_key,
)
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, check_owned
from kartothek_cube.core.urlencode import unquote_indices

__all__ = (
    "HeaderBlob",
    "TableSchema",
    "embedded_schemas",
    "extra_fields",
    "header_indices",
    "list_partitions",
    "parse_header_cached",
    "read_header",
    "read_schemas",
)


class HeaderBlob(NamedTuple):
    """A header as it is in the store: where, its bytes, its format, its version (None if not asked for)."""

    key: str
    content: bytes
    format: str
    token: Any


class TableSchema(NamedTuple):
    """Which table is meant, its schema, and what types the partition keys if there is no such table."""

    table_name: str
    schema: SchemaWrapper | None = None
    key_schema: SchemaWrapper | None = None


def read_header(uuid: str, blobs: BlobStore, *, with_token: bool = False) -> HeaderBlob:
    """
    Read the header of a dataset, JSON first.

    Parameters
    ----------
    uuid
        Uuid of the dataset.
    blobs
        The store.
    with_token
        Ask for the version as well.

    Returns
    -------
    StoredHeader

    Raises
    ------
    DatasetNotFoundError
        There is none, in neither format.
    """
    for kind in ("json", "msgpack"):
        key = metadata_key_from_uuid(uuid, kind)
        try:
            content, token = blobs.get_with_token(key) if with_token else (blobs.get(key), None)
        except KeyError:
            continue
        return HeaderBlob(key, content, kind, token)
    raise DatasetNotFoundError(uuid)


def extra_fields(header: Mapping[str, Any]) -> dict[str, Any]:
    """
    Parts of a header that this version does not know.

    Parameters
    ----------
    header
        The decoded header.

    Returns
    -------
    dict
    """
    return {part: value for part, value in header.items() if part not in HEADER_KEYS}


def header_indices(
    header: Mapping[str, Any], schema: SchemaWrapper | None, *, owned: bool
) -> dict[str, IndexBase]:
    """
    The indices that a header lists.

    Parameters
    ----------
    header
        The decoded and checked header.
    schema
        Schema that types them, if it is known.
    owned
        Refuse storage keys outside the dataset.

    Returns
    -------
    dict of str to IndexBase
        Those with a storage key are not loaded.

    Raises
    ------
    CorruptDatasetError
        A storage key leads out of the dataset.
    """
    indices: dict[str, IndexBase] = {}
    for column, given in header.get("indices", {}).items():
        if owned and isinstance(given, str):
            check_owned(given, header["dataset_uuid"])
        dtype = _type_of(schema, column)
        if isinstance(given, str):
            indices[column] = ExplicitSecondaryIndex(column, index_storage_key=given, dtype=dtype)
        else:
            inferred = pa.string() if dtype is None else dtype
            indices[column] = ExplicitSecondaryIndex(column, index_dct=given, dtype=inferred)
    return indices


def _type_of(schema: SchemaWrapper | None, column: str) -> pa.DataType | None:
    if schema is None or column not in schema.names:
        return None
    dtype = schema.field(column).type
    return None if pa.types.is_null(dtype) else dtype


def list_partitions(
    uuid: str, blobs: BlobStore, partition_keys: Sequence[str] | None
) -> tuple[PartitionTable, list[str]]:
    """
    The partitions of a dataset whose header does not list them: whatever data files exist.

    Parameters
    ----------
    uuid
        Uuid of the dataset.
    blobs
        The store.
    partition_keys
        Partition keys of the header; None: told by the first file.

    Returns
    -------
    partitions
        Sorted by label; where there are several tables, only those that all tables have.
    partition_keys

    Raises
    ------
    RuntimeError
        The files have different numbers of partition values in their path.
    """
    keys = pa.array([blob.key for blob in blobs.list(f"{uuid}/")], pa.string())
    data = pc.and_not(
        pc.ends_with(keys, PARQUET_FILE_SUFFIX), pc.starts_with(keys, f"{uuid}/{INDICES_DIRECTORY}/")
    )
    keys = keys.filter(pc.and_(data, pc.match_substring_regex(keys, f"^{uuid.replace('+', '[+]')}/[^/]+/")))
    paths = pc.split_pattern(keys, "/", max_splits=2)
    tables = pc.list_element(paths, 1) if len(keys) else keys
    labels = pc.utf8_slice_codeunits(
        pc.list_element(paths, 2) if len(keys) else keys, start=0, stop=-len(PARQUET_FILE_SUFFIX)
    )
    _check_depth(uuid, labels)
    keys_of_labels = partition_keys_of(labels) if partition_keys is None else partition_keys
    return _by_table(keys, tables, labels), list(keys_of_labels)


def partition_keys_of(labels: pa.StringArray) -> list[str]:
    """
    The partition keys of a dataset whose header does not tell them, as in early headers of version 4.

    Parameters
    ----------
    labels
        Its partitions; the first one tells.

    Returns
    -------
    list of str
    """
    first = labels[0].as_py().split("/")[:-1] if len(labels) else []
    return [column for column, _ in unquote_indices(first)]


def _check_depth(uuid: str, labels: pa.StringArray) -> None:
    depths = pc.count_substring(labels, "/").unique()
    if len(depths) > 1:
        examples = labels.take(pc.index_in(depths, value_set=pc.count_substring(labels, "/"))).to_pylist()
        raise RuntimeError(
            f"Dataset {uuid!r}: files have different numbers of partition values in their path: "
            f"{abbreviate(examples)}"
        )


def _by_table(keys: pa.StringArray, tables: pa.StringArray, labels: pa.StringArray) -> PartitionTable:
    names = tables.unique().to_pylist()
    if len(names) <= 1:
        return PartitionTable(labels, dict.fromkeys(names, keys))
    masks = {name: pc.equal(tables, name) for name in names}
    common = labels.filter(masks[names[0]])
    for mask in masks.values():
        common = common.filter(pc.is_in(common, value_set=labels.filter(mask)))
    places = {name: pc.index_in(common, value_set=labels.filter(mask)) for name, mask in masks.items()}
    return PartitionTable(common, {name: keys.filter(masks[name]).take(places[name]) for name in names})


def read_schemas(
    uuid: str,
    blobs: BlobStore,
    partitions: PartitionTable,
    table_name: str | None,
    lineage: str | None = None,
) -> TableSchema:
    """
    Find the table that is meant and read its schema.

    Parameters
    ----------
    uuid
        Uuid of the dataset.
    blobs
        The store.
    partitions
        The dataset's partitions.
    table_name
        The table; None: the only one.
    lineage
        Line of the header; None for the newest one.

    Returns
    -------
    Schemas
        Without ``schema`` if there are several tables and none was named; then the first one types the keys.

    Raises
    ------
    KeyError
        The schema file is missing.
    ValueError
        There is no such table.
    """
    tables = sorted(partitions.files)
    if table_name is not None and tables and table_name not in tables:
        raise ValueError(f"Dataset {uuid!r}: {unknown_names('table', [table_name], tables)}")
    if table_name is None and not tables:
        return _find_table(uuid, blobs, lineage)
    if table_name is None and len(tables) > 1:
        return TableSchema(
            SINGLE_TABLE, key_schema=read_schema_metadata(uuid, blobs, tables[0], lineage=lineage)
        )
    name = table_name or tables[0]
    return TableSchema(name, read_schema_metadata(uuid, blobs, name, lineage=lineage))


def embedded_schemas(
    header: Mapping[str, Any], partitions: PartitionTable, table_name: str | None
) -> TableSchema | None:
    """The schema out of the commit record of a header; None if there is none, or not one table."""
    tables, record = sorted(partitions.files), parse_record(header)
    if record is None or record.schema is None or len(tables) > 1:
        return None
    name = table_name or (tables[0] if tables else SINGLE_TABLE)
    return TableSchema(name, record.embedded_schema(schema_key(header["dataset_uuid"], name)))


def _find_table(uuid: str, blobs: BlobStore, lineage: str | None) -> TableSchema:
    """A dataset without partitions tells its tables by their schema files only."""
    try:
        return TableSchema(SINGLE_TABLE, read_schema_metadata(uuid, blobs, SINGLE_TABLE, lineage=lineage))
    except KeyError:
        directories = [
            key.removeprefix(f"{uuid}/").rstrip("/") for key in blobs.list_dir(f"{uuid}/") if key[-1] == "/"
        ]
        tables = [t for t in directories if t != INDICES_DIRECTORY and blobs.exists(schema_key(uuid, t))]
        if not tables:
            raise
    first = read_schema_metadata(uuid, blobs, tables[0], lineage=lineage)
    return TableSchema(tables[0], first) if len(tables) == 1 else TableSchema(SINGLE_TABLE, key_schema=first)


class _Parsed(NamedTuple):
    rest: dict[str, Any]
    partitions: PartitionTable | None


_CACHE: ParseCache[_Parsed] = ParseCache(capacity=1 << 27, smallest=0)
#: bytes that a header without its partitions takes, about
_REST = 1 << 12


def parse_header_cached(stored: HeaderBlob, uuid: str) -> tuple[dict[str, Any], PartitionTable | None]:
    """
    Parse and check a header.

    Parameters
    ----------
    stored
        The header. What is remembered counts only if it was parsed from the very same bytes.
    uuid
        Dataset that it has to be of.

    Returns
    -------
    header : dict
        Without ``partitions``; the caller's own.
    partitions : PartitionTable or None
        None if the header does not list them.

    Raises
    ------
    CorruptDatasetError, NotImplementedError
        As :func:`~kartothek_cube.core.header.parse.check_header`.
    """
    found = _CACHE.parse(
        (stored.key, uuid), stored.content, lambda content: _parse(content, stored, uuid), _size
    )
    return copy.deepcopy(found.rest), None if found.partitions is None else found.partitions.share()


def _parse(content: bytes, stored: HeaderBlob, uuid: str) -> _Parsed:
    found = split_header(content) if stored.format == "json" else None
    header = parse_header(content, stored.format, stored.key) if found is None else found[0]
    check_header(header, stored.key, uuid)
    partitions = None
    if found is not None:
        partitions = PartitionTable(*found[1:])
    elif "partitions" in header:
        partitions = PartitionTable.from_header(header.pop("partitions"), stored.key)
    if partitions is not None:
        partitions.check_owned(uuid)
    return _Parsed(header, partitions)


def _size(parsed: _Parsed) -> int:
    table = parsed.partitions
    columns = () if table is None else (table.labels, *table.files.values())
    return _REST + sum(int(column.nbytes) for column in columns)
