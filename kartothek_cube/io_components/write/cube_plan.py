"""Plan writes of cubes: build, extend, append, update and remove differ in their rules only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import attrs
import pyarrow as pa

from kartothek_cube.core.arguments import converter_str_set, converter_str_tupleset
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.commit.change import WriteMode, check_settings, inherited_settings
from kartothek_cube.core.cube.conditions import ConditionsInput, Conjunction
from kartothek_cube.core.cube.consistency import (
    arrow_schema,
    cube_metadata,
    get_dataset_columns,
    get_payload_subset,
)
from kartothek_cube.core.cube.constants import KTK_CUBE_DF_SERIALIZER
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import choose_datasets, existing_dataset_ids, load_snapshot
from kartothek_cube.core.cube.implied_conditions import to_conjunction
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.errors import DatasetExistsError, KartothekCubeError, format_count, unknown_names
from kartothek_cube.core.expressions import AllOf, Node
from kartothek_cube.core.schema.evolution import evolution_metadata
from kartothek_cube.core.store import open_blobs
from kartothek_cube.core.transforms import read_transforms
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.runtime import store_factory
from kartothek_cube.io_components.scan import count_rows
from kartothek_cube.io_components.write.validation import CubeMetadata
from kartothek_cube.io_components.write.write_plan import (
    CallerLine,
    CubeWritePlan,
    CubeWriteSpec,
    RowsOutside,
    is_merge_mode,
)
from kartothek_cube.serialization import DataFrameSerializer

if TYPE_CHECKING:
    from kartothek_cube.io_components.write.cube_writes import (
        AppendToCube,
        BuildCube,
        ExtendCube,
        RemovePartitions,
        UpdateCube,
    )

    _NewDatasets: TypeAlias = BuildCube[Any, Any] | ExtendCube[Any, Any]


def _check_metadata(metadata: CubeMetadata | None, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Check the ``metadata`` argument of a cube write; a copy, empty for None."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise TypeError(
            f"Provided metadata should be a dict of dataset id to dict, but is {type(metadata).__name__}"
        )
    existing = set(names)
    unknown = set(metadata) - existing
    if unknown:
        raise ValueError(
            "Provided metadata for otherwise unspecified datasets: "
            + unknown_names("dataset", unknown, existing)
        )
    for name, values in metadata.items():
        if not isinstance(values, Mapping):
            raise TypeError(
                f"Provided metadata for dataset {name} should be a dict, but is {type(values).__name__}"
            )
        try:
            json.dumps(dict(values))
        except TypeError as exc:
            raise TypeError(f"Provided metadata for dataset {name} cannot be stored as JSON: {exc}") from exc
    return {name: dict(values) for name, values in metadata.items()}


def check_cube_serializer(serializer: Any) -> DataFrameSerializer:
    """Check the ``df_serializer`` argument of a cube write; Parquet with ZSTD by default."""
    if serializer is None:
        default: DataFrameSerializer = KTK_CUBE_DF_SERIALIZER
        return default
    if not isinstance(serializer, DataFrameSerializer):
        raise TypeError(f"df_serializer should be a DataFrameSerializer, but is {type(serializer).__name__}")
    return serializer


def _check_partition_on(
    cube: Cube, name: str, partition_on: Mapping[str, Iterable[str]] | None
) -> tuple[str, ...]:
    """Partition keys of a dataset; by default the partition columns of the cube."""
    columns = tuple(cube.partition_columns)
    if partition_on is not None and name in partition_on:
        try:
            columns = converter_str_tupleset(partition_on[name])
        except ValueError as exc:
            raise ValueError(f"partition_on of dataset {name}: {exc}") from exc
    if name == cube.seed_dataset and columns != tuple(cube.partition_columns):
        raise ValueError(
            f"Seed dataset {name} must have the partition columns of the cube: expected "
            f"[{', '.join(cube.partition_columns)}], but partition_on is [{', '.join(columns)}]"
        )
    return columns


def _plan_new(
    operation: str,
    write: _NewDatasets,
    store: StoreFactory,
    names: Iterable[str],
    foreign: Mapping[str, str],
    types: Mapping[str, pa.DataType],
    kept: Mapping[str, Any],
) -> CubeWritePlan:
    """Plan new datasets; `foreign` has the payload columns of the other datasets of the cube."""
    cube, partition_on = write.cube, write.partition_on
    names = sorted(names)
    user = _check_metadata(write.metadata, names)
    # settings belong to the cube: those of its seed count for new datasets
    kept = {**kept, **inherited_settings(user.get(cube.seed_dataset, {}))}
    if partition_on is not None and not isinstance(partition_on, Mapping):
        raise TypeError(
            f"partition_on should be a dict of dataset id to columns, but is {type(partition_on).__name__}"
        )
    df_serializer = check_cube_serializer(write.df_serializer)
    specs = {}
    for name in names:
        keys = _check_partition_on(cube, name, partition_on)
        indexed = set(cube.index_columns)
        if name == cube.seed_dataset:
            indexed |= set(cube.dimension_columns) - set(cube.suppress_index_on)
        specs[name] = CubeWriteSpec(
            name=name,
            cube=cube,
            foreign=foreign,
            store=store,
            uuid=cube.ktk_dataset_uuid(name),
            partition_on=keys,
            serializer=df_serializer,
            types=types,
            optional_indices=tuple(sorted(indexed - set(keys))),
            mode=WriteMode.REPLACE if write.overwrite else WriteMode.CREATE,
            metadata={**kept, **user.get(name, {}), **cube_metadata(cube, name)},
        )
    return CubeWritePlan(operation=operation, cube=cube, store=store, specs=specs)


def _check_absent(
    cube: Cube, existing: Iterable[str], names: Iterable[str], overwrite: bool, remedy: str
) -> None:
    """Raise DatasetExistsError for a dataset that exists."""
    for name in sorted(set(existing) & set(names)):
        if not overwrite:
            raise DatasetExistsError(cube.ktk_dataset_uuid(name), remedy)


def plan_build(write: BuildCube[Any, Any], names: Iterable[str]) -> CubeWritePlan:
    """Plan to write a new cube."""
    cube, store, overwrite = write.cube, write.store, write.overwrite
    names = set(names)
    if cube.seed_dataset not in names:
        raise ValueError(
            f'Seed data ("{cube.seed_dataset}") is missing: a new cube needs it, '
            f"given are: {', '.join(sorted(names)) or 'none'}"
        )
    factory = store_factory(store)
    kept = _read_settings(cube, store) if overwrite else {}
    plan = _plan_new("build", write, factory, names, {}, {}, kept)
    existing = existing_dataset_ids(cube.uuid_prefix, store)
    others = existing - names
    if others:
        remedy = "" if overwrite else "; pass overwrite=True to replace it"
        raise ValueError(
            f"Cube {cube.uuid_prefix} exists{remedy}. It is overwritten as a whole, but the "
            f"build has no data for {', '.join(sorted(others))}. Delete or include what is missing"
        )
    remedy = "The cube exists; pass overwrite=True to replace it, or choose another uuid_prefix."
    _check_absent(cube, existing, names, overwrite, remedy)
    return plan


def plan_extend(write: ExtendCube[Any, Any], names: Iterable[str]) -> CubeWritePlan:
    """Plan to add datasets to a cube."""
    cube, store = write.cube, write.store
    names = set(names)
    if cube.seed_dataset in names:
        raise ValueError(
            f'Seed data ("{cube.seed_dataset}") cannot be written when a cube is extended, only when it '
            f"is built"
        )
    factory = store_factory(store)
    existing = _load_datasets(cube, store)
    _check_absent(
        cube, existing, names, write.overwrite, "Pass overwrite=True to replace it, or choose another id."
    )
    others = {name: ds for name, ds in existing.items() if name not in names}
    foreign = _payload_owners(cube, others)
    shared = {*cube.dimension_columns, *cube.partition_columns}
    types = {column: dtype for column, dtype in _types(others.values()).items() if column in shared}
    kept = inherited_settings(existing[cube.seed_dataset].metadata)
    write = attrs.evolve(write, cube=_with_stored_transforms(cube, existing[cube.seed_dataset]))
    return _plan_new("extend", write, factory, names, foreign, types, kept)


def _with_stored_transforms(cube: Cube, dataset: DatasetMetadata) -> Cube:
    """The cube with the partition transforms of a stored dataset, if it has a record of them."""
    # kartothek records none
    stored = read_transforms(dataset.metadata)
    if stored is None:
        return cube
    if cube.transforms and set(cube.transforms) != set(stored):
        described = [
            ", ".join(map(repr, transforms)) or "nothing" for transforms in (stored, cube.transforms)
        ]
        raise ValueError(
            f"Dataset {dataset.uuid!r} was written with the partition columns {described[0]}, but the cube "
            f"has {described[1]}; discover_cube gives the specification of a stored cube"
        )
    return cube.copy(transforms=stored)


def _read_settings(cube: Cube, store: StoreInput) -> dict[str, Any]:
    """The settings of a stored cube; {} for the defaults, or if there is none."""
    uuid = cube.ktk_dataset_uuid(cube.seed_dataset)
    try:
        metadata = DatasetMetadata.load_from_store(uuid, open_blobs(store), load_schema=False).metadata
        check_settings(metadata)
        return inherited_settings(metadata)
    except (KeyError, ValueError, NotImplementedError):
        # absent, or damaged: overwriting is how a user repairs it
        return {}


def _load_datasets(cube: Cube, store: StoreInput) -> dict[str, DatasetMetadata]:
    """The datasets of a cube, which are checked if they have changed; shared, and not to be changed."""
    return load_snapshot(cube, open_blobs(store), None).datasets


def _payload_owners(cube: Cube, datasets: Mapping[str, DatasetMetadata]) -> dict[str, str]:
    """Payload columns of datasets, with the dataset that has them."""
    return {
        column: name
        for name, ds in datasets.items()
        for column in get_payload_subset(get_dataset_columns(ds), cube)
    }


def plan_existing(
    operation: str,
    cube: Cube,
    store: StoreInput,
    datasets: Mapping[str, DatasetMetadata],
    metadata: CubeMetadata | None,
    serializer: Any,
    others: Mapping[str, DatasetMetadata] | None = None,
) -> CubeWritePlan:
    """Plan updates of existing datasets, which keep their partition keys and indices.

    With `others`, the rest of the cube, input may have other payload columns than the datasets.
    """
    user = _check_metadata(metadata, datasets)
    factory, df_serializer = store_factory(store), check_cube_serializer(serializer)
    foreign = _payload_owners(cube, others or {})
    specs = {
        name: CubeWriteSpec(
            name=name,
            cube=_with_stored_transforms(cube, dataset),
            foreign={column: owner for column, owner in foreign.items() if owner != name},
            store=factory,
            uuid=dataset.uuid,
            table=dataset.table_name,
            partition_on=tuple(dataset.partition_keys or ()),
            indices=tuple(sorted(dataset.secondary_indices)),
            serializer=df_serializer,
            types=_types([dataset]),
            schema=dataset.schema,
            evolving=None if others is None else evolution_metadata(dataset.metadata),
            mode=WriteMode.UPDATE,
            metadata=dict(user.get(name, {})),
            merge_schema=others is not None,
        )
        for name, dataset in sorted(datasets.items())
    }
    return CubeWritePlan(operation=operation, cube=cube, store=factory, specs=specs)


def _types(datasets: Iterable[DatasetMetadata]) -> dict[str, pa.DataType]:
    """Types of the columns of datasets; another type takes precedence over null."""
    fields = [field for ds in datasets if ds.schema is not None for field in ds.schema.internal()]
    return {f.name: f.type for f in sorted(fields, key=lambda f: not pa.types.is_null(f.type))}


def plan_append(write: AppendToCube[Any, Any], names: Iterable[str]) -> CubeWritePlan:
    """Plan to add partitions to datasets of a cube."""
    is_merge = is_merge_mode(write.schema_mode)
    cube, store = write.cube, write.store
    existing = _load_datasets(cube, store)
    datasets = {name: existing[name] for name in choose_datasets(cube, names, existing)}
    if write.unique_cells and not set(cube.dimension_columns) & set(
        existing[cube.seed_dataset].secondary_indices
    ):
        raise ValueError(
            f"unique_cells needs an index on a dimension column of dataset {cube.seed_dataset!r}; "
            f"without one, all its files would be read"
        )
    others = existing if is_merge else None
    plan = plan_existing("append", cube, store, datasets, write.metadata, write.df_serializer, others)
    return attrs.evolve(plan, unique_cells=write.unique_cells)


def plan_overwrite_partitions(write: AppendToCube[Any, Any], name: str) -> CubeWritePlan:
    """Plan to replace those partitions of a dataset for which there is input."""
    cube, store = write.cube, write.store
    plan = plan_append(write, [name])
    existing = _load_datasets(cube, store)
    others = sorted(set(existing) - {name})
    if name == cube.seed_dataset and others:
        raise ValueError(
            f"Partitions of the seed cannot be overwritten alone: rows of {', '.join(others)} would be "
            "joined to the new ones. Use update_cube, which names the datasets to remove partitions from"
        )
    labels = existing[name].partition_table.labels
    plan = plan.evolve_specs(overwrites_partitions=True, assumed_labels=labels)
    return attrs.evolve(plan, operation="update", keep_empty=True)


def plan_merge(
    cube: Cube,
    store: StoreInput,
    dataset: str | None = None,
    metadata: Mapping[str, object] | None = None,
    df_serializer: Any = None,
) -> CubeWritePlan:
    """Plan to update, insert and delete cells of one dataset, by default the seed."""
    ensure_cube(cube)
    existing = _load_datasets(cube, store)
    names = choose_datasets(cube, [cube.seed_dataset if dataset is None else dataset], existing)
    datasets = {name: existing[name] for name in names}
    user = None if metadata is None else dict.fromkeys(names, metadata)
    plan = plan_existing("merge", cube, store, datasets, user, df_serializer)
    return attrs.evolve(plan, keep_empty=True, commit_all=True)


def _plan_removal(
    operation: str,
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput | Literal["all"],
    names: str | Iterable[str] | None,
    metadata: CubeMetadata | None,
    df_serializer: Any = None,
    *,
    argument: str,
) -> CubeWritePlan:
    """Plan updates that also remove the partitions which meet conditions."""
    existing = _load_datasets(cube, store)
    conjunction = None
    caller = CallerLine.find()
    if conditions is not None:
        conjunction = removal_conditions(cube, conditions, existing)
        check_is_full_removal(argument, conditions, is_full=not conjunction.active)
    datasets = {name: existing[name] for name in choose_datasets(cube, names, existing)}
    plan = plan_existing(operation, cube, store, datasets, metadata, df_serializer)
    specs = dict(plan.specs)
    if conjunction is not None:
        for name, spec in plan.specs.items():
            remove_where = partition_scope(conjunction, existing[name])
            selected = select_partitions(existing[name], remove_where)
            labels = existing[name].partition_table.take(selected).labels
            specs[name] = attrs.evolve(spec, remove_where=remove_where, assumed_labels=labels)
            if names is None and len(labels):
                _warn_of_other_keys(caller, conjunction, existing[name], selected, store)
    return attrs.evolve(plan, specs=specs, commit_all=True, caller=caller)


def plan_remove(removal: RemovePartitions[Any]) -> CubeWritePlan:
    """Plan to remove the partitions that meet conditions on partition columns."""
    ensure_cube(removal.cube)
    plan = _plan_removal(
        "remove_partitions",
        removal.cube,
        removal.store,
        () if removal.conditions is None else removal.conditions,
        removal.ktk_cube_dataset_ids,
        removal.metadata,
        argument="conditions",
    )
    return attrs.evolve(plan, keep_empty=True, return_all=True)


def plan_update(write: UpdateCube[Any, Any]) -> CubeWritePlan:
    """Plan to replace partitions: remove those that meet the conditions and add input, in one commit."""
    ensure_cube(write.cube)
    if write.rows_outside not in get_args(RowsOutside):
        raise ValueError(f"rows_outside is 'raise', 'warn' or 'append', got {write.rows_outside!r}")
    plan = _plan_removal(
        "update",
        write.cube,
        write.store,
        write.remove_conditions,
        converter_str_set(write.ktk_cube_dataset_ids),
        write.metadata,
        write.df_serializer,
        argument="remove_conditions",
    )
    return attrs.evolve(plan, rows_outside=write.rows_outside)


# -- conditions of removals ---------------------------------------------------------------------------------


def partition_scope(conditions: Conjunction, dataset: DatasetMetadata) -> AllOf:
    """Those conditions that concern partition keys of a dataset."""
    keys = set(dataset.partition_keys or ())
    schema = arrow_schema(dataset)
    types = dict(zip(schema.names, schema.types, strict=True))
    nodes: list[Node] = []
    for condition in conditions.conditions:
        columns = Conjunction(condition).columns
        if columns <= keys and columns:
            nodes.append(condition.to_tree(types))
        elif columns & keys:
            # neither side of the "or" alone tells which partitions of this dataset are meant
            raise ValueError(
                f"Condition `{condition}` has columns by which dataset {dataset.uuid!r} is not partitioned: "
                f"{', '.join(sorted(columns - keys))}"
            )
    return AllOf(tuple(nodes))


def removal_conditions(
    cube: Cube, conditions: ConditionsInput | Literal["all"], datasets: Mapping[str, DatasetMetadata]
) -> Conjunction:
    """Check that conditions concern partition columns only; none for ``"all"``."""
    ensure_cube(cube)
    if isinstance(conditions, str) and conditions == "all":
        return Conjunction(None)
    fields = [field for dataset in datasets.values() for field in arrow_schema(dataset)]
    conjunction = to_conjunction(conditions, {field.name: field.type for field in fields})
    wrong = conjunction.columns - set(cube.partition_columns)
    if wrong:
        raise ValueError(
            "Can only remove partitions with conditions concerning cubes physical partition columns "
            f"({', '.join(cube.partition_columns) or 'none: all rows are one partition'}), "
            f"but got conditions on: {', '.join(sorted(wrong))}"
        )
    return conjunction


def _warn_of_other_keys(
    caller: CallerLine, conjunction: Conjunction, dataset: DatasetMetadata, selected: Ints, store: StoreInput
) -> None:
    """Warn of a removal from a dataset that was not named and lacks partition keys of the conditions."""
    foreign = ", ".join(sorted(conjunction.columns - set(dataset.partition_keys or ())))
    if not foreign:
        return
    keys = dataset.partition_table.take(selected).files[dataset.table_name].to_pylist()
    try:
        extent = format_count(count_rows(open_blobs(store), keys), "row")
    except (KartothekCubeError, OSError, ValueError):
        # of files that cannot be read, or have no footers, a removal is possible all the same
        extent = format_count(len(keys), "file")
    caller.warn(
        f"Removed from dataset {dataset.uuid!r}, which is not partitioned by {foreign}: {extent}, whatever "
        f"their {foreign}. Name the datasets to remove partitions from in ktk_cube_dataset_ids"
    )


def check_is_full_removal(argument: str, given: object, *, is_full: bool) -> None:
    """Refuse a removal of everything that the conditions do not ask for."""
    if is_full and not (isinstance(given, str) and given == "all"):
        raise ValueError(
            f"No {argument}: everything would be removed. Pass {argument}='all' if that is the intention"
        )
