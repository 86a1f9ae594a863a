"""Importing façades whose package is not installed."""

import subprocess
import sys

import pytest

CODE = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "{}" else find_spec(name)
import kartothek_cube.io.{}
"""


@pytest.mark.parametrize(
    "package, module, remedy",
    [
        ("dask", "dask.delayed_cube", "pip install 'kartothek_cube[dask]'"),
        ("pyspark", "spark", 'pip install "kartothek_cube[spark]"'),
    ],
)
def test_one_sentence_says_what_to_do(package, module, remedy):
    code = CODE.format(package, module)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.splitlines()[-1] == f"ImportError: {package} is not installed: {remedy}"
