"""Type aliases of arrays, and of tables that functions take as input."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

__all__ = (
    "ArrowStream",
    "Frame",
    "Ints",
    "Mask",
)


class ArrowStream(Protocol):
    """Tables of other libraries, such as polars, that Arrow reads without a copy."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hand out a stream of record batches."""


Frame: TypeAlias = pd.DataFrame | pa.Table | pa.RecordBatch | ArrowStream
"""A table of input."""


#: positions, codes, counts
Ints: TypeAlias = npt.NDArray[np.int64]
#: selection: one bool per row, value or partition
Mask: TypeAlias = npt.NDArray[np.bool_]
