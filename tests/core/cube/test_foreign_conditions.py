"""Conditions of other libraries: expressions of Polars and Arrow, predicates."""

import datetime
import decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions
from pyspark.sql.connect import functions as connect_functions

from kartothek_cube.api import cube as api
from kartothek_cube.core.cube.conditions import C, Conjunction, EqualityCondition
from kartothek_cube.core.cube.implied_conditions import to_conjunction
from tests.support.cube_facades import SPARK, open_facade
from tests.support.factories import STORES
from tests.support.spark_session import shared_session

DAY = datetime.date(2024, 1, 31)
NOON = datetime.datetime(2024, 1, 31, 12)
ROWS = pa.table(
    {
        "i": pa.array([1, 2, None, 2**53 + 1, -4]),
        "f": pa.array([0.5, None, 2.0, -0.0, float(2**53)]),
        "s": pa.array(["Ulm", "Unna", None, "Bonn", ""]),
        "b": pa.array([True, False, None, True, False]),
        "d": pa.array([DAY, datetime.date(2024, 2, 1), None, DAY, datetime.date(1999, 1, 1)]),
        "t": pa.array([NOON, NOON + datetime.timedelta(1), None, NOON, NOON], pa.timestamp("ns")),
        "n": pa.array([*map(decimal.Decimal, ("1.50", "2.25", "0")), None, decimal.Decimal("-7.00")]),
    }
)
TYPES = dict(zip(ROWS.column_names, ROWS.schema.types, strict=True))
FLAG = EqualityCondition("b", True)
col, field = pl.col, pc.field

POLARS = [
    pl.lit(1) < col("i"),
    col("i") > 1,
    col("i") == 2**53 + 1,
    col("f") != 0.5,
    ~(col("f") >= 2),
    col("f").is_in([0.0, 2.0]),
    ~col("f").is_in([0.0, 2.0]),
    col("s") == "Ulm",
    (col("s") == "Ulm") | (col("i") < 0),
    ((col("s") == "Ulm") | (col("i") > 0)) & ~(col("d") == DAY),
    ~((col("s") == "Ulm") & (col("i") > 0)),
    col("i").is_null(),
    ~col("i").is_null() & col("s").is_not_null(),
    col("i").is_between(1, 2),
    col("i").is_between(1, 2, closed="left"),
    ~col("i").is_between(1, 2, closed="none"),
    col("s").str.starts_with("U"),
    ~col("s").str.starts_with("U"),
    col("b"),
    ~col("b"),
    col("b") | (col("i") == 2),
    col("d") >= DAY,
    col("t") < NOON + datetime.timedelta(1),
    col("t") >= pl.datetime(2024, 1, 1),
    col("d").is_between(pl.date(1999, 1, 1), pl.date(2000, 1, 1)),
    col("n") <= decimal.Decimal("1.5"),
    col("n").is_in([decimal.Decimal("2.25"), decimal.Decimal(0)]),
]
ARROW = [
    field("i") > 1,
    field("f") != 0.5,
    ~(field("f") >= 2.0),
    (field("s") == "Ulm") | (field("i") < 0),
    ~((field("s") == "Ulm") & (field("i") > 0)),
    field("s").isin(["Ulm", "Bonn"]),
    ~field("s").isin(["Ulm", "Bonn"]),
    ~field("s").isin(["Ulm", None]),
    field("i").is_null(),
    field("i").is_valid() & ~field("s").is_null(),
    pc.starts_with(field("s"), "U"),
    ~pc.starts_with(field("s"), "U"),
    ~field("b"),
    field("d") == DAY,
    pc.if_else(field("b"), field("i") > 0, field("f") > 0.0),
]


SPARK_COLUMNS = [
    lambda f: f.col("i") > 1,
    lambda f: f.lit(1) < f.col("i"),
    lambda f: f.col("f") != 0.5,
    lambda f: f.col("s").isin("Ulm", "Bonn"),
    lambda f: ~f.col("s").isin("Ulm", "Bonn"),
    lambda f: f.col("d").isin(DAY),
    lambda f: ~((f.col("s") == "Ulm") & (f.col("i") > 0)),
    lambda f: ((f.col("s") == "Ulm") | (f.col("i") > 0) | f.col("b")) & ~(f.col("d") == DAY),
    lambda f: f.col("i").isNull() | f.col("s").startswith("U"),
    lambda f: f.col("i").isNotNull() & ~f.col("s").startswith("U"),
    lambda f: f.col("i").between(1, 2),
    lambda f: f.col("d") >= DAY,
    lambda f: f.col("z") <= NOON.astimezone(datetime.UTC),
    lambda f: f.col("n") == decimal.Decimal("2.25"),
    lambda f: f.col("i") == None,  # noqa: E711
]
SPARK_ROWS = ROWS.drop_columns("t").append_column("z", ROWS["t"].cast(pa.timestamp("us", "UTC")))
SPARK_TYPES = dict(zip(SPARK_ROWS.column_names, SPARK_ROWS.schema.types, strict=True))


def rows_of(conditions):
    """Numbers of the rows that match."""
    frame = ROWS.to_pandas(types_mapper=pd.ArrowDtype)
    return to_conjunction(conditions, TYPES).filter_df(frame).index.tolist()


@pytest.mark.parametrize("expression", POLARS, ids=str)
def test_expressions_of_polars_match_the_rows_that_polars_gives(expression):
    expected = pl.DataFrame(ROWS).with_row_index("row").filter(expression)["row"].to_list()
    assert rows_of(expression) == expected
    assert rows_of([expression, C("i") > -9]) == [row for row in expected if row != 2]


def test_lists_of_polars_keep_integers_above_those_of_signed_types():
    numbers = pl.Series([1, 2**64 - 1], dtype=pl.UInt64).implode()
    assert to_conjunction(col("u").is_in(numbers), {"u": pa.uint64()}) == Conjunction(
        C("u").isin([1, 2**64 - 1])
    )


@pytest.mark.parametrize("expression", ARROW, ids=str)
def test_expressions_of_arrow_match_the_rows_that_arrow_gives(expression):
    expected = ROWS.append_column("row", pa.array(range(len(ROWS)))).filter(expression)["row"].to_pylist()
    assert rows_of(expression) == expected


@pytest.mark.slow("runs many Spark jobs")
@pytest.mark.parametrize("build", SPARK_COLUMNS)
def test_columns_of_spark_match_the_rows_that_spark_gives(build):
    spark = shared_session()
    column = build(functions)
    rows = spark.createDataFrame(SPARK_ROWS.append_column("row", pa.array(range(len(SPARK_ROWS)))))
    expected = sorted(row["row"] for row in rows.where(column).select("row").collect())
    condition = to_conjunction(column, SPARK_TYPES)
    frame = SPARK_ROWS.to_pandas(types_mapper=pd.ArrowDtype)
    assert condition.filter_df(frame).index.tolist() == expected
    # Spark Connect, whose columns need no session
    assert str(to_conjunction(build(connect_functions), SPARK_TYPES)) == str(condition)


@pytest.mark.slow("runs many Spark jobs")
@pytest.mark.parametrize("f", [functions, connect_functions], ids=["classic", "connect"])
@pytest.mark.parametrize(
    "build, error, problem",
    [
        (lambda f: f.col("i") % 2 == 0, TypeError, r"^The Spark expression .*filters of the result$"),
        (lambda f: f.col("i") > f.col("f"), TypeError, "isin, between, isNull and startswith of F.col"),
        (lambda f: ~f.col("i").isin(1, None), TypeError, "is no condition"),
        (lambda f: f.expr("i > 1"), TypeError, "is no condition"),
        (lambda f: f.col("ii") > 1, ValueError, "unknown column ii; did you mean i"),
    ],
)
def test_what_is_no_condition_of_spark_is_refused_with_advice(f, build, error, problem):
    shared_session()
    with pytest.raises(error, match=problem):
        to_conjunction(build(f), SPARK_TYPES)


@pytest.mark.slow("starts a session of Spark")
@pytest.mark.parametrize("f", [functions, connect_functions], ids=["classic", "connect"])
@pytest.mark.parametrize(
    "build, expected",
    [
        (lambda f, time: f.col("t") >= time, C("t") >= NOON),
        (lambda f, time: ~f.col("t").isin(time), ~C("t").isin([NOON])),
    ],
    ids=["comparison", "list"],
)
def test_times_without_a_zone_are_texts_in_columns_of_spark(f, build, expected):
    shared_session()
    with pytest.raises(TypeError, match=r"the time as text, as in F.col\('t'\) >= '2020-01-31 12:00:00'$"):
        to_conjunction(build(f, NOON), TYPES)
    assert rows_of(build(f, str(NOON))) == rows_of(expected)


@pytest.mark.parametrize(
    "predicates, expected",
    [
        (("i", ">", 1), C("i") > 1),
        ([("i", ">", 1), ("s", "==", "Ulm")], (C("i") > 1) & (C("s") == "Ulm")),
        ([[("i", ">", 1)]], C("i") > 1),
        ([[("i", ">", 1), ("b", "==", True)], [("s", "!=", "x")]], ((C("i") > 1) & FLAG) | (C("s") != "x")),
        ([[("s", "==", None)]], C("s").is_null()),
        ([[("f", "!=", float("nan"))]], C("f").not_null()),
        ([[("i", "in", [1, 2])]], C("i").isin([1, 2])),
        ([[("s", "in", ["a", None])]], C("s").isin(["a"]) | C("s").is_null()),
        ([[("s", "not in", ("a", None))]], ~C("s").isin(["a"])),
    ],
)
def test_predicates_are_conditions(predicates, expected):
    assert to_conjunction(predicates, TYPES) == Conjunction(expected)


def test_forms_can_be_mixed_in_a_list():
    mixed = ["i > 1 OR s = 'x'", col("f") > 1, field("b"), ("s", "==", "Ulm"), C("i") < 9]
    expected = Conjunction([(C("i") > 1) | (C("s") == "x"), C("f") > 1, FLAG, C("s") == "Ulm", C("i") < 9])
    assert to_conjunction(mixed, TYPES) == to_conjunction(iter(mixed), TYPES) == expected


@pytest.mark.parametrize(
    "conditions, error, problem",
    [
        (col("i") % 2 == 0, TypeError, r"^The Polars expression .* no condition.*of scan_cube\(...\)$"),
        (col("s").str.contains("U"), TypeError, "is_in, is_between, is_null and str.starts_with"),
        ((col("i") > 1) & (col("i") > col("f")), TypeError, "is no condition"),
        (col("f") == float("nan"), TypeError, "is no condition"),
        (pl.lit(5), TypeError, "is no condition"),
        (col("i") < pl.len(), TypeError, "is no condition"),
        (col("i") < pl.lit(pl.Series([1, 2, 3, 4, 5])), TypeError, "is no condition"),
        ((col("i") > 1) & pl.lit("a"), TypeError, "is no condition"),
        (pc.scalar(5), TypeError, "is no condition"),
        (pc.add(field("i"), 1) > 1, TypeError, r"^The Arrow expression .*filters of cube_dataset\(...\)$"),
        ((field("i") > 1) & (field("i") > field("f")), TypeError, "is no condition"),
        (col("ii") > 1, ValueError, "unknown column ii; did you mean i"),
        (field("ii") > 1, ValueError, "unknown column ii; did you mean i"),
        (("i", "=", 1), ValueError, r"unknown operator '='; known are ==, !="),
        (("s", "like", "U%"), ValueError, r"unknown operator 'like'; known are ==, !="),
        ([[("i", ">", None)]], ValueError, "a null can be compared by"),
        ([[C("i") > 1]], TypeError, "got list"),
        (pd.Series([1]) > 0, TypeError, "got Series"),
        (pl.Series([1]) > 0, TypeError, "got Series"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_condition_is_refused_with_advice(conditions, error, problem):
    with pytest.raises(error, match=problem) as caught:
        to_conjunction(conditions, TYPES)
    assert "\n" not in str(caught.value)


CUBE = api.Cube(["CITY"], ["COUNTRY"], "cube")
CITIES = pd.DataFrame({"CITY": ["Bonn", "Rom", "Ulm"], "COUNTRY": ["DE", "IT", "DE"], "PEOPLE": [9, 999, 9]})
FORMS = [pl.col("COUNTRY") == "DE", pc.field("COUNTRY") == "DE", "COUNTRY = 'DE'"]
FORMS += [("COUNTRY", "==", "DE"), [[("COUNTRY", "==", "DE")]]]


def test_operations_on_spark_take_its_columns(tmp_path):
    shared_session()
    driver, store, condition = open_facade(SPARK), STORES["local"](tmp_path), functions.col("COUNTRY") == "DE"
    api.build_cube(CITIES, CUBE, store)
    (df,) = driver.query_cube(cube=CUBE, store=store, conditions=condition)
    assert sorted(df["CITY"]) == ["Bonn", "Ulm"]
    driver.remove_partitions(cube=CUBE, store=store, conditions=condition, ktk_cube_dataset_ids=["seed"])
    assert api.query_cube_df(CUBE, store)["CITY"].tolist() == ["Rom"]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_all_operations_take_conditions_of_other_libraries(tmp_path, form):
    store = STORES["memory"](tmp_path)
    api.build_cube(CITIES, CUBE, store)
    assert sorted(api.open_cube(CUBE, store).query(form).to_pandas()["CITY"]) == ["Bonn", "Ulm"]
    lazy = api.scan_cube(CUBE, store, form).filter(pl.col("CITY") < "C").collect()
    assert lazy["CITY"].to_list() == ["Bonn"]
    assert "to read:    1 file in 1 partition" in str(api.explain_query(CUBE, store, form))
    api.append_to_cube(CITIES.assign(CITY=CITIES.CITY + "!"), CUBE, store)
    assert api.compact_cube(CUBE, store, form)["seed"]["files_before"] == 2
    api.update_cube(CITIES[:1], CUBE, store, form, datasets=["seed"])
    assert api.query_cube_df(CUBE, store)["CITY"].tolist() == ["Bonn", "Rom", "Rom!"]
