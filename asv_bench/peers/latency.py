"""A query of a remote store against its requests alone. usage: latency.py DIR ROUNDS OUT.json.

The floor is the time of the same requests, all overlapped, without decoding.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

# the workload that `benchmarks` sets up is not used
os.environ.setdefault("BENCH_X", "80")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from remote import Remote


def main(_, rounds, out):
    """Alternate the query and its requests."""
    remote = Remote()
    remote.setup()
    runs = {"kartothek_cube": remote.time_query, "floor": remote.time_the_same_requests_all_at_once}
    seconds = dict.fromkeys(runs, float("inf"))
    try:
        for _ in range(int(rounds) + 1):
            for name, function in runs.items():
                start = time.perf_counter()
                function()
                seconds[name] = min(seconds[name], time.perf_counter() - start)
    finally:
        remote.teardown()
    result = {name: {"500 files, 10 % of the columns": {"s": value}} for name, value in seconds.items()}
    Path(out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
