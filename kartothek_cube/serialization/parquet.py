"""Parquet files: ``ParquetSerializer``; footer, rows by pyarrow, which checks pages, and index of a file."""

from __future__ import annotations

import functools
import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, ClassVar, TypeAlias

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core import arrow, clock, expressions, old_parquet, pandas_conversion
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.evolution import ColumnMapping
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs
from kartothek_cube.serialization import _generic

Source: TypeAlias = str | bytes | bytearray | memoryview | pa.Buffer | BinaryIO

_CONTENT = (bytes, bytearray, memoryview, pa.Buffer)


def read_parquet(
    source: Source,
    name: str,
    columns: Sequence[str] | None = None,
    predicates: expressions.PredicatesType | expressions.Tree = None,
    schema: pa.Schema | None = None,
    mapping: ColumnMapping | None = None,
    *,
    row_index: bool = False,
) -> pa.Table:
    """Columns of the rows that meet predicates, in types of memory; all but the pandas index for None."""
    # `schema` is that of the dataset: predicates are checked against it, and it types columns that are null
    # in the file. `mapping` gives the columns of the dataset if the file was written before a change of its
    # schema. `name` is that of the file in errors. `row_index` adds the index of the stored frame, which
    # the rows keep, unless it is 0, 1, 2, ...
    with _convert_errors(source, name), _open(source) as file:
        stored = old_parquet.restore_zones(file.schema_arrow, file.metadata)
        available = stored if mapping is None else mapping.schema_of(stored)
        where = expressions.bind(predicates, available if schema is None else schema)
        if columns is None:
            names = (columns_of_file(stored) if mapping is None else available).names
        else:
            names = list(dict.fromkeys([*columns, *sorted(expressions.columns_of(where))]))
        needed = {*names, *expressions.columns_of(where)}
        lacking = needed.difference(available.names).intersection(() if schema is None else schema.names)
        if lacking:
            raise CorruptDatasetError(name, f"it lacks columns of the dataset: {', '.join(sorted(lacking))}")
        expressions.check_columns(needed, available.names, name)
        if len(set(stored.names)) < len(stored.names):
            repeated = next(column for column in stored.names if stored.names.count(column) > 1)
            raise CorruptDatasetError(name, f"it has a column more than once: {repeated}")
        table = _decode(file, names, mapping)
        if len(table) != file.metadata.num_rows:
            raise CorruptDatasetError(name, f"{file.metadata.num_rows} rows expected, {len(table)} found")
        index = _stored_index(file, is_filtered=where is not None) if row_index else None
    # all metadata but pandas extension types; without columns, the number of rows would be lost
    if table.schema.metadata is not None and table.num_columns:
        table = table.replace_schema_metadata(columns_of_file(table.schema).metadata)
    table = pandas_conversion.from_file(table, schema)
    shown = table.column_names if columns is None else list(columns)
    if index is not None:
        table, shown = table.append_column(*index), [*shown, _COLUMN]
    if where is not None:
        table = table.filter(expressions.tree_mask(table, where))
    if table.column_names == shown:
        return table
    return table.select(shown) if shown else arrow.zero_column_table(len(table))


def _decode(file: pq.ParquetFile, columns: Sequence[str], mapping: ColumnMapping | None) -> pa.Table:
    length, in_file = file.metadata.num_rows, file.schema_arrow.names
    if mapping is None:
        if not columns:
            return arrow.zero_column_table(length)
        return _read_columns(file, columns)
    stored = [n for column in columns if (n := mapping.stored_name(column, in_file)) is not None]
    table = _read_columns(file, stored) if stored else pa.table({})
    return mapping.adapt(table, columns, length)


def _read_columns(file: pq.ParquetFile, columns: Sequence[str]) -> pa.Table:
    return arrow.convert_layouts(old_parquet.cast_times(file.read(list(columns)), file.metadata))


def _open(source: Source) -> pq.ParquetFile:
    if isinstance(source, (bytes, bytearray, memoryview)):
        # a thread of Arrow that releases memory of Python while the process exits aborts it
        source = arrow.copy_to_arrow_memory(source)
    if isinstance(source, pa.Buffer):
        source = pa.BufferReader(source)
    return pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)


@contextmanager
def _convert_errors(source: Source, name: str) -> Iterator[None]:
    """Convert errors of broken content; connection errors and caller mistakes pass."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        raise CorruptDatasetError(name, f"not a readable Parquet file: {error}") from error
    except OSError as error:
        # Arrow raises OSError for broken pages and footers, too; those of the system have an errno, those of
        # stores a class of their own
        is_of_arrow = type(error) is OSError and error.errno is None
        if not (is_of_arrow and isinstance(source, (str, *_CONTENT))):
            raise
        raise CorruptDatasetError(name, f"not a readable Parquet file: {error}") from error


def columns_of_file(schema: pa.Schema) -> pa.Schema:
    """Schema of a file without the pandas index and all metadata but pandas extension types."""
    hidden = pandas_conversion.index_columns(schema)
    fields = [field.remove_metadata() for field in schema if field.name not in hidden]
    extensions = pandas_conversion.extension_dtypes(schema)
    plain = pa.schema(fields)
    if extensions:
        plain = plain.with_metadata({"pandas": pandas_conversion.pandas_metadata(plain, extensions)})
    return plain


def read_footer(blobs: BlobStore, key: str) -> tuple[pq.FileMetaData, int]:
    """Footer and size of a data file; raises MissingFileError or CorruptDatasetError."""
    try:
        file = blobs.open_read(key)
    except KeyError as error:
        raise MissingFileError(key) from error
    with file:
        return parse_footer(pa.PythonFile(file, mode="r"), key), file.seek(0, io.SEEK_END)


def parse_footer(file: pa.NativeFile, key: str) -> pq.FileMetaData:
    """Footer of an open file; raises CorruptDatasetError."""
    with _convert_errors(b"", key):
        return pq.read_metadata(file)


#: pandas' own name for an index in a file
_COLUMN = "__index_level_0__"
_NAME = b"index_name"


def as_table_with_index(df: pd.DataFrame, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """Arrow table of a frame and its index: a range is in the metadata, others are an additional column."""
    # `drop` copies all columns with pandas 2
    df = df.drop(columns=_COLUMN) if _COLUMN in df.columns else df
    table, index = pandas_conversion.from_pandas(df, types), df.index
    name = None if index.name is None else str(index.name)
    if isinstance(index, pd.RangeIndex):
        if (index.start, index.step, index.name) == (0, 1, None):
            return table
        range_entry = {"kind": "range", "start": index.start, "step": index.step, "stop": index.stop}
        return _describe_index(table, {**range_entry, "name": name}, None)
    try:
        column = pandas_conversion.from_pandas(index.to_frame(index=False, name="index")).column(0)
    except (TypeError, ValueError) as error:
        remedy = "reset_index(drop=True) leaves it out"
        raise type(error)(f"The index of a DataFrame is stored, too; {remedy}. {error}") from error
    pandas_type, numpy_type, details = pandas_conversion.pandas_types(column.type)
    types = {"pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": details}
    entry = {"field_name": _COLUMN, "name": name, **types}
    return _describe_index(table.append_column(_COLUMN, column), _COLUMN, entry)


def _describe_index(table: pa.Table, index: str | dict[str, Any], column: dict[str, Any] | None) -> pa.Table:
    """The table with an index in its pandas metadata."""
    content = json.loads(table.schema.metadata[b"pandas"])
    content["index_columns"] = [index]
    content["columns"] += [column] if column else []
    return table.replace_schema_metadata({b"pandas": json.dumps(content, sort_keys=True).encode()})


def _stored_index(file: pq.ParquetFile, *, is_filtered: bool) -> tuple[pa.Field, Any] | None:
    """The index of the stored frame as a column; None for 0, 1, 2, ... of all rows, or an unknown index."""
    schema = file.schema_arrow
    listed, name = _listed_index(schema)
    length, start, step, values = file.metadata.num_rows, 0, 1, None
    if isinstance(listed, str) and listed in schema.names:
        # a thread of Arrow would release the memory of Python
        table = old_parquet.cast_times(file.read([listed], use_threads=False), file.metadata)
        values = pandas_conversion.from_file(table).column(0)
    elif isinstance(listed, dict) and listed.get("kind") == "range":
        bounds = [n for n in map(listed.get, ("start", "step")) if type(n) is int and abs(n) < 1 << 62]
        start, step = bounds if len(bounds) == 2 else (0, 1)
    else:
        name = None
    if values is None:
        if (start, step, name) == (0, 1, None) and not is_filtered:
            return None
        values = pa.array(start + step * np.arange(length))
    return pa.field(_COLUMN, values.type, metadata={} if name is None else {_NAME: name}), values


def _listed_index(schema: pa.Schema) -> tuple[Any, str | None]:
    """Index entry of the pandas metadata, and its name; other libraries write it, so types are checked."""
    listed = pandas_conversion.load_metadata(schema).get("index_columns")
    if not isinstance(listed, list) or len(listed) != 1:
        return None, None
    (index,) = listed
    entries = [index] if isinstance(index, dict) else pandas_conversion.column_entries(schema)
    names = [e.get("name") for e in entries if e is index or e.get("field_name") == index]
    name = names[0] if names else None
    return index, name if isinstance(name, str) and name != _COLUMN else None


def to_frame(
    table: pa.Table,
    dates_as_object: bool,
    categories: Iterable[str] = (),
    dtype_backend: pandas_conversion.DtypeBackend | None = None,
) -> pd.DataFrame:
    """DataFrame of a table, with the index that :func:`read_parquet` adds."""
    df = pandas_conversion.to_pandas(
        table, dates_as_object=dates_as_object, categories=categories, dtype_backend=dtype_backend
    )
    if _COLUMN not in table.column_names:
        return df
    name = (table.schema.field(_COLUMN).metadata or {}).get(_NAME)
    return df.set_index(_COLUMN).rename_axis(index=None if name is None else name.decode())


# below this number of rows, samples cost more time than encodings and codecs save
_MIN_ROWS = 1_000
# Parquet writers abandon dictionaries above 1 MB, after building them
_MAX_VALUES = 100_000
_SAMPLE = 4_096
# share of its size, packed or compressed, above which a column is read faster as it is
_MAX_RATIO = 0.8
# values that Parquet packs with the same number of bits
_MINIBLOCK = 32


def choose_encodings(table: pa.Table, compression: str) -> dict[str, Any]:
    """Encodings and codecs of the columns, as arguments of a ParquetWriter."""
    # Values that hardly ever repeat (measured numbers, unique names) are written several times faster without
    # a dictionary, and take less space. Of keys, which are sorted, the differences of neighbours are packed:
    # 1.5 M integers are decoded in 0.006 instead of 0.014 s and take 0.05 instead of 1.5 MB. pyarrow 6, which
    # kartothek 5.3 allows, and newer ones read them, and so do Spark 3.3, DuckDB, delta-rs. Noise, such as
    # measured numbers with all their digits, is read ten times faster without ZSTD, which saves no space.
    if table.num_rows < _MIN_ROWS:
        return {"use_dictionary": False, "compression": compression}
    dictionaries: list[str] = []
    packed: dict[str, str] = {}
    codecs: dict[str, str] = {}
    for field in table.schema:
        column, leaves = table[field.name], _leaves(field.name, field.type)
        codecs |= dict.fromkeys(leaves, compression)
        if _use_dictionary(column):
            dictionaries += leaves
        elif _use_differences(column):
            packed[field.name] = "DELTA_BINARY_PACKED"
        elif compression.upper() == "ZSTD" and _is_incompressible(column):
            codecs[field.name] = "NONE"
    return {"use_dictionary": dictionaries, "column_encoding": packed or None, "compression": codecs}


def _leaves(path: str, dtype: pa.DataType) -> list[str]:
    """Paths of the columns that Parquet stores for a column."""
    if pat.is_list(dtype):
        return _leaves(f"{path}.list.{dtype.value_field.name}", dtype.value_type)
    if pat.is_map(dtype):
        keys = _leaves(f"{path}.key_value.key", dtype.key_type)
        return keys + _leaves(f"{path}.key_value.value", dtype.item_type)
    if pat.is_struct(dtype):
        return [leaf for field in dtype for leaf in _leaves(f"{path}.{field.name}", field.type)]
    return [path]


def _use_dictionary(column: pa.ChunkedArray) -> bool:
    """Whether a value occurs about twice on average, by pairs of equal values in a sample."""
    if pat.is_null(column.type) or pat.is_boolean(column.type):
        return False
    if pat.is_nested(column.type):
        return True
    length = len(column)
    if length <= 2 * _SAMPLE:
        return int(pc.count_distinct(column, mode="all").as_py()) <= length // 2
    sample = column.take(_positions(length))
    repeats = len(sample) - int(pc.count_distinct(sample, mode="all").as_py())
    return 2 * repeats * min(length, _MAX_VALUES) >= len(sample) ** 2


@functools.lru_cache(maxsize=64)
def _positions(length: int) -> pa.Array:
    """Irregular sample positions: values may repeat at regular distances."""
    return pa.array(np.unique(np.random.default_rng(0).integers(length, size=_SAMPLE)))


def _use_differences(column: pa.ChunkedArray) -> bool:
    """Whether the differences of neighbours, in a sample, take fewer bits than the values."""
    if not arrow.is_packable(column.type):
        return False
    # as floats: differences of the largest integers overflow
    steps = np.diff(_sample_middle(column).to_numpy().astype(np.float64))
    steps = steps[: len(steps) // _MINIBLOCK * _MINIBLOCK].reshape(-1, _MINIBLOCK)
    if not len(steps):
        return False
    bits = np.log2(steps.max(axis=1) - steps.min(axis=1) + 1).mean()
    return bool(bits <= _MAX_RATIO * (64 if column.type.bit_width == 64 else 32))


def _sample_middle(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Some consecutive values."""
    return column.slice(max(0, len(column) // 2 - _SAMPLE // 2), _SAMPLE).drop_null()


def _is_incompressible(column: pa.ChunkedArray) -> bool:
    if not pat.is_floating(column.type):
        # integers and times without dictionary and small differences
        return arrow.is_packable(column.type)
    sample = _sample_middle(column).to_numpy().tobytes()
    compressed = pa.Codec("zstd").compress(sample, asbytes=True)
    return len(compressed) > _MAX_RATIO * len(sample) > 0


#: Readers give each thread a row group: 4 million rows in one group take Polars 1.4 and DuckDB 1.6 times as
#: long, in a file that is 4 % smaller.
ROWS_PER_GROUP = 1 << 19
#: attempts to read a file, and the pause after the first of them in seconds; it doubles each time
MAX_NB_RETRIES = 6
BACKOFF_TIME = 0.01

_logger = logging.getLogger(__name__)


class ParquetReadError(OSError):
    """A Parquet file could not be read in several attempts; the last failure is the ``__cause__``."""


@attrs.define(init=False, unsafe_hash=True, slots=False)
class ParquetSerializer(_generic.DataFrameSerializer):
    """Frames as Parquet files.

    Parameters
    ----------
    compression
        Codec of the pages: ``SNAPPY``, ``ZSTD``, ``GZIP``, ``BROTLI``, ``LZ4`` or ``NONE``; None is ``NONE``.
    chunk_size
        Rows per row group; None for half a million.

    Attributes
    ----------
    compression : str
    chunk_size : int or None

    Raises
    ------
    TypeError
        ``chunk_size`` is no integer.
    ValueError
        ``chunk_size`` is less than 1, or the codec is unknown.

    Examples
    --------
    >>> from kartothek_cube.core.store import open_blobs
    >>> blobs = open_blobs("hmemory://")
    >>> key = ParquetSerializer("ZSTD").store(blobs, "cities", pd.DataFrame({"CITY": ["Rom", "Bonn"]}))
    >>> ParquetSerializer.restore_dataframe(blobs, key, predicates=[[("CITY", "<", "C")]])["CITY"].tolist()
    ['Bonn']
    """

    type_stable: ClassVar[bool] = True

    compression: str
    chunk_size: int | None

    def __init__(self, compression: str | None = "SNAPPY", chunk_size: int | None = None) -> None:
        if chunk_size is not None and not isinstance(chunk_size, int):
            raise TypeError(f"chunk_size must be an integer, got {chunk_size!r}.")
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}.")
        codec = "NONE" if compression is None else compression
        if not _is_codec(codec):
            raise ValueError(f"Parquet codec {compression!r} is not available; try SNAPPY or ZSTD.")
        self.compression = codec
        self.chunk_size = chunk_size

    @classmethod
    def restore_dataframe(
        cls,
        store: StoreInput | BlobStore,
        key: str,
        filter_query: str | None = None,
        columns: Sequence[str] | None = None,
        predicate_pushdown_to_io: bool = True,
        categories: Iterable[str] | None = None,
        predicates: expressions.PredicatesType = None,
        date_as_object: bool = False,
    ) -> pd.DataFrame:
        """Read a Parquet file; see :meth:`DataFrameSerializer.restore_dataframe`.

        The frame has the index with which it was stored. A store that fails six times in a row raises
        ParquetReadError, content that is no Parquet file CorruptDatasetError, a ValueError.
        """
        _generic.check_filters(filter_query, predicates)
        blobs = open_blobs(store)
        columns_to_load = None if filter_query else columns

        def read() -> pa.Table:
            try:
                content = blobs.local_path(key) or blobs.get(key)
                return read_parquet(content, key, columns_to_load, predicates, row_index=True)
            except FileNotFoundError as error:
                raise KeyError(key) from error

        table = _retry(read, key)
        categorical = [column for column in categories or () if column in table.column_names]
        df = to_frame(table, date_as_object, categorical)
        if filter_query:
            expressions.check_columns(columns or (), df.columns, key)
            df = _generic.select_columns(_generic.filter_df(df, filter_query), columns)
        return df

    def store(self, store: StoreInput | BlobStore, key_prefix: str, df: pd.DataFrame | pa.Table) -> str:
        """Write a frame; see :meth:`DataFrameSerializer.store`.

        Timestamps finer than microseconds raise a ValueError that names the column.
        """
        key = f"{key_prefix}.parquet"
        sink = pa.BufferOutputStream()
        table = as_table_with_index(df) if isinstance(df, pd.DataFrame) else pandas_conversion.as_table(df)
        self.write_table(table, sink)
        open_blobs(store).put(key, sink.getvalue().to_pybytes())
        return key

    def write_table(self, table: pa.Table, sink: str | BinaryIO | pa.NativeFile) -> None:
        """Write an Arrow table to a path or file; raises ValueError for timestamps finer than us."""
        self.write_storable(self.storable(table), sink)

    @staticmethod
    def storable(table: pa.Table) -> pa.Table:
        """Convert to storage types with pandas metadata, unless they are there already."""
        is_storable = b"pandas" in (table.schema.metadata or {})
        is_storable &= all(t in (arrow.storage_type(t), arrow.with_far_times(t)) for t in table.schema.types)
        return table if is_storable else pandas_conversion.as_table(table)

    def write_storable(self, table: pa.Table, sink: str | BinaryIO | pa.NativeFile) -> None:
        """Write a table made by `storable`, or a slice of it, without checking its types again."""
        try:
            with pq.ParquetWriter(
                sink,
                table.schema,
                version="2.6",
                coerce_timestamps="us",
                write_page_checksum=True,
                use_compliant_nested_type=False,  # inner fields are called "item", as kartothek 5.3 expects
                **choose_encodings(table, self.compression),
            ) as writer:
                writer.write_table(table, row_group_size=self.chunk_size or ROWS_PER_GROUP)
        except pa.ArrowInvalid as error:
            _explain_timestamps(table, error)
            raise


def _is_codec(name: str) -> bool:
    with suppress(ValueError):
        return name.upper() == "NONE" or bool(pa.Codec.is_available(name.lower()))
    return False


def _explain_timestamps(table: pa.Table, error: pa.ArrowInvalid) -> None:
    """Raise a ValueError with the column name if a timestamp is the cause of an error."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if arrow.contains_type(column.type, pat.is_timestamp):
            try:
                column.cast(arrow.with_far_times(column.type))
            except pa.ArrowInvalid:
                raise ValueError(
                    f"Column {name!r} holds timestamps with nanoseconds, files hold microseconds; "
                    f"round them first, as by .dt.floor('us') ({error})."
                ) from error


def _retry(read: Callable[[], pa.Table], key: str) -> pa.Table:
    """Repeat a read with exponential backoff while the store fails."""
    for attempt in range(1, MAX_NB_RETRIES + 1):
        try:
            return read()
        except OSError as error:
            _logger.warning("Attempt %d of %d to read %r failed: %r", attempt, MAX_NB_RETRIES, key, error)
            cause = error
            if attempt < MAX_NB_RETRIES:
                clock.sleep(BACKOFF_TIME * 2 ** (attempt - 1))
    raise ParquetReadError(f"{key!r} could not be read in {MAX_NB_RETRIES} attempts: {cause!r}") from cause


_generic.DataFrameSerializer.register_serializer(".parquet", ParquetSerializer)
