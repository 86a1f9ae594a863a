"""Commits on an object store whose answers get lost, also when others commit in between."""

import numpy as np
import pandas as pd
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.core.store import open_blobs
from tests.support.object_server import running

ARGUMENTS = {"dataset_uuid": "d", "partition_on": ["p"], "secondary_indices": ["x"]}
HEADER = "d.by-dataset-metadata.json"


def frame(start: int) -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(start, start + 4), "p": [0, 0, 1, 1], "v": 1.0})


@pytest.fixture
def server():
    with running() as server:
        assert open_blobs(server.url()).can_swap
        yield server


@pytest.fixture(params=["s3", "gs"])
def url(server, request):
    url = server.url(request.param)
    api.store_dataframes_as_dataset(dfs=[frame(0)], store=url, **ARGUMENTS)
    return url


def check(url: str, rows: int) -> None:
    assert sorted(api.read_table("d", url)["x"]) == list(range(rows))
    dataset = api.DatasetMetadata.load_from_store("d", open_blobs(url))
    assert sorted(dataset.load_all_indices(open_blobs(url)).indices["x"].index_dct) == list(range(rows))
    for x in (0, rows - 1):
        assert api.read_table("d", url, predicates=[[("x", "==", x)]])["x"].tolist() == [x]


@pytest.mark.parametrize("fault", ["lose answer", "fail after", "refuse"])
@pytest.mark.parametrize(
    "key, times", [(HEADER, 1), (HEADER, 3), (".by-dataset-index.parquet", 3), ("/table/p=", 1)]
)
def test_append_counts_once(server, url, fault, key, times):
    server.fail("PUT", key, fault, times)
    api.update_dataset_from_dataframes([frame(4)], store=url, **ARGUMENTS)
    assert not server.faults
    check(url, 8)
