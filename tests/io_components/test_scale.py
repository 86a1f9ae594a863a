"""Work that grows with partitions or index values is done by vectors: the number of calls does not grow.

Times depend on the machine, the number of Python and C functions that are called does not.
"""

import cProfile
import gc
import pstats
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.api.cube import C, Cube, append_to_cube
from kartothek_cube.core import caching
from kartothek_cube.core.index import ExplicitSecondaryIndex
from kartothek_cube.core.store import open_blobs
from kartothek_cube.io_components.query.logical_plan import QueryCube
from kartothek_cube.io_components.query.physical_plan import plan_query
from kartothek_cube.io_components.write.table_writer import write_table
from kartothek_cube.io_components.write.write_plan import WriteSpec
from tests.support.factories import STORES
from tests.support.headers import store_headers

pytestmark = pytest.mark.slow("cubes of up to 40,000 partitions, each call of which is counted")

CUBE = Cube(["x", "y"], ["p"], "cube")
#: pools have to live as long as the arrays in them, which caches keep
POOLS: list[pa.MemoryPool] = []


def calls(function):
    caching.clear()
    # finalizers of the objects of other tests are calls, too
    gc.collect()
    gc.disable()
    try:
        profile = cProfile.Profile()
        profile.runcall(function)
    finally:
        gc.enable()
    return pstats.Stats(profile).total_calls


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Cubes of so many partitions: n values of y, and 10 of x, each in a tenth of them."""
    result = {}
    for n in (10_000, 20_000, 40_000):
        store, numbers = STORES["memory"](tmp_path_factory.mktemp(str(n))), np.arange(n)
        result[n] = store_headers(store, n, indices={"x": numbers % 10, "y": numbers * 7})
    return result


@pytest.mark.parametrize(
    "conditions", [C("p") == 77, C("y") == 77, C("x").isin([3, 4]), (C("p") > 5) & (C("y") < 10**9), None]
)
def test_planning_takes_as_many_calls_for_any_number_of_partitions(stores, conditions):
    plan_query(QueryCube(CUBE, stores[10_000], conditions))  # what is imported and made once
    few, more, most = (calls(lambda s=s: plan_query(QueryCube(CUBE, s, conditions))) for s in stores.values())
    assert few < 6_000
    # an index of 10,000 more values has a row group more
    assert more - few < 50
    assert most - more < 100


def test_an_append_takes_as_many_calls_for_any_number_of_partitions(stores):
    def append(n, i):
        new = pd.DataFrame({"x": [1], "y": [-1 - i], "p": [n + i], "v1": [0.0]})
        append_to_cube({"seed": new}, CUBE, stores[n])

    for n in stores:
        # the first commit to a dataset also looks for what later ones know
        append(n, 0)
    few, more, most = (calls(lambda n=n: append(n, 1)) for n in stores)
    assert few < 20_000
    assert more - few < 100
    assert most - more < 200


def test_what_was_just_written_is_not_parsed(stores, monkeypatch):
    monkeypatch.setattr("kartothek_cube.core.index.parse_index", lambda *args: pytest.fail("parsed"))
    index = ExplicitSecondaryIndex("x", {i: [f"p={i}/{i:032x}"] for i in range(2_000)})
    blobs = open_blobs(stores[10_000])
    index.store(blobs, "cube++other")
    assert index.unload().load(blobs).columns_data is index.columns_data


def test_each_file_of_a_write_takes_a_few_calls(tmp_path):
    def write(n, i):
        p = np.repeat(np.arange(n), 5)
        rows = pa.table({"x": np.arange(len(p)), "p": p, "v": p * 0.5})
        context = WriteSpec(STORES["local"](tmp_path), f"u{n}{i}", partition_on=("p",), indices=("x",))
        return lambda: write_table(context, rows, threads=1)

    write(100, 0)()
    few, more = calls(write(500, 1)), calls(write(1_500, 1))
    assert (more - few) / 1_000 < 80


def peak(function):
    """Most bytes that Python, numpy and Arrow hold at a time."""
    caching.clear()
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    POOLS.append(pool)
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
        # what caches keep must not outlive the pool
        caching.clear()


def test_planning_takes_memory_in_proportion_to_the_header(stores):
    """A header takes a few times its text while it is read; an object per partition would take far more."""

    # one dataset: how far the headers of several ones overlap in memory depends on the threads
    def plan(n):
        plan_query(QueryCube(CUBE, stores[n], C("p") == 77, datasets=["seed"]))

    plan(10_000)
    few, most = (peak(lambda n=n: plan(n)) for n in (10_000, 40_000))
    assert most < 4.5 * few
    assert most < 4.5 * len(open_blobs(stores[40_000]).get("cube++seed.by-dataset-metadata.json"))
