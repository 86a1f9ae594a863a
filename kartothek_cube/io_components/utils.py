"""Helpers of kartothek for arguments of façades, which its users call directly."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import pandas as pd

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Hashable)

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
    """Copies of frames with the same categories in categorical columns, so that a concatenation keeps them.

    The categories are those of the longest frame, then all others in sorted order.

    >>> north = pd.DataFrame({"CITY": pd.Categorical(["Kiel", "Bremen"])})
    >>> south = pd.DataFrame({"CITY": pd.Categorical(["Ulm"])})
    >>> align_categories([north, south], ["CITY"])[1]["CITY"].cat.categories.tolist()
    ['Bremen', 'Kiel', 'Ulm']
    """
    aligned = list(dfs)
    if not aligned:
        return aligned
    longest = max(aligned, key=len)
    for column in categoricals:
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
