"""DatasetMetadata, the parsed header of a dataset, what it shares with builders, and keys of its files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core import clock
from kartothek_cube.core.copying import CopyMixin
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
    tables_with_schema,
)
from kartothek_cube.core.dataset.pruning import indices_as_dataframe
from kartothek_cube.core.errors import DatasetNotFoundError, unknown_names
from kartothek_cube.core.expressions import PredicatesType
from kartothek_cube.core.header import check_header, packb, parse_header, parse_record, render_header
from kartothek_cube.core.index import (
    ExplicitSecondaryIndex,
    IndexBase,
    IndexColumns,
    PartitionIndex,
    inline_dict,
)
from kartothek_cube.core.naming import (
    DEFAULT_METADATA_VERSION,
    METADATA_VERSION_KEY,
    SINGLE_TABLE,
    UUID_KEY,
    check_metadata_version,
    check_uuid,
    header_keys,
    metadata_key_from_uuid,
    schema_key,
)
from kartothek_cube.core.partition import Partition, PartitionTable
from kartothek_cube.core.schema.evolution import ColumnMapping, Widths, column_mapping, parse_widths
from kartothek_cube.core.schema.file import schema_file_from_bytes, schema_version_of
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, check_owned, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.display import card, facts, table

if TYPE_CHECKING:
    from kartothek_cube.core.dataset.builder import DatasetMetadataBuilder


class DatasetMetadataBase(CopyMixin):
    """The state of a dataset; immutable.

    Parameters
    ----------
    uuid
        Name of the dataset.
    partitions
        Its partitions, as a table or as label to :class:`~kartothek_cube.core.partition.Partition`.
    metadata
        Metadata of users and cubes; ``creation_time`` is added if missing.
    indices
        Column to index.
    metadata_version
        Version of the format.
    explicit_partitions
        Whether the header lists the partitions; otherwise they are all data files in the store.
    partition_keys
        Columns whose values are in the labels, in order.
    schema
        Schema of the table.
    table_name
        Name of the table.
    extra
        Unknown fields of the header, written back unchanged.
    table_schemas
        Schemas by table where there is no ``schema``, as in a dataset with several tables.

    Attributes
    ----------
    uuid : str
    partition_table : PartitionTable
    metadata : dict
    indices : dict of str to IndexBase
    metadata_version : int
    explicit_partitions : bool
    partition_keys : list of str
    schema : SchemaWrapper or None
    table_name : str

    Raises
    ------
    ValueError
        The uuid is illegal, or the partitions have different tables.
    """

    def __init__(
        self,
        uuid: str,
        partitions: Mapping[str, Partition] | PartitionTable | None = None,
        metadata: Mapping[str, Any] | None = None,
        indices: Mapping[str, IndexBase] | None = None,
        metadata_version: int = DEFAULT_METADATA_VERSION,
        explicit_partitions: bool = True,
        partition_keys: Iterable[str] | None = None,
        schema: SchemaWrapper | None = None,
        table_name: str = SINGLE_TABLE,
        *,
        extra: Mapping[str, Any] | None = None,
        table_schemas: Mapping[str, SchemaWrapper] | None = None,
    ) -> None:
        check_uuid(uuid)
        self.uuid = uuid
        self.partition_table = (
            partitions
            if isinstance(partitions, PartitionTable)
            else PartitionTable.from_partitions(partitions or {})
        )
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.metadata.setdefault("creation_time", clock.datetime_utcnow().isoformat())
        self.indices: dict[str, IndexBase] = dict(indices or {})
        self.metadata_version = metadata_version
        self.explicit_partitions = explicit_partitions
        self.partition_keys: list[str] = list(partition_keys or [])
        self.schema = schema
        tables = list(self.partition_table.files)
        self.table_name = tables[0] if table_name == SINGLE_TABLE and len(tables) == 1 else table_name
        self.extra: dict[str, Any] = dict(extra or {})
        self.table_schemas: dict[str, SchemaWrapper] = dict(table_schemas or {})

    def copy(self, **kwargs: Any) -> Self:
        """Rebuild the object through its constructor, with some arguments changed.

        Parameters
        ----------
        **kwargs
            Arguments of the constructor.

        Returns
        -------
        DatasetMetadataBase
        """
        kwargs.setdefault("partitions", self.partition_table)
        return super().copy(**kwargs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DatasetMetadataBase):
            return NotImplemented
        return (
            self.uuid == other.uuid
            and self.partition_table == other.partition_table
            and self.metadata == other.metadata
            and self.indices == other.indices
            and self.explicit_partitions == other.explicit_partitions
            and self.partition_keys == other.partition_keys
            and self.schema == other.schema
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def partitions(self) -> dict[str, Partition]:
        """Label to partition, in the order of commit; built when first asked for."""
        return self.partition_table.to_partitions()

    @property
    def tables(self) -> list[str]:
        """Names of the tables, sorted; for a dataset without partitions that of the schema."""
        if self.partition_table.files:
            return sorted(self.partition_table.files)
        return [] if self.schema is None else [self.table_name]

    @property
    def table_meta(self) -> dict[str, SchemaWrapper]:
        """Table to schema, as kartothek 5.3 has it; deprecated, as new datasets have one: use ``schema``.

        Empty if schemas are not loaded.

        Examples
        --------
        >>> import warnings
        >>> import pyarrow as pa
        >>> dataset = DatasetMetadataBase("geodata", schema=SchemaWrapper(pa.schema([]), "geodata"))
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", DeprecationWarning)
        ...     list(dataset.table_meta)
        ['table']
        """
        warnings.warn("table_meta is deprecated: use schema", DeprecationWarning, stacklevel=2)
        return dict(self.table_schemas) if self.schema is None else {self.table_name: self.schema}

    @property
    def index_columns(self) -> set[str]:
        """Columns with an index, partition keys included."""
        return set(self.indices) | set(self.partition_keys)

    @property
    def secondary_indices(self) -> dict[str, ExplicitSecondaryIndex]:
        """The indices that have files of their own."""
        return {c: index for c, index in self.indices.items() if isinstance(index, ExplicitSecondaryIndex)}

    @property
    def primary_indices_loaded(self) -> bool:
        """Whether every partition key has an index object; False without partition keys."""
        return bool(self.partition_keys) and all(key in self.indices for key in self.partition_keys)

    @property
    def column_mapping(self) -> ColumnMapping | None:
        """How to read files that were written before a change of the schema; None if there was none."""
        return column_mapping(self.metadata, self.schema, self.uuid)

    @property
    def widths(self) -> Widths | None:
        """Bits of the columns whose numbers are narrower in all files than in the schema; None if unknown."""
        return parse_widths(self.extra)

    def key_columns(self) -> dict[str, pa.Array]:
        """Typed values of the partition keys by column; raises ValueError without schema."""
        schema = next(iter(self.table_schemas.values()), None) if self.schema is None else self.schema
        return self.partition_table.keys(self.partition_keys, schema)

    # storage

    @staticmethod
    def exists(uuid: str, store: StoreInput | BlobStore) -> bool:
        """Whether there is a dataset of that uuid.

        Parameters
        ----------
        uuid
            Uuid of the dataset.
        store
            Store, factory or URL.

        Returns
        -------
        bool

        Examples
        --------
        >>> DatasetMetadataBase.exists("sales", "hmemory://")
        False
        """
        blobs = open_blobs(store)
        return any(map(blobs.exists, header_keys(uuid)))

    @staticmethod
    def storage_keys(uuid: str, store: StoreInput | BlobStore) -> list[str]:
        """All keys in the store that belong to a dataset of that uuid.

        Parameters
        ----------
        uuid
            Uuid of the dataset.
        store
            Store, factory or URL.

        Returns
        -------
        list of str
            Sorted.
        """
        check_uuid(uuid)
        blobs = open_blobs(store)
        return sorted(blob.key for prefix in (f"{uuid}.", f"{uuid}/") for blob in blobs.list(prefix))

    def _document(self) -> HeaderDocument:
        has_partitions = self.explicit_partitions or len(self.partition_table) > 0
        return HeaderDocument(self, self.partition_table if has_partitions else None)

    def to_dict(self) -> dict[str, Any]:
        """The content of the header.

        Returns
        -------
        dict
            Loaded indices are inline, others are storage keys.
        """
        return self._document().to_dict()

    def to_json(self) -> bytes:
        """The header as JSON.

        Returns
        -------
        bytes

        Raises
        ------
        NotImplementedError
            The version of the format is not 4.
        """
        return self._document().to_json()

    def to_msgpack(self) -> bytes:
        """The header as compressed msgpack.

        Returns
        -------
        bytes

        Raises
        ------
        NotImplementedError
            The version of the format is not 4.
        """
        return self._document().to_msgpack()

    # indices

    def load_partition_indices(self) -> Self:
        """Build an index for each partition key from the labels, without store access.

        Returns
        -------
        DatasetMetadataBase
            ``self`` if they are loaded, or there are no partition keys.

        Raises
        ------
        ValueError
            The schema is not loaded, or does not know a partition key.
        CorruptDatasetError
            A label does not fit the partition keys.
        """
        if not self.partition_keys or self.primary_indices_loaded:
            return self
        labels = self.partition_table.labels
        rows = np.arange(len(labels))
        partition_indices = {
            column: PartitionIndex(column, IndexColumns.from_pairs(values, labels, rows), values.type)
            for column, values in self.key_columns().items()
        }
        return self.copy(indices={**self.indices, **partition_indices})

    def load_index(self, column: str, store: StoreInput | BlobStore) -> Self:
        """Load the index of one column.

        Parameters
        ----------
        column
            The indexed column.
        store
            Store, factory or URL.

        Returns
        -------
        DatasetMetadataBase
            ``self`` if the index is loaded already.

        Raises
        ------
        KeyError
            The column has no index, or the file is missing.
        CorruptDatasetError
            The file is not that of an index on this column.
        """
        if column in self.partition_keys:
            return self.load_partition_indices()
        if column not in self.indices:
            raise KeyError(
                f"Dataset {self.uuid!r}: {unknown_names('index column', [column], self.index_columns)}"
            )
        return self._load_indices([column], store)

    def load_all_indices(self, store: StoreInput | BlobStore) -> Self:
        """Load all indices, those of the partition keys included.

        Parameters
        ----------
        store
            Store, factory or URL.

        Returns
        -------
        DatasetMetadataBase

        Raises
        ------
        KeyError
            A file is missing.
        CorruptDatasetError
            A file is not that of an index on its column, or a label does not fit the partition keys.
        """
        return self._load_indices(self.secondary_indices, store).load_partition_indices()

    def load_indices(self, columns: Iterable[str], store: StoreInput | BlobStore) -> Self:
        """Load secondary indices of some columns; partition keys and columns without index are ignored."""
        return self._load_indices(sorted(set(columns) - set(self.partition_keys)), store)

    def _load_indices(self, columns: Iterable[str], store: StoreInput | BlobStore) -> Self:
        explicit: dict[str, ExplicitSecondaryIndex] = {}
        for column in columns:
            index = self.indices.get(column)
            if isinstance(index, ExplicitSecondaryIndex) and index.columns_data is None:
                explicit[column] = index
        if not explicit:
            return self
        blobs = open_blobs(store)
        # not `copy`: its checks and conversions of the constructor take longer than reading an index
        dataset = object.__new__(type(self))
        dataset.__dict__.update(self.__dict__)
        dataset.indices = {**self.indices, **{c: self._load(index, blobs) for c, index in explicit.items()}}
        return dataset

    def _load(self, index: ExplicitSecondaryIndex, blobs: BlobStore) -> ExplicitSecondaryIndex:
        check_owned(index.index_storage_key, self.uuid)
        loaded = index.load(blobs)
        if self.explicit_partitions or loaded.columns_data is None:
            return loaded
        # some partitions of the index may have been deleted since
        kept = loaded.columns_data.keep_labels(self.partition_table.labels)
        return loaded.copy(index_dct=kept, index_storage_key=loaded.index_storage_key)

    def query(self, indices: Iterable[IndexBase] | None = None, **kwargs: Any) -> list[str]:
        """Partitions with the given values, one value per column.

        Parameters
        ----------
        indices
            Indices to use beside (and instead of) those of the dataset.
        **kwargs
            Column to value; values are cast leniently. Columns without a loaded index are ignored.

        Returns
        -------
        list of str
            In the order of commit.
        """
        available = {**self.indices, **{index.column: index for index in indices or ()}}
        mask = np.ones(len(self.partition_table), dtype=bool)
        for column, value in kwargs.items():
            index = available.get(column)
            if index is not None and index.loaded:
                mask &= index.partitions_with(value, self.partition_table)
        labels: list[str] = self.partition_table.labels.filter(pa.array(mask)).to_pylist()
        return labels

    def get_indices_as_dataframe(
        self,
        columns: Iterable[str] | None = None,
        date_as_object: bool = True,
        predicates: PredicatesType = None,
    ) -> pd.DataFrame:
        """Index data as a frame.

        Parameters
        ----------
        columns
            Indexed columns; None: all, sorted; ``[]``: none, one row per partition.
        date_as_object
            Dates as :class:`datetime.date` instead of ``datetime64[ns]``.
        predicates
            Keep only rows that can match; literals on columns without a loaded index are ignored.

        Returns
        -------
        pandas.DataFrame
            One row per partition and combination of values; the index, ``partition``, holds the labels.

        Raises
        ------
        ValueError
            A column has no index.
        RuntimeError
            A secondary index is not loaded.
        """
        if isinstance(columns, str):
            raise TypeError(f"columns has to be a list of columns, not {columns!r}")
        names = None if columns is None else list(dict.fromkeys(columns))
        with_keys = names is None or not set(names).isdisjoint(self.partition_keys)
        dataset = self.load_partition_indices() if with_keys else self
        return indices_as_dataframe(dataset, names, date_as_object, predicates)


@dataclass(frozen=True)
class HeaderDocument:
    """Header of a dataset; None for `partitions` that it does not list."""

    dataset: DatasetMetadataBase | DatasetMetadataBuilder
    partitions: PartitionTable | None

    def to_dict(self) -> dict[str, Any]:
        """The header as Python objects; loaded indices with their typed values."""
        return self._with_partitions(IndexBase.to_dict)

    def to_json(self) -> bytes:
        """The header as JSON; raises NotImplementedError unless its version is 4."""
        check_metadata_version(self.dataset.metadata_version)
        partitions = None if self.partitions is None else self.partitions.to_json()
        return render_header(self._fields(_inline), partitions).encode("ascii")

    def to_msgpack(self) -> bytes:
        """The header as compressed msgpack; raises NotImplementedError unless its version is 4."""
        check_metadata_version(self.dataset.metadata_version)
        return packb(self._with_partitions(_inline))

    def _with_partitions(self, inline: Callable[[IndexBase], dict[Any, list[str]]]) -> dict[str, Any]:
        parts = self._fields(inline)
        if self.partitions is not None:
            parts["partitions"] = self.partitions.to_header()
        return parts

    def _fields(self, inline: Callable[[IndexBase], dict[Any, list[str]]]) -> dict[str, Any]:
        """All fields in order; ``partitions`` is a placeholder."""
        dataset = self.dataset
        parts: dict[str, Any] = {METADATA_VERSION_KEY: dataset.metadata_version, UUID_KEY: dataset.uuid}
        if dataset.indices:
            parts["indices"] = {c: _render_index(index, inline) for c, index in dataset.indices.items()}
        if dataset.metadata:
            parts["metadata"] = dict(dataset.metadata)
        if self.partitions is not None:
            parts["partitions"] = {}
        if dataset.partition_keys is not None:
            parts["partition_keys"] = list(dataset.partition_keys)
        return {**parts, **dataset.extra}  # unknown fields, written last


def _render_index(
    index: IndexBase | str, inline: Callable[[IndexBase], dict[Any, list[str]]]
) -> str | dict[Any, list[str]]:
    if isinstance(index, str):
        return index
    key: str | None = getattr(index, "index_storage_key", None)
    return key if key is not None and not index.loaded else inline(index)


def _inline(index: IndexBase) -> dict[Any, list[str]]:
    return {} if index.columns_data is None else inline_dict(index.columns_data)


#: key of the header in messages, if it is unknown
_UNKNOWN_KEY = "header"


class DatasetMetadata(DatasetMetadataBase):
    """A dataset: partitions, metadata, indices, schema.

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
        """Read a dataset from the content of its header, without a store.

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
        """Read a dataset from the bytes of its header, without a store.

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
        """Read a dataset from the bytes of its header; the schema comes from the store.

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
        """Read a dataset from the content of its header; the schema comes from the store.

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
        """Read a dataset.

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
        dataset = _load_dataset(read_header(uuid, blobs), uuid, blobs, load_schema, table_name)
        return dataset.load_all_indices(blobs) if load_all_indices else dataset

    @staticmethod
    def load_shared(uuid: str, blobs: BlobStore) -> DatasetMetadata:
        """Load a dataset as `load_from_store`: one object for all callers, which must not change it."""
        return DatasetMetadata.shared_from_header(read_header(uuid, blobs), uuid, blobs)

    @staticmethod
    def shared_from_header(stored: HeaderBlob, uuid: str, blobs: BlobStore) -> DatasetMetadata:
        """The same, from a header that was read already."""
        # Header and schema are read each time. While their bytes stay as they are, so does the object.
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
                    version = schema_version_of(parsed.header.get("metadata"))
                    schemas = TableSchema(tables[0], file.of(version))
                    if parsed.partitions is not None and not file.has(version):
                        # as in `_load`
                        schemas = embedded_schemas(parsed.header, parsed.partitions, tables[0]) or schemas
                    parsed.shared = shared = file, _load_dataset(stored, uuid, blobs, schemas=schemas)
                dataset: DatasetMetadata = shared[1]
                return dataset
        return _load_dataset(stored, uuid, blobs)

    @staticmethod
    def load_from_header(
        stored: HeaderBlob, uuid: str, blobs: BlobStore, *, load_schema: bool = False
    ) -> DatasetMetadata:
        """Load a dataset from a header that was read already."""
        return _load(*parse_header_cached(stored, uuid), blobs, load_schema, None)


def _load_dataset(
    stored: HeaderBlob,
    uuid: str,
    blobs: BlobStore,
    load_schema: bool = True,
    table_name: str | None = None,
    schemas: TableSchema | None = None,
) -> DatasetMetadata:
    """Dataset of a stored header; raises DatasetNotFoundError if that is reserved."""
    header, partitions = parse_header_cached(stored, uuid)
    record = parse_record(header)
    # it only keeps aborted operations from committing
    if record is not None and record.reserved:
        raise DatasetNotFoundError(uuid)
    return _load(header, partitions, blobs, load_schema, table_name, schemas)


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
        version = schema_version_of(header.get("metadata"))
        try:
            schemas = read_schemas(uuid, blobs, partitions, table_name, version, exact=True)
        except KeyError:
            # The key is fixed: a late deletion of an earlier dataset of that name may have removed the file,
            # or several other commits have replaced it since the header was read.
            schemas = embedded_schemas(header, partitions, table_name)
            if schemas is None:
                schemas = read_schemas(uuid, blobs, partitions, table_name, version)
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
        indices=header_indices(header, schemas.key_schema, owned=owned),
        metadata_version=header[METADATA_VERSION_KEY],
        explicit_partitions=explicit_partitions,
        partition_keys=partition_keys,
        schema=schemas.schema,
        table_name=schemas.table_name,
        extra=extra_fields(header),
        table_schemas=schemas.table_schemas,
    )


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


class DatasetsById(dict[str, DatasetMetadata]):
    """Dataset id to metadata, as a table in notebooks."""

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                dataset.uuid,
                len(dataset.partition_table),
                ", ".join(dataset.partition_keys or ()) or "none",
                ", ".join(dataset.schema.names) if dataset.schema is not None else "",
            )
            for name, dataset in self.items()
        ]
        header = ["dataset", "uuid", "files", "partition keys", "columns"]
        return card("", table("", header, rows)) if rows else card("No datasets")
