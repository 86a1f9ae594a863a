"""Spark on several processes, some of which die: runs on_cluster.py, since a process has one Spark only."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow("a cluster of Spark, whose processes are killed")


def run_on_cluster(**environment: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/io/spark/on_cluster.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr[-2_000:]


def test_pipelines_and_faults_on_a_cluster():
    run_on_cluster()
