"""Conversion of DataFrames to Arrow tables and back: types of columns, ``pandas`` metadata of schemas."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core import arrow, errors

DtypeBackend: TypeAlias = Literal["numpy_nullable", "pyarrow"]
"""Types of columns that can hold missing values, with the names of pandas."""

#: integers up to here are exact as float64
_EXACT = 2**53
_NULLABLE = {
    pa.bool_(): pd.BooleanDtype(),
    pa.float32(): pd.Float32Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.string(): pd.StringDtype(),
    **{getattr(pa, f"int{n}")(): getattr(pd, f"Int{n}Dtype")() for n in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{n}")(): getattr(pd, f"UInt{n}Dtype")() for n in (8, 16, 32, 64)},
}


def check_dtype_backend(value: object) -> DtypeBackend | None:
    """Check the argument ``dtype_backend``."""
    errors.check_choice("dtype_backend", value, (*get_args(DtypeBackend), None))
    return value  # type: ignore[return-value]


def cast_to_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast the columns of a table that have another type in a schema, such as narrow numbers."""
    types = {field.name: field.type for field in schema}
    columns = {}
    for position, field in enumerate(table.schema):
        dtype = types.get(field.name, field.type)
        if not (field.type.equals(dtype) or pat.is_null(dtype) or pat.is_dictionary(field.type)):
            columns[position] = arrow.cast_times(table.column(position), dtype)
    return arrow.replace_columns(table, columns)


def _arrow_dtype(dtype: pa.DataType) -> pd.ArrowDtype | None:
    # dictionaries are categoricals, in all backends
    return None if pat.is_dictionary(dtype) else pd.ArrowDtype(dtype)


def _inexact_objects(table: pa.Table) -> list[str]:
    """Nested columns that pandas would change: it makes floats of lists with nulls, numbers of times."""
    return [
        field.name
        for field, column in zip(table.schema, table.columns, strict=True)
        if (pat.is_nested(field.type) and any(map(_loses_digits, column.chunks)))
        or _has_times_in_records(field.type)
    ]


def _loses_digits(array: pa.Array) -> bool:
    """Whether there are integers next to nulls, at any depth, that float64 cannot hold."""
    if pat.is_struct(array.type):
        # flattened children are null where the struct is
        return any(map(_loses_digits, array.flatten()))
    if pat.is_map(array.type):
        return _loses_digits(array.keys) or _loses_digits(array.items)
    if pat.is_list(array.type) or pat.is_large_list(array.type):
        return _loses_digits(array.flatten())
    return not _is_exact(array)


def _has_times_in_records(dtype: pa.DataType, *, inside: bool = False) -> bool:
    """Whether there are timestamps in structs or maps, as whose values pandas has nanoseconds."""
    inside = inside or pat.is_struct(dtype) or pat.is_map(dtype)
    if pat.is_timestamp(dtype):
        return inside
    return any(_has_times_in_records(dtype.field(i).type, inside=inside) for i in range(dtype.num_fields))


def _is_exact(column: pa.Array | pa.ChunkedArray) -> bool:
    """Whether the values are the same as float64, as far as nulls make them that."""
    if not pat.is_integer(column.type) or column.type.bit_width < 64 or not column.null_count:
        return True
    bounds: Any = pc.min_max(column).as_py()
    return bounds["min"] is None or (bounds["min"] >= -_EXACT and bounds["max"] <= _EXACT)


#: pandas extension types with which a column comes back if its metadata says so; the Arrow types that fit
_EXTENSION_DTYPES = {
    "string": ("string", "large_string", "string_view"),
    "boolean": ("bool",),
    **{f"{kind}{bits}": (f"{kind.lower()}{bits}",) for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)},
    "Float32": ("float",),
    "Float64": ("double",),
}
_NAMES_EXTENSION = re.compile("|".join(f'"{name}"' for name in _EXTENSION_DTYPES).encode()).search
_PANDAS_TYPES = {
    "string": "unicode",
    "binary": "bytes",
    "null": "empty",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date",
}
#: entry of the metadata of a column
_FAR = {"unit": "us"}
_COLUMN_INDEX = {
    "field_name": None,
    "metadata": {"encoding": "UTF-8"},
    "name": None,
    "numpy_type": "object",
    "pandas_type": "unicode",
}


def pandas_metadata(schema: pa.Schema, extensions: Mapping[str, str] | None = None) -> bytes:
    """The ``pandas`` metadata of columns of a file without an index, as JSON with sorted keys."""
    # types of files are microseconds, which does not mean that times are far
    stored = pa.schema([(field.name, arrow.storage_type(field.type)) for field in schema])
    return _render_metadata(stored, tuple((extensions or {}).items()))


# Cached: a write renders the same several times, 60 ms each for 10,000 columns.
@lru_cache(maxsize=16)
def _render_metadata(schema: pa.Schema, extensions: tuple[tuple[str, str], ...]) -> bytes:
    dtypes = dict(extensions)
    content = {
        "column_indexes": [_COLUMN_INDEX],
        "columns": [_column(field, dtypes.get(field.name)) for field in schema],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "index_columns": [],
        "pandas_version": pd.__version__,
    }
    return json.dumps(content, sort_keys=True).encode()


def with_pandas_metadata(schema: pa.Schema, extensions: Mapping[str, str] | None = None) -> pa.Schema:
    """Replace all metadata of a schema by new pandas metadata."""
    plain = pa.schema([pa.field(field.name, field.type) for field in schema])
    return plain.with_metadata({"pandas": _render_metadata(plain, tuple((extensions or {}).items()))})


def extension_dtypes(schema: pa.Schema) -> dict[str, str]:
    """Pandas extension type by column, as far as the metadata fits the Arrow types."""
    dtypes: dict[str, str] = {}
    stored = (schema.metadata or {}).get(b"pandas", b"")
    # fast path: the metadata of 10,000 columns, most often without such a type, take 30 ms to parse
    if _NAMES_EXTENSION(stored) is None:
        return dtypes
    for entry in column_entries(schema):
        name, dtype = entry.get("field_name") or entry.get("name"), entry.get("numpy_type")
        if isinstance(name, str) and isinstance(dtype, str) and dtype in _EXTENSION_DTYPES:
            index = schema.get_field_index(name)
            if index >= 0 and str(schema.field(index).type) in _EXTENSION_DTYPES[dtype]:
                dtypes[name] = dtype
    return dtypes


def far_columns(schema: pa.Schema) -> set[str]:
    """Columns with times that nanoseconds do not hold, by the metadata: files always have microseconds."""
    if b'"unit": "us"' not in (schema.metadata or {}).get(b"pandas", b""):
        return set()
    marked = {
        entry.get("field_name")
        for entry in column_entries(schema)
        if isinstance(details := entry.get("metadata"), dict) and details.items() >= _FAR.items()
    }
    return {field.name for field in schema if field.name in marked and arrow.has_far_times(field.type)}


def index_columns(schema: pa.Schema) -> list[str]:
    """Columns of the schema that hold the index of the original frame."""
    # fast path, as above: what this module writes
    if b'"index_columns": []' in (schema.metadata or {}).get(b"pandas", b'"index_columns": []'):
        return []
    entry = load_metadata(schema).get("index_columns")
    names = entry if isinstance(entry, list) else []
    return [name for name in names if isinstance(name, str) and schema.get_field_index(name) >= 0]


def load_metadata(schema: pa.Schema) -> dict[str, Any]:
    """The pandas metadata as a dict; empty if it is missing or no JSON object."""
    try:
        content = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def column_entries(schema: pa.Schema) -> list[dict[str, Any]]:
    """Entries of the columns in the pandas metadata."""
    listed = load_metadata(schema).get("columns")
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _column(field: pa.Field, extension: str | None) -> dict[str, Any]:
    pandas_type, numpy_type, details = pandas_types(field.type)
    return {
        "field_name": field.name,
        "metadata": details,
        "name": field.name,
        "numpy_type": extension or numpy_type,
        "pandas_type": pandas_type,
    }


def pandas_types(t: pa.DataType) -> tuple[str, str, dict[str, Any] | None]:
    """``pandas_type``, ``numpy_type`` and ``metadata`` of a column of an Arrow type."""
    details: dict[str, Any] | None = None
    if pat.is_timestamp(t) and t.tz:
        details = {"timezone": t.tz}
    elif pat.is_decimal(t):
        details = {"precision": t.precision, "scale": t.scale}
    if arrow.has_far_times(t):
        details = {**(details or {}), **_FAR}
    return _pandas_type(t), _numpy_type(t), details


@lru_cache(maxsize=256)
def _pandas_type(t: pa.DataType) -> str:
    if pat.is_timestamp(t):
        return "datetimetz" if t.tz else "datetime"
    if pat.is_list(t):
        return f"list[{_pandas_type(t.value_type)}]"
    if pat.is_decimal(t):
        return "decimal"
    if pat.is_time(t):
        return "time"
    return _PANDAS_TYPES.get(str(t), str(t))


@lru_cache(maxsize=256)
def _numpy_type(t: pa.DataType) -> str:
    if pat.is_timestamp(t):
        return "datetime64[ns]"
    if pat.is_boolean(t) or pat.is_integer(t) or pat.is_floating(t):
        return _PANDAS_TYPES.get(str(t), str(t))
    return "object"


# a string array addresses its bytes with 31 bits
_MAX_STRING_BYTES = 2**31 - 2
# dtype of dates outside the range of nanoseconds, and of nothing else
_SECONDS = np.dtype("datetime64[s]")
# of types that are stored as they are
_NUMBER_IDS = {t.id for t in _NULLABLE} - {pa.string().id}
# type of unknown categories in pandas
_TYPES_OF_NO_CATEGORIES = (np.dtype("float64"), np.dtype("object"))
# columns of a frame from which numbers are converted by block
_MANY_COLUMNS = 1_000


def from_pandas(df: pd.DataFrame, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """Convert a frame without its index to a table of storage types, the same for every pandas version."""
    # `types` are those of stored columns, which the result gets where a read has changed them.
    if isinstance(df.columns, pd.MultiIndex) or isinstance(df.index, pd.MultiIndex):
        problem = "A frame with a MultiIndex cannot be stored; call reset_index() or flatten the columns."
        raise NotImplementedError(problem)
    # pandas makes a Series of the types each time
    dtypes = dict(zip(column_names(df.columns), df.dtypes, strict=True))
    for name, dtype in dtypes.items():
        dtype = dtype.categories.dtype if isinstance(dtype, pd.CategoricalDtype) else dtype
        if isinstance(dtype, pd.SparseDtype):
            raise TypeError(f"Column {name!r} is sparse, which cannot be stored; use .sparse.to_dense().")
        if isinstance(dtype, (pd.PeriodDtype, pd.IntervalDtype)):
            problem = f"Column {name!r} of type {dtype} cannot be stored; make it timestamps or numbers."
            raise TypeError(problem)
    renamed = df if [*dtypes] == list(df.columns) else df.set_axis([*dtypes], axis=1)
    converted = convert_objects(renamed, dtypes, types or {})
    try:
        table = _to_arrow(renamed.drop(columns=[*converted]) if converted else renamed)
    except (pa.ArrowException, OverflowError, TypeError, UnicodeEncodeError) as exc:
        raise _explain_failure(renamed, exc) from exc
    if converted:
        table = pa.table({n: converted[n] if n in converted else table.column(n) for n in dtypes})
    for position, (name, dtype) in enumerate(dtypes.items()):
        is_category = isinstance(dtype, pd.CategoricalDtype)
        if lacks_categories(dtype):
            table = arrow.replace_columns(table, {position: pa.chunked_array([pa.nulls(len(table))])})
        elif pd.api.types.is_object_dtype(dtype.categories.dtype if is_category else dtype):
            values = dtype.categories if is_category else df.iloc[:, position]
            stored = table.schema.field(position).type
            # Arrow makes bytes of text beside bytes, except in lists
            if not arrow.is_text(stored):
                _check_objects(name, stored.value_type if is_category else stored, values.to_numpy())
    table = restore_types(table, types or {})
    # pandas 3's default "str" type is no extension type: readers make it of any string column
    kinds = {dtype: str(dtype) for dtype in {*dtypes.values()} if str(dtype) in _EXTENSION_DTYPES}
    extensions = {
        name: kinds[dtype]
        for (name, dtype), stored in zip(dtypes.items(), table.schema.types, strict=True)
        if dtype in kinds and str(stored) in _EXTENSION_DTYPES[kinds[dtype]]
    }
    return _normalise(table, extensions)


def lacks_categories(dtype: object) -> bool:
    """Whether pandas has made the type of a categorical column with missing values only."""
    if not isinstance(dtype, pd.CategoricalDtype):
        return False
    return dtype.categories.empty and dtype.categories.dtype in _TYPES_OF_NO_CATEGORIES


def _to_arrow(df: pd.DataFrame) -> pa.Table:
    if len(df.columns) < _MANY_COLUMNS:
        return pa.Table.from_pandas(df, preserve_index=False)
    # pyarrow takes 80 us per column, most of it for the access by name: of 10,000 numbers 0.9 s, so 0.1 s
    arrays: dict[str, pa.Array] = {}
    for dtype in set(df.dtypes):
        same = df.loc[:, df.dtypes == dtype]
        if isinstance(dtype, np.dtype) and dtype.kind in "iuf":
            values = same.to_numpy()
            arrays |= {n: pa.array(values[:, i], from_pandas=True) for i, n in enumerate(same.columns)}
        else:
            table = pa.Table.from_pandas(same, preserve_index=False)
            arrays |= dict(zip(table.column_names, table.columns, strict=True))
    return pa.table({name: arrays[name] for name in df.columns})


def column_names(columns: Iterable[object]) -> list[str]:
    """Names of columns as text; raises ValueError if one occurs more than once."""
    names = [name.decode("utf-8") if isinstance(name, bytes) else str(name) for name in columns]
    if len(set(names)) < len(names):
        duplicates = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"Column names occur more than once: {', '.join(duplicates)}.")
    return names


def _explain_failure(df: pd.DataFrame, error: Exception) -> Exception:
    """Name the first column that Arrow does not convert, and what to do."""
    for name, dtype in df.dtypes.items():
        try:
            pa.array(df[name], from_pandas=True)
        except OverflowError:
            problem = f"Column {name!r} has integers that no type of 64 bits holds together"
            return ValueError(f"{problem}; make them text, or decimal.Decimal")
        except UnicodeEncodeError as exc:
            return ValueError(f"Column {name!r} has text that is no valid Unicode: {exc}")
        except pa.ArrowNotImplementedError:
            problem = f"Column {name!r} of type {dtype} cannot be stored; convert it to numbers or text."
            return TypeError(problem)
        except (pa.ArrowInvalid, TypeError) as exc:
            problem = f"Column {name!r} holds values of several types, or of one that cannot be stored"
            return ValueError(f"{problem}; convert them: {exc}")
    return error


def _check_objects(name: str, dtype: pa.DataType, values: Sequence[Any] | npt.NDArray[Any]) -> None:
    """Raise an error for Python objects that Arrow would change, at any depth."""
    if isinstance(dtype, pa.BaseExtensionType):
        raise TypeError(f"Column {name!r} of type {dtype} cannot be stored; convert it to text.")
    if pat.is_struct(dtype):
        records = [value for value in values if isinstance(value, Mapping)]
        for field in dtype if arrow.contains_type(dtype, _may_change) else ():
            # Arrow takes bytes for names as well
            fields = [record.get(field.name, record.get(field.name.encode())) for record in records]
            _check_objects(f"{name}.{field.name}", field.type, fields)
    elif pat.is_map(dtype) and arrow.contains_type(dtype, _may_change):
        maps = (value.items() if isinstance(value, Mapping) else value for value in _collections(values))
        pairs = list(chain.from_iterable(maps))
        _check_objects(f"{name}.key", dtype.key_type, [key for key, _ in pairs])
        _check_objects(f"{name}.value", dtype.item_type, [item for _, item in pairs])
    elif pat.is_list(dtype) and arrow.contains_type(dtype, _may_change):
        _check_objects(name, dtype.value_type, list(chain.from_iterable(_collections(values))))
    elif pat.is_timestamp(dtype):
        stamps = [value for value in values if hasattr(value, "tzinfo") and value is not pd.NaT]
        # Arrow takes timestamps without a zone for UTC
        if len({stamp.tzinfo is None for stamp in stamps}) > 1:
            problem = f"Column {name!r} mixes timestamps with and without time zone"
            raise ValueError(f"{problem}; give all of them a zone (tz_localize), or none")
        # and cuts off what microseconds do not hold
        if any(getattr(stamp, "nanosecond", 0) for stamp in stamps):
            problem = f"Column {name!r} holds timestamps with nanoseconds, files hold microseconds"
            raise ValueError(f"{problem}; round them first, as by pd.Timestamp.floor('us')")
    elif pat.is_binary(dtype) or pat.is_string(dtype):
        if any(isinstance(value, str if pat.is_binary(dtype) else bytes) for value in values):
            raise ValueError(f"Column {name!r} mixes text and bytes; encode the text, or decode the bytes")
    elif pat.is_time(dtype):
        if any(getattr(value, "tzinfo", None) for value in values):
            problem = f"Column {name!r} holds times of day with a zone, which would be lost"
            raise ValueError(f"{problem}; make them timestamps, or drop the zone")
    # Arrow drops the time of day and the zone of what follows a date
    elif pat.is_date(dtype) and any(issubclass(kind, datetime.datetime) for kind in set(map(type, values))):
        moments = [pd.Timestamp(v) for v in values if isinstance(v, datetime.datetime) and not pd.isna(v)]
        if any(moment.tzinfo is not None or moment != moment.normalize() for moment in moments):
            problem = f"Column {name!r} mixes dates with timestamps that have a time of day or a zone"
            raise ValueError(f"{problem}; make all of them dates, or timestamps")


def _collections(values: Iterable[Any]) -> Iterator[Any]:
    """Lists, sets and other collections of Python objects; elements of other arrays are of one type."""
    for value in values:
        if isinstance(value, np.ndarray):
            if value.dtype == object:
                yield value
        elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
            yield value


def _may_change(dtype: pa.DataType) -> bool:
    """Whether Arrow may change objects of which it makes values of a type."""
    is_time = pat.is_timestamp(dtype) or pat.is_date(dtype) or pat.is_time(dtype)
    return bool(is_time or pat.is_binary(dtype) or pat.is_string(dtype))


def as_table(obj: Any, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """Convert a frame, an Arrow object or any Arrow C stream (polars, DuckDB) to a table of storage types."""
    if isinstance(obj, pd.DataFrame):
        return from_pandas(obj, types)
    return to_storage(restore_types(_arrow_table(obj), types or {}))


def _arrow_table(obj: Any) -> pa.Table:
    if isinstance(obj, pa.Table):
        return obj
    if isinstance(obj, pa.RecordBatchReader):
        return obj.read_all()
    if hasattr(obj, "__arrow_c_stream__") and not isinstance(obj, (pa.ChunkedArray, pd.Series)):
        # Polars exports the addresses of Python objects
        for name, dtype in zip(getattr(obj, "columns", ()), getattr(obj, "dtypes", ()), strict=False):
            if str(dtype) == "Object":
                raise TypeError(f"Column {name!r} of type {dtype} cannot be stored; convert it to text.")
        try:
            return pa.table(obj)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{type(obj).__name__} cannot be read as an Arrow table: {error}") from error
    expected = "a table (pandas.DataFrame, pyarrow.Table or an object with __arrow_c_stream__)"
    raise TypeError(f"Expected {expected}, got {type(obj).__name__}.")


def to_storage(table: pa.Table) -> pa.Table:
    """Cast a table to storage types, without copies where types fit; drops ``__index_level_0__``."""
    column_names(table.column_names)
    unnamed = [name for name in table.column_names if name.startswith("__index_level_")]
    table = table.drop_columns(unnamed) if unnamed else table
    return _normalise(table, extension_dtypes(table.schema), far_columns(table.schema))


def _is_unknown_to_parquet(dtype: pa.DataType) -> bool:
    is_empty = pat.is_struct(dtype) and not dtype.num_fields
    return bool(pat.is_union(dtype) or pat.is_interval(dtype) or is_empty)


def _normalise(table: pa.Table, extensions: dict[str, str], far: Collection[str] = ()) -> pa.Table:
    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        if field.type.id in _NUMBER_IDS:
            columns.append(column)
            continue
        if pat.is_duration(arrow.decoded_type(field.type)) or arrow.contains_type(
            field.type, _is_unknown_to_parquet
        ):
            raise TypeError(
                f"Column {field.name!r} of type {field.type} cannot be stored; convert it to numbers or text."
            )
        columns.append(_fit_times(column, field.name, is_far=field.name in far))
    schema = pa.schema(list(zip(table.column_names, (c.type for c in columns), strict=True)))
    return pa.Table.from_arrays(columns, schema=with_pandas_metadata(schema, extensions))


def _fit_times(column: pa.ChunkedArray, name: str, *, is_far: bool) -> pa.ChunkedArray:
    """Cast a column to its storage type, with times in microseconds if they are far."""
    target, far = arrow.storage_type(column.type), arrow.with_far_times(column.type)
    return arrow.convert_first(partial(_convert, column, name=name), far if is_far else target, far)


def _convert(column: pa.ChunkedArray, target: pa.DataType, name: str) -> pa.ChunkedArray:
    """Cast a column; nothing is copied if it has the target type."""
    source = column.type
    if source.equals(target):
        return column
    if isinstance(source, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=source.storage_type)
    try:
        column = arrow.convert_layouts(pa.table({name: column})).column(0)
        if pat.is_dictionary(column.type):
            column = _cast_dictionaries(column, target)
        if pat.is_large_string(column.type) or pat.is_large_binary(column.type):
            column = _split_large(column)
        return column.cast(target)
    except pa.ArrowNotImplementedError as error:
        raise TypeError(f"Column {name!r} of type {source} cannot be stored; convert it: {error}") from error
    except pa.ArrowInvalid as error:
        problem = f"Column {name!r} of type {source} cannot be converted to {target}: {error}"
        raise ValueError(problem) from error


def _split_large(column: pa.ChunkedArray, limit: int = _MAX_STRING_BYTES) -> pa.ChunkedArray:
    """Cut chunks so that 31 bits address the bytes of each."""
    stack, chunks = list(reversed(column.chunks)), []
    while stack:
        chunk = stack.pop()
        if len(chunk) > 1 and chunk.nbytes > limit:
            half = len(chunk) // 2
            stack += [chunk[half:], chunk[:half]]
        else:
            chunks.append(chunk)
    return pa.chunked_array(chunks, type=column.type)


def to_memory(table: pa.Table, *, dates_as_object: bool = True) -> pa.Table:
    """Cast a table to the types that readers see: ``string``, decoded dictionaries, dates as requested."""
    columns = {}
    for position, field in enumerate(table.schema):
        if not arrow.memory_type(field.type, dates_as_object=dates_as_object).equals(field.type):
            convert = partial(_convert, table.column(position), name=field.name)
            columns[position] = _with_date_unit(field.type, convert, dates_as_object)
    return arrow.replace_columns(table, columns)


def from_file(table: pa.Table, schema: pa.Schema | None = None) -> pa.Table:
    """Cast a table of file types to memory types; nulls, far times and zones get those of the schema."""
    types = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
    columns = {}
    for position, field in enumerate(table.schema):
        dtype = types.get(field.name, field.type)
        known = arrow.with_known_types(field.type, dtype)
        if not known.equals(field.type):
            columns[position] = table.column(position).cast(arrow.memory_type(known))
        elif not arrow.storage_type(field.type).equals(field.type):
            is_far = field.name in types and arrow.has_far_times(dtype)
            columns[position] = _fit_times(table.column(position), field.name, is_far=is_far)
        if not arrow.with_zone_of(field.type, dtype).equals(field.type):
            column = columns.get(position, table.column(position))
            columns[position] = column.cast(arrow.with_zone_of(column.type, dtype))
    return arrow.replace_columns(table, columns)


def _with_date_unit(
    dtype: pa.DataType, convert: Callable[[pa.DataType], pa.ChunkedArray], dates_as_object: bool
) -> pa.ChunkedArray:
    """Convert to the type in memory."""
    # Seconds hold dates outside the range of nanoseconds, such as 9999-12-31.
    find_type = partial(arrow.memory_type, dtype, dates_as_object=dates_as_object)
    return arrow.convert_first(convert, find_type(date_unit="ns"), find_type(date_unit="s"))


def to_pandas(
    table: pa.Table,
    *,
    dates_as_object: bool = False,
    categories: Iterable[str] = (),
    dtype_backend: DtypeBackend | None = None,
) -> pd.DataFrame:
    """Convert a table to a frame with a RangeIndex and writable columns."""
    # With a backend, the types do not depend on the values. Without, integers that would lose digits next to
    # missing values become `Int64` or `UInt64`.
    categorical = list(categories)
    missing = sorted(set(categorical) - set(table.column_names))
    if missing:
        raise ValueError(f"Columns to make categorical do not exist: {', '.join(missing)}.")
    if not table.num_columns:  # most operations on such a table would forget how many rows there are
        return pd.DataFrame(index=pd.RangeIndex(table.num_rows))
    extensions = {n: t for n, t in extension_dtypes(table.schema).items() if n not in categorical}
    encoded = {name: _encode(table.column(name), dates_as_object) for name in categorical}
    table = to_memory(table, dates_as_object=dates_as_object or dtype_backend is not None)
    table = table.replace_schema_metadata(None)
    encoded_at = {i: encoded[name] for i, name in enumerate(table.column_names) if name in encoded}
    table = arrow.replace_columns(table, encoded_at)
    if dtype_backend == "pyarrow":
        return _with_typed_categories(table.to_pandas(types_mapper=_arrow_dtype), encoded)
    inexact = _inexact_objects(table)
    if dtype_backend is not None:
        # seconds hold all dates, and which unit a column has must not depend on its values
        dates = {
            position: table.column(position).cast(pa.timestamp("s"))
            for position, dtype in enumerate(table.schema.types)
            if pat.is_date(dtype) and not dates_as_object
        }
        table = arrow.replace_columns(table, dates)
        frame: pd.DataFrame = table.to_pandas(types_mapper=_NULLABLE.get, date_as_object=True)
    else:
        fields = zip(table.schema, table.columns, strict=True)
        # integers next to nulls that would lose digits as float64
        extensions |= {f.name: str(_NULLABLE[f.type]) for f, column in fields if not _is_exact(column)}
        # We own the list of columns but not their buffers: self_destruct frees each column once it is
        # converted. One thread: two take as long for up to 1 M values.
        is_all = not (extensions or inexact)
        frame = table.to_pandas(date_as_object=dates_as_object, use_threads=False, self_destruct=is_all)
        for name, dtype in extensions.items():
            extension: Any = pd.api.types.pandas_dtype(dtype)
            frame[name] = extension.__from_arrow__(table.column(name))
    for name in inexact:
        frame[name] = pd.Series(table.column(name).to_pylist(), dtype=object)
    return _with_typed_categories(frame, encoded)


def _with_typed_categories(frame: pd.DataFrame, encoded: Mapping[str, pa.ChunkedArray]) -> pd.DataFrame:
    for name, column in encoded.items():
        categories, values = frame[name].cat.categories, column.type.value_type
        typed = pd.Index(pa.array([], values).to_pandas())
        if categories.empty:
            # pandas makes objects of the empty categories of a converted column
            frame[name] = frame[name].cat.set_categories(typed)
        elif arrow.has_zone(values):
            # Arrow makes times of UTC without a zone of the values of a dictionary
            frame[name] = frame[name].cat.rename_categories(
                pd.DatetimeIndex(categories, tz="UTC").astype(typed.dtype)
            )
    return frame


def _encode(column: pa.ChunkedArray, dates_as_object: bool) -> pa.ChunkedArray:
    if pat.is_null(column.type):  # pandas refuses null as a category
        return pa.chunked_array([pa.nulls(len(column), pa.dictionary(pa.int32(), pa.string()))])
    if not pat.is_dictionary(column.type):
        column = arrow.category_values(column).dictionary_encode()
    return _with_date_unit(column.type.value_type, partial(_cast_dictionaries, column), dates_as_object)


def _cast_dictionaries(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    # Arrow cannot decode all dictionaries (string views), and loses those of chunks without rows
    encoded = [(chunk.indices, chunk.dictionary.cast(target)) for chunk in column.chunks]
    chunks = [pa.DictionaryArray.from_arrays(*parts) for parts in encoded]
    return pa.chunked_array(chunks, type=pa.dictionary(column.type.index_type, target))


def align_date_units(frames: Sequence[pd.DataFrame]) -> None:
    """Give date columns one dtype in all frames, in place: ``datetime64[s]`` where one frame needs it."""
    if len(frames) < 2:
        return
    columns = {name for frame in frames for name, dtype in frame.dtypes.items() if dtype == _SECONDS}
    for frame in frames if columns else ():
        for name in columns.intersection(frame.columns):
            if frame[name].dtype != _SECONDS:
                frame[name] = frame[name].astype(_SECONDS)


def dates_as_stamps(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert ``datetime64[s]`` columns to Timestamp objects, in place."""
    # pandas refuses to concatenate datetime64[s] with datetime64[ns].
    for name, dtype in frame.dtypes.items():
        if dtype == _SECONDS:
            frame[name] = frame[name].astype(object)
    return frame


def restore_types(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Cast columns to their stored types, if no value changes."""
    # Integers become floats or integers of the other kind, dates timestamps, and decimals those of the
    # dataset. What pandas makes of stored types is reversed: timestamps for dates, floats for integers next
    # to missing values. Other columns, and columns with values that do not fit, stay as they are.
    columns = {}
    for position, field in enumerate(table.schema):
        target = types.get(field.name)
        if target is not None and not arrow.same_type(field.type, target):
            column = _restore(table.column(position), target)
            if column is not None:
                columns[position] = column
    return arrow.replace_columns(table, columns)


def _restore(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray | None:
    """The column with its stored type; None if the types are of different kinds, or values would change."""
    source = column.type
    if not _may_fit(source, target):
        return None
    # floats without a gap are not what a query returns for integers: to accept them would hide mistakes
    if pat.is_floating(source) and not column.null_count:
        return None
    # Arrow casts nulls to any type, but no type back to nulls
    source = arrow.with_known_types(source, target)
    try:
        column = column.cast(source)
        # the safe cast of integers refuses all beyond 2**53, also those that are exact
        restored = column.cast(target, safe=not pat.is_integer(source))
        # 2.0**63 is no integer of the type, but some processors make the largest one of it
        if pat.is_integer(source) and pat.is_floating(target) and not _is_in_range(restored, source):
            return None
        return restored if restored.cast(source).equals(column) else None
    except pa.ArrowException:
        return None


def _is_in_range(floats: pa.ChunkedArray, dtype: pa.DataType) -> bool:
    limit = 2.0 ** (dtype.bit_width - pat.is_signed_integer(dtype))
    return not pc.any(pc.greater_equal(floats, limit)).as_py()


def _may_fit(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of a type may be the same ones in a stored type, at any depth."""
    if pat.is_nested(source) and pat.is_nested(target):
        if source.num_fields != target.num_fields or pat.is_struct(source) != pat.is_struct(target):
            return False
        pairs = [(source.field(i), target.field(i)) for i in range(source.num_fields)]
        if pat.is_struct(source) and any(a.name != b.name for a, b in pairs):
            return False
        return all(arrow.same_type(a.type, b.type) or _may_fit(a.type, b.type) for a, b in pairs)
    return bool(
        pat.is_null(source)
        or (pat.is_date(target) and pat.is_timestamp(source) and source.tz is None)
        or (pat.is_timestamp(target) and target.tz is None and pat.is_date(source))
        or (pat.is_integer(target) and (pat.is_floating(source) or pat.is_integer(source)))
        or (pat.is_floating(target) and pat.is_integer(source))
        or (pat.is_decimal(target) and pat.is_decimal(source))
    )


def convert_objects(
    df: pd.DataFrame, dtypes: Mapping[str, Any], types: Mapping[str, pa.DataType]
) -> dict[str, pa.ChunkedArray]:
    """Columns of Python objects for which Arrow would find another type than the stored one, or none."""
    converted = {}
    for name, dtype in dtypes.items():
        target = types.get(name)
        if target is None or not pd.api.types.is_object_dtype(dtype) or not pat.is_nested(target):
            continue
        if arrow.contains_type(target, pat.is_date):
            # Arrow takes times for dates without an error
            continue
        values, array = df[name].to_numpy(), None
        with suppress(pa.ArrowException, OverflowError, TypeError, ValueError):
            array = pa.array(values, from_pandas=True)
        if array is None or not arrow.same_but_nulls(array.type, target):
            try:
                array = pa.array(values, type=target, from_pandas=True)
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                continue  # the type is found from the values then, and compared with the schema later
            # Arrow cuts off fractions, and drops zones and unknown fields, without an error
            if not all(map(partial(_is_same, dtype=target), values, array.to_pylist())):
                _check_objects(name, target, values)
                continue
        is_chunked = isinstance(array, pa.ChunkedArray)  # as more than 2 GB of text are
        converted[name] = array if is_chunked else pa.chunked_array([array])
    return converted


def _is_same(given: Any, stored: Any, dtype: pa.DataType) -> bool:
    """Whether Arrow has made the same value of an object, at any depth; numbers may have another type."""
    missing = [pd.api.types.is_scalar(value) and pd.isna(value) for value in (given, stored)]
    if any(missing):
        return all(missing)
    if pat.is_struct(dtype):
        if not isinstance(given, Mapping):
            return False
        fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in given.items()}
        types = {field.name: field.type for field in dtype}
        return all(_is_same(fields.get(n), stored.get(n), types.get(n, dtype)) for n in {*fields, *types})
    if pat.is_map(dtype):
        pairs = list(given.items() if isinstance(given, Mapping) else given)
        key_and_item = dtype.key_type, dtype.item_type
        return all(all(map(_is_same, *both, key_and_item)) for both in zip(pairs, stored, strict=True))
    if pat.is_nested(dtype):
        if isinstance(given, str | bytes | Mapping):
            return False
        return all(map(partial(_is_same, dtype=dtype.value_type), given, stored))
    if pat.is_timestamp(dtype) and isinstance(given, datetime.date | np.datetime64):
        given = pd.Timestamp(given)
    kinds = ((bool, np.bool_), str, (bytes, bytearray, memoryview))
    is_kind = all(isinstance(given, kind) == isinstance(stored, kind) for kind in kinds)
    return bool(is_kind and given == stored)
