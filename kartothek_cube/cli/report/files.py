"""Sizes, times and rows of all data files of a dataset, as vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.kernels.encode import group_codes
from kartothek_cube.io_components.runtime.threads import (
    REMOTE_REQUESTS,
    ordered_map,
    progress_add_total,
    progress_advance,
)
from kartothek_cube.serialization.footers import read_footer

__all__ = ("DataFiles", "collect_file_stats")

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: files whose footers are read; rows of the others are estimated by their size
_MOST_FOOTERS = 20_000
#: files whose footers tell how the bytes are distributed over the columns
_COLUMN_SAMPLE = 200


@attrs.frozen(eq=False)
class DataFiles:
    """
    The data files of a dataset in the order of commit.

    Attributes
    ----------
    keys
        Typed values of the partition keys.
    partition
        Number of the physical partition of each file.
    sizes
        Bytes.
    rows
        Rows, hidden ones included.
    times
        Time of storage in seconds since 1970; NaN if the store does not tell.
    estimated
        Whether rows of some files are estimates.
    column_bytes
        Compressed bytes of each column in a sample of the files.
    """

    keys: dict[str, pa.Array]
    partition: Ints
    sizes: Ints
    rows: Ints
    times: Floats
    estimated: bool
    column_bytes: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def n_partitions(self) -> int:
        """Number of physical partitions."""
        return int(self.partition.max()) + 1 if len(self) else 0

    def per_partition(self, values: Ints) -> Ints:
        """Sums over the files of each physical partition."""
        sums = np.bincount(self.partition, weights=values, minlength=self.n_partitions)
        return sums.astype(np.int64)


def collect_file_stats(dataset: DatasetMetadata, blobs: BlobStore) -> DataFiles:
    """
    List the data files of a dataset and read their footers.

    Parameters
    ----------
    dataset
        The dataset.
    blobs
        The store.

    Returns
    -------
    DataFiles
    """
    table = dataset.partition_table
    files = table.files.get(dataset.table_name, pa.array([], pa.string()))
    keys = table.keys(list(dataset.partition_keys), dataset.schema)
    sizes, times = _listed(blobs, dataset.uuid, files)
    sample = np.arange(len(files))[:: max(1, -(-len(files) // _MOST_FOOTERS))]
    rows, column_bytes = _footers(blobs, files.take(pa.array(sample)).to_pylist())
    return DataFiles(
        keys=keys,
        partition=group_codes(list(keys.values()), len(table)),
        sizes=sizes,
        rows=_estimated(rows, sample, sizes),
        times=times,
        estimated=len(sample) < len(files),
        column_bytes=column_bytes,
    )


def _listed(blobs: BlobStore, uuid: str, files: pa.Array) -> tuple[Ints, Floats]:
    """Sizes and times by one listing; where it does not tell sizes, each file is asked."""
    listed = blobs.list(f"{uuid}/")
    at = pc.index_in(files, pa.array([blob.key for blob in listed], pa.string()))
    known = at.is_valid().to_numpy(zero_copy_only=False)
    where = pc.fill_null(at, 0).to_numpy()
    sizes, times = np.zeros(len(files), np.int64), np.full(len(files), np.nan)
    if listed:
        found = np.array([-1 if blob.size is None else blob.size for blob in listed], np.int64)
        stamps = np.array([np.nan if blob.mtime is None else blob.mtime for blob in listed])
        sizes, times = np.where(known, found[where], 0), np.where(known, stamps[where], np.nan)
    unknown = np.flatnonzero(sizes < 0)
    if len(unknown):
        asked = files.take(pa.array(unknown)).to_pylist()
        sizes[unknown] = list(ordered_map(blobs.size, asked, 1 if blobs.is_local else REMOTE_REQUESTS))
    return sizes, times


def _footers(blobs: BlobStore, keys: Sequence[str]) -> tuple[Ints, Mapping[str, int]]:
    """Rows of files, and bytes per column in some of them."""
    progress_add_total(len(keys))
    footers = ordered_map(partial(_footer, blobs), keys, 1 if blobs.is_local else REMOTE_REQUESTS)
    rows, column_bytes = np.zeros(len(keys), np.int64), Counter[str]()
    step = max(1, len(keys) // _COLUMN_SAMPLE)
    for number, footer in enumerate(footers):
        rows[number] = 0 if footer is None else footer.num_rows
        if footer is not None and number % step == 0:
            column_bytes.update(_column_bytes(footer))
    return rows, column_bytes


def _footer(blobs: BlobStore, key: str) -> pq.FileMetaData | None:
    """The footer of a file; None for files that are gone or no Parquet: `verify` has more to say on them."""
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


def _estimated(rows: Ints, sample: Ints, sizes: Ints) -> Ints:
    """Rows of all files: those of the sample, the others by their size."""
    if len(sample) == len(sizes):
        return rows
    per_byte = rows.sum() / max(1, int(sizes[sample].sum()))
    result: Ints = np.rint(sizes * per_byte).astype(np.int64)
    result[sample] = rows
    return result
