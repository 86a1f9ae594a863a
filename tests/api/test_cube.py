"""All names of cubes in one module, whose heavy parts are loaded when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kartothek_cube.api import cube
from kartothek_cube.core.cube import conditions, constants
from kartothek_cube.io import arrow_cube, eager_cube, iter_cube, opened_cube
from kartothek_cube.io.dask import bag_cube, dataframe_cube, delayed_cube
from kartothek_cube.io.spark import cube as spark_cube

MODULES = [
    conditions,
    constants,
    arrow_cube,
    eager_cube,
    iter_cube,
    opened_cube,
    bag_cube,
    dataframe_cube,
    delayed_cube,
    spark_cube,
]


def run(code: str) -> str:
    """Give what a fresh interpreter prints."""
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_facade_is_there(module):
    assert [name for name in module.__all__ if getattr(cube, name) is not getattr(module, name)] == []


def test_a_star_import_gives_all_names():
    names = {}
    exec("from kartothek_cube.api.cube import *", names)  # noqa: S102
    del names["__builtins__"]
    assert sorted(names) == cube.__all__
    assert {name for module in MODULES for name in module.__all__} | {"Cube"} <= set(names)


@pytest.mark.parametrize(
    "names, loaded",
    [
        ("build_cube, query_cube_arrow, query_cube__iterator, C, Cube", set()),
        ("build_cube_from_bag", {"dask"}),
        ("query_cube_delayed", {"dask"}),
    ],
)
def test_only_what_is_needed_is_loaded(names, loaded):
    found = run(
        f"from kartothek_cube.api.cube import {names}\n"
        "import sys; print(*({'dask', 'pyspark'} & set(sys.modules)))"
    )
    assert set(found.split()) == loaded


@pytest.mark.parametrize(
    "statement",
    ["from kartothek_cube import *", "import kartothek_cube.api.cube", "import kartothek_cube.api.dataset"],
)
def test_the_api_loads_no_engine(statement):
    assert run(f"{statement}\nimport sys; print(*({{'dask', 'pyspark'}} & set(sys.modules)))") == ""


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


@pytest.mark.parametrize("name", ["nope", "nope_bag", "_bag", "__path__"])
def test_other_names(name):
    with pytest.raises(AttributeError, match=name):
        getattr(cube, name)
