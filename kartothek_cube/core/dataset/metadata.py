"""``DatasetMetadata``: a dataset as it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kartothek_cube.core.dataset.loading import (
    HeaderBlob,
    TableSchema,
    embedded_schemas,
    extra_fields,
    header_indices,
    list_partitions,
    parse_header_cached,
    parse_header_shared,
    partition_keys_of,
    read_header,
    read_schemas,
)
from kartothek_cube.core.dataset.metadata_base import DatasetMetadataBase
from kartothek_cube.core.errors import DatasetNotFoundError
from kartothek_cube.core.header.commit_record import parse_record
from kartothek_cube.core.header.parse import check_header, parse_header
from kartothek_cube.core.naming import (
    METADATA_VERSION_KEY,
    SINGLE_TABLE,
    UUID_KEY,
    metadata_key_from_uuid,
    schema_key,
)
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.file import schema_file_from_bytes, schema_version_of
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, Token, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.display.html import card, facts, table

__all__ = ("DatasetMetadata",)

#: key of the header in messages, if it is unknown
_UNKNOWN_KEY = "header"


class DatasetMetadata(DatasetMetadataBase):
    """
    A dataset: partitions, metadata, indices, schema.

    Parameters and attributes are those of :class:`DatasetMetadataBase`.

    Examples
    --------
    >>> from kartothek_cube.core.partition import Partition
    >>> partition = Partition("a1", {"table": "geodata/table/a1.parquet"})
    >>> dataset = DatasetMetadata("geodata", {"a1": partition})
    >>> dataset
    DatasetMetadata(uuid=geodata, tables=['table'], partition_keys=[], metadata_version=4, indices=[],
        explicit_partitions=True)
    >>> DatasetMetadata.from_buffer(dataset.to_json()) == dataset
    True
    """

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(uuid={self.uuid}, tables={self.tables}, "
            f"partition_keys={self.partition_keys}, metadata_version={self.metadata_version}, "
            f"indices={list(self.indices)}, explicit_partitions={self.explicit_partitions})"
        )

    def _repr_html_(self) -> str:
        keys = list(self.partition_keys)
        indexed = [name for name in self.indices if name not in keys]
        columns = []
        for field in self.schema or ():
            role = "partition key" if field.name in keys else "indexed" if field.name in indexed else ""
            columns.append((field.name, str(field.type), role))
        metadata = [(name, str(value)) for name, value in sorted(self.metadata.items())]
        return card(
            f"Dataset {self.uuid}",
            facts(
                {
                    "files": len(self.partition_table),
                    "partition keys": keys,
                    "secondary indices": indexed,
                    "first files": self.partition_table.labels[:5].to_pylist(),
                }
            ),
            table("Columns", ["column", "type", ""], columns),
            f"<details><summary>Metadata ({len(metadata)})</summary>"
            f"{table('', ['key', 'value'], metadata)}</details>",
        )

    @staticmethod
    def from_dict(dct: Mapping[str, Any], explicit_partitions: bool = True) -> DatasetMetadata:
        """
        Read a dataset from the content of its header, without a store.

        Parameters
        ----------
        dct
            The decoded header.
        explicit_partitions
            Whether the partitions are those that the header lists.

        Returns
        -------
        DatasetMetadata
            Without schema.

        Raises
        ------
        CorruptDatasetError
            A part of the header is missing or has another type.
        NotImplementedError
            The dataset has another version of the format than 4.
        """
        check_header(dct, _UNKNOWN_KEY)
        partitions = PartitionTable.from_header(dct.get("partitions", {}), _UNKNOWN_KEY)
        return _build(
            dct,
            partitions,
            dct.get("partition_keys"),
            TableSchema(SINGLE_TABLE),
            explicit_partitions,
            owned=False,
        )

    @staticmethod
    def from_buffer(
        buf: bytes | str, format: str = "json", explicit_partitions: bool = True
    ) -> DatasetMetadata:
        """
        Read a dataset from the bytes of its header, without a store.

        Parameters
        ----------
        buf
            The header.
        format
            ``"json"`` or ``"msgpack"``.
        explicit_partitions
            Whether the partitions are those that the header lists.

        Returns
        -------
        DatasetMetadata
            Without schema.

        Raises
        ------
        CorruptDatasetError
            The header is truncated, or a part is missing or has another type.
        NotImplementedError
            The dataset has another version of the format than 4.
        """
        return DatasetMetadata.from_dict(_decode_header(buf, format), explicit_partitions)

    @staticmethod
    def load_from_buffer(
        buf: bytes | str, store: StoreInput | BlobStore, format: str = "json"
    ) -> DatasetMetadata:
        """
        Read a dataset from the bytes of its header; the schema comes from the store.

        Parameters
        ----------
        buf
            The header.
        store
            Store, factory or URL.
        format
            ``"json"`` or ``"msgpack"``.

        Returns
        -------
        DatasetMetadata

        Raises
        ------
        CorruptDatasetError
            The header is truncated, a part is missing or has another type, or refers to foreign files.
        KeyError
            The schema is missing.
        """
        return DatasetMetadata.load_from_dict(_decode_header(buf, format), store)

    @staticmethod
    def load_from_dict(
        dct: Mapping[str, Any],
        store: StoreInput | BlobStore,
        load_schema: bool = True,
        *,
        schema: SchemaWrapper | None = None,
        table_name: str = SINGLE_TABLE,
    ) -> DatasetMetadata:
        """
        Read a dataset from the content of its header; the schema comes from the store.

        Parameters
        ----------
        dct
            The decoded header.
        store
            Store, factory or URL.
        load_schema
            Read the schema.
        schema, table_name
            A schema that is known already, and its table.

        Returns
        -------
        DatasetMetadata

        Raises
        ------
        CorruptDatasetError
            A part of the header is missing or has another type, or refers to foreign files.
        KeyError
            The schema is missing.
        """
        check_header(dct, _UNKNOWN_KEY)
        partitions = None
        if "partitions" in dct:
            partitions = PartitionTable.from_header(dct["partitions"], _UNKNOWN_KEY)
            partitions.check_owned(dct[UUID_KEY])
        schemas = None if schema is None else TableSchema(table_name, schema)
        return _load(dct, partitions, open_blobs(store), load_schema, None, schemas)

    @staticmethod
    def load_from_store(
        uuid: str,
        store: StoreInput | BlobStore,
        load_schema: bool = True,
        load_all_indices: bool = False,
        *,
        table_name: str | None = None,
    ) -> DatasetMetadata:
        """
        Read a dataset.

        Parameters
        ----------
        uuid
            Uuid of the dataset.
        store
            Store, factory or URL.
        load_schema
            Read the schema.
        load_all_indices
            Read all indices.
        table_name
            Table of a dataset with several tables, which has no schema without it.

        Returns
        -------
        DatasetMetadata

        Raises
        ------
        DatasetNotFoundError
            There is no such dataset (a ``KeyError``).
        CorruptDatasetError
            The header is truncated, a part is missing or has another type, or refers to foreign files.
        NotImplementedError
            The dataset has another version of the format than 4.
        KeyError
            The schema or an index is missing.
        ValueError
            There is no such table.
        """
        blobs = open_blobs(store)
        header, partitions = parse_header_cached(read_header(uuid, blobs), uuid)
        _check_not_reserved(header, uuid)
        dataset = _load(header, partitions, blobs, load_schema, table_name)
        return dataset.load_all_indices(blobs) if load_all_indices else dataset

    @staticmethod
    def load_shared(uuid: str, blobs: BlobStore) -> DatasetMetadata:
        """Load a dataset as `load_from_store`: one object for all callers, which must not change it."""
        # Header and schema are read each time. While their bytes stay as they are, so does the object.
        stored = read_header(uuid, blobs)
        parsed = parse_header_shared(stored, uuid)
        tables = () if parsed.partitions is None else tuple(parsed.partitions.files)
        if len(tables) == 1:
            key = schema_key(uuid, tables[0])
            try:
                file = schema_file_from_bytes(blobs.get(key), key)
            except KeyError:
                pass  # read_schemas knows what to do
            else:
                shared = parsed.shared
                if shared is None or shared[0] is not file:
                    header, partitions = parse_header_cached(stored, uuid)
                    _check_not_reserved(header, uuid)
                    schemas = TableSchema(tables[0], file.of(schema_version_of(header.get("metadata"))))
                    parsed.shared = shared = file, _load(header, partitions, blobs, True, None, schemas)
                dataset: DatasetMetadata = shared[1]
                return dataset
        header, partitions = parse_header_cached(stored, uuid)
        _check_not_reserved(header, uuid)
        return _load(header, partitions, blobs, True, None)

    @staticmethod
    def load_with_token(
        uuid: str, blobs: BlobStore, *, table_name: str | None = None, load_schema: bool = True
    ) -> tuple[DatasetMetadata, str, Token, bytes]:
        """Load a dataset in order to change it: with key, version and content of its header."""
        stored = read_header(uuid, blobs, with_token=True)
        header, partitions = parse_header_cached(stored, uuid)
        _check_not_reserved(header, uuid)
        dataset = _load(header, partitions, blobs, load_schema, table_name)
        return dataset, stored.key, stored.token, stored.content

    @staticmethod
    def load_from_header(
        stored: HeaderBlob, uuid: str, blobs: BlobStore, *, load_schema: bool = False
    ) -> DatasetMetadata:
        """Load a dataset from a header that was read already."""
        return _load(*parse_header_cached(stored, uuid), blobs, load_schema, None)


def _check_not_reserved(header: Mapping[str, Any], uuid: str) -> None:
    """Raise DatasetNotFoundError for a header that only keeps aborted operations from committing."""
    record = parse_record(header)
    if record is not None and record.reserved:
        raise DatasetNotFoundError(uuid)


def _decode_header(buf: bytes | str, format: str) -> dict[str, Any]:
    metadata_key_from_uuid("any", format)  # raises for unknown formats
    return parse_header(buf.encode() if isinstance(buf, str) else buf, format, _UNKNOWN_KEY)


def _load(
    header: Mapping[str, Any],
    partitions: PartitionTable | None,
    blobs: BlobStore,
    load_schema: bool,
    table_name: str | None,
    schemas: TableSchema | None = None,
) -> DatasetMetadata:
    """Dataset of a checked header; files outside the dataset are refused."""
    uuid, partition_keys = header[UUID_KEY], header.get("partition_keys")
    explicit = partitions is not None
    if partitions is None:
        partitions, partition_keys = list_partitions(uuid, blobs, partition_keys)
    elif partition_keys is None:
        partition_keys = partition_keys_of(partitions.labels)
    if schemas is None and load_schema:
        try:
            schemas = read_schemas(
                uuid, blobs, partitions, table_name, schema_version_of(header.get("metadata"))
            )
        except KeyError:
            # the key is fixed: a late deletion of an earlier dataset of that name may have removed the file
            schemas = embedded_schemas(header, partitions, table_name)
            if schemas is None:
                raise
    schemas = schemas or TableSchema(table_name or SINGLE_TABLE)
    return _build(header, partitions, partition_keys, schemas, explicit, owned=True)


def _build(
    header: Mapping[str, Any],
    partitions: PartitionTable,
    partition_keys: list[str] | None,
    schemas: TableSchema,
    explicit_partitions: bool,
    *,
    owned: bool,
) -> DatasetMetadata:
    return DatasetMetadata(
        uuid=header[UUID_KEY],
        partitions=partitions,
        metadata=header.get("metadata"),
        indices=header_indices(header, schemas.schema or schemas.key_schema, owned=owned),
        metadata_version=header[METADATA_VERSION_KEY],
        explicit_partitions=explicit_partitions,
        partition_keys=partition_keys,
        schema=schemas.schema,
        table_name=schemas.table_name,
        extra=extra_fields(header),
        key_schema=schemas.key_schema,
    )
