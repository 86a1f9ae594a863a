"""The steps of the example: their docstrings and code are printed, then they run."""

from __future__ import annotations

import sys

import nycflights_show as show
import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from kartothek_cube import Cube, open_cube
from kartothek_cube.io.opened_cube import LazyQuery
from kartothek_cube.io.spark.cube import (
    append_to_cube_from_spark,
    build_cube_from_spark,
    cleanup_cube_spark,
    compute_dataset_spark,
    extend_cube_from_spark,
    query_cube_spark,
    remove_partitions_spark,
    update_cube_from_spark,
)

# the processes of Spark cannot import this module
cloudpickle.register_pickle_by_value(sys.modules[__name__])

cube = Cube(["origin", "time_hour"], partition_columns=["month"], uuid_prefix="nyc")


def build_from_readings(spark: SparkSession, store: str) -> None:
    """A cell is an airport and an hour. On the day when the clock was set back, an hour occurred twice:"""
    build_cube_from_spark(spark.table("readings"), cube, store)


def build(spark: SparkSession, store: str) -> None:
    """Nothing was stored. With the mean of the two, the weather becomes the seed: it defines the cells."""
    weather = spark.table("weather").where("month < 12")
    build_cube_from_spark(weather, cube, store)


def extend(spark: SparkSession, store: str) -> None:
    """Other tables add columns. Airports have no hour, the calendar no airport, and both no month:"""
    departures = spark.table("departures").where("month < 12")
    extend_cube_from_spark({"departures": departures}, cube, store)
    tables = {"airports": spark.table("airports"), "calendar": spark.table("calendar")}
    extend_cube_from_spark(tables, cube, store, partition_on={"airports": [], "calendar": []})


def query(store: str) -> DataFrame:
    """The worst of the windy hours, from all four datasets. Spark joins and shuffles nothing:"""
    condition = "wind_speed >= 25 AND flights >= 10"
    columns = ["name", "weekday", "wind_speed", "flights", "cancelled", "mean_delay"]
    windy = query_cube_spark(cube, store, condition, payload_columns=columns)
    return windy.select("time_hour", *columns).orderBy("mean_delay", ascending=False).limit(3)


def extra_delay(hours: pd.DataFrame) -> pd.DataFrame:
    usual = hours.groupby(["origin", hours.time_hour.dt.hour])["mean_delay"].transform("mean")
    return hours.assign(extra_delay=hours.pop("mean_delay") - usual)


def compute(store: str) -> object:
    """Spark calls this function for each month; its rows become a dataset:"""
    return compute_dataset_spark(extra_delay, cube, store, "unusual", payload_columns="mean_delay")


def append(spark: SparkSession, store: str) -> None:
    """December is appended. Hours without weather are filled, and the filled month replaces it:"""
    weather, departures, filled = (
        spark.table(name).where("month = 12") for name in ["weather", "departures", "filled"]
    )
    append_to_cube_from_spark({"seed": weather, "departures": departures}, cube, store)
    update_cube_from_spark(filled, cube, store, "month = 12", datasets="seed")


def compute_again(store: str) -> object:
    """The same call computes only what has changed since:"""
    return compute_dataset_spark(extra_delay, cube, store, "unusual", payload_columns="mean_delay")


def query_with_sql(spark: SparkSession, store: str) -> DataFrame:
    """In SQL, the cube is a table. Do planes leave later when it is windy?"""
    spark.sql(f"CREATE TEMP VIEW nyc USING kartothek_cube OPTIONS (store '{store}', cube 'nyc')")
    return spark.sql("""
        SELECT least(floor(wind_speed / 10) * 10, 30) AS wind, sum(flights), sum(cancelled),
               sum(mean_delay * (flights - cancelled)) / sum(flights - cancelled) AS delay
        FROM nyc WHERE flights > 0 AND wind_speed IS NOT NULL GROUP BY 1 ORDER BY 1""")


def query_with_pandas(store: str) -> LazyQuery:
    """A small query needs no Spark. Kennedy Airport, every six hours, on the day before Thanksgiving:"""
    hours = "origin = 'JFK' AND time_hour >= '2013-11-27' AND time_hour < '2013-11-28'"
    return open_cube("nyc", store).query(hours, columns=["weekday", "temp", "wind_speed", "mean_delay"])


def remove(spark: SparkSession, store: str, month: int) -> None:
    """The oldest month is removed. Its files stay for running queries, until a cleanup:"""
    remove_partitions_spark(cube, store, f"month = {month}", ["seed", "departures", "unusual"])
    cleanup_cube_spark(cube, store)


#: title, and the functions with what is shown of their results
STEPS = {
    "Build a cube": ((build_from_readings, show.error), (build, show.tree)),
    "Extend it": ((extend, show.stats),),
    "Query it": ((query, show.frame),),
    "Compute a dataset": ((extra_delay, None), (compute, show.text)),
    "Append and update a month": ((append, show.gaps), (compute_again, show.text)),
    "Query with SQL": ((query_with_sql, show.bars),),
    "Query with pandas": ((query_with_pandas, show.query),),
    "Remove a month": ((remove, show.files),),
}
