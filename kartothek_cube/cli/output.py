"""Results of queries as text for people, and as CSV, JSON, Parquet or an Arrow stream for programs."""

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

from kartothek_cube.cli.errors import usage_error

__all__ = ("FORMATS", "Writer", "opened_writer")

#: rows that are printed into a terminal if nobody says how many
_SCREENFUL = 50


class Writer(ABC):
    """
    Takes the tables of a result one after the other.

    Parameters
    ----------
    sink
        Where to write.
    schema
        Columns of the result, for results without rows.
    """

    #: whether a terminal can show it
    text = True

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        self.sink = sink
        self.schema = schema

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Take a table."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""


class _Csv(Writer):
    """Text is quoted, null is nothing, nested values are JSON."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        super().__init__(sink, schema)
        self._options = pyarrow.csv.WriteOptions(include_header=True, quoting_style="needed")
        self._empty = True

    def write(self, table: pa.Table) -> None:
        pyarrow.csv.write_csv(_flat(table), self.sink, self._options)
        self._empty = False
        self._options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")

    def close(self) -> None:
        if self._empty:
            self.write(self.schema.empty_table())


class _Json(Writer):
    """An array with one object per row and line."""

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
    """One file."""

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
    """A file that can only be written, and knows how much was: what pipes do not tell."""

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
    """Columns under each other, numbers to the right; a terminal gets the first rows only."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        super().__init__(sink, schema)
        self._tables = [schema.empty_table()]
        self._most = _SCREENFUL if sink.isatty() else None

    def write(self, table: pa.Table) -> None:
        self._tables.append(table)

    def close(self) -> None:
        whole = pa.concat_tables(self._tables, promote_options="permissive")
        shown = whole if self._most is None else whole.slice(0, self._most)
        flat = _flat(shown)
        columns = [
            _aligned(name, _texts(column), _is_number(column.type))
            for name, column in zip(flat.column_names, flat.columns, strict=True)
        ]
        for line in zip(*columns, strict=True):
            self.sink.write("  ".join(line).rstrip().encode() + b"\n")
        self.sink.flush()
        if len(shown) < len(whole):
            rest = len(whole) - len(shown)
            click.echo(f"… and {rest:,} more rows; --limit says how many to show", err=True)


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype))


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Cells as text; null is nothing. What could play tricks on a terminal is shown as an escape."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return ["" if value is None else value.hex() for value in column.to_pylist()]
    texts: list[str] = pc.fill_null(column.cast(pa.string()), "").to_pylist()
    return [text if text.isprintable() else repr(text)[1:-1] for text in texts]


def _aligned(name: str, texts: list[str], right: bool) -> list[str]:
    width = max(map(len, [name, *texts]))
    return [text.rjust(width) if right else text.ljust(width) for text in [name, *texts]]


def _flat(table: pa.Table) -> pa.Table:
    """The table without nested columns, which become JSON, and with times as short as they can be."""
    for number, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        if pa.types.is_nested(field.type):
            cells = [None if v is None else json.dumps(v, default=str) for v in column.to_pylist()]
            table = table.set_column(number, field.name, pa.chunked_array([pa.array(cells, pa.string())]))
        elif pa.types.is_timestamp(field.type) and field.type.tz is None:
            table = table.set_column(number, field.name, _short_times(column))
        elif pa.types.is_null(field.type):
            table = table.set_column(number, field.name, column.cast(pa.string()))
    return table


def _short_times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates if all times are midnight, else as many digits as needed."""
    for wanted in (pa.date32(), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us")):
        try:
            short = column.cast(wanted)
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
def opened_writer(form: str | None, path: str | None, schema: pa.Schema) -> Iterator[Writer]:
    """
    Open the place for a result.

    Parameters
    ----------
    form
        One of ``FORMATS``; by default what the file name says, or a table.
    path
        Name of a file; by default standard output.
    schema
        Columns of the result.

    Yields
    ------
    Writer

    Raises
    ------
    click.UsageError
        The file cannot be written; or somebody would look at binary data in a terminal.
    """
    kind: type[Writer] = FORMATS[form or _SUFFIXES.get((path or "").rpartition(".")[2].lower(), "table")]
    if path is None:
        sink = sys.stdout.buffer
        if not kind.text and sink.isatty():
            usage_error("Binary output does not go to a terminal: pipe it, or name a file by --to")
        yield from _written(kind, sink, schema)
        return
    try:
        file = open(path, "wb")  # noqa: SIM115 - closed below; an error of the query is none of the file
    except OSError as error:
        usage_error(f"Cannot write {path}: {error.strerror}")
    with file:
        yield from _written(kind, file, schema)


def _written(kind: type[Writer], sink: BinaryIO, schema: pa.Schema) -> Iterator[Writer]:
    writer = kind(sink, schema)
    yield writer
    writer.close()
    sink.flush()
