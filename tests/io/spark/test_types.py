"""Types of Arrow and Spark, both ways."""

from datetime import date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import types as st

from kartothek_cube.api import cube as api
from kartothek_cube.core.errors import SchemaConflictError
from kartothek_cube.io.spark import _conversion, create_frame
from kartothek_cube.io.spark.datasource import KartothekCubeDataSource

TOKYO = pa.timestamp("us", "Asia/Tokyo")
#: Arrow type, values, Spark type, values there
CASES = [
    (pa.int8(), [1, None], "tinyint", None),
    (pa.int16(), [1, None], "smallint", None),
    (pa.int32(), [1, None], "int", None),
    (pa.int64(), [2**62, None], "bigint", None),
    (pa.uint8(), [255, None], "smallint", None),
    (pa.uint16(), [2**16 - 1, None], "int", None),
    (pa.uint32(), [2**32 - 1, None], "bigint", None),
    (pa.uint64(), [2**64 - 1, None], "decimal(20,0)", [Decimal(2**64 - 1), None]),
    (pa.float32(), [0.5, None], "float", None),
    (pa.float64(), [float("nan"), 0.5], "double", [None, 0.5]),
    (pa.bool_(), [True, None], "boolean", None),
    (pa.string(), ["ä", None], "string", None),
    (pa.large_string(), ["ä", None], "string", None),
    (pa.string_view(), ["ä", None], "string", None),
    (pa.dictionary(pa.int8(), pa.string()), ["ä", None], "string", None),
    (pa.null(), [None, None], "void", None),
    (pa.binary(), [b"a", None], "binary", None),
    (pa.binary(1), [b"a", None], "binary", None),
    (pa.date32(), [date(1960, 2, 29), None], "date", None),
    (pa.time64("us"), [time(1, 2, 3), None], "time(6)", None),
    (pa.decimal128(5, 2), [Decimal("1.50"), None], "decimal(5,2)", None),
    (pa.timestamp("ns"), [datetime(1969, 12, 31, 23), None], "timestamp_ntz", None),
    (pa.timestamp("s"), [datetime(2020, 3, 29, 2, 30), None], "timestamp_ntz", None),
    (pa.list_(pa.string()), [["a", None], [], None], "array<string>", None),
    (pa.list_(pa.uint8()), [[1], None], "array<smallint>", None),
    (
        pa.struct({"a": pa.int64(), "b": pa.string()}),
        [{"a": 1, "b": None}, None],
        "struct<a:bigint,b:string>",
        None,
    ),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None], "map<string,bigint>", [{"a": 1}, None]),
]


def test_values_arrive_in_spark(spark):
    names = [f"c{i}" for i in range(len(CASES))]
    arrays = [pa.array([*values, None][:3], dtype) for dtype, values, _, _ in CASES]
    df = create_frame(pa.table(arrays, names), spark)
    assert [kind for _, kind in df.dtypes] == [kind for _, _, kind, _ in CASES]
    got = {name: [row[name] for row in df.collect()] for name in names}
    for name, (_, values, _, other) in zip(names, CASES, strict=True):
        seen = [
            v.asDict() if isinstance(v, st.Row) else bytes(v) if isinstance(v, bytearray) else v
            for v in got[name]
        ]
        assert seen == ((other or values) + [None])[:3], name


@pytest.mark.parametrize("dtype", [pa.duration("s"), pa.decimal256(50, 2), pa.month_day_nano_interval()])
def test_types_that_spark_does_not_have_are_named(dtype):
    with pytest.raises(TypeError, match="Column 'c' of type"):
        _conversion.spark_schema(pa.schema([("c", dtype)]))


def test_instants_are_rounded_down(spark):
    stamps = pa.array([1, -1, 1999, -1001, None], pa.timestamp("ns"))
    schema = pa.schema([("c", pa.timestamp("us"))])
    result = _conversion.to_spark(pa.table({"c": stamps}), schema)["c"].cast(pa.int64()).to_pylist()
    assert result == [0, -1, 1, -2, None]


@pytest.mark.parametrize(
    "source, stored, result",
    [
        (TOKYO, None, pa.timestamp("us", "UTC")),
        (TOKYO, pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "Europe/Berlin")),
        (TOKYO, pa.timestamp("ns"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.timestamp("us")),
        (pa.int64(), pa.uint64(), pa.uint64()),
        (pa.decimal128(20, 0), pa.uint64(), pa.uint64()),
        (pa.decimal128(20, 1), pa.uint64(), pa.decimal128(20, 1)),
        (pa.int32(), pa.int64(), pa.int32()),
        (pa.timestamp("us"), pa.date32(), pa.date32()),
        (TOKYO, pa.date32(), pa.timestamp("us", "UTC")),
        (pa.decimal128(38, 18), pa.decimal128(10, 2), pa.decimal128(10, 2)),
        (pa.float64(), pa.decimal128(10, 2), pa.float64()),
        (pa.float64(), pa.uint64(), pa.float64()),
    ],
)
def test_rows_take_the_types_that_are_stored(source, stored, result):
    types = {} if stored is None else {"c": stored}
    empty = pa.schema([("c", source)]).empty_table()
    assert _conversion.to_storage_types(empty, types).schema.types == [result]


@pytest.mark.parametrize(
    "values, stored, problem",
    [
        ([datetime(2020, 1, 1), None], pa.date32(), None),
        ([datetime(2020, 1, 1), datetime(2020, 1, 1, 5)], pa.date32(), "times of day; convert it by to_date"),
        ([Decimal("1.120000"), None], pa.decimal128(5, 2), None),
        ([Decimal("1.123")], pa.decimal128(5, 2), "would cause data loss"),
        ([Decimal("1234.5")], pa.decimal128(5, 2), "does not fit in precision 5"),
    ],
)
def test_values_do_not_change(values, stored, problem):
    table = pa.table({"c": values})
    if problem is None:
        converted = _conversion.to_storage_types(table, {"c": stored})["c"]
        assert converted.combine_chunks() == pa.array(values, stored)
        return
    with pytest.raises(ValueError, match=f"Column 'c' of type .* does not fit the stored .*{problem}"):
        _conversion.to_storage_types(table, {"c": stored})


@pytest.mark.parametrize(
    "stored, given, remedy",
    [
        ("double", "CAST(NULL AS string)", 'F.col("v").cast("double")'),
        ("double", "9007199254740993L", 'F.col("v").cast("double"), which rounds integers beyond 2**53'),
        (
            "bigint",
            "CAST(NULL AS double)",
            'widen payload with update_schema, or F.col("v").cast("bigint") if all are whole numbers',
        ),
        (
            "timestamp_ntz",
            "CAST(NULL AS timestamp)",
            'F.col("v").cast("timestamp_ntz"), in the time zone of the session',
        ),
    ],
)
def test_messages_about_types_advise_in_functions_of_spark(spark, url, stored, given, remedy):
    types = {"double": pa.float64(), "bigint": pa.int64(), "timestamp_ntz": pa.timestamp("us")}
    cube = api.Cube(["x"], ["p"], "cube")
    table = pa.table({"x": [1], "p": [1], "v": pa.nulls(1, types[stored])})
    api.build_cube(table, cube, url)
    df = spark.sql(f"SELECT 2L AS x, 1L AS p, {given} AS v")
    source = df.write.format("kartothek_cube").options(store=url, cube="cube").mode("append")
    for write in (
        lambda: api.append_to_cube_from_spark(df, cube, url),
        lambda: api.merge_into_cube_from_spark(df, cube, url),
        source.save,
    ):
        with pytest.raises((SchemaConflictError, AnalysisException)) as caught:
            write()
        assert remedy in str(caught.value) and "df[" not in str(caught.value)
    assert api.query_cube_table(cube, url)["x"].to_pylist() == [1]


def test_messages_of_a_commit_after_the_schema_has_changed_advise_in_functions_of_spark(url):
    rows = pa.table({"x": [1], "p": [1], "v": [3]})
    api.build_cube(rows, api.Cube(["x"], ["p"], "cube"), url)
    source = KartothekCubeDataSource({"store": url, "cube": "cube"})
    writer = source.writer(_conversion.spark_schema(rows.schema), overwrite=False)
    message = writer.write(iter(rows.to_batches()))
    api.update_schema("cube", url, widen={"v": "float64"})
    with pytest.raises(SchemaConflictError, match=r'F\.col\("v"\)\.cast\("double"\), which rounds integers'):
        writer.commit([message])
