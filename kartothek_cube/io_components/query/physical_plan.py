"""Physical plan of a query: scans of datasets, the files of each task, and how the plan is cut into tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core import tuning
from kartothek_cube.core.arrow.pandas_conversion import DtypeBackend
from kartothek_cube.core.arrow.types import Ints, Mask
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import format_count
from kartothek_cube.core.expressions.predicate import Node, columns_of
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.evolution import ColumnMapping
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.io_components.kernels.encode import join_codes
from kartothek_cube.io_components.kernels.take import expand_ranges
from kartothek_cube.io_components.query.logical_plan import LogicalPlan, Role
from kartothek_cube.io_components.runtime import mean_size, split_by_weight

#: conjunction of (column, operator, value)
Predicates: TypeAlias = tuple[tuple[str, str, Any], ...]
Group: TypeAlias = tuple[Any, ...]


@attrs.frozen
class DatasetScan:
    """Scan of one dataset: what all tasks share about it."""

    #: dataset id within the cube
    name: str
    uuid: str
    table: str
    #: types as in the schema file; files may have narrower ones
    schema: pa.Schema
    #: not stored in the files
    partition_keys: tuple[str, ...]
    #: partition keys that are cube partition columns: they match the files with those of the seed
    alignment: tuple[str, ...]
    #: join keys, in cube order
    dimensions: tuple[str, ...]
    #: columns to read, including those of the predicates
    columns: tuple[str, ...]
    #: columns that it adds to the result
    payload: tuple[str, ...]
    predicates: Predicates
    #: those of the predicates on dimensions: all versions of a cell meet them, or none does
    dimension_predicates: Predicates
    role: Role
    #: what else the rows have to meet, as far as files tell; implied by the filters of the joined rows
    implied: tuple[Node, ...] = ()
    #: how to read files that were written before a change of the schema
    mapping: ColumnMapping | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def is_filtered(self) -> bool:
        """Whether it has conditions of its own: those on dimensions hold for the other datasets, too."""
        return bool(self.implied) or len(self.predicates) > len(self.dimension_predicates)


@attrs.frozen
class ScanContext:
    """What all tasks of a query share: the scans (the seed first), names and types of columns, the store."""

    store: StoreFactory
    scans: tuple[DatasetScan, ...]
    sort_columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    #: types of the result: those of the schemas, with numbers as wide as in the widest file
    output: pa.Schema
    #: what the joined rows have to meet
    join_filters: tuple[Node, ...] = ()
    #: with a backend, the types of DataFrames do not depend on their values
    dtype_backend: DtypeBackend | None = None
    #: the open store, for tasks run by the process that planned them
    cached_blobs: BlobStore | None = attrs.field(default=None, eq=False, repr=False)

    def open_store(self) -> BlobStore:
        """The store; opened again in other processes."""
        return open_blobs(self.store) if self.cached_blobs is None else self.cached_blobs

    def __getstate__(self) -> dict[str, Any]:
        # an open store cannot be pickled
        return {**attrs.asdict(self, recurse=False), "cached_blobs": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


@attrs.frozen
class FileGroup:
    """Files of one dataset in a task."""

    #: partition labels, in commit order
    labels: tuple[str, ...]
    #: storage keys, if they do not follow from the labels
    keys: tuple[str, ...] | None = None
    #: partition keys of each file, for tasks run by the process that planned them
    cached_values: dict[str, pa.Array] | None = attrs.field(default=None, eq=False, repr=False)
    #: physical partition of each file, numbered as those of the seed in the task; for tasks as above
    cached_ids: Ints | None = attrs.field(default=None, eq=False, repr=False)

    def __reduce__(self) -> tuple[type[FileGroup], tuple[Any, ...]]:
        # a task sent to another process stays small: it decodes the partition keys from the labels again
        return FileGroup, (self.labels, self.keys)

    def partition_values(self, scan: DatasetScan) -> dict[str, pa.Array]:
        """Values of the partition keys of each file."""
        if self.cached_values is not None:
            return self.cached_values
        labels = PartitionTable.from_labels(scan.uuid, scan.table, pa.array(self.labels, pa.string()))
        return labels.keys(list(scan.partition_keys), scan.schema)

    def storage_keys(self, scan: DatasetScan) -> tuple[str, ...]:
        """Keys of the files in the store."""
        if self.keys is not None:
            return self.keys
        # not by `get_partition_file_prefix`: names need no check for each file, and stores check keys
        return tuple([f"{scan.uuid}/{scan.table}/{label}{PARQUET_FILE_SUFFIX}" for label in self.labels])


@attrs.frozen
class ScanTask:
    """Task of a query; tasks are independent of each other."""

    #: files per scan of the context
    files: tuple[FileGroup, ...]
    #: values of the ``partition_by`` columns, one tuple per table of the result; None for one table
    groups: tuple[Group, ...] | None = None
    #: what the ``partition_by`` columns of all rows meet, if the task makes only some of the groups
    predicates: Predicates = ()


@attrs.frozen
class PartitionSelection:
    """Data files of one dataset that planning has not pruned."""

    scan: DatasetScan
    dataset: DatasetMetadata
    #: positions in the partition table of the dataset
    positions: Ints
    #: partition keys of all files of the dataset
    all_keys: Mapping[str, pa.Array]

    def select(self, mask: Mask) -> PartitionSelection:
        """Only the files of a mask."""
        return PartitionSelection(self.scan, self.dataset, self.positions[mask], self.all_keys)

    def storage_keys(self) -> tuple[str, ...]:
        """Keys of the files in the store, in the order of the positions."""
        return self.file_group(np.arange(len(self.positions))).storage_keys(self.scan)

    def file_group(self, indices: Ints, partition_ids: Ints | None = None) -> FileGroup:
        """The files at the given indices of this selection."""
        scan, partitions = self.scan, self.dataset.partition_table
        positions = pa.array(self.positions[indices])
        labels = tuple(partitions.labels.take(positions).to_pylist())
        values = {}
        for column, array in self.all_keys.items():
            values[column] = array.take(positions)
        keys = None
        if not partitions.has_derived_keys(scan.uuid, scan.table):
            keys = tuple(partitions.files[scan.table].take(positions).to_pylist())
        return FileGroup(labels, keys, values, partition_ids)


@attrs.frozen(eq=False)
class AlignedFiles:
    """Data files of one dataset that are read, matched with the physical partitions of the seed."""

    selection: PartitionSelection
    #: physical partition of each file, numbered as in the dataset
    partition_ids: Ints
    #: for each physical partition of the seed the one of this dataset, -1 without one
    matches: Ints
    #: whether at most one physical partition of the seed matches each of this dataset
    aligned: bool
    #: files by physical partition, and the partitions in that order
    _order: Ints = attrs.field(init=False)
    _sorted_ids: Ints = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        order = self.partition_ids.argsort(kind="stable")
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_sorted_ids", self.partition_ids[order])

    def file_group(self, partitions: Ints) -> FileGroup:
        """The files that match physical partitions of the seed."""
        ids = self.matches[partitions]
        (numbers,) = (ids >= 0).nonzero()
        ids = ids[numbers] if self.aligned else np.unique(ids[numbers])
        start, stop = self._sorted_ids.searchsorted(ids, "left"), self._sorted_ids.searchsorted(ids, "right")
        entries, range_numbers = expand_ranges(start, stop)
        files = self._order[entries]
        order = files.argsort()
        return self.selection.file_group(
            files[order], numbers[range_numbers[order]] if self.aligned else None
        )

    def sample_keys(self, size: int) -> tuple[str, ...]:
        """Storage keys of at least ``size`` files, evenly spread."""
        n_files = len(self.partition_ids)
        indices = np.arange(n_files)[:: max(1, n_files // size)]
        return self.selection.file_group(indices).storage_keys(self.selection.scan)

    def count_files(self) -> Ints:
        """Number of files for each physical partition of the seed."""
        # the zero at the end is what a missing match, -1, finds
        n_ids = int(self.matches.max(initial=-1)) + 1
        counts: Ints = np.append(np.bincount(self.partition_ids, minlength=n_ids), 0)
        return counts[self.matches]


@attrs.frozen(repr=False, eq=False)
class PhysicalPlan:
    """Planned query: the scans, the files of each physical partition, and the groups of the result."""

    context: ScanContext
    logical_plan: LogicalPlan
    #: per scan of the context the files that are read
    files: tuple[AlignedFiles, ...]
    #: physical partitions of the seed that can hold the rows of each group, by the values of the
    #: ``partition_by`` columns, in the order of the result; None without these
    groups: Mapping[Group, Ints] | None

    def __repr__(self) -> str:
        selections = [files.selection for files in self.files]
        files = ", ".join(f"{len(s.positions):,} of {s.scan.name} ({s.scan.role})" for s in selections)
        groups = "" if self.groups is None else f"; {format_count(len(self.groups), 'group')}"
        partitions = format_count(self.n_partitions, "partition")
        return f"QueryPlan({partitions}; files: {files}{groups})"

    @property
    def n_partitions(self) -> int:
        """Number of physical partitions of the seed that are read."""
        return len(self.files[0].matches)

    def single_task(self) -> ScanTask | None:
        """The query as one task that reads each file once; None if there is nothing to read."""
        if self.is_empty:
            return None
        return self._task(np.arange(self.n_partitions), None if self.groups is None else tuple(self.groups))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is read."""
        return not self.n_partitions or (self.groups is not None and not self.groups)

    def tasks(self) -> list[ScanTask]:
        """One task per group, or a single one without ``partition_by``."""
        if self.groups is None:
            task = self.single_task()
            return [] if task is None else [task]
        return self.slice_tasks(np.arange(len(self.groups) + 1))

    def slice_tasks(self, bounds: Ints) -> list[ScanTask]:
        """Tasks over consecutive groups, or without groups physical partitions, between the bounds."""
        slices = [slice(*pair) for pair in itertools.pairwise(bounds.tolist())]
        if self.groups is None:
            partitions = np.arange(self.n_partitions)
            return [self._task(partitions[part], None) for part in slices]
        groups, members = tuple(self.groups), list(self.groups.values())
        return [self._task(np.unique(np.concatenate(members[part])), groups[part]) for part in slices]

    def partition_tasks(self, partitions: Ints) -> list[ScanTask]:
        """One task per physical partition among those of the seed; without groups."""
        return [self._task(partitions[i : i + 1], None) for i in range(len(partitions))]

    def group_bytes(self, partition_bytes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Bytes of each group, if all groups in a physical partition have equal shares in it."""
        members = list((self.groups or {}).values())
        ids = np.concatenate(members)
        shares = (partition_bytes / np.maximum(np.bincount(ids, minlength=self.n_partitions), 1))[ids]
        return np.add.reduceat(shares, np.cumsum([0, *map(len, members[:-1])]))

    def _task(self, partitions: Ints, groups: tuple[Group, ...] | None) -> ScanTask:
        files = tuple(files.file_group(partitions) for files in self.files)
        # nothing for all groups, where it would drop no row
        if not groups or (len(groups) > 1 and len(groups) == len(self.groups or ())):
            return ScanTask(files, groups)
        columns = zip(self.context.partition_by, zip(*groups, strict=True), strict=True)
        return ScanTask(files, groups, tuple(_one_of(column, values) for column, values in columns))


def _one_of(column: str, values: tuple[Any, ...]) -> tuple[str, str, Any]:
    distinct = tuple(dict.fromkeys(values))
    return (column, "==", distinct[0]) if len(distinct) == 1 else (column, "in", distinct)


def split_into_tasks(
    plan: PhysicalPlan, workers: int, tasks_per_worker: int = 3, size: int = tuning.BLOCK_BYTES
) -> list[ScanTask]:
    """Tasks over consecutive groups or physical partitions, of at most ``size`` bytes if they can be cut."""
    if plan.is_empty:
        return []
    blobs = plan.context.open_store()
    aligned = unaligned = np.zeros(plan.n_partitions)
    for files, scan in zip(plan.files, plan.context.scans, strict=True):
        file_bytes = mean_size(blobs, files.sample_keys(tuning.SAMPLE)) * column_fraction(scan)
        if scan.alignment:
            aligned = aligned + file_bytes * files.count_files()
        else:
            unaligned = unaligned + file_bytes * files.count_files()
    # files that every task reads do not count: more tasks make no less of them
    size = max(size, int((aligned + unaligned).max() - aligned.max()))
    if plan.groups is None:
        return plan.slice_tasks(split_by_weight(aligned, workers * tasks_per_worker, size))
    # partitions that several groups share are read once per task: the fewer tasks, the better
    shared = sum(map(len, plan.groups.values())) > plan.n_partitions
    n_tasks = workers * (1 if shared else tasks_per_worker)
    return plan.slice_tasks(split_by_weight(plan.group_bytes(aligned), n_tasks, size))


def match_partitions(
    seed: Mapping[str, pa.Array], other: Mapping[str, pa.Array], scan: DatasetScan, n_seed: int, n_other: int
) -> tuple[Ints, Ints]:
    """Common ids of the physical partitions for the files of the seed and of a dataset, by their keys."""
    shared = [column for column in scan.alignment if column in seed]
    return join_codes([seed[c] for c in shared], [other[c] for c in shared], n_seed, n_other)


def column_fraction(scan: DatasetScan) -> float:
    """Share of the columns in its files that a query reads of a dataset."""
    stored = set(scan.schema.names) - set(scan.partition_keys)
    return len(stored & set(scan.columns)) / max(len(stored), 1)


def project(context: ScanContext, task: ScanTask, columns: Iterable[str]) -> tuple[ScanContext, ScanTask]:
    """Restrict a task to columns of the result, in this order, then ``partition_by``; rows stay the same."""
    names = list(dict.fromkeys([*columns, *context.partition_by]))
    needed = set(names).union(*map(columns_of, context.join_filters))
    scans = [_project_scan(scan, needed) for scan in context.scans]
    # a left join that adds no column changes nothing; an inner join still drops rows
    used = [number for number, scan in enumerate(scans) if scan.role is not Role.LEFT or scan.payload]
    return (
        attrs.evolve(
            context,
            scans=tuple(scans[number] for number in used),
            output=pa.schema([context.output.field(name) for name in names]),
        ),
        attrs.evolve(task, files=tuple(task.files[number] for number in used)),
    )


def _project_scan(scan: DatasetScan, names: set[str]) -> DatasetScan:
    payload = tuple(c for c in scan.payload if c in names)
    read = {*scan.dimensions, *payload, *(column for column, _, _ in scan.predicates)}
    return attrs.evolve(scan, payload=payload, columns=tuple(c for c in scan.columns if c in read))
