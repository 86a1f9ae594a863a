"""Charts of the report: heat maps of partitions, and lines of the growth of a cube; sizes and ages of files.

The axes of a heat map are partition keys. Neighbours are binned to limit the size, and sums become levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartothek_cube.core.cube.consistency import arrow_schema
from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.errors import CorruptDatasetError, MissingFileError, format_count
from kartothek_cube.core.partition import group_positions
from kartothek_cube.core.store import BlobStore
from kartothek_cube.io_components.kernels.encode import group_codes
from kartothek_cube.io_components.kernels.sort import last_rows_mask
from kartothek_cube.io_components.read.data_files import concat_tables, read_table_of_file
from kartothek_cube.io_components.runtime import (
    REMOTE_REQUESTS,
    available_cores,
    bytes_text,
    ordered_map,
    progress_add_total,
    progress_advance,
)
from kartothek_cube.serialization.ranged_read import read_footer

__all__ = (
    "METRICS",
    "Cell",
    "DataFiles",
    "Growth",
    "HeatMap",
    "Line",
    "Tick",
    "collect_file_stats",
    "format_values",
    "growth",
    "heat_map",
)

Ints = npt.NDArray[np.int64]

#: metrics that the colour of a cell can show
METRICS = ("rows", "bytes", "files")
#: number of colours
LEVELS = 7
_MAX_COLUMNS, _MAX_ROWS = 60, 30
#: ratio of largest to smallest value above which the scale is logarithmic
_LOG_SCALE_RATIO = 30


@attrs.frozen
class Cell:
    """A coloured square: column, row, and a tooltip."""

    x: int
    y: int
    #: level of each of ``METRICS``; 0 is the lowest
    levels: tuple[int, ...]
    text: str


@attrs.frozen
class HeatMap:
    """A heat map of the partitions of a dataset."""

    #: number of columns and rows
    width: int
    height: int
    #: partition keys on the axes
    x_title: str
    y_title: str
    #: first and last value of the columns
    x_ends: tuple[str, str]
    y_labels: tuple[str, ...]
    #: the non-empty squares
    cells: tuple[Cell, ...]
    #: lowest value of each level, by metric
    legends: Mapping[str, tuple[str, ...]]
    #: maximum number of partitions per square
    binned: int
    #: description for screen readers
    summary: str


@attrs.frozen(eq=False)
class _Axis:
    """Ordered values of an axis: a code per file, a name per code."""

    title: str
    codes: Ints
    names: list[str]

    def bin_values(self, max_bins: int) -> tuple[Ints, list[str]]:
        """Merge equal numbers of neighbours into at most ``max_bins`` bins."""
        step = max(1, -(-len(self.names) // max_bins))
        if step == 1:
            return self.codes, self.names
        last = len(self.names) - 1
        starts = range(0, len(self.names), step)
        names = [_range(self.names[i], self.names[min(i + step - 1, last)]) for i in starts]
        return self.codes // step, names

    @property
    def ends(self) -> tuple[str, str]:
        """The first and the last value."""
        return self.names[0], self.names[-1]


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"


def format_values(values: pa.Array) -> list[str]:
    """Format values of partition keys; timestamps at midnight become dates."""
    if pa.types.is_timestamp(values.type) and values.type.tz is None:
        days = values.cast(pa.date32(), safe=False)
        if days.cast(values.type).equals(values):
            values = days
    return ["null" if text is None else text for text in values.cast(pa.string()).to_pylist()]


def _build_axis(name: str, values: pa.Array) -> _Axis:
    encoded = values.dictionary_encode(null_encoding="encode")
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return _Axis(
        name, rank[encoded.indices.to_numpy()], format_values(encoded.dictionary.take(pa.array(order)))
    )


def _join_axes(axes: Sequence[_Axis]) -> _Axis:
    """Combine several keys into one axis; the last one varies fastest."""
    codes, names = axes[0].codes, axes[0].names
    for axis in axes[1:]:
        used, codes = np.unique(codes * len(axis.names) + axis.codes, return_inverse=True)
        size = len(axis.names)
        names = [f"{names[code // size]} / {axis.names[code % size]}" for code in used.tolist()]
    return _Axis(" / ".join(axis.title for axis in axes), codes.astype(np.int64), names)


def heat_map(files: DataFiles) -> HeatMap | None:
    """Build the heat map of a dataset; None if it has no partition keys or no files."""
    if not files.keys or not len(files):
        return None
    axes = [_build_axis(name, values) for name, values in files.keys.items()]
    # keys with a single value get no axis
    axes = [axis for axis in axes if len(axis.names) > 1] or axes[:1]
    if len(axes) == 1:
        return _wrap_axis(axes[0], files)
    across, down = axes[-1], _join_axes(axes[:-1])
    if len(down.names) > len(across.names):
        across, down = down, across
    x, x_names = across.bin_values(_MAX_COLUMNS)
    y, y_names = down.bin_values(_MAX_ROWS)
    names = [f"{a} / {b}" for a in y_names for b in x_names]
    return _build_heat_map(files, x, y, names, y_names, (across.title, down.title), across.ends)


def _wrap_axis(axis: _Axis, files: DataFiles) -> HeatMap:
    """Build the heat map of a single key, wrapped like lines of text."""
    codes, names = axis.bin_values(_MAX_COLUMNS * _MAX_ROWS)
    width = min(len(names), _MAX_COLUMNS)
    lines = [names[start : start + width] for start in range(0, len(names), width)]
    y_names = [_range(line[0].partition(" … ")[0], line[-1].rpartition(" … ")[2]) for line in lines]
    if len(lines) == 1:
        y_names = [""]
    ends = axis.ends if len(lines) == 1 else ("", "")
    padded = [*names, *[""] * (width * len(lines) - len(names))]
    return _build_heat_map(files, codes % width, codes // width, padded, y_names, (axis.title, ""), ends)


def _build_heat_map(
    files: DataFiles,
    x: Ints,
    y: Ints,
    names: Sequence[str],
    y_names: Sequence[str],
    titles: tuple[str, str],
    x_ends: tuple[str, str],
) -> HeatMap:
    width, height = len(names) // len(y_names), len(y_names)
    at = y * width + x
    size = width * height
    sums = {
        "rows": np.bincount(at, weights=files.rows, minlength=size),
        "bytes": np.bincount(at, weights=files.sizes, minlength=size),
        "files": np.bincount(at, minlength=size).astype(float),
    }
    partitions = np.bincount(np.unique(np.stack([at, files.partition]), axis=1)[0], minlength=size)
    used = np.flatnonzero(sums["files"])
    scales = {metric: _scale(sums[metric][used]) for metric in METRICS}
    levels = np.stack([np.searchsorted(scales[m], sums[m][used], side="right") - 1 for m in METRICS], axis=1)
    cells = [
        Cell(
            cell % width,
            cell // width,
            tuple(map(int, level)),
            _describe_cell(names[cell], sums, partitions, cell),
        )
        for cell, level in zip(used.tolist(), levels.clip(0), strict=True)
    ]
    return HeatMap(
        width=width,
        height=height,
        x_title=titles[0],
        y_title=titles[1],
        x_ends=x_ends,
        y_labels=tuple(y_names),
        cells=tuple(cells),
        legends={m: tuple(_format_amount(m, value) for value in scales[m]) for m in METRICS},
        binned=int(partitions.max()),
        summary=_summarize(files, used, sums, names),
    )


def _scale(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the lowest value of each level, on a linear or logarithmic scale."""
    low, high = float(values.min()), float(values.max())
    if high > _LOG_SCALE_RATIO * max(low, 1.0):
        return np.geomspace(max(low, 1.0), high, LEVELS + 1)[:-1]
    return np.linspace(0, high, LEVELS + 1)[:-1] if high else np.zeros(LEVELS)


def _format_amount(metric: str, value: float) -> str:
    return bytes_text(value) if metric == "bytes" else f"{round(value):,}"


def _describe_cell(
    name: str, sums: Mapping[str, npt.NDArray[np.float64]], partitions: Ints, cell: int
) -> str:
    amounts = ", ".join(
        bytes_text(sums[m][cell]) if m == "bytes" else format_count(round(sums[m][cell]), m.removesuffix("s"))
        for m in METRICS
    )
    number = int(partitions[cell])
    return f"{name}: {amounts}" + (f" in {number:,} partitions" if number > 1 else "")


def _summarize(
    files: DataFiles, used: Ints, sums: Mapping[str, npt.NDArray[np.float64]], names: Sequence[str]
) -> str:
    most = int(used[np.argmax(sums["bytes"][used])])
    least = int(used[np.argmin(sums["bytes"][used])])
    size = bytes_text(int(files.sizes.sum()))
    return (
        f"{format_count(files.n_partitions, 'partition')}, {format_count(len(files), 'file')}, {size}; "
        f"most bytes in {names[most]} ({bytes_text(sums['bytes'][most])}), "
        f"fewest in {names[least]} ({bytes_text(sums['bytes'][least])})."
    )


# -- growth ----------------------------------------------------------------------------------------

#: size of the plot area
WIDTH, HEIGHT = 960, 220
_N_POINTS = 160
_MAX_LINES = 6


@attrs.frozen
class Line:
    """The line of one dataset."""

    name: str
    #: index into the palette
    color: int
    #: ``d`` attribute of the SVG path
    path: str
    #: y coordinate of its last point
    end_y: float
    #: bytes and files, formatted
    added: str
    #: times of the first and last file, formatted
    first: str
    last: str


@attrs.frozen
class Tick:
    """A tick on an axis: position and label."""

    at: float
    text: str


@attrs.frozen
class Growth:
    """Lines of the datasets, ticks of the axes, and a description for screen readers."""

    width: int
    height: int
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str


def growth(files: Mapping[str, DataFiles]) -> Growth | None:
    """Build the chart for the data files of all datasets; None if the store has no modification times."""
    with_times = {name: f for name, f in files.items() if len(f) and not np.isnan(f.times).all()}
    if not with_times:
        return None
    times = np.concatenate([f.times[~np.isnan(f.times)] for f in with_times.values()])
    start, stop = float(times.min()), max(float(times.max()), float(times.min()) + 60)
    edges = np.linspace(start, stop, _N_POINTS)
    sums = {name: _cumulative_bytes(f, edges) for name, f in with_times.items()}
    order = sorted(sums, key=lambda name: -sums[name][-1])
    shown = {name: sums[name] for name in order[:_MAX_LINES]}
    if len(order) > _MAX_LINES:
        shown["others"] = np.sum([sums[name] for name in order[_MAX_LINES:]], axis=0)
    top = _round_up(max(float(line[-1]) for line in shown.values()) or 1.0)
    lines = tuple(
        _build_line(name, number, line, top, with_times.get(name))
        for number, (name, line) in enumerate(shown.items())
    )
    total = sum(float(line[-1]) for line in shown.values())
    return Growth(
        width=WIDTH,
        height=HEIGHT,
        lines=lines,
        x_ticks=tuple(
            Tick(WIDTH * i / 4, _format_time(start + (stop - start) * i / 4, stop - start)) for i in range(5)
        ),
        y_ticks=tuple(Tick(HEIGHT * (1 - i / 4), bytes_text(top * i / 4)) for i in range(5)),
        summary=(
            f"{bytes_text(total)} stored between {_format_time(start, 0)} "
            f"and {_format_time(float(times.max()), 0)}."
        ),
    )


def _cumulative_bytes(files: DataFiles, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Sum the bytes up to each edge; files without a time count from the start."""
    times = np.where(np.isnan(files.times), edges[0], files.times)
    added, _ = np.histogram(times, bins=[-np.inf, *edges[:-1] + 1e-6, np.inf], weights=files.sizes)
    return np.cumsum(added)[: len(edges)]


def _build_line(
    name: str, color: int, sums: npt.NDArray[np.float64], top: float, files: DataFiles | None
) -> Line:
    x = np.linspace(0, WIDTH, len(sums))
    y = HEIGHT * (1 - sums / top)
    change = np.flatnonzero(np.diff(sums, prepend=-1.0))
    steps = "".join(f"H{x[i]:.1f}V{y[i]:.1f}" for i in change[1:])
    times = np.full(1, np.nan) if files is None else files.times
    count = "" if files is None else f" in {format_count(len(files), 'file')}"
    return Line(
        name=name,
        color=color,
        path=f"M{x[0]:.1f} {y[0]:.1f}{steps}H{x[-1]:.1f}",
        end_y=float(y[-1]),
        added=bytes_text(float(sums[-1])) + count,
        first="" if np.isnan(times).all() else _format_time(float(np.nanmin(times)), 0),
        last="" if np.isnan(times).all() else _format_time(float(np.nanmax(times)), 0),
    )


def _round_up(value: float) -> float:
    """Round up to 1, 2, 4 or 8 times a power of ten, whose quarters are round numbers as well."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 4, 8, 10) if value <= step * power))


def _format_time(seconds: float, span: float) -> str:
    """Format a time in UTC with a precision that fits the span; 0 for the full timestamp."""
    stamp = datetime.fromtimestamp(seconds, UTC)
    if not span:
        return f"{stamp:%Y-%m-%d %H:%M} UTC"
    if span < 2 * 86_400:
        return f"{stamp:%d %b %H:%M:%S}" if span < 3600 else f"{stamp:%d %b %H:%M}"
    return f"{stamp:%Y-%m-%d}" if span < 3 * 365 * 86_400 else f"{stamp:%b %Y}"


# -- files --------------------------------------------------------------------------------------------------


Floats = npt.NDArray[np.float64]

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
    threads = available_cores() if blobs.is_local else REMOTE_REQUESTS
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
        tables = [read_table_of_file(blobs, files[i], in_files, schema=schema) for i in members]
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
        sizes[unknown] = list(ordered_map(blobs.size, keys, 1 if blobs.is_local else REMOTE_REQUESTS))
    return sizes, times


def _read_footers(blobs: BlobStore, keys: Sequence[str]) -> tuple[Ints, Mapping[str, int]]:
    """Read row counts of files, and bytes per column of a sample of them."""
    progress_add_total(len(keys))
    footers = ordered_map(partial(_read_footer, blobs), keys, 1 if blobs.is_local else REMOTE_REQUESTS)
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
