"""Files of datasets: header, schema, unlisted partitions; the keys of all files."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import caching, errors, naming, pruning
from kartothek_cube.core.header import check_header, embedded_schema, parse_header, parse_record, split_header
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexBase
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema import SchemaWrapper, schema_file_from_bytes, schema_version_of
from kartothek_cube.core.store import BlobStore, check_owned

if TYPE_CHECKING:
    from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBase


class HeaderBlob(NamedTuple):
    """Header as stored: key, content, format and version (None if not requested)."""

    key: str
    content: bytes
    format: str
    token: Any


class TableSchema(NamedTuple):
    """Table of a dataset and its schema; the schemas of several tables if none of them was chosen."""

    table_name: str
    schema: SchemaWrapper | None = None
    #: by table, sorted
    table_schemas: Mapping[str, SchemaWrapper] | None = None

    @property
    def key_schema(self) -> SchemaWrapper | None:
        """A schema that types the partition keys, which all tables have."""
        return self.schema or next(iter((self.table_schemas or {}).values()), None)


def read_header(uuid: str, blobs: BlobStore, *, with_token: bool = False) -> HeaderBlob:
    """Read the header of a dataset, JSON first; raises DatasetNotFoundError."""
    for kind, key in zip(("json", "msgpack"), naming.header_keys(uuid), strict=True):
        try:
            content, token = blobs.get_with_token(key) if with_token else (blobs.get(key), None)
        except KeyError:
            continue
        return HeaderBlob(key, content, kind, token)
    raise errors.DatasetNotFoundError(uuid, blobs.missing_directory)


def header_indices(
    header: Mapping[str, Any], schema: SchemaWrapper | None, *, owned: bool
) -> dict[str, IndexBase]:
    """Indices listed in a header; `owned` refuses storage keys outside of the dataset."""
    indices: dict[str, IndexBase] = {}
    for column, entry in header.get("indices", {}).items():
        dtype = None if schema is None or column not in schema.names else schema.field(column).type
        dtype = None if dtype is None or pa.types.is_null(dtype) else dtype
        if isinstance(entry, str):
            if owned:
                check_owned(entry, header["dataset_uuid"])
            indices[column] = ExplicitSecondaryIndex(column, index_storage_key=entry, dtype=dtype)
        else:
            indices[column] = ExplicitSecondaryIndex(column, index_dct=entry, dtype=dtype or pa.string())
    return indices


def list_partitions(
    uuid: str, blobs: BlobStore, partition_keys: Sequence[str] | None
) -> tuple[PartitionTable, list[str]]:
    """Partitions of a dataset whose header does not list them, by its data files; and the partition keys."""
    # Sorted by label; of several tables, only partitions that all tables have.
    keys = pa.array([blob.key for blob in blobs.list(f"{uuid}/")], pa.string())
    is_index = pc.starts_with(keys, f"{uuid}/{naming.INDICES_DIRECTORY}/")
    data = pc.and_not(pc.ends_with(keys, naming.PARQUET_FILE_SUFFIX), is_index)
    keys = keys.filter(pc.and_(data, pc.match_substring_regex(keys, f"^{uuid.replace('+', '[+]')}/[^/]+/")))
    paths = pc.split_pattern(keys, "/", max_splits=2)
    tables = pc.list_element(paths, 1) if len(keys) else keys
    names = pc.list_element(paths, 2) if len(keys) else keys
    labels = pc.utf8_slice_codeunits(names, start=0, stop=-len(naming.PARQUET_FILE_SUFFIX))
    depths = pc.count_substring(labels, "/")
    if len(depths.unique()) > 1:
        examples = labels.take(pc.index_in(depths.unique(), value_set=depths)).to_pylist()
        problem = f"Dataset {uuid!r}: files have different numbers of partition values in their path"
        raise RuntimeError(f"{problem}: {errors.list_names(examples)}")
    keys_of_labels = partition_keys_of(labels) if partition_keys is None else partition_keys
    return _table_of_files(keys, tables, labels), list(keys_of_labels)


def partition_keys_of(labels: pa.StringArray) -> list[str]:
    """Partition keys by the first label, for headers without them (early version 4)."""
    first = labels[0].as_py().split("/")[:-1] if len(labels) else []
    return [column for column, _ in naming.unquote_indices(first)]


def _table_of_files(keys: pa.StringArray, tables: pa.StringArray, labels: pa.StringArray) -> PartitionTable:
    names = tables.unique().to_pylist()
    if len(names) <= 1:
        return PartitionTable(labels, dict.fromkeys(names, keys))
    masks = {name: pc.equal(tables, name) for name in names}
    common = labels.filter(masks[names[0]])
    for mask in masks.values():
        common = common.filter(pc.is_in(common, value_set=labels.filter(mask)))
    positions = {name: pc.index_in(common, value_set=labels.filter(mask)) for name, mask in masks.items()}
    return PartitionTable(common, {name: keys.filter(masks[name]).take(positions[name]) for name in names})


def read_schemas(
    header: Mapping[str, Any], partitions: PartitionTable, blobs: BlobStore, table_name: str | None
) -> TableSchema:
    """Table of the dataset of a header, and its schema."""
    uuid, tables = header[naming.UUID_KEY], sorted(partitions.files)
    if table_name is not None and tables and table_name not in tables:
        raise ValueError(f"Dataset {uuid!r}: {errors.unknown_names('table', [table_name], tables)}")
    if table_name is None and not tables and not blobs.exists(naming.schema_key(uuid)):
        tables = tables_with_schema(uuid, blobs)
    name = table_name or (tables or [naming.SINGLE_TABLE])[0]
    is_only_table = len(tables) < 2
    schema = read_schema(header, name, blobs, is_only_table=is_only_table)
    if table_name is not None or is_only_table:
        return TableSchema(name, schema)
    # without a table name, several tables have no common schema
    schemas = {name: schema}
    for table in tables[1:]:
        # the first one is enough for the partition keys
        with suppress(errors.MissingFileError):
            schemas[table] = read_schema(header, table, blobs, is_only_table=False)
    return TableSchema(naming.SINGLE_TABLE, table_schemas=schemas)


def read_schema(
    header: Mapping[str, Any], table: str, blobs: BlobStore, *, is_only_table: bool = True
) -> SchemaWrapper:
    """Schema of a table in the version of a header; MissingFileError without file and copy."""
    # The header of another library has no copy. The file is rewritten in place: it may be that of a commit
    # which is under way, or a late deletion of an earlier dataset of that name may have removed it.
    key, damage = naming.schema_key(header[naming.UUID_KEY], table), None
    record = parse_record(header) if is_only_table else None
    if record is not None and record.schema is not None:
        try:
            return embedded_schema(record.schema, key)
        except errors.CorruptDatasetError as error:
            damage = error
    try:
        return schema_file_from_bytes(blobs.get(key), key).of(schema_version_of(header.get("metadata")))
    except KeyError:
        raise damage or errors.MissingFileError(key) from None


@dataclass(eq=False)
class ParsedHeader:
    """Header without ``partitions``, and these as a table; None if it does not list them."""

    header: dict[str, Any]
    partitions: PartitionTable | None
    #: the dataset of this header, with the schema that it has now; lives as long as this entry
    shared: DatasetMetadata | None = None


#: rough size of a header without its partitions
_HEADER_BYTES = 1 << 12


def parse_header_shared(stored: HeaderBlob, uuid: str) -> ParsedHeader:
    """The parsed header: the same object for all callers, which must not change it."""
    key = ("header", stored.key, uuid)
    return caching.CACHE.parse(key, stored.content, lambda _: _parse_header(stored, uuid), _parsed_size)


def cache_header(key: str, content: bytes, dataset: DatasetMetadata) -> None:
    """Keep the header that a commit has put: no later read of this process has to parse it."""
    table = dataset.partition_table
    if key.endswith(".json") and len(table):
        parsed = ParsedHeader(dataset.parsed_fields(), table.share())
        caching.CACHE.put(("header", key, dataset.uuid), content, parsed, _parsed_size(parsed))


def parse_header_cached(stored: HeaderBlob, uuid: str) -> tuple[dict[str, Any], PartitionTable | None]:
    """Header without ``partitions`` (a copy) and its partitions, None if it does not list them."""
    parsed = parse_header_shared(stored, uuid)
    return copy_json(parsed.header), None if parsed.partitions is None else parsed.partitions.share()


def copy_json(value: dict[str, Any]) -> dict[str, Any]:
    """Copy of a dict with its lists and dicts, in a tenth of the time of `copy.deepcopy`."""
    copied: dict[str, Any] = pickle.loads(pickle.dumps(value))  # noqa: S301 - what was just pickled
    return copied


def _parse_header(stored: HeaderBlob, uuid: str) -> ParsedHeader:
    columns = split_header(stored.content) if stored.format == "json" else None
    header = parse_header(stored.content, stored.format, stored.key) if columns is None else columns[0]
    check_header(header, stored.key, uuid)
    partitions = None
    if columns is not None:
        partitions = PartitionTable(*columns[1:])
    elif "partitions" in header:
        partitions = PartitionTable.from_header(header.pop("partitions"), stored.key)
    if partitions is not None:
        partitions.check_owned(uuid)
    return ParsedHeader(header, partitions)


def _parsed_size(parsed: ParsedHeader) -> int:
    table = parsed.partitions
    columns = () if table is None else (table.labels, *table.files.values())
    return _HEADER_BYTES + sum(int(column.nbytes) for column in columns)


def tables_with_schema(uuid: str, blobs: BlobStore) -> list[str]:
    """Names of the directories of a dataset that have a schema file."""
    names = [key.removeprefix(f"{uuid}/")[:-1] for key in blobs.list_dir(f"{uuid}/") if key.endswith("/")]
    return [n for n in names if n != naming.INDICES_DIRECTORY and blobs.exists(naming.schema_key(uuid, n))]


# -- keys of files -------------------------------------------------------------------------------------------


def table_names(dataset: DatasetMetadataBase, blobs: BlobStore) -> list[str]:
    """Names of the tables; without partitions, the directories with a schema file."""
    return dataset.tables or tables_with_schema(dataset.uuid, blobs) or [dataset.table_name]


def schema_keys(dataset: DatasetMetadataBase, blobs: BlobStore) -> list[str]:
    """Keys of the schema files of all tables."""
    return [naming.schema_key(dataset.uuid, table) for table in table_names(dataset, blobs)]


def index_keys(dataset: DatasetMetadataBase) -> list[str]:
    """Keys of the files of secondary indices."""
    return sorted(i.index_storage_key for i in dataset.secondary_indices.values() if i.index_storage_key)


def referenced_keys(dataset: DatasetMetadataBase) -> list[str]:
    """Keys of all files to which the header refers, with column statistics, which may be gone."""
    key = pruning.statistics_file(dataset.uuid, dataset.extra)
    return [*file_keys(dataset), *([] if key is None else [key])]


def data_keys(dataset: DatasetMetadataBase) -> list[str]:
    """Keys of the data files of all tables, in header order."""
    return [key for keys in dataset.partition_table.files.values() for key in keys.to_pylist()]


def file_keys(dataset: DatasetMetadataBase) -> list[str]:
    """Keys of all files to which the header refers: data files and secondary indices."""
    return [*data_keys(dataset), *index_keys(dataset)]
