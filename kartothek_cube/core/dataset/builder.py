"""``DatasetMetadataBuilder``: a header under construction."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import clock
from kartothek_cube.core.copying import CopyMixin
from kartothek_cube.core.dataset.metadata import DatasetMetadata, DatasetMetadataBase, HeaderDocument
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexBase
from kartothek_cube.core.naming import (
    DEFAULT_METADATA_VERSION,
    check_metadata_version,
    check_uuid,
    legacy_index_key,
    metadata_key_from_uuid,
)
from kartothek_cube.core.partition import Partition, PartitionTable
from kartothek_cube.core.schema.evolution import WIDTHS_KEY
from kartothek_cube.core.schema.wrapper import SchemaWrapper


class DatasetMetadataBuilder(CopyMixin):
    """A header under construction.

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

    Attributes
    ----------
    uuid : str
    metadata : dict
    indices : dict
        Column to index, or to the storage key of one.
    metadata_version : int
    partitions : dict of str to Partition
    partition_keys : list of str or None
    schema : SchemaWrapper or None
    explicit_partitions : bool

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
        metadata_version: int = DEFAULT_METADATA_VERSION,
        explicit_partitions: bool = True,
        partition_keys: Iterable[str] | None = None,
        schema: SchemaWrapper | None = None,
    ) -> None:
        check_metadata_version(metadata_version)
        check_uuid(uuid)
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
        # files may be added of which the record knows nothing
        self.extra.pop(WIDTHS_KEY, None)
        if self._table is not None:
            self._partitions = copy.deepcopy(self._table.to_partitions())
            self._table = None
        return self._partitions

    def _partition_table(self) -> PartitionTable:
        return PartitionTable.from_partitions(self._partitions) if self._table is None else self._table

    @staticmethod
    def from_dataset(dataset: DatasetMetadataBase) -> DatasetMetadataBuilder:
        """Make a builder from a dataset, which is not changed.

        Parameters
        ----------
        dataset
            The dataset.

        Returns
        -------
        DatasetMetadataBuilder
        """
        builder = DatasetMetadataBuilder(
            dataset.uuid,
            dataset.metadata_version,
            dataset.explicit_partitions,
            dataset.partition_keys,
            dataset.schema,
        )
        builder.metadata = copy.deepcopy(dataset.metadata)
        builder.indices = dict(dataset.indices)
        builder.extra = copy.deepcopy(dataset.extra)
        builder._table = dataset.partition_table
        return builder

    def add_partition(self, name: str, partition: Partition) -> None:
        """Add a partition, or replace the one of that label.

        Parameters
        ----------
        name
            Its label.
        partition
            The partition.
        """
        self.partitions[name] = partition

    def add_metadata(self, key: str, value: Any) -> None:
        """Set a metadata entry.

        Parameters
        ----------
        key
            Its name.
        value
            A value that JSON can represent.
        """
        self.metadata[key] = value

    def add_embedded_index(self, column: str, index: IndexBase) -> None:
        """Add an index whose data is part of the header.

        Parameters
        ----------
        column
            The indexed column.
        index
            The index.

        Raises
        ------
        RuntimeError
            The index is one on another column.
        """
        if column != index.column:
            raise RuntimeError(f"Cannot add an index on {index.column!r} as that of column {column!r}")
        self.indices[column] = index

    def add_external_index(self, column: str, filename: str | None = None) -> str:
        """Add an index that has a file of its own.

        Parameters
        ----------
        column
            The indexed column.
        filename
            Its storage key; by default the one of early versions of the format.

        Returns
        -------
        str
            The storage key.
        """
        key = legacy_index_key(self.uuid, column) if filename is None else filename
        self.indices[column] = key
        return key

    def modify_uuid(self, target_uuid: str) -> Self:
        """Rename the dataset, with the storage keys that its copy has.

        Parameters
        ----------
        target_uuid
            The new name.

        Returns
        -------
        DatasetMetadataBuilder
            This object.

        Raises
        ------
        ValueError
            The new uuid is illegal.
        """
        check_uuid(target_uuid)
        table = self._partition_table()
        files = {name: _rename_keys(keys, self.uuid, target_uuid) for name, keys in table.files.items()}
        self._table = PartitionTable(table.labels, files)
        self.indices = {c: _rename_index(index, self.uuid, target_uuid) for c, index in self.indices.items()}
        self.uuid = target_uuid
        return self

    def to_dataset(self) -> DatasetMetadata:
        """The dataset as it would be loaded.

        Returns
        -------
        DatasetMetadata
        """
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

    def to_dict(self) -> dict[str, Any]:
        """The content of the header.

        Returns
        -------
        dict
        """
        return self._document().to_dict()

    def to_json(self) -> tuple[str, bytes]:
        """The header as JSON.

        Returns
        -------
        key : str
            Its storage key.
        content : bytes
        """
        return metadata_key_from_uuid(self.uuid, "json"), self._document().to_json()

    def to_msgpack(self) -> tuple[str, bytes]:
        """The header as compressed msgpack.

        Returns
        -------
        key : str
            Its storage key.
        content : bytes
        """
        return metadata_key_from_uuid(self.uuid, "msgpack"), self._document().to_msgpack()

    def _document(self) -> HeaderDocument:
        return HeaderDocument(self, self._partition_table() if self.explicit_partitions else None)


def _rename_keys(keys: pa.StringArray, old: str, new: str) -> pa.StringArray:
    """Replace the uuid in storage keys; other keys stay."""
    renamed = pc.binary_join_element_wise(new, pc.utf8_slice_codeunits(keys, start=len(old)), "")
    return pc.if_else(pc.starts_with(keys, f"{old}/"), renamed, keys)


def _rename_index(index: IndexBase | str, old: str, new: str) -> IndexBase | str:
    if isinstance(index, str):
        return index.replace(old, new, 1)
    key = getattr(index, "index_storage_key", None)
    return index if key is None else index.copy(index_storage_key=key.replace(old, new, 1))
