"""Verify the datasets of a cube, and that they form it; repair of cubes and datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic

import attrs
import pyarrow as pa

from kartothek_cube.core import errors, naming, pruning
from kartothek_cube.core.commit import atomic, header_store
from kartothek_cube.core.commit.operation import is_hidden
from kartothek_cube.core.contract import Contract
from kartothek_cube.core.cube import consistency, constants, discover
from kartothek_cube.core.cube.consistency import Rule
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.schema import render_schema_file
from kartothek_cube.core.store import PreconditionFailed, StoreFactory, StoreInput, open_blobs
from kartothek_cube.io_components.dataset_read import find_repeated_cells
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job, execute
from kartothek_cube.io_components.maintenance import verify_dataset
from kartothek_cube.io_components.maintenance.verify_dataset import Problem, Report, VerifyPlan, VerifyResult
from kartothek_cube.io_components.runtime import available_cores, store_factory
from kartothek_cube.io_components.write.build_index import BuildDatasetIndices, statistics_job
from kartothek_cube.io_components.write.stored_rows import find_stored_violations


@attrs.frozen
class VerifyCube(Generic[StoreT]):
    """Check the datasets of a cube against their headers and the rules of the cube; nothing is changed.

    In addition to :func:`~kartothek_cube.io.eager.verify_dataset`: the seed exists, types agree, a payload
    column belongs to one dataset, rows are sorted by cell, keys are not null, all indices of the cube exist,
    and no cell of the seed is in several partitions.

    Parameters
    ----------
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

    def job(self, blocksize: int | None = None) -> Job[Report]:
        """Check the headers, then files of the datasets, then their indices."""
        cube, store, deep = self.cube, store_factory(self.store), self.deep
        blobs = open_blobs(self.store)
        existing = discover.discover_ktk_cube_dataset_ids(cube.uuid_prefix, blobs)
        if not existing:
            raise discover.cube_not_found(cube.uuid_prefix, blobs)
        keys = tuple(dict.fromkeys([*cube.dimension_columns, *cube.index_columns]))
        plans: dict[str, VerifyPlan] = {}
        for name in sorted(discover.choose_datasets(cube, self.ktk_cube_dataset_ids, existing)):
            # deleted since the listing
            with suppress(errors.DatasetNotFoundError):
                uuid, cell = cube.ktk_dataset_uuid(name), cube.dimension_columns
                plans[name] = verify_dataset.plan_verify(uuid, store, deep=deep, cell=cell, not_null=keys)
        problems = list(_cube_problems(cube, plans, existing))
        find_more = partial(_find_more, cube, store, plans, problems)
        return verify_dataset.verify_job("cube", cube.uuid_prefix, store, plans, find_more)


def _find_more(
    cube: Cube,
    store: StoreFactory,
    plans: Mapping[str, VerifyPlan],
    problems: Sequence[Problem],
    results: Mapping[str, VerifyResult],
) -> Iterator[Problem]:
    """Problems of the cube as a whole, and cells that several partitions of the seed have."""
    yield from problems
    states = {n: p.dataset for n, p in plans.items() if p.dataset is not None and p.context is not None}
    for name in states:
        yield from _find_contract_problems(cube, store, states, name, plans[name])
    seed, dimensions = plans.get(cube.seed_dataset), cube.dimension_columns
    if seed is None or seed.dataset is None or seed.context is None or not seed.context.deep:
        return
    entries = results[cube.seed_dataset].entries
    indices = {column: entries[column].entries for column in dimensions if column in entries}
    table, schema, files = seed.dataset.table_name, seed.context.schema, seed.dataset.partition_table
    blobs, keys = open_blobs(store), cube.partition_columns
    try:
        repeated = find_repeated_cells(blobs, dimensions, keys, files, table, schema, indices)
    except (pa.ArrowException, errors.KartothekCubeError, KeyError, ValueError, OSError):
        # a file without these columns, or one that is missing or unreadable, which is reported already
        return
    if repeated is not None:
        yield Problem(seed.uuid, "duplicate-cells", repeated.key, str(repeated))


def _find_contract_problems(
    cube: Cube, store: StoreFactory, states: Mapping[str, DatasetMetadata], name: str, plan: VerifyPlan
) -> Iterator[Problem]:
    """Rules of the contract of a dataset that stored rows break, by writers that do not check it."""
    key = naming.metadata_key_from_uuid(plan.uuid)
    try:
        contract = Contract.of(plan.uuid, states[name].metadata)
    except errors.CorruptDatasetError as error:
        yield Problem(plan.uuid, "contract", key, str(error))
        return
    if not contract.rules or plan.context is None or not plan.context.deep:
        return
    try:
        for violations in find_stored_violations(cube, store, states, name, contract):
            text = str(violations.error(plan.uuid))
            if not violations.rule.checked:
                text += "; stored rows were not checked when the rule was added"
            yield Problem(plan.uuid, "contract", key, text)
    except (pa.ArrowException, errors.KartothekCubeError, KeyError, TypeError, ValueError, OSError):
        # files that are missing, unreadable or of other types, which is reported already
        return


# -- rules of the cube ---------------------------------------------------------------------------------------

#: kinds of problems, and whether they concern the schema file or the header
_KINDS = {
    Rule.TABLE: ("cube-table", False),
    Rule.DIMENSIONS: ("cube-columns", True),
    Rule.PARTITION_KEYS: ("cube-columns", True),
    Rule.INDICES: ("index-absent", False),
    Rule.OVERLAP: ("payload-overlap", True),
    Rule.TYPES: ("type-conflict", True),
}


def _cube_problems(cube: Cube, plans: Mapping[str, VerifyPlan], ids: set[str]) -> Iterator[Problem]:
    states = {name: plan.dataset for name, plan in plans.items() if plan.dataset is not None}
    # those that a rollback has hidden are not part of the cube
    datasets = {n: state for n, state in states.items() if state.schema is not None and not is_hidden(state)}
    if cube.seed_dataset not in ids:
        text = f"the seed is missing; there are: {', '.join(sorted(ids))}"
        uuid = cube.ktk_dataset_uuid(cube.seed_dataset)
        yield Problem(uuid, "seed", naming.metadata_key_from_uuid(uuid), text)
    for violation in consistency.find_violations(datasets, cube):
        dataset = datasets.get(violation.dataset)
        if dataset is None or violation.rule not in _KINDS:
            continue
        column = min(violation.columns, default=None)
        if violation.rule is Rule.INDICES and column not in consistency.get_dataset_columns(dataset):
            # an index of a column that is missing is no problem of its own
            continue
        kind, in_schema = _KINDS[violation.rule]
        header = naming.metadata_key_from_uuid(dataset.uuid)
        key = naming.schema_key(dataset.uuid, dataset.table_name) if in_schema else header
        yield Problem(dataset.uuid, kind, key, str(violation.error), column)
    specified = (
        constants.KTK_CUBE_METADATA_KEY_IS_SEED,
        constants.KTK_CUBE_METADATA_DIMENSION_COLUMNS,
        constants.KTK_CUBE_METADATA_PARTITION_COLUMNS,
    )
    for name, dataset in datasets.items():
        header = naming.metadata_key_from_uuid(dataset.uuid)
        if name == cube.seed_dataset and consistency.lacks_specification(dataset):
            text = "the metadata do not say that it is the seed, so that discover_cube does not find the cube"
            yield Problem(dataset.uuid, "no-specification", header, text)
        expected = consistency.cube_metadata(cube, name)
        for key in specified:
            value, stored = expected[key], consistency.read_specification(dataset.metadata, key)
            if stored is not None and stored != value:
                text = f"the metadata say {key} = {stored!r}, the specification of the cube {value!r}"
                yield Problem(dataset.uuid, "cube-metadata", header, text)


# -- repair --------------------------------------------------------------------------------------------------

_PARTITIONS_PER_TASK = 16
#: kinds of problems with which the contents of an index are unknown
_UNREPAIRABLE = frozenset({"header", "two-headers", "schema", "label", "missing-file", "unreadable-file"})


def repair(store: StoreInput, verify: Callable[[], Report]) -> Report:
    """Repair what a verification finds; the report of another one, with the problems that are solved."""
    before = verify()
    uuids = sorted({problem.dataset for problem in before.problems if problem.repairable})
    if not [uuid for uuid in uuids if _repair_dataset(uuid, store, before.problems)]:
        return before
    after = verify()
    remaining = {(problem.dataset, problem.kind, problem.key, problem.column) for problem in after.problems}
    solved = [p for p in before.problems if (p.dataset, p.kind, p.key, p.column) not in remaining]
    return Report(after.problems, after.checked, solved)


def _repair_dataset(uuid: str, store: StoreInput, problems: Iterable[Problem]) -> bool:
    """Repair a dataset as far as possible, its indices in one commit; False if nothing was done."""
    own = [problem for problem in problems if problem.dataset == uuid]
    kinds = {problem.kind for problem in own}
    if kinds & _UNREPAIRABLE:
        return False
    if "unfinished-operation" in kinds:
        atomic.finish_operation(open_blobs(store), uuid)
    if kinds & {"schema-pending", "missing-schema"}:
        _put_schema(uuid, store)
    columns = sorted({p.column for p in own if p.repairable and p.column is not None})
    if columns:
        execute(BuildDatasetIndices(store, uuid, columns).job(_PARTITIONS_PER_TASK), available_cores())
    if kinds & {"missing-statistics", "wrong-statistics"}:
        dataset = DatasetMetadata.load_from_store(uuid, open_blobs(store))
        stored = {*consistency.arrow_schema(dataset).names}.difference(dataset.partition_keys)
        columns = sorted(stored.intersection(pruning.statistics_columns(dataset.metadata)))
        execute(statistics_job(uuid, store, {uuid: dataset}, {uuid: columns}), available_cores())
    return True


def _put_schema(uuid: str, store: StoreInput) -> None:
    """Put the schema of the stored header, unless a concurrent write puts one."""
    blobs = open_blobs(store)
    dataset = DatasetMetadata.load_from_store(uuid, blobs, load_schema=False)
    key = naming.schema_key(uuid, dataset.table_name)
    _, token = header_store.read_versioned(blobs, key)
    # refuses a commit that has put its schema and not yet its header: it starts again, and puts both
    header_store.edit_header(blobs, uuid, lambda state: state)
    try:
        schema = DatasetMetadata.load_from_store(uuid, blobs).schema
    except KeyError:
        schema = verify_dataset.recover_schema(dataset, blobs)
    if schema is None:
        return
    content = render_schema_file(schema, dataset.metadata)
    # a commit that was faster has put the schema itself
    with suppress(PreconditionFailed):
        blobs.put_if(key, content, token)
