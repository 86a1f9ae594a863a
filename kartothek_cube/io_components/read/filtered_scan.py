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
from functools import cache, reduce
from operator import and_, eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from kartothek_cube.core.arrow.pandas_conversion import to_memory
from kartothek_cube.core.expressions.literal import BoundLiteral, LiteralType, bind_literal
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.runtime import available_cores, progress_advance

if TYPE_CHECKING:
    import polars

__all__ = ("can_filter_files", "read_filtered_files")

#: "pyarrow" switches Polars off, for a process that must verify the checksums of all pages that it reads
ENVIRONMENT_VARIABLE = "KARTOTHEK_CUBE_SCAN_ENGINE"
#: encoded bytes below which the fixed costs of Polars (0.5 ms) and of its import (120 ms) are not worth it
_MIN_BYTES, _MIN_BYTES_TO_IMPORT = 1 << 18, 1 << 22
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


def can_filter_files(blobs: BlobStore, keys: Sequence[str], nbytes: float) -> bool:
    """Whether to read matching rows of the files by Polars; `nbytes` is the size of the needed columns."""
    return (
        blobs.is_local
        and nbytes >= (_MIN_BYTES if "polars" in sys.modules else _MIN_BYTES_TO_IMPORT)
        and _is_available()
        # a limit of threads is one of Arrow and of this package
        and available_cores() == (os.cpu_count() or 1)
        and all(key.endswith(PARQUET_FILE_SUFFIX) for key in keys)
    )


def read_filtered_files(
    blobs: BlobStore, keys: Sequence[str], columns: Sequence[str], literals: Sequence[LiteralType]
) -> list[pa.Table] | None:
    """Rows of each file that meet all literals, with types of memory; None if Polars cannot read them."""
    from polars.exceptions import PanicException

    try:
        return _read_rows(blobs, keys, columns, literals)
    # Whatever it is (other types or columns in some files, missing and broken files, a wrong literal), the
    # code for all files reads them, or raises the error that names the file. Panics are no Exceptions.
    except (Exception, PanicException):
        return None


def _read_rows(
    blobs: BlobStore, keys: Sequence[str], columns: Sequence[str], literals: Sequence[LiteralType]
) -> list[pa.Table] | None:
    import polars

    paths = [os.path.abspath(path) for key in keys if (path := blobs.local_path(key)) is not None]
    stored = pq.read_schema(paths[0])
    names = list(dict.fromkeys([*columns, *(column for column, _, _ in literals)]))
    if len(paths) < len(keys) or not all(_is_readable(stored.field(name).type) for name in names):
        return None
    predicates = [
        _translate(column, bind_literal(stored.field(column).type, op, value, column))
        for column, op, value in literals
    ]
    rows = (
        polars.scan_parquet(
            paths,
            include_file_paths=_PATH,
            # a wrong one, of a writer that is not ours, would hide rows
            use_statistics=False,
            glob=False,
            hive_partitioning=False,
            cache=False,
            extra_columns="ignore",
        )
        .filter(reduce(and_, predicates))
        .select([*columns, _PATH])
        .collect()
    )
    for path in paths:
        progress_advance(os.path.getsize(path))
    table = rows.select(columns).to_arrow(compat_level=polars.CompatLevel.oldest())
    table = to_memory(
        table.cast(pa.schema([pa.field(column, stored.field(column).type) for column in columns]))
    )
    runs = rows.get_column(_PATH).rle().struct.unnest()
    numbers = {path: number for number, path in enumerate(paths)}
    lengths = np.zeros(len(paths), np.int64)
    lengths[[numbers[path] for path in runs["value"]]] = runs["len"]
    starts = np.cumsum(lengths) - lengths
    return [
        table.slice(start, length) for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def _translate(column: str, literal: BoundLiteral) -> polars.Expr:
    """The same condition for Polars."""
    import polars

    values = polars.col(column)
    operand = literal.operand
    if literal.kind == "never":
        return polars.lit(False)
    is_float = isinstance(operand, pa.Scalar | pa.Array) and pat.is_floating(operand.type)
    if isinstance(operand, pa.Scalar):
        # Python has no nanoseconds
        value = operand.value if pat.is_timestamp(operand.type) else operand.as_py()
        dtype = polars.Series(pa.array([operand])).dtype
        expression: polars.Expr = _COMPARE[literal.op](values, polars.lit(value, dtype=dtype))
        return expression & values.is_not_nan() if is_float and literal.op in _MET_BY_NAN else expression
    if literal.kind == "in" and not literal.or_null:
        return values.is_in(polars.Series(operand).implode())
    raise NotImplementedError(literal.kind)


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
