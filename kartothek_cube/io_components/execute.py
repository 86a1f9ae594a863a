"""Running many small pieces of work in this process: in order, on one thread or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from kartothek_cube.core.typing import StoreFactory, StoreInput
from kartothek_cube.core.utils import ensure_store

__all__ = ("REMOTE_REQUESTS", "available_cores", "blocks", "ordered_map", "store_factory")

#: requests under way at once to a store that is not a local directory
REMOTE_REQUESTS = 16

T = TypeVar("T")
R = TypeVar("R")


def store_factory(store: StoreInput) -> StoreFactory:
    """A factory for any kind of store argument; it can be pickled if the store can."""
    return store if callable(store) else partial(ensure_store, store)


def available_cores() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def blocks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """
    Split a list of work.

    Parameters
    ----------
    items
        The work.
    size
        How much of it makes a block; the last one may have less.

    Returns
    -------
    list of sequence

    Examples
    --------
    >>> blocks(["DE", "FR", "UK"], size=2)
    [['DE', 'FR'], ['UK']]
    """
    return [items[start : start + size] for start in range(0, len(items), size)]


def ordered_map(function: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """
    Apply a function to all items; results come in the order of the items, the first error is raised.

    Parameters
    ----------
    function
        What to do; called from several threads if ``threads`` is above 1.
    items
        Its arguments.
    threads
        How many calls may be under way at once.

    Examples
    --------
    >>> list(ordered_map(str.upper, ["hamburg", "dresden"], threads=2))
    ['HAMBURG', 'DRESDEN']
    """
    if threads <= 1 or len(items) <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix="kartothek_cube") as pool:
        yield from pool.map(function, items)
