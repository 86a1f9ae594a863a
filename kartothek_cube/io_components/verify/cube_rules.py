"""Checking that datasets are what their headers say, and form the cube."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs
import pyarrow as pa

from kartothek_cube.core.arguments import converter_str_set_optional
from kartothek_cube.core.cube.consistency import arrow_schema, get_dataset_columns, get_payload_subset
from kartothek_cube.core.cube.constants import (
    KLEE_METADATA_DIMENSION_COLUMNS,
    KLEE_METADATA_KEY_IS_SEED,
    KLEE_METADATA_PARTITION_COLUMNS,
    KTK_CUBE_METADATA_DIMENSION_COLUMNS,
    KTK_CUBE_METADATA_KEY_IS_SEED,
    KTK_CUBE_METADATA_PARTITION_COLUMNS,
)
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import discover_ktk_cube_dataset_ids
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DatasetNotFoundError, unknown_names
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.naming import SINGLE_TABLE, metadata_key_from_uuid, schema_key
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.runtime.threads import store_factory
from kartothek_cube.io_components.verify.finish import finish_verify
from kartothek_cube.io_components.verify.plan import VerifyPlan, plan_verify
from kartothek_cube.io_components.verify.report import Problem, Report, merge_reports
from kartothek_cube.io_components.verify.run import VerifyContext, VerifyResult, VerifyTask, run_verify

__all__ = (
    "CubeVerifyPlan",
    "CubeVerifyTask",
    "finish_cube_verify",
    "plan_cube_verify",
    "run_cube_verify",
    "verify_cube_job",
)


@attrs.frozen
class CubeVerifyPlan:
    """
    A planned check of a cube.

    Attributes
    ----------
    store
        Factory of the store.
    plans
        By dataset id.
    problems
        What is wrong with the datasets together.
    """

    store: StoreFactory
    plans: Mapping[str, VerifyPlan]
    problems: tuple[Problem, ...]

    def contexts(self) -> dict[str, VerifyContext]:
        """What the tasks share, by dataset id."""
        return {name: plan.context for name, plan in self.plans.items() if plan.context is not None}

    def tasks(self) -> list[CubeVerifyTask]:
        """Files to look at, of all datasets."""
        return [CubeVerifyTask(name, task) for name, plan in self.plans.items() for task in plan.tasks]


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
    """
    Check a cube as far as that is possible without opening data files, and plan the rest.

    Parameters
    ----------
    cube, store, ktk_cube_dataset_ids, deep
        As in :func:`kartothek_cube.io.eager_cube.verify_cube`.

    Returns
    -------
    CubeVerifyPlan

    Raises
    ------
    ValueError
        A dataset that is asked for does not exist, or there is none at all.
    """
    ensure_cube(cube)
    blobs = open_blobs(store)
    known = discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs)
    wanted = converter_str_set_optional(ktk_cube_dataset_ids)
    names = known if wanted is None else set(wanted)
    if names - known or not known:
        raise ValueError(
            f"Could not find datasets of cube {cube.uuid_prefix}: "
            + unknown_names("dataset", names - known or {cube.seed_dataset}, known)
        )
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
            continue  # deleted meanwhile
    found = {n: p.dataset for n, p in plans.items() if p.dataset is not None and p.dataset.schema is not None}
    return CubeVerifyPlan(store_factory(store), plans, tuple(_cube_problems(cube, found, known)))


def run_cube_verify(contexts: Mapping[str, VerifyContext], task: CubeVerifyTask) -> dict[str, VerifyResult]:
    """
    Look at some files of one dataset.

    Parameters
    ----------
    contexts
        What all tasks share, by dataset id.
    task
        The files.

    Returns
    -------
    dict
        Dataset id to what was found.
    """
    return {task.name: run_verify(contexts[task.name], task.task)}


def finish_cube_verify(plan: CubeVerifyPlan, findings: Iterable[Mapping[str, VerifyResult]]) -> Report:
    """
    Compare the indices with the data, and report.

    Parameters
    ----------
    plan
        The check.
    findings
        What tasks found.

    Returns
    -------
    Report
    """
    by_name: dict[str, list[VerifyResult]] = {name: [] for name in plan.plans}
    for part in findings:
        for name, found in part.items():
            by_name[name].append(found)
    reports = [finish_verify(plan.plans[name], plan.store, found) for name, found in by_name.items()]
    return merge_reports(reports, plan.problems)


# -- the datasets together -----------------------------------------------------------------------------------


def _cube_problems(cube: Cube, datasets: Mapping[str, DatasetMetadata], known: set[str]) -> Iterator[Problem]:
    if cube.seed_dataset not in known:
        text = f"the seed is missing; there are: {', '.join(sorted(known))}"
        uuid = cube.ktk_dataset_uuid(cube.seed_dataset)
        yield Problem(uuid, "seed", metadata_key_from_uuid(uuid), text)
    for name, dataset in datasets.items():
        for check in (_table, _columns, _metadata, _indices):
            yield from check(cube, name, dataset)
    yield from _overlaps(cube, datasets)
    yield from _types(datasets)


def _problem(dataset: DatasetMetadata, kind: str, text: str, column: str | None = None) -> Problem:
    key = metadata_key_from_uuid(dataset.uuid)
    if kind in ("cube-columns", "payload-overlap", "type-conflict"):
        key = schema_key(dataset.uuid, dataset.table_name)
    return Problem(dataset.uuid, kind, key, text, column)


def _table(cube: Cube, name: str, dataset: DatasetMetadata) -> Iterator[Problem]:
    if set(dataset.tables) != {SINGLE_TABLE}:
        text = f"a dataset of a cube has one table, {SINGLE_TABLE!r}; there are: {', '.join(dataset.tables)}"
        yield _problem(dataset, "cube-table", text)


def _columns(cube: Cube, name: str, dataset: DatasetMetadata) -> Iterator[Problem]:
    columns, keys = get_dataset_columns(dataset), set(dataset.partition_keys)
    dimensions = set(cube.dimension_columns)
    missing = dimensions - columns if name == cube.seed_dataset else set()
    if not dimensions & columns:
        missing = dimensions
    if missing:
        text = f"dimension columns are missing: {', '.join(sorted(missing))}"
        yield _problem(dataset, "cube-columns", text, min(missing))
    unpartitioned = (set(cube.partition_columns) & columns) - keys
    if name == cube.seed_dataset:
        unpartitioned |= set(cube.partition_columns) - keys
    if unpartitioned:
        text = f"columns are no partition keys, but have to be: {', '.join(sorted(unpartitioned))}"
        yield _problem(dataset, "cube-columns", text, min(unpartitioned))


def _metadata(cube: Cube, name: str, dataset: DatasetMetadata) -> Iterator[Problem]:
    """What the dataset says about its cube."""
    expected: list[tuple[str, str, Any]] = [
        (KTK_CUBE_METADATA_KEY_IS_SEED, KLEE_METADATA_KEY_IS_SEED, name == cube.seed_dataset),
        (
            KTK_CUBE_METADATA_DIMENSION_COLUMNS,
            KLEE_METADATA_DIMENSION_COLUMNS,
            list(cube.dimension_columns),
        ),
        (
            KTK_CUBE_METADATA_PARTITION_COLUMNS,
            KLEE_METADATA_PARTITION_COLUMNS,
            list(cube.partition_columns),
        ),
    ]
    for key, old_key, wanted in expected:
        found = dataset.metadata.get(key, dataset.metadata.get(old_key, wanted))
        if found != wanted:
            text = f"the metadata say {key} = {found!r}, the specification of the cube {wanted!r}"
            yield _problem(dataset, "cube-metadata", text)


def _indices(cube: Cube, name: str, dataset: DatasetMetadata) -> Iterator[Problem]:
    """Indices that the cube demands ("Indices" in the cube format)."""
    keys, columns = set(dataset.partition_keys), get_dataset_columns(dataset)
    wanted = (set(cube.index_columns) & columns) - keys
    if name == cube.seed_dataset:
        wanted |= (set(cube.dimension_columns) - set(cube.suppress_index_on)) & columns
    for column in sorted(wanted):
        if not isinstance(dataset.indices.get(column), ExplicitSecondaryIndex):
            yield _problem(dataset, "index-absent", f"there is no index of {column}", column)


def _overlaps(cube: Cube, datasets: Mapping[str, DatasetMetadata]) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for name in sorted(datasets, key=lambda name: (name != cube.seed_dataset, name)):
        for column in sorted(get_payload_subset(get_dataset_columns(datasets[name]), cube)):
            owner = owners.setdefault(column, name)
            if owner != name:
                text = f"column {column} is payload of dataset {owner} already"
                yield _problem(datasets[name], "payload-overlap", text, column)


def _types(datasets: Mapping[str, DatasetMetadata]) -> Iterator[Problem]:
    first: dict[str, tuple[str, pa.DataType]] = {}
    for name in sorted(datasets):
        for field in arrow_schema(datasets[name]):
            if pa.types.is_null(field.type):
                continue
            owner, dtype = first.setdefault(field.name, (name, field.type))
            if not dtype.equals(field.type):
                text = f"column {field.name} has type {field.type}, but {dtype} in dataset {owner}"
                yield _problem(datasets[name], "type-conflict", text, field.name)


def verify_cube_job(
    cube: Cube,
    store: StoreInput,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    *,
    deep: bool = True,
) -> Job[dict[str, VerifyContext], CubeVerifyTask, dict[str, VerifyResult], Report]:
    """Check the files of the datasets of a cube, then their indices."""
    plan = plan_cube_verify(cube, store, ktk_cube_dataset_ids, deep=deep)
    tasks = plan.tasks()
    return Job(
        name="verify_cube",
        description=f"verify cube {cube.uuid_prefix}",
        context=plan.contexts(),
        tasks=tasks,
        run=run_cube_verify,
        finish=partial(finish_cube_verify, plan),
        steps=("prepare", "files", "report"),
        files=sum(len(task.task.keys) for task in tasks),
    )
