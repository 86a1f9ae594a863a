"""Importing the façades of dask: what happens where dask is not installed."""

import subprocess
import sys

CODE = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "dask" else find_spec(name)
import kartothek_cube.io.dask.delayed_cube
"""


def test_without_dask_one_sentence_says_what_to_do():
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    last = result.stderr.splitlines()[-1]
    assert last == "ImportError: dask is not installed: pip install 'kartothek_cube[dask]'"
