"""Spark: cubes and datasets as DataFrames, in SQL, as a data source."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

if find_spec("pyspark") is None:
    raise ImportError('pyspark is not installed: pip install "kartothek_cube[spark]"')

from pyspark.sql import SparkSession

from kartothek_cube.io.spark._session import (
    PUSHDOWN,
    active_session,
    create_frame,
    no_pandas_warnings,
    workers,
)

__all__ = ("create_frame", "local_session", "register")

#: oldest Java that Spark runs on
_JAVA = 17


def local_session(
    cores: int | None = None, *, memory: str | None = None, config: Mapping[str, object] | None = None
) -> SparkSession:
    """Start Spark on this machine: quiet, with this Python in its workers and the data source registered.

    Parameters
    ----------
    cores
        How many tasks run at the same time; by default as many as there are processors.
    memory
        Memory of the Java process, such as ``"4g"``; 1 GB by default.
    config
        More of Spark's options.

    Returns
    -------
    pyspark.sql.SparkSession
        The session that is active already, if there is one. Output of Java is in a file in the directory for
        temporary files, ``kartothek_cube_spark_<process>.log``.

    Raises
    ------
    RuntimeError
        There is no Java, or an old one.

    Examples
    --------
    >>> spark = local_session(2)
    >>> spark.range(3).count()
    3
    """
    session = SparkSession.getActiveSession()
    if session is not None:
        return register(session)
    version = _java_version()
    if version < _JAVA:
        raise RuntimeError(
            f"Spark needs Java {_JAVA} or newer, but found {version or 'none'}: install it (Debian, Ubuntu: "
            f"apt-get install openjdk-{_JAVA}-jre-headless; macOS: brew install openjdk@{_JAVA}), or set "
            "JAVA_HOME."
        )
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    options: dict[str, object] = {
        "spark.master": f"local[{cores or '*'}]",
        "spark.app.name": "kartothek_cube",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": 4 * (cores or os.cpu_count() or 1),
        **({"spark.driver.memory": memory} if memory else {}),
        **(config or {}),
    }
    return register(_start({key: str(value) for key, value in options.items()}))


def _start(options: Mapping[str, str]) -> SparkSession:
    # clients of Spark Connect lack them
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger

    # they print each error of a statement with its stack trace of Java, before it is raised
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    conf = SparkConf(loadDefaults=False).setAll(list(options.items()))
    path = Path(tempfile.gettempdir(), f"kartothek_cube_spark_{os.getpid()}.log")
    with no_pandas_warnings():
        if SparkContext._gateway is None:  # else Java runs already, since an earlier session
            with path.open("ab") as log:
                gateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})
            SparkContext._ensure_initialized(gateway=gateway)
        return SparkSession.builder.config(conf=conf).getOrCreate()


def register(spark: SparkSession | None = None) -> SparkSession:
    """Make ``format("kartothek_cube")`` known to a session, with all save modes.

    Spark's type TIME, which is off by default in Spark 4, is switched on.

    Parameters
    ----------
    spark
        The session, also one of Spark Connect; the active one by default.

    Returns
    -------
    pyspark.sql.SparkSession
        The session.

    Raises
    ------
    RuntimeError
        There is no active session.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> from kartothek_cube.core.cube.cube import Cube
    >>> from kartothek_cube.io.eager_cube import build_cube
    >>> cube = Cube(dimension_columns=["CITY"], partition_columns=["COUNTRY_CODE"], uuid_prefix="geodata")
    >>> cities = pa.table({"CITY": ["Ulm", "Bath"], "COUNTRY_CODE": ["DE", "UK"], "LATITUDE": [48.4, 51.4]})
    >>> store = f"hfs://{tempfile.mkdtemp()}"
    >>> _ = build_cube(cities, cube, store)
    >>> spark = register(local_session(2))
    >>> spark.read.format("kartothek_cube").option("store", store).option("cube", "geodata").load()
    DataFrame[CITY: string, COUNTRY_CODE: string, LATITUDE: double]
    >>> _ = spark.sql(
    ...     "CREATE OR REPLACE TEMPORARY VIEW cities USING kartothek_cube "
    ...     f"OPTIONS (store '{store}', cube 'geodata')"
    ... )
    >>> spark.sql("SELECT CITY FROM cities WHERE LATITUDE > 50").collect()
    [Row(CITY='Bath')]
    """
    # executors import this package, but not these
    from kartothek_cube.io.spark._datasource_options import patch_pyspark
    from kartothek_cube.io.spark.datasource import data_source

    session = active_session(spark)
    session.dataSource.register(data_source(workers(session)))
    # off by default in Spark 4: filters for data sources, which then plan again; columns of the type TIME
    for switch in (PUSHDOWN, "spark.sql.timeType.enabled"):
        session.conf.set(switch, "true")
    patch_pyspark()
    return session


def _java_version() -> int:
    """Version of the Java that Spark would start; 0: there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        return 0
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(version.group(1)) if version else 0
