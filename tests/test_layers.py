"""The package follows the import rules of docs/architecture.rst, and the script finds violations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT, load_script

check_layers = load_script(ROOT / "tools" / "check_layers.py")


def write_tree(directory: Path, files: dict[str, str]) -> Path:
    """Write a package `pkg`; every directory is a package, every module has a docstring."""
    package = directory / "pkg"
    for name, code in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""Module."""\n' + code)
        for parent in path.parents:
            if parent == directory:
                break
            init = parent / "__init__.py"
            if not init.exists():
                init.write_text('"""Package."""\n')
    return package


def test_the_package_follows_the_rules(tmp_path):
    assert check_layers.check(ROOT / "kartothek_cube") == []
    assert check_layers.check(tmp_path) != []


TYPE_CHECKING = "import typing\nif typing.TYPE_CHECKING:\n    "
GOOD = {
    "downwards": {
        "core/a.py": "",
        "io/b.py": "from pkg.core import a\nfrom pkg.kartothek_helpers import c",
        "kartothek_helpers.py": "from pkg.core import a\nc = a",
    },
    "relative": {"core/a.py": "X = 1", "core/b.py": "from .a import X\nfrom ..core.a import X as Y"},
    "type checking": {
        "core/a.py": TYPE_CHECKING + "from pkg.io import b\n    import dask",
        "io/b.py": "from pkg.core import a",
    },
    "façades": {
        "io/dask/a.py": "import dask.bag",
        "io/spark/a.py": "import pyspark",
        "cli/a.py": "import click, dask",
    },
    "api": {"io/a.py": "", "io/dask/b.py": "", "api/c.py": "from pkg.io import a\nfrom pkg.io.dask import b"},
    "tests for others": {"core/a.py": "", "testing/b.py": "import pytest\nfrom pkg.core import a"},
    "re-export": {"core/cube/__init__.py": "from pkg.core.cube.a import X", "core/cube/a.py": "X = 1"},
    "dynamic": {
        "io/a.py": '__import__("pkg.core.b")\n__import__(f"pkg.io.{X}")\n__import__(X)',
        "io/c/__init__.py": '__import__(f"{__name__}.{X}")',
        "core/b.py": "",
    },
    "exception": {
        "core/cube/constants.py": '__import__("pkg.serialization")',
        "serialization/__init__.py": "",
    },
    "root": {
        "__init__.py": "from pkg.core import a",
        "display.py": "",
        "core/a.py": "from pkg.display import X",
    },
    "package and parent": {
        "core/a.py": "from pkg.core.store import b",
        "core/c.py": "",
        "core/store/b.py": "from pkg.core import c",
    },
}

#: name -> module that imports, its code, message; there are modules io.b and core.c
BAD = {
    "tests in use": ("cli/a.py", "from pkg.testing import b", r"a.py:2: cli.a imports testing"),
    "pytest": ("core/a.py", "import pytest", r"a.py:2: imports pytest; only testing may"),
    "upwards": ("core/a.py", "from pkg.io import b", r"a.py:2: core.a imports io.b"),
    "in a function": ("core/a.py", "def f():\n    import pkg.io.b", r"a.py:3: core.a imports io.b"),
    "relative": ("core/a.py", "from ..io.b import X", r"core.a imports io.b"),
    "else": (
        "core/a.py",
        TYPE_CHECKING + "X = 1\nelse:\n    import pkg.io.b",
        r"a.py:6: core.a imports io.b",
    ),
    "the package itself": ("core/a.py", "from pkg import __version__", r"core.a imports pkg, a higher layer"),
    "io from api": ("io/a.py", "from pkg.api import b", r"io.a imports api.b"),
    "helpers": (
        "kartothek_helpers.py",
        "from pkg.io import b",
        r"kartothek_helpers imports io.b, a higher layer",
    ),
    "unknown package": ("helpers/a.py", "from pkg.core import c", r"helpers.a belongs to no layer"),
    "dask": ("io_components/a.py", "def f():\n    import dask.bag as db", r"a.py:3: imports dask"),
    "pyspark in dask": ("io/dask/a.py", "from pyspark.sql import Row", r"imports pyspark"),
    "eager needs dask": ("io/a.py", "from pkg.io.dask import b", r"io.a imports io.dask.b"),
    "thread in core": ("core/a.py", "from concurrent.futures import Future", r"core imports concurrent"),
    "dynamic": (
        "core/a.py",
        'import importlib\nimportlib.import_module("pkg.io.b")',
        r"a.py:3: core.a imports io.b",
    ),
    "dynamic, relative": (
        "core/a.py",
        "import importlib as i\ni.import_module('..io.b', __package__)",
        r"core.a imports io.b",
    ),
    "one of two": ("core/a.py", '__import__("pkg.core.c" if 1 else "pkg.io.b")', r"core.a imports io.b"),
    "computed": (
        "core/a.py",
        'def f(name):\n    return __import__(f"pkg.io.{name}")',
        r"a.py:3: core.a imports io",
    ),
    "dask, dynamic": ("io/a.py", '__import__("dask.bag")', r"imports dask"),
    "module that is missing": ("core/a.py", "import pkg.core.b", r"there is no module pkg.core.b"),
}
BESIDES = {"io/b.py": "", "io/dask/b.py": "", "api/b.py": "", "testing/b.py": "", "core/c.py": ""}


@pytest.mark.parametrize("files", GOOD.values(), ids=GOOD)
def test_allowed_imports(tmp_path, files):
    assert check_layers.check(write_tree(tmp_path, files)) == []


@pytest.mark.parametrize("name, code, message", BAD.values(), ids=BAD)
def test_violations(tmp_path, name, code, message):
    problems = check_layers.check(write_tree(tmp_path, {**BESIDES, name: code}))
    assert any(re.search(message, line) for line in problems), problems


@pytest.mark.parametrize(
    "code", ["from pkg.core.a import X", "def f():\n    from pkg.core import a", '__import__("pkg.core.a")']
)
def test_modules_must_not_import_each_other(tmp_path, code):
    package = write_tree(tmp_path, {"core/a.py": "from pkg.core import b", "core/b.py": code})
    assert any("modules import each other: core.a <-> core.b" in line for line in check_layers.check(package))


def test_packages_must_not_import_each_other(tmp_path):
    files = {"core/store/a.py": "from pkg.core.types import b", "core/store/c.py": "", "core/types/b.py": ""}
    files["core/types/d.py"] = "def f():\n    from pkg.core.store import c"
    problems = check_layers.check(write_tree(tmp_path, files))
    assert any("packages import each other: core.store <-> core.types" in line for line in problems)


def test_missing_docstrings_and_packages(tmp_path):
    package = write_tree(tmp_path, {"core/a.py": ""})
    (package / "core" / "a.py").write_text("X = 1")
    (package / "core" / "__init__.py").unlink()
    problems = [line.rpartition(": ")[2] for line in check_layers.check(package)]
    assert problems == ["has no docstring", "has no __init__.py"]


@pytest.mark.parametrize("files, status", [({"core/a.py": ""}, 0), ({"core/a.py": "import dask"}, 1)])
def test_exit_status(tmp_path, capsys, files, status):
    assert check_layers.main([str(write_tree(tmp_path, files))]) == status
    assert ("layers: ok" in capsys.readouterr().out) == (status == 0)
