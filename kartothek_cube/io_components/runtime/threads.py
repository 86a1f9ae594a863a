"""Running many small pieces of work in this process: in order, on one thread or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Protocol, TypeVar

from kartothek_cube.core.store.resolve import ensure_store
from kartothek_cube.core.typing import StoreFactory, StoreInput

__all__ = (
    "REMOTE_REQUESTS",
    "ProgressListener",
    "limit_threads",
    "available_cores",
    "batched",
    "progress_advance",
    "progress_add_total",
    "ordered_map",
    "store_factory",
    "report_progress_to",
)

#: requests under way at once to a store that is not a local directory
REMOTE_REQUESTS = 64

T = TypeVar("T")
R = TypeVar("R")


class ProgressListener(Protocol):
    """Is told how the work on files goes on, from any thread."""

    def expect(self, files: int) -> None:
        """More files will have to be read or written."""

    def count(self, nbytes: int) -> None:
        """One of them is done."""


_WATCHER: ContextVar[ProgressListener | None] = ContextVar("kartothek_cube_watcher", default=None)
_LIMIT: ContextVar[int | None] = ContextVar("kartothek_cube_threads", default=None)


@contextmanager
def report_progress_to(watcher: ProgressListener | None) -> Iterator[None]:
    """
    Let somebody know how the work goes on that is started within the block.

    Parameters
    ----------
    watcher
        Who is told; None for nobody.
    """
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def progress_add_total(files: int) -> None:
    """Tell the watcher, if there is one, that this many files come."""
    watcher = _WATCHER.get()
    if watcher is not None:
        watcher.expect(files)


def progress_advance(nbytes: int | Callable[[], int]) -> None:
    """Tell the watcher, if there is one, that a file of this size is done; a function is asked only then."""
    watcher = _WATCHER.get()
    if watcher is not None:
        watcher.count(nbytes if isinstance(nbytes, int) else nbytes())


@contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """
    Use no more threads than these within the block.

    Parameters
    ----------
    threads
        How many; None for as many as seem useful.

    Examples
    --------
    >>> with at_most(1):
    ...     available_cores()
    1
    """
    token = _LIMIT.set(threads)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def _limited(threads: int) -> int:
    limit = _LIMIT.get()
    return threads if limit is None else min(threads, limit)


def _inherit_context(watcher: ProgressListener | None, limit: int | None) -> None:
    """Let a thread know what the one knows that started it."""
    _WATCHER.set(watcher)
    _LIMIT.set(limit)


def store_factory(store: StoreInput) -> StoreFactory:
    """A factory for any kind of store argument; it can be pickled if the store can."""
    return store if callable(store) else partial(ensure_store, store)


def available_cores() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return _limited(len(os.sched_getaffinity(0)) or 1)
    return _limited(os.cpu_count() or 1)


def batched(items: Sequence[T], size: int) -> list[Sequence[T]]:
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
    workers = min(_limited(threads), len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    context = (_WATCHER.get(), _LIMIT.get())
    with ThreadPoolExecutor(
        workers, "kartothek_cube", initializer=_inherit_context, initargs=context
    ) as pool:
        yield from pool.map(function, items)
