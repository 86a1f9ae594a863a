"""dask DataFrames with one partition per item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.dataframe as dd

from kartothek_cube.io.dask._dask_executor import OpaqueSequence

__all__ = ("from_map",)


def from_map(
    function: Callable[..., Any],
    items: Sequence[Any],
    label: str,
    meta: Any,
    *args: Any,
    divisions: tuple[Any, ...] | None = None,
) -> Any:
    """A dask collection of ``function(item, *args)`` per item; without items of one None."""
    options = {"args": list(args), "meta": meta, "label": label, "divisions": divisions}
    # dask would turn all objects, such as dates, bytes and lists, into text
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(function, OpaqueSequence(items or [None]), **options)
