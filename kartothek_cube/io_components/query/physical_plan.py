"""Physical plan of a query: scans of datasets, the files of each task, and how the plan is cut into tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core import tuning
from kartothek_cube.core.arrow import Ints, Mask
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import abbreviate_text, format_count
from kartothek_cube.core.expressions import Node, columns_of
from kartothek_cube.core.history import OperationInfo
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.pandas_conversion import DtypeBackend
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.evolution import ColumnMapping
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.io_components.columns import expand_ranges
from kartothek_cube.io_components.keys import group_codes, join_codes
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


@attrs.frozen(eq=False)
class ScanFiles:
    """Data files of one dataset in a task: those of a physical partition in a row, in commit order."""

    scan: DatasetScan
    labels: tuple[str, ...]
    #: storage keys
    keys: tuple[str, ...]
    #: values of the partition keys of each file
    partition_keys: dict[str, pa.Array]
    #: physical partition of each file, ascending
    partition_ids: Ints
    #: whether the ids are those of the seed; else its partitions share the files
    aligned: bool

    def __len__(self) -> int:
        return len(self.keys)

    def overlapping(self) -> Mask:
        """Mask of the files that share their physical partition."""
        numbers = self.partition_ids - self.partition_ids[:1]
        mask: Mask = np.bincount(numbers)[numbers] > 1
        return mask

    def between(self, start: int, stop: int) -> ScanFiles:
        """The files of consecutive physical partitions."""
        if start == 0 and stop > self.partition_ids[-1:].max(initial=-1):
            return self
        low, high = np.searchsorted(self.partition_ids, [start, stop]).tolist()
        return ScanFiles(
            self.scan,
            self.labels[low:high],
            self.keys[low:high],
            {c: array.slice(low, high - low) for c, array in self.partition_keys.items()},
            self.partition_ids[low:high],
            self.aligned,
        )

    def in_partitions(self, partitions: Mask) -> ScanFiles:
        """The files of the physical partitions of a mask."""
        mask = partitions[self.partition_ids]
        if mask.all():
            return self
        numbers = np.flatnonzero(mask).tolist()
        return ScanFiles(
            self.scan,
            tuple([self.labels[number] for number in numbers]),
            tuple([self.keys[number] for number in numbers]),
            {c: array.filter(pa.array(mask)) for c, array in self.partition_keys.items()},
            self.partition_ids[mask],
            self.aligned,
        )


#: partition labels, and storage keys if they do not follow from the labels
_Names: TypeAlias = tuple[tuple[str, ...], tuple[str, ...] | None]


@attrs.frozen
class ScanTask:
    """Task of a query; tasks are independent of each other."""

    #: per scan of the context
    names: tuple[_Names, ...]
    #: values of the ``partition_by`` columns, one tuple per table of the result; None for one table
    groups: tuple[Group, ...] | None = None
    #: what the ``partition_by`` columns of all rows meet, if the task makes only some of the groups
    predicates: Predicates = ()
    #: per scan of the context, for tasks run by the process that planned them
    cached_files: tuple[ScanFiles, ...] | None = attrs.field(default=None, eq=False, repr=False)

    def __reduce__(self) -> tuple[type[ScanTask], tuple[Any, ...]]:
        # a task sent to another process stays small: it decodes the partition keys from the labels again
        return ScanTask, (self.names, self.groups, self.predicates)

    def files(self, context: ScanContext) -> tuple[ScanFiles, ...]:
        """Files of each scan, the seed first, without those that match no partition of the seed."""
        if self.cached_files is not None:
            return self.cached_files
        (seed_scan, seed_names), *others = zip(context.scans, self.names, strict=True)
        seed = _restore_files(seed_scan, seed_names, None)
        return seed, *(_restore_files(scan, names, seed) for scan, names in others)


def _restore_files(scan: DatasetScan, names: _Names, seed: ScanFiles | None) -> ScanFiles:
    labels, keys = names
    partitions = PartitionTable.from_labels(scan.uuid, scan.table, pa.array(labels, pa.string()))
    partition_keys = partitions.keys(list(scan.partition_keys), scan.schema)
    aligned = seed is None or scan.alignment == seed.scan.alignment
    if seed is None or not aligned:
        ids = group_codes([partition_keys[column] for column in scan.alignment], len(labels))
    else:
        left, right = match_partitions(seed.partition_keys, partition_keys, scan, len(seed), len(labels))
        seed_ids = np.full(max(left.max(initial=-1), right.max(initial=-1)) + 1, -1, np.int64)
        seed_ids[left] = seed.partition_ids
        ids = seed_ids[right]
    order = ids.argsort(kind="stable")
    order = order[ids[order].searchsorted(0) :]
    keys = _derive_keys(scan, labels) if keys is None else keys
    return ScanFiles(
        scan,
        tuple([labels[i] for i in order.tolist()]),
        tuple([keys[i] for i in order.tolist()]),
        {column: array.take(pa.array(order)) for column, array in partition_keys.items()},
        ids[order],
        aligned,
    )


def _derive_keys(scan: DatasetScan, labels: Iterable[str]) -> tuple[str, ...]:
    # not by `get_partition_file_prefix`: names need no check for each file, and stores check keys
    return tuple([f"{scan.uuid}/{scan.table}/{label}{PARQUET_FILE_SUFFIX}" for label in labels])


@attrs.frozen(eq=False)
class DatasetFiles:
    """Data files of one dataset that a query reads, matched with the physical partitions of the seed."""

    scan: DatasetScan
    dataset: DatasetMetadata
    #: positions in the partition table of the dataset
    positions: Ints
    #: partition keys of all files of the dataset
    all_keys: Mapping[str, pa.Array]
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

    def of_partitions(self, partitions: Ints) -> ScanFiles:
        """The files that match physical partitions of the seed."""
        ids = self.matches[partitions]
        (numbers,) = (ids >= 0).nonzero()
        ids = ids[numbers]
        if not self.aligned:
            ids = np.unique(ids)
            numbers = np.arange(len(ids))
        start, stop = self._sorted_ids.searchsorted(ids, "left"), self._sorted_ids.searchsorted(ids, "right")
        entries, range_numbers = expand_ranges(start, stop)
        positions = pa.array(self.positions[self._order[entries]])
        labels = tuple(self.dataset.partition_table.labels.take(positions).to_pylist())
        partition_keys = {}
        for column, array in self.all_keys.items():
            partition_keys[column] = array.take(positions)
        keys = self._keys(positions, labels)
        return ScanFiles(self.scan, labels, keys, partition_keys, numbers[range_numbers], self.aligned)

    @property
    def has_derived_keys(self) -> bool:
        """Whether storage keys follow from the labels."""
        return self.dataset.partition_table.has_derived_keys(self.scan.uuid, self.scan.table)

    def _keys(self, positions: pa.Array, labels: Sequence[str] | None = None) -> tuple[str, ...]:
        partitions = self.dataset.partition_table
        if not self.has_derived_keys:
            return tuple(partitions.files[self.scan.table].take(positions).to_pylist())
        return _derive_keys(self.scan, labels or partitions.labels.take(positions).to_pylist())

    def storage_keys(self, positions: Ints | None = None) -> tuple[str, ...]:
        """Storage keys of all files to read, or of those at positions in the partition table."""
        return self._keys(pa.array(self.positions if positions is None else positions))

    def sample_keys(self, size: int) -> tuple[str, ...]:
        """Storage keys of at least ``size`` files, evenly spread."""
        return self.storage_keys(self.positions[:: max(1, len(self.positions) // size)])

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
    files: tuple[DatasetFiles, ...]
    #: physical partitions of the seed that can hold the rows of each group, by the values of the
    #: ``partition_by`` columns, in the order of the result; None without these
    groups: Mapping[Group, Ints] | None
    #: when and by which job it was planned, if hooks of queries are registered
    info: OperationInfo | None = None

    def __repr__(self) -> str:
        return f"QueryPlan({self.summary})"

    @property
    def summary(self) -> str:
        """What is read, how much was pruned, and the conditions; in one line."""
        parts = [format_count(self.n_partitions, "partition")]
        sizes = ((f.scan, len(f.positions), len(f.dataset.partition_table)) for f in self.files)
        files = ", ".join(f"{n:,} of {total:,} of {scan.name} ({scan.role})" for scan, n, total in sizes)
        parts.append(f"files: {files}")
        plan = self.logical_plan
        conditions = [*(c for group in plan.conditions.values() for c in group), *plan.join_conditions]
        if conditions:
            text = " & ".join(dict.fromkeys(map(str, conditions)))
            parts.append(f"conditions: {abbreviate_text(text)}")
        if self.groups is not None:
            parts.append(format_count(len(self.groups), "group"))
        return "; ".join(parts)

    @property
    def n_partitions(self) -> int:
        """Number of physical partitions of the seed that are read."""
        return len(self.files[0].matches)

    @property
    def n_files(self) -> int:
        """Number of files that are read."""
        return sum(len(files.positions) for files in self.files)

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

    def partition_tasks(self, members: Iterable[Ints]) -> list[ScanTask]:
        """One task per list of physical partitions of the seed; without groups."""
        return [self._task(partitions, None) for partitions in members]

    def group_bytes(self, partition_bytes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Bytes of each group, if all groups in a physical partition have equal shares in it."""
        members = list((self.groups or {}).values())
        ids = np.concatenate(members)
        shares = (partition_bytes / np.maximum(np.bincount(ids, minlength=self.n_partitions), 1))[ids]
        return np.add.reduceat(shares, np.cumsum([0, *map(len, members[:-1])]))

    def _task(self, partitions: Ints, groups: tuple[Group, ...] | None) -> ScanTask:
        files = tuple([files.of_partitions(partitions) for files in self.files])
        names = tuple(
            [
                (f.labels, None if d.has_derived_keys else f.keys)
                for f, d in zip(files, self.files, strict=True)
            ]
        )
        # nothing for all groups, where it would drop no row
        if not groups or (len(groups) > 1 and len(groups) == len(self.groups or ())):
            return ScanTask(tuple(names), groups, (), tuple(files))
        columns = zip(self.context.partition_by, zip(*groups, strict=True), strict=True)
        predicates = tuple(_one_of(column, values) for column, values in columns)
        return ScanTask(tuple(names), groups, predicates, tuple(files))


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
    projected = attrs.evolve(
        context,
        scans=tuple(scans[number] for number in used),
        output=pa.schema([context.output.field(name) for name in names]),
    )
    files = task.cached_files and tuple(
        attrs.evolve(task.cached_files[number], scan=scans[number]) for number in used
    )
    return projected, attrs.evolve(
        task, names=tuple(task.names[number] for number in used), cached_files=files
    )


def _project_scan(scan: DatasetScan, names: set[str]) -> DatasetScan:
    payload = tuple(c for c in scan.payload if c in names)
    read = {*scan.dimensions, *payload, *(column for column, _, _ in scan.predicates)}
    return attrs.evolve(scan, payload=payload, columns=tuple(c for c in scan.columns if c in read))
