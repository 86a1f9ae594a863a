"""Schemas of tables: creation, normalisation, comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.arrow.pandas_conversion import (
    as_table,
    extension_dtypes,
    from_pandas,
    pandas_types,
    to_pandas,
    with_pandas_metadata,
)
from kartothek_cube.core.arrow.types import widen
from kartothek_cube.core.errors import check_names
from kartothek_cube.core.naming import SINGLE_TABLE, schema_key
from kartothek_cube.core.schema.file import (
    read_schema_metadata,
    store_schema_metadata,
)
from kartothek_cube.core.schema.wrapper import SchemaWrapper, validate_compatible, validate_shared_columns

__all__ = (
    "SchemaWrapper",
    "empty_dataframe_from_schema",
    "make_meta",
    "normalize_column_order",
    "normalize_type",
    "read_schema_metadata",
    "store_schema_metadata",
    "validate_compatible",
    "validate_shared_columns",
)

# pandas types that do not depend on the width of a column
_KEPT_DTYPES = {"string", "boolean"}


def make_meta(
    obj: pd.DataFrame | pa.Table | pa.Schema | SchemaWrapper,
    origin: str | Iterable[str],
    partition_keys: Sequence[str] | None = None,
) -> SchemaWrapper:
    """Make the schema of a table as a dataset stores it: widened types, partition keys first, others sorted.

    Parameters
    ----------
    obj
        A frame, an Arrow table or a schema; a :class:`SchemaWrapper` is returned as it is.
    origin
        Where the schema comes from, for messages.
    partition_keys
        First columns, in this order; those missing in the schema are ignored.

    Returns
    -------
    SchemaWrapper

    Raises
    ------
    ValueError
        It is none of these.

    Examples
    --------
    >>> import pandas as pd
    >>> make_meta(pd.DataFrame({"DAY": [1], "CITY": ["Rom"]}), "sales").names
    ['CITY', 'DAY']
    """
    if isinstance(obj, SchemaWrapper):
        return obj
    if isinstance(obj, pd.DataFrame):
        schema = from_pandas(obj.iloc[:0] if _has_static_types(obj) else obj).schema
    elif isinstance(obj, (pa.Table, pa.RecordBatch)):
        schema = as_table(obj.slice(0, 0)).schema
    elif isinstance(obj, pa.Schema):
        schema = obj
    else:
        raise ValueError(
            f"A schema is made from a DataFrame, pyarrow.Table or pyarrow.Schema, got {type(obj).__name__}."
        )
    return _widen_schema(SchemaWrapper(schema, origin), partition_keys or ())


def _has_static_types(df: pd.DataFrame) -> bool:
    """Whether all types are known without the values."""
    return all(isinstance(dtype, pd.StringDtype) or dtype.kind in "biufM" for dtype in df.dtypes)


def _widen_schema(schema: SchemaWrapper, partition_keys: Sequence[str]) -> SchemaWrapper:
    types = {field.name: widen(field.type) for field in schema}
    wide = pa.schema([(name, types[name]) for name in _order(types, partition_keys)])
    extensions = extension_dtypes(schema.internal())
    kept = {name: dtype for name, dtype in extensions.items() if dtype in _KEPT_DTYPES}
    return SchemaWrapper(with_pandas_metadata(wide, kept), schema.origin)


def normalize_type(
    t_pa: pa.DataType, t_pd: str | None, t_np: str | None, metadata: dict[str, Any] | None
) -> tuple[pa.DataType, str | None, str | None, dict[str, Any] | None]:
    """Widen a type and the entries of the pandas metadata that describe it.

    Parameters
    ----------
    t_pa
        The Arrow type.
    t_pd, t_np, metadata
        ``pandas_type``, ``numpy_type`` and ``metadata`` of the column; None for what is not known.

    Returns
    -------
    tuple
        The same four, adapted to :func:`~kartothek_cube.core.arrow.types.widen`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> normalize_type(pa.int8(), "int8", "int8", None)
    (DataType(int64), 'int64', 'int64', None)
    """
    wide = widen(t_pa)
    if not (pat.is_dictionary(t_pa) or pat.is_list(wide) or pat.is_integer(wide) or pat.is_floating(wide)):
        return wide, t_pd, t_np, metadata
    new_pd, new_np, new_metadata = pandas_types(wide)
    return wide, None if t_pd is None else new_pd, None if t_np is None else new_np, new_metadata


def normalize_column_order(
    schema: SchemaWrapper | pa.Schema, partition_keys: Sequence[str] | None = None
) -> SchemaWrapper:
    """Order the columns as a dataset stores them.

    Parameters
    ----------
    schema
        The schema; a raw one gets the origin ``schema``.
    partition_keys
        First columns, in this order; those missing in the schema are ignored.

    Returns
    -------
    SchemaWrapper
        Partition keys, then the others in alphabetical order.

    Examples
    --------
    >>> import pyarrow as pa
    >>> schema = pa.schema([("CITY", pa.string()), ("DAY", pa.date32()), ("ABC", pa.string())])
    >>> normalize_column_order(SchemaWrapper(schema, "sales"), ["DAY"]).names
    ['DAY', 'ABC', 'CITY']
    """
    wrapper = schema if isinstance(schema, SchemaWrapper) else SchemaWrapper(schema, "schema")
    internal = wrapper.internal()
    by_name = {field.name: field for field in internal}
    fields = [by_name[name] for name in _order(by_name, partition_keys or ())]
    return SchemaWrapper(pa.schema(fields, internal.metadata), wrapper.origin)


def _order(names: Collection[str], partition_keys: Sequence[str]) -> list[str]:
    first = [key for key in partition_keys if key in names]
    return first + sorted(set(names) - set(first))


def empty_dataframe_from_schema(
    schema: SchemaWrapper | pa.Schema, columns: Sequence[str] | None = None, date_as_object: bool = False
) -> pd.DataFrame:
    """Make a frame without rows, with the types of the schema.

    Parameters
    ----------
    schema
        The schema.
    columns
        Columns, in this order; all if None.
    date_as_object
        Whether date columns hold objects; else they are ``datetime64[ns]``.

    Returns
    -------
    pandas.DataFrame

    Raises
    ------
    ValueError
        A column does not exist.

    Examples
    --------
    >>> import pyarrow as pa
    >>> empty_dataframe_from_schema(pa.schema([("DAY", pa.date32())])).dtypes["DAY"]
    dtype('<M8[ns]')
    """
    internal = schema.internal() if isinstance(schema, SchemaWrapper) else schema
    table = internal.empty_table()
    if columns is not None:
        check_names("", "column", columns, internal.names)
        table = table.select(list(columns))
    return to_pandas(table, dates_as_object=date_as_object)


def _get_common_metadata_key(dataset_uuid: str, table: str = SINGLE_TABLE) -> str:
    return schema_key(dataset_uuid, table)
