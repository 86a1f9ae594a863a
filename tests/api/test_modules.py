"""All names of cubes, and those of datasets, in one module, whose heavy parts are loaded when asked for."""

import subprocess
import sys

import pytest

from kartothek_cube.api import cube, dataset
from kartothek_cube.io import arrow, arrow_cube, eager, eager_cube, iter_cube, opened_cube
from kartothek_cube.io import iter as iter_
from kartothek_cube.io.dask import bag, bag_cube, dataframe, dataframe_cube, delayed, delayed_cube
from kartothek_cube.io.spark import cube as spark_cube
from kartothek_cube.io.spark import dataset as spark

CUBES = [cube.conditions, cube.constants, arrow_cube, eager_cube, iter_cube, opened_cube]
MODULES = {
    cube: [*CUBES, bag_cube, dataframe_cube, delayed_cube, spark_cube],
    dataset: [arrow, eager, iter_, bag, dataframe, delayed, spark],
}


def run(code: str) -> str:
    """Give what a fresh interpreter prints."""
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize(
    "api, module",
    [(api, module) for api in MODULES for module in MODULES[api]],
    ids=lambda module: module.__name__,
)
def test_every_facade_is_there(api, module):
    assert [name for name in module.__all__ if getattr(api, name) is not getattr(module, name)] == []


@pytest.mark.parametrize("api", MODULES, ids=lambda api: api.__name__)
def test_a_star_import_gives_all_names(api):
    names = {}
    exec(f"from {api.__name__} import *", names)  # noqa: S102
    del names["__builtins__"]
    assert sorted(names) == api.__all__
    assert {name for module in MODULES[api] for name in module.__all__} <= set(names)
    assert api is dataset or "Cube" in names


@pytest.mark.parametrize(
    "statement, loaded",
    [
        ("from kartothek_cube import *", ""),
        ("import kartothek_cube.api.cube, kartothek_cube.api.dataset", ""),
        (
            "from kartothek_cube.api.cube import build_cube, query_cube_arrow, query_cube__iterator, C, Cube",
            "",
        ),
        ("from kartothek_cube.api.cube import build_cube_from_bag", "dask"),
        ("from kartothek_cube.api.cube import query_cube_delayed", "dask"),
        ("from kartothek_cube.api.dataset import read_table, garbage_collect_dataset, DatasetFactory", ""),
        ("from kartothek_cube.api.dataset import update_dataset_from_dataframes__iter", ""),
        ("from kartothek_cube.api.dataset import hash_dataset, garbage_collect_dataset__delayed", "dask"),
    ],
)
def test_only_what_is_needed_is_loaded(statement, loaded):
    assert run(f"{statement}\nimport sys; print(*({{'dask', 'pyspark'}} & set(sys.modules)))") == loaded


@pytest.mark.parametrize(
    "name, engine, command",
    [
        ("build_cube_from_bag", "dask", "kartothek_cube[dask]"),
        ("query_cube_spark", "pyspark", "kartothek_cube[spark]"),
    ],
)
def test_a_facade_without_its_engine(name, engine, command):
    found = run(
        f"import sys; sys.modules[{engine!r}] = None\n"
        "try:\n"
        f"    from kartothek_cube.api.cube import {name}\n"
        "except ImportError as error:\n"
        "    print(error)\n"
        "from kartothek_cube.api.cube import *\n"
        f"print(build_cube.__name__, {name!r} in dir())"
    )
    text, star = found.split("\n")
    assert command in text
    assert star == "build_cube False"


@pytest.mark.parametrize("api", MODULES, ids=lambda api: api.__name__)
@pytest.mark.parametrize("name", ["nope", "nope_bag", "garbage", "_bag", "_ddf", "__path__"])
def test_other_names(api, name):
    with pytest.raises(AttributeError, match=name):
        getattr(api, name)
