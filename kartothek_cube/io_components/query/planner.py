"""From a query to tasks: which files belong together, worked out on labels and index data alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kartothek_cube.core.cube.condition_types import Conjunction
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.expressions.predicate import filter_mask
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.naming import data_key
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.kernels.keys import expand_ranges, group_codes, join_codes, to_single_array
from kartothek_cube.io_components.maintenance.cube_history import CubeAsOf
from kartothek_cube.io_components.query.logical_plan import (
    ConditionsInput,
    LogicalPlan,
    build_logical_plan,
    select_datasets,
)
from kartothek_cube.io_components.query.physical_plan import (
    DatasetScan,
    PartitionSelection,
    PhysicalPlan,
    ScanContext,
)
from kartothek_cube.io_components.read.data_files import read_files
from kartothek_cube.io_components.runtime.threads import store_factory

__all__ = ("plan_query", "plan_query_in_steps")

Ints = npt.NDArray[np.int64]


def plan_query(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: Any = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
) -> PhysicalPlan:
    """
    Plan a query: headers and the needed indices are read, no data file is.

    The exception is ``partition_by`` a dimension that the seed has no index on: its values are read from the
    files of the seed.

    Parameters
    ----------
    cube
        Specification of the cube.
    store
        Store, factory or URL.
    conditions, datasets, dimension_columns, partition_by, payload_columns, as_of
        As in :func:`kartothek_cube.io.eager_cube.query_cube`.

    Returns
    -------
    QueryPlan

    Raises
    ------
    ValueError, TypeError
        If an argument does not fit the cube.
    """
    return plan_query_in_steps(
        cube, store, conditions, datasets, dimension_columns, partition_by, payload_columns, as_of=as_of
    )[-1]


def plan_query_in_steps(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: Any = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
) -> tuple[dict[str, DatasetMetadata], LogicalPlan, PhysicalPlan]:
    """Plan a query like :func:`plan_query`, for those who want to know why: headers, intention, plan."""
    factory = store_factory(store)
    blobs = open_blobs(factory)
    headers = select_datasets(cube, blobs, datasets, as_of)
    intention = build_logical_plan(
        cube, headers, conditions, dimension_columns, partition_by, payload_columns
    )
    sources = tuple(_source(name, headers[name], cube, intention) for name in intention.datasets)
    sides = [_prune_partitions(source, headers[source.name], intention, blobs) for source in sources]
    return (
        headers,
        intention,
        _align_partitions(_context(factory, cube, intention, sources), sides, intention, blobs),
    )


def _source(name: str, dataset: DatasetMetadata, cube: Cube, intention: LogicalPlan) -> DatasetScan:
    schema = arrow_schema(dataset)
    present = [column for column in schema.names if not column.startswith("__")]
    keys = tuple(dataset.partition_keys or ())
    key_dimensions = set(intention.dimension_columns) | (
        set(intention.partition_by) & set(cube.dimension_columns)
    )
    dimensions = tuple(c for c in cube.dimension_columns if c in present and c in key_dimensions)
    payload = tuple(
        c
        for c in present
        if (c in intention.output_columns)
        and c not in cube.dimension_columns
        and c not in cube.partition_columns
    )
    conjunction = Conjunction(
        [c for c in intention.conditions[name].conditions if c.column not in cube.partition_columns]
    )
    predicates = tuple(conjunction.predicate or ())
    needed = set(dimensions) | set(payload) | conjunction.columns
    if name == cube.seed_dataset:
        how = "seed"
    else:
        how = "inner" if name in intention.restricted else "left"
    return DatasetScan(
        name=name,
        uuid=dataset.uuid,
        table=dataset.table_name,
        schema=schema,
        partition_keys=keys,
        alignment=tuple(c for c in cube.partition_columns if c in keys),
        dimensions=dimensions,
        columns=tuple(c for c in present if c in needed),
        payload=payload,
        predicates=predicates,
        dimension_predicates=tuple(p for p in predicates if p[0] in cube.dimension_columns),
        how=how,
        first_file=_first_file(dataset),
    )


def _first_file(dataset: DatasetMetadata) -> str | None:
    partitions = dataset.partition_table
    if not len(partitions):
        return None
    if partitions.has_derived_keys(dataset.uuid, dataset.table_name):
        return data_key(dataset.uuid, dataset.table_name, partitions.labels[0].as_py())
    key: str = partitions.files[dataset.table_name][0].as_py()
    return key


def _context(
    store: StoreFactory, cube: Cube, intention: LogicalPlan, sources: Sequence[DatasetScan]
) -> ScanContext:
    types: dict[str, pa.DataType] = {}
    for source in sources:
        for field in source.schema:
            if pa.types.is_null(types.get(field.name, pa.null())):
                types[field.name] = field.type
    return ScanContext(
        store=store,
        sources=tuple(sources),
        sort_columns=intention.dimension_columns + tuple(cube.partition_columns),
        partition_by=intention.partition_by,
        output=pa.schema([(c, types[c]) for c in intention.output_columns]),
    )


def _prune_partitions(
    source: DatasetScan, dataset: DatasetMetadata, intention: LogicalPlan, blobs: BlobStore
) -> PartitionSelection:
    """Partitions of one dataset that pre-conditions leave ("Per-Dataset Partitions" in the specification)."""
    conjunction = intention.conditions[source.name]
    by_index = set(intention.owners) & {c for c, owner in intention.owners.items() if owner == source.name}
    dataset = dataset.load_indices(conjunction.columns | by_index, blobs)
    literals = list(conjunction.predicate or ())
    kept = select_partitions(dataset, [literals] if literals else None)
    keys = dataset.partition_table.keys(list(source.partition_keys), dataset.schema)
    stable = [p for p in literals if p in source.dimension_predicates or p[0] in source.alignment]
    if len(stable) < len(literals):
        kept = _complete_partitions(
            kept, select_partitions(dataset, [stable] if stable else None), source, keys
        )
    side = PartitionSelection(source, dataset, np.arange(len(dataset.partition_table)), keys)
    side.select(kept)
    return side


def _complete_partitions(
    kept: Ints, candidates: Ints, source: DatasetScan, keys: Mapping[str, pa.Array]
) -> Ints:
    """
    Complete the physical partitions of which an index on a payload column would drop some files.

    A dropped file may hold a newer version of a cell, one that does not meet the condition.
    """
    if len(kept) == len(candidates) or not len(kept):
        return kept
    codes = group_codes([keys[c].take(pa.array(candidates)) for c in source.alignment], len(candidates))
    return candidates[np.isin(codes, np.unique(codes[np.isin(candidates, kept)]))]


def _align_partitions(
    context: ScanContext, sides: list[PartitionSelection], intention: LogicalPlan, blobs: BlobStore
) -> PhysicalPlan:
    """Find the partners of each physical partition of the seed; drop what has none ("Alignment")."""
    seed = sides[0]
    for side in sides[1:]:
        ours, theirs = _codes(seed, side)
        if side.source.how == "inner":
            seed.select(np.isin(ours, theirs))
    units = [group_codes([seed.keys[c] for c in seed.source.alignment], len(seed.positions))]
    n_units = int(units[0].max()) + 1 if len(units[0]) else 0
    first = _first_of_each(units[0], n_units)
    partners = [np.arange(n_units)]
    for side in sides[1:]:
        ours, theirs = _codes(seed, side)
        side.select(np.isin(theirs, ours))
        units.append(theirs[np.isin(theirs, ours)])
        partners.append(
            np.where(np.isin(ours, theirs), ours, -1)[first] if n_units else np.empty(0, np.int64)
        )
    groups, group_units = _groups(context, sides, units, partners, intention, blobs)
    return PhysicalPlan(context, groups, tuple(sides), tuple(units), tuple(partners), group_units)


def _codes(seed: PartitionSelection, side: PartitionSelection) -> tuple[Ints, Ints]:
    """Common codes of the alignment columns for the files of the seed and of another dataset."""
    shared = [c for c in side.source.alignment if c in seed.source.alignment]
    return join_codes(
        [seed.keys[c] for c in shared],
        [side.keys[c] for c in shared],
        len(seed.positions),
        len(side.positions),
    )


def _first_of_each(codes: Ints, n: int) -> Ints:
    first = np.full(n, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def _groups(
    context: ScanContext,
    sides: Sequence[PartitionSelection],
    units: Sequence[Ints],
    partners: Sequence[Ints],
    intention: LogicalPlan,
    blobs: BlobStore,
) -> tuple[tuple[tuple[Any, ...], ...] | None, tuple[Ints, ...] | None]:
    """Value tuples of the partition-by columns, and the partitions that can hold them ("Re-grouping")."""
    if not context.partition_by:
        return None, None
    n_units = len(partners[0])
    rows = np.arange(n_units)
    codes: list[Ints] = []
    values: list[pa.Array] = []
    for column in context.partition_by:
        i = next(k for k, side in enumerate(sides) if side.source.name == intention.owners[column])
        unit, code, distinct = _group_values(sides[i], units[i], column, intention, blobs)
        sorter = np.argsort(unit, kind="stable")
        unit, code = unit[sorter], code[sorter]
        start = np.searchsorted(unit, partners[i][rows], "left")
        stop = np.where(partners[i][rows] >= 0, np.searchsorted(unit, partners[i][rows], "right"), start)
        picks, source_row = expand_ranges(start, stop)
        rows, codes = rows[source_row], [c[source_row] for c in codes] + [code[picks]]
        values.append(distinct)
    order = np.lexsort([rows, *codes[::-1]])
    rows, codes = rows[order], [c[order] for c in codes]
    if not len(rows):
        return (), ()
    change = np.zeros(len(rows), dtype=bool)
    change[0] = True
    for c in codes:
        change[1:] |= c[1:] != c[:-1]
    starts = np.flatnonzero(change)
    columns = [v.take(pa.array(c[starts])).to_pylist() for v, c in zip(values, codes, strict=True)]
    return tuple(zip(*columns, strict=True)), tuple(np.split(rows, starts[1:]))


def _group_values(
    side: PartitionSelection, units: Ints, column: str, intention: LogicalPlan, blobs: BlobStore
) -> tuple[Ints, Ints, pa.Array]:
    """Distinct (unit, value code) pairs of a column by its index where conditions hold; and its values."""
    index = side.dataset.indices[column].columns_data if column in side.dataset.indices else None
    if index is None and column in side.source.partition_keys:
        labels = side.dataset.partition_table.labels
        index = IndexColumns.from_pairs(side.dataset.key_columns()[column], labels, np.arange(len(labels)))
    elif index is None:
        index = IndexColumns.from_pairs(*_stored_values(side, column, blobs))
    conjunction = intention.conditions[side.source.name].split_by_column().get(column)
    distinct = index.values
    keep = np.ones(len(distinct), dtype=bool)
    if conjunction is not None and conjunction.predicate:
        mask = filter_mask(pa.table({column: distinct}), [conjunction.predicate])
        keep = mask.to_numpy(zero_copy_only=False)
    code = index.value_ids()
    row_of = np.full(len(side.dataset.partition_table) + 1, -1, dtype=np.int64)
    row_of[side.positions] = np.arange(len(side.positions))
    row = row_of[index.positions(side.dataset.partition_table)]
    good = keep[code] & (row >= 0)
    pairs = np.unique(np.stack([units[row[good]], code[good]], axis=1), axis=0)
    return pairs[:, 0], pairs[:, 1], distinct


def _stored_values(
    side: PartitionSelection, column: str, blobs: BlobStore
) -> tuple[pa.Array, pa.Array, Ints]:
    """Distinct values of a column in each file; all labels; and per value the position of its label."""
    dtype = side.source.schema.field(column).type

    def distinct(table: pa.Table) -> pa.Array:
        return to_single_array(table.column(column).unique()).cast(dtype)

    keys = side.storage_keys()
    values = list(read_files(blobs, keys, [column], then=distinct))
    counts = [len(array) for array in values]
    return (
        pa.concat_arrays([pa.array([], dtype), *values]),
        side.dataset.partition_table.labels,
        np.repeat(side.positions, counts),
    )
