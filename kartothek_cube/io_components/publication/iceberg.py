"""Iceberg metadata of a published dataset, in the directory of its log, written by pyiceberg."""
# They show what the log shows, which tells collections the files to keep. A publisher puts them after its
# version of the log was staged and before that is put: the log or a staged version shows all of their files.

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence

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


def put_metadata(
    blobs: BlobStore,
    uuid: str,
    newest: int,
    log: delta_log.LogState,
    schema: pa.Schema,
    others: Sequence[str],
    state: str,
) -> None:
    """Put the next version of the metadata, which show a log; PreconditionFailed if another was faster."""
    root, folder = delta_log.store_location(blobs, uuid), delta_log.iceberg_folder(uuid)
    keys = (log.metadata or {}).get("partitionColumns", [])
    columns = json.dumps([root, uuid, [str(field) for field in schema], sorted(others), keys])
    files, old = _BlobIO(blobs, root), None
    if newest:
        old = TableMetadataUtil.parse_raw(get_required(blobs, delta_log.iceberg_key(uuid, newest)).decode())
    if old is not None and old.properties.get(_COLUMNS) == columns:
        change = _open(uuid, old, files).transaction()
    else:
        change = _create(uuid, f"{root}{folder.rstrip('/')}", files, old, schema, others, keys)
    change.set_properties({delta_log.ICEBERG_STATE: state, _COLUMNS: columns})
    _put_snapshot(change, files, uuid, root, log.files, schema)
    content = change.table_metadata.model_dump_json(exclude_none=True)
    blobs.put_if(delta_log.iceberg_key(uuid, newest + 1), content.encode(), None)
    _put_hint(blobs, uuid, newest + 1)


def _put_hint(blobs: BlobStore, uuid: str, version: int) -> None:
    """Tell readers the newest version, also if that of another publisher is newer than this one."""
    key, hint = f"{delta_log.iceberg_folder(uuid)}metadata/version-hint.text", 0
    while hint < version:
        hint = version
        blobs.put(key, str(hint).encode(), durable=True)
        version = delta_log.newest_iceberg(delta_log.list_log(blobs, uuid))


def _open(uuid: str, metadata: TableMetadata, files: FileIO) -> Table:
    # a catalog is only asked by a commit
    return Table((uuid,), metadata, metadata.location, files, NoopCatalog(uuid))


def _create(
    uuid: str,
    location: str,
    files: FileIO,
    old: TableMetadata | None,
    schema: pa.Schema,
    others: Sequence[str],
    keys: Sequence[str],
) -> Transaction:
    """A table without snapshots, as which one with other columns goes on."""
    metadata = new_table_metadata(
        Schema(),
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        location,
        # no other engine is to delete files
        {"gc.enabled": "false", "format-version": "2"},
        gen_uuid_object() if old is None else old.table_uuid,
    )
    change = _open(uuid, metadata, files).transaction()
    # readers want an id for each column of a file, also for those that are no columns of the table
    with change.update_schema() as update:
        update.union_by_name(pa.schema([*schema, *((name, pa.string()) for name in sorted(others))]))
    mapping = create_mapping_from_schema(change.table_metadata.schema()).model_dump_json()
    if others:
        with change.update_schema() as update:
            for name in others:
                update.delete_column(name)
    if keys:
        with change.update_spec() as spec:
            for name in keys:
                spec.add_identity(name)
    return change.set_properties({"schema.name-mapping.default": mapping})


def _put_snapshot(
    change: Transaction,
    files: FileIO,
    uuid: str,
    root: str,
    adds: Mapping[str, delta_log.Action],
    schema: pa.Schema,
) -> None:
    """Put the manifests of a snapshot that has the files of the log instead of those of the one before."""
    metadata = change.table_metadata
    snapshot = metadata.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(files)
    entries = (
        entry for each in manifests for entry in each.fetch_manifest_entry(files, discard_deleted=True)
    )
    old = {entry.data_file.file_path: entry.data_file for entry in entries}
    shown = {root + delta_log.data_key(uuid, path): add for path, add in adds.items()}
    new = [location for location in shown if location not in old]
    spec, table_schema = metadata.spec(), metadata.schema()
    values = []
    for field in spec.fields:
        texts = pa.array([shown[location]["partitionValues"][field.name] for location in new], pa.string())
        parsed = texts.cast(schema.field(field.name).type).to_pylist()
        values.append([partition_record_value(field, value, table_schema) for value in parsed])
    with change.update_snapshot().overwrite(gen_uuid_object()) as producer:
        for location in old.keys() - shown.keys():
            producer.delete_data_file(old[location])
        for row, location in enumerate(new):
            producer.append_data_file(
                DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=location,
                    file_format=FileFormat.PARQUET,
                    partition=Record(*(column[row] for column in values)),
                    record_count=json.loads(shown[location]["stats"])["numRecords"],
                    file_size_in_bytes=shown[location]["size"],
                    spec_id=spec.spec_id,
                )
            )
