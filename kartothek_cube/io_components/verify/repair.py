"""Repair a dataset: rebuild indices from the data, put the schema of its header."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from kartothek_cube.core.commit.header_store import read_versioned
from kartothek_cube.core.commit.undo import finish_operation
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.naming import schema_key
from kartothek_cube.core.schema.file import VersionedSchema, schema_to_bytes, schema_version_of
from kartothek_cube.core.store import PreconditionFailed, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.runtime import available_cores, ordered_map, store_factory
from kartothek_cube.io_components.verify.dataset_rules import recover_schema
from kartothek_cube.io_components.verify.report import Problem, Report
from kartothek_cube.io_components.write.build_index import (
    finish_index_build,
    plan_index_build,
    run_index_build,
)

__all__ = ("compare_reports", "repair")

#: kinds of problems with which the contents of an index are unknown
_UNREPAIRABLE = frozenset({"header", "two-headers", "schema", "label", "missing-file", "unreadable-file"})
_PARTITIONS = 16


def repair(uuid: str, store: StoreInput, problems: Iterable[Problem]) -> bool:
    """Repair a dataset as far as possible, its indices in one commit; False if nothing was done."""
    own = [problem for problem in problems if problem.dataset == uuid]
    repairable = [problem for problem in own if problem.repairable]
    if not repairable or any(problem.kind in _UNREPAIRABLE for problem in own):
        return False
    if any(problem.kind == "unfinished-operation" for problem in repairable):
        finish_operation(open_blobs(store), uuid)
    if any(problem.kind in ("schema-pending", "missing-schema") for problem in repairable):
        _put_schema(uuid, store)
    columns = sorted({problem.column for problem in repairable if problem.column is not None})
    if columns:
        _build_indices(uuid, store, columns)
    return True


def _build_indices(uuid: str, store: StoreInput, columns: Sequence[str]) -> None:
    dataset = DatasetFactory(uuid, store_factory(store))
    context, tasks = plan_index_build(dataset, columns, _PARTITIONS)
    results = ordered_map(partial(run_index_build, context), tasks, available_cores())
    finish_index_build(context, list(results))


def _put_schema(uuid: str, store: StoreInput) -> None:
    """Put the schema of the stored header, unless a concurrent write puts one."""
    blobs = open_blobs(store)
    dataset = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    key = schema_key(uuid, dataset.table_name)
    _, token = read_versioned(blobs, key)
    try:
        dataset = DatasetMetadata.load_from_store(uuid, blobs)
        schema = dataset.schema
    except KeyError:
        schema = recover_schema(dataset, blobs)
    if schema is None:
        return
    content = schema_to_bytes(VersionedSchema(schema, schema_version_of(dataset.metadata)))
    # a commit that was faster has put the schema itself
    with suppress(PreconditionFailed):
        blobs.put_if(key, content, token)


def compare_reports(before: Report, after: Report) -> Report:
    """The report after a repair, which also lists the problems that are solved."""
    remaining = {(problem.dataset, problem.kind, problem.key, problem.column) for problem in after.problems}
    solved = [p for p in before.problems if (p.dataset, p.kind, p.key, p.column) not in remaining]
    return Report(after.problems, after.checked, solved)
