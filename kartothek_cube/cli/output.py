"""Output formats of query results: text table, CSV, JSON, JSON lines, Parquet, Feather, Arrow stream."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from decimal import Decimal
from functools import cached_property, partial
from itertools import chain, islice
from math import isfinite
from operator import add
from typing import Any, BinaryIO, cast

import attrs
import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from kartothek_cube.cli import context
from kartothek_cube.cli.context import usage_error
from kartothek_cube.core import arrow, errors
from kartothek_cube.display import cut_text, escape_controls, pad_text, text_width

#: number of rows printed to a terminal
_SCREENFUL = 50
#: texts are cut to this width before columns are omitted
_MIN_TEXT_WIDTH = 12
#: significant digits of floats in tables that are wider than the terminal
_DIGITS = 6


def _write_csv(sink: BinaryIO, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """CSV: text is quoted if needed, null is empty, nested values are JSON, bytes hexadecimal."""
    blocks = iter(tables)
    for number, table in enumerate(chain([next(blocks, schema.empty_table())], blocks)):
        options = pyarrow.csv.WriteOptions(include_header=not number, quoting_style="needed")
        # a column has one format in all blocks, whatever their times are
        pyarrow.csv.write_csv(_flatten(table, shorten_to_dates=False), sink, options)


def _write_json(sink: BinaryIO, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """JSON: an array with one object per line."""
    separator = "[\n"
    for table in tables:
        if len(table):
            sink.write((separator + ",\n".join(_json_objects(table))).encode())
            separator = ",\n"
    sink.write(b"[]\n" if separator == "[\n" else b"\n]\n")


def _write_json_lines(sink: BinaryIO, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """JSON lines: one object per line."""
    for table in tables:
        if len(table):
            sink.write(("\n".join(_json_objects(table)) + "\n").encode())


def _json_objects(table: pa.Table) -> list[str]:
    names = [json.dumps(name, ensure_ascii=False) + ":" for name in table.column_names]
    rows = zip(*map(_json_cells, table.columns), strict=True)
    return ["{" + ",".join(map(add, names, cells)) + "}" for cells in rows]


def _json_cells(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """Write values as JSON, floats with all digits and times in ISO format, also within nested values."""
    column = _simplify(column)
    dtype = column.type
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
    if pa.types.is_floating(dtype):
        return _json_cells(column.cast(pa.string()).cast(pa.float64()))  # 0.1 of float32 stays 0.1
    if pa.types.is_timestamp(dtype):
        zone = "" if dtype.tz is None else "Z"
        times = column.cast(pa.timestamp(dtype.unit))  # of zoned times: in UTC
        with suppress(pa.ArrowInvalid):  # nanoseconds stay if they are needed
            times = times.cast(pa.timestamp("us"))
        column = pc.binary_join_element_wise(pc.strftime(times, "%Y-%m-%dT%H:%M:%S"), zone, "")
    elif pa.types.is_date(dtype) or dtype == pa.time64("ns"):
        column = column.cast(pa.string())
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


def _write_binary(
    open_writer: Callable[..., Any], sink: BinaryIO, schema: pa.Schema, tables: Iterable[pa.Table]
) -> None:
    """Write a format of Arrow. After an error it is not closed, so that it cannot be taken for complete."""
    try:
        writer = open_writer(_Pipe(sink), schema)
    except pa.ArrowNotImplementedError as error:
        usage_error(f"Parquet cannot hold this result: cast the column, or write .arrow ({error})")
    for table in tables:
        writer.write_table(table.cast(schema))
    writer.close()


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


def _write_text_table(sink: BinaryIO, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Text table with right-aligned numbers; on a terminal, the first rows, and no wider than it."""
    # results of SQL may have several columns of a name
    numbers = [str(number) for number in range(len(schema))]
    numbered = [table.rename_columns(numbers) for table in (schema.empty_table(), *tables)]
    result, is_terminal = arrow.concat_promoted(numbered), sink.isatty()
    options = {p.name for p in click.get_current_context().command.params} if is_terminal else ()
    shown = result.slice(0, _SCREENFUL) if "to" in options else result
    columns = list(map(_TextColumn.of, schema.names, _flatten(shown).columns))
    fitting = _fit_terminal(columns) if is_terminal else columns
    for line in zip(*(column.lines() for column in fitting), strict=True):
        sink.write("  ".join(line).rstrip().encode() + b"\n")
    sink.flush()
    if len(shown) < len(result):
        hidden = errors.format_count(len(result) - len(shown), "more row")
        context.echo(f"… and {hidden}; write all of them to a file with --to", err=True)
    if len(fitting) < len(columns):
        names = ", ".join(column.texts[0] for column in columns[len(fitting) :])
        hidden = errors.format_count(len(columns) - len(fitting), "more column")
        hint = "; select some with --columns" if "columns" in options else ""
        context.echo(f"… and {hidden} ({names}){hint}", err=True)


@attrs.frozen
class _TextColumn:
    """A column of a text table."""

    #: name and cells
    texts: list[str]
    type: pa.DataType

    @classmethod
    def of(cls, name: str, values: pa.ChunkedArray) -> _TextColumn:
        """Format values; null is empty, control characters are escaped to protect the terminal."""
        texts = [name, *pc.fill_null(values.cast(pa.string()), "").to_pylist()]
        return cls(list(map(escape_controls, texts)), values.type)

    @cached_property
    def width(self) -> int:
        """Width of the longest text."""
        return max(map(text_width, self.texts))

    def cut_width(self, limit: int) -> int:
        """Width if texts are cut; neither names nor integers and times, which would be others."""
        least = max(text_width(self.texts[0]), _MIN_TEXT_WIDTH, limit)
        return min(self.width, least) if arrow.is_text(self.type) else self.width

    def map(self, change: Callable[[str], str]) -> _TextColumn:
        """The column with other cells."""
        return _TextColumn([self.texts[0], *map(change, self.texts[1:])], self.type)

    def lines(self) -> list[str]:
        """Name and cells, padded to the width."""
        dtype = self.type
        is_number = pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)
        return [pad_text(text, self.width, right=is_number) for text in self.texts]


def _fit_terminal(columns: list[_TextColumn]) -> list[_TextColumn]:
    """Round floats, omit the last columns and cut texts, until the table is not wider than the terminal."""
    available = shutil.get_terminal_size().columns

    def is_too_wide(limit: int) -> bool:
        return sum(column.cut_width(limit) + 2 for column in columns) - 2 > available

    if is_too_wide(sys.maxsize):
        # as many digits as pandas shows
        columns = [
            column.map(lambda text: text and f"{float(text):.{_DIGITS}g}")
            if pa.types.is_floating(column.type)
            else column
            for column in columns
        ]
    while len(columns) > 1 and is_too_wide(0):
        columns = columns[:-1]
    limit = available
    while limit and is_too_wide(limit):
        limit -= 1
    return [column.map(partial(cut_text, width=column.cut_width(limit))) for column in columns]


def echo_cut(text: str) -> None:
    """Print lines, which are cut to the width of a terminal."""
    lines = text.split("\n")
    if sys.stdout.isatty():
        lines = [cut_text(line, shutil.get_terminal_size().columns) for line in lines]
    for line in lines:
        context.echo(line)


def _flatten(table: pa.Table, *, shorten_to_dates: bool = True) -> pa.Table:
    """Convert nested columns to JSON, bytes to hexadecimal digits, and times to short texts."""
    columns = {}
    for number, column in enumerate(map(_simplify, table.columns)):
        columns[number] = column
        if pa.types.is_nested(column.type):
            texts = pa.array(_json_cells(column), pa.string(), mask=column.is_null().to_numpy())
            columns[number] = pa.chunked_array([texts])
        elif pa.types.is_timestamp(column.type):
            columns[number] = shorten_timestamps(column, to_dates=shorten_to_dates)
    return arrow.replace_columns(table, columns)


_BYTES = (
    *(pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_fixed_size_binary, pa.types.is_binary_view),
)


def _simplify(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Decode dictionaries, and format what not all formats have: bytes, intervals, views of texts."""
    dtype = column.type
    if pa.types.is_dictionary(dtype):
        return _simplify(column.cast(dtype.value_type))
    if pa.types.is_null(dtype) or pa.types.is_string_view(dtype):
        return column.cast(pa.string())
    if any(is_kind(dtype) for is_kind in _BYTES):
        return _format_values(column, bytes.hex)
    return _format_values(column, _format_interval) if pa.types.is_interval(dtype) else column


def _format_values(column: pa.ChunkedArray | pa.Array, format_value: Callable[[Any], str]) -> pa.ChunkedArray:
    texts = [None if value is None else format_value(value) for value in column.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


def _format_interval(value: pa.MonthDayNano) -> str:
    """Format an interval, which Arrow does not cast, as duration of ISO 8601, such as P1M2DT0.5S."""
    seconds = Decimal(value.nanoseconds).scaleb(-9).normalize()
    date = "".join(f"{number}{unit}" for number, unit in ((value.months, "M"), (value.days, "D")) if number)
    return f"P{date}T{seconds:f}S" if seconds or not date else f"P{date}"


def shorten_timestamps(column: pa.ChunkedArray | pa.Array, *, to_dates: bool) -> pa.ChunkedArray | pa.Array:
    """Cast to dates if all times are midnight (without a zone), otherwise to the coarsest lossless unit."""
    zone = column.type.tz
    times = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us")]
    for dtype in (pa.date32(), *times) if to_dates and not zone else times:
        try:
            short = column.cast(dtype)
            if short.cast(column.type).equals(column):
                return short
        except pa.ArrowInvalid:  # also of infinity in SQL, which is no date
            continue
    return column


_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")
#: functions that write the tables of a result; the schema is needed for results without rows
FORMATS: dict[str, Callable[[BinaryIO, pa.Schema, Iterable[pa.Table]], None]] = {
    "table": _write_text_table,
    "csv": _write_csv,
    "parquet": partial(_write_binary, partial(pq.ParquetWriter, compression="zstd")),
    "arrow": partial(_write_binary, pa.ipc.new_stream),
    "json": _write_json,
    "jsonl": _write_json_lines,
    "feather": partial(_write_binary, partial(pa.ipc.new_file, options=_LZ4)),
}
_BINARY_FORMATS = ("parquet", "arrow", "feather")
#: suffixes of files that are not the name of their format
_SUFFIXES = {"arrows": "arrow", "ndjson": "jsonl", "txt": "table"}
_GZIP = ".gz"


def choose_format(form: str | None, path: str | None) -> str:
    """Return the format: the given one, or that of the suffix of the file, or a table."""
    if form is not None or path is None:
        return form or "table"
    suffixes = {**{name: name for name in FORMATS if name != "table"}, **_SUFFIXES}
    _, separator, suffix = os.path.basename(path).lower().removesuffix(_GZIP).rpartition(".")
    if not separator or suffix not in suffixes:
        known = ", ".join(f".{suffix}" for suffix in suffixes)
        usage_error(
            f"Cannot derive the format from the file name {path!r}: known suffixes are {known}, also with "
            f"{_GZIP}; or pass --output"
        )
    return suffixes[suffix]


@contextmanager
def replace_file(path: str) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` when it is complete; it is deleted after an error."""
    if not path:
        usage_error("The output file has no name")
    # pipes and devices cannot be replaced
    is_file = os.path.isfile(path) or not os.path.exists(path)
    # a link stays one
    target = os.path.realpath(path) if is_file else path
    temporary = f"{target}.{uuid.uuid4().hex}.tmp" if is_file else path
    try:
        # not a with statement: OSErrors of the caller must not be reported as errors of the file
        file = open(temporary, "wb")  # noqa: SIM115
    except OSError as error:
        usage_error(f"Cannot write {path}: {error.strerror}")
    try:
        with file:
            if os.path.isfile(target):
                # before the first row: others may have no permission to read them
                shutil.copymode(target, temporary)
            yield file
        if is_file:
            os.replace(temporary, target)
    except BaseException:
        if is_file:
            with suppress(OSError):
                os.remove(temporary)
        raise


def write_tables(form: str | None, path: str | None, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write the tables of a result to a file, or to standard output; by default in the format of its name."""
    form = choose_format(form, path)
    if path is None:
        sink = sys.stdout.buffer
        if form in _BINARY_FORMATS and sink.isatty():
            usage_error("Binary output cannot be written to a terminal: use a pipe, or a file with --to")
        _write_all(form, sink, schema, tables)
        return
    # without name and time, so that equal results make equal files
    compress = partial(gzip.GzipFile, "", "wb", mtime=0) if path.lower().endswith(_GZIP) else None
    with (
        replace_file(path) as file,
        nullcontext(file) if compress is None else compress(fileobj=file) as target,
    ):
        n_rows = _write_all(form, cast(BinaryIO, target), schema, tables)
    context.echo(f"Wrote {errors.format_count(n_rows, 'row')} to {path}", err=True)


def _write_all(form: str, sink: BinaryIO, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write the tables one by one, so that a reader of a pipe gets the first rows early; count the rows."""
    n_rows = 0

    def flush_each() -> Iterator[pa.Table]:
        nonlocal n_rows
        for table in tables:
            yield table
            n_rows += len(table)
            sink.flush()

    FORMATS[form](sink, schema, flush_each())
    sink.flush()
    return n_rows
