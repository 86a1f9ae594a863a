"""Write a dataset as planned: run (files of one input), finish (one commit)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import attrs
import pyarrow as pa

from kartothek_cube.core.commit.base_state import CommitReceipt
from kartothek_cube.core.commit.change import ChangeSet, WriteMode
from kartothek_cube.core.commit.operation import Role
from kartothek_cube.core.commit.publish import commit
from kartothek_cube.core.common_metadata import make_meta
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import ConcurrentWriteError, unknown_names
from kartothek_cube.core.naming import DEFAULT_METADATA_STORAGE_FORMAT, DEFAULT_METADATA_VERSION, SINGLE_TABLE
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.arguments import MetadataInput
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.kernels.sort import sort_rows
from kartothek_cube.io_components.utils import extract_duplicates, normalize_args
from kartothek_cube.io_components.write.dataset_plan import DatasetWritePlan, plan_store
from kartothek_cube.io_components.write.index_entries import read_index_entries
from kartothek_cube.io_components.write.table_writer import (
    WriteContext,
    WriteResult,
    check_input,
    check_same_store,
    delete_uncommitted,
    merge_results,
    write_table,
)
from kartothek_cube.io_components.write.validation import as_input, check_result_target, flatten

__all__ = (
    "Written",
    "check_update",
    "commit_change",
    "create_header",
    "finish_update",
    "finish_written",
    "merge_written",
    "run_update",
    "run_updates",
    "update_dataset_job",
    "write_input",
    "write_inputs",
)

Input = TypeVar("Input")
#: what a task wrote: one result, none without input
Written: TypeAlias = list[WriteResult]


def run_update(context: WriteContext, data: Any) -> WriteResult:
    """Write one input: a table, None, the result of an earlier call, or a list of these; no commit."""
    items = list(flatten(data))
    keep_index = not (context.partition_on or context.sort_by)
    tables = [
        i if isinstance(i, WriteResult) else as_input(i, keep_index, context.types)
        for i in items
        if i is not None
    ]
    for table in tables:
        if isinstance(table, WriteResult):
            check_result_target(context, table)
            continue
        check_input(context, table)
        context.check_schema(table)
    results = [
        t if isinstance(t, WriteResult) else write_table(context, _sort_input(context, t)) for t in tables
    ]
    return context.merge(results)


def run_updates(context: WriteContext, tables: Iterable[pa.Table]) -> WriteResult:
    """Write one input after the other, of which only one is held at a time."""
    results: list[WriteResult] = []
    try:
        for table in tables:
            results.append(run_update(context, table))
    except BaseException:
        # also when the task is cancelled: no commit will ever refer to these files
        delete_uncommitted(context.store, results)
        raise
    return context.merge(results)


def check_update(context: WriteContext, table: pa.Table) -> WriteResult:
    """Check the columns of an input before any row is read; the result has its schema and no files."""
    rows = as_input(table, False, context.types)
    check_input(context, _sort_input(context, rows))
    context.check_schema(rows)
    keys = list(context.partition_on)
    return WriteResult(context.uuid, context.table, make_meta(rows, context.uuid, partition_keys=keys))


def _sort_input(context: WriteContext, table: pa.Table) -> pa.Table:
    """Sort rows by the columns of the context, nulls last; the sort is stable."""
    missing = set(context.sort_by) - set(table.column_names)
    if missing:
        raise ValueError(
            f"Cannot sort the input for dataset {context.uuid!r}: "
            + unknown_names("column", missing, table.column_names)
        )
    return sort_rows(table, context.sort_by)


def finish_update(plan: DatasetWritePlan, results: Iterable[WriteResult]) -> DatasetMetadata:
    """Commit what tasks wrote, in the order of the results."""
    context = plan.context
    parts = list(results)
    _check_content(plan, parts)
    result = context.merge(parts)
    duplicates = extract_duplicates(result.labels.to_pylist())
    if duplicates:
        raise ValueError(
            f"Duplicate partition labels for dataset {context.uuid!r}: {', '.join(sorted(duplicates))}"
        )
    if result.schema is None and plan.mode is not WriteMode.UPDATE:
        result = attrs.evolve(result, schema=SchemaWrapper(pa.schema([]), context.uuid))
    try:
        dataset, _ = commit_change(open_blobs(context.store), plan.change_set(result))
    except ConcurrentWriteError:
        check_same_store(context.store, context.uuid)
        raise
    return dataset


def _check_content(plan: DatasetWritePlan, parts: Sequence[WriteResult]) -> None:
    """A new dataset needs something to take its schema from."""
    if plan.mode is WriteMode.UPDATE or any(part.schema is not None for part in parts):
        return
    if not parts or plan.context.partition_on or plan.mode is WriteMode.UPSERT:
        raise ValueError(
            f"Cannot store an empty dataset: there is no input for {plan.context.uuid!r}. To create one "
            "without partitions, use create_empty_dataset_header or pass a DataFrame without rows"
        )


@normalize_args
def create_header(
    store: StoreInput,
    dataset_uuid: str,
    schema: Any,
    *,
    partition_on: Any = None,
    metadata: MetadataInput = None,
    overwrite: bool = False,
    metadata_storage_format: str = DEFAULT_METADATA_STORAGE_FORMAT,
    metadata_version: int = DEFAULT_METADATA_VERSION,
    table_name: str = SINGLE_TABLE,
) -> DatasetMetadata:
    """Create a dataset whose header lists no partitions; they are found by a listing of the store."""
    plan = plan_store(
        store,
        dataset_uuid,
        metadata=metadata,
        partition_on=partition_on,
        overwrite=overwrite,
        metadata_storage_format=metadata_storage_format,
        metadata_version=metadata_version,
        table_name=table_name,
    )
    wrapped = make_meta(schema, origin=dataset_uuid, partition_keys=partition_on)
    missing = set(partition_on) - set(wrapped.names)
    if missing:
        raise ValueError(
            f"Partition column(s) missing in the schema of dataset {dataset_uuid!r}: "
            + unknown_names("column", missing, wrapped.names)
        )
    change = plan.change_set(WriteResult(dataset_uuid, table_name, wrapped))
    dataset, _ = commit(open_blobs(plan.context.store), attrs.evolve(change, explicit=False))
    return dataset


def write_input(context: WriteContext, item: Any) -> Written:
    """Write one input."""
    return [run_update(context, item)]


def write_inputs(context: WriteContext, items: Iterable[Any]) -> Written:
    """Write several inputs, one after the other; no result if there are none."""
    return merge_written(write_input(context, item) for item in items)


def merge_written(parts: Iterable[Written]) -> Written:
    """Results of many tasks as one; none if nothing was written."""
    results = list(chain.from_iterable(parts))
    return [merge_results(results)] if results else []


def update_dataset_job(
    plan: DatasetWritePlan, tasks: Iterable[Input], run: Callable[[WriteContext, Input], Written]
) -> Job[WriteContext, Input, Written, DatasetMetadata]:
    """Write inputs in independent tasks, then commit once."""
    return Job(
        name="update_dataset" if plan.mode in (WriteMode.UPDATE, WriteMode.UPSERT) else "store_dataset",
        description=f"write dataset {plan.context.uuid}",
        context=plan.context,
        tasks=tasks,
        run=run,
        finish=partial(finish_written, plan),
        merge=merge_written,
        steps=("prepare", "write", "commit"),
    )


def finish_written(plan: DatasetWritePlan, parts: Iterable[Written]) -> DatasetMetadata:
    """Commit the results of all tasks of a write."""
    return finish_update(plan, chain.from_iterable(parts))


def commit_change(
    blobs: BlobStore, change: ChangeSet, role: Role = None
) -> tuple[DatasetMetadata, CommitReceipt]:
    """Commit a change; entries of indices that its tasks did not know of are read back from the files."""
    read = partial(read_index_entries, blobs, change.uuid, change.table, change.added)
    return commit(blobs, change, read, role)
