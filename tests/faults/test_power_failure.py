"""Power failures at each moment of each operation, on a model of a disk: nothing acknowledged is lost."""

import errno
import os

import pandas as pd
import pytest

from kartothek_cube.api.dataset import read_table, store_dataframes_as_dataset, update_dataset_from_dataframes
from kartothek_cube.core.errors import UnknownOutcomeError
from kartothek_cube.core.store import local
from tests.support.power_operations import OPERATIONS, check_all

MORE = pytest.mark.slow("a power failure at each moment of each operation")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "dataset update" else MORE) for name in OPERATIONS]
)
def test_power_failure(name, tmp_path):
    assert check_all(name, tmp_path, lots=1, seed=1) > 50


def test_a_header_that_is_not_flushed_is_not_acknowledged(tmp_path, monkeypatch):
    """The disk fails behind the swap: the header is visible, but a power failure may undo it."""
    url = f"hfs://{tmp_path}/store?create_if_missing=True"
    store_dataframes_as_dataset(store=url, dataset_uuid="sales", dfs=[pd.DataFrame({"x": [1]})])
    header = f"{tmp_path}/store/sales.by-dataset-metadata.json"
    before, sync_folder = os.stat(header).st_ino, local.sync_folder

    def fail(path):
        if os.stat(header).st_ino != before:
            raise OSError(errno.EIO, "Input/output error")
        sync_folder(path)

    monkeypatch.setattr(local, "sync_folder", fail)
    with pytest.raises(UnknownOutcomeError, match="not flushed"):
        update_dataset_from_dataframes([pd.DataFrame({"x": [2]})], store=url, dataset_uuid="sales")
    # nothing that the visible header needs was taken back
    assert read_table("sales", url)["x"].tolist() == [1, 2]
