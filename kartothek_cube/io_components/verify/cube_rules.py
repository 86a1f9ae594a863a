"""Verify the datasets of a cube, and that they form it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic

import attrs
import pyarrow as pa

from kartothek_cube.core.cube import consistency, constants, discover
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import DatasetNotFoundError, KartothekCubeError
from kartothek_cube.core.naming import SINGLE_TABLE, metadata_key_from_uuid, schema_key
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.read.repeated_cells import find_repeated_cells
from kartothek_cube.io_components.runtime import store_factory
from kartothek_cube.io_components.verify.data_file_rules import (
    VerifyContext,
    VerifyResult,
    merge_verify_results,
)
from kartothek_cube.io_components.verify.dataset_rules import DatasetTask, VerifyPlan, plan_verify, verify_job
from kartothek_cube.io_components.verify.report import Problem, Report


@attrs.frozen
class VerifyCube(Generic[StoreT]):
    """
    Check the datasets of a cube against their headers and the rules of the cube; nothing is changed.

    In addition to :func:`~kartothek_cube.io.eager.verify_dataset`: the seed exists, types agree, a payload
    column belongs to one dataset, rows are sorted by cell, keys are not null, all indices of the cube exist,
    and no cell of the seed is in several partitions.

    Parameters
    ----------
    datasets, ktk_cube_dataset_ids
        Datasets concerned; all by default.
    deep
        Whether all rows are read; otherwise only the footers of files are, and indices are not compared with
        the data.

    Returns
    -------
    Report
        ``report.ok`` is True without problems; ``report.problems`` also say what to do.

    Raises
    ------
    ValueError
        There is no such cube or dataset.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube
    >>> from kartothek_cube.io.eager_cube import verify_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> verify_cube(cube, store).ok
    True
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    ktk_cube_dataset_ids: str | Iterable[str] | None = None
    deep: bool = attrs.field(default=True, kw_only=True)
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def job(
        self, blocksize: int | None = None
    ) -> Job[dict[str, VerifyContext], DatasetTask, dict[str, VerifyResult], Report]:
        """Check the headers, then files of the datasets, then their indices."""
        cube, store = self.cube, store_factory(self.store)
        ensure_cube(cube)
        blobs = discover.open_existing(cube.uuid_prefix, self.store)
        existing = discover.discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs)
        if not existing:
            raise discover.cube_not_found(cube.uuid_prefix, blobs)
        keys = tuple(dict.fromkeys([*cube.dimension_columns, *cube.index_columns]))
        plans: dict[str, VerifyPlan] = {}
        for name in sorted(discover.choose_datasets(cube, self.ktk_cube_dataset_ids, existing)):
            # deleted since the listing
            with suppress(DatasetNotFoundError):
                plans[name] = plan_verify(
                    cube.ktk_dataset_uuid(name),
                    self.store,
                    deep=self.deep,
                    cell=cube.dimension_columns,
                    not_null=keys,
                )
        problems = list(_cube_problems(cube, plans, existing))
        find_more = partial(_find_more, cube, store, plans, problems)
        return verify_job("cube", cube.uuid_prefix, store, plans, find_more)


def _find_more(
    cube: Cube,
    store: StoreFactory,
    plans: Mapping[str, VerifyPlan],
    problems: Sequence[Problem],
    results: Mapping[str, Sequence[VerifyResult]],
) -> Iterator[Problem]:
    """Problems of the cube as a whole."""
    yield from problems
    seed = cube.seed_dataset
    if seed in plans:
        yield from _repeated_cells(cube, store, plans[seed], results[seed])


def _repeated_cells(
    cube: Cube, store: StoreFactory, seed: VerifyPlan, findings: Iterable[VerifyResult]
) -> Iterator[Problem]:
    """Cells of the seed that several partitions have: each of them is a row of a query."""
    if seed.dataset is None or seed.context is None or not seed.context.deep:
        return
    dataset, dimensions = seed.dataset, cube.dimension_columns
    entries = merge_verify_results(findings).entries
    try:
        repeated = find_repeated_cells(
            open_blobs(store),
            dimensions,
            cube.partition_columns,
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


def _cube_problems(cube: Cube, plans: Mapping[str, VerifyPlan], ids: set[str]) -> Iterator[Problem]:
    datasets = {
        name: plan.dataset
        for name, plan in plans.items()
        if plan.dataset is not None and plan.dataset.schema is not None
    }
    if cube.seed_dataset not in ids:
        text = f"the seed is missing; there are: {', '.join(sorted(ids))}"
        uuid = cube.ktk_dataset_uuid(cube.seed_dataset)
        yield Problem(uuid, "seed", metadata_key_from_uuid(uuid), text)
    violations: dict[tuple[consistency.Rule, str], list[consistency.Violation]] = {}
    for violation in consistency.find_violations(datasets, cube):
        violations.setdefault((violation.rule, violation.dataset), []).append(violation)

    def problems(rule: consistency.Rule, name: str) -> Iterator[Problem]:
        for violation in violations.get((rule, name), ()):
            yield _problem_of(violation, datasets)

    for name, dataset in datasets.items():
        for rule in (consistency.Rule.TABLE, consistency.Rule.DIMENSIONS, consistency.Rule.PARTITION_KEYS):
            yield from problems(rule, name)
        yield from _metadata(cube, name, dataset)
        for problem in problems(consistency.Rule.INDICES, name):
            # an index of a column that is missing is no problem of its own
            if problem.column in consistency.get_dataset_columns(dataset):
                yield problem
    for name in cube.join_order(datasets):
        yield from problems(consistency.Rule.OVERLAP, name)
    for name in sorted(datasets):
        yield from problems(consistency.Rule.TYPES, name)


#: kinds of problems, and whether they concern the schema file or the header
_KINDS = {
    consistency.Rule.TABLE: ("cube-table", False),
    consistency.Rule.DIMENSIONS: ("cube-columns", True),
    consistency.Rule.PARTITION_KEYS: ("cube-columns", True),
    consistency.Rule.INDICES: ("index-absent", False),
    consistency.Rule.OVERLAP: ("payload-overlap", True),
    consistency.Rule.TYPES: ("type-conflict", True),
}


def _problem_of(violation: consistency.Violation, datasets: Mapping[str, DatasetMetadata]) -> Problem:
    dataset, other = datasets[violation.dataset], datasets.get(violation.other)
    kind, in_schema = _KINDS[violation.rule]
    key = schema_key(dataset.uuid, dataset.table_name) if in_schema else metadata_key_from_uuid(dataset.uuid)
    columns = ", ".join(violation.columns)
    if violation.rule is consistency.Rule.TABLE:
        text = f"a dataset of a cube has one table, {SINGLE_TABLE!r}; there are: {', '.join(dataset.tables)}"
    elif violation.rule is consistency.Rule.DIMENSIONS:
        text = f"dimension columns are missing: {columns}"
    elif violation.rule is consistency.Rule.PARTITION_KEYS:
        text = f"columns are no partition keys, but have to be: {columns}"
    elif violation.rule is consistency.Rule.INDICES:
        text = f"there is no index of {columns}"
    elif violation.rule is consistency.Rule.OVERLAP or other is None:
        text = f"column {columns} is payload of dataset {violation.other} already"
    else:
        dtype, other_dtype = (consistency.arrow_schema(ds).field(columns).type for ds in (dataset, other))
        text = f"column {columns} has type {dtype}, but {other_dtype} in dataset {violation.other}"
    return Problem(dataset.uuid, kind, key, text, min(violation.columns, default=None))


def _metadata(cube: Cube, name: str, dataset: DatasetMetadata) -> Iterator[Problem]:
    """Metadata of a dataset that contradict the specification of the cube."""
    expected = consistency.cube_metadata(cube, name)
    for key in (
        constants.KTK_CUBE_METADATA_KEY_IS_SEED,
        constants.KTK_CUBE_METADATA_DIMENSION_COLUMNS,
        constants.KTK_CUBE_METADATA_PARTITION_COLUMNS,
    ):
        value, stored = expected[key], consistency.read_specification(dataset.metadata, key)
        if stored is not None and stored != value:
            text = f"the metadata say {key} = {stored!r}, the specification of the cube {value!r}"
            yield Problem(dataset.uuid, "cube-metadata", metadata_key_from_uuid(dataset.uuid), text)
