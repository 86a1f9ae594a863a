"""Task sizes: work is cut into slices of about equal size, by the size of a few files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.errors import MissingFileError
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.runtime.threads import REMOTE_REQUESTS, ordered_map

__all__ = ("SAMPLE", "TASK_SIZE", "split_by_weight", "mean_size")

#: bytes in files, of the columns needed, that a task may read at once
TASK_SIZE = 64 << 20
#: files of a dataset whose sizes are taken for those of all
SAMPLE = 16
#: bytes from which a task outweighs the cost of scheduling it
_WORTH_A_TASK = 1 << 20


def mean_size(blobs: BlobStore, keys: Sequence[str]) -> float:
    """Mean bytes of a sample of files; 0 for no files."""
    threads = 1 if blobs.is_local else REMOTE_REQUESTS
    return float(np.mean(list(ordered_map(partial(_size, blobs), keys, threads)))) if keys else 0.0


def _size(blobs: BlobStore, key: str) -> int:
    try:
        return blobs.size(key)
    except KeyError as error:
        raise MissingFileError(key) from error


def split_by_weight(weights: npt.NDArray[np.float64], least: int, size: int) -> Ints:
    """
    Bounds of consecutive slices of equal weight: at least so many if they are worth a task, by size more.

    >>> split_by_weight(np.array([2.0, 2.0, 2.0, 6.0]) * 1e6, least=2, size=10**9).tolist()
    [0, 3, 4]
    """
    ends = np.cumsum(weights)
    total = float(ends[-1])
    n_slices = max(int(np.ceil(total / size)), min(least, int(np.ceil(total / _WORTH_A_TASK))), 1)
    cuts = np.searchsorted(ends, total * np.arange(1, n_slices) / n_slices, "left") + 1
    bounds: Ints = np.unique(np.concatenate([[0], cuts, [len(weights)]]))
    return bounds
