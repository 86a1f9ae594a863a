"""All names of datasets in one module, whose heavy parts are loaded when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kartothek_cube.api import dataset
from kartothek_cube.io import arrow, eager
from kartothek_cube.io import iter as iter_
from kartothek_cube.io.dask import bag, dataframe, delayed
from kartothek_cube.io.spark import dataset as spark

MODULES = [arrow, eager, iter_, bag, dataframe, delayed, spark]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_facade_is_there(module):
    assert [name for name in module.__all__ if getattr(dataset, name) is not getattr(module, name)] == []


def test_a_star_import_gives_all_names():
    names = {}
    exec("from kartothek_cube.api.dataset import *", names)  # noqa: S102
    del names["__builtins__"]
    assert sorted(names) == dataset.__all__
    assert {name for module in MODULES for name in module.__all__} <= set(names)


@pytest.mark.parametrize(
    "names, loaded",
    [
        ("read_table, garbage_collect_dataset, DatasetFactory, update_dataset_from_dataframes__iter", ""),
        ("hash_dataset, garbage_collect_dataset__delayed", "dask"),
    ],
)
def test_only_what_is_needed_is_loaded(names, loaded):
    code = (
        f"from kartothek_cube.api.dataset import {names}\n"
        "import sys; print(*({'dask', 'pyspark'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == loaded


@pytest.mark.parametrize("name", ["nope", "nope_bag", "garbage", "_ddf", "__path__"])
def test_other_names(name):
    with pytest.raises(AttributeError, match=name):
        getattr(dataset, name)
