import datetime
import decimal
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.core import arrow, expressions

DAY = datetime.date(2020, 1, 1)
MIDNIGHT, STAMP = datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, 12)
ZONED = pd.Timestamp(STAMP, tz="UTC")

#: one value of every kind that might meet a column
VALUES = {"int": 1, "int8": np.int8(1), "float": 1.0, "float32": np.float32(1)}
VALUES |= {"Decimal": decimal.Decimal("1.5")}
VALUES |= {"None": None, "NA": pd.NA, "nan": math.nan, "NaT": pd.NaT, "nat64": np.datetime64("NaT", "ns")}
VALUES |= {"bool": True, "bool_": np.bool_(True), "list": [1], "zoned": ZONED, "time": datetime.time(1)}
VALUES |= {"str": "a", "str_": np.str_("a"), "day text": "2020-01-01", "bytes": b"a", "date": DAY}
VALUES |= {"datetime": STAMP, "Timestamp": pd.Timestamp(STAMP), "datetime64": np.datetime64(STAMP)}
STAMPS, NULLS = {"datetime", "Timestamp", "datetime64"}, {"None", "NA"}
TEXTS = {"str", "str_", "day text", "bytes"}
#: semantics of the predicates: what may be compared with what; all else is refused
ACCEPTED = {
    pa.int8(): {"int", "int8", "NA"},
    pa.uint64(): {"int", "int8", "NA"},
    pa.float32(): {"float", "float32", "nan"} | NULLS,
    pa.float64(): {"float", "float32", "nan"} | NULLS,
    pa.bool_(): {"bool", "bool_"} | NULLS,
    pa.string(): TEXTS | NULLS,
    pa.dictionary(pa.int8(), pa.large_string()): TEXTS | NULLS,
    pa.binary(): TEXTS | NULLS,
    pa.date32(): {"date", "day text", "NaT", "nat64"} | NULLS,
    pa.timestamp("us"): STAMPS | {"NaT", "nat64"} | NULLS,
    pa.timestamp("ns", "Europe/Berlin"): {"zoned", "NaT", "nat64"} | NULLS,
    pa.time64("us"): {"time"} | NULLS,
    pa.decimal128(5, 2): {"int", "int8", "Decimal"} | NULLS,
    pa.null(): set(VALUES),
    pa.list_(pa.int64()): NULLS,
}


@pytest.mark.parametrize("dtype", ACCEPTED, ids=str)
@pytest.mark.parametrize("kind", VALUES)
def test_bind_value_is_strict(dtype, kind):
    value = VALUES[kind]
    if kind in ACCEPTED[dtype]:
        scalar = expressions.bind_value(dtype, value, "x", "==")
        null = kind in NULLS | {"nan", "NaT", "nat64"}
        assert scalar is None if null else scalar.is_valid
        return
    # a text that is no date is the one mistake of value, not of type
    error = ValueError if dtype == pa.date32() and kind in TEXTS else TypeError
    with pytest.raises(error) as raised:
        expressions.bind_value(dtype, value, "x", "==")
    message = str(raised.value)
    assert "'x'" in message
    assert error is ValueError or (str(dtype) in message and type(value).__name__ in message)


@pytest.mark.parametrize(
    "dtype, value, expected",
    [
        (pa.int8(), np.int8(3), pa.scalar(3, pa.int64())),
        (pa.int8(), 1000, pa.scalar(1000, pa.int64())),
        (pa.uint8(), 2**64 - 1, pa.scalar(2**64 - 1, pa.uint64())),
        (pa.float32(), 0.1, pa.scalar(0.1)),
        (pa.string(), b"\xc3\xbc", pa.scalar("ü")),
        (pa.binary(), "ü", pa.scalar(b"\xc3\xbc")),
        (pa.date32(), b"2020-01-01", pa.scalar(DAY)),
        (pa.timestamp("us"), np.datetime64("2020-01-01T12"), pa.scalar(STAMP, pa.timestamp("us"))),
        (pa.timestamp("us"), datetime.datetime.max, pa.scalar(datetime.datetime.max, pa.timestamp("us"))),
        (pa.timestamp("s", "Europe/Berlin"), ZONED, pa.scalar(ZONED, pa.timestamp("ns", "Europe/Berlin"))),
    ],
)
def test_bind_value_gives_the_widened_type(dtype, value, expected):
    result = expressions.bind_value(dtype, value, "x", "==")
    assert result.type == arrow.widen(dtype)
    assert result.equals(expected)


@pytest.mark.parametrize(
    "dtype, value, expected",
    [
        (pa.uint64(), -1, decimal.Decimal(-1)),
        (pa.int64(), 2**63, decimal.Decimal(2**63)),
        (pa.int64(), -(10**50), decimal.Decimal(-(2**64))),
        (pa.timestamp("ns"), datetime.datetime.max, datetime.datetime.max),
    ],
)
def test_bind_value_beyond_the_type(dtype, value, expected):
    result = expressions.bind_value(dtype, value, "x", "<")
    assert result.type != dtype
    assert result.as_py() == expected


@pytest.mark.parametrize(
    "dtype, values, expected, has_null",
    [
        (pa.int8(), [1, 300, None], [1, 300], True),
        (pa.int8(), np.array([1, 2], "uint8"), [1, 2], False),
        (pa.uint64(), [1, -1, 2**64], [1], False),
        (pa.int64(), {3}, [3], False),
        (pa.float64(), [1.0, math.nan], [1.0], True),
        (pa.string(), ("a", b"b"), ["a", "b"], False),
        (pa.bool_(), [np.bool_(True), False], [True, False], False),
        (pa.date32(), ["2020-01-01", DAY, pd.NaT], [DAY, DAY], True),
        (pa.timestamp("ns"), [STAMP, datetime.datetime.max], [STAMP], False),
        (pa.decimal128(5, 2), [1, decimal.Decimal("0.005")], [decimal.Decimal("1.00")], False),
        (pa.null(), [1, "a", None], [], True),
    ],
)
def test_bind_values(dtype, values, expected, has_null):
    bound = expressions.bind_values(dtype, values, "x", "in")
    array, null = bound.drop_null(), bound.null_count > 0
    assert array.type == arrow.widen(dtype)
    assert array.to_pylist() == expected
    assert null is has_null


@pytest.mark.parametrize("op", ["in", "not in"])
@pytest.mark.parametrize("values", [[3, 1000, 3, None], [7], [None], []])
@pytest.mark.parametrize("dtype", [pa.int8(), pa.int64(), pa.timestamp("us"), pa.string()], ids=str)
def test_arrow_arrays_are_bound_like_lists(dtype, values, op):
    array = pa.array(values, pa.int64()).cast(arrow.widen(dtype))
    bound = expressions.bind_literal(dtype, op, array, "x")
    expected = expressions.bind_literal(dtype, op, array.to_pylist(), "x")
    assert (bound.kind, bound.op, bound.or_null) == (expected.kind, expected.op, expected.or_null)
    assert bound.operand == expected.operand


@pytest.mark.parametrize(
    "dtype, values",
    [
        (pa.int64(), [1, 1.0]),
        (pa.int64(), [1, True]),
        (pa.float64(), [1.0, 1]),
        (pa.string(), ["a", 1]),
        (pa.timestamp("ns"), [STAMP, DAY]),
        (pa.date32(), [DAY, STAMP]),
    ],
)
def test_bind_values_is_strict(dtype, values):
    with pytest.raises(TypeError, match="'x'"):
        expressions.bind_values(dtype, values, "x", "in")


@pytest.mark.parametrize(
    "dtype, value, remedy",
    [
        (pa.timestamp("ns"), "2020-01-01", "pandas.Timestamp('2020-01-01')"),
        (pa.timestamp("ns", "CET"), DAY, "pandas.Timestamp('2020-01-01', tz='CET')"),
        (pa.timestamp("ns"), pd.Timestamp("2020-01-01", tz="CET"), "pandas.Timestamp('2019-12-31 23:00:00')"),
        (pa.timestamp("us"), DAY, "pandas.Timestamp('2020-01-01')"),
        (pa.timestamp("ns", "UTC"), MIDNIGHT, "pandas.Timestamp('2020-01-01 00:00:00', tz='UTC')"),
        (pa.timestamp("ns"), pd.Timestamp("2020-01-01", tz="UTC"), "pandas.Timestamp('2020-01-01 00:00:00')"),
        (pa.date32(), datetime.datetime(2020, 1, 1, 5), "datetime.date(2020, 1, 1)"),
        (pa.string(), 49, "'49'"),
        (pa.int8(), 3.0, "3"),
        (pa.float32(), 3, "3.0"),
    ],
    ids=str,
)
def test_a_value_of_another_kind_is_named_with_its_remedy(dtype, value, remedy):
    with pytest.raises(TypeError, match="cannot be compared") as caught:
        expressions.bind_value(dtype, value, "x", "==")
    assert str(caught.value).endswith(f"Write {remedy}.")
    written = eval(remedy, {"pandas": pd, "datetime": datetime})  # noqa: S307 (one of the remedies above)
    assert expressions.bind_value(dtype, written, "x", "==") is not None


@pytest.mark.parametrize("value", [10**400, b"a", True])
def test_a_value_of_another_kind_without_remedy(value):
    with pytest.raises(TypeError, match=r"cannot be compared \(==\) with .*\)\.$"):
        expressions.bind_value(pa.float64(), value, "x", "==")


def test_a_date_that_does_not_begin_with_the_year_is_not_a_remedy():
    with pytest.raises(TypeError, match=r"Write the year first, as in pandas.Timestamp\('2020-01-31'\)\.$"):
        expressions.bind_value(pa.timestamp("ns"), "01.02.2024", "x", "==")
