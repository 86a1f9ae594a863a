"""Compact a cube: rewrite the files of a physical partition as one, without hidden versions of cells."""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import partial
from typing import Generic

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow import Ints
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import choose_datasets, discover_datasets
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions import Node
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.pandas_conversion import index_columns
from kartothek_cube.core.partition import PartitionTable, compacted_suffixes, group_positions
from kartothek_cube.core.pruning import select_partitions
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.facade import StoreT, cube_or_name
from kartothek_cube.io_components.job import Job
from kartothek_cube.io_components.kernels import group_codes
from kartothek_cube.io_components.maintenance.stats import CountsByDataset
from kartothek_cube.io_components.write.cube_writes import partition_scope, plan_existing, removal_conditions
from kartothek_cube.io_components.write.rewrite import (
    PARTITION,
    PartitionFiles,
    RewriteContext,
    Rewritten,
    collect_parts,
    commit_rewritten,
    cut_tasks,
    file_sizes,
    merge_by_dataset,
    read_visible,
    replace_files,
    sum_counts,
)
from kartothek_cube.io_components.write.stored_rows import StoredRows
from kartothek_cube.io_components.write.table_writer import write_table
from kartothek_cube.serialization import DataFrameSerializer
from kartothek_cube.serialization.parquet_reader import read_footer

#: what the answer tells of each dataset
_COUNTS = pa.schema(
    [
        (name, pa.int64())
        for name in (
            "partitions",
            *(f"{what}_{when}" for when in ("before", "after") for what in ("files", "bytes", "rows")),
        )
    ]
)


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
    ) -> Job[RewriteContext, PartitionFiles, Rewritten, CountsByDataset]:
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
        members = {
            name: _select_members(cube, dataset, partition_scope(conjunction, dataset), self.min_files)
            for name, dataset in datasets.items()
        }
        n_partitions = sum(map(len, members.values()))
        tasks = [
            PartitionFiles.of(name, datasets[name].partition_table, part)
            for name, own in members.items()
            for part in cut_tasks(own, n_partitions)
        ]
        context = RewriteContext.of(plan, datasets)
        return Job(
            name="compact_cube",
            description=f"compact cube {cube.uuid_prefix}",
            context=context,
            tasks=tasks,
            run=run_compact,
            finish=partial(finish_compact, context),
            steps=("prepare", "partition", "commit"),
            is_parallel=True,
            files=sum(len(task.files) for task in tasks),
        )


def _select_members(cube: Cube, dataset: DatasetMetadata, scope: Node | None, min_files: int) -> list[Ints]:
    """Files of each physical partition with several, or with one that may be outdated."""
    least = min_files if dataset.column_mapping is not None else max(min_files, 2)
    rows = select_partitions(dataset, scope)
    keys = dataset.partition_table.keys(dataset.partition_keys, dataset.schema)
    codes = group_codes(
        [keys[c].take(pa.array(rows)) for c in cube.partition_columns if c in keys], len(rows)
    )
    return [rows[positions] for positions in group_positions(codes) if len(positions) >= least]


def compact_files_job(
    cube: Cube, store: StoreInput, keys: Set[str]
) -> Job[RewriteContext, PartitionFiles, Rewritten, CountsByDataset]:
    """Compact the physical partitions of some files."""
    job = CompactCube(cube, store, min_files=1).job()
    values = pa.array(sorted(keys), pa.string())
    selected = [
        task.select(np.bincount(task.numbers, pc.is_in(*task.files.files.values(), value_set=values)) > 0)
        for task in job.tasks
    ]
    tasks = [task for task in selected if len(task)]
    return attrs.evolve(job, tasks=tasks, files=sum(len(task.files) for task in tasks))


# -- run -----------------------------------------------------------------------------------------------------


def run_compact(context: RewriteContext, task: PartitionFiles) -> Rewritten:
    """Write the visible rows of physical partitions, each as one file."""
    stored = context.stored[task.name]
    return Rewritten.merge(
        collect_parts(context.plan, (_compact_block(context, stored, block) for block in task.split(stored)))
    )


def _compact_block(context: RewriteContext, stored: StoredRows, block: PartitionFiles) -> Rewritten:
    # one file per value of further partition keys, where a dataset has such that the cube does not know
    spec, files, numbers = context.plan.specs[block.name], block.files, block.numbers
    blobs, keys = open_blobs(spec.store), files.files[spec.table].to_pylist()
    sizes = file_sizes(blobs, keys)
    rows, lengths = read_visible(stored, block)
    of_row = rows.column(PARTITION).to_numpy()
    codes = group_codes(list(files.keys(spec.partition_on, stored.schema).values()), len(files))
    is_changed = np.bincount(of_row, minlength=len(block)) < np.bincount(numbers, lengths, len(block))
    is_changed[numbers[np.bincount(codes)[codes] > 1]] = True
    for key, number in zip(keys, numbers, strict=True):
        is_changed[number] = is_changed[number] or _is_outdated(stored, blobs, key)
    is_replaced = is_changed[numbers]
    if not is_changed.all():
        rows = rows.filter(pa.array(is_changed[of_row]))
    name_files = partial(_name_files, stored, files.filter(is_replaced))
    write = partial(write_table, spec, threads=1, name_files=name_files)
    part = replace_files(block, is_changed, rows.drop_columns(PARTITION), write, _COUNTS.empty_table())
    new = [
        key for result in part.written.values() for key in result.partitions().files[spec.table].to_pylist()
    ]
    kept = sizes[~is_replaced]
    before = [len(keys), sizes.sum(), lengths.sum()]
    after = [len(kept) + len(new), kept.sum() + file_sizes(blobs, new).sum(), len(of_row)]
    counts = pa.table([pa.array([count]) for count in (len(block), *before, *after)], schema=_COUNTS)
    return attrs.evolve(part, counts=counts)


def _name_files(stored: StoredRows, replaced: PartitionTable, labels: pa.StringArray) -> pa.StringArray:
    """Labels of compacted files, which tell what they replace."""
    members: dict[str, list[str]] = {}
    for folder, label in zip(stored.folders(replaced).to_pylist(), replaced.labels.to_pylist(), strict=True):
        members.setdefault(folder, []).append(label)
    suffixes = {folder: compacted_suffixes(own) for folder, own in members.items()}
    files = PartitionTable.from_labels(stored.spec.uuid, stored.spec.table, labels)
    folders = stored.folders(files).to_pylist()
    return pa.array(
        [f"{label}{next(suffixes[f])}" for label, f in zip(labels.to_pylist(), folders, strict=True)]
    )


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


def finish_compact(context: RewriteContext, results: Iterable[Rewritten]) -> CountsByDataset:
    """Commit what tasks wrote; later appends stay newer than the new files."""
    rewritten = merge_by_dataset(results)
    commit_rewritten(context, rewritten, unchanged=False)
    return CountsByDataset(sum_counts(context, rewritten, _COUNTS.names))
