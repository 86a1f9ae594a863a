"""``ParquetSerializer``: frames and Arrow tables as Parquet files that kartothek 5.3 reads."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import BinaryIO, ClassVar

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core import clock
from kartothek_cube.core.arrow import Ints, is_nested, storage_type
from kartothek_cube.core.expressions import PredicatesType, check_columns
from kartothek_cube.core.pandas_conversion import as_table, to_pandas
from kartothek_cube.core.store import BlobStore, StoreInput, open_blobs
from kartothek_cube.serialization import _generic
from kartothek_cube.serialization.parquet_reader import Source, read_parquet

# below this number of rows, dictionaries only cost time
_MIN_ROWS_DICTIONARIES = 1_000
# Parquet writers abandon dictionaries above 1 MB, after building them
_MAX_VALUES = 100_000
_SAMPLE = 4_096
# below this number of rows, decompression takes no time worth saving
_MIN_ROWS_CODECS = 10_000
# compression ratio above which decompression does not pay
_MAX_RATIO = 0.9


def dictionary_columns(table: pa.Table) -> list[str]:
    """Paths of the columns to write with a dictionary."""
    # Values that hardly ever repeat (measured numbers, unique names) are written several times faster without
    # one, and take less space.
    if table.num_rows < _MIN_ROWS_DICTIONARIES:
        return []
    columns = zip(table.schema, table.columns, strict=True)
    return [_path(field) for field, column in columns if _use_dictionary(column)]


def _path(field: pa.Field) -> str:
    dtype: pa.DataType = field.type
    path = str(field.name)
    while pat.is_list(dtype):
        path, dtype = f"{path}.list.{dtype.value_field.name}", dtype.value_type
    return path


def _use_dictionary(column: pa.ChunkedArray) -> bool:
    """Whether a value occurs about twice on average, by pairs of equal values in a sample."""
    if pat.is_null(column.type) or pat.is_boolean(column.type):
        return False
    if is_nested(column.type):
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
    positions: Ints = np.random.default_rng(0).integers(length, size=_SAMPLE)
    return pa.array(np.unique(positions))


def codecs(table: pa.Table, dictionaries: Collection[str], compression: str) -> str | dict[str, str]:
    """The codec, or one per column path: ZSTD is left out where it hardly saves space."""
    # Noise, such as measured numbers with all their digits, is read ten times faster then.
    if compression.upper() != "ZSTD" or table.num_rows < _MIN_ROWS_CODECS:
        return compression
    uncompressed = {
        name
        for name, column in zip(table.column_names, table.columns, strict=True)
        if name not in dictionaries and _is_incompressible(column)
    }
    if not uncompressed:
        return compression
    return {_path(field): "NONE" if field.name in uncompressed else compression for field in table.schema}


def _is_incompressible(column: pa.ChunkedArray) -> bool:
    dtype = column.type
    if not (pat.is_floating(dtype) or pat.is_integer(dtype) or pat.is_timestamp(dtype)):
        return False
    sample = column.slice(len(column) // 2 - _SAMPLE // 2, _SAMPLE).drop_null().to_numpy().tobytes()
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
        predicates: PredicatesType = None,
        date_as_object: bool = False,
    ) -> pd.DataFrame:
        """Read a Parquet file; see :meth:`DataFrameSerializer.restore_dataframe`.

        The frame has a fresh index. A store that fails six times in a row raises ParquetReadError, content
        that is no Parquet file CorruptDatasetError, a ValueError.
        """
        _generic.check_filters(filter_query, predicates)
        blobs = open_blobs(store)
        columns_to_load = None if filter_query else columns

        def read() -> pa.Table:
            try:
                content = blobs.local_path(key) or blobs.get(key)
                return read_parquet(content, key, columns_to_load, predicates)
            except FileNotFoundError as error:
                raise KeyError(key) from error

        table = _retry(read, key)
        categorical = [column for column in categories or () if column in table.column_names]
        df = to_pandas(table, dates_as_object=date_as_object, categories=categorical)
        if filter_query:
            check_columns(columns or (), table.column_names, key)
            df = _generic.select_columns(_generic.filter_df(df, filter_query), columns).reset_index(drop=True)
        return df

    def store(self, store: StoreInput | BlobStore, key_prefix: str, df: pd.DataFrame | pa.Table) -> str:
        """Write a frame; see :meth:`DataFrameSerializer.store`.

        Timestamps finer than microseconds raise a ValueError that names the column.
        """
        key = f"{key_prefix}.parquet"
        sink = pa.BufferOutputStream()
        self.write_table(as_table(df), sink)
        open_blobs(store).put(key, sink.getvalue().to_pybytes())
        return key

    def write_table(self, table: pa.Table, sink: str | BinaryIO | pa.NativeFile) -> None:
        """Write an Arrow table to a path or file; raises ValueError for timestamps finer than us."""
        self.write_storable(self.storable(table), sink)

    @staticmethod
    def storable(table: pa.Table) -> pa.Table:
        """Convert to storage types with pandas metadata, unless they are there already."""
        return table if _is_storable(table.schema) else as_table(table)

    def write_storable(self, table: pa.Table, sink: str | BinaryIO | pa.NativeFile) -> None:
        """Write a table made by `storable`, or a slice of it, without checking its types again."""
        dictionaries = dictionary_columns(table)
        try:
            with pq.ParquetWriter(
                sink,
                table.schema,
                version="2.6",
                compression=codecs(table, dictionaries, self.compression),
                coerce_timestamps="us",
                use_dictionary=dictionaries,
                write_page_checksum=True,
                use_compliant_nested_type=False,  # inner fields are called "item", as kartothek 5.3 expects
            ) as writer:
                writer.write_table(table, row_group_size=self.chunk_size or ROWS_PER_GROUP)
        except pa.ArrowInvalid as error:
            _explain_timestamps(table, error)
            raise

    @staticmethod
    def read_table(
        source: Source,
        columns: Sequence[str] | None = None,
        predicates: PredicatesType = None,
        schema: pa.Schema | None = None,
        predicate_pushdown_to_io: bool = True,
    ) -> pa.Table:
        """Read an Arrow table from a path, content or file, see `read_parquet`."""
        name = source if isinstance(source, str) else "Parquet data"
        return read_parquet(source, name, columns, predicates, schema)


def _is_codec(name: str) -> bool:
    try:
        return name.upper() == "NONE" or bool(pa.Codec.is_available(name.lower()))
    except ValueError:
        return False


def _is_storable(schema: pa.Schema) -> bool:
    if schema.metadata is None or b"pandas" not in schema.metadata:
        return False
    return all(storage_type(dtype).equals(dtype) for dtype in schema.types)


def _explain_timestamps(table: pa.Table, error: pa.ArrowInvalid) -> None:
    """Raise a ValueError with the column name if a timestamp is the cause of an error."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pat.is_timestamp(column.type):
            try:
                column.cast(pa.timestamp("us", column.type.tz))
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
            failure = error
            if attempt < MAX_NB_RETRIES:
                clock.sleep(BACKOFF_TIME * 2 ** (attempt - 1))
    raise ParquetReadError(
        f"{key!r} could not be read in {MAX_NB_RETRIES} attempts: {failure!r}"
    ) from failure


_generic.DataFrameSerializer.register_serializer(".parquet", ParquetSerializer)
