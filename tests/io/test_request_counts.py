"""How many requests queries and commits make on S3: never more than docs/stores.rst states."""

import math
import re
from collections import Counter
from unittest import mock
from uuid import uuid4

import numpy as np
import pandas as pd
import polars
import pytest

from kartothek_cube.api import cube as api
from kartothek_cube.api import dataset as datasets
from kartothek_cube.core import tuning
from kartothek_cube.core.store import open_blobs
from tests.support.object_server import running
from tests.support.paths import ROOT

CUBE = api.Cube(dimension_columns=["x"], partition_columns=["p"], uuid_prefix="cube", index_columns=["i1"])
DOCS = ROOT / "docs/stores.rst"


@pytest.fixture(scope="module")
def server():
    with running() as server:
        # whether it compares and swaps is asked once per process
        assert open_blobs(server.url()).can_swap
        yield server


@pytest.fixture
def url(server):
    server.blobs.clear()
    server.requests.clear()
    return server.url()


def frame(partitions: int, rows: int = 1, **columns: object) -> pd.DataFrame:
    count = partitions * rows
    return pd.DataFrame({"x": np.arange(count), "p": np.arange(count) // rows, "v1": 1.0, **columns})


def build(url: str, partitions: int = 4, rows: int = 1) -> None:
    enrich = frame(partitions, rows).rename(columns={"v1": "v2"})
    api.build_cube({"seed": frame(partitions, rows, i1=7), "enrich": enrich}, CUBE, url)


def bound(operation: str, **numbers: int) -> int:
    """The number of requests that the documentation states, as a formula in a table."""
    text = DOCS.read_text()
    (formula,) = re.findall(rf"^{re.escape(operation)}\s\s+``(.+?)``", text, re.MULTILINE)
    terms = [term.strip().split(" ") for term in formula.split("+")]
    factors = ([int(part) if part.isdigit() else numbers[part] for part in term] for term in terms)
    return sum(map(math.prod, factors))


def count(server) -> int:
    total = len(server.requests)
    server.requests.clear()
    return total


@pytest.mark.parametrize("partitions", [1, 4, 9])
@pytest.mark.parametrize(
    "arguments, files, indices",
    [
        ({}, 2, 0),
        ({"payload_columns": ["v1"]}, 1, 0),
        ({"conditions": api.C("i1") == 7}, 2, 1),
        ({"conditions": api.C("v1") > 0.0, "payload_columns": ["v2"]}, 2, 0),
    ],
    ids=["all", "projection", "index", "payload"],
)
def test_query(server, url, partitions, arguments, files, indices):
    build(url, partitions)
    server.requests.clear()
    assert len(api.query_cube(CUBE, url, **arguments)[0]) == partitions
    assert count(server) <= bound("query of a cube", D=2, I=indices, F=files * partitions)


def test_query_of_large_files(server, url):
    build(url, 3, rows=100_000)
    server.requests.clear()
    api.query_cube(CUBE, url, payload_columns=["v1"])
    reads = Counter(request.key for request in server.requests if request.key.endswith(".parquet"))
    assert max(reads.values()) <= 2
    assert count(server) <= bound("query of a cube", D=2, I=0, F=3)


def test_point_query_reads_one_partition(server, url):
    build(url, 9)
    server.requests.clear()
    api.query_cube(CUBE, url, conditions=api.C("p") == 3)
    assert count(server) <= bound("query of a cube", D=2, I=0, F=2)


@pytest.mark.parametrize("partitions", [1, 30])
def test_build(server, url, partitions):
    build(url, partitions)
    # the seed has indices of x and i1
    assert count(server) <= bound("build of a cube", D=2, I=2, F=2 * partitions)


@pytest.mark.parametrize("partitions", [1, 30])
def test_append(server, url, partitions):
    build(url, 40)
    server.requests.clear()
    api.append_to_cube({"seed": frame(partitions, i1=8)}, CUBE, url)
    assert count(server) <= bound("append to a cube", D=2, W=1, I=2, F=partitions)


def test_extend(server, url):
    build(url, 9)
    server.requests.clear()
    api.extend_cube({"more": frame(9).rename(columns={"v1": "v3"})}, CUBE, url)
    assert count(server) <= bound("extend a cube", D=3, W=1, I=0, F=9)


def test_remove(server, url):
    build(url, 9)
    server.requests.clear()
    api.remove_partitions(CUBE, url, conditions=api.C("p") == 3, ktk_cube_dataset_ids=["enrich"])
    assert count(server) <= bound("update of a cube", D=2, W=1, I=0, F=0)


def test_cleanup(server, url):
    build(url, 9)
    schema = server.blobs["cube++seed/table/_common_metadata"]
    server.blobs |= {f"cube++seed/table/p=0/{number:032}.parquet": schema for number in range(2500)}
    server.requests.clear()
    api.cleanup_cube(CUBE, url)
    assert count(server) <= bound("cleanup of a cube", D=2, W=1, A=4, G=3)
    assert not [key for key in server.blobs if "/0000000" in key]


@pytest.mark.parametrize("partitions", [1, 30])
def test_dataset(server, url, partitions):
    arguments = {"store": url, "dataset_uuid": "d", "partition_on": ["p"], "secondary_indices": ["x"]}
    datasets.store_dataframes_as_dataset(dfs=[frame(partitions)], **arguments)
    assert count(server) <= bound("store a dataset", I=1, F=partitions)
    datasets.update_dataset_from_dataframes([frame(partitions)], **arguments)
    assert count(server) <= bound("update a dataset", I=1, F=partitions)
    datasets.read_table("d", url)
    assert count(server) <= bound("read a dataset", I=0, F=2 * partitions)
    datasets.read_table("d", url, predicates=[[("x", "==", 0)]], columns=["v1"])
    assert count(server) <= bound("read a dataset", I=1, F=2)


@pytest.mark.parametrize("partitions", [1, 9])
def test_publish(server, url, partitions):
    build(url, partitions)
    server.requests.clear()
    datasets.publish_dataset("cube++seed", url)
    assert count(server) <= bound("publish a dataset", V=0, F=partitions)
    api.append_to_cube({"seed": frame(1, i1=8).assign(x=100)}, CUBE, url)
    server.requests.clear()
    datasets.publish_dataset("cube++seed", url)
    # the partition has two files
    assert count(server) <= bound("publish a dataset", V=1, F=2)


def test_requests_overlap(server, url):
    build(url, 40)
    server.latency, server.peak = 0.02, 0
    try:
        api.query_cube(CUBE, url)
    finally:
        server.latency = 0.0
    assert server.peak >= 8  # a busy machine starts them slowly


def test_blocks_of_an_object_store_have_the_bytes_of_its_values(url, monkeypatch):
    """Sorted keys take next to nothing in files."""
    api.build_cube(frame(8, rows=1000), CUBE, url)
    check_four_blocks(url, monkeypatch, 1000 * 2 * 8)


def test_blocks_of_an_object_store_have_the_bytes_of_its_files_if_these_are_more(url, monkeypatch):
    api.build_cube(frame(8, rows=1000, v2=[uuid4().hex + uuid4().hex for _ in range(8000)]), CUBE, url)
    key = next(b.key for b in open_blobs(url).list("cube++seed/table/") if b.key.endswith(".parquet"))
    size = open_blobs(url).size(key)
    assert size > 1000 * 3 * 8
    check_four_blocks(url, monkeypatch, size + 100)  # files differ by some bytes


def check_four_blocks(url, monkeypatch, file_bytes):
    monkeypatch.setattr(tuning, "BLOCK_BYTES", 2 * file_bytes)
    blocks = mock.Mock(side_effect=polars.collect_all)
    monkeypatch.setattr(polars, "collect_all", blocks)
    (result,) = api.query_cube(CUBE, url)
    assert len(result) == 8000
    assert blocks.call_count == 4
