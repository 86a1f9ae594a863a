"""Appends that leave out columns must not hide stored values: a cell is replaced as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow.arrays import to_numpy
from kartothek_cube.core.arrow.types import Mask
from kartothek_cube.core.commit.change import ChangeSet
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import format_count
from kartothek_cube.core.expressions import AllOf, LiteralType, all_of
from kartothek_cube.core.partition import PartitionTable, partition_folders
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.keys import last_rows_mask, lookup_keys
from kartothek_cube.io_components.scan import concat_tables, read_files


@attrs.frozen
class ValuesKept:
    """Added rows that lack a column of the state are no cells for which it has a value in that column."""

    blobs: BlobStore
    cube: Cube

    def check(self, state: DatasetMetadata | None, change: ChangeSet) -> None:
        """Raise ValueError if a value would turn into null, or into the default of its column."""
        # a replacement is made of the stored rows
        if state is None or state.schema is None or change.schema is None or change.replaces is not None:
            return
        lacking = sorted(set(state.schema.names) - set(change.schema.names))
        files = self._list_touched(state, change) if lacking else PartitionTable.empty()
        if not len(files):
            return
        partition_keys = [c for c in self.cube.partition_columns if c in state.schema.names]
        dimensions = [c for c in self.cube.dimension_columns if c in state.schema.names]
        cell = [*partition_keys, *dimensions]
        rows = self._read(state, change.added, cell)
        bounds = [literal for c in dimensions for literal in _bounds(c, rows.column(c))]
        stored = self._read(state, files, [*cell, *lacking], all_of(bounds))
        last = last_rows_mask([stored.column(c) for c in cell], len(stored))
        stored = stored if last is None else stored.filter(pa.array(last))
        matches = lookup_keys(
            [stored.column(c) for c in cell], [rows.column(c) for c in cell], len(stored), len(rows)
        )
        stored = stored.filter(pa.array(matches >= 0))
        defaults = {} if state.column_mapping is None else state.column_mapping.defaults
        hidden = {c: mask for c in lacking if (mask := _differs(stored.column(c), defaults.get(c))).any()}
        if hidden:
            is_hidden = np.logical_or.reduce(list(hidden.values()))
            example = {c: stored.column(c)[int(np.flatnonzero(is_hidden)[0])].as_py() for c in cell}
            raise ValueError(
                f"The input for dataset {state.uuid!r} lacks {', '.join(hidden)}, of which "
                f"{format_count(int(is_hidden.sum()), 'stored cell')} would lose the value, such as "
                f"{example}. Use merge_into_cube, which keeps it, or add these columns with values"
            )

    def _list_touched(self, state: DatasetMetadata, change: ChangeSet) -> PartitionTable:
        """Files of the state that stay, in the cube partitions of the added ones."""
        keys = [c for c in self.cube.partition_columns if c in (state.partition_keys or ())]
        files = state.partition_table
        added = partition_folders(change.added, keys, state.partition_keys, state.schema)
        folders = partition_folders(files, keys, state.partition_keys, state.schema)
        touched = to_numpy(pc.is_in(folders, value_set=added))
        return files.filter(touched & ~change.removal_mask(state))

    def _read(
        self,
        state: DatasetMetadata,
        files: PartitionTable,
        columns: Sequence[str],
        where: AllOf | None = None,
    ) -> pa.Table:
        """Columns of files in the order of commit, partition keys included."""
        schema = arrow_schema(state)
        in_files = [c for c in columns if c not in (state.partition_keys or ())]
        keys = files.files[state.table_name].to_pylist()
        tables = list(
            read_files(
                self.blobs,
                keys,
                in_files,
                where,
                schema=schema,
                mapping=state.column_mapping,
            )
        )
        rows = concat_tables(tables, pa.schema([schema.field(c) for c in in_files]), state.uuid)
        owner = pa.array(np.repeat(np.arange(len(tables)), [len(table) for table in tables]))
        for column, values in files.keys(state.partition_keys or (), schema).items():
            if column in columns:
                rows = rows.append_column(column, values.take(owner))
        return rows


def _bounds(column: str, values: pa.ChunkedArray) -> list[LiteralType]:
    """Conditions that all of some values meet; none for floats, whose NaN is in no range."""
    if pa.types.is_floating(values.type):
        return []
    bounds = pc.min_max(values)
    return [(column, ">=", bounds["min"].as_py()), (column, "<=", bounds["max"].as_py())]


def _differs(values: pa.ChunkedArray, default: pa.Scalar | None) -> Mask:
    """Mask of values that are neither null nor the default."""
    valid: Mask = to_numpy(values.is_valid())
    if default is not None:
        valid = valid & ~to_numpy(pc.fill_null(pc.equal(values, default), False))
    return valid
