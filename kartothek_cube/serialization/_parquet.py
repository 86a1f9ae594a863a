"""Frames and Arrow tables as Parquet files that kartothek 5.3 reads as well."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, ClassVar, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.predicates import PredicatesType, bind, columns_in_predicates, filter_mask
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.types import as_table, storage_type, to_memory, to_pandas
from kartothek_cube.core.types.pandas_metadata import extension_dtypes, index_columns, pandas_metadata
from kartothek_cube.core.typing import StoreInput
from kartothek_cube.serialization._encoding import dictionary_columns, zstd_levels
from kartothek_cube.serialization._generic import DataFrameSerializer, filter_df
from kartothek_cube.serialization._util import check_columns, check_filters, columns_to_read, select_columns

__all__ = ("BACKOFF_TIME", "MAX_NB_RETRIES", "ParquetReadError", "ParquetSerializer")

#: attempts to read a file, and the pause after the first of them in seconds; it doubles each time
MAX_NB_RETRIES = 6
BACKOFF_TIME = 0.01

Source: TypeAlias = str | bytes | bytearray | memoryview | pa.Buffer | BinaryIO

_CONTENT = (bytes, bytearray, memoryview, pa.Buffer)

_logger = logging.getLogger(__name__)

# Below so many cells, starting threads takes longer than decoding.
_THREADS_FROM = 100_000
# In files with fewer rows, all columns are decoded faster than those of the predicates and then the others.
_LATE_FROM = 10_000
# Most files have no index column and no extension type; their pandas metadata is not worth parsing.
_NAMES_INDEX = re.compile(rb'"index_columns":\s*\[\s*"')
_NAMES_EXTENSION = re.compile(rb'"numpy_type":\s*"(string|boolean|U?Int\d+|Float\d+)"')


class ParquetReadError(OSError):
    """A Parquet file could not be read in several attempts; the last failure is the ``__cause__``."""


class ParquetSerializer(DataFrameSerializer):
    """Frames as Parquet files.

    Parameters
    ----------
    compression
        Codec of the pages: ``SNAPPY``, ``ZSTD``, ``GZIP``, ``BROTLI``, ``LZ4`` or ``NONE``.
    chunk_size
        Rows per row group; None for one row group per file.

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

    def __init__(self, compression: str = "SNAPPY", chunk_size: int | None = None) -> None:
        if chunk_size is not None and not isinstance(chunk_size, int):
            raise TypeError(f"chunk_size must be an integer, got {chunk_size!r}.")
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}.")
        if not _is_codec(compression):
            raise ValueError(f"Parquet codec {compression!r} is not available; try SNAPPY or ZSTD.")
        self.compression = compression
        self.chunk_size = chunk_size

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ParquetSerializer)
            and self.compression == other.compression
            and self.chunk_size == other.chunk_size
        )

    def __hash__(self) -> int:
        return hash((self.compression, self.chunk_size))

    def __repr__(self) -> str:
        return f"ParquetSerializer(compression={self.compression!r}, chunk_size={self.chunk_size!r})"

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

        Parameters
        ----------
        store, key, filter_query, columns, predicate_pushdown_to_io, categories, predicates, date_as_object
            As there.

        Returns
        -------
        pandas.DataFrame
            With a fresh index.

        Raises
        ------
        ParquetReadError
            The store failed six times in a row.
        CorruptDatasetError
            The file is no Parquet file; a ValueError.
        """
        check_filters(filter_query, predicates)
        blobs = open_blobs(store)
        wanted = None if filter_query else columns

        def read() -> pa.Table:
            try:
                content = blobs.local_path(key) or blobs.get(key)
                return _read_table(content, key, wanted, predicates, None, predicate_pushdown_to_io)
            except FileNotFoundError as error:
                raise KeyError(key) from error

        table = _retry(read, key)
        chosen = [column for column in categories or () if column in table.column_names]
        df = to_pandas(table, dates_as_object=date_as_object, categories=chosen)
        if filter_query:
            check_columns(columns or (), table.column_names, key)
            df = select_columns(filter_df(df, filter_query), columns).reset_index(drop=True)
        return df

    def store(self, store: StoreInput | BlobStore, key_prefix: str, df: pd.DataFrame | pa.Table) -> str:
        """Write a frame; see :meth:`DataFrameSerializer.store`.

        Parameters
        ----------
        store, key_prefix, df
            As there.

        Returns
        -------
        str
            The storage key.

        Raises
        ------
        ValueError
            A time stamp is finer than microseconds; names the column.
        """
        key = f"{key_prefix}.parquet"
        sink = pa.BufferOutputStream()
        self.write_table(as_table(df), sink)
        open_blobs(store).put(key, sink.getvalue().to_pybytes())
        return key

    def write_table(self, table: pa.Table, sink: str | BinaryIO | pa.NativeFile) -> None:
        """Write an Arrow table.

        Parameters
        ----------
        table
            The table. Types other than those of :func:`~kartothek_cube.core.types.to_storage` are converted.
        sink
            Path or file.

        Raises
        ------
        ValueError
            A time stamp is finer than microseconds; names the column.
        """
        self.write_storable(self.storable(table), sink)

    @staticmethod
    def storable(table: pa.Table) -> pa.Table:
        """Convert to types that files hold, and describe them for pandas, unless that is done already.

        Parameters
        ----------
        table
            A table; its slices can be written by :meth:`write_storable`.

        Returns
        -------
        pyarrow.Table
        """
        return table if _is_storable(table.schema) else as_table(table)

    def write_storable(self, table: pa.Table, sink: str | BinaryIO | pa.NativeFile) -> None:
        """Write a table that came out of :meth:`storable`; for many small files, the check is worth saving.

        Parameters
        ----------
        table
            The table.
        sink
            Path or file.

        Raises
        ------
        ValueError
            A time stamp is finer than microseconds; names the column.
        """
        dictionaries = dictionary_columns(table)
        levels = zstd_levels(table, dictionaries) if self.compression.upper() == "ZSTD" else {}
        try:
            with pq.ParquetWriter(
                sink,
                table.schema,
                version="2.6",
                compression=self.compression,
                coerce_timestamps="us",
                compression_level=levels or None,
                use_dictionary=dictionaries,
                write_page_checksum=True,
                use_compliant_nested_type=False,  # inner fields are called "item", as kartothek 5.3 expects
            ) as writer:
                writer.write_table(table, row_group_size=self.chunk_size or max(table.num_rows, 1))
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
        """Read an Arrow table.

        Parameters
        ----------
        source
            Path, content or seekable file.
        columns
            Columns wanted, in this order; None for all. Only these, and those of ``predicates``, are decoded.
        predicates
            Filter in disjunctive normal form.
        schema
            Schema of the dataset: predicates are checked against it, and columns of which the file knows no
            type (all null) get the type from it.
        predicate_pushdown_to_io
            Whether other columns are decoded only in row groups in which the columns of ``predicates`` match;
            the result does not depend on it.

        Returns
        -------
        pyarrow.Table
            Time stamps are in ns, dictionaries decoded.

        Raises
        ------
        ValueError
            A column does not exist.
        TypeError
            The value of a predicate does not fit its column.
        CorruptDatasetError
            This is no Parquet file, or a broken one; a ValueError.

        Examples
        --------
        >>> sink = pa.BufferOutputStream()
        >>> ParquetSerializer().write_table(pa.table({"CITY": ["Rom", "Bonn"], "STORE_ID": [1, 2]}), sink)
        >>> table = ParquetSerializer.read_table(sink.getvalue(), ["CITY"], [[("STORE_ID", ">", 1)]])
        >>> table.to_pylist()
        [{'CITY': 'Bonn'}]
        """
        name = source if isinstance(source, str) else "Parquet data"
        return _read_table(source, name, columns, predicates, schema, predicate_pushdown_to_io)


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
    """Name the column if a time stamp was the problem; Arrow's message does not."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pat.is_timestamp(column.type):
            try:
                column.cast(pa.timestamp("us", column.type.tz))
            except pa.ArrowInvalid:
                raise ValueError(
                    f"Column {name!r} holds time stamps with nanoseconds, files hold microseconds; "
                    f"round them first, as by .dt.floor('us') ({error})."
                ) from error


def _retry(read: Callable[[], pa.Table], key: str) -> pa.Table:
    """Read again after a failure of the store, a bit later each time."""
    for attempt in range(1, MAX_NB_RETRIES + 1):
        try:
            return read()
        except OSError as error:
            _logger.warning("Attempt %d of %d to read %r failed: %r", attempt, MAX_NB_RETRIES, key, error)
            last = error
            if attempt < MAX_NB_RETRIES:
                time.sleep(BACKOFF_TIME * 2 ** (attempt - 1))
    raise ParquetReadError(f"{key!r} could not be read in {MAX_NB_RETRIES} attempts: {last!r}") from last


def _read_table(
    source: Source,
    name: str,
    columns: Sequence[str] | None,
    predicates: PredicatesType,
    schema: pa.Schema | None,
    pushdown: bool,
) -> pa.Table:
    needed = columns_to_read(columns, predicates)
    with _corruption(source, name), _open(source) as file:
        if predicates is None:
            table = file.read(needed, use_threads=_threads(file.metadata, needed))
        else:
            file_schema = file.schema_arrow
            bind(predicates, file_schema if schema is None else schema)
            check_columns(columns_in_predicates(predicates), file_schema.names, name)
            table = _matching_rows(file, needed or file_schema.names, predicates, pushdown)
        if needed is not None and not set(needed) <= set(table.column_names):
            check_columns(needed, file.schema_arrow.names, name)
    table = _exactly(table, columns, name)
    return _with_known_types(to_memory(_without_foreign_metadata(table)), schema)


@contextmanager
def _corruption(source: Source, name: str) -> Iterator[None]:
    """Tell broken content from broken connections and from mistakes of the caller."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        raise CorruptDatasetError(name, f"not a readable Parquet file: {error}") from error
    except OSError as error:
        # Arrow has OSError for broken pages and footers, too; failures of the system have a number.
        if error.errno is not None or not isinstance(source, (str, *_CONTENT)):
            raise
        raise CorruptDatasetError(name, f"not a readable Parquet file: {error}") from error


def _open(source: Source) -> pq.ParquetFile:
    if isinstance(source, _CONTENT):
        return pq.ParquetFile(pa.BufferReader(source), pre_buffer=False, page_checksum_verification=True)
    return pq.ParquetFile(source, page_checksum_verification=True)


def _threads(metadata: pq.FileMetaData, columns: Collection[str] | None) -> bool:
    width = metadata.num_columns if columns is None else len(columns)
    return bool(metadata.num_rows * width >= _THREADS_FROM)


def _matching_rows(
    file: pq.ParquetFile, columns: Sequence[str], predicates: PredicatesType, pushdown: bool
) -> pa.Table:
    metadata = file.metadata
    filtered = columns_in_predicates(predicates)
    rest = [column for column in columns if column not in filtered]
    if not pushdown or not rest or metadata.num_rows < _LATE_FROM:
        table = file.read(columns, use_threads=_threads(metadata, columns))
        mask = filter_mask(table, predicates)
        return table if mask.true_count == len(mask) else table.filter(mask)
    keys = file.read(sorted(filtered), use_threads=_threads(metadata, filtered))
    mask = filter_mask(keys, predicates)
    groups, mask_of_groups = _groups_with_matches(metadata, mask)
    payload = file.read_row_groups(groups, rest, use_threads=_threads(metadata, rest))
    found, payload = keys.filter(mask), payload.filter(mask_of_groups)
    arrays = [(found if column in filtered else payload).column(column) for column in columns]
    return pa.Table.from_arrays(arrays, names=list(columns), metadata=keys.schema.metadata)


def _groups_with_matches(
    metadata: pq.FileMetaData, mask: pa.BooleanArray
) -> tuple[list[int], pa.ChunkedArray]:
    """
    Row groups in which rows match, and the part of the mask for their rows.

    Statistics in the footer would tell some of it in advance, but pyarrow (26) ends the process when a broken
    footer contradicts itself there; decoding the columns of the predicates tells it exactly.
    """
    lengths = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    ends = np.cumsum(lengths)
    parts = [mask.slice(end - length, length) for end, length in zip(ends.tolist(), lengths, strict=True)]
    groups = [number for number, part in enumerate(parts) if part.true_count]
    return groups, pa.chunked_array([parts[number] for number in groups], type=pa.bool_())


def _exactly(table: pa.Table, columns: Sequence[str] | None, name: str) -> pa.Table:
    """The columns wanted; if all are wanted, those that are no index of a frame."""
    names = table.column_names
    if len(set(names)) < len(names):
        raise CorruptDatasetError(name, "column names occur more than once")
    if columns is not None:
        return table if names == columns else table.select(list(columns))
    if _NAMES_INDEX.search((table.schema.metadata or {}).get(b"pandas", b"")):
        return table.drop_columns(index_columns(table.schema))
    return table


def _without_foreign_metadata(table: pa.Table) -> pa.Table:
    """Of the metadata in a file, only the pandas types of the columns are of interest, and few have any."""
    metadata = table.schema.metadata
    if metadata is None or not table.num_columns:  # without columns, the number of rows would be lost
        return table
    if _NAMES_EXTENSION.search(metadata.get(b"pandas", b"")):
        extensions = extension_dtypes(table.schema)
        return table.replace_schema_metadata({"pandas": pandas_metadata(table.schema, extensions)})
    return table.replace_schema_metadata(None)


def _with_known_types(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    if schema is None:
        return table
    for position, field in enumerate(table.schema):
        if pat.is_null(field.type) and schema.get_field_index(field.name) >= 0:
            dtype = storage_type(schema.field(field.name).type)
            table = table.set_column(
                position, pa.field(field.name, dtype), table.column(position).cast(dtype)
            )
    return table


DataFrameSerializer.register_serializer(".parquet", ParquetSerializer)
