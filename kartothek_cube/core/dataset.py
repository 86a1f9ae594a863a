"""Datasets: ``DatasetMetadata``, the parsed header, its builder, and the rendering of both."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Self, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import arguments, clock, dataset_files, errors, expressions, header, naming, pruning
from kartothek_cube.core.dataset_files import HeaderBlob, TableSchema
from kartothek_cube.core.evolution import WIDTHS_KEY, ColumnMapping, Widths, column_mapping, parse_widths
from kartothek_cube.core.index import (
    PARTITION,
    ExplicitSecondaryIndex,
    IndexBase,
    IndexColumns,
    PartitionIndex,
)
from kartothek_cube.core.pandas_conversion import to_pandas
from kartothek_cube.core.partition import Partition, PartitionTable
from kartothek_cube.core.schema import SchemaWrapper
from kartothek_cube.core.store import BlobStore, StoreInput, check_owned, open_blobs
from kartothek_cube.display import card, facts, table

__all__ = ("DatasetMetadata", "DatasetMetadataBase")


class _Rendered(arguments.CopyMixin):
    """The content of a header, rendered."""

    uuid: str
    metadata: dict[str, Any]
    indices: Mapping[str, IndexBase | str]
    metadata_version: int
    partition_keys: list[str] | None
    extra: dict[str, Any]

    def _listed_partitions(self) -> PartitionTable | None:
        """The partitions that the header lists; None if it lists none."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The content of the header: loaded indices are inline, others are storage keys."""
        return self._render(IndexBase.to_dict)

    def _render_msgpack(self) -> bytes:
        naming.check_metadata_version(self.metadata_version)
        return header.packb(self._render(IndexBase._to_inline))

    def _render_json(self) -> bytes:
        naming.check_metadata_version(self.metadata_version)
        fields = self._render(IndexBase._to_inline, PartitionTable.to_json)
        return header.render_header(fields).encode("ascii")

    def parsed_fields(self) -> dict[str, Any]:
        """The content of a header in JSON as it is parsed, without partitions."""
        fields = self._render(IndexBase._to_inline, len)
        fields.pop("partitions", None)
        parsed: dict[str, Any] = json.loads(json.dumps(fields))
        return parsed

    def _render(
        self, inline: _Inline, render_partitions: Callable[[PartitionTable], Any] = PartitionTable.to_header
    ) -> dict[str, Any]:
        """All fields in order; unknown ones are last."""
        parts: dict[str, Any] = {naming.METADATA_VERSION_KEY: self.metadata_version}
        parts[naming.UUID_KEY] = self.uuid
        if self.indices:
            parts["indices"] = {name: _render_index(index, inline) for name, index in self.indices.items()}
        if self.metadata:
            parts["metadata"] = dict(self.metadata)
        listed = self._listed_partitions()
        if listed is not None:
            parts["partitions"] = render_partitions(listed)
        if self.partition_keys is not None:
            parts["partition_keys"] = list(self.partition_keys)
        return {**parts, **self.extra}


_Inline: TypeAlias = Callable[[IndexBase], dict[Any, list[str]]]


def _render_index(index: IndexBase | str, inline: _Inline) -> str | dict[Any, list[str]]:
    if isinstance(index, str):
        return index
    key: str | None = getattr(index, "index_storage_key", None)
    return key if key is not None and not index.loaded else inline(index)


#: fields that equal datasets have in common
_CONTENT = attrgetter(
    "uuid", "partition_table", "metadata", "indices", "explicit_partitions", "partition_keys", "schema"
)


class DatasetMetadataBase(_Rendered):
    """The state of a dataset; immutable.

    The attributes have the names of the parameters; ``partition_table`` has the partitions as columns.

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

    Raises
    ------
    ValueError
        The uuid is illegal, or the partitions have different tables.
    """

    #: an entry per partition, by column, once they are loaded; a copy has none
    statistics: Mapping[str, pa.StructArray] = {}

    def __init__(
        self,
        uuid: str,
        partitions: Mapping[str, Partition] | PartitionTable | None = None,
        metadata: Mapping[str, Any] | None = None,
        indices: Mapping[str, IndexBase] | None = None,
        metadata_version: int = naming.DEFAULT_METADATA_VERSION,
        explicit_partitions: bool = True,
        partition_keys: Iterable[str] | None = None,
        schema: SchemaWrapper | None = None,
        table_name: str = naming.SINGLE_TABLE,
        *,
        extra: Mapping[str, Any] | None = None,
        table_schemas: Mapping[str, SchemaWrapper] | None = None,
    ) -> None:
        naming.check_uuid(uuid)
        self.uuid = uuid
        if not isinstance(partitions, PartitionTable):
            partitions = PartitionTable.from_partitions(partitions or {})
        self.partition_table = partitions
        self.metadata: dict[str, Any] = dict(metadata or {})
        if "creation_time" not in self.metadata:
            self.metadata["creation_time"] = clock.datetime_utcnow().isoformat()
        self.indices: dict[str, IndexBase] = dict(indices or {})
        self.metadata_version = metadata_version
        self.explicit_partitions = explicit_partitions
        self.partition_keys: list[str] = list(partition_keys or [])
        self.schema = schema
        tables = list(self.partition_table.files)
        self.table_name = tables[0] if table_name == naming.SINGLE_TABLE and len(tables) == 1 else table_name
        self.extra: dict[str, Any] = dict(extra or {})
        self.table_schemas: dict[str, SchemaWrapper] = dict(table_schemas or {})

    def copy(self, **kwargs: Any) -> Self:
        """Rebuild the object through its constructor, with some of its arguments changed."""
        kwargs.setdefault("partitions", self.partition_table)
        return super().copy(**kwargs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DatasetMetadataBase):
            return NotImplemented
        return bool(_CONTENT(self) == _CONTENT(other))

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
        """Mapping of files written before a change of the schema to its columns; None if there was none."""
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
        """Whether there is a dataset of that uuid in a store, factory or URL.

        Examples
        --------
        >>> DatasetMetadataBase.exists("sales", "hmemory://")
        False
        """
        return any(map(open_blobs(store).exists, naming.header_keys(uuid)))

    @staticmethod
    def storage_keys(uuid: str, store: StoreInput | BlobStore) -> list[str]:
        """All keys in a store, factory or URL that belong to a dataset of that uuid, sorted."""
        naming.check_uuid(uuid)
        blobs = open_blobs(store)
        return sorted(blob.key for prefix in (f"{uuid}.", f"{uuid}/") for blob in blobs.list(prefix))

    def _listed_partitions(self) -> PartitionTable | None:
        return self.partition_table if self.explicit_partitions or len(self.partition_table) else None

    def to_json(self) -> bytes:
        """The header as JSON; raises NotImplementedError unless the version of the format is 4."""
        return self._render_json()

    def to_msgpack(self) -> bytes:
        """The header as compressed msgpack; raises NotImplementedError as :meth:`to_json`."""
        return self._render_msgpack()

    # indices

    def load_partition_indices(self) -> Self:
        """Build an index for each partition key from the labels, without store access.

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
        """Load the index of one column from a store, factory or URL; ``self`` if it is loaded already.

        Raises
        ------
        KeyError
            The column has no index, or the file is missing.
        CorruptDatasetError
            The file is not that of an index on this column.
        """
        if column in self.partition_keys:
            return self.load_partition_indices()
        where = f"Dataset {self.uuid!r}: "
        errors.check_names(where, "index column", [column], self.index_columns, error=KeyError)
        return self._load_indices([column], store)

    def load_all_indices(self, store: StoreInput | BlobStore) -> Self:
        """Load all indices, those of the partition keys included, from a store, factory or URL.

        Raises
        ------
        KeyError
            A file is missing.
        CorruptDatasetError
            A file is not that of an index on its column, or a label does not fit the partition keys.
        """
        return self._load_indices(self.secondary_indices, store).load_partition_indices()

    def load_indices(
        self,
        columns: Iterable[str],
        store: StoreInput | BlobStore,
        node: expressions.Node | None = None,
    ) -> Self:
        """Load secondary indices, or statistics, of some columns; others and partition keys are ignored.

        With a condition, indices may hold only the entries that its literals can match.
        """
        return self._load_indices(sorted(set(columns) - set(self.partition_keys)), store, node)

    def _load_indices(
        self, columns: Iterable[str], store: StoreInput | BlobStore, node: expressions.Node | None = None
    ) -> Self:
        found = [(column, self.indices.get(column)) for column in columns]
        explicit = {c: i for c, i in found if isinstance(i, ExplicitSecondaryIndex) and not i.loaded}
        others = {column for column, index in found if index is None}
        has_statistics = pruning.STATISTICS in self.extra and not self.statistics
        has_statistics = has_statistics and not others.isdisjoint(pruning.statistics_columns(self.metadata))
        if not (explicit or has_statistics):
            return self
        blobs = open_blobs(store)
        # not the method `copy`: the checks of the constructor take longer than reading an index
        dataset = copy.copy(self)
        dataset.indices = {**self.indices, **{c: self._load(i, blobs, node) for c, i in explicit.items()}}
        if has_statistics and (table := self.load_statistics(blobs)) is not None:
            dataset.statistics = {name: table[name].combine_chunks() for name in table.column_names[1:]}
        return dataset

    def load_statistics(self, blobs: BlobStore) -> pa.Table | None:
        """Column statistics, a row per partition; None if there are none."""
        key = pruning.statistics_file(self.uuid, self.extra)
        table = None if key is None or self.schema is None else pruning.load_statistics(blobs, key)
        if table is None or self.schema is None:
            return None
        columns = pruning.statistics_columns(self.metadata)
        selected = pruning.select_statistics(table, columns, self.schema.internal())
        return pruning.align_statistics(selected, self.partition_table.labels)

    def _load(
        self, index: ExplicitSecondaryIndex, blobs: BlobStore, node: expressions.Node | None
    ) -> ExplicitSecondaryIndex:
        check_owned(index.index_storage_key, self.uuid)
        loaded = pruning.load_index(index, blobs, node)
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
        return list(self.partition_table.labels.filter(pa.array(mask)).to_pylist())

    def get_indices_as_dataframe(
        self,
        columns: Iterable[str] | None = None,
        date_as_object: bool = True,
        predicates: expressions.PredicatesType = None,
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
        rows, values = pruning.index_rows(dataset, names, expressions.to_tree(predicates))
        labels = dataset.partition_table.labels.take(pa.array(rows))
        # a partition key may have the name of the index
        table = pa.table([labels, *values.values()], [str(number) for number in range(len(values) + 1)])
        frame = to_pandas(table, dates_as_object=date_as_object).set_index("0").rename_axis(PARTITION)
        return frame.set_axis(list(values), axis="columns")


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
        roles = dict.fromkeys(indexed, "indexed") | dict.fromkeys(keys, "partition key")
        columns = [(field.name, str(field.type), roles.get(field.name, "")) for field in self.schema or ()]
        shown = {
            "files": len(self.partition_table),
            "partition keys": keys,
            "secondary indices": indexed,
            "first files": self.partition_table.labels[:5].to_pylist(),
        }
        metadata = [(name, str(value)) for name, value in sorted(self.metadata.items())]
        return card(
            f"Dataset {self.uuid}",
            facts(shown),
            table("Columns", ["column", "type", ""], columns),
            f"<details><summary>Metadata ({len(metadata)})</summary>"
            f"{table('', ['key', 'value'], metadata)}</details>",
        )

    @staticmethod
    def from_dict(dct: Mapping[str, Any], explicit_partitions: bool = True) -> DatasetMetadata:
        """Read a dataset from the decoded content of its header, without a store and without schema.

        Raises
        ------
        CorruptDatasetError
            A part of the header is missing or has another type.
        NotImplementedError
            The dataset has another version of the format than 4.
        """
        header.check_header(dct, _UNKNOWN_KEY)
        partitions = PartitionTable.from_header(dct.get("partitions", {}), _UNKNOWN_KEY)
        schemas, keys = TableSchema(naming.SINGLE_TABLE), dct.get("partition_keys")
        return _build(dct, partitions, keys, schemas, explicit_partitions, owned=False)

    @staticmethod
    def from_buffer(
        buf: bytes | str, format: str = "json", explicit_partitions: bool = True
    ) -> DatasetMetadata:
        """Read a dataset from the bytes of its header, ``"json"`` or ``"msgpack"``, as :meth:`from_dict`."""
        return DatasetMetadata.from_dict(_decode_header(buf, format), explicit_partitions)

    @staticmethod
    def load_from_buffer(
        buf: bytes | str, store: StoreInput | BlobStore, format: str = "json"
    ) -> DatasetMetadata:
        """Read a dataset from the bytes of its header, as :meth:`load_from_dict`."""
        return DatasetMetadata.load_from_dict(_decode_header(buf, format), store)

    @staticmethod
    def load_from_dict(
        dct: Mapping[str, Any],
        store: StoreInput | BlobStore,
        load_schema: bool = True,
        *,
        schema: SchemaWrapper | None = None,
        table_name: str = naming.SINGLE_TABLE,
    ) -> DatasetMetadata:
        """Read a dataset from the decoded content of its header; a schema that it lacks comes from the store.

        A schema that is known already may be given, and its table.

        Raises
        ------
        CorruptDatasetError
            A part of the header is missing or has another type, or refers to foreign files.
        KeyError
            The schema is missing.
        """
        header.check_header(dct, _UNKNOWN_KEY)
        partitions = None
        if "partitions" in dct:
            partitions = PartitionTable.from_header(dct["partitions"], _UNKNOWN_KEY)
            partitions.check_owned(dct[naming.UUID_KEY])
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
        dataset = _load_dataset(dataset_files.read_header(uuid, blobs), uuid, blobs, load_schema, table_name)
        return dataset.load_all_indices(blobs) if load_all_indices else dataset

    @staticmethod
    def load_shared(uuid: str, blobs: BlobStore) -> DatasetMetadata:
        """Load a dataset as `load_from_store`: one object for all callers, which must not change it."""
        return DatasetMetadata.shared_from_header(dataset_files.read_header(uuid, blobs), uuid, blobs)

    @staticmethod
    def shared_from_header(stored: HeaderBlob, uuid: str, blobs: BlobStore) -> DatasetMetadata:
        """The same, from a header that was read already."""
        # The header is read each time. While it and its schema stay as they are, so does the object.
        parsed = dataset_files.parse_header_shared(stored, uuid)
        partitions = parsed.partitions
        if partitions is None or len(partitions.files) != 1:
            return _load_dataset(stored, uuid, blobs)
        (name,) = partitions.files
        schema = dataset_files.read_schema(parsed.header, name, blobs)
        shared = parsed.shared
        if shared is None or shared.schema is not schema:
            shared = _load_dataset(stored, uuid, blobs, schemas=TableSchema(name, schema))
            parsed.shared = shared
        return shared

    @staticmethod
    def load_from_header(
        stored: HeaderBlob, uuid: str, blobs: BlobStore, *, load_schema: bool = False
    ) -> DatasetMetadata:
        """Load a dataset from a header that was read already."""
        return _load(*dataset_files.parse_header_cached(stored, uuid), blobs, load_schema, None)


def _load_dataset(
    stored: HeaderBlob,
    uuid: str,
    blobs: BlobStore,
    load_schema: bool = True,
    table_name: str | None = None,
    schemas: TableSchema | None = None,
) -> DatasetMetadata:
    """Dataset of a stored header; raises DatasetNotFoundError if that is reserved."""
    fields, partitions = dataset_files.parse_header_cached(stored, uuid)
    record = header.parse_record(fields)
    # it only keeps aborted operations from committing
    if record is not None and record.reserved:
        raise errors.DatasetNotFoundError(uuid)
    return _load(fields, partitions, blobs, load_schema, table_name, schemas)


def _decode_header(buf: bytes | str, format: str) -> dict[str, Any]:
    naming.metadata_key_from_uuid("any", format)  # raises for unknown formats
    return header.parse_header(buf.encode() if isinstance(buf, str) else buf, format, _UNKNOWN_KEY)


def _load(
    fields: Mapping[str, Any],
    partitions: PartitionTable | None,
    blobs: BlobStore,
    load_schema: bool,
    table_name: str | None,
    schemas: TableSchema | None = None,
) -> DatasetMetadata:
    """Dataset of a checked header; files outside the dataset are refused."""
    uuid, partition_keys = fields[naming.UUID_KEY], fields.get("partition_keys")
    explicit = partitions is not None
    if partitions is None:
        partitions, partition_keys = dataset_files.list_partitions(uuid, blobs, partition_keys)
    elif partition_keys is None:
        partition_keys = dataset_files.partition_keys_of(partitions.labels)
    if schemas is None and load_schema:
        schemas = dataset_files.read_schemas(fields, partitions, blobs, table_name)
    schemas = schemas or TableSchema(table_name or naming.SINGLE_TABLE)
    return _build(fields, partitions, partition_keys, schemas, explicit, owned=True)


def _build(
    fields: Mapping[str, Any],
    partitions: PartitionTable,
    partition_keys: list[str] | None,
    schemas: TableSchema,
    explicit_partitions: bool,
    *,
    owned: bool,
) -> DatasetMetadata:
    return DatasetMetadata(
        uuid=fields[naming.UUID_KEY],
        partitions=partitions,
        metadata=fields.get("metadata"),
        indices=dataset_files.header_indices(fields, schemas.key_schema, owned=owned),
        metadata_version=fields[naming.METADATA_VERSION_KEY],
        explicit_partitions=explicit_partitions,
        partition_keys=partition_keys,
        schema=schemas.schema,
        table_name=schemas.table_name,
        extra={part: value for part, value in fields.items() if part not in header.HEADER_KEYS},
        table_schemas=schemas.table_schemas,
    )


class DatasetsById(dict[str, DatasetMetadata]):
    """Dataset id to metadata, as a table in notebooks."""

    def _repr_html_(self) -> str:
        rows = []
        for name, dataset in self.items():
            columns = "" if dataset.schema is None else ", ".join(dataset.schema.names)
            keys = ", ".join(dataset.partition_keys) or "none"
            rows.append((name, dataset.uuid, len(dataset.partition_table), keys, columns))
        heads = ["dataset", "uuid", "files", "partition keys", "columns"]
        return card("", table("", heads, rows)) if rows else card("No datasets")


class DatasetMetadataBuilder(_Rendered):
    """A header under construction.

    The attributes have the names of the parameters; ``metadata``, ``partitions`` and ``indices`` (column to
    index, or to the storage key of one) may be changed.

    Parameters
    ----------
    uuid
        Name of the dataset.
    metadata_version
        Version of the format.
    explicit_partitions
        Whether the header lists the partitions.
    partition_keys
        Columns whose values are in the labels, in order.
    schema
        Schema of the table.

    Raises
    ------
    ValueError
        The uuid is illegal.
    NotImplementedError
        The version is not 4.

    Examples
    --------
    >>> builder = DatasetMetadataBuilder("geodata", partition_keys=["COUNTRY_CODE"])
    >>> builder.add_metadata("source", "weather service")
    >>> builder.add_external_index("CITY")
    'geodata.CITY.by-dataset-index.parquet'
    >>> builder.to_json()[0]
    'geodata.by-dataset-metadata.json'
    """

    def __init__(
        self,
        uuid: str,
        metadata_version: int = naming.DEFAULT_METADATA_VERSION,
        explicit_partitions: bool = True,
        partition_keys: Iterable[str] | None = None,
        schema: SchemaWrapper | None = None,
    ) -> None:
        naming.check_metadata_version(metadata_version)
        naming.check_uuid(uuid)
        self.uuid = uuid
        self.metadata: dict[str, Any] = {"creation_time": clock.datetime_utcnow().isoformat()}
        self.indices: dict[str, IndexBase | str] = {}
        self.metadata_version = metadata_version
        self.partition_keys = None if partition_keys is None else list(partition_keys)
        self.schema = schema
        self.explicit_partitions = explicit_partitions
        self.extra: dict[str, Any] = {}
        self._table: PartitionTable | None = None
        self._partitions: dict[str, Partition] = {}

    @property
    def partitions(self) -> dict[str, Partition]:
        """Label to partition, in the order of commit; may be changed."""
        # files may be added, or replaced, of which these records know nothing
        for key in (WIDTHS_KEY, pruning.STATISTICS):
            self.extra.pop(key, None)
        if self._table is not None:
            self._partitions = copy.deepcopy(self._table.to_partitions())
            self._table = None
        return self._partitions

    def _partition_table(self) -> PartitionTable:
        return PartitionTable.from_partitions(self._partitions) if self._table is None else self._table

    @staticmethod
    def from_dataset(dataset: DatasetMetadataBase) -> DatasetMetadataBuilder:
        """Make a builder from a dataset, which is not changed."""
        form = dataset.metadata_version, dataset.explicit_partitions
        builder = DatasetMetadataBuilder(dataset.uuid, *form, dataset.partition_keys, dataset.schema)
        builder.metadata = copy.deepcopy(dataset.metadata)
        builder.indices = dict(dataset.indices)
        builder.extra = copy.deepcopy(dataset.extra)
        builder._table = dataset.partition_table
        return builder

    def add_partition(self, name: str, partition: Partition) -> None:
        """Add a partition, or replace the one of that label."""
        self.partitions[name] = partition

    def add_metadata(self, key: str, value: Any) -> None:
        """Set a metadata entry to a value that JSON can represent."""
        self.metadata[key] = value

    def add_embedded_index(self, column: str, index: IndexBase) -> None:
        """Add an index whose data is part of the header; RuntimeError if it is on another column."""
        if column != index.column:
            raise RuntimeError(f"Cannot add an index on {index.column!r} as that of column {column!r}")
        self.indices[column] = index

    def add_external_index(self, column: str, filename: str | None = None) -> str:
        """Add an index that has a file of its own; returns its storage key.

        By default this is the key of early versions of the format.
        """
        key = naming.legacy_index_key(self.uuid, column) if filename is None else filename
        self.indices[column] = key
        return key

    def modify_uuid(self, target_uuid: str) -> Self:
        """Rename the dataset, with the storage keys that its copy has; returns this object."""
        naming.check_uuid(target_uuid)
        table = self._partition_table()
        files = {name: _rename_keys(keys, self.uuid, target_uuid) for name, keys in table.files.items()}
        self._table = PartitionTable(table.labels, files)
        self.indices = {c: _rename_index(index, self.uuid, target_uuid) for c, index in self.indices.items()}
        self.uuid = target_uuid
        return self

    def to_dataset(self) -> DatasetMetadata:
        """The dataset as it would be loaded."""
        indices = {
            c: ExplicitSecondaryIndex(c, index_storage_key=index) if isinstance(index, str) else index
            for c, index in self.indices.items()
        }
        return DatasetMetadata(
            uuid=self.uuid,
            partitions=self._partition_table(),
            metadata=self.metadata,
            indices=indices,
            metadata_version=self.metadata_version,
            explicit_partitions=self.explicit_partitions,
            partition_keys=self.partition_keys,
            schema=self.schema,
            extra=self.extra,
        )

    def to_json(self) -> tuple[str, bytes]:
        """The storage key of the header, and its content as JSON."""
        return naming.metadata_key_from_uuid(self.uuid, "json"), self._render_json()

    def to_msgpack(self) -> tuple[str, bytes]:
        """The storage key of the header, and its content as compressed msgpack."""
        return naming.metadata_key_from_uuid(self.uuid, "msgpack"), self._render_msgpack()

    def _listed_partitions(self) -> PartitionTable | None:
        return self._partition_table() if self.explicit_partitions else None


def _rename_keys(keys: pa.StringArray, old: str, new: str) -> pa.StringArray:
    """Replace the uuid in storage keys; other keys stay."""
    renamed = pc.binary_join_element_wise(new, pc.utf8_slice_codeunits(keys, start=len(old)), "")
    return pc.if_else(pc.starts_with(keys, f"{old}/"), renamed, keys)


def _rename_index(index: IndexBase | str, old: str, new: str) -> IndexBase | str:
    if isinstance(index, str):
        return index.replace(old, new, 1)
    key = getattr(index, "index_storage_key", None)
    return index if key is None else index.copy(index_storage_key=key.replace(old, new, 1))


# -- helpers of kartothek -----------------------------------------------------------------------------------

_validate_uuid = naming.validate_uuid  # kartothek's name


def create_partition_key(
    dataset_uuid: str, table: str, index_values: Iterable[tuple[str, Any]], filename: str = "data"
) -> str:
    """Build the storage key of a data file from the values of its partition keys.

    >>> create_partition_key("sales", "table", [("CITY", "Bad Homburg"), ("DAY", "2020-01-01")], "a1.parquet")
    'sales/table/CITY=Bad%20Homburg/DAY=2020-01-01/a1.parquet'
    """
    return "/".join([dataset_uuid, table, *naming.quote_indices(index_values), filename])


def to_ordinary_dict(dct: Mapping[Any, Any]) -> dict[Any, Any]:
    """Turn nested mappings of any kind into plain dicts.

    >>> from collections import OrderedDict
    >>> to_ordinary_dict(OrderedDict(metadata=OrderedDict(source="weather service")))
    {'metadata': {'source': 'weather service'}}
    """
    return {k: to_ordinary_dict(v) if isinstance(v, Mapping) else v for k, v in dct.items()}
