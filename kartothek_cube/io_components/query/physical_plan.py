"""Physical plan of a query: pruning, alignment of datasets, groups; scans, the files of each task."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core import hooks, tuning
from kartothek_cube.core.arguments import converter_str_set_optional, converter_str_tupleset
from kartothek_cube.core.arrow import Ints, Mask
from kartothek_cube.core.copying import replace_fields
from kartothek_cube.core.cube.conditions import Conjunction
from kartothek_cube.core.cube.consistency import arrow_schema, check_cube
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import CubeSnapshot, DatasetsInput, discover_datasets, load_snapshot
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import abbreviate_text, format_count
from kartothek_cube.core.expressions import Node, all_of, columns_of, imply, tree_mask
from kartothek_cube.core.history import OperationInfo, describe_operation
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.pandas_conversion import DtypeBackend, check_dtype_backend
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.pruning import select_partitions
from kartothek_cube.core.schema.evolution import WIDTHS_KEY, ColumnMapping, Widths, column_widths, narrow_type
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.facade import StoreT
from kartothek_cube.io_components.kernels import (
    expand_ranges,
    group_codes,
    is_dense,
    join_codes,
    make_dense,
    to_single_array,
)
from kartothek_cube.io_components.maintenance.changed_partitions import (
    compare_used,
    load_earlier,
    select_files,
)
from kartothek_cube.io_components.maintenance.history import CubeAsOf, datasets_as_of
from kartothek_cube.io_components.query.logical_plan import (
    LogicalPlan,
    QueryCube,
    QueryFrames,
    QueryTable,
    Role,
    build_logical_plan,
)
from kartothek_cube.io_components.runtime import mean_size, ordered_map, split_by_weight, store_factory
from kartothek_cube.io_components.scan import file_widths, read_files

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


_LOGGER = logging.getLogger(__name__)


def plan_query(query: QueryCube[StoreT]) -> PhysicalPlan:
    """Plan a query."""
    # Data files are read in one case only: partition_by a dimension that the seed has no index on.
    cube, factory = query.cube, store_factory(query.store)
    info = describe_operation("query") if hooks.QUERY_HOOKS else None
    blobs = open_blobs(factory)
    snapshot = _load_snapshot(cube, blobs, query.datasets, query.as_of)
    logical_plan = build_logical_plan(
        cube, snapshot, query.conditions, query.dimension_columns, query.partition_by, query.payload_columns
    )
    scans, output = _make_scans(cube, snapshot, logical_plan)
    selected = [_prune_partitions(scan, snapshot, logical_plan, blobs) for scan in scans]
    if query.changed_since is not None:
        seed, used = selected[0], {scan.name: snapshot.datasets[scan.name] for scan in scans}
        earlier = load_earlier(cube, blobs, query.changed_since)
        mask = select_files(cube, seed.dataset, compare_used(cube, earlier, used, snapshot.datasets))
        selected[0] = _Selected(seed.dataset, seed.positions[mask[seed.positions]])
    context = ScanContext(
        store=factory,
        scans=scans,
        sort_columns=logical_plan.dimension_columns + cube.partition_columns,
        partition_by=logical_plan.partition_by,
        output=output,
        join_filters=logical_plan.join_filters,
        cached_blobs=blobs,
    )
    plan = _align_partitions(context, selected, logical_plan, snapshot, blobs)
    plan = _with_widths_of_files(plan, blobs)
    _log_plan(cube, plan)
    return plan if info is None else attrs.evolve(plan, info=info)


def _log_plan(cube: Cube, plan: PhysicalPlan) -> None:
    """Log which files and columns a query reads, by dataset."""
    if not _LOGGER.isEnabledFor(logging.DEBUG):
        return
    for files in plan.files:
        scan = files.scan
        predicates = Conjunction(plan.logical_plan.conditions[scan.name]).predicate or ()
        _LOGGER.debug(
            "Query of cube %s reads %d of %d files of dataset %s: columns %s; conditions %s",
            cube.uuid_prefix,
            len(files.positions),
            len(files.dataset.partition_table),
            scan.name,
            ", ".join(scan.columns) or "none",
            " & ".join(f"{column} {op} {value!r}" for column, op, value in predicates) or "none",
        )


def _load_snapshot(
    cube: Cube, blobs: BlobStore, datasets: DatasetsInput, as_of: CubeAsOf | None
) -> CubeSnapshot:
    """Datasets of a query; those that are read as they are now are shared with other queries."""
    if as_of is None and not isinstance(datasets, Mapping):
        requested = converter_str_set_optional(datasets)
        if blobs.is_local:
            return load_snapshot(cube, blobs, requested)
        return load_snapshot(cube, blobs, requested, partial(ordered_map, threads=tuning.REMOTE_REQUESTS))
    return CubeSnapshot(load_datasets(cube, blobs, datasets, as_of))


def load_datasets(
    cube: Cube, store: StoreInput, datasets: DatasetsInput, as_of: CubeAsOf | None = None
) -> dict[str, DatasetMetadata]:
    """Headers for the ``datasets`` argument of an operation: None, ids, or loaded headers."""
    if as_of is not None:
        if isinstance(datasets, Mapping):
            raise ValueError("Pass either loaded datasets or as_of: loaded ones are as they are")
        return datasets_as_of(cube, store, as_of, datasets)
    if isinstance(datasets, Mapping):
        check_cube(datasets, cube)
        return dict(datasets)
    return discover_datasets(cube, store, converter_str_set_optional(datasets))


class _Scans(NamedTuple):
    """Scans of a query, the seed first, and the columns of its result with their types."""

    scans: tuple[DatasetScan, ...]
    output: pa.Schema


def _make_scans(cube: Cube, snapshot: CubeSnapshot, logical_plan: LogicalPlan) -> _Scans:
    datasets = snapshot.datasets
    scans = tuple([_make_scan(name, datasets[name], cube, logical_plan) for name in logical_plan.roles])
    widths = [datasets[scan.name].widths or {} for scan in scans]
    return _Scans(scans, _output_schema(logical_plan, scans, widths))


def _make_scan(name: str, dataset: DatasetMetadata, cube: Cube, logical_plan: LogicalPlan) -> DatasetScan:
    schema = arrow_schema(dataset)
    columns = [column for column in schema.names if column[:2] != "__"]
    keys = tuple(dataset.partition_keys or ())
    # a dimension that only groups are made of is read and joined by, too
    # in the order of the result: rows that are sorted by them need no other sort
    grouping = [c for c in logical_plan.partition_by if c in cube.dimension_columns]
    needed_dimensions = dict.fromkeys([*logical_plan.dimension_columns, *grouping])
    dimensions = tuple([c for c in needed_dimensions if c in columns])
    needed = {*logical_plan.output_columns}.union(*map(columns_of, logical_plan.join_filters))
    added = needed.difference(cube.dimension_columns, cube.partition_columns)
    payload = tuple([c for c in columns if c in added])
    predicates = tuple([p for p in logical_plan.predicates[name] if p[0] not in cube.partition_columns])
    in_rows = {*columns} - {*cube.partition_columns}
    implied = [imply(node, in_rows) for node in logical_plan.implied[name]]
    read = {*dimensions, *payload, *[column for column, _, _ in predicates]}
    return DatasetScan(
        name=name,
        uuid=dataset.uuid,
        table=dataset.table_name,
        schema=schema,
        partition_keys=keys,
        alignment=tuple([c for c in cube.partition_columns if c in keys]),
        dimensions=dimensions,
        columns=tuple([c for c in columns if c in read]),
        payload=payload,
        predicates=predicates,
        dimension_predicates=tuple([p for p in predicates if p[0] in cube.dimension_columns]),
        role=logical_plan.roles[name],
        implied=tuple([node for node in implied if node is not None]),
        mapping=dataset.column_mapping,
    )


def _output_schema(
    logical_plan: LogicalPlan, scans: Sequence[DatasetScan], widths: Sequence[Widths]
) -> pa.Schema:
    types: dict[str, pa.DataType] = {}
    for scan, scan_widths in zip(scans, widths, strict=True):
        for field in scan.schema:
            if pa.types.is_null(types.get(field.name, pa.null())):
                types[field.name] = narrow_type(field, scan_widths)
    return pa.schema([(c, types[c]) for c in logical_plan.output_columns])


def _with_widths_of_files(plan: PhysicalPlan, blobs: BlobStore) -> PhysicalPlan:
    """The plan with the types of datasets without a record of widths: those of the widest files it reads."""
    output, widths = plan.context.output, dict[str, int]()
    seen: set[str] = set()
    for files in plan.files:
        scan = files.scan
        columns = {*scan.dimensions, *scan.payload}.intersection(output.names).difference(seen)
        seen |= columns
        if WIDTHS_KEY not in files.dataset.extra:
            schema = pa.schema([output.field(c) for c in sorted(columns.difference(scan.partition_keys))])
            # where no file is read, all values are null
            first = np.arange(len(files.dataset.partition_table))[:1]
            if column_widths(schema):
                keys = files.storage_keys() or files.storage_keys(first)
                widths |= file_widths(blobs, keys, schema, scan.mapping)
    if not widths:
        return plan
    output = pa.schema([(field.name, narrow_type(field, widths)) for field in output])
    return replace_fields(plan, context=replace_fields(plan.context, output=output))


class _Selected(NamedTuple):
    """A dataset with the indices that a query needs, and the positions of its files that pruning left."""

    dataset: DatasetMetadata
    positions: Ints


def _partition_keys(scan: DatasetScan, snapshot: CubeSnapshot) -> Mapping[str, pa.Array]:
    dataset = snapshot.datasets[scan.name]
    keys: Mapping[str, pa.Array] = snapshot.derive(
        ("partition keys", scan.name),
        lambda: dataset.partition_table.keys(list(scan.partition_keys), dataset.schema),
    )
    return keys


def _prune_partitions(
    scan: DatasetScan, snapshot: CubeSnapshot, logical_plan: LogicalPlan, blobs: BlobStore
) -> _Selected:
    """Data files that the conditions on one dataset leave ("Per-Dataset Partitions" in the specification)."""
    dataset = snapshot.datasets[scan.name]
    nodes = [*logical_plan.predicates[scan.name], *logical_plan.implied[scan.name]]
    columns = {column for column, owner in logical_plan.owners.items() if owner == scan.name}
    if not nodes and not columns:
        return _Selected(dataset, np.arange(len(dataset.partition_table)))
    restricted = set().union(*map(columns_of, nodes))
    # the index of 20 M values in one file takes 2.2 s to load, and the scan of that file 0.26
    pruning = restricted if len(dataset.partition_table) > 1 else set()
    dataset = dataset.load_indices(columns | pruning, blobs)
    positions = select_partitions(dataset, all_of(nodes))
    # all versions of a cell agree on these columns
    stable_columns = {*scan.dimensions, *(p[0] for p in scan.dimension_predicates), *scan.alignment}
    if not restricted <= stable_columns:
        stable = all_of(imply(node, stable_columns) for node in nodes)
        candidates = select_partitions(dataset, stable)
        keys = _partition_keys(scan, snapshot)
        positions = _complete_partitions(positions, candidates, scan, keys)
    return _Selected(dataset, positions)


def _complete_partitions(
    positions: Ints, candidates: Ints, scan: DatasetScan, keys: Mapping[str, pa.Array]
) -> Ints:
    """Add the candidates in the same physical partitions, which an index on payload has pruned."""
    # A pruned file may hold a newer version of a cell, one that does not meet the condition: without it the
    # query would return the older version.
    if len(positions) == len(candidates) or not len(positions):
        return positions
    ids = group_codes([keys[c].take(pa.array(candidates)) for c in scan.alignment], len(candidates))
    return candidates[np.isin(ids, np.unique(ids[np.isin(candidates, positions)]))]


class _PartitionCodes(NamedTuple):
    """Physical partitions of all files of the datasets, as codes in the order of the keys."""

    seed: Ints
    #: for each other dataset the codes of the seed's files and of its own, equal where the keys are
    others: list[tuple[Ints, Ints]]


def _encode_partitions(
    scans: Sequence[DatasetScan], keys: Sequence[Mapping[str, pa.Array]], lengths: Sequence[int]
) -> _PartitionCodes:
    seed_codes = group_codes([keys[0][c] for c in scans[0].alignment], lengths[0])
    pairs = [
        match_partitions(keys[0], other, scan, lengths[0], length)
        for scan, other, length in zip(scans[1:], keys[1:], lengths[1:], strict=True)
    ]
    return _PartitionCodes(seed_codes, pairs)


def _align_partitions(
    context: ScanContext,
    selected: Sequence[_Selected],
    logical_plan: LogicalPlan,
    snapshot: CubeSnapshot,
    blobs: BlobStore,
) -> PhysicalPlan:
    """Match the physical partitions of all datasets with those of the seed ("Alignment")."""
    scans, seed_scan = context.scans, context.scans[0]
    keys = [_partition_keys(scan, snapshot) for scan in scans]
    codes = snapshot.derive(
        ("partition codes", seed_scan.alignment, tuple([scan.name for scan in scans])),
        lambda: _encode_partitions(scans, keys, [len(dataset.partition_table) for dataset, _ in selected]),
    )
    seed = selected[0]
    at = seed.positions
    for scan, other, (left, right) in zip(scans[1:], selected[1:], codes.others, strict=True):
        if scan.role is Role.RESTRICTED:
            at = at[_is_in(left[at], right[other.positions])]
    seed_ids = make_dense(codes.seed[at], len(codes.seed))
    n_partitions = int(seed_ids.max()) + 1 if len(seed_ids) else 0
    first_files = np.full(n_partitions, -1, dtype=np.int64)
    first_files[seed_ids[::-1]] = np.arange(len(seed_ids) - 1, -1, -1)
    files = [DatasetFiles(seed_scan, seed.dataset, at, keys[0], seed_ids, np.arange(n_partitions), True)]
    for number, (all_left, all_right) in enumerate(codes.others, 1):
        scan, (dataset, positions) = scans[number], selected[number]
        left, right = all_left[at][first_files], all_right[positions]
        has_match = _is_in(right, left)
        matches = np.where(_is_in(left, right), left, -1)
        positions, ids, aligned = (
            positions[has_match],
            right[has_match],
            scan.alignment == seed_scan.alignment,
        )
        files.append(DatasetFiles(scan, dataset, positions, keys[number], ids, matches, aligned))
    groups = _enumerate_groups(files, logical_plan, blobs) if context.partition_by else None
    return PhysicalPlan(context, logical_plan, tuple(files), groups)


def _is_in(codes: Ints, others: Ints) -> Mask:
    """Mask of the codes that occur among others, all of them dense codes."""
    # many times as fast as np.isin
    bound = 1 + max(int(codes.max(initial=-1)), int(others.max(initial=-1)))
    if not is_dense(bound, len(codes) + len(others)):
        return np.isin(codes, others)
    present = np.zeros(bound, dtype=bool)
    present[others] = True
    mask: Mask = present[codes]
    return mask


def _enumerate_groups(
    datasets: Sequence[DatasetFiles], logical_plan: LogicalPlan, blobs: BlobStore
) -> dict[Group, Ints]:
    """Values of the ``partition_by`` columns, and the partitions that can hold them ("Re-grouping")."""
    # one row per physical partition and group so far: the partition, and a code per column
    rows = np.arange(len(datasets[0].matches))
    codes: list[Ints] = []
    values: list[pa.Array] = []
    for column in logical_plan.partition_by:
        files = next(f for f in datasets if f.scan.name == logical_plan.owners[column])
        group_values = _group_values(files, column, logical_plan, blobs)
        ids, matches = group_values.partition_ids, files.matches[rows]
        start = np.searchsorted(ids, matches, "left")
        stop = np.where(matches >= 0, np.searchsorted(ids, matches, "right"), start)
        entries, repeated = expand_ranges(start, stop)
        rows = rows[repeated]
        codes = [*(c[repeated] for c in codes), group_values.codes[entries]]
        values.append(group_values.values)
    order = np.lexsort([rows, *codes[::-1]])
    rows, codes = rows[order], [c[order] for c in codes]
    change = np.any([np.diff(c, prepend=-1) != 0 for c in codes], axis=0)
    starts = np.flatnonzero(change)
    columns = [v.take(pa.array(c[starts])).to_pylist() for v, c in zip(values, codes, strict=True)]
    return dict(zip(zip(*columns, strict=True), np.split(rows, starts)[1:], strict=True))


@attrs.frozen
class _GroupValues:
    """Values of a ``partition_by`` column, and which physical partition can hold which of them."""

    #: physical partitions, ascending; several entries for one with several values
    partition_ids: Ints
    #: position in ``values`` for each entry
    codes: Ints
    values: pa.Array


def _group_values(
    files: DatasetFiles, column: str, logical_plan: LogicalPlan, blobs: BlobStore
) -> _GroupValues:
    """Values of a column in each physical partition that meet the conditions, by its index."""
    dataset = files.dataset
    index = dataset.indices[column].columns_data if column in dataset.indices else None
    if index is None and column in files.scan.partition_keys:
        labels = dataset.partition_table.labels
        index = IndexColumns.from_pairs(dataset.key_columns()[column], labels, np.arange(len(labels)))
    elif index is None:
        index = _scan_values(files, column, blobs)
    predicates = logical_plan.predicates[files.scan.name]
    on_column = all_of(predicate for predicate in predicates if predicate[0] == column)
    keep = tree_mask(pa.table({column: index.values}), on_column).to_numpy(zero_copy_only=False)
    codes = index.value_ids()
    file_of_position = np.full(len(dataset.partition_table) + 1, -1, dtype=np.int64)
    file_of_position[files.positions] = np.arange(len(files.positions))
    file_numbers = file_of_position[index.positions(dataset.partition_table)]
    valid = keep[codes] & (file_numbers >= 0)
    pairs = np.unique(np.stack([files.partition_ids[file_numbers[valid]], codes[valid]], axis=1), axis=0)
    return _GroupValues(pairs[:, 0], pairs[:, 1], index.values)


def _scan_values(files: DatasetFiles, column: str, blobs: BlobStore) -> IndexColumns:
    """Index of a column that has none, from its values in the files."""
    dtype = files.scan.schema.field(column).type

    keys, mapping = files.storage_keys(), files.scan.mapping
    tables = read_files(blobs, keys, [column], mapping=mapping)
    values = [to_single_array(table.column(column).unique()).cast(dtype) for table in tables]
    return IndexColumns.from_pairs(
        pa.concat_arrays([pa.array([], dtype), *values]),
        files.dataset.partition_table.labels,
        np.repeat(files.positions, [len(array) for array in values]),
    )


def plan_frames(query: QueryFrames[StoreT]) -> PhysicalPlan:
    """Plan a query whose results are DataFrames; as :func:`plan_query`, with their types."""
    backend = check_dtype_backend(query.dtype_backend)
    plan = plan_query(query)
    if backend is None:
        return plan
    return replace_fields(plan, context=replace_fields(plan.context, dtype_backend=backend))


def plan_table(query: QueryTable[StoreT]) -> PhysicalPlan:
    """Plan a query for one frame or table; columns in the order asked for, dimensions first by default."""
    if query.columns is not None and query.payload_columns is not None:
        raise ValueError("Pass columns or payload_columns, not both: they are two names of one parameter")
    _check_limit(query.limit)
    names = query.columns if query.payload_columns is None else query.payload_columns
    requested = None if names is None else converter_str_tupleset(names)
    frames = QueryFrames(
        query.cube,
        query.store,
        query.conditions,
        query.datasets,
        query.dimension_columns,
        payload_columns=requested,
        as_of=query.as_of,
        changed_since=query.changed_since,
        dtype_backend=query.dtype_backend,
    )
    plan = plan_frames(frames)
    output = plan.context.output
    # the rows are sorted by dimensions, then partition columns
    ordered = order_columns(plan.context.sort_columns, requested, output.names)
    schema = pa.schema([output.field(name) for name in ordered])
    return attrs.evolve(plan, context=attrs.evolve(plan.context, output=schema))


def order_columns(
    keys: Iterable[str], requested: str | Iterable[str] | None, available: Sequence[str]
) -> list[str]:
    """Order the columns of a result as they are asked for, the keys first unless they are named as well.

    >>> order_columns(["CITY", "DAY"], ["TEMP", "DAY"], ["CITY", "DAY", "RAIN", "TEMP"])
    ['CITY', 'TEMP', 'DAY']
    """
    names = None if requested is None else converter_str_tupleset(requested)
    unnamed = [name for name in keys if name not in (names or ())]
    return [
        name
        for name in dict.fromkeys([*unnamed, *(available if names is None else names)])
        if name in available
    ]


def _check_limit(limit: object) -> None:
    is_number = isinstance(limit, int | np.integer) and not isinstance(limit, bool)
    if limit is not None and not (is_number and limit >= 0):  # type: ignore[operator]
        raise ValueError(f"limit is a number of rows, 0 or more, got {limit!r}")
