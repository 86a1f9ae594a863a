"""Iterators hold one frame at a time, however large the dataset is."""

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.io import iter as iter_
from kartothek_cube.io.arrow import read_dataset_as_arrow__iterator, read_dataset_as_record_batches
from kartothek_cube.io.eager import read_table
from kartothek_cube.io_components import dataset_read
from kartothek_cube.io_components.runtime import limit_threads
from tests.support.factories import local

pytestmark = pytest.mark.slow("measures the memory of large datasets")

ROWS, FRAMES = 100_000, 10
#: one frame in memory
SIZE = ROWS * (8 + 8)


def frames() -> Iterator[pd.DataFrame]:
    random = np.random.default_rng(0)
    for number in range(FRAMES):
        yield pd.DataFrame({"p": np.full(ROWS, number), "x": random.random(ROWS)})


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    store = local(tmp_path_factory.mktemp("memory"))
    iter_.store_dataframes_as_dataset__iter(frames(), store, "u", partition_on="p")
    iter_.store_dataframes_as_dataset__iter(frames(), store, "flat")
    return store


#: pools are never freed: threads of Arrow may give back memory after the measurement
_POOLS: list[pa.MemoryPool] = []


class Peak:
    """The most bytes that were in use at once, by numpy and by Arrow, beyond what was there before."""

    total = 0


@contextmanager
def measured() -> Iterator[Peak]:
    """Measure the block; with an Arrow pool of its own, whose peak is known."""
    peak, pool, before = Peak(), pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    _POOLS.append(pool)
    gc.collect()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield peak
        peak.total = tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def consume(parts, count: int) -> None:
    for part in islice(parts, count):
        assert len(part) == ROWS


READERS = [read_dataset_as_arrow__iterator, read_dataset_as_record_batches]
READERS.append(iter_.read_dataset_as_dataframes__iterator)


@pytest.mark.parametrize("uuid", ["u", "flat"])
@pytest.mark.parametrize("read", READERS)
def test_reading(stored, read, uuid):
    with measured() as few:
        consume(read(uuid, stored), 3)
    with measured() as all_:
        consume(read(uuid, stored), FRAMES)
    # what the caller still holds, and the next one: as file, as table, as frame
    assert all_.total < 5 * SIZE
    # tables are in memory of Polars, which is not seen here
    if read is iter_.read_dataset_as_dataframes__iterator:
        assert all_.total < 2 * few.total  # holding all would be more than three times as much


@pytest.mark.parametrize("read", READERS)
def test_readers_are_a_few_files_ahead_and_keep_nothing(stored, read, monkeypatch):
    """What Polars decodes is in memory that no pool of Arrow shows: parts and reads are counted instead."""
    n_reads, alive, original = 0, [], dataset_read._read_rows

    def count(*args):
        nonlocal n_reads
        n_reads += 1
        return original(*args)

    monkeypatch.setattr(dataset_read, "_read_rows", count)
    with limit_threads(2):
        for number, part in enumerate(read("flat", stored), 1):
            assert n_reads <= number + 3
            alive = [ref for ref in alive if ref() is not None]
            assert len(alive) <= 1
            alive.append(weakref.ref(part))
            del part
    assert number == n_reads == FRAMES


@pytest.mark.parametrize("name", ["store_dataframes_as_dataset", "update_dataset_from_dataframes"])
@pytest.mark.parametrize("options", [{"partition_on": "p"}, {"secondary_indices": "p"}], ids=str)
def test_writing(tmp_path, name, options):
    write = getattr(iter_, f"{name}__iter")
    with measured() as few:
        write(islice(frames(), 3), local(tmp_path / "few"), dataset_uuid="u", **options)
    with measured() as all_:
        write(frames(), local(tmp_path / "all"), dataset_uuid="u", **options)
    assert all_.total < 7 * SIZE
    assert all_.total < 2 * few.total


def test_the_measure_sees_a_whole_dataset(stored):
    with measured() as peak:
        assert len(read_table("u", stored)) == ROWS * FRAMES
    assert peak.total > FRAMES * SIZE
