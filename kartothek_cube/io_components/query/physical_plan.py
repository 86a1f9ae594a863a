"""A planned query: what its tasks share, which files of each dataset they read, how to cut it into tasks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.naming import data_key
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.display.html import card, table
from kartothek_cube.io_components.kernels.take import expand_ranges
from kartothek_cube.io_components.runtime.task_sizing import SAMPLE, TASK_SIZE, mean_size, split_by_weight

__all__ = (
    "DatasetScan",
    "FileGroup",
    "PartitionSelection",
    "PhysicalPlan",
    "ScanContext",
    "ScanTask",
    "column_fraction",
    "split_into_tasks",
)

Ints = npt.NDArray[np.int64]


@attrs.frozen
class DatasetScan:
    """
    One dataset of a query: what all tasks share about it.

    Attributes
    ----------
    name
        Dataset id within the cube.
    uuid, table
        Where its files are.
    schema
        Types of its columns as in its schema.
    partition_keys
        Its partition keys, which are not in the files.
    alignment
        Those partition keys that are cube partition columns: by these its files find their partners.
    dimensions
        Dimensions by which its rows are joined, in cube order.
    columns
        All columns that have to be loaded, including those for conditions.
    payload
        Columns that it adds to the result.
    predicates
        Conditions on its rows.
    dimension_predicates
        Those of them on dimensions; a cell either meets them or not, whichever file it is in.
    how
        ``seed``, ``inner`` or ``left``.
    first_file
        Key of the first file in its header, whether the query needs it or not; None if there is none.
    """

    name: str
    uuid: str
    table: str
    schema: pa.Schema
    partition_keys: tuple[str, ...]
    alignment: tuple[str, ...]
    dimensions: tuple[str, ...]
    columns: tuple[str, ...]
    payload: tuple[str, ...]
    predicates: tuple[tuple[str, str, Any], ...]
    dimension_predicates: tuple[tuple[str, str, Any], ...]
    how: str
    first_file: str | None = None


@attrs.frozen
class ScanContext:
    """
    What all tasks of a query share: sources (the seed first), names and types of columns, the store.

    Types are those of the schemas; rows have them as narrow as their files. ``known_bits`` remembers what
    ``widths.stored_bits`` has found out.
    """

    store: StoreFactory
    sources: tuple[DatasetScan, ...]
    sort_columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    output: pa.Schema
    known_bits: dict[str, int] = attrs.field(factory=dict, eq=False, repr=False)


@attrs.frozen
class FileGroup:
    """
    Files of one dataset in a task.

    Attributes
    ----------
    labels
        Labels of their partitions, in commit order.
    keys
        Where the files are, if that does not follow from the labels.
    known
        Values of the partition keys, where the query was planned; a task that is sent to another process goes
        without, and has to read them from the labels.
    """

    labels: tuple[str, ...]
    keys: tuple[str, ...] | None = None
    known: dict[str, pa.Array] | None = attrs.field(default=None, eq=False, repr=False)

    def __reduce__(self) -> tuple[type[FileGroup], tuple[Any, ...]]:
        return FileGroup, (self.labels, self.keys)

    def partition_values(self, source: DatasetScan) -> dict[str, pa.Array]:
        """Values of the partition keys of each file."""
        if self.known is not None:
            return self.known
        labels = PartitionTable.from_labels(source.uuid, source.table, pa.array(self.labels, pa.string()))
        return labels.keys(list(source.partition_keys), source.schema)

    def storage_keys(self, source: DatasetScan) -> tuple[str, ...]:
        """Keys of the files in the store."""
        if self.keys is not None:
            return self.keys
        return tuple(data_key(source.uuid, source.table, label) for label in self.labels)


@attrs.frozen
class ScanTask:
    """
    One independent piece of a query.

    Attributes
    ----------
    files
        Per source of the context its files.
    groups
        Value tuples of the ``partition_by`` columns, one per frame of the result; None for one frame with all
        rows.
    literals
        What the ``partition_by`` columns of all rows fulfil, if the task makes some of the groups only.
    """

    files: tuple[FileGroup, ...]
    groups: tuple[tuple[Any, ...], ...] | None = None
    literals: tuple[tuple[str, str, Any], ...] = ()


@attrs.define
class PartitionSelection:
    """Partitions of one dataset while planning: positions in the header, their unit, and the typed keys."""

    source: DatasetScan
    dataset: DatasetMetadata
    positions: Ints
    keys: dict[str, pa.Array]

    def select(self, mask_or_positions: npt.NDArray[Any]) -> None:
        """Keep the partitions of a mask, or those at the given positions."""
        picked = np.flatnonzero(mask_or_positions) if mask_or_positions.dtype == bool else mask_or_positions
        self.positions = self.positions[picked]
        self.keys = {column: array.take(pa.array(picked)) for column, array in self.keys.items()}

    def storage_keys(self) -> tuple[str, ...]:
        """Keys of the files in the store, in the order of the positions."""
        return _files(self, np.arange(len(self.positions))).storage_keys(self.source)


@attrs.frozen(repr=False)
class PhysicalPlan:
    """
    A planned query.

    Attributes
    ----------
    context
        Shared by all tasks.
    groups
        Value tuples of the groups in the order of the result; None without ``partition_by``.
    """

    context: ScanContext
    groups: tuple[tuple[Any, ...], ...] | None
    _sides: tuple[PartitionSelection, ...] = attrs.field(repr=False)
    _units: tuple[Ints, ...] = attrs.field(repr=False)
    _partners: tuple[Ints, ...] = attrs.field(repr=False)
    group_units: tuple[Ints, ...] | None = attrs.field(repr=False)
    _by_unit: tuple[tuple[Ints, Ints], ...] = attrs.field(init=False, repr=False, eq=False)

    @_by_unit.default
    def _sort_by_unit(self) -> tuple[tuple[Ints, Ints], ...]:
        """Per dataset the order of its files by physical partition, and their partitions in that order."""
        orders = [np.argsort(codes, kind="stable") for codes in self._units]
        return tuple((order, codes[order]) for order, codes in zip(orders, self._units, strict=True))

    def __repr__(self) -> str:
        files = ", ".join(f"{len(s.positions):,} of {s.source.name} ({s.source.how})" for s in self._sides)
        groups = "" if self.groups is None else f"; {len(self.groups):,} groups"
        partitions = "1 partition" if self.n_partitions == 1 else f"{self.n_partitions:,} partitions"
        return f"QueryPlan({partitions}; files: {files}{groups})"

    def _repr_html_(self) -> str:
        rows = [
            (
                side.source.name,
                side.source.how,
                len(side.positions),
                len(side.dataset.partition_table),
                ", ".join(side.source.columns),
            )
            for side in self._sides
        ]
        return card(
            repr(self), table("Datasets", ["dataset", "role", "files read", "files", "columns read"], rows)
        )

    @property
    def sides(self) -> tuple[PartitionSelection, ...]:
        """Per source of the context which of its files are read."""
        return self._sides

    @property
    def n_partitions(self) -> int:
        """Number of physical partitions of the seed that are read."""
        return len(self._partners[0])

    def single_task(self) -> ScanTask | None:
        """The query as a single task that reads each file once; None if there is nothing to read."""
        if self.groups is not None and not self.groups:
            return None
        return self._task(np.arange(self.n_partitions), self.groups) if self.n_partitions else None

    def tasks(self) -> list[ScanTask]:
        """One task per group, or one in total without ``partition_by``."""
        if self.groups is None:
            whole = self.single_task()
            return [] if whole is None else [whole]
        return self.group_tasks(np.arange(len(self.groups) + 1))

    def partition_tasks(self, units: int | Ints) -> list[ScanTask]:
        """
        Tasks over consecutive physical partitions, for executors that need no order between them.

        Parameters
        ----------
        units
            How many of them make a task; or the bounds of the tasks.
        """
        bounds = (
            units
            if isinstance(units, np.ndarray)
            else np.append(np.arange(0, self.n_partitions, units), self.n_partitions)
        )
        pairs = itertools.pairwise(bounds.tolist())
        return [self._task(np.arange(start, stop), self.groups) for start, stop in pairs if stop > start]

    def group_tasks(self, bounds: Ints) -> list[ScanTask]:
        """Tasks over the groups between the bounds."""
        groups, units = self.groups or (), self.group_units or ()
        return [
            self._task(np.unique(np.concatenate(units[start:stop])), groups[start:stop])
            for start, stop in itertools.pairwise(bounds.tolist())
        ]

    def sample_keys(self, size: int) -> list[tuple[str, ...]]:
        """For each dataset the keys of some of its files, evenly spread."""
        rows = [np.arange(len(s.positions))[:: max(1, len(s.positions) // size)] for s in self._sides]
        return [_files(s, r).storage_keys(s.source) for s, r in zip(self._sides, rows, strict=True)]

    def partition_bytes(self, sizes: Sequence[float]) -> npt.NDArray[np.float64]:
        """What each physical partition weighs, by the size of a file of each dataset."""
        weights = np.zeros(self.n_partitions)
        for codes, partner, size in zip(self._units, self._partners, sizes, strict=True):
            counts = np.append(np.bincount(codes, minlength=int(partner.max(initial=-1)) + 1), 0)
            weights += size * counts[partner]  # no partner, -1: the zero at the end
        return weights

    def group_weights(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """What each group weighs, if the groups in a physical partition have equal shares in it."""
        units = self.group_units or ()
        if not units:
            return np.zeros(0)
        rows = np.concatenate(units)
        shares = (weights / np.maximum(np.bincount(rows, minlength=self.n_partitions), 1))[rows]
        return np.add.reduceat(shares, np.cumsum([0, *map(len, units[:-1])]))

    def _task(self, units: Ints, groups: tuple[tuple[Any, ...], ...] | None) -> ScanTask:
        files = []
        for side, (order, codes), partner in zip(self._sides, self._by_unit, self._partners, strict=True):
            wanted = np.unique(partner[units])
            wanted = wanted[wanted >= 0]
            start, stop = np.searchsorted(codes, wanted, "left"), np.searchsorted(codes, wanted, "right")
            rows = order[expand_ranges(start, stop)[0]]
            files.append(_files(side, np.sort(rows)))
        return ScanTask(tuple(files), groups, self._literals(groups))

    def _literals(self, groups: tuple[tuple[Any, ...], ...] | None) -> tuple[tuple[str, str, Any], ...]:
        if not groups or (len(groups) > 1 and len(groups) == len(self.groups or ())):
            return ()
        columns = zip(*groups, strict=True)
        return tuple(_one_of(c, v) for c, v in zip(self.context.partition_by, columns, strict=True))


def _one_of(column: str, values: tuple[Any, ...]) -> tuple[str, str, Any]:
    distinct = tuple(dict.fromkeys(values))
    return (column, "==", distinct[0]) if len(distinct) == 1 else (column, "in", distinct)


def _files(side: PartitionSelection, rows: Ints) -> FileGroup:
    source, partitions = side.source, side.dataset.partition_table
    if not len(rows):
        return FileGroup(())
    positions, chosen = pa.array(side.positions[rows]), pa.array(rows)
    labels = tuple(partitions.labels.take(positions).to_pylist())
    known = {column: values.take(chosen) for column, values in side.keys.items()}
    if partitions.has_derived_keys(source.uuid, source.table):
        return FileGroup(labels, None, known)
    return FileGroup(labels, tuple(partitions.files[source.table].take(positions).to_pylist()), known)


def split_into_tasks(
    plan: PhysicalPlan, workers: int, tasks_per_worker: int = 3, size: int = TASK_SIZE
) -> list[ScanTask]:
    """
    Tasks that together are the query, each read and joined at once.

    Parameters
    ----------
    plan
        The query.
    workers
        How many tasks run at the same time.
    tasks_per_worker
        How many of them each worker should get, so that none waits long for the slowest.
    size
        Bytes that a task should not exceed; a single partition or group may.

    Returns
    -------
    list of Task
        Over consecutive groups, or over consecutive physical partitions without ``partition_by``.
    """
    if not plan.n_partitions or (plan.groups is not None and not plan.groups):
        return []
    sizes = _file_sizes(plan)
    # files that every task has to read do not count: more tasks make no less of them
    aligned = [
        0.0 if not source.alignment else size
        for source, size in zip(plan.context.sources, sizes, strict=True)
    ]
    weights = plan.partition_bytes(aligned)
    repeated = float(plan.partition_bytes(sizes).max() - weights.max())
    size = max(size, int(repeated))
    if plan.groups is None:
        return plan.partition_tasks(split_by_weight(weights, workers * tasks_per_worker, size))
    # what several groups share is read once per task: the fewer tasks, the better
    shared = sum(len(units) for units in plan.group_units or ()) > plan.n_partitions
    return plan.group_tasks(
        split_by_weight(plan.group_weights(weights), workers * (1 if shared else tasks_per_worker), size)
    )


def _file_sizes(plan: PhysicalPlan) -> list[float]:
    """For each dataset about how many bytes of a file are needed."""
    blobs = open_blobs(plan.context.store)
    return [
        mean_size(blobs, keys) * column_fraction(source)
        for source, keys in zip(plan.context.sources, plan.sample_keys(SAMPLE), strict=True)
    ]


def column_fraction(source: DatasetScan) -> float:
    """Share of the columns in its files that a query needs of a dataset."""
    stored = set(source.schema.names) - set(source.partition_keys)
    return len(stored & set(source.columns)) / max(len(stored), 1)
