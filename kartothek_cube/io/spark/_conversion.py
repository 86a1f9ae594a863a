"""Conversion of types (listed in ``docs/spark.rst``), tables and filters between Arrow and Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from kartothek_cube.core import arrow, expressions
from kartothek_cube.core.cube.condition_codec import next_prefix
from kartothek_cube.core.cube.conditions import C, Condition
from kartothek_cube.core.hooks import set_variable
from kartothek_cube.core.schema import find_remedy

#: digits that a decimal of Spark can have
_MAX_PRECISION = 38
#: advice about types that no dataset can hold
_REMEDIES: dict[str, str] = {
    "DayTimeIntervalType": "cast it to a number, for example cast('bigint')",
    "YearMonthIntervalType": "cast it to a number, for example cast('int')",
    "CalendarIntervalType": "cast it to 'string'",
    "VariantType": "cast it to 'string', or to a struct",
    "GeometryType": "convert it to binary with ST_AsBinary",
    "GeographyType": "convert it to binary with ST_AsBinary",
    "UserDefinedType": "select the fields that it consists of",
}

_TO_SPARK: dict[pa.DataType, st.DataType] = {
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    pa.int16(): st.ShortType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.timestamp("us"): st.TimestampNTZType(),
    pa.timestamp("us", "UTC"): st.TimestampType(),
}
_TO_ARROW = {spark_type: arrow_type for arrow_type, spark_type in _TO_SPARK.items()}
_TO_ARROW[st.NullType()] = pa.null()
# types that arrive in Spark as another type
_TO_SPARK |= {
    pa.uint8(): st.ShortType(),
    pa.uint16(): st.IntegerType(),
    pa.uint32(): st.LongType(),
    pa.uint64(): st.DecimalType(20, 0),
    pa.float16(): st.FloatType(),
    **dict.fromkeys((pa.large_string(), pa.string_view()), st.StringType()),
    **dict.fromkeys((pa.large_binary(), pa.binary_view()), st.BinaryType()),
    pa.date64(): st.DateType(),
}
#: type of columns of nulls in what Spark reads: many of its sinks refuse NullType
_NULLS = st.StringType()


# -- schemas -------------------------------------------------------------------------------------------------


def spark_schema(schema: pa.Schema, nulls: st.DataType = _NULLS) -> st.StructType:
    """The Spark schema of an Arrow schema; all columns may be null. `nulls` is the type of nulls only."""
    return st.StructType([st.StructField(f.name, _spark_type(f.type, f.name, nulls)) for f in schema])


def _spark_type(dtype: pa.DataType, column: str, nulls: st.DataType = _NULLS) -> st.DataType:
    inner = partial(_spark_type, nulls=nulls)
    spark_type = nulls if pat.is_null(dtype) else _TO_SPARK.get(dtype)
    if spark_type is not None:
        return spark_type
    if pat.is_dictionary(dtype) or pat.is_run_end_encoded(dtype):
        return inner(dtype.value_type, column)
    if pat.is_timestamp(dtype):
        return st.TimestampNTZType() if dtype.tz is None else st.TimestampType()
    if pat.is_time(dtype):
        return st.TimeType()
    if pat.is_decimal(dtype) and dtype.precision <= _MAX_PRECISION and dtype.scale >= 0:
        return st.DecimalType(dtype.precision, dtype.scale)
    if pat.is_fixed_size_binary(dtype):
        return st.BinaryType()
    if pat.is_map(dtype):
        return st.MapType(inner(dtype.key_type, column), inner(dtype.item_type, column))
    if pat.is_struct(dtype):
        return st.StructType([st.StructField(f.name, inner(f.type, f"{column}.{f.name}")) for f in dtype])
    if pat.is_list(dtype) or pat.is_large_list(dtype) or pat.is_fixed_size_list(dtype):
        return st.ArrayType(inner(dtype.value_type, column))
    raise TypeError(
        f"Column {column!r} of type {dtype} cannot be given to Spark; leave it out of the columns."
    )


def arrow_schema(schema: st.StructType, dataset: str | None = None) -> pa.Schema:
    """The Arrow schema in which Spark exchanges rows of a schema; errors name the dataset, if it is given."""
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, _arrow_type(field.dataType), field.nullable))
        except TypeError as error:
            where = "" if dataset is None else f" of dataset {dataset!r}"
            raise TypeError(
                f"Column {field.name!r}{where} has type {field.dataType.simpleString()}, "
                f"which cannot be stored: {error}."
            ) from None
    return pa.schema(fields)


def _arrow_type(dtype: st.DataType) -> pa.DataType:
    if isinstance(dtype, st.StringType | st.CharType | st.VarcharType):
        return pa.string()
    if isinstance(dtype, st.DecimalType):
        return pa.decimal128(dtype.precision, dtype.scale)
    if isinstance(dtype, st.TimeType):
        return pa.time64("ns")
    if isinstance(dtype, st.ArrayType):
        return pa.list_(pa.field("element", _arrow_type(dtype.elementType), dtype.containsNull))
    if isinstance(dtype, st.MapType):
        value = pa.field("value", _arrow_type(dtype.valueType), dtype.valueContainsNull)
        return pa.map_(pa.field("key", _arrow_type(dtype.keyType), nullable=False), value)
    if isinstance(dtype, st.StructType):
        return pa.struct([pa.field(f.name, _arrow_type(f.dataType), f.nullable) for f in dtype])
    if dtype in _TO_ARROW:
        return _TO_ARROW[dtype]
    kinds = [base.__name__ for base in type(dtype).__mro__]
    raise TypeError(next((_REMEDIES[kind] for kind in kinds if kind in _REMEDIES), "cast or drop it"))


def check_types(schema: st.StructType, dataset: str, stored: Mapping[str, pa.DataType]) -> pa.Table:
    """Check that a dataset can hold the columns of a frame; a table without rows in the types to store."""
    return to_storage_types(arrow_schema(schema, dataset).empty_table(), stored)


def _find_spark_remedy(name: str, stored: pa.DataType, given: pa.DataType) -> str:
    """Advice on a cast of a column of a Spark DataFrame to the stored type."""
    column, target = f'F.col("{name}")', _spark_type(stored, name).simpleString()
    if pat.is_integer(stored) and pat.is_floating(given):
        return f'widen payload with update_schema, or {column}.cast("{target}") if all are whole numbers'
    if pat.is_timestamp(stored) and pat.is_timestamp(given):
        return f'{column}.cast("{target}"), in the time zone of the session'
    if pat.is_floating(stored) and pat.is_integer(given):
        return f'{column}.cast("{target}"), which rounds integers beyond 2**53'
    return f'{column}.cast("{target}")'


#: context manager or decorator: messages about schemas say what to do in Spark
spark_remedies = partial(set_variable, find_remedy, _find_spark_remedy)


# -- data ----------------------------------------------------------------------------------------------------


def to_spark(table: pa.Table, target: pa.Schema) -> pa.Table:
    """Rows in the types of :func:`arrow_schema`."""
    names = set(table.column_names)
    missing = [name for name in target.names if name not in names]
    if missing:
        raise ValueError(f"Column(s) missing in the rows for Spark: {', '.join(missing)}.")
    columns = [_convert_column(table.column(field.name), field) for field in target]
    return pa.Table.from_arrays(columns, schema=target)


def _convert_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    source, target = column.type, field.type
    if pat.is_floating(source):
        nan = pc.is_nan(column)
        if pc.any(nan).as_py():
            column = pc.if_else(nan, None, column)
    if column.null_count and not field.nullable:
        # Spark fails in Java where it reads them, and counts them as values
        raise ValueError(f"Column {field.name!r} has nulls, but the schema says NOT NULL.")
    if source.equals(target):
        return column
    try:
        result = column.cast(target)
        # Arrow rounds without an error
        if pat.is_float32(target) and pat.is_float64(source) and not result.cast(source).equals(column):
            raise pa.ArrowInvalid("numbers have more digits")
    except pa.ArrowException as error:
        if not (pat.is_timestamp(source) and source.unit == "ns" and pat.is_timestamp(target)):
            raise ValueError(
                f"Column {field.name!r} of type {source} cannot be given to Spark as {target}: {error}"
            ) from error
        # rounded down, also before 1970: filters rely on it; in UTC, as Arrow fails near the limits elsewhere
        whole = pc.floor_temporal(column.cast(pa.timestamp("ns")), unit="microsecond")
        result = whole.cast(pa.timestamp("us", source.tz)).cast(target)
    return result


def to_storage_types(table: pa.Table, stored: Mapping[str, pa.DataType]) -> pa.Table:
    """Rows in the types that are stored: zoned timestamps in UTC, or in the zone of the stored column."""
    # timestamps without zone become dates, and decimals have the digits of the stored column, if no value
    # changes: a table of pandas has timestamps for dates, a decimal without schema has 38 digits in Spark
    columns = {}
    for position, field in enumerate(table.schema):
        target = _storage_target(field.type, stored.get(field.name))
        if not target.equals(field.type):
            try:
                column = table.column(position).cast(target)
                # Arrow drops the time of day
                if pat.is_date(target) and not column.cast(field.type).equals(table.column(position)):
                    raise pa.ArrowInvalid("there are times of day; convert it by to_date()")
            except pa.ArrowException as error:
                raise ValueError(
                    f"Column {field.name!r} of type {field.type} does not fit the stored {target}: {error}"
                ) from error
            columns[position] = column
    return arrow.replace_columns(table, columns)


def _storage_target(dtype: pa.DataType, stored: pa.DataType | None = None) -> pa.DataType:
    if arrow.has_zone(dtype):
        return pa.timestamp(dtype.unit, stored.tz if stored is not None and arrow.has_zone(stored) else "UTC")
    # zoned timestamps in nested types become those of UTC: Spark gives them the time zone of the session
    if pat.is_nested(dtype):
        return arrow.rebuild_nested(dtype, _storage_target)
    if stored is None:
        return dtype
    if pat.is_unsigned_integer(stored):
        is_converted = pat.is_integer(dtype) or (pat.is_decimal(dtype) and dtype.scale == 0)
    elif pat.is_decimal(stored):
        is_converted = pat.is_decimal(dtype)
    else:
        is_converted = pat.is_date(stored) and pat.is_timestamp(dtype)
    return stored if is_converted else dtype


# -- filters -------------------------------------------------------------------------------------------------

#: Spark knows microseconds, the library nanoseconds; Spark sees times rounded down
_MICROSECOND = pd.Timedelta(1, "us")
#: Spark hands decimals over rounded to 28 digits: those that have as many may be others
_MAX_DIGITS = 28
#: and the days that the Gregorian calendar left out, 1582-10-05 to 1582-10-14, as the one that followed
_FIRST_GREGORIAN_DAY = date(1582, 10, 15).toordinal()
#: "not in" becomes one condition per value
_MANY = 100

COMPARISONS: Mapping[type, Callable[[Any, Any], Condition]] = {
    ds.EqualTo: lambda c, v: c == v,
    ds.EqualNullSafe: lambda c, v: c == v,
    ds.GreaterThan: lambda c, v: c > v,
    ds.GreaterThanOrEqual: lambda c, v: c >= v,
    ds.LessThan: lambda c, v: c < v,
    ds.LessThanOrEqual: lambda c, v: c <= v,
}


def to_conditions(filters: Sequence[ds.Filter], schema: pa.Schema) -> tuple[list[Condition], list[ds.Filter]]:
    """Conditions that follow from filters, and the filters that Spark still has to evaluate."""
    conditions: list[Condition] = []
    remaining_filters: list[ds.Filter] = []
    for item in filters:
        translated, same = _translate(item, schema)
        conditions += translated
        if not same and not isinstance(item, ds.IsNotNull):
            remaining_filters.append(item)
    # no condition matches a null
    valid = {condition.column for condition in conditions}
    nullable = [f for f in filters if isinstance(f, ds.IsNotNull) and _column(f) not in valid]
    return conditions, remaining_filters + nullable


def _column(item: ds.Filter) -> str:
    path: tuple[str, ...] = getattr(item, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _translate(item: ds.Filter, schema: pa.Schema) -> tuple[list[Condition], bool]:
    """Conditions that follow from a filter, and whether they are equivalent to it."""
    inner = item.child if isinstance(item, ds.Not) else item
    column = _column(inner)
    if column not in schema.names:
        return [], False
    translate = _translate_plain if inner is item else _translate_negated
    try:
        conditions, same = translate(inner, column, schema.field(column).type)
        expressions.bind([condition.predicate_part for condition in conditions], schema)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        return [], False
    return conditions, same


def _translate_plain(item: ds.Filter, column: str, dtype: pa.DataType) -> tuple[list[Condition], bool]:
    if isinstance(item, ds.StringStartsWith) and pat.is_string(dtype):
        return _prefix(column, item.value), False
    if isinstance(item, ds.In):
        values = [_value(v, dtype) for v in item.value if v is not None]
        if not values:
            return [], False
        if pat.is_timestamp(dtype):
            return [C(column) >= min(values), C(column) < max(values) + _MICROSECOND], False
        return [C(column).isin(values)], True
    compare, operand = COMPARISONS.get(type(item)), getattr(item, "value", None)
    if compare is None or operand is None:
        return [], False
    value = _value(operand, dtype)
    if pat.is_timestamp(dtype):
        return _instant(type(item), column, value), True
    return [compare(C(column), value)], True


def _translate_negated(item: ds.Filter, column: str, dtype: pa.DataType) -> tuple[list[Condition], bool]:
    if pat.is_timestamp(dtype) or not isinstance(item, ds.EqualTo | ds.In):
        return [], False
    values = [item.value] if isinstance(item, ds.EqualTo) else list(item.value)
    if len(values) > _MANY or any(value is None for value in values):
        return [], False
    return [C(column) != _value(value, dtype) for value in values], True


def _value(value: Any, dtype: pa.DataType) -> Any:
    """A value of Spark in the type of the column; ValueError where it cannot be compared like that."""
    if isinstance(value, Decimal) and len(value.as_tuple().digits) >= _MAX_DIGITS:
        raise ValueError(value)
    if isinstance(value, date) and value.toordinal() <= _FIRST_GREGORIAN_DAY:
        raise ValueError(value)
    if pat.is_integer(dtype) and isinstance(value, Decimal):
        if value != value.to_integral_value():
            raise ValueError(value)
        return int(value)
    if pat.is_timestamp(dtype):
        stamp = pd.Timestamp(value)
        return stamp if dtype.tz is None else stamp.tz_convert(dtype.tz)
    if isinstance(value, float) and value != value:
        raise ValueError("NaN is equal to nothing here, and to itself in Spark")
    if pat.is_float32(dtype):
        # py4j hands it over as its shortest text
        return float(np.float32(value))
    return value


def _instant(kind: type, column: str, value: pd.Timestamp) -> list[Condition]:
    """A comparison of times that Spark sees rounded down to microseconds."""
    c, after = C(column), value + _MICROSECOND
    inequalities: dict[type, Condition] = {
        ds.GreaterThanOrEqual: c >= value,
        ds.LessThan: c < value,
        ds.GreaterThan: c >= after,
        ds.LessThanOrEqual: c < after,
    }
    return [inequalities[kind]] if kind in inequalities else [c >= value, c < after]


def _prefix(column: str, prefix: str) -> list[Condition]:
    """A range that contains all texts with a prefix; Spark evaluates the rest."""
    if not prefix:
        return []
    after = next_prefix(prefix)
    return [C(column) >= prefix, *([] if after is None else [C(column) < after])]
