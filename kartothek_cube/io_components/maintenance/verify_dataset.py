"""Verify a dataset: header, schema, labels, history; its files; its indices against the data; reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube import display
from kartothek_cube.core import arguments, arrow, dataset_files, errors, history, naming, old_parquet, pruning
from kartothek_cube.core.commit import header_store, operation
from kartothek_cube.core.commit.change import IndexUpdate
from kartothek_cube.core.cube import constants, discover
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import format_count
from kartothek_cube.core.evolution import ColumnMapping
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable, cells_of_names
from kartothek_cube.core.schema import SchemaWrapper, make_meta, schema_file_from_bytes, validate_compatible
from kartothek_cube.core.store import BlobStore, StoreFactory, StoreInput, open_blobs
from kartothek_cube.core.transforms import PartitionTransform, read_transforms
from kartothek_cube.io_components import kernels, scan
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.publication.delta_log import published_keys
from kartothek_cube.io_components.publication.published_table import find_publication
from kartothek_cube.io_components.runtime import batched, store_factory
from kartothek_cube.io_components.write import table_writer
from kartothek_cube.serialization import ParquetReadError, parquet

_RESTORE = "Restore the file from a backup, roll back to a complete state, or write the rows again."
_REWRITE = "Write the rows of this partition again."
_REPAIR = "Repair the dataset: the index is rebuilt from the data."

#: kind of a problem -> what to do about it
REMEDIES: Mapping[str, str] = {
    "header": "Restore the header from a backup, or delete it and write the dataset again.",
    "two-headers": "Find out which header is outdated, and delete that one.",
    "outdated-header": "Delete this header, or write to the dataset: that deletes it.",
    "schema": "Restore the schema file from a backup, or write the dataset again.",
    "missing-schema": "Repair the dataset: the schema is in its header, or in the footers of its files.",
    "schema-pending": "Repair the dataset: the schema file gets the schema of the header.",
    "label": "Write the dataset again: the values of its partition keys are unknown.",
    "path": _REWRITE,
    "shared-file": _REWRITE,
    "missing-file": _RESTORE,
    "unreadable-file": _RESTORE,
    "file-schema": _REWRITE,
    "wrong-partition": _REWRITE,
    "null-key": "Write the rows of this partition again, with values in place of the nulls or without these "
    "rows; or open the cube without this index column, if it is one.",
    "unsorted": "Compact the cube, or write the rows of this partition again.",
    "duplicate-cells": "Within a partition, compact the cube: the last row of a cell counts. In several "
    "partitions, remove the wrong rows; if all are right, the partition column is a dimension.",
    "wrong-name": "Write the partition again: queries go by the name of its file.",
    "missing-index": _REPAIR,
    "unreadable-index": _REPAIR,
    "index-type": _REPAIR,
    "index-unknown-partition": _REPAIR,
    "index-incomplete": _REPAIR,
    "index-excess": _REPAIR,
    "index-absent": "Repair the cube: the index is built from the data.",
    "missing-statistics": "Repair the dataset: the statistics are built from the data.",
    "wrong-statistics": "Repair the dataset: the statistics are built from the data.",
    "history": "Delete this copy of an older state; the dataset itself does not need it.",
    "history-file": "Restore the file from a backup; else the older state cannot be read.",
    "publication": "Publish the dataset again.",
    "publication-log": "Unpublish the dataset, and publish it again.",
    "unfinished-operation": "Repair the cube, or write to the dataset: both return to the state before.",
    "unknown-operation": "Compare the datasets; the next write to the dataset removes this problem.",
    "seed": "Build the seed, or name the right one in the specification of the cube.",
    "cube-table": "Delete this dataset or give it another name: it cannot be part of the cube.",
    "cube-columns": "Write the dataset again with the columns that the cube demands.",
    "cube-metadata": "Use the specification with which the cube was built (discover_cube returns it).",
    "no-specification": "Write to the dataset, by append_to_cube: that stores the specification again.",
    "payload-overlap": "Drop the column of one (update_dataset_schema), or delete the dataset (delete_cube).",
    "contract": "Correct the rows, by merge_into_cube, or change the contract by set_contract.",
    "type-conflict": "Write one of the datasets again with the type of the other one.",
}

#: kinds of problems that a repair solves: that is their remedy
REPAIRABLE = frozenset(kind for kind, remedy in REMEDIES.items() if remedy.startswith("Repair the "))

_SHOWN = 20
#: counted objects, in plural and singular
_SINGULAR = {"datasets": "dataset", "files": "file", "rows": "row", "indices": "index"}


@attrs.frozen
class Problem:
    """Something that is not as it has to be.

    Attributes
    ----------
    dataset
        Uuid of the dataset; that of the seed, or the prefix, for the cube as a whole.
    kind
        What sort of problem it is, one of a fixed set of words.
    key
        Storage key of the file that is concerned.
    message
        What is wrong.
    column
        Column that is concerned, if it is one.
    """

    dataset: str
    kind: str = attrs.field(validator=attrs.validators.in_(REMEDIES))
    key: str
    message: str
    column: str | None = None

    @property
    def remedy(self) -> str:
        """Remedy of the problem."""
        return REMEDIES[self.kind]

    @property
    def repairable(self) -> bool:
        """Whether a repair solves it."""
        return self.kind in REPAIRABLE

    def to_dict(self) -> dict[str, Any]:
        """All facts, fit for JSON."""
        return {**attrs.asdict(self), "remedy": self.remedy, "repairable": self.repairable}

    def __str__(self) -> str:
        return f"{self.dataset}: {self.kind}: {self.message} [{self.key}]"


@attrs.frozen(repr=False)
class Report:
    """The result of a check.

    Attributes
    ----------
    problems
        What is wrong.
    checked
        How many ``datasets``, ``files``, ``rows`` and ``indices`` were looked at.
    repaired
        Problems that were there before a repair and are gone.
    """

    problems: tuple[Problem, ...] = attrs.field(converter=tuple[Problem, ...])
    checked: Mapping[str, int] = attrs.field(factory=dict)
    repaired: tuple[Problem, ...] = attrs.field(default=(), converter=tuple[Problem, ...])

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The report as plain objects, fit for JSON.

        Returns
        -------
        dict
        """
        return {
            "ok": self.ok,
            "checked": dict(self.checked),
            "problems": [problem.to_dict() for problem in self.problems],
            "repaired": [problem.to_dict() for problem in self.repaired],
        }

    def to_pandas(self) -> pd.DataFrame:
        """The problems as a frame, one row each.

        Returns
        -------
        pandas.DataFrame
        """
        columns = ["dataset", "kind", "key", "column", "message", "remedy", "repairable"]
        return pd.DataFrame(map(Problem.to_dict, self.problems), columns=columns)

    def describe_checked(self) -> str:
        """Counts of the checked objects, in words."""
        return ", ".join(format_count(n, _SINGULAR.get(what, what), what) for what, n in self.checked.items())

    def __repr__(self) -> str:
        counts = self.describe_checked()
        suffix = f" in {counts}" if counts else ""
        lines = [f"{len(self.problems) or 'no'} problem{'s' * (len(self.problems) != 1)}{suffix}"]
        for problem in self.problems[:_SHOWN]:
            lines += [str(problem), f"    {problem.remedy}"]
        if len(self.problems) > _SHOWN:
            lines.append(f"and {len(self.problems) - _SHOWN} more, see to_pandas()")
        lines += [f"repaired: {problem}" for problem in self.repaired[:_SHOWN]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        counts = {"problems": len(self.problems), "repaired": len(self.repaired), **self.checked}
        header = ["dataset", "kind", "key", "message", "remedy"]
        rows = [[getattr(problem, name) for name in header] for problem in self.problems]
        return display.card("", display.facts(counts), display.table("Problems", header, rows))


# -- datasets ------------------------------------------------------------------------------------------------

_PARTITIONS_PER_TASK = 16
#: entries of an index that a message names
_EXAMPLES = 3
#: errors of a file that is damaged, or no Parquet file
_UNREADABLE = (errors.CorruptDatasetError, ParquetReadError, pa.ArrowException, EOFError, OSError)


@attrs.frozen
class VerifyContext:
    """State shared by all tasks that check files of a dataset."""

    store: StoreFactory
    #: the state that is checked, without partitions
    dataset: DatasetMetadata = attrs.field(eq=False, repr=False)
    schema: pa.Schema
    #: dimension columns, if it is a dataset of a cube
    cell: tuple[str, ...]
    #: columns without nulls
    not_null: tuple[str, ...]
    #: whether all rows are read, or only the footers
    deep: bool
    #: partition keys that follow from other columns
    transforms: tuple[PartitionTransform, ...]
    #: how to read files that were written before a change of the schema
    mapping: ColumnMapping | None = attrs.field(eq=False, repr=False)


@attrs.frozen
class VerifyResult:
    """Problems and index entries of files of a dataset."""

    problems: tuple[Problem, ...] = ()
    #: counts
    files: int = 1
    rows: int = 0
    #: index entries according to the data, by column
    entries: Mapping[str, IndexUpdate] = attrs.field(factory=dict)
    #: column statistics according to the data
    statistics: pa.Table | None = None


@attrs.frozen
class VerifyPlan:
    """A planned verification of a dataset."""

    uuid: str
    #: problems of the header, the schema and the listed files
    problems: tuple[Problem, ...]
    #: the state that is checked; None if it cannot be read
    dataset: DatasetMetadata | None = None
    #: the check of data files, and the partitions to check; None if the schema cannot be read
    context: VerifyContext | None = None
    partitions: PartitionTable | None = None


# -- plan: rules of the header, and of a listing -------------------------------------------------------------


def plan_verify(
    uuid: str, store: StoreInput, *, deep: bool = True, cell: Sequence[str] = (), not_null: Sequence[str] = ()
) -> VerifyPlan:
    """Check a dataset without opening data files, and plan the check of these."""
    blobs = open_blobs(store)
    headers = [key for key in naming.header_keys(uuid) if blobs.exists(key)]
    problems = [_other_header_problem(uuid, headers, blobs)] if len(headers) > 1 else []
    try:
        newest = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
        problems += _operation_problems(newest, blobs)
        visible = _find_visible(newest, blobs)
    except errors.DatasetNotFoundError:
        raise
    except (errors.CorruptDatasetError, NotImplementedError, RuntimeError, ValueError) as error:
        return VerifyPlan(uuid, (*problems, Problem(uuid, "header", headers[0], str(error))))
    if visible is None:
        return VerifyPlan(uuid, tuple(problems))
    dataset = visible
    problems += _history_problems(dataset, blobs)
    try:
        dataset = _find_visible(DatasetMetadata.load_from_store(uuid, blobs), blobs) or dataset
    except (errors.CorruptDatasetError, KeyError) as error:
        schema = recover_schema(dataset, blobs) if isinstance(error, KeyError) else None
        if schema is None:
            key = naming.schema_key(uuid, dataset.table_name)
            problems.append(Problem(uuid, "schema", key, f"the schema cannot be read: {error}"))
            return VerifyPlan(uuid, (*problems, *_find_files(dataset, blobs)[0]), dataset)
        dataset = dataset.copy(schema=schema)
    problems += [*_schema_file_problems(dataset, blobs), *_publication_problems(dataset, blobs)]
    of_files, present = _find_files(dataset, blobs)
    problems += [*of_files, *_label_problems(dataset)]
    if dataset.schema is None or not {"label", "schema"}.isdisjoint(problem.kind for problem in problems):
        return VerifyPlan(uuid, tuple(problems), dataset)
    try:
        mapping, transforms = dataset.column_mapping, read_transforms(dataset.metadata)
    except errors.CorruptDatasetError as error:
        return VerifyPlan(uuid, (*problems, Problem(uuid, "header", headers[0], str(error))), dataset)
    context = VerifyContext(
        store_factory(store),
        dataset.copy(partitions={}),
        dataset.schema.internal().remove_metadata(),
        tuple(c for c in cell if c in dataset.schema.names),
        tuple(not_null),
        deep,
        transforms or (),
        mapping,
    )
    return VerifyPlan(uuid, tuple(problems), dataset, context, present)


def _find_visible(newest: DatasetMetadata, blobs: BlobStore) -> DatasetMetadata | None:
    """The state that readers see; None if an operation creates the dataset that has not committed."""
    try:
        return operation.resolve_pending(blobs, newest)
    except (errors.CorruptDatasetError, NotImplementedError):
        # of the coordinator, or of the state before: problems of their own
        return newest


def _find_files(dataset: DatasetMetadata, blobs: BlobStore) -> tuple[list[Problem], PartitionTable]:
    """Files that do not exist, or belong to several partitions; and the partitions whose file exists."""
    stored = pa.array([blob.key for blob in blobs.list(f"{dataset.uuid}/")], pa.string())
    present, missing, shared = dataset.partition_table, list[str](), list[str]()
    for name, keys in dataset.partition_table.files.items():
        exists = pc.is_in(keys, value_set=stored)
        missing += keys.filter(pc.invert(exists)).to_pylist()
        counts = pc.value_counts(keys)
        shared += counts.filter(pc.greater(counts.field(1), 1)).field(0).to_pylist()
        if name == dataset.table_name:
            present = dataset.partition_table.filter(exists)
    if missing:
        # a commit may have replaced them, and a cleanup deleted them, since the header was read
        newest = DatasetMetadata.load_from_store(dataset.uuid, blobs, load_schema=False)
        visible = _find_visible(newest, blobs)
        referenced = set() if visible is None else set(dataset_files.data_keys(visible))
        # a file system that ignores case may list a file in the case of another partition
        missing = [key for key in missing if key in referenced and not (blobs.is_local and blobs.exists(key))]
    text = "the header refers to this file, but it does not exist"
    problems = [Problem(dataset.uuid, "missing-file", key, text) for key in missing]
    text = "several partitions refer to this file"
    return [*problems, *(Problem(dataset.uuid, "shared-file", key, text) for key in shared)], present


def _label_problems(dataset: DatasetMetadata) -> Iterator[Problem]:
    """Labels that do not fit the partition keys, and files in another directory than their label says."""
    table = dataset.partition_table
    if not dataset.partition_keys or dataset.schema is None:
        return
    try:
        dataset.key_columns()
    except errors.CorruptDatasetError as error:
        yield Problem(dataset.uuid, "label", error.key, str(error))
        return
    except ValueError as error:
        # the schema lacks a partition key
        yield Problem(dataset.uuid, "schema", naming.schema_key(dataset.uuid, dataset.table_name), str(error))
        return
    for name, keys in table.files.items():
        derived = PartitionTable.from_labels(dataset.uuid, name, table.labels).files[name]
        moved = pc.not_equal(keys, derived)
        pairs = [column.filter(moved).to_pylist() for column in (table.labels, keys)]
        for label, key in zip(*pairs, strict=True):
            # columns and values; labels of early versions have none
            of_label, of_key = (
                naming.unquote_indices(path.split("/")[:-1])
                for path in (label, key.partition("/")[2].partition("/")[2])
            )
            if of_label and of_label != of_key:
                text = f"the file of partition {label} lies in another directory than its values say"
                yield Problem(dataset.uuid, "path", key, text)


def _schema_file_problems(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[Problem]:
    key = naming.schema_key(dataset.uuid, dataset.table_name)
    if dataset.schema is None:
        return
    try:
        file = schema_file_from_bytes(blobs.get(key), key)
    except (errors.CorruptDatasetError, KeyError) as error:
        problem = "does not exist" if isinstance(error, KeyError) else f"cannot be read: {error}"
        yield Problem(dataset.uuid, "missing-schema", key, f"the schema file {problem}")
        return
    if not file.schema.equals(dataset.schema):
        text = (
            "the schema differs from that of the header, as while a write is in progress, or after it was "
            "killed; this library reads the header, others this file"
        )
        yield Problem(dataset.uuid, "schema-pending", key, text)


def _operation_problems(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[Problem]:
    """Operations on several datasets that have not committed, or whose status other software has removed."""
    participation = operation.pending_participation(dataset)
    if participation is None:
        return
    uuid, kind = dataset.uuid, "unknown-operation"
    try:
        status = operation.operation_status(blobs, uuid, participation)
        coordinator = operation.read_record(blobs, participation.coordinator)
    except (errors.CorruptDatasetError, NotImplementedError) as error:
        text = (
            f"whether an operation on this dataset and {participation.coordinator} was committed cannot be "
            f"read: {error}"
        )
    else:
        if status is not operation.Status.COMMITTED:
            kind = "unfinished-operation"
            text = (
                "an operation on several datasets has not committed: its writer has died, or is at work; "
                "readers see the state before it"
            )
            try:
                operation.resolve_pending(blobs, dataset)
            except errors.CorruptDatasetError as error:
                yield Problem(uuid, "header", error.key, str(error))
        elif coordinator is None or coordinator.lineage != participation.lineage:
            text = (
                f"other software has written or deleted {participation.coordinator} since an operation on "
                "both: whether that was committed is not known, and readers see it"
            )
        else:
            return
    yield Problem(uuid, kind, naming.metadata_key_from_uuid(uuid), text)


def _publication_problems(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[Problem]:
    """A published table that shows another state, or files that do not exist any more."""
    if operation.is_hidden(dataset):
        return
    try:
        table = find_publication(blobs, dataset)
        if table is not None and not table.is_current:
            text = "the published table shows another state of the dataset than the newest one"
            yield Problem(dataset.uuid, "publication", table.key, text)
            stored = {blob.key for blob in blobs.list(f"{dataset.uuid}/")}
            for missing in sorted(published_keys(blobs, dataset.uuid) - stored):
                text = "the published table shows this file, but it does not exist"
                yield Problem(dataset.uuid, "publication", missing, text)
    except (errors.CorruptDatasetError, errors.MissingFileError) as error:
        yield Problem(dataset.uuid, "publication-log", error.key, str(error))


def _other_header_problem(uuid: str, headers: Sequence[str], blobs: BlobStore) -> Problem:
    """What is wrong with a dataset that has headers in JSON and in msgpack."""
    with suppress(KeyError, NotImplementedError, RuntimeError, ValueError):
        state = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
        if header_store.is_outdated(blobs.get(headers[1]), headers[1], state):
            text = f"other software has updated the dataset by another header, {headers[0]}"
            return Problem(uuid, "outdated-header", headers[1], text)
    text = f"there is another header, {headers[1]}, and it is unknown which one holds the state"
    return Problem(uuid, "two-headers", headers[0], text)


def _history_problems(dataset: DatasetMetadata, blobs: BlobStore) -> Iterator[Problem]:
    uuid = dataset.uuid
    copies = list(filter(history.is_snapshot_key, (b.key for b in blobs.list(history.history_folder(uuid)))))
    if not copies:
        return
    # missing files that the newest state needs as well are problems of that state
    present = {blob.key for blob in blobs.list(f"{uuid}/")}.union(dataset_files.file_keys(dataset))
    for copy in copies:
        try:
            state = history.load_snapshot(uuid, blobs, copy)
        except KeyError:
            # a commit has expired it since
            continue
        except (errors.CorruptDatasetError, NotImplementedError) as error:
            yield Problem(uuid, "history", copy, f"the copy of an older state cannot be read: {error}")
            continue
        text = f"an older state ({copy}) needs this file, which is gone"
        for key in dataset_files.file_keys(state):
            if key not in present:
                yield Problem(uuid, "history-file", key, text)


def recover_schema(dataset: DatasetMetadata, blobs: BlobStore) -> SchemaWrapper | None:
    """The schema of a dataset that has none, from its data files; None if a type is unknown."""
    # Footers do not have the types of partition keys, which other datasets of the cube have. A guess will not
    # do: a partition key "1" may be a text or a number.
    key = naming.schema_key(dataset.uuid, dataset.table_name)
    files = dataset.partition_table.files.get(dataset.table_name, pa.array([], pa.string())).to_pylist()
    try:
        types = _key_types(dataset, blobs)
        if types is None:
            return None
        footers = [parquet.read_footer(blobs, f)[0] for f in files if f.endswith(naming.PARQUET_FILE_SUFFIX)]
        merged = validate_compatible(make_meta(old_parquet.schema_of_footer(f), key) for f in footers)
    except (errors.CorruptDatasetError, KeyError, ValueError):
        # damaged or missing data files, and other datasets, are problems of their own
        return None
    if merged is None:
        return None
    file_schema = merged.internal()
    in_files = dict(zip(file_schema.names, file_schema.types, strict=True))
    others = {name: dtype for name, dtype in types.items() if name not in in_files}
    schema = pa.schema({**others, **in_files}.items(), file_schema.metadata)
    return make_meta(schema, key, partition_keys=dataset.partition_keys)


def _key_types(dataset: DatasetMetadata, blobs: BlobStore) -> dict[str, pa.DataType] | None:
    """Types of the partition keys in other datasets of the cube; None if one is unknown."""
    prefix, separator, _ = dataset.uuid.partition(constants.KTK_CUBE_UUID_SEPARATOR)
    types: dict[str, pa.DataType] = {}
    if separator and dataset.partition_keys:
        for other in discover.discover_datasets_unchecked(prefix, blobs).values():
            if other.schema is not None:
                types |= {name: other.schema.field(name).type for name in other.schema.names}
    is_known = set(dataset.partition_keys) <= types.keys()
    return {name: types[name] for name in dataset.partition_keys} if is_known else None


# -- run: rules of data files --------------------------------------------------------------------------------


def _run(contexts: Mapping[str, VerifyContext], task: tuple[str, PartitionTable]) -> tuple[str, VerifyResult]:
    """Check the files of some partitions of a dataset, given by its name."""
    dataset, partitions = task
    context = contexts[dataset]
    blobs, results = open_blobs(context.store), []
    values = partitions.keys(context.dataset.partition_keys, context.schema)
    ((_, keys),) = partitions.files.items()
    for row, (label, key) in enumerate(zip(partitions.labels.to_pylist(), keys.to_pylist(), strict=True)):
        own = {column: array[row] for column, array in values.items()}
        results.append(_check_file(context, blobs, label, key, own))
    return dataset, _merge(results)


def _merge(results: Sequence[VerifyResult]) -> VerifyResult:
    columns = sorted({column for part in results for column in part.entries})
    return VerifyResult(
        tuple(problem for part in results for problem in part.problems),
        sum(part.files for part in results),
        sum(part.rows for part in results),
        {c: IndexUpdate.merge([part.entries[c] for part in results if c in part.entries]) for c in columns},
        pruning.concat_statistics(part.statistics for part in results),
    )


def _check_file(
    context: VerifyContext, blobs: BlobStore, label: str, key: str, values: Mapping[str, Any]
) -> VerifyResult:
    if not context.deep and not key.endswith(naming.PARQUET_FILE_SUFFIX):
        return VerifyResult()
    table = None
    try:
        if context.deep:
            table = scan.read_file(blobs, key, schema=context.schema, mapping=context.mapping)
            schema, rows = table.schema, len(table)
        if key.endswith(naming.PARQUET_FILE_SUFFIX):
            # reads give times the zone of the schema
            footer, _ = parquet.read_footer(blobs, key)
            schema, rows = old_parquet.schema_of_footer(footer), footer.num_rows
            schema = schema if context.mapping is None else context.mapping.schema_of(schema)
    except KeyError:
        return VerifyResult((Problem(context.dataset.uuid, "missing-file", key, "the file does not exist"),))
    except _UNREADABLE as error:
        text = f"the file cannot be read: {error}"
        return VerifyResult((Problem(context.dataset.uuid, "unreadable-file", key, text),))
    problems = list(_schema_problems(context, key, schema))
    if table is None:
        return VerifyResult(tuple(problems), rows=rows)
    problems += _place_problems(context, key, table, values)
    problems += _cell_problems(context, key, table)
    problems += _name_problems(context, label, key, table)
    entries, statistics, dataset = {}, None, context.dataset
    first, labels = np.zeros(1, np.int64), pa.array([label])
    present = {*table.column_names}.intersection(context.schema.names)
    for column in sorted(present.intersection(dataset.secondary_indices)):
        # the file has another type, which is reported already
        with suppress(pa.ArrowException):
            dtype = context.schema.field(column).type
            own = table.column(column).cast(dtype)
            entries[column] = table_writer.index_entries(own, first, labels, dtype)
    columns = [context.schema.field(c) for c in pruning.statistics_columns(dataset.metadata) if c in present]
    if columns:
        with suppress(pa.ArrowException):
            typed = {field.name: table.column(field.name).cast(field.type) for field in columns}
            statistics = pruning.collect_statistics(typed, first, labels)
    return VerifyResult(tuple(problems), rows=rows, entries=entries, statistics=statistics)


def _schema_problems(context: VerifyContext, key: str, schema: pa.Schema) -> Iterator[Problem]:
    """Columns that are missing in a file, not in the schema, or of another type."""
    uuid, kind = context.dataset.uuid, "file-schema"
    file_schema = make_meta(schema, origin=key)
    expected = [name for name in context.schema.names if name not in context.dataset.partition_keys]
    missing = sorted(set(expected) - set(file_schema.names))
    # columns of nulls that other files lack are not in the schema
    typed = {field.name for field in file_schema if not pa.types.is_null(field.type)}
    extra = sorted(typed - set(expected) - set(context.dataset.partition_keys))
    if missing:
        yield Problem(uuid, kind, key, f"columns are missing: {', '.join(missing)}", missing[0])
    if extra:
        text = f"columns are not in the schema of the dataset: {', '.join(extra)}"
        yield Problem(uuid, kind, key, text, extra[0])
    types = {field.name: field.type for field in file_schema}
    for name in (name for name in expected if name in types):
        stored, expected_type = types[name], context.schema.field(name).type
        if not _is_readable_as(stored, expected_type):
            text = f"column {name} has type {stored}, but the dataset says {expected_type}"
            yield Problem(uuid, kind, key, text, name)


def _is_readable_as(stored: pa.DataType, expected: pa.DataType) -> bool:
    """Whether reads turn a type into the recorded one, as that of nulls, or of objects of kartothek."""
    if arrow.same_type(stored, expected) or (arrow.has_zone(stored) and arrow.has_zone(expected)):
        return True
    if not (pa.types.is_nested(stored) or pa.types.is_nested(expected)):
        # reads refuse a condition on a float in a file of integers
        is_other = pa.types.is_integer(stored) and pa.types.is_floating(expected)
        return arrow.promotes_to(stored, expected) and not is_other
    if pa.types.is_null(stored):
        return True
    if stored.id != expected.id or stored.num_fields != expected.num_fields:
        return False
    pairs = [(stored.field(number), expected.field(number)) for number in range(stored.num_fields)]
    return all(a.name == b.name and _is_readable_as(a.type, b.type) for a, b in pairs)


def _place_problems(
    context: VerifyContext, key: str, table: pa.Table, values: Mapping[str, Any]
) -> Iterator[Problem]:
    """Partition keys that rows have, or imply, with other values than in the path of the file."""
    derived, present = {t.name: t for t in context.transforms}, {*table.column_names}
    for column, value in values.items():
        source = column if column in present or column not in derived else derived[column].column
        if source not in present:
            continue
        try:
            stored = table.column(source)
            if source != column:
                # conditions on the other column would not find rows with another value
                stored = derived[column].apply(stored.drop_null())
            same = pc.equal(stored.cast(value.type), value)
        except (pa.ArrowException, TypeError, ValueError):
            same = pa.array([False])
        if not pc.all(pc.fill_null(same, False), min_count=0).as_py():
            text = f"rows have other values of {column} than {value.as_py()!r}, the one of their partition"
            yield Problem(context.dataset.uuid, "wrong-partition", key, text, column)


def _cell_problems(context: VerifyContext, key: str, table: pa.Table) -> Iterator[Problem]:
    """Nulls in key columns, unsorted rows and duplicate cells of a file of a cube."""
    uuid, n_rows = context.dataset.uuid, len(table)
    for column in context.not_null:
        nulls = arrow.count_nulls(table.column(column)) if column in table.column_names else 0
        if nulls:
            counts = f"{format_count(nulls, 'null')} in {format_count(n_rows, 'row')}"
            yield Problem(uuid, "null-key", key, f"column {column} has {counts}", column)
    cell = [column for column in context.cell if column not in context.dataset.partition_keys]
    if not cell or not set(cell) <= set(table.column_names):
        return
    columns, names = [table.column(column) for column in cell], ", ".join(cell)
    if kernels.strictly_increasing(columns, n_rows):
        return
    if kernels.sort_order(columns, n_rows) is not None:
        yield Problem(uuid, "unsorted", key, f"rows are not sorted by {names}")
    last = kernels.last_rows_mask(columns, n_rows)
    if last is not None:
        row = table.select(cell).slice(int(np.flatnonzero(~last)[0]), 1).to_pylist()[0]
        n_repeated = int((~last).sum())
        verb = "has" if n_repeated == 1 else "have"
        counts = format_count(n_repeated, "row")
        text = f"{counts} {verb} a cell of {names} that comes again, such as {row}"
        yield Problem(uuid, "duplicate-cells", key, text)


def _name_problems(context: VerifyContext, label: str, key: str, table: pa.Table) -> Iterator[Problem]:
    """The name of a file has the digest of other cells."""
    if cells_of_names([label]) is None or not {*context.cell}.isdisjoint(context.dataset.partition_keys):
        return
    names = [column for column in context.cell if column in table.column_names]
    for columns in product(*(_in_stored_units(table.column(name)) for name in names)):
        rows = pa.table(list(columns), names=names)
        (suffix,) = table_writer.cells_suffixes(names, rows, np.zeros(1, np.int64))
        # of rows that are not sorted, or repeat a cell, this is not known, and reported already
        if not suffix or cells_of_names([f"{'0' * 32}{suffix}"]) == cells_of_names([label]):
            return
    yield Problem(context.dataset.uuid, "wrong-name", key, "its name has the digest of other cells")


def _in_stored_units(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Values of a key column as they may have been when the name of their file was made."""
    yield column
    if pa.types.is_timestamp(column.type) and column.type.unit == "us":
        # microseconds since another file got times that nanoseconds do not reach
        with suppress(pa.ArrowInvalid):
            yield column.cast(pa.timestamp("ns", column.type.tz))


# -- finish: rules of indices --------------------------------------------------------------------------------


def _index_problems(
    dataset: DatasetMetadata, index: ExplicitSecondaryIndex, entries: IndexUpdate | None, blobs: BlobStore
) -> Iterator[Problem]:
    """Problems of an index; its entries are compared with those of the data if these are known."""
    uuid, column = dataset.uuid, index.column
    key = index.index_storage_key or f"{uuid} (inline)"
    try:
        # without the recorded type: to load an index of another type is an error, which is reported below
        stored = index if index.loaded else ExplicitSecondaryIndex(column, index_storage_key=key)
        data = stored.load(blobs).columns_data
    except KeyError:
        yield Problem(uuid, "missing-index", key, f"the index of {column} does not exist", column)
        return
    except (errors.CorruptDatasetError, ValueError, NotImplementedError) as error:
        text = f"the index of {column} cannot be read: {error}"
        yield Problem(uuid, "unreadable-index", key, text, column)
        return
    if data is None:
        return
    if dataset.schema is not None:
        dtype = dataset.schema.field(column).type if column in dataset.schema.names else None
        # reads give times the zone of the schema
        data = data if dtype is None else data.cast(arrow.with_zone_of(data.values.type, dtype))
        if dtype is None or not (pa.types.is_null(dtype) or data.values.type.equals(dtype)):
            text = f"the index of {column} has type {data.values.type}, but the dataset says {dtype}"
            yield Problem(uuid, "index-type", key, text, column)
            return
    if dataset.explicit_partitions:
        used = data.labels.take(pa.array(np.unique(data.codes)))
        unknown = used.filter(pa.array(dataset.partition_table.positions(used) < 0)).to_pylist()
        if unknown:
            counts = format_count(len(unknown), "partition")
            text = f"knows {counts} that the dataset does not have, such as {unknown[0]}"
            yield Problem(uuid, "index-unknown-partition", key, f"the index of {column} {text}", column)
    if entries is not None:
        for kind, text in _compare_entries(data, entries):
            yield Problem(uuid, kind, key, f"the index of {column} {text}", column)


def _compare_entries(index: IndexColumns, data: IndexUpdate) -> Iterator[tuple[str, str]]:
    """Entries of the data that are not in the index, and entries of the index that are not in the data."""
    dtype, actual = index.values.type, data.entries
    if not actual.values.type.equals(dtype):
        actual = actual.cast(dtype) if len(actual) else IndexColumns.empty(dtype)
    sides = [index.keep_labels(data.covered), actual]
    if sides[0].equals(sides[1]):
        return
    values = pa.concat_arrays([side.pairs()[0] for side in sides])
    labels = pa.concat_arrays([side.entry_labels() for side in sides])
    codes = kernels.group_codes([values, labels], len(values))
    _, rows = np.unique(codes, return_index=True)
    stored, true = np.split(codes, [len(sides[0].pairs()[0])])
    for kind, excess, text in (
        ("index-incomplete", np.setdiff1d(true, stored), "has no entries for"),
        ("index-excess", np.setdiff1d(stored, true), "has entries that the data does not have:"),
    ):
        if len(excess):
            first = rows[excess[:_EXAMPLES]].tolist()
            examples = "; ".join(f"{values[row].as_py()!r} in {labels[row].as_py()}" for row in first)
            yield kind, f"{text} {format_count(len(excess), 'value')} in partitions, as {examples}"


def _statistics_problems(
    dataset: DatasetMetadata, actual: pa.Table | None, blobs: BlobStore
) -> Iterator[Problem]:
    """Problems of column statistics; those of the data are None if they are not known."""
    key = pruning.statistics_file(dataset.uuid, dataset.extra)
    stored = dataset.load_statistics(blobs)
    if key is not None and stored is None:
        text = "the column statistics are missing or cannot be read, and nothing is pruned"
        yield Problem(dataset.uuid, "missing-statistics", key, text)
    if key is not None and stored is not None and actual is not None:
        for column in pruning.differing_columns(stored, actual):
            text = f"the statistics of {column} are not those of the data"
            yield Problem(dataset.uuid, "wrong-statistics", key, text)


FindMore: TypeAlias = Callable[[Mapping[str, VerifyResult]], Iterable[Problem]]

# -- the job -------------------------------------------------------------------------------------------------


def verify_job(
    kind: str,
    name: str,
    store: StoreInput,
    plans: Mapping[str, VerifyPlan],
    find_more: FindMore = lambda results: (),
) -> Job[Report]:
    """Check files of datasets, then their indices, then what `find_more` finds; `plans` by name."""
    tasks = [
        (dataset, plan.partitions.take(rows))
        for dataset, plan in plans.items()
        if plan.partitions is not None
        for rows in batched(range(len(plan.partitions)), _PARTITIONS_PER_TASK)
    ]
    return Job(
        name=f"verify_{kind}",
        description=f"verify {kind} {name}",
        context={dataset: plan.context for dataset, plan in plans.items() if plan.context is not None},
        tasks=tasks,
        run=_run,
        finish=partial(_finish, store_factory(store), plans, find_more),
        steps=("prepare", "files", "report"),
        is_parallel=True,
        files=sum(len(partitions) for _, partitions in tasks),
    )


def _finish(
    store: StoreFactory,
    plans: Mapping[str, VerifyPlan],
    find_more: FindMore,
    parts: Iterable[tuple[str, VerifyResult]],
) -> Report:
    """Compare indices with the data, and report all problems."""
    blobs = open_blobs(store)
    by_dataset: dict[str, list[VerifyResult]] = {name: [] for name in plans}
    for name, part in parts:
        by_dataset[name].append(part)
    results = {name: _merge(own) for name, own in by_dataset.items()}
    problems = list(find_more(results))
    n_indices = 0
    for name, plan in plans.items():
        result = results[name]
        own = [*plan.problems, *result.problems]
        if plan.dataset is not None:
            n_indices += len(plan.dataset.secondary_indices)
            for column, index in plan.dataset.secondary_indices.items():
                own += _index_problems(plan.dataset, index, result.entries.get(column), blobs)
            own += _statistics_problems(plan.dataset, result.statistics, blobs)
        problems += sorted(dict.fromkeys(own), key=lambda p: (p.dataset, p.kind, p.key, p.message))
    n_files, n_rows = (sum(getattr(r, name) for r in results.values()) for name in ("files", "rows"))
    # what is kept of those that a rollback has hidden is checked as well, but readers do not see them
    n_datasets = sum(plan.dataset is None or not operation.is_hidden(plan.dataset) for plan in plans.values())
    checked = {"datasets": n_datasets, "files": n_files, "rows": n_rows, "indices": n_indices}
    return Report(problems, checked)


def verify_dataset_job(dataset: DatasetFactory, *, deep: bool = True) -> Job[Report]:
    """Check the files of a dataset, then its indices."""
    arguments.check_flag("deep", deep)
    uuid, store = dataset.dataset_uuid, dataset.store_factory
    return verify_job("dataset", uuid, store, {uuid: plan_verify(uuid, store, deep=deep)})
