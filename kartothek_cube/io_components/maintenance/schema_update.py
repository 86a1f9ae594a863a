"""Update of the schema of a dataset: one commit of the header; data files stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core import arguments, arrow, history, naming
from kartothek_cube.core.commit.change import (
    ChangeSet,
    Requirement,
    UnchangedMetadata,
    UnchangedPartitions,
    apply,
)
from kartothek_cube.core.commit.optimistic import commit
from kartothek_cube.core.contract import Contract
from kartothek_cube.core.cube import consistency, discover
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.dataset_files import data_keys
from kartothek_cube.core.evolution import ColumnTypes, SchemaUpdate
from kartothek_cube.core.factory import DatasetFactory
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs
from kartothek_cube.io_components.dataset_arguments import dataset_factory
from kartothek_cube.io_components.publication.published_table import publish_committed
from kartothek_cube.io_components.scan import read_files
from kartothek_cube.io_components.write.write_commit import check_rules, commit_cube, validate_cube

#: above it, not every integer is a float64
_MAX_EXACT = 1 << 53


def plan_schema_update(
    add: ColumnTypes | None = None,
    defaults: Mapping[str, object] | None = None,
    drop: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    widen: ColumnTypes | None = None,
) -> SchemaUpdate:
    """Check the arguments of an update as far as this is possible without the schema."""
    renamed = arguments.parse_new_names("rename", rename)
    arguments.check_mapping("defaults", defaults, "column to value")
    added, dropped = _to_types("add", add), arguments.parse_names("drop", drop)
    widened = _to_types("widen", widen)
    if not (added or dropped or renamed or widened):
        raise ValueError("Nothing to update: pass add, drop, rename or widen")
    for name in added.keys() & (defaults or {}).keys():
        _check_range(name, arrow.parse_type((add or {})[name]), (defaults or {})[name])
    return SchemaUpdate(added, dict(defaults or {}), dropped, renamed, widened)


def _check_range(column: str, dtype: pa.DataType, default: object) -> None:
    """Raise ValueError for a default beyond the type that was given, which is stored as a wider one."""
    if isinstance(default, int) and not isinstance(default, bool) and pa.types.is_integer(dtype):
        try:
            pa.scalar(default, dtype)
        except (pa.ArrowInvalid, OverflowError) as error:
            problem = f"defaults: {default} is no value of column {column}, which is {dtype}"
            raise ValueError(problem) from error


def _to_types(argument: str, columns: ColumnTypes | None) -> dict[str, pa.DataType]:
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        raise TypeError(f"{argument} is a dict of column to type, got {type(columns).__name__}")
    types = {}
    for name, given in columns.items():
        arguments.parse_name(argument, name)
        if not name or name.startswith("__"):
            raise ValueError(f"{argument}: {name!r} is no name of a column")
        try:
            types[name] = arrow.widen(arrow.parse_type(given))
        except TypeError as error:
            raise TypeError(f"{argument}, column {name}: {error}") from error
    return types


def _change_set(dataset: DatasetMetadata, update: SchemaUpdate, fixed: Mapping[str, str]) -> ChangeSet:
    contract = Contract.of(dataset.uuid, dataset.metadata)
    requires: list[Requirement] = []
    if update.drop or update.rename or update.widen:
        stored = dataset.metadata.get(naming.CONTRACT)
        requires.append(UnchangedMetadata(naming.CONTRACT, stored, "changed the contract"))
    if update.widen:
        # the values of all partitions are checked
        requires.append(UnchangedPartitions.of_dataset(dataset))
    return ChangeSet(
        dataset.uuid,
        dataset.table_name,
        schema_update=update,
        fixed_columns={**dict.fromkeys(contract.columns, "named by the contract"), **fixed},
        info=history.describe_operation("update_schema"),
        requires=tuple(requires),
    )


def _check_exact(blobs: BlobStore, dataset: DatasetMetadata, update: SchemaUpdate) -> None:
    """Raise ValueError if a widened column has an integer that a float64 cannot hold."""
    columns = sorted(update.widen)
    if not columns:
        return
    for table in read_files(blobs, data_keys(dataset), columns, mapping=dataset.column_mapping):
        for column in columns:
            bounds = pc.min_max(table.column(column)).as_py()
            extreme = max((abs(bound) for bound in bounds.values() if bound is not None), default=0)
            if extreme > _MAX_EXACT:
                raise ValueError(
                    f"Dataset {dataset.uuid!r}: column {column} cannot be widened to float64, which cannot "
                    f"hold {extreme} and other integers above 2**53 exactly"
                )


def update_dataset_schema(
    dataset_uuid: str | None = None,
    store: StoreInput | None = None,
    factory: DatasetFactory | None = None,
    *,
    add: ColumnTypes | None = None,
    defaults: Mapping[str, object] | None = None,
    drop: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    widen: ColumnTypes | None = None,
) -> DatasetMetadata:
    """Add, drop, rename or widen columns of a dataset, by one commit of its header; data files stay.

    Partition keys and indexed columns cannot be changed.

    Parameters
    ----------
    dataset_uuid, store
        Uuid of the dataset, also of one of a cube; store, factory or URL.
    factory
        The dataset itself, instead of ``dataset_uuid`` and ``store``.
    add, defaults, drop, rename, widen
        As in :func:`kartothek_cube.io.eager_cube.update_schema`.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    ValueError
        For unknown columns, names that exist or existed, keys and indexed columns, types or defaults that do
        not fit, and changes by which a dataset breaks a rule of its cube. Nothing is changed.
    ConcurrentWriteError
        Another writer added rows to a column that is widened, or changed the contract.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import ensure_store, read_table, store_dataframes_as_dataset
    >>> store = ensure_store("hmemory://")
    >>> _ = store_dataframes_as_dataset(store, "weather", [pd.DataFrame({"DAY": [1], "TEMP": [6]})])
    >>> _ = update_dataset_schema("weather", store, add={"RAIN": "bool"}, defaults={"RAIN": False})
    >>> read_table("weather", store).to_dict("records")
    [{'DAY': 1, 'RAIN': False, 'TEMP': 6}]
    """
    source = dataset_factory(dataset_uuid, store, factory)
    dataset, blobs = source.dataset_metadata, open_blobs(source.store_factory)
    update = plan_schema_update(add, defaults, drop, rename, widen)
    if dataset.schema is None:
        raise ValueError(f"Dataset {dataset.uuid!r} has several tables; its schema cannot be updated")
    change = _change_set(dataset, update, {})
    # before any file is read
    check_rules(blobs, apply(dataset, change))
    _check_exact(blobs, dataset, update)
    return publish_committed(blobs, commit(blobs, change)[0])


def update_schema(
    cube: Cube | str,
    store: StoreInput,
    dataset: str | None = None,
    *,
    add: ColumnTypes | None = None,
    defaults: Mapping[str, object] | None = None,
    drop: str | Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
    widen: ColumnTypes | None = None,
) -> DatasetMetadata:
    """Add, drop, rename or widen payload columns of a dataset, by one commit of its header.

    Data files stay as they are; readers of this library adapt them. A name that older files have is not used
    again for another column. Dimensions, partition columns and indexed columns cannot be changed. Other
    libraries see the new schema and the old files (:doc:`/schema_evolution`).

    Parameters
    ----------
    cube, store
        Specification of the cube; store, factory or URL.
    dataset
        Id of the dataset; the seed by default.
    add
        Columns to add, with their types: a type of Arrow, pandas, NumPy or Python, or its name.
    defaults
        Values of added columns in existing rows, times also as text; null by default. They also hold for
        rows that are appended without the column (``schema_mode="merge"``).
    drop
        Columns to drop.
    rename
        Old to new names.
    widen
        Columns of integers to widen, with the type ``float64``. Their values are read, as integers above
        2**53 cannot be widened.

    Returns
    -------
    DatasetMetadata
        The new state.

    Raises
    ------
    ValueError
        For unknown datasets and columns, names that exist or existed, keys and indexed columns, and types or
        defaults that do not fit. Nothing is changed.
    ConcurrentWriteError
        Another writer added rows to a column that is widened, or changed the contract.

    Examples
    --------
    >>> import pandas as pd
    >>> from kartothek_cube import Cube, build_cube, ensure_store, query_cube
    >>> cube, store = Cube(["CITY"], ["COUNTRY_CODE"], "geodata"), ensure_store("hmemory://")
    >>> cities = pd.DataFrame({"CITY": ["Bonn"], "COUNTRY_CODE": ["DE"], "PEOPLE": [336]})
    >>> _ = build_cube(cities, cube, store)
    >>> _ = update_schema(cube, store, add={"AREA": "float64"}, rename={"PEOPLE": "POPULATION"})
    >>> query_cube(cube, store)[0].columns.tolist()
    ['AREA', 'CITY', 'COUNTRY_CODE', 'POPULATION']
    """
    cube = discover.find_cube(cube, store)
    update = plan_schema_update(add, defaults, drop, rename, widen)
    blobs = open_blobs(store)
    existing = discover.discover_datasets(cube, blobs)
    name = cube.seed_dataset if dataset is None else arguments.parse_name("dataset", dataset)
    discover.choose_datasets(cube, name, existing)
    fixed = dict.fromkeys(cube.index_columns, "an index column of the cube")
    fixed |= dict.fromkeys(cube.dimension_columns, "a dimension column of the cube")
    fixed |= dict.fromkeys(cube.partition_columns, "a partition column of the cube")
    for new in (*update.add, *update.rename.values()):
        if consistency.is_internal(new):
            text = f"of dataset {name!r} would be shown by no query: the name is reserved"
            raise ValueError(f"Column {new} {text}")
        if new in fixed:
            text = f"and cannot be added to dataset {name!r} that exists"
            raise ValueError(f"Column {new} is {fixed[new]} {text}")
    change = _change_set(existing[name], update, fixed)
    consistency.check_cube({**existing, name: apply(existing[name], change)}, cube)
    _check_exact(blobs, existing[name], update)
    steps = {change.uuid: lambda role: commit(blobs, change, role=role)}
    written = commit_cube(cube, blobs, steps, change.info, validate=partial(validate_cube, cube, blobs))
    return written[change.uuid]
