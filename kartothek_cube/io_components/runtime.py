"""Threads, slices of work and progress."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import chain, islice
from math import ceil
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kartothek_cube.core import tuning
from kartothek_cube.core.arguments import check_flag
from kartothek_cube.core.arrow import Ints
from kartothek_cube.core.errors import MissingFileError
from kartothek_cube.core.hooks import set_variable
from kartothek_cube.core.store import BlobStore, StoreFactory, StoreInput
from kartothek_cube.core.store.resolve import ensure_store, lazy_store
from kartothek_cube.core.uuid import gen_uuid

T = TypeVar("T")
R = TypeVar("R")

_THREAD_LIMIT: ContextVar[int | None] = ContextVar("kartothek_cube_threads", default=None)


def limit_threads(threads: int | None) -> AbstractContextManager[None]:
    """Use at most so many threads within the block; None for no limit."""
    return set_variable(_THREAD_LIMIT, threads)


def apply_thread_limit(threads: int) -> int:
    """So many threads, or fewer within `limit_threads`."""
    limit = _THREAD_LIMIT.get()
    return threads if limit is None else min(threads, limit)


def store_factory(store: StoreInput) -> StoreFactory:
    """Factory for any kind of store argument; it can be pickled if the store can."""
    if isinstance(store, str | os.PathLike):
        return lazy_store(store)
    return store if callable(store) else partial(ensure_store, store)


def is_same_store(first: BlobStore, second: BlobStore, uuid: str) -> bool:
    """Whether a key that is written to the second store appears in the first one."""
    # It has the form of a temporary file of the dataset: should this process die, the next garbage collection
    # deletes it.
    key = f"{uuid}.{gen_uuid()}.tmp"
    second.put(key, b"")
    try:
        # or a garbage collection has deleted it at this moment
        return first.exists(key) or not second.exists(key)
    finally:
        second.delete([key])


def available_cores() -> int:
    """Number of processors that this process may use."""
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return apply_thread_limit(len(affinity) or os.cpu_count() or 1)


def batched(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Slices of at most ``size`` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def ordered_map(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Results in the order of the items, with so many calls at once; the first error is raised."""
    workers, rest = apply_thread_limit(threads), iter(items)
    first = list(islice(rest, 2))
    if workers <= 1 or len(first) < 2:
        yield from map(function, chain(first, rest))
    else:
        # twice as many: a slow call at the head leaves no thread idle
        yield from _map_in_pool(function, chain(first, rest), workers, 2 * workers)


def prefetch_map(function: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """Results in the order of the items, of which at most ``threads`` are made before they are asked for."""
    workers = min(apply_thread_limit(threads), len(items))
    # the first alone: a consumer that needs no more, as of LIMIT 1, stops after it
    yield from map(function, items[: 1 if workers > 1 else None])
    if workers > 1:
        yield from _map_in_pool(function, items[1:], workers, workers)


def _map_in_pool(function: Callable[[T], R], items: Iterable[T], workers: int, ahead: int) -> Iterator[R]:
    context = copy_context()  # the limit of threads and the listener for progress

    def run(item: T) -> R:
        return context.copy().run(function, item)

    pool = ThreadPoolExecutor(workers, "kartothek_cube")
    try:
        results: deque[Future[R]] = deque()
        for item in items:
            results.append(pool.submit(run, item))
            if len(results) == ahead:
                yield results.popleft().result()
        while results:
            yield results.popleft().result()
    finally:
        # the garbage collector may close this generator in a thread of the pool, which cannot wait for itself
        with suppress(RuntimeError):
            pool.shutdown(cancel_futures=True)


def mean_size(blobs: BlobStore, keys: Sequence[str]) -> float:
    """Mean bytes of a sample of files; 0 for no files."""

    def size(key: str) -> int:
        try:
            return blobs.size(key)
        except KeyError as error:
            raise MissingFileError(key) from error

    threads = 1 if blobs.is_local else tuning.REMOTE_REQUESTS
    return sum(ordered_map(size, keys, threads)) / len(keys) if keys else 0.0


def split_by_weight(weights: npt.NDArray[np.float64], least: int, size: int) -> Ints:
    """Bounds of slices of equal weight: at least so many if they are worth a task, by size more."""
    ends = np.cumsum(weights)
    total = float(ends[-1])
    n_slices = max(ceil(total / size), min(least, ceil(total / tuning.MIN_TASK_BYTES)), 1)
    if n_slices == 1:
        return np.array([0, len(weights)])
    # those that end before each item; items may be larger than slices
    ended = np.floor(ends[:-1] * (n_slices / total))
    return np.concatenate([[0], np.flatnonzero(np.diff(ended, prepend=0)) + 1, [len(weights)]])


def scan_bounds(weights: npt.NDArray[np.float64]) -> Ints:
    """Bounds of consecutive slices for a scan, by bytes: 1, 1, 2, 4, ... items, then slices of equal weight.

    A consumer that needs few rows reads few items; one that reads all of them gets large slices.

    >>> scan_bounds(np.full(9, 10.0)).tolist()
    [0, 1, 2, 4, 8, 9]
    """
    # a consumer that stops has read one block too many
    size = max(tuning.BLOCK_BYTES // 8, 1)
    doubled = [0]
    ends = np.cumsum(weights)
    while doubled[-1] < len(weights):
        stop = min(max(1, 2 * doubled[-1]), len(weights))
        if ends[stop - 1] - (ends[doubled[-1] - 1] if doubled[-1] else 0) > size and doubled[-1]:
            break
        doubled.append(stop)
    start = doubled[-1]
    if start == len(weights):
        return np.array(doubled)
    bounds: Ints = np.append(doubled[:-1], start + split_by_weight(weights[start:], 1, size))
    return bounds


_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} files{postfix} [{elapsed}<{remaining}]"
_TICK_SECONDS = 0.5
_UNITS = ("kB", "MB", "GB", "TB", "PB")


class ProgressListener(Protocol):
    """Listener of the progress of work on files, called from any thread."""

    def expect(self, files: int) -> None:
        """Add files to the total."""

    def count(self, nbytes: int) -> None:
        """Count a file as done."""


_LISTENER: ContextVar[ProgressListener | None] = ContextVar("kartothek_cube_progress", default=None)


def report_progress_to(listener: ProgressListener | None) -> AbstractContextManager[None]:
    """Report the progress of the work within the block to a listener; None for no listener."""
    return set_variable(_LISTENER, listener)


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


def progress_advance_files(blobs: BlobStore, keys: Iterable[str]) -> None:
    """Report that files are done; their sizes are looked up only if there is a listener."""
    listener = _LISTENER.get()
    if listener is not None:
        for key in keys:
            listener.count(blobs.size(key))


def bytes_text(nbytes: float) -> str:
    """A number of bytes in the largest unit that fits."""
    if abs(nbytes) < 1000:
        return f"{nbytes:.0f} B"
    for unit in _UNITS:
        nbytes /= 1000
        if abs(nbytes) < 999.95 or unit == _UNITS[-1]:
            break
    return f"{nbytes:,.1f} {unit}"


class ProgressBar:
    """Progress bar of files, bytes and the remaining time; options are keywords of tqdm."""

    def __init__(self, title: str, **options: Any) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            command = "pip install 'kartothek_cube[cli]'"
            raise ImportError(f"progress=True needs tqdm: {command}", name="tqdm") from error
        self._lock = threading.Lock()
        self._bytes = 0
        # without a least number of files, so that the time is shown as well
        self._bar: Any = tqdm(total=0, desc=title, unit="file", bar_format=_FORMAT, miniters=0, **options)
        self._is_closed = threading.Event()
        threading.Thread(target=self._show_time, name="kartothek_cube_progress", daemon=True).start()

    def _show_time(self) -> None:
        """Show that time passes while no file is done: in joins, sorts and commits, and for large files."""
        while not self._is_closed.wait(_TICK_SECONDS):
            with self._lock:
                self._bar.update(0)

    def expect(self, files: int) -> None:
        """Add files to the total."""
        with self._lock:
            self._bar.total += files

    def count(self, nbytes: int) -> None:
        """Count a file as done."""
        with self._lock:
            self._bytes += nbytes
            self._bar.total = max(self._bar.total, self._bar.n + 1)
            self._bar.set_postfix_str(bytes_text(self._bytes), refresh=False)
            self._bar.update(1)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._is_closed.set()
        with self._lock:
            self._bar.close()


@contextmanager
def progress_bar(title: str, progress: bool, **options: Any) -> Iterator[None]:
    """Show the progress of the work within the block; options are keywords of tqdm."""
    check_flag("progress", progress)
    if not progress:
        yield
        return
    bar = ProgressBar(title, **options)
    try:
        with report_progress_to(bar):
            yield
    finally:
        bar.close()
