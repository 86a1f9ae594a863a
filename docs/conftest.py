"""Run the examples of the pages as tests, each page in its own directory."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
collect_ignore_glob = ["*.py"]

#: page -> why `make test` leaves it out
SLOW = {
    "spark.rst": "a page of jobs, streams and tables of Spark, in the order in which a reader runs them",
    "dask.rst": "starts a cluster of dask",
}


def pytest_collection_modifyitems(items):
    """Mark slow pages."""
    for item in items:
        if item.path.parent == HERE and item.path.name in SLOW:
            item.add_marker(pytest.mark.slow(SLOW[item.path.name]))


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _bucket(request, monkeypatch):
    """The cookbook has a bucket of S3: the small server of the tests, as the environment says."""
    if request.node.path.name != "cookbook.rst":
        yield
        return
    from tests.support.object_server import running

    with running() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret_of_tests")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield


@pytest.fixture(autouse=True)
def _session_of_tests(request):
    """The page about Spark starts a session, which later tests of the process use: it is set up for tests."""
    if request.node.path.name == "spark.rst":
        # the other pages need no pyspark
        importlib.import_module("tests.support.spark_session").shared_session()
