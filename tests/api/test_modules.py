"""All names of cubes, and those of datasets, in one module, whose heavy parts are loaded when asked for."""

import pytest

from kartothek_cube.api import cube, dataset
from kartothek_cube.io import arrow, arrow_cube, eager, eager_cube, iter_cube, opened_cube
from kartothek_cube.io import iter as iter_
from kartothek_cube.io.dask import bag, bag_cube, dataframe, dataframe_cube, delayed, delayed_cube
from kartothek_cube.io.spark import cube as spark_cube
from kartothek_cube.io.spark import dataset as spark
from tests.support.paths import run_python

CUBES = [cube.conditions, cube.constants, arrow_cube, eager_cube, iter_cube, opened_cube]
MODULES = {
    cube: [*CUBES, bag_cube, dataframe_cube, delayed_cube, spark_cube],
    dataset: [arrow, eager, iter_, bag, dataframe, delayed, spark],
}


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


#: modules for notebooks and for tasks on workers
LEAN = [
    "import kartothek_cube",
    *(f"import kartothek_cube.api.{name}" for name in ("consistency", "discover", "serialization")),
    *(
        f"import kartothek_cube.io.{name}"
        for name in ("arrow", "arrow_cube", "eager", "eager_cube", "iter", "iter_cube")
    ),
    "from kartothek_cube import *",
    "import kartothek_cube.api.cube, kartothek_cube.api.dataset",
    "from kartothek_cube.api.cube import build_cube, query_cube_arrow, query_cube__iterator, C",
    "from kartothek_cube.api.dataset import read_table, garbage_collect_dataset, DatasetFactory",
    "from kartothek_cube.api.dataset import update_dataset_from_dataframes__iter",
]
HEAVY = {"dask", "distributed", "pyspark", "obstore", "click", "IPython", "tqdm"}


def test_only_what_is_needed_is_loaded():
    # in one interpreter: a new one takes a second
    code = f"""
import sys
for statement in sys.argv[1:]:
    exec(statement)
    print(*{HEAVY} & {{name.split(".")[0] for name in sys.modules}})
"""
    lines = run_python(code, *LEAN, "from kartothek_cube.api.cube import query_cube_delayed").stdout
    assert lines.splitlines() == [*([""] * len(LEAN)), "dask"]


@pytest.mark.parametrize(
    "name, engine, extra", [("build_cube_from_bag", "dask", "dask"), ("query_cube_spark", "pyspark", "spark")]
)
def test_a_facade_without_its_engine(name, engine, extra):
    code = f"""
import sys; sys.modules[{engine!r}] = None
try:
    from kartothek_cube.api.cube import {name}
except ImportError as error:
    print(error)
from kartothek_cube.api.cube import *
print(build_cube.__name__, {name!r} in dir())
"""
    text, star = run_python(code).stdout.splitlines()
    assert f"kartothek_cube[{extra}]" in text
    assert star == "build_cube False"


@pytest.mark.parametrize("api", MODULES, ids=lambda api: api.__name__)
@pytest.mark.parametrize("name", ["nope", "nope_bag", "garbage", "_bag", "_ddf", "__path__"])
def test_other_names(api, name):
    with pytest.raises(AttributeError, match=name):
        getattr(api, name)
