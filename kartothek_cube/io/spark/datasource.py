"""The Spark data source ``format("kartothek_cube")``: reads, SQL views, writes and streams."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cache, cached_property, lru_cache, partial
from typing import Any, TypeAlias

import attrs
import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from kartothek_cube.core import arrow, clock, dataset, errors, history, transforms
from kartothek_cube.core.commit.operation import committed_state
from kartothek_cube.core.cube import consistency, implied_conditions
from kartothek_cube.core.cube.conditions import Condition
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import discover_cube, discover_ktk_cube_dataset_ids
from kartothek_cube.core.dataset_files import read_header
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.spark import _conversion, _datasource_options
from kartothek_cube.io.spark import _spark_executor as executor
from kartothek_cube.io.spark._datasource_options import FORMAT, ReadOptions, concise_errors
from kartothek_cube.io.spark._session import CachedStoreFactory, picklable_store
from kartothek_cube.io_components import dataset_read, job, kernels
from kartothek_cube.io_components.query import physical_plan
from kartothek_cube.io_components.query.executor import run_task
from kartothek_cube.io_components.query.logical_plan import QueryCube
from kartothek_cube.io_components.write import cube_writes, table_writer, write_commit, write_tasks
from kartothek_cube.io_components.write.write_plan import WritePlan, merge_writes

#: tasks per worker; each costs some 40 ms more than in `mapInArrow`
_TASKS_PER_WORKER = 2
#: Spark 4.1 to 4.3 hand what one scan of a table pushed to all others, in the same query and in later ones.
#: They do so no longer since limits are pushed as well.
_SCANS_ARE_SEPARATE = hasattr(ds.DataSourceReader, "pushLimit")
#: rows that a task collects before it writes, since they come in any order
_ROWS = 1 << 20


# -- reads ---------------------------------------------------------------------------------------------------


class CubeReader(ds.DataSourceReader):
    """Reads a query in tasks that run ``workers`` at a time."""

    def __init__(self, options: ReadOptions, schema: StructType, workers: int) -> None:
        self._options = options
        self._schema = schema
        self._workers = workers
        self._conditions: list[Condition] = []

    @property
    def takes_filters(self) -> bool:
        """Whether filters of Spark become part of the plan."""
        return _SCANS_ARE_SEPARATE or self._options.push_filters

    @concise_errors
    def pushFilters(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        """Take filters that mean the same for a cube, unless scans share them, and return the others."""
        if not self.takes_filters:
            return filters
        self._conditions, remaining_filters = _conversion.to_conditions(filters, self._whole.context.output)
        return remaining_filters

    @concise_errors
    def partitions(self) -> Sequence[ds.InputPartition]:
        """Cut the query into tasks."""
        tasks = physical_plan.split_into_tasks(self.plan, self._workers, _TASKS_PER_WORKER)
        return [ds.InputPartition(pickle.dumps(task)) for task in tasks]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read, join and filter the files of a task."""
        # Spark also asks for the rows of no tasks
        if partition.value is None:
            return
        with executor.hide_traceback():
            for table in run_task(self.context, executor.unpickle(partition.value)):
                yield from executor.batches_of(table, _conversion.arrow_schema(self._schema))

    @cached_property
    def _query(self) -> QueryCube[CachedStoreFactory]:
        return _make_query(self._options, self._schema)

    @cached_property
    def _whole(self) -> physical_plan.PhysicalPlan:
        """The query without filters."""
        plan = physical_plan.plan_query(self._query)
        _check_types(self._schema, plan.context.output)
        return plan

    @cached_property
    def plan(self) -> physical_plan.PhysicalPlan:
        """The query, planned once filters are known, of the state for which Spark's filters were taken."""
        if not self._conditions:
            return self._whole
        conditions = implied_conditions.join_conditions(self._query.conditions, self._conditions)
        query = attrs.evolve(self._query, conditions=conditions)
        return physical_plan.plan_query(query, self._whole.snapshot)

    @cached_property
    def context(self) -> physical_plan.ScanContext:
        """What tasks need of the plan."""
        return self.plan.context

    def __getstate__(self) -> dict[str, object]:
        # Spark pickles the reader for tasks before it asks for partitions; they need no more than this
        state = {**self.__dict__, "context": self.context}
        return {name: value for name, value in state.items() if name not in ("_query", "_whole", "plan")}


def _columns(options: ReadOptions) -> pa.Schema:
    """Columns of a table, with their types."""
    columns = physical_plan.plan_query(_make_query(options)).context.output
    if options.dataset is None or options.columns is not None:
        return columns
    _, datasets = discover_cube(options.cube, picklable_store(options.store))
    errors.check_names(f"Format {FORMAT}: ", "dataset", [options.dataset], datasets)
    own = consistency.get_dataset_columns(datasets[options.dataset])
    return pa.schema([field for field in columns if field.name in own])


def _make_query(options: ReadOptions, schema: StructType | None = None) -> QueryCube[CachedStoreFactory]:
    store = picklable_store(options.store)
    cube, datasets = discover_cube(options.cube, store, options.datasets)
    columns = options.columns if schema is None else schema.names
    if schema is not None and options.as_of is None:
        missing = set(schema.names).difference(*map(consistency.get_dataset_columns, datasets.values()))
        if missing:
            raise ValueError(
                f"Format {FORMAT}: the cube has no column(s) {', '.join(sorted(missing))} of this table or "
                "schema. A table does not follow changes of the cube: drop and create it"
            )
    return QueryCube(
        cube,
        store,
        conditions=options.conditions,
        datasets=datasets if options.as_of is None else options.datasets,
        dimension_columns=options.dimension_columns,
        payload_columns=columns,
        as_of=options.as_of,
        changed_since=options.changed_since,
    )


def _check_types(expected: StructType, output: pa.Schema) -> None:
    types = {field.name: field.dataType for field in _conversion.spark_schema(output)}
    for field in expected:
        # numbers are narrower in the files that are read than in all, or than they were
        dtype = output.field(field.name).type
        bits = [bits for bits in (8, 16, 32, 64) if bits > arrow.number_bits(dtype) > 0]
        wider = pa.schema([(field.name, arrow.with_number_bits(dtype, width)) for width in bits])
        known = [types[field.name], *(column.dataType for column in _conversion.spark_schema(wider))]
        if field.dataType not in known:
            raise ValueError(
                f"Column {field.name!r} of the cube has type {types[field.name].simpleString()}, but the "
                f"schema says {field.dataType.simpleString()}: leave the schema out, and cast the column"
            )


# -- streams: what commits appended to a dataset, in micro-batches -------------------------------------------

# An offset is a position in the sequence of files that commits added: `version` and number of `files` of
# that version; all files of older versions come before it. `snapshot` is the version whose complete state
# the stream begins with, all of whose files count as added. Data files are immutable, and the history keeps
# them as long as the states that refer to them, so a batch can be read again. `state` is the id of the last
# state that was read: a dataset that is deleted and created again has the same versions, but other states.

try:
    from pyspark.sql.streaming import datasource as limits
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, where a batch is all that is there

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for the class of newer versions."""


#: offsets before the first file: of the complete state, of what comes from now on. They name no version:
#: Spark asks again for the first offset if the first batch is repeated, and its answer has to be the same
_BEGIN, _NOW = {"version": -1, "files": 0}, {"version": -2, "files": 0}
_NO_SNAPSHOT = -1
#: operations that replace files by others with the same rows
_SAME_ROWS = frozenset({"compact"})

Offset = dict[str, Any]
_States: TypeAlias = tuple[list[history.DatasetState], dataset.DatasetMetadata]


class CubeStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what commits append to one dataset of a cube."""

    # options are read when Spark asks for offsets: an error that is raised earlier does not reach users

    def __init__(self, options: Mapping[str, str], schema: StructType, workers: int) -> None:
        self._texts = options
        self._schema = schema
        self._workers = workers
        self._load = lru_cache(maxsize=3)(self._load_version)
        self._list_added = cache(self._compare)
        self._target: Offset | None = None

    @cached_property
    def _options(self) -> _datasource_options.StreamOptions:
        return _datasource_options.StreamOptions.of(self._texts)

    @cached_property
    def _store(self) -> CachedStoreFactory:
        return picklable_store(self._options.store)

    @cached_property
    def _uuid(self) -> str:
        """Uuid of the dataset, which has the columns of the stream."""
        cube, datasets = discover_cube(self._options.cube, self._store)
        name = self._options.dataset or cube.seed_dataset
        errors.check_names(f"Format {FORMAT}: ", "dataset", [name], datasets)
        missing = set(self._schema.names) - consistency.get_dataset_columns(datasets[name])
        if missing:
            columns, names = ", ".join(sorted(missing)), ", ".join(sorted(datasets))
            raise ValueError(
                f"Format {FORMAT}: a stream reads one dataset, and {name!r} has no column(s) {columns}; "
                f"name it in the option 'dataset': {names}"
            )
        return cube.ktk_dataset_uuid(name)

    # -- offsets ---------------------------------------------------------------------------------------------

    @concise_errors
    def initialOffset(self) -> Offset:
        """Offset at which a new stream begins."""
        start, time = self._options.startingVersion, self._options.startingTimestamp
        if start == "latest":
            return _NOW
        if isinstance(start, int):
            return {"version": start, "files": 0}
        if time is not None:
            moment = history.check_as_of(time)
            read = self._states()
            later = [state.version for state in read[0] if state.time >= moment]  # type: ignore[operator]
            # commits before it would follow the newest state
            if not later and moment > clock.datetime_utcnow().replace(tzinfo=UTC):  # type: ignore[operator]
                raise ValueError(f"startingTimestamp is {time}, which is in the future")
            return {"version": min(later, default=self._newest(read) + 1), "files": 0}
        return _BEGIN

    @concise_errors
    def getDefaultReadLimit(self) -> limits.ReadLimit:
        """Limit of the number of files of a batch."""
        files = self._options.maxFilesPerTrigger
        return limits.ReadAllAvailable() if files is None else limits.ReadMaxFiles(files)

    @concise_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the newest version: the query ends when it is read."""
        self._target = {"version": self._newest(self._states()) + 1, "files": 0}

    @concise_errors
    def latestOffset(self, start: Offset | None = None, limit: limits.ReadLimit | None = None) -> Offset:
        """Offset at which the next batch ends; without ``start`` (before Spark 4.2) the newest version."""
        read = self._states()
        end = self._target or {"version": self._newest(read) + 1, "files": 0}
        begin = _BEGIN if start is None else start
        self._check_state(begin, read)
        if begin["version"] == _NOW["version"]:
            return self._with_state({**end, "snapshot": _NO_SNAPSHOT}, read)
        snapshot = begin.get("snapshot", _NO_SNAPSHOT)
        if begin["version"] == _BEGIN["version"]:
            snapshot = end["version"] - 1
            begin = {"version": snapshot, "files": 0}
        if begin["version"] >= end["version"]:
            return start or _BEGIN
        files = limit.max_files if limit is not None and isinstance(limit, limits.ReadMaxFiles) else None
        end = self._advance(begin, end["version"], snapshot, files)
        return self._with_state({**end, "snapshot": snapshot}, read)

    def _advance(self, begin: Offset, until: int, snapshot: int, files: int | None) -> Offset:
        """The offset some files behind another one, at most that of a version."""
        if files is None:
            return {"version": until, "files": 0}
        left, skipped = files, begin["files"]
        for version in range(begin["version"], until):
            count = len(self._list_added(version, version == snapshot)) - skipped
            if count > left:
                return {"version": version, "files": skipped + left}
            left, skipped = left - count, 0
        return {"version": until, "files": 0}

    def _with_state(self, offset: Offset, read: _States) -> Offset:
        state = self._state_id(offset, read)
        return offset if state is None else {**offset, "state": state}

    def _state_id(self, offset: Offset, read: _States) -> str | None:
        """Id of the last state that an offset has read; None if it is not kept."""
        version, (states, current) = offset["version"] - (offset["files"] == 0), read
        for state in states:
            if state.version == version:
                blobs = open_blobs(self._store())
                key = history.current_snapshot(current, blobs) if state.current else state.key
                return key.rpartition("-")[2].removesuffix(".state")
        return None

    def _check_state(self, start: Offset, read: _States) -> None:
        """Raise ValueError if the dataset is another one than that which the stream has read."""
        if "state" not in start:
            return
        state = self._state_id(start, read)
        # that of an older version has expired: `_compare` says so, if it is needed
        if state == start["state"] or (state is None and start["version"] <= self._newest(read)):
            return
        raise ValueError(
            f"Dataset {self._uuid!r} was deleted and created again since the stream has read it: start again "
            "with a new checkpoint"
        )

    # -- states ----------------------------------------------------------------------------------------------

    def _states(self) -> _States:
        """The readable states, and that of the header, of one moment: the dataset may be created again."""
        blobs = open_blobs(self._store())
        stored = read_header(self._uuid, blobs)
        current = dataset.DatasetMetadata.load_from_header(stored, self._uuid, blobs)
        return history.list_states(self._uuid, blobs, stored), current

    def _newest(self, read: _States) -> int:
        """The newest committed version."""
        blobs, (states, state) = open_blobs(self._store()), read
        if history.snapshot_retention(state.metadata) == 0:
            raise ValueError(
                f"Dataset {self._uuid!r} keeps no history, from which a stream reads: have it kept with "
                "keep_cube_history(cube, store)"
            )
        # part of an operation on several datasets that is still under way
        pending = history.fingerprint(committed_state(blobs, state)) != history.fingerprint(state)
        return states[-1].version - 1 if pending else states[-1].version

    def _load_version(self, version: int) -> dataset.DatasetMetadata:
        states, _ = self._states()
        found = [state for state in states if state.version == version]
        if not found:
            raise errors.StateNotFoundError(self._uuid, str(version), history.name_states(states))
        return history.load_state(self._uuid, open_blobs(self._store()), found[-1])

    def _compare(self, version: int, complete: bool) -> list[str]:
        """Labels of the files that a version added, in commit order; ``complete``: all of its files count."""
        try:
            new = self._load(version)
            # version 0 is a state of other software, version 1 without it the first of the dataset
            is_first = complete or version == 0 or (version == 1 and self._states()[0][0].version > 0)
            old = None if is_first else self._load(version - 1)
        except errors.StateNotFoundError as error:
            raise ValueError(
                f"The stream needs versions {max(version - 1, 0)} and {version} of dataset {self._uuid!r}, "
                f"which are not kept: {error} Start again with a new checkpoint, and clean up with a longer "
                "retention, or keep more states with keep_cube_history"
            ) from error
        labels: list[str] = new.partition_table.labels.to_pylist()
        if old is None:
            return labels
        before = set(old.partition_table.labels.to_pylist())
        added = [label for label in labels if label not in before]
        if len(labels) - len(added) == len(before):
            return added
        operation = history.operation_info(new).name
        if operation in _SAME_ROWS or self._options.skipChangeCommits:
            return []
        raise ValueError(
            f"Version {version} of dataset {self._uuid!r} (operation {operation or 'unknown'}) removed or "
            "replaced rows, and a stream can only append: set the option skipChangeCommits to true to leave "
            f"out such commits, or start a new stream with startingVersion {version + 1}"
        )

    # -- batches ---------------------------------------------------------------------------------------------

    @concise_errors
    def partitions(self, start: Offset, end: Offset) -> Sequence[ds.InputPartition]:
        """Cut the files between two offsets into tasks."""
        if start["version"] == _NOW["version"] or end["version"] < 0:
            return []
        self._check_state(start, self._states())
        is_first = start["version"] == _BEGIN["version"]
        # that of a later batch: before Spark 4.2, its end was computed without knowledge of its start
        snapshot = (end if is_first else start).get("snapshot", _NO_SNAPSHOT)
        begin = {"version": snapshot, "files": 0} if is_first else start
        tasks: list[ds.InputPartition] = []
        for version in range(begin["version"], end["version"] + bool(end["files"])):
            labels = self._list_added(version, version == snapshot)
            first = begin["files"] if version == begin["version"] else 0
            last = end["files"] if version == end["version"] else len(labels)
            if labels[first:last]:
                tasks += self._tasks(self._load(version), labels[first:last])
        return tasks

    def _tasks(self, state: dataset.DatasetMetadata, labels: list[str]) -> Iterator[ds.InputPartition]:
        assert state.schema is not None
        table = state.table_name
        files = state.partition_table.take(state.partition_table.positions(labels))
        stored = set(state.schema.names)
        layout = state if stored.issuperset(self._schema.names) else self._later_layout()
        assert layout.schema is not None
        mapping = layout.column_mapping
        if mapping is not None:
            stored.update(mapping.columns)
        context = dataset_read.ReadContext(
            store=self._store,
            uuid=self._uuid,
            table=table,
            schema=layout.schema.internal(),
            partition_keys=tuple(state.partition_keys or ()),
            columns=tuple(name for name in self._schema.names if name in stored),
            mapping=mapping,
        )
        plan = dataset_read.ReadPlan(context, PartitionTable(files.labels, {table: files.files[table]}))
        for block in executor.split_into_blocks(plan, self._workers):
            yield from (ds.InputPartition(pickle.dumps((context, task))) for task in block)

    def _later_layout(self) -> dataset.DatasetMetadata:
        """The newest state: it knows former names and defaults of columns that older ones lack."""
        newest = self._load(self._newest(self._states()))
        assert newest.schema is not None
        gone = sorted(set(self._schema.names).difference(newest.schema.names))
        if gone:
            raise ValueError(
                f"Dataset {self._uuid!r} no longer has the column(s) {', '.join(gone)} of the stream: start "
                "the query again, with the columns that it has now"
            )
        return newest

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of a task."""
        context, task = executor.unpickle(partition.value)
        rows = dataset_read.run_read(context, task)
        target = _conversion.arrow_schema(self._schema)
        # added to the dataset after these rows
        names = set(rows.column_names)
        added = [(f.name, pa.nulls(len(rows), f.type)) for f in target if f.name not in names]
        yield from executor.batches_of(arrow.append_columns(rows, added), target)

    def __getstate__(self) -> dict[str, Any]:
        # tasks need no more than the schema
        return {"_schema": self._schema}


# -- writes -------------------------------------------------------------------------------------------------


@dataclass
class TaskCommit(ds.WriterCommitMessage):
    """Result or error of a task, with the id of its query."""

    outcome: bytes
    query: str | None = None


Messages: TypeAlias = Sequence[ds.WriterCommitMessage | None]


@attrs.frozen
class WriteTarget:
    """Options of a write, an opened store, and whether the dataset is replaced."""

    options: _datasource_options.WriteOptions
    store: CachedStoreFactory
    overwrite: bool

    @classmethod
    def of(cls, options: Mapping[str, str], overwrite: bool) -> WriteTarget:
        """Read the options of a data source."""
        parsed = _datasource_options.WriteOptions.of(options)
        return cls(parsed, picklable_store(parsed.store), overwrite)

    def plan(self) -> WritePlan | None:
        """The write, planned from the current state of the store; None if there is nothing to do."""
        cube, name, existing = self._find_dataset()
        append = cube_writes.AppendToCube(None, cube, self.store, schema_mode=self.options.schema_mode)
        if name in existing and not self.overwrite:
            if self.options.if_exists == "ignore":
                return None
            if self.options.if_exists == "error":
                remedy = "Use mode append, overwrite or ignore."
                raise errors.DatasetExistsError(cube.ktk_dataset_uuid(name), remedy)
            plan = append.plan([name])
            self._check_partition_on(name, plan.spec.partition_on)
            return plan
        others = sorted(set(existing) - {name})
        if name == cube.seed_dataset and name in existing and others:
            raise ValueError(
                f"Format {FORMAT}: the seed is not overwritten alone, since rows of {', '.join(others)} "
                "would be joined to the new ones: use update_cube_from_spark, and name the datasets from "
                "which it removes rows in the argument datasets"
            )
        if self.options.partitionOverwriteMode == "dynamic" and name in existing:
            overwrite = append.plan_overwrite(name)
            keys = overwrite.spec.partition_on
            self._check_partition_on(name, keys)
            # as in Spark, a dataset without partition keys is replaced as a whole
            if keys:
                return overwrite
        new = cube_writes.BuildCube if name == cube.seed_dataset else cube_writes.ExtendCube
        partition_on = None if self.options.partition_on is None else {name: self.options.partition_on}
        write = new(None, cube, self.store, overwrite=self.overwrite, partition_on=partition_on)
        return write.plan([name])

    def _check_partition_on(self, name: str, keys: tuple[str, ...]) -> None:
        if self.options.partition_on not in (None, keys):
            raise ValueError(
                f"Format {FORMAT}: dataset {name!r} is partitioned by {', '.join(keys) or 'no column'}; "
                "leave out the option 'partition_on' where the dataset stays"
            )

    def batch_plan(self) -> WritePlan:
        """The write of a batch; one that replaces all earlier ones keeps what is known of streams."""
        if self.overwrite:
            cube, name, existing = self._find_dataset()
            if name in existing:
                return cube_writes.UpdateCube(None, cube, self.store, "all", [name]).plan()
        plan = self.plan()
        # there is always something to write: streams have if_exists="append"
        assert plan is not None
        return plan

    def removal_plan(self) -> WritePlan | None:
        """The removal of the rows of earlier batches by a batch without rows; None if there are none."""
        cube, name, existing = self._find_dataset()
        if name not in existing:
            return None
        return cube_writes.RemovePartitions(cube, self.store, "all", datasets=[name]).plan()

    def _find_dataset(self) -> tuple[Cube, str, Collection[str]]:
        """The cube, the dataset to write, and the datasets that exist."""
        existing = discover_ktk_cube_dataset_ids(self.options.cube, self.store)
        cube = self._cube(existing)
        return cube, self.options.dataset or cube.seed_dataset, existing

    def _cube(self, existing: Collection[str]) -> Cube:
        options, columns = self.options, ("dimension_columns", "partition_columns")
        if not existing:
            missing = [option for option in columns if getattr(options, option) is None]
            if missing:
                raise ValueError(
                    f"Format {FORMAT}: there is no cube {options.cube!r} yet; to build it, name its columns "
                    f"in the option(s) {', '.join(missing)}"
                )
            return Cube(
                dimension_columns=options.dimension_columns or (),
                partition_columns=list(map(transforms.parse_transform, options.partition_columns or ())),
                uuid_prefix=options.cube,
                seed_dataset=options.seed_dataset,
                index_columns=options.index_columns or (),
            )
        cube, _ = discover_cube(options.cube, self.store)
        for option in columns:
            texts = getattr(options, option)
            given = [getattr(transforms.parse_transform(text), "name", text) for text in texts or ()]
            if texts is not None and given != list(getattr(cube, option)):
                raise ValueError(
                    f"Format {FORMAT}: option {option!r} is {', '.join(texts)}, but the cube "
                    f"{options.cube!r} has {', '.join(getattr(cube, option))}"
                )
        return cube.copy(index_columns=set(cube.index_columns) | set(options.index_columns or ()))


@_conversion.spark_remedies()
def _check_schema(plan: WritePlan, schema: StructType) -> str:
    """Name of the dataset, if the schema fits it."""
    (name,) = plan.specs
    if not plan.specs[name].types.keys() >= set(schema.names):
        # the settings of the session are unknown here
        remedy = "Rename them, or write them by the functions of kartothek_cube.io.spark"
        executor.check_case(schema.names, name, remedy)
    write_commit.check_schemas(plan, {name: _conversion.check_types(schema, name, plan.specs[name].types)})
    return name


def _write(plan: WritePlan, name: str, batches: Iterator[pa.RecordBatch]) -> bytes:
    """Write the rows of a task, which come in any order."""
    spec = plan.specs[name]
    batches = executor.derive_batches(spec, batches)
    tables = kernels.rechunk_by_partition(batches, spec.partition_on, _ROWS, 4 * _ROWS)
    rows = (_conversion.to_storage_types(table, spec.types) for table in tables)
    return executor.attempt(partial(write_tasks.write_stream, plan, name, rows))


def _outcomes(messages: Messages) -> list[bytes]:
    return [message.outcome for message in messages if isinstance(message, TaskCommit)]


def _discard(store: CachedStoreFactory, messages: Messages) -> None:
    results = [executor.unpickle(outcome) for outcome in _outcomes(messages)]
    written = [r for result in results if not isinstance(result, Exception) for r in result.values()]
    table_writer.delete_uncommitted(store, written)


class CubeWriter(ds.DataSourceArrowWriter):
    """Writes a frame to one dataset of a cube; without a plan, nothing."""

    def __init__(self, plan: WritePlan | None, name: str) -> None:
        self.plan = plan
        self.name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of a task."""
        if self.plan is None:
            return TaskCommit(pickle.dumps({}))
        return TaskCommit(_write(self.plan, self.name, iterator))

    @concise_errors
    @_conversion.spark_remedies()
    def commit(self, messages: Messages) -> None:
        """Commit the files of all tasks."""
        if self.plan is None:
            return
        with job.delete_on_failure(partial(table_writer.delete_attempts, self.plan)):
            results = merge_writes(executor.results_of(_outcomes(messages)))
            write_tasks.check_duplicate_cells(self.plan, results)
            write_commit.finish_write(self.plan, [results])

    def abort(self, messages: Messages) -> None:
        """Delete the files of all tasks, also those whose messages got lost."""
        # Failed tasks have no message. If there are none of these, the commit has failed: it deletes files by
        # itself, since its own writes may still be under way.
        if self.plan is not None and None in messages:
            table_writer.delete_attempts(self.plan)


class CubeStreamWriter(ds.DataSourceStreamArrowWriter):
    """Writes the batches of a stream to one dataset of a cube, each exactly once."""

    # Spark makes a writer for the tasks of a batch, and another one for its commit, which does not know the
    # names of their files

    def __init__(self, sink: WriteTarget, plan: WritePlan, name: str) -> None:
        self.sink = sink
        self.plan = plan
        self.name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of a task."""
        from pyspark import TaskContext  # clients of Spark Connect may lack it

        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        return TaskCommit(_write(self.plan, self.name, iterator), query)

    @concise_errors
    @_conversion.spark_remedies()
    def commit(self, messages: Messages, batchId: int) -> None:
        """Commit a batch, unless a batch of this number is committed already."""
        queries = {message.query for message in messages if isinstance(message, TaskCommit)}
        if not queries:
            return
        (query,) = queries
        if query is None:
            _discard(self.sink.store, messages)
            raise RuntimeError(
                f"Format {FORMAT}: this version of Spark does not tell tasks the id of the stream, by which "
                "a repeated batch is found: write the batches by foreachBatch"
            )
        batch = query, batchId
        if write_commit.find_committed_batch(self.plan, batch) is not None:
            _discard(self.sink.store, messages)
            return
        with job.delete_on_failure(partial(_discard, self.sink.store, messages)):
            results = merge_writes(executor.results_of(_outcomes(messages)))
            if results[self.name].rows:
                write_tasks.check_duplicate_cells(self.plan, results)
                write_commit.finish_write(self.plan.evolve_changes(batch=batch), [results])
            elif self.sink.overwrite and (removal := self.sink.removal_plan()) is not None:
                removal = removal.evolve_changes(batch=batch)
                job.execute(write_commit.write_job(removal, [], write_tasks.write_frames))

    def abort(self, messages: Messages, batchId: int) -> None:
        """Delete the files of all tasks."""
        if None in messages:
            _discard(self.sink.store, messages)


# -- the source ----------------------------------------------------------------------------------------------


class KartothekCubeDataSource(ds.DataSource):
    """Cubes as tables of Spark; see :func:`kartothek_cube.io.spark.register`."""

    #: number of tasks that a session runs at the same time
    workers = 8

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return FORMAT

    @concise_errors
    def schema(self) -> StructType:
        """Columns and types of a cube."""
        options = ReadOptions.of(_datasource_options.table_options(self.options, StructType()))
        return _datasource_options.keep_options(self.options, _conversion.spark_schema(_columns(options)))

    @concise_errors
    def reader(self, schema: StructType) -> CubeReader:
        """The reader of a cube."""
        options = ReadOptions.of(_datasource_options.table_options(self.options, schema))
        reader = CubeReader(options, schema, self.workers)
        if not reader.takes_filters:
            # an error while Spark pickles the reader would be less clear
            _ = reader.plan
        return reader

    def streamReader(self, schema: StructType) -> CubeStreamReader:
        """The reader of what is appended to a dataset."""
        return CubeStreamReader(_datasource_options.table_options(self.options, schema), schema, self.workers)

    @concise_errors
    def writer(self, schema: StructType, overwrite: bool) -> CubeWriter:
        """The writer of a frame."""
        # not with the options of a table: columns that were read from it keep them, wherever they are written
        target = WriteTarget.of(self.options, overwrite)
        plan, batch = target.plan(), target.options.batch
        if plan is None or write_commit.find_committed_batch(plan, batch) is not None:
            return CubeWriter(None, "")
        return CubeWriter(plan.evolve_changes(batch=batch), _check_schema(plan, schema))

    @concise_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> CubeStreamWriter:
        """The writer of the batches of a stream; ``overwrite``: each batch replaces all earlier ones."""
        target = WriteTarget.of(self.options, overwrite)
        if target.options.if_exists != "append":
            raise ValueError(f"Format {FORMAT}: a stream appends; leave out the option 'if_exists'")
        if target.options.batch is not None:
            raise ValueError(
                f"Format {FORMAT}: a stream numbers its batches; leave out txnAppId and txnVersion"
            )
        if target.options.partitionOverwriteMode == "dynamic":
            raise ValueError(
                f"Format {FORMAT}: a stream does not overwrite single partitions; leave out the option "
                "'partitionOverwriteMode', or write its batches by foreachBatch"
            )
        plan = target.batch_plan()
        return CubeStreamWriter(target, plan, _check_schema(plan, schema))


def data_source(workers: int) -> type[KartothekCubeDataSource]:
    """The data source for a session with this many workers, which it cannot determine by itself."""
    return type("KartothekCubeDataSource", (KartothekCubeDataSource,), {"workers": workers})
