"""What is special about cubes on Spark; tests/io/cube covers common behaviour with ``--facade spark``."""

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import types as st
from storefact import get_store_from_url

from kartothek_cube.api import cube as api
from kartothek_cube.core.errors import DuplicateCellsError, MissingFileError, MultiTableCommitAborted
from kartothek_cube.io.spark import create_frame
from tests.support.cubes import file_keys, read_parquet
from tests.support.spark_session import files

CUBE = api.Cube(["x", "y"], ["p"], "cube", index_columns=["i1"])


def table(n: int = 12, **more) -> pa.Table:
    columns = {"x": list(range(n)), "y": [0] * n, "p": [i % 3 for i in range(n)], **more}
    return pa.table(columns)


def seed(n: int = 12) -> pa.Table:
    return table(n, v1=[i * 0.5 for i in range(n)], i1=[f"i{i % 2}" for i in range(n)])


@pytest.fixture
def frame(spark):
    return create_frame(seed())


@pytest.fixture
def built(frame, url):
    api.build_cube_from_spark(frame, CUBE, url)
    return url


def rows(df) -> list[dict]:
    return sorted((row.asDict() for row in df.collect()), key=lambda row: (row["x"], row["y"]))


@pytest.mark.slow("jobs of Spark that fail are repeated")
def test_a_function_that_fails_for_a_partition_leaves_no_files(built):
    def double(df):
        if 2 in df["p"].to_numpy():
            raise ValueError("no model for this partition")
        return df.assign(doubled=df["v1"] * 2)[["x", "y", "p", "doubled"]]

    before = files(built)
    with pytest.raises(ValueError, match="no model for this partition") as caught:
        api.compute_dataset_spark(double, CUBE, built, "doubled")
    assert caught.value.__notes__ == ["Function double failed for p=2"]
    assert files(built) == before


# queries ----------------------------------------------------------------------------------------------------


def test_a_query_shuffles_nothing(jvm, built):
    plan = api.query_cube_spark(CUBE, built, api.C("v1") > 1.0)._jdf.queryExecution().toString()
    assert "MapInArrow query_cube" in plan and "Exchange" not in plan


def test_a_plan_shows_what_is_pruned_and_pushed_down(built, capsys):
    api.query_cube_spark(CUBE, built, (api.C("p") == 0) & (api.C("v1") > 1.0)).explain()
    shown = capsys.readouterr().out
    assert "1 partition; files: 1 of 3 of seed" in shown and "conditions: p == 0 & v1 > 1.0" in shown


@pytest.mark.parametrize("arguments", [{}, {"partition_by": "i1"}, {"payload_columns": ["v1"]}])
def test_the_schema_is_there_without_rows(built, arguments):
    empty, filled = (api.query_cube_spark(CUBE, built, api.C("p") == p, **arguments) for p in (99, 0))
    assert empty.schema == filled.schema and empty.count() == 0 and filled.count() == 4


def test_a_query_sees_the_cube_as_it_was_planned(frame, built, spark):
    df = api.query_cube_spark(CUBE, built)
    api.append_to_cube_from_spark(frame.where("x = 0").withColumn("x", frame["x"] + 100), CUBE, built)
    assert df.count() == 12 and api.query_cube_spark(CUBE, built).count() == 13


def test_groups_come_in_one_piece_and_in_order(built):
    values = [row["i1"] for row in api.query_cube_spark(CUBE, built, partition_by="i1").collect()]
    assert values == ["i0"] * 6 + ["i1"] * 6


def test_many_tasks_are_sent_to_a_worker_each(jvm, built, monkeypatch):
    monkeypatch.setattr("kartothek_cube.io.spark._spark_executor._FEW_TASKS", 1)
    monkeypatch.setattr("kartothek_cube.core.tuning.MIN_TASK_BYTES", 1)
    df = api.query_cube_spark(CUBE, built)
    assert df.rdd.getNumPartitions() == 3
    assert rows(df) == rows(create_frame(seed().select(["i1", "p", "v1", "x", "y"])))


def test_map_gets_whole_partitions_and_groups(built):

    def summed(part: pa.Table) -> pa.Table:
        assert pc.count_distinct(part["p"]).as_py() <= 1
        return pa.table({"p": part["p"].slice(0, 1), "n": pa.array([len(part)][: len(part)], pa.int64())})

    df = api.map_cube_spark(summed, CUBE, built)
    assert sorted(df.collect()) == [(0, 4), (1, 4), (2, 4)]

    def summed(part: pa.Table) -> pa.Table:
        return part.group_by("i1").aggregate([("v1", "sum")])

    df = api.map_cube_spark(summed, CUBE, built, partition_by="i1", payload_columns=["v1"])
    assert sorted(df.collect()) == [("i0", 15.0), ("i1", 18.0)]


def test_map_takes_a_state_and_what_has_changed_since_another_one(built):
    before = api.list_cube_changes(CUBE, built).token
    rows = pa.table({"x": [99], "y": [0], "p": [0], "v1": [1.0], "i1": ["i0"]})
    api.append_to_cube(rows, CUBE, built, schema_mode="merge")

    def count(**moments) -> int:
        return api.map_cube_spark(lambda part: part.select(["x"]), CUBE, built, **moments).count()

    of_partition = api.query_cube_spark(CUBE, built, "p == 0").count()
    assert (count(), count(as_of=before), count(changed_since=before)) == (13, 12, of_partition)


@pytest.mark.parametrize("schema", ["x bigint", pa.schema([("x", pa.int64())])])
def test_map_may_be_told_what_comes_out(built, schema):
    def some(part: pa.Table):
        return part.to_pandas()[["x"]] if part["p"][0].as_py() == 1 else None

    df = api.map_cube_spark(some, CUBE, built, schema)
    assert sorted(row["x"] for row in df.collect()) == [1, 4, 7, 10]


def test_map_takes_columns_of_the_query_for_what_they_are(spark, url):
    """pandas has objects for dates, and no type for them where there are no rows."""
    days = pa.array([date(2020, 1, 1), date(2020, 1, 2)])
    cube = api.Cube(["x", "d"], ["p"], "cube")
    api.build_cube_from_spark(create_frame(pa.table({"x": [0, 1], "d": days, "p": days}), spark), cube, url)
    df = api.map_cube_spark(lambda part: part.to_pandas().assign(v2=1.5), cube, url)
    assert dict(df.dtypes) == {"d": "date", "p": "date", "v2": "double", "x": "bigint"}
    api.extend_cube_from_spark({"more": df}, cube, url)
    found = sorted(map(tuple, api.query_cube_spark(cube, url).select("d", "v2").collect()))
    assert found == [(date(2020, 1, 1), 1.5), (date(2020, 1, 2), 1.5)]


def test_columns_of_nulls_get_their_type_from_later_rows(spark, url):
    data = pa.table({"x": [0], "y": [0], "p": [0], "v": pa.nulls(1), "w": [[None]]})
    cube = CUBE.copy(index_columns=[])
    api.build_cube_from_spark(create_frame(data, spark), cube, url)
    api.append_to_cube(pa.table({"x": [1], "y": [0], "p": [0], "v": [1.5], "w": [[2]]}), cube, url)
    found = api.query_cube_table(cube, url)
    assert found["v"].to_pylist() == [None, 1.5]
    assert found["w"].to_pylist() == [[None], [2]]


def test_a_file_that_is_gone_is_named(built, url):
    next(Path(url.removeprefix("hfs://")).glob("cube++seed/table/**/*.parquet")).unlink()
    with pytest.raises(MissingFileError, match=r"cube\+\+seed/table/.*parquet"):
        api.query_cube_spark(CUBE, built)


def test_map_whose_result_is_unknown_is_refused(built):
    with pytest.raises(ValueError, match=r"fails for a table without rows .*IndexError.* pass their schema"):
        api.map_cube_spark(lambda part: part.slice(part["x"][0].as_py()), CUBE, built)
    with pytest.raises(ValueError, match="gives None"):
        api.map_cube_spark(lambda part: None, CUBE, built)
    with pytest.raises(TypeError, match=r"schema must be .* but is int"):
        api.map_cube_spark(lambda part: part, CUBE, built, 1)
    with pytest.raises(TypeError, match=r"Column 'x' has type interval day, which cannot be stored: cast it"):
        api.map_cube_spark(lambda part: part, CUBE, built, "x interval day")
    with pytest.raises(ValueError, match=r"^Column names occur more than once: x\.$"):
        api.map_cube_spark(lambda part: part, CUBE, built, "x int, x bigint")


@pytest.mark.parametrize(
    "columns, problem",
    [
        ({"x": [1]}, r"Column\(s\) missing in the rows for Spark: w"),
        ({"x": [1], "w": ["a"]}, "Column 'w' of type string cannot be given to Spark as int64: .*'a'.*"),
        ({"x": [1], "w": pa.nulls(1)}, "Column 'w' has nulls, but the schema says NOT NULL"),
        ({"x": [1], "w": [float("nan")]}, "Column 'w' has nulls, but the schema says NOT NULL"),
    ],
)
def test_rows_of_a_function_that_do_not_fit_its_schema_are_an_error_in_one_sentence(built, columns, problem):
    def wrong(_):
        return pa.table(columns)

    mapped = api.map_cube_spark(wrong, CUBE, built, "x BIGINT, w BIGINT NOT NULL", conditions="p == 1")
    with pytest.raises(RuntimeError, match=f"^Function wrong failed for p=1: ValueError: {problem}"):
        api.extend_cube_from_spark({"more": mapped}, CUBE, built, partition_on={"more": []})


def test_nested_values_of_a_function_may_be_null(built):
    def nest(rows):
        return pa.table({"x": rows["x"], "w": pa.array([[1, None]] * len(rows), pa.list_(pa.int64()))})

    schema = st.StructType.fromDDL("x BIGINT, w ARRAY<BIGINT>")
    schema["w"].dataType.containsNull = False
    mapped = api.map_cube_spark(nest, CUBE, built, schema, conditions="p == 1")
    assert {tuple(row.w) for row in mapped.where("exists(w, v -> v IS NULL)").collect()} == {(1, None)}


def test_files_are_as_eager_ones(frame, built, tmp_path):
    other = f"hfs://{tmp_path / 'other'}?create_if_missing=true"
    api.build_cube(seed(), CUBE, other)

    def content(url):
        keys = file_keys(partial(get_store_from_url, url), "cube++seed")
        read = {label: read_parquet(partial(get_store_from_url, url), key) for label, key in keys.items()}
        return {label.split("/")[0]: (file.schema_arrow, file.read()) for label, file in read.items()}

    assert content(built) == content(other)
    assert api.query_cube_arrow(CUBE, built) == api.query_cube_arrow(CUBE, other)


def test_a_write_shuffles_once(jvm, frame, url, monkeypatch):
    plans = []
    collect = type(frame).toArrow
    monkeypatch.setattr(type(frame), "toArrow", lambda df: plans.append(df) or collect(df))
    api.build_cube_from_spark(frame, CUBE, url)
    (plan,) = [df._jdf.queryExecution().optimizedPlan().toString() for df in plans]
    assert plan.count("RepartitionByExpression") == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_large_partitions_become_several_files(spark, url, limit):
    data = pa.table({"x": list(range(12)), "y": [0] * 12, "p": [0] * 10 + [1, 2], "v1": list(range(12))})
    cube = CUBE.copy(index_columns=[])
    api.build_cube_from_spark(create_frame(data), cube, url, max_rows_per_file=limit)
    store = partial(get_store_from_url, url)
    sizes = [read_parquet(store, key).metadata.num_rows for key in file_keys(store, "cube++seed").values()]
    assert max(sizes) <= limit and len(sizes) >= 2 + 10 / limit
    assert api.query_cube_arrow(cube, url)[0].select(data.column_names) == data


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_cells_that_occur_twice_are_an_error_of_the_library(spark, url, limit):
    data = pa.concat_tables([seed(), seed().slice(5, 1)])
    with pytest.raises(DuplicateCellsError, match="p=2, x=5, y=0"):
        api.build_cube_from_spark(create_frame(data), CUBE, url, max_rows_per_file=limit)
    assert files(url) == set()


def test_cells_and_partitions_do_not_depend_on_collations(spark, url):
    # more rows than a task writes at a time; upper and lower case alternate, and the last two cells repeat
    frame = spark.range(200_000).selectExpr(
        "id % 199998 AS x", "IF(id % 2 = 0, 'a', 'A') COLLATE UTF8_LCASE AS p"
    )
    with pytest.raises(DuplicateCellsError):
        api.build_cube_from_spark(frame, api.Cube(["x"], ["p"], "cube"), url)


def test_nulls_are_an_error_of_the_library(spark, built):
    before = files(built)
    data = seed().set_column(0, "x", pa.array([None, *range(1, 12)], pa.int64()))
    with pytest.raises(ValueError, match='NULL-values in dimension column "x" of dataset "seed"') as caught:
        api.append_to_cube_from_spark(create_frame(data), CUBE, built)
    assert type(caught.value) is ValueError
    assert files(built) == before


def test_nothing_is_left_when_the_job_fails(spark, frame, built):
    before = files(built)
    bad = frame.unionAll(frame.selectExpr("x", "y", "raise_error('user error')", "v1", "i1"))
    with pytest.raises(Exception, match="user error"):
        api.append_to_cube_from_spark(bad, CUBE, built)
    assert files(built) == before


def test_an_update_replaces_partitions(frame, built):
    new = frame.where("p = 1").withColumn("v1", frame["v1"] + 100)
    api.update_cube_from_spark(new, CUBE, built, api.C("p") == 1, ["seed"])
    values = [row["v1"] for row in rows(api.query_cube_spark(CUBE, built))]
    assert values == [i * 0.5 + (100 if i % 3 == 1 else 0) for i in range(12)]


# bad input --------------------------------------------------------------------------------------------------


def refused(spark, url, error, fragment, data, operation=api.build_cube_from_spark, **arguments):
    """Fail unless an operation raises before any job starts, and writes nothing."""
    before, tracker = files(url), spark.sparkContext.statusTracker()
    group = str(uuid4())
    spark.sparkContext.setJobGroup(group, "refused")
    with pytest.raises(error, match=fragment):
        operation(data, CUBE, url, **arguments)
    assert list(tracker.getJobIdsForGroup(group)) == [] and files(url) == before


@pytest.mark.parametrize(
    "change, error, fragment",
    [
        (lambda df: df.drop("x"), ValueError, "dimension columns.*seed.*x"),
        (lambda df: df.drop("p"), ValueError, "partition columns.*seed.*p"),
        (lambda df: df.select("*", df["v1"]), ValueError, "Duplicate columns in dataset 'seed': v1"),
        (
            lambda df: df.withColumn("z", df["v1"]).toDF(*df.columns, "V1"),
            ValueError,
            "upper and lower.*V1, v1",
        ),
        (lambda df: df.selectExpr("*", "make_dt_interval(1) z"), TypeError, "'z' of dataset 'seed'.*bigint"),
        (lambda df: df.selectExpr("*", "parse_json('1') z"), TypeError, "'z'.*variant.*cast it to 'string'"),
        (lambda df: df.selectExpr("*", "array(make_ym_interval(1)) z"), TypeError, "'z'.*array<interval"),
        (lambda df: df.toPandas, TypeError, "Spark DataFrame"),
        (lambda df: {"seed": seed().to_pandas()}, TypeError, "Dataset seed: .*create_frame"),
        (lambda df: {"enrich": df}, ValueError, "seed"),
        (lambda df: {"seed": df, "enrich": df}, MultiTableCommitAborted, "i1 in enrich, seed"),
    ],
)
def test_what_schemas_tell_is_refused_before_a_job(jvm, frame, url, change, error, fragment):
    refused(jvm, url, error, fragment, change(frame))


@pytest.mark.parametrize(
    "change, error, fragment",
    [
        (lambda df: df.withColumn("v1", df["v1"].cast("string")), ValueError, "v1 +double +string"),
        (lambda df: df.drop("v1"), ValueError, "v1"),
        (lambda df: {"enrich": df}, ValueError, "enrich"),
    ],
)
def test_appends_that_do_not_fit_are_refused_before_a_job(jvm, frame, built, change, error, fragment):
    refused(jvm, built, error, fragment, change(frame), api.append_to_cube_from_spark)


def test_extensions_that_do_not_fit_are_refused_before_a_job(jvm, frame, built):
    other = frame.selectExpr("cast(x as string) x", "p", "v1 as v2")
    refused(jvm, built, MultiTableCommitAborted, "x", {"enrich": other}, api.extend_cube_from_spark)


@pytest.mark.parametrize("store", ["hmemory://", get_store_from_url("hmemory://")])
def test_stores_in_memory_are_refused(frame, store):
    with pytest.raises(ValueError, match="executors cannot open"):
        api.build_cube_from_spark(frame, CUBE, store)
    with pytest.raises(ValueError, match="executors cannot open"):
        api.query_cube_spark(CUBE, store)


@pytest.mark.parametrize("limit, error", [(0, ValueError), (1.5, TypeError), (True, TypeError)])
def test_limits_that_make_no_sense_are_refused(jvm, frame, url, limit, error):
    refused(jvm, url, error, "max_rows_per_file", frame, max_rows_per_file=limit)


def test_names_need_no_quotes(spark, url):
    cube = api.Cube(["a.b", "c`d"], ["e f"], "odd")
    data = pa.table({"a.b": [1, 2], "c`d": [1, 1], "e f": ["x/y", "ä"], "G.": [True, None]})
    api.build_cube_from_spark(create_frame(data), cube, url, max_rows_per_file=1)
    df = api.query_cube_spark(cube, url)
    found = sorted(tuple(row) for row in df.select("`a.b`", "`c``d`", "`e f`").collect())
    assert found == [(1, 1, "x/y"), (2, 1, "ä")]


def test_unsigned_keys_of_a_cube_take_signed_ones(spark, url):
    data = seed().set_column(0, "x", pa.array(range(12), pa.uint16()))
    api.build_cube(data, CUBE, url)
    api.append_to_cube_from_spark(create_frame(seed()), CUBE, url)
    extra = create_frame(table(v2=list(range(12))))
    api.extend_cube_from_spark({"enrich": extra}, CUBE, url)
    assert api.query_cube_arrow(CUBE, url)[0]["x"].to_pylist() == list(range(12))
    negative = create_frame(pa.table({"x": [-1], "y": [0], "p": [0], "v1": [0.5], "i1": ["a"]}))
    with pytest.raises(ValueError, match="'x' of type int64 does not fit the stored uint64"):
        api.append_to_cube_from_spark(negative, CUBE, url)


def test_a_thread_finds_the_session(frame, url):
    api.build_cube_from_spark(frame, CUBE, url)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: api.query_cube_spark("cube", url).count()).result() == 12


def test_a_column_that_differs_from_a_stored_one_in_case_only_is_refused(frame, url):
    api.build_cube_from_spark(frame, CUBE, url)
    rows = frame.withColumnRenamed("v1", "V1")
    with pytest.raises(ValueError, match="differ in upper and lower case only: V1, v1"):
        api.append_to_cube_from_spark(rows, CUBE, url, schema_mode="merge")


def test_columns_may_differ_in_case_where_the_session_says_true_in_any_spelling(spark, frame, url):
    spark.conf.set("spark.sql.caseSensitive", "TRUE")
    try:
        api.build_cube_from_spark(frame.withColumn("V1", frame.v1), CUBE, url)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert {"v1", "V1"} <= set(api.query_cube_arrow(CUBE, url)[0].column_names)
