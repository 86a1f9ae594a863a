"""Stored types of columns whose type a query has changed, so that what was read can be written again."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import pyarrow as pa
import pyarrow.types as pat
from pandas.api.types import is_object_dtype

from kartothek_cube.core.arrow.types import is_nested, same_type

__all__ = ("convert_objects", "restore_types")


def restore_types(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """
    Cast columns to their stored types where a query changes them, if no value changes.

    pandas has timestamps for dates, floats for integers next to missing values, and decimals without
    precision. Other columns, and columns with values that do not fit, stay as they are.

    Examples
    --------
    >>> import datetime
    >>> days = pa.table({"DAY": [datetime.datetime(2020, 1, 1)], "AVG_TEMP": [6.0]})
    >>> restore_types(days, {"DAY": pa.date32(), "AVG_TEMP": pa.int64()}).schema.types
    [DataType(date32[day]), DataType(double)]
    """
    for position, field in enumerate(table.schema):
        target = types.get(field.name)
        if target is not None and not same_type(field.type, target):
            column = _restore(table.column(position), target)
            if column is not None:
                table = table.set_column(position, pa.field(field.name, column.type), column)
    return table


def _restore(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray | None:
    """The column with its stored type; None if a query does not make this of it, or values would change."""
    source = column.type
    if not _is_result(source, target):
        return None
    # floats without a gap are not what a query returns for integers: to accept them would hide mistakes
    if pat.is_floating(source) and not column.null_count:
        return None
    source = _without_nulls(source, target)
    try:
        column = column.cast(source)
        restored = column.cast(target)
        return restored if restored.cast(source).equals(column) else None
    except pa.ArrowException:
        return None


def _without_nulls(source: pa.DataType, target: pa.DataType) -> pa.DataType:
    """The type of a column with that of the stored one where there are nulls only; both are alike."""
    # Arrow casts nulls to any type, but no type back to nulls
    if pat.is_null(source):
        return target
    if pat.is_struct(source):
        pairs = [(source.field(i), target.field(i)) for i in range(source.num_fields)]
        return pa.struct([a.with_type(_without_nulls(a.type, b.type)) for a, b in pairs])
    if pat.is_list(source) and pat.is_list(target):
        return pa.list_(source.value_field.with_type(_without_nulls(source.value_type, target.value_type)))
    return source


def _is_result(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether pandas has this type for a stored one, at any depth."""
    if is_nested(source) and is_nested(target):
        if source.num_fields != target.num_fields or pat.is_struct(source) != pat.is_struct(target):
            return False
        pairs = [(source.field(i), target.field(i)) for i in range(source.num_fields)]
        if pat.is_struct(source) and any(a.name != b.name for a, b in pairs):
            return False
        return all(same_type(a.type, b.type) or _is_result(a.type, b.type) for a, b in pairs)
    return bool(
        pat.is_null(source)
        or (pat.is_date(target) and pat.is_timestamp(source) and source.tz is None)
        or (pat.is_integer(target) and pat.is_floating(source))
        or (pat.is_decimal(target) and pat.is_decimal(source))
    )


def convert_objects(df: pd.DataFrame, types: Mapping[str, pa.DataType]) -> dict[str, pa.ChunkedArray]:
    """Columns of Python objects for which Arrow would find another type than the stored one, or none."""
    converted = {}
    for name, dtype in df.dtypes.items():
        target = types.get(str(name))
        if target is None or not is_object_dtype(dtype) or not is_nested(target) or _contains_date(target):
            continue
        try:
            values = pa.array(df[name].to_numpy(), type=target, from_pandas=True)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue  # the type is found from the values then, and compared with the schema later
        is_chunked = isinstance(values, pa.ChunkedArray)  # as more than 2 GB of text are
        converted[str(name)] = values if is_chunked else pa.chunked_array([values])
    return converted


def _contains_date(dtype: pa.DataType) -> bool:
    """Whether there are dates at any depth, as which Arrow takes times without an error."""
    return pat.is_date(dtype) or any(_contains_date(dtype.field(i).type) for i in range(dtype.num_fields))
