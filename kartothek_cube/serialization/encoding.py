"""How the columns of a Parquet file are encoded: with a dictionary, and whether they are compressed."""

from __future__ import annotations

import functools
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from kartothek_cube.core.arrow.types import is_nested

__all__ = ("codecs", "dictionary_columns")

# In files with few rows a dictionary per column only costs time, for writers and readers.
_DICTIONARIES_FROM = 1_000
# Writers of Parquet give up dictionaries of 1 MB, after they have paid for them.
_MAX_VALUES = 100_000
_SAMPLE = 4_096
# Below so many rows, it does not matter how long a column takes.
_PLAIN_FROM = 10_000
# What is compressed to more than this is not worth the time to decompress it.
_HARDLY_SMALLER = 0.9
# So many values and lengths take two blocks of a disk at most.
_FEW_RUNS = 512


def dictionary_columns(table: pa.Table) -> list[str]:
    """
    Choose the columns to write with a dictionary.

    Values that hardly ever occur twice (measured numbers, unique names) are written several times faster
    without one, and take less space.

    Parameters
    ----------
    table
        What is written to a file.

    Returns
    -------
    list of str
        Paths of Parquet columns, as :class:`pyarrow.parquet.ParquetWriter` wants them.

    Examples
    --------
    >>> rows = np.arange(5000)
    >>> dictionary_columns(pa.table({"AVG_TEMP": rows / 7, "CITY": rows % 9}))
    ['CITY']
    """
    if table.num_rows < _DICTIONARIES_FROM:
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
    """Whether each value occurs about twice or more often; told by pairs of equal values in a sample."""
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
    """Irregular positions, for values may follow each other at regular distances."""
    chosen: npt.NDArray[np.int64] = np.random.default_rng(0).integers(length, size=_SAMPLE)
    return pa.array(np.unique(chosen))


def codecs(table: pa.Table, dictionaries: Collection[str], compression: str) -> str | dict[str, str]:
    """
    Choose the columns that ZSTD should leave as they are, because it would win next to nothing.

    Noise, such as measured numbers with all their digits, is read three times faster then; a few long runs of
    equal values, such as the leading dimension of sorted cells, twice as fast.

    Parameters
    ----------
    table
        What is written to a file.
    dictionaries
        Columns with a dictionary, which are small anyway.
    compression
        The codec.

    Returns
    -------
    str or dict
        The codec, or one for each path of a Parquet column.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=20_000)
    >>> codecs(pa.table({"AVG_TEMP": noise, "ALTITUDE": noise.round(1)}), dictionaries=[], compression="ZSTD")
    {'AVG_TEMP': 'NONE', 'ALTITUDE': 'ZSTD'}
    """
    if compression.upper() != "ZSTD" or table.num_rows < _PLAIN_FROM:
        return compression
    plain = {
        name
        for name, column in zip(table.column_names, table.columns, strict=True)
        if (_has_few_runs if name in dictionaries else _is_incompressible)(column)
    }
    if not plain:
        return compression
    return {_path(field): "NONE" if field.name in plain else compression for field in table.schema}


def _has_few_runs(column: pa.ChunkedArray) -> bool:
    """Whether numbers change so rarely that a dictionary and the lengths of runs take next to no room."""
    if not _is_number(column.type) or column.null_count:
        return False
    values = column.to_numpy()
    return bool(np.count_nonzero(values[1:] != values[:-1]) < _FEW_RUNS)


def _is_incompressible(column: pa.ChunkedArray) -> bool:
    if not _is_number(column.type):
        return False
    sample = column.slice(len(column) // 2 - _SAMPLE // 2, _SAMPLE).drop_null().to_numpy().tobytes()
    compressed = pa.Codec("zstd").compress(sample, asbytes=True)
    return len(compressed) > _HARDLY_SMALLER * len(sample) > 0


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pat.is_floating(dtype) or pat.is_integer(dtype) or pat.is_timestamp(dtype))
