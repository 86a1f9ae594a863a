"""Partition pruning by partition keys, loaded indices and column statistics; these and their file."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core import caching, expressions, naming
from kartothek_cube.core.arrow import Ints, Mask, to_numpy
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.index import PARTITION, ExplicitSecondaryIndex, IndexColumns, PartitionIndex, rank
from kartothek_cube.core.store import BlobStore
from kartothek_cube.core.transforms import read_transforms, refine
from kartothek_cube.core.uuid import gen_uuid

if TYPE_CHECKING:
    from kartothek_cube.core.dataset import DatasetMetadataBase


def select_partitions(dataset: DatasetMetadataBase, node: expressions.Node | None) -> Ints:
    """Positions of the partitions that can hold rows which match; None selects all."""
    return np.flatnonzero(_partition_mask(dataset, node)).astype(np.int64, copy=False)


def imply_partition_keys(dataset: DatasetMetadataBase, node: expressions.Node) -> expressions.Node:
    """The same condition, with what it implies about partition keys that are transforms of other columns."""
    keys, schema = set(dataset.partition_keys), dataset.schema
    transforms = [t for t in read_transforms(dataset.metadata) or () if t.name in keys]
    if not transforms or schema is None:
        return node
    return refine(node, transforms, {field.name: field.type for field in schema})


def _partition_mask(dataset: DatasetMetadataBase, node: expressions.Node | None) -> Mask:
    length = len(dataset.partition_table)
    if node is not None:
        loaded = [column for column, index in dataset.indices.items() if index.loaded]
        known = {*dataset.partition_keys, *loaded, *dataset.statistics}
        node = expressions.imply(imply_partition_keys(dataset, node), known)
    if node is None:
        return np.ones(length, dtype=bool)
    return to_numpy(expressions.evaluate(node, lambda literal: _mask_of_literal(dataset, literal), length))


def _mask_of_literal(dataset: DatasetMetadataBase, literal: expressions.LiteralType) -> pa.BooleanArray:
    """Mask of the partitions that can match a literal."""
    column, op, value = literal
    if column in dataset.partition_keys:
        return expressions.literal_mask(dataset.key_columns()[column], op, value, column)
    index = dataset.indices.get(column)
    if index is not None and index.columns_data is not None:
        values = index.columns_data.values
        bound = expressions.bind_literal(values.type, op, value, column)
        # nulls are not indexed: any partition may hold some
        if isinstance(index, PartitionIndex) or not (bound.kind == "null" or bound.or_null):
            labels = index.columns_data.labels_matching(to_numpy(expressions.mask_of(values, bound)))
            return pc.is_in(dataset.partition_table.labels, value_set=labels)
    if index is None and column in dataset.statistics:
        return statistics_mask(dataset.statistics[column], op, value, column)
    return pa.repeat(True, len(dataset.partition_table))


def load_index(
    index: ExplicitSecondaryIndex, blobs: BlobStore, node: expressions.Node | None
) -> ExplicitSecondaryIndex:
    """Load an index; with a condition, maybe only the entries that its literals on the column can match."""
    if node is None:
        return index.load(blobs)

    def select(low: pa.Array, high: pa.Array) -> pa.BooleanArray:
        literals = [
            expressions.bind_literal(low.type, op, v, c)
            for c, op, v in expressions.literals_of(node)
            if c == index.column
        ]
        return reduce(
            pc.or_, [_mask_of_bounds(low, high, literal) for literal in literals], pa.repeat(False, len(low))
        )

    return index.load_entries(blobs, select)


def index_rows(
    dataset: DatasetMetadataBase, columns: Sequence[str] | None, node: expressions.Node | None
) -> tuple[Ints, dict[str, pa.Array]]:
    """Index data joined by partition: positions of partitions, and the values of each column."""
    # One row per partition and combination of values, in the order of partitions and values, the last index
    # fastest; partition indices must be loaded.
    indices = _index_data(dataset, columns)
    joined = pd.DataFrame({PARTITION: np.flatnonzero(_partition_mask(dataset, node))})
    for number, (column, data) in enumerate(indices.items()):
        ids = data.value_ids()
        implied = None if node is None else expressions.imply(node, {column})
        matches = to_numpy(expressions.tree_mask(pa.table({column: data.values}), implied))[ids]
        positions = data.positions(dataset.partition_table)
        entries = pd.DataFrame({PARTITION: positions[matches], number: ids[matches]})
        joined = joined.merge(entries, on=PARTITION)
    rows, *numbers = (joined[name].to_numpy() for name in joined)
    ids_of = dict(zip(indices, numbers, strict=True))
    if node is not None:

        def mask_of_literal(literal: expressions.LiteralType) -> pa.BooleanArray:
            column, op, value = literal
            if column in ids_of:
                return pa.array(dataset.indices[column].mask(op, value)[ids_of[column]])
            return _mask_of_literal(dataset, literal).take(pa.array(rows))

        matching = to_numpy(expressions.evaluate(node, mask_of_literal, len(rows)))
        rows, ids_of = rows[matching], {column: ids[matching] for column, ids in ids_of.items()}
    return rows, {column: indices[column].values.take(pa.array(ids)) for column, ids in ids_of.items()}


def _index_data(dataset: DatasetMetadataBase, selected: Sequence[str] | None) -> dict[str, IndexColumns]:
    names = sorted(dataset.indices) if selected is None else selected
    unknown, where = set(names) - set(dataset.indices), f"Dataset {dataset.uuid!r}"
    if unknown:
        raise ValueError(f"{where}: {unknown_names('index column', unknown, dataset.index_columns)}")
    data = {name: columns for name in names if (columns := dataset.indices[name].columns_data) is not None}
    missing = ", ".join(sorted({*names}.difference(data)))
    if missing:
        raise RuntimeError(f"{where}: indices are not loaded: {missing}; call load_all_indices() first")
    return data


_LOGGER = logging.getLogger(__name__)

#: metadata key of the columns, and key of the name of the file in the header
STATISTICS = "kartothek_cube_statistics"
_NAME = re.compile(r"[0-9a-f]{1,64}")
#: partitions with longer texts have no entry
_MAX_BYTES = 1024

# A table of statistics has a row per partition: its label, and for each column a struct that is null where
# nothing is known. Data files never change, so that an entry is right for as long as its label exists.


def statistics_columns(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns of which a dataset with this metadata keeps statistics."""
    columns = metadata.get(STATISTICS)
    names = columns if is_statistics_setting(columns) and columns else ()
    return tuple([name for name in names if name != PARTITION])


def is_statistics_setting(value: object) -> bool:
    """Whether a value of the metadata is a list of columns, or None."""
    return value is None or (isinstance(value, list) and all(isinstance(column, str) for column in value))


def _entry_type(dtype: pa.DataType) -> pa.StructType:
    return pa.struct([("minimum", dtype), ("maximum", dtype), ("nulls", pa.int64())])


def collect_statistics(
    columns: Mapping[str, pa.ChunkedArray], starts: Ints, labels: pa.StringArray
) -> pa.Table:
    """Statistics of the columns of a table whose partitions begin at `starts`; NaN counts as null."""
    result = {PARTITION: labels}
    for column, values in columns.items():
        if expressions.is_comparable(values.type):
            numbers = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))
            rows = pc.index_in(pa.array(np.arange(len(starts))), value_set=pa.array(np.unique(numbers)))
            result[column] = _bounds_of(values, numbers).take(rows)
    return pa.table(result)


def _bounds_of(values: pa.ChunkedArray, partition: Ints) -> pa.StructArray:
    if pat.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    groups = pa.table({"partition": partition, "value": values}).group_by("partition", use_threads=False)
    table = groups.aggregate([("value", "min_max"), ("value", "count", pc.CountOptions("only_null"))])
    low, high = table["value_min_max"].combine_chunks().flatten()
    is_long = None
    if pat.is_string(values.type) or pat.is_binary(values.type):
        lengths = [pc.fill_null(pc.binary_length(bound), 0) for bound in (low, high)]
        is_long = pc.greater(pc.max_element_wise(*lengths), _MAX_BYTES)
    fields = list(_entry_type(values.type))
    nulls = table["value_count"].combine_chunks()
    return pa.StructArray.from_arrays([low, high, nulls], fields=fields, mask=is_long)


def concat_statistics(tables: Iterable[pa.Table | None]) -> pa.Table | None:
    """The statistics of different partitions, one after the other; None without any."""
    parts = [table for table in tables if table is not None]
    return pa.concat_tables(parts, promote_options="default") if parts else None


def merge_statistics(tables: Iterable[pa.Table], labels: pa.StringArray) -> pa.Table:
    """The statistics of partitions out of several tables, of which the later ones take precedence."""
    merged = {PARTITION: labels}
    for table in tables:
        is_covered = pc.is_in(labels, value_set=table.column(PARTITION).combine_chunks())
        aligned = align_statistics(table, labels).columns
        for name, entries in zip(table.column_names[1:], aligned[1:], strict=True):
            merged[name] = pc.if_else(is_covered, entries, merged[name]) if name in merged else entries
    return pa.table(merged)


def select_statistics(table: pa.Table, columns: Collection[str], schema: pa.Schema) -> pa.Table:
    """The statistics of some columns that have the types of a schema."""
    known = {name: _entry_type(schema.field(name).type) for name in {*schema.names}.intersection(columns)}
    kept = [field.name for field in table.schema if known.get(field.name) == field.type]
    return table.select([PARTITION, *kept])


def align_statistics(table: pa.Table, labels: pa.StringArray) -> pa.Table:
    """The statistics of the partitions with these labels, in their order; null where there are none."""
    own = table.column(PARTITION).combine_chunks()
    if own.equals(labels):
        return table
    return table.take(pc.index_in(labels, value_set=own)).set_column(0, PARTITION, labels)


# -- file ----------------------------------------------------------------------------------------------------


def statistics_file(uuid: str, extra: Mapping[str, Any]) -> str | None:
    """Key of the file of a dataset with these fields in its header; None if it has none."""
    name = extra.get(STATISTICS)
    return naming.statistics_key(uuid, name) if isinstance(name, str) and _NAME.fullmatch(name) else None


def load_statistics(blobs: BlobStore, key: str) -> pa.Table | None:
    """The content of a file; None if it is gone or damaged: nothing depends on it."""
    try:
        content = blobs.get(key)
    except KeyError:
        # other software does not know it, and its garbage collection deletes it
        return None
    try:
        return caching.CACHE.parse(("statistics", key), content, parse_statistics, lambda table: table.nbytes)
    except (pa.ArrowException, OSError, ValueError) as error:
        _LOGGER.warning("The column statistics %s cannot be read, and nothing is pruned: %s", key, error)
        return None


def parse_statistics(content: bytes) -> pa.Table:
    """The table of a file; raises ValueError or an error of Arrow."""
    table = pq.read_table(pa.BufferReader(content)).combine_chunks()
    table.validate(full=True)
    if table.schema.names[:1] != [PARTITION] or not pat.is_string(table.schema.field(0).type):
        raise ValueError(f"its first column is not {PARTITION!r}")
    labels = table.column(0)
    if labels.null_count or len(labels.unique()) < len(labels):
        raise ValueError("a partition is not named, or has several entries")
    return table


def store_statistics(blobs: BlobStore, uuid: str, table: pa.Table) -> str:
    """Write a table to a new file, which a commit makes durable; return its name."""
    name = gen_uuid()
    key, sink = naming.statistics_key(uuid, name), pa.BufferOutputStream()
    pq.write_table(table, sink, version="2.6", compression="zstd")
    content = bytes(sink.getvalue())
    blobs.put(key, content)
    # a process that appends often need not parse it
    caching.CACHE.put(("statistics", key), content, table.combine_chunks(), table.nbytes)
    return name


# -- pruning -------------------------------------------------------------------------------------------------


def statistics_mask(entries: pa.StructArray, op: str, value: Any, column: str) -> pa.BooleanArray:
    """Mask of the partitions that can hold rows which match a literal; those without entry can."""
    low, high, nulls = entries.flatten()
    bound = expressions.bind_literal(low.type, op, value, column)
    mask = _mask_of_bounds(low, high, bound)
    if bound.kind == "null" or bound.or_null:
        mask = pc.or_(mask, pc.fill_null(pc.greater(nulls, 0), True))
    return pc.or_(mask, entries.is_null())


def _mask_of_bounds(low: pa.Array, high: pa.Array, bound: expressions.BoundLiteral) -> pa.BooleanArray:
    """Mask of the partitions with a value, from `low` to `high`, that can match; not of those without."""
    if bound.kind in ("never", "null"):
        return pa.repeat(False, len(low))
    if bound.kind == "valid":
        return low.is_valid()
    if bound.kind == "in":
        return _mask_of_values(low, high, bound.operand)
    if bound.op == "==":
        return pc.and_(*(_mask_of_bounds(low, high, bound._replace(op=op)) for op in ("<=", ">=")))
    if bound.op in ("<", "<="):
        return expressions.mask_of(low, bound)
    if bound.op in (">", ">="):
        return expressions.mask_of(high, bound)
    # `!=` and `not in`: only a partition with one value can have no match
    return pc.or_(expressions.mask_of(low, bound), pc.fill_null(pc.not_equal(low, high), False))


def _mask_of_values(low: pa.Array, high: pa.Array, values: pa.Array) -> pa.BooleanArray:
    """Mask of the partitions with one of some values between their bounds."""
    valid = to_numpy(low.is_valid())
    bounds = [low.drop_null(), high.drop_null()]
    _, ranks = rank(pa.concat_arrays([*bounds, values]))
    lows, highs, own = np.split(ranks, np.cumsum([len(bounds[0]), len(bounds[1])]))
    own = np.sort(own)
    mask = np.zeros(len(low), dtype=bool)
    mask[valid] = np.searchsorted(own, highs, "right") > np.searchsorted(own, lows, "left")
    return pa.array(mask)


def differing_columns(stored: pa.Table, actual: pa.Table) -> Sequence[str]:
    """Columns with entries that differ from those of the data, of the partitions of the latter."""
    stored = align_statistics(stored, actual.column(PARTITION).combine_chunks())
    known = {*actual.column_names}
    columns = [name for name in stored.column_names[1:] if name in known]
    return [name for name in columns if _differ(stored.column(name), actual.column(name))]


def _differ(stored: pa.ChunkedArray, actual: pa.ChunkedArray) -> bool:
    known = pc.and_(stored.is_valid(), actual.is_valid())
    return not stored.filter(known).equals(actual.filter(known).cast(stored.type))
