"""Columns of every type, written and read by Spark and by the eager façade, in a session far from UTC."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from storefact import get_store_from_url

from kartothek_cube.core.cube.conditions import C
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.io.arrow import read_dataset_as_arrow
from kartothek_cube.io.arrow_cube import query_cube_arrow
from kartothek_cube.io.eager_cube import build_cube, query_cube
from kartothek_cube.io.spark import create_frame
from kartothek_cube.io.spark.cube import build_cube_from_spark, query_cube_spark
from kartothek_cube.io.spark.dataset import read_dataset_as_spark, store_dataset_from_spark
from tests.support.cubes import header

pytestmark = pytest.mark.slow("runs many Spark jobs")

CUBE = Cube(["x"], ["p"], "cube")
#: the hour of this time occurs twice in Berlin, not at all on another day, and is yesterday in Tokyo
NIGHT = datetime(2020, 10, 25, 2, 30)

#: Spark's type, values
COLUMNS = {
    "byte": ("tinyint", [-128, 127]),
    "short": ("smallint", [-(2**15), 2**15 - 1]),
    "int_": ("int", [-(2**31), 2**31 - 1]),
    "long": ("bigint", [-(2**63), 2**63 - 1]),
    "float": ("float", [0.5, float("inf")]),
    "double": ("double", [1e300, -0.0]),
    "text": ("string", ["", "ä\U0001f600"]),
    "bool": ("boolean", [True, False]),
    "bytes": ("binary", [b"", b"\x00\xff"]),
    "date": ("date", [date(1900, 1, 1), date(2262, 4, 11)]),
    "naive": ("timestamp_ntz", [NIGHT, datetime(1969, 12, 31, 23, 59, 59, 999999)]),
    "far": ("timestamp_ntz", [datetime.min, datetime.max]),
    "zoned": ("timestamp", [NIGHT.replace(tzinfo=UTC), datetime(1969, 12, 31, 23, 59, tzinfo=UTC)]),
    "dec": ("decimal(10,2)", [Decimal("1.50"), Decimal("-99999999.99")]),
    "wide": ("decimal(38,10)", [Decimal("1.0000000001"), Decimal("-1e20")]),
    "list": ("array<bigint>", [[1, None], []]),
    "lists": ("array<array<string>>", [[["a"], [], None], [[None]]]),
    "struct": ("struct<a:bigint,b:string>", [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
    "map": ("map<string,bigint>", [[("a", 1)], []]),
    "times": ("array<timestamp_ntz>", [[NIGHT, None], []]),
    "instants": ("array<timestamp>", [[NIGHT.replace(tzinfo=UTC)], None]),
    "deep": (
        "struct<d:decimal(5,2),l:array<struct<t:date,b:binary>>>",
        [{"d": Decimal("1.50"), "l": [{"t": date(1960, 2, 29), "b": b"\x00"}, None]}, {"d": None, "l": []}],
    ),
    "maps": ("map<bigint,array<decimal(20,0)>>", [[(2**62, [Decimal(10**19), None])], []]),
}
MAPS = ("map", "maps")
#: types that no dataset can hold
REFUSED = {
    "INTERVAL 3 DAY": "cast it to a number, for example cast('bigint')",
    "INTERVAL 2 YEAR": "cast it to a number, for example cast('int')",
    "array(INTERVAL 3 DAY)": "cast it to a number, for example cast('bigint')",
    "parse_json('[1]')": "cast it to 'string', or to a struct",
    "named_struct('a', map('b', parse_json('[1]')))": "cast it to 'string', or to a struct",
}
SCHEMA = ", ".join(["x bigint", "p bigint", *(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())])


@pytest.fixture
def frame(spark):
    columns = [[*values, None] for _, values in COLUMNS.values()]
    rows = [
        tuple(dict(v) if name in MAPS and v is not None else v for name, v in zip(COLUMNS, row, strict=True))
        for row in zip(*columns, strict=True)
    ]
    return spark.createDataFrame([(i, i % 2, *row) for i, row in enumerate(rows)], SCHEMA)


def values(table: pa.Table) -> dict[str, list]:
    return {name: table.sort_by("x")[name].to_pylist() for name in COLUMNS}


EXPECTED = {name: [*values, None] for name, (_, values) in COLUMNS.items()}


def save(frame, url):
    options = {"store": url, "cube": "cube", "dimension_columns": "x", "partition_columns": "p"}
    frame.write.format("kartothek_cube").options(**options).save()


WRITES = {"function": lambda frame, url: build_cube_from_spark(frame, CUBE, url), "data source": save}


@pytest.mark.parametrize("write", WRITES)
def test_columns_survive_in_cubes(spark, frame, url, write):
    WRITES[write](frame, url)
    (table,) = query_cube(CUBE, url, payload_columns=list(COLUMNS))
    for name in COLUMNS.keys() - INEXACT:
        assert plain(list(table[name])) == plain(EXPECTED[name]), name
    assert values(query_cube_arrow(CUBE, url)[0]) == EXPECTED
    result = query_cube_spark(CUBE, url).orderBy("x")
    source = spark.read.format("kartothek_cube").load(url, cube="cube").orderBy("x")
    for df in (result, source):
        assert dict(df.dtypes) == dict(frame.dtypes)
        assert df.select(frame.columns).collect() == frame.orderBy("x").collect()


#: pandas has floats for integers and booleans with nulls
INEXACT = {"long"}


def plain(value):
    """A value of pandas or Python in one form: times without zone, in UTC; dates as midnight."""
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if pd.isna(value):
        return None
    if isinstance(value, date | np.datetime64):
        stamp = pd.Timestamp(value)
        return stamp.to_pydatetime() if stamp.tz is None else stamp.tz_convert(None).to_pydatetime()
    return value


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("value", REFUSED)
def test_types_that_cannot_be_stored_are_refused_in_a_sentence(spark, url, write, value):
    frame = spark.sql(f"SELECT 1L AS x, 0L AS p, {value} AS v")
    with pytest.raises((TypeError, PySparkException)) as caught:
        WRITES[write](frame, url)
    text = str(caught.value)
    assert "Column 'v' of dataset 'seed' has type" in text and REFUSED[value] in text
    assert "Traceback" not in text and not list(Path(url.removeprefix("hfs://")).iterdir())


def test_columns_survive_in_datasets(frame, url):
    store_dataset_from_spark(frame, url, "uuid", partition_on="p")
    assert values(pa.concat_tables(read_dataset_as_arrow("uuid", url))) == EXPECTED
    df = read_dataset_as_spark("uuid", url).orderBy("x")
    assert dict(df.dtypes) == dict(frame.dtypes)
    assert df.select(frame.columns).collect() == frame.orderBy("x").collect()


KEYS = {
    "text": ["a b", "ä/ö", "=%"],
    "int": [-1, 0, 2**62],
    "bool": [True, False, True],
    "date": [date(2020, 2, 29), date(1969, 12, 31), date(2020, 3, 1)],
    "naive": [NIGHT, datetime(2020, 3, 29, 2, 30), datetime(1969, 12, 31, 23, 59, 59, 999999)],
    "double": [0.1, -1e10, 5.0],
}


@pytest.mark.parametrize("kind", ["text", "int", "bool", "date", "naive", "double"])
def test_keys_are_those_of_the_eager_facade(spark, url, tmp_path, kind):
    """As partition column, as dimension and as index: the same labels, the same index, the same answers."""
    cube = Cube(["x", "d"], ["k"], "cube", index_columns=["i"])
    key = pa.array(KEYS[kind])
    data = pa.table({"x": [0, 1, 2], "d": key, "k": key, "i": key, "v1": [1, 2, 3]})
    other = f"hfs://{tmp_path / 'other'}?create_if_missing=true"
    build_cube(data, cube, other)
    build_cube_from_spark(create_frame(data), cube, url)
    assert labels(url) == labels(other)
    for condition in (None, C("k") == KEYS[kind][0], C("i") == KEYS[kind][1], C("d") >= KEYS[kind][2]):
        arguments = {"conditions": condition, "partition_by": "i"}
        assert query_cube_arrow(cube, url, **arguments) == query_cube_arrow(cube, other, **arguments)
    df = spark.read.format("kartothek_cube").load(url, cube="cube")
    wanted = create_frame(pa.table({"k": key.slice(0, 1)}))
    found = sorted(df.join(wanted, "k").select("x", "k", "d", "i").collect())
    assert [row["x"] for row in found] == [i for i, k in enumerate(KEYS[kind]) if k == KEYS[kind][0]]
    assert {value for row in found for value in row[1:]} == {KEYS[kind][0]}


def labels(url: str) -> list[str]:
    parts = header(lambda: get_store_from_url(url), "cube++seed")["partitions"]
    return sorted(label.partition("/")[0] for label in parts)


@pytest.mark.slow("many queries of Spark")
def test_zoned_times_are_instants_whatever_the_session_says(spark, url):
    """Only what Spark itself prints depends on the time zone of the session."""
    berlin = ZoneInfo("Europe/Berlin")
    instants = [NIGHT.replace(tzinfo=berlin, fold=fold) for fold in (0, 1)]
    cube = Cube(["x", "z"], ["p"], "cube", index_columns=["i"])
    data = {"x": [0, 1], "z": instants, "p": [0, 0], "i": instants}
    build_cube(pa.table(data), cube, url)
    for zone in ("Asia/Tokyo", "America/New_York", "Europe/Berlin", "UTC"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        source = spark.read.format("kartothek_cube").load(url, cube="cube")
        for df in (query_cube_spark(cube, url), source):
            rows = df.orderBy("z").selectExpr("x", "unix_micros(z) z", "unix_micros(i) i").collect()
            assert [tuple(row) for row in rows] == [
                (x, int(t.timestamp() * 1e6), int(t.timestamp() * 1e6)) for x, t in enumerate(instants)
            ]
        for x, t in enumerate(instants):
            literal = t.astimezone(UTC).strftime("timestamp'%Y-%m-%d %H:%M:%S+00:00'")
            assert [row["x"] for row in source.where(f"z = {literal} and i = {literal}").collect()] == [x]
            assert [row["x"] for row in query_cube_spark(cube, url, C("z") == t).collect()] == [x]


def test_zoned_times_of_sessions_fit_each_other(spark, url):
    """What sessions of several time zones write to one cube are instants, and cells among them the same."""
    cube = Cube(["z"], ["p"], "cube")
    frame = spark.sql("SELECT timestamp'2020-10-25 00:30:00+00:00' z, 0 p, 1 v1")
    build_cube_from_spark(frame, cube, url)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    new = spark.sql("SELECT timestamp'2020-10-24 20:30:00' z, 0 p, 2 v1")
    new.write.format("kartothek_cube").mode("append").save(url, cube="cube")
    (table,) = query_cube_arrow(cube, url)
    assert table.select(["z", "v1"]).to_pylist() == [
        {"z": datetime(2020, 10, 25, 0, 30, tzinfo=UTC), "v1": 2}
    ]
