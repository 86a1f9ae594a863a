"""Verify data files: readable, of the recorded schema, in their partition, sorted, without duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.core.arrow.arrays import count_nulls
from kartothek_cube.core.arrow.types import is_nested, same_type
from kartothek_cube.core.commit.change import IndexUpdate
from kartothek_cube.core.errors import CorruptDatasetError, format_count
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.schema.evolution import ColumnMapping
from kartothek_cube.core.schema.wrapper import make_meta
from kartothek_cube.core.store import BlobStore, open_blobs
from kartothek_cube.core.transforms import PartitionTransform
from kartothek_cube.core.typing import StoreFactory
from kartothek_cube.io_components import keys
from kartothek_cube.io_components.scan import read_file
from kartothek_cube.io_components.verify.report import Problem
from kartothek_cube.io_components.write.table_writer import index_entries_of
from kartothek_cube.serialization import ParquetReadError
from kartothek_cube.serialization.parquet_reader import read_footer

#: errors of a file that is damaged, or no Parquet file
_UNREADABLE = (CorruptDatasetError, ParquetReadError, pa.ArrowException, EOFError)


@attrs.frozen
class VerifyContext:
    """What all tasks that check files share."""

    store: StoreFactory
    uuid: str
    table: str
    schema: pa.Schema
    #: these are not in the files
    partition_keys: tuple[str, ...] = ()
    #: indexed columns
    indices: tuple[str, ...] = ()
    #: dimension columns, if it is a dataset of a cube
    cell: tuple[str, ...] = ()
    #: columns without nulls
    not_null: tuple[str, ...] = ()
    #: whether all rows are read, or only the footers
    deep: bool = True
    #: partition keys that follow from other columns
    transforms: tuple[PartitionTransform, ...] = ()
    #: how to read files that were written before a change of the schema
    mapping: ColumnMapping | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class VerifyTask:
    """Some partitions to check."""

    labels: tuple[str, ...]
    keys: tuple[str, ...]


@attrs.frozen
class VerifyResult:
    """What tasks found."""

    problems: tuple[Problem, ...] = ()
    #: counts
    files: int = 0
    rows: int = 0
    #: index entries according to the data, by column
    entries: Mapping[str, IndexUpdate] = attrs.field(factory=dict)


def merge_verify_results(parts: Iterable[VerifyResult]) -> VerifyResult:
    """Merge the results of several tasks; associative."""
    results = list(parts)
    columns = sorted({column for part in results for column in part.entries})
    return VerifyResult(
        tuple(problem for part in results for problem in part.problems),
        sum(part.files for part in results),
        sum(part.rows for part in results),
        {c: IndexUpdate.merge([part.entries[c] for part in results if c in part.entries]) for c in columns},
    )


def run_verify(context: VerifyContext, task: VerifyTask) -> VerifyResult:
    """Check the files of some partitions."""
    blobs = open_blobs(context.store)
    files = PartitionTable(task.labels, {context.table: task.keys})
    values = files.keys(context.partition_keys, context.schema)
    pairs = zip(task.labels, task.keys, strict=True)
    check = _check_rows if context.deep else _check_footer
    return merge_verify_results(
        check(context, blobs, label, key, {column: array[row] for column, array in values.items()})
        for row, (label, key) in enumerate(pairs)
    )


def _problem(context: VerifyContext, kind: str, key: str, message: str, column: str | None = None) -> Problem:
    return Problem(context.uuid, kind, key, message, column)


def _report_unreadable(context: VerifyContext, key: str, error: Exception) -> VerifyResult:
    if isinstance(error, KeyError):
        return VerifyResult((_problem(context, "missing-file", key, "the file does not exist"),), 1)
    return VerifyResult((_problem(context, "unreadable-file", key, f"the file cannot be read: {error}"),), 1)


def _check_footer(
    context: VerifyContext, blobs: BlobStore, label: str, key: str, values: Mapping[str, Any]
) -> VerifyResult:
    if not key.endswith(PARQUET_FILE_SUFFIX):
        return VerifyResult(files=1)
    try:
        footer, _ = read_footer(blobs, key)
        schema, rows = footer.schema.to_arrow_schema(), footer.num_rows
        if context.mapping is not None:
            schema = context.mapping.schema_of(schema)
    except (*_UNREADABLE, OSError, KeyError) as error:
        return _report_unreadable(context, key, error)
    return VerifyResult(tuple(_schema_problems(context, key, schema)), 1, rows)


def _check_rows(
    context: VerifyContext, blobs: BlobStore, label: str, key: str, values: Mapping[str, Any]
) -> VerifyResult:
    try:
        table = read_file(blobs, key, schema=context.schema, mapping=context.mapping)
    except (*_UNREADABLE, OSError, KeyError) as error:
        return _report_unreadable(context, key, error)
    problems = list(_schema_problems(context, key, table.schema))
    problems += _place_problems(context, key, table, values)
    problems += _cell_problems(context, key, table)
    typed = {c: context.schema.field(c).type for c in context.indices if c in table.column_names}
    entries = {}
    for column, dtype in typed.items():
        try:
            entries[column] = index_entries_of(column, [label], [table], dtype)
        except pa.ArrowException:
            # the file has another type, which is reported already
            continue
    return VerifyResult(tuple(problems), 1, len(table), entries)


def _schema_problems(context: VerifyContext, key: str, schema: pa.Schema) -> Iterator[Problem]:
    """Columns that are missing in a file, not in the schema, or of another type."""
    file_schema = make_meta(schema, origin=key)
    expected = [name for name in context.schema.names if name not in context.partition_keys]
    missing = sorted(set(expected) - set(file_schema.names))
    # columns of nulls that other files lack are not in the schema
    typed = {field.name for field in file_schema if not pa.types.is_null(field.type)}
    extra = sorted(typed - set(expected) - set(context.partition_keys))
    if missing:
        yield _problem(context, "file-schema", key, f"columns are missing: {', '.join(missing)}", missing[0])
    if extra:
        text = f"columns are not in the schema of the dataset: {', '.join(extra)}"
        yield _problem(context, "file-schema", key, text, extra[0])
    types = {field.name: field.type for field in file_schema}
    for name in (name for name in expected if name in types):
        stored, expected_type = types[name], context.schema.field(name).type
        if not _is_readable_as(stored, expected_type):
            text = f"column {name} has type {stored}, but the dataset says {expected_type}"
            yield _problem(context, "file-schema", key, text, name)


def _is_readable_as(stored: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a type is the recorded one, except for parts that are null (only nulls or empty lists)."""
    if pa.types.is_null(stored) or same_type(stored, expected):
        return True
    if stored.id != expected.id or not is_nested(stored) or stored.num_fields != expected.num_fields:
        return False
    pairs = [(stored.field(number), expected.field(number)) for number in range(stored.num_fields)]
    return all(a.name == b.name and _is_readable_as(a.type, b.type) for a, b in pairs)


def _place_problems(
    context: VerifyContext, key: str, table: pa.Table, values: Mapping[str, Any]
) -> Iterator[Problem]:
    """Partition keys that rows have, or imply, with other values than in the path of the file."""
    names = set(table.column_names)
    derived = {t.name: t for t in context.transforms if t.column in names}
    for column, value in values.items():
        if column not in names | set(derived):
            continue
        try:
            # conditions on the other column would not find rows with another value
            stored = (
                table.column(column)
                if column in names
                else derived[column].apply(table.column(derived[column].column).drop_null())
            )
            same = pc.equal(stored.cast(value.type), value)
        except (pa.ArrowException, TypeError, ValueError):
            same = pa.array([False])
        if not pc.all(pc.fill_null(same, False), min_count=0).as_py():
            text = f"rows have other values of {column} than {value.as_py()!r}, the one of their partition"
            yield _problem(context, "wrong-partition", key, text, column)


def _cell_problems(context: VerifyContext, key: str, table: pa.Table) -> Iterator[Problem]:
    """Nulls in key columns, unsorted rows and duplicate cells of a file of a cube."""
    for column in context.not_null:
        if column in table.column_names:
            nulls = count_nulls(table.column(column))
            if nulls:
                text = (
                    f"column {column} has {format_count(nulls, 'null')} in {format_count(len(table), 'row')}"
                )
                yield _problem(context, "null-key", key, text, column)
    cell = [column for column in context.cell if column not in context.partition_keys]
    if cell and set(cell) <= set(table.column_names):
        yield from _order_problems(context, key, table, cell)


def _order_problems(
    context: VerifyContext, key: str, table: pa.Table, cell: Sequence[str]
) -> Iterator[Problem]:
    columns = [table.column(column) for column in cell]
    if keys.strictly_increasing(columns, len(table)):
        return
    names = ", ".join(cell)
    if keys.sort_order(columns, len(table)) is not None:
        yield _problem(context, "unsorted", key, f"rows are not sorted by {names}")
    last = keys.last_rows_mask(columns, len(table))
    if last is not None and not last.all():
        row = table.select(list(cell)).slice(int(np.flatnonzero(~last)[0]), 1).to_pylist()[0]
        n_rows = int((~last).sum())
        verb = "has" if n_rows == 1 else "have"
        text = f"{format_count(n_rows, 'row')} {verb} a cell of {names} that comes again, such as {row}"
        yield _problem(context, "duplicate-cells", key, text)
