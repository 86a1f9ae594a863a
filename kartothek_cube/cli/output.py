"""Output formats of query results: text table, CSV, JSON, JSON lines, Parquet, Feather, Arrow stream."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import sys
import unicodedata
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from itertools import islice
from math import isfinite
from operator import add
from typing import Any, BinaryIO, cast

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from kartothek_cube.cli.context import usage_error
from kartothek_cube.core.arrow.arrays import concat_promoted, replace_columns
from kartothek_cube.core.arrow.types import is_text
from kartothek_cube.core.errors import format_count

#: number of rows printed to a terminal
_SCREENFUL = 50
#: metadata of fields whose texts are not cut
NEVER_CUT = {"cut": "never"}
#: texts are cut to this width before columns are omitted
_MIN_TEXT_WIDTH = 12
#: significant digits of floats in tables that are wider than the terminal
_DIGITS = 6


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
    """CSV: text is quoted if needed, null is empty, nested values are JSON, bytes hexadecimal."""

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
        if len(table):
            self.sink.write((self._before + ",\n".join(_json_objects(table))).encode())
            self._before = ",\n"

    def close(self) -> None:
        self.sink.write(b"[]\n" if self._before == "[\n" else b"\n]\n")


class _JsonLines(Writer):
    """JSON lines: one object per line."""

    def write(self, table: pa.Table) -> None:
        if len(table):
            self.sink.write(("\n".join(_json_objects(table)) + "\n").encode())

    def close(self) -> None:
        pass


def _json_objects(table: pa.Table) -> list[str]:
    names = [json.dumps(name, ensure_ascii=False) + ":" for name in table.column_names]
    rows = zip(*map(_json_cells, table.columns), strict=True)
    return ["{" + ",".join(map(add, names, cells)) + "}" for cells in rows]


def _json_cells(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """Write values as JSON, floats with all digits and times in ISO format, also within nested values."""
    dtype = column.type
    if pa.types.is_dictionary(dtype):
        return _json_cells(column.cast(dtype.value_type))
    if pa.types.is_struct(dtype):
        return _json_structs(column)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
        return _json_lists(column, _json_cells(pc.list_flatten(column)))
    if pa.types.is_map(dtype):
        lists = column.cast(pa.list_(pa.struct([dtype.key_field, dtype.item_field])))
        pairs = pc.list_flatten(lists)
        keys, items = (_json_cells(pc.struct_field(pairs, number)) for number in range(2))
        return _json_lists(lists, [f"[{key}, {item}]" for key, item in zip(keys, items, strict=True)])
    if pa.types.is_float64(dtype):
        return ["null" if v is None or not isfinite(v) else repr(v) for v in column.to_pylist()]
    if pa.types.is_boolean(dtype) or pa.types.is_integer(dtype) or pa.types.is_decimal(dtype):
        return cast(list[str], pc.fill_null(column.cast(pa.string()), "null").to_pylist())
    if pa.types.is_timestamp(dtype):
        zone = "" if dtype.tz is None else "Z"
        times = column.cast(pa.timestamp(dtype.unit))  # of zoned times: in UTC
        with suppress(pa.ArrowInvalid):  # nanoseconds stay if they are needed
            times = times.cast(pa.timestamp("us"))
        column = pc.binary_join_element_wise(pc.strftime(times, "%Y-%m-%dT%H:%M:%S"), zone, "")
    elif pa.types.is_date(dtype):
        column = column.cast(pa.string())
    elif pa.types.is_interval(dtype):
        column = _format_intervals(column)
    elif pa.types.is_floating(dtype):
        return _json_cells(column.cast(pa.string()).cast(pa.float64()))  # 0.1 of float32 stays 0.1
    elif pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        return ["null" if value is None else f'"{value.hex()}"' for value in column.to_pylist()]
    return [json.dumps(value, ensure_ascii=False, default=str) for value in column.to_pylist()]


def _json_structs(column: pa.ChunkedArray | pa.Array) -> list[str]:
    names = [json.dumps(field.name, ensure_ascii=False) + ": " for field in column.type]
    fields = [_json_cells(pc.struct_field(column, number)) for number in range(len(names))]
    return [
        "{" + ", ".join(name + cells[row] for name, cells in zip(names, fields, strict=True)) + "}"
        if is_valid
        else "null"
        for row, is_valid in enumerate(column.is_valid().to_pylist())
    ]


def _json_lists(column: pa.ChunkedArray | pa.Array, elements: Iterable[str]) -> list[str]:
    """Join the JSON of the elements of all lists to that of the lists."""
    remaining = iter(elements)
    return [
        "null" if length is None else "[" + ", ".join(islice(remaining, length)) + "]"
        for length in pc.list_value_length(column).to_pylist()
    ]


class _Parquet(Writer):
    """A Parquet file."""

    text = False

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        super().__init__(sink, schema)
        try:
            self._writer = pq.ParquetWriter(_Pipe(sink), schema, compression="zstd")
        except pa.ArrowNotImplementedError as error:
            usage_error(f"Parquet cannot hold this result: cast the column, or write .arrow ({error})")

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table.cast(self.schema))

    def close(self) -> None:
        self._writer.close()


class _Arrow(Writer):
    """The Arrow stream format."""

    text = False

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        super().__init__(sink, schema)
        self._writer = self._open(_Pipe(sink), schema)

    def _open(self, pipe: _Pipe, schema: pa.Schema) -> Any:
        return pa.ipc.new_stream(pipe, schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table.cast(self.schema))

    def close(self) -> None:
        self._writer.close()


class _Feather(_Arrow):
    """The Arrow file format, also known as Feather."""

    def _open(self, pipe: _Pipe, schema: pa.Schema) -> Any:
        return pa.ipc.new_file(pipe, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))


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
    """Text table with right-aligned numbers; on a terminal, the first rows, and no wider than it."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        super().__init__(sink, schema)
        self._tables = [self._number_columns(schema.empty_table())]
        self._is_terminal = sink.isatty()

    def write(self, table: pa.Table) -> None:
        self._tables.append(self._number_columns(table))

    def _number_columns(self, table: pa.Table) -> pa.Table:
        """Rename the columns, as results of SQL may have several of a name."""
        return table.rename_columns([str(number) for number in range(table.num_columns)])

    def close(self) -> None:
        result = concat_promoted(self._tables)
        shown = result.slice(0, _SCREENFUL) if self._is_terminal else result
        flat = _flatten(shown)
        columns = [
            _TextColumn(field.name, _format_cells(column), column.type, self._is_cuttable(field))
            for field, column in zip(self.schema, flat.columns, strict=True)
        ]
        fitting = _fit_terminal(columns) if self._is_terminal else columns
        for line in zip(*(column.lines() for column in fitting), strict=True):
            self.sink.write("  ".join(line).rstrip().encode() + b"\n")
        self.sink.flush()
        if len(shown) < len(result):
            hidden = format_count(len(result) - len(shown), "more row")
            click.echo(f"… and {hidden}; write all of them to a file with --to", err=True)
        if len(fitting) < len(columns):
            names = ", ".join(column.name for column in columns[len(fitting) :])
            hidden = format_count(len(columns) - len(fitting), "more column")
            click.echo(f"… and {hidden} ({names}); select some with --columns", err=True)

    def _is_cuttable(self, field: pa.Field) -> bool:
        return is_text(field.type) and b"cut" not in (field.metadata or {})


class _TextColumn:
    """A column of a text table."""

    def __init__(self, name: str, cells: list[str], dtype: pa.DataType, is_cuttable: bool) -> None:
        self.name = name if name.isprintable() else repr(name)[1:-1]
        self.cells = cells
        self.is_number = _is_number(dtype)
        self._is_float = pa.types.is_floating(dtype)
        self._is_cuttable = is_cuttable
        self._measure()

    def _measure(self) -> None:
        self.width = max(map(_text_width, [self.name, *self.cells]))
        # neither names nor integers and times, which would be others
        least = max(_text_width(self.name), _MIN_TEXT_WIDTH) if self._is_cuttable else self.width
        self.min_width = min(self.width, least)

    def round_floats(self) -> None:
        """Show as many digits of floats as pandas does."""
        if self._is_float:
            self.cells = [cell and f"{float(cell):.{_DIGITS}g}" for cell in self.cells]
            self._measure()

    def lines(self) -> list[str]:
        """Name and cells, cut and padded to the width."""
        return [self._pad(_cut_text(text, self.width)) for text in (self.name, *self.cells)]

    def _pad(self, text: str) -> str:
        blanks = " " * (self.width - _text_width(text))
        return blanks + text if self.is_number else text + blanks


def _fit_terminal(columns: list[_TextColumn]) -> list[_TextColumn]:
    """Round floats, omit the last columns and cut texts, until the table is not wider than the terminal."""
    available = shutil.get_terminal_size().columns
    columns = list(columns)
    if _table_width(column.width for column in columns) > available:
        for column in columns:
            column.round_floats()
    while len(columns) > 1 and _table_width(column.min_width for column in columns) > available:
        columns.pop()
    while _table_width(column.width for column in columns) > available:
        cuttable = [column for column in columns if column.width > column.min_width]
        if not cuttable:
            break
        max(cuttable, key=lambda column: column.width).width -= 1
    return columns


def fit_lines(text: str) -> str:
    """Cut the lines of a text that are wider than the terminal, if standard output is one."""
    if not sys.stdout.isatty():
        return text
    available = shutil.get_terminal_size().columns
    return "\n".join(_cut_text(line, available) for line in text.split("\n"))


def _table_width(widths: Iterable[int]) -> int:
    return sum(width + 2 for width in widths) - 2


def _text_width(text: str) -> int:
    """Return the number of terminal cells of a text: two for wide characters, none for accents."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _cut_text(text: str, width: int) -> str:
    """Cut a text to a width.

    >>> _cut_text("Hamburg", 5)
    'Hamb…'
    """
    if _text_width(text) <= width:
        return text
    while text and _text_width(text) >= width:
        text = text[:-1]
    return text + "…" if width else ""


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype))


def _format_cells(column: pa.ChunkedArray) -> list[str]:
    """Format cells as text; null is empty, control characters are escaped to protect the terminal."""
    texts: list[str] = pc.fill_null(column.cast(pa.string()), "").to_pylist()
    return [text if text.isprintable() else repr(text)[1:-1] for text in texts]


def _flatten(table: pa.Table) -> pa.Table:
    """Convert nested columns to JSON, bytes to hexadecimal digits, and times to short texts."""
    columns = {}
    for number, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        if pa.types.is_nested(field.type):
            texts = pa.array(_json_cells(column), pa.string())
            columns[number] = pc.if_else(column.is_valid(), texts, None)
        elif pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            digits = [None if v is None else v.hex() for v in column.to_pylist()]
            columns[number] = pa.chunked_array([pa.array(digits, pa.string())])
        elif pa.types.is_interval(field.type):
            columns[number] = pa.chunked_array([_format_intervals(column)])
        elif pa.types.is_timestamp(field.type):
            columns[number] = _shorten_timestamps(column)
        elif pa.types.is_null(field.type):
            columns[number] = column.cast(pa.string())
    return replace_columns(table, columns)


def _format_intervals(column: pa.ChunkedArray) -> pa.Array:
    """Format intervals, which Arrow does not cast, as durations of ISO 8601, such as P1M2DT0.5S."""

    def format_interval(value: pa.MonthDayNano) -> str:
        seconds = Decimal(value.nanoseconds).scaleb(-9).normalize()
        parts = [(value.months, "M"), (value.days, "D")]
        date = "".join(f"{number}{unit}" for number, unit in parts if number)
        return f"P{date}T{seconds:f}S" if seconds or not date else f"P{date}"

    return pa.array([None if v is None else format_interval(v) for v in column.to_pylist()], pa.string())


def _shorten_timestamps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cast to dates if all times are midnight (without a zone), otherwise to the coarsest lossless unit."""
    zone = column.type.tz
    times = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us")]
    for dtype in times if zone else (pa.date32(), *times):
        try:
            short = column.cast(dtype)
            if short.cast(column.type).equals(column):
                return short
        except pa.ArrowInvalid:  # also of infinity in SQL, which is no date
            continue
    return column


FORMATS: dict[str, type[Writer]] = {
    "table": _Table,
    "csv": _Csv,
    "parquet": _Parquet,
    "arrow": _Arrow,
    "json": _Json,
    "jsonl": _JsonLines,
    "feather": _Feather,
}
_SUFFIXES = {
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "arrows": "arrow",
    "feather": "feather",
    "json": "json",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "txt": "table",
}


_GZIP = ".gz"


def choose_format(form: str | None, path: str | None) -> str:
    """Return the format: the given one, or that of the suffix of the file, or a table."""
    if form is not None or path is None:
        return form or "table"
    _, separator, suffix = os.path.basename(path).lower().removesuffix(_GZIP).rpartition(".")
    chosen = _SUFFIXES.get(suffix) if separator else None
    if chosen is None:
        usage_error(
            f"Cannot derive the format from the file name {path!r}: known suffixes are "
            f"{', '.join(f'.{known}' for known in _SUFFIXES)}, also with {_GZIP}; or pass --output"
        )
    return chosen


@contextmanager
def replace_file(path: str) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` when it is complete; it is deleted after an error."""
    # pipes and devices cannot be replaced
    is_file = os.path.isfile(path) or not os.path.exists(path)
    temporary = f"{path}.{uuid.uuid4().hex}.tmp" if is_file else path
    try:
        # not a with statement: OSErrors of the caller must not be reported as errors of the file
        file = open(temporary, "wb")  # noqa: SIM115
    except OSError as error:
        usage_error(f"Cannot write {path}: {error.strerror}")
    try:
        with file:
            yield file
        if is_file:
            os.replace(temporary, path)
    except BaseException:
        if is_file:
            with suppress(OSError):
                os.remove(temporary)
        raise


def write_tables(form: str | None, path: str | None, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write the tables of a result to a file, or to standard output without a path; return their rows.

    The format is by default that of the file name, or a table.
    """
    kind = FORMATS[choose_format(form, path)]
    if path is None:
        sink = sys.stdout.buffer
        if not kind.text and sink.isatty():
            usage_error("Binary output cannot be written to a terminal: use a pipe, or a file with --to")
        return _write_all(kind(sink, schema), tables)
    with replace_file(path) as file:
        if not path.lower().endswith(_GZIP):
            return _write_all(kind(file, schema), tables)
        # without name and time, so that equal results make equal files
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
            return _write_all(kind(cast(BinaryIO, compressed), schema), tables)


def _write_all(writer: Writer, tables: Iterable[pa.Table]) -> int:
    n_rows = 0
    for table in tables:
        writer.write(table)
        n_rows += len(table)
        writer.sink.flush()
    writer.close()
    writer.sink.flush()
    return n_rows


def report_rows(n_rows: int, path: str | None) -> None:
    """Print how many rows were written to a file."""
    if path is not None:
        click.echo(f"Wrote {format_count(n_rows, 'row')} to {path}", err=True)
