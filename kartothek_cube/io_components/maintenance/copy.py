"""Copy of a dataset between stores or under a new name: blobs as they are, published by one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import attrs
import pyarrow as pa

from kartothek_cube.core.commit import CommitReceipt, Role, publish_copy, read_replaced_base, settle
from kartothek_cube.core.commit.header_store import attempts, header_format, read_versioned, render
from kartothek_cube.core.commit.operation import rename_operations
from kartothek_cube.core.common_metadata import schema_file_from_bytes, schema_to_bytes
from kartothek_cube.core.dataset import DatasetMetadata, DatasetMetadataBuilder
from kartothek_cube.core.dataset.references import data_keys, index_keys
from kartothek_cube.core.errors import ConcurrentWriteError, DatasetExistsError, KartothekCubeError
from kartothek_cube.core.header.commit_record import COMMIT_RECORD
from kartothek_cube.core.header.parse import parse_header
from kartothek_cube.core.naming import SINGLE_TABLE, check_uuid, schema_key
from kartothek_cube.core.schema.file import VersionedSchema, schema_version_of
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, PreconditionFailed, open_blobs
from kartothek_cube.core.store.resolve import check_reopens, ensure_store
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.job import Job, discard_results
from kartothek_cube.io_components.runtime.progress import progress_add_total, progress_advance
from kartothek_cube.io_components.runtime.threads import REMOTE_REQUESTS, batched, ordered_map, store_factory

__all__ = (
    "DatasetCopy",
    "check_different_stores",
    "copy_dataset_job",
    "finish_copy",
    "plan_copy_dataset",
    "run_copy",
)


@attrs.frozen
class DatasetCopy:
    """A dataset to copy, in the state in which it was planned."""

    source_uuid: str
    target_uuid: str
    #: source key to target key of the data and index files, which never change
    keys: Mapping[str, str]
    #: key and content of the new header
    header_key: str
    header: bytes
    #: target key to content of the schema files
    schemas: Mapping[str, bytes]
    #: the copied state
    state: DatasetMetadata


def check_different_stores(src_store: StoreInput, tgt_store: StoreInput, uuid: str, token: str) -> None:
    """Raise ValueError if a key that is written to the target appears in the source."""
    # It has the form of a temporary file of the dataset: should this process die, the next garbage collection
    # deletes it.
    source, target = open_blobs(src_store), open_blobs(tgt_store)
    key = f"{uuid}.{token}.tmp"
    target.put(key, b"")
    try:
        same = source.exists(key)
    finally:
        target.delete([key])
    if same:
        raise ValueError("Stores are identical but should not be: a copy needs two different stores")


def _rename(key: str, source_uuid: str, target_uuid: str) -> str:
    return target_uuid + key[len(source_uuid) :]


def plan_copy_dataset(
    source: BlobStore,
    source_uuid: str,
    target_uuid: str,
    state: DatasetMetadata | None = None,
    uuids: Mapping[str, str] | None = None,
) -> DatasetCopy:
    """
    Plan the copy of a dataset.

    Parameters
    ----------
    source
        The store.
    source_uuid, target_uuid
        Uuid of the dataset there, and of the copy.
    state
        The state to copy; None for the newest one. Later commits are not part of the copy.
    uuids
        Source uuid to target uuid of all datasets that are copied.
    """
    check_uuid(target_uuid)
    # schemas first: one that is written for a later header still holds that of the header which is there
    dataset = DatasetMetadata.load_from_store(source_uuid, source, load_schema=False)
    tables = dataset.tables or [SINGLE_TABLE]
    contents = {table: read_versioned(source, schema_key(source_uuid, table))[0] for table in tables}
    dataset, key, _, header = DatasetMetadata.load_with_token(source_uuid, source)
    if state is not None and state.extra.get(COMMIT_RECORD) != dataset.extra.get(COMMIT_RECORD):
        # another commit came in between, or the newest one is of an operation that is not committed
        dataset, header = state, render(state, key)
    copied = rename_operations(dataset, uuids or {})
    if copied is not dataset:
        dataset, header = copied, render(copied, key)
    target_key = _rename(key, source_uuid, target_uuid)
    if source_uuid != target_uuid:
        builder = DatasetMetadataBuilder.from_dataset(dataset)
        builder.modify_uuid(target_uuid)
        _, header = builder.to_json() if header_format(key) == "json" else builder.to_msgpack()
    keys = sorted({*data_keys(dataset), *index_keys(dataset)})
    return DatasetCopy(
        source_uuid,
        target_uuid,
        {key: _rename(key, source_uuid, target_uuid) for key in keys},
        target_key,
        header,
        {
            schema_key(target_uuid, table): _schema_of(dataset, content)
            for table, content in contents.items()
            if content is not None or (table == dataset.table_name and dataset.schema is not None)
        },
        _target_state(source, header, target_key, target_uuid, dataset),
    )


def _target_state(
    source: BlobStore, header: bytes, key: str, uuid: str, dataset: DatasetMetadata
) -> DatasetMetadata:
    """The state that the new header describes."""
    if not dataset.explicit_partitions:
        return dataset.copy(uuid=uuid)
    content = parse_header(header, header_format(key), key)
    return DatasetMetadata.load_from_dict(
        content,
        source,
        dataset.schema is not None,
        schema=dataset.schema,
        table_name=dataset.table_name,
    )


def _schema_of(dataset: DatasetMetadata, content: bytes | None) -> bytes:
    """The schema file of a state: that of the source as it is, if it is that of the state."""
    version, schema = schema_version_of(dataset.metadata), dataset.schema
    if content is not None and (
        schema is None or schema_file_from_bytes(content, dataset.uuid).of(version).equals(schema)
    ):
        return content
    return schema_to_bytes(VersionedSchema(schema or SchemaWrapper(pa.schema([]), dataset.uuid), version))


def run_copy(source: BlobStore, target: BlobStore, keys: Mapping[str, str]) -> None:
    """Copy blobs as they are."""
    for _ in _copy_all(source, target, keys):
        pass


def _copy_all(source: BlobStore, target: BlobStore, keys: Mapping[str, str]) -> Iterator[None]:
    progress_add_total(len(keys))
    return ordered_map(partial(_copy_one, source, target), list(keys.items()), REMOTE_REQUESTS)


def _copy_one(source: BlobStore, target: BlobStore, item: tuple[str, str]) -> None:
    data = source.get(item[0])
    target.put(item[1], data)
    progress_advance(len(data))


def finish_copy(
    target: BlobStore, copy: DatasetCopy, *, overwrite: bool = True, role: Role = None
) -> tuple[dict[str, DatasetMetadata], CommitReceipt]:
    """Put the header of a copy, with which the dataset exists; return its key and state, and a receipt."""
    table = copy.state.table_name
    own = schema_key(copy.target_uuid, table)
    for key, content in copy.schemas.items():
        # further tables, which only kartothek 3 wrote
        if key != own:
            target.put(key, content, durable=True)
    for _ in attempts():
        base = settle(
            target,
            lambda: read_replaced_base(target, copy.target_uuid, table, copy.header_key),
            replaces=True,
        )
        if base.state is not None and not overwrite and base.header != copy.header:
            raise DatasetExistsError(copy.target_uuid)
        try:
            state, receipt = publish_copy(
                target, base, copy.state, copy.header, copy.schemas.get(own), list(copy.keys.values()), role
            )
        except PreconditionFailed:
            # another writer was faster: decide again on its state
            continue
        if not state.explicit_partitions:
            state = DatasetMetadata.load_from_store(copy.target_uuid, target)
        return {copy.header_key: state}, receipt
    raise ConcurrentWriteError(copy.target_uuid)


#: errors of a store, or of what it holds
FAILURES = (KartothekCubeError, RuntimeError, ValueError, KeyError, OSError)


def copy_dataset_job(
    source_store: StoreInput,
    source_uuid: str,
    target_store: StoreInput,
    target_uuid: str,
    blocksize: int | None = None,
) -> Job[tuple[StoreFactory, StoreFactory], Sequence[tuple[str, str]], None, dict[str, DatasetMetadata]]:
    """Copy the files of a dataset in blocks, then its schemas and header."""
    check_reopens(target_store)
    source, target = ensure_store(source_store), ensure_store(target_store)
    copy = plan_copy_dataset(open_blobs(source), source_uuid, target_uuid)
    keys = list(copy.keys.items())
    return Job(
        name="copy_dataset",
        description=f"copy dataset {source_uuid}",
        context=(store_factory(source), store_factory(target)),
        tasks=batched(keys, blocksize or max(len(keys), 1)),
        run=_run_copy_block,
        finish=partial(_finish_copy_job, target, copy),
        merge=discard_results,
        steps=("prepare", "files", "header"),
    )


def _run_copy_block(stores: tuple[StoreFactory, StoreFactory], block: Sequence[tuple[str, str]]) -> None:
    source, target = stores
    run_copy(open_blobs(source), open_blobs(target), dict(block))


def _finish_copy_job(
    target_store: StoreInput, copy: DatasetCopy, copied: Iterable[None]
) -> dict[str, DatasetMetadata]:
    discard_results(copied)
    return finish_copy(open_blobs(target_store), copy)[0]
