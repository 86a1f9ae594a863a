"""Planner: partition pruning, alignment of datasets and enumeration of groups, on headers and indices."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core import hooks, tuning
from kartothek_cube.core.arguments import converter_str_set_optional, converter_str_tupleset
from kartothek_cube.core.arrow import Ints, Mask
from kartothek_cube.core.copying import replace_fields
from kartothek_cube.core.cube.conditions import Conjunction
from kartothek_cube.core.cube.consistency import arrow_schema, check_cube
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import CubeSnapshot, DatasetsInput, discover_datasets, load_snapshot
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.expressions import all_of, columns_of, imply, tree_mask
from kartothek_cube.core.history import describe_operation
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.pandas_conversion import check_dtype_backend
from kartothek_cube.core.pruning import select_partitions
from kartothek_cube.core.schema.evolution import WIDTHS_KEY, Widths, column_widths, narrow_type
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.columns import expand_ranges, to_single_array
from kartothek_cube.io_components.facade import StoreT
from kartothek_cube.io_components.keys import group_codes, is_dense, make_dense
from kartothek_cube.io_components.maintenance.changed_partitions import (
    compare_used,
    load_earlier,
    select_files,
)
from kartothek_cube.io_components.maintenance.history import CubeAsOf, datasets_as_of
from kartothek_cube.io_components.query.cube_query import QueryCube, QueryFrames, QueryTable
from kartothek_cube.io_components.query.logical_plan import LogicalPlan, Role, build_logical_plan
from kartothek_cube.io_components.query.physical_plan import (
    DatasetFiles,
    DatasetScan,
    Group,
    PhysicalPlan,
    ScanContext,
    match_partitions,
)
from kartothek_cube.io_components.runtime import ordered_map, store_factory
from kartothek_cube.io_components.scan import file_widths, read_files

_LOGGER = logging.getLogger(__name__)


def plan_query(query: QueryCube[StoreT]) -> PhysicalPlan:
    """Plan a query."""
    # Data files are read in one case only: partition_by a dimension that the seed has no index on.
    cube, factory = query.cube, store_factory(query.store)
    info = describe_operation("query") if hooks.QUERY_HOOKS else None
    blobs = open_blobs(factory)
    snapshot = _load_snapshot(cube, blobs, query.datasets, query.as_of)
    logical_plan = build_logical_plan(
        cube, snapshot, query.conditions, query.dimension_columns, query.partition_by, query.payload_columns
    )
    scans, output = _make_scans(cube, snapshot, logical_plan)
    selected = [_prune_partitions(scan, snapshot, logical_plan, blobs) for scan in scans]
    if query.changed_since is not None:
        seed, used = selected[0], {scan.name: snapshot.datasets[scan.name] for scan in scans}
        earlier = load_earlier(cube, blobs, query.changed_since)
        mask = select_files(cube, seed.dataset, compare_used(cube, earlier, used, snapshot.datasets))
        selected[0] = _Selected(seed.dataset, seed.positions[mask[seed.positions]])
    context = ScanContext(
        store=factory,
        scans=scans,
        sort_columns=logical_plan.dimension_columns + cube.partition_columns,
        partition_by=logical_plan.partition_by,
        output=output,
        join_filters=logical_plan.join_filters,
        cached_blobs=blobs,
    )
    plan = _align_partitions(context, selected, logical_plan, snapshot, blobs)
    plan = _with_widths_of_files(plan, blobs)
    _log_plan(cube, plan)
    return plan if info is None else attrs.evolve(plan, info=info)


def _log_plan(cube: Cube, plan: PhysicalPlan) -> None:
    """Log which files and columns a query reads, by dataset."""
    if not _LOGGER.isEnabledFor(logging.DEBUG):
        return
    for files in plan.files:
        scan = files.scan
        predicates = Conjunction(plan.logical_plan.conditions[scan.name]).predicate or ()
        _LOGGER.debug(
            "Query of cube %s reads %d of %d files of dataset %s: columns %s; conditions %s",
            cube.uuid_prefix,
            len(files.positions),
            len(files.dataset.partition_table),
            scan.name,
            ", ".join(scan.columns) or "none",
            " & ".join(f"{column} {op} {value!r}" for column, op, value in predicates) or "none",
        )


def _load_snapshot(
    cube: Cube, blobs: BlobStore, datasets: DatasetsInput, as_of: CubeAsOf | None
) -> CubeSnapshot:
    """Datasets of a query; those that are read as they are now are shared with other queries."""
    if as_of is None and not isinstance(datasets, Mapping):
        requested = converter_str_set_optional(datasets)
        if blobs.is_local:
            return load_snapshot(cube, blobs, requested)
        return load_snapshot(cube, blobs, requested, partial(ordered_map, threads=tuning.REMOTE_REQUESTS))
    return CubeSnapshot(load_datasets(cube, blobs, datasets, as_of))


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


class _Scans(NamedTuple):
    """Scans of a query, the seed first, and the columns of its result with their types."""

    scans: tuple[DatasetScan, ...]
    output: pa.Schema


def _make_scans(cube: Cube, snapshot: CubeSnapshot, logical_plan: LogicalPlan) -> _Scans:
    datasets = snapshot.datasets
    scans = tuple([_make_scan(name, datasets[name], cube, logical_plan) for name in logical_plan.roles])
    widths = [datasets[scan.name].widths or {} for scan in scans]
    return _Scans(scans, _output_schema(logical_plan, scans, widths))


def _make_scan(name: str, dataset: DatasetMetadata, cube: Cube, logical_plan: LogicalPlan) -> DatasetScan:
    schema = arrow_schema(dataset)
    columns = [column for column in schema.names if column[:2] != "__"]
    keys = tuple(dataset.partition_keys or ())
    # a dimension that only groups are made of is read and joined by, too
    # in the order of the result: rows that are sorted by them need no other sort
    grouping = [c for c in logical_plan.partition_by if c in cube.dimension_columns]
    needed_dimensions = dict.fromkeys([*logical_plan.dimension_columns, *grouping])
    dimensions = tuple([c for c in needed_dimensions if c in columns])
    needed = {*logical_plan.output_columns}.union(*map(columns_of, logical_plan.join_filters))
    added = needed.difference(cube.dimension_columns, cube.partition_columns)
    payload = tuple([c for c in columns if c in added])
    predicates = tuple([p for p in logical_plan.predicates[name] if p[0] not in cube.partition_columns])
    in_rows = {*columns} - {*cube.partition_columns}
    implied = [imply(node, in_rows) for node in logical_plan.implied[name]]
    read = {*dimensions, *payload, *[column for column, _, _ in predicates]}
    return DatasetScan(
        name=name,
        uuid=dataset.uuid,
        table=dataset.table_name,
        schema=schema,
        partition_keys=keys,
        alignment=tuple([c for c in cube.partition_columns if c in keys]),
        dimensions=dimensions,
        columns=tuple([c for c in columns if c in read]),
        payload=payload,
        predicates=predicates,
        dimension_predicates=tuple([p for p in predicates if p[0] in cube.dimension_columns]),
        role=logical_plan.roles[name],
        implied=tuple([node for node in implied if node is not None]),
        mapping=dataset.column_mapping,
    )


def _output_schema(
    logical_plan: LogicalPlan, scans: Sequence[DatasetScan], widths: Sequence[Widths]
) -> pa.Schema:
    types: dict[str, pa.DataType] = {}
    for scan, scan_widths in zip(scans, widths, strict=True):
        for field in scan.schema:
            if pa.types.is_null(types.get(field.name, pa.null())):
                types[field.name] = narrow_type(field, scan_widths)
    return pa.schema([(c, types[c]) for c in logical_plan.output_columns])


def _with_widths_of_files(plan: PhysicalPlan, blobs: BlobStore) -> PhysicalPlan:
    """The plan with the types of datasets without a record of widths: those of the widest files it reads."""
    output, widths = plan.context.output, dict[str, int]()
    seen: set[str] = set()
    for files in plan.files:
        scan = files.scan
        columns = {*scan.dimensions, *scan.payload}.intersection(output.names).difference(seen)
        seen |= columns
        if WIDTHS_KEY not in files.dataset.extra:
            schema = pa.schema([output.field(c) for c in sorted(columns.difference(scan.partition_keys))])
            # where no file is read, all values are null
            first = np.arange(len(files.dataset.partition_table))[:1]
            if column_widths(schema):
                keys = files.storage_keys() or files.storage_keys(first)
                widths |= file_widths(blobs, keys, schema, scan.mapping)
    if not widths:
        return plan
    output = pa.schema([(field.name, narrow_type(field, widths)) for field in output])
    return replace_fields(plan, context=replace_fields(plan.context, output=output))


class _Selected(NamedTuple):
    """A dataset with the indices that a query needs, and the positions of its files that pruning left."""

    dataset: DatasetMetadata
    positions: Ints


def _partition_keys(scan: DatasetScan, snapshot: CubeSnapshot) -> Mapping[str, pa.Array]:
    dataset = snapshot.datasets[scan.name]
    keys: Mapping[str, pa.Array] = snapshot.derive(
        ("partition keys", scan.name),
        lambda: dataset.partition_table.keys(list(scan.partition_keys), dataset.schema),
    )
    return keys


def _prune_partitions(
    scan: DatasetScan, snapshot: CubeSnapshot, logical_plan: LogicalPlan, blobs: BlobStore
) -> _Selected:
    """Data files that the conditions on one dataset leave ("Per-Dataset Partitions" in the specification)."""
    dataset = snapshot.datasets[scan.name]
    nodes = [*logical_plan.predicates[scan.name], *logical_plan.implied[scan.name]]
    columns = {column for column, owner in logical_plan.owners.items() if owner == scan.name}
    if not nodes and not columns:
        return _Selected(dataset, np.arange(len(dataset.partition_table)))
    restricted = set().union(*map(columns_of, nodes))
    # the index of 20 M values in one file takes 2.2 s to load, and the scan of that file 0.26
    pruning = restricted if len(dataset.partition_table) > 1 else set()
    dataset = dataset.load_indices(columns | pruning, blobs)
    positions = select_partitions(dataset, all_of(nodes))
    # all versions of a cell agree on these columns
    stable_columns = {*scan.dimensions, *(p[0] for p in scan.dimension_predicates), *scan.alignment}
    if not restricted <= stable_columns:
        stable = all_of(imply(node, stable_columns) for node in nodes)
        candidates = select_partitions(dataset, stable)
        keys = _partition_keys(scan, snapshot)
        positions = _complete_partitions(positions, candidates, scan, keys)
    return _Selected(dataset, positions)


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


class _PartitionCodes(NamedTuple):
    """Physical partitions of all files of the datasets, as codes in the order of the keys."""

    seed: Ints
    #: for each other dataset the codes of the seed's files and of its own, equal where the keys are
    others: list[tuple[Ints, Ints]]


def _encode_partitions(
    scans: Sequence[DatasetScan], keys: Sequence[Mapping[str, pa.Array]], lengths: Sequence[int]
) -> _PartitionCodes:
    seed_codes = group_codes([keys[0][c] for c in scans[0].alignment], lengths[0])
    pairs = [
        match_partitions(keys[0], other, scan, lengths[0], length)
        for scan, other, length in zip(scans[1:], keys[1:], lengths[1:], strict=True)
    ]
    return _PartitionCodes(seed_codes, pairs)


def _align_partitions(
    context: ScanContext,
    selected: Sequence[_Selected],
    logical_plan: LogicalPlan,
    snapshot: CubeSnapshot,
    blobs: BlobStore,
) -> PhysicalPlan:
    """Match the physical partitions of all datasets with those of the seed ("Alignment")."""
    scans, seed_scan = context.scans, context.scans[0]
    keys = [_partition_keys(scan, snapshot) for scan in scans]
    codes = snapshot.derive(
        ("partition codes", seed_scan.alignment, tuple([scan.name for scan in scans])),
        lambda: _encode_partitions(scans, keys, [len(dataset.partition_table) for dataset, _ in selected]),
    )
    seed = selected[0]
    at = seed.positions
    for scan, other, (left, right) in zip(scans[1:], selected[1:], codes.others, strict=True):
        if scan.role is Role.RESTRICTED:
            at = at[_is_in(left[at], right[other.positions])]
    seed_ids = make_dense(codes.seed[at], len(codes.seed))
    n_partitions = int(seed_ids.max()) + 1 if len(seed_ids) else 0
    first_files = np.full(n_partitions, -1, dtype=np.int64)
    first_files[seed_ids[::-1]] = np.arange(len(seed_ids) - 1, -1, -1)
    files = [DatasetFiles(seed_scan, seed.dataset, at, keys[0], seed_ids, np.arange(n_partitions), True)]
    for number, (all_left, all_right) in enumerate(codes.others, 1):
        scan, (dataset, positions) = scans[number], selected[number]
        left, right = all_left[at][first_files], all_right[positions]
        has_match = _is_in(right, left)
        matches = np.where(_is_in(left, right), left, -1)
        positions, ids, aligned = (
            positions[has_match],
            right[has_match],
            scan.alignment == seed_scan.alignment,
        )
        files.append(DatasetFiles(scan, dataset, positions, keys[number], ids, matches, aligned))
    groups = _enumerate_groups(files, logical_plan, blobs) if context.partition_by else None
    return PhysicalPlan(context, logical_plan, tuple(files), groups)


def _is_in(codes: Ints, others: Ints) -> Mask:
    """Mask of the codes that occur among others, all of them dense codes."""
    # many times as fast as np.isin
    bound = 1 + max(int(codes.max(initial=-1)), int(others.max(initial=-1)))
    if not is_dense(bound, len(codes) + len(others)):
        return np.isin(codes, others)
    present = np.zeros(bound, dtype=bool)
    present[others] = True
    mask: Mask = present[codes]
    return mask


def _enumerate_groups(
    datasets: Sequence[DatasetFiles], logical_plan: LogicalPlan, blobs: BlobStore
) -> dict[Group, Ints]:
    """Values of the ``partition_by`` columns, and the partitions that can hold them ("Re-grouping")."""
    # one row per physical partition and group so far: the partition, and a code per column
    rows = np.arange(len(datasets[0].matches))
    codes: list[Ints] = []
    values: list[pa.Array] = []
    for column in logical_plan.partition_by:
        files = next(f for f in datasets if f.scan.name == logical_plan.owners[column])
        group_values = _group_values(files, column, logical_plan, blobs)
        ids, matches = group_values.partition_ids, files.matches[rows]
        start = np.searchsorted(ids, matches, "left")
        stop = np.where(matches >= 0, np.searchsorted(ids, matches, "right"), start)
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
    files: DatasetFiles, column: str, logical_plan: LogicalPlan, blobs: BlobStore
) -> _GroupValues:
    """Values of a column in each physical partition that meet the conditions, by its index."""
    dataset = files.dataset
    index = dataset.indices[column].columns_data if column in dataset.indices else None
    if index is None and column in files.scan.partition_keys:
        labels = dataset.partition_table.labels
        index = IndexColumns.from_pairs(dataset.key_columns()[column], labels, np.arange(len(labels)))
    elif index is None:
        index = _scan_values(files, column, blobs)
    predicates = logical_plan.predicates[files.scan.name]
    on_column = all_of(predicate for predicate in predicates if predicate[0] == column)
    keep = tree_mask(pa.table({column: index.values}), on_column).to_numpy(zero_copy_only=False)
    codes = index.value_ids()
    file_of_position = np.full(len(dataset.partition_table) + 1, -1, dtype=np.int64)
    file_of_position[files.positions] = np.arange(len(files.positions))
    file_numbers = file_of_position[index.positions(dataset.partition_table)]
    valid = keep[codes] & (file_numbers >= 0)
    pairs = np.unique(np.stack([files.partition_ids[file_numbers[valid]], codes[valid]], axis=1), axis=0)
    return _GroupValues(pairs[:, 0], pairs[:, 1], index.values)


def _scan_values(files: DatasetFiles, column: str, blobs: BlobStore) -> IndexColumns:
    """Index of a column that has none, from its values in the files."""
    dtype = files.scan.schema.field(column).type

    keys, mapping = files.storage_keys(), files.scan.mapping
    tables = read_files(blobs, keys, [column], mapping=mapping)
    values = [to_single_array(table.column(column).unique()).cast(dtype) for table in tables]
    return IndexColumns.from_pairs(
        pa.concat_arrays([pa.array([], dtype), *values]),
        files.dataset.partition_table.labels,
        np.repeat(files.positions, [len(array) for array in values]),
    )


def plan_frames(query: QueryFrames[StoreT]) -> PhysicalPlan:
    """Plan a query whose results are DataFrames; as :func:`plan_query`, with their types."""
    backend = check_dtype_backend(query.dtype_backend)
    plan = plan_query(query)
    if backend is None:
        return plan
    return replace_fields(plan, context=replace_fields(plan.context, dtype_backend=backend))


def plan_table(query: QueryTable[StoreT]) -> PhysicalPlan:
    """Plan a query for one frame or table; columns in the order asked for, dimensions first by default."""
    if query.columns is not None and query.payload_columns is not None:
        raise ValueError("Pass columns or payload_columns, not both: they are two names of one parameter")
    _check_limit(query.limit)
    names = query.columns if query.payload_columns is None else query.payload_columns
    requested = None if names is None else converter_str_tupleset(names)
    frames = QueryFrames(
        query.cube,
        query.store,
        query.conditions,
        query.datasets,
        query.dimension_columns,
        payload_columns=requested,
        as_of=query.as_of,
        changed_since=query.changed_since,
        dtype_backend=query.dtype_backend,
    )
    plan = plan_frames(frames)
    output = plan.context.output
    # the rows are sorted by dimensions, then partition columns
    ordered = order_columns(plan.context.sort_columns, requested, output.names)
    schema = pa.schema([output.field(name) for name in ordered])
    return attrs.evolve(plan, context=attrs.evolve(plan.context, output=schema))


def order_columns(
    keys: Iterable[str], requested: str | Iterable[str] | None, available: Sequence[str]
) -> list[str]:
    """Order the columns of a result as they are asked for, the keys first unless they are named as well.

    >>> order_columns(["CITY", "DAY"], ["TEMP", "DAY"], ["CITY", "DAY", "RAIN", "TEMP"])
    ['CITY', 'TEMP', 'DAY']
    """
    names = None if requested is None else converter_str_tupleset(requested)
    unnamed = [name for name in keys if name not in (names or ())]
    return [
        name
        for name in dict.fromkeys([*unnamed, *(available if names is None else names)])
        if name in available
    ]


def _check_limit(limit: object) -> None:
    is_number = isinstance(limit, int | np.integer) and not isinstance(limit, bool)
    if limit is not None and not (is_number and limit >= 0):  # type: ignore[operator]
        raise ValueError(f"limit is a number of rows, 0 or more, got {limit!r}")
