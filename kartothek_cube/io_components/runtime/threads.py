"""Threads of this process: an ordered map, its limit, and the progress listener that threads inherit."""

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

#: concurrent requests to a store that is not a local directory: their latency is the limit, not the cores
REMOTE_REQUESTS = 64

T = TypeVar("T")
R = TypeVar("R")


class ProgressListener(Protocol):
    """Is told the progress of work on files, from any thread."""

    def expect(self, files: int) -> None:
        """Add files to the total."""

    def count(self, nbytes: int) -> None:
        """Count a file as done."""


_LISTENER: ContextVar[ProgressListener | None] = ContextVar("kartothek_cube_progress", default=None)
_THREAD_LIMIT: ContextVar[int | None] = ContextVar("kartothek_cube_threads", default=None)


@contextmanager
def report_progress_to(listener: ProgressListener | None) -> Iterator[None]:
    """Report the progress of the work within the block to a listener; None for no listener."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def progress_add_total(files: int) -> None:
    """Report that so many files will be read or written."""
    listener = _LISTENER.get()
    if listener is not None:
        listener.expect(files)


def progress_advance(nbytes: int | Callable[[], int]) -> None:
    """Report that a file of this size is done; a function is called only if there is a listener."""
    listener = _LISTENER.get()
    if listener is not None:
        listener.count(nbytes if isinstance(nbytes, int) else nbytes())


@contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """
    Use at most so many threads within the block; None for no limit.

    >>> with limit_threads(1):
    ...     available_cores()
    1
    """
    token = _THREAD_LIMIT.set(threads)
    try:
        yield
    finally:
        _THREAD_LIMIT.reset(token)


def _apply_limit(threads: int) -> int:
    limit = _THREAD_LIMIT.get()
    return threads if limit is None else min(threads, limit)


def _inherit_context(listener: ProgressListener | None, limit: int | None) -> None:
    """Give a thread the context of the one that started it."""
    _LISTENER.set(listener)
    _THREAD_LIMIT.set(limit)


def store_factory(store: StoreInput) -> StoreFactory:
    """Factory for any kind of store argument; it can be pickled if the store can."""
    return store if callable(store) else partial(ensure_store, store)


def available_cores() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return _apply_limit(len(os.sched_getaffinity(0)) or 1)
    return _apply_limit(os.cpu_count() or 1)


def batched(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """
    Slices of at most ``size`` items.

    >>> batched(["DE", "FR", "UK"], size=2)
    [['DE', 'FR'], ['UK']]
    """
    return [items[start : start + size] for start in range(0, len(items), size)]


def ordered_map(function: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """
    Results in the order of the items, with so many calls at once; the first error is raised.

    >>> list(ordered_map(str.upper, ["hamburg", "dresden"], threads=2))
    ['HAMBURG', 'DRESDEN']
    """
    workers = min(_apply_limit(threads), len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    context = (_LISTENER.get(), _THREAD_LIMIT.get())
    with ThreadPoolExecutor(
        workers, "kartothek_cube", initializer=_inherit_context, initargs=context
    ) as pool:
        yield from pool.map(function, items)
