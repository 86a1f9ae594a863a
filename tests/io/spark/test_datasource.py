"""The data source: reads, SQL, filters, writes of all modes."""

import itertools
import re
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql.datasource import GreaterThan, IsNull, StringStartsWith

from kartothek_cube.api import cube as api
from kartothek_cube.core.store.local import LocalBlobStore
from kartothek_cube.core.transforms import bucket, month
from kartothek_cube.io.spark import create_frame, datasource
from kartothek_cube.io.spark.table import spark_table
from tests.support.spark_session import files, xs

pytestmark = pytest.mark.slow("runs many Spark jobs")

CUBE = api.Cube(["x", "y"], ["p"], "cube", index_columns=["s"])
FORMAT = "kartothek_cube"
N = 24


def every(n: int, values: list) -> list:
    return list(itertools.islice(itertools.cycle(values), n))


SEED = pa.table(
    {
        "x": list(range(N)),
        "y": pa.array(every(N, [datetime(2020, 1, 1), datetime(2020, 1, 2, 3, 4, 5, 6)]), pa.timestamp("ns")),
        "p": every(N, ["a", "b", "c"]),
        "s": every(N, ["ab", "abc", "b", "ä\U0010ffff"]),
        "f": pa.array(every(N, [0.5, -0.0, None, 2.5, float("nan")])),
        "b": every(N, [True, None, False]),
    }
)
ENRICH = pa.table(
    {
        "x": list(range(0, N, 2)),
        "p": every(N, ["a", "b", "c"])[::2],
        "d": every(N // 2, [date(2020, 1, 1), date(1960, 5, 5), None]),
        "z": pa.array(every(N // 2, [0, 10**15, None]), pa.timestamp("us", "Europe/Berlin")),
        "dec": pa.array(every(N // 2, [Decimal("1.50"), Decimal("-2.25"), None]), pa.decimal128(10, 2)),
        "u": pa.array(every(N // 2, [1, 2**63, None]), pa.uint64()),
        "l": every(N // 2, [[1, 2], [], None]),
        "n": pa.nulls(N // 2),
    }
)


@pytest.fixture(scope="module")
def cube_url(tmp_path_factory) -> str:
    """URL of a store with a cube, which no test changes."""
    url = f"hfs://{tmp_path_factory.mktemp('cube')}"
    api.build_cube(SEED, CUBE, url)
    api.extend_cube(
        {"enrich": ENRICH, "all": pa.table({"x": list(range(N)), "v": list(range(N))})},
        CUBE,
        url,
        partition_on={"all": []},
    )
    return url


def load(spark, url, **options):
    return spark.read.format(FORMAT).options(store=url, cube="cube", **options).load()


def rows(df) -> list[tuple]:
    return sorted(map(tuple, df.orderBy("x").collect()), key=str)


# reading ----------------------------------------------------------------------------------------------------


def test_a_read_is_the_query(spark, cube_url):
    df = load(spark, cube_url)
    assert df.schema == api.query_cube_spark(CUBE, cube_url).schema
    assert df.schema.simpleString() == (
        "struct<b:boolean,d:date,dec:decimal(10,2),f:double,l:array<bigint>,n:string,p:string,s:string,"
        "u:decimal(20,0),v:bigint,x:bigint,y:timestamp_ntz,z:timestamp>"
    )
    assert rows(df) == rows(api.query_cube_spark(CUBE, cube_url))
    df = spark.read.format(FORMAT).schema("v bigint, s string").load(cube_url, cube="cube")
    assert sorted(df.collect()) == sorted(zip(range(N), SEED["s"].to_pylist()))
    options = f"store '{cube_url}', cube 'cube', columns 'v'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW cells USING {FORMAT} OPTIONS ({options})")
    result = spark.sql("SELECT p, count(*), sum(v) FROM cells WHERE x >= 12 GROUP BY p ORDER BY p").collect()
    assert [tuple(row) for row in result] == [("a", 4, 66), ("b", 4, 70), ("c", 4, 74)]
    df = load(spark, cube_url).where("x > 1000")
    assert df.collect() == [] and df.columns == sorted({*SEED.column_names, *ENRICH.column_names, "v"})


@pytest.mark.parametrize(
    "options, columns",
    [
        ({"columns": "v, f"}, ["f", "p", "v", "x", "y"]),
        ({"columns": '["v", "f"]'}, ["f", "p", "v", "x", "y"]),
        ({"columns": "v", "dimension_columns": "x"}, ["p", "v", "x"]),
        ({"datasets": "seed, all", "columns": "v"}, ["p", "v", "x", "y"]),
        ({"columns": ""}, ["p", "x", "y"]),
    ],
)
def test_options_choose_columns(spark, cube_url, options, columns):
    df = load(spark, cube_url, **options)
    assert df.columns == columns and df.count() == N


def test_the_only_cube_of_a_store_is_found(spark, url):
    api.build_cube(SEED, CUBE, url)
    assert spark.read.format(FORMAT).load(url).where("x >= 12").count() == 12
    more = create_frame(SEED.slice(0, 3).set_column(0, "x", pa.array([N, N + 1, N + 2])), spark)
    more.write.format(FORMAT).mode("append").save(url)
    assert spark.read.format(FORMAT).load(url).where("x >= 12").count() == 15
    api.build_cube(SEED, CUBE.copy(uuid_prefix="other"), url)
    with pytest.raises(AnalysisException, match="option 'cube' is missing: one of cube, other\n"):
        spark.read.format(FORMAT).load(url).printSchema()


@pytest.mark.slow("several jobs of Spark per case")
@pytest.mark.parametrize(
    "options, fragment",
    [
        ({}, "option 'store' is missing"),
        ({"store": "hfs:///nowhere"}, "the store has no cube; to build one"),
        ({"collumns": "v"}, "unknown option collumns; did you mean columns?"),
        ({"columns": "vv"}, "vv"),
        ({"datasets": "al"}, "al"),
        ({"columns": "["}, "'columns' is no JSON list"),
        ({"columns": "[1]"}, "has to be a list of names"),
        ({"cube": "cub"}, "cub"),
        ({"conditions": "xx > 1"}, "xx"),
        ({"push_filters": "once"}, "true or false"),
        ({"store": "hmemory://", "cube": "cube"}, "executors cannot open"),
        ({"store": "hfx:///data", "cube": "cube"}, "did you mean 'hfs'"),
        ({"versionAsOf": "new"}, "'versionAsOf' is a whole number, got 'new'"),
        ({"versionAsOf": "99"}, "there is no state as of 99"),
        ({"timestampAsOf": "yesterday"}, "point in time such as"),
        ({"versionAsOf": "1", "timestampAsOf": "2020"}, "one of the options versionAsOf, timestampAsOf"),
        ({"version_as_of": "1"}, "unknown option version_as_of; did you mean versionAsOf?"),
    ],
)
def test_wrong_options_are_named(spark, cube_url, options, fragment):
    given = {"store": cube_url, "cube": "cube"} if options and "store" not in options else {}
    with pytest.raises(AnalysisException) as caught:  # Connect looks at the schema only when asked to
        spark.read.format(FORMAT).options(**{**given, **options}).load().printSchema()
    assert fragment in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("schema", ["nothing string", "v string"])
def test_a_schema_that_the_cube_does_not_have_is_refused(spark, cube_url, schema):
    with pytest.raises((AnalysisException, PythonException), match=schema.split()[0]):
        spark.read.format(FORMAT).schema(schema).load(cube_url, cube="cube").collect()


def test_older_states_can_be_read(spark, url):
    api.build_cube(SEED, CUBE, url)
    api.keep_cube_history(CUBE, url, 5)
    before = api.list_cube_history(CUBE, url)["seed"][-1]
    api.remove_partitions(CUBE, url, api.C("p") == "a")
    assert load(spark, url).count() == N * 2 // 3
    version = len(api.list_cube_history(CUBE, url)) - 1
    time = before.time.isoformat()
    as_of = [{"as_of": state} for state in (time, f'{{"seed": {before.version}}}', version)]
    for options in (*as_of, {"versionAsOf": version}, {"timestampAsOf": time}):
        assert load(spark, url, **options).where("x >= 0").count() == N


def test_rows_that_have_changed_can_be_read(spark, url):
    api.build_cube(SEED, CUBE, url)
    token = api.list_cube_changes(CUBE, url).token
    api.append_to_cube(SEED.filter(pc.field("p") == "a"), CUBE, url)
    expected = len(api.query_cube_df(CUBE, url, changed_since=token))
    assert 0 < expected < N
    for since in (token, 1):
        assert load(spark, url, changed_since=since).count() == expected
        assert spark_table(CUBE, url, changed_since=since, spark=spark).where("x >= 0").count() == expected


# filters ----------------------------------------------------------------------------------------------------

#: what a WHERE may say; more in test_filters.py
CONDITIONS = (
    *("x <=> 5", "x > 5 AND x <= 7", "x not in (1, 2)", "x not in (1, null)", "x = 5 or x = 6"),
    *("p > 'a' and v > 20", "s like 'ab%'", "s <> 'abc'", "f = 0", "f > 0.5", "f <> 0.5"),
    *("f > double('nan')", "b <> true", "y > timestamp_ntz'2020-01-01'"),
    *("y in (timestamp_ntz'2020-01-01', timestamp_ntz'2020-01-02')", "z = timestamp'2001-09-09 10:46:40'"),
    *("d in (date'2020-01-01', date'1960-05-05')", "dec < 1.5", "u > 9223372036854775807", "n is null"),
)


@pytest.mark.slow("many queries of Spark")
def test_filters_mean_the_same_wherever_they_are_evaluated(spark, cube_url):
    plain = create_frame(api.query_cube_spark(CUBE, cube_url).toArrow(), spark).cache()
    expected = plain.selectExpr("x", *(f"({c}) AS c{i}" for i, c in enumerate(CONDITIONS))).toArrow()
    frames = [load(spark, cube_url).where(c).selectExpr(f"{i} AS i", "x") for i, c in enumerate(CONDITIONS)]
    found = reduce(lambda a, b: a.unionAll(b), frames).toArrow().to_pylist()
    for i, condition in enumerate(CONDITIONS):
        wanted = [x for x, match in zip(expected["x"].to_pylist(), expected[f"c{i}"].to_pylist()) if match]
        assert sorted(row["x"] for row in found if row["i"] == i) == sorted(wanted), condition


@pytest.mark.parametrize(
    "condition, exact, found",
    [
        (GreaterThan(("x",), 5), True, N - 6),
        (StringStartsWith(("s",), "ab"), False, N // 2),
        (IsNull(("b",)), False, N),
    ],
)
@pytest.mark.parametrize("separate", [True, False])
def test_filters_are_taken_where_no_other_scan_sees_them(
    cube_url, monkeypatch, condition, exact, found, separate
):
    monkeypatch.setattr(datasource, "_SCANS_ARE_SEPARATE", separate)
    source = datasource.KartothekCubeDataSource({"store": cube_url, "cube": "cube"})
    reader = source.reader(source.schema())
    assert reader.pushFilters([condition]) == ([] if separate and exact else [condition])
    get, requests = LocalBlobStore.get_with_token, []
    monkeypatch.setattr(LocalBlobStore, "get_with_token", lambda s, key: requests.append(key) or get(s, key))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert sum(map(len, batches)) == (found if separate else N)
    # not of headers, which may have changed since the filters were taken
    assert all(key.endswith(".parquet") for key in requests)


@pytest.mark.parametrize(
    "condition, left",
    [
        ("x > 5 AND p = 'a'", ""),
        ("s LIKE 'ab%'", "StartsWith(s, ab)"),
        ("x % 2 = 0 AND v > 20", "(isnotnull(x) AND ((x % 2) = 0))"),
        ("b IS NULL AND v > 20", "isnull(b)"),
    ],
)
def test_spark_evaluates_only_what_is_left_if_the_user_wants(jvm, cube_url, condition, left):
    asked = load(jvm, cube_url, push_filters="true").where(condition)
    plan = asked._jdf.queryExecution().optimizedPlan().toString()
    filters = re.findall(r"^Filter (.*)$", re.sub(r"#\d+L?", "", plan), re.M)
    assert filters == ([left] if left else [])
    assert xs(asked) == xs(load(jvm, cube_url).where(condition))


@pytest.mark.parametrize("first, second", [("x < 5", "true"), ("x < 5", "x >= 5"), ("true", "x < 5")])
def test_scans_of_one_table_do_not_see_the_filters_of_others(spark, cube_url, first, second):
    load(spark, cube_url).createOrReplaceTempView("shared")
    expected = {"true": list(range(N)), "x < 5": list(range(5)), "x >= 5": list(range(5, N))}
    one, other = (f"SELECT x FROM shared WHERE {condition}" for condition in (first, second))
    assert xs(spark.sql(f"{one} UNION ALL {other}")) == sorted(expected[first] + expected[second])
    for condition in (first, second, first):
        assert xs(spark.sql(f"SELECT x FROM shared WHERE {condition}")) == expected[condition]


@pytest.mark.parametrize(
    "conditions, where",
    [("x > 5 & p == a", "x > 5 AND p = 'a'"), ("d == 2020-01-01", "d = date'2020-01-01'"), ("", "true")],
)
def test_a_table_can_have_conditions(spark, cube_url, conditions, where):
    assert xs(load(spark, cube_url, conditions=conditions)) == xs(load(spark, cube_url).where(where)) != []


# writing ----------------------------------------------------------------------------------------------------

NEW = {"dimension_columns": "x", "partition_columns": "p", "index_columns": "i1"}
SMALL = api.Cube(["x"], ["p"], "cube", index_columns=["i1"])


def frame(spark, xs, **more):
    columns = {"x": xs, "p": [x % 2 for x in xs], "i1": [str(x % 3) for x in xs], **more}
    return create_frame(pa.table(columns), spark)


def save(df, url, mode="append", **options):
    df.write.format(FORMAT).options(**{"store": url, "cube": "cube", **options}).mode(mode).save()


@pytest.fixture
def small(spark, url) -> str:
    """URL of a store with a cube of three rows."""
    save(frame(spark, range(3)), url, **NEW)
    return url


def stored(url, column="x") -> list:
    return api.query_cube_arrow(SMALL, url)[0][column].to_pylist()


@pytest.mark.slow("several jobs of Spark per case")
@pytest.mark.parametrize("mode", ["append", "overwrite", "error", "errorifexists", "ignore", None])
def test_every_mode_builds_what_is_not_there(spark, url, mode):
    writer = frame(spark, range(6)).write.format(FORMAT).options(store=url, cube="cube", **NEW)
    (writer if mode is None else writer.mode(mode)).save()
    assert stored(url) == list(range(6))


@pytest.mark.parametrize(
    "mode, expected", [("append", [0, 1, 2, 7]), ("overwrite", [7]), ("ignore", [0, 1, 2]), ("error", None)]
)
def test_modes_differ_in_what_they_do_with_what_is_there(spark, small, mode, expected):
    if expected is None:
        with pytest.raises(AnalysisException, match="'cube\\+\\+seed' already exists"):
            save(frame(spark, [7]), small, mode)
        expected = [0, 1, 2]
    else:
        save(frame(spark, [7]), small, mode)
    assert stored(small) == expected


def test_a_new_cube_may_have_partition_transforms(spark, url):
    options = {"dimension_columns": "x, day", "partition_columns": "bucket(2, x), month(day)"}
    days = "SELECT id AS x, timestamp_ntz'2024-01-30' + make_interval(0, 0, 0, id) AS day FROM range(4)"
    save(spark.sql(days), url, **options)
    assert api.discover_cube("cube", url)[0] == api.Cube(["x", "day"], [bucket(2, "x"), month("day")], "cube")
    save(spark.sql(days.replace("01-30", "02-28")), url, **options)
    read = load(spark, url, conditions="day >= 2024-02-01 & day < 2024-03-01")
    days = [str(row.day) for row in read.orderBy("day").collect()]
    assert days == [f"2024-02-{day} 00:00:00" for day in ("01", "02", "28", "29")]
    assert not api.verify_cube("cube", url).problems


def test_other_formats_keep_their_modes(spark, tmp_path):
    frame(spark, [1]).write.mode("ignore").parquet(str(tmp_path / "x"))
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        frame(spark, [1]).write.format("parquet").save(str(tmp_path / "x"), mode="error")


def test_a_dataset_extends_the_cube(spark, small):
    more = create_frame(pa.table({"x": [0, 1], "v": [5, 6]}), spark)
    save(more, small, dataset="more", partition_on="")
    assert stored(small, "v") == [5, 6, None]
    save(create_frame(pa.table({"x": [2], "v": [7]}), spark), small, dataset="more")
    assert stored(small, "v") == [5, 6, 7]
    save(
        create_frame(pa.table({"x": [2], "v": [8]}), spark),
        small,
        "overwrite",
        dataset="more",
        partition_on="",
    )
    assert stored(small, "v") == [None, None, 8]


def test_an_append_with_other_columns(spark, url):
    save(frame(spark, range(2)), url, **NEW)
    more = frame(spark, [7]).selectExpr("x", "p", "i1", "x * 10 as v")
    with pytest.raises(AnalysisException, match="drop the column, or add it by update_schema"):
        save(more, url)
    save(more, url, schema_mode="merge")
    assert stored(url, "v") == [None, None, 70]
    api.update_schema(SMALL, url, rename={"v": "w"}, add={"n": "int64"}, defaults={"n": 5})
    rows = spark.read.format(FORMAT).load(url, cube="cube").where("n = 5 and w > 60").select("x", "w", "n")
    assert [tuple(row) for row in rows.collect()] == [(7, 70, 5)]


def test_a_frame_whose_partitions_are_together_makes_one_file_each(spark, url):
    save(frame(spark, range(20)).repartition(4), url, **NEW)
    many = api.collect_stats(SMALL, url)["seed"]["files"]
    save(frame(spark, range(20)).repartition("p"), url, "overwrite")
    assert api.collect_stats(SMALL, url)["seed"]["files"] == 2 < many
    assert stored(url) == list(range(20))


@pytest.mark.parametrize(
    "make, fragment",
    [
        (lambda spark: frame(spark, [1, 1]), "several rows for one cell of p, x, such as p=1, x=1"),
        (lambda spark: frame(spark, [1]).unionAll(frame(spark, [1])), "several rows for one cell of p, x"),
        (lambda spark: frame(spark, [1]).selectExpr("cast(null as bigint) x", "p", "i1"), 'NULL-values.*"x"'),
        (lambda spark: frame(spark, [1]).selectExpr("x", "p", "raise_error('user error') i1"), "user error"),
    ],
)
def test_bad_rows_change_nothing_and_leave_nothing(spark, url, make, fragment):
    save(frame(spark, range(10)), url, **NEW)
    before = files(url)
    with pytest.raises(Exception, match=fragment):
        save(make(spark).unionAll(frame(spark, range(50, 60))), url)
    assert files(url) == before and stored(url) == list(range(10))


@pytest.mark.slow("several jobs of Spark per case")
@pytest.mark.parametrize(
    "options, change, fragment",
    [
        ({}, "x", "there is no cube 'cube' yet.*dimension_columns, partition_columns"),
        ({"dimension_columns": "x"}, "x", "partition_columns"),
        ({**NEW, "dataset": "other"}, "x", "Cube .* not found"),
        ({**NEW, "dimension_columns": "xx"}, "x", "xx"),
        (NEW, "make_dt_interval(1)", "interval"),
        ({**NEW, "cube": ""}, "x", "the store has no cube; to build one"),
        ({**NEW, "data_set": "a"}, "x", "unknown option data_set; did you mean dataset"),
        ({**NEW, "batch": "1"}, "x", "unknown option batch"),
        ({**NEW, "if_exists": "maybe"}, "x", "'if_exists' is append, error or ignore"),
        ({**NEW, "schema_mode": "union"}, "x", "'schema_mode' is strict or merge, got 'union'"),
    ],
)
def test_wrong_options_and_columns_are_named_before_anything_is_computed(
    spark, url, options, change, fragment
):
    df = frame(spark, [1]).selectExpr("x", "p", "i1", f"{change} as z")
    with pytest.raises(AnalysisException, match=fragment) as caught:
        save(df, url, **options)
    assert "Traceback" not in str(caught.value)
    assert files(url) == set()


@pytest.mark.parametrize(
    "write",
    [
        lambda writer: writer.partitionBy("p").save(),
        lambda writer: writer.clusterBy("p").save(),
        lambda writer: writer.save(partitionBy=["p"]),
    ],
)
def test_partition_columns_are_those_of_the_cube(spark, url, write):
    writer = frame(spark, [1]).write.format("kartothek_cube").options(store=url, cube="cube", **NEW)
    with pytest.raises(AnalysisException, match=r"leave out \w+By: the cube defines the partition columns"):
        write(writer)
    assert files(url) == set()


def test_columns_that_spark_does_not_tell_apart_are_refused(spark, url):
    df = frame(spark, [1]).selectExpr("*", "1 as z", "2 as Z")
    with pytest.raises(AnalysisException, match="differ in upper and lower case only: Z, z"):
        save(df, url, **NEW)
    assert files(url) == set()


def test_options_that_contradict_the_cube_are_refused(spark, small):
    with pytest.raises(AnalysisException, match="'dimension_columns' is p, but the cube 'cube' has x"):
        save(frame(spark, [7]), small, dimension_columns="p")


def test_the_seed_is_not_replaced_under_other_datasets(spark, small):
    save(create_frame(pa.table({"x": [0], "v": [5]}), spark), small, dataset="more", partition_on="")
    with pytest.raises(AnalysisException, match=r"rows of more would be .* use update_cube_from_spark"):
        save(frame(spark, [7]), small, "overwrite")


def test_a_write_to_a_cube_without_seed_says_what_is_missing(spark, small):
    save(create_frame(pa.table({"x": [0], "v": [5]}), spark), small, dataset="more", partition_on="")
    for header in Path(small.removeprefix("hfs://")).glob("*++seed.by-dataset-metadata.*"):
        header.unlink()
    with pytest.raises(AnalysisException, match="Could not find seed dataset"):
        save(frame(spark, [7]), small, "overwrite", **NEW)


# partitions that are overwritten ----------------------------------------------------------------------------

OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"


@pytest.fixture
def session_mode(spark):
    """Set the overwrite mode of the session; it is unset afterwards."""
    yield lambda mode: mode and spark.conf.set(OVERWRITE_MODE, mode)
    spark.conf.unset(OVERWRITE_MODE)


@pytest.mark.parametrize(
    "mode, option, expected",
    [
        ("dynamic", None, [0, 2, 4, 7]),
        (None, "DYNAMIC", [0, 2, 4, 7]),
        ("static", "dynamic", [0, 2, 4, 7]),
        ("dynamic", "static", [7]),
        (None, None, [7]),
    ],
)
def test_a_dynamic_overwrite_replaces_the_written_partitions_only(
    spark, url, session_mode, mode, option, expected
):
    save(frame(spark, range(6)), url, **NEW)
    session_mode(mode)
    options = {} if option is None else {"partitionOverwriteMode": option}
    save(frame(spark, [7]), url, "overwrite", **options)
    assert stored(url) == expected


@pytest.mark.slow("several jobs of Spark per case")
@pytest.mark.parametrize(
    "cell, keys, expected", [(0, "p", [9, 6, None]), (0, "", [9, None, None]), (None, "p", [5, 6, None])]
)
def test_a_dynamic_overwrite_of_a_dataset_follows_its_own_keys(spark, small, cell, keys, expected):
    cells = pa.table({"x": [0, 1], "p": [0, 1], "v": [5, 6]}).select(["x", *filter(None, [keys]), "v"])
    save(create_frame(cells, spark), small, dataset="more", partition_on=keys)
    given = cells.slice(0, 0 if cell is None else 1).drop_columns("v")
    given = given.append_column("v", pa.array([9] * len(given), pa.int64()))
    options = {"dataset": "more", "partition_on": keys, "partitionOverwriteMode": "dynamic"}
    save(create_frame(given, spark), small, "overwrite", **options)
    assert stored(small, "v") == expected


def test_a_dynamic_overwrite_builds_what_is_not_there(spark, url):
    save(frame(spark, range(3)), url, "overwrite", partitionOverwriteMode="dynamic", **NEW)
    assert stored(url) == [0, 1, 2]


def test_partitions_of_a_view_are_overwritten_if_the_view_says_so(spark, url, session_mode):
    save(frame(spark, range(6)), url, **NEW)
    frame(spark, [7]).createOrReplaceTempView("new_rows")
    options = f"store '{url}', cube 'cube', partitionOverwriteMode 'dynamic'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW cells USING kartothek_cube OPTIONS ({options})")
    spark.sql("INSERT OVERWRITE cells BY NAME SELECT * FROM new_rows")
    assert stored(url) == [0, 2, 4, 7]
    session_mode("dynamic")
    with pytest.raises(AnalysisException, match="does not support dynamic overwrite"):
        spark.sql("INSERT OVERWRITE cells BY NAME SELECT * FROM new_rows")


@pytest.mark.slow("several jobs of Spark per case")
@pytest.mark.parametrize(
    "options, fragment",
    [
        ({"partitionOverwriteMode": "all"}, "'partitionOverwriteMode' is static or dynamic, got 'all'"),
        ({}, "rows of more would be joined to the new ones"),
        ({"dataset": "more", "partition_on": ""}, "'more' is partitioned by p; leave out"),
    ],
)
def test_a_dynamic_overwrite_that_cannot_be_done_changes_nothing(spark, small, options, fragment):
    save(create_frame(pa.table({"x": [0], "p": [0], "v": [5]}), spark), small, dataset="more")
    before = files(small)
    with pytest.raises(AnalysisException, match=fragment) as caught:
        save(frame(spark, [7]), small, "overwrite", **{"partitionOverwriteMode": "dynamic", **options})
    assert "Traceback" not in str(caught.value) and files(small) == before


def test_cells_that_several_tasks_write_are_shown_with_their_rows(spark, url):
    save(frame(spark, [1], v=[0]), url, **NEW)
    twice = frame(spark, [7], v=[1]).unionAll(frame(spark, [7], v=[2]))
    with pytest.raises(PySparkException) as caught:
        save(twice, url)
    assert "differing payload: v" in str(caught.value) and len(str(caught.value)) < 500
    assert re.search(r"0 +1\n1 +2|0 +2\n1 +1", str(caught.value))
    assert stored(url) == [1]


@pytest.mark.slow("several jobs of Spark")
def test_a_frame_whose_files_a_cleanup_has_deleted_says_so(spark, url):
    api.build_cube(SEED, CUBE, url)
    old, source = api.query_cube_spark(CUBE, url), load(spark, url)
    assert source.count() == N
    api.merge_into_cube(SEED.slice(0, 1), CUBE, url)
    api.cleanup_cube(CUBE, url)
    copied = CUBE.copy(uuid_prefix="copied")
    for use in (old.collect, source.collect, lambda: api.build_cube_from_spark(old, copied, url)):
        with pytest.raises(PythonException, match="and a cleanup has deleted files of that state") as caught:
            use()
        assert "Traceback" not in str(caught.value)
    assert load(spark, url).count() == N
