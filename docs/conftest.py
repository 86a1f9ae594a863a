"""Run the examples of the pages as tests, each page in its own directory."""

from __future__ import annotations

import importlib

import pytest

collect_ignore_glob = ["*.py"]


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _session_of_tests(request):
    """The page about Spark starts a session, which later tests of the process use: it is set up for tests."""
    if request.node.path.name == "spark.rst":
        # the other pages need no pyspark
        importlib.import_module("tests.support.spark_session").shared_session()
