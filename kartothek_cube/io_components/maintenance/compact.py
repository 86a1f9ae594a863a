"""Compact a cube: rewrite the files of a physical partition as one, without hidden versions of cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Self

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import index_columns
from kartothek_cube.core.commit.change import ChangeSet
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import choose_datasets, discover_datasets
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.partition import PartitionTable, group_positions
from kartothek_cube.core.pruning import select_partitions
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job, delete_on_failure
from kartothek_cube.io_components.keys import group_codes
from kartothek_cube.io_components.maintenance.stats import CountsByDataset
from kartothek_cube.io_components.write.cube_writes import partition_scope, plan_existing, removal_conditions
from kartothek_cube.io_components.write.stored_rows import StoredRows
from kartothek_cube.io_components.write.table_writer import delete_uncommitted, write_table
from kartothek_cube.io_components.write.write_commit import commit_datasets
from kartothek_cube.io_components.write.write_plan import CubeWritePlan, CubeWriteSpec, WriteResult
from kartothek_cube.serialization import DataFrameSerializer
from kartothek_cube.serialization.parquet_reader import read_footer

Summary = dict[str, dict[str, int]]


@attrs.frozen
class CompactContext:
    """What all tasks share: the plan, and how the rows of its datasets are read, by id."""

    plan: CubeWritePlan
    stored: Mapping[str, StoredRows]


@attrs.frozen
class CompactTask:
    """The files of one physical partition of a dataset."""

    #: id of the dataset
    name: str
    #: partitions in the order of commit
    labels: tuple[str, ...]
    #: their files
    keys: tuple[str, ...]

    @classmethod
    def of(cls, name: str, dataset: DatasetMetadata, positions: Any) -> Self:
        """Some partitions of a dataset."""
        files = dataset.partition_table.take(positions)
        return cls(name, tuple(files.labels.to_pylist()), tuple(files.files[dataset.table_name].to_pylist()))

    def files(self, spec: CubeWriteSpec) -> PartitionTable:
        """The partitions, with their files."""
        return PartitionTable(self.labels, {spec.table: self.keys})


@attrs.frozen
class CompactResult:
    """The result of a task."""

    #: id of the dataset
    name: str
    #: partitions that were read
    labels: tuple[str, ...]
    #: what replaces them; None if they were compact already
    written: WriteResult | None
    #: ``files``, ``bytes`` and ``rows`` before and after
    stats: Mapping[str, int]


# -- plan ----------------------------------------------------------------------------------------------------


@attrs.frozen
class CompactCube(Generic[StoreT]):
    """Merge the files of each physical partition into one, without cells that newer files hide.

    Results of queries stay the same. Each dataset is compacted by one commit; concurrent appends are allowed
    and stay newer. The old files stay until :func:`cleanup_cube`.

    Parameters
    ----------
    conditions
        Conditions on partition columns of the cube that select partitions; by default all.
    min_files
        Partitions with fewer files are left as they are. With 1, files that were written before a change of
        the schema (:doc:`/schema_evolution`) are rewritten with the current columns as well.

    Returns
    -------
    dict
        Dataset id to the number of examined ``partitions``, and their ``files_before``,
        ``files_after``, ``bytes_before``, ``bytes_after``, ``rows_before`` and ``rows_after``.

    Raises
    ------
    ValueError
        For conditions on other columns, and unknown datasets.
    ConcurrentWriteError
        A concurrent writer replaced or removed files, or dropped, renamed or widened columns. That dataset is
        as it was: repeat the call.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, append_to_cube, build_cube
    >>> from kartothek_cube.io.eager_cube import compact_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), f"hfs://{tempfile.mkdtemp()}"
    >>> cities = pd.DataFrame({"CITY": ["Bonn", "Rom"], "COUNTRY_CODE": ["DE", "IT"]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = append_to_cube(cities, cube, store)
    >>> counts = compact_cube(cube, store)["seed"]
    >>> counts["files_before"], counts["files_after"], counts["rows_before"], counts["rows_after"]
    (4, 2, 4, 2)
    """

    cube: Cube = attrs.field(converter=cube_or_name)
    store: StoreT
    conditions: ConditionsInput = None
    ktk_cube_dataset_ids: str | Iterable[str] | None = None
    df_serializer: DataFrameSerializer | None = None
    min_files: int = attrs.field(default=2, kw_only=True)
    datasets: str | Iterable[str] | None = attrs.field(default=None, kw_only=True)

    def job(
        self, blocksize: int | None = None
    ) -> Job[CompactContext, CompactTask, CompactResult, dict[str, dict[str, int]]]:
        """Merge the files of partitions with several or outdated ones, then commit all at once."""
        if self.min_files < 1:
            raise ValueError(f"min_files has to be 1 or more, got {self.min_files}")
        cube, store = self.cube, self.store
        ensure_cube(cube)
        existing = discover_datasets(cube, store)
        conjunction = removal_conditions(cube, self.conditions, existing)
        names = choose_datasets(cube, self.ktk_cube_dataset_ids, existing)
        datasets = {name: existing[name] for name in cube.commit_order(names)}
        plan = plan_existing("compact", cube, store, datasets, None, self.df_serializer)
        tasks = list[CompactTask]()
        for name, dataset in datasets.items():
            rows = select_partitions(dataset, partition_scope(conjunction, dataset))
            tasks += _tasks(name, cube, dataset, rows, self.min_files)
        context = CompactContext(
            plan, {name: StoredRows.of(spec, datasets[name]) for name, spec in plan.specs.items()}
        )
        return Job(
            name="compact_cube",
            description=f"compact cube {cube.uuid_prefix}",
            context=context,
            tasks=tasks,
            run=run_compact,
            finish=partial(finish_compact, context),
            steps=("prepare", "partition", "commit"),
            is_parallel=True,
            files=sum(len(task.labels) for task in tasks),
        )


def _tasks(name: str, cube: Cube, dataset: DatasetMetadata, rows: Any, min_files: int) -> list[CompactTask]:
    """One task per physical partition with several files, or with one that may be outdated."""
    least = min_files if dataset.column_mapping is not None else max(min_files, 2)
    keys = dataset.partition_table.keys(dataset.partition_keys, dataset.schema)
    codes = group_codes(
        [keys[c].take(pa.array(rows)) for c in cube.partition_columns if c in keys], len(rows)
    )
    members = [rows[positions] for positions in group_positions(codes) if len(positions) >= least]
    return [CompactTask.of(name, dataset, positions) for positions in members]


def compact_files_job(
    cube: Cube, store: StoreInput, keys: Set[str]
) -> Job[CompactContext, CompactTask, CompactResult, Summary]:
    """Compact the physical partitions of some files."""
    job = CompactCube(cube, store, min_files=1).job()
    tasks = [task for task in job.tasks if not keys.isdisjoint(task.keys)]
    return attrs.evolve(job, tasks=tasks, files=sum(len(task.labels) for task in tasks))


# -- run -----------------------------------------------------------------------------------------------------


def run_compact(context: CompactContext, task: CompactTask) -> CompactResult:
    """Write the visible rows of one physical partition as one file."""
    # one per value of further partition keys, where a dataset has such that the cube does not know
    stored, spec = context.stored[task.name], context.plan.specs[task.name]
    blobs = open_blobs(spec.store)
    files, n_files = task.files(spec), len(task.keys)
    n_bytes = sum(_size(blobs, key) for key in task.keys)
    tables = stored.read(files)
    rows = stored.select_visible(stored.concat(files, tables))
    n_rows = sum(map(len, tables))
    before = {"files": n_files, "bytes": n_bytes, "rows": n_rows}
    # a compact partition has one file per value of the partition keys
    values = list(files.keys(spec.partition_on, stored.schema).values())
    is_compact = len(rows) == n_rows and len(np.unique(group_codes(values, n_files))) == n_files
    if is_compact and not any(_is_outdated(stored, blobs, key) for key in task.keys):
        written, after = None, before
    else:
        written = write_table(spec, rows, compacted=task.labels)
        new = written.partitions().files[spec.table].to_pylist()
        after = {"files": len(new), "bytes": sum(_size(blobs, key) for key in new), "rows": len(rows)}
    stats = {f"{what}_before": number for what, number in before.items()}
    stats |= {f"{what}_after": number for what, number in after.items()}
    return CompactResult(task.name, task.labels, written, {"partitions": 1, **stats})


def _size(blobs: BlobStore, key: str) -> int:
    # a cleanup has deleted the file: the read or the commit that follows says so
    with suppress(KeyError):
        return blobs.size(key)
    return 0


def _is_outdated(stored: StoredRows, blobs: BlobStore, key: str) -> bool:
    """Whether a file was written before a change of the schema that concerns it."""
    if stored.mapping is None or not key.endswith(PARQUET_FILE_SUFFIX):
        return False
    file_schema = read_footer(blobs, key)[0].schema.to_arrow_schema()
    names = set(file_schema.names) - set(index_columns(file_schema))
    if names != set(stored.schema.names) - set(stored.spec.partition_on):
        return True
    types = [(file_schema.field(n).type, stored.schema.field(n).type) for n in sorted(names)]
    return any(pa.types.is_integer(old) and pa.types.is_floating(new) for old, new in types)


# -- finish --------------------------------------------------------------------------------------------------


def finish_compact(context: CompactContext, results: Iterable[CompactResult]) -> Summary:
    """Commit what tasks wrote; later appends stay newer than the new files."""
    by_name: dict[str, list[CompactResult]] = {name: [] for name in context.plan.specs}
    for result in results:
        by_name[result.name].append(result)
    rewritten = {n: [r for r in rs if r.written is not None] for n, rs in by_name.items()}
    commit_rewritten(context.plan, rewritten)
    names = [f"{what}_{when}" for what in ("files", "bytes", "rows") for when in ("before", "after")]
    sums = {
        name: {count: sum(r.stats[count] for r in own) for count in ("partitions", *names)}
        for name, own in sorted(by_name.items())
    }
    return CountsByDataset(sums)


def commit_rewritten(
    plan: CubeWritePlan, rewritten: Mapping[str, Sequence[CompactResult]]
) -> dict[str, DatasetMetadata]:
    """Replace partitions by what was written from their rows, if anything: those of all datasets at once."""
    changes = {name: _change_set(plan, name, results) for name, results in rewritten.items() if results}
    written = [r.written for results in rewritten.values() for r in results if r.written is not None]
    with delete_on_failure(partial(delete_uncommitted, plan.store, written)):
        return commit_datasets(plan, changes, open_blobs(plan.store))


def _change_set(plan: CubeWritePlan, name: str, results: Sequence[CompactResult]) -> ChangeSet:
    # at the place of the newest input, the new file stays older than everything committed since
    places = [r.labels[-1] for r in results if r.written is not None for _ in r.written.labels]
    spec = attrs.evolve(
        plan.specs[name],
        replaces=pa.array([label for r in results for label in r.labels], pa.string()),
        replaces_at=pa.array(places, pa.string()),
        merge_schema=True,
    )
    written = spec.merge([r.written for r in results if r.written is not None])
    return spec.change_set(written, plan.info)
