"""Filtered scans of several datasets, where the few cells of one restrict the scans of the others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import attrs
import numpy as np
import pyarrow.compute as pc

from kartothek_cube.core.arrow.types import is_text
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.query.logical_plan import Role
from kartothek_cube.io_components.query.physical_plan import Predicates, column_fraction
from kartothek_cube.io_components.query.row_batch import RowBatch
from kartothek_cube.io_components.query.scan import PartitionedFiles, file_predicates, load_rows
from kartothek_cube.io_components.read.filtered_scan import can_filter_files
from kartothek_cube.io_components.runtime import available_cores, ordered_map

__all__ = ("load_filtered_datasets",)

#: encoded bytes below which the fixed costs of Polars, 0.5 ms, are not worth it; the first larger scan takes
#: 120 ms more, to import it
_MIN_BYTES = 1 << 21
#: rows up to which their cells become predicates of other datasets: of more, most rows match
_MAX_DYNAMIC_ROWS = 1 << 12
#: encoded bytes per partition up to which a scan without predicates reads all files at once: half the time of
#: blocks for 100 to 300 kB; for 800 kB, twice their time until the process has that much memory
_MAX_PLAIN_BYTES_OF_PARTITION = 400_000
#: the same in all, and for datasets without predicates beside one with predicates that many rows meet: 25
#: instead of 30 ms for 10 MB, 80 instead of 66 ms for 24 MB
_MAX_PLAIN_BYTES = 1 << 26
_MAX_UNRESTRICTED_BYTES_OF_PARTITION = 1 << 20
_MAX_UNRESTRICTED_BYTES = 1 << 24


@attrs.frozen
class _FilteredScan:
    """Files of a dataset, what their rows have to meet, and the encoded bytes of the columns to read."""

    files: PartitionedFiles
    predicates: Predicates
    nbytes: float

    @property
    def is_restricted(self) -> bool:
        """Whether some rows may be left out."""
        return bool(self.predicates or self.files.scan.implied)

    @property
    def restricts_payload(self) -> bool:
        """Whether that depends on more than dimensions."""
        scan = self.files.scan
        return bool(scan.implied) or any(p[0] not in scan.dimensions for p in self.predicates)

    @property
    def has_text_dimensions(self) -> bool:
        scan = self.files.scan
        return any(is_text(scan.schema.field(dimension).type) for dimension in scan.dimensions)


def load_filtered_datasets(
    blobs: BlobStore,
    datasets: Sequence[PartitionedFiles],
    file_sizes: Sequence[float],
    group_predicates: Predicates,
    *,
    allow_plain: bool,
) -> list[RowBatch] | None:
    """
    Rows of the datasets from filtered scans of all their files; None if these do not apply or pay.

    ``file_sizes`` has the mean of each dataset in bytes, or 0 where that is unknown. ``allow_plain`` is for
    scans without any predicates.
    Datasets with predicates are read first. If they leave few rows, the cells of these become predicates of
    the other datasets (dynamic filtering): inner joins drop all other cells, left joins do not need them.
    """
    if not all(map(_has_single_versions, datasets)) or not can_filter_files(
        blobs, [key for files in datasets for key in files.keys]
    ):
        return None
    scans = [
        _FilteredScan(
            files, file_predicates(files.scan, group_predicates), _encoded_bytes(blobs, files, size)
        )
        for files, size in zip(datasets, file_sizes, strict=True)
    ]
    restricted = [scan for scan in scans if scan.is_restricted]
    unrestricted = [scan for scan in scans if not scan.is_restricted]
    # blocks are filtered by dimensions in a quarter of the time of payload: key columns are small or shared
    share = 1.0 if not restricted or any(scan.restricts_payload for scan in restricted) else 0.25
    if sum(scan.nbytes for scan in scans) * share < _MIN_BYTES:
        return None
    loaded: dict[str, RowBatch] = {}
    if not restricted:
        if not allow_plain:
            return None
        if not _can_read_in_full(unrestricted, _MAX_PLAIN_BYTES, _MAX_PLAIN_BYTES_OF_PARTITION):
            return None
    elif unrestricted and not _can_read_in_full(
        unrestricted, _MAX_UNRESTRICTED_BYTES, _MAX_UNRESTRICTED_BYTES_OF_PARTITION
    ):
        # one partition tells whether so few rows meet the predicates that their cells restrict the others
        files = restricted[0].files
        sample = load_rows(blobs, files.between(0, 1), group_predicates, filtered=True)
        if len(files) == 1:
            loaded[files.scan.name] = sample
        elif len(sample) * len(files) > _MAX_DYNAMIC_ROWS:
            return None
    missing = [scan for scan in restricted if scan.files.scan.name not in loaded]
    loaded.update(_load_all(blobs, missing, group_predicates))
    for rows in loaded.values():
        if rows.scan.role is not Role.LEFT and len(rows) <= _MAX_DYNAMIC_ROWS:
            group_predicates += _restrict_cells(rows)
    loaded.update(_load_all(blobs, unrestricted, group_predicates))
    return [loaded[files.scan.name] for files in datasets]


def _restrict_cells(rows: RowBatch) -> Predicates:
    """A predicate that the cells of rows meet, on the dimension that drops most others."""
    values = {column: pc.unique(rows.table.column(column)) for column in rows.scan.dimensions}
    # The most distinct values are of the largest domain. Other columns hardly drop more (a few thousand cells
    # have most of 1,000 days), and Polars evaluates predicates on one column in a quarter of the time.
    column = max(values, key=lambda name: len(values[name]))
    return ((column, "in", values[column]),)


def _load_all(
    blobs: BlobStore, scans: Sequence[_FilteredScan], group_predicates: Predicates
) -> dict[str, RowBatch]:
    """Rows of several datasets by their id, all at once: the scan of a file or two leaves cores idle."""
    load = partial(load_rows, blobs, group_predicates=group_predicates, filtered=True)
    batches = ordered_map(load, [scan.files for scan in scans], available_cores())
    return {rows.scan.name: rows for rows in batches}


def _has_single_versions(files: PartitionedFiles) -> bool:
    """Whether no partition has several files, in which newer versions of a cell replace older ones."""
    return files.scan.mapping is None and bool((np.diff(files.partition_ids) > 0).all())


def _encoded_bytes(blobs: BlobStore, files: PartitionedFiles, file_size: float) -> float:
    """Bytes of the columns to read, if files have the given size or, for 0, that of the first one."""
    if not len(files):
        return 0.0
    if not file_size:
        try:
            file_size = os.path.getsize(blobs.local_path(files.keys[0]) or "")
        except (KeyError, OSError):
            # the read that follows says that the file is missing
            return 0.0
    return file_size * len(files) * column_fraction(files.scan)


def _can_read_in_full(scans: Sequence[_FilteredScan], max_bytes: int, max_bytes_of_partition: int) -> bool:
    """Whether reading all rows of datasets at once takes no longer than block by block."""
    limit = min(max_bytes, max_bytes_of_partition * len(scans[0].files))
    # blocks compare and decode the cells of all datasets once, which saves more with texts
    return sum(scan.nbytes for scan in scans) <= limit and not any(scan.has_text_dimensions for scan in scans)
