"""Schemas of tables: made from frames, normalised, compared, stored as ``_common_metadata``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow.pandas_conversion import as_table, from_pandas, to_pandas
from kartothek_cube.core.arrow.pandas_metadata import extension_dtypes, pandas_types, with_pandas_metadata
from kartothek_cube.core.arrow.types import is_long, widen
from kartothek_cube.core.caching import ParseCache
from kartothek_cube.core.errors import CorruptDatasetError, unknown_names
from kartothek_cube.core.naming import SINGLE_TABLE, schema_key
from kartothek_cube.core.schema.compare import validate_compatible, validate_shared_columns
from kartothek_cube.core.schema.versions import VersionedSchema, encode_version, parse_marks
from kartothek_cube.core.schema.wrapper import SchemaWrapper
from kartothek_cube.core.store import BlobStore, get_required, open_blobs
from kartothek_cube.core.typing import StoreInput

__all__ = (
    "SchemaWrapper",
    "empty_dataframe_from_schema",
    "long_types",
    "make_meta",
    "normalize_column_order",
    "normalize_type",
    "read_schema_metadata",
    "schema_file_from_bytes",
    "schema_from_bytes",
    "schema_to_bytes",
    "store_schema_metadata",
    "validate_compatible",
    "validate_shared_columns",
)

# pandas types that remain with a column whatever its width
_KEPT_DTYPES = {"string", "boolean"}
_CACHE: ParseCache[VersionedSchema] = ParseCache(capacity=1 << 24, smallest=0)
#: bytes that a column takes in a parsed schema, about
_COLUMN = 1 << 9


def make_meta(
    obj: pd.DataFrame | pa.Table | pa.Schema | SchemaWrapper,
    origin: str | Iterable[str],
    partition_keys: Sequence[str] | None = None,
) -> SchemaWrapper:
    """
    The schema of a table as a dataset stores it: types widened, partition keys first, the rest alphabetical.

    Parameters
    ----------
    obj
        A frame, an Arrow table or a schema; a :class:`SchemaWrapper` is returned as it is.
    origin
        Where the schema comes from, for messages.
    partition_keys
        Columns that come first, in this order; those that are not in the schema do not matter.

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
        schema = from_pandas(obj.iloc[:0] if _typed(obj) else obj).schema
    elif isinstance(obj, (pa.Table, pa.RecordBatch)):
        schema = as_table(obj.slice(0, 0)).schema
    elif isinstance(obj, pa.Schema):
        schema = obj
    else:
        raise ValueError(
            f"A schema is made from a DataFrame, pyarrow.Table or pyarrow.Schema, got {type(obj).__name__}."
        )
    return normalize_column_order(_widened(SchemaWrapper(schema, origin)), partition_keys)


def _typed(df: pd.DataFrame) -> bool:
    """Whether the types of all columns are known without looking at their values."""
    return all(isinstance(dtype, pd.StringDtype) or dtype.kind in "biufM" for dtype in df.dtypes)


def _widened(schema: SchemaWrapper) -> SchemaWrapper:
    wide = pa.schema([(field.name, widen(field.type)) for field in schema])
    extensions = extension_dtypes(schema.internal())
    kept = {name: dtype for name, dtype in extensions.items() if dtype in _KEPT_DTYPES}
    return SchemaWrapper(with_pandas_metadata(wide, kept), schema.origin)


def normalize_type(
    t_pa: pa.DataType, t_pd: str | None, t_np: str | None, metadata: dict[str, Any] | None
) -> tuple[pa.DataType, str | None, str | None, dict[str, Any] | None]:
    """
    Widen a type together with the entries of the pandas metadata that describe it.

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
    """
    Bring the columns into the order in which a dataset stores them.

    Parameters
    ----------
    schema
        The schema; a raw one gets the origin ``schema``.
    partition_keys
        Columns that come first, in this order; those that are not in the schema do not matter.

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
    first = [key for key in partition_keys or () if key in wrapper.names]
    order = first + sorted(set(wrapper.names) - set(first))
    internal = wrapper.internal()
    fields = [internal.field(name) for name in order]
    return SchemaWrapper(pa.schema(fields, internal.metadata), wrapper.origin)


def empty_dataframe_from_schema(
    schema: SchemaWrapper | pa.Schema, columns: Sequence[str] | None = None, date_as_object: bool = False
) -> pd.DataFrame:
    """
    A frame without rows that has the types of the schema.

    Parameters
    ----------
    schema
        The schema.
    columns
        Columns wanted, in this order; all if None.
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
        unknown = set(columns) - set(internal.names)
        if unknown:
            raise ValueError(unknown_names("column", unknown, internal.names))
        table = table.select(list(columns))
    return to_pandas(table, dates_as_object=date_as_object)


def schema_to_bytes(schema: SchemaWrapper | pa.Schema | VersionedSchema) -> bytes:
    """
    The content of a ``_common_metadata`` file: Parquet without row groups, time stamps in microseconds.

    Parameters
    ----------
    schema
        The schema, or a schema with marks of its line of headers; pandas metadata is added if it has none, as
        kartothek 5.3 cannot do without.

    Returns
    -------
    bytes

    Examples
    --------
    >>> import pyarrow as pa
    >>> schema_to_bytes(pa.schema([("CITY", pa.string())]))[:4]
    b'PAR1'
    """
    file = schema if isinstance(schema, VersionedSchema) else None
    plain = schema.schema if isinstance(schema, VersionedSchema) else schema
    wrapper = plain if isinstance(plain, SchemaWrapper) else SchemaWrapper(plain, "schema")
    internal = wrapper.internal()
    if internal.metadata is None:
        internal = with_pandas_metadata(internal)
    if file is not None:
        internal = internal.with_metadata({**internal.metadata, **encode_version(file)})
    sink = pa.BufferOutputStream()
    pq.write_metadata(internal, sink, version="2.6", coerce_timestamps="us", use_compliant_nested_type=False)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def schema_from_bytes(buf: bytes, origin: str, lineage: str | None = None) -> SchemaWrapper:
    """
    The schema in the content of a ``_common_metadata`` file.

    Parameters
    ----------
    buf
        The content.
    origin
        Its storage key.
    lineage
        Line of the header for which the schema is wanted: that of a dataset that is about to be replaced may
        be kept next to the new one.

    Returns
    -------
    SchemaWrapper
        Time stamps are in ns, whatever the file says.

    Raises
    ------
    CorruptDatasetError
        This is no Parquet file, or its schema makes no sense; a ValueError.

    Examples
    --------
    >>> import pyarrow as pa
    >>> content = schema_to_bytes(pa.schema([("DAY", pa.timestamp("us"))]))
    >>> schema_from_bytes(content, "sales/table/_common_metadata").types
    [TimestampType(timestamp[ns])]
    """
    return schema_file_from_bytes(buf, origin).of(lineage)


def schema_file_from_bytes(buf: bytes, origin: str) -> VersionedSchema:
    """
    The schema in the content of a ``_common_metadata`` file, with the marks of its line of headers.

    Parameters
    ----------
    buf
        The content.
    origin
        Its storage key.

    Returns
    -------
    SchemaFile

    Raises
    ------
    CorruptDatasetError
        This is no Parquet file, or its schema makes no sense; a ValueError.
    """
    return _CACHE.parse(origin, bytes(buf), lambda content: _parse(content, origin), _size)


def _read(content: bytes, origin: str) -> pa.Schema:
    try:
        schema = pq.read_schema(pa.BufferReader(content))
        _ = schema.names  # are decoded only now
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDatasetError(origin, f"not the schema of a table: {error}") from error
    return schema


def _parse(content: bytes, origin: str) -> VersionedSchema:
    schema = _read(content, origin)
    if len(set(schema.names)) < len(schema.names):
        raise CorruptDatasetError(origin, "column names occur more than once")
    return parse_marks(SchemaWrapper(schema, origin), schema.metadata, origin)


def _size(parsed: VersionedSchema) -> int:
    return _COLUMN * (1 + len(parsed.schema))


def _get_common_metadata_key(dataset_uuid: str, table: str = SINGLE_TABLE) -> str:
    return schema_key(dataset_uuid, table)


def read_schema_metadata(
    dataset_uuid: str,
    store: StoreInput | BlobStore,
    table: str = SINGLE_TABLE,
    *,
    lineage: str | None = None,
) -> SchemaWrapper:
    """
    Load the schema of a table.

    Parameters
    ----------
    dataset_uuid, table
        Dataset and table.
    store
        The store, its factory or URL.
    lineage
        As in :func:`schema_from_bytes`.

    Returns
    -------
    SchemaWrapper
        Its origin is the storage key.

    Raises
    ------
    KeyError
        There is no schema file.
    CorruptDatasetError
        The file is no schema.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from kartothek_cube.core.store import open_blobs
    >>> blobs = open_blobs("hmemory://")
    >>> store_schema_metadata(pa.schema([("CITY", pa.string())]), "sales", blobs)
    'sales/table/_common_metadata'
    >>> read_schema_metadata("sales", blobs).names
    ['CITY']
    """
    key = schema_key(dataset_uuid, table)
    return schema_from_bytes(get_required(open_blobs(store), key), key, lineage)


def long_types(
    dataset_uuid: str, store: StoreInput | BlobStore, table: str = SINGLE_TABLE
) -> dict[str, pa.DataType]:
    """
    Columns whose values are ``large_string`` or ``large_binary`` in the schema file, and these types.

    A :class:`SchemaWrapper` does not tell them. Libraries that write them demand the same type of an index.

    Parameters
    ----------
    dataset_uuid, table
        Dataset and table.
    store
        The store, its factory or URL.

    Returns
    -------
    dict of str to pyarrow.DataType

    Raises
    ------
    KeyError
        There is no schema file.
    CorruptDatasetError
        The file is no schema.

    Examples
    --------
    >>> from kartothek_cube.core.store import open_blobs
    >>> blobs = open_blobs("hmemory://")
    >>> key = store_schema_metadata(pa.schema([("CITY", pa.string())]), "sales", blobs)
    >>> long_types("sales", blobs)
    {}
    """
    key = schema_key(dataset_uuid, table)
    found = _read(get_required(open_blobs(store), key), key)
    return {field.name: field.type for field in found if is_long(field.type)}


def store_schema_metadata(
    schema: SchemaWrapper | pa.Schema,
    dataset_uuid: str,
    store: StoreInput | BlobStore,
    table: str = SINGLE_TABLE,
) -> str:
    """
    Store the schema of a table.

    Parameters
    ----------
    schema
        The schema.
    dataset_uuid, table
        Dataset and table.
    store
        The store, its factory or URL.

    Returns
    -------
    str
        The storage key, ``<dataset uuid>/<table>/_common_metadata``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> store_schema_metadata(pa.schema([("CITY", pa.string())]), "sales", "hmemory://")
    'sales/table/_common_metadata'
    """
    key = schema_key(dataset_uuid, table)
    open_blobs(store).put(key, schema_to_bytes(schema), durable=True)
    return key
