"""Verify a dataset without opening data files: header, schema, labels, existence of files, history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.commit.operation import (
    Status,
    committed_state,
    operation_status,
    pending_participation,
    read_record,
)
from kartothek_cube.core.common_metadata import schema_file_from_bytes
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.references import data_keys, header_keys, index_keys
from kartothek_cube.core.errors import CorruptDatasetError, DatasetNotFoundError, MissingFileError
from kartothek_cube.core.history import history_folder, is_snapshot_key, load_snapshot
from kartothek_cube.core.naming import metadata_key_from_uuid, schema_key
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.file import schema_version_of
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.core.urlencode import unquote_indices
from kartothek_cube.io_components.publish.delta_log import published_keys
from kartothek_cube.io_components.publish.publish import find_publication
from kartothek_cube.io_components.runtime.threads import store_factory
from kartothek_cube.io_components.verify.report import Problem
from kartothek_cube.io_components.verify.run import VerifyContext, VerifyTask
from kartothek_cube.io_components.verify.schema import recover_schema

__all__ = ("VerifyPlan", "plan_verify")


@attrs.frozen
class VerifyPlan:
    """A planned verification of a dataset."""

    uuid: str
    #: what is wrong according to the header, the schema and a listing
    problems: tuple[Problem, ...]
    #: the state that is checked; None if it cannot be read
    dataset: DatasetMetadata | None = None
    #: the check of data files; None and empty if the schema cannot be read
    context: VerifyContext | None = None
    tasks: tuple[VerifyTask, ...] = ()


def plan_verify(
    uuid: str,
    store: StoreInput,
    *,
    deep: bool = True,
    cell: Sequence[str] = (),
    not_null: Sequence[str] = (),
    partitions_per_task: int = 16,
) -> VerifyPlan:
    """Check a dataset without opening data files, and plan the check of these."""
    blobs = open_blobs(store)
    headers = [key for key in header_keys(uuid) if blobs.exists(key)]
    problems = []
    if len(headers) > 1:
        text = f"there is another header, {headers[1]}, and it is unknown which one holds the state"
        problems.append(Problem(uuid, "two-headers", headers[0], text))
    try:
        dataset = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    except DatasetNotFoundError:
        raise
    except (CorruptDatasetError, NotImplementedError, RuntimeError, ValueError) as error:
        return VerifyPlan(uuid, (*problems, Problem(uuid, "header", headers[0], str(error))))
    problems += _history_problems(uuid, blobs)
    problems += _operation_problems(dataset, blobs)
    try:
        dataset = DatasetMetadata.load_from_store(uuid, blobs)
    except (CorruptDatasetError, KeyError) as error:
        schema = recover_schema(dataset, blobs) if isinstance(error, KeyError) else None
        if schema is None:
            key = schema_key(uuid, dataset.table_name)
            problems.append(Problem(uuid, "schema", key, f"the schema cannot be read: {error}"))
            return VerifyPlan(uuid, (*problems, *_missing(dataset, blobs)[0]), dataset)
        dataset = dataset.copy(schema=schema)
    problems += _schema_problems(dataset, blobs)
    problems += _publication_problems(dataset, blobs)
    missing, rows = _missing(dataset, blobs)
    problems += [*_shared_files(dataset), *missing]
    places = list(_place_problems(dataset))
    problems += places
    if dataset.schema is None or any(problem.kind == "label" for problem in places):
        return VerifyPlan(uuid, tuple(problems), dataset)
    context = VerifyContext(
        store_factory(store),
        uuid,
        dataset.table_name,
        dataset.schema.internal().remove_metadata(),
        tuple(dataset.partition_keys),
        tuple(sorted(set(dataset.secondary_indices) & set(dataset.schema.names))),
        tuple(c for c in cell if c in dataset.schema.names),
        tuple(not_null),
        deep,
        dataset.column_mapping,
    )
    return VerifyPlan(
        uuid, tuple(problems), dataset, context, _tasks(context, dataset, rows, partitions_per_task)
    )


def _tasks(
    context: VerifyContext, dataset: DatasetMetadata, rows: pa.Array, size: int
) -> tuple[VerifyTask, ...]:
    """Group the partitions whose file exists into tasks."""
    files = dataset.partition_table.files.get(context.table)
    if files is None:
        return ()
    labels, keys = dataset.partition_table.labels.take(rows).to_pylist(), files.take(rows).to_pylist()
    return tuple(
        VerifyTask(tuple(labels[start : start + size]), tuple(keys[start : start + size]))
        for start in range(0, len(labels), size)
    )


def _missing(dataset: DatasetMetadata, blobs: BlobStore) -> tuple[list[Problem], pa.Array]:
    """Files that do not exist, and positions of the partitions whose files of the main table do."""
    stored = pa.array([blob.key for blob in blobs.list(f"{dataset.uuid}/")], pa.string())
    rows = pa.array(np.arange(len(dataset.partition_table)))
    problems: list[Problem] = []
    missing: list[str] = []
    for table, keys in dataset.partition_table.files.items():
        exists = pc.is_in(keys, value_set=stored)
        missing += keys.filter(pc.invert(exists)).to_pylist()
        if table == dataset.table_name:
            rows = rows.filter(exists)
    if missing:
        # a commit may have replaced them, and a cleanup deleted them, since the header was read
        newest = DatasetMetadata.load_from_store(dataset.uuid, blobs, load_schema=False)
        referenced = set(data_keys(newest))
        text = "the header refers to this file, but it does not exist"
        problems = [Problem(dataset.uuid, "missing-file", key, text) for key in missing if key in referenced]
    return problems, rows


def _shared_files(dataset: DatasetMetadata) -> Iterator[Problem]:
    for keys in dataset.partition_table.files.values():
        counts = pc.value_counts(keys)
        for key in counts.filter(pc.greater(counts.field(1), 1)).field(0).to_pylist():
            yield Problem(dataset.uuid, "shared-file", key, "several partitions refer to this file")


def _place_problems(dataset: DatasetMetadata) -> Iterator[Problem]:
    """Labels that do not fit the partition keys, and files in another directory than their label says."""
    table = dataset.partition_table
    if not dataset.partition_keys or dataset.schema is None:
        return
    try:
        dataset.key_columns()
    except (CorruptDatasetError, ValueError) as error:
        key = error.key if isinstance(error, CorruptDatasetError) else dataset.uuid
        yield Problem(dataset.uuid, "label", key, str(error))
        return
    for name, keys in table.files.items():
        derived = PartitionTable.from_labels(dataset.uuid, name, table.labels).files[name]
        moved = pc.not_equal(keys, derived)
        pairs = [column.filter(moved).to_pylist() for column in (table.labels, keys)]
        for label, key in zip(*pairs, strict=True):
            if _values(label) not in ([], _values(key.partition("/")[2].partition("/")[2])):
                text = f"the file of partition {label} lies in another directory than its values say"
                yield Problem(dataset.uuid, "path", key, text)


def _values(path: str) -> list[tuple[str, str]]:
    """Columns and values of a label or path; labels of early versions have none."""
    return unquote_indices(path.split("/")[:-1])


def _schema_problems(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[Problem]:
    key = schema_key(dataset.uuid, dataset.table_name)
    if dataset.schema is None:
        return
    try:
        file = schema_file_from_bytes(blobs.get(key), key)
    except KeyError:
        yield Problem(dataset.uuid, "missing-schema", key, "the schema file does not exist")
        return
    if not file.schema.equals(file.of(schema_version_of(dataset.metadata))):
        text = (
            "the schema is that of a write that has not finished (yet); this library knows the right one, "
            "other readers of the format do not"
        )
        yield Problem(dataset.uuid, "schema-pending", key, text)
    unknown = sorted(set(dataset.partition_keys) - set(dataset.schema.names))
    if unknown:
        text = f"the schema lacks partition keys: {', '.join(unknown)}"
        yield Problem(dataset.uuid, "schema", key, text, unknown[0])


def _operation_problems(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[Problem]:
    """Operations on several datasets that have not committed, or of which other software has lost track."""
    participation = pending_participation(dataset)
    if participation is None:
        return
    uuid, key = dataset.uuid, metadata_key_from_uuid(dataset.uuid)
    if operation_status(blobs, uuid, participation) is not Status.COMMITTED:
        text = (
            "an operation on several datasets has not committed: its writer has died, or is at work; readers "
            "see the state before it"
        )
        yield Problem(uuid, "unfinished-operation", key, text)
        return
    coordinator = read_record(blobs, participation.coordinator)
    if coordinator is None or coordinator.lineage != participation.lineage:
        text = (
            f"other software has written or deleted {participation.coordinator} since an operation on both: "
            "whether that was committed is not known, and readers see it"
        )
        yield Problem(uuid, "unknown-operation", key, text)


def _publication_problems(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[Problem]:
    """A published table that shows another state, or files that do not exist any more."""
    try:
        table = find_publication(blobs, committed_state(blobs, dataset))
        if table is not None and not table.is_current:
            text = "the published table shows another state of the dataset than the newest one"
            yield Problem(dataset.uuid, "publication", table.key, text)
            stored = {blob.key for blob in blobs.list(f"{dataset.uuid}/")}
            for missing in sorted(published_keys(blobs, dataset.uuid) - stored):
                text = "the published table shows this file, but it does not exist"
                yield Problem(dataset.uuid, "publication", missing, text)
    except DatasetNotFoundError:
        # created by an operation that has not committed, which is a problem of its own
        return
    except (CorruptDatasetError, MissingFileError) as error:
        yield Problem(dataset.uuid, "publication-log", error.key, str(error))


def _history_problems(uuid: str, blobs: BlobStore) -> Iterator[Problem]:
    folder = history_folder(uuid)
    copies = [blob.key for blob in blobs.list(folder) if is_snapshot_key(blob.key)]
    if not copies:
        return
    stored = {blob.key for blob in blobs.list(f"{uuid}/")}
    for copy in copies:
        try:
            state = load_snapshot(uuid, blobs, copy)
        except KeyError:
            # a commit has expired it since
            continue
        except (CorruptDatasetError, NotImplementedError) as error:
            yield Problem(uuid, "history", copy, f"the copy of an older state cannot be read: {error}")
            continue
        missing = [key for key in (*data_keys(state), *index_keys(state)) if key not in stored]
        for key in missing:
            yield Problem(
                uuid, "history-file", key, f"an older state ({copy}) needs this file, which is gone"
            )
