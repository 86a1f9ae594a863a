"""How wide the numbers are in the files that rows come from: that decides the types of a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.query.physical_plan import DatasetScan, ScanContext
from kartothek_cube.serialization.footers import read_footer

__all__ = ("Widths", "bits", "fit", "stored_bits", "widths_of_files", "with_bits")

Ints: TypeAlias = npt.NDArray[np.int64]
Widths: TypeAlias = npt.NDArray[np.int8]

_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_FLOATS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
_BITS = {t.id: width for kind in (_SIGNED, _UNSIGNED, _FLOATS) for width, t in kind.items()}


def bits(dtype: pa.DataType) -> int:
    """
    How many bits a number has, also one in a list.

    Parameters
    ----------
    dtype
        Any type.

    Returns
    -------
    int
        0 for nulls and whatever is no number.

    Examples
    --------
    >>> bits(pa.int8()), bits(pa.list_(pa.float32())), bits(pa.string())
    (8, 32, 0)
    """
    while pat.is_list(dtype):
        dtype = dtype.value_type
    return _BITS.get(dtype.id, 0)


def with_bits(dtype: pa.DataType, width: int) -> pa.DataType:
    """
    The type of the same kind whose numbers have so many bits.

    Parameters
    ----------
    dtype
        A type of numbers, or of lists of them; others are returned as they are.
    width
        Number of bits.

    Examples
    --------
    >>> with_bits(pa.list_(pa.uint64()), 16)
    ListType(list<item: uint16>)
    """
    if pat.is_list(dtype):
        return pa.list_(dtype.value_field.with_type(with_bits(dtype.value_type, width)))
    for kind, is_kind in (
        (_SIGNED, pat.is_signed_integer),
        (_UNSIGNED, pat.is_unsigned_integer),
        (_FLOATS, pat.is_floating),
    ):
        if is_kind(dtype):
            return kind[width]
    return dtype


def widths_of_files(schemas: Sequence[pa.Schema], unit: Ints) -> dict[str, Widths]:
    """
    Widths of the columns that are not equally wide in all files.

    Parameters
    ----------
    schemas
        Types in each file; all have the same columns.
    unit
        Physical partition of each file, ascending. What a partition holds is as wide as its widest file.

    Returns
    -------
    dict
        Column to the width in the partition of each file.

    Examples
    --------
    >>> narrow, wide = pa.schema([("v", pa.int8())]), pa.schema([("v", pa.int64())])
    >>> widths_of_files([narrow, narrow, wide], np.array([0, 1, 1]))
    {'v': array([ 8, 64, 64], dtype=int8)}
    """
    if not schemas or all(schema.equals(schemas[0]) for schema in schemas[1:]):
        return {}
    names = schemas[0].names
    table = np.array([[bits(schema.field(name).type) for name in names] for schema in schemas], np.int8)
    starts = np.flatnonzero(np.append(True, unit[1:] != unit[:-1]))
    times = np.diff(np.append(starts, len(unit)))
    widths = {}
    for name, column in zip(names, table.T, strict=True):
        if bool((column != column[0]).any()):
            widths[name] = np.repeat(np.maximum.reduceat(column, starts), times)
    return widths


def fit(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """
    Rows with numbers of the width wanted.

    Parameters
    ----------
    table
        The rows; the numbers in it fit.
    wanted
        The same columns.

    Returns
    -------
    pyarrow.Table
        The same table if no width differs.
    """
    for position, (have, want) in enumerate(zip(table.schema.types, wanted.types, strict=True)):
        width = bits(want)
        if width and bits(have) != width:
            # lists that are all empty do not know of what
            column = table.column(position).cast(with_bits(have, width) if bits(have) else want)
            table = table.set_column(position, table.schema.names[position], column)
    return table


def stored_bits(context: ScanContext, blobs: BlobStore, column: str) -> int:
    """
    Width of a column that holds nothing but nulls in a group: that in the first file of its dataset.

    The rows of the group cannot tell it, and a type that the other groups do not have would be of no use.

    Parameters
    ----------
    context
        The query, which remembers the answer.
    blobs
        The store.
    column
        A column of numbers.

    Returns
    -------
    int
        That of the schema, 64, if no file tells it.
    """
    if column not in context.known_bits:
        source = next(s for s in context.sources if column in (*s.dimensions, *s.payload))
        context.known_bits[column] = _bits_in_file(source, blobs, column) or 64
    return context.known_bits[column]


def _bits_in_file(source: DatasetScan, blobs: BlobStore, column: str) -> int:
    if source.first_file is None or not source.first_file.endswith(PARQUET_FILE_SUFFIX):
        return 0
    try:
        footer, _ = read_footer(blobs, source.first_file)
    except (MissingFileError, CorruptDatasetError):
        return 0  # the query needs no rows of this file: it must not fail because of it
    schema = footer.schema.to_arrow_schema()
    return bits(schema.field(column).type) if column in schema.names else 0
