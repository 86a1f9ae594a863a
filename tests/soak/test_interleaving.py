"""All pairs of operations in all schedules, on models of all kinds of stores; faults in pairs.

Complete: the runs reach every state of the two operations and the store. ``pytest -n 2`` takes some hours.
"""

import itertools

import pytest

from tests.support.concurrent_cubes import OPERATIONS, STARTS, Pair, applies
from tests.support.concurrent_schemas import SchemaChanges
from tests.support.interleave import KINDS, Crash, LostAnswer, StrangeError, explore


def _pairs(start):
    names = [name for name in OPERATIONS if applies(name, start)]
    return itertools.combinations_with_replacement(names, 2)


ALL = [(start, *pair) for start in STARTS for pair in _pairs(start)]


@pytest.mark.parametrize("start, first, second", ALL)
@pytest.mark.parametrize("kind", KINDS)
def test_all_schedules(kind, start, first, second):
    runs = sum(1 for _ in explore(Pair(kind, start, (first, second)).play))
    print(f"{kind}, {start}: {first} and {second}: {runs} runs")  # noqa: T201 (shown by -rP)
    assert runs >= 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start, name", [(s, n) for s in STARTS for n in OPERATIONS if applies(n, s)])
def test_one_operation_that_fails(kind, start, name):
    runs = explore(Pair(kind, start, (name,)).play, faults=(Crash, LostAnswer, StrangeError))
    assert sum(1 for _ in runs) > 4


#: runs of three operations, which are too many for all schedules
LIMIT = 3000


@pytest.mark.parametrize("start, first, second", [row for row in ALL if row[0] in ("two", "nothing", "cube")])
@pytest.mark.parametrize("faults", [(), (Crash, LostAnswer)], ids=["", "fault"])
def test_two_operations_with_a_reader(start, first, second, faults):
    play = Pair("s3", start, (first, second, "query")).play
    assert sum(1 for _ in explore(play, bound=2, limit=LIMIT, faults=faults)) > 4


@pytest.mark.parametrize("start", SchemaChanges.starts)
@pytest.mark.parametrize("names", list(itertools.combinations_with_replacement(SchemaChanges.operations, 2)))
def test_changes_of_the_schema(start, names):
    assert sum(1 for _ in explore(SchemaChanges("s3", start, names).play, faults=(Crash, LostAnswer))) > 1


@pytest.mark.parametrize("bound", [1, 2])
@pytest.mark.parametrize("start", SchemaChanges.starts)
@pytest.mark.parametrize("names", list(itertools.combinations_with_replacement(SchemaChanges.operations, 3)))
def test_three_changes_of_the_schema(start, names, bound):
    play = SchemaChanges("s3", start, names).play
    assert sum(1 for _ in explore(play, bound=bound, limit=LIMIT)) > 1


@pytest.mark.parametrize("start, first, second", ALL)
def test_two_operations_with_a_fault(start, first, second):
    """One of them dies, or loses an answer, at each request, before, within or after a part of the other."""
    play = Pair("s3", start, (first, second)).play
    assert sum(1 for _ in explore(play, bound=1, faults=(Crash, LostAnswer))) > 4
