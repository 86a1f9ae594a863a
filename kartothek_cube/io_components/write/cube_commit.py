"""Commit the write of a cube: check the cube as it will be, publish dataset by dataset, the seed last."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pyarrow as pa

from kartothek_cube.core.commit import (
    ChangeSet,
    CommitReceipt,
    IndexUpdate,
    WriteMode,
    confirm_pending,
    merged_schema,
    undo_all,
)
from kartothek_cube.core.cube.consistency import check_cube
from kartothek_cube.core.cube.discover import discover_datasets_unchecked, discover_ktk_cube_dataset_ids
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import KartothekCubeError, MultiTableCommitAborted
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.write.cube_plan import CubeWritePlan
from kartothek_cube.io_components.write.plan import commit_change
from kartothek_cube.io_components.write.table_writer import WriteResult

__all__ = ("abort_error", "check_schemas", "finish_write")


def finish_write(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> dict[str, DatasetMetadata]:
    """Commit what tasks wrote, the seed last; undo what was published if a later step fails."""
    blobs = open_blobs(plan.store)
    changes = _change_sets(plan, results)
    others = _untouched_datasets(plan, changes, blobs)
    _check_outcome(plan, changes, others, blobs)
    written = _publish(plan, changes, blobs)
    return {**others, **written} if plan.return_all else written


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
    others = _untouched_datasets(plan, changes, blobs)
    _check_outcome(attrs.evolve(plan, keep_empty=True), changes, others, blobs)


def _check_outcome(
    plan: CubeWritePlan,
    changes: Mapping[str, ChangeSet],
    others: Mapping[str, DatasetMetadata],
    blobs: BlobStore,
) -> None:
    after = {**others, **{name: _after_write(change, blobs) for name, change in changes.items()}}
    try:
        _check_not_empty(plan, changes, after)
        if changes:
            check_cube(after, plan.cube)
    except ValueError as exc:
        raise abort_error(plan, str(exc)) from exc


def abort_error(plan: CubeWritePlan, detail: str) -> MultiTableCommitAborted:
    """The error for a write that was given up before anything was published."""
    return MultiTableCommitAborted(plan.cube.uuid_prefix, detail=f"{plan.operation}: {detail}")


def _change_sets(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> dict[str, ChangeSet]:
    changes = {}
    for name, change in plan.changes.items():
        if name in results or plan.commit_all:
            nothing = WriteResult(change.context.uuid, change.context.table)
            changes[name] = change.change_set(results.get(name) or nothing)
    return changes


def _untouched_datasets(
    plan: CubeWritePlan, changes: Mapping[str, ChangeSet], blobs: BlobStore
) -> dict[str, DatasetMetadata]:
    ids = discover_ktk_cube_dataset_ids(plan.cube.uuid_prefix, blobs)
    return discover_datasets_unchecked(plan.cube.uuid_prefix, blobs, ids - set(changes))


def _after_write(change: ChangeSet, blobs: BlobStore) -> DatasetMetadata:
    """A dataset as it will be, as far as the rules of a cube concern it: schema, keys, names of indices."""
    if change.mode is not WriteMode.UPDATE:
        return _prospective_dataset(change)
    dataset = DatasetMetadata.load_from_store(change.uuid, blobs)
    return dataset if change.schema is None else dataset.copy(schema=merged_schema(dataset, change))


def _check_not_empty(
    plan: CubeWritePlan, changes: Mapping[str, ChangeSet], after: Mapping[str, DatasetMetadata]
) -> None:
    for name, change in changes.items():
        partitions, labels = after[name].partition_table, plan.changes[name].assumed_labels
        removed = 0 if labels is None else int((partitions.positions(labels) >= 0).sum())
        if not plan.keep_empty and not len(change.added) and len(partitions) == removed:
            raise ValueError(f"No partitions left in dataset(s): {name}")


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
    # the seed last: without it there is no cube, so that readers never see a new cube in part
    order = plan.cube.commit_order(changes)
    operation = gen_uuid()
    written: dict[str, DatasetMetadata] = {}
    receipts: list[CommitReceipt] = []
    try:
        for name in order:
            change = changes[name]
            if change.mode.is_create and name != order[-1]:
                # pending until the last dataset is there: if this process dies before, the operation can be
                # repeated without overwrite
                change = attrs.evolve(change, pending=operation)
            written[name], receipt = commit_change(blobs, change)
            receipts.append(receipt)
        for number, name in enumerate(order[:-1]):
            if changes[name].mode.is_create:
                written[name], receipts[number] = confirm_pending(blobs, receipts[number])
    except (KartothekCubeError, ValueError, KeyError, OSError, RuntimeError):
        undo_all(blobs, receipts)
        raise
    return {name: written[name] for name in sorted(written)}
