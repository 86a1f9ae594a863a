"""Arrays in memory that goes back to the system as soon as nobody needs them."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ("in_own_pages",)

#: below so many bytes, pages of its own are too dear for an array, and there could be too many of them
_LARGE = 1 << 19


def in_own_pages(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """
    A copy of an array in memory of its own.

    What an allocator gets back from a thread it keeps for later. Columns that are freed one after the other,
    while those of a DataFrame are filled, would so count twice.

    Parameters
    ----------
    values
        An array with one dimension.

    Returns
    -------
    numpy.ndarray
        ``values`` itself if it is small.

    Examples
    --------
    >>> in_own_pages(np.array([20, 30]))
    array([20, 30])
    """
    if values.nbytes < _LARGE:
        return values
    try:
        pages = _pages(values.nbytes)
    except OSError:  # the system limits how many there are
        return values
    copy = np.frombuffer(pages, values.dtype, len(values))
    copy[:] = values
    return copy


def _pages(size: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
