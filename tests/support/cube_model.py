"""What a query of a cube has to give, row by row in plain Python, by the rules of docs/query_system.rst.

A value is what `plain` makes of it: dates and timestamps are timestamps, every missing value is None.
"""

import datetime
import decimal
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from kartothek_cube.core.cube.cube import Cube
from tests.support.predicates import matches

Row = dict[str, Any]
Literal = tuple[str, str, Any]


#: that of pandas: object before pandas 3
TEXT = str(pd.Series([""]).dtype)


@dataclass(frozen=True)
class Kind:
    """A column type: how it is stored, in which forms pandas hands it over, what pandas makes of it."""

    arrow: pa.DataType
    #: dtypes of columns of input; the first one takes nulls as well
    forms: tuple[Any, ...]
    values: tuple[Any, ...]
    dtype: str = "object"
    #: if it is another one
    dtype_with_nulls: str = ""
    #: whether it can be a dimension, a partition column or an index
    is_key: bool = True
    #: dtypes of input that are narrower than what the schema says
    narrow: tuple[Any, ...] = ()


def stamp(text: str) -> pd.Timestamp:
    return pd.Timestamp(text).as_unit("ns")


def stamps(*texts: str) -> tuple[pd.Timestamp, ...]:
    return tuple(stamp(text) for text in texts)


DAY, BERLIN, NS = datetime.date(2020, 1, 31), "Europe/Berlin", "datetime64[ns]"
DAYS = (datetime.date(1969, 12, 31), DAY, DAY.replace(year=1900), DAY.replace(day=1))
SECONDS = stamps("1969-12-31 23:59:59", "2020-01-31", "2020-01-31 12:00:01", "1800-01-01")
MICROS = stamps("1969-12-31 23:59:59.999999", "2020-01-31", "2020-01-31 00:00:00.000001")
ZONED = (stamp("2020-01-31").tz_localize("UTC"), stamp("2020-07-01 12:00").tz_localize(BERLIN))
IN_BERLIN = f"datetime64[ns, {BERLIN}]"
INTS, SMALL_INTS = ("object", "int64", "Int64"), (-7, -1, 0, 1, 2, 3, 100)
LARGE_INTS = (-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1)
FLOATS = (-math.inf, -1.5, -0.0, 0.0, 0.1, 0.25, 1e300, math.inf)
TEXTS = ("", "a", "b", "ab", "ä", "a/b=%", " ", "None", "1", "\U0001f600", "\uffff")
DECIMALS = tuple(map(decimal.Decimal, ("-1.50", "0.00", "0.10", "99.99")))
TIMES = (datetime.time(), datetime.time(1), datetime.time(23, 59, 59, 999999))
KINDS = {
    "int": Kind(pa.int64(), INTS, SMALL_INTS, "int64", "float64", narrow=("int8", "int32", "Int8")),
    "large": Kind(pa.int64(), INTS, LARGE_INTS, "int64", "float64"),
    "uint": Kind(pa.uint64(), ("UInt64", "uint64"), (0, 1, 200, 2**63, 2**64 - 1), "uint64", "float64"),
    "float": Kind(pa.float64(), ("float64", "Float64"), FLOATS, "float64"),
    "real": Kind(
        pa.float64(), ("float64", "Float64"), (-1.5, 0.0, 0.25, 3.0), "float64", narrow=("float32", "Float32")
    ),
    "str": Kind(pa.string(), ("object", "str", "string", "category"), TEXTS, TEXT),
    "bool": Kind(pa.bool_(), ("object", "bool", "boolean"), (False, True), "bool", "object"),
    "date": Kind(pa.date32(), ("object",), DAYS, NS),
    "timestamp": Kind(pa.timestamp("ns"), (NS, "datetime64[us]", "datetime64[s]"), SECONDS, NS),
    "micros": Kind(pa.timestamp("ns"), (NS, "datetime64[us]"), MICROS, NS),
    "zoned": Kind(pa.timestamp("ns", BERLIN), (IN_BERLIN, IN_BERLIN.replace("ns", "us")), ZONED, IN_BERLIN),
    "bytes": Kind(pa.binary(), ("object",), (b"", b"a", b"ab", b"\xff/")),
    "decimal": Kind(pa.decimal128(8, 2), (pd.ArrowDtype(pa.decimal128(8, 2)),), DECIMALS),
    "time": Kind(pa.time64("us"), ("object",), TIMES),
    "null": Kind(pa.null(), ("object",), (None,), is_key=False),
}
for name, item, values in (
    ("ints", pa.int64(), ((), (1,), (1, 2), (2, 1, 0))),
    ("strs", pa.string(), ((), ("a",), ("b", "ä"))),
):
    KINDS[name] = Kind(pa.list_(item), ("object", pd.ArrowDtype(pa.list_(item))), values, is_key=False)


@dataclass
class Dataset:
    """A dataset of the model: its columns by kind, its keys, and its rows in the order of commit."""

    kinds: dict[str, str]
    partition_on: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    indexed: frozenset[str] = frozenset()
    #: columns of which a type was ever written; pandas tells none of nothing but None
    typed: set[str] = field(default_factory=set)
    #: bits of columns of numbers, in the widest file since the dataset was created or emptied
    bits: dict[str, int] = field(default_factory=dict)

    def add(self, rows: Sequence[Row]) -> None:
        self.rows = [*self.rows, *rows]

    def remove(self, cube: Cube, literals: Sequence[Literal]) -> None:
        """Remove the partitions that meet those of the conditions that are on keys of the dataset."""
        own = [p for p in literals if p[0] in self.partition_on and p[0] in cube.partition_columns]
        self.rows = [row for row in self.rows if not all(holds(row, p) for p in own)]
        if not self.rows:
            self.bits = {}

    def bits_of(self, column: str) -> int:
        """Bits of a column of numbers; keys of partitions are as wide as can be."""
        return 64 if column in self.partition_on else self.bits.get(column, 64)


@dataclass(frozen=True)
class Query:
    """Arguments of a query; conditions as literals, ``datasets`` as names or None."""

    literals: tuple[Literal, ...] = ()
    datasets: tuple[str, ...] | None = None
    dimensions: tuple[str, ...] | None = None
    partition_by: tuple[str, ...] = ()
    payload: tuple[str, ...] | None = None


@dataclass
class Answer:
    """The groups of rows, the columns in order, and kind and bits of each column."""

    columns: list[str]
    kinds: dict[str, str]
    bits: dict[str, int]
    groups: list[list[Row]]


def holds(row: Row, literal: Literal) -> bool:
    """Whether a row meets a condition; a missing value meets none."""
    column, op, value = literal
    cell = row[column]
    if op == "interval":
        return all(v is None or matches(cell, o, v) for o, v in zip((">=", "<"), value))
    return cell is not None and matches(cell, op, value)


def answer_query(cube: Cube, datasets: dict[str, Dataset], query: Query) -> Answer | None:
    """Answer a query; None if it is to be refused with a ValueError."""
    chosen = {name: ds for name, ds in datasets.items() if query.datasets is None or name in query.datasets}
    keys = {*cube.dimension_columns, *cube.partition_columns}
    dimensions = query.dimensions or cube.dimension_columns
    dropped = set(cube.dimension_columns) - set(dimensions)
    everything = {column for ds in chosen.values() for column in ds.kinds}
    payload = everything if query.payload is None else set(query.payload)
    if query.payload is not None and dropped & payload - set(query.partition_by):
        return None
    output = {*dimensions, *cube.partition_columns, *query.partition_by, *(payload - dropped)}
    literals = [p for p in query.literals if p[1:] != ("interval", (None, None))]
    used = output | {column for column, _, _ in literals}
    if any((used & set(ds.kinds)) - keys and dropped & set(ds.kinds) for ds in chosen.values()):
        return None  # a projection of a dataset that adds or restricts something
    owners = {c: _owner(cube, chosen, c) for c in query.partition_by}
    if None in owners.values():
        return None
    cell = [c for c in cube.dimension_columns if c in dimensions or c in query.partition_by]
    seed = chosen[cube.seed_dataset]
    result = _visible(cube, seed, cell, literals)
    for name, ds in chosen.items():
        own = set(ds.kinds) - keys
        if name == cube.seed_dataset or not own & used:
            continue
        grouped = {c for c, owner in owners.items() if owner == name}
        restricted = not own.isdisjoint({*grouped, *(column for column, _, _ in literals)})
        by = [c for c in (*cube.partition_columns, *cell) if c in ds.kinds]
        partners = {_cell(row, by): row for row in _visible(cube, ds, cell, literals)}
        joined = []
        for row in result:
            partner = partners.get(_cell(row, by))
            if partner is not None:
                joined.append({**row, **{c: partner[c] for c in own}})
            elif not restricted:
                joined.append({**row, **dict.fromkeys(own)})
        result = joined
    order = [*dimensions, *cube.partition_columns]
    result.sort(key=lambda row: tuple(map(row.__getitem__, order)))
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in result:
        group = _cell(row, query.partition_by)
        if None not in group:  # an index knows no nulls
            groups.setdefault(group, []).append(row)
    columns = sorted(output)
    kinds = {c: _kind(chosen, c) for c in columns}
    # the types of dimensions are those of the seed
    owners = {c: next(ds for ds in (seed, *chosen.values()) if c in ds.kinds) for c in columns}
    bits = {c: owner.bits_of(c) for c, owner in owners.items()}
    return Answer(columns, kinds, bits, [groups[group] for group in sorted(groups)])


def _cell(row: Row, columns: Iterable[str]) -> tuple[Any, ...]:
    return tuple(row[c] for c in columns)


def _visible(cube: Cube, ds: Dataset, cell: Sequence[str], literals: Sequence[Literal]) -> list[Row]:
    """Give the rows that count: of each cell the one written last, if it meets the conditions."""
    # a cell of which dimensions are projected away is there if any of its rows meets those on dimensions
    own = [p for p in literals if p[0] in ds.kinds]
    early = [p for p in own if p[0] in cube.dimension_columns or p[0] in cube.partition_columns]
    late = [p for p in own if p not in early]
    by = [c for c in (*cube.partition_columns, *cell) if c in ds.kinds]
    rows = {_cell(row, by): row for row in ds.rows if all(holds(row, p) for p in early)}
    return [row for row in rows.values() if all(holds(row, p) for p in late)]


def _owner(cube: Cube, chosen: dict[str, Dataset], column: str) -> str | None:
    """Give the dataset by whose index rows are grouped; the seed comes first."""
    names = sorted(chosen, key=lambda name: (name != cube.seed_dataset, name))
    return next((n for n in names if column in {*chosen[n].indexed, *chosen[n].partition_on}), None)


def _kind(chosen: dict[str, Dataset], column: str) -> str:
    """Give the kind of a column; null if no value of it was ever written."""
    owners = [ds for ds in chosen.values() if column in ds.kinds]
    typed = any(column in ds.typed for ds in owners)
    return owners[0].kinds[column] if typed else "null"


# comparison --------------------------------------------------------------------------------------


def nullable_type(dtype: str) -> str | None:
    """The type of a column that can have gaps in some group."""
    return {"i": dtype.replace("i", "I"), "u": dtype.replace("ui", "UI"), "b": "boolean"}.get(dtype[0])


def compare(found: pd.DataFrame, expected: Answer, number: int) -> str | None:
    rows = expected.groups[number]
    if list(found.columns) != expected.columns:
        return f"columns are {list(found.columns)} instead of {expected.columns}"
    if len(found) != len(rows):
        return f"{len(found)} rows instead of {len(rows)}: {found.to_dict('list')}"
    if not found.index.equals(pd.RangeIndex(len(rows))) or not isinstance(found.index, pd.RangeIndex):
        return f"the index is {found.index}"
    for column in expected.columns:
        kind = KINDS[expected.kinds[column]]
        values = [row[column] for row in rows]
        nulls = any(value is None for value in values)
        plain = type_of(expected, column)
        dtype = (nulls and kind.dtype_with_nulls) or plain
        got_dtype = str(found[column].dtype)
        nullable = got_dtype == nullable_type(plain)  # in groups, and for integers with many digits
        if got_dtype != dtype and not nullable:
            return f"column {column} is {got_dtype} instead of {dtype}: {list(found[column])[:5]}"
        wanted = [_as_pandas(value, got_dtype) for value in values]
        got = [_plain(value) for value in found[column]]
        if got != wanted or list(map(type, got)) != list(map(type, wanted)):
            return f"column {column} holds {got[:20]} instead of {wanted[:20]}"
    return None


def compare_table(found: pa.Table, expected: Answer, number: int) -> str | None:
    rows = expected.groups[number]
    if found.column_names != expected.columns:
        return f"columns are {found.column_names} instead of {expected.columns}"
    for column in expected.columns:
        kind = KINDS[expected.kinds[column]]
        dtype = str(found.schema.field(column).type).replace("float", "float32").replace("double", "float64")
        if dtype != _with_bits(str(kind.arrow).replace("double", "float64"), expected.bits[column]):
            return f"column {column} is {dtype} instead of {kind.arrow}"
        got = found.column(column).to_pylist()
        # Arrow tells a number that is not known (NaN) from none at all; for the library both are missing
        got = [_plain(v) for v in got]
        if got != [row[column] for row in rows]:
            return f"column {column} holds {got[:20]} instead of {[row[column] for row in rows][:20]}"
    return None


def type_of(expected: Answer, column: str) -> str:
    return _with_bits(KINDS[expected.kinds[column]].dtype, expected.bits[column])


def _with_bits(dtype: str, bits: int) -> str:
    return re.sub(r"(?<=int|oat)64$", str(bits), dtype)


def _as_pandas(value: Any, dtype: str) -> Any:
    if value is None:
        return None
    if dtype.startswith("float"):
        return float(value)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return pd.Timestamp(value)
    if isinstance(value, pd.Timestamp) and value.tzinfo:
        return value.tz_convert(BERLIN)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | list):
        return tuple(_plain(v) for v in value)
    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value
