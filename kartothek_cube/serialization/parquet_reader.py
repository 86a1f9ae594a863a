"""Reading Parquet files column by column: only what is needed, each column once, whatever the file claims."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow.layouts import convert_layouts
from kartothek_cube.core.arrow.pandas_conversion import to_memory
from kartothek_cube.core.arrow.pandas_metadata import extension_dtypes, index_columns, pandas_metadata
from kartothek_cube.core.arrow.types import storage_type
from kartothek_cube.core.errors import CorruptDatasetError
from kartothek_cube.core.expressions.predicate import PredicatesType, bind, columns_in_predicates, filter_mask
from kartothek_cube.serialization._util import check_columns, columns_to_read

__all__ = ("ParquetColumns", "Source", "read_parquet")

Source: TypeAlias = str | bytes | bytearray | memoryview | pa.Buffer | BinaryIO

_CONTENT = (bytes, bytearray, memoryview, pa.Buffer)

# Below so many cells, starting threads takes longer than decoding.
_THREADS_FROM = 100_000
# Footers that are longer are not looked at byte by byte.
_TAIL = 64 << 10
# In files with fewer rows, all columns are decoded faster than those of the predicates and then the others.
_LATE_FROM = 10_000
# Most files have no index column and no extension type; their pandas metadata is not worth parsing.
_NAMES_INDEX = re.compile(rb'"index_columns":\s*\[\s*"')
_NAMES_EXTENSION = re.compile(rb'"numpy_type":\s*"(string|boolean|U?Int\d+|Float\d+)"')


class ParquetColumns:
    """
    An open Parquet file whose columns are decoded when they are asked for.

    Parameters
    ----------
    source
        Path, content or seekable file.
    name
        Of the file, for messages.
    schema
        Schema of the dataset: predicates are checked against it, and columns of which the file knows no
        type (all null) get the type from it.
    threads
        Whether Arrow may decode several columns at once.

    Raises
    ------
    CorruptDatasetError
        This is no Parquet file, or a broken one; a ValueError.

    Examples
    --------
    >>> sink = pa.BufferOutputStream()
    >>> pq.write_table(pa.table({"CITY": ["Rom", "Bonn"], "STORE_ID": [1, 2]}), sink)
    >>> with ParquetColumns(sink.getvalue(), "cities") as file:
    ...     file.table(["CITY"], file.mask([[("STORE_ID", ">", 1)]])).to_pylist()
    [{'CITY': 'Bonn'}]
    """

    def __init__(
        self, source: Source, name: str, schema: pa.Schema | None = None, threads: bool = True
    ) -> None:
        self._source, self._name, self._schema, self._threads = source, name, schema, threads
        self._decoded: dict[str, pa.ChunkedArray] = {}
        self._metadata: dict[bytes, bytes] | None = None
        with self._corruption():
            self._raw = _raw(source)
            self._file = _open(source if self._raw is None else self._raw)
        if self._file.metadata.num_rows < 0:
            raise CorruptDatasetError(name, "the number of rows is negative")

    def __enter__(self) -> ParquetColumns:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if isinstance(self._source, str) and self._raw is not None:
            self._raw.close()

    def __len__(self) -> int:
        rows: int = self._file.metadata.num_rows
        return rows

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer. Never ask it for statistics: what contradicts itself there ends the process."""
        return self._file.metadata

    @cached_property
    def _schema_of_file(self) -> pa.Schema:
        with self._corruption():
            return self._file.schema_arrow

    def arrow_type(self, column: str) -> pa.DataType:
        """Type of a column as it is decoded."""
        return self._schema_of_file.field(column).type

    def content(self, start: int, length: int) -> bytes | None:
        """Bytes of the file; None where there are none, or where reading them would move the file."""
        if self._raw is None or not 0 <= start <= start + length <= self._raw.size():
            return None
        content: bytes = self._raw.read_at(length, start)
        return content

    @cached_property
    def footer(self) -> bytes | None:
        """The footer as it is in the file; None where its bytes can't be had, or are many."""
        size = 0 if self._raw is None else self._raw.size()
        tail = self.content(max(0, size - _TAIL), min(size, _TAIL)) or b""
        length = int.from_bytes(tail[-8:-4], "little")
        return tail[-8 - length : -8] if 0 < length + 8 <= len(tail) else None

    @property
    def names(self) -> list[str]:
        """All columns."""
        names: list[str] = self._schema_of_file.names
        return names

    @property
    def use_late_materialization(self) -> bool:
        """Whether the file has so many rows that it pays to decode some columns first."""
        return len(self) >= _LATE_FROM

    def check(self, predicates: PredicatesType) -> None:
        """
        Check that the columns of predicates exist, and that their values fit.

        Parameters
        ----------
        predicates
            The predicates.

        Raises
        ------
        ValueError, TypeError
            As :func:`kartothek_cube.core.expressions.predicate.bind`.
        """
        file_schema = self._schema_of_file
        bind(predicates, file_schema if self._schema is None else self._schema)
        check_columns(columns_in_predicates(predicates), file_schema.names, self._name)

    def read(
        self,
        columns: Sequence[str] | None = None,
        predicates: PredicatesType = None,
        pushdown: bool = True,
    ) -> pa.Table:
        """
        Read columns of the rows that match.

        Parameters
        ----------
        columns
            Columns wanted, in this order; None for all. Only these, and those of ``predicates``, are decoded.
        predicates
            Filter in disjunctive normal form.
        pushdown
            Whether other columns are decoded only in row groups in which the columns of ``predicates`` match.

        Returns
        -------
        pyarrow.Table
        """
        if predicates is None:
            return self.table(columns)
        self.check(predicates)
        if not pushdown or not self.use_late_materialization:
            self.load(columns_to_read(columns, predicates) or self.names)
        return self.table(columns, self.mask(predicates))

    def load(self, columns: Collection[str]) -> None:
        """
        Decode columns that will be needed in full.

        Parameters
        ----------
        columns
            Their names.
        """
        missing = [column for column in columns if column not in self._decoded]
        if missing:
            table = self._read(missing)
            self._metadata = table.schema.metadata
            self._decoded.update(zip(table.column_names, table.columns, strict=True))

    def set_decoded(self, column: str, values: pa.ChunkedArray) -> None:
        """
        Say what a column holds, to save decoding it.

        Parameters
        ----------
        column
            Its name.
        values
            All its values, with the type of memory.
        """
        self._metadata = self._schema_of_file.metadata
        self._decoded[column] = values

    def known(self, column: str) -> pa.ChunkedArray | None:
        """All values of a column, if it has been decoded."""
        return self._decoded.get(column)

    def decoded(self, columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """
        Columns in full, with the types that they have in the file or in memory.

        Parameters
        ----------
        columns
            Their names.
        """
        self.load(columns)
        return [self._decoded[column] for column in columns]

    def mask(self, predicates: PredicatesType) -> pa.BooleanArray:
        """
        Rows that match; the columns of the predicates stay decoded.

        Parameters
        ----------
        predicates
            The predicates, as checked by :meth:`check`.

        Returns
        -------
        pyarrow.BooleanArray
        """
        filtered = sorted(columns_in_predicates(predicates))
        self.load(filtered)
        return filter_mask(pa.table({column: self._decoded[column] for column in filtered}), predicates)

    def table(self, columns: Sequence[str] | None = None, mask: pa.BooleanArray | None = None) -> pa.Table:
        """
        Columns as a table with the types of memory.

        Parameters
        ----------
        columns
            Columns wanted, in this order; None for all but the index of a frame.
        mask
            Which rows; None for all. Columns that are not decoded yet are decoded in the row groups where
            there is one.

        Returns
        -------
        pyarrow.Table
        """
        if mask is not None and mask.true_count == len(mask):
            mask = None
        if columns is None and not self._decoded:
            table = self._read(None)
        else:
            table = self._rows_of(self.names if columns is None else columns, mask)
        if columns is None and _NAMES_INDEX.search((table.schema.metadata or {}).get(b"pandas", b"")):
            table = table.drop_columns(index_columns(table.schema))
        return _with_known_types(to_memory(_without_foreign_metadata(table)), self._schema)

    def _rows_of(self, columns: Sequence[str], mask: pa.BooleanArray | None) -> pa.Table:
        missing = list(dict.fromkeys(column for column in columns if column not in self._decoded))
        if len(missing) == len(columns) and mask is None:
            return self._read(missing)
        if not columns:
            return pa.table({"_": pa.nulls(mask.true_count if mask is not None else len(self))}).select([])
        found = {column: self._decoded[column] for column in columns if column not in missing}
        if mask is not None:
            found = {column: values.filter(mask) for column, values in found.items()}
        if missing:
            fresh = self._read(missing) if mask is None else self._matching(missing, mask)
            self._metadata = fresh.schema.metadata
            found.update(zip(fresh.column_names, fresh.columns, strict=True))
        arrays = [found[column] for column in columns]
        return pa.Table.from_arrays(arrays, names=list(columns), metadata=self._metadata)

    def _matching(self, columns: list[str], mask: pa.BooleanArray) -> pa.Table:
        """
        Matching rows; row groups without any are left out.

        Statistics in the footer would tell some of it in advance, but pyarrow (26) ends the process when a
        broken footer contradicts itself there; decoding the columns of the predicates tells it exactly.
        """
        metadata = self._file.metadata
        lengths = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        parts = [mask.slice(end - length, length) for end, length in zip(ends, lengths, strict=True)]
        groups = [number for number, part in enumerate(parts) if part.true_count]
        kept = pa.chunked_array([parts[number] for number in groups], type=pa.bool_())
        return self._read(columns, groups).filter(kept)

    def _read(self, columns: list[str] | None, groups: list[int] | None = None) -> pa.Table:
        with self._corruption():
            threads = self._threads and _worth_threads(self._file.metadata, columns)
            if groups is None:
                table = self._file.read(columns, use_threads=threads)
            else:
                table = self._file.read_row_groups(groups, columns, use_threads=threads)
        names = table.column_names
        if len(set(names)) < len(names):
            raise CorruptDatasetError(self._name, "column names occur more than once")
        if groups is None and table.num_rows != len(self):
            raise CorruptDatasetError(self._name, f"{len(self)} rows expected, {table.num_rows} found")
        if columns is not None and len(names) < len(columns):
            check_columns(columns, self.names, self._name)
        return convert_layouts(table)

    @contextmanager
    def _corruption(self) -> Iterator[None]:
        """Tell broken content from broken connections and from mistakes of the caller."""
        try:
            yield
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
            raise CorruptDatasetError(self._name, f"not a readable Parquet file: {error}") from error
        except OSError as error:
            # Arrow has OSError for broken pages and footers, too; failures of the system have a number.
            if error.errno is not None or not isinstance(self._source, (str, *_CONTENT)):
                raise
            raise CorruptDatasetError(self._name, f"not a readable Parquet file: {error}") from error


def read_parquet(
    source: Source,
    name: str,
    columns: Sequence[str] | None = None,
    predicates: PredicatesType = None,
    schema: pa.Schema | None = None,
    pushdown: bool = True,
) -> pa.Table:
    """
    Read a file at once.

    Parameters
    ----------
    source, name, schema
        As in :class:`ParquetColumns`.
    columns, predicates, pushdown
        As in :meth:`ParquetColumns.read`.

    Returns
    -------
    pyarrow.Table
    """
    with ParquetColumns(source, name, schema) as file:
        return file.read(columns, predicates, pushdown)


def _raw(source: Source) -> pa.NativeFile | None:
    """Bytes of a source, wherever they are; reading some does not change where the next ones are."""
    if isinstance(source, _CONTENT):
        return pa.BufferReader(source)
    return pa.OSFile(source) if isinstance(source, str) else None


def _open(file: pa.NativeFile | BinaryIO) -> pq.ParquetFile:
    # what the system or this process has in memory already is not worth another buffer
    buffered = not isinstance(file, pa.NativeFile)
    return pq.ParquetFile(file, pre_buffer=buffered, page_checksum_verification=True)


def _worth_threads(metadata: pq.FileMetaData, columns: Collection[str] | None) -> bool:
    width = metadata.num_columns if columns is None else len(columns)
    return bool(metadata.num_rows * width >= _THREADS_FROM)


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
