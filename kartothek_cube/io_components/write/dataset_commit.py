"""Changing a dataset as planned: run (files of one input), finish (one commit)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import attrs
import pyarrow as pa

from kartothek_cube.core.commit import ChangeSet, IndexUpdate, commit
from kartothek_cube.core.common_metadata import make_meta, read_schema_metadata
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import SchemaConflictError, unknown_names
from kartothek_cube.core.naming import (
    DEFAULT_METADATA_STORAGE_FORMAT,
    DEFAULT_METADATA_VERSION,
    SINGLE_TABLE,
)
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.compare import validate_compatible
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.arguments import MetadataInput, user_metadata
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.kernels.keys import sort_order
from kartothek_cube.io_components.read.data_files import read_files
from kartothek_cube.io_components.utils import extract_duplicates, normalize_args
from kartothek_cube.io_components.write.abort import delete_uncommitted
from kartothek_cube.io_components.write.dataset_plan import MetadataMerger, UpdatePlan, plan_store
from kartothek_cube.io_components.write.index_entries import index_entries_of
from kartothek_cube.io_components.write.inputs import as_input, check_result_target, flatten
from kartothek_cube.io_components.write.table_writer import (
    WriteContext,
    WriteResult,
    check_input,
    merge_results,
    write_table,
)

__all__ = (
    "Written",
    "check_update",
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


def run_update(context: WriteContext, data: Any, schema: SchemaWrapper | None = None) -> WriteResult:
    """
    Write one input; the state of the dataset is not touched.

    Parameters
    ----------
    context
        The dataset.
    data
        A DataFrame or anything that Arrow reads as a table, None, the result of an earlier call, or a list of
        all that.
    schema
        If given, input of another schema is refused before it is written.

    Returns
    -------
    WriteResult

    Raises
    ------
    ValueError
        The input does not fit the dataset.
    """
    items = list(flatten(data))
    keep_index = not (context.partition_on or context.sort_by)
    tables = [i if isinstance(i, WriteResult) else as_input(i, keep_index) for i in items if i is not None]
    for table in tables:
        if isinstance(table, WriteResult):
            check_result_target(context, table)
            continue
        if schema is not None:
            _check_schema(context, table, schema)
        check_input(context, table)
    written = [t if isinstance(t, WriteResult) else write_table(context, _sorted(context, t)) for t in tables]
    return merge_results([WriteResult(context.uuid, context.table), *written])


def run_updates(context: WriteContext, tables: Iterable[pa.Table]) -> WriteResult:
    """
    Write one input after the other; only one of them is held at a time.

    Parameters
    ----------
    context
        The dataset.
    tables
        Rows.

    Returns
    -------
    WriteResult

    Raises
    ------
    ValueError
        One does not fit the dataset. As after every failure, what was written before is deleted.
    """
    written = [WriteResult(context.uuid, context.table)]
    try:
        for table in tables:
            written.append(run_update(context, table))
    except BaseException:
        delete_uncommitted(context.store, written)
        raise
    return merge_results(written)


def check_update(context: WriteContext, table: pa.Table, schema: SchemaWrapper | None) -> WriteResult:
    """
    Check what the columns of an input tell, before any of it is read.

    Parameters
    ----------
    context
        The dataset.
    table
        The input, without rows.
    schema
        The stored schema; None if there is none.

    Returns
    -------
    WriteResult
        The schema of the input, and no files.

    Raises
    ------
    ValueError, RuntimeError
        As :func:`run_update`.
    """
    rows = as_input(table, False)
    check_input(context, _sorted(context, rows))
    if schema is not None:
        _check_schema(context, rows, schema)
    keys = list(context.partition_on)
    return WriteResult(context.uuid, context.table, make_meta(rows, context.uuid, partition_keys=keys))


def _sorted(context: WriteContext, table: pa.Table) -> pa.Table:
    """The rows in the order that is asked for, nulls last; equal rows keep their order."""
    missing = set(context.sort_by) - set(table.column_names)
    if missing:
        raise ValueError(
            f"Cannot sort the input for dataset {context.uuid!r}: "
            + unknown_names("column", missing, table.column_names)
        )
    order = sort_order([table.column(c) for c in context.sort_by], len(table)) if context.sort_by else None
    return table if order is None else table.take(pa.array(order))


def _check_schema(context: WriteContext, table: pa.Table, schema: SchemaWrapper) -> None:
    found = make_meta(
        table, origin=f"{context.uuid}/{context.table}", partition_keys=list(context.partition_on)
    )
    try:
        validate_compatible([schema, found])
    except SchemaConflictError as error:
        raise SchemaConflictError(error.problem, context.uuid, context.table) from error


def finish_update(plan: UpdatePlan, results: Iterable[WriteResult]) -> DatasetMetadata:
    """
    Commit what tasks wrote, in the order of the results.

    Parameters
    ----------
    plan
        The change.
    results
        What was written.

    Returns
    -------
    DatasetMetadata
        The new state, as loading it gives.

    Raises
    ------
    ValueError
        A dataset would be created out of nothing, schemas do not fit, or a partition was written twice.
    ConcurrentWriteError
        Somebody else wrote partitions that this change removes.
    """
    context = plan.context
    parts = list(results)
    _check_content(plan, parts)
    result = merge_results([WriteResult(context.uuid, context.table), *parts])
    twice = extract_duplicates(result.labels.to_pylist())
    if twice:
        raise ValueError(
            f"Duplicate partition labels for dataset {context.uuid!r}: {', '.join(sorted(twice))}"
        )
    if result.schema is None and plan.mode != "update":
        result = attrs.evolve(result, schema=SchemaWrapper(pa.schema([]), context.uuid))
    dataset, _ = commit(
        open_blobs(context.store), _delta(plan, result), partial(_entries, context, result.partitions())
    )
    return dataset


def _check_content(plan: UpdatePlan, parts: Sequence[WriteResult]) -> None:
    """A new dataset needs something to take its schema from."""
    if plan.mode == "update" or any(part.schema is not None for part in parts):
        return
    if not parts or plan.context.partition_on or plan.mode == "upsert":
        raise ValueError(
            f"Cannot store an empty dataset: there is no input for {plan.context.uuid!r}. To create one "
            "without partitions, use create_empty_dataset_header or pass a DataFrame without rows"
        )


def _merged(merger: MetadataMerger, dicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Stored and given metadata, on both of which the user's function has the last word."""
    stored, given = dicts
    return {**stored, **given, **user_metadata(merger([dict(stored), dict(given)]))}


def _delta(plan: UpdatePlan, result: WriteResult) -> ChangeSet:
    return result.delta(
        mode=plan.mode,
        scope=plan.scope,
        expected=plan.expected,
        partition_keys=plan.context.partition_on,
        metadata=plan.metadata,
        merge_metadata=None if plan.merge_metadata is None else partial(_merged, plan.merge_metadata),
        storage_format=plan.storage_format,
        write_id=plan.context.write_id,
    )


def _entries(context: WriteContext, added: PartitionTable, column: str, labels: Sequence[str]) -> IndexUpdate:
    """Index entries that the tasks did not know they should collect, read back from the files."""
    blobs = open_blobs(context.store)
    known = added.positions(labels)
    derived = PartitionTable.from_labels(context.uuid, context.table, labels).files[context.table].to_pylist()
    own = added.files[context.table].to_pylist()
    keys = [own[position] if position >= 0 else key for position, key in zip(known, derived, strict=True)]
    schema = read_schema_metadata(context.uuid, blobs, context.table)
    return index_entries_of(column, labels, read_files(blobs, keys, [column]), schema.field(column).type)


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
    """
    Create a dataset whose partitions are whatever files are there.

    Parameters
    ----------
    store, dataset_uuid, schema, partition_on, metadata, overwrite, metadata_storage_format, metadata_version
        As in :func:`kartothek_cube.io.eager.create_empty_dataset_header`.
    table_name
        As there.

    Returns
    -------
    DatasetMetadata

    Raises
    ------
    RuntimeError
        The dataset exists and is not to be overwritten.
    ValueError
        The schema lacks a partition column.
    """
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
    delta = _delta(plan, WriteResult(dataset_uuid, table_name, wrapped))
    dataset, _ = commit(open_blobs(plan.context.store), attrs.evolve(delta, explicit=False))
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
    plan: UpdatePlan, tasks: Iterable[Input], run: Callable[[WriteContext, Input], Written]
) -> Job[WriteContext, Input, Written, DatasetMetadata]:
    """Write inputs in independent tasks, then commit them together."""
    return Job(
        name="update_dataset" if plan.mode in ("update", "upsert") else "store_dataset",
        description=f"write dataset {plan.context.uuid}",
        context=plan.context,
        tasks=tasks,
        run=run,
        finish=partial(finish_written, plan),
        merge=merge_written,
        steps=("prepare", "write", "commit"),
    )


def finish_written(plan: UpdatePlan, parts: Iterable[Written]) -> DatasetMetadata:
    """Commit the results of all tasks of a write."""
    return finish_update(plan, chain.from_iterable(parts))
