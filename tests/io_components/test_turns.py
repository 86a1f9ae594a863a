"""Turns of threads with short queries."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from kartothek_cube.io_components import runtime
from kartothek_cube.io_components.runtime import take_turn


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    turns = runtime._Turns()
    turns.slots = threading.BoundedSemaphore(1)
    monkeypatch.setattr(runtime, "_turns", turns)
    return turns


class Holder(threading.Thread):
    """A thread that has the turn until it is told to end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.has_begun, self.may_end, self.has_ended = (threading.Event() for _ in range(3))

    def run(self) -> None:
        with take_turn(True):
            self.has_begun.set()
            self.may_end.wait(60)
            self.has_ended.set()

    def __enter__(self) -> Holder:
        self.start()
        assert self.has_begun.wait(60)
        return self

    def __exit__(self, *_) -> None:
        self.may_end.set()
        self.join()


def test_a_short_block_waits_for_another_one(monkeypatch):
    monkeypatch.setattr(runtime, "_TURN_WAIT_S", 60)
    with Holder() as holder:
        threading.Timer(0.01, holder.may_end.set).start()
        with take_turn(True):
            assert holder.has_ended.is_set()


def test_without_interpreter_lock_one_block_per_core_has_a_turn(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    monkeypatch.setattr(runtime, "available_cores", lambda: 2)
    monkeypatch.setattr(runtime, "_TURN_WAIT_S", 0)
    turns = runtime._Turns()
    monkeypatch.setattr(runtime, "_turns", turns)
    with Holder():
        with take_turn(True):
            assert turns.n_others == 0
        with Holder(), take_turn(True):
            assert turns.n_others == 1


def test_the_wait_is_bounded(turns):
    with Holder() as holder:
        with take_turn(True):
            assert not holder.has_ended.is_set()
            assert turns.n_others == 1
        assert turns.n_others == 0


def test_long_blocks_do_not_wait(monkeypatch):
    monkeypatch.setattr(runtime, "_TURN_WAIT_S", 60)
    with Holder() as holder, take_turn(False):
        assert not holder.has_ended.is_set()


def test_turns_pause_after_a_long_one(turns, monkeypatch):
    """As with large files, or in a directory that is mounted over a network: others can use the processor."""
    with take_turn(True):
        time.sleep(0.02)
    assert turns.paused_until > time.perf_counter()
    monkeypatch.setattr(runtime, "_TURN_WAIT_S", 60)
    turns.paused_until += 3600
    with take_turn(True):
        assert turns.n_others == 1


def test_blocks_within_a_turn_have_it_as_well(monkeypatch, turns):
    monkeypatch.setattr(runtime, "_TURN_WAIT_S", 0)
    with take_turn(True), take_turn(True):
        assert turns.n_others == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of threads, since Python 3.12
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked on this system")
def test_a_forked_process_has_turns_of_its_own(monkeypatch):
    with Holder():
        pid = os.fork()
        if not pid:  # pragma: no cover
            with take_turn(True):
                os._exit(runtime._turns.n_others)
        assert os.waitpid(pid, 0)[1] == 0
