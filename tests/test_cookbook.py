"""The recipes of the cookbook that are no doctests run: that for Spark, and the script for dask."""

import os
import re
import subprocess
import sys
import textwrap

import pandas as pd
import pytest

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.transforms import month
from kartothek_cube.io.opened_cube import open_cube
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "cookbook.rst").read_text(encoding="utf-8")
RECIPES = re.split(r"\n(.+)\n~+\n", PAGE)[1:]
TITLES = dict(zip(RECIPES[::2], RECIPES[1::2], strict=True))


def script_of(title: str) -> str:
    (block,) = re.findall(r"\.\. code-block:: python\n\n((?:(?:    .*)?\n)+)", TITLES[title] + "\n")
    return textwrap.dedent(block)


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hours = pd.to_datetime(["2024-01-01", "2024-02-01", "2024-01-01"])
    readings = pd.DataFrame({"meter": ["a", "a", "b"], "hour": hours, "kwh": 1.5})
    open_cube(Cube(["meter", "hour"], [month("hour", name="month")], "energy"), "./store").build(readings)
    return tmp_path


@pytest.mark.slow("starts a session of Spark")
def test_the_recipe_for_spark_runs(directory, capsys):
    from tests.support.spark_session import shared_session

    shared_session()
    exec(script_of("In Spark"), {})  # noqa: S102 (the page is ours)
    shown = capsys.readouterr().out
    sums = re.findall(r"\|\s*(2024-0\d)\|\s*(\S+)\|", shown)
    assert sorted(sums) == [("2024-01", "1.5"), ("2024-02", "1.5")]


@pytest.mark.slow("starts processes of dask")
def test_the_recipe_for_dask_is_a_script_that_runs(directory):
    (directory / "script.py").write_text(script_of("With dask"), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "script.py"], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert re.findall(r"(?m)^([ab]) +(\S+)$", run.stdout) == [("a", "3.0"), ("b", "1.5")]


def test_tasks_are_found_under_the_words_that_users_type():
    lines = ",".join(re.findall(r"\.\. index:: (.+)", PAGE))
    words = {word.strip().lower() for word in lines.split(",")}
    expected = {"csv", "upsert", "delete rows", "undo", "time zone", "plot", "late data", "one file per day"}
    expected |= {
        "rename column",
        "s3",
        "which files are read",
        "sql",
        "polars",
        "spark",
        "dask",
        "disk space",
    }
    expected |= {"several jobs", "check", "delta lake", "copy", "vacuum", "time travel", "small files"}
    assert expected - words == set()
    assert len(TITLES) >= 20
