"""Queries beside writers of several datasets, which are killed at random: no answer mixes two operations."""

import multiprocessing
import random
import threading
import time
from contextlib import contextmanager, suppress

import pandas as pd
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.core.commit import operation
from kartothek_cube.core.errors import ConcurrentWriteError
from kartothek_cube.core.utils import lazy_store
from tests.support import factories
from tests.support.servers import azure_url, s3_url
from tests.support.spark_session import shared_session

CUBE = api.Cube(["I"], ["P"], "g")
NAMES = ["seed", "x", "y"]
ANSWERS = 5_000
KILLS = 1_000
FORKS = multiprocessing.get_context("fork")

STORES = {
    "local": lambda path: f"hfs://{path}?create_if_missing=true",
    "s3": lambda path: s3_url(),
    "azure": lambda path: azure_url(),
}


def data(value: int) -> dict[str, pd.DataFrame]:
    keys = {"I": range(100), "P": 0}
    return {name: pd.DataFrame({**keys, f"v_{name}": value}) for name in NAMES}


def is_mixed(df: pd.DataFrame) -> bool:
    return len(set(df[[f"v_{name}" for name in NAMES]].stack())) > 1


READERS = {
    "eager": lambda store: api.query_cube(CUBE, store)[0],
    "iter": lambda store: next(api.query_cube__iterator(CUBE, store)),
    "delayed": lambda store: api.query_cube_delayed(CUBE, lazy_store(store))[0].compute(scheduler="sync"),
}


def write(store, first: int) -> None:
    for value in range(first, 1_000_000_000):
        if value % 3 == 0:
            api.append_to_cube(data(value), CUBE, store)
            continue
        # the other one has appended to the partition
        with suppress(ConcurrentWriteError):
            api.update_cube(data(value), CUBE, store, api.C("P") == 0, NAMES)


def count_mixed(store, reader: str, answers: int) -> int:
    return sum(is_mixed(READERS[reader](store)) for _ in range(answers))


@contextmanager
def two_writers(store):
    api.build_cube(data(0), CUBE, store)
    writers = [FORKS.Process(target=write, args=(store, n * 1000)) for n in (1, 2)]
    for writer in writers:
        writer.start()
    try:
        yield
        assert all(writer.is_alive() for writer in writers)
    finally:
        for writer in writers:
            writer.kill()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", STORES)
def test_answers_beside_writers(tmp_path, kind, reader):
    store = STORES[kind](tmp_path)
    with two_writers(store), FORKS.Pool(2) as readers:
        assert readers.starmap(count_mixed, [(store, reader, ANSWERS // 2)] * 2) == [0, 0]


# pyspark with the newest pandas
@pytest.mark.filterwarnings("ignore:The copy keyword is deprecated", "ignore:toPandas attempted")
def test_spark_plans_beside_writers(tmp_path):
    """The driver plans a query, tasks read it later, when writers are some states ahead."""
    store = STORES["local"](tmp_path)
    with two_writers(store):
        spark = shared_session()
        for _ in range(ANSWERS // 10):
            assert not is_mixed(api.query_cube_spark(CUBE, store, spark=spark).toPandas())


def test_answers_beside_writers_in_memory(tmp_path):
    store = factories.memory(tmp_path)
    api.build_cube(data(0), CUBE, store)
    stop = threading.Event()

    def write_until_stopped(first):
        value = first
        while not stop.is_set():
            value += 1
            with suppress(ConcurrentWriteError):
                api.update_cube(data(value), CUBE, store, api.C("P") == 0, NAMES)

    writers = [threading.Thread(target=write_until_stopped, args=(n * 1000,)) for n in (1, 2)]
    for writer in writers:
        writer.start()
    try:
        assert count_mixed(store, "eager", ANSWERS) == 0
    finally:
        stop.set()
        for writer in writers:
            writer.join()


@pytest.mark.parametrize("kind", STORES)
def test_answers_beside_writers_that_are_killed(tmp_path, kind, monkeypatch):
    # each dead operation costs the next writer its patience
    monkeypatch.setattr(operation, "_LOOKS", 4)
    store = STORES[kind](tmp_path)
    api.build_cube(data(0), CUBE, store)
    chance = random.Random(1)
    answers = 0
    for kill in range(KILLS):
        writer = FORKS.Process(target=write, args=(store, kill * 1000))
        writer.start()
        until = time.monotonic() + chance.uniform(0.02, 0.25)
        while time.monotonic() < until:
            assert not is_mixed(api.query_cube(CUBE, store)[0])
            answers += 1
        writer.kill()
        writer.join()
        assert not is_mixed(api.query_cube(CUBE, store)[0])
        if kill % 50 == 0:
            api.cleanup_cube(CUBE, store)
            assert api.verify_cube(CUBE, store).ok
    print(f"{kind}: {KILLS} kills, {answers} answers")  # noqa: T201 (shown by -rP)
