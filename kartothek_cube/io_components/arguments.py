"""Arguments that the dataset façades share: which dataset, which table, which columns, what metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import unknown_names
from kartothek_cube.core.factory import DatasetFactory, _ensure_factory
from kartothek_cube.core.history import AsOf
from kartothek_cube.core.naming import check_table_name
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.io_components.runtime.threads import store_factory
from kartothek_cube.serialization import DataFrameSerializer, default_serializer

__all__ = (
    "MetadataInput",
    "check_columns",
    "check_partition_keys",
    "check_serializer",
    "check_table",
    "dataset_factory",
    "user_metadata",
)

#: what users pass as ``metadata``
MetadataInput: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None


def dataset_factory(
    dataset_uuid: str | None,
    store: StoreInput | None,
    factory: DatasetFactory | None = None,
    *,
    load_schema: bool = True,
    as_of: AsOf | None = None,
) -> DatasetFactory:
    """
    The dataset that the arguments of a façade name.

    Parameters
    ----------
    dataset_uuid, store
        Name and place of the dataset; both, or none of them.
    factory
        The dataset itself, instead of the two others.
    load_schema
        Whether its schema is needed.
    as_of
        Version or time of the state that is meant; None for the current one.

    Returns
    -------
    DatasetFactory
        ``factory`` itself if there is one, unless it leaves out a schema that is needed.

    Raises
    ------
    ValueError
        Another combination of arguments.

    Examples
    --------
    >>> dataset_factory("geodata", "hmemory://").dataset_uuid
    'geodata'
    """
    given = None if store is None else store_factory(store)
    found = _ensure_factory(dataset_uuid, given, factory, load_schema)
    if as_of is not None:
        return found.copy(load_schema=True, as_of=as_of)
    return found.copy(load_schema=True) if load_schema and not found.load_schema else found


def user_metadata(metadata: MetadataInput) -> dict[str, Any]:
    """
    The ``metadata`` argument as a dict of its own.

    Parameters
    ----------
    metadata
        A dict, or a function that returns one.

    Returns
    -------
    dict

    Raises
    ------
    TypeError
        It is something else, or holds what JSON has no form for.

    Examples
    --------
    >>> user_metadata(lambda: {"owner": "sales"})
    {'owner': 'sales'}
    """
    found = metadata() if callable(metadata) else metadata
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise TypeError(
            f"metadata has to be a dict (or a function returning one), got {type(found).__name__}."
        )
    return {_metadata_key(key): _as_json(key, value) for key, value in found.items()}


def _metadata_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"Keys of metadata have to be str, got {key!r} of type {type(key).__name__}.")
    return key


def _as_json(key: object, value: Any) -> Any:
    """A value as it will be read back, lists for tuples."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"The metadata entry {key!r} is not JSON serializable: {error}.") from error


def check_serializer(serializer: Any) -> DataFrameSerializer:
    """
    The ``df_serializer`` argument.

    Parameters
    ----------
    serializer
        A serializer, or None for the default.

    Returns
    -------
    DataFrameSerializer

    Raises
    ------
    TypeError
        It is something else.
    """
    if serializer is None:
        default: DataFrameSerializer = default_serializer()
        return default
    if not isinstance(serializer, DataFrameSerializer):
        raise TypeError(f"df_serializer has to be a DataFrameSerializer, got {type(serializer).__name__}.")
    return serializer


def check_columns(name: str, columns: Any, available: Iterable[str], uuid: str) -> tuple[str, ...] | None:
    """
    An argument that is a list of columns of a dataset.

    Parameters
    ----------
    name
        Name of the argument.
    columns
        The list, or None.
    available
        Columns of the dataset.
    uuid
        The dataset.

    Returns
    -------
    tuple of str or None

    Raises
    ------
    TypeError
        It is no list: a text would be a list of letters.
    ValueError
        A column does not exist, or is named twice.

    Examples
    --------
    >>> check_columns("columns", ["CITI"], ["CITY", "DAY"], "geodata")
    Traceback (most recent call last):
    ...
    ValueError: columns of dataset 'geodata': unknown column CITI; did you mean CITY? available: CITY, DAY
    """
    if columns is None:
        return None
    if not isinstance(columns, list):
        raise TypeError(
            f"{name} has to be a list of columns, got {columns!r} of type {type(columns).__name__}."
        )
    known = list(available)
    unknown = set(columns) - set(known)
    if unknown:
        raise ValueError(f"{name} of dataset {uuid!r}: {unknown_names('column', unknown, known)}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"{name} of dataset {uuid!r} has duplicates: {', '.join(columns)}")
    return tuple(columns)


def check_table(dataset: DatasetMetadata, table_name: str | None) -> str:
    """
    The table of a dataset that is meant.

    Parameters
    ----------
    dataset
        The dataset.
    table_name
        Name of the table; None for the only one.

    Returns
    -------
    str

    Raises
    ------
    RuntimeError
        The dataset has several tables and none is named, or not this one.
    """
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
    """
    The partition keys of a dataset that is there already.

    Parameters
    ----------
    dataset
        The dataset.
    partition_on
        What the user gave; nothing is fine.

    Returns
    -------
    tuple of str

    Raises
    ------
    ValueError
        Other columns were given, or in another order.
    """
    stored = tuple(dataset.partition_keys)
    if partition_on and tuple(partition_on) != stored:
        raise ValueError(
            f"Incompatible set of partition keys: dataset {dataset.uuid!r} is partitioned by {list(stored)}, "
            f"but partition_on is {list(partition_on)}"
        )
    return stored
