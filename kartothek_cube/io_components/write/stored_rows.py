"""Stored rows of partitions: read to be written again, or to be compared with rows that hide them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow import Mask, to_numpy
from kartothek_cube.core.commit.change import ChangeSet
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import format_count
from kartothek_cube.core.expressions import AllOf, LiteralType, all_of
from kartothek_cube.core.pandas_conversion import extension_dtypes, with_pandas_metadata
from kartothek_cube.core.partition import PartitionTable, partition_folders
from kartothek_cube.core.schema.evolution import ColumnMapping
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.kernels import last_rows_mask, lookup_keys, sort_rows
from kartothek_cube.io_components.scan import FileRows, Scan, run_scans
from kartothek_cube.io_components.write.write_plan import WriteSpec


@attrs.frozen
class StoredRows:
    """How the stored rows of physical partitions of a dataset are read."""

    spec: WriteSpec
    #: types of the columns
    schema: pa.Schema
    #: how to read files that were written before a change of the schema
    mapping: ColumnMapping | None = attrs.field(default=None, eq=False, repr=False)

    @classmethod
    def of(cls, spec: WriteSpec, dataset: DatasetMetadata) -> Self:
        """Those of the current state of a dataset."""
        return cls(spec, arrow_schema(dataset), dataset.column_mapping)

    @property
    def keys(self) -> list[str]:
        """Columns that identify a physical partition of the cube."""
        return [c for c in self.spec.cube.partition_columns if c in self.schema.names]

    @property
    def cell(self) -> list[str]:
        """Columns that identify a cell within a physical partition."""
        return [c for c in self.spec.cube.dimension_columns if c in self.schema.names]

    def read(
        self, files: PartitionTable, names: Sequence[str] | None = None, where: AllOf | None = None
    ) -> FileRows:
        """Columns of the rows that meet a condition, with the partition keys, in the order of commit."""
        spec, names = self.spec, self.schema.names if names is None else names
        keys = files.files[spec.table].to_pylist()
        columns = [c for c in names if c not in spec.partition_on]
        filters = None if where is None else [where] * len(keys)
        scan = Scan(keys, columns, self.schema, filters, self.mapping)
        ((table, lengths),) = run_scans(open_blobs(spec.store), [scan])
        extensions = extension_dtypes(table.schema)
        owner = pa.array(np.repeat(np.arange(len(keys)), lengths))
        for column, values in files.keys(spec.partition_on, self.schema).items():
            if column in names:
                table = table.append_column(column, values.take(owner))
        metadata = with_pandas_metadata(table.schema, extensions).metadata
        return FileRows(table.replace_schema_metadata(metadata), lengths)

    def folders(self, files: PartitionTable) -> pa.StringArray:
        """Values of the partition columns of the cube, as in labels, of each file."""
        keys = self.spec.partition_on
        return partition_folders(files, [c for c in self.keys if c in keys], keys, self.schema)

    def select_visible(self, table: pa.Table, partition: Sequence[str] | None = None) -> pa.Table:
        """The last version of each cell, sorted ("DataFrame Normalization" in the cube format)."""
        order = [*(self.keys if partition is None else partition), *self.cell]
        last = last_rows_mask([table.column(c) for c in order], len(table))
        return sort_rows(table if last is None else table.filter(pa.array(last)), order)


@attrs.frozen
class ValuesKept:
    """Added rows that lack a column of the state are no cells for which it has a value in that column."""

    # appends that leave out columns must not hide stored values: a cell is replaced as a whole
    spec: WriteSpec

    def check(self, state: DatasetMetadata | None, change: ChangeSet) -> None:
        """Raise ValueError if a value would turn into null, or into the default of its column."""
        # a replacement is made of the stored rows
        if state is None or state.schema is None or change.schema is None or change.replaces is not None:
            return
        lacking = sorted(set(state.schema.names) - set(change.schema.names))
        if not lacking:
            return
        spec = attrs.evolve(self.spec, partition_on=tuple(state.partition_keys or ()), table=state.table_name)
        source = StoredRows.of(spec, state)
        files = _list_touched(source, state, change)
        if not len(files):
            return
        cell = [*source.keys, *source.cell]
        rows = source.read(change.added, cell).table
        bounds = [literal for c in source.cell for literal in _bounds(c, rows.column(c))]
        stored = source.select_visible(source.read(files, [*cell, *lacking], all_of(bounds)).table)
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


def _list_touched(source: StoredRows, state: DatasetMetadata, change: ChangeSet) -> PartitionTable:
    """Files of the state in the cube partitions of the added ones; an append removes none."""
    files = state.partition_table
    return files.filter(pc.is_in(source.folders(files), value_set=source.folders(change.added)))


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
