"""Helpers around the arguments of façades: normal forms, and what kartothek users call directly."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import pandas as pd

__all__ = (
    "align_categories",
    "combine_metadata",
    "extract_duplicates",
    "normalize_arg",
    "normalize_args",
    "sort_values_categorical",
)

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Hashable)

#: arguments that are lists of columns (or of scopes), in whatever form users give them
_LISTS = ("partition_on", "secondary_indices", "sort_partitions_by", "delete_scope", "bucket_by")
#: the same, where None does not mean the empty list
_OPTIONAL_LISTS = ("dispatch_by",)


def normalize_arg(name: str, value: Any) -> list[Any] | None:
    """
    Bring an argument that stands for a list into that form.

    Parameters
    ----------
    name
        Name of the argument.
    value
        A scalar stands for a list of one, None for an empty list (where it has no meaning of its own).

    Returns
    -------
    list or None

    Raises
    ------
    ValueError
        The value has no order: a set or a dict.

    Examples
    --------
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
    """
    Decorate a function so that its arguments which are lists of columns or scopes always arrive as lists.

    These are ``partition_on``, ``secondary_indices``, ``sort_partitions_by``, ``delete_scope``, ``bucket_by``
    and ``dispatch_by``; see :func:`normalize_arg`.

    Parameters
    ----------
    function
        Any function that has some of these parameters.

    Returns
    -------
    callable
        With the signature of the function.

    Examples
    --------
    >>> @normalize_args
    ... def plan(store, partition_on=None, dispatch_by=None):
    ...     return partition_on, dispatch_by
    >>> plan("hmemory://", "COUNTRY_CODE")
    (['COUNTRY_CODE'], None)
    """
    signature = inspect.signature(function)
    concerned = [name for name in (*_LISTS, *_OPTIONAL_LISTS) if name in signature.parameters]

    @functools.wraps(function)
    def normalized(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name in concerned:
            bound.arguments[name] = normalize_arg(name, bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return normalized


def extract_duplicates(items: Iterable[H] | None) -> list[H]:
    """
    What occurs more than once.

    Parameters
    ----------
    items
        Anything hashable.

    Returns
    -------
    list
        Each duplicate once, in the order of the first appearance.

    Examples
    --------
    >>> extract_duplicates(["CITY", "DAY", "CITY"])
    ['CITY']
    """
    return [item for item, count in Counter(items or ()).items() if count > 1]


def combine_metadata(
    dataset_metadata: Sequence[Mapping[str, Any] | None], append_to_list: bool = True
) -> dict[str, Any]:
    """
    Merge the metadata of several sources, independent of their order as far as lists allow.

    Parameters
    ----------
    dataset_metadata
        The dicts; None counts as empty.
    append_to_list
        Whether different lists are put one after the other; else they are dropped as other conflicts are.

    Returns
    -------
    dict
        All keys on whose value the sources agree. None agrees with everything, dicts are merged key by key;
        other values that differ are dropped.

    Examples
    --------
    >>> combine_metadata([{"owner": "sales", "runs": [1]}, {"owner": "sales", "runs": [2], "host": None}])
    {'owner': 'sales', 'runs': [1, 2], 'host': None}
    """
    given = [source for source in dataset_metadata if source]
    combined: dict[str, Any] = {}
    for key in dict.fromkeys(key for source in given for key in source):
        values = [source[key] for source in given if key in source]
        agreed, value = _agree(values, append_to_list)
        if agreed:
            combined[key] = value
    return combined


def _agree(values: list[Any], append_to_list: bool) -> tuple[bool, Any]:
    """Whether there is one value to stand for several, and which."""
    known = [value for value in values if value is not None]
    if not known or all(value == known[0] for value in known):
        return True, known[0] if known else None
    if all(isinstance(value, Mapping) for value in known):
        merged = combine_metadata(known, append_to_list)
        return bool(merged), merged
    if append_to_list and all(isinstance(value, list) for value in known):
        return True, [item for value in known for item in value]
    return False, None


def align_categories(dfs: Sequence[pd.DataFrame], categoricals: Iterable[str]) -> list[pd.DataFrame]:
    """
    Give categorical columns the same categories in all frames, so that a concatenation keeps them.

    Parameters
    ----------
    dfs
        The frames; they are not changed.
    categoricals
        Columns that are categorical in all of them.

    Returns
    -------
    list of pandas.DataFrame
        The categories are those of the longest frame, then all others in sorted order.

    Examples
    --------
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
    """
    Sort a frame; categorical columns by the order of their values, not of their categories.

    Parameters
    ----------
    df
        The frame; it is not changed.
    columns
        Columns to sort by, the first one counts most.

    Returns
    -------
    pandas.DataFrame
        With a fresh index; the categories of all categorical columns are sorted and ordered.

    Examples
    --------
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
