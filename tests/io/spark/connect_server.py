"""A server of Spark Connect at a port of this machine, until its input ends."""

from __future__ import annotations

import sys
import warnings

from pyspark.sql.connect.session import SparkSession

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    options = {
        "spark.connect.grpc.binding.port": sys.argv[1],
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.local.connect": "1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.remote": "local[2]",
    }
    SparkSession._start_connect_server("local[2]", options)
    sys.stdout.write("started\n")
    sys.stdout.flush()
    sys.stdin.read()
