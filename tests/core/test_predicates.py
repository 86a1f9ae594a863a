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
    """A column type, what its cells can be, and what it may be compared with."""

    dtype: pa.DataType
    cells: st.SearchStrategy[Any]
    values: st.SearchStrategy[Any]


EDGES = [-(2**63) - 1, -(2**63), -129, -128, -1, 0, 1, 127, 128, 255, 256, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**90]
INTS = st.sampled_from(EDGES) | st.integers(-3, 3)
FLOATS = st.sampled_from([0.0, -0.0, 0.1, 1.5, math.inf, -math.inf, 1e300, 5e-324]) | st.floats(allow_nan=False)
TEXTS = st.sampled_from(["", "a", "b", "ü", "\U0001f600", "\uffff", "a\0"]) | st.text(max_size=3)
STAMPS = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)) | st.sampled_from(
    [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, 0, 0, 0, 1)]
)
NANOS = st.builds(
    lambda stamp, ns: pd.Timestamp(stamp).as_unit("ns") + pd.Timedelta(ns, "ns"), STAMPS, st.sampled_from([0, 1, 999])
)
FAR = st.sampled_from([datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)])
DATES = st.dates() | st.just(datetime.date(2020, 1, 1))
DECIMALS = st.decimals(-100, 100, places=1, allow_nan=False) | st.sampled_from([decimal.Decimal("0.05"), 10**20, 3])
SINGLES = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, float(np.float32(0.1))])
UTC = datetime.timezone.utc
ZONED = STAMPS.map(lambda stamp: stamp.replace(tzinfo=UTC))


def ints(dtype: pa.DataType, low: int, high: int) -> Kind:
    return Kind(dtype, INTS.filter(lambda number: low <= number <= high), INTS | INTS.filter(lambda n: -128 <= n < 128).map(np.int8))


KINDS = {
    "int8": ints(pa.int8(), -128, 127),
    "int64": ints(pa.int64(), -(2**63), 2**63 - 1),
    "uint8": ints(pa.uint8(), 0, 255),
    "uint64": ints(pa.uint64(), 0, 2**64 - 1),
    "float": Kind(pa.float32(), SINGLES | st.just(math.nan), FLOATS | SINGLES),
    "double": Kind(pa.float64(), FLOATS | st.just(math.nan), FLOATS | FLOATS.map(np.float64)),
    "bool": Kind(pa.bool_(), st.booleans(), st.booleans() | st.booleans().map(np.bool_)),
    "string": Kind(pa.string(), TEXTS, TEXTS),
    "large_string": Kind(pa.large_string(), TEXTS, TEXTS.map(np.str_)),
    "category": Kind(pa.dictionary(pa.int8(), pa.string()), TEXTS, TEXTS),
    "binary": Kind(pa.binary(), TEXTS.map(str.encode), TEXTS.filter(lambda t: "\0" not in t).map(str.encode)),
    "date": Kind(pa.date32(), DATES, DATES),
    "timestamp_us": Kind(pa.timestamp("us"), STAMPS, STAMPS | NANOS | FAR),
    "timestamp_ns": Kind(pa.timestamp("ns"), NANOS, STAMPS | NANOS | FAR | NANOS.map(pd.Timestamp.to_datetime64)),
    "timestamp_tz": Kind(pa.timestamp("us", "Europe/Berlin"), ZONED, ZONED),
    "time": Kind(pa.time64("us"), st.times(), st.times()),
    "decimal": Kind(pa.decimal128(5, 1), st.decimals(-100, 100, places=1, allow_nan=False), DECIMALS),
}
NULLS: dict[str, list[Any]] = {"float": [math.nan, np.float32("nan"), pd.NA], "double": [math.nan, None]}


def plain(value: Any) -> Any:
    """A value that Python compares as it should."""
    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, (datetime.datetime, np.datetime64)):
        stamp = pd.Timestamp(value)
        if stamp.tzinfo:
            stamp = stamp.tz_convert("UTC").tz_localize(None)
        return stamp
    if isinstance(value, np.floating):
        return None if np.isnan(value) else float(value)
    return value.item() if isinstance(value, np.generic) else value


def matches(cell: Any, op: str, value: Any) -> bool:
    """The meaning of a literal, in Python."""
    cell = plain(cell)
    if op in ("in", "not in"):
        members = [plain(item) for item in value]
        if op == "in":
            return cell in members
        return cell is not None and cell not in members
    value = plain(value)
    if value is None:
        return (cell is None) == (op == "==")
    return cell is not None and bool(COMPARE[op](cell, value))


@st.composite
def literals(draw: st.DrawFn, name: str) -> tuple[str, str, Any]:
    values = KINDS[name].values
    nulls = NULLS.get(name, [None, pd.NA] if "int" not in name else [pd.NA])
    op = draw(st.sampled_from(pred_ops()))
    if op in ("in", "not in"):
        return name, op, draw(st.lists(values | st.sampled_from([*nulls, None]), max_size=3))
    if op in ("==", "!="):
        return name, op, draw(values | st.sampled_from(nulls))
    return name, op, draw(values)


def pred_ops() -> list[str]:
    return [*COMPARE, "in", "not in"]


@st.composite
def tables_and_predicates(draw: st.DrawFn) -> tuple[pa.Table, list[Any]]:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True))
    length = draw(st.integers(0, 8))
    columns = {
        name: pa.array(
            draw(st.lists(KINDS[name].cells | st.none(), min_size=length, max_size=length)),
            KINDS[name].dtype,
            from_pandas=False,
        )
        for name in names
    }
    literal = st.sampled_from(names).flatmap(literals)
    predicates = draw(st.lists(st.lists(literal, min_size=1, max_size=3), min_size=1, max_size=3))
    return pa.table(columns), predicates


def brute_force(table: pa.Table, predicates: list[Any]) -> list[bool]:
    rows = table.to_pylist()
    nanos = {n: table.column(n).cast(pa.timestamp("ns")).to_pandas().tolist() for n in table.column_names if "_ns" in n}
    for name, values in nanos.items():
        for row, value in zip(rows, values):
            row[name] = value
    return [any(all(matches(row[c], op, v) for c, op, v in conj) for conj in predicates) for row in rows]


@settings(max_examples=300, deadline=None)
@given(tables_and_predicates())
def test_filter_mask_and_expression_equal_brute_force(case: tuple[pa.Table, list[Any]]) -> None:
    table, predicates = case
    expected = brute_force(table, predicates)
    assert pred.filter_mask(table, predicates).to_pylist() == expected

    numbered = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    wanted = [row for row, hit in enumerate(expected) if hit]
    buffer = io.BytesIO()
    pq.write_table(numbered, buffer, row_group_size=2)
    fragment = ds.ParquetFileFormat().make_fragment(pa.py_buffer(buffer.getvalue()))
    expression = pred.to_expression(predicates, fragment.physical_schema)
    assert fragment.to_table(filter=expression)["row"].to_pylist() == wanted
