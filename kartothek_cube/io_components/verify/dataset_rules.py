"""Verify a dataset: header, schema, labels, files, history; indices against the data; repair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import errors, naming
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.commit import operation
from kartothek_cube.core.commit.atomic import finish_operation
from kartothek_cube.core.commit.change import IndexUpdate
from kartothek_cube.core.commit.header_store import read_versioned
from kartothek_cube.core.cube.constants import KTK_CUBE_UUID_SEPARATOR
from kartothek_cube.core.cube.discover import discover_datasets_unchecked
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.metadata import data_keys, file_keys
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.header import parse_record
from kartothek_cube.core.history import history_folder, is_snapshot_key, load_snapshot
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.file import (
    VersionedSchema,
    schema_file_from_bytes,
    schema_to_bytes,
    schema_version_of,
)
from kartothek_cube.core.schema.wrapper import SchemaWrapper, make_meta, validate_compatible
from kartothek_cube.core.store import BlobStore, PreconditionFailed, open_blobs
from kartothek_cube.core.transforms import read_transforms
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.publication.delta_log import published_keys
from kartothek_cube.io_components.publication.table import find_publication
from kartothek_cube.io_components.runtime import available_cores, batched, ordered_map, store_factory
from kartothek_cube.io_components.verify.data_file_rules import (
    VerifyContext,
    VerifyResult,
    VerifyTask,
    merge_verify_results,
    run_verify,
)
from kartothek_cube.io_components.verify.report import Problem, Report, merge_reports
from kartothek_cube.io_components.write import build_index
from kartothek_cube.serialization.parquet_reader import read_footer

_PARTITIONS_PER_TASK = 16


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
) -> VerifyPlan:
    """Check a dataset without opening data files, and plan the check of these."""
    blobs = open_blobs(store)
    headers = [key for key in naming.header_keys(uuid) if blobs.exists(key)]
    problems = []
    if len(headers) > 1:
        text = f"there is another header, {headers[1]}, and it is unknown which one holds the state"
        problems.append(Problem(uuid, "two-headers", headers[0], text))
    try:
        dataset = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    except errors.DatasetNotFoundError:
        raise
    except (errors.CorruptDatasetError, NotImplementedError, RuntimeError, ValueError) as error:
        return VerifyPlan(uuid, (*problems, Problem(uuid, "header", headers[0], str(error))))
    problems += _history_problems(dataset, blobs)
    problems += _operation_problems(dataset, blobs)
    try:
        dataset = DatasetMetadata.load_from_store(uuid, blobs)
    except (errors.CorruptDatasetError, KeyError) as error:
        schema = recover_schema(dataset, blobs) if isinstance(error, KeyError) else None
        if schema is None:
            key = naming.schema_key(uuid, dataset.table_name)
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
    try:
        mapping, transforms = dataset.column_mapping, read_transforms(dataset.metadata)
    except errors.CorruptDatasetError as error:
        return VerifyPlan(uuid, (*problems, Problem(uuid, "header", headers[0], str(error))), dataset)
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
        transforms or (),
        mapping,
    )
    return VerifyPlan(uuid, tuple(problems), dataset, context, _tasks(context, dataset, rows))


def _tasks(context: VerifyContext, dataset: DatasetMetadata, rows: pa.Array) -> tuple[VerifyTask, ...]:
    """Group the partitions whose file exists into tasks."""
    files = dataset.partition_table.files.get(context.table)
    if files is None:
        return ()
    labels, keys = dataset.partition_table.labels.take(rows).to_pylist(), files.take(rows).to_pylist()
    pairs = zip(batched(labels, _PARTITIONS_PER_TASK), batched(keys, _PARTITIONS_PER_TASK), strict=True)
    return tuple(VerifyTask(tuple(part), tuple(files)) for part, files in pairs)


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
    except (errors.CorruptDatasetError, ValueError) as error:
        key = error.key if isinstance(error, errors.CorruptDatasetError) else dataset.uuid
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
    return naming.unquote_indices(path.split("/")[:-1])


def _schema_problems(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[Problem]:
    key = naming.schema_key(dataset.uuid, dataset.table_name)
    if dataset.schema is None:
        return
    try:
        file = schema_file_from_bytes(blobs.get(key), key)
    except KeyError:
        yield Problem(dataset.uuid, "missing-schema", key, "the schema file does not exist")
        return
    if not file.schema.equals(dataset.schema):
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
    """Operations on several datasets that have not committed, or whose status other software has removed."""
    participation = operation.pending_participation(dataset)
    if participation is None:
        return
    uuid, key = dataset.uuid, naming.metadata_key_from_uuid(dataset.uuid)
    try:
        status = operation.operation_status(blobs, uuid, participation)
        coordinator = operation.read_record(blobs, participation.coordinator)
    except (errors.CorruptDatasetError, NotImplementedError) as error:
        text = (
            f"whether an operation on this dataset and {participation.coordinator} was committed cannot be "
            f"read: {error}"
        )
        yield Problem(uuid, "unknown-operation", key, text)
        return
    if status is not operation.Status.COMMITTED:
        text = (
            "an operation on several datasets has not committed: its writer has died, or is at work; readers "
            "see the state before it"
        )
        yield Problem(uuid, "unfinished-operation", key, text)
        return
    if coordinator is None or coordinator.lineage != participation.lineage:
        text = (
            f"other software has written or deleted {participation.coordinator} since an operation on both: "
            "whether that was committed is not known, and readers see it"
        )
        yield Problem(uuid, "unknown-operation", key, text)


def _publication_problems(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[Problem]:
    """A published table that shows another state, or files that do not exist any more."""
    try:
        state = operation.committed_state(blobs, dataset)
    except (errors.DatasetNotFoundError, errors.CorruptDatasetError, NotImplementedError):
        # created by an operation that has not committed, or of a coordinator that cannot be read: problems of
        # their own
        return
    try:
        table = find_publication(blobs, state)
        if table is not None and not table.is_current:
            text = "the published table shows another state of the dataset than the newest one"
            yield Problem(dataset.uuid, "publication", table.key, text)
            stored = {blob.key for blob in blobs.list(f"{dataset.uuid}/")}
            for missing in sorted(published_keys(blobs, dataset.uuid) - stored):
                text = "the published table shows this file, but it does not exist"
                yield Problem(dataset.uuid, "publication", missing, text)
    except (errors.CorruptDatasetError, errors.MissingFileError) as error:
        yield Problem(dataset.uuid, "publication-log", error.key, str(error))


def _history_problems(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[Problem]:
    # what the newest state needs as well is a problem of that
    uuid, current = dataset.uuid, set(file_keys(dataset))
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
        except (errors.CorruptDatasetError, NotImplementedError) as error:
            yield Problem(uuid, "history", copy, f"the copy of an older state cannot be read: {error}")
            continue
        missing = [key for key in file_keys(state) if key not in stored and key not in current]
        for key in missing:
            yield Problem(
                uuid, "history-file", key, f"an older state ({copy}) needs this file, which is gone"
            )


def recover_schema(dataset: DatasetMetadata, blobs: BlobStore) -> SchemaWrapper | None:
    """The schema of a dataset from its header, or from its data files; None if a type is unknown."""
    # Footers do not have the types of partition keys, which other datasets of the cube have. A guess will not
    # do: a partition key "1" may be a text or a number.
    key = naming.schema_key(dataset.uuid, dataset.table_name)
    record = parse_record(dataset.extra)
    embedded = None if record is None else record.embedded_schema(key)
    if embedded is not None:
        return embedded
    try:
        types = _key_types(dataset, blobs)
        if types is None:
            return None
        merged = validate_compatible([make_meta(schema, key) for schema in _file_schemas(dataset, blobs)])
    except (errors.CorruptDatasetError, KeyError, ValueError):
        # damaged or missing data files, and other datasets, are problems of their own
        return None
    if merged is None:
        return None
    file_schema = merged.internal()
    in_files = set(file_schema.names)
    fields = [(name, dtype) for name, dtype in types.items() if name not in in_files]
    schema = pa.schema([*fields, *((field.name, field.type) for field in file_schema)], file_schema.metadata)
    return make_meta(schema, key, partition_keys=dataset.partition_keys)


def _file_schemas(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[pa.Schema]:
    files = dataset.partition_table.files.get(dataset.table_name, pa.array([], pa.string()))
    for key in files.to_pylist():
        if key.endswith(naming.PARQUET_FILE_SUFFIX):
            yield read_footer(blobs, key)[0].schema.to_arrow_schema()


def _key_types(dataset: DatasetMetadata, blobs: BlobStore) -> dict[str, pa.DataType] | None:
    """Types of the partition keys in other datasets of the cube; None if one is unknown."""
    missing = list(dataset.partition_keys)
    if not missing:
        return {}
    prefix, separator, _ = dataset.uuid.partition(KTK_CUBE_UUID_SEPARATOR)
    known_types: dict[str, pa.DataType] = {}
    if separator:
        for other in discover_datasets_unchecked(prefix, blobs).values():
            if other.schema is not None:
                known_types |= {name: other.schema.field(name).type for name in other.schema.names}
    return {name: known_types[name] for name in missing} if set(missing) <= set(known_types) else None


_EXAMPLES = 3

Describe = Callable[[Ints], list[str]]


def _report(plan: VerifyPlan, store: StoreInput, findings: Iterable[VerifyResult]) -> Report:
    """Compare the indices with the data, and report."""
    result = merge_verify_results(findings)
    problems = [*plan.problems, *result.problems]
    indices = {} if plan.dataset is None else plan.dataset.secondary_indices
    blobs = open_blobs(store)
    for index in indices.values():
        problems += _index_problems(plan, index, result, blobs)
    checked = {"datasets": 1, "files": result.files, "rows": result.rows, "indices": len(indices)}
    distinct = dict.fromkeys(problems)
    return Report(sorted(distinct, key=lambda p: (p.dataset, p.kind, p.key, p.message)), checked)


def _index_problems(
    plan: VerifyPlan, index: ExplicitSecondaryIndex, result: VerifyResult, blobs: BlobStore
) -> Iterator[Problem]:
    column, key = index.column, index.index_storage_key or f"{plan.uuid} (inline)"
    try:
        # without the recorded type: to load an index of another type is an error, which is reported below
        stored = index if index.loaded else ExplicitSecondaryIndex(column, index_storage_key=key)
        loaded = stored.load(blobs)
    except KeyError:
        yield Problem(plan.uuid, "missing-index", key, f"the index of {column} does not exist", column)
        return
    except (errors.CorruptDatasetError, ValueError, NotImplementedError) as error:
        text = f"the index of {column} cannot be read: {error}"
        yield Problem(plan.uuid, "unreadable-index", key, text, column)
        return
    data = loaded.columns_data
    if plan.dataset is None or data is None:
        return
    schema = plan.dataset.schema
    if schema is not None:
        dtype = schema.field(column).type if column in schema.names else None
        if dtype is None or not (pa.types.is_null(dtype) or data.values.type.equals(dtype)):
            text = f"the index of {column} has type {data.values.type}, but the dataset says {dtype}"
            yield Problem(plan.uuid, "index-type", key, text, column)
            return
    yield from _unknown_partitions(plan, column, key, data)
    if column in result.entries:
        yield from _differences(plan, column, key, data, result.entries[column])


def _unknown_partitions(plan: VerifyPlan, column: str, key: str, data: IndexColumns) -> Iterator[Problem]:
    if plan.dataset is None or not plan.dataset.explicit_partitions:
        return
    used = data.labels.take(pa.array(np.unique(data.codes)))
    unknown = used.filter(pa.array(plan.dataset.partition_table.positions(used) < 0)).to_pylist()
    if unknown:
        n_unknown = errors.format_count(len(unknown), "partition")
        text = f"the index of {column} knows {n_unknown} that the dataset does not have, such as {unknown[0]}"
        yield Problem(plan.uuid, "index-unknown-partition", key, text, column)


def _differences(
    plan: VerifyPlan, column: str, key: str, index: IndexColumns, data: IndexUpdate
) -> Iterator[Problem]:
    """Entries of the data that are not in the index, and entries of the index that are not in the data."""
    stored = index.keep_labels(data.covered)
    same = data.entries.values.type.equals(index.values.type)
    actual = data.entries if same else IndexColumns.empty(index.values.type)
    if not same and len(data.entries):
        actual = data.entries.cast(index.values.type)
    if stored.equals(actual):
        return
    left, right, describe = _number_entries(stored, actual)
    texts = {
        "index-incomplete": (np.setdiff1d(right, left), "has no entries for"),
        "index-excess": (np.setdiff1d(left, right), "has entries that the data does not have:"),
    }
    for kind, (pairs, text) in texts.items():
        if len(pairs):
            examples = "; ".join(describe(pairs[:_EXAMPLES]))
            n_values = errors.format_count(len(pairs), "value")
            message = f"the index of {column} {text} {n_values} in partitions, as {examples}"
            yield Problem(plan.uuid, kind, key, message, column)


def _number_entries(a: IndexColumns, b: IndexColumns) -> tuple[Ints, Ints, Describe]:
    """Number the entries of two indices, equal entries alike; and a function that describes numbers."""
    sides = [part.pairs()[0] for part in (a, b)]
    values = pa.concat_arrays(sides).dictionary_encode()
    labels = pa.concat_arrays([part.entry_labels() for part in (a, b)]).dictionary_encode()
    size = max(len(labels.dictionary), 1)
    codes = values.indices.to_numpy().astype(np.int64) * size + labels.indices.to_numpy()

    def describe(pairs: Ints) -> list[str]:
        rows = [(values.dictionary[int(p // size)], labels.dictionary[int(p % size)]) for p in pairs]
        return [f"{value.as_py()!r} in {label.as_py()}" for value, label in rows]

    return codes[: len(sides[0])], codes[len(sides[0]) :], describe


DatasetTask: TypeAlias = tuple[str, VerifyTask]
"""Name of a dataset, and some of its files."""


def verify_job(
    kind: str,
    name: str,
    store: StoreInput,
    plans: Mapping[str, VerifyPlan],
    find_more: Callable[[Mapping[str, Sequence[VerifyResult]]], Iterable[Problem]],
) -> Job[dict[str, VerifyContext], DatasetTask, dict[str, VerifyResult], Report]:
    """Check files of datasets, then their indices, then what `find_more` finds; `plans` by name."""
    tasks = [(dataset, task) for dataset, plan in plans.items() for task in plan.tasks]
    return Job(
        name=f"verify_{kind}",
        description=f"verify {kind} {name}",
        context={dataset: plan.context for dataset, plan in plans.items() if plan.context is not None},
        tasks=tasks,
        run=_run,
        finish=partial(_finish, store_factory(store), plans, find_more),
        steps=("prepare", "files", "report"),
        is_parallel=True,
        files=sum(len(task.keys) for _, task in tasks),
    )


def _run(contexts: Mapping[str, VerifyContext], task: DatasetTask) -> dict[str, VerifyResult]:
    name, files = task
    return {name: run_verify(contexts[name], files)}


def _finish(
    store: StoreFactory,
    plans: Mapping[str, VerifyPlan],
    find_more: Callable[[Mapping[str, Sequence[VerifyResult]]], Iterable[Problem]],
    findings: Iterable[Mapping[str, VerifyResult]],
) -> Report:
    by_name: dict[str, list[VerifyResult]] = {name: [] for name in plans}
    for part in findings:
        for name, result in part.items():
            by_name[name].append(result)
    reports = [_report(plans[name], store, results) for name, results in by_name.items()]
    return merge_reports(reports, find_more(by_name))


def verify_dataset_job(
    dataset: DatasetFactory, *, deep: bool = True
) -> Job[dict[str, VerifyContext], DatasetTask, dict[str, VerifyResult], Report]:
    """Check the files of a dataset, then its indices."""
    uuid, store = dataset.dataset_uuid, dataset.store_factory
    return verify_job("dataset", uuid, store, {uuid: plan_verify(uuid, store, deep=deep)}, _find_nothing)


def _find_nothing(results: Mapping[str, Sequence[VerifyResult]]) -> Iterable[Problem]:
    return ()


# -- repair -------------------------------------------------------------------------------------------------


#: kinds of problems with which the contents of an index are unknown
_UNREPAIRABLE = frozenset({"header", "two-headers", "schema", "label", "missing-file", "unreadable-file"})


def repair(uuid: str, store: StoreInput, problems: Iterable[Problem]) -> bool:
    """Repair a dataset as far as possible, its indices in one commit; False if nothing was done."""
    own = [problem for problem in problems if problem.dataset == uuid]
    repairable = [problem for problem in own if problem.repairable]
    if not repairable or any(problem.kind in _UNREPAIRABLE for problem in own):
        return False
    if any(problem.kind == "unfinished-operation" for problem in repairable):
        finish_operation(open_blobs(store), uuid)
    if any(problem.kind in ("schema-pending", "missing-schema") for problem in repairable):
        _put_schema(uuid, store)
    columns = sorted({problem.column for problem in repairable if problem.column is not None})
    if columns:
        _build_indices(uuid, store, columns)
    return True


def _build_indices(uuid: str, store: StoreInput, columns: Sequence[str]) -> None:
    dataset = DatasetFactory(uuid, store_factory(store))
    context, tasks = build_index.plan_index_build(dataset, columns, _PARTITIONS_PER_TASK)
    results = ordered_map(partial(build_index.run_index_build, context), tasks, available_cores())
    build_index.finish_index_build(context, list(results))


def _put_schema(uuid: str, store: StoreInput) -> None:
    """Put the schema of the stored header, unless a concurrent write puts one."""
    blobs = open_blobs(store)
    dataset = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    key = naming.schema_key(uuid, dataset.table_name)
    _, token = read_versioned(blobs, key)
    try:
        dataset = DatasetMetadata.load_from_store(uuid, blobs)
        schema = dataset.schema
    except KeyError:
        schema = recover_schema(dataset, blobs)
    if schema is None:
        return
    content = schema_to_bytes(VersionedSchema(schema, schema_version_of(dataset.metadata)))
    # a commit that was faster has put the schema itself
    with suppress(PreconditionFailed):
        blobs.put_if(key, content, token)


def compare_reports(before: Report, after: Report) -> Report:
    """The report after a repair, which also lists the problems that are solved."""
    remaining = {(problem.dataset, problem.kind, problem.key, problem.column) for problem in after.problems}
    solved = [p for p in before.problems if (p.dataset, p.kind, p.key, p.column) not in remaining]
    return Report(after.problems, after.checked, solved)
