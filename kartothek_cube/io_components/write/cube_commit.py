"""Commit the write of a cube: check the cube as it will be, publish dataset by dataset, the seed last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import attrs
import pyarrow as pa

from kartothek_cube.core.commit import (
    ChangeSet,
    CommitReceipt,
    IndexUpdate,
    Role,
    WriteMode,
    commit,
    commit_operation,
    merged_schema,
    undo_all,
)
from kartothek_cube.core.cube.consistency import find_violations
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import discover_datasets_unchecked
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DatasetNotFoundError, MultiTableCommitAborted
from kartothek_cube.core.history import OperationInfo
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.io_components.result_tables import DatasetsById
from kartothek_cube.io_components.write.cube_plan import CubeWritePlan
from kartothek_cube.io_components.write.dataset_commit import commit_change
from kartothek_cube.io_components.write.table_writer import WriteResult

__all__ = ("abort_error", "check_schemas", "commit_cube", "finish_write")

T = TypeVar("T")


def finish_write(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> dict[str, DatasetMetadata]:
    """Commit what tasks wrote, the seed last; undo what was published if a later step fails."""
    blobs = open_blobs(plan.store)
    changes = _change_sets(plan, results)
    existing = _existing_datasets(plan, blobs)
    _check_outcome(plan, changes, existing)
    written = _publish(plan, changes, blobs)
    return DatasetsById({**existing, **written} if plan.return_all else written)


def check_schemas(plan: CubeWritePlan, schemas: Mapping[str, SchemaWrapper]) -> None:
    """Check the cube as it will be, by the schemas of the input alone and before any row is read."""
    blobs = open_blobs(plan.store)
    results = {}
    for name, schema in schemas.items():
        context, columns = plan.changes[name].context, plan.constraints[name].index_columns(schema.names)
        nothing = pa.array([], pa.string())
        entries = {
            c: IndexUpdate(IndexColumns.empty(schema.field(c).type), nothing)
            for c in columns
            if c in schema.names
        }
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
            nothing = WriteResult(change.context.uuid, change.context.table)
            changes[name] = change.change_set(results.get(name) or nothing, plan.info)
    return changes


def _existing_datasets(plan: CubeWritePlan, blobs: BlobStore) -> dict[str, DatasetMetadata]:
    return discover_datasets_unchecked(plan.cube.uuid_prefix, blobs)


def _after_write(change: ChangeSet, dataset: DatasetMetadata | None) -> DatasetMetadata:
    """A dataset as it will be, as far as the rules of a cube concern it: schema, keys, names of indices."""
    if change.mode is not WriteMode.UPDATE:
        return _prospective_dataset(change)
    if dataset is None:
        raise DatasetNotFoundError(change.uuid)
    return dataset if change.schema is None else dataset.copy(schema=merged_schema(dataset, change))


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
    steps = {changes[name].uuid: partial(_commit_step, blobs, changes[name]) for name in order}
    creates = any(change.mode is not WriteMode.UPDATE for change in changes.values())
    written = commit_cube(plan.cube, blobs, steps, plan.info, creates=creates)
    return {name: written[changes[name].uuid] for name in sorted(changes)}


def _commit_step(blobs: BlobStore, change: ChangeSet, role: Role) -> tuple[DatasetMetadata, CommitReceipt]:
    return commit_change(blobs, change, role)


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
