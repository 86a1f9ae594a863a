"""Cubes, their datasets, and single datasets as sources of lazy datasets, which scan them block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core import tuning
from kartothek_cube.core.cube.conditions import ConditionsInput, Conjunction
from kartothek_cube.core.cube.consistency import get_dataset_columns
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import (
    DatasetsInput,
    choose_datasets,
    discover_datasets_unchecked,
    open_existing,
)
from kartothek_cube.core.cube.implied_conditions import ImpliedCondition, join_conditions
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions import Tree
from kartothek_cube.core.factory import DatasetAsOf
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.io_components.arrow_dataset import RowSource, SourceScan
from kartothek_cube.io_components.maintenance.history import CubeAsOf, datasets_as_of
from kartothek_cube.io_components.query.cube_query import QueryTable
from kartothek_cube.io_components.query.executor import (
    BYTES_PER_VALUE,
    announce_end,
    announce_query,
    run_task,
)
from kartothek_cube.io_components.query.physical_plan import PhysicalPlan, ScanTask, column_fraction, project
from kartothek_cube.io_components.query.planner import plan_table
from kartothek_cube.io_components.read.dataset_read import DatasetRead, ReadPlan, empty_table, run_read
from kartothek_cube.io_components.runtime import (
    available_cores,
    limit_threads,
    prefetch_map,
    progress_add_total,
    scan_bounds,
)
from kartothek_cube.io_components.scan import count_rows, estimate_size


@attrs.frozen
class CubeScan(SourceScan):
    """Scan of the cells of a cube, partition by partition, in bounded memory."""

    plan: PhysicalPlan
    columns: tuple[str, ...]

    def tables(self, *, sequential: bool = False) -> Iterator[pa.Table]:
        """Rows of some partitions at a time, few of the first ones."""
        return announce_end(self.plan, self._tables(sequential=sequential))

    def _tables(self, *, sequential: bool) -> Iterator[pa.Table]:
        if self.plan.is_empty:
            return
        progress_add_total(self.plan.n_files)
        tasks = self.plan.slice_tasks(scan_bounds(self._partition_bytes()))
        threads = 1 if sequential else available_cores()
        # one thread per task: more of them than cores wait for each other
        is_parallel = threads > 1 and len(tasks) > 2 and open_blobs(self.plan.context.store).is_local
        read = partial(self._read, threads=1 if is_parallel else None)
        for table in prefetch_map(read, tasks, threads):
            if table is not None:
                yield table

    def count_rows(self) -> int | None:
        """Number of rows, if footers tell most of it; None otherwise."""
        context = self.plan.context
        (seed, *others), files = context.scans, self.plan.files[0]
        if others or seed.predicates or context.join_filters:
            return None
        if self.plan.is_empty:
            announce_query(self.plan, 0)
            return 0
        # the cells in one file are unique; those of several may be versions of the same cell
        is_single = files.count_files() == 1
        blobs = context.open_store()
        keys = files.of_partitions(np.flatnonzero(is_single)).keys
        if not all(key.endswith(PARQUET_FILE_SUFFIX) for key in keys):
            return None
        remaining = self.plan.partition_tasks(np.flatnonzero(~is_single)[:, None])
        tables = prefetch_map(self._read, remaining, available_cores())
        n_rows = count_rows(blobs, keys) + sum(len(table) for table in tables if table is not None)
        announce_query(self.plan, n_rows)
        return n_rows

    def _read(self, task: ScanTask, threads: int | None = None) -> pa.Table | None:
        # consumers are promised no order: partition by partition, nothing is sorted
        unsorted = attrs.evolve(self.plan.context, sort_columns=())
        context, task = project(unsorted, task, self.columns)
        with nullcontext() if threads is None else limit_threads(threads):
            tables = run_task(context, task)
        return tables[0] if tables else None

    def _partition_bytes(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Bytes of the needed columns of each physical partition: in files, or half of those in memory."""
        blobs = self.plan.context.open_store()
        total = np.zeros(self.plan.n_partitions)
        for files, scan in zip(self.plan.files, self.plan.context.scans, strict=True):
            if scan.alignment:
                keys = files.sample_keys(tuning.SAMPLE)
                size = estimate_size(blobs, keys)
                in_memory = _sample_rows(blobs, keys) * BYTES_PER_VALUE * (len(scan.columns) + 1)
                total += max(size * column_fraction(scan), in_memory / 2) * files.count_files()
        return total


def _sample_rows(blobs: BlobStore, keys: Sequence[str]) -> int:
    """Rows of the first local Parquet file, which is read first anyway; 0 where that is not cheap."""
    is_cheap = blobs.is_local and len(keys) > 0 and keys[0].endswith(PARQUET_FILE_SUFFIX)
    return count_rows(blobs, keys[:1]) if is_cheap else 0


@attrs.frozen(repr=False)
class CubeSource(RowSource):
    """The cells of a cube: rows of the seed, with the columns of all datasets."""

    cube: Cube = attrs.field()
    store: StoreFactory
    conditions: ConditionsInput = None
    datasets: DatasetsInput = None
    as_of: CubeAsOf | None = None

    @cube.validator
    def _check(self, attribute: object, value: object) -> None:
        ensure_cube(value)

    def __repr__(self) -> str:
        return f"cube {self.cube.uuid_prefix}"

    def read_schema(self) -> pa.Schema:
        """Columns and types as they are now."""
        plan = self._plan(None, self.conditions)
        return plan.context.output

    def plan(self, columns: Sequence[str], condition: ImpliedCondition | None) -> SourceScan:
        """Plan a scan of the current snapshot."""
        conditions = join_conditions(self.conditions, () if condition is None else (condition,))
        try:
            plan = self._plan(columns, conditions)
        except (NotImplementedError, TypeError, ValueError):
            # a filter that conditions cannot express is evaluated on the rows only; other errors come again
            if condition is None:
                raise
            plan = self._plan(columns, self.conditions)
        return CubeScan(plan, tuple(columns))

    def _plan(self, columns: Sequence[str] | None, conditions: ConditionsInput) -> PhysicalPlan:
        return plan_table(
            QueryTable(self.cube, self.store, conditions, self.datasets, columns=columns, as_of=self.as_of)
        )


@attrs.frozen(repr=False)
class DatasetOfCubeSource(RowSource):
    """The rows of one dataset of a cube, of each cell the version written last."""

    cube: Cube
    store: StoreFactory
    dataset_id: str
    as_of: CubeAsOf | None = None

    def __repr__(self) -> str:
        return f"dataset {self.cube.ktk_dataset_uuid(self.dataset_id)}"

    def read_schema(self) -> pa.Schema:
        """Columns and types as they are now."""
        return self._as_cube().read_schema()

    def plan(self, columns: Sequence[str], condition: ImpliedCondition | None) -> SourceScan:
        """Plan a scan of the current snapshot."""
        return self._as_cube().plan(columns, condition)

    def _as_cube(self) -> CubeSource:
        dataset = self._load()
        columns = get_dataset_columns(dataset)
        dimensions = [column for column in self.cube.dimension_columns if column in columns]
        cube = Cube(
            dimension_columns=dimensions,
            partition_columns=[c for c in self.cube.partition_columns if c in (dataset.partition_keys or ())],
            uuid_prefix=self.cube.uuid_prefix,
            seed_dataset=self.dataset_id,
            suppress_index_on=dimensions,
        )
        return CubeSource(cube, self.store, datasets={self.dataset_id: dataset})

    def _load(self) -> DatasetMetadata:
        ensure_cube(self.cube)
        datasets: Mapping[str, DatasetMetadata]
        if self.as_of is not None:
            datasets = datasets_as_of(self.cube, self.store, self.as_of)
        else:
            blobs = open_existing(self.cube.uuid_prefix, self.store)
            datasets = discover_datasets_unchecked(self.cube.uuid_prefix, blobs, self.dataset_id)
        if self.dataset_id not in datasets:
            choose_datasets(
                self.cube,
                self.dataset_id,
                discover_datasets_unchecked(self.cube.uuid_prefix, self.store, load_schema=False),
            )
        return datasets[self.dataset_id]


@attrs.frozen
class _PlannedRead(SourceScan):
    """Scan of the files of a dataset."""

    plan: ReadPlan

    def tables(self, *, sequential: bool = False) -> Iterator[pa.Table]:
        keys = self._keys()
        if not keys:
            return
        size = estimate_size(open_blobs(self.plan.context.store), keys)
        tasks = self.plan.block_tasks(scan_bounds(np.full(len(keys), size)))
        read = partial(run_read, self.plan.context)
        yield from prefetch_map(read, tasks, 1 if sequential else available_cores())

    def count_rows(self) -> int | None:
        keys = self._keys()
        if self.plan.context.where is not None or not all(k.endswith(PARQUET_FILE_SUFFIX) for k in keys):
            return None
        return count_rows(open_blobs(self.plan.context.store), keys)

    def _keys(self) -> list[str]:
        keys: list[str] = self.plan.partitions.files[self.plan.context.table].to_pylist()
        return keys


@attrs.frozen(repr=False)
class DatasetSource(RowSource):
    """All rows of a dataset."""

    dataset_uuid: str
    store: StoreFactory
    table_name: str | None = None
    as_of: DatasetAsOf | None = None

    def __repr__(self) -> str:
        return f"dataset {self.dataset_uuid}"

    def read_schema(self) -> pa.Schema:
        """Columns and types as they are now."""
        return empty_table(self._plan(None, None).context).schema.remove_metadata()

    def plan(self, columns: Sequence[str], condition: ImpliedCondition | None) -> SourceScan:
        """Plan a scan of the current snapshot."""
        if condition is not None:
            schema = self._plan(None, None).context.schema
            where = Conjunction(condition).to_tree({field.name: field.type for field in schema})
            try:
                return _PlannedRead(self._plan(columns, where))
            except (NotImplementedError, TypeError, ValueError):
                # a filter that predicates cannot express is evaluated on the rows only
                pass
        return _PlannedRead(self._plan(columns, None))

    def _plan(self, columns: Sequence[str] | None, where: Tree | None) -> ReadPlan:
        read = DatasetRead(
            self.dataset_uuid,
            self.store,
            None if columns is None else list(columns),
            predicates=where,
            table_name=self.table_name,
            as_of=self.as_of,
        )
        return read.plan()
