"""Physical plan of a query: pruning, alignment of datasets, groups; scans, the files of each task."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core import arguments, errors, evolution, expressions, history, hooks, naming, tuning
from kartothek_cube.core.arrow import Floats, Ints, Mask
from kartothek_cube.core.cube import consistency, discover
from kartothek_cube.core.cube.conditions import Conjunction
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.pandas_conversion import DtypeBackend, check_dtype_backend
from kartothek_cube.core.partition import PartitionTable, cells_of_names
from kartothek_cube.core.pruning import select_partitions
from kartothek_cube.core.store import BlobStore, StoreFactory, StoreInput, open_blobs
from kartothek_cube.io_components import kernels
from kartothek_cube.io_components.facade import StoreT
from kartothek_cube.io_components.maintenance import overview
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf, datasets_as_of
from kartothek_cube.io_components.query.logical_plan import LogicalPlan, QueryCube, QueryTable, Role, analyze
from kartothek_cube.io_components.runtime import ordered_map, scan_bounds, split_by_weight, store_factory
from kartothek_cube.io_components.scan import estimate_bytes, file_widths, read_files

#: conjunction of (column, operator, value)
Predicates: TypeAlias = tuple[tuple[str, str, Any], ...]
Group: TypeAlias = tuple[Any, ...]

_LOGGER = logging.getLogger(__name__)


@attrs.frozen
class DatasetScan:
    """Scan of one dataset: what all tasks share about it."""

    #: dataset id within the cube
    name: str
    uuid: str
    table: str
    #: types of the dataset; files may have narrower ones
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
    #: whether it has conditions of its own: those on dimensions hold for the other datasets, too
    is_filtered: bool
    #: whether only rows with its cells are in the result, and conditions leave some of them
    is_restricting: bool
    #: predicate on columns of the files that the filters of the joined rows imply
    implied: tuple[expressions.Node, ...] = ()
    #: how to read files that were written before a change of the schema
    mapping: evolution.ColumnMapping | None = attrs.field(default=None, eq=False, repr=False)
    #: whether the digests in the names of files identify the cells: the join keys are all dimensions
    trusts_names: bool = False

    def count_columns(self) -> tuple[int, float]:
        """Columns in its files that a query reads: their number, and their share."""
        stored = set(self.schema.names) - set(self.partition_keys)
        n_read = len(stored & set(self.columns))
        return n_read, n_read / max(len(stored), 1)

    def derive_keys(self, labels: Iterable[str]) -> tuple[str, ...]:
        """Storage keys that follow from the labels of partitions."""
        # not by `get_partition_file_prefix`: names need no check for each file, and stores check keys
        return tuple([f"{self.uuid}/{self.table}/{label}{naming.PARQUET_FILE_SUFFIX}" for label in labels])

    def project(self, names: set[str]) -> DatasetScan:
        """The scan without payload of other names."""
        payload = tuple([c for c in self.payload if c in names])
        read = {*self.dimensions, *payload, *(column for column, _, _ in self.predicates)}
        return attrs.evolve(self, payload=payload, columns=tuple([c for c in self.columns if c in read]))


@attrs.frozen
class ScanContext:
    """State shared by all tasks of a query: scans (the seed first), names and types of columns, the store."""

    store: StoreFactory
    scans: tuple[DatasetScan, ...]
    sort_columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    #: types of the result: those of the schemas, with numbers as wide as in the widest file
    output: pa.Schema
    #: filter of the joined rows
    join_filters: tuple[expressions.Node, ...] = ()
    #: with a backend, the types of DataFrames do not depend on their values
    dtype_backend: DtypeBackend | None = None
    #: the open store, for tasks run by the process that planned them
    cached_blobs: BlobStore | None = attrs.field(default=None, eq=False, repr=False)

    def open_store(self) -> BlobStore:
        """The store; opened again in other processes."""
        return open_blobs(self.store) if self.cached_blobs is None else self.cached_blobs

    def __reduce__(self) -> tuple[type[ScanContext], tuple[Any, ...]]:
        # an open store cannot be pickled
        return ScanContext, tuple([getattr(self, field.name) for field in attrs.fields(ScanContext)[:-1]])


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
    #: number of rows of each file, if rows are selected by their positions in those of other datasets
    rows: Ints | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def overlapping(self) -> Mask:
        """Mask of the files that share their physical partition."""
        numbers = self.partition_ids - self.partition_ids[:1]
        mask: Mask = np.bincount(numbers)[numbers] > 1
        return mask

    def between(self, start: int, stop: int) -> ScanFiles:
        """The files of consecutive physical partitions."""
        return self._take(np.arange(*self.partition_ids.searchsorted([start, stop])))

    def in_partitions(self, partitions: Mask) -> ScanFiles:
        """The files of the physical partitions of a mask."""
        return self._take(np.flatnonzero(partitions[self.partition_ids]))

    def _take(self, positions: Ints) -> ScanFiles:
        if len(positions) == len(self):
            return self
        return attrs.evolve(
            self,
            labels=tuple([self.labels[i] for i in positions.tolist()]),
            keys=tuple([self.keys[i] for i in positions.tolist()]),
            partition_keys={c: array.take(pa.array(positions)) for c, array in self.partition_keys.items()},
            partition_ids=self.partition_ids[positions],
            rows=None if self.rows is None else self.rows[positions],
        )

    def cells(self) -> tuple[list[int], list[str]] | None:
        """Rows, and a digest of the cells, of the only file of each partition; None if unknown."""
        scan = self.scan
        if not (scan.trusts_names and scan.mapping is None and len(self)) or self.overlapping().any():
            return None
        return cells_of_names(self.labels)

    def names(self) -> _FileNames:
        """The files, without what other processes make of the names."""
        is_derived = self.keys == self.scan.derive_keys(self.labels)
        return _FileNames(self.labels, None if is_derived else self.keys, tuple(self.partition_ids.tolist()))


class _FileNames(NamedTuple):
    """What a task that is sent to another process says about its files."""

    labels: tuple[str, ...]
    #: storage keys, if they do not follow from the labels
    keys: tuple[str, ...] | None
    #: physical partitions
    ids: tuple[int, ...]

    def to_files(self, scan: DatasetScan, seed_alignment: tuple[str, ...]) -> ScanFiles:
        """The files of a scan; the values of their partition keys are decoded from the labels."""
        labels, keys, ids = self
        partitions = PartitionTable.from_labels(scan.uuid, scan.table, pa.array(labels, pa.string()))
        partition_keys = partitions.keys(list(scan.partition_keys), scan.schema)
        keys = scan.derive_keys(labels) if keys is None else keys
        aligned = scan.alignment == seed_alignment
        return ScanFiles(scan, labels, keys, partition_keys, np.array(ids, np.int64), aligned)


def _names_of(scanned: Iterable[ScanFiles | _FileNames]) -> tuple[_FileNames, ...]:
    return tuple([each.names() if isinstance(each, ScanFiles) else each for each in scanned])


@attrs.frozen
class ScanTask:
    """Task of a query; tasks are independent of each other."""

    #: per scan of the context; names only if the task was sent to another process, where it stays small
    scanned: tuple[ScanFiles | _FileNames, ...] = attrs.field(eq=_names_of)
    #: values of the ``partition_by`` columns, one tuple per table of the result; None for one table
    groups: tuple[Group, ...] | None = None
    #: predicate on the ``partition_by`` columns of all rows, if the task makes only some of the groups
    predicates: Predicates = ()

    def __reduce__(self) -> tuple[type[ScanTask], tuple[Any, ...]]:
        return ScanTask, (_names_of(self.scanned), self.groups, self.predicates)

    def files(self, context: ScanContext) -> tuple[ScanFiles, ...]:
        """Files of each scan, the seed first, without those that match no partition of the seed."""
        alignment = context.scans[0].alignment
        pairs = zip(context.scans, self.scanned, strict=True)
        return tuple([f if isinstance(f, ScanFiles) else f.to_files(scan, alignment) for scan, f in pairs])


@attrs.frozen(eq=False)
class DatasetFiles:
    """Data files of one dataset that a query reads, matched with the physical partitions of the seed."""

    scan: DatasetScan
    dataset: DatasetMetadata
    #: positions in the partition table of the dataset, by physical partition
    positions: Ints
    #: partition keys of all files of the dataset
    all_keys: Mapping[str, pa.Array]
    #: physical partition of each file, numbered as in the dataset, ascending
    partition_ids: Ints
    #: for each physical partition of the seed the one of this dataset, -1 without one
    matches: Ints
    #: whether at most one physical partition of the seed matches each of this dataset
    aligned: bool

    def of_partitions(self, partitions: Ints) -> ScanFiles:
        """The files that match physical partitions of the seed."""
        ids = self.matches[partitions]
        (numbers,) = (ids >= 0).nonzero()
        ids = ids[numbers]
        if not self.aligned:
            ids = np.unique(ids)
            numbers = np.arange(len(ids))
        start, stop = (self.partition_ids.searchsorted(ids, side) for side in ("left", "right"))
        entries, range_numbers = kernels.expand_ranges(start, stop)
        rows = pa.array(self.positions[entries])
        labels = tuple(self.dataset.partition_table.labels.take(rows).to_pylist())
        partition_keys = {column: array.take(rows) for column, array in self.all_keys.items()}
        keys = self.storage_keys(rows, labels)
        return ScanFiles(self.scan, labels, keys, partition_keys, numbers[range_numbers], self.aligned)

    @property
    def has_derived_keys(self) -> bool:
        """Whether storage keys follow from the labels."""
        return self.dataset.partition_table.has_derived_keys(self.scan.uuid, self.scan.table)

    def storage_keys(
        self, rows: pa.Array | None = None, labels: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        """Storage keys of the files in some rows of the partition table; by default of those to read."""
        partitions, rows = self.dataset.partition_table, pa.array(self.positions) if rows is None else rows
        if not self.has_derived_keys:
            return tuple(partitions.files[self.scan.table].take(rows).to_pylist())
        return self.scan.derive_keys(labels or partitions.labels.take(rows).to_pylist())

    def sample_keys(self, size: int) -> tuple[str, ...]:
        """Storage keys of at least ``size`` files, evenly spread."""
        return self.storage_keys(pa.array(self.positions[:: max(1, len(self.positions) // size)]))

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
    #: the state of the cube for which it was planned
    snapshot: discover.CubeSnapshot
    #: when and by which job it was planned, if hooks of queries are registered
    info: history.OperationInfo | None = None

    def __repr__(self) -> str:
        return f"QueryPlan({self.summary})"

    @property
    def summary(self) -> str:
        """Scans, pruned files and conditions, in one line."""
        sizes = ((f.scan, len(f.positions), len(f.dataset.partition_table)) for f in self.files)
        files = ", ".join(f"{n:,} of {total:,} of {scan.name} ({scan.role})" for scan, n, total in sizes)
        parts = [errors.format_count(self.n_partitions, "partition"), f"files: {files}"]
        plan = self.logical_plan
        conditions = [*itertools.chain(*plan.conditions.values()), *plan.join_conditions]
        if conditions:
            text = " & ".join(dict.fromkeys(map(str, conditions)))
            parts.append(f"conditions: {errors.abbreviate_text(text)}")
        if self.groups is not None:
            parts.append(errors.format_count(len(self.groups), "group"))
        return "; ".join(parts)

    @property
    def n_partitions(self) -> int:
        """Number of physical partitions of the seed that are read."""
        return len(self.files[0].matches)

    @property
    def n_files(self) -> int:
        """Number of files that are read."""
        return sum(len(files.positions) for files in self.files)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is read."""
        return not self.n_partitions or (self.groups is not None and not self.groups)

    def single_task(self) -> ScanTask | None:
        """The query as one task that reads each file once; None if there is nothing to read."""
        if self.is_empty:
            return None
        return self._task(np.arange(self.n_partitions), None if self.groups is None else tuple(self.groups))

    def tasks(self, n_groups: int = 1) -> list[ScanTask]:
        """Tasks of so many groups, or a single one without ``partition_by``."""
        if self.groups is not None:
            return self.slice_tasks(np.append(np.arange(0, len(self.groups), n_groups), len(self.groups)))
        return [task] if (task := self.single_task()) is not None else []

    def slice_tasks(self, bounds: Ints) -> list[ScanTask]:
        """Tasks over consecutive groups, or without groups physical partitions, between the bounds."""
        slices = [slice(*pair) for pair in itertools.pairwise(bounds.tolist())]
        if self.groups is None:
            return self.partition_tasks([np.arange(part.start, part.stop) for part in slices])
        groups, members = tuple(self.groups), list(self.groups.values())
        return [self._task(np.unique(np.concatenate(members[part])), groups[part]) for part in slices]

    def partition_tasks(self, members: Iterable[Ints]) -> list[ScanTask]:
        """One task per list of physical partitions of the seed; without groups."""
        return [self._task(partitions, None) for partitions in members]

    def _task(self, partitions: Ints, groups: tuple[Group, ...] | None) -> ScanTask:
        files = tuple([files.of_partitions(partitions) for files in self.files])
        predicates = []
        # nothing for all groups, where it would drop no row
        if groups and (len(groups) == 1 or len(groups) < len(self.groups or ())):
            for column, values in zip(self.context.partition_by, zip(*groups, strict=True), strict=True):
                distinct = tuple(dict.fromkeys(values))
                is_one = len(distinct) == 1
                predicates.append((column, "==", distinct[0]) if is_one else (column, "in", distinct))
        return ScanTask(files, groups, tuple(predicates))


def split_into_tasks(
    plan: PhysicalPlan, workers: int, tasks_per_worker: int = 3, size: int = tuning.BLOCK_BYTES
) -> list[ScanTask]:
    """Tasks over consecutive groups or physical partitions, of at most ``size`` bytes if they can be cut."""
    if plan.is_empty:
        return []
    aligned, unaligned = _partition_bytes(plan, aligned=True), _partition_bytes(plan, aligned=False)
    # files that every task reads do not count: more tasks make no less of them
    size = max(size, int((aligned + unaligned).max() - aligned.max()))
    # partitions that several groups share are read once per task: the fewer tasks, the better
    is_shared = plan.groups is not None and sum(map(len, plan.groups.values())) > plan.n_partitions
    n_tasks = workers * (1 if is_shared else tasks_per_worker)
    return plan.slice_tasks(split_by_weight(_group_bytes(plan, aligned), n_tasks, size))


def split_evenly(plan: PhysicalPlan, n_tasks: int) -> list[ScanTask]:
    """So many tasks over consecutive groups, fewer for fewer groups, more where one would exceed a block."""
    if plan.groups is None or len(plan.groups) <= n_tasks:
        return plan.tasks()
    weights = _group_bytes(plan, _partition_bytes(plan, aligned=True))
    size = min(tuning.BLOCK_BYTES, int(weights.sum() / n_tasks))
    return plan.slice_tasks(split_by_weight(weights, 1, max(size, 1)))


def plan_iteration(plan: PhysicalPlan) -> Iterator[ScanTask]:
    """Tasks for a consumer of one after the other: 1, 1, 2, 4, ... groups or partitions, then blocks."""
    # 2,000 groups, each a partition: 1.6 s, with a task per group 23 s
    if not plan.is_empty:
        yield from plan.slice_tasks(scan_bounds(_group_bytes(plan, _partition_bytes(plan, aligned=True))))


def _partition_bytes(plan: PhysicalPlan, *, aligned: bool) -> Floats:
    """Bytes of the needed columns per physical partition, in files of it alone or in those of all."""
    blobs, total = plan.context.open_store(), np.zeros(plan.n_partitions)
    for files in plan.files:
        if bool(files.scan.alignment) is aligned:
            keys = files.sample_keys(tuning.SAMPLE)
            total += estimate_bytes(blobs, keys, *files.scan.count_columns()) * files.count_files()
    return total


def _group_bytes(plan: PhysicalPlan, partition_bytes: Floats) -> Floats:
    """Bytes of each group; those of a partition have equal shares in it. Without groups, of partitions."""
    if plan.groups is None:
        return partition_bytes
    members = list(plan.groups.values())
    ids = np.concatenate(members)
    shares = (partition_bytes / np.maximum(np.bincount(ids, minlength=plan.n_partitions), 1))[ids]
    return np.add.reduceat(shares, np.cumsum([0, *map(len, members[:-1])]))


def match_partitions(
    seed: Mapping[str, pa.Array], other: Mapping[str, pa.Array], scan: DatasetScan, n_seed: int, n_other: int
) -> tuple[Ints, Ints]:
    """Common ids of the physical partitions for the files of the seed and of a dataset, by their keys."""
    shared = [column for column in scan.alignment if column in seed]
    return kernels.join_codes([seed[c] for c in shared], [other[c] for c in shared], n_seed, n_other)


def project(context: ScanContext, task: ScanTask, columns: Iterable[str]) -> tuple[ScanContext, ScanTask]:
    """Restrict a task to columns of the result, in this order, then ``partition_by``; rows stay the same."""
    names = list(dict.fromkeys([*columns, *context.partition_by]))
    needed = set(names).union(*map(expressions.columns_of, context.join_filters))
    scans = [scan.project(needed) for scan in context.scans]
    # a left join that adds no column changes nothing; an inner join still drops rows
    used = [number for number, scan in enumerate(scans) if scan.role is not Role.LEFT or scan.payload]
    output = pa.schema([context.output.field(name) for name in names])
    projected = attrs.evolve(context, scans=tuple([scans[number] for number in used]), output=output)
    files = task.files(context)
    return projected, attrs.evolve(task, scanned=tuple([attrs.evolve(files[n], scan=scans[n]) for n in used]))


def plan_query(query: QueryCube[StoreT], snapshot: discover.CubeSnapshot | None = None) -> PhysicalPlan:
    """Plan a query, of the newest state unless one is given."""
    # Data files are read in one case only: partition_by a dimension that the seed has no index on.
    cube, factory, backend = query.cube, store_factory(query.store), check_dtype_backend(query.dtype_backend)
    info = history.describe_operation("query") if hooks.QUERY_HOOKS else None
    blobs = open_blobs(factory)
    snapshot = snapshot or _load_snapshot(cube, blobs, query.datasets, query.as_of)
    logical_plan = analyze(query, snapshot)
    scans = [_make_scan(name, snapshot, cube, logical_plan) for name in logical_plan.roles]
    selected = [_prune_partitions(scan, snapshot, logical_plan, blobs) for scan in scans]
    if query.changed_since is not None:
        (seed, positions), used = selected[0], {scan.name: snapshot.datasets[scan.name] for scan in scans}
        names = None if query.datasets is None else used
        earlier = overview.load_earlier(cube, blobs, query.changed_since, names)
        # without those that the query leaves out
        existing = snapshot.datasets if query.datasets is None else earlier
        changes = overview.compare_used(cube, earlier, used, existing)
        selected[0] = seed, positions[overview.select_files(cube, seed, changes)[positions]]
    files = _align_partitions(scans, selected, snapshot)
    context = ScanContext(
        store=factory,
        scans=tuple(scans),
        sort_columns=logical_plan.dimension_columns + cube.partition_columns,
        partition_by=logical_plan.partition_by,
        output=_output_schema(logical_plan.output_columns, files, snapshot, blobs),
        join_filters=logical_plan.join_filters,
        dtype_backend=backend,
        cached_blobs=blobs,
    )
    groups = _enumerate_groups(files, logical_plan, blobs) if context.partition_by else None
    if _LOGGER.isEnabledFor(logging.DEBUG):
        _log_plan(cube, files, logical_plan)
    return PhysicalPlan(context, logical_plan, files, groups, snapshot, info)


def check_limit(limit: Any) -> None:
    """Raise ValueError for what is no number of rows."""
    if limit is not None and not arguments.is_count(limit):
        raise ValueError(f"limit is a number of rows, 0 or more, got {limit!r}")


def plan_table(query: QueryTable[StoreT]) -> PhysicalPlan:
    """Plan a query for one frame or table; columns in the order asked for, dimensions first by default."""
    if query.columns is not None and query.payload_columns is not None:
        raise ValueError("Pass columns or payload_columns, not both: they are two names of one parameter")
    check_limit(query.limit)
    is_long = query.payload_columns is not None
    argument, names = ("payload_columns", query.payload_columns) if is_long else ("columns", query.columns)
    requested = None if names is None else arguments.parse_names(argument, names)
    plan = plan_query(attrs.evolve(query, payload_columns=requested, columns=None))
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
    names = available if requested is None else arguments.parse_names("columns", requested)
    unnamed = [name for name in keys if requested is None or name not in names]
    known = {*available}
    return [name for name in dict.fromkeys([*unnamed, *names]) if name in known]


def _log_plan(cube: Cube, files: Iterable[DatasetFiles], logical_plan: LogicalPlan) -> None:
    """Log which files and columns a query reads, by dataset."""
    for each in files:
        predicates = Conjunction(logical_plan.conditions[each.scan.name]).predicate or ()
        _LOGGER.debug(
            "Query of cube %s reads %d of %d files of dataset %s: columns %s; conditions %s",
            cube.uuid_prefix,
            len(each.positions),
            len(each.dataset.partition_table),
            each.scan.name,
            ", ".join(each.scan.columns) or "none",
            " & ".join(f"{column} {op} {value!r}" for column, op, value in predicates) or "none",
        )


def _load_snapshot(
    cube: Cube, blobs: BlobStore, datasets: discover.DatasetsInput, as_of: CubeAsOf | None
) -> discover.CubeSnapshot:
    """Datasets of a query; those that are read as they are now are shared with other queries."""
    if isinstance(datasets, Mapping):
        if as_of is not None:
            raise ValueError("Pass either loaded datasets or as_of: loaded ones are as they are")
        loaded = discover.check_loaded(datasets)
        consistency.check_cube(loaded, cube)
        return discover.CubeSnapshot(loaded)
    if as_of is not None:
        return discover.CubeSnapshot(datasets_as_of(cube, blobs, as_of, datasets))
    run = map if blobs.is_local else partial(ordered_map, threads=tuning.REMOTE_REQUESTS)
    return discover.load_snapshot(cube, blobs, arguments.parse_name_set_optional("datasets", datasets), run)


def load_datasets(cube: Cube, store: StoreInput, as_of: CubeAsOf | None) -> dict[str, DatasetMetadata]:
    """All datasets of a cube, in one of its states, or as they are now."""
    return discover.discover_datasets(cube, store) if as_of is None else datasets_as_of(cube, store, as_of)


def _make_scan(
    name: str, snapshot: discover.CubeSnapshot, cube: Cube, logical_plan: LogicalPlan
) -> DatasetScan:
    dataset = snapshot.datasets[name]
    schema = snapshot.derive(("schema", name), partial(consistency.arrow_schema, dataset))
    columns = snapshot.derive(("names", name), lambda: tuple([c for c in schema.names if c[:2] != "__"]))
    keys = tuple(dataset.partition_keys)
    # A dimension of the groups alone is a join key, too. In the order of the result: rows that are sorted by
    # them need no other sort.
    grouping = [c for c in logical_plan.partition_by if c in cube.dimension_columns]
    needed_dimensions = dict.fromkeys([*logical_plan.dimension_columns, *grouping])
    dimensions = tuple([c for c in needed_dimensions if c in columns])
    needed = {*logical_plan.output_columns}.union(*map(expressions.columns_of, logical_plan.join_filters))
    added = needed.difference(cube.dimension_columns, cube.partition_columns)
    payload = tuple([c for c in columns if c in added])
    predicates = tuple([p for p in logical_plan.predicates[name] if p[0] not in cube.partition_columns])
    in_rows = {*columns} - {*cube.partition_columns}
    nodes = [expressions.imply(node, in_rows) for node in logical_plan.implied[name]]
    implied = tuple([node for node in nodes if node is not None])
    read = {*dimensions, *payload, *[column for column, _, _ in predicates]}
    on_dimensions = tuple([p for p in predicates if p[0] in cube.dimension_columns])
    role, is_filtered = logical_plan.roles[name], bool(implied) or len(predicates) > len(on_dimensions)
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
        dimension_predicates=on_dimensions,
        role=role,
        is_filtered=is_filtered,
        is_restricting=is_filtered and role is not Role.LEFT,
        implied=implied,
        mapping=dataset.column_mapping,
        trusts_names={*dimensions} == {*columns}.intersection(cube.dimension_columns),
    )


def _output_schema(
    names: Sequence[str], files: Sequence[DatasetFiles], snapshot: discover.CubeSnapshot, blobs: BlobStore
) -> pa.Schema:
    """Types of columns of the result; without a record of widths, those of the widest files that are read."""

    def narrow_types() -> dict[str, pa.DataType]:
        types = dict[str, pa.DataType]()
        for each in files:
            recorded = each.dataset.widths or {}
            for field in each.scan.schema:
                if pa.types.is_null(types.get(field.name, pa.null())):
                    types[field.name] = evolution.narrow_type(field, recorded)
        return types

    types = snapshot.derive(("types", tuple([each.scan.name for each in files])), narrow_types)
    widths = dict[str, int]()
    for each in files:
        scan, dataset = each.scan, each.dataset
        if evolution.WIDTHS_KEY not in dataset.extra:
            # the seed has all dimensions
            columns = {*scan.payload, *(scan.dimensions if scan.role is Role.SEED else ())}
            stored = sorted(columns.intersection(names).difference(scan.partition_keys))
            schema = pa.schema([(c, types[c]) for c in stored])
            if evolution.column_widths(schema):
                # where no file is read, all values are null
                first = pa.array(np.arange(len(dataset.partition_table))[:1])
                keys = each.storage_keys() or each.storage_keys(first)
                widths |= file_widths(blobs, keys, schema, scan.mapping)
    if widths:
        types = {name: evolution.narrow_type(pa.field(name, dtype), widths) for name, dtype in types.items()}
    return pa.schema([(name, types[name]) for name in names])


#: a dataset with the indices that a query needs, and the positions of its files that pruning left
_Selected: TypeAlias = tuple[DatasetMetadata, Ints]


def _partition_keys(scan: DatasetScan, snapshot: discover.CubeSnapshot) -> Mapping[str, pa.Array]:
    dataset = snapshot.datasets[scan.name]
    make = partial(dataset.partition_table.keys, list(scan.partition_keys), dataset.schema)
    return snapshot.derive(("partition keys", scan.name), make)


def _prune_partitions(
    scan: DatasetScan, snapshot: discover.CubeSnapshot, logical_plan: LogicalPlan, blobs: BlobStore
) -> _Selected:
    """Data files that the conditions on one dataset leave ("Per-Dataset Partitions" in the specification)."""
    dataset, node = snapshot.datasets[scan.name], logical_plan.condition_on(scan.name)
    columns = {column for column, owner in logical_plan.owners.items() if owner == scan.name}
    restricted = expressions.columns_of(node)
    # the index of 20 M values in one file takes 2.2 s to load, and the scan of that file 0.26
    pruning = restricted if len(dataset.partition_table) > 1 else set()
    if columns:
        dataset = dataset.load_indices(columns, blobs)
    if pruning:
        dataset = dataset.load_indices(pruning, blobs, node)
    positions = select_partitions(dataset, node)
    # all versions of a cell agree on these columns
    stable_columns = {*scan.dimensions, *(p[0] for p in scan.dimension_predicates), *scan.alignment}
    if node is None or restricted <= stable_columns or len(positions) in (0, len(dataset.partition_table)):
        return dataset, positions
    candidates = select_partitions(dataset, expressions.imply(node, stable_columns))
    if len(positions) < len(candidates):
        # A pruned file may hold a newer version of a cell, one that does not meet the condition: without it
        # the query would return the older version.
        keys = _partition_keys(scan, snapshot)
        alignment = [keys[c].take(pa.array(candidates)) for c in scan.alignment]
        ids = kernels.group_codes(alignment, len(candidates))
        positions = candidates[np.isin(ids, np.unique(ids[np.isin(candidates, positions)]))]
    return dataset, positions


def _is_among(codes: Ints, others: Ints, bound: int) -> Mask:
    """Whether each code is one of the others; all are below the bound."""
    # a fifth of the time of `np.isin` for few codes
    present = np.zeros(bound, dtype=bool)
    present[others] = True
    return present.take(codes)


def _align_partitions(
    scans: Sequence[DatasetScan], selected: Sequence[_Selected], snapshot: discover.CubeSnapshot
) -> tuple[DatasetFiles, ...]:
    """Match the physical partitions of all datasets with those of the seed ("Alignment")."""
    seed_scan, (seed, at) = scans[0], selected[0]
    keys = [_partition_keys(scan, snapshot) for scan in scans]

    def encode() -> tuple[Ints, list[tuple[Ints, Ints]]]:
        """Codes of the physical partitions of the seed, and pairs of its own and those of another dataset."""
        lengths = [len(dataset.partition_table) for dataset, _ in selected]
        others = zip(scans[1:], keys[1:], lengths[1:], strict=True)
        pairs = [match_partitions(keys[0], other, scan, lengths[0], length) for scan, other, length in others]
        return kernels.group_codes([keys[0][c] for c in seed_scan.alignment], lengths[0]), pairs

    names = tuple([scan.name for scan in scans])
    seed_codes, pairs = snapshot.derive(("partition codes", seed_scan.alignment, names), encode)
    for scan, (_, positions), (left, right) in zip(scans[1:], selected[1:], pairs, strict=True):
        if scan.role is Role.RESTRICTED:
            at = at[_is_among(left[at], right[positions], len(left) + len(right))]
    seed_ids = kernels.make_dense(seed_codes[at], len(seed_codes))
    order = seed_ids.argsort(kind="stable")
    at, seed_ids = at[order], seed_ids[order]
    last_files = at[kernels.last_rows(seed_ids, len(seed_ids))]
    files = [DatasetFiles(seed_scan, seed, at, keys[0], seed_ids, np.arange(len(last_files)), True)]
    others = zip(scans[1:], selected[1:], pairs, keys[1:], strict=True)
    for scan, (dataset, positions), (all_left, all_right), own_keys in others:
        left, right, bound = all_left[last_files], all_right[positions], len(all_left) + len(all_right)
        matches = np.where(_is_among(left, right, bound), left, -1)
        has_match = _is_among(right, left, bound)
        positions, ids = positions[has_match], right[has_match]
        order = ids.argsort(kind="stable")
        aligned = scan.alignment == seed_scan.alignment
        files.append(DatasetFiles(scan, dataset, positions[order], own_keys, ids[order], matches, aligned))
    return tuple(files)


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
        ids, group_codes, group_values = _group_values(files, column, logical_plan, blobs)
        matches = files.matches[rows]
        start = np.searchsorted(ids, matches, "left")
        stop = np.where(matches >= 0, np.searchsorted(ids, matches, "right"), start)
        entries, repeated = kernels.expand_ranges(start, stop)
        rows = rows[repeated]
        codes = [*(c[repeated] for c in codes), group_codes[entries]]
        values.append(group_values)
    order = np.lexsort([rows, *codes[::-1]])
    rows, codes = rows[order], [c[order] for c in codes]
    starts = np.flatnonzero(np.any([np.diff(c, prepend=-1) != 0 for c in codes], axis=0))
    columns = [v.take(pa.array(c[starts])).to_pylist() for v, c in zip(values, codes, strict=True)]
    return dict(zip(zip(*columns, strict=True), np.split(rows, starts)[1:], strict=True))


def _group_values(
    files: DatasetFiles, column: str, logical_plan: LogicalPlan, blobs: BlobStore
) -> tuple[Ints, Ints, pa.Array]:
    """Values of a column that meet the conditions: physical partitions, ascending, and codes of values."""
    dataset, scan = files.dataset, files.scan
    labels = dataset.partition_table.labels
    index = dataset.indices[column].columns_data if column in dataset.indices else None
    if index is None and column in scan.partition_keys:
        index = IndexColumns.from_pairs(dataset.key_columns()[column], labels, np.arange(len(labels)))
    elif index is None:
        # it has no index: the values in the files
        dtype = scan.schema.field(column).type
        tables = read_files(blobs, files.storage_keys(), [column], mapping=scan.mapping)
        found = [kernels.to_single_array(table.column(column).unique()).cast(dtype) for table in tables]
        index = IndexColumns.from_pairs(
            pa.concat_arrays([pa.array([], dtype), *found]),
            labels,
            np.repeat(files.positions, [len(array) for array in found]),
        )
    on_column = expressions.all_of(p for p in logical_plan.predicates[scan.name] if p[0] == column)
    keep = expressions.tree_mask(pa.table({column: index.values}), on_column).to_numpy(zero_copy_only=False)
    codes = index.value_ids()
    file_of_position = np.full(len(labels) + 1, -1, dtype=np.int64)
    file_of_position[files.positions] = np.arange(len(files.positions))
    file_numbers = file_of_position[index.positions(dataset.partition_table)]
    valid = keep[codes] & (file_numbers >= 0)
    pairs = np.unique(np.stack([files.partition_ids[file_numbers[valid]], codes[valid]], axis=1), axis=0)
    return pairs[:, 0], pairs[:, 1], index.values
