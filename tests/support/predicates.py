"""Random typed tables and predicates on them, and what the predicates mean, in plain Python."""

import datetime
import decimal
import math
import operator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

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


INTS = [-129, -128, -1, 0, 1, 127, 128, 255, 256]
INTS += [-(2**63) - 1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**90]
FLOATS = [0.0, -0.0, 0.1, float(np.float32(0.1)), 1.5, math.inf, -math.inf, 1e300, 5e-324]
TEXTS = ["", "a", "b", "ab", "ü", "\U0001f600", "\uffff", "a\0"]
STAMPS = [*map(stamp, ("1700-01-01", "2020-01-01", "2020-01-01 00:00:00.000001", "2200-01-01 12:00"))]
NANOS = [*STAMPS, stamp("2020-01-01", 1), stamp("2020-01-01", 999), stamp("2020-01-01", -1)]
FAR = [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)]
PYTHON_STAMPS = [s.to_pydatetime() for s in STAMPS]
DATES = [datetime.date(*day) for day in ((1, 1, 1), (1969, 12, 31), (2020, 1, 1), (9999, 12, 31))]
TIMES = [datetime.time(), datetime.time(1), datetime.time(23, 59, 59, 999999)]
DECIMALS = [decimal.Decimal(text) for text in ("-100", "-0.1", "0", "0.1", "100", "9999.9")]
OTHER_NUMBERS = [decimal.Decimal("0.05"), 10**20, -(10**20), 100]
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
    "decimal": Kind(pa.decimal128(5, 1), DECIMALS, DECIMALS + OTHER_NUMBERS),
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
    if type(cell) is datetime.date and isinstance(value, (str, bytes)):
        return datetime.date.fromisoformat(value if isinstance(value, str) else value.decode())
    if isinstance(cell, str) and isinstance(value, bytes):
        return value.decode()
    return value.encode() if isinstance(cell, bytes) and isinstance(value, str) else value


def matches(cell: Any, op: str, value: Any) -> bool:
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
        values = draw(st.lists(cells, min_size=length, max_size=length))
        return pa.array(values, KINDS[name].dtype, from_pandas=False)

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
