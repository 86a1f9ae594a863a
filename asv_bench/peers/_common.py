"""Code shared by the peers: import path of the workload, medians, the result file."""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

#: what the peers `cube` and `sql` build and query
workload = importlib.import_module(os.environ.get("BENCH_WORKLOAD", "workload"))


def median_seconds(function, repeats):
    """Median time of a call, and its last result."""
    seconds = []
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2], result


def summary(seconds, frames):
    """Time, size and a checksum of a query."""
    return {
        "s": seconds,
        "rows": sum(len(df) for df in frames),
        "groups": len(frames),
        "check": float(sum(df["v0"].sum() for df in frames)),
    }


def write(path, result):
    """Write a result, with the peak memory of this process."""
    result["maxrss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    Path(path).write_text(json.dumps(result, indent=1))
