"""Iceberg metadata of a published dataset, in the directory of its log, written by pyiceberg."""
# They show what the log shows, by which garbage collections keep files. A publisher puts them after its
# version of the log was staged and before that is put: the log or a staged version shows all of their files.

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import attrs
import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record

from kartothek_cube.core.store import BlobStore, get_required
from kartothek_cube.core.uuid import gen_uuid_object
from kartothek_cube.io_components.publication import delta_log

#: property: all that the schema of the table follows from
_COLUMNS = "kartothek_cube.columns"


class _BlobFile(InputFile, OutputFile):
    """A metadata file of a table as pyiceberg reads and writes it."""

    def __init__(self, blobs: BlobStore, key: str, location: str) -> None:
        super().__init__(location)
        self._blobs, self._key = blobs, key

    def __len__(self) -> int:
        return self._blobs.size(self._key)

    def exists(self) -> bool:
        return self._blobs.exists(self._key)

    def open(self, seekable: bool = True) -> io.BytesIO:
        return io.BytesIO(get_required(self._blobs, self._key))

    def create(self, overwrite: bool = False) -> io.BytesIO:
        return _BlobWriter(self._blobs, self._key)

    def to_input_file(self) -> InputFile:
        return self


class _BlobWriter(io.BytesIO):
    def __init__(self, blobs: BlobStore, key: str) -> None:
        super().__init__()
        self._blobs, self._key = blobs, key

    def close(self) -> None:
        if not self.closed:
            self._blobs.put(self._key, self.getvalue(), durable=True)
        super().close()


class _BlobIO(FileIO):
    """The files of a store below the location of its root."""

    def __init__(self, blobs: BlobStore, root: str) -> None:
        super().__init__()
        self._blobs, self._root = blobs, root

    def new_input(self, location: str) -> _BlobFile:
        return _BlobFile(self._blobs, location.removeprefix(self._root), location)

    def new_output(self, location: str) -> _BlobFile:
        return self.new_input(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._blobs.delete([str(getattr(location, "location", location)).removeprefix(self._root)])


def _put_hint(blobs: BlobStore, uuid: str, version: int) -> None:
    """Tell readers the newest version, also if that of another publisher is newer than this one."""
    key, hint = f"{delta_log.iceberg_folder(uuid)}metadata/version-hint.text", 0
    while hint < version:
        hint = version
        blobs.put(key, str(hint).encode(), durable=True)
        version = delta_log.newest_iceberg(delta_log.list_log(blobs, uuid))


@attrs.frozen
class IcebergTable:
    """The Iceberg table of a dataset, whose next metadata show a log."""

    blobs: BlobStore
    uuid: str
    log: delta_log.LogState
    schema: pa.Schema
    #: columns of files that are no columns of the table
    others: Sequence[str]

    @property
    def _files(self) -> _BlobIO:
        return _BlobIO(self.blobs, delta_log.store_location(self.blobs, self.uuid))

    def put_metadata(self, newest: int, state: str) -> None:
        """Put the next version of the metadata; PreconditionFailed if another publisher was faster."""
        root = delta_log.store_location(self.blobs, self.uuid)
        location = root + delta_log.iceberg_folder(self.uuid).rstrip("/")
        keys, old = self.log.metadata["partitionColumns"], None
        columns = json.dumps([root, self.uuid, list(map(str, self.schema)), self.others, keys])
        if newest:
            key = delta_log.iceberg_key(self.uuid, newest)
            old = TableMetadataUtil.parse_raw(get_required(self.blobs, key).decode())
        if old is not None and old.properties.get(_COLUMNS) == columns:
            change = self._change(old)
        else:
            change = self._create(location, old, keys)
        change.set_properties({delta_log.ICEBERG_STATE: state, _COLUMNS: columns})
        self._put_snapshot(change, root)
        content = change.table_metadata.model_dump_json(exclude_none=True)
        self.blobs.put_if(delta_log.iceberg_key(self.uuid, newest + 1), content.encode(), None)
        _put_hint(self.blobs, self.uuid, newest + 1)

    def _change(self, metadata: TableMetadata) -> Transaction:
        # a catalog is only asked by a commit
        catalog = NoopCatalog(self.uuid)
        return Table((self.uuid,), metadata, metadata.location, self._files, catalog).transaction()

    def _create(self, location: str, old: TableMetadata | None, keys: Sequence[str]) -> Transaction:
        """A table without snapshots, as which one with other columns goes on."""
        # no other engine is to delete files
        properties = {"gc.enabled": "false", "format-version": "2"}
        uuid = gen_uuid_object() if old is None else old.table_uuid
        spec, order = UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER
        change = self._change(new_table_metadata(Schema(), spec, order, location, properties, uuid))
        # readers want an id for each column of a file, also for those that are no columns of the table
        with change.update_schema() as update:
            update.union_by_name(pa.schema([*self.schema, *((name, pa.string()) for name in self.others)]))
        mapping = create_mapping_from_schema(change.table_metadata.schema()).model_dump_json()
        with change.update_schema() as update:
            for name in self.others:
                update.delete_column(name)
        with change.update_spec() as partitioning:
            for name in keys:
                partitioning.add_identity(name)
        return change.set_properties({"schema.name-mapping.default": mapping})

    def _put_snapshot(self, change: Transaction, root: str) -> None:
        """Put the manifests of a snapshot with the files of the log instead of those of the one before."""
        metadata, files = change.table_metadata, self._files
        snapshot = metadata.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(files)
        old = {
            entry.data_file.file_path: entry.data_file
            for manifest in manifests
            for entry in manifest.fetch_manifest_entry(files, discard_deleted=True)
        }
        shown = {root + delta_log.data_key(self.uuid, path): add for path, add in self.log.files.items()}
        new = [location for location in shown if location not in old]
        spec, table_schema = metadata.spec(), metadata.schema()
        values = []
        for field in spec.fields:
            texts = [shown[location]["partitionValues"][field.name] for location in new]
            parsed = pa.array(texts, pa.string()).cast(self.schema.field(field.name).type).to_pylist()
            values.append([partition_record_value(field, value, table_schema) for value in parsed])
        with change.update_snapshot().overwrite(gen_uuid_object()) as producer:
            for location in old.keys() - shown.keys():
                producer.delete_data_file(old[location])
            for row, location in enumerate(new):
                file = DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=location,
                    file_format=FileFormat.PARQUET,
                    partition=Record(*(column[row] for column in values)),
                    record_count=json.loads(shown[location]["stats"])["numRecords"],
                    file_size_in_bytes=shown[location]["size"],
                    spec_id=spec.spec_id,
                )
                producer.append_data_file(file)
