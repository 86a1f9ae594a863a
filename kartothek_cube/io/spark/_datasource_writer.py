"""Writers of the data source: plan on the driver, write in tasks, commit once on the driver."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import discover_cube, discover_ktk_cube_dataset_ids
from kartothek_cube.core.errors import DatasetExistsError, UnknownOutcomeError
from kartothek_cube.core.transforms import parse_transform
from kartothek_cube.io.spark._datasource_options import FORMAT, WriteOptions, concise_errors
from kartothek_cube.io.spark._session import CachedStoreFactory, picklable_store
from kartothek_cube.io.spark._spark_executor import attempt, derive_batches, raise_first, unpickle
from kartothek_cube.io.spark._types import arrow_schema, check_types, spark_remedies, to_storage_types
from kartothek_cube.io_components.job import delete_on_failure
from kartothek_cube.io_components.keys import rechunk_by_partition
from kartothek_cube.io_components.write.cube_writes import AppendToCube, BuildCube, ExtendCube, UpdateCube
from kartothek_cube.io_components.write.table_writer import delete_attempts, delete_uncommitted
from kartothek_cube.io_components.write.write_commit import check_schemas, find_committed_batch, finish_write
from kartothek_cube.io_components.write.write_plan import CubeWritePlan, merge_writes
from kartothek_cube.io_components.write.write_tasks import check_duplicate_cells, write_stream

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: rows that a task collects before it writes, since they come in any order
_ROWS = 1 << 20


@dataclass
class TaskCommit(WriterCommitMessage):
    """Result or error of a task, with the id of its query."""

    outcome: bytes
    query: str | None = None


Messages: TypeAlias = Sequence[WriterCommitMessage | None]

# -- plan ----------------------------------------------------------------------------------------------------


@attrs.frozen
class WriteTarget:
    """Options of a write, an opened store, and whether the dataset is replaced."""

    options: WriteOptions
    store: CachedStoreFactory
    overwrite: bool

    @classmethod
    def of(cls, options: Mapping[str, str], overwrite: bool) -> WriteTarget:
        """Read the options of a data source."""
        parsed = WriteOptions.of(options)
        return cls(parsed, picklable_store(parsed.store), overwrite)

    def plan(self) -> CubeWritePlan | None:
        """The write, planned from the current state of the store; None if there is nothing to do."""
        existing = discover_ktk_cube_dataset_ids(self.options.cube, self.store)
        cube = self._cube(existing)
        name = self.options.dataset or cube.seed_dataset
        if name in existing and not self.overwrite:
            if self.options.if_exists == "ignore":
                return None
            if self.options.if_exists == "error":
                remedy = "Use mode append, overwrite or ignore."
                raise DatasetExistsError(cube.ktk_dataset_uuid(name), remedy)
            return self._append(cube).plan([name])
        if self.options.overwrites_partitions and name in existing:
            overwrite = self._append(cube).plan_overwrite(name)
            keys = overwrite.spec.partition_on
            if self.options.partition_on not in (None, keys):
                raise ValueError(
                    f"Format {FORMAT}: dataset {name!r} is partitioned by {', '.join(keys) or 'no column'}; "
                    "leave out the option 'partition_on' where only the written partitions are overwritten"
                )
            # as in Spark, a dataset without partition keys is replaced as a whole
            if keys:
                return overwrite
        new = BuildCube if name == cube.seed_dataset else ExtendCube
        partition_on = None if self.options.partition_on is None else {name: self.options.partition_on}
        write = new(None, cube, self.store, overwrite=self.overwrite, partition_on=partition_on)
        return write.plan([name])

    def _append(self, cube: Cube) -> AppendToCube[None, CachedStoreFactory]:
        return AppendToCube(None, cube, self.store, schema_mode=self.options.schema_mode)

    def replacing_plan(self) -> CubeWritePlan | None:
        """The write of a batch that replaces all earlier ones, but not what is known of streams."""
        existing = discover_ktk_cube_dataset_ids(self.options.cube, self.store)
        cube = self._cube(existing)
        name = self.options.dataset or cube.seed_dataset
        if name not in existing:
            return self.plan()
        return UpdateCube(None, cube, self.store, "all", [name]).plan()

    def _cube(self, existing: Iterable[str]) -> Cube:
        options = self.options
        if not existing:
            return self._new_cube()
        cube, _ = discover_cube(options.cube, self.store)
        for option in ("dimension_columns", "partition_columns"):
            columns = getattr(options, option)
            given = [getattr(parse_transform(text), "name", text) for text in columns or ()]
            if columns is not None and given != list(getattr(cube, option)):
                raise ValueError(
                    f"Format {FORMAT}: option {option!r} is {', '.join(columns)}, but the cube "
                    f"{options.cube!r} has {', '.join(getattr(cube, option))}"
                )
        return cube.copy(index_columns=set(cube.index_columns) | set(options.index_columns or ()))

    def _new_cube(self) -> Cube:
        options = self.options
        missing = [o for o in ("dimension_columns", "partition_columns") if getattr(options, o) is None]
        if missing:
            raise ValueError(
                f"Format {FORMAT}: there is no cube {options.cube!r} yet; to build it, name its columns "
                f"in the option(s) {', '.join(missing)}"
            )
        return Cube(
            dimension_columns=options.dimension_columns or (),
            partition_columns=[parse_transform(text) for text in options.partition_columns or ()],
            uuid_prefix=options.cube,
            seed_dataset=options.seed_dataset,
            index_columns=options.index_columns or (),
        )


@spark_remedies()
def _check_schema(plan: CubeWritePlan, schema: StructType) -> str:
    """Name of the dataset, if the schema fits it."""
    (name,) = plan.specs
    check_types(schema, name)
    empty = to_storage_types(arrow_schema(schema).empty_table(), plan.specs[name].types)
    check_schemas(plan, {name: empty})
    return name


# -- run -----------------------------------------------------------------------------------------------------


def _write(plan: CubeWritePlan, name: str, batches: Iterator[pa.RecordBatch]) -> bytes:
    """Write the rows of a task, which come in any order."""
    spec = plan.specs[name]
    batches = derive_batches(spec, batches)
    tables = rechunk_by_partition(batches, spec.partition_on, _ROWS, 4 * _ROWS)
    rows = (to_storage_types(table, spec.types) for table in tables)
    return attempt(partial(write_stream, plan, name, rows))


def _outcomes(messages: Messages) -> list[Any]:
    return [unpickle(message.outcome) for message in messages if isinstance(message, TaskCommit)]


def _discard(store: CachedStoreFactory, messages: Messages) -> None:
    results = _outcomes(messages)
    written = [r for result in results if not isinstance(result, Exception) for r in result.values()]
    delete_uncommitted(store, written)


# -- a table -------------------------------------------------------------------------------------------------


class CubeWriter(DataSourceArrowWriter):
    """Writes a frame to one dataset of a cube; without a plan, nothing."""

    def __init__(self, plan: CubeWritePlan | None, name: str) -> None:
        self.plan = plan
        self.name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of a task."""
        if self.plan is None:
            return TaskCommit(pickle.dumps({}))
        return TaskCommit(_write(self.plan, self.name, iterator))

    @concise_errors
    def commit(self, messages: Messages) -> None:
        """Commit the files of all tasks."""
        if self.plan is None:
            return
        with delete_on_failure(partial(delete_attempts, self.plan)):
            results = merge_writes(raise_first(_outcomes(messages)))
            check_duplicate_cells(self.plan, results)
            finish_write(self.plan, [results])

    def abort(self, messages: Messages) -> None:
        """
        Delete the files of all tasks, also those whose messages got lost.

        Failed tasks have no message. If there are none of these, the commit has failed: it deletes files by
        itself, since its own writes may still be under way.
        """
        if self.plan is not None and None in messages:
            delete_attempts(self.plan)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> CubeWriter:
    """The writer for ``DataFrame.write``."""
    target = WriteTarget.of(options, overwrite)
    plan = target.plan()
    if plan is None:
        return CubeWriter(None, "")
    if target.options.batch is not None:
        plan = plan.evolve_specs(batch=target.options.batch)
        if find_committed_batch(plan) is not None:
            return CubeWriter(None, "")
    return CubeWriter(plan.with_write_id(), _check_schema(plan, schema))


# -- a stream ------------------------------------------------------------------------------------------------


class CubeStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream to one dataset of a cube, each exactly once."""

    def __init__(self, sink: WriteTarget, plan: CubeWritePlan, name: str) -> None:
        self.sink = sink
        self.plan = plan
        self.name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write the rows of a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        return TaskCommit(_write(self.plan, self.name, iterator), query)

    @concise_errors
    def commit(self, messages: Messages, batchId: int) -> None:
        """Commit a batch, unless a batch of this number is committed already."""
        queries = {message.query for message in messages if isinstance(message, TaskCommit) and message.query}
        if not queries:
            return
        (query,) = queries
        if find_committed_batch(_with_batch(self.plan, query, batchId)) is not None:
            _discard(self.sink.store, messages)
            return
        try:
            results = merge_writes(raise_first(_outcomes(messages)))
            if not results[self.name].rows:
                return
            check_duplicate_cells(self.plan, results)
            plan = self.sink.replacing_plan() if self.sink.overwrite else self.sink.plan()
            if plan is not None:
                finish_write(_with_batch(plan, query, batchId), [results])
        except UnknownOutcomeError:
            raise
        except Exception:
            _discard(self.sink.store, messages)
            raise

    def abort(self, messages: Messages, batchId: int) -> None:
        """Delete the files of all tasks."""
        if None in messages:
            _discard(self.sink.store, messages)


def _with_batch(plan: CubeWritePlan, query: str, number: int) -> CubeWritePlan:
    return plan.evolve_specs(batch=(query, number))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> CubeStreamWriter:
    """The writer for ``DataFrame.writeStream``; ``overwrite`` is output mode "complete"."""
    sink = WriteTarget.of(options, overwrite)
    if sink.options.if_exists != "append":
        raise ValueError(f"Format {FORMAT}: a stream appends; leave out the option 'if_exists'")
    if sink.options.batch is not None:
        raise ValueError(f"Format {FORMAT}: a stream numbers its batches; leave out txnAppId and txnVersion")
    if sink.options.overwrites_partitions:
        raise ValueError(
            f"Format {FORMAT}: a stream does not overwrite single partitions; leave out the option "
            "'partitionOverwriteMode', or write its batches by foreachBatch"
        )
    plan = sink.replacing_plan() if overwrite else sink.plan()
    if plan is None:
        raise ValueError(f"Format {FORMAT}: there is nothing to write")
    return CubeStreamWriter(sink, plan, _check_schema(plan, schema))
