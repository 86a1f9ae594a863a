"""Tasks of writes: check an input, convert and sort its rows, and write its files, without a commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow.arrays import concat_promoted
from kartothek_cube.core.arrow.types import same_type, widen
from kartothek_cube.core.commit.change import WriteMode
from kartothek_cube.core.cube.consistency import get_payload_subset, is_internal
from kartothek_cube.core.cube.constants import KLEE_TIMESTAMP_COLUMN
from kartothek_cube.core.errors import DuplicateCellsError, SchemaConflictError, unknown_names
from kartothek_cube.core.schema.wrapper import make_meta
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.keys import sort_rows
from kartothek_cube.io_components.scan import read_files
from kartothek_cube.io_components.write.table_writer import (
    check_file_names,
    check_input,
    delete_uncommitted,
    write_table,
)
from kartothek_cube.io_components.write.validation import (
    as_input,
    check_result_target,
    check_unique,
    collect_input,
    iter_tables,
    prepare_table,
)
from kartothek_cube.io_components.write.write_plan import (
    CubeWritePlan,
    CubeWriteSpec,
    WritePlan,
    WriteResult,
    WriteSpec,
    Written,
    check_one_table,
    merge_writes,
)


def write_part(plan: WritePlan, element: Any, *, unique: bool = True) -> Written:
    """Check and write one element of input; `unique`: cells that occur twice in it are an error."""
    if not isinstance(plan, CubeWritePlan):
        spec = plan.spec
        return {spec.uuid: write_dataset_input(spec, element)}
    frames = collect_input(element, plan.cube)
    written = run_write(plan, prepare(plan, frames, unique=unique))
    return {name: written.get(name) or plan.specs[name].merge(()) for name in frames}


def write_parts(plan: WritePlan, elements: Iterable[Any]) -> Written:
    """Write elements one after the other; no more than one of them is held at a time."""
    return merge_writes(map(partial(write_part, plan), elements))


def write_stream(plan: WritePlan, name: str, tables: Iterable[pa.Table], *, ordered: bool = False) -> Written:
    """Check and write the tables of one dataset, one after the other; `ordered`: rows are sorted by cell."""
    results: list[Written] = [{name: plan.specs[name].merge(())}]
    last_row = None
    try:
        for table in tables:
            if not isinstance(plan, CubeWritePlan):
                results.append(write_part(plan, table))
                continue
            prepared = prepare(plan, {name: [table]})
            if ordered and prepared:
                # a partition may continue in the next table, a cell must not
                last_row = _check_border(plan.specs[name], last_row, prepared[name])
            results.append(run_write(plan, prepared))
    except BaseException:
        # also when the task is cancelled: no commit will ever refer to these files
        delete_uncommitted(plan.store, [result for part in results for result in part.values()])
        raise
    return merge_writes(results)


def _check_border(spec: CubeWriteSpec, last_row: pa.Table | None, table: pa.Table) -> pa.Table:
    """Check that a table does not begin with the last cell of the previous one; return its last row."""
    if last_row is not None:
        border = concat_promoted([last_row, table.slice(0, 1)])
        check_unique(spec, border)
    return table.slice(len(table) - 1)


def run_write(plan: WritePlan, tables: Mapping[str, pa.Table], threads: int | None = None) -> Written:
    """Write the data files of prepared tables; the state of no dataset is touched."""
    return {name: write_table(plan.specs[name], table, threads=threads) for name, table in tables.items()}


# -- input of datasets ---------------------------------------------------------------------------------------


def write_dataset_input(spec: WriteSpec, data: Any) -> WriteResult:
    """Write one input: a table, None, what an earlier call wrote, or a list of these; no commit."""
    keep_index = not (spec.partition_on or spec.sort_by)
    tables = [
        (own, item if isinstance(item, WriteResult) else as_input(item, keep_index, spec.types))
        for own, item in iter_tables(spec, data)
    ]
    for own, table in tables:
        if isinstance(table, WriteResult):
            check_result_target(own, table)
            continue
        check_input(own, table)
        own.check_schema(table)
    check_one_table(spec.uuid, {own.table for own, _ in tables})
    results = [
        t if isinstance(t, WriteResult) else write_table(own, _sort_input(own, t)) for own, t in tables
    ]
    return spec.merge(results)


def check_dataset_input(spec: WriteSpec, table: pa.Table) -> WriteResult:
    """Check the columns of an input before any row is read; the result has its schema and no files."""
    spec = spec.of_table(None)
    rows = as_input(table, False, spec.types)
    check_input(spec, _sort_input(spec, rows))
    spec.check_schema(rows)
    keys = list(spec.partition_on)
    return WriteResult(spec.uuid, spec.table, make_meta(rows, spec.uuid, partition_keys=keys))


def _sort_input(spec: WriteSpec, table: pa.Table) -> pa.Table:
    """Sort rows by the columns of the spec, nulls last; the sort is stable."""
    missing = set(spec.sort_by) - set(table.column_names)
    if missing:
        raise ValueError(
            f"Cannot sort the input for dataset {spec.uuid!r}: "
            + unknown_names("column", missing, table.column_names)
        )
    return sort_rows(table, spec.sort_by)


# -- input of cubes ------------------------------------------------------------------------------------------


def check_announced(plan: CubeWritePlan, names: Iterable[str]) -> None:
    """Check that input belongs to datasets that the plan has."""
    unknown = set(names) - set(plan.specs)
    if unknown:
        raise ValueError(
            f"Input for datasets that were not announced: {', '.join(sorted(unknown))}. "
            f"Specified were: {', '.join(sorted(plan.specs)) or 'none'}"
        )


def prepare(
    plan: CubeWritePlan, frames: Mapping[str, Sequence[Any]], *, unique: bool = True
) -> dict[str, pa.Table]:
    """Check and sort input, by dataset id, before any of it is written; ids without rows are left out."""
    check_announced(plan, frames)
    tables = {
        name: prepare_table(plan.specs[name], frames[name], unique=unique)
        for name in sorted(frames)
        if frames[name]
    }
    _check_names(plan, tables)
    _check_new_payload(plan, tables)
    _check_key_types(plan, tables)
    for name, table in tables.items():
        plan.specs[name].check_schema(table)
        check_file_names(plan.specs[name], table)
    return {name: table for name, table in tables.items() if len(table)}


def _check_names(plan: CubeWritePlan, tables: Mapping[str, pa.Table]) -> None:
    """Refuse columns that no query would show, unless they are stored already."""
    for name, table in tables.items():
        stored = plan.specs[name].types
        hidden = sorted(c for c in table.column_names if is_internal(c) and c not in stored)
        if hidden:
            raise ValueError(
                f"Reserved names of columns in dataset {name!r}: {', '.join(hidden)}. No query shows columns "
                f"that begin with two underscores, and {KLEE_TIMESTAMP_COLUMN}: rename or drop them"
            )


def _check_new_payload(plan: CubeWritePlan, tables: Mapping[str, pa.Table]) -> None:
    owners: dict[str, str] = {}
    for name, table in tables.items():
        for column in sorted(get_payload_subset(table.column_names, plan.cube)):
            if column in owners:
                problem = ValueError(
                    f"Found columns present in multiple datasets: {column} in {owners[column]}, {name}. "
                    "A payload column belongs to one dataset"
                )
                raise plan.abort_error(name, problem) from problem
            owners[column] = name


def _check_key_types(plan: CubeWritePlan, tables: Mapping[str, pa.Table]) -> None:
    """Check that key columns have one type in all new datasets, and in those of the cube."""
    keys = (*plan.cube.partition_columns, *plan.cube.dimension_columns)
    owners: dict[str, tuple[str, pa.DataType]] = {}
    for name in plan.cube.join_order(tables):
        if plan.specs[name].mode is WriteMode.UPDATE:
            # its own schema is compared as a whole
            continue
        stored, types = plan.specs[name].types, {f.name: f.type for f in tables[name].schema}
        for column in keys:
            if column not in types or pa.types.is_null(types[column]):
                continue
            dtype = widen(types[column])
            known = ("the cube", stored[column]) if column in stored else (f"dataset {name!r}", dtype)
            owner, expected = owners.setdefault(column, known)
            if not (pa.types.is_null(expected) or same_type(expected, dtype)):
                problem = SchemaConflictError(
                    f"Column {column!r} is {expected} in {owner} but {dtype} in dataset {name!r}; "
                    "a column has one type in all datasets of a cube"
                )
                raise plan.abort_error(name, problem) from problem


def check_duplicate_cells(plan: CubeWritePlan, results: Written) -> None:
    """Raise DuplicateCellsError if independent tasks wrote the same cell into several files."""
    for name, result in results.items():
        labels = result.labels
        folders = pc.replace_substring_regex(labels, "[^/]*$", "").dictionary_encode()
        codes = folders.indices.to_numpy()
        for code in np.flatnonzero(np.bincount(codes, minlength=len(folders.dictionary)) > 1):
            mask = pa.array(codes == code)
            keys = None if result.keys is None else result.keys.filter(mask)
            _check_partition(plan, name, attrs.evolve(result, labels=labels.filter(mask), keys=keys))


def _check_partition(plan: CubeWritePlan, name: str, result: WriteResult) -> None:
    spec, files = plan.specs[name], result.partitions()
    partition_on = spec.partition_on
    schema = result.schema.internal() if result.schema is not None else pa.schema([])
    in_files = [c for c in schema.names if c not in partition_on]
    columns = [c for c in spec.cube.dimension_columns if c in in_files]
    keys = files.keys(list(partition_on), schema)

    def check_rows(names: Sequence[str]) -> None:
        tables = read_files(open_blobs(plan.store), files.files[result.table].to_pylist(), names)
        table = concat_promoted(list(tables))
        for column, values in keys.items():
            table = table.append_column(column, pa.repeat(values[0], len(table)))
        check_unique(spec, table)

    try:
        check_rows(columns)
    except DuplicateCellsError:
        # its message shows in which columns the rows of a cell differ
        check_rows(in_files)
        raise
