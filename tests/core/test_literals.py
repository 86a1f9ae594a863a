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
MISSING = NULLS | {"nan", "NaT", "nat64"}
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
def test_what_is_bound_is_strict(dtype, kind):
    """Also within a list of values that fit."""
    value = VALUES[kind]
    fitting = [VALUES[name] for name in sorted(ACCEPTED[dtype] - MISSING)]
    if kind in ACCEPTED[dtype]:
        scalar = expressions.bind_value(dtype, value, "x", "==")
        bound = expressions.bind_values(dtype, [*fitting, value], "x", "in")
        assert bound.type == arrow.widen(dtype)
        assert scalar is None if kind in MISSING else scalar.is_valid
        assert pa.types.is_null(dtype) or bound[-1].is_valid == (kind not in MISSING)
        return
    # a text that is no date is the one mistake of value, not of type
    error = ValueError if dtype == pa.date32() and kind in TEXTS else TypeError
    ways = [lambda: expressions.bind_value(dtype, value, "x", "==")]
    if kind != "None":
        ways.append(lambda: expressions.bind_values(dtype, [*fitting, value], "x", "in"))
    for bind in ways:
        with pytest.raises(error) as raised:
            bind()
        message = str(raised.value)
        assert "'x'" in message
        assert error is ValueError or (str(dtype) in message and type(value).__name__ in message)


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
    "dtype, value, remedy",
    [
        (pa.timestamp("ns"), "2020-01-01", "pandas.Timestamp('2020-01-01')"),
        (pa.timestamp("ns", "CET"), DAY, "pandas.Timestamp('2020-01-01', tz='CET')"),
        (pa.timestamp("ns"), pd.Timestamp("2020-01-01", tz="CET"), "pandas.Timestamp('2019-12-31 23:00:00')"),
        (pa.timestamp("us"), DAY, "pandas.Timestamp('2020-01-01')"),
        (pa.timestamp("ns", "UTC"), MIDNIGHT, "pandas.Timestamp('2020-01-01 00:00:00', tz='UTC')"),
        (pa.timestamp("ns"), pd.Timestamp("2020-01-01", tz="UTC"), "pandas.Timestamp('2020-01-01 00:00:00')"),
        (pa.date32(), datetime.datetime(2020, 1, 1, 5), "datetime.date(2020, 1, 1)"),
        (pa.date32(), np.datetime64("2020-01-01"), "datetime.date(2020, 1, 1)"),
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


@pytest.mark.parametrize(
    "dtype, value, remedy",
    [
        *((pa.float64(), value, "Write a float.") for value in (10**400, b"a", True)),
        (pa.int64(), 300.5, "Write an int."),
        (pa.int64(), float("nan"), "Use pandas.NA to look for missing values."),
        (pa.bool_(), 1, "Write True or False."),
        (pa.binary(), 1, "Write bytes."),
        (pa.date32(), 1, "Write a datetime.date."),
        (pa.time64("us"), datetime.time(1, tzinfo=datetime.UTC), "Write a datetime.time without time zone."),
        (pa.decimal128(5, 2), float("inf"), "Write a finite decimal.Decimal."),
        (pa.timestamp("us"), "2024-02-30", "Write a pandas.Timestamp of an existing time."),
        (pa.timestamp("us"), datetime.time(1, tzinfo=datetime.UTC), "of an existing time."),
        (pa.timestamp("ns"), "01.02.2024", "Write the year first, as in pandas.Timestamp('2020-01-31')."),
    ],
    ids=str,
)
def test_a_value_of_another_kind_that_the_column_cannot_have(dtype, value, remedy):
    with pytest.raises(TypeError, match=r"cannot be compared \(==\) with .*\)\. ") as caught:
        expressions.bind_value(dtype, value, "x", "==")
    assert str(caught.value).endswith(remedy)


@pytest.mark.parametrize("value", [10**77, decimal.Decimal("1e-77")])
def test_a_decimal_of_more_digits_than_arrow_has(value):
    with pytest.raises(ValueError, match=r"'x': .* has more than 76 digits; write fewer"):
        expressions.bind_value(pa.decimal128(5, 2), value, "x", "==")
