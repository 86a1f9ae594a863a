"""``SchemaWrapper``, a normalised Arrow schema with its origins; creation and compatibility of schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import reduce
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core import arrow, caching, naming, old_parquet, pandas_conversion
from kartothek_cube.core.errors import CorruptDatasetError, SchemaConflictError, check_names, nearest_names
from kartothek_cube.core.store import BlobStore, StoreInput, get_required, open_blobs
from kartothek_cube.core.uuid import gen_uuid
from kartothek_cube.display import plain_text_table


class SchemaWrapper:
    """A schema and its origins.

    The wrapped schema has storage types (``string`` whatever the flavour, timestamps in ns, or in us where
    the pandas metadata say that ns do not hold them), no index column and no metadata but that of pandas.
    Attributes of :class:`pyarrow.Schema` are available on the wrapper.

    Parameters
    ----------
    schema
        The schema, or a wrapper of one.
    origin
        Where it came from, one or several strings: shown in messages about conflicts.

    Raises
    ------
    TypeError
        An origin is no string.
    NotImplementedError
        The pandas metadata names several index columns.

    Examples
    --------
    >>> import pyarrow as pa
    >>> schema = SchemaWrapper(pa.schema([("CITY", pa.large_string()), ("DAY", pa.date32())]), "sales")
    >>> schema.field("CITY").type
    DataType(string)
    >>> schema.remove(0).names, schema.with_origin("weather").origin
    (['DAY'], {'weather'})
    """

    __slots__ = ("_origin", "_schema")

    _schema: pa.Schema
    _origin: frozenset[str]

    def __init__(self, schema: pa.Schema | SchemaWrapper, origin: str | Iterable[str]) -> None:
        self._schema = _normalise(schema.internal() if isinstance(schema, SchemaWrapper) else schema)
        self._origin = _origins(origin)

    @property
    def origin(self) -> set[str]:
        """Origin of the schema; a copy."""
        return set(self._origin)

    def internal(self) -> pa.Schema:
        """The schema itself."""
        return self._schema

    def with_origin(self, origin: str | Iterable[str]) -> SchemaWrapper:
        """The same schema with other origins."""
        return self._wrap(self._schema, _origins(origin))

    def equals(self, other: SchemaWrapper | pa.Schema, check_metadata: bool = False) -> bool:
        """Whether both have the same columns of the same types in the same order.

        With ``check_metadata``, the pandas metadata has to be equal as well; raises TypeError for no schema.
        """
        if not isinstance(other, (SchemaWrapper, pa.Schema)):
            raise TypeError(f"A schema can be compared with a schema only, got {type(other).__name__}.")
        schema = other.internal() if isinstance(other, SchemaWrapper) else _normalise(other)
        return bool(self._schema.equals(schema, check_metadata=check_metadata))

    def remove(self, i: int) -> SchemaWrapper:
        """The schema without the column at a position."""
        return self._wrap(_normalise(self._schema.remove(i)), self._origin)

    def set(self, i: int, field: pa.Field) -> SchemaWrapper:
        """The schema with another column at a position."""
        return self._wrap(_normalise(self._schema.set(i, field)), self._origin)

    def remove_metadata(self) -> SchemaWrapper:
        """The schema without pandas metadata; its origins end in ``__no_metadata``."""
        origins = frozenset(origin + "__no_metadata" for origin in self._origin)
        return self._wrap(self._schema.remove_metadata(), origins)

    @classmethod
    def _wrap(cls, schema: pa.Schema, origin: frozenset[str]) -> SchemaWrapper:
        """Wrap a schema that is normalised already."""
        wrapper = cls.__new__(cls)
        wrapper._schema, wrapper._origin = schema, origin
        return wrapper

    def __getattr__(self, name: str) -> Any:
        if name in SchemaWrapper.__slots__:  # not yet there while unpickling
            raise AttributeError(name)
        return getattr(self._schema, name)

    def __eq__(self, other: object) -> bool:
        return self.equals(other) if isinstance(other, (SchemaWrapper, pa.Schema)) else NotImplemented

    def __hash__(self) -> int:
        return hash((tuple(self._schema.names), tuple(map(str, self._schema.types))))

    def __len__(self) -> int:
        return len(self._schema)

    def __getitem__(self, i: int | str) -> pa.Field:
        return self._schema.field(i)

    def __iter__(self) -> Iterator[pa.Field]:
        return iter(self._schema)

    def __repr__(self) -> str:
        return repr(self._schema)


def _origins(origin: str | Iterable[str]) -> frozenset[str]:
    origins = frozenset([origin] if isinstance(origin, str) else origin)
    for element in origins:
        if not isinstance(element, str):
            raise TypeError(
                f"The origin of a schema is a text, got {element!r} of type {type(element).__name__}."
            )
    return origins


def _normalise(schema: pa.Schema) -> pa.Schema:
    index = pandas_conversion.index_columns(schema)
    if len(index) > 1:
        raise NotImplementedError(
            f"A frame with a MultiIndex cannot be stored; call reset_index(). Index: {', '.join(index)}."
        )
    far = pandas_conversion.far_columns(schema)
    fields = [
        pa.field(field.name, (arrow.with_far_times if field.name in far else arrow.storage_type)(field.type))
        for field in schema
        if field.name not in index
    ]
    stored = pa.schema(fields)
    if schema.metadata is None or b"pandas" not in schema.metadata:
        return stored
    return pandas_conversion.with_pandas_metadata(stored, pandas_conversion.extension_dtypes(schema))


_MAX_ORIGIN = 200


def validate_compatible(
    schemas: Iterable[SchemaWrapper | pa.Schema], ignore_pandas: bool = False
) -> SchemaWrapper | None:
    """Check that files of these schemas form one table, and find the schema that knows most.

    Parameters
    ----------
    schemas
        The schemas. A column that is ``null`` in some may have any type in the others, also within lists,
        structs and maps; one that is ``null`` may also be absent in others, and in the result. All else has
        to agree: names, order, and types but for their width.
    ignore_pandas
        Whether schemas with and without pandas metadata may be mixed.

    Returns
    -------
    SchemaWrapper or None
        For each column the type, if any schema knows it; the origins of all. None if there are no schemas.

    Raises
    ------
    SchemaConflictError
        A ValueError; it names the origins of two schemas that do not fit, and shows the difference.

    Examples
    --------
    >>> import pyarrow as pa
    >>> old = SchemaWrapper(pa.schema([("CITY", pa.null())]), "old file")
    >>> new = SchemaWrapper(pa.schema([("CITY", pa.string())]), "new file")
    >>> validate_compatible([old, new]).types
    [DataType(string)]
    """
    distinct = _distinct(schemas, ignore_pandas)
    return reduce(_unite, distinct) if distinct else None


def validate_shared_columns(
    schemas: Iterable[SchemaWrapper | pa.Schema], ignore_pandas: bool = False
) -> None:
    """Check that columns that occur in several of the schemas have one type.

    Parameters
    ----------
    schemas
        The schemas, for example of the datasets of a cube. ``null`` is compatible with every type.
    ignore_pandas
        Whether schemas with and without pandas metadata may be mixed.

    Raises
    ------
    SchemaConflictError
        A ValueError; it names the column, both types and where they come from.

    Examples
    --------
    >>> import pyarrow as pa
    >>> seed, weather = pa.schema([("DAY", pa.date32())]), pa.schema([("DAY", pa.string())])
    >>> validate_shared_columns([SchemaWrapper(seed, "seed"), SchemaWrapper(weather, "weather")])
    Traceback (most recent call last):
      ...
    kartothek_cube.core.errors.SchemaConflictError: Column 'DAY' is date32[day] in {seed} but string in
    {weather}.
    """
    seen: dict[str, tuple[pa.DataType, SchemaWrapper]] = {}
    for schema in _distinct(schemas, ignore_pandas):
        for field in schema:
            seen_type, seen_schema = seen.setdefault(field.name, (field.type, schema))
            if pat.is_null(seen_type):
                seen[field.name] = (field.type, schema)
            elif not pat.is_null(field.type) and not arrow.same_type(seen_type, field.type):
                seen_at, at = map(_format_origin, (seen_schema, schema))
                problem = f"Column {field.name!r} is {seen_type} in {seen_at} but {field.type} in {at}."
                raise SchemaConflictError(problem)


def _distinct(schemas: Iterable[SchemaWrapper | pa.Schema], ignore_pandas: bool) -> list[SchemaWrapper]:
    """Distinct schemas with the origins of all copies, in an order that does not depend on file names."""
    wrapped = [s if isinstance(s, SchemaWrapper) else SchemaWrapper(s, "schema") for s in schemas]
    if not ignore_pandas and len(set(map(_has_pandas, wrapped))) > 1:
        problem = "Schemas with and without pandas metadata cannot be compared"
        raise SchemaConflictError(f"{problem}; use ignore_pandas=True to compare Arrow types.")
    if len(wrapped) < 2:
        return wrapped
    groups: dict[tuple[SchemaWrapper, bool], list[SchemaWrapper]] = {}
    for schema in sorted(wrapped, key=lambda s: sorted(s.origin)):
        groups.setdefault((schema, _has_pandas(schema)), []).append(schema)
    distinct = [group[0].with_origin(set().union(*(s.origin for s in group))) for group in groups.values()]
    # names of files are random, and a conflict is between the first schemas that do not fit
    return sorted(distinct, key=lambda s: (not _is_stored(s), [(f.name, str(f.type)) for f in s]))


def _has_pandas(schema: SchemaWrapper) -> bool:
    return schema.internal().metadata is not None


def _unite(reference: SchemaWrapper, schema: SchemaWrapper) -> SchemaWrapper:
    """The reference schema, with types from the other schema where it has none."""
    left, right = reference.internal(), schema.internal()
    if left.names != right.names:
        left, right = _drop_absent_nulls(left, right.names), _drop_absent_nulls(right, left.names)
    if left.names != right.names or not all(map(arrow.same_but_nulls, left.types, right.types)):
        raise SchemaConflictError(_difference(reference, schema))
    types = [arrow.common_type(a, b) for a, b in zip(left.types, right.types, strict=True)]
    united = pa.schema(list(zip(left.names, types, strict=True)))
    if left.metadata is not None or right.metadata is not None:
        united = pandas_conversion.with_pandas_metadata(united, _extensions(left, right))
    return SchemaWrapper(united, reference.origin | schema.origin)


def _drop_absent_nulls(schema: pa.Schema, others: Sequence[str]) -> pa.Schema:
    """The schema without columns of nulls that another one lacks: as in kartothek 5.3, they hold nothing."""
    names = set(others)
    fields = [field for field in schema if field.name in names or not pat.is_null(field.type)]
    return schema if len(fields) == len(schema) else pa.schema(fields, schema.metadata)


def _extensions(left: pa.Schema, right: pa.Schema) -> dict[str, str]:
    """Pandas extension types of the schema that knows the Arrow type."""
    unknown = {field.name for field in left if pat.is_null(field.type)}
    known, added = map(pandas_conversion.extension_dtypes, (left, right))
    return known | {name: dtype for name, dtype in added.items() if name in unknown}


def _format_origin(schema: SchemaWrapper) -> str:
    return "{" + _cut(", ".join(sorted(schema.origin))) + "}"


def _cut(origin: str) -> str:
    return origin if len(origin) <= _MAX_ORIGIN else origin[:_MAX_ORIGIN] + "..."


def _difference(reference: SchemaWrapper, schema: SchemaWrapper) -> str:
    """Say how two schemas differ, as one table: a row per column."""
    stored, given = reference, schema
    if _is_stored(given) and not _is_stored(stored):
        stored, given = given, stored
    heads = ("stored", "given") if _is_stored(stored) else ("first", "second")
    remedies = _REMEDIES_OF_STORED if _is_stored(stored) else _REMEDIES_OF_INPUT
    rows = list(_conflicts(stored.internal(), given.internal(), *remedies, is_stored=_is_stored(stored)))
    other = "the dataset" if _is_stored(stored) else _format_origin(stored)
    source = _cut(", ".join(sorted(given.origin))) if _is_stored(stored) else _format_origin(given)
    title = f"Schema violation: the columns of {source} do not fit those of {other}."
    return f"{title}\n{plain_text_table(['column', *heads, 'what to do'], rows)}"


def _is_stored(schema: SchemaWrapper) -> bool:
    """Whether a schema is that of a dataset, not that of a file or of input."""
    return any(origin.endswith(naming.TABLE_METADATA_FILE) for origin in schema.origin)


#: advice on a missing and on an additional column, in rows for a dataset and in several inputs
_REMEDIES_OF_STORED = (
    'add the column, or leave it out: of new cells with schema_mode="merge", of others with merge_into_cube',
    'drop the column, or add it by update_schema (in appends, by schema_mode="merge")',
)
_REMEDIES_OF_INPUT = (
    "add the column, with nulls where values are unknown",
    "drop the column, or add it to all",
)


def _conflicts(
    stored: pa.Schema, given: pa.Schema, for_missing: str, for_additional: str, *, is_stored: bool
) -> Iterator[tuple[str, str, str, str]]:
    """Column, stored type, given type and remedy, of each column that does not fit."""
    types, names = {field.name: field.type for field in given}, set(stored.names)
    for field in stored:
        if field.name not in types:
            yield field.name, str(field.type), "-", for_missing
        elif not arrow.same_but_nulls(field.type, types[field.name]):
            target, dtype = field.type, types[field.name]
            is_time = pat.is_date(target) and pat.is_timestamp(dtype)
            if not is_stored and (is_time or arrow.promotes_to(target, dtype)):
                # either input may change: the type that holds the values of both
                target, dtype = dtype, target
            remedy = find_remedy.get()(field.name, target, dtype)
            yield field.name, str(field.type), str(types[field.name]), remedy
    for field in given:
        if field.name not in names:
            nearest = nearest_names(field.name, names - set(types))
            hint = f"did you mean {nearest[0]!r}? Else " if nearest else ""
            yield field.name, "-", str(field.type), hint + for_additional
    if names == set(types) and stored.names != given.names:
        yield "(order)", ", ".join(stored.names), ", ".join(given.names), "reorder the columns"


def _find_pandas_remedy(name: str, stored: pa.DataType, given: pa.DataType) -> str:
    """Advice on a cast of a column of a DataFrame to the stored type."""
    column = f"df[{name!r}]"
    if pat.is_integer(stored) and pat.is_floating(given):
        # whole numbers beside gaps fit already: what is left has no gaps, has fractions or is too large
        return f'widen payload with update_schema, or {column}.astype("Int64") if all are whole numbers'
    if pat.is_floating(stored) and pat.is_integer(given):
        return f'{column}.astype("float64"), which rounds integers beyond 2**53'
    if pat.is_integer(stored) or pat.is_floating(stored):
        return f'{column}.astype("{"Int64" if pat.is_integer(stored) else "float64"}")'
    if pat.is_boolean(stored):
        return f'{column}.astype("boolean") keeps gaps in booleans'
    if pat.is_timestamp(stored) and pat.is_timestamp(given):
        if stored.tz and given.tz:
            return f"{column}.dt.tz_convert({stored.tz!r})"
        if stored.tz:
            return f"{column}.dt.tz_localize({stored.tz!r}), if it holds times of this zone"
        return f'{column}.dt.tz_convert("UTC").dt.tz_localize(None), if times of the dataset are those of UTC'
    if pat.is_timestamp(stored):
        return f"pd.to_datetime({column})"
    if pat.is_date(stored) and pat.is_timestamp(given):
        convert, zone = ('.dt.tz_convert("UTC")', ", for days of UTC") if given.tz else ("", "")
        return f"{column}{convert}.dt.date{zone}"
    if pat.is_string(stored):
        # str makes texts of missing values in pandas before 3
        return f'{column}.astype("string")'
    if pat.is_decimal(stored):
        cast = f"{column}.astype(pd.ArrowDtype(pa.{stored}))"
        return f"{cast}, if that holds all values: a dataset keeps the digits of its first write"
    return f"make it {stored}"


#: advice on a column, by its name, stored and given type; for pandas, unless a façade changes it
find_remedy: ContextVar[Callable[[str, pa.DataType, pa.DataType], str]] = ContextVar(
    "find_remedy", default=_find_pandas_remedy
)


def make_meta(
    obj: arrow.Frame | pa.Schema | SchemaWrapper,
    origin: str | Iterable[str],
    partition_keys: Sequence[str] | None = None,
) -> SchemaWrapper:
    """Make the schema of a table as a dataset stores it: widened types, partition keys first, others sorted.

    Parameters
    ----------
    obj
        A table, or a schema; a :class:`SchemaWrapper` is returned as it is.
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
        It is none of these, or has a name twice.

    Examples
    --------
    >>> import pandas as pd
    >>> make_meta(pd.DataFrame({"DAY": [1], "CITY": ["Rom"]}), "sales").names
    ['CITY', 'DAY']
    """
    if isinstance(obj, SchemaWrapper):
        return obj
    if isinstance(obj, pd.DataFrame):
        schema = pandas_conversion.from_pandas(obj.iloc[:0] if _has_static_types(obj) else obj).schema
    elif isinstance(obj, (pa.Table, pa.RecordBatch)):
        is_static = not any(arrow.contains_type(dtype, pat.is_timestamp) for dtype in obj.schema.types)
        schema = pandas_conversion.as_table(obj.slice(0, 0) if is_static else obj).schema
    elif isinstance(obj, pa.Schema):
        pandas_conversion.column_names(obj.names)
        schema = obj
    elif hasattr(obj, "__arrow_c_stream__"):
        schema = pandas_conversion.as_table(obj).schema
    else:
        raise ValueError(
            f"A schema is made from a DataFrame, pyarrow.Table or pyarrow.Schema, got {type(obj).__name__}."
        )
    wrapper = SchemaWrapper(schema, origin)
    types = {field.name: arrow.widen(field.type) for field in wrapper}
    wide = pa.schema([(name, types[name]) for name in order_columns(types, partition_keys or ())])
    extensions = pandas_conversion.extension_dtypes(wrapper.internal())
    # those that do not depend on the width of a column
    kept = {name: dtype for name, dtype in extensions.items() if dtype in ("string", "boolean")}
    return wrapper._wrap(pandas_conversion.with_pandas_metadata(wide, kept), wrapper._origin)


def _has_static_types(df: pd.DataFrame) -> bool:
    """Whether all types are known without the values."""
    return all(isinstance(t, pd.StringDtype) or t.kind in "biuf" or t == "datetime64[ns]" for t in df.dtypes)


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
        The same four, adapted to :func:`~kartothek_cube.core.arrow.widen`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> normalize_type(pa.int8(), "int8", "int8", None)
    (DataType(int64), 'int64', 'int64', None)
    """
    wide = arrow.storage_type(arrow.widen(t_pa))
    if not (pat.is_dictionary(t_pa) or pat.is_list(wide) or pat.is_integer(wide) or pat.is_floating(wide)):
        return wide, t_pd, t_np, metadata
    new_pd, new_np, new_metadata = pandas_conversion.pandas_types(wide)
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
    fields = [by_name[name] for name in order_columns(by_name, partition_keys or ())]
    return SchemaWrapper(pa.schema(fields, internal.metadata), wrapper.origin)


def order_columns(names: Collection[str], partition_keys: Sequence[str]) -> list[str]:
    """Partition keys, as far as they are among the names, then the others in alphabetical order."""
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
    table = schema.empty_table()
    if not isinstance(schema, SchemaWrapper):
        table = pandas_conversion.from_file(table)
    if columns is not None:
        check_names("", "column", columns, table.column_names)
        table = table.select(list(columns))
    return pandas_conversion.to_pandas(table, dates_as_object=date_as_object)


# The format keeps the schema in a file at a fixed key, so that replacing a dataset by one with another schema
# takes two puts. A writer that is killed in between would leave the old header with the new schema. Therefore
# a schema file says for which headers it was written (all with one ``creation_time``, which updates keep: the
# schema version) and holds the schema of the header that it was written over, which may be one of another
# library. Other readers ignore this metadata. Headers of this library have a copy of their schema.

#: key in the metadata of the Parquet file
VERSIONS_KEY = b"kartothek_cube"
#: limit of schemas of other versions; this library writes one
_MAX_VERSIONS = 8


class VersionedSchema(NamedTuple):
    """Content of a schema file: the current schema, its version, and schemas of other versions."""

    schema: SchemaWrapper
    #: None if the writer has not recorded it
    version: str | None = None
    others: Mapping[str, SchemaWrapper] = {}

    def of(self, version: str | None) -> SchemaWrapper:
        """Schema of a version; the current one if the version is unknown."""
        return self.schema if version is None else self.others.get(version, self.schema)

    def has(self, version: str | None) -> bool:
        """Whether it holds the schema of a version, as far as it is known."""
        return None in (version, self.version) or version == self.version or version in self.others


def schema_version_of(metadata: Any) -> str | None:
    """Schema version of a header, by its metadata."""
    version = metadata.get("creation_time") if isinstance(metadata, Mapping) else None
    if not isinstance(version, str):
        return None
    # updates of a dataset keep its creation time, and those of its schema need a version of their own
    evolution = metadata.get(naming.EVOLUTION)
    return f"{version} {evolution.get('version')}" if isinstance(evolution, Mapping) else version


def render_schema_file(
    schema: SchemaWrapper, metadata: Any, replaced: tuple[SchemaWrapper, Any] | None = None
) -> bytes:
    """Content of the schema file for a header with some metadata; `replaced`: both of the header before."""
    # The id makes the content unique: stores compare contents, and a conditional deletion must not take a
    # rewritten schema for the one that was read.
    content: dict[str, Any] = {"creation_time": schema_version_of(metadata), "commit": gen_uuid()}
    before = None if replaced is None else schema_version_of(replaced[1])
    if replaced is not None and before not in (None, content["creation_time"]):
        content["others"] = {before: arrow.encode_schema(replaced[0].internal())}
    return schema_to_bytes(schema, {VERSIONS_KEY: json.dumps(content).encode()})


def decode_version(
    schema: SchemaWrapper, metadata: Mapping[bytes, bytes] | None, origin: str
) -> VersionedSchema:
    """Decode the versions of a schema file; raises CorruptDatasetError."""
    raw = (metadata or {}).get(VERSIONS_KEY)
    if raw is None:
        return VersionedSchema(schema)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptDatasetError(origin, f"its schema versions are no JSON ({error})") from error
    version = content.get("creation_time") if isinstance(content, dict) else 0
    others = content.get("others", {}) if isinstance(content, dict) else {}
    if not isinstance(version, str | None) or not isinstance(others, dict) or len(others) > _MAX_VERSIONS:
        raise CorruptDatasetError(origin, "its schema versions have another structure")
    schemas = {key: _parse_schema(text, origin) for key, text in others.items()}
    return VersionedSchema(schema, version, schemas)


def _parse_schema(text: Any, origin: str) -> SchemaWrapper:
    try:
        return SchemaWrapper(arrow.decode_schema(text), origin)
    except (TypeError, pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDatasetError(origin, f"one of its schema versions is no schema: {error}") from error


#: rough size of a column in a parsed schema
COLUMN_BYTES = 1 << 9


def schema_to_bytes(schema: SchemaWrapper | pa.Schema, marks: Mapping[bytes, bytes] | None = None) -> bytes:
    """Content of a schema file: Parquet without row groups, timestamps in microseconds."""
    # kartothek 5.3 cannot read a schema file without pandas metadata, so missing ones are added.
    wrapper = schema if isinstance(schema, SchemaWrapper) else SchemaWrapper(schema, "schema")
    internal = wrapper.internal()
    if internal.metadata is None:
        internal = pandas_conversion.with_pandas_metadata(internal)
    internal = internal.with_metadata({**internal.metadata, **(marks or {})})
    sink = pa.BufferOutputStream()
    pq.write_metadata(internal, sink, version="2.6", coerce_timestamps="us", use_compliant_nested_type=False)
    return bytes(sink.getvalue())


def schema_file_from_bytes(buf: bytes, origin: str) -> VersionedSchema:
    """All schema versions in the content of a schema file; raises CorruptDatasetError (a ValueError)."""

    def parse(content: bytes) -> VersionedSchema:
        schema = _read_arrow_schema(content, origin)
        if len(set(schema.names)) < len(schema.names):
            raise CorruptDatasetError(origin, "column names occur more than once")
        return decode_version(SchemaWrapper(schema, origin), schema.metadata, origin)

    key = ("schema", origin)
    return caching.CACHE.parse(key, bytes(buf), parse, lambda file: COLUMN_BYTES * (1 + len(file.schema)))


def _read_arrow_schema(content: bytes, origin: str) -> pa.Schema:
    try:
        schema = old_parquet.schema_of_footer(pq.read_metadata(pa.BufferReader(content)))
        _ = schema.names  # decoded lazily: raises here if they are malformed
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDatasetError(origin, f"not the schema of a table: {error}") from error
    return schema


def read_schema_metadata(
    dataset_uuid: str,
    store: StoreInput | BlobStore,
    table: str = naming.SINGLE_TABLE,
) -> SchemaWrapper:
    """Load the schema of a table; its origin is the storage key.

    A missing file is a KeyError, one that is no schema a CorruptDatasetError.

    >>> blobs = open_blobs("hmemory://")
    >>> _ = store_schema_metadata(pa.schema([("CITY", pa.string())]), "sales", blobs)
    >>> read_schema_metadata("sales", blobs).names
    ['CITY']
    """
    key = naming.schema_key(dataset_uuid, table)
    return schema_file_from_bytes(get_required(open_blobs(store), key), key).schema


def long_types(
    dataset_uuid: str, store: StoreInput | BlobStore, table: str = naming.SINGLE_TABLE
) -> dict[str, pa.DataType]:
    """Columns with ``large_string`` or ``large_binary`` in the schema file, and these types."""
    # A SchemaWrapper does not contain them, but libraries that write them demand the same type of an index.
    key = naming.schema_key(dataset_uuid, table)
    schema = _read_arrow_schema(get_required(open_blobs(store), key), key)
    return {field.name: field.type for field in schema if arrow.is_long(field.type)}


def store_schema_metadata(
    schema: SchemaWrapper | pa.Schema,
    dataset_uuid: str,
    store: StoreInput | BlobStore,
    table: str = naming.SINGLE_TABLE,
) -> str:
    """Store the schema of a table; returns its storage key.

    >>> store_schema_metadata(pa.schema([("CITY", pa.string())]), "sales", "hmemory://")
    'sales/table/_common_metadata'
    """
    key = naming.schema_key(dataset_uuid, table)
    open_blobs(store).put(key, schema_to_bytes(schema), durable=True)
    return key
