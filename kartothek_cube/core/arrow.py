"""Arrow: types, arrays and tables; conversion of values and columns to a type."""

from __future__ import annotations

import base64
import datetime
import decimal
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core.errors import abbreviate_text

T = TypeVar("T")

_STRINGS = {pa.large_string(), pa.string_view()}
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
#: types of Python that pandas takes for objects, or not at all
_PYTHON_TYPES = {
    str: pa.string(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us"),
    datetime.time: pa.time64("us"),
    datetime.timedelta: pa.duration("us"),
}

TypeInput: TypeAlias = pa.DataType | str | type | np.dtype[Any] | pd.api.extensions.ExtensionDtype
"""A type of Arrow, pandas, NumPy or Python, or its name (``"float64"``)."""


def parse_type(given: TypeInput) -> pa.DataType:
    """Arrow type of a type of Arrow, pandas, NumPy or Python, or of its name; raises TypeError."""
    dtype: Any = given
    try:
        if isinstance(dtype, str):
            # else a name of pandas
            with suppress(ValueError):
                dtype = pa.type_for_alias(dtype)
        if isinstance(dtype, type):
            dtype = _PYTHON_TYPES.get(dtype, dtype)
        if not isinstance(dtype, pa.DataType):
            dtype = pa.Array.from_pandas(pd.Series([], dtype=dtype)).type
    except (TypeError, ValueError, NotImplementedError):
        dtype = pa.null()
    # `object` and `category` of pandas have no type of their values
    if pat.is_null(dtype.value_type if pat.is_dictionary(dtype) else dtype):
        problem = f"a type is one of Arrow, pandas or NumPy, or its name, such as 'int64', but not {given!r}"
        raise TypeError(problem)
    return dtype


@lru_cache(maxsize=1024)
def widen(t: pa.DataType) -> pa.DataType:
    """Widest type of the same kind: the type of schemas and indices, whatever the width in a file."""
    if pat.is_signed_integer(t):
        return pa.int64()
    if pat.is_unsigned_integer(t):
        return pa.uint64()
    if pat.is_floating(t):
        return pa.float64()
    if pat.is_time(t):
        return pa.time64("us")
    if pat.is_fixed_size_binary(t):
        return pa.binary()
    return t if _is_far(t) else _rebuild(t, widen)


@lru_cache(maxsize=1024)
def storage_type(t: pa.DataType) -> pa.DataType:
    """Type under which values are written: the same width, in a flavour that kartothek reads."""
    if pat.is_float16(t):
        return pa.float32()
    if pat.is_time(t):
        return pa.time64("us")
    return _rebuild(t, storage_type)


@lru_cache(maxsize=1024)
def memory_type(t: pa.DataType, *, dates_as_object: bool = True, date_unit: str = "ns") -> pa.DataType:
    """Type in which values are passed to pandas: the storage type, dates as timestamps if requested."""
    inner = partial(memory_type, dates_as_object=dates_as_object, date_unit=date_unit)
    if pat.is_dictionary(t) or pat.is_run_end_encoded(t):
        return inner(t.value_type)
    if pat.is_date(t) and not dates_as_object:
        return pa.timestamp(date_unit)
    if not pat.is_nested(t):
        return t if _is_far(t) else storage_type(t)
    return _rebuild(t, inner)


@lru_cache(maxsize=1024)
def decoded_type(t: pa.DataType) -> pa.DataType:
    """Type of the values, in a flavour that Arrow casts and combines: without dictionaries and views."""
    if pat.is_dictionary(t) or pat.is_run_end_encoded(t):
        return decoded_type(t.value_type)
    if t in _VIEWS:
        return _VIEWS[t]
    if pat.is_map(t):
        keys = decoded_type(t.key_type)
        return pa.map_(storage_type(keys) if is_long(keys) else keys, decoded_type(t.item_type))
    return rebuild_nested(t, decoded_type) if pat.is_nested(t) else t


def number_bits(t: pa.DataType) -> int:
    """Bits of a number, or of the numbers in a list; 0 for other types."""
    while pat.is_list(t):
        t = t.value_type
    return t.bit_width if pat.is_integer(t) or pat.is_floating(t) else 0


def with_number_bits(t: pa.DataType, width: int) -> pa.DataType:
    """The type of the same kind whose numbers have so many bits; types without numbers are unchanged."""
    if pat.is_list(t):
        return pa.list_(t.value_field.with_type(with_number_bits(t.value_type, width)))
    if pat.is_floating(t):
        return pa.type_for_alias(f"float{width}")
    if pat.is_integer(t):
        return pa.type_for_alias(f"int{width}" if pat.is_signed_integer(t) else f"uint{width}")
    return t


def same_type(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether two types are equal but for width, string flavour, time unit and dictionary encoding."""
    return bool(storage_type(widen(a)).equals(storage_type(widen(b))))


# Timestamps of files are microseconds, which schemas and memory have as nanoseconds, as kartothek does. A
# column with values outside of their range, such as 9999-12-31, is ``timestamp[us]`` there, too.


def _is_far(t: pa.DataType) -> bool:
    return bool(pat.is_timestamp(t) and t.unit == "us")


@lru_cache(maxsize=1024)
def has_far_times(t: pa.DataType) -> bool:
    """Whether a type has timestamps in microseconds, at any depth."""
    return contains_type(t, _is_far)


@lru_cache(maxsize=1024)
def with_far_times(t: pa.DataType) -> pa.DataType:
    """The storage type with all its timestamps in microseconds."""
    t = storage_type(t)
    if pat.is_timestamp(t):
        return pa.timestamp("us", t.tz)
    return rebuild_nested(t, with_far_times) if pat.is_nested(t) else t


def has_zone(t: pa.DataType) -> bool:
    """Whether values of a type are times with a zone."""
    return bool(pat.is_timestamp(t) and t.tz)


def with_zone_of(t: pa.DataType, stored: pa.DataType) -> pa.DataType:
    """The type of times in the zone of a stored column: the same instants; times without zone are of UTC."""
    return pa.timestamp(t.unit, stored.tz) if pat.is_timestamp(t) and pat.is_timestamp(stored) else t


@lru_cache(maxsize=1024)
def without_zones(t: pa.DataType) -> pa.DataType:
    """The type with all its timestamps without a zone."""
    if pat.is_timestamp(t):
        return pa.timestamp(t.unit)
    return rebuild_nested(t, without_zones) if contains_type(t, has_zone) else t


def with_known_types(t: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type with those of another one where it has nulls only, at any depth, as in empty lists."""
    if pat.is_null(t):
        return other
    if not pat.is_nested(t):
        return t
    if pat.is_struct(t) and pat.is_struct(other) and [f.name for f in t] == [f.name for f in other]:
        return pa.struct(
            [a.with_type(with_known_types(a.type, b.type)) for a, b in zip(t, other, strict=True)]
        )
    if pat.is_map(t) and pat.is_map(other):
        keys = with_known_types(t.key_type, other.key_type)
        return pa.map_(keys, with_known_types(t.item_type, other.item_type))
    if pat.is_list(t) and pat.is_list(other):
        return pa.list_(t.value_field.with_type(with_known_types(t.value_type, other.value_type)))
    return t


def same_but_nulls(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether two types are the same (`same_type`), or one has nulls only where they differ."""
    return same_type(with_known_types(a, b), with_known_types(b, a))


def common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type of a column that has the same type in two schemas, but for nulls and times."""
    a, b = with_known_types(a, b), with_known_types(b, a)
    return with_far_times(a) if has_far_times(b) and same_type(a, b) else a


def is_long(t: pa.DataType) -> bool:
    """Whether a type is ``large_string`` or ``large_binary``."""
    return bool(pat.is_large_string(t) or pat.is_large_binary(t))


def is_text(t: pa.DataType) -> bool:
    """Whether values of a type are texts, also dictionary-encoded ones."""
    value_type = t.value_type if pat.is_dictionary(t) else t
    return bool(value_type in (*_STRINGS, pa.string()))


def is_packable(t: pa.DataType) -> bool:
    """Whether Parquet can store values of a type as bit-packed differences."""
    return bool(pat.is_integer(t) or pat.is_timestamp(t) or pat.is_date32(t))


def contains_type(t: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type is of a kind, or contains one of it at any depth."""
    return is_kind(t) or any(contains_type(t.field(number).type, is_kind) for number in range(t.num_fields))


def _rebuild(t: pa.DataType, inner: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Normalise the flavour of a type and apply `inner` to the types it contains."""
    if isinstance(t, pa.BaseExtensionType):
        return inner(t.storage_type)
    if pat.is_dictionary(t) or pat.is_run_end_encoded(t):
        return inner(t.value_type)
    if t in _STRINGS:
        return pa.string()
    if t in (pa.large_binary(), pa.binary_view()):
        return pa.binary()
    if pat.is_timestamp(t):
        return pa.timestamp("ns", t.tz)
    if pat.is_date(t):
        return pa.date32()
    if pat.is_decimal(t):
        return t if pat.is_decimal256(t) else pa.decimal128(t.precision, t.scale)
    return rebuild_nested(t, inner) if pat.is_nested(t) else t


def rebuild_nested(t: pa.DataType, inner: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The nested type of converted types; all kinds of lists become one, unions stay."""
    if pat.is_map(t):
        return pa.map_(inner(t.key_type), inner(t.item_type))
    if pat.is_struct(t):
        return pa.struct([pa.field(f.name, inner(f.type)) for f in t])
    if pat.is_union(t):
        return t
    return pa.list_(inner(t.value_type))


class ArrowStream(Protocol):
    """Tables of other libraries, such as polars, that Arrow reads without a copy."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hand out a stream of record batches."""


Frame: TypeAlias = pd.DataFrame | pa.Table | pa.RecordBatch | ArrowStream
"""A table of input."""


#: positions, codes, counts; bytes and other weights
Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
#: selection: one bool per row, value or partition
Mask: TypeAlias = npt.NDArray[np.bool_]


def label_array(labels: Iterable[str] | pa.Array | pa.ChunkedArray) -> pa.StringArray:
    """Partition labels as one Arrow string array; raises TypeError for anything but text."""
    if isinstance(labels, str):
        labels = [labels]
    if isinstance(labels, pa.ChunkedArray):
        labels = labels.combine_chunks()
    if not isinstance(labels, pa.Array):
        texts = list(labels)
        invalid_types = set(map(type, texts)) - {str, np.str_}
        if invalid_types:
            raise TypeError(
                f"Partition labels have to be str, not {', '.join(sorted(t.__name__ for t in invalid_types))}"
            )
        labels = pa.array(texts, pa.string())
    if labels.null_count:
        raise TypeError("Partition labels have to be str, not null")
    return labels if labels.type.equals(pa.string()) else labels.cast(pa.string())


def lookup(needles: pa.Array, haystack: pa.Array) -> Ints:
    """Position of the first occurrence of each needle in the haystack, -1 if absent."""
    if needles is haystack:
        return np.arange(len(needles), dtype=np.int64)
    return to_numpy(pc.index_in(needles, value_set=haystack).fill_null(-1)).astype(np.int64)


def to_numpy(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Numpy array of an Arrow array, copied only if its layout differs."""
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


def is_null(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Mask of nulls, including NaN."""
    # Arrow 23 finds no nulls and NaN among the values of a dictionary.
    values = values.cast(values.type.value_type) if pat.is_dictionary(values.type) else values
    return pc.is_null(values, nan_is_null=True)


def count_nulls(values: pa.Array | pa.ChunkedArray) -> int:
    """Number of nulls, including NaN."""
    if not (pat.is_floating(values.type) or pat.is_dictionary(values.type)):
        return int(values.null_count)
    return int(pc.sum(is_null(values)).as_py() or 0)


def normalize_zeros(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Floats with 0.0 for -0.0, which are one value but two bit patterns; other values unchanged."""
    return pc.add(values, pa.scalar(0.0, values.type)) if pat.is_floating(values.type) else values


def category_values(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Values to encode as categories: of floats, pandas has one zero among these, and NaN is missing."""
    if not pat.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), normalize_zeros(values))


def encode_schema(schema: pa.Schema) -> str:
    """A schema as text."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Reverse :func:`encode_schema`; raises ValueError or OSError."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def zero_column_table(length: int) -> pa.Table:
    """Rows without columns."""
    # most other ways to make such a table lose the number of rows
    return pa.table({"_": pa.nulls(length)}).select([])


def compact_buffers(array: Any) -> Any:
    """Copy an array whose buffers are larger than its values."""
    # A pickled slice contains the buffers of its whole parent.
    if array.get_total_buffer_size() <= array.nbytes + 1024:
        return array
    return array.take(pa.array(np.arange(len(array))))


def copy_to_arrow_memory(content: bytes | bytearray | memoryview) -> pa.Buffer:
    """Copy bytes to memory of Arrow, for readers that use Arrow's threads."""
    # A thread that finishes last releases the buffer. For memory of Python, it needs the interpreter's lock,
    # and aborts the process (SIGABRT) if the interpreter exits at this moment.
    buffer = pa.allocate_buffer(memoryview(content).nbytes)
    memoryview(buffer).cast("B")[:] = memoryview(content).cast("B")
    return buffer


@lru_cache(maxsize=1024)
def _breaks_casts(t: pa.DataType) -> bool:
    """Whether a type contains list views or run-end encoded values, or encodes some, at any depth."""
    # Arrow (26) casts list views as if their offsets were those of lists, which gives other values or ends
    # the process; it does not cast run-end encoded values, nor decode dictionaries of string views.
    if pat.is_list_view(t) or pat.is_large_list_view(t) or pat.is_run_end_encoded(t):
        return True
    if isinstance(t, pa.BaseExtensionType):
        return _breaks_casts(t.storage_type)
    if pat.is_dictionary(t):
        return _has_views(t.value_type) or _breaks_casts(t.value_type)
    # a cast of such keys ends the process before pyarrow 26
    if pat.is_map(t) and is_long(t.key_type):
        return True
    return any(_breaks_casts(t.field(number).type) for number in range(t.num_fields))


@lru_cache(maxsize=1024)
def _has_views(t: pa.DataType) -> bool:
    """Whether a type contains views of strings or bytes, at any depth."""
    return contains_type(t, _VIEWS.__contains__)


def convert_layouts(table: pa.Table) -> pa.Table:
    """Convert views to lists and strings, and run-end encoded values to plain ones."""
    columns = {}
    for position, field in enumerate(table.schema):
        column, plain = table.column(position), decoded_type(field.type)
        if pat.is_dictionary(field.type) and field.type.value_type in _VIEWS:
            # as Polars has categories
            chunks = [chunk.dictionary.cast(plain).take(chunk.indices) for chunk in column.chunks]
            columns[position] = pa.chunked_array(chunks, plain)
        elif _breaks_casts(field.type):
            columns[position] = pa.chunked_array([pa.array(column.to_pylist(), plain)])
        elif _has_views(field.type):
            columns[position] = column.cast(plain)
    return replace_columns(table, columns)


def replace_columns(table: pa.Table, columns: Mapping[int, pa.ChunkedArray]) -> pa.Table:
    """Table with other columns at some positions."""
    if not columns:
        return table
    fields = [
        pa.field(field.name, columns[position].type) if position in columns else field
        for position, field in enumerate(table.schema)
    ]
    arrays = [columns.get(position, column) for position, column in enumerate(table.columns)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, table.schema.metadata))


def concat_promoted(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of several tables, with the widest type of each column."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowInvalid:
        # Arrow takes the finest unit, which has the smallest range
        types = {f.name: f.type for table in tables for f in table.schema if has_far_times(f.type)}
        if not types:
            raise
        far = []
        for table in tables:
            fields = [f.with_type(common_type(f.type, types.get(f.name, f.type))) for f in table.schema]
            far.append(table.cast(pa.schema(fields, table.schema.metadata)))
        return pa.concat_tables(far, promote_options="permissive")


def promotes_to(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether rows of two types have the second one together (`concat_promoted`)."""
    schemas = [pa.schema([pa.field("column", t)]) for t in (narrow, wide)]
    try:
        united = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException:
        return False
    return same_type(united.types[0], wide)


def append_columns(table: pa.Table, columns: Iterable[tuple[str, pa.Array | pa.ChunkedArray]]) -> pa.Table:
    """Table with more columns at the end."""
    added = dict(columns)
    if not added:
        return table
    fields = [*table.schema, *(pa.field(name, column.type) for name, column in added.items())]
    schema = pa.schema(fields, table.schema.metadata)
    return pa.Table.from_arrays([*table.columns, *added.values()], schema=schema)


def describe(value: object) -> str:
    """Shortened value and its type for a message, without numpy's ``np.int64(1)``."""
    plain = value.item() if isinstance(value, (np.number, np.bool_, np.str_, np.bytes_)) else value
    return f"{abbreviate_text(repr(plain), 100)} (type {type(value).__name__})"


def normalize_value(dtype: pa.DataType | None, value: Any) -> Any:
    """Python form of a value in a column of a type, lenient as index look-ups are ("1" for 1)."""
    if dtype is None:
        problem = "Cannot normalise a value for a column whose type is not known; load the schema first."
        raise ValueError(problem)
    wide = widen(dtype)
    convert = next((convert for matches, convert in _CONVERTERS if matches(wide)), None)
    if convert is None:
        problem = f"Columns of type {dtype} cannot be indexed, so there is no normal form of their values."
        raise NotImplementedError(problem)
    try:
        return convert(wide, value)
    except (ValueError, ArithmeticError) as error:
        hint = ": write it as in ISO 8601, the year first" if pat.is_temporal(wide) else ""
        raise ValueError(f"{describe(value)} is no value of type {wide}{hint}.") from error
    except TypeError as error:
        raise TypeError(f"{describe(value)} cannot be converted to type {wide} without loss.") from error


#: dates of which the day and the month can be confused (5.1.2024, 01/05/2024), and text without a year, which
#: pandas reads as of now or of the year 1 (today, 10:00, Jan 5), but for that of NaT
_NO_YEAR_FIRST = re.compile(r"\s*\d{1,2}\W+\d|(?!.*(?<![.\d])\d{4})\s*(?!(?:nat|nan)\s*$)\S", re.IGNORECASE)


def parse_timestamp(text: Any) -> Any:
    """Timestamp of a text or another value; raises ValueError for dates that do not begin with the year."""
    if isinstance(text, str) and _NO_YEAR_FIRST.match(text):
        raise ValueError("write the year first, as in 2020-01-31")
    return pd.Timestamp(text)


def _decode(value: Any) -> Any:
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _to_bytes(dtype: pa.DataType, value: Any) -> bytes:
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else str(value).encode("utf-8")


def _to_int(dtype: pa.DataType, value: Any) -> int:
    text = _decode(value)
    number = int(text)
    low, high = (-(2**63), 2**63 - 1) if pat.is_signed_integer(dtype) else (0, 2**64 - 1)
    if not low <= number <= high or (not isinstance(text, str) and number != text):
        raise TypeError
    return number


def _to_bool(dtype: pa.DataType, value: Any) -> bool:
    text = _decode(value)
    if not isinstance(text, str):
        return bool(text)
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _to_date(dtype: pa.DataType, value: Any) -> datetime.date:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    stamp = parse_timestamp(_decode(value))
    if stamp is pd.NaT or stamp != stamp.normalize():
        raise TypeError
    day: datetime.date = stamp.date()
    return day


def _to_time(dtype: pa.DataType, value: Any) -> datetime.time:
    text = _decode(value)
    return datetime.time.fromisoformat(text) if isinstance(text, str) else pa.scalar(text, dtype).as_py()


def _to_decimal(dtype: pa.DataType, value: Any) -> decimal.Decimal:
    number = decimal.Decimal(str(value))
    exact: decimal.Decimal = pa.scalar(number, pa.decimal256(76, dtype.scale)).as_py()
    return exact


def _to_timestamp(dtype: pa.DataType, value: Any) -> np.datetime64:
    stamp: pd.Timestamp = parse_timestamp(_decode(value))
    return stamp.as_unit("us" if dtype.unit == "us" else "ns", round_ok=False).to_datetime64()


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Any], Any]], ...] = (
    (pat.is_string, lambda _, value: str(_decode(value))),
    (pat.is_binary, _to_bytes),
    (pat.is_integer, _to_int),
    (pat.is_floating, lambda _, value: float(value)),
    (pat.is_boolean, _to_bool),
    (pat.is_date, _to_date),
    (pat.is_timestamp, _to_timestamp),
    (pat.is_time, _to_time),
    (pat.is_decimal, _to_decimal),
)


# Python types that Arrow converts to an array of a type without changing a value
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], set[type]], ...] = (
    (pat.is_integer, {int, *(np.dtype(c).type for c in "bhilqBHILQ")}),
    (pat.is_floating, {float, np.float64}),
    (pat.is_boolean, {bool}),
    (pat.is_string, {str}),
    (pat.is_binary, {bytes}),
    (pat.is_date, {datetime.date}),
)


def convert_plain(values: Sequence[Any], dtype: pa.DataType) -> pa.Array | None:
    """Fast path: array of values, None for null; None if they need conversion one by one."""
    kinds = set(map(type, values)) - {type(None)}
    if not any(matches(dtype) and kinds <= plain for matches, plain in _PLAIN):
        return None
    try:
        return pa.array(values, dtype, from_pandas=True)
    except (pa.ArrowInvalid, OverflowError, UnicodeError):
        return None  # out of range, or no text: the conversion one by one finds the value


def parse_texts(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Typed values of a partition column from the unquoted texts of partition labels."""
    wide = widen(dtype)
    if not len(texts):  # of a key of a dataset without partitions, the type may be unknown
        return pa.array([], wide)
    if pat.is_nested(wide) or pat.is_null(wide):
        raise ValueError(f"Partition columns cannot be of type {dtype}.")
    try:
        return _parse_array(texts, wide)
    except pa.ArrowInvalid as error:
        invalid_text = texts[first_failure(texts, lambda part: _parse_array(part, wide))].as_py()
        raise ValueError(f"{invalid_text!r} is no value of a partition column of type {wide}.") from error


def _parse_array(texts: pa.Array, wide: pa.DataType) -> pa.Array:
    if pat.is_binary(wide):
        return texts.cast(wide)
    plain = texts.cast(pa.string())
    if pat.is_integer(wide):
        _reject(plain, pc.invert(pc.match_substring_regex(plain, r"^-?[0-9]+$")))
    if pat.is_boolean(wide):
        _reject(plain, pc.invert(pc.is_in(pc.utf8_lower(plain), pa.array(["true", "false"]))))
    if pat.is_time(wide):  # Arrow parses timestamps only
        return pc.binary_join_element_wise("1970-01-01", plain, " ").cast(pa.timestamp("us")).cast(wide)
    return _parse_zoned(plain, wide) if pat.is_timestamp(wide) and wide.tz else plain.cast(wide)


def _parse_zoned(texts: pa.Array, wide: pa.DataType) -> pa.Array:
    """Parse timestamps with UTC offsets."""
    # Offsets of local mean time (before standard time) have seconds, which Arrow does not parse.
    second_offsets = pc.extract_regex(texts, r"(?P<sign>[+-])\d\d:\d\d:(?P<seconds>\d\d)$")
    if second_offsets.null_count == len(second_offsets):
        return texts.cast(wide)
    seconds = pc.struct_field(second_offsets, "seconds").cast(pa.int64())
    east = pc.equal(pc.struct_field(second_offsets, "sign"), "+")
    shift = pc.if_else(east, pc.negate(seconds), seconds).fill_null(0).cast(pa.duration("s"))
    minutes = pc.replace_substring_regex(texts, r"([+-]\d\d:\d\d):\d\d$", r"\1")
    return pc.add_checked(minutes.cast(wide), shift.cast(pa.duration(wide.unit)))


def _reject(texts: pa.Array, is_invalid: pa.Array) -> None:
    if pc.any(is_invalid).as_py():
        raise pa.ArrowInvalid("not the text of a value")


def first_failure(array: pa.Array, attempt: Callable[[pa.Array], object]) -> int:
    """Position of the first element on which `attempt` fails."""
    # Binary search: this runs only after the whole array has failed.
    start, stop = 0, len(array)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            attempt(array[start:middle])
        except (ValueError, pa.ArrowNotImplementedError):  # ArrowInvalid is a ValueError
            stop = middle
        else:
            start = middle
    return start


def cast_times(array: pa.Array | pa.ChunkedArray, dtype: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast values to a type in memory, or to microseconds if nanoseconds do not hold them."""
    return convert_first(array.cast, dtype, with_far_times(dtype))


def convert_first(convert: Callable[[pa.DataType], T], target: pa.DataType, coarse: pa.DataType) -> T:
    """Convert to a type, or to one with another range."""
    try:
        return convert(target)
    except (TypeError, ValueError):
        if coarse.equals(target):
            raise
        return convert(coarse)


def cast_column(
    array: pa.Array | pa.ChunkedArray, dtype: pa.DataType, column: str
) -> pa.Array | pa.ChunkedArray:
    """Lossless cast of a column; raises TypeError that names column, value and types."""
    if array.type.equals(dtype):
        return array
    if not _castable(array.type, dtype):
        raise TypeError(f"Column {column!r}: values of type {array.type} are no values of type {dtype}.")
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([cast_column(chunk, dtype, column) for chunk in array.chunks], type=dtype)
    try:
        return _exact_cast(array, dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        position = first_failure(array, lambda part: _exact_cast(part, dtype))
        invalid_value = describe(array[position].as_py() if len(array) else None)
        problem = f"Column {column!r}: {invalid_value} cannot be converted to type {dtype} without loss."
        raise TypeError(problem) from error


def _exact_cast(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()
    result = array.cast(dtype)
    if pat.is_floating(dtype) and pat.is_floating(array.type) and dtype.bit_width < array.type.bit_width:
        back = result.cast(array.type)
        _reject(array, pc.invert(pc.or_(pc.equal(back, array), pc.is_nan(array))))
    return result


def _kind(t: pa.DataType) -> str:
    wide = widen(t)
    if pat.is_integer(wide) or pat.is_floating(wide) or pat.is_decimal(wide):
        return "number"
    if pat.is_timestamp(wide):
        return "zoned" if wide.tz else "naive"
    return "naive" if pat.is_date(wide) else str(wide.id)


def _castable(source: pa.DataType, target: pa.DataType) -> bool:
    if pat.is_null(source):
        return True
    if pat.is_nested(source) and pat.is_nested(target):
        return source.num_fields == target.num_fields and all(
            _castable(source.field(i).type, target.field(i).type) for i in range(source.num_fields)
        )
    return _kind(source) == _kind(target)
