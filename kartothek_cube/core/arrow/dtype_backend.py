"""Types of the columns of DataFrames: the backends of pandas, and integers that ``float64`` cannot hold."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

__all__ = (
    "DtypeBackend",
    "cast_to_schema",
    "check_dtype_backend",
    "exact_dtypes",
    "inexact_objects",
    "to_backend",
)

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
    if value is None or value in get_args(DtypeBackend):
        return value  # type: ignore[return-value]
    raise ValueError(f"dtype_backend is 'numpy_nullable', 'pyarrow' or None, got {value!r}")


def cast_to_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast the columns of a table that have another type in a schema, such as narrow numbers.

    Examples
    --------
    >>> narrow = pa.table({"AVG_TEMP": pa.array([7], pa.int8())})
    >>> cast_to_schema(narrow, pa.schema([("AVG_TEMP", pa.int64())])).schema.types
    [DataType(int64)]
    """
    for position, field in enumerate(table.schema):
        dtype = schema.field(field.name).type if field.name in schema.names else field.type
        if not (field.type.equals(dtype) or pat.is_null(dtype) or pat.is_dictionary(field.type)):
            column = table.column(position).cast(dtype)
            table = table.set_column(position, pa.field(field.name, dtype), column)
    return table


def to_backend(table: pa.Table, backend: DtypeBackend, *, dates_as_object: bool = False) -> pd.DataFrame:
    """Convert a table of memory types to a frame whose types do not depend on the values.

    Examples
    --------
    >>> table = pa.table({"CITY": ["Ulm", "Bonn"], "AVG_TEMP": [None, 7]})
    >>> to_backend(table, "numpy_nullable").dtypes.astype(str).tolist()
    ['string', 'Int64']
    """
    if backend == "pyarrow":
        frame: pd.DataFrame = table.to_pandas(types_mapper=_arrow_dtype)
        return frame
    for position, field in enumerate(table.schema):
        if pat.is_date(field.type) and not dates_as_object:
            # seconds hold all dates, and which unit a column has must not depend on its values
            column = table.column(position).cast(pa.timestamp("s"))
            table = table.set_column(position, pa.field(field.name, column.type), column)
    frame = table.to_pandas(types_mapper=_NULLABLE.get, date_as_object=True)
    for name in inexact_objects(table):
        frame[name] = pd.Series(table.column(name).to_pylist(), dtype=object)
    return frame


def _arrow_dtype(dtype: pa.DataType) -> pd.ArrowDtype | None:
    # dictionaries are categoricals, in all backends
    return None if pat.is_dictionary(dtype) else pd.ArrowDtype(dtype)


def exact_dtypes(table: pa.Table) -> dict[str, str]:
    """Nullable pandas type of each column of integers next to nulls that would lose digits as float64.

    Examples
    --------
    >>> exact_dtypes(pa.table({"ID": [None, 2**60 + 1], "AVG_TEMP": [None, 7]}))
    {'ID': 'Int64'}
    """
    dtypes = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if pat.is_integer(field.type) and column.null_count and not _is_exact(column):
            dtypes[field.name] = str(_NULLABLE[field.type])
    return dtypes


def inexact_objects(table: pa.Table) -> list[str]:
    """Names of nested columns that pandas would change: it has lists with nulls as floats, times as numbers.

    Examples
    --------
    >>> inexact_objects(pa.table({"IDS": [[2**60 + 1, None]], "DAYS": [[1, None]]}))
    ['IDS']
    """
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
    return pat.is_integer(array.type) and array.null_count > 0 and not _is_exact(array)


def _has_times_in_records(dtype: pa.DataType, *, inside: bool = False) -> bool:
    """Whether there are timestamps in structs or maps, as whose values pandas has nanoseconds."""
    inside = inside or pat.is_struct(dtype) or pat.is_map(dtype)
    if pat.is_timestamp(dtype):
        return inside
    return any(_has_times_in_records(dtype.field(i).type, inside=inside) for i in range(dtype.num_fields))


def _is_exact(column: pa.ChunkedArray) -> bool:
    """Whether the values are the same as float64, as far as nulls make them that."""
    if not pat.is_integer(column.type) or column.type.bit_width < 64 or not column.null_count:
        return True
    bounds: Any = pc.min_max(column).as_py()
    return bounds["min"] is None or (bounds["min"] >= -_EXACT and bounds["max"] <= _EXACT)
