"""Arguments of the dataset façades: which dataset, which table, which columns, what metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import check_names, unknown_names
from kartothek_cube.core.factory import DatasetFactory, _ensure_factory
from kartothek_cube.core.history import AsOf
from kartothek_cube.core.naming import check_table_name
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.runtime import store_factory
from kartothek_cube.serialization import DataFrameSerializer, default_serializer

#: accepted types of the ``metadata`` argument
MetadataInput: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None


def dataset_factory(
    dataset_uuid: str | None,
    store: StoreInput | None,
    factory: DatasetFactory | None = None,
    *,
    load_schema: bool = True,
    as_of: AsOf | None = None,
) -> DatasetFactory:
    """Factory of the dataset that the arguments of a façade name; either ``factory`` or the two others.

    >>> dataset_factory("geodata", "hmemory://").dataset_uuid
    'geodata'
    """
    open_store = None if store is None else store_factory(store)
    dataset = _ensure_factory(dataset_uuid, open_store, factory, load_schema)
    if as_of is not None:
        return dataset.copy(load_schema=True, as_of=as_of)
    return dataset.copy(load_schema=True) if load_schema and not dataset.load_schema else dataset


def user_metadata(metadata: MetadataInput) -> dict[str, Any]:
    """The ``metadata`` argument, a dict or a function that returns one, as a new dict of JSON values.

    >>> user_metadata(lambda: {"owner": "sales"})
    {'owner': 'sales'}
    """
    entries = metadata() if callable(metadata) else metadata
    if entries is None:
        return {}
    if not isinstance(entries, Mapping):
        raise TypeError(
            f"metadata has to be a dict (or a function returning one), got {type(entries).__name__}."
        )
    return {_check_metadata_key(key): _as_json(key, value) for key, value in entries.items()}


def _check_metadata_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"Keys of metadata have to be str, got {key!r} of type {type(key).__name__}.")
    return key


def _as_json(key: object, value: Any) -> Any:
    """A value as it will be read back, with lists for tuples."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"The metadata entry {key!r} is not JSON serializable: {error}.") from error


def check_serializer(serializer: Any) -> DataFrameSerializer:
    """The ``df_serializer`` argument; the default serializer for None."""
    if serializer is None:
        default: DataFrameSerializer = default_serializer()
        return default
    if not isinstance(serializer, DataFrameSerializer):
        raise TypeError(f"df_serializer has to be a DataFrameSerializer, got {type(serializer).__name__}.")
    return serializer


def check_columns(name: str, columns: Any, available: Iterable[str], uuid: str) -> tuple[str, ...] | None:
    """An argument that is a list of distinct columns of a dataset, or None.

    >>> check_columns("columns", ["CITI"], ["CITY", "DAY"], "geodata")
    Traceback (most recent call last):
    ...
    ValueError: columns of dataset 'geodata': unknown column CITI; did you mean CITY? available: CITY, DAY
    """
    if columns is None:
        return None
    if not isinstance(columns, list):  # a text would be a list of letters
        raise TypeError(
            f"{name} has to be a list of columns, got {columns!r} of type {type(columns).__name__}."
        )
    available = list(available)
    check_names(f"{name} of dataset {uuid!r}: ", "column", columns, available)
    if len(set(columns)) < len(columns):
        raise ValueError(f"{name} of dataset {uuid!r} has duplicates: {', '.join(columns)}")
    return tuple(columns)


def check_table(dataset: DatasetMetadata, table_name: str | None) -> str:
    """Table of a dataset by name, or its only table."""
    tables = dataset.tables or [dataset.table_name]
    if table_name is None:
        if len(tables) > 1:
            raise RuntimeError(
                f"Dataset {dataset.uuid!r} has several tables, name one by table_name: {', '.join(tables)}"
            )
        return tables[0]
    check_table_name(table_name)
    if table_name not in tables:
        raise RuntimeError(f"Dataset {dataset.uuid!r}: {unknown_names('table', [table_name], tables)}")
    return table_name


def check_partition_keys(dataset: DatasetMetadata, partition_on: Sequence[str]) -> tuple[str, ...]:
    """Partition keys of an existing dataset; ``partition_on`` is empty or equal to them."""
    stored = tuple(dataset.partition_keys)
    if partition_on and tuple(partition_on) != stored:
        raise ValueError(
            f"Incompatible set of partition keys: dataset {dataset.uuid!r} is partitioned by {list(stored)}, "
            f"but partition_on is {list(partition_on)}"
        )
    return stored
