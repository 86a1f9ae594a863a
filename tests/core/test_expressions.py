"""Predicates: what they match, what is refused, and which values may meet a column."""

import datetime
import decimal
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.core import arrow, expressions
from tests.support.predicates import KINDS, brute_force, literals, predicates_of, rows_of, stamp, tables


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_mask_equals_brute_force(name: str, data: st.DataObject) -> None:
    names = [name, *data.draw(st.lists(st.sampled_from(sorted(KINDS)).filter(name.__ne__), max_size=1))]
    table = data.draw(tables(names))
    rows = rows_of(table)
    single = [[[literal]] for literal in data.draw(st.lists(literals(name), min_size=6, max_size=6))]
    for predicates in [*single, data.draw(predicates_of(names))]:
        expected = brute_force(rows, predicates)
        mask = expressions.tree_mask(table, expressions.to_tree(predicates))
        assert [row for row, hit in enumerate(mask.to_pylist()) if hit] == expected


DAY = datetime.date(2020, 1, 1)
TABLE = pa.table({"x": [1, 2, None], "y": ["a", None, "b"]})


@pytest.mark.parametrize(
    "predicates, error, message",
    [
        ([], ValueError, "Empty predicates"),
        ([[]], ValueError, "Conjunction 0 is empty"),
        ([[("x", "==", 1)], ()], ValueError, "Conjunction 1 .* got tuple"),
        ("x", ValueError, "Conjunction 0 .* got str"),
        ([[("x", "==", 1), ["x", "==", 1]]], ValueError, "Literal 1 in conjunction 0"),
        ([[("x", "==")]], ValueError, "Literal 0 in conjunction 0"),
        ([[("x", "==", 1, 2)]], ValueError, "Literal 0 in conjunction 0"),
        *(([[("x", *rest)]], ValueError, "'x'") for rest in (("<", None), (">=", math.nan), ("in", None))),
        ([[("x", "in", "abc")]], TypeError, "'x'.* got str"),
        ([[("x", "not in", 1)]], TypeError, "'x'.* got int"),
        ([[("x", "in", iter([1]))]], TypeError, "'x'.* got list_iterator"),
        ([[("x", "==", b"\0")]], NotImplementedError, "NUL"),
        ([[("x", "in", [b"a", b"b\0"])]], NotImplementedError, "NUL"),
    ],
)
def test_check_predicates_refuses(predicates, error, message):
    with pytest.raises(error, match=message):
        expressions.check_predicates(predicates)


@pytest.mark.parametrize(
    "predicates",
    [
        None,
        [[("x", "==", None)], [("x", "!=", pd.NaT)]],
        [[("x", "==", "\0")]],
        [[("x", "not in", {1})]],
        *([[("x", "in", values)]] for values in ([None, 1], [], np.array([1]))),
    ],
)
def test_check_predicates_accepts(predicates):
    expressions.check_predicates(predicates)


def test_columns_in_predicates():
    assert expressions.columns_in_predicates(None) == set()
    predicates = [[("x", "==", 1), ("y", "==", 1)], [("x", "<", 1)]]
    assert expressions.columns_in_predicates(predicates) == {"x", "y"}


@pytest.mark.parametrize(
    "columns, expected",
    [
        (["x", "y"], [[("x", "==", 1), ("y", "==", 2)], [("y", "<", 3)]]),
        (["x"], [[("x", "==", 1)]]),
        (["y"], [[("y", "==", 2)], [("y", "<", 3)]]),
        (["z"], None),
    ],
)
def test_filter_predicates_by_column(columns, expected):
    predicates = [[("x", "==", 1), ("y", "==", 2)], [("y", "<", 3)]]
    assert expressions.filter_predicates_by_column(predicates, columns) == expected
    assert expressions.filter_predicates_by_column(None, columns) is None


@pytest.mark.parametrize("array", [pa.nulls(0, "int64"), pa.chunked_array([], "int64"), pa.nulls(3, "int64")])
def test_types_are_checked_without_values(array):
    with pytest.raises(TypeError, match=r"'x' of type int64 .*\(==\) with '1' \(type str\)"):
        expressions.literal_mask(array, "==", "1", "x")
    assert expressions.literal_mask(array, "==", 1).to_pylist() == [False] * len(array)


@pytest.mark.parametrize("op, expected", [("in", [False, False, False]), ("not in", [True, True, False])])
def test_empty_list_matches_without_a_type(op, expected):
    assert expressions.literal_mask(TABLE["x"], op, []).to_pylist() == expected


@pytest.mark.parametrize(
    "op, value, expected",
    [("==", "a", False), ("!=", 1, False), ("<", 1.5, False), ("in", [1, "a"], False), ("not in", [1], False),
     ("==", None, True), ("!=", None, False), ("in", ["a", None], True)],
)  # fmt: skip
def test_null_columns_take_any_value(op, value, expected):
    assert expressions.literal_mask(pa.nulls(2), op, value).to_pylist() == [expected, expected]


def test_a_column_of_nan_and_null_takes_any_value():
    array = pa.array([math.nan, None])
    assert expressions.literal_mask(array, "==", "a").to_pylist() == [False, False]
    with pytest.raises(TypeError):
        expressions.literal_mask(pa.array([math.nan, 1.0]), "==", "a")


def test_the_codes_of_a_dictionary_may_have_no_room_for_another_value():
    array = pa.DictionaryArray.from_arrays(pa.array([127, None], pa.int8()), pa.array(range(128)))
    assert expressions.literal_mask(array, "==", 127).to_pylist() == [True, False]
    assert expressions.literal_mask(array, "in", [1, None]).to_pylist() == [False, True]


@pytest.mark.parametrize("op", ["~", "=", "IN", None])
def test_unknown_operator(op):
    with pytest.raises(NotImplementedError, match=r"'x'.* not in"):
        expressions.tree_mask(TABLE, ("x", op, 1))
    with pytest.raises(NotImplementedError, match=r"'x'.* not in"):
        expressions.bind([[("x", op, 1)]], TABLE.schema)


@pytest.mark.parametrize(
    "predicates, error, message",
    [
        ([[("z", "==", 1)], [("xx", "==", 1)]], ValueError, "xx, z"),
        ([[("x", "==", 1), ("y", "==", 1)]], TypeError, "'y'"),
        ([[("x", "<", None)]], ValueError, "null"),
        ([], ValueError, "Empty"),
    ],
)
def test_bind_refuses(predicates, error, message):
    with pytest.raises(error, match=message):
        expressions.bind(predicates, TABLE.schema)


def test_what_is_bound_and_what_matches_everything():
    expressions.bind(None, TABLE.schema)
    expressions.bind([[("x", "==", 2**80), ("y", "in", ["a", None])]], TABLE.schema)
    with pytest.raises(ValueError, match="unknown column z"):
        expressions.tree_mask(TABLE, ("z", "==", 1))
    assert expressions.tree_mask(TABLE, None).to_pylist() == [True] * 3


@pytest.mark.parametrize(
    "predicates, constants, expected",
    [
        ([[("p", "==", 1)]], {"p": 1}, True),
        ([[("p", "==", 2)]], {"p": 1}, False),
        ([[("p", "==", 1), ("x", ">", 1)]], {"p": 1}, [[("x", ">", 1)]]),
        ([[("p", "==", 2), ("x", ">", 1)], [("x", "<", 0)]], {"p": 1}, [[("x", "<", 0)]]),
        ([[("x", ">", 1)], [("p", "==", 1)]], {"p": 1}, True),
        ([[("x", ">", 1)]], {}, [[("x", ">", 1)]]),
        ([[("p", "in", ["a", "b"]), ("q", "<", DAY.replace(day=2))]], {"p": "a", "q": DAY}, True),
        ([[("p", ">", 1)]], {"p": np.uint64(2**64 - 1)}, True),
        ([[("p", "==", stamp("2020-01-01", 1))]], {"p": stamp("2020-01-01", 1).to_datetime64()}, True),
        ([[("p", "==", True)]], {"p": np.bool_(True)}, True),
    ],
)
def test_simplify(predicates, constants, expected):
    remaining = expected if isinstance(expected, bool) else expressions.to_tree(expected)
    scalars = {name: pa.scalar(value) for name, value in constants.items()}
    assert expressions.simplify(expressions.to_tree(predicates), scalars) == remaining


def test_simplify_checks_all_types():
    constants = dict.fromkeys("pq", pa.scalar(1))
    with pytest.raises(TypeError, match="'q'"):
        expressions.simplify(expressions.to_tree([[("p", "==", 2), ("q", "==", "a")]]), constants)


# values that meet a column

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
