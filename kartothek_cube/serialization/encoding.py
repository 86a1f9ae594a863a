"""Encoding of Parquet columns: choice of dictionaries and compression."""

from __future__ import annotations

import functools
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core.arrow.types import is_nested
from kartothek_cube.core.arrow.typing import Ints

__all__ = ("codecs", "dictionary_columns")

# below this number of rows, dictionaries only cost time
_MIN_ROWS_DICTIONARIES = 1_000
# Parquet writers abandon dictionaries above 1 MB, after building them
_MAX_VALUES = 100_000
_SAMPLE = 4_096
# below this number of rows, decompression takes no time worth saving
_MIN_ROWS_CODECS = 10_000
# compression ratio above which decompression does not pay
_MAX_RATIO = 0.9
# values and lengths of this number of runs take two disk blocks at most
_MAX_RUNS = 512


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
    # Noise, such as measured numbers with all their digits, is read three times faster then; few long runs of
    # equal values, such as the leading dimension of sorted cells, twice as fast.
    if compression.upper() != "ZSTD" or table.num_rows < _MIN_ROWS_CODECS:
        return compression
    uncompressed = {
        name
        for name, column in zip(table.column_names, table.columns, strict=True)
        if (_has_few_runs if name in dictionaries else _is_incompressible)(column)
    }
    if not uncompressed:
        return compression
    return {_path(field): "NONE" if field.name in uncompressed else compression for field in table.schema}


def _has_few_runs(column: pa.ChunkedArray) -> bool:
    """Whether a column of numbers has few runs, which a dictionary encodes in next to no space."""
    if not _is_number(column.type) or column.null_count:
        return False
    values = column.to_numpy()
    return bool(np.count_nonzero(values[1:] != values[:-1]) < _MAX_RUNS)


def _is_incompressible(column: pa.ChunkedArray) -> bool:
    if not _is_number(column.type):
        return False
    sample = column.slice(len(column) // 2 - _SAMPLE // 2, _SAMPLE).drop_null().to_numpy().tobytes()
    compressed = pa.Codec("zstd").compress(sample, asbytes=True)
    return len(compressed) > _MAX_RATIO * len(sample) > 0


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pat.is_floating(dtype) or pat.is_integer(dtype) or pat.is_timestamp(dtype))
