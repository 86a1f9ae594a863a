"""Worth of the constants of `kartothek_cube.core.tuning`: workloads with each of them and with other values.

usage: python asv_bench/tuning.py [NAME ...]. Values alternate; medians of seven runs, in milliseconds. The
constants that concern object stores, or datasets without a record of widths, are not among them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from unittest import mock

import numpy as np
import pandas as pd

from kartothek_cube.api.cube import C, Cube, build_cube, query_cube
from kartothek_cube.core import tuning

N = 1_500_000
RNG = np.random.default_rng(0)
CUBE = Cube(["x", "day"], ["p"], "tuning")


def build(url: str) -> None:
    """A cube of 1.5 M cells in 30 partitions, with a dataset that lacks some."""
    x = np.arange(N)
    cells = pd.DataFrame({"x": x // 250, "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(x % 250, "D")})
    cells["p"] = x // 50_000
    seed = cells.assign(v=RNG.random(N), group=x % 5_000)
    holes = cells[RNG.random(N) < 0.97]
    holes = holes.assign(w=RNG.random(len(holes)))
    build_cube({"seed": seed, "holes": holes}, CUBE, url, overwrite=True)


def workloads(url: str) -> dict[str, tuple[Callable[[], object], tuple[int, ...]]]:
    """By constant: what depends on it, and other values."""

    def join() -> object:
        return query_cube(CUBE, url)

    def condition() -> object:
        return query_cube(CUBE, url, conditions=C("w") < 0.05)

    def groups() -> object:
        return query_cube(CUBE, url, partition_by="x", payload_columns=["v"])

    return {
        "BLOCK_BYTES": (join, (4 << 20, 16 << 20, 1 << 30)),
        "MIN_TASK_BYTES": (join, (1 << 16, 64 << 20)),
        "SAMPLE": (join, (1, 1000)),
        "FILTERED_BLOCKS": (condition, (1, 16)),
        "MAX_RESTRICTING_CELLS": (condition, (0, 1 << 14)),
        "TABLE_CODES_PER_ROW": (join, (0, 32)),
        "SMALL_FRAME_ROWS": (groups, (0, 100_000)),
    }


def measure(name: str, work: Callable[[], object], values: tuple[int, ...]) -> None:
    """Print the median of each value; that of the constant first."""
    seconds: dict[int, list[float]] = {getattr(tuning, name): [], **{value: [] for value in values}}
    work()
    for _ in range(7):
        for value, taken in seconds.items():
            with mock.patch.object(tuning, name, value):
                start = time.perf_counter()
                work()
                taken.append(time.perf_counter() - start)
    shown = [f"{value:>13,}: {statistics.median(taken) * 1000:7.1f}" for value, taken in seconds.items()]
    print(f"{name:22} {work.__name__:10}" + "".join(shown), flush=True)


def main(names: list[str]) -> None:
    """Measure the constants of these names, or all of them."""
    with tempfile.TemporaryDirectory() as directory:
        url = f"hfs://{directory}"
        build(url)
        for name, (work, values) in workloads(url).items():
            if not names or name in names:
                measure(name, work, values)


if __name__ == "__main__":
    main(sys.argv[1:])
