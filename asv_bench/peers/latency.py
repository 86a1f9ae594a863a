"""A query of a remote store against its requests alone. usage: latency.py DIR ROUNDS OUT.json.

The floor is the time of the same requests, all overlapped, without decoding: two per file, or one if the
process has read the footers before.
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
    floor = remote.time_the_same_requests_all_at_once
    result = {
        "kartothek_cube": {
            "first query": remote.time_first_query,
            "later query": remote.time_query,
            "first group of 500": remote.time_first_group,
            "all groups": remote.time_groups,
        },
        "floor": {"first query": floor, "later query": remote.time_one_request_per_file, "all groups": floor},
    }
    seconds = {engine: dict.fromkeys(runs, float("inf")) for engine, runs in result.items()}
    try:
        for _ in range(int(rounds) + 1):
            for name in result["kartothek_cube"]:
                for engine in (engine for engine in result if name in result[engine]):
                    start = time.perf_counter()
                    result[engine][name]()
                    seconds[engine][name] = min(seconds[engine][name], time.perf_counter() - start)
    finally:
        remote.teardown()
    result = {e: {name: {"s": value} for name, value in times.items()} for e, times in seconds.items()}
    Path(out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
