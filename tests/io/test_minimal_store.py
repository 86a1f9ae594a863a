"""Datasets and cubes in stores that have just the methods they need, and refuse to delete missing keys."""

import pandas as pd
import pytest

from kartothek_cube.api import dataset as api
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io import eager_cube
from kartothek_cube.serialization import CsvSerializer, ParquetSerializer
from tests.support.stores import MinimalIterStore, MinimalStore

pytestmark = pytest.mark.filterwarnings("ignore::kartothek_cube.core.store.NoCompareAndSwapWarning")


@pytest.fixture(params=[MinimalStore, MinimalIterStore])
def kind(request):
    return request.param


@pytest.fixture
def df():
    return pd.DataFrame({"SHOP": [1, 2], "DAY": [1, 1], "COUNTRY": ["DE", "GB"], "SALES": [7, 8]})


@pytest.mark.parametrize("serializer", [ParquetSerializer(), CsvSerializer()])
def test_serializers(kind, df, serializer):
    store = kind()
    key = serializer.store(store, "sales", df)
    assert serializer.restore_dataframe(store, key).SALES.tolist() == [7, 8]


def test_dataset(kind, df):
    store, target = kind(), kind()
    options = {"partition_on": ["COUNTRY"], "secondary_indices": ["SHOP"]}
    api.store_dataframes_as_dataset(store, "sales", [df], **options)
    api.update_dataset_from_dataframes([df], store, "sales", delete_scope=[{"COUNTRY": "DE"}])
    api.garbage_collect_dataset(dataset_uuid="sales", store=store)
    assert sorted(api.read_table("sales", store).SALES) == [7, 8, 8]
    api.copy_dataset("sales", store, "sales", target)
    api.delete_dataset("sales", store)
    assert not store.content
    assert not api.DatasetMetadata.exists("sales", store)
    assert sorted(api.read_table("sales", target).SALES) == [7, 8, 8]


def test_cube(kind, df):
    store, target = kind(), kind()
    cube = Cube(["SHOP", "DAY"], ["COUNTRY"], "sales")
    eager_cube.build_cube({"seed": df}, cube, lambda: store)
    eager_cube.append_to_cube({"seed": df.assign(DAY=2)}, cube, lambda: store)
    store.put("sales++seed/table/orphan.parquet", b"")
    eager_cube.cleanup_cube(cube, lambda: store)
    assert "sales++seed/table/orphan.parquet" not in store
    eager_cube.copy_cube(cube, lambda: store, lambda: target)
    eager_cube.delete_cube(cube, lambda: store)
    assert not store.content
    [found] = eager_cube.query_cube(cube, lambda: target)
    assert found.SALES.tolist() == [7, 7, 8, 8]
