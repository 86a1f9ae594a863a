"""Rewrites of physical partitions: read their visible rows, change these, and replace the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TypeVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import tuning
from kartothek_cube.core.arrow import Ints, Mask
from kartothek_cube.core.commit.change import UnchangedPartitions
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.io_components.job import delete_on_failure
from kartothek_cube.io_components.runtime import available_cores, batched, ordered_map, split_by_weight
from kartothek_cube.io_components.scan import estimate_size
from kartothek_cube.io_components.write.stored_rows import StoredRows
from kartothek_cube.io_components.write.table_writer import delete_uncommitted
from kartothek_cube.io_components.write.write_commit import commit_datasets
from kartothek_cube.io_components.write.write_plan import WritePlan, WriteResult, Written, merge_writes

T = TypeVar("T")

#: bytes in files that are read at a time: enough that what is done per block does not count
_BLOCK_BYTES = 16 << 20
#: partitions differ in size
TASKS_PER_CORE = 4
_PARTITIONS_PER_TASK = 16
#: column with the number of the partition in its block
PARTITION = "__kartothek_cube_partition"


@attrs.frozen
class RewriteContext:
    """What all tasks share: the plan, and how the rows of its datasets are read, by id."""

    plan: WritePlan
    stored: Mapping[str, StoredRows]

    @classmethod
    def of(cls, plan: WritePlan, datasets: Mapping[str, DatasetMetadata]) -> RewriteContext:
        """Rewrites of datasets in their current state."""
        return cls(plan, {name: StoredRows.of(spec, datasets[name]) for name, spec in plan.specs.items()})


@attrs.frozen(eq=False)
class PartitionFiles:
    """The files of some physical partitions of a dataset, in the order of commit within each of them."""

    #: id of the dataset
    name: str
    files: PartitionTable
    #: number of the physical partition of each file: 0, 1, ...
    numbers: Ints

    @classmethod
    def of(cls, name: str, files: PartitionTable, members: Sequence[Ints]) -> PartitionFiles:
        """Physical partitions, from the positions of their files."""
        positions = np.concatenate([np.empty(0, np.int64), *members])
        return cls(name, files.take(positions), np.repeat(np.arange(len(members)), list(map(len, members))))

    def __len__(self) -> int:
        return int(self.numbers[-1]) + 1 if len(self.numbers) else 0

    def split(self, stored: StoredRows) -> Iterator[PartitionFiles]:
        """Split into blocks that are read at once."""
        if not len(self):
            return
        blobs, keys = open_blobs(stored.spec.store), self.files.files[stored.spec.table].to_pylist()
        weights = np.bincount(self.numbers).astype(np.float64) * estimate_size(blobs, keys)
        bounds = split_by_weight(weights, 1, _BLOCK_BYTES).tolist()
        for start, stop in pairwise(bounds):
            yield self.select((np.arange(len(self)) >= start) & (np.arange(len(self)) < stop))

    def select(self, mask: Mask) -> PartitionFiles:
        """The physical partitions where the mask is true."""
        selected = mask[self.numbers]
        numbers = (np.cumsum(mask) - 1)[self.numbers[selected]]
        return PartitionFiles(self.name, self.files.filter(selected), numbers)


def file_sizes(blobs: BlobStore, keys: Sequence[str]) -> Ints:
    """Bytes of files."""

    def read_size(key: str) -> int:
        # a cleanup has deleted the file: the read or the commit that follows says so
        with suppress(KeyError):
            return blobs.size(key)
        return 0

    sizes = ordered_map(read_size, keys, 1 if blobs.is_local else tuning.REMOTE_REQUESTS)
    return np.fromiter(sizes, np.int64, len(keys))


@attrs.frozen(eq=False)
class Rewritten:
    """What a task has written from the rows of partitions of a dataset."""

    #: id of the dataset
    name: str
    #: partitions that were read, and those of them that are replaced
    labels: pa.StringArray
    replaces: pa.StringArray
    #: empty where no row is left or nothing is replaced
    written: Written
    #: numbers for the answer
    counts: pa.Table

    @classmethod
    def merge(cls, parts: Iterable[Rewritten]) -> Rewritten:
        """At least one result of a dataset as one; associative."""
        parts = list(parts)
        return cls(
            parts[0].name,
            pa.concat_arrays([part.labels for part in parts]),
            pa.concat_arrays([part.replaces for part in parts]),
            merge_writes([part.written for part in parts]),
            pa.concat_tables([part.counts for part in parts]),
        )


def cut_tasks(members: Sequence[T], total: int) -> list[Sequence[T]]:
    """Physical partitions for each task, of so many in all."""
    size = -(-total // (TASKS_PER_CORE * available_cores()))
    return batched(members, max(1, min(size, _PARTITIONS_PER_TASK)))


def number_rows(rows: pa.Table, numbers: Ints) -> pa.Table:
    """Rows with the number of their partition as a column."""
    return rows.append_column(PARTITION, pa.array(numbers))


def read_visible(stored: StoredRows, block: PartitionFiles) -> tuple[pa.Table, Ints]:
    """Visible rows with the number of their partition, sorted by cell; number of all rows by file."""
    rows, lengths = stored.read(block.files)
    return stored.select_visible(number_rows(rows, np.repeat(block.numbers, lengths)), [PARTITION]), lengths


def replace_files(
    block: PartitionFiles,
    is_changed: Mask,
    rows: pa.Table,
    write: Callable[[pa.Table], WriteResult],
    counts: pa.Table,
) -> Rewritten:
    """Write the rows of the partitions that change."""
    written = {block.name: write(rows)} if len(rows) else {}
    replaced = block.files.filter(is_changed[block.numbers])
    return Rewritten(block.name, block.files.labels, replaced.labels, written, counts)


def collect_parts(plan: WritePlan, parts: Iterable[Rewritten]) -> list[Rewritten]:
    """The results of the blocks of a task; if one fails, the files of the others are deleted."""
    collected: list[Rewritten] = []
    try:
        collected.extend(parts)
    except BaseException:
        # also when the task is cancelled: no commit will ever refer to these files
        delete_uncommitted(plan.store, [result for part in collected for result in part.written.values()])
        raise
    return collected


def merge_by_dataset(parts: Iterable[Rewritten]) -> dict[str, Rewritten]:
    """Results of tasks by dataset."""
    by_name: dict[str, list[Rewritten]] = {}
    for part in parts:
        by_name.setdefault(part.name, []).append(part)
    return {name: Rewritten.merge(own) for name, own in by_name.items()}


def commit_rewritten(
    context: RewriteContext, rewritten: Mapping[str, Rewritten], *, unchanged: bool
) -> dict[str, DatasetMetadata]:
    """Replace partitions of all datasets at once; `unchanged`: if they have no newer files."""
    plan, changes = context.plan, {}
    for name, part in rewritten.items():
        if not len(part.replaces):
            continue
        stored = context.stored[name]
        spec, written = stored.spec, context.plan.specs[name].merge(part.written.values())
        folders = stored.folders(PartitionTable.from_labels(spec.uuid, spec.table, part.replaces))
        # at the place of the newest input, the new file stays older than everything committed since
        places = dict(zip(folders.to_pylist(), part.replaces.to_pylist(), strict=True))
        columns = tuple(c for c in stored.keys if c in spec.partition_on)
        requires = (UnchangedPartitions(columns, folders.unique(), part.replaces),) if unchanged else ()
        spec = plan.specs[name].evolve_change(
            replaces=part.replaces,
            replaces_at=pa.array([places[f] for f in stored.folders(written.partitions()).to_pylist()]),
            merge_schema=True,
            requires=requires,
        )
        changes[name] = spec.change_set(written, plan.info)
    files = [result for part in rewritten.values() for result in part.written.values()]
    with delete_on_failure(partial(delete_uncommitted, plan.store, files)):
        return commit_datasets(plan, changes, open_blobs(plan.store))


def sum_counts(
    context: RewriteContext, rewritten: Mapping[str, Rewritten], names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """The numbers of all datasets."""
    sums = {name: dict.fromkeys(names, 0) for name in sorted(context.plan.specs)}
    for name, part in rewritten.items():
        sums[name] = {column: int(pc.sum(part.counts[column]).as_py()) for column in names}
    return sums
