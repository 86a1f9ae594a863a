"""The session of Spark that all tests of a process share, set up for many small jobs."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from kartothek_cube.io.spark import local_session, register

#: Java compiles little: most of its code runs once
CONFIG = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": 2,
    "spark.ui.enabled": "false",
}
#: where Spark Connect is; Spark itself reads this variable
REMOTE = "SPARK_REMOTE"


def shared_session() -> Any:
    """Give the session with two workers; one of Spark Connect if the environment says where."""
    if REMOTE not in os.environ:
        return local_session(2, config=CONFIG)
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with warnings.catch_warnings():
        # of Spark itself: about pandas, and about options for Java that it passed on all the same
        warnings.simplefilter("ignore")
        return register(SparkSession.builder.remote(os.environ[REMOTE]).config(map=CONFIG).getOrCreate())
