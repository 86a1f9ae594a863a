import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.core import arrow

DAY = datetime.date(2020, 1, 1)
STAMP = datetime.datetime(2020, 1, 1, 12)


@pytest.mark.parametrize(
    "dtype, value, expected",
    [
        (pa.string(), b"a", "a"),
        (pa.large_string(), 1, "1"),
        (pa.binary(), "ü", b"\xc3\xbc"),
        (pa.binary(), b"\xff", b"\xff"),
        (pa.int8(), "1", 1),
        (pa.int64(), b"1", 1),
        (pa.int64(), 1.0, 1),
        (pa.uint64(), 2**64 - 1, 2**64 - 1),
        (pa.float32(), "1.5", 1.5),
        (pa.bool_(), "TRUE", True),
        (pa.bool_(), b"false", False),
        (pa.bool_(), 1, True),
        *((pa.date32(), day, DAY) for day in ("2020-01-01", DAY, pd.Timestamp(DAY))),
        (pa.timestamp("us"), "2020-01-01 12:00", np.datetime64(STAMP, "ns")),
        (pa.timestamp("ns"), STAMP, np.datetime64(STAMP, "ns")),
        (pa.timestamp("ns", "Europe/Berlin"), "2020-01-01 01:00+01:00", np.datetime64("2020-01-01", "ns")),
        (pa.decimal128(5, 2), "1.5", decimal.Decimal("1.50")),
    ],
)
def test_normalize_value(dtype, value, expected):
    result = arrow.normalize_value(dtype, value)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    "dtype, value, error, message",
    [
        (None, 1, ValueError, "type is not known"),
        (pa.int64(), "x", ValueError, "'x' .*int64"),
        (pa.int64(), 1.5, TypeError, "1.5 .*int64"),
        (pa.uint64(), -1, TypeError, "-1 .*uint64"),
        (pa.bool_(), "yes", ValueError, "'yes' .*bool"),
        (pa.date32(), "x", ValueError, "'x'"),
        (pa.date32(), STAMP, TypeError, "date32"),
        (pa.date32(), None, TypeError, "None"),
        (pa.timestamp("ns"), "x", ValueError, "'x'"),
        (pa.timestamp("ns"), "01/02/2024", ValueError, "'01/02/2024' .*the year first"),
        (pa.date32(), b"01.02.2024", ValueError, "01.02.2024' .*the year first"),
        (pa.timestamp("ns"), datetime.datetime(9999, 1, 1), ValueError, "9999"),
        (pa.decimal128(5, 2), "1.234", ValueError, "1.234"),
        (pa.list_(pa.int64()), [1], NotImplementedError, "list"),
        (pa.null(), None, NotImplementedError, "null"),
    ],
)
def test_normalize_value_refuses(dtype, value, error, message):
    with pytest.raises(error, match=message):
        arrow.normalize_value(dtype, value)


FAR = arrow.with_far_times(pa.timestamp("ns", "UTC"))


@pytest.mark.parametrize(
    "dtype, texts, expected",
    [
        (pa.bool_(), ["True", "False"], [True, False]),
        (pa.int8(), ["-1", "007"], [-1, 7]),
        (pa.uint64(), ["0", str(2**64 - 1)], [0, 2**64 - 1]),
        (pa.float32(), ["1e-05", "inf", "-inf", "1e+300"], [1e-5, np.inf, -np.inf, 1e300]),
        (pa.float32(), ["0.10000000149011612"], [float(np.float32(0.1))]),
        (pa.string(), ["", "a b", "ü"], ["", "a b", "ü"]),
        (pa.binary(), ["b'x'", "ü"], [b"b'x'", "ü".encode()]),
        (pa.binary(), [b"\xff\0"], [b"\xff\0"]),
        (pa.date32(), ["0001-01-01", "9999-12-31"], [datetime.date.min, datetime.date.max]),
        (pa.decimal128(5, 2), ["1.5"], [decimal.Decimal("1.50")]),
        # local mean time of Berlin, in a year that nanoseconds do not reach
        (FAR, ["1500-01-01 00:53:28+00:53:28"], [datetime.datetime(1500, 1, 1, tzinfo=datetime.UTC)]),
    ],
)
def test_parse_texts(dtype, texts, expected):
    result = arrow.parse_texts(pa.array(texts), dtype)
    assert result.type == arrow.widen(dtype)
    assert result.to_pylist() == expected


@pytest.mark.parametrize(
    "dtype, good, bad",
    [
        (pa.bool_(), "True", "1"),
        (pa.int64(), "1", "0x10"),
        (pa.int64(), "1", "1.0"),
        (pa.int64(), "1", str(2**63)),
        (pa.uint64(), "1", "-1"),
        (pa.float64(), "1.0", "x"),
        (pa.date32(), "2020-01-01", "2020-01-01 00:00:00"),
        (pa.timestamp("ns"), "2020-01-01 00:00:00", "2020-01-01 00:00:00+01:00"),
        (pa.timestamp("ns", "UTC"), "2020-01-01 00:00:00+00:00", "2020-01-01 00:00:00"),
        (pa.timestamp("ns"), "2020-01-01 00:00:00", "9999-01-01 00:00:00"),
    ],
)
def test_parse_texts_names_the_bad_one(dtype, good, bad):
    with pytest.raises(ValueError) as error:
        arrow.parse_texts(pa.array([good] * 3 + [bad] + [good] * 2), dtype)
    assert repr(bad) in str(error.value)
    assert str(arrow.widen(dtype)) in str(error.value)


@pytest.mark.parametrize("dtype", [pa.list_(pa.int64()), pa.null()])
def test_parse_texts_refuses_types_without_texts(dtype):
    with pytest.raises(ValueError, match=str(dtype).replace("[", r"\[")):
        arrow.parse_texts(pa.array(["1"]), dtype)


@pytest.mark.parametrize(
    "values, dtype",
    [
        (pa.array([1, None], pa.int64()), pa.int8()),
        (pa.array([1, 2], pa.int64()), pa.uint64()),
        (pa.array([1, 2], pa.int64()), pa.float64()),
        (pa.array([1.0, float("nan")]), pa.float32()),
        (pa.array([0, 10**9], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("ns")),
        (pa.array([0], pa.timestamp("us")), pa.date32()),
        (pa.array([0], pa.timestamp("us", "UTC")), pa.timestamp("ns", "Europe/Berlin")),
        (pa.array([DAY]), pa.timestamp("ns")),
        (pa.array(["a"]), pa.large_string()),
        (pa.array(["a", None]).dictionary_encode(), pa.string()),
        (pa.nulls(2), pa.string()),
        (pa.array([[1]], pa.list_(pa.int8())), pa.list_(pa.int64())),
        (pa.array([1, 2]).cast(pa.decimal128(20, 0)), pa.decimal128(5, 2)),
    ],
)
def test_cast_column(values, dtype):
    result = arrow.cast_column(values, dtype, "x")
    assert result.type == dtype
    expected = values.to_pylist()
    back = result if pa.types.is_null(values.type) else result.cast(values.type)
    assert repr(back.to_pylist()) == repr(expected)  # repr: NaN is like NaN
    chunked = arrow.cast_column(pa.chunked_array([values, values[:0]]), dtype, "x")
    assert repr(chunked.to_pylist()) == repr(result.to_pylist())


def test_cast_column_returns_what_fits_as_it_is():
    values = pa.array([1])
    assert arrow.cast_column(values, pa.int64(), "x") is values


@pytest.mark.parametrize(
    "values, dtype, message",
    [
        (pa.array([1, 2, 300, 400]), pa.int8(), r"'x': 300 \(type int\) .*int8"),
        (pa.array([1, -1]), pa.uint64(), "-1"),
        (pa.array([2**53 + 1]), pa.float64(), str(2**53 + 1)),
        (pa.array([0.5, 0.1]), pa.float32(), r"0\.1 "),
        (pa.array([1.5]), pa.int64(), r"1\.5"),
        (pa.array([0, 1], pa.timestamp("ns")), pa.timestamp("us"), "00001'"),
        (pa.array([datetime.date.max]), pa.timestamp("ns"), "9999"),
        (pa.array([b"a", b"\xff"]), pa.string(), "binary"),
        (pa.array(["1"]), pa.int64(), "'x': values of type string"),
        (pa.array([True]), pa.int64(), "bool"),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC"), "UTC"),
        (pa.array([[1]]), pa.list_(pa.string()), "list"),
        (pa.array([["1"]]), pa.string(), "list"),
    ],
)
def test_cast_column_names_column_and_value(values, dtype, message):
    with pytest.raises(TypeError, match=message):
        arrow.cast_column(values, dtype, "x")
    with pytest.raises(TypeError, match=message):
        arrow.cast_column(pa.chunked_array([values]), dtype, "x")
