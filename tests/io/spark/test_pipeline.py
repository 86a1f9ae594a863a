"""The pipeline of the demo in SQL and calls of DataFrames only: the same cube as by functions."""

import pytest

from kartothek_cube.api import cube as api

pytestmark = pytest.mark.slow("a whole pipeline, written in two ways")

CUBE = api.Cube(["origin", "time_hour"], ["month"], "nyc")
HOURS = """
    SELECT origin, month, {},
        timestamp_ntz'2013-01-01 05:00:00' + make_dt_interval(28 * (month - 1), hour) AS time_hour
    FROM VALUES ('JFK'), ('LGA') AS airports(origin), range(1, 4) AS months(month),
        range(4) AS hours(hour)
"""
WEATHER = HOURS.format("CAST(30 + month * hour + ascii(origin) % 7 AS DOUBLE) AS temp")
DEPARTURES = HOURS.format("CAST(hour * month + ascii(origin) AS BIGINT) AS flights")
AIRPORTS = "SELECT * FROM VALUES ('JFK', 'John F Kennedy Intl'), ('LGA', 'La Guardia') AS t(origin, name)"
DELAYS = "SELECT origin, time_hour, month, flights - avg(flights) OVER (PARTITION BY month) AS extra FROM {}"


def by_functions(spark, url) -> None:
    weather, departures = spark.sql(WEATHER), spark.sql(DEPARTURES)
    api.build_cube_from_spark(weather.where("month < 3"), CUBE, url)
    api.extend_cube_from_spark(
        {"departures": departures.where("month < 3"), "airports": spark.sql(AIRPORTS)},
        CUBE,
        url,
        partition_on={"airports": []},
    )
    api.query_cube_spark(CUBE, url, payload_columns="flights").createOrReplaceTempView("joined")
    api.extend_cube_from_spark({"delays": spark.sql(DELAYS.format("joined"))}, CUBE, url)
    march = {"seed": weather.where("month = 3"), "departures": departures.where("month = 3")}
    api.append_to_cube_from_spark(march, CUBE, url)
    corrected = weather.where("month = 2").selectExpr("* EXCEPT (temp)", "temp + 0.5 AS temp")
    api.append_to_cube_from_spark({"seed": corrected}, CUBE, url)


def by_data_source(spark, url) -> None:
    """Without any name of the library but that of the format."""

    def view(name: str, columns: str = "", **options: str) -> None:
        text = ", ".join(f"{k} '{v}'" for k, v in {"store": url, "cube": "nyc", **options}.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} {columns} USING kartothek_cube OPTIONS ({text})")

    cell = "origin STRING, time_hour TIMESTAMP_NTZ, month BIGINT"
    new = {"dimension_columns": "origin, time_hour", "partition_columns": "month"}
    view("weather", f"({cell}, temp DOUBLE)", **new)
    spark.sql(f"INSERT INTO weather BY NAME {WEATHER} WHERE month < 3")
    view("departures", f"({cell}, flights BIGINT)", dataset="departures")
    spark.sql(f"INSERT INTO departures BY NAME {DEPARTURES} WHERE month < 3")
    view("airports", "(origin STRING, name STRING)", dataset="airports", partition_on="")
    spark.sql(f"INSERT INTO airports {AIRPORTS}")
    delays = spark.sql(DELAYS.format("departures"))
    delays.write.format("kartothek_cube").options(store=url, cube="nyc", dataset="delays").save()
    spark.sql(f"INSERT INTO weather BY NAME {WEATHER} WHERE month = 3")
    spark.sql(f"INSERT INTO departures BY NAME {DEPARTURES} WHERE month = 3")
    corrected = spark.sql(f"SELECT * EXCEPT (temp), temp + 0.5 AS temp FROM ({WEATHER}) WHERE month = 2")
    corrected.select("origin", "time_hour", "month", "temp").write.insertInto("weather")


def test_sql_and_frames_give_what_functions_give(spark, url, tmp_path):
    other = f"hfs://{tmp_path / 'other'}?create_if_missing=true"
    by_functions(spark, url)
    by_data_source(spark, other)
    (expected,) = api.query_cube_arrow(CUBE, url)
    (found,) = api.query_cube_arrow(CUBE, other)
    assert found.equals(expected) and found.num_rows == 24
    options = f"store 'hfs://{tmp_path / 'other'}', cube 'nyc'"
    spark.sql(f"CREATE TABLE nyc_table USING kartothek_cube OPTIONS ({options})")
    try:
        sums = "SELECT name, sum(flights), max(extra), max(temp) FROM {} GROUP BY name ORDER BY name"
        api.query_cube_spark(CUBE, url).createOrReplaceTempView("nyc_query")
        assert spark.sql(sums.format("nyc_table")).collect() == spark.sql(sums.format("nyc_query")).collect()
    finally:
        spark.sql("DROP TABLE nyc_table")
