"""Progress of the work on files: listeners that threads inherit, and progress bars."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

__all__ = (
    "ProgressBar",
    "ProgressListener",
    "bytes_text",
    "progress_add_total",
    "progress_advance",
    "progress_bar",
    "report_progress_to",
)

_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} files{postfix} [{elapsed}<{remaining}]"
_UNITS = ("kB", "MB", "GB", "TB", "PB")


class ProgressListener(Protocol):
    """Is told the progress of work on files, from any thread."""

    def expect(self, files: int) -> None:
        """Add files to the total."""

    def count(self, nbytes: int) -> None:
        """Count a file as done."""


_LISTENER: ContextVar[ProgressListener | None] = ContextVar("kartothek_cube_progress", default=None)


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


def bytes_text(nbytes: float) -> str:
    """
    A number of bytes in the largest unit that fits.

    >>> bytes_text(512), bytes_text(2_500_000)
    ('512 B', '2.5 MB')
    """
    if abs(nbytes) < 1000:
        return f"{nbytes:.0f} B"
    size = float(nbytes)
    for unit in _UNITS:
        size /= 1000
        if abs(size) < 999.95 or unit == _UNITS[-1]:
            break
    return f"{size:,.1f} {unit}"


class ProgressBar:
    """Progress bar of files, bytes and the remaining time; ``make`` makes it from keywords of tqdm."""

    def __init__(self, make: Callable[..., Any], title: str) -> None:
        self._lock = threading.Lock()
        self._bytes = 0
        self._bar = make(total=0, desc=title, unit="file", bar_format=_FORMAT)

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
        self._bar.close()


@contextmanager
def progress_bar(title: str, progress: bool, make: Callable[..., Any] | None = None) -> Iterator[None]:
    """Show the progress of the work within the block; ``make`` replaces tqdm, which is needed otherwise."""
    if not progress:
        yield
        return
    bar = ProgressBar(make or _tqdm(), title)
    try:
        with report_progress_to(bar):
            yield
    finally:
        bar.close()


def _tqdm() -> Callable[..., Any]:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        command = "pip install 'kartothek_cube[cli]'"
        raise ImportError(f"progress=True needs tqdm: {command}", name="tqdm") from error
    make: Callable[..., Any] = tqdm
    return make
