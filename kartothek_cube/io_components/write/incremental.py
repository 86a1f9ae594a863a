"""Write a cube in parts: elements of input are written independently, one commit ends the operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arguments import converter_str_set_optional
from kartothek_cube.core.commit.change import WriteMode
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.read.data_files import read_files
from kartothek_cube.io_components.write.cube_plan import CubeWritePlan
from kartothek_cube.io_components.write.cube_write import (
    abort_error,
    finish_checked,
    merge_writes,
    prepare,
    run_write,
)
from kartothek_cube.io_components.write.table_writer import WriteResult, delete_uncommitted
from kartothek_cube.io_components.write.validation import (
    DatasetConstraints,
    check_unique,
    collect_input,
    is_frame,
)

__all__ = (
    "check_duplicate_cells",
    "commit_parts",
    "declared_ids",
    "iter_elements",
    "without_commit_state",
    "write_part",
    "write_parts",
    "write_parts_job",
    "write_stream",
)

Input = TypeVar("Input")

Written = dict[str, WriteResult]


def declared_ids(ktk_cube_dataset_ids: str | Iterable[str] | None, default: Iterable[str] = ()) -> set[str]:
    """Ids of the datasets for which there may be input, before the input is known.

    >>> declared_ids("weather"), declared_ids(None, ["seed"])
    ({'weather'}, {'seed'})
    """
    ids = converter_str_set_optional(ktk_cube_dataset_ids)
    return set(default if ids is None else ids)


def iter_elements(data: Any) -> Iterable[Any]:
    """Iterate over the elements of an input: frames, or dicts of dataset id to frame.

    >>> list(iter_elements({"weather": None}))
    [{'weather': None}]
    """
    if data is None or is_frame(data) or isinstance(data, Mapping):
        return [data]
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise TypeError(
            "Expected an iterable of frames, or of dicts of dataset id to frame, "
            f"but got an object of type {type(data).__name__}"
        )
    return data


def without_commit_state(plan: CubeWritePlan) -> CubeWritePlan:
    """Drop what only the commit needs; the size of the plan no longer grows with the cube."""
    changes = {
        name: attrs.evolve(change, metadata={}, remove_where=None, assumed_labels=None)
        for name, change in plan.changes.items()
    }
    return attrs.evolve(plan, changes=changes)


def write_part(plan: CubeWritePlan, element: Any, *, unique: bool = True) -> Written:
    """Check and write one element of input; `unique`: cells that occur twice in it are an error."""
    frames = collect_input(element, plan.cube)
    written = run_write(plan, prepare(plan, frames, unique=unique))
    return {name: written.get(name) or plan.changes[name].context.merge(()) for name in frames}


def write_parts(plan: CubeWritePlan, elements: Iterable[Any]) -> Written:
    """Write elements one after the other; no more than one of them is held at a time."""
    return merge_writes(list(map(partial(write_part, plan), elements)))


def commit_parts(
    plan: CubeWritePlan, parts: Iterable[Mapping[str, WriteResult]]
) -> dict[str, DatasetMetadata]:
    """Commit what `write_part` returned, in any order or merged, each part once."""
    results = merge_writes(parts)
    _check_rows(plan, results)
    return finish_checked(plan, results)


def _check_rows(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> None:
    new = {name for name, change in plan.changes.items() if change.mode is not WriteMode.UPDATE}
    empty = sorted(name for name in new & set(results) if not len(results[name].labels))
    seed = plan.cube.seed_dataset
    if empty:
        problem = f"Cannot write empty datasets: {', '.join(empty)}"
    elif plan.operation == "build" and seed not in results:
        problem = f'Seed data ("{seed}") is missing: a new cube needs it, but it was not in the input'
    else:
        return
    error = ValueError(problem)
    raise abort_error(plan, min(empty, default=seed), error) from error


def write_stream(
    plan: CubeWritePlan, name: str, tables: Iterable[pa.Table], *, ordered: bool = False
) -> dict[str, WriteResult]:
    """Check and write the tables of one dataset, one after the other; `ordered`: rows are sorted by cell."""
    constraints = plan.constraints[name]
    results: list[Written] = [{name: plan.changes[name].context.merge(())}]
    last_row = None
    try:
        for table in tables:
            prepared = prepare(plan, {name: [table]})
            if ordered and prepared:
                # a partition may continue in the next table, a cell must not
                last_row = _check_border(constraints, last_row, prepared[name])
            results.append(run_write(plan, prepared))
    except BaseException:
        # also when the task is cancelled: no commit will ever refer to these files
        delete_uncommitted(plan.store, [result for part in results for result in part.values()])
        raise
    return merge_writes(results)


def _check_border(constraints: DatasetConstraints, last_row: pa.Table | None, table: pa.Table) -> pa.Table:
    """Check that a table does not begin with the last cell of the previous one; return its last row."""
    if last_row is not None:
        border = pa.concat_tables([last_row, table.slice(0, 1)], promote_options="permissive")
        check_unique(constraints, border)
    return table.slice(len(table) - 1)


def check_duplicate_cells(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> None:
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
    constraints, files = plan.constraints[name], result.partitions()
    schema = result.schema.internal() if result.schema is not None else pa.schema([])
    in_files = [c for c in schema.names if c not in constraints.partition_on]
    columns = [c for c in constraints.cube.dimension_columns if c in in_files]
    tables = read_files(open_blobs(plan.store), files.files[result.table].to_pylist(), columns)
    table = pa.concat_tables(list(tables), promote_options="permissive")
    for column, values in files.keys(list(constraints.partition_on), schema).items():
        table = table.append_column(column, pa.repeat(values[0], len(table)))
    check_unique(constraints, table)


def write_parts_job(
    plan: CubeWritePlan, tasks: Iterable[Input], run: Callable[[CubeWritePlan, Input], Written]
) -> Job[CubeWritePlan, Input, Written, dict[str, DatasetMetadata]]:
    """Write elements of input in independent tasks, then commit dataset by dataset, the seed last."""
    return Job(
        name=f"{plan.operation}_cube",
        description=f"{plan.operation} cube {plan.cube.uuid_prefix}",
        context=without_commit_state(plan),
        tasks=tasks,
        run=run,
        finish=partial(commit_parts, plan),
        merge=merge_writes,
        steps=("prepare", "write", "commit"),
    )
