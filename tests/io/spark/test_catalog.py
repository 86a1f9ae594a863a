"""Cubes as tables of Spark's catalog: SQL alone, and what Spark does not let a Python data source do."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from kartothek_cube.api import cube as api
from kartothek_cube.io.spark import create_frame
from tests.support.spark_session import xs

pytestmark = pytest.mark.slow("tables of Spark's catalog")

CUBE = api.Cube(["x"], ["p"], "cube")
NEW = {"dimension_columns": "x", "partition_columns": "p"}


def cells(xs, v=0) -> pa.Table:
    return pa.table({"x": list(xs), "p": [x % 2 for x in xs], "v": [v] * len(xs)})


@pytest.fixture
def catalog(spark, url):
    """Create a table of the catalog, or a view; tables are dropped afterwards."""
    names = []

    def create(name: str = "sales", kind: str = "TABLE", **options: str) -> str:
        names.append(name)
        given = {"store": url, "cube": "cube", **options}
        text = ", ".join(f"{key} '{value}'" for key, value in given.items())
        spark.sql(f"CREATE {kind} {name} USING kartothek_cube OPTIONS ({text})")
        return name

    yield create
    for name in names:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def built(url) -> str:
    api.build_cube(cells(range(4)), CUBE, url)
    return url


def test_a_cube_is_a_table_of_the_catalog(spark, built, catalog):
    name = catalog()
    assert spark.catalog.tableExists(name)
    assert [c.name for c in spark.catalog.listColumns(name)] == ["p", "v", "x"]
    described = [(row.col_name, row.data_type) for row in spark.sql(f"DESCRIBE {name}").collect()]
    assert described[:3] == [("p", "bigint"), ("v", "bigint"), ("x", "bigint")]
    assert xs(spark.sql(f"SELECT x FROM {name} WHERE x > 1")) == [2, 3]
    assert xs(spark.table(name)) == [0, 1, 2, 3]
    api.append_to_cube(cells([7]), CUBE, built)
    assert xs(spark.table(name)) == [0, 1, 2, 3, 7]
    spark.sql(f"DROP TABLE {name}")
    assert api.query_cube_arrow(CUBE, built)[0]["x"].to_pylist() == [0, 1, 2, 3, 7]


def test_a_table_can_be_at_a_location(spark, built):
    spark.sql(f"CREATE TABLE located USING kartothek_cube LOCATION '{built.removeprefix('hfs://')}'")
    try:
        assert xs(spark.table("located")) == [0, 1, 2, 3]
    finally:
        spark.sql("DROP TABLE located")
    assert api.query_cube_arrow(CUBE, built)[0]["x"].to_pylist() == [0, 1, 2, 3]


def test_a_table_joins_itself(spark, url, catalog):
    api.build_cube(cells(range(6)), CUBE, url)
    name = catalog()
    one = f"SELECT x FROM {name} WHERE x < 2 UNION ALL SELECT x FROM {name} WHERE x > 4"
    assert xs(spark.sql(one)) == [0, 1, 5]
    assert xs(spark.sql(f"SELECT a.x FROM {name} a JOIN {name} b ON a.x = b.x + 1 WHERE b.x >= 3")) == [4, 5]


VIEW = "OR REPLACE TEMPORARY VIEW"
INSERTS = {
    "position": "INSERT INTO {} SELECT p, v, x FROM new_rows",
    "columns": "INSERT INTO {} (x, p, v) SELECT x, p, v FROM new_rows",
    "name": "INSERT INTO {} BY NAME SELECT * FROM new_rows",
}


@pytest.mark.parametrize("how", [*INSERTS, "frame"])
def test_rows_are_inserted_into_a_view(spark, built, catalog, how):
    rows, view = create_frame(cells([8, 9]), spark), catalog("sales_view", VIEW)
    rows.createOrReplaceTempView("new_rows")
    if how == "frame":
        rows.select("p", "v", "x").write.insertInto(view)
    else:
        spark.sql(INSERTS[how].format(view))
    assert api.query_cube_arrow(CUBE, built)[0]["x"].to_pylist() == [0, 1, 2, 3, 8, 9]


def test_a_view_shows_an_insert_when_it_is_created_again(spark, url, catalog):
    api.build_cube(cells(range(2)), CUBE, url)
    name = catalog("sales_view", VIEW)
    assert xs(spark.table(name)) == [0, 1]
    spark.sql(f"INSERT INTO {name} (x, p, v) VALUES (8, 0, 1)")
    assert xs(spark.table(name)) == [0, 1]
    assert xs(spark.table(catalog("sales_view", VIEW))) == [0, 1, 8]


def test_an_overwrite_replaces_the_dataset(spark, built, catalog):
    spark.sql(f"INSERT OVERWRITE {catalog('sales_view', VIEW)} (x, p, v) VALUES (8, 0, 1)")
    assert api.query_cube_arrow(CUBE, built)[0]["x"].to_pylist() == [8]


@pytest.mark.parametrize(
    "insert",
    [
        lambda df, name: df.write.insertInto(name),
        lambda df, name: df.writeTo(name).append(),
        lambda df, name: df.write.format("kartothek_cube").mode("append").saveAsTable(name),
    ],
)
def test_inserts_that_lose_the_options_of_a_table_name_the_remedy(spark, built, catalog, insert):
    name = catalog()
    with pytest.raises(AnalysisException, match="insert into a temporary view that has the same options"):
        insert(create_frame(cells([8]), spark).select("p", "v", "x"), name)
    assert xs(spark.table(name)) == [0, 1, 2, 3]


def test_rows_of_a_table_are_not_written_to_it_by_mistake(spark, built, catalog):
    rows = spark.table(catalog(conditions="x > 1"))
    with pytest.raises(AnalysisException, match="option 'store' is missing"):
        rows.write.format("kartothek_cube").mode("overwrite").save()
    with pytest.raises(AnalysisException, match="option 'store' is missing"):
        spark.sql("INSERT INTO sales SELECT 1L, 2L, 3L")
    other = CUBE.copy(uuid_prefix="other")
    rows.write.format("kartothek_cube").options(store=built, cube="other", **NEW).save()
    assert api.query_cube_arrow(other, built)[0]["x"].to_pylist() == [2, 3]
    again = spark.read.format("kartothek_cube").schema(rows.schema).load(built, cube="cube")
    assert xs(again) == [0, 1, 2, 3]


def test_a_frame_is_appended_to_a_table_with_its_options(spark, built, catalog):
    name = catalog()
    create_frame(cells([8]), spark).writeTo(name).options(store=built, cube="cube").append()
    assert xs(spark.table(name)) == [0, 1, 2, 3, 8]


def test_a_view_with_columns_builds_a_cube(spark, url):
    options = ", ".join(f"{k} '{v}'" for k, v in {"store": url, "cube": "cube", **NEW}.items())
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW new_cube (x BIGINT, p BIGINT, v BIGINT) "
        f"USING kartothek_cube OPTIONS ({options})"
    )
    spark.sql("INSERT INTO new_cube SELECT id AS x, id % 2 AS p, 5L AS v FROM range(3)")
    assert api.query_cube_arrow(CUBE, url)[0]["v"].to_pylist() == [5, 5, 5]
    assert xs(spark.sql("SELECT x FROM new_cube WHERE x > 0")) == [1, 2]


def test_options_of_a_query_are_added_to_those_of_the_table(spark, built, catalog):
    api.keep_cube_history(CUBE, built, 5)
    name = catalog()
    assert xs(spark.sql(f"SELECT x FROM {name} WITH (conditions 'x >= 2')")) == [2, 3]
    assert xs(spark.read.option("conditions", "x >= 3").table(name)) == [3]


def test_one_table_per_dataset(spark, url, catalog):
    api.build_cube(cells(range(3)), CUBE, url)
    api.extend_cube({"more": pa.table({"x": [0, 1], "p": [0, 1], "w": [5, 6]})}, CUBE, url)
    name = catalog("more_cells", VIEW, dataset="more", columns="w")
    spark.sql(f"INSERT INTO {name} BY NAME SELECT 2L AS x, 0L AS p, 7L AS w")
    assert xs(spark.sql(f"SELECT x FROM {name} WHERE w >= 6")) == [1, 2]


TABLES_WITHOUT_OPTIONS = {
    "saveAsTable": lambda df, options: df.write.format("kartothek_cube").options(**options).saveAsTable("t"),
    "append": lambda df, options: df.write.saveAsTable("t", "kartothek_cube", "append", **options),
    "overwrite": lambda df, options: df.write.saveAsTable("t", "KARTOTHEK_CUBE", mode="overwrite", **options),
    "writeTo": lambda df, options: df.writeTo("t").using("kartothek_cube").options(**options).create(),
    "toTable": lambda df, _: (
        df.sparkSession.readStream.format("rate").load().writeStream.format("kartothek_cube").toTable("t")
    ),
    "columns": lambda df, options: df.sparkSession.sql(
        "/* new */ CREATE TABLE IF NOT EXISTS `t` (x BIGINT)\n  USING kartothek_cube OPTIONS "
        f"(store '{options['store']}', cube 'cube')"
    ),
    "createTable": lambda df, options: df.sparkSession.catalog.createTable(
        "t", source="kartothek_cube", schema=df.schema, **options
    ),
}


@pytest.mark.parametrize("create", TABLES_WITHOUT_OPTIONS.values(), ids=TABLES_WITHOUT_OPTIONS)
def test_tables_that_could_not_be_read_are_not_created(spark, url, create):
    df = create_frame(cells([1]), spark)
    remedy = r"CREATE TABLE .* without columns; to write rows, use save\(\)"
    with pytest.raises(AnalysisException, match=remedy):
        create(df, {"store": url, "cube": "cube", **NEW})
    assert not spark.catalog.tableExists("t")
    assert not list(Path(url.removeprefix("hfs://")).iterdir())


def test_tables_of_other_formats_are_created_as_before(spark):
    df = create_frame(cells([1]), spark)
    try:
        df.write.format("parquet").saveAsTable("t")
        df.writeTo("t2").using("parquet").create()
        spark.sql("ALTER TABLE t ADD COLUMN w INT")
        spark.sql("CREATE TABLE t3 (x BIGINT) USING parquet")
        assert spark.table("t").columns == ["x", "p", "v", "w"]
    finally:
        for name in ("t", "t2", "t3"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.parametrize(
    "table, change",
    [
        ("sales", "ADD COLUMN w INT"),
        ("default.sales", "ADD COLUMNS (w INT, w2 INT)"),
        ("`sales`", "DROP COLUMN v"),
        ("sales", "RENAME COLUMN v TO w"),
        ("spark_catalog.default.`sales`", "ALTER COLUMN v TYPE DOUBLE"),
        ("sales", "CHANGE COLUMN v TYPE DOUBLE"),
        ("sales", "REPLACE COLUMNS (x BIGINT)"),
    ],
)
def test_columns_of_a_table_are_not_altered(spark, built, catalog, table, change):
    name = catalog()
    with pytest.raises(AnalysisException, match=f"Use update_schema, then drop and create {table}"):
        spark.sql(f"-- a comment\nALTER TABLE {table} {change}")
    assert spark.table(name).columns == ["p", "v", "x"] and xs(spark.table(name)) == [0, 1, 2, 3]


def test_a_table_may_have_properties_and_comments(spark, built, catalog):
    name = catalog()
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('a' = 'b')")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN p COMMENT 'parity'")
    assert xs(spark.table(name)) == [0, 1, 2, 3]


def test_columns_that_the_cube_has_no_more_are_named(spark, built, catalog):
    name = catalog()
    api.update_schema(CUBE, built, rename={"v": "w"})
    with pytest.raises(AnalysisException, match=r"no column\(s\) v of this .*: drop and create") as caught:
        spark.table(name).collect()
    assert "Traceback" not in str(caught.value)
