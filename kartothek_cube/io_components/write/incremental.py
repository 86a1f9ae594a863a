"""Writing a cube part by part: elements of input are written independently, one commit ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arguments import converter_str_set_optional
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.read.data_files import read_files
from kartothek_cube.io_components.write.abort import delete_uncommitted
from kartothek_cube.io_components.write.cube_commit import abort_error, finish_write
from kartothek_cube.io_components.write.cube_plan import CubeWritePlan
from kartothek_cube.io_components.write.cube_write import merge_writes, prepare, run_write
from kartothek_cube.io_components.write.table_writer import WriteResult
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
    "iter_input",
    "with_write_id",
    "without_commit_state",
    "write_part",
    "write_parts",
    "write_parts_job",
    "write_stream",
)

Input = TypeVar("Input")

Written = dict[str, WriteResult]


def declared_ids(ktk_cube_dataset_ids: str | Iterable[str] | None, default: Iterable[str] = ()) -> set[str]:
    """
    The datasets for which there may be input, where the input itself is not known yet.

    Parameters
    ----------
    ktk_cube_dataset_ids
        Ids, or None for the default.
    default
        Ids.

    Returns
    -------
    set of str

    Examples
    --------
    >>> announced("weather"), announced(None, ["seed"])
    ({'weather'}, {'seed'})
    """
    ids = converter_str_set_optional(ktk_cube_dataset_ids)
    return set(default if ids is None else ids)


def iter_input(data: Any) -> Iterable[Any]:
    """
    Elements of the input of a write, taken one at a time.

    Parameters
    ----------
    data
        A frame or a dict of dataset id to frame, which are one element, or an iterable of these and None.

    Returns
    -------
    iterable

    Raises
    ------
    TypeError
        It is something else.

    Examples
    --------
    >>> list(elements_of({"weather": None}))
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


def with_write_id(plan: CubeWritePlan) -> CubeWritePlan:
    """
    A plan for an engine that may run tasks again, even those that wrote what has been committed.

    Its commit recognises what an earlier run of the same plan committed, and changes nothing then.
    """
    write_id = gen_uuid()[:16]
    changes = {
        name: attrs.evolve(change, context=attrs.evolve(change.context, write_id=write_id))
        for name, change in plan.changes.items()
    }
    return attrs.evolve(plan, changes=changes)


def without_commit_state(plan: CubeWritePlan) -> CubeWritePlan:
    """A plan without what only its commit needs; it stays small however large the cube is."""
    changes = {
        name: attrs.evolve(change, metadata={}, scope=None, expected=None)
        for name, change in plan.changes.items()
    }
    return attrs.evolve(plan, changes=changes)


def write_part(plan: CubeWritePlan, element: Any, *, unique: bool = True) -> Written:
    """
    Check and write one element of input; no state is touched.

    Parameters
    ----------
    plan
        The write.
    element
        A frame (meant for the seed), a dict of dataset id to frame, or None.
    unique
        Whether cells that occur twice within the element are an error.

    Returns
    -------
    dict
        By dataset id what was written, for the element's datasets without rows as well.

    Raises
    ------
    ValueError, TypeError
        If the element breaks a rule of the cube; nothing of it is written then.
    """
    frames = collect_input(element, plan.cube)
    written = run_write(plan, prepare(plan, frames, unique=unique))
    contexts = {name: plan.changes[name].context for name in frames}
    return {name: written.get(name, WriteResult(c.uuid, c.table)) for name, c in contexts.items()}


def write_parts(plan: CubeWritePlan, elements: Iterable[Any]) -> Written:
    """Write elements one after the other; no more than one of them is held at a time."""
    return merge_writes(list(map(partial(write_part, plan), elements)))


def commit_parts(
    plan: CubeWritePlan, parts: Iterable[Mapping[str, WriteResult]]
) -> dict[str, DatasetMetadata]:
    """
    Commit what was written part by part.

    Parameters
    ----------
    plan
        The write.
    parts
        What :func:`write_part` returned, in any order or merged, each once.

    Returns
    -------
    dict
        Dataset id to new metadata.

    Raises
    ------
    MultiTableCommitAborted
        If a new dataset got no rows, or the datasets do not form the cube; nothing is changed then.
    """
    results = merge_writes(parts)
    _check_rows(plan, results)
    return finish_write(plan, results)


def _check_rows(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> None:
    new = {name for name, change in plan.changes.items() if change.mode != "update"}
    empty = sorted(name for name in new & set(results) if not len(results[name].labels))
    seed = plan.cube.seed_dataset
    if empty:
        problem = f"Cannot write empty datasets: {', '.join(empty)}"
    elif plan.operation == "build" and seed not in results:
        problem = f'Seed data ("{seed}") is missing: a new cube needs it, but it was not in the input'
    else:
        return
    raise abort_error(plan, problem) from ValueError(problem)


def write_stream(
    plan: CubeWritePlan, name: str, tables: Iterable[pa.Table], *, ordered: bool = False
) -> dict[str, WriteResult]:
    """
    Check and write tables one after the other; the state of the dataset is not touched.

    Parameters
    ----------
    plan
        The write.
    name
        Dataset id.
    tables
        Rows.
    ordered
        Whether rows come sorted by partition and dimension columns, so that a partition may go on in the next
        table, and it is noticed if a cell does.

    Returns
    -------
    dict
        Dataset id to what was written, also if there are no rows.

    Raises
    ------
    ValueError, TypeError
        If a table breaks a rule of the cube. As after every failure, what was written before is deleted.
    """
    rules, context = plan.changes[name].rules, plan.changes[name].context
    written = [{name: WriteResult(context.uuid, context.table)}]
    before = None
    try:
        for table in tables:
            prepared = prepare(plan, {name: [table]})
            if ordered and prepared:
                before = _check_border(rules, before, prepared[name])
            written.append(run_write(plan, prepared))
    except BaseException:
        delete_uncommitted(plan.store, [result for part in written for result in part.values()])
        raise
    return merge_writes(written)


def _check_border(rules: DatasetConstraints, before: pa.Table | None, table: pa.Table) -> pa.Table:
    """Check that the last cell of a table is not the first one of the next; gives the last row."""
    if before is not None:
        check_unique(rules, pa.concat_tables([before, table.slice(0, 1)], promote_options="permissive"))
    return table.slice(len(table) - 1)


def check_duplicate_cells(plan: CubeWritePlan, results: Mapping[str, WriteResult]) -> None:
    """
    Check cells of partitions that were written in several files, by tasks that did not know of each other.

    Parameters
    ----------
    plan
        The write.
    results
        By dataset id.

    Raises
    ------
    DuplicateCellsError
        If a cell is in several files.
    """
    for name, result in results.items():
        labels = result.labels
        folders = pc.replace_substring_regex(labels, "[^/]*$", "").dictionary_encode()
        codes = folders.indices.to_numpy()
        for code in np.flatnonzero(np.bincount(codes, minlength=len(folders.dictionary)) > 1):
            mask = pa.array(codes == code)
            keys = None if result.keys is None else result.keys.filter(mask)
            _check_partition(plan, name, attrs.evolve(result, labels=labels.filter(mask), keys=keys))


def _check_partition(plan: CubeWritePlan, name: str, result: WriteResult) -> None:
    rules, files = plan.changes[name].rules, result.partitions()
    schema = result.schema.internal() if result.schema is not None else pa.schema([])
    in_files = [c for c in schema.names if c not in rules.partition_on]
    columns = [c for c in rules.cube.dimension_columns if c in in_files]
    tables = read_files(open_blobs(plan.store), files.files[result.table].to_pylist(), columns)
    table = pa.concat_tables(list(tables), promote_options="permissive")
    for column, values in files.keys(list(rules.partition_on), schema).items():
        table = table.append_column(column, pa.repeat(values[0], len(table)))
    check_unique(rules, table)


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
