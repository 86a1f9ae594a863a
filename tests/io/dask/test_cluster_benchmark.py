"""The benchmark on a cluster runs, on a small cube, and all forms give the answer that pandas gives."""

import json

import pytest

from tests.test_benchmarks import run, workload

pytestmark = pytest.mark.slow("a benchmark on a cluster of dask")

__all__ = ("workload",)


def test_all_forms(tmp_path, workload):
    run("peers/cluster.py", tmp_path / "store", tmp_path / "out.json", 1)
    result = json.loads((tmp_path / "out.json").read_text())
    assert set(result["build"]) == {"eager", "delayed", "bag"}
    assert set(result["query"]) == {"eager", "delayed", "bag", "dataframe"}
    seed = workload.whole(workload.seed)
    for form, found in result["query"].items():
        assert (form, found["rows"]) == (form, len(seed))
        assert found["check"] == pytest.approx(seed.v0.sum())
        assert found["ratio"] > 0 and found["cpu_ratio"] > 0
