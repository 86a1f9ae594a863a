"""Conversion of types and tables between Arrow and Spark.

========================  =====================  ==============================================
Arrow                     Spark                  remarks
========================  =====================  ==============================================
int8 ... int64            byte ... long          schemas know int64 only, headers the width in files
uint8, uint16, uint32     short, int, long       the next wider type
uint64                    decimal(20, 0)         as in Spark's own Parquet reader
float, double             float, double          NaN becomes null: datasets tell them not apart
string, dictionary, null  string                 all flavours of strings
timestamp without zone    timestamp_ntz          whole microseconds, as all of Spark's
timestamp with zone       timestamp              an instant, stored in UTC
date, bool, decimal       date, boolean, decimal
time                      time                   Spark 4 knows it in sessions with ``register()``
binary, list, struct,     binary, array,
map                       struct, map
========================  =====================  ==============================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyspark.sql import types as st

from kartothek_cube.core.arrow.arrays import replace_columns
from kartothek_cube.core.schema.wrapper import find_remedy

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

_EXACT: tuple[tuple[pa.DataType, st.DataType], ...] = (
    (pa.bool_(), st.BooleanType()),
    (pa.int8(), st.ByteType()),
    (pa.int16(), st.ShortType()),
    (pa.int32(), st.IntegerType()),
    (pa.int64(), st.LongType()),
    (pa.float32(), st.FloatType()),
    (pa.float64(), st.DoubleType()),
    (pa.string(), st.StringType()),
    (pa.binary(), st.BinaryType()),
    (pa.date32(), st.DateType()),
    (pa.timestamp("us"), st.TimestampNTZType()),
    (pa.timestamp("us", "UTC"), st.TimestampType()),
)
_TO_SPARK: dict[pa.DataType, st.DataType] = dict(_EXACT)
_TO_SPARK.update(
    {
        pa.uint8(): st.ShortType(),
        pa.uint16(): st.IntegerType(),
        pa.uint32(): st.LongType(),
        pa.uint64(): st.DecimalType(20, 0),
        pa.float16(): st.FloatType(),
        pa.null(): st.StringType(),
        pa.large_string(): st.StringType(),
        pa.string_view(): st.StringType(),
        pa.large_binary(): st.BinaryType(),
        pa.binary_view(): st.BinaryType(),
        pa.date64(): st.DateType(),
    }
)


# -- schemas -------------------------------------------------------------------------------------------------


def spark_schema(schema: pa.Schema) -> st.StructType:
    """
    The Spark schema of an Arrow schema; all columns may be null.

    >>> spark_schema(pa.schema([("CITY", pa.large_string()), ("DAY", pa.timestamp("ns"))])).simpleString()
    'struct<CITY:string,DAY:timestamp_ntz>'
    """
    return st.StructType([st.StructField(f.name, _spark_type(f.type, f.name)) for f in schema])


def _spark_type(dtype: pa.DataType, column: str) -> st.DataType:
    spark_type = _TO_SPARK.get(dtype)
    if spark_type is not None:
        return spark_type
    if pat.is_dictionary(dtype) or pat.is_run_end_encoded(dtype):
        return _spark_type(dtype.value_type, column)
    if pat.is_timestamp(dtype):
        return st.TimestampNTZType() if dtype.tz is None else st.TimestampType()
    if pat.is_time(dtype):
        return st.TimeType()
    if pat.is_decimal(dtype) and dtype.precision <= _MAX_PRECISION and dtype.scale >= 0:
        return st.DecimalType(dtype.precision, dtype.scale)
    if pat.is_fixed_size_binary(dtype):
        return st.BinaryType()
    return _spark_nested(dtype, column)


def _spark_nested(dtype: pa.DataType, column: str) -> st.DataType:
    if pat.is_map(dtype):
        return st.MapType(_spark_type(dtype.key_type, column), _spark_type(dtype.item_type, column))
    if pat.is_struct(dtype):
        return st.StructType(
            [st.StructField(f.name, _spark_type(f.type, f"{column}.{f.name}")) for f in dtype]
        )
    if pat.is_list(dtype) or pat.is_large_list(dtype) or pat.is_fixed_size_list(dtype):
        return st.ArrayType(_spark_type(dtype.value_type, column))
    raise TypeError(
        f"Column {column!r} of type {dtype} cannot be given to Spark; leave it out of the columns."
    )


class _UnsupportedTypeError(TypeError):
    """A type that Arrow does not have; the text is what to do about it."""

    def __init__(self, dtype: st.DataType) -> None:
        bases = {base.__name__ for base in type(dtype).__mro__}
        super().__init__(next((text for kind, text in _REMEDIES.items() if kind in bases), "cast or drop it"))


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """
    The Arrow schema in which Spark exchanges rows of a schema.

    >>> arrow_schema(st.StructType().add("CITY", "string").add("DAY", "timestamp")).types
    [DataType(string), TimestampType(timestamp[us, tz=UTC])]
    """
    return pa.schema([pa.field(f.name, _arrow_type(f.dataType), f.nullable) for f in schema])


def _arrow_type(dtype: st.DataType) -> pa.DataType:
    if isinstance(dtype, st.StringType | st.CharType | st.VarcharType):
        return pa.string()
    if isinstance(dtype, st.NullType):
        return pa.null()
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
    for arrow_type, spark_type in _EXACT:
        if spark_type == dtype:
            return arrow_type
    raise _UnsupportedTypeError(dtype)


def check_types(schema: st.StructType, dataset: str) -> None:
    """
    Check that a dataset can hold the columns of a frame.

    >>> check_types(st.StructType().add("SINCE", "interval year"), "seed")
    Traceback (most recent call last):
    ...
    TypeError: Column 'SINCE' of dataset 'seed' has type interval year, which cannot be stored: cast it ...
    """
    for field in schema:
        try:
            _arrow_type(field.dataType)
        except _UnsupportedTypeError as error:
            raise TypeError(
                f"Column {field.name!r} of dataset {dataset!r} has type {field.dataType.simpleString()}, "
                f"which cannot be stored: {error}."
            ) from None


def _find_spark_remedy(name: str, stored: pa.DataType, given: pa.DataType) -> str:
    """How to make a column of a Spark DataFrame the type that is stored."""
    column, target = f'F.col("{name}")', _spark_type(stored, name).simpleString()
    if pat.is_integer(stored) and pat.is_floating(given):
        return f'F.round({column}).cast("{target}"), or widen payload with update_schema'
    if pat.is_timestamp(stored) and pat.is_timestamp(given):
        return f'{column}.cast("{target}"), in the time zone of the session'
    return f'{column}.cast("{target}")'


@contextmanager
def spark_remedies() -> Iterator[None]:
    """Messages about schemas say what to do in Spark."""
    token = find_remedy.set(_find_spark_remedy)
    try:
        yield
    finally:
        find_remedy.reset(token)


# -- data ----------------------------------------------------------------------------------------------------


def to_spark(table: pa.Table, target: pa.Schema) -> pa.Table:
    """
    Rows in the types of :func:`arrow_schema`.

    >>> table = pa.table({"CITY": pa.array(["Bonn"]).dictionary_encode(), "TEMP": [float("nan")]})
    >>> to_spark(table, pa.schema([("CITY", pa.string()), ("TEMP", pa.float64())])).to_pylist()
    [{'CITY': 'Bonn', 'TEMP': None}]
    """
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
    if source.equals(target):
        return column
    try:
        if pat.is_timestamp(source) and source.unit == "ns" and pat.is_timestamp(target):
            return _whole_microseconds(column).cast(target)
        result = column.cast(target)
        # Arrow rounds without an error
        if pat.is_float32(target) and pat.is_float64(source) and not result.cast(source).equals(column):
            raise pa.ArrowInvalid("numbers have more digits")
        return result
    except pa.ArrowException as error:
        raise ValueError(
            f"Column {field.name!r} of type {source} cannot be given to Spark as {target}: {error}"
        ) from error


def _whole_microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Instants rounded down, also before 1970: filters rely on it."""
    target = pa.timestamp("us", column.type.tz)
    try:
        return column.cast(target)
    except pa.ArrowInvalid:
        numbers = column.cast(pa.int64())
        remainder = pc.subtract(numbers, pc.multiply(pc.divide(numbers, 1000), 1000))
        down = pc.if_else(pc.less(remainder, 0), pc.add(remainder, 1000), remainder)
        return pc.subtract(numbers, down).cast(column.type).cast(target)


def to_storage_types(table: pa.Table, stored: Mapping[str, pa.DataType]) -> pa.Table:
    """
    Rows in the types that are stored: zoned timestamps in UTC, or in the zone of the stored column.

    Timestamps without zone become dates, and decimals have the digits of the stored column, if no value
    changes: a table of pandas has timestamps for dates, and a decimal without schema has 38 digits in Spark.

    >>> tokyo = pa.table({"AT": pa.array([0], pa.timestamp("us", "Asia/Tokyo"))})
    >>> to_storage_types(tokyo, {}).schema.types
    [TimestampType(timestamp[us, tz=UTC])]
    """
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
    return replace_columns(table, columns)


def _storage_target(dtype: pa.DataType, stored: pa.DataType | None) -> pa.DataType:
    if pat.is_timestamp(dtype) and dtype.tz is not None:
        zone = stored.tz if stored is not None and pat.is_timestamp(stored) and stored.tz else "UTC"
        return pa.timestamp(dtype.unit, zone)
    if pat.is_nested(dtype):
        return _nested_in_utc(dtype)
    return stored if stored is not None and _is_converted(dtype, stored) else dtype


def _nested_in_utc(dtype: pa.DataType) -> pa.DataType:
    """The type with all zoned timestamps in it in UTC: Spark gives them the time zone of the session."""
    if pat.is_timestamp(dtype) and dtype.tz is not None:
        return pa.timestamp(dtype.unit, "UTC")
    if pat.is_map(dtype):
        key, item = (f.with_type(_nested_in_utc(f.type)) for f in (dtype.key_field, dtype.item_field))
        return pa.map_(key, item)
    if pat.is_list(dtype):
        return pa.list_(dtype.value_field.with_type(_nested_in_utc(dtype.value_type)))
    if pat.is_struct(dtype):
        return pa.struct([field.with_type(_nested_in_utc(field.type)) for field in dtype])
    return dtype


def _is_converted(dtype: pa.DataType, stored: pa.DataType) -> bool:
    """Whether rows of a type become those of a stored one."""
    if pat.is_unsigned_integer(stored):
        return bool(pat.is_integer(dtype) or (pat.is_decimal(dtype) and dtype.scale == 0))
    if pat.is_decimal(stored):
        return bool(pat.is_decimal(dtype))
    return bool(pat.is_date(stored) and pat.is_timestamp(dtype))
