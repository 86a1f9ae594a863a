"""Statistics of the data files of a dataset: rows, bytes and times, by file and partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core import tuning
from kartothek_cube.core.arrow import Ints
from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.partition import group_positions
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components import runtime
from kartothek_cube.io_components.kernels import group_codes, last_rows_mask
from kartothek_cube.io_components.scan import concat_tables, read_file
from kartothek_cube.serialization.parquet_reader import read_footer

Floats: TypeAlias = npt.NDArray[np.float64]

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
    #: whether the rows include superseded rows, as there are too many files
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
    files = table.files.get(dataset.table_name, pa.array([], pa.string())).to_pylist()
    keys = table.keys(list(dataset.partition_keys), dataset.schema)
    sizes, times, stored, column_bytes = _read_footers(blobs, dataset.uuid, files)
    visible, complete = _count_visible_rows(cube, dataset, blobs, files, keys, stored)
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


def _read_footers(
    blobs: BlobStore, uuid: str, files: Sequence[str]
) -> tuple[Ints, Floats, Ints, Mapping[str, int]]:
    """Read sizes, times and row counts of files, and bytes per column of a sample of them.

    Missing and corrupt files have no rows; `verify` reports them.
    """
    listed = {blob.key: blob for blob in blobs.list(f"{uuid}/")}
    step = max(1, len(files) // _COLUMN_SAMPLE)

    def read(number: int) -> tuple[int, float, int, Counter[str]]:
        key = files[number]
        blob = listed.get(key)
        time = np.nan if blob is None or blob.mtime is None else blob.mtime
        try:
            footer, size = read_footer(blobs, key)
        except (MissingFileError, CorruptDatasetError):
            runtime.progress_advance(0)
            return (blob.size or 0) if blob is not None else 0, time, 0, Counter()
        runtime.progress_advance(footer.serialized_size)
        return size, time, footer.num_rows, _column_bytes(footer) if number % step == 0 else Counter()

    runtime.progress_add_total(len(files))
    sizes, rows = np.zeros(len(files), np.int64), np.zeros(len(files), np.int64)
    times, column_bytes = np.full(len(files), np.nan), Counter[str]()
    threads = 1 if blobs.is_local else tuning.REMOTE_REQUESTS
    for number, stats in enumerate(runtime.ordered_map(read, range(len(files)), threads)):
        sizes[number], times[number], rows[number], counted = stats
        column_bytes.update(counted)
    return sizes, times, rows, column_bytes


def _column_bytes(footer: pq.FileMetaData) -> Counter[str]:
    sizes = Counter[str]()
    for group in range(footer.num_row_groups):
        for column in range(footer.num_columns):
            chunk = footer.row_group(group).column(column)
            sizes[chunk.path_in_schema.partition(".")[0]] += chunk.total_compressed_size
    return sizes


def _count_visible_rows(
    cube: Cube,
    dataset: DatasetMetadata,
    blobs: BlobStore,
    files: Sequence[str],
    keys: Mapping[str, pa.Array],
    stored: Ints,
) -> tuple[Ints, bool]:
    """Count the visible rows of each file, and whether all partitions with several files were read."""
    schema = arrow_schema(dataset)
    cell = [column for column in cube.dimension_columns if column in schema.names]
    in_files = [column for column in cell if column not in keys]
    types = pa.schema([schema.field(column) for column in in_files])

    def count(members: Ints) -> Ints:
        try:
            tables = [read_file(blobs, files[i], in_files, schema=schema) for i in members]
            table = concat_tables(tables, types, dataset.uuid)
        except (MissingFileError, CorruptDatasetError):
            return stored[members]  # `verify` reports them
        owner = np.repeat(np.arange(len(members)), [len(each) for each in tables])
        of_rows = pa.array(members[owner])
        columns = [table.column(c) if c in in_files else keys[c].take(of_rows) for c in cell]
        last = last_rows_mask(columns, len(table))
        visible = owner if last is None else owner[last]
        return np.bincount(visible, minlength=len(members)).astype(np.int64)

    if not in_files:
        return stored, True
    codes = group_codes([keys[c] for c in cube.partition_columns if c in keys], len(files))
    several = [members for members in group_positions(codes) if len(members) > 1]
    total = np.cumsum([len(members) for members in several], dtype=np.int64)
    to_read = several[: int(np.searchsorted(total, _MAX_KEY_FILES, side="right"))]
    visible = stored.copy()
    threads = runtime.available_cores() if blobs.is_local else tuning.REMOTE_REQUESTS
    for members, counts in zip(to_read, runtime.ordered_map(count, to_read, threads), strict=True):
        visible[members] = counts
    return visible, len(to_read) == len(several)
