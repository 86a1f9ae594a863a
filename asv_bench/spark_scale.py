"""Many partitions on a standalone cluster of Spark: time and driver memory of plan, write and commit.

``PYTHONPATH=. python asv_bench/spark_scale.py 20000 100000`` starts four executors of one core on this
machine, and prints one line per number of partitions. ``--adaptive false`` turns off AQE.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.spark import register
from kartothek_cube.io.spark._session import no_pandas_warnings
from kartothek_cube.io.spark.cube import (
    append_to_cube_from_spark,
    build_cube_from_spark,
    merge_into_cube_from_spark,
    query_cube_spark,
)
from kartothek_cube.io_components.write import write_commit
from tests.support.paths import ROOT
from tests.support.standalone import cluster

CUBE = Cube(["x"], ["p"], "cube")
#: rows per partition
ROWS = 4


@contextmanager
def session(directory: Path, workers: int, **options: str) -> Iterator[SparkSession]:
    """A session on a cluster of executors with one core each."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    config = {
        "spark.executor.memory": "512m",
        "spark.driver.memory": "1g",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.scheduler.minRegisteredResourcesRatio": 1.0,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **options,
    }
    with cluster(directory, workers) as master, no_pandas_warnings():
        spark = SparkSession.builder.config(map={"spark.master": master, **config}).getOrCreate()
        try:
            yield register(spark)
        finally:
            spark.stop()


def peak() -> float:
    """Largest memory of this process so far, which is the driver's Python, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(spark: SparkSession, partitions: int, url: str) -> dict[str, float]:
    """Seconds per operation, of the commit among them, and MB that the driver's Python needed."""
    rows = spark.range(partitions * ROWS).selectExpr("id AS x", f"id % {partitions} AS p", "id * 2 AS v")
    before, times = peak(), {}
    commit = write_commit.finish_write

    def timed_commit(plan, parts):
        parts = list(parts)
        start = time.perf_counter()
        result = commit(plan, parts)
        times["commit"] = time.perf_counter() - start
        return result

    write_commit.finish_write = timed_commit
    operations = {
        "build": lambda: build_cube_from_spark(rows, CUBE, url),
        "append": lambda: append_to_cube_from_spark(rows.where("p < 100"), CUBE, url),
        "merge": lambda: merge_into_cube_from_spark(rows.where("p < 100"), CUBE, url),
        "plan": lambda: query_cube_spark(CUBE, url),
        "read": lambda: query_cube_spark(CUBE, url).write.format("noop").mode("overwrite").save(),
    }
    result = {}
    for name, operation in operations.items():
        start = time.perf_counter()
        operation()
        result[name] = time.perf_counter() - start
        if name == "build":
            result["commit"] = times["commit"]
    write_commit.finish_write = commit
    return {**result, "driver_mb": peak() - before}


def main() -> None:
    """Measure the given numbers of partitions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("partitions", type=int, nargs="+")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--adaptive", default="true", choices=["true", "false"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        options = {"spark.sql.adaptive.enabled": arguments.adaptive, "spark.sql.shuffle.partitions": "16"}
        with session(Path(name), arguments.workers, **options) as spark:
            spark.range(1000).selectExpr("max(id)").collect()
            for partitions in arguments.partitions:
                store = f"hfs://{name}/store{partitions}?create_if_missing=true"
                figures = measure(spark, partitions, store)
                text = ", ".join(f"{key} {value:.1f}" for key, value in figures.items())
                print(f"{partitions:,} partitions: {text}", flush=True)


if __name__ == "__main__":
    main()
