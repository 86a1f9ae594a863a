"""All pairs of operations in all schedules that differ, on models of all kinds of stores; faults in pairs.

``KARTOTHEK_CUBE_SCHEDULES`` bounds the runs of a pair (default 400; 0: none, which takes days), of which the
test prints how many there were and whether they were all.
"""

from __future__ import annotations

import itertools
import os

import pytest

from tests.support.concurrent_cubes import OPERATIONS, STARTS, Pair, applies
from tests.support.interleave import KINDS, Crash, Fault, LostAnswer, explore

LIMIT = int(os.environ.get("KARTOTHEK_CUBE_SCHEDULES", "400")) or None


def _pairs(start):
    names = [name for name in OPERATIONS if applies(name, start)]
    return itertools.combinations_with_replacement(names, 2)


ALL = [(start, *pair) for start in STARTS for pair in _pairs(start)]


@pytest.mark.parametrize("start, first, second", ALL)
@pytest.mark.parametrize("kind", KINDS)
def test_one_switch(kind, start, first, second):
    """Complete: each operation stops before each of its requests until the other one has ended."""
    assert sum(1 for _ in explore(Pair(kind, start, (first, second)).play, bound=1)) >= 2


@pytest.mark.parametrize("start, first, second", ALL)
@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_all_schedules(kind, start, first, second):
    runs = sum(1 for _ in explore(Pair(kind, start, (first, second)).play, limit=LIMIT))
    complete = "all" if runs != LIMIT else "not all"
    print(f"{kind}, {start}: {first} and {second}: {runs} runs, {complete}")  # noqa: T201 (shown by -rP)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start, name", [(s, n) for s in STARTS for n in OPERATIONS if applies(n, s)])
def test_one_operation_that_fails(kind, start, name):
    steps = len(Pair(kind, start, (name,)).play(()).steps)
    # a repetition after a lost answer takes some more steps
    for at, fault, taken in itertools.product(range(steps + 3), (Crash, LostAnswer), (False, True)):
        Pair(kind, start, (name,), Fault(0, at, fault, taken)).play(())


@pytest.mark.parametrize("start, first, second", ALL)
def test_two_operations_of_which_one_dies(start, first, second):
    """The first one dies at each of its requests, after which the other one, which has begun, goes on."""
    steps = len(Pair("s3", start, (first, second)).play(()).steps)
    for at, taken, other in itertools.product(range(steps), (False, True), (0, 4)):
        pair = Pair("s3", start, (first, second), Fault(0, at, Crash, taken))
        pair.play((1,) * other + (0,) * at)
