"""All cases of Spark on a cluster; CI runs a part of them."""

from __future__ import annotations

from tests.io.spark.test_cluster import run_on_cluster


def test_all_cases_on_a_cluster():
    run_on_cluster("-m", "soak or not soak")
