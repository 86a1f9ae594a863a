"""Arrays in Arrow's memory pool, which keeps what it gets back for the next block of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ("allocate_array",)


def allocate_array(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """
    An array to be filled.

    What NumPy allocates by itself goes back to the system when it is large, which clears it page by page
    for the next one who asks.

    Parameters
    ----------
    length
        Number of values.
    dtype
        Their type.

    Examples
    --------
    >>> array = pooled(2, "int16")
    >>> array[:] = [20, 30]
    >>> array
    array([20, 30], dtype=int16)
    """
    dtype = np.dtype(dtype)
    return np.frombuffer(pa.allocate_buffer(length * dtype.itemsize), dtype, length)
