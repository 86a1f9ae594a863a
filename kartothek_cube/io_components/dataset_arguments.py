"""Arguments of the dataset façades; kartothek has the helpers for lists, metadata and frames in ``utils``."""

from __future__ import annotations

import functools
import inspect
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import pandas as pd

from kartothek_cube.core import errors, naming
from kartothek_cube.core.commit.change import check_settings
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.factory import DatasetAsOf, DatasetFactory, _ensure_factory
from kartothek_cube.core.store import StoreInput
from kartothek_cube.io_components.runtime import store_factory
from kartothek_cube.serialization import DataFrameSerializer, default_serializer

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Hashable)

#: accepted types of the ``metadata`` argument
MetadataInput: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None


def dataset_factory(
    dataset_uuid: str | None,
    store: StoreInput | None,
    factory: DatasetFactory | None = None,
    *,
    load_schema: bool = True,
    as_of: DatasetAsOf | None = None,
) -> DatasetFactory:
    """Factory of the dataset that the arguments of a façade name; either ``factory`` or the two others.

    >>> dataset_factory("geodata", "hmemory://").dataset_uuid
    'geodata'
    """
    open_store = None if store is None else store_factory(store)
    dataset = _ensure_factory(dataset_uuid, open_store, factory, load_schema)
    naming.check_uuid(dataset.dataset_uuid)
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
    values = {_check_metadata_key(key): _as_json(key, value) for key, value in entries.items()}
    check_settings(values)
    return values


def _check_metadata_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"Keys of metadata have to be str, got {key!r} of type {type(key).__name__}.")
    return key


def to_json(value: Any) -> Any:
    """A value as it will be read back, with lists for tuples and texts as keys."""
    return json.loads(json.dumps(value, allow_nan=False), object_pairs_hook=_to_dict)


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key in extract_duplicates(key for key, _ in pairs):
        raise ValueError(f"several keys are {key!r} as text")
    return dict(pairs)


def _as_json(key: object, value: Any) -> Any:
    try:
        return to_json(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"The metadata entry {key!r} is not JSON serializable: {error}.") from error


def check_serializer(serializer: Any, default: DataFrameSerializer | None = None) -> DataFrameSerializer:
    """The ``df_serializer`` argument; a default serializer for None."""
    if serializer is None:
        return default_serializer() if default is None else default
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
        kind = type(columns).__name__
        raise TypeError(f"{name} has to be a list of columns, got {columns!r} of type {kind}.")
    available = list(available)
    errors.check_names(f"{name} of dataset {uuid!r}: ", "column", columns, available)
    if len(set(columns)) < len(columns):
        raise ValueError(f"{name} of dataset {uuid!r} has duplicates: {', '.join(columns)}")
    return tuple(columns)


def check_table(dataset: DatasetMetadata, table_name: str | None) -> str:
    """Table of a dataset by name, or its only table."""
    tables = dataset.tables or [dataset.table_name]
    if table_name is None:
        if len(tables) > 1:
            names = ", ".join(tables)
            raise RuntimeError(
                f"Dataset {dataset.uuid!r} has several tables, name one by table_name: {names}"
            )
        return tables[0]
    naming.check_table_name(table_name)
    errors.check_names(f"Dataset {dataset.uuid!r}: ", "table", [table_name], tables, error=RuntimeError)
    return table_name


def check_partition_keys(dataset: DatasetMetadata, partition_on: Sequence[str]) -> None:
    """Check that ``partition_on`` is empty, or the partition keys of an existing dataset."""
    stored = tuple(dataset.partition_keys)
    if partition_on and tuple(partition_on) != stored:
        raise ValueError(
            f"Incompatible set of partition keys: dataset {dataset.uuid!r} is partitioned by {list(stored)}, "
            f"but partition_on is {list(partition_on)}"
        )


def check_new_indices(uuid: str, columns: Iterable[str], keys: Iterable[str]) -> None:
    """Check that no column to index is a partition key."""
    overlap = set(columns).intersection(keys)
    if overlap:
        raise RuntimeError(
            f"Cannot create a secondary index on partition column(s) {', '.join(sorted(overlap))} of dataset "
            f"{uuid!r}: their values are in the labels of the partitions already"
        )


# -- lists, metadata and frames, which users of kartothek call directly --------------------------------------

#: arguments that are lists of columns, or of delete scopes
_LISTS = ("partition_on", "secondary_indices", "sort_partitions_by", "delete_scope", "bucket_by")
#: the same, where None does not mean the empty list
_OPTIONAL_LISTS = ("dispatch_by",)


def normalize_arg(name: str, value: Any) -> list[Any] | None:
    """An argument that stands for a list as a list; a scalar stands for a list of one, None for no items.

    >>> normalize_arg("partition_on", "COUNTRY_CODE"), normalize_arg("secondary_indices", None)
    (['COUNTRY_CODE'], [])
    >>> normalize_arg("partition_on", {"COUNTRY_CODE"})
    Traceback (most recent call last):
    ...
    ValueError: partition_on is a set, whose order is not defined; use a list.
    """
    if value is None:
        return None if name in _OPTIONAL_LISTS else []
    if isinstance(value, (set, frozenset, Mapping)):
        raise ValueError(f"{name} is a {type(value).__name__}, whose order is not defined; use a list.")
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return [value]
    return list(value)


def normalize_args(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its list arguments arrive as by :func:`normalize_arg`.

    >>> @normalize_args
    ... def plan(store, partition_on=None, dispatch_by=None):
    ...     return partition_on, dispatch_by
    >>> plan("hmemory://", "COUNTRY_CODE")
    (['COUNTRY_CODE'], None)
    """
    signature = inspect.signature(function)
    list_arguments = [name for name in (*_LISTS, *_OPTIONAL_LISTS) if name in signature.parameters]

    @functools.wraps(function)
    def normalized(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name in list_arguments:
            bound.arguments[name] = normalize_arg(name, bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return normalized


def extract_duplicates(items: Iterable[H] | None) -> list[H]:
    """Items that occur more than once, in the order of their first appearance.

    >>> extract_duplicates(["CITY", "DAY", "CITY"])
    ['CITY']
    """
    return [item for item, count in Counter(items or ()).items() if count > 1]


def combine_metadata(
    dataset_metadata: Sequence[Mapping[str, Any] | None], append_to_list: bool = True
) -> dict[str, Any]:
    """Merge metadata key by key: values that differ are dropped, different lists are concatenated.

    None agrees with every value. ``append_to_list=False`` drops different lists like other values.

    >>> combine_metadata([{"owner": "sales", "runs": [1]}, {"owner": "sales", "runs": [2], "host": None}])
    {'owner': 'sales', 'runs': [1, 2], 'host': None}
    """
    sources = [metadata for metadata in dataset_metadata if metadata]
    combined: dict[str, Any] = {}
    for key in dict.fromkeys(key for metadata in sources for key in metadata):
        values = [metadata[key] for metadata in sources if key in metadata]
        agreed, value = _merge_values(values, append_to_list)
        if agreed:
            combined[key] = value
    return combined


def _merge_values(values: list[Any], append_to_list: bool) -> tuple[bool, Any]:
    """Whether several values can be merged into one, and that value."""
    values = [value for value in values if value is not None]
    if not values or all(value == values[0] for value in values):
        return True, values[0] if values else None
    if all(isinstance(value, Mapping) for value in values):
        merged = combine_metadata(values, append_to_list)
        return bool(merged), merged
    if append_to_list and all(isinstance(value, list) for value in values):
        return True, [item for value in values for item in value]
    return False, None


def align_categories(dfs: Sequence[pd.DataFrame], categoricals: Iterable[str]) -> list[pd.DataFrame]:
    """Copies of frames with the same categories in the given columns, so that a concatenation keeps them.

    Plain columns become categorical. The categories are those of the longest frame, then all others in sorted
    order.

    >>> north = pd.DataFrame({"CITY": pd.Categorical(["Kiel", "Bremen"])})
    >>> south = pd.DataFrame({"CITY": pd.Categorical(["Ulm"])})
    >>> align_categories([north, south], ["CITY"])[1]["CITY"].cat.categories.tolist()
    ['Bremen', 'Kiel', 'Ulm']
    """
    columns = list(categoricals)
    aligned = [df.astype(dict.fromkeys(columns, "category")) for df in dfs]
    if not aligned:
        return aligned
    longest = max(aligned, key=len)
    for column in columns:
        first = longest[column].cat.categories
        others = {value for df in aligned for value in df[column].cat.categories}.difference(first)
        categories = [*first, *sorted(others)]
        aligned = [df.assign(**{column: df[column].cat.set_categories(categories)}) for df in aligned]
    return aligned


def sort_values_categorical(df: pd.DataFrame, columns: str | Sequence[str]) -> pd.DataFrame:
    """Sorted copy of a frame with a fresh index; categorical columns by their values, which become ordered.

    >>> cities = pd.Categorical(["Ulm", "Kiel"], categories=["Ulm", "Kiel"])
    >>> sort_values_categorical(pd.DataFrame({"CITY": cities}), "CITY")["CITY"].tolist()
    ['Kiel', 'Ulm']
    """
    by = [columns] if isinstance(columns, str) else list(columns)
    ordered = {
        str(name): df[name].cat.reorder_categories(sorted(df[name].cat.categories), ordered=True)
        for name, dtype in df.dtypes.items()
        if isinstance(dtype, pd.CategoricalDtype)
    }
    return df.assign(**ordered).sort_values(by=by, kind="stable", ignore_index=True)
