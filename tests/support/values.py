"""Compare values, frames and JSON across versions of pandas: None if they are the same, else what differs.

What does not matter in a frame: the width of integers and floats, the flavour of string columns, the unit
of timestamps, the kind of missing value (None, NaN, NaT, NA), the row index. What does: the column names,
the kind of a column (bool, int, float, str, bytes, date, timestamp, list, categorical, ...) as soon as it
holds a value, and, where asked for, the order of rows and of columns. Integers and floats may stand for
each other next to missing values.
"""

import datetime
import json
import math
from typing import Any

import numpy as np
import pandas as pd

EPOCH, NANOSECONDS_PER_DAY = datetime.date(1970, 1, 1), 86_400 * 10**9
#: kinds that may stand for each other: next to missing values, and in lists
NUMBERS = {"int": "number", "float": "number"}
IN_LISTS = {**NUMBERS, "date": "timestamp"}

# values in JSON --------------------------------------------------------------------------------------------

#: tag of a JSON object with one key -> what its text means; JSON has no form of its own for these
DECODERS = {
    "$date": datetime.date.fromisoformat,
    "$timestamp": pd.Timestamp,
    "$bytes": bytes.fromhex,
    "$float": float,
}


def decode(obj: Any) -> Any:
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
    if isinstance(obj, np.generic) and not isinstance(obj, np.datetime64):
        obj = obj.item()
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


def compare_json(actual: Any, expected: Any) -> str | None:
    """None if both JSON values are the same, else what differs."""
    got, exp = (json.dumps(value, sort_keys=True) for value in (actual, expected))
    return None if got == exp else f"result is {got} instead of {exp}"


# values in frames ------------------------------------------------------------------------------------------


def canon(val: Any) -> Any:
    """Kind and value in a form that is the same in all versions; missing values become None."""
    if isinstance(val, list | tuple | np.ndarray):
        return ("list", *_unify_kinds(list(map(canon, val)), IN_LISTS))
    if pd.isna(val):
        return None
    if isinstance(val, datetime.datetime | np.datetime64):
        stamp = pd.Timestamp(val).as_unit("ns")
        return ("timestamp" if stamp.tzinfo is None else "timestamp-utc", stamp.value)
    if isinstance(val, datetime.date):
        return ("date", (val - EPOCH).days * NANOSECONDS_PER_DAY)
    if isinstance(val, np.generic):
        val = val.item()
    if isinstance(val, float) and val.is_integer():
        return ("float", int(val))
    return (type(val).__name__, val)


def column_values(series: pd.Series) -> list[Any]:
    values = list(map(canon, series))
    if isinstance(series.dtype, pd.CategoricalDtype):
        return [value and ("categorical", value) for value in values]
    return values


def compare_frames(
    actual: Any, expected: pd.DataFrame, row_order: bool = True, column_order: bool = True
) -> str | None:
    """None if both frames hold the same, else what differs."""
    if not isinstance(actual, pd.DataFrame):
        return f"expected a DataFrame, got {type(actual).__name__}"
    names, exp = list(actual.columns), list(expected.columns)
    if not column_order:
        names, exp = sorted(names), sorted(exp)
    if names != exp:
        return f"columns are {names} instead of {exp}"
    if len(actual) != len(expected):
        return f"{len(actual)} rows instead of {len(expected)}"
    pairs = [(column_values(actual[name]), column_values(expected[name])) for name in names]
    # integers next to missing values may be floats
    pairs = [tuple(map(_unify_kinds, p)) if all(None in values for values in p) else p for p in pairs]
    got_rows, exp_rows = (list(zip(*columns)) for columns in zip(*pairs))
    if not row_order:
        got_rows, exp_rows = sorted(got_rows, key=repr), sorted(exp_rows, key=repr)
    for i, (got, exp) in enumerate(zip(got_rows, exp_rows)):
        if got != exp:
            wrong = {name: (g, e) for name, g, e in zip(names, got, exp) if g != e}
            return f"row {i}{'' if row_order else ' (sorted)'}, column: (got, expected): {wrong}"
    return None


def _unify_kinds(values: list[Any], kinds: dict[str, str] = NUMBERS) -> list[Any]:
    """Make no difference between some kinds."""
    return [v and (kinds.get(v[0], v[0]), *v[1:]) for v in values]
