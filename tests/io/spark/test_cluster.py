"""Spark on several processes, some of which die: runs on_cluster.py, since a process has one Spark only."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow("a cluster of Spark, whose processes are killed")


def test_pipelines_and_faults_on_a_cluster():
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/io/spark/on_cluster.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr[-2_000:]
