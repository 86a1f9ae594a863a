"""Plan writes of cubes: build, extend, append, update and remove differ in their rules only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, Self

import attrs
import pyarrow as pa

from kartothek_cube.core.arguments import converter_str_set, converter_str_tupleset
from kartothek_cube.core.commit.change import WriteMode
from kartothek_cube.core.cube.conditions import ConditionsInput
from kartothek_cube.core.cube.consistency import cube_metadata, get_dataset_columns, get_payload_subset
from kartothek_cube.core.cube.constants import (
    KTK_CUBE_DF_SERIALIZER,
)
from kartothek_cube.core.cube.cube import Cube, ensure_cube
from kartothek_cube.core.cube.discover import (
    choose_datasets,
    discover_datasets,
    existing_dataset_ids,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.errors import DatasetExistsError, unknown_names
from kartothek_cube.core.history import OperationInfo, describe_operation
from kartothek_cube.core.schema.evolution import evolution_metadata
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.runtime import store_factory
from kartothek_cube.io_components.write.dataset_plan import DatasetWritePlan, SchemaMode, is_merge_mode
from kartothek_cube.io_components.write.delete_scope import (
    CallerLine,
    partition_scope,
    removal_conditions,
    warn_of_full_removal,
)
from kartothek_cube.io_components.write.table_writer import WriteContext
from kartothek_cube.io_components.write.validation import CubeMetadata, DatasetConstraints
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "CubeWritePlan",
    "check_cube_serializer",
    "check_metadata",
    "cube_metadata",
    "cube_partition_on",
    "plan_append",
    "plan_build",
    "plan_extend",
    "plan_merge",
    "plan_remove",
    "plan_update",
)


def check_metadata(metadata: CubeMetadata | None, names: Iterable[str]) -> dict[str, dict[str, Any]]:
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


def cube_partition_on(
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


@attrs.frozen
class CubeWritePlan:
    """A planned write of a cube: the plans of its datasets, and the rules that their input has to meet."""

    #: for messages
    operation: str
    cube: Cube
    store: StoreFactory
    #: all datasets that the write may touch, by id
    changes: Mapping[str, DatasetWritePlan]
    #: what their input has to meet, by id
    constraints: Mapping[str, DatasetConstraints]
    #: whether datasets without input are committed as well
    commit_all: bool = False
    #: whether a dataset may end up without partitions
    keep_empty: bool = False
    #: whether the result has all datasets of the cube
    return_all: bool = False
    #: line of the user that asks for a removal of partitions, if one does
    caller: CallerLine | None = attrs.field(default=None, eq=False)
    #: message and job of the user
    annotations: OperationInfo = attrs.field(factory=partial(describe_operation, ""))

    @property
    def info(self) -> OperationInfo:
        """What the history tells of the operation."""
        return attrs.evolve(self.annotations, name=self.operation)

    #: whether no cell of the input may be in another partition of the cube
    unique_cells: bool = False

    def with_write_id(self, write_id: str) -> Self:
        """The plan with an id that is part of all file names."""
        changes = {name: change.with_write_id(write_id) for name, change in self.changes.items()}
        return attrs.evolve(self, changes=changes)


def _plan_new(
    operation: str,
    cube: Cube,
    store: StoreFactory,
    names: Iterable[str],
    metadata: CubeMetadata | None,
    overwrite: bool,
    partition_on: Mapping[str, Iterable[str]] | None,
    serializer: Any,
    foreign: Mapping[str, str],
    types: Mapping[str, pa.DataType],
) -> CubeWritePlan:
    """Plan new datasets; `foreign` has the payload columns of the other datasets of the cube."""
    names = sorted(names)
    user = check_metadata(metadata, names)
    if partition_on is not None and not isinstance(partition_on, Mapping):
        raise TypeError(
            f"partition_on should be a dict of dataset id to columns, but is {type(partition_on).__name__}"
        )
    df_serializer = check_cube_serializer(serializer)
    changes, constraints = {}, {}
    for name in names:
        uuid = cube.ktk_dataset_uuid(name)
        keys = cube_partition_on(cube, name, partition_on)
        constraints[name] = DatasetConstraints(name, cube, keys, None, foreign, types)
        changes[name] = DatasetWritePlan(
            WriteContext(store, uuid, partition_on=keys, serializer=df_serializer),
            WriteMode.REPLACE if overwrite else WriteMode.CREATE,
            {**user.get(name, {}), **cube_metadata(cube, name)},
        )
    return CubeWritePlan(operation, cube, store, changes, constraints)


def _check_absent(
    cube: Cube, existing: Iterable[str], names: Iterable[str], overwrite: bool, remedy: str
) -> None:
    """Raise DatasetExistsError for a dataset that exists."""
    for name in sorted(set(existing) & set(names)):
        if not overwrite:
            raise DatasetExistsError(cube.ktk_dataset_uuid(name), remedy)


def plan_build(
    cube: Cube,
    store: StoreInput,
    names: Iterable[str],
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: Any = None,
) -> CubeWritePlan:
    """Plan to write a new cube."""
    names = set(names)
    if cube.seed_dataset not in names:
        raise ValueError(
            f'Seed data ("{cube.seed_dataset}") is missing: a new cube needs it, '
            f"given are: {', '.join(sorted(names)) or 'none'}"
        )
    factory = store_factory(store)
    plan = _plan_new("build", cube, factory, names, metadata, overwrite, partition_on, df_serializer, {}, {})
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


def plan_extend(
    cube: Cube,
    store: StoreInput,
    names: Iterable[str],
    metadata: CubeMetadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: Any = None,
) -> CubeWritePlan:
    """Plan to add datasets to a cube."""
    names = set(names)
    if cube.seed_dataset in names:
        raise ValueError(
            f'Seed data ("{cube.seed_dataset}") cannot be written when a cube is extended, only when it '
            f"is built"
        )
    factory = store_factory(store)
    existing = discover_datasets(cube, store)
    _check_absent(
        cube, existing, names, overwrite, "Pass overwrite=True to replace it, or choose another id."
    )
    others = {name: ds for name, ds in existing.items() if name not in names}
    foreign = _payload_owners(cube, others)
    shared = {*cube.dimension_columns, *cube.partition_columns}
    types = {column: dtype for column, dtype in _types(others.values()).items() if column in shared}
    return _plan_new(
        "extend", cube, factory, names, metadata, overwrite, partition_on, df_serializer, foreign, types
    )


def _payload_owners(cube: Cube, datasets: Mapping[str, DatasetMetadata]) -> dict[str, str]:
    """Payload columns of datasets, with the dataset that has them."""
    return {
        column: name
        for name, ds in datasets.items()
        for column in get_payload_subset(get_dataset_columns(ds), cube)
    }


def _plan_existing(
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
    user = check_metadata(metadata, datasets)
    factory, df_serializer = store_factory(store), check_cube_serializer(serializer)
    changes, constraints = {}, {}
    for name, dataset in sorted(datasets.items()):
        keys = tuple(dataset.partition_keys or ())
        indices = tuple(sorted(dataset.secondary_indices))
        rest = {id_: ds for id_, ds in (others or {}).items() if id_ != name}
        constraints[name] = DatasetConstraints(
            name, cube, keys, indices, _payload_owners(cube, rest), _types([dataset]), others is not None
        )
        context = WriteContext(
            factory,
            dataset.uuid,
            dataset.table_name,
            keys,
            indices,
            df_serializer,
            schema=dataset.schema,
            evolving=None if others is None else evolution_metadata(dataset.metadata),
        )
        changes[name] = DatasetWritePlan(
            context,
            WriteMode.UPDATE,
            dict(user.get(name, {})),
            merge_schema=others is not None,
        )
    return CubeWritePlan(operation, cube, factory, changes, constraints)


def _types(datasets: Iterable[DatasetMetadata]) -> dict[str, pa.DataType]:
    """Types of the columns of datasets; another type takes precedence over null."""
    fields = [field for ds in datasets if ds.schema is not None for field in ds.schema.internal()]
    return {f.name: f.type for f in sorted(fields, key=lambda f: not pa.types.is_null(f.type))}


def plan_append(
    cube: Cube,
    store: StoreInput,
    names: Iterable[str],
    metadata: CubeMetadata | None = None,
    df_serializer: Any = None,
    schema_mode: SchemaMode = "strict",
    *,
    unique_cells: bool = False,
) -> CubeWritePlan:
    """Plan to add partitions to datasets of a cube."""
    is_merge = is_merge_mode(schema_mode)
    existing = discover_datasets(cube, store)
    datasets = {name: existing[name] for name in choose_datasets(cube, names, existing)}
    if unique_cells and not set(cube.dimension_columns) & set(existing[cube.seed_dataset].secondary_indices):
        raise ValueError(
            f"unique_cells needs an index on a dimension column of dataset {cube.seed_dataset!r}; "
            f"without one, all its files would be read"
        )
    others = existing if is_merge else None
    plan = _plan_existing("append", cube, store, datasets, metadata, df_serializer, others)
    return attrs.evolve(plan, unique_cells=unique_cells)


def plan_merge(
    cube: Cube,
    store: StoreInput,
    dataset: str | None = None,
    metadata: Mapping[str, object] | None = None,
    df_serializer: Any = None,
) -> CubeWritePlan:
    """Plan to update, insert and delete cells of one dataset, by default the seed."""
    ensure_cube(cube)
    existing = discover_datasets(cube, store)
    names = choose_datasets(cube, [cube.seed_dataset if dataset is None else dataset], existing)
    datasets = {name: existing[name] for name in names}
    user = None if metadata is None else dict.fromkeys(names, metadata)
    plan = _plan_existing("merge", cube, store, datasets, user, df_serializer)
    return attrs.evolve(plan, keep_empty=True)


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
    existing = discover_datasets(cube, store)
    conjunction = None
    caller = CallerLine.find()
    if conditions is not None:
        conjunction = removal_conditions(cube, conditions, existing)
        warn_of_full_removal(caller, argument, conditions, conjunction)
    datasets = {name: existing[name] for name in choose_datasets(cube, names, existing)}
    plan = _plan_existing(operation, cube, store, datasets, metadata, df_serializer)
    changes = dict(plan.changes)
    if conjunction is not None:
        for name, change in plan.changes.items():
            remove_where = partition_scope(conjunction, existing[name])
            selected = select_partitions(existing[name], remove_where or None)
            labels = existing[name].partition_table.take(selected).labels
            changes[name] = attrs.evolve(change, remove_where=remove_where, assumed_labels=labels)
    return attrs.evolve(plan, changes=changes, commit_all=True, caller=caller)


def plan_remove(
    cube: Cube,
    store: StoreInput,
    conditions: ConditionsInput | Literal["all"] = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: CubeMetadata | None = None,
) -> CubeWritePlan:
    """Plan to remove the partitions that meet conditions on partition columns."""
    ensure_cube(cube)
    conditions = () if conditions is None else conditions
    plan = _plan_removal(
        "remove_partitions", cube, store, conditions, ktk_cube_dataset_ids, metadata, argument="conditions"
    )
    return attrs.evolve(plan, keep_empty=True, return_all=True)


def plan_update(
    cube: Cube,
    store: StoreInput,
    remove_conditions: ConditionsInput | Literal["all"],
    ktk_cube_dataset_ids: str | Iterable[str] | None,
    metadata: CubeMetadata | None = None,
    df_serializer: Any = None,
) -> CubeWritePlan:
    """Plan to replace partitions: remove those that meet the conditions and add input, in one commit."""
    ensure_cube(cube)
    names = converter_str_set(ktk_cube_dataset_ids)
    return _plan_removal(
        "update", cube, store, remove_conditions, names, metadata, df_serializer, argument="remove_conditions"
    )
