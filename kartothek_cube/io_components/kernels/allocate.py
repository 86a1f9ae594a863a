"""Arrays in the memory pool of Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ("allocate_array",)


def allocate_array(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """
    An uninitialised array in the memory pool of Arrow.

    >>> array = allocate_array(2, "int16")
    >>> array[:] = [20, 30]
    >>> array
    array([20, 30], dtype=int16)
    """
    # NumPy returns large arrays to the system, which clears every page again for the next one;
    # Arrow's pool keeps them for the next block of rows
    dtype = np.dtype(dtype)
    return np.frombuffer(pa.allocate_buffer(length * dtype.itemsize), dtype, length)
