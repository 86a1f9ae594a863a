"""Modules of kartothek that have no file are imported like others, also to unpickle in a new interpreter."""

import importlib

import pytest

from kartothek_cube.kartothek_paths import _NAMES
from tests.support.paths import ROOT, run_python


@pytest.mark.parametrize("name", sorted({*_NAMES} - {"core"}))
def test_the_table(name):
    module = importlib.import_module(f"kartothek_cube.{name}")
    assert module.__name__ == f"kartothek_cube.{name}"
    assert module.__doc__
    assert sorted(module.__all__) == list(module.__all__)
    assert all(hasattr(module, exported) for exported in module.__all__)
    assert not (ROOT / "kartothek_cube" / f"{name.replace('.', '/')}.py").exists()


@pytest.mark.parametrize(
    "code",
    [
        "import kartothek_cube.io_components.cube.write as w; w.MultiTableCommitAborted",
        "from kartothek_cube.api import discover; discover.discover_cube",
        "from kartothek_cube.utils.converters import *; converter_str",
        "import pickle; pickle.loads(b'ckartothek_cube.api.consistency\\ncheck_datasets\\n.')",
    ],
)
def test_a_new_interpreter(code):
    run_python(code)


def test_other_modules_do_not_exist():
    with pytest.raises(ModuleNotFoundError, match=r"kartothek_cube\.api\.nothing"):
        importlib.import_module("kartothek_cube.api.nothing")
