"""Encodings of integers in data files: bit-packed differences, and plain values."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.serialization import ParquetSerializer

ROWS, FILES = int(os.environ["BENCH_X"]) * 15_000, 10


def make_values(kind):
    """Integers as keys have them, and as payload."""
    random = np.random.default_rng(0)
    return {
        "ids": lambda: np.arange(ROWS),
        "with holes": lambda: np.sort(random.choice(10 * ROWS, ROWS, replace=False)),
        "hours": lambda: (np.arange(ROWS) * 3_600_000_000).astype("M8[us]"),
        "random": lambda: random.integers(0, 1_000_000, ROWS),
    }[kind]()


class Integers:
    """Files of one column: as the library writes them, plain, and compressed with zstd."""

    params = (["ids", "with holes", "hours", "random"], ["library", "plain", "zstd"])
    param_names = ("values", "encoding")

    def setup(self, kind, encoding):
        self.parts = np.array_split(make_values(kind), FILES)
        self.files = [str(Path.cwd() / f"{number}.parquet") for number in range(FILES)]
        self.encoding = encoding
        self.time_write(kind, encoding)

    def time_write(self, kind, encoding):
        for part, file in zip(self.parts, self.files, strict=True):
            table = pa.table({"v": part})
            if encoding == "library":
                ParquetSerializer("ZSTD").write_table(table, file)
            else:
                codec = "zstd" if encoding == "zstd" else "none"
                pq.write_table(table, file, compression=codec, use_dictionary=False)

    def time_read(self, kind, encoding):
        pl.scan_parquet(self.files, glob=False).collect()

    def track_bytes(self, kind, encoding):
        return sum(map(os.path.getsize, self.files))
