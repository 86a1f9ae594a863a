"""Write cubes: the run step of build, extend, append, update and remove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.types import same_type, widen
from kartothek_cube.core.commit import WriteMode
from kartothek_cube.core.common_metadata import make_meta
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.consistency import get_payload_subset
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DuplicateCellsError, SchemaConflictError
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.schema.evolution import unite_schemas
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.read.repeated_cells import find_repeated_cells
from kartothek_cube.io_components.write.cube_commit import abort_error, finish_write
from kartothek_cube.io_components.write.cube_plan import CubeWritePlan, plan_remove
from kartothek_cube.io_components.write.delete_scope import warn_of_rows_outside
from kartothek_cube.io_components.write.table_writer import (
    WriteResult,
    delete_uncommitted,
    merge_results,
    write_table,
)
from kartothek_cube.io_components.write.validation import CubeMetadata, prepare_table

__all__ = (
    "check_announced",
    "finish_checked",
    "merge_writes",
    "prepare",
    "remove_partitions_job",
    "run_write",
    "write_cube_job",
)


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
    _check_stored_schemas(plan, tables)
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


def _check_stored_schemas(plan: CubeWritePlan, tables: Mapping[str, pa.Table]) -> None:
    """Check that rows fit the schemas of existing datasets, as far as they are known."""
    for name, table in tables.items():
        constraints, context = plan.constraints[name], plan.changes[name].context
        if constraints.schema is None or not len(constraints.schema):
            continue
        keys = list(constraints.partition_on)
        given = make_meta(table, "the input", partition_keys=keys)
        unite_schemas(constraints.schema, given, keys, constraints.evolving, context.uuid, context.table)


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
) -> Job[None, None, dict[str, WriteResult], dict[str, DatasetMetadata]]:
    """Remove partitions: a commit, without tasks."""
    plan = plan_remove(cube, store, conditions, ktk_cube_dataset_ids, metadata)
    return Job(
        name="remove_partitions",
        description=f"remove partitions of cube {cube.uuid_prefix}",
        context=None,
        tasks=(),
        run=_write_nothing,
        finish=partial(_finish_merged, plan, ()),
        merge=merge_writes,
        steps=("prepare", "write", "commit"),
    )


def _write_named(plan: CubeWritePlan, item: tuple[str, pa.Table]) -> dict[str, WriteResult]:
    return run_write(plan, dict([item]))


def _write_nothing(_context: None, _task: None) -> dict[str, WriteResult]:
    return {}


def _finish_merged(
    plan: CubeWritePlan, empty: Sequence[str], parts: Iterable[Mapping[str, WriteResult]]
) -> dict[str, DatasetMetadata]:
    contexts = {name: plan.changes[name].context for name in empty}
    nothing = {name: WriteResult(context.uuid, context.table) for name, context in contexts.items()}
    return finish_checked(plan, merge_writes([nothing, *parts]))


def finish_checked(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> dict[str, DatasetMetadata]:
    """Check what was written against the partitions that are removed, and commit."""
    for name, result in results.items():
        change = plan.changes[name]
        partition_on = change.context.partition_on
        warn_of_rows_outside(
            result.uuid, result.partitions(), partition_on, result.schema, change.remove_where
        )
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
