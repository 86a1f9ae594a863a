"""Planner: partition pruning, alignment of datasets and enumeration of groups, on headers and indices."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arguments import converter_str_set_optional
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.consistency import arrow_schema, check_cube
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import DatasetsInput, discover_datasets
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.expressions.predicate import columns_of, disjunctive_form, filter_mask, imply
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.naming import data_key
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.kernels.encode import group_codes
from kartothek_cube.io_components.kernels.take import expand_ranges, to_single_array
from kartothek_cube.io_components.maintenance.history import CubeAsOf, datasets_as_of
from kartothek_cube.io_components.query.logical_plan import LogicalPlan, Role, build_logical_plan
from kartothek_cube.io_components.query.physical_plan import (
    AlignedFiles,
    DatasetScan,
    Group,
    PartitionSelection,
    PhysicalPlan,
    ScanContext,
    match_partitions,
)
from kartothek_cube.io_components.read.data_files import read_files
from kartothek_cube.io_components.runtime import store_factory

_LOGGER = logging.getLogger(__name__)

__all__ = ("load_datasets", "plan_query")


def plan_query(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput = None,
    datasets: DatasetsInput = None,
    dimension_columns: str | Iterable[str] | None = None,
    partition_by: str | Iterable[str] | None = None,
    payload_columns: str | Iterable[str] | None = None,
    *,
    as_of: CubeAsOf | None = None,
) -> PhysicalPlan:
    """Plan a query; arguments as in :func:`kartothek_cube.io.eager_cube.query_cube`."""
    # Data files are read in one case only: partition_by a dimension that the seed has no index on.
    factory = store_factory(store)
    blobs = open_blobs(factory)
    headers = load_datasets(cube, blobs, datasets, as_of)
    logical_plan = build_logical_plan(
        cube, headers, conditions, dimension_columns, partition_by, payload_columns
    )
    scans = tuple(_make_scan(name, headers[name], cube, logical_plan) for name in logical_plan.roles)
    selections = [_prune_partitions(scan, headers[scan.name], logical_plan, blobs) for scan in scans]
    context = _make_context(factory, cube, logical_plan, scans)
    plan = _align_partitions(context, selections, logical_plan, blobs)
    _log_plan(cube, plan)
    return plan


def _log_plan(cube: Cube, plan: PhysicalPlan) -> None:
    """Log which files and columns a query reads, by dataset."""
    if not _LOGGER.isEnabledFor(logging.DEBUG):
        return
    for files in plan.files:
        selection = files.selection
        scan = selection.scan
        predicates = plan.logical_plan.conditions[scan.name].predicate or ()
        _LOGGER.debug(
            "Query of cube %s reads %d of %d files of dataset %s: columns %s; conditions %s",
            cube.uuid_prefix,
            len(selection.positions),
            len(selection.dataset.partition_table),
            scan.name,
            ", ".join(scan.columns) or "none",
            " & ".join(f"{column} {op} {value!r}" for column, op, value in predicates) or "none",
        )


def load_datasets(
    cube: Cube, store: StoreInput, datasets: DatasetsInput, as_of: CubeAsOf | None = None
) -> dict[str, DatasetMetadata]:
    """Headers for the ``datasets`` argument of an operation: None, ids, or loaded headers."""
    if as_of is not None:
        if isinstance(datasets, Mapping):
            raise ValueError("Pass either loaded datasets or as_of: loaded ones are as they are")
        return datasets_as_of(cube, store, as_of, datasets)
    if isinstance(datasets, Mapping):
        check_cube(datasets, cube)
        return dict(datasets)
    return discover_datasets(cube, store, converter_str_set_optional(datasets))


def _make_scan(name: str, dataset: DatasetMetadata, cube: Cube, logical_plan: LogicalPlan) -> DatasetScan:
    schema = arrow_schema(dataset)
    columns = [column for column in schema.names if not column.startswith("__")]
    keys = tuple(dataset.partition_keys or ())
    # a dimension that only groups are made of is read and joined by, too
    needed_dimensions = {*logical_plan.dimension_columns, *logical_plan.partition_by}
    dimensions = tuple(c for c in cube.dimension_columns if c in columns and c in needed_dimensions)
    needed = {*logical_plan.output_columns}.union(*map(columns_of, logical_plan.join_filters))
    added = needed.difference(cube.dimension_columns, cube.partition_columns)
    payload = tuple(c for c in columns if c in added)
    predicates = tuple(p for p in logical_plan.predicates[name] if p[0] not in cube.partition_columns)
    in_rows = {*columns} - {*cube.partition_columns}
    implied = (imply(node, in_rows) for node in logical_plan.implied[name])
    read = {*dimensions, *payload, *(column for column, _, _ in predicates)}
    return DatasetScan(
        name=name,
        uuid=dataset.uuid,
        table=dataset.table_name,
        schema=schema,
        partition_keys=keys,
        alignment=tuple(c for c in cube.partition_columns if c in keys),
        dimensions=dimensions,
        columns=tuple(c for c in columns if c in read),
        payload=payload,
        predicates=predicates,
        dimension_predicates=tuple(p for p in predicates if p[0] in cube.dimension_columns),
        role=logical_plan.roles[name],
        implied=tuple(node for node in implied if node is not None),
        first_file=_first_file(dataset),
        mapping=dataset.column_mapping,
    )


def _first_file(dataset: DatasetMetadata) -> str | None:
    partitions = dataset.partition_table
    if not len(partitions):
        return None
    if partitions.has_derived_keys(dataset.uuid, dataset.table_name):
        return data_key(dataset.uuid, dataset.table_name, partitions.labels[0].as_py())
    key: str = partitions.files[dataset.table_name][0].as_py()
    return key


def _make_context(
    store: StoreFactory, cube: Cube, logical_plan: LogicalPlan, scans: Sequence[DatasetScan]
) -> ScanContext:
    types: dict[str, pa.DataType] = {}
    for scan in scans:
        for field in scan.schema:
            if pa.types.is_null(types.get(field.name, pa.null())):
                types[field.name] = field.type
    return ScanContext(
        store=store,
        scans=tuple(scans),
        sort_columns=logical_plan.dimension_columns + tuple(cube.partition_columns),
        partition_by=logical_plan.partition_by,
        output=pa.schema([(c, types[c]) for c in logical_plan.output_columns]),
        join_filters=logical_plan.join_filters,
    )


def _prune_partitions(
    scan: DatasetScan, dataset: DatasetMetadata, logical_plan: LogicalPlan, blobs: BlobStore
) -> PartitionSelection:
    """Data files that the conditions on one dataset leave ("Per-Dataset Partitions" in the specification)."""
    nodes = [*logical_plan.predicates[scan.name], *logical_plan.implied[scan.name]]
    columns = set().union(*map(columns_of, nodes))
    group_columns = {column for column, owner in logical_plan.owners.items() if owner == scan.name}
    dataset = dataset.load_indices(columns | group_columns, blobs)
    positions = select_partitions(dataset, disjunctive_form(nodes))
    keys = dataset.partition_table.keys(list(scan.partition_keys), dataset.schema)
    # all versions of a cell agree on these columns
    stable_columns = {*scan.dimensions, *(p[0] for p in scan.dimension_predicates), *scan.alignment}
    if not columns <= stable_columns:
        stable = [node for n in nodes if (node := imply(n, stable_columns)) is not None]
        candidates = select_partitions(dataset, disjunctive_form(stable))
        positions = _complete_partitions(positions, candidates, scan, keys)
    files = PartitionSelection(scan, dataset, np.arange(len(dataset.partition_table)), keys)
    return files.select(positions)


def _complete_partitions(
    positions: Ints, candidates: Ints, scan: DatasetScan, keys: Mapping[str, pa.Array]
) -> Ints:
    """Add the candidates in the same physical partitions, which an index on payload has pruned."""
    # A pruned file may hold a newer version of a cell, one that does not meet the condition: without it the
    # query would return the older version.
    if len(positions) == len(candidates) or not len(positions):
        return positions
    ids = group_codes([keys[c].take(pa.array(candidates)) for c in scan.alignment], len(candidates))
    return candidates[np.isin(ids, np.unique(ids[np.isin(candidates, positions)]))]


def _align_partitions(
    context: ScanContext, selections: list[PartitionSelection], logical_plan: LogicalPlan, blobs: BlobStore
) -> PhysicalPlan:
    """Match the physical partitions of all datasets with those of the seed ("Alignment")."""
    seed, *others = selections
    for other in others:
        if other.scan.role is Role.RESTRICTED:
            left, right = match_partitions(
                seed.keys, other.keys, other.scan, len(seed.positions), len(other.positions)
            )
            seed = seed.select(np.isin(left, right))
    seed_ids = group_codes([seed.keys[c] for c in seed.scan.alignment], len(seed.positions))
    n_partitions = int(seed_ids.max()) + 1 if len(seed_ids) else 0
    first_files = np.full(n_partitions, -1, dtype=np.int64)
    first_files[seed_ids[::-1]] = np.arange(len(seed_ids) - 1, -1, -1)
    files = [AlignedFiles(seed, seed_ids, np.arange(n_partitions))]
    for other in others:
        left, right = match_partitions(
            seed.keys, other.keys, other.scan, len(seed.positions), len(other.positions)
        )
        matching = np.isin(right, left)
        matches = np.where(np.isin(left, right), left, -1)[first_files]
        files.append(AlignedFiles(other.select(matching), right[matching], matches))
    groups = _enumerate_groups(files, logical_plan, blobs) if context.partition_by else None
    return PhysicalPlan(context, logical_plan, tuple(files), groups)


def _enumerate_groups(
    datasets: Sequence[AlignedFiles], logical_plan: LogicalPlan, blobs: BlobStore
) -> dict[Group, Ints]:
    """Values of the ``partition_by`` columns, and the partitions that can hold them ("Re-grouping")."""
    # one row per physical partition and group so far: the partition, and a code per column
    rows = np.arange(len(datasets[0].matches))
    codes: list[Ints] = []
    values: list[pa.Array] = []
    for column in logical_plan.partition_by:
        files = next(f for f in datasets if f.selection.scan.name == logical_plan.owners[column])
        group_values = _group_values(files, column, logical_plan, blobs)
        ids, wanted_ids = group_values.partition_ids, files.matches[rows]
        start = np.searchsorted(ids, wanted_ids, "left")
        stop = np.where(wanted_ids >= 0, np.searchsorted(ids, wanted_ids, "right"), start)
        entries, repeated = expand_ranges(start, stop)
        rows = rows[repeated]
        codes = [*(c[repeated] for c in codes), group_values.codes[entries]]
        values.append(group_values.values)
    order = np.lexsort([rows, *codes[::-1]])
    rows, codes = rows[order], [c[order] for c in codes]
    change = np.any([np.diff(c, prepend=-1) != 0 for c in codes], axis=0)
    starts = np.flatnonzero(change)
    columns = [v.take(pa.array(c[starts])).to_pylist() for v, c in zip(values, codes, strict=True)]
    return dict(zip(zip(*columns, strict=True), np.split(rows, starts)[1:], strict=True))


@attrs.frozen
class _GroupValues:
    """Values of a ``partition_by`` column, and which physical partition can hold which of them."""

    #: physical partitions, ascending; several entries for one with several values
    partition_ids: Ints
    #: position in ``values`` for each entry
    codes: Ints
    values: pa.Array


def _group_values(
    files: AlignedFiles, column: str, logical_plan: LogicalPlan, blobs: BlobStore
) -> _GroupValues:
    """Values of a column in each physical partition that meet the conditions, by its index."""
    selection, dataset = files.selection, files.selection.dataset
    index = dataset.indices[column].columns_data if column in dataset.indices else None
    if index is None and column in selection.scan.partition_keys:
        labels = dataset.partition_table.labels
        index = IndexColumns.from_pairs(dataset.key_columns()[column], labels, np.arange(len(labels)))
    elif index is None:
        index = _scan_values(selection, column, blobs)
    predicates = logical_plan.predicates[selection.scan.name]
    keep = np.ones(len(index.values), dtype=bool)
    if on_column := [p for p in predicates if p[0] == column]:
        keep = filter_mask(pa.table({column: index.values}), [on_column]).to_numpy(zero_copy_only=False)
    codes = index.value_ids()
    file_of_position = np.full(len(dataset.partition_table) + 1, -1, dtype=np.int64)
    file_of_position[selection.positions] = np.arange(len(selection.positions))
    file_numbers = file_of_position[index.positions(dataset.partition_table)]
    valid = keep[codes] & (file_numbers >= 0)
    pairs = np.unique(np.stack([files.partition_ids[file_numbers[valid]], codes[valid]], axis=1), axis=0)
    return _GroupValues(pairs[:, 0], pairs[:, 1], index.values)


def _scan_values(selection: PartitionSelection, column: str, blobs: BlobStore) -> IndexColumns:
    """Index of a column that has none, from its values in the files."""
    dtype = selection.scan.schema.field(column).type

    def distinct(table: pa.Table) -> pa.Array:
        return to_single_array(table.column(column).unique()).cast(dtype)

    keys, mapping = selection.storage_keys(), selection.scan.mapping
    values = list(read_files(blobs, keys, [column], then=distinct, mapping=mapping))
    return IndexColumns.from_pairs(
        pa.concat_arrays([pa.array([], dtype), *values]),
        selection.dataset.partition_table.labels,
        np.repeat(selection.positions, [len(array) for array in values]),
    )
