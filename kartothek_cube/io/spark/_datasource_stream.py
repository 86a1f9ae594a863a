"""Stream source of the data source: what commits appended to a dataset, in micro-batches.

An offset is a position in the sequence of files that commits added: ``version`` and number of ``files`` of
that version; all files of older versions come before it. ``snapshot`` is the version whose complete state the
stream begins with, all of whose files count as added. Data files are immutable, and the history keeps them as
long as the states that refer to them, so a batch can be read again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from kartothek_cube.core import history
from kartothek_cube.core.arrow import append_columns
from kartothek_cube.core.commit.operation import committed_state
from kartothek_cube.core.cube.consistency import get_dataset_columns
from kartothek_cube.core.cube.discover import discover_cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import StateNotFoundError
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io.spark._conversion import arrow_schema
from kartothek_cube.io.spark._datasource_options import (
    FORMAT,
    StreamOptions,
    check_dataset_name,
    concise_errors,
)
from kartothek_cube.io.spark._session import CachedStoreFactory, picklable_store
from kartothek_cube.io.spark._spark_executor import batches_of, split_into_blocks, unpickle
from kartothek_cube.io_components.dataset_read import ReadContext, ReadPlan, run_read

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before Spark 4.2, where a batch is all that is there
    ReadLimit = ReadAllAvailable = ReadMaxFiles = None  # type: ignore[assignment, misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for the class of newer versions."""


#: offsets before the first file: of the complete state, of what comes from now on. They name no version:
#: Spark asks again for the first offset if the first batch is repeated, and its answer has to be the same
_BEGIN, _NOW = {"version": -1, "files": 0}, {"version": -2, "files": 0}
_NO_SNAPSHOT = -1
#: operations that replace files by others with the same rows
_SAME_ROWS = frozenset({"compact"})

Offset = dict[str, int]


class CubeStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what commits append to one dataset of a cube.

    Options are read when Spark asks for offsets: an error that is raised earlier does not reach users.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, workers: int) -> None:
        self._texts = options
        self._schema = schema
        self._workers = workers
        #: labels that a version added, in commit order, by version and whether all of the state counts
        self._added: dict[tuple[int, bool], list[str]] = {}
        self._loaded: dict[int, DatasetMetadata] = {}
        self._target: Offset | None = None

    @cached_property
    def _options(self) -> StreamOptions:
        return StreamOptions.of(self._texts)

    @cached_property
    def _store(self) -> CachedStoreFactory:
        return picklable_store(self._options.read.store)

    @cached_property
    def _uuid(self) -> str:
        """Uuid of the dataset, which has the columns of the stream."""
        read = self._options.read
        cube, datasets = discover_cube(read.cube, self._store)
        name = read.dataset or cube.seed_dataset
        check_dataset_name(name, datasets)
        missing = set(self._schema.names) - get_dataset_columns(datasets[name])
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
        """Where a new stream begins."""
        start, time = self._options.starting_version, self._options.starting_timestamp
        if start == "latest":
            return _NOW
        if isinstance(start, int):
            return {"version": start, "files": 0}
        if time is not None:
            moment = history.check_as_of(time)
            later = [state.version for state in self._states() if state.time >= moment]  # type: ignore[operator]
            return {"version": min(later, default=self._newest() + 1), "files": 0}
        return _BEGIN

    @concise_errors
    def getDefaultReadLimit(self) -> ReadLimit:
        """How many files a batch reads."""
        limit = self._options.max_files
        return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

    @concise_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the newest version: the query ends when it is read."""
        self._target = {"version": self._newest() + 1, "files": 0}

    @concise_errors
    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Where the next batch ends; without ``start`` (before Spark 4.2) at the newest version."""
        end = self._target or {"version": self._newest() + 1, "files": 0}
        begin = _BEGIN if start is None else start
        if begin["version"] == _NOW["version"]:
            return {**end, "snapshot": _NO_SNAPSHOT}
        snapshot = begin.get("snapshot", _NO_SNAPSHOT)
        if begin["version"] == _BEGIN["version"]:
            snapshot = end["version"] - 1
            begin = {"version": snapshot, "files": 0}
        if begin["version"] >= end["version"]:
            return start or _BEGIN
        files = limit.max_files if ReadMaxFiles is not None and isinstance(limit, ReadMaxFiles) else None
        return {**self._advance(begin, end["version"], snapshot, files), "snapshot": snapshot}

    def _advance(self, begin: Offset, until: int, snapshot: int, files: int | None) -> Offset:
        """The offset some files behind another one, at most that of a version."""
        if files is None:
            return {"version": until, "files": 0}
        left, skipped = files, begin["files"]
        for version in range(begin["version"], until):
            count = len(self._files_of(version, snapshot)) - skipped
            if count > left:
                return {"version": version, "files": skipped + left}
            left, skipped = left - count, 0
        return {"version": until, "files": 0}

    # -- states ----------------------------------------------------------------------------------------------

    def _states(self) -> list[history.DatasetState]:
        return history.list_states(self._uuid, open_blobs(self._store()))

    def _newest(self) -> int:
        """The newest committed version."""
        blobs = open_blobs(self._store())
        current = self._states()[-1]
        state = history.load_state(self._uuid, blobs, current)
        if history.snapshot_retention(state.metadata) == 0:
            raise ValueError(
                f"Dataset {self._uuid!r} keeps no history, from which a stream reads: have it kept with "
                "keep_cube_history(cube, store)"
            )
        # part of an operation on several datasets that is still under way
        pending = history.fingerprint(committed_state(blobs, state)) != history.fingerprint(state)
        return current.version - 1 if pending else current.version

    def _load(self, version: int) -> DatasetMetadata:
        if version not in self._loaded:
            blobs = open_blobs(self._store())
            states = self._states()
            found = [state for state in states if state.version == version]
            if not found:
                raise StateNotFoundError(self._uuid, str(version), history.name_states(states))
            if len(self._loaded) > 2:
                self._loaded.pop(min(self._loaded))
            self._loaded[version] = history.load_state(self._uuid, blobs, found[-1])
        return self._loaded[version]

    def _files_of(self, version: int, snapshot: int) -> list[str]:
        """Labels of the files that a version added, in commit order."""
        key = version, version == snapshot
        if key not in self._added:
            self._added[key] = self._compare(version, version == snapshot)
        return self._added[key]

    def _compare(self, version: int, complete: bool) -> list[str]:
        try:
            new = self._load(version)
            # version 0 is a state of other software, version 1 without it the first of the dataset
            known = [state.version for state in self._states()]
            is_first = complete or version == 0 or (version == 1 and 0 not in known)
            old = None if is_first else self._load(version - 1)
        except StateNotFoundError as error:
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
        if operation in _SAME_ROWS or self._options.skip_changes:
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
        is_first = start["version"] == _BEGIN["version"]
        # that of a later batch: before Spark 4.2, its end was computed without knowledge of its start
        snapshot = (end if is_first else start).get("snapshot", _NO_SNAPSHOT)
        begin = {"version": snapshot, "files": 0} if is_first else start
        tasks: list[ds.InputPartition] = []
        for version in range(begin["version"], end["version"] + bool(end["files"])):
            labels = self._files_of(version, snapshot)
            first = begin["files"] if version == begin["version"] else 0
            last = end["files"] if version == end["version"] else len(labels)
            if labels[first:last]:
                tasks += self._tasks(self._load(version), labels[first:last])
        return tasks

    def _tasks(self, state: DatasetMetadata, labels: list[str]) -> Iterator[ds.InputPartition]:
        assert state.schema is not None
        table = state.table_name
        files = state.partition_table.take(state.partition_table.positions(labels))
        stored = set(state.schema.names)
        context = ReadContext(
            store=self._store,
            uuid=self._uuid,
            table=table,
            schema=state.schema.internal(),
            partition_keys=tuple(state.partition_keys or ()),
            columns=tuple(name for name in self._schema.names if name in stored),
            mapping=state.column_mapping,
        )
        plan = ReadPlan(context, PartitionTable(files.labels, {table: files.files[table]}))
        for block in split_into_blocks(plan, self._workers):
            yield from (ds.InputPartition(pickle.dumps((context, task))) for task in block)

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of a task."""
        context, task = unpickle(partition.value)
        rows = run_read(context, task)
        target = arrow_schema(self._schema)
        # added to the dataset after these rows
        names = set(rows.column_names)
        added = [(f.name, pa.nulls(len(rows), f.type)) for f in target if f.name not in names]
        yield from batches_of(append_columns(rows, added), target)

    def __getstate__(self) -> dict[str, Any]:
        # tasks need no more than the schema
        return {"_schema": self._schema}
