"""Lazy tables: what a chain of calls needs is what is read, and the answer is that of the DataFrame."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from datetime import date, datetime
from decimal import Decimal
from io import StringIO
from pickle import PicklingError
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kartothek_cube.core.cube import discover
from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.cube.discover import load_snapshot
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, extend_cube
from kartothek_cube.io.spark import table as module
from kartothek_cube.io.spark.cube import build_cube_from_spark, query_as_frame, query_cube_spark
from kartothek_cube.io.spark.table import spark_table

CUBE = Cube(["x", "y"], ["p"], "cube")


def seed_rows(xs) -> pa.Table:
    cells = {"x": list(xs), "y": list(xs), "p": [x % 3 for x in xs]}
    return pa.table({**cells, "v": [2 * x for x in xs], "t": [datetime(2020, 1, 1, x) for x in xs]})


@pytest.fixture
def cube_url(url) -> str:
    build_cube(seed_rows(range(12)), CUBE, url)
    extend_cube({"more": pa.table({"x": [1, 2], "p": [1, 2], "a b": [5, 6], "w": ["a", "b"]})}, CUBE, url)
    return url


@pytest.fixture
def asked(monkeypatch):
    """Arguments of the last query."""
    seen = {}

    def query(query, session, whole, pushed):
        seen.update(payload_columns=query.payload_columns, conditions=" & ".join(map(str, pushed)))
        return query_as_frame(query, session, whole, pushed)

    monkeypatch.setattr(module, "query_as_frame", query)
    return seen


CHAINS = {
    "expression": (lambda t: t.select(f.col("v") + 1, "`a b`"), ["a b", "v"], ""),
    "where": (lambda t: t.where("v > 4 AND p = 1").select("x"), ["v"], "v > 4 & p == 1"),
    "where after select": (
        lambda t: t.select("x", (f.col("v") * 2).alias("y")).where("x >= 3").filter(f.col("y") < 30),
        ["v"],
        "x >= 3",
    ),
    "irrelevant column": (
        lambda t: t.where("x = 3 OR (w IN (NULL, NULL) AND t IS NULL)").select("v"),
        ["v"],
        "x == 3",
    ),
    "function and time": (
        lambda t: t.where("length(w) = 1 AND t < timestamp_ntz'2020-01-01 09:00:00'").select("x"),
        ["t", "w"],
        "t < 2020-01-01 09:00:00",
    ),
    "column of the table": (
        lambda t: t.where((t.v > 4) & (t["a b"] == 5)).select(t.x),
        ["a b", "v"],
        "v > 4",
    ),
    "column after select": (lambda t: t.select((t.v * 2).alias("v"), t.p).where("v > 9"), ["v"], ""),
    "list and condition": (lambda t: t[["x", "v"]][t.x < 5], ["v"], "x < 5"),
    "changed columns": (lambda t: t.withColumn("v", t.v + 1).drop("a b", "w").dropna(), ["t", "v"], ""),
    "count": (lambda t: t.where(t.w == "a").agg(f.expr("count(*)")), ["w"], "w == a"),
    "groups": (lambda t: t.where(t.v > 4).groupBy(t.p).agg(f.sum(t.v)).where("p > 0"), ["v"], "v > 4"),
    "sums": (lambda t: t.groupby("p").sum("v"), ["v"], ""),
    "sorted": (lambda t: t.orderBy(t.t.desc()).limit(3).select("x"), ["t"], ""),
    "two uses": (
        lambda t: t.transform(lambda df: df.where("x = 1").union(df.where("x = 2"))),
        ["a b", "t", "v", "w"],
        "",
    ),
    "all": (lambda t: t.where("x = 1"), ["a b", "t", "v", "w"], "x == 1"),
}


QUICK = ("expression", "column of the table")
SLOW = pytest.mark.slow("several plans and jobs of Spark")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=SLOW) for n in CHAINS if n not in QUICK)])
def test_a_chain_reads_what_it_needs(spark, cube_url, asked, name):
    chain, payload, condition = CHAINS[name]
    df = chain(spark_table(CUBE, cube_url)).frame()
    assert sorted(asked["payload_columns"]) == payload
    assert asked["conditions"].startswith(condition) and bool(asked["conditions"]) == bool(condition)
    expected = chain(query_cube_spark(CUBE, cube_url))
    assert df.columns == expected.columns
    assert sorted(map(str, df.collect())) == sorted(map(str, expected.collect()))


@SLOW
def test_a_table_has_the_methods_of_a_frame(spark, cube_url):
    table = spark_table(CUBE, cube_url, "p == 1")
    # used twice, with different filters, and in a query with itself
    assert table.where("x > 5").count() == 2 and table.count() == 4
    assert table.where("x > 5").join(table.where("x < 5").frame(), "p").count() == 4
    assert table.columns == ["a b", "p", "t", "v", "w", "x", "y"]
    assert table.select("x").groupBy().sum("x").collect()[0][0] == 1 + 4 + 7 + 10
    assert repr(table.select("x")) == "CubeTable[x]"


@SLOW
def test_a_table_is_a_frame(spark, cube_url, tmp_path):
    table = spark_table(CUBE, cube_url)
    assert isinstance(table, DataFrame) and isinstance(table.where(table.x > 3), DataFrame)
    other = spark_table(CUBE, cube_url, "p == 0")
    assert table.join(other, table.x == other.x).select(table.v, other.w).count() == 4
    assert spark.range(3).join(table, f.col("id") == table.x).count() == 3
    assert table.select("x").union(table.select(table.y)).count() == 24
    assert sorted(dir(table)) == sorted(dir(table.frame())) and table["x"] is not None
    copied = CUBE.copy(uuid_prefix="copied")
    build_cube_from_spark(table.where(table.x < 4).select("x", "y", "p"), copied, cube_url)
    assert query_cube_spark(copied, cube_url).count() == 4


def test_a_table_in_a_function_for_tasks_is_refused(spark, cube_url):
    table = spark_table(CUBE, cube_url)
    with pytest.raises(PicklingError, match=r"cannot be sent to tasks.*eager_cube"):
        spark.range(1).mapInArrow(lambda _: table.toArrow().to_batches(), "x bigint")


def read_both(cube, url, *where) -> str:
    """Compare a lazy table with the query of tasks; the plan of the former."""
    table, rows = spark_table(cube, url), query_cube_spark(cube, url)
    for condition in ("true", *where):
        expected = sorted(map(str, rows.where(condition).collect()))
        assert sorted(map(str, table.where(condition).collect())) == expected
    return explain(table)


@SLOW
def test_spark_reads_files_of_equal_rows(jvm, tmp_path):
    berlin = pa.timestamp("us", "Europe/Berlin")
    columns = {
        "x": pa.array([1, 2, 3, 4]),
        "p": pa.array(["a b", "a b", "1%+&", "null"]),
        "f": pa.array([None, float("nan"), 1.5, 0.1]),
        "f32": pa.array([None, float("nan"), 1.5, 0.1], pa.float32()),
        "t": pa.array([0, 1, None, -1], pa.timestamp("us")),
        "z": pa.array([0, 1, None, -1], berlin),
        "day of year 1": pa.array([date.min, date(1582, 10, 9), None, date.max]),
        "text": pa.array(["ä", None, "", "a"]).dictionary_encode(),
        "flag": pa.array([True, None, False, True]),
        "a.b": pa.array([b"a", None, b"", b"\xff"]),
    }
    # in paths of Hadoop, names are not decoded
    url = f"hfs://{quote(f'{tmp_path}/50%25 of all')}?create_if_missing=true"
    cube = Cube(["x"], ["p"], "cube")
    build_cube(pa.table({**columns, "n": pa.array([1, 2, 3, 4], pa.int8())}), cube, url)
    more = {**columns, "p": pa.array(["new"] * 4), "n": pa.array([9, None, 400, -(2**31)], pa.int32())}
    append_to_cube(pa.table(more), cube, url)
    conditions = ["f > 1", "n = 400", "p = '1%+&' AND x = 3", "`day of year 1` < date'1582-10-15'"]
    conditions += ["z > timestamp'1970-01-01 09:00:00'", "text = '' OR isnan(f)", "`a.b` = X'61'"]
    assert "FileScan parquet" in read_both(cube, url, *conditions)
    table = spark_table(cube, url, "p != new")
    assert "FileScan parquet" in explain(table) and table.count() == 4


def rows_of(**columns) -> pa.Table:
    return pa.table({"x": [1, 2], "p": [1, 1], "v": [1, 2], **columns})


OBSTACLES = {
    "several files": [rows_of(), rows_of(v=[3, 4])],
    "other values": [rows_of(p=["Köln", "a"])],
    "other types of partition": [rows_of(p=[True, False])],
    "other types of column v": [rows_of(v=pa.array([1, 2], pa.uint8()))],
    "upper and lower case": [rows_of(V=[3, 4])],
}


@pytest.mark.parametrize(
    "reason", ["several files", *(pytest.param(r, marks=SLOW) for r in OBSTACLES if r != "several files")]
)
def test_explain_tells_why_spark_does_not_read_files(jvm, url, reason):
    cube, (first, *more) = Cube(["x"], ["p"], "cube"), OBSTACLES[reason]
    build_cube(first, cube, url)
    for rows in more:
        append_to_cube(rows, cube, url)
    columns = ["x", "p"] if "case" in reason else ["x", "p", "v"]
    table = spark_table(cube, url).select(columns)
    text = explain(table)
    assert reason in text.partition("read in Python:")[2]
    expected = query_cube_spark(cube, url, payload_columns=columns[2:]).select(columns)
    assert sorted(map(str, table.collect())) == sorted(map(str, expected.collect()))


def explain(table) -> str:
    with redirect_stdout(StringIO()) as text:
        table.explain()
    return text.getvalue()


@SLOW
def test_explain_tells_of_joins_conditions_and_paths(jvm, cube_url, tmp_path):
    table = spark_table(CUBE, cube_url)
    assert "joins datasets" in explain(table) and "FileScan" in explain(table.select("v"))
    assert "conditions on rows" in explain(spark_table(CUBE, cube_url, [[("v", ">", 4)]]).select("v"))
    assert "no file" in explain(table.where("p = 7").select("v"))
    other = f"hfs://{tmp_path}/[a]?create_if_missing=true"
    build_cube(seed_rows([1]), CUBE, other)
    assert "for a pattern" in explain(spark_table(CUBE, other)) and spark_table(CUBE, other).count() == 1


PUSHED = (
    *("x IN (1, 2, NULL)", "x NOT IN (1, 2)", "x <=> 1", "x = 1 OR s = 'q'", "NOT (s = 'a' OR x > 3)"),
    "flag",
    *("x BETWEEN 1 AND 3 AND (p = 2 OR s = 'q')", "f < 0.1", "f = 0.1f", "s LIKE 'a%' AND s LIKE '%b'"),
    *("s = 'a), EqualTo(x,1'", "d > date'2020-01-01'", "d < date'1500-03-01'", "dec = 1.1", "bin = X'61'"),
    *("z >= timestamp'2020-01-01 00:00:00.5'", "z < timestamp'1960-01-01 00:00:00.000001'", "a.b = 1"),
    *("t = timestamp_ntz'2020-01-01 00:00:00.123456'", "`o.k` = 1", "`w``e ird` > 1", "s IS NULL"),
)


@SLOW
@pytest.mark.parametrize("java8", ["false", "true"])
def test_spark_tells_the_filters_that_it_pushes_to_sources(jvm, url, java8):
    columns = {
        "f": pa.array([0.1, 2], pa.float32()),
        "s": ["a", "b"],
        "t": pa.array([0, 1], pa.timestamp("us")),
        "z": pa.array([0, 1], pa.timestamp("us", "UTC")),
        "d": [date.min, date.max],
        "flag": [True, False],
        "dec": [Decimal("1.10"), Decimal("2.00")],
        "bin": [b"a", b""],
        "a": [{"b": 1}, {"b": 2}],
        "o.k": [1, 2],
        "w`e ird": [1, 2],
    }
    build_cube(rows_of(**columns), Cube(["x"], ["p"], "cube"), url)
    before = jvm.conf.get("spark.sql.datetime.java8API.enabled")
    jvm.conf.set("spark.sql.datetime.java8API.enabled", java8)
    try:
        for text in PUSHED:
            table = spark_table("cube", url).where(text)
            # what sessions without access to the JVM do
            assert set(table._pushed_conditions()) == set(table._conditions_of_source()), text
    finally:
        jvm.conf.set("spark.sql.datetime.java8API.enabled", before)


def test_a_session_that_was_not_registered_tells_its_filters(jvm, cube_url):
    name = "spark.sql.python.filterPushdown.enabled"
    jvm.conf.set(name, "false")
    try:
        table = spark_table(CUBE, cube_url).where("v > 4")
        assert list(map(str, table._conditions_of_source())) == ["v > 4"]
        assert jvm.conf.get(name) == "false"
    finally:
        jvm.conf.set(name, "true")


@SLOW
def test_threads_that_use_tables_change_neither_output_nor_settings(spark, cube_url):
    names = ("spark.sql.debug.maxToStringFields", "spark.sql.sources.parallelPartitionDiscovery.threshold")
    before, table = (sys.stdout, *map(spark.conf.get, names)), spark_table(CUBE, cube_url)
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda x: table.where(f"x >= {x}").select("v").count(), range(12)))
    assert counts == list(range(12, 0, -1))
    assert (sys.stdout, *map(spark.conf.get, names)) == before


def test_unknown_columns_are_those_of_spark(spark, cube_url):
    table = spark_table(CUBE, cube_url)
    calls = (lambda: table["vv"], lambda: table.select("vv").schema, lambda: table.where("vv > 1").first())
    for wrong in calls:
        with pytest.raises(AnalysisException, match="vv"):
            wrong()
    # with Spark Connect, when the column is used
    with pytest.raises((AttributeError, AnalysisException), match="vv"):
        table.select(table.vv).first()


def test_types_do_not_depend_on_what_is_read(spark, url):
    cube = Cube(["x"], ["p"], "cube")
    build_cube(pa.table({"x": [1], "p": [1], "v": pa.array([1], pa.int8())}), cube, url)
    append_to_cube(pa.table({"x": [2], "p": [2], "v": pa.array([999], pa.int32())}), cube, url)
    table = spark_table("cube", url)
    assert table.where("p = 1").frame().schema == table.schema == table.frame().schema


@SLOW
def test_a_cached_table_keeps_its_rows(spark, cube_url):
    table = spark_table(CUBE, cube_url)
    append_to_cube({"seed": seed_rows([20])}, CUBE, cube_url)
    assert table.count() == 13
    table.cache()
    append_to_cube({"seed": seed_rows([21])}, CUBE, cube_url)
    assert table.count() == 13 and table.where(table.x > 12).count() == 1
    table.unpersist()
    assert table.count() == 14


def test_types_that_have_become_wider_are_read_as_they_are_now(url):
    narrow = pa.table({"x": [1], "y": [1], "p": [0], "v": pa.array([1], pa.int8())})
    build_cube(narrow, CUBE, url)
    table = spark_table(CUBE, url)
    plus = table.selectExpr("x", "v + 1 AS w")
    append_to_cube(pa.table({"x": [2], "y": [2], "p": [0], "v": [300]}), CUBE, url)
    assert [row.x for row in table.where("v = 300").collect()] == [2]
    assert sorted(row.w for row in plus.collect()) == [2, 301]
    assert table.select("v").schema.simpleString() == "struct<v:tinyint>", (
        "columns keep the types of the call"
    )


def test_a_time_that_python_lacks_is_left_to_spark(url, spark):
    build_cube(seed_rows([1]), CUBE, url)
    # in UTC, it is in the year 10000
    rows = spark_table(CUBE, url).where("t < TIMESTAMP'9999-12-31 23:59:59 America/New_York'")
    assert [row.x for row in rows.collect()] == [1]


@SLOW
@pytest.mark.parametrize(
    "names",
    [
        # in the text of a plan, the first two look like as many columns as they are
        pytest.param(["a#1", "b\nc", "d"], id="number of a column, and a line break"),
        pytest.param(["a\n\n== Physical Plan", "b, [c", "`d`.e"], id="parts of a plan"),
        pytest.param(['"a"', "b\\c%d{0}", "\u2028"], id="quotes, escapes and other line breaks"),
    ],
)
def test_characters_of_names_change_nothing_of_what_is_read(spark, url, asked, names):
    build_cube(rows_of(**{name: [1, 2] for name in names}), Cube(["x"], ["p"], "cube"), url)
    for name in names:
        table = spark_table("cube", url)
        table = table.where(table[name] > 1).select("x", table[name])
        assert [tuple(row) for row in table.collect()] == [(2, 2)]
        assert (asked["payload_columns"], asked["conditions"]) == ([name], str(C(name) > 1)), name


@SLOW
@pytest.mark.parametrize("conditions", [None, "v > 1"])
def test_a_call_reads_the_state_of_the_cube_once(spark, url, monkeypatch, conditions):
    build_cube(rows_of(), Cube(["x"], ["p"], "cube"), url)
    table, read = spark_table("cube", url, conditions).where("x > 1"), []

    def load(*args):
        read.append(args)
        return load_snapshot(*args)

    monkeypatch.setattr(discover, "load_snapshot", load)
    assert table.count() == 1 and len(read) == 1
