"""Jobs of writes, and their commit: all datasets of a write at once, after the checks of their cube."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core import arrow, clock, errors, expressions, factory, history, index, naming, tuning
from kartothek_cube.core.commit import atomic, header_store, operation, optimistic
from kartothek_cube.core.commit import change as change_sets
from kartothek_cube.core.commit.change import ChangeSet, IndexUpdate, NoUnseenPartitions, WriteMode
from kartothek_cube.core.cube import consistency, constants, discover
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata, DatasetsById
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema import SchemaWrapper, make_meta
from kartothek_cube.core.store import BlobStore, StoreFactory, open_blobs
from kartothek_cube.io_components import dataset_arguments, dataset_read
from kartothek_cube.io_components.job import Job, delete_on_failure
from kartothek_cube.io_components.publication.published_table import publish_committed
from kartothek_cube.io_components.runtime import ordered_map, store_factory
from kartothek_cube.io_components.write import table_writer, write_plan
from kartothek_cube.io_components.write.stored_rows import StoredRows, ValuesKept, check_write
from kartothek_cube.io_components.write.write_plan import NO_CUBE, WritePlan, WriteResult, WriteSpec, Written
from kartothek_cube.io_components.write.write_tasks import prepare

_LOGGER = logging.getLogger(__name__)

#: changes to commit, by dataset id
Changes: TypeAlias = Mapping[str, ChangeSet]

# -- jobs ----------------------------------------------------------------------------------------------------


#: function of a plan and an element of input
RunWrite: TypeAlias = Callable[[WritePlan, Any], Written]
#: function of a plan and what its tasks wrote, which commits
FinishWrite: TypeAlias = Callable[[WritePlan, Iterable[Written]], DatasetMetadata]


def write_job(plan: WritePlan, tasks: Iterable[Any], run: RunWrite) -> Job[dict[str, DatasetMetadata]]:
    """Write elements of input in independent tasks, then commit once."""
    if plan.is_cube_write:
        name, description = f"{plan.info.name}_cube", f"{plan.info.name} cube {plan.cube.uuid_prefix}"
    else:
        is_new = plan.spec.change.mode in (WriteMode.CREATE, WriteMode.REPLACE)
        name = "store_dataset" if is_new else "update_dataset"
        description = f"write dataset {plan.spec.uuid}"
    return Job(
        name=name,
        description=description,
        context=plan.without_commit_state(),
        tasks=tasks,
        run=run,
        finish=partial(finish_write, plan),
        merge=write_plan.merge_writes,
        discard=partial(table_writer.delete_attempts, plan),
        steps=("prepare", "write", "commit"),
    )


def write_dataset_job(plan: WritePlan, tasks: Iterable[Any], run: RunWrite) -> Job[DatasetMetadata]:
    """The job of a write of one dataset, whose answer is the dataset."""
    job: Job[Any] = write_job(plan, tasks, run)
    return attrs.evolve(job, finish=partial(finish_dataset_write, plan))


# -- commit --------------------------------------------------------------------------------------------------


def finish_write(plan: WritePlan, parts: Iterable[Written]) -> dict[str, DatasetMetadata]:
    """Commit what tasks wrote, in any order or merged, each part once; a failure leaves all as it was."""
    results, blobs = write_plan.merge_writes(parts), open_blobs(plan.store)
    changes, others = _change_sets(plan, results), dict[str, DatasetMetadata]()
    # without those that a user has written
    delete = partial(table_writer.delete_attempts, plan)
    with delete_on_failure(delete):
        by_uuid = {change.uuid: change for change in changes.values()}
        changes = {name: check_write(plan.specs[name], by_uuid) for name in changes}
        if plan.is_cube_write:
            others = _check_cube_write(plan, results, changes, blobs)
        else:
            _check_dataset_write(plan.spec, results)
    try:
        written = commit_datasets(plan, changes, blobs)
    except errors.ConcurrentWriteError as error:
        table_writer.check_same_store(plan.store, error.dataset_uuid)
        raise
    except (TypeError, ValueError, errors.MultiTableCommitAborted):
        delete()
        raise
    return written if plan.staged_id else DatasetsById({**others, **written})


def finish_dataset_write(plan: WritePlan, parts: Iterable[Written]) -> DatasetMetadata:
    """Commit what tasks wrote of one dataset."""
    written = finish_write(plan, parts)
    return cast("DatasetMetadata", written) if plan.staged_id else next(iter(written.values()))


def find_committed_batch(plan: WritePlan, batch: tuple[str, int] | None) -> dict[str, DatasetMetadata] | None:
    """The datasets of a plan, if a batch or a later one is committed, which is done for all at once."""
    if batch is None:
        return None
    states = discover.discover_datasets_unchecked(plan.cube.uuid_prefix, plan.store)
    for name in plan.specs:
        last = change_sets.last_batch(states[name], batch[0]) if name in states else None
        if last is not None and last >= batch[1]:
            return DatasetsById({name: states[name] for name in plan.specs if name in states})
    return None


def check_schemas(plan: WritePlan, tables: Mapping[str, pa.Table]) -> None:
    """Check input and the cube as it will be, by tables without rows and before any row is read."""
    results = {}
    for name, table in prepare(plan, {name: [table] for name, table in tables.items()}).items():
        spec = plan.specs[name]
        schema = make_meta(table, f"{spec.uuid}/{spec.table}", partition_keys=list(spec.partition_on))
        indices = {*spec.index_columns(schema.names)}.intersection(schema.names)
        entries = {column: IndexUpdate.empty(schema.field(column).type) for column in indices}
        results[name] = WriteResult(spec.uuid, spec.table, schema, indices=entries)
    existing = discover.load_states(plan.cube.uuid_prefix, open_blobs(plan.store))
    check_outcome(attrs.evolve(plan, keep_empty=True), _change_sets(plan, results), existing)


def _check_cube_write(
    plan: WritePlan, results: Written, changes: Changes, blobs: BlobStore
) -> dict[str, DatasetMetadata]:
    """Check what was written, and the cube as it will be; datasets to return besides the written ones."""
    new = {name for name, spec in plan.specs.items() if spec.change.mode is not WriteMode.UPDATE}
    empty = sorted(name for name in new & set(results) if not len(results[name].labels))
    seed = plan.cube.seed_dataset
    if empty:
        text = f"Cannot write empty datasets: {', '.join(empty)}. The first write of a dataset needs rows"
        raise plan.abort_error(empty[0], ValueError(text))
    if plan.info.name == "build" and seed not in results:
        text = f'Seed data ("{seed}") is missing: a new cube needs it, but it was not in the input'
        raise plan.abort_error(seed, ValueError(text))
    if absent := sorted(new - set(results)):
        where = f"{plan.info.name} of cube {plan.cube.uuid_prefix}"
        _LOGGER.warning("%s: no input for %s; nothing is written there", where, ", ".join(absent))
    if plan.rows_outside != "append":
        _check_rows_outside(plan, results)
    if plan.unique_cells:
        _check_unique_cells(plan, results)
    if not plan.return_all and all(len(c.added) and _keeps_schema(plan, n, c) for n, c in changes.items()):
        return {}
    # users may change what is returned
    load = discover.discover_datasets_unchecked if plan.return_all else discover.load_states
    existing = load(plan.cube.uuid_prefix, blobs)
    check_outcome(plan, changes, existing)
    return existing if plan.return_all else {}


def _keeps_schema(plan: WritePlan, name: str, change: ChangeSet) -> bool:
    """Whether no rule of the cube concerns a change: its rows have the schema that the plan knows."""
    spec = plan.specs.get(name)
    if change.mode is not WriteMode.UPDATE or spec is None or spec.schema is None:
        return False
    return change.schema is None or spec.schema.equals(change.schema, check_metadata=True)


def check_outcome(plan: WritePlan, changes: Changes, existing: Mapping[str, DatasetMetadata]) -> None:
    """Raise errors.MultiTableCommitAborted if the cube, as it will be, breaks a rule."""
    for name, problem in _outcome_problems(plan, changes, existing):
        raise plan.abort_error(name, problem)


def _outcome_problems(
    plan: WritePlan, changes: Changes, existing: Mapping[str, DatasetMetadata]
) -> Iterator[tuple[str, ValueError]]:
    """Dataset ids and errors of rules that the cube, as it will be, breaks."""
    after = dict(existing)
    for name, change in changes.items():
        state = _outline(existing.get(name), change)
        if state is not None:
            after[name] = state
    for name, change in () if plan.keep_empty else changes.items():
        partitions = after[name].partition_table
        assumed = [r.labels for r in change.requires if isinstance(r, NoUnseenPartitions)]
        removed = sum(int((partitions.positions(labels) >= 0).sum()) for labels in assumed)
        if not len(change.added) and len(partitions) == removed:
            text = "An update may not remove all partitions without adding any; remove_partitions may"
            yield name, ValueError(f"No partitions left in dataset(s): {name}. {text}")
    # the rules concern schemas, keys and names of indices
    if any(after[name] is not existing.get(name) for name in changes):
        for violation in consistency.find_violations(after, plan.cube):
            yield violation.dataset, violation.error


def _outline(state: DatasetMetadata | None, change: ChangeSet) -> DatasetMetadata | None:
    """The state after a change as far as rules of a cube concern it: schema, keys, names of indices."""
    if change.mode is not WriteMode.UPDATE:
        nothing = PartitionTable.empty((change.table,))
        return change_sets.apply(None, attrs.evolve(change, added=nothing))
    if state is None:
        change.check_requirements(None)
    elif (schema := change_sets.compute_schema(state, change)) is not state.schema:
        return state.copy(schema=schema)
    return state


def check_rules(blobs: BlobStore, update: ChangeSet | DatasetMetadata) -> None:
    """Raise ValueError if an update of a dataset alone breaks a rule of its cube that is not broken yet."""
    prefix, _, name = update.uuid.partition(constants.KTK_CUBE_UUID_SEPARATOR)
    before = discover.load_states(prefix, blobs) if name else {}
    try:
        cube = discover.recover_cube(prefix, before)
    except (ValueError, NotImplementedError):
        # no cube, or one that cannot be read
        return
    state, after = before.get(name), update if isinstance(update, DatasetMetadata) else None
    if isinstance(update, ChangeSet) and not optimistic.is_committed(state, update):
        after = _outline(state, update)
    if after is None or after is state:
        return
    broken = {(v.rule, v.dataset, v.columns) for v in consistency.find_violations(before, cube)}
    states = {**before, name: after}
    try:
        violations = consistency.find_violations(states, discover.recover_cube(prefix, states))
    except (ValueError, NotImplementedError) as error:
        text = f"Without the metadata of dataset {update.uuid!r} there is no cube: {error}"
        raise ValueError(text) from None
    for violation in violations:
        if (violation.rule, violation.dataset, violation.columns) not in broken:
            raise violation.error


def _change_sets(plan: WritePlan, results: Written) -> dict[str, ChangeSet]:
    changes = {}
    for name, spec in plan.specs.items():
        if name in results or plan.commit_all:
            result = results.get(name) or spec.merge(())
            if result.schema is None and spec.change.mode is not WriteMode.UPDATE:
                result = attrs.evolve(result, schema=SchemaWrapper(pa.schema([]), result.uuid))
            change = spec.change_set(result, plan.info)
            if len(result.labels) and change.mode is not WriteMode.CREATE:
                text = "changed the contract"
                is_checked = change_sets.UnchangedMetadata(naming.CONTRACT, result.contract, text)
                change = attrs.evolve(change, requires=(*change.requires, is_checked))
            changes[name] = change
    return changes


class _OutcomeError(Exception):
    """Another writer has changed the cube at the same time: both changes break a rule."""


def _validate(plan: WritePlan, changes: Changes, blobs: BlobStore) -> None:
    datasets = discover.load_states(plan.cube.uuid_prefix, blobs)
    for violation in consistency.find_violations(datasets, plan.cube):
        # or the cube has been deleted
        if violation.rule is consistency.Rule.SEED or {violation.dataset, violation.other} & changes.keys():
            raise _OutcomeError


def commit_datasets(plan: WritePlan, changes: Changes, blobs: BlobStore) -> dict[str, DatasetMetadata]:
    """Commit the changes of a plan, by id: those of a cube at once. A staged write is the result itself."""
    for name, change in () if plan.is_cube_write else changes.items():
        if not _keeps_schema(plan, name, change):
            check_rules(blobs, change)
    if plan.staged_id:
        staged = (plan.staged_id, clock.datetime_utcnow().date().isoformat())
        by_name = {name: attrs.evolve(change, staged=staged) for name, change in sorted(changes.items())}
        for change in by_name.values():
            if not len(change.added):
                blobs.put(change.files[0], b"")
        return cast("dict[str, DatasetMetadata]", StagedWrite(plan.cube, by_name, plan.keep_empty))
    if not plan.is_cube_write:
        return {name: publish_committed(blobs, commit_change(blobs, c)[0]) for name, c in changes.items()}
    # the seed last: without it there is no cube, so that readers with any library see all of a new one
    ordered = (with_values_kept(changes[name], plan) for name in plan.cube.commit_order(changes))
    steps = {change.uuid: partial(commit_change, blobs, change) for change in ordered}
    creates = any(change.mode is not WriteMode.UPDATE for change in changes.values())
    seed = changes.get(plan.cube.seed_dataset)
    # to a cube that is new, others only add what fits it
    is_valid = seed is not None and seed.mode is WriteMode.CREATE
    is_valid = is_valid or all(_keeps_schema(plan, name, change) for name, change in changes.items())
    validate = (lambda: None) if is_valid else partial(_validate, plan, changes, blobs)
    for attempt in header_store.attempts():
        if attempt:
            # of two writers that have undone their changes, one commits again
            check_outcome(plan, changes, discover.load_states(plan.cube.uuid_prefix, blobs))
        with suppress(_OutcomeError):
            written = commit_cube(plan.cube, blobs, steps, plan.info, creates=creates, validate=validate)
            return {name: written[changes[name].uuid] for name in sorted(changes)}
    raise errors.ConcurrentWriteError(plan.cube.ktk_dataset_uuid(min(changes)))


@attrs.frozen(eq=False)
class StagedWrite(factory.StagedState):
    """A write whose files are stored, and which is not committed; small, and picklable for another process.

    ``as_of=staged`` reads the cube as it would be, :func:`publish_staged` commits the write, and
    :func:`discard_staged` deletes its files.
    """

    #: None for a write to a single dataset
    cube: Cube | None
    #: changes to commit, by dataset id; for a single dataset by uuid
    changes: Mapping[str, ChangeSet]
    #: whether a dataset may end up without partitions
    keep_empty: bool = False

    def __repr__(self) -> str:
        parts = []
        for name, change in sorted(self.changes.items()):
            assumed = [r.labels for r in change.requires if isinstance(r, NoUnseenPartitions)]
            removed = sum(map(len, [*assumed, () if change.replaces is None else change.replaces]))
            rows, n_files = errors.format_count(change.rows, "row"), len(change.added)
            place = f" in place of {errors.format_count(removed, 'file')}" if removed else ""
            parts.append(f"{name}: {rows} in {errors.format_count(n_files, 'file')}{place}")
        return f"<staged: {'; '.join(parts) or 'nothing'}>"

    def plan(self, store: StoreFactory) -> WritePlan:
        """The part of the plan of a write that its commit needs."""
        infos = [change.info for change in self.changes.values() if change.info is not None]
        info = infos[0] if infos else history.describe_operation("write")
        cube = self.cube or NO_CUBE
        return WritePlan(info=info, store=store, specs={}, cube=cube, keep_empty=self.keep_empty)

    def find_problems(
        self, plan: WritePlan, datasets: Mapping[str, DatasetMetadata]
    ) -> Iterator[tuple[str, ValueError]]:
        """Dataset ids and errors of rules that a commit would break."""
        if not all(optimistic.is_committed(datasets.get(name), c) for name, c in self.changes.items()):
            yield from _outcome_problems(plan, self.changes, datasets)

    def check_cube(self, cube: Cube) -> None:
        """Raise ValueError unless this is a write to a cube."""
        if self.cube is None or self.cube.uuid_prefix != cube.uuid_prefix:
            raise ValueError(f"{self!r} is no write to cube {cube.uuid_prefix!r}")

    def load_datasets(self, cube: Cube, blobs: BlobStore) -> dict[str, DatasetMetadata]:
        """The datasets of a cube as they would be if the write was committed now."""
        self.check_cube(cube)
        datasets, plan = discover.load_states(cube.uuid_prefix, blobs), self.plan(store_factory(blobs))
        for _, problem in self.find_problems(plan, datasets):
            raise problem
        for name, change in self.changes.items():
            read = partial(_read_index_entries, blobs, change)
            change = with_values_kept(change, plan)
            datasets[name] = optimistic.preview(blobs, datasets.get(name), change, read)
        return dict(sorted(datasets.items()))

    def load_dataset(self, uuid: str, blobs: BlobStore) -> DatasetMetadata:
        """A dataset as it would be if the write was committed now."""
        state, change = None, self.changes.get(uuid)
        if self.cube is not None:
            datasets = self.load_datasets(self.cube, blobs).values()
            state = next((dataset for dataset in datasets if dataset.uuid == uuid), None)
        elif change is not None:
            with suppress(errors.DatasetNotFoundError):
                state = operation.committed_state(blobs, DatasetMetadata.load_from_store(uuid, blobs))
            state = optimistic.preview(blobs, state, change, partial(_read_index_entries, blobs, change))
        if state is None:
            raise ValueError(f"{self!r} is no write to dataset {uuid!r}")
        return state


#: result of a write with ``publish=False``, declared as the result of one that is published
StagedInput: TypeAlias = StagedWrite | Mapping[str, DatasetMetadata] | DatasetMetadata


def with_values_kept(change: ChangeSet, plan: WritePlan) -> ChangeSet:
    """A change that hides no stored values, if its rows may lack columns of the dataset."""
    if not plan.is_cube_write or not change.merge_schema or change.replaces is not None:
        return change
    return attrs.evolve(change, requires=(*change.requires, ValuesKept(plan.store, plan.cube)))


def validate_cube(cube: Cube, blobs: BlobStore) -> None:
    """Raise ValueError if datasets break a rule, as two of them may that were changed at the same time."""
    consistency.check_cube(discover.load_states(cube.uuid_prefix, blobs), cube)


def commit_cube(
    cube: Cube,
    blobs: BlobStore,
    steps: Mapping[str, atomic.Step],
    info: history.OperationInfo | None = None,
    *,
    creates: bool = False,
    final_lineage: str | None = None,
    validate: Callable[[], None] = lambda: None,
) -> dict[str, DatasetMetadata]:
    """Commit datasets of a cube, by uuid, at once; undo what was committed if one of them fails."""
    seed = cube.ktk_dataset_uuid(cube.seed_dataset)
    # a commit waits for the store most of the time
    run = partial(ordered_map, threads=tuning.REMOTE_REQUESTS)
    written = atomic.commit_operation(
        blobs,
        seed,
        steps,
        info,
        creates=creates,
        final_lineage=final_lineage,
        run=run,
        validate=validate,
    )
    # after all of them: readers of the cube do not see one before
    return {uuid: publish_committed(blobs, state) for uuid, state in written.items()}


def _check_unique_cells(plan: WritePlan, results: Written) -> None:
    """Raise errors.DuplicateCellsError for a cell of the input that the seed has in another partition."""
    cube, dimensions = plan.cube, plan.cube.dimension_columns
    result = results.get(cube.seed_dataset)
    if result is None or result.schema is None:
        return
    blobs = open_blobs(plan.store)
    seed = DatasetMetadata.load_from_store(result.uuid, blobs).load_indices(dimensions, blobs)
    indices = {}
    for column, update in result.indices.items():
        stored = seed.secondary_indices[column].columns_data if column in seed.secondary_indices else None
        if column in dimensions and stored is not None:
            indices[column] = index.IndexColumns.merge([stored, update.entries], stored.values.type)
    files = seed.partition_table.concat(result.partitions())
    is_new, schema = np.arange(len(files)) >= len(seed.partition_table), result.schema.internal()
    repeated = dataset_read.find_repeated_cells(
        blobs, dimensions, cube.partition_columns, files, result.table, schema, indices, is_new
    )
    if repeated is not None:
        raise errors.DuplicateCellsError(cube.seed_dataset, repeated.example, detail=f"{repeated}.")


def _check_dataset_write(spec: WriteSpec, results: Written) -> None:
    """Check that labels are unique, and that a new dataset has something to take its schema from."""
    uuid, result = spec.uuid, results.get(spec.uuid)
    duplicates = dataset_arguments.extract_duplicates(result.labels.to_pylist()) if result else []
    if duplicates:
        raise ValueError(f"Duplicate partition labels for dataset {uuid!r}: {', '.join(sorted(duplicates))}")
    if spec.change.mode is WriteMode.UPDATE:
        return
    if result is not None and result.schema is not None:
        untyped = [c for c in spec.indices if pa.types.is_null(result.schema.field(c).type)]
        if untyped:
            raise NotImplementedError(
                f"Cannot index dataset {uuid} by {', '.join(untyped)}: all values are null. Give the "
                "column(s) a dtype, or index them later"
            )
        return
    # a new dataset without partition columns may get its schema from a later write
    if result is None or spec.partition_on or spec.change.mode is not WriteMode.CREATE:
        raise ValueError(
            f"Cannot store an empty dataset: no input for {uuid!r} has rows. To create one, pass its schema "
            "to kartothek_cube.io.eager.create_empty_dataset_header"
        )


def commit_change(blobs: BlobStore, change: ChangeSet, role: operation.Role = None) -> optimistic.Result:
    """Commit a change; entries of indices that its tasks did not know of are read back from the files."""
    return optimistic.commit(blobs, change, partial(_read_index_entries, blobs, change), role)


def _check_rows_outside(plan: WritePlan, results: Written) -> None:
    """Refuse, or warn of, written partitions that an update does not remove first: rows there would stay."""
    for name, result in results.items():
        where, partitions = plan.specs[name].change.remove_where, result.partitions()
        columns = sorted(expressions.columns_of(where))
        if not columns or result.schema is None or not len(partitions):
            continue
        keys = partitions.keys(plan.specs[name].partition_on, result.schema)
        outside = np.flatnonzero(~arrow.to_numpy(expressions.tree_mask(pa.table(keys), where)))
        if not len(outside):
            continue
        example = ", ".join(f"{column}={keys[column][int(outside[0])].as_py()!r}" for column in columns)
        problem = (
            f"Update of dataset {result.uuid!r}: remove_conditions do not select {len(outside)} of "
            f"{errors.format_count(len(partitions), 'written partition')}, such as {example}"
        )
        if plan.rows_outside == "raise":
            raise ValueError(
                f"{problem}, and rows that are stored there would stay. Select these partitions as well, "
                "drop their rows, or pass rows_outside='append'"
            )
        if plan.caller is not None:
            plan.caller.warn(f"{problem}. Rows that are stored there stay")


def _read_index_entries(blobs: BlobStore, change: ChangeSet, column: str, labels: list[str]) -> IndexUpdate:
    """Read the index entries that the tasks of a write did not collect back from the files."""
    table, added = change.table, change.added
    derived = PartitionTable.from_labels(change.uuid, table, labels).files[table].to_pylist()
    positions = added.positions(labels)
    # the keys of added partitions need not follow from their labels
    own = added.files[table].to_pylist() if len(added) else []
    keys = [own[position] if position >= 0 else key for position, key in zip(positions, derived, strict=True)]
    dataset = DatasetMetadata.load_from_store(change.uuid, blobs)
    files = PartitionTable(pa.array(labels), {table: pa.array(keys)})
    return StoredRows.of_state(store_factory(blobs), dataset).read_indices(files, [column])[column]
