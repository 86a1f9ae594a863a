"""The derived façades are those that ``tools/make_facades.py`` writes, which follow the eager ones."""

from __future__ import annotations

import importlib.util
import shutil
import sys

import pytest

from tests.support.paths import ROOT

pytest.importorskip("ruff")


@pytest.fixture
def make_facades(monkeypatch):
    spec = importlib.util.spec_from_file_location("make_facades", ROOT / "tools" / "make_facades.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def io(make_facades, monkeypatch, tmp_path):
    """The directory ``io`` of a copy of the library, on which the script works."""
    shutil.copytree(
        ROOT / "kartothek_cube", tmp_path / "kartothek_cube", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(make_facades, "ROOT", tmp_path)
    return tmp_path / "kartothek_cube" / "io"


def replace(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_facades_are_current(make_facades, capsys):
    assert make_facades.main(["--check"]) == 0, capsys.readouterr().out


def test_a_change_of_an_eager_function_changes_the_derived_ones(make_facades, io, capsys):
    before = (io / "dask" / "bag_cube.py").read_text(encoding="utf-8")
    replace(io / "eager_cube.py", "min_files: int = 2", "min_files: int = 3")
    stale = make_facades.main(["--check"])
    assert stale >= 3
    assert "bag_cube.py is not current" in capsys.readouterr().out
    assert (io / "dask" / "bag_cube.py").read_text(encoding="utf-8") == before
    assert make_facades.main([]) == 0
    after = (io / "dask" / "bag_cube.py").read_text(encoding="utf-8")
    assert after == before.replace("min_files: int = 2", "min_files: int = 3")
    assert make_facades.main(["--check"]) == 0


def test_a_new_parameter_that_no_call_uses_is_an_error(make_facades, io):
    replace(io / "eager_cube.py", "min_files: int = 2", "min_files: int = 2,\n    max_files: int = 9")
    with pytest.raises(
        make_facades.FacadeError, match="compact_cube__iter: no call has the parameters max_files"
    ):
        make_facades.main([])


def test_a_changed_function_below_the_marker_is_restored(make_facades, io):
    path = io / "iter.py"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("overwrite: bool = False", "overwrite: bool = True"), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    assert make_facades.main([]) == 0
    assert path.read_text(encoding="utf-8") == before


def test_an_unknown_function_is_an_error(make_facades, io, monkeypatch, tmp_path):
    table = make_facades.TABLE.read_text(encoding="utf-8")
    (tmp_path / "facades.toml").write_text(
        table.replace('"verify_cube_job"', '"check_cube_job"'), encoding="utf-8"
    )
    monkeypatch.setattr(make_facades, "TABLE", tmp_path / "facades.toml")
    with pytest.raises(make_facades.FacadeError, match="unknown function check_cube_job"):
        make_facades.main([])
