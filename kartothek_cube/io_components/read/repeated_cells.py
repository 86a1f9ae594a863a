"""Cells that a dataset has in several cube partitions, found by the indices on its dimension columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from kartothek_cube.core.arrow import Ints, Mask, concat_promoted
from kartothek_cube.core.index import IndexColumns
from kartothek_cube.core.partition import PartitionTable
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.keys import group_codes
from kartothek_cube.io_components.scan import read_files


@attrs.frozen
class RepeatedCells:
    """Cells that occur in several cube partitions."""

    count: int
    #: one of these cells, by dimension column
    example: Mapping[str, Any]
    #: two partitions with that cell, as in labels
    places: tuple[str, str]
    #: a file with that cell
    key: str

    def __str__(self) -> str:
        columns = ", ".join(sorted(self.example))
        verb = "cell of {} is" if self.count == 1 else "cells of {} are"
        return (
            f"{self.count} {verb.format(columns)} in several partitions, such as {dict(self.example)} in "
            f"{' and '.join(self.places)}"
        )


def find_repeated_cells(
    blobs: BlobStore,
    dimensions: Sequence[str],
    partition_columns: Sequence[str],
    files: PartitionTable,
    table: str,
    schema: pa.Schema,
    indices: Mapping[str, IndexColumns],
    is_new: Mask | None = None,
) -> RepeatedCells | None:
    """Find cells in files of different cube partitions; `is_new`: only those of which one is in a new file.

    Opens only files that have, in each indexed dimension, a value that another partition has as well.
    """
    if not len(files):
        return None
    folders = group_codes(list(files.keys(partition_columns, schema).values()), len(files))
    keep = np.ones(len(files), dtype=bool)
    for index in indices.values():
        positions = index.positions(files)
        is_stored = positions >= 0
        positions, values = positions[is_stored], index.value_ids()[is_stored]
        repeated = _is_repeated(values, folders[positions], None if is_new is None else is_new[positions])
        shared = np.zeros(len(files), dtype=bool)
        shared[positions[repeated]] = True
        keep &= shared
    candidates = np.flatnonzero(keep)
    if not len(np.unique(folders[candidates])) > 1:
        return None
    keys: list[str] = files.take(candidates).files[table].to_pylist()
    tables = list(read_files(blobs, keys, list(dimensions)))
    rows = concat_promoted(tables)
    row_files = np.repeat(candidates, [len(part) for part in tables])
    cells = group_codes([rows.column(column) for column in dimensions], len(rows))
    repeated = _is_repeated(cells, folders[row_files], None if is_new is None else is_new[row_files])
    if not repeated.any():
        return None
    same = np.flatnonzero(cells == cells[np.flatnonzero(repeated)[0]])
    first = row_files[same[0]]
    other = row_files[same[folders[row_files[same]] != folders[first]][0]]
    labels = [files.labels[int(position)].as_py().rpartition("/")[0] for position in (first, other)]
    return RepeatedCells(
        len(np.unique(cells[repeated])),
        {column: rows.column(column)[int(same[0])].as_py() for column in dimensions},
        (labels[0], labels[1]),
        files.take([int(first)]).files[table][0].as_py(),
    )


def _is_repeated(codes: Ints, folders: Ints, is_new: Mask | None) -> Mask:
    """Mask of the rows whose code occurs in several folders; `is_new`: and in a new row."""
    if not len(codes):
        return np.zeros(0, dtype=bool)
    size = int(codes.max()) + 1
    low, high = np.full(size, folders.max()), np.full(size, -1)
    np.minimum.at(low, codes, folders)
    np.maximum.at(high, codes, folders)
    repeated: Mask = low < high
    if is_new is not None:
        repeated &= np.bincount(codes[is_new], minlength=size) > 0
    return repeated[codes]
