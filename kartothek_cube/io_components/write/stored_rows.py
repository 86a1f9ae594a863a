"""Stored rows of a physical partition: its files in the order of commit, the last version of each cell."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow.pandas_conversion import extension_dtypes, with_pandas_metadata
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.evolution import ColumnMapping
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.kernels.sort import (
    last_rows_mask,
    sort_rows,
)
from kartothek_cube.io_components.read.data_files import concat_tables
from kartothek_cube.io_components.runtime import store_factory
from kartothek_cube.io_components.write.cube_plan import check_cube_serializer
from kartothek_cube.io_components.write.table_writer import WriteContext
from kartothek_cube.serialization import DataFrameSerializer

__all__ = ("CompactionContext", "compaction_context", "concat_files", "visible_rows")


@attrs.frozen
class CompactionContext:
    """What all tasks that rewrite partitions of one dataset share."""

    #: how files are written
    write: WriteContext
    #: types of the columns
    schema: pa.Schema
    #: columns that identify a cell within a physical partition
    cell: tuple[str, ...]
    #: sort order
    order: tuple[str, ...]
    #: how to read files that were written before a change of the schema
    mapping: ColumnMapping | None = attrs.field(default=None, eq=False, repr=False)


def compaction_context(
    cube: Cube, store: StoreInput, dataset: DatasetMetadata, serializer: DataFrameSerializer | None
) -> CompactionContext:
    """The context for the current state of a dataset."""
    schema = arrow_schema(dataset)
    cell = tuple(c for c in cube.dimension_columns if c in schema.names)
    context = WriteContext(
        store_factory(store),
        dataset.uuid,
        dataset.table_name,
        tuple(dataset.partition_keys),
        tuple(sorted(dataset.secondary_indices)),
        check_cube_serializer(serializer),
    )
    keys = tuple(c for c in cube.partition_columns if c in schema.names)
    return CompactionContext(context, schema, cell, (*keys, *cell), dataset.column_mapping)


def concat_files(
    compaction: CompactionContext, files: PartitionTable, tables: Sequence[pa.Table]
) -> pa.Table:
    """All rows in the order of commit, with the partition keys as columns."""
    columns = [c for c in compaction.schema.names if c not in compaction.write.partition_on]
    stored = pa.schema([compaction.schema.field(c) for c in columns])
    table = concat_tables([t.select(columns) for t in tables], stored, compaction.write.uuid)
    owner = pa.array(np.repeat(np.arange(len(tables)), [len(t) for t in tables]))
    for column, values in files.keys(compaction.write.partition_on, compaction.schema).items():
        table = table.append_column(column, values.take(owner))
    extensions = extension_dtypes(tables[0].schema)
    return table.replace_schema_metadata(with_pandas_metadata(table.schema, extensions).metadata)


def visible_rows(compaction: CompactionContext, table: pa.Table) -> pa.Table:
    """The last version of each cell, sorted ("DataFrame Normalization" in the cube format)."""
    last = last_rows_mask([table.column(c) for c in compaction.cell], len(table))
    return sort_rows(table if last is None else table.filter(pa.array(last)), compaction.order)
