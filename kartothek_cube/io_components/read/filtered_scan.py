"""Filtered scan of local Parquet files by Polars, where that is installed."""

# Polars decodes the columns of a predicate first, and values of the other ones only in matching rows; pyarrow
# decodes whole columns, in two to three times the time. Rows, their order and types are the same. What Polars
# does not read is left to the code for all files, whose errors name the file and its problem.

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Sequence
from functools import cache, partial, reduce
from itertools import pairwise
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow.pandas_conversion import to_memory
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.caching import FOOTERS
from kartothek_cube.core.expressions.literal import LiteralType, bind_literal
from kartothek_cube.core.expressions.predicate import PredicatesType, columns_in_predicates
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.runtime import apply_thread_limit, progress_advance

if TYPE_CHECKING:
    import polars

__all__ = ("can_filter_files", "read_filtered_files")

#: "pyarrow" switches Polars off, for processes that have to verify the checksum of each page that they read
ENVIRONMENT_VARIABLE = "KARTOTHEK_CUBE_SCAN_ENGINE"
#: rows per file below which their chunks are copied into one
_MIN_CHUNK_ROWS = 1 << 12
#: size of a column in the cache: of its name and two objects
_BYTES_OF_TYPE = 200
_PATH = "\0path"
_COMPARE = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
#: comparisons that NaN meets for Polars, where it is the greatest value
_MET_BY_NAN = ("!=", ">", ">=")


class _Process:
    """What is known about threads of Polars in this process."""

    #: they do not survive a fork: the child of a process that used Polars would wait for them for ever
    is_forked = False


def _note_fork() -> None:
    _Process.is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def _is_available() -> bool:
    if os.environ.get(ENVIRONMENT_VARIABLE) == "pyarrow" or _Process.is_forked:
        return False
    # this module may be imported after the fork
    if multiprocessing.parent_process() and multiprocessing.get_start_method(allow_none=True) == "fork":
        return False
    return "polars" in sys.modules or _is_installed()


@cache
def _is_installed() -> bool:
    return importlib.util.find_spec("polars") is not None


def can_filter_files(blobs: BlobStore, keys: Sequence[str]) -> bool:
    """Whether Polars may be able to read the files."""
    return (
        blobs.is_local
        and _is_available()
        # Polars has its own threads, whose number is fixed
        and apply_thread_limit(sys.maxsize) == sys.maxsize
        and all(key.endswith(PARQUET_FILE_SUFFIX) for key in keys)
    )


def read_filtered_files(
    blobs: BlobStore, keys: Sequence[str], columns: Sequence[str], predicates: PredicatesType
) -> list[pa.Table] | None:
    """
    Rows of each file that meet the predicates, with types of memory; None if Polars cannot read them.

    Unlike other reads, this does not verify the checksums of pages.
    """
    from polars.exceptions import PanicException

    try:
        return _read_rows(blobs, keys, columns, predicates)
    # Whatever it is (other types or columns in some files, missing and broken files, a wrong literal), the
    # code for all files reads them, or raises the error that names the file. Panics are no Exceptions.
    except (Exception, PanicException):
        return None


def _read_rows(
    blobs: BlobStore, keys: Sequence[str], columns: Sequence[str], predicates: PredicatesType
) -> list[pa.Table] | None:
    import polars

    paths = [os.path.abspath(path) for key in keys if (path := blobs.local_path(key)) is not None]
    # rows of a file of several partitions, as in damaged headers, could not be told apart by their path
    if len(set(paths)) < len(keys):
        return None
    types = _file_types(paths[0])
    names = dict.fromkeys([*columns, *sorted(columns_in_predicates(predicates))])
    schema = pa.schema([types.arrow.field(name) for name in names])
    conjunctions = [
        reduce(and_, [_translate(schema, literal) for literal in conjunction])
        for conjunction in predicates or ()
    ]
    rows = (
        polars.scan_parquet(
            paths,
            # fast path: else Polars reads the footer of the first file before all others
            schema={name: types.polars[name] for name in names},
            # 16 bytes per row of the files
            include_file_paths=_PATH if len(paths) > 1 else None,
            # a wrong one, of a writer that is not ours, would hide rows
            use_statistics=False,
            glob=False,
            hive_partitioning=False,
            cache=False,
            extra_columns="ignore",
        )
        .filter(*([reduce(or_, conjunctions)] if conjunctions else []))
        .select([*columns, _PATH] if len(paths) > 1 else columns)
        .collect()
    )
    for path in paths:
        progress_advance(partial(os.path.getsize, path))
    lengths = _rows_per_file(rows.drop_in_place(_PATH), paths) if len(paths) > 1 else [len(rows)]
    bounds = np.cumsum([0, *lengths]).tolist()
    # a chunk per file of few rows costs more than the rows, as it has the texts of all rows of the file
    if len(rows) < _MIN_CHUNK_ROWS * len(paths):
        rows = rows.rechunk()
    table = rows.to_arrow(compat_level=polars.CompatLevel.oldest())
    table = to_memory(table.cast(pa.schema([schema.field(column) for column in columns])))
    return [table.slice(start, stop - start) for start, stop in pairwise(bounds)]


def _rows_per_file(column: polars.Series, paths: Sequence[str]) -> Ints:
    """Rows of each file in a column of paths, where those of a file are next to each other."""
    numbers = {path: number for number, path in enumerate(paths)}
    lengths = np.zeros(len(paths), np.int64)
    for chunk in column.get_chunks():
        if not len(chunk):
            continue
        # fast path: rows of two files are rarely in one chunk
        if chunk[0] == chunk[-1]:
            lengths[numbers[chunk[0]]] += len(chunk)
            continue
        runs = chunk.rle().struct
        for path, length in zip(runs.field("value"), runs.field("len"), strict=True):
            lengths[numbers[path]] += length
    return lengths


class _FileTypes(NamedTuple):
    """Types of the columns of a file that Polars reads unchanged."""

    arrow: pa.Schema
    polars: polars.Schema


def _file_types(path: str) -> _FileTypes:
    """Types of a file, cached: files are not changed, and Polars rejects one that has other types."""
    import polars

    cached = FOOTERS.get(path)
    if isinstance(cached, _FileTypes):
        return cached
    arrow = pa.schema(
        [(field.name, field.type) for field in pq.read_schema(path) if _is_readable(field.type)]
    )
    types = _FileTypes(arrow, polars.DataFrame(arrow.empty_table()).schema)
    FOOTERS.put(path, b"", types, len(path) + _BYTES_OF_TYPE * len(arrow))
    return types


def _translate(schema: pa.Schema, literal: LiteralType) -> polars.Expr:
    """The same condition for Polars."""
    import polars

    column, op, value = literal
    bound = bind_literal(schema.field(column).type, op, value, column)
    values, operand = polars.col(column), bound.operand
    if bound.kind == "never":
        return polars.lit(False)
    if isinstance(operand, pa.Scalar):
        # Python has no nanoseconds
        number = operand.value if pat.is_timestamp(operand.type) else operand.as_py()
        stored = polars.Series(pa.array([operand])).dtype
        expression: polars.Expr = _COMPARE[bound.op](values, polars.lit(number, dtype=stored))
        has_nan_matches = pat.is_floating(operand.type) and bound.op in _MET_BY_NAN
        return expression & values.is_not_nan() if has_nan_matches else expression
    if bound.kind == "in" and isinstance(operand, pa.Array) and not bound.or_null:
        return values.is_in(polars.Series(operand).implode())
    raise NotImplementedError(bound.kind)


def _is_readable(dtype: pa.DataType) -> bool:
    """Whether values of a type survive Polars unchanged."""
    return bool(
        pat.is_integer(dtype)
        or (pat.is_floating(dtype) and not pat.is_float16(dtype))
        or pat.is_boolean(dtype)
        or pat.is_string(dtype)
        or pat.is_large_string(dtype)
        or pat.is_date32(dtype)
        or (pat.is_timestamp(dtype) and dtype.tz is None)
    )
