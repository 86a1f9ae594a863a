"""Left joins of cells: how values are taken where some rows have no match."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa

from kartothek_cube.io_components.kernels import take_values

ROWS = int(os.environ["BENCH_X"]) * 2_500


class Unmatched:
    """Floats of an enrichment that lacks a share of the cells, by the library and by positions with nulls."""

    params = ([0.03, 0.5], ["library", "nulls"])
    param_names = ("missing", "positions")

    def setup(self, missing, positions):
        random = np.random.default_rng(0)
        is_match = random.random(ROWS) >= missing
        self.positions = np.where(is_match, np.cumsum(is_match) - 1, -1)
        self.values = pa.array(random.random(int(is_match.sum())))

    def time_take(self, missing, positions):
        self.take(positions)

    def take(self, positions):
        if positions == "library":
            return take_values(self.values, self.positions, missing=True)
        return self.values.take(pa.array(self.positions, mask=self.positions < 0))
