"""Two operations at once, request by request; one operation that dies or fails at each of its requests.

A sample: all pairs, all schedules and all kinds of stores are run by ``make soak``.
"""

from __future__ import annotations

import importlib

import pytest

from tests.support.concurrent_cubes import OPERATIONS, STARTS, Pair, applies
from tests.support.interleave import Crash, Fault, LostAnswer, explore

#: operations that delete files, and what loses by it if they are not careful
PAIRS = [
    ("cube", "append", "cleanup"),
    ("past", "append", "cleanup"),
    ("nothing", "build", "cleanup"),
    ("leftover", "build", "cleanup"),
    ("leftover", "copy", "cleanup"),
    ("cube", "delete", "overwrite"),
    ("cube", "append", "delete"),
    ("nothing", "build", "copy"),
    ("cube", "append", "copy over"),
    ("past", "cleanup", "rollback"),
    ("cube", "cleanup", "delete"),
    ("cube", "append", "update"),
    ("past", "compact", "cleanup"),
    ("nothing", "build two", "build"),
]


@pytest.mark.parametrize("kind, start, first, second", [("s3", *p) for p in PAIRS] + [("azure", *PAIRS[0])])
def test_two_operations(kind, start, first, second):
    """Each of them stops before each of its requests until the other one has ended."""
    pair = Pair(kind, start, (first, second))
    assert sum(1 for _ in explore(pair.play, bound=1)) > 2


@pytest.mark.parametrize("fault, taken", [(Crash, False), (LostAnswer, True)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_operation_that_fails(name, fault, taken):
    start = next(start for start in ("cube", "past", "nothing") if applies(name, start))
    assert start in STARTS
    steps = len(Pair("s3", start, (name,)).play(()).steps)
    for at in range(steps):
        Pair("s3", start, (name,), Fault(0, at, fault, taken)).play(())


def test_a_protocol_that_does_not_check_its_files_is_found_out(monkeypatch):
    """The oracle can fail: a commit that does not look for its files loses them to a cleanup."""
    # the package has a function of this name
    publish = importlib.import_module("kartothek_cube.core.commit.publish")
    monkeypatch.setattr(publish, "check_files", lambda *args, **kwargs: None)
    with pytest.raises(AssertionError, match="append and cleanup"):
        for _ in explore(Pair("s3", "cube", ("append", "cleanup")).play, bound=1):
            pass


def test_headers_that_repeat_are_found_out(monkeypatch):
    """The ABA problem: a header without an id of its own is taken for an earlier one."""
    for module in ("core.commit_record", "io_components.collect"):
        monkeypatch.setattr(f"kartothek_cube.{module}.gen_uuid", lambda: "the same for all")
    with pytest.raises(AssertionError, match="append and cleanup"):
        for _ in explore(Pair("s3", "cube", ("append", "cleanup")).play, bound=2):
            pass
