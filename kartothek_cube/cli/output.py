"""Output formats of query results: text table, CSV, JSON, Parquet, Arrow stream."""

from __future__ import annotations

import io
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import click
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from kartothek_cube.cli.terminal import pluralize, usage_error

__all__ = ("FORMATS", "Writer", "open_writer")

#: number of rows printed to a terminal
_SCREENFUL = 50


class Writer(ABC):
    """Writes the tables of a result one by one; the schema is needed for results without rows."""

    #: whether the format is text
    text = True

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        self.sink = sink
        self.schema = schema

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Write a table."""

    @abstractmethod
    def close(self) -> None:
        """Write everything that is buffered."""


class _Csv(Writer):
    """CSV: text is quoted if needed, null is empty, nested values are JSON."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        super().__init__(sink, schema)
        self._options = pyarrow.csv.WriteOptions(include_header=True, quoting_style="needed")
        self._empty = True

    def write(self, table: pa.Table) -> None:
        pyarrow.csv.write_csv(_flatten(table), self.sink, self._options)
        self._empty = False
        self._options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")

    def close(self) -> None:
        if self._empty:
            self.write(self.schema.empty_table())


class _Json(Writer):
    """JSON: an array with one object per line."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        super().__init__(sink, schema)
        self._before = "[\n"

    def write(self, table: pa.Table) -> None:
        frame = table.to_pandas(types_mapper=pd.ArrowDtype)
        lines = frame.to_json(
            orient="records", lines=True, date_format="iso", date_unit="us", force_ascii=False
        )
        self.sink.write((self._before + ",\n".join(lines.splitlines())).encode())
        self._before = ",\n"

    def close(self) -> None:
        self.sink.write(b"[]\n" if self._before == "[\n" else b"\n]\n")


class _Parquet(Writer):
    """A Parquet file."""

    text = False

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        super().__init__(sink, schema)
        self._writer = pq.ParquetWriter(_Pipe(sink), schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table.cast(self.schema))

    def close(self) -> None:
        self._writer.close()


class _Arrow(Writer):
    """The Arrow stream format."""

    text = False

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        super().__init__(sink, schema)
        self._writer = pa.ipc.new_stream(_Pipe(sink), schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table.cast(self.schema))

    def close(self) -> None:
        self._writer.close()


class _Pipe(io.RawIOBase):
    """Write-only file that tracks its position, which Arrow needs and pipes do not provide."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._sink.write(view)
        self._position += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        self._sink.flush()


class _Table(Writer):
    """Text table with right-aligned numbers; on a terminal, the first rows only."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        super().__init__(sink, schema)
        self._tables = [schema.empty_table()]
        self._max_rows = _SCREENFUL if sink.isatty() else None

    def write(self, table: pa.Table) -> None:
        self._tables.append(table)

    def close(self) -> None:
        result = pa.concat_tables(self._tables, promote_options="permissive")
        shown = result if self._max_rows is None else result.slice(0, self._max_rows)
        flat = _flatten(shown)
        columns = [
            _align(name, _format_cells(column), _is_number(column.type))
            for name, column in zip(flat.column_names, flat.columns, strict=True)
        ]
        for line in zip(*columns, strict=True):
            self.sink.write("  ".join(line).rstrip().encode() + b"\n")
        self.sink.flush()
        if len(shown) < len(result):
            hidden = pluralize(len(result) - len(shown), "more row")
            click.echo(f"… and {hidden}; use --limit to change the number of rows", err=True)


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype))


def _format_cells(column: pa.ChunkedArray) -> list[str]:
    """Format cells as text; null is empty, control characters are escaped to protect the terminal."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return ["" if value is None else value.hex() for value in column.to_pylist()]
    texts: list[str] = pc.fill_null(column.cast(pa.string()), "").to_pylist()
    return [text if text.isprintable() else repr(text)[1:-1] for text in texts]


def _align(name: str, texts: list[str], right: bool) -> list[str]:
    width = max(map(len, [name, *texts]))
    return [text.rjust(width) if right else text.ljust(width) for text in [name, *texts]]


def _flatten(table: pa.Table) -> pa.Table:
    """Convert nested columns to JSON and shorten timestamps."""
    for number, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        if pa.types.is_nested(field.type):
            cells = [None if v is None else json.dumps(v, default=str) for v in column.to_pylist()]
            table = table.set_column(number, field.name, pa.chunked_array([pa.array(cells, pa.string())]))
        elif pa.types.is_timestamp(field.type) and field.type.tz is None:
            table = table.set_column(number, field.name, _shorten_timestamps(column))
        elif pa.types.is_null(field.type):
            table = table.set_column(number, field.name, column.cast(pa.string()))
    return table


def _shorten_timestamps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cast to dates if all times are midnight, otherwise to the coarsest lossless unit."""
    for dtype in (pa.date32(), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us")):
        try:
            short = column.cast(dtype)
        except pa.ArrowInvalid:
            continue
        if short.cast(column.type).equals(column):
            return short
    return column


FORMATS: dict[str, type[Writer]] = {
    "table": _Table,
    "csv": _Csv,
    "parquet": _Parquet,
    "arrow": _Arrow,
    "json": _Json,
}
_SUFFIXES = {
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "arrows": "arrow",
    "json": "json",
    "txt": "table",
}


@contextmanager
def open_writer(form: str | None, path: str | None, schema: pa.Schema) -> Iterator[Writer]:
    """
    Open a writer of the given format, by default derived from the file name, or a table.

    Without a path, it writes to standard output; binary formats are refused on a terminal.
    """
    kind: type[Writer] = FORMATS[form or _SUFFIXES.get((path or "").rpartition(".")[2].lower(), "table")]
    if path is None:
        sink = sys.stdout.buffer
        if not kind.text and sink.isatty():
            usage_error("Binary output cannot be written to a terminal: use a pipe, or a file with --to")
        yield from _write_and_close(kind, sink, schema)
        return
    try:
        # not a with statement: OSErrors of the query must not be reported as errors of the file
        file = open(path, "wb")  # noqa: SIM115
    except OSError as error:
        usage_error(f"Cannot write {path}: {error.strerror}")
    with file:
        yield from _write_and_close(kind, file, schema)


def _write_and_close(kind: type[Writer], sink: BinaryIO, schema: pa.Schema) -> Iterator[Writer]:
    writer = kind(sink, schema)
    yield writer
    writer.close()
    sink.flush()
