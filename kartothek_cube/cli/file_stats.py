"""Statistics of the data files of a dataset: rows, bytes and times, by file and partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartothek_cube.core import tuning
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.partition import group_positions
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.keys import group_codes, last_rows_mask
from kartothek_cube.io_components.runtime import (
    available_cores,
    ordered_map,
    progress_add_total,
    progress_advance,
)
from kartothek_cube.io_components.scan import concat_tables, read_file
from kartothek_cube.serialization.parquet_reader import read_footer

Floats: TypeAlias = npt.NDArray[np.float64]

#: maximum number of footers to read; rows of the other files are estimated from their sizes
_MAX_FOOTERS = 20_000
#: maximum number of files whose dimension columns are read to count superseded rows
_MAX_KEY_FILES = 5_000
#: number of footers from which the bytes per column are derived
_COLUMN_SAMPLE = 200


@attrs.frozen(eq=False)
class DataFiles:
    """The data files of a dataset in commit order; all arrays have one element per file."""

    #: typed values of the partition keys
    keys: dict[str, pa.Array]
    #: ids of the physical partitions
    partition: Ints
    #: bytes
    sizes: Ints
    #: numbers of visible rows, which no later file supersedes
    rows: Ints
    #: modification times in seconds since 1970; NaN if unknown to the store
    times: Floats
    #: whether some row counts are estimates, or include superseded rows
    estimated: bool
    #: compressed bytes of each column in a sample of the files
    column_bytes: Mapping[str, int]
    #: number of superseded rows
    superseded: int = 0

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def n_partitions(self) -> int:
        """Number of physical partitions."""
        return int(self.partition.max()) + 1 if len(self) else 0

    def per_partition(self, values: Ints) -> Ints:
        """Sum values over the files of each physical partition."""
        sums = np.bincount(self.partition, weights=values, minlength=self.n_partitions)
        return sums.astype(np.int64)


def collect_file_stats(cube: Cube, dataset: DatasetMetadata, blobs: BlobStore) -> DataFiles:
    """List the data files of a dataset, read their footers, and count the visible rows."""
    table = dataset.partition_table
    files = table.files.get(dataset.table_name, pa.array([], pa.string()))
    keys = table.keys(list(dataset.partition_keys), dataset.schema)
    sizes, times = _list_files(blobs, dataset.uuid, files)
    sample = np.arange(len(files))[:: max(1, -(-len(files) // _MAX_FOOTERS))]
    rows, column_bytes = _read_footers(blobs, files.take(pa.array(sample)).to_pylist())
    stored, complete = _estimate_rows(rows, sample, sizes), len(sample) == len(files)
    visible = stored
    if complete:
        visible, complete = _count_visible_rows(cube, dataset, blobs, files.to_pylist(), keys, stored)
    return DataFiles(
        keys=keys,
        partition=group_codes(list(keys.values()), len(table)),
        sizes=sizes,
        rows=visible,
        times=times,
        estimated=not complete,
        column_bytes=column_bytes,
        superseded=int((stored - visible).sum()),
    )


def _count_visible_rows(
    cube: Cube,
    dataset: DatasetMetadata,
    blobs: BlobStore,
    files: Sequence[str],
    keys: Mapping[str, pa.Array],
    stored: Ints,
) -> tuple[Ints, bool]:
    """Count the visible rows of each file, and whether all partitions with several files were read."""
    codes = group_codes([keys[c] for c in cube.partition_columns if c in keys], len(files))
    several = [members for members in group_positions(codes) if len(members) > 1]
    to_read = [
        members
        for members, total in zip(several, np.cumsum([len(m) for m in several]), strict=True)
        if total <= _MAX_KEY_FILES
    ]
    count = partial(_count_visible_rows_of_partition, cube, dataset, blobs, files, keys, stored)
    visible = stored.copy()
    threads = available_cores() if blobs.is_local else tuning.REMOTE_REQUESTS
    for members, counts in zip(to_read, ordered_map(count, to_read, threads), strict=True):
        visible[members] = counts
    return visible, len(to_read) == len(several)


def _count_visible_rows_of_partition(
    cube: Cube,
    dataset: DatasetMetadata,
    blobs: BlobStore,
    files: Sequence[str],
    keys: Mapping[str, pa.Array],
    stored: Ints,
    members: Ints,
) -> Ints:
    schema = arrow_schema(dataset)
    cell = [column for column in cube.dimension_columns if column in schema.names]
    in_files = [column for column in cell if column not in keys]
    if not in_files:
        return stored[members]
    try:
        tables = [read_file(blobs, files[i], in_files, schema=schema) for i in members]
        types = pa.schema([schema.field(column) for column in in_files])
        table = concat_tables(tables, types, dataset.uuid)
    except (MissingFileError, CorruptDatasetError):
        return stored[members]  # `verify` reports them
    owner = np.repeat(np.arange(len(members)), [len(each) for each in tables])
    of_rows = pa.array(members[owner])
    columns = [table.column(c) if c in in_files else keys[c].take(of_rows) for c in cell]
    last = last_rows_mask(columns, len(table))
    visible = owner if last is None else owner[last]
    return np.bincount(visible, minlength=len(members)).astype(np.int64)


def _list_files(blobs: BlobStore, uuid: str, files: pa.Array) -> tuple[Ints, Floats]:
    """Get sizes and times from one listing; files without a size in it are requested one by one."""
    listing = blobs.list(f"{uuid}/")
    position = pc.index_in(files, pa.array([blob.key for blob in listing], pa.string()))
    exists = position.is_valid().to_numpy(zero_copy_only=False)
    rows = pc.fill_null(position, 0).to_numpy()
    sizes, times = np.zeros(len(files), np.int64), np.full(len(files), np.nan)
    if listing:
        blob_sizes = np.array([-1 if blob.size is None else blob.size for blob in listing], np.int64)
        mtimes = np.array([np.nan if blob.mtime is None else blob.mtime for blob in listing])
        sizes, times = np.where(exists, blob_sizes[rows], 0), np.where(exists, mtimes[rows], np.nan)
    unknown = np.flatnonzero(sizes < 0)
    if len(unknown):
        keys = files.take(pa.array(unknown)).to_pylist()
        sizes[unknown] = list(ordered_map(blobs.size, keys, 1 if blobs.is_local else tuning.REMOTE_REQUESTS))
    return sizes, times


def _read_footers(blobs: BlobStore, keys: Sequence[str]) -> tuple[Ints, Mapping[str, int]]:
    """Read row counts of files, and bytes per column of a sample of them."""
    progress_add_total(len(keys))
    footers = ordered_map(partial(_read_footer, blobs), keys, 1 if blobs.is_local else tuning.REMOTE_REQUESTS)
    rows, column_bytes = np.zeros(len(keys), np.int64), Counter[str]()
    step = max(1, len(keys) // _COLUMN_SAMPLE)
    for number, footer in enumerate(footers):
        rows[number] = 0 if footer is None else footer.num_rows
        if footer is not None and number % step == 0:
            column_bytes.update(_column_bytes(footer))
    return rows, column_bytes


def _read_footer(blobs: BlobStore, key: str) -> pq.FileMetaData | None:
    """Read the footer of a file; None for missing and corrupt files, which `verify` reports."""
    try:
        footer, _ = read_footer(blobs, key)
    except (MissingFileError, CorruptDatasetError):
        footer = None
    progress_advance(0 if footer is None else footer.serialized_size)
    return footer


def _column_bytes(footer: pq.FileMetaData) -> Counter[str]:
    sizes = Counter[str]()
    for group in range(footer.num_row_groups):
        for column in range(footer.num_columns):
            chunk = footer.row_group(group).column(column)
            sizes[chunk.path_in_schema.partition(".")[0]] += chunk.total_compressed_size
    return sizes


def _estimate_rows(rows: Ints, sample: Ints, sizes: Ints) -> Ints:
    """Return row counts of the sample, and estimates for the other files from their sizes."""
    if len(sample) == len(sizes):
        return rows
    per_byte = rows.sum() / max(1, int(sizes[sample].sum()))
    result: Ints = np.rint(sizes * per_byte).astype(np.int64)
    result[sample] = rows
    return result
