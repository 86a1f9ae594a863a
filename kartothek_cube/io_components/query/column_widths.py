"""Widths of numbers in the files that rows come from: they decide the types of a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.naming import PARQUET_FILE_SUFFIX
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.query.physical_plan import DatasetScan, ScanContext
from kartothek_cube.serialization.ranged_read import read_footer

__all__ = ("Widths", "bits", "fit", "stored_bits", "widths_of_files", "with_bits")

Widths: TypeAlias = npt.NDArray[np.int8]

_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_FLOATS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
_BITS = {t.id: width for kind in (_SIGNED, _UNSIGNED, _FLOATS) for width, t in kind.items()}


def bits(dtype: pa.DataType) -> int:
    """
    Bits of a number, or of the numbers in a list; 0 for other types.

    >>> bits(pa.int8()), bits(pa.list_(pa.float32())), bits(pa.string())
    (8, 32, 0)
    """
    while pat.is_list(dtype):
        dtype = dtype.value_type
    return _BITS.get(dtype.id, 0)


def with_bits(dtype: pa.DataType, width: int) -> pa.DataType:
    """
    The type of the same kind whose numbers have so many bits; types without numbers are unchanged.

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


def widths_of_files(schemas: Sequence[pa.Schema], partition_ids: Ints) -> dict[str, Widths]:
    """
    Bits per file of the columns that differ between files; those of the widest file of its partition.

    >>> narrow, wide = pa.schema([("v", pa.int8())]), pa.schema([("v", pa.int64())])
    >>> widths_of_files([narrow, narrow, wide], np.array([0, 1, 1]))
    {'v': array([ 8, 64, 64], dtype=int8)}
    """
    if not schemas or all(schema.equals(schemas[0]) for schema in schemas[1:]):
        return {}
    names = schemas[0].names
    table = np.array([[bits(schema.field(name).type) for name in names] for schema in schemas], np.int8)
    starts = np.flatnonzero(np.append(True, partition_ids[1:] != partition_ids[:-1]))
    times = np.diff(np.append(starts, len(partition_ids)))
    widths = {}
    for name, column in zip(names, table.T, strict=True):
        if bool((column != column[0]).any()):
            widths[name] = np.repeat(np.maximum.reduceat(column, starts), times)
    return widths


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast numbers to the width in a schema of the same columns; they fit."""
    for position, (stored, target) in enumerate(zip(table.schema.types, schema.types, strict=True)):
        width = bits(target)
        if width and bits(stored) != width:
            # a column of empty lists only may have no item type
            column = table.column(position).cast(with_bits(stored, width) if bits(stored) else target)
            table = table.set_column(position, table.schema.names[position], column)
    return table


def stored_bits(context: ScanContext, blobs: BlobStore, column: str) -> int:
    """Width of a column in the first file of its dataset, for groups that hold only nulls of it; else 64."""
    # The rows of such a group do not tell it, and a type that other groups do not have would be of no use.
    if column not in context.bits_by_column:
        scan = next(s for s in context.scans if column in (*s.dimensions, *s.payload))
        context.bits_by_column[column] = _bits_in_file(scan, blobs, column) or 64
    return context.bits_by_column[column]


def _bits_in_file(scan: DatasetScan, blobs: BlobStore, column: str) -> int:
    if scan.first_file is None or not scan.first_file.endswith(PARQUET_FILE_SUFFIX):
        return 0
    try:
        footer, _ = read_footer(blobs, scan.first_file)
    except (MissingFileError, CorruptDatasetError):
        return 0  # the query needs no rows of this file: it must not fail because of it
    schema = footer.schema.to_arrow_schema()
    return bits(schema.field(column).type) if column in schema.names else 0
