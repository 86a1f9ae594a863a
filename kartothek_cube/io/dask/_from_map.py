"""dask DataFrames with one partition per piece of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.dataframe as dd

from kartothek_cube.io.dask._executor import OpaqueSequence

__all__ = ("from_map",)


def from_map(
    function: Callable[..., Any],
    items: Sequence[Any],
    label: str,
    meta: Any,
    *args: Any,
    divisions: tuple[Any, ...] | None = None,
) -> Any:
    """
    A dask DataFrame or Series of one partition per item; without items one partition, made of None.

    Parameters
    ----------
    function
        Makes a partition: ``function(item, *args)``. If it takes ``columns``, it is told which are used.
    items
        One for each partition.
    label
        What the names of the tasks begin with.
    meta
        Partition without rows.
    args
        What the tasks share.
    divisions
        Values of the index at which partitions begin, and the last one.
    """
    options = {"args": list(args), "meta": meta, "label": label, "divisions": divisions}
    # dask would turn all objects, such as dates, bytes and lists, into text
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(function, OpaqueSequence(items or [None]), **options)
