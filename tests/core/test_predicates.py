from __future__ import annotations

import datetime
import decimal
import io
import math
import operator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartothek_cube.core import predicates as pred

COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Kind(NamedTuple):
    """A column type, what its cells can be, and what it is compared with; few, so that they often meet."""

    dtype: pa.DataType
    cells: list[Any]
    values: list[Any]


def stamp(text: str, ns: int = 0) -> pd.Timestamp:
    return pd.Timestamp(text).as_unit("ns") + pd.Timedelta(ns, "ns")


INTS = [
    -(2**63) - 1,
    -(2**63),
    -129,
    -128,
    -1,
    0,
    1,
    127,
    128,
    255,
    256,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    2**90,
]
FLOATS = [0.0, -0.0, 0.1, float(np.float32(0.1)), 1.5, math.inf, -math.inf, 1e300, 5e-324]
TEXTS = ["", "a", "b", "ab", "ü", "\U0001f600", "\uffff", "a\0"]
STAMPS = [
    stamp("1700-01-01"),
    stamp("2020-01-01"),
    stamp("2020-01-01 00:00:00.000001"),
    stamp("2200-01-01 12:00"),
]
NANOS = [*STAMPS, stamp("2020-01-01", 1), stamp("2020-01-01", 999), stamp("2020-01-01", -1)]
FAR = [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)]
PYTHON_STAMPS = [s.to_pydatetime() for s in STAMPS]
DATES = [
    datetime.date(1, 1, 1),
    datetime.date(1969, 12, 31),
    datetime.date(2020, 1, 1),
    datetime.date(9999, 12, 31),
]
TIMES = [datetime.time(), datetime.time(1), datetime.time(23, 59, 59, 999999)]
DECIMALS = [decimal.Decimal(text) for text in ("-100", "-0.1", "0", "0.1", "100", "9999.9")]
ZONED = [s.tz_localize("UTC") for s in STAMPS]


def ints(dtype: pa.DataType, low: int, high: int) -> Kind:
    return Kind(dtype, [n for n in INTS if low <= n <= high], [*INTS, np.int8(1), np.uint64(2**64 - 1)])


KINDS = {
    "int8": ints(pa.int8(), -128, 127),
    "int64": ints(pa.int64(), -(2**63), 2**63 - 1),
    "uint8": ints(pa.uint8(), 0, 255),
    "uint64": ints(pa.uint64(), 0, 2**64 - 1),
    "float": Kind(pa.float32(), [0.0, -0.0, 0.1, 1.5, math.inf, -math.inf, math.nan], FLOATS),
    "double": Kind(pa.float64(), [*FLOATS, math.nan], [*FLOATS, np.float64(0.1), np.float32(1.5)]),
    "bool": Kind(pa.bool_(), [False, True], [False, True, np.bool_(True)]),
    "string": Kind(pa.string(), TEXTS, TEXTS),
    "large_string": Kind(pa.large_string(), TEXTS, [*TEXTS, np.str_("a"), b"ab"]),
    "category": Kind(pa.dictionary(pa.int8(), pa.string()), TEXTS, TEXTS),
    "binary": Kind(pa.binary(), [t.encode() for t in TEXTS] + [b"\xff"], [b"", b"a", b"ab", b"\xff", "ü"]),
    "date": Kind(pa.date32(), DATES, [*DATES, "2020-01-01", b"1969-12-31"]),
    "timestamp_us": Kind(pa.timestamp("us"), STAMPS, [*PYTHON_STAMPS, *NANOS, *FAR]),
    "timestamp_ns": Kind(pa.timestamp("ns"), NANOS, [*NANOS, *FAR, *(n.to_datetime64() for n in NANOS)]),
    "timestamp_tz": Kind(pa.timestamp("us", "Europe/Berlin"), ZONED, ZONED),
    "time": Kind(pa.time64("us"), TIMES, TIMES),
    "decimal": Kind(
        pa.decimal128(5, 1), DECIMALS, [*DECIMALS, decimal.Decimal("0.05"), 10**20, -(10**20), 100]
    ),
}
NULLS: dict[str, list[Any]] = {"float": [math.nan, np.float32("nan"), pd.NA], "double": [math.nan, None]}


def plain(value: Any) -> Any:
    """A value that Python compares as it should."""
    if value is None or value is pd.NaT or value is pd.NA or value != value:
        return None
    if isinstance(value, (datetime.datetime, np.datetime64)):
        value = pd.Timestamp(value)
        return value.tz_convert("UTC").tz_localize(None) if value.tzinfo else value
    return value.item() if isinstance(value, np.generic) else value


def like(cell: Any, value: Any) -> Any:
    """The value as its column reads it."""
    if (
        isinstance(cell, datetime.date)
        and not isinstance(cell, datetime.datetime)
        and isinstance(value, (str, bytes))
    ):
        return datetime.date.fromisoformat(value if isinstance(value, str) else value.decode())
    if isinstance(cell, str) and isinstance(value, bytes):
        return value.decode()
    return value.encode() if isinstance(cell, bytes) and isinstance(value, str) else value


def matches(cell: Any, op: str, value: Any) -> bool:
    """The meaning of a literal, in Python."""
    cell = plain(cell)
    if op in ("in", "not in"):
        members = [like(cell, plain(item)) for item in value]
        return cell in members if op == "in" else cell is not None and cell not in members
    value = like(cell, plain(value))
    if value is None:
        return (cell is None) == (op == "==")
    return cell is not None and bool(COMPARE[op](cell, value))


@st.composite
def literals(draw: st.DrawFn, name: str) -> tuple[str, str, Any]:
    values = st.sampled_from(KINDS[name].values)
    nulls = st.sampled_from(NULLS.get(name, [None, pd.NA] if "int" not in name else [pd.NA]))
    op = draw(st.sampled_from([*COMPARE, "in", "not in"]))
    if op in ("in", "not in"):
        return name, op, draw(st.lists(st.one_of(values, values, nulls, st.none()), max_size=3))
    null = op in ("==", "!=") and draw(st.integers(0, 3)) == 0
    return name, op, draw(nulls if null else values)


@st.composite
def predicates_of(draw: st.DrawFn, names: list[str]) -> list[Any]:
    literal = st.sampled_from(names).flatmap(literals)
    return draw(st.lists(st.lists(literal, min_size=1, max_size=2), min_size=1, max_size=2))


@st.composite
def tables(draw: st.DrawFn, names: list[str]) -> pa.Table:
    length = draw(st.integers(0, 6))

    def column(name: str) -> pa.Array:
        cells = st.sampled_from([*KINDS[name].cells, None])
        return pa.array(
            draw(st.lists(cells, min_size=length, max_size=length)), KINDS[name].dtype, from_pandas=False
        )

    return pa.table({name: column(name) for name in names})


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    rows = table.to_pylist()
    for name in table.column_names:
        if pa.types.is_timestamp(table.schema.field(name).type):  # Python's datetime has no nanoseconds
            for row, value in zip(rows, table.column(name).cast(pa.timestamp("ns")).to_pandas()):
                row[name] = value
    return rows


def brute_force(rows: list[dict[str, Any]], predicates: list[Any]) -> list[int]:
    return [
        number
        for number, row in enumerate(rows)
        if any(all(matches(row[column], op, value) for column, op, value in conj) for conj in predicates)
    ]


def in_groups_of_two(table: pa.Table) -> ds.ParquetFileFragment:
    numbered = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    buffer = io.BytesIO()
    pq.write_table(numbered, buffer, row_group_size=2)
    return ds.ParquetFileFormat().make_fragment(pa.py_buffer(buffer.getvalue()))


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_mask_and_expression_equal_brute_force(name: str, data: st.DataObject) -> None:
    names = [name, *data.draw(st.lists(st.sampled_from(sorted(KINDS)).filter(name.__ne__), max_size=1))]
    table = data.draw(tables(names))
    rows, fragment = rows_of(table), in_groups_of_two(table)
    single = [[[literal]] for literal in data.draw(st.lists(literals(name), min_size=6, max_size=6))]
    for predicates in [*single, data.draw(predicates_of(names))]:
        expected = brute_force(rows, predicates)
        mask = pred.filter_mask(table, predicates)
        assert [row for row, hit in enumerate(mask.to_pylist()) if hit] == expected
        expression = pred.to_expression(predicates, fragment.physical_schema)
        assert fragment.to_table(filter=expression)["row"].to_pylist() == expected


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
        ([[("x", "<", None)]], ValueError, "'x'"),
        ([[("x", ">=", math.nan)]], ValueError, "'x'"),
        ([[("x", "in", None)]], ValueError, "'x'"),
        ([[("x", "in", "abc")]], TypeError, "'x'.* got str"),
        ([[("x", "not in", 1)]], TypeError, "'x'.* got int"),
        ([[("x", "==", b"\0")]], NotImplementedError, "NUL"),
        ([[("x", "in", [b"a", b"b\0"])]], NotImplementedError, "NUL"),
    ],
)
def test_check_predicates_refuses(predicates, error, message):
    with pytest.raises(error, match=message):
        pred.check_predicates(predicates)


@pytest.mark.parametrize(
    "predicates",
    [
        None,
        [[("x", "==", None)], [("x", "!=", pd.NaT)]],
        [[("x", "in", [None, 1])]],
        [[("x", "in", [])]],
        [[("x", "not in", {1})]],
        [[("x", "in", np.array([1]))]],
        [[("x", "==", "\0")]],
    ],
)
def test_check_predicates_accepts(predicates):
    pred.check_predicates(predicates)


def test_columns_in_predicates():
    assert pred.columns_in_predicates(None) == set()
    assert pred.columns_in_predicates([[("x", "==", 1), ("y", "==", 1)], [("x", "<", 1)]]) == {"x", "y"}


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
    assert pred.filter_predicates_by_column(predicates, columns) == expected
    assert pred.filter_predicates_by_column(None, columns) is None


@pytest.mark.parametrize(
    "array", [pa.array([], pa.int64()), pa.chunked_array([], pa.int64()), pa.nulls(3, pa.int64())]
)
def test_types_are_checked_without_values(array):
    with pytest.raises(TypeError, match=r"'x' of type int64 .*\(==\) with '1' \(type str\)"):
        pred.literal_mask(array, "==", "1", "x")
    assert pred.literal_mask(array, "==", 1).to_pylist() == [False] * len(array)


@pytest.mark.parametrize("op, expected", [("in", [False, False, False]), ("not in", [True, True, False])])
def test_empty_list_matches_without_a_type(op, expected):
    assert pred.literal_mask(TABLE["x"], op, []).to_pylist() == expected


@pytest.mark.parametrize(
    "op, value, expected",
    [("==", "a", False), ("!=", 1, False), ("<", 1.5, False), ("in", [1, "a"], False), ("not in", [1], False),
     ("==", None, True), ("!=", None, False), ("in", ["a", None], True)],
)  # fmt: skip
def test_null_columns_take_any_value(op, value, expected):
    table = pa.table({"x": pa.nulls(2)})
    assert pred.literal_mask(table["x"], op, value).to_pylist() == [expected, expected]
    expression = pred.to_expression([[("x", op, value)]], table.schema)
    assert table.filter(expression).num_rows == 2 * expected


def test_columns_of_nan_take_any_value():
    array = pa.array([math.nan, None])
    assert pred.literal_mask(array, "==", "a").to_pylist() == [False, False]
    with pytest.raises(TypeError):
        pred.literal_mask(pa.array([math.nan, 1.0]), "==", "a")


def test_zeros_are_equal():
    zeros = pa.array([0.0, -0.0, 1.0])
    for op, value in [("==", -0.0), ("in", [0.0]), ("in", [-0.0])]:
        assert pred.literal_mask(zeros, op, value).to_pylist() == [True, True, False]
    assert pred.literal_mask(zeros, "not in", [0.0]).to_pylist() == [False, False, True]


def test_float32_is_compared_as_float64():
    tenth = pa.array([0.1], pa.float32())
    assert pred.literal_mask(tenth, "==", 0.1).to_pylist() == [False]
    assert pred.literal_mask(tenth, "==", np.float32(0.1)).to_pylist() == [True]
    assert pred.literal_mask(tenth, ">", 0.1).to_pylist() == [True]


@pytest.mark.parametrize("op", ["~", "=", "IN", None])
def test_unknown_operator(op):
    for evaluate in (
        pred.filter_mask,
        lambda t, p: pred.bind(p, t.schema),
        lambda t, p: pred.to_expression(p, t.schema),
    ):
        with pytest.raises(NotImplementedError, match=r"'x'.* not in"):
            evaluate(TABLE, [[("x", op, 1)]])


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
        pred.bind(predicates, TABLE.schema)


def test_bind_accepts():
    pred.bind(None, TABLE.schema)
    pred.bind([[("x", "==", 2**80), ("y", "in", ["a", None])]], TABLE.schema)


@pytest.mark.parametrize("evaluate", [pred.filter_mask, lambda t, p: pred.to_expression(p, t.schema)])
def test_unknown_columns_are_named(evaluate):
    with pytest.raises(ValueError, match="unknown column z"):
        evaluate(TABLE, [[("z", "==", 1)]])


def test_no_predicates_match_everything():
    assert pred.filter_mask(TABLE, None).to_pylist() == [True] * 3
    assert TABLE.filter(pred.to_expression(None, TABLE.schema)).num_rows == 3


@pytest.mark.parametrize(
    "predicates, constants, expected",
    [
        (None, {"p": 1}, True),
        ([[("p", "==", 1)]], {"p": 1}, True),
        ([[("p", "==", 2)]], {"p": 1}, False),
        ([[("p", "==", 1), ("x", ">", 1)]], {"p": 1}, [[("x", ">", 1)]]),
        ([[("p", "==", 2), ("x", ">", 1)], [("x", "<", 0)]], {"p": 1}, [[("x", "<", 0)]]),
        ([[("x", ">", 1)], [("p", "==", 1)]], {"p": 1}, True),
        ([[("x", ">", 1)]], {}, [[("x", ">", 1)]]),
        (
            [[("p", "in", ["a", "b"]), ("q", "<", datetime.date(2020, 1, 2))]],
            {"p": "a", "q": datetime.date(2020, 1, 1)},
            True,
        ),
        ([[("p", ">", 1)]], {"p": pa.scalar(2**64 - 1, pa.uint64())}, True),
        (
            [[("p", "==", stamp("2020-01-01", 1))]],
            {"p": np.datetime64("2020-01-01T00:00:00.000000001")},
            True,
        ),
        ([[("p", "==", True)]], {"p": np.bool_(True)}, True),
    ],
)
def test_evaluate_constants(predicates, constants, expected):
    assert pred.evaluate_constants(predicates, constants) == expected


def test_evaluate_constants_checks_all_types():
    with pytest.raises(TypeError, match="'q'"):
        pred.evaluate_constants([[("p", "==", 2), ("q", "==", "a")]], {"p": 1, "q": 1})
