"""Planning writes of cubes: build, extend, append, update and remove differ in their rules only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pyarrow as pa

from kartothek_cube.core.arguments import converter_str_set, converter_str_set_optional
from kartothek_cube.core.cube.condition_types import Conjunction
from kartothek_cube.core.cube.consistency import (
    get_dataset_columns,
    get_payload_subset,
)
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import (
    discover_datasets,
    discover_ktk_cube_dataset_ids,
)
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset.pruning import select_partitions
from kartothek_cube.core.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    unknown_names,
)
from kartothek_cube.core.header.commit_record import parse_record
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.io_components.runtime.threads import store_factory
from kartothek_cube.io_components.write.cube_arguments import (
    Metadata,
    check_cube_serializer,
    check_metadata,
    cube_metadata,
    cube_partition_on,
)
from kartothek_cube.io_components.write.delete_scope import partition_scope, removal_conditions
from kartothek_cube.io_components.write.table_writer import (
    WriteContext,
)
from kartothek_cube.io_components.write.validation import DatasetConstraints
from kartothek_cube.serialization import DataFrameSerializer

__all__ = (
    "CubeWritePlan",
    "DatasetWritePlan",
    "plan_append",
    "plan_build",
    "plan_extend",
    "plan_remove",
    "plan_update",
)

Predicates = list[list[tuple[str, str, Any]]]


@attrs.frozen
class DatasetWritePlan:
    """
    What a write does to one dataset of a cube.

    Attributes
    ----------
    rules
        What input has to meet.
    context
        Where and how files are written.
    mode
        As in :class:`kartothek_cube.core.commit.ChangeSet`.
    metadata
        Metadata to set.
    scope, expected
        Partitions to remove, as in :class:`~kartothek_cube.core.commit.ChangeSet`.
    required
        Whether the dataset is committed even if there is no input for it.
    types
        Types that columns have already in the cube, for engines whose own types are others.
    batch
        As in :class:`~kartothek_cube.core.commit.ChangeSet`.
    """

    rules: DatasetConstraints
    context: WriteContext
    mode: str
    metadata: Mapping[str, Any]
    scope: Predicates | None = None
    expected: pa.StringArray | None = None
    required: bool = False
    types: Mapping[str, pa.DataType] = attrs.field(factory=dict)
    batch: tuple[str, int] | None = None


@attrs.frozen
class CubeWritePlan:
    """
    A planned write.

    Attributes
    ----------
    operation
        Name of the operation, for messages.
    cube
        The cube.
    store
        Factory of the store.
    changes
        By id all datasets that the write may touch.
    keep_empty
        Whether a dataset may end up without partitions.
    return_all
        Whether the result has all datasets of the cube.
    replace_pending
        Whether datasets that an operation which died has left behind count as absent.
    """

    operation: str
    cube: Cube
    store: StoreFactory
    changes: Mapping[str, DatasetWritePlan]
    keep_empty: bool = False
    return_all: bool = False
    replace_pending: bool = False


def _new_changes(
    cube: Cube,
    store: StoreFactory,
    names: Iterable[str],
    metadata: Metadata | None,
    overwrite: bool,
    partition_on: Mapping[str, Iterable[str]] | None,
    serializer: Any,
    foreign: Mapping[str, str],
) -> dict[str, DatasetWritePlan]:
    wanted = sorted(names)
    user = check_metadata(metadata, wanted)
    if partition_on is not None and not isinstance(partition_on, Mapping):
        raise TypeError(
            f"partition_on should be a dict of dataset id to columns, but is {type(partition_on).__name__}"
        )
    df_serializer = check_cube_serializer(serializer)
    changes = {}
    for name in wanted:
        uuid = cube.ktk_dataset_uuid(name)
        keys = cube_partition_on(cube, name, partition_on)
        changes[name] = DatasetWritePlan(
            rules=DatasetConstraints(name, cube, keys, None, foreign),
            context=WriteContext(store, uuid, partition_on=keys, serializer=df_serializer),
            mode="replace" if overwrite else "create",
            metadata=cube_metadata(cube, name, user.get(name, {})),
        )
    return changes


def _check_absent(
    cube: Cube, store: StoreInput, existing: Iterable[str], names: Iterable[str], overwrite: bool
) -> None:
    """Raise DatasetExistsError unless the datasets are absent, or left from an operation that died."""
    for name in sorted(set(existing) & set(names)):
        if not overwrite and not _is_pending(cube.ktk_dataset_uuid(name), store):
            raise DatasetExistsError(cube.ktk_dataset_uuid(name))


def _is_pending(uuid: str, store: StoreInput) -> bool:
    try:
        dataset = DatasetMetadata.load_from_store(uuid, store, load_schema=False)
    except DatasetNotFoundError:
        return True
    record = parse_record(dataset.extra)
    return record is not None and record.pending is not None


def plan_build(
    cube: Cube,
    store: StoreInput,
    names: Iterable[str],
    metadata: Metadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: Any = None,
) -> CubeWritePlan:
    """
    Plan to write a new cube.

    Raises
    ------
    ValueError
        If the seed is missing, or datasets of the cube that are not written exist.
    RuntimeError
        If a dataset exists and is not to be overwritten.
    """
    names = set(names)
    if cube.seed_dataset not in names:
        raise ValueError(
            f'Seed data ("{cube.seed_dataset}") is missing: a new cube needs it, '
            f"given are: {', '.join(sorted(names)) or 'none'}"
        )
    factory = store_factory(store)
    changes = _new_changes(cube, factory, names, metadata, overwrite, partition_on, df_serializer, {})
    existing = discover_ktk_cube_dataset_ids(cube.uuid_prefix, store)
    left = existing - names
    if left:
        raise ValueError(
            f"Following datasets exist in cube {cube.uuid_prefix} but are not part of the build: "
            f"{', '.join(sorted(left))}. A cube can only be overwritten as a whole; delete them or "
            f"include them"
        )
    _check_absent(cube, store, existing, names, overwrite)
    return CubeWritePlan("build", cube, factory, changes, replace_pending=not overwrite)


def plan_extend(
    cube: Cube,
    store: StoreInput,
    names: Iterable[str],
    metadata: Metadata | None = None,
    overwrite: bool = False,
    partition_on: Mapping[str, Iterable[str]] | None = None,
    df_serializer: Any = None,
) -> CubeWritePlan:
    """
    Plan to add datasets to a cube.

    Raises
    ------
    ValueError
        If the seed is among them, or there is no such cube.
    RuntimeError
        If a dataset exists and is not to be overwritten.
    """
    names = set(names)
    if cube.seed_dataset in names:
        raise ValueError(
            f'Seed data ("{cube.seed_dataset}") cannot be written when a cube is extended, only when it '
            f"is built"
        )
    factory = store_factory(store)
    existing = discover_datasets(cube, store)
    _check_absent(cube, store, existing, names, overwrite)
    foreign = {
        column: name
        for name, ds in existing.items()
        if name not in names
        for column in get_payload_subset(get_dataset_columns(ds), cube)
    }
    changes = _new_changes(cube, factory, names, metadata, overwrite, partition_on, df_serializer, foreign)
    known = _types(ds for name, ds in existing.items() if name not in names)
    keys = {c: t for c, t in known.items() if c in (*cube.dimension_columns, *cube.partition_columns)}
    changes = {name: attrs.evolve(change, types=keys) for name, change in changes.items()}
    return CubeWritePlan("extend", cube, factory, changes, replace_pending=not overwrite)


def _stored_change(
    cube: Cube,
    store: StoreFactory,
    name: str,
    dataset: DatasetMetadata,
    metadata: Mapping[str, Any],
    serializer: DataFrameSerializer,
    **more: Any,
) -> DatasetWritePlan:
    """A change of a dataset that exists: its partition keys and indices are taken from its header."""
    keys = tuple(dataset.partition_keys or ())
    indices = tuple(sorted(c for c, i in dataset.indices.items() if isinstance(i, ExplicitSecondaryIndex)))
    return DatasetWritePlan(
        rules=DatasetConstraints(name, cube, keys, indices),
        context=WriteContext(store, dataset.uuid, dataset.table_name, keys, indices, serializer),
        mode="update",
        metadata=dict(metadata),
        types=_types([dataset]),
        **more,
    )


def _types(datasets: Iterable[DatasetMetadata]) -> dict[str, pa.DataType]:
    """Types of the columns of datasets; a type that is known hides null."""
    fields = [field for ds in datasets if ds.schema is not None for field in ds.schema.internal()]
    return {f.name: f.type for f in sorted(fields, key=lambda f: not pa.types.is_null(f.type))}


def plan_append(
    cube: Cube,
    store: StoreInput,
    names: Iterable[str],
    metadata: Metadata | None = None,
    df_serializer: Any = None,
) -> CubeWritePlan:
    """
    Plan to add partitions to datasets of a cube.

    Raises
    ------
    ValueError
        If a dataset does not exist.
    """
    names = set(names)
    existing = discover_datasets(cube, store)
    unknown = names - set(existing)
    if unknown:
        raise ValueError(
            f"Unknown / non-existing datasets of cube {cube.uuid_prefix}: "
            + unknown_names("dataset", unknown, existing)
        )
    user = check_metadata(metadata, names)
    factory, serializer = store_factory(store), check_cube_serializer(df_serializer)
    changes = {
        name: _stored_change(cube, factory, name, existing[name], user.get(name, {}), serializer)
        for name in sorted(names)
    }
    return CubeWritePlan("append", cube, factory, changes)


def _plan_removal(
    operation: str,
    cube: Cube,
    store: StoreInput,
    conditions: Conjunction | None,
    names: set[str] | None,
    metadata: Metadata | None,
    df_serializer: Any,
    **flags: bool,
) -> CubeWritePlan:
    existing = discover_datasets(cube, store)
    chosen = set(existing) if names is None else names
    unknown = chosen - set(existing)
    if unknown:
        raise ValueError("Unknown ktk_cube_dataset_ids: " + unknown_names("dataset", unknown, existing))
    user = check_metadata(metadata, chosen)
    factory, serializer = store_factory(store), check_cube_serializer(df_serializer)
    changes = {}
    for name in sorted(chosen):
        dataset = existing[name]
        scope = None if conditions is None else partition_scope(conditions, dataset)
        expected = None
        if scope is not None:
            picked = select_partitions(dataset, scope or None)
            expected = dataset.partition_table.take(picked).labels
        changes[name] = _stored_change(
            cube,
            factory,
            name,
            dataset,
            user.get(name, {}),
            serializer,
            scope=scope,
            expected=expected,
            required=True,
        )
    return CubeWritePlan(operation, cube, factory, changes, **flags)


def plan_remove(
    cube: Cube,
    store: StoreInput,
    conditions: Any = None,
    ktk_cube_dataset_ids: str | Iterable[str] | None = None,
    metadata: Metadata | None = None,
) -> CubeWritePlan:
    """
    Plan to remove the partitions that meet conditions on partition columns.

    Raises
    ------
    ValueError
        For conditions on other columns, or unknown ids.
    """
    conjunction = removal_conditions(cube, conditions)
    names = converter_str_set_optional(ktk_cube_dataset_ids)
    return _plan_removal(
        "remove_partitions",
        cube,
        store,
        conjunction,
        None if names is None else set(names),
        metadata,
        None,
        keep_empty=True,
        return_all=True,
    )


def plan_update(
    cube: Cube,
    store: StoreInput,
    remove_conditions: Any,
    ktk_cube_dataset_ids: str | Iterable[str],
    metadata: Metadata | None = None,
    df_serializer: Any = None,
) -> CubeWritePlan:
    """
    Plan to replace partitions: remove what meets the conditions and add input, in one commit per dataset.

    Raises
    ------
    ValueError
        As :func:`plan_remove`.
    """
    conjunction = None if remove_conditions is None else removal_conditions(cube, remove_conditions)
    names = set(converter_str_set(ktk_cube_dataset_ids))
    return _plan_removal("update", cube, store, conjunction, names, metadata, df_serializer)
