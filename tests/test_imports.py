"""Importing the package or an eager façade loads neither dask nor pyspark."""

import pytest

from tests.support.paths import run_python

HEAVY = ("dask", "distributed", "pyspark", "obstore", "click", "IPython", "tqdm")

#: modules for notebooks and for tasks on workers
API = ("consistency", "cube", "dataset", "discover", "serialization")
IO = ("arrow", "arrow_cube", "eager", "eager_cube", "iter", "iter_cube")
LEAN = (
    "kartothek_cube",
    *(f"kartothek_cube.api.{name}" for name in API),
    *(f"kartothek_cube.io.{name}" for name in IO),
)


def loaded_by(module: str) -> set[str]:
    """Give the top-level packages that a fresh interpreter has loaded after importing a module."""
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(run_python(code).stdout.split())


@pytest.mark.parametrize("module", LEAN)
def test_lean_import(module):
    assert loaded_by(module) & set(HEAVY) == set()


def test_a_heavy_import_would_be_seen():
    assert "dask" in loaded_by("dask")
