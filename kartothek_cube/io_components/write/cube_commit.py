"""Committing writes of cubes: check the cube as it will be, publish dataset by dataset, the seed last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import pyarrow as pa

from kartothek_cube.core.commit import (
    ChangeSet,
    CommitReceipt,
    IndexUpdate,
    commit,
    confirm_pending,
    merge_schema,
    undo_all,
)
from kartothek_cube.core.cube.consistency import (
    arrow_schema,
    check_cube,
)
from kartothek_cube.core.cube.discover import (
    discover_datasets_unchecked,
    discover_ktk_cube_dataset_ids,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import (
    KartothekCubeError,
    MultiTableCommitAborted,
)
from kartothek_cube.core.index import ExplicitSecondaryIndex, IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.read.data_files import read_files
from kartothek_cube.io_components.write.cube_plan import CubeWritePlan
from kartothek_cube.io_components.write.index_entries import index_entries_of
from kartothek_cube.io_components.write.table_writer import WriteResult

__all__ = ("abort_error", "check_schemas", "finish_write", "read_index_entries")


def finish_write(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> dict[str, DatasetMetadata]:
    """
    Commit what tasks wrote, the seed last; take back what was published if a later step fails.

    Parameters
    ----------
    plan
        The write.
    results
        By dataset id.

    Returns
    -------
    dict
        Dataset id to new metadata.

    Raises
    ------
    MultiTableCommitAborted
        If the datasets would not form the cube; nothing is changed then.
    """
    blobs = open_blobs(plan.store)
    deltas = _deltas(plan, results)
    others = _untouched_datasets(plan, deltas, blobs)
    _check_outcome(plan, deltas, others, blobs)
    written = _publish(plan, deltas, blobs)
    return {**others, **written} if plan.return_all else written


def check_schemas(plan: CubeWritePlan, schemas: Mapping[str, SchemaWrapper]) -> None:
    """
    Check what a write would make of the cube, by the schemas of the input alone and before any of it is read.

    Parameters
    ----------
    plan
        The write.
    schemas
        Schemas of the input by dataset id.

    Raises
    ------
    MultiTableCommitAborted, SchemaConflictError
        As :func:`finish_write`.
    """
    blobs = open_blobs(plan.store)
    results = {}
    for name, schema in schemas.items():
        context, columns = plan.changes[name].context, plan.changes[name].rules.index_columns(schema.names)
        nothing = pa.array([], pa.string())
        entries = {
            c: IndexUpdate(IndexColumns.empty(schema.field(c).type), nothing)
            for c in columns
            if c in schema.names
        }
        results[name] = WriteResult(context.uuid, context.table, schema, indices=entries)
    deltas = _deltas(plan, results)
    _check_outcome(
        attrs.evolve(plan, keep_empty=True), deltas, _untouched_datasets(plan, deltas, blobs), blobs
    )


def _check_outcome(
    plan: CubeWritePlan,
    deltas: Mapping[str, ChangeSet],
    others: Mapping[str, DatasetMetadata],
    blobs: BlobStore,
) -> None:
    after = {**others, **{name: _after_write(name, delta, blobs) for name, delta in deltas.items()}}
    try:
        _check_not_empty(plan, deltas, after)
        if deltas:
            check_cube(after, plan.cube)
    except ValueError as exc:
        raise abort_error(plan, str(exc)) from exc


def abort_error(plan: CubeWritePlan, detail: str) -> MultiTableCommitAborted:
    """The error for a write that was given up before anything was published."""
    return MultiTableCommitAborted(plan.cube.uuid_prefix, detail=f"{plan.operation}: {detail}")


def _deltas(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> dict[str, ChangeSet]:
    deltas = {}
    for name, change in plan.changes.items():
        result = results.get(name)
        if result is None and not change.required:
            continue
        context = change.context
        result = result or WriteResult(context.uuid, context.table)
        deltas[name] = result.delta(
            mode=change.mode,
            metadata=change.metadata,
            partition_keys=tuple(change.rules.partition_on),
            scope=change.scope,
            expected=change.expected,
            batch=change.batch,
            write_id=change.context.write_id,
        )
    return deltas


def _untouched_datasets(
    plan: CubeWritePlan, deltas: Mapping[str, ChangeSet], blobs: BlobStore
) -> dict[str, DatasetMetadata]:
    ids = discover_ktk_cube_dataset_ids(plan.cube.uuid_prefix, blobs)
    return discover_datasets_unchecked(plan.cube.uuid_prefix, blobs, ids - set(deltas))


def _after_write(name: str, delta: ChangeSet, blobs: BlobStore) -> DatasetMetadata:
    """A dataset as it will be, as far as the rules of a cube look at it: schema, keys, names of indices."""
    if delta.mode != "update":
        return _prospective_dataset(delta)
    dataset = DatasetMetadata.load_from_store(delta.uuid, blobs)
    return dataset if delta.schema is None else dataset.copy(schema=merge_schema(dataset, delta))


def _check_not_empty(
    plan: CubeWritePlan, deltas: Mapping[str, ChangeSet], after: Mapping[str, DatasetMetadata]
) -> None:
    for name, delta in deltas.items():
        partitions = after[name].partition_table
        gone = 0 if delta.expected is None else int((partitions.positions(delta.expected) >= 0).sum())
        if not plan.keep_empty and not len(delta.added) and len(partitions) == gone:
            raise ValueError(f"No partitions left in dataset(s): {name}")


def _prospective_dataset(delta: ChangeSet) -> DatasetMetadata:
    """A new dataset as far as the rules of a cube look at it."""
    indices = {
        column: ExplicitSecondaryIndex(
            column=column, index_storage_key=f"{delta.uuid}/indices/{column}", dtype=given.entries.values.type
        )
        for column, given in delta.indices.items()
    }
    return DatasetMetadata(
        uuid=delta.uuid,
        partitions=PartitionTable.empty((delta.table,)),
        metadata=dict(delta.metadata),
        indices=indices,
        partition_keys=list(delta.partition_keys or ()),
        schema=delta.schema,
        table_name=delta.table,
    )


def _publish(
    plan: CubeWritePlan, deltas: Mapping[str, ChangeSet], blobs: BlobStore
) -> dict[str, DatasetMetadata]:
    order = sorted(deltas, key=lambda name: (name == plan.cube.seed_dataset, name))
    operation = gen_uuid()
    written: dict[str, DatasetMetadata] = {}
    published: list[CommitReceipt] = []
    try:
        for name in order:
            # a dataset that is not the last one is pending until the last one is there
            delta = attrs.evolve(
                deltas[name],
                pending=operation if deltas[name].mode == "create" and name != order[-1] else "",
                replace_pending=plan.replace_pending,
            )
            written[name], done = commit(blobs, delta, partial(read_index_entries, blobs, plan, name))
            published.append(done)
        for number, name in enumerate(order[:-1]):
            if deltas[name].mode == "create":
                written[name], published[number] = confirm_pending(blobs, published[number])
    except (KartothekCubeError, ValueError, KeyError, OSError, RuntimeError):
        undo_all(blobs, published)
        raise
    return {name: written[name] for name in sorted(written)}


def read_index_entries(
    blobs: BlobStore, plan: CubeWritePlan, name: str, column: str, labels: Sequence[str]
) -> IndexUpdate:
    """Index entries that a task did not know it should collect, read back from the files."""
    context = plan.changes[name].context
    files = PartitionTable.from_labels(context.uuid, context.table, pa.array(labels, pa.string()))
    tables = read_files(blobs, files.files[context.table].to_pylist(), [column])
    schema = arrow_schema(DatasetMetadata.load_from_store(context.uuid, blobs))
    return index_entries_of(column, labels, tables, schema.field(column).type)
