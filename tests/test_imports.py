"""Importing the package or an eager façade loads neither dask nor pyspark."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

HEAVY = ("dask", "distributed", "pyspark", "obstore", "click", "IPython", "tqdm")

#: modules for notebooks and for tasks on workers
LEAN = (
    "kartothek_cube",
    *(
        f"kartothek_cube.api.{name}"
        for name in ("consistency", "cube", "dataset", "discover", "serialization")
    ),
    *(
        f"kartothek_cube.io.{name}"
        for name in ("arrow", "arrow_cube", "eager", "eager_cube", "iter", "iter_cube")
    ),
)


def loaded_by(module: str) -> set[str]:
    """Give the top-level packages that a fresh interpreter has loaded after importing a module."""
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return set(run.stdout.split())


@pytest.mark.parametrize("module", LEAN)
def test_lean_import(module):
    assert loaded_by(module) & set(HEAVY) == set()


def test_a_heavy_import_would_be_seen():
    assert "dask" in loaded_by("dask")
