"""Compare values, frames and JSON across versions of pandas: None if they are the same, else what differs.

What does not matter in a frame: the width of integers and floats, the flavour of string columns, the unit
of timestamps, the kind of missing value (None, NaN, NaT, NA), the row index. What does: the column names,
the kind of a column (bool, int, float, str, bytes, date, timestamp, list, categorical, ...) as soon as it
holds a value, and, where asked for, the order of rows and of columns. Integers and floats may stand for
each other next to missing values.
"""

import datetime
import decimal
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

EPOCH = datetime.datetime(1970, 1, 1)
NANOSECONDS_PER_DAY = 86_400 * 10**9

# values in JSON --------------------------------------------------------------------------------------------

#: tag of a JSON object with one key -> what its text means; JSON has no form of its own for these
DECODERS = {
    "$date": datetime.date.fromisoformat,
    "$timestamp": pd.Timestamp,
    "$bytes": bytes.fromhex,
    "$float": float,
}


def decode(obj: Any) -> Any:
    """Python value of a JSON value."""
    if isinstance(obj, list):
        return [decode(x) for x in obj]
    if isinstance(obj, dict):
        if len(obj) == 1 and next(iter(obj)) in DECODERS:
            ((tag, text),) = obj.items()
            return DECODERS[tag](text)
        return {key: decode(val) for key, val in obj.items()}
    return obj


def encode(obj: Any) -> Any:
    """JSON value of a Python value, the inverse of `decode`."""
    if isinstance(obj, dict):
        return {str(key): encode(val) for key, val in obj.items()}
    if isinstance(obj, list | tuple | np.ndarray):
        return [encode(x) for x in obj]
    if isinstance(obj, set | frozenset):
        return [encode(x) for x in sorted(obj)]
    if isinstance(obj, np.generic) and not isinstance(obj, np.datetime64):
        obj = obj.item()
    if obj is pd.NaT:
        return {"$timestamp": "NaT"}
    if isinstance(obj, float):
        return obj if math.isfinite(obj) else {"$float": repr(obj)}
    if isinstance(obj, bytes):
        return {"$bytes": obj.hex()}
    if isinstance(obj, datetime.datetime | np.datetime64):
        return {"$timestamp": pd.Timestamp(obj).isoformat()}
    if isinstance(obj, datetime.date):
        return {"$date": obj.isoformat()}
    if obj is None or isinstance(obj, str | bool | int):
        return obj
    raise TypeError(f"no JSON form for {obj!r}")


def compare_json(actual: Any, expected: Any, path: str = "result") -> str | None:
    """None if both JSON values are the same, else what differs."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if set(actual) != set(expected):
            lacks, extra = set(expected) - set(actual), set(actual) - set(expected)
            return f"{path} lacks {sorted(lacks)}, has {sorted(extra)}"
        pairs = [(actual[key], expected[key], f"{path}[{key!r}]") for key in sorted(expected)]
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return f"{path} has {len(actual)} items instead of {len(expected)}: {_short(actual)}"
        both = zip(actual, expected)
        pairs = [(got, exp, f"{path}[{i}]") for i, (got, exp) in enumerate(both)]
    elif actual != expected or isinstance(actual, bool) != isinstance(expected, bool):
        return f"{path} is {_short(actual)} instead of {_short(expected)}"
    else:
        return None
    return next(filter(None, (compare_json(*pair) for pair in pairs)), None)


# values in frames ------------------------------------------------------------------------------------------


def canon(val: Any) -> Any:
    """Hashable form of a value that is the same in all versions; missing values become None."""
    if isinstance(val, pa.Array | pa.Scalar):
        val = val.to_pylist() if isinstance(val, pa.Array) else val.as_py()
    if isinstance(val, list | tuple | np.ndarray):
        return ("list", *map(canon, val))
    if isinstance(val, dict):
        return ("dict", *sorted((key, canon(v)) for key, v in val.items()))
    if pd.isna(val):
        return None
    if isinstance(val, datetime.date | np.datetime64):
        return _canon_time(val)
    if isinstance(val, np.timedelta64 | datetime.timedelta):
        return ("delta", pd.Timedelta(val).as_unit("ns").value)
    if isinstance(val, np.generic):
        val = val.item()
    if isinstance(val, float) and val.is_integer():
        val = int(val)
    return (_kind(val), val)


def _canon_time(val: Any) -> tuple[str, int]:
    if isinstance(val, datetime.date) and not isinstance(val, datetime.datetime):
        days = (datetime.datetime(val.year, val.month, val.day) - EPOCH).days
        return ("time", days * NANOSECONDS_PER_DAY)
    stamp = pd.Timestamp(val).as_unit("ns")
    return ("time" if stamp.tzinfo is None else "time-utc", stamp.value)


#: type -> name of its kind for `canon`; bool comes before its base class int
KINDS = (
    (bool, "bool"),
    ((int, float), "number"),
    (str, "str"),
    (bytes, "bytes"),
    (decimal.Decimal, "decimal"),
    (datetime.time, "clock"),
)


def _kind(val: Any) -> str:
    return next((name for types, name in KINDS if isinstance(val, types)), type(val).__name__)


def _kind_of_value(val: Any) -> str:
    if isinstance(val, bool | np.bool_):
        return "bool"
    if isinstance(val, int | np.integer):
        return "int"
    if isinstance(val, float | np.floating):
        return "float"
    if isinstance(val, datetime.datetime | np.datetime64):
        return "timestamp"
    if isinstance(val, datetime.date):
        return "date"
    return str(canon(val)[0])


def column_values(series: pd.Series) -> list[Any]:
    """Values of a column as a list of Python or numpy objects."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        categories = list(series.dtype.categories)
        return [None if code < 0 else categories[code] for code in series.cat.codes]
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iufb":
        return list(series.to_numpy())
    return list(series)


def column_kind(series: pd.Series, values: Sequence[Any]) -> str:
    """Kind of a column; "null" if it holds no value at all."""
    kinds = {_kind_of_value(v) for v in values if canon(v) is not None}
    if not kinds:
        return "null"
    if isinstance(series.dtype, pd.CategoricalDtype):
        return "categorical"
    return kinds.pop() if len(kinds) == 1 else f"mixed({', '.join(sorted(kinds))})"


def compare_frames(
    actual: Any, expected: pd.DataFrame, row_order: bool = True, column_order: bool = True
) -> str | None:
    """None if both frames hold the same, else what differs."""
    if not isinstance(actual, pd.DataFrame):
        return f"expected a DataFrame, got {type(actual).__name__}"
    got, exp = list(actual.columns), list(expected.columns)
    if not column_order:
        got, exp = sorted(got), sorted(exp)
    if got != exp:
        return f"columns are {_short(got)} instead of {_short(exp)}"
    if len(actual) != len(expected):
        return f"{len(actual)} rows instead of {len(expected)}"
    columns = [(column, *_compare_kinds(actual[column], expected[column])) for column in exp]
    for column, why, _, _ in columns:
        if why:
            return f"column {column!r} {why}"
    return _compare_rows(exp, [c[2] for c in columns], [c[3] for c in columns], row_order)


def _compare_kinds(actual: pd.Series, expected: pd.Series) -> tuple[str | None, list[Any], list[Any]]:
    """What is wrong with the kind of a column, and the canonical values of both sides."""
    got, exp = column_values(actual), column_values(expected)
    got_kind, exp_kind = column_kind(actual, got), column_kind(expected, exp)
    got, exp = [canon(v) for v in got], [canon(v) for v in exp]
    numbers = {got_kind, exp_kind} == {"int", "float"} and None in got and None in exp
    if got_kind == exp_kind or numbers:
        return None, got, exp
    return f"holds {got_kind} instead of {exp_kind}, {_short(got[:3])} instead of {_short(exp[:3])}", got, exp


def _compare_rows(
    columns: list[Any], actual: list[list[Any]], expected: list[list[Any]], row_order: bool
) -> str | None:
    got_rows, exp_rows = list(zip(*actual)), list(zip(*expected))
    if not row_order:
        got_rows, exp_rows = sorted(got_rows, key=repr), sorted(exp_rows, key=repr)
    for i, (got, exp) in enumerate(zip(got_rows, exp_rows)):
        wrong = {c: (g, e) for c, g, e in zip(columns, got, exp) if g != e}
        if wrong:
            order = "" if row_order else " (sorted)"
            return f"row {i}{order}, column: (got, expected): {_short(wrong)}"
    return None


def _short(obj: Any, limit: int = 300) -> str:
    text = repr(obj)
    return text if len(text) <= limit else text[:limit] + "..."
