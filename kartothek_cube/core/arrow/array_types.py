"""Type aliases of numpy arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ("Ints", "Mask")

#: positions, codes, counts
Ints: TypeAlias = npt.NDArray[np.int64]
#: selection: one bool per row, value or partition
Mask: TypeAlias = npt.NDArray[np.bool_]
