"""Index data that comes as a Python dict, from users and from inline indices in headers."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.index.columns import IndexColumns
from kartothek_cube.core.types import normalize_value

__all__ = ("columns_from_dict", "index_columns", "infer_dtype", "inline_dict", "value_array")

_LOGGER = logging.getLogger(__name__)

# Python types of which Arrow makes values of a type without changing them
_PLAIN = (
    (pat.is_signed_integer, {int}),
    (pat.is_unsigned_integer, {int}),
    (pat.is_floating, {float}),
    (pat.is_boolean, {bool}),
    (pat.is_string, {str}),
    (pat.is_binary, {bytes}),
    (pat.is_date, {datetime.date}),
)


def columns_from_dict(dct: Mapping[Any, Iterable[str]], dtype: pa.DataType) -> tuple[IndexColumns, int]:
    """
    Index data out of a dict.

    Parameters
    ----------
    dct
        Value to labels. Nulls are never indexed and left out.
    dtype
        Type of the values; they are converted generously.

    Returns
    -------
    columns
        Index data; values that are the same after conversion share their partitions.
    collisions
        How many values vanished that way.

    Examples
    --------
    >>> columns, collisions = columns_from_dict({1: ["a1"], "1": ["b2"]}, pa.int64())
    >>> columns.to_dict(), collisions
    ({1: ['a1', 'b2']}, 1)
    """
    keys = list(dct)
    null = _null_mask(keys)
    values = value_array([key for key, is_null in zip(keys, null, strict=True) if not is_null], dtype)
    lists = [labels for labels, is_null in zip(dct.values(), null, strict=True) if not is_null]
    columns = IndexColumns.from_dict(values, lists)
    return columns, len(values) - len(values.unique())


def infer_dtype(values: Sequence[Any]) -> pa.DataType:
    """
    Type of values, told by the first one that is not null.

    Parameters
    ----------
    values
        Python values.

    Returns
    -------
    pyarrow.DataType

    Examples
    --------
    >>> infer_dtype([17])
    DataType(int64)
    """
    first = next(
        (value for value, is_null in zip(values, _null_mask(values), strict=True) if not is_null), None
    )
    if isinstance(first, np.datetime64 | datetime.datetime):
        stamp = pd.Timestamp(first)
        return pa.timestamp("ns", None if stamp.tz is None else str(stamp.tz))
    try:
        return pa.array([first]).type
    except OverflowError:
        return pa.array([first], pa.uint64()).type


def value_array(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """
    Values as an array of some type; converted generously.

    Parameters
    ----------
    values
        Values without nulls.
    dtype
        Type wanted.

    Returns
    -------
    pyarrow.Array

    Raises
    ------
    TypeError, ValueError
        A value cannot be converted.
    """
    kinds = set(map(type, values))
    if any(matches(dtype) and kinds <= allowed for matches, allowed in _PLAIN):
        try:
            return pa.array(values, dtype)
        except (pa.ArrowInvalid, OverflowError):
            pass  # out of range: the slow way names the value
    converted = [normalize_value(dtype, value) for value in values]
    if not pat.is_timestamp(dtype):
        return pa.array(converted, dtype)
    stamps = np.array(converted, dtype="datetime64[ns]").view("i8")
    return pa.array(stamps, pa.int64()).cast(pa.timestamp("ns", dtype.tz)).cast(dtype)


def index_columns(
    column: str, data: Mapping[Any, Iterable[str]] | IndexColumns | None, dtype: pa.DataType | None
) -> IndexColumns | None:
    """
    Index data out of what users pass to an index.

    Parameters
    ----------
    column
        The indexed column, for messages.
    data
        Value to labels, or index data, or nothing.
    dtype
        Type of the column.

    Returns
    -------
    IndexColumns or None
        None if there is no data, or no type.
    """
    if data is None or dtype is None:
        return None
    if isinstance(data, IndexColumns):
        return data.cast(dtype)
    columns, collisions = columns_from_dict(data, dtype)
    if collisions:
        _LOGGER.warning(
            "%s values of the index on %r are the same once they are %s; their partitions were united.",
            collisions,
            column,
            dtype,
        )
    return columns


def inline_dict(columns: IndexColumns) -> dict[str, list[str]]:
    """
    Index data as it stands inline in a header: JSON has keys of text only.

    Parameters
    ----------
    columns
        Index data.

    Returns
    -------
    dict of str to list of str

    Raises
    ------
    UnicodeDecodeError
        Values of bytes that are no UTF-8 have no inline form.

    Examples
    --------
    >>> inline_dict(IndexColumns.from_pairs(pa.array([True]), ["a1"]))
    {'true': ['a1']}
    """
    values = columns.values
    if pat.is_date(values.type) or pat.is_timestamp(values.type):
        columns = columns.cast(pa.string())
    return {_json_key(value): labels for value, labels in columns.to_dict().items()}


def _json_key(value: Any) -> str:
    """The spelling of the json module."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _null_mask(values: Sequence[Any]) -> Sequence[bool]:
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    mask: list[bool] = pd.isna(objects).tolist()
    return mask
