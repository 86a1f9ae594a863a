"""Write a cube as planned: run (files of its datasets), finish (one commit, checked before)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import same_type, widen
from kartothek_cube.core.commit.base_state import CommitReceipt
from kartothek_cube.core.commit.change import ChangeSet, IndexUpdate, WriteMode, compute_schema
from kartothek_cube.core.commit.operation import Role, commit_operation
from kartothek_cube.core.commit.publish import commit
from kartothek_cube.core.commit.undo import undo_all
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.consistency import find_violations, get_payload_subset
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import discover_datasets_unchecked
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import (
    ConcurrentWriteError,
    DatasetNotFoundError,
    DuplicateCellsError,
    MultiTableCommitAborted,
    SchemaConflictError,
)
from kartothek_cube.core.history import OperationInfo
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.display import card
from kartothek_cube.display import table as html_table
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.read.repeated_cells import find_repeated_cells
from kartothek_cube.io_components.write.cube_plan import CubeWritePlan, plan_remove
from kartothek_cube.io_components.write.dataset_commit import commit_change
from kartothek_cube.io_components.write.delete_scope import warn_of_rows_outside
from kartothek_cube.io_components.write.table_writer import (
    WriteResult,
    check_same_store,
    delete_uncommitted,
    merge_results,
    write_table,
)
from kartothek_cube.io_components.write.validation import CubeMetadata, prepare_table

__all__ = (
    "abort_error",
    "check_announced",
    "check_schemas",
    "commit_cube",
    "finish_checked",
    "finish_write",
    "merge_writes",
    "prepare",
    "remove_partitions_job",
    "run_write",
    "write_cube_job",
)

T = TypeVar("T")


class DatasetsById(dict[str, DatasetMetadata]):
    """Dataset id to metadata, as writes of cubes return them."""

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
        return card("", html_table("", header, rows)) if rows else card("No datasets")


def finish_write(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> dict[str, DatasetMetadata]:
    """Commit what tasks wrote, the seed last; undo what was published if a later step fails."""
    blobs = open_blobs(plan.store)
    changes = _change_sets(plan, results)
    existing = _existing_datasets(plan, blobs)
    _check_outcome(plan, changes, existing)
    try:
        written = _publish(plan, changes, blobs)
    except ConcurrentWriteError as error:
        check_same_store(plan.store, error.dataset_uuid)
        raise
    return DatasetsById({**existing, **written} if plan.return_all else written)


def check_schemas(plan: CubeWritePlan, schemas: Mapping[str, SchemaWrapper]) -> None:
    """Check the cube as it will be, by the schemas of the input alone and before any row is read."""
    blobs = open_blobs(plan.store)
    results = {}
    for name, schema in schemas.items():
        context, columns = plan.changes[name].context, plan.constraints[name].index_columns(schema.names)
        entries = {c: IndexUpdate.empty(schema.field(c).type) for c in columns if c in schema.names}
        results[name] = WriteResult(context.uuid, context.table, schema, indices=entries)
    changes = _change_sets(plan, results)
    _check_outcome(attrs.evolve(plan, keep_empty=True), changes, _existing_datasets(plan, blobs))


def _check_outcome(
    plan: CubeWritePlan,
    changes: Mapping[str, ChangeSet],
    existing: Mapping[str, DatasetMetadata],
) -> None:
    after = {name: _after_write(change, existing.get(name)) for name, change in changes.items()}
    after = {**existing, **after}
    _check_not_empty(plan, changes, after)
    if changes:
        for violation in find_violations(after, plan.cube):
            raise abort_error(plan, violation.dataset, violation.error) from violation.error


def abort_error(plan: CubeWritePlan, name: str, problem: ValueError) -> MultiTableCommitAborted:
    """The error for a write that was given up before anything was published."""
    return MultiTableCommitAborted(plan.cube.ktk_dataset_uuid(name), detail=str(problem))


def _change_sets(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> dict[str, ChangeSet]:
    changes = {}
    for name, change in plan.changes.items():
        if name in results or plan.commit_all:
            result = results.get(name) or change.context.merge(())
            changes[name] = change.change_set(result, plan.info)
    return changes


def _existing_datasets(plan: CubeWritePlan, blobs: BlobStore) -> dict[str, DatasetMetadata]:
    return discover_datasets_unchecked(plan.cube.uuid_prefix, blobs)


def _after_write(change: ChangeSet, dataset: DatasetMetadata | None) -> DatasetMetadata:
    """A dataset as it will be, as far as the rules of a cube concern it: schema, keys, names of indices."""
    if change.mode is not WriteMode.UPDATE:
        return _prospective_dataset(change)
    if dataset is None:
        raise DatasetNotFoundError(change.uuid)
    return dataset if change.schema is None else dataset.copy(schema=compute_schema(dataset, change))


def _check_not_empty(
    plan: CubeWritePlan, changes: Mapping[str, ChangeSet], after: Mapping[str, DatasetMetadata]
) -> None:
    for name, change in changes.items():
        partitions, labels = after[name].partition_table, plan.changes[name].assumed_labels
        removed = 0 if labels is None else int((partitions.positions(labels) >= 0).sum())
        if not plan.keep_empty and not len(change.added) and len(partitions) == removed:
            problem = ValueError(
                f"No partitions left in dataset(s): {name}. An update may not remove all partitions without "
                f"adding any; remove_partitions may"
            )
            raise abort_error(plan, name, problem) from problem


def _prospective_dataset(change: ChangeSet) -> DatasetMetadata:
    """A new dataset as far as the rules of a cube concern it."""
    indices = {
        column: ExplicitSecondaryIndex(
            column=column,
            index_storage_key=f"{change.uuid}/indices/{column}",
            dtype=update.entries.values.type,
        )
        for column, update in change.indices.items()
    }
    return DatasetMetadata(
        uuid=change.uuid,
        partitions=PartitionTable.empty((change.table,)),
        metadata=dict(change.metadata),
        indices=indices,
        partition_keys=list(change.partition_keys or ()),
        schema=change.schema,
        table_name=change.table,
    )


def _publish(
    plan: CubeWritePlan, changes: Mapping[str, ChangeSet], blobs: BlobStore
) -> dict[str, DatasetMetadata]:
    # the seed last: without it there is no cube, so that readers with any library see all of a new one
    order = plan.cube.commit_order(changes)
    steps = {changes[name].uuid: partial(commit_change, blobs, changes[name]) for name in order}
    creates = any(change.mode is not WriteMode.UPDATE for change in changes.values())
    written = commit_cube(plan.cube, blobs, steps, plan.info, creates=creates)
    return {name: written[changes[name].uuid] for name in sorted(changes)}


def commit_cube(
    cube: Cube,
    blobs: BlobStore,
    steps: Mapping[str, Callable[[Role], tuple[T, CommitReceipt]]],
    info: OperationInfo | None = None,
    *,
    creates: bool = False,
) -> dict[str, T]:
    """Commit datasets of a cube, by uuid, at once; undo what was published if one of them fails."""
    seed = cube.ktk_dataset_uuid(cube.seed_dataset)

    def touch(role: Role) -> tuple[Any, CommitReceipt]:
        table = DatasetMetadata.load_from_store(seed, blobs, load_schema=False).table_name
        return commit(blobs, ChangeSet(seed, table, info=info), role=role)

    return commit_operation(blobs, seed, steps, touch, partial(undo_all, blobs), creates=creates)


def check_announced(plan: CubeWritePlan, names: Iterable[str]) -> None:
    """Check that input belongs to datasets that the plan has."""
    unknown = set(names) - set(plan.changes)
    if unknown:
        raise ValueError(
            f"Input for datasets that were not announced: {', '.join(sorted(unknown))}. "
            f"Specified were: {', '.join(sorted(plan.changes)) or 'none'}"
        )


def prepare(
    plan: CubeWritePlan, frames: Mapping[str, Sequence[Any]], *, unique: bool = True
) -> dict[str, pa.Table]:
    """Check and sort input, by dataset id, before any of it is written; ids without rows are left out."""
    check_announced(plan, frames)
    tables = {
        name: prepare_table(plan.constraints[name], frames[name], unique=unique)
        for name in sorted(frames)
        if frames[name]
    }
    _check_new_payload(plan, tables)
    _check_key_types(plan, tables)
    for name, table in tables.items():
        plan.changes[name].context.check_schema(table)
    return {name: table for name, table in tables.items() if len(table)}


def _check_new_payload(plan: CubeWritePlan, tables: Mapping[str, pa.Table]) -> None:
    owners: dict[str, str] = {}
    for name, table in tables.items():
        for column in sorted(get_payload_subset(table.column_names, plan.cube)):
            if column in owners:
                problem = ValueError(
                    f"Found columns present in multiple datasets: {column} in {owners[column]}, {name}. "
                    "A payload column belongs to one dataset"
                )
                raise abort_error(plan, name, problem) from problem
            owners[column] = name


def _check_key_types(plan: CubeWritePlan, tables: Mapping[str, pa.Table]) -> None:
    """Check that key columns have one type in all new datasets, and in those of the cube."""
    keys = (*plan.cube.partition_columns, *plan.cube.dimension_columns)
    owners: dict[str, tuple[str, pa.DataType]] = {}
    for name in plan.cube.join_order(tables):
        if plan.changes[name].mode is WriteMode.UPDATE:
            # its own schema is compared as a whole
            continue
        stored, table = plan.constraints[name].types, tables[name]
        for column in keys:
            if column not in table.column_names or pa.types.is_null(table.schema.field(column).type):
                continue
            dtype = widen(table.schema.field(column).type)
            known = ("the cube", stored[column]) if column in stored else (f"dataset {name!r}", dtype)
            owner, expected = owners.setdefault(column, known)
            if not (pa.types.is_null(expected) or same_type(expected, dtype)):
                problem = SchemaConflictError(
                    f"Column {column!r} is {expected} in {owner} but {dtype} in dataset {name!r}; "
                    "a column has one type in all datasets of a cube"
                )
                raise abort_error(plan, name, problem) from problem


def run_write(
    plan: CubeWritePlan, tables: Mapping[str, pa.Table], threads: int | None = None
) -> dict[str, WriteResult]:
    """Write the data files of prepared tables; the state of no dataset is touched."""
    results = {}
    for name, table in tables.items():
        indices = plan.constraints[name].index_columns(table.column_names)
        context = attrs.evolve(plan.changes[name].context, indices=indices)
        results[name] = write_table(context, table, threads=threads)
    return results


def merge_writes(parts: Iterable[Mapping[str, WriteResult]]) -> dict[str, WriteResult]:
    """Results of many tasks as one; associative."""
    by_name: dict[str, list[WriteResult]] = {}
    for part in parts:
        for name, result in part.items():
            by_name.setdefault(name, []).append(result)
    return {name: merge_results(results) for name, results in sorted(by_name.items())}


def write_cube_job(
    plan: CubeWritePlan, frames: Mapping[str, Sequence[Any]]
) -> Job[CubeWritePlan, tuple[str, pa.Table], dict[str, WriteResult], dict[str, DatasetMetadata]]:
    """Check all input, write it dataset by dataset, then commit, the seed last."""
    tables = prepare(plan, frames)
    empty = sorted(set(frames) - set(tables))
    if empty and plan.operation in ("build", "extend"):
        problem = ValueError(f"Cannot write empty datasets: {', '.join(empty)}")
        raise abort_error(plan, empty[0], problem) from problem
    return Job(
        name=f"{plan.operation}_cube",
        description=f"{plan.operation} cube {plan.cube.uuid_prefix}",
        context=plan,
        tasks=list(tables.items()),
        run=_write_named,
        finish=partial(_finish_merged, plan, empty),
        merge=merge_writes,
        steps=("prepare", "write", "commit"),
    )


def remove_partitions_job(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput | Literal["all"] = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
) -> Job[CubeWritePlan, tuple[str, pa.Table], dict[str, WriteResult], dict[str, DatasetMetadata]]:
    """Remove partitions: a commit, without tasks."""
    plan = plan_remove(cube, store, conditions, ktk_cube_dataset_ids, metadata)
    return attrs.evolve(
        write_cube_job(plan, {}),
        name="remove_partitions",
        description=f"remove partitions of cube {cube.uuid_prefix}",
    )


def _write_named(plan: CubeWritePlan, item: tuple[str, pa.Table]) -> dict[str, WriteResult]:
    return run_write(plan, dict([item]))


def _finish_merged(
    plan: CubeWritePlan, empty: Sequence[str], parts: Iterable[Mapping[str, WriteResult]]
) -> dict[str, DatasetMetadata]:
    nothing = {name: plan.changes[name].context.merge(()) for name in empty}
    return finish_checked(plan, merge_writes([nothing, *parts]))


def finish_checked(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> dict[str, DatasetMetadata]:
    """Check what was written against the partitions that are removed, and commit."""
    if plan.caller is not None:
        for name, result in results.items():
            change, partitions = plan.changes[name], result.partitions()
            keys, remove_where = change.context.partition_on, change.remove_where
            warn_of_rows_outside(plan.caller, result.uuid, partitions, keys, result.schema, remove_where)
    if plan.unique_cells:
        try:
            _check_unique_cells(plan, results)
        except BaseException:
            delete_uncommitted(plan.store, results.values())
            raise
    return finish_write(plan, results)


def _check_unique_cells(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> None:
    """Raise DuplicateCellsError for a cell of the input that the seed has in another partition."""
    cube = plan.cube
    result = results.get(cube.seed_dataset)
    if result is None or result.schema is None:
        return
    blobs = open_blobs(plan.store)
    seed = DatasetMetadata.load_from_store(result.uuid, blobs).load_indices(cube.dimension_columns, blobs)
    indices = {}
    for column, update in result.indices.items():
        stored = seed.secondary_indices[column].columns_data if column in seed.secondary_indices else None
        if column in cube.dimension_columns and stored is not None:
            indices[column] = IndexColumns.merge([stored, update.entries], stored.values.type)
    files = seed.partition_table.concat(result.partitions())
    repeated = find_repeated_cells(
        blobs,
        cube.dimension_columns,
        cube.partition_columns,
        files,
        result.table,
        result.schema.internal(),
        indices,
        np.arange(len(files)) >= len(seed.partition_table),
    )
    if repeated is not None:
        raise DuplicateCellsError(cube.seed_dataset, repeated.example, detail=f"{repeated}.")
