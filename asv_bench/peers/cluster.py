"""Build and query the cube on a cluster of two processes, and eagerly.

usage: cluster.py DIR OUT.json [ROUNDS]. Writes for each workload and form: seconds, processor seconds, and
both as multiples of the eager run of the same round (medians).
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time

import _common
import on_cluster


def measure(client, function, store):
    """Seconds, processor seconds, and the result of the function."""
    cpu, start = on_cluster.cpu_seconds(client), time.perf_counter()
    result = function(store)
    return time.perf_counter() - start, on_cluster.cpu_seconds(client) - cpu, result


def compare(client, forms, store, rounds):
    """Medians of each form, alternately."""
    measured = {form: [] for form in forms}
    answers = {}
    for _ in range(rounds):
        for form, function in forms.items():
            *times, answers[form] = measure(client, function, store)
            measured[form].append(times)
    eager = measured["eager"]
    return {form: summary(times, eager, answers[form]) for form, times in measured.items()}


def summary(times, eager, answer):
    """Medians of a form."""
    pairs = zip(times, eager, strict=True)
    ratios = [[mine / other for mine, other in zip(*pair, strict=True)] for pair in pairs]
    names = ("s", "cpu_s"), ("ratio", "cpu_ratio")
    result = {
        name: statistics.median(values)
        for group, runs in zip(names, (times, ratios), strict=True)
        for name, values in zip(group, zip(*runs, strict=True), strict=True)
    }
    return result if answer is None else {**result, "rows": answer[0], "check": answer[1]}


def main(root, out, rounds=3):
    """Measure and write the result."""
    result = {}
    with on_cluster.cluster() as client:
        store = on_cluster.store_in(root)
        for work, forms in on_cluster.WORK.items():
            result[work] = compare(client, forms, store, int(rounds))
    shutil.rmtree(root, ignore_errors=True)
    _common.write(out, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
