"""The cube of the workload on a cluster of two processes, and in one process that uses two cores.

Everywhere each of the P pieces of input is made by the code that is measured, and of each group of a query
only a sum is kept: what counts is the way from input to files, and from files to an answer.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path

import dask
import dask.bag as db
import workload as w
from dask import delayed
from distributed import Client, LocalCluster

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.utils import lazy_store
from kartothek_cube.io.dask.bag_cube import build_cube_from_bag, query_cube_bag
from kartothek_cube.io.dask.dataframe_cube import query_cube_dataframe
from kartothek_cube.io.dask.delayed_cube import build_cube_from_delayed, query_cube_delayed
from kartothek_cube.io.eager_cube import build_cube, query_cube

CUBE = Cube(uuid_prefix="bench", dimension_columns=["x", "y"], partition_columns=["p"])
IDS = ["seed", "enrich"]
QUERY = {"payload_columns": ["v0", "v1", "v2"], "partition_by": "p"}


def store_in(directory):
    """Factory of a store in a directory."""
    return lazy_store(f"hfs://{Path(directory).resolve()}?create_if_missing=true")


def load(p):
    """Return the rows of a partition."""
    return {"seed": w.seed(p), "enrich": w.enrich(p)}


def total(df):
    """Return the number of rows, and the sum of a column."""
    return len(df), float(df["v0"].sum())


def added(totals):
    """Add totals."""
    totals = list(totals)
    return sum(rows for rows, _ in totals), sum(value for _, value in totals)


def build_eager(store):
    """Build in this process."""
    data = {"seed": w.whole(w.seed), "enrich": w.whole(w.enrich)}
    build_cube(data=data, cube=CUBE, store=store, overwrite=True)


def build_delayed(store):
    """Build by one Delayed per partition."""
    data = [delayed(load)(p) for p in range(w.P)]
    build_cube_from_delayed(data, CUBE, store, IDS, overwrite=True).compute()


def build_bag(store):
    """Build by a bag of the partitions."""
    data = db.from_sequence(range(w.P), npartitions=w.P).map(load)
    build_cube_from_bag(data, CUBE, store, IDS, overwrite=True).compute()


def query_eager(store):
    """Query in this process."""
    return added(map(total, query_cube(CUBE, store, **QUERY)))


def query_delayed(store):
    """Query by one Delayed per group."""
    return added(dask.compute(*[delayed(total)(df) for df in query_cube_delayed(CUBE, store, **QUERY)]))


def query_bag(store):
    """Query by a bag of the groups."""
    return added(query_cube_bag(CUBE, store, **QUERY).map(total).compute())


def query_dataframe(store):
    """Query by a dask DataFrame."""
    ddf = query_cube_dataframe(CUBE, store, **QUERY)
    totals = ddf.map_partitions(total, meta=("total", object)).to_delayed()
    return added(dask.compute(*totals))


#: work -> form -> function of a store
WORK = {
    "build": {"eager": build_eager, "delayed": build_delayed, "bag": build_bag},
    "query": {
        "eager": query_eager,
        "delayed": query_delayed,
        "bag": query_bag,
        "dataframe": query_dataframe,
    },
}


@contextmanager
def cluster():
    """Two processes of one thread each; returns the client."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": "ERROR"}
    with LocalCluster(**options) as processes, Client(processes) as client:
        # imports are not measured
        client.run(_cpu)
        yield client


def cpu_seconds(client):
    """Processor time used so far by this process, the scheduler in it, and the workers."""
    return time.process_time() + sum(client.run(_cpu).values())


def _cpu():
    return time.process_time()
