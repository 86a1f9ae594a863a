"""What filters of Spark become."""

import base64
import io
import pickle
import random
import re
from contextlib import redirect_stdout
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.arrow_cube import query_cube_table
from kartothek_cube.io.eager_cube import build_cube
from kartothek_cube.io.spark._conversion import to_conditions

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "u": pa.uint64(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.bool_(),
        "d": pa.date32(),
        "t": pa.timestamp("ns"),
        "z": pa.timestamp("ns", "Europe/Berlin"),
        "dec": pa.decimal128(10, 2),
        "n": pa.null(),
    }
)
NAN = float("nan")
NOON, NEW_YEAR = datetime(2020, 1, 1, 12), datetime(2019, 1, 1)


@pytest.mark.parametrize(
    "item, conditions",
    [
        (ds.EqualTo(("i",), 1), "i == 1"),
        (ds.EqualNullSafe(("i",), 1), "i == 1"),
        (ds.GreaterThan(("i",), 1), "i > 1"),
        (ds.GreaterThanOrEqual(("f",), 1.5), "f >= 1.5"),
        (ds.LessThan(("s",), "a"), "s < a"),
        (ds.LessThanOrEqual(("d",), date(2020, 1, 1)), "d <= 2020-01-01"),
        (ds.In(("s",), ["b", None, "a"]), "s in ('b', 'a')"),
        (ds.Not(ds.EqualTo(("b",), True)), "b != True"),
        (ds.Not(ds.In(("i",), [1, 2])), "i != 1 & i != 2"),
        (ds.EqualTo(("u",), Decimal(2**63)), f"u == {2**63}"),
        (ds.EqualTo(("dec",), Decimal("1.50")), "dec == 1.50"),
        (ds.GreaterThanOrEqual(("t",), NOON), "t >= 2020-01-01 12:00:00"),
        (ds.LessThan(("t",), NOON), "t < 2020-01-01 12:00:00"),
        (ds.GreaterThan(("t",), NOON), "t >= 2020-01-01 12:00:00.000001"),
        (ds.LessThanOrEqual(("t",), NOON), "t < 2020-01-01 12:00:00.000001"),
        (ds.EqualTo(("t",), NOON), "t >= 2020-01-01 12:00:00 & t < 2020-01-01 12:00:00.000001"),
        (ds.EqualTo(("n",), "text"), "n == text"),
        (ds.LessThan(("z",), NOON.replace(tzinfo=UTC)), "z < 2020-01-01 13:00:00+01:00"),
    ],
)
def test_what_means_the_same_is_taken_over(item, conditions):
    found, left = to_conditions([ds.IsNotNull(getattr(item, "attribute", ("?",))), item], SCHEMA)
    assert " & ".join(map(str, found)) == conditions
    assert left in ([], [ds.IsNotNull(("?",))])


@pytest.mark.parametrize(
    "item, conditions",
    [
        (ds.StringStartsWith(("s",), "ab"), "s >= ab & s < ac"),
        (ds.StringStartsWith(("s",), "a\ud7ff"), "s >= a\ud7ff & s < a\ue000"),
        (ds.StringStartsWith(("s",), "\U0010ffff"), "s >= \U0010ffff"),
        (ds.In(("t",), [NOON, NEW_YEAR]), "t >= 2019-01-01 00:00:00 & t < 2020-01-01 12:00:00.000001"),
    ],
)
def test_what_is_less_strict_helps_but_is_left_to_spark(item, conditions):
    found, left = to_conditions([ds.IsNotNull(item.attribute), item], SCHEMA)
    assert " & ".join(map(str, found)) == conditions and left == [item]


@pytest.mark.parametrize(
    "item",
    [
        *(ds.IsNull(("i",)), ds.IsNotNull(("i",)), ds.StringContains(("s",), "a")),
        *(ds.StringStartsWith(("s",), ""), ds.Not(ds.GreaterThan(("i",), 1))),
        *(ds.Not(ds.In(("i",), [1, None])), ds.Not(ds.In(("i",), list(range(1000))))),
        *(ds.Not(ds.EqualTo(("t",), NOON)), ds.EqualNullSafe(("i",), None), ds.In(("i",), [None])),
        *(ds.EqualTo(("f",), NAN), ds.GreaterThan(("f",), NAN), ds.EqualTo(("u",), Decimal("1.5"))),
        *(ds.EqualTo(("s", "field"), 1), ds.EqualTo(("other",), 1), ds.EqualTo(("i",), "text")),
        # of more digits, and of a day before, in Spark
        ds.EqualTo(("dec",), Decimal("1234567890123456789012345678")),
        ds.LessThan(("dec",), Decimal("-1.000000000000000000000000000E+38")),
        ds.In(("dec",), [Decimal(1), Decimal("12345678901234567890123456.78")]),
        *(ds.EqualTo(("d",), date(1582, 10, 15)), ds.GreaterThan(("d",), date(1582, 10, 4))),
        ds.Not(ds.In(("d",), [date(2020, 1, 1), date(1, 1, 1)])),
        ds.GreaterThan(("t",), datetime(1500, 1, 1)),
    ],
)
def test_everything_else_is_left_to_spark(item):
    assert to_conditions([item], SCHEMA) == ([], [item])


# pushed against not pushed ----------------------------------------------------------------------------------

MICROSECONDS = [-(2**63 // 1000), -2208988800000001, -1, 0, 1, 2**63 // 1000]
NANOSECONDS = [value * 1000 for value in MICROSECONDS]
#: extremes of every type that Spark compares
EXTREMES = {
    "i64": pa.array([-(2**63), 2**63 - 1, 0, -1]),
    "i8": pa.array([-128, 127, 0], pa.int8()),
    "u64": pa.array([0, 2**64 - 1, 2**63, 2**63 - 1], pa.uint64()),
    "u32": pa.array([0, 2**32 - 1], pa.uint32()),
    "f64": pa.array([0.0, -0.0, 1e308, 5e-324, float("inf"), float("-inf"), 0.1]),
    "f32": pa.array([0.0, -0.0, 1e-45, float("inf"), float("-inf"), 0.1], pa.float32()),
    "s": pa.array(["", "a", "a\0", "ä", "\ud7ff", "\uffff", "\U0010ffff"]),
    "bin": pa.array([b"", b"\0", b"\x7f", b"\x80", b"\xff"]),
    "b": pa.array([True, False]),
    "d": pa.array(
        [date(1, 1, 1), *(date(1582, 10, day) for day in (4, 5, 14, 15)), date(1970, 1, 1), date.max]
    ),
    "t": pa.array(NANOSECONDS, pa.timestamp("ns")),
    "z": pa.array(NANOSECONDS, pa.timestamp("ns", "Europe/Berlin")),
    "d38": pa.array(["9" * 38, "-" + "9" * 38, "0"]).cast(pa.decimal128(38, 0)),
    "d3810": pa.array([f"12345678901234567890123456{tail}" for tail in ("78.0000000001", "78", "79")]).cast(
        pa.decimal128(38, 10)
    ),
    "d5": pa.array(["999.99", "-999.99", "0"]).cast(pa.decimal128(5, 2)),
    "tm": pa.array([0, 1, 86399999999], pa.time64("us")),
}
FORMS = ("{c} = {a}", "{c} <=> {a}", "{c} <> {a}", "{c} > {a}", "{c} >= {a}", "{c} < {a}", "{c} <= {a}")
FORMS += ("{c} IN ({a}, {b})", "{c} NOT IN ({a}, {b})", "NOT ({c} > {a})")


class FilterAnswer(ds.DataSource):
    """A source that answers with the filters that Spark pushes to it, by the text of an error."""

    @classmethod
    def name(cls):
        return "filter_answer"

    def reader(self, schema):
        return AnsweringReader()


class AnsweringReader(ds.DataSourceReader):
    """Its reader."""

    def pushFilters(self, filters):
        raise ValueError(f"<{base64.b64encode(pickle.dumps(filters)).decode()}>")

    def read(self, partition):
        return iter(())


def ask_filters(df) -> dict[str, list]:
    text, found = io.StringIO(), {}
    with redirect_stdout(text):
        df.explain(True)
    for item in pickle.loads(base64.b64decode(re.search(r"<([A-Za-z0-9+/=]{20,})>", text.getvalue())[1])):
        found.setdefault(getattr(item, "child", item).attribute[0], []).append(item)
    return found


@pytest.mark.slow("many queries of Spark")
def test_extremes_of_every_type_mean_the_same_pushed_and_not_pushed(spark, url):
    n = max(map(len, EXTREMES.values())) + 1
    columns = {c: pa.concat_arrays([v, pa.nulls(n - len(v), v.type)]) for c, v in EXTREMES.items()}
    table = pa.table({"x": range(n), "p": [0] * n, **columns})
    cube = Cube(["x"], ["p"], "cube")
    build_cube(table, cube, url)
    cells = spark.read.format("kartothek_cube").load(url, cube="cube").cache()
    types = {field.name: field.dataType.simpleString() for field in cells.schema}
    rows = cells.selectExpr(
        *(f"hex({c}) {c}" if types[c] in ("binary", "string") else f"string({c}) {c}" for c in EXTREMES)
    ).collect()
    forms = {"binary": "X'{}'", "string": "decode(X'{}', 'UTF-8')"}
    literals = {
        c: [
            forms.get(types[c], "CAST('{}' AS " + types[c] + ")").format(row[c])
            for row in rows
            if row[c] is not None
        ]
        for c in EXTREMES
    }
    spark.dataSource.register(FilterAnswer)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    source = spark.read.format("filter_answer").schema(cells.schema).load()
    draw = random.Random(0)
    n_pushed = 0
    for _ in range(10):
        texts = {
            c: draw.choice(FORMS).format(c=c, a=draw.choice(values), b=draw.choice(values))
            for c, values in literals.items()
        }
        expected = cells.selectExpr("x", *(f"({text}) AS {c}" for c, text in texts.items())).collect()
        for column, filters in ask_filters(source.where(" AND ".join(texts.values()))).items():
            conditions, left = to_conditions(filters, table.schema)
            found = set(query_cube_table(cube, url, conditions, payload_columns=[column])["x"].to_pylist())
            wanted = {row["x"] for row in expected if row[column]}
            assert wanted <= found if left else wanted == found, (texts[column], filters, conditions)
            n_pushed += bool(conditions)
    cells.unpersist()
    assert n_pushed > 10 * len(EXTREMES) / 2
