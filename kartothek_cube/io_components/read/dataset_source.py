"""Datasets as sources of lazy datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core import tuning
from kartothek_cube.core.cube.conditions import Conjunction
from kartothek_cube.core.cube.implied_conditions import ImpliedCondition
from kartothek_cube.core.expressions.predicate import Tree
from kartothek_cube.core.history import AsOf
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.io_components.arrow_dataset import RowSource, SourceScan
from kartothek_cube.io_components.read.dataset_read import DatasetRead, ReadPlan, empty_table, run_read
from kartothek_cube.io_components.runtime import available_cores, mean_size, prefetch_map, scan_bounds
from kartothek_cube.io_components.scan import count_rows


@attrs.frozen
class _PlannedRead(SourceScan):
    """Scan of the files of a dataset."""

    plan: ReadPlan

    def tables(self, *, sequential: bool = False) -> Iterator[pa.Table]:
        keys = self._keys()
        if not keys:
            return
        size = mean_size(open_blobs(self.plan.context.store), keys[:: max(1, len(keys) // tuning.SAMPLE)])
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
    as_of: AsOf | None = None

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
