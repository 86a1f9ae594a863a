"""Verify the datasets of a cube, and that they form it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import attrs
import pyarrow as pa

from kartothek_cube.core.cube.consistency import (
    Rule,
    Violation,
    arrow_schema,
    cube_metadata,
    find_violations,
    get_dataset_columns,
    read_specification,
)
from kartothek_cube.core.cube.constants import (
    KTK_CUBE_METADATA_DIMENSION_COLUMNS,
    KTK_CUBE_METADATA_KEY_IS_SEED,
    KTK_CUBE_METADATA_PARTITION_COLUMNS,
)
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import (
    choose_datasets,
    cube_not_found,
    discover_ktk_cube_dataset_ids,
    open_existing,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DatasetNotFoundError, KartothekCubeError
from kartothek_cube.core.naming import SINGLE_TABLE, metadata_key_from_uuid, schema_key
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.read.repeated_cells import find_repeated_cells
from kartothek_cube.io_components.runtime import store_factory
from kartothek_cube.io_components.verify.data_file_rules import (
    VerifyContext,
    VerifyResult,
    VerifyTask,
    merge_verify_results,
    run_verify,
)
from kartothek_cube.io_components.verify.dataset_rules import VerifyPlan, finish_verify, plan_verify
from kartothek_cube.io_components.verify.report import Problem, Report, merge_reports


@attrs.frozen
class CubeVerifyPlan:
    """A planned verification of a cube."""

    cube: Cube
    store: StoreFactory
    #: by id of the dataset
    plans: Mapping[str, VerifyPlan]
    #: violations of the rules of the cube
    problems: tuple[Problem, ...]


@attrs.frozen
class CubeVerifyTask:
    """Some files of one dataset."""

    name: str
    task: VerifyTask


def plan_cube_verify(
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
) -> CubeVerifyPlan:
    """Check a cube without opening data files, and plan the check of these."""
    ensure_cube(cube)
    blobs = open_existing(cube.uuid_prefix, store)
    existing = discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs)
    if not existing:
        raise cube_not_found(cube.uuid_prefix, blobs)
    names = choose_datasets(cube, ktk_cube_dataset_ids, existing)
    keys = [*cube.dimension_columns, *cube.index_columns]
    plans: dict[str, VerifyPlan] = {}
    for name in sorted(names):
        try:
            plans[name] = plan_verify(
                cube.ktk_dataset_uuid(name),
                store,
                deep=deep,
                cell=cube.dimension_columns,
                not_null=list(dict.fromkeys(keys)),
            )
        except DatasetNotFoundError:
            # deleted since the listing
            continue
    datasets = {
        n: p.dataset for n, p in plans.items() if p.dataset is not None and p.dataset.schema is not None
    }
    return CubeVerifyPlan(cube, store_factory(store), plans, tuple(_cube_problems(cube, datasets, existing)))


def run_cube_verify(contexts: Mapping[str, VerifyContext], task: CubeVerifyTask) -> dict[str, VerifyResult]:
    """Check some files of one dataset."""
    return {task.name: run_verify(contexts[task.name], task.task)}


def finish_cube_verify(plan: CubeVerifyPlan, findings: Iterable[Mapping[str, VerifyResult]]) -> Report:
    """Compare the indices with the data, and report."""
    by_name: dict[str, list[VerifyResult]] = {name: [] for name in plan.plans}
    for part in findings:
        for name, result in part.items():
            by_name[name].append(result)
    reports = [finish_verify(plan.plans[name], plan.store, results) for name, results in by_name.items()]
    seed = plan.cube.seed_dataset
    return merge_reports(reports, [*plan.problems, *_repeated_cells(plan, by_name.get(seed, []))])


def _repeated_cells(plan: CubeVerifyPlan, findings: Iterable[VerifyResult]) -> Iterator[Problem]:
    """Cells of the seed that several partitions have: each of them is a row of a query."""
    seed = plan.plans.get(plan.cube.seed_dataset)
    if seed is None or seed.dataset is None or seed.context is None or not seed.context.deep:
        return
    dataset, dimensions = seed.dataset, plan.cube.dimension_columns
    entries = merge_verify_results(findings).entries
    try:
        repeated = find_repeated_cells(
            open_blobs(plan.store),
            dimensions,
            plan.cube.partition_columns,
            dataset.partition_table,
            dataset.table_name,
            seed.context.schema,
            {column: entries[column].entries for column in dimensions if column in entries},
        )
    except (pa.ArrowException, KartothekCubeError, KeyError, ValueError, OSError):
        # a file without these columns, or one that is missing or unreadable, which is reported already
        return
    if repeated is not None:
        yield Problem(dataset.uuid, "duplicate-cells", repeated.key, str(repeated))


# -- rules of the cube ---------------------------------------------------------------------------------------


def _cube_problems(cube: Cube, datasets: Mapping[str, DatasetMetadata], ids: set[str]) -> Iterator[Problem]:
    if cube.seed_dataset not in ids:
        text = f"the seed is missing; there are: {', '.join(sorted(ids))}"
        uuid = cube.ktk_dataset_uuid(cube.seed_dataset)
        yield Problem(uuid, "seed", metadata_key_from_uuid(uuid), text)
    violations: dict[tuple[Rule, str], list[Violation]] = {}
    for violation in find_violations(datasets, cube):
        violations.setdefault((violation.rule, violation.dataset), []).append(violation)

    def problems(rule: Rule, name: str) -> Iterator[Problem]:
        for violation in violations.get((rule, name), ()):
            yield _problem_of(violation, datasets)

    for name, dataset in datasets.items():
        for rule in (Rule.TABLE, Rule.DIMENSIONS, Rule.PARTITION_KEYS):
            yield from problems(rule, name)
        yield from _metadata(cube, name, dataset)
        for problem in problems(Rule.INDICES, name):
            # an index of a column that is missing is no problem of its own
            if problem.column in get_dataset_columns(dataset):
                yield problem
    for name in cube.join_order(datasets):
        yield from problems(Rule.OVERLAP, name)
    for name in sorted(datasets):
        yield from problems(Rule.TYPES, name)


#: kinds of problems, and whether they concern the schema file or the header
_KINDS = {
    Rule.TABLE: ("cube-table", False),
    Rule.DIMENSIONS: ("cube-columns", True),
    Rule.PARTITION_KEYS: ("cube-columns", True),
    Rule.INDICES: ("index-absent", False),
    Rule.OVERLAP: ("payload-overlap", True),
    Rule.TYPES: ("type-conflict", True),
}


def _problem_of(violation: Violation, datasets: Mapping[str, DatasetMetadata]) -> Problem:
    dataset, other = datasets[violation.dataset], datasets.get(violation.other)
    kind, in_schema = _KINDS[violation.rule]
    key = schema_key(dataset.uuid, dataset.table_name) if in_schema else metadata_key_from_uuid(dataset.uuid)
    columns = ", ".join(violation.columns)
    if violation.rule is Rule.TABLE:
        text = f"a dataset of a cube has one table, {SINGLE_TABLE!r}; there are: {', '.join(dataset.tables)}"
    elif violation.rule is Rule.DIMENSIONS:
        text = f"dimension columns are missing: {columns}"
    elif violation.rule is Rule.PARTITION_KEYS:
        text = f"columns are no partition keys, but have to be: {columns}"
    elif violation.rule is Rule.INDICES:
        text = f"there is no index of {columns}"
    elif violation.rule is Rule.OVERLAP or other is None:
        text = f"column {columns} is payload of dataset {violation.other} already"
    else:
        dtype, other_dtype = (arrow_schema(ds).field(columns).type for ds in (dataset, other))
        text = f"column {columns} has type {dtype}, but {other_dtype} in dataset {violation.other}"
    return Problem(dataset.uuid, kind, key, text, min(violation.columns, default=None))


def _metadata(cube: Cube, name: str, dataset: DatasetMetadata) -> Iterator[Problem]:
    """Metadata of a dataset that contradict the specification of the cube."""
    expected = cube_metadata(cube, name)
    for key in (
        KTK_CUBE_METADATA_KEY_IS_SEED,
        KTK_CUBE_METADATA_DIMENSION_COLUMNS,
        KTK_CUBE_METADATA_PARTITION_COLUMNS,
    ):
        value, stored = expected[key], read_specification(dataset.metadata, key)
        if stored is not None and stored != value:
            text = f"the metadata say {key} = {stored!r}, the specification of the cube {value!r}"
            yield Problem(dataset.uuid, "cube-metadata", metadata_key_from_uuid(dataset.uuid), text)


def verify_cube_job(
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
) -> Job[dict[str, VerifyContext], CubeVerifyTask, dict[str, VerifyResult], Report]:
    """Check the files of the datasets of a cube, then their indices."""
    plan = plan_cube_verify(cube, store, ktk_cube_dataset_ids, deep=deep)
    tasks = [CubeVerifyTask(name, task) for name, each in plan.plans.items() for task in each.tasks]
    return Job(
        name="verify_cube",
        description=f"verify cube {cube.uuid_prefix}",
        context={name: each.context for name, each in plan.plans.items() if each.context is not None},
        tasks=tasks,
        run=run_cube_verify,
        finish=partial(finish_cube_verify, plan),
        steps=("prepare", "files", "report"),
        is_parallel=True,
        files=sum(len(task.task.keys) for task in tasks),
    )
