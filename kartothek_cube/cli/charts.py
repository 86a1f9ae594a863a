"""Charts of the report: heat maps of partitions, and lines of the growth of a cube.

The axes of a heat map are partition keys. Neighbours are binned to limit the size, and sums become levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.cli.file_stats import DataFiles, Floats
from kartothek_cube.core.arrow.types import Ints
from kartothek_cube.core.errors import format_count
from kartothek_cube.io_components.runtime import bytes_text

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
        names = [_format_range(self.names[i], self.names[min(i + step - 1, last)]) for i in starts]
        return self.codes // step, names

    @property
    def ends(self) -> tuple[str, str]:
        """The first and the last value."""
        return self.names[0], self.names[-1]


def _format_range(first: str, last: str) -> str:
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


def build_heat_map(files: DataFiles) -> HeatMap | None:
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
    return _fill_heat_map(files, x, y, names, y_names, (across.title, down.title), across.ends)


def _wrap_axis(axis: _Axis, files: DataFiles) -> HeatMap:
    """Build the heat map of a single key, wrapped like lines of text."""
    codes, names = axis.bin_values(_MAX_COLUMNS * _MAX_ROWS)
    width = min(len(names), _MAX_COLUMNS)
    lines = [names[start : start + width] for start in range(0, len(names), width)]
    y_names = [_format_range(line[0].partition(" … ")[0], line[-1].rpartition(" … ")[2]) for line in lines]
    if len(lines) == 1:
        y_names = [""]
    ends = axis.ends if len(lines) == 1 else ("", "")
    padded = [*names, *[""] * (width * len(lines) - len(names))]
    return _fill_heat_map(files, codes % width, codes // width, padded, y_names, (axis.title, ""), ends)


def _fill_heat_map(
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


def _scale(values: Floats) -> Floats:
    """Return the lowest value of each level, on a linear or logarithmic scale."""
    low, high = float(values.min()), float(values.max())
    if high > _LOG_SCALE_RATIO * max(low, 1.0):
        return np.geomspace(max(low, 1.0), high, LEVELS + 1)[:-1]
    return np.linspace(0, high, LEVELS + 1)[:-1] if high else np.zeros(LEVELS)


def _format_amount(metric: str, value: float) -> str:
    return bytes_text(value) if metric == "bytes" else f"{round(value):,}"


def _describe_cell(name: str, sums: Mapping[str, Floats], partitions: Ints, cell: int) -> str:
    amounts = ", ".join(
        bytes_text(sums[m][cell]) if m == "bytes" else format_count(round(sums[m][cell]), m.removesuffix("s"))
        for m in METRICS
    )
    number = int(partitions[cell])
    return f"{name}: {amounts}" + (f" in {number:,} partitions" if number > 1 else "")


def _summarize(files: DataFiles, used: Ints, sums: Mapping[str, Floats], names: Sequence[str]) -> str:
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


def build_growth(files: Mapping[str, DataFiles]) -> Growth | None:
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


def _cumulative_bytes(files: DataFiles, edges: Floats) -> Floats:
    """Sum the bytes up to each edge; files without a time count from the start."""
    times = np.where(np.isnan(files.times), edges[0], files.times)
    added, _ = np.histogram(times, bins=[-np.inf, *edges[:-1] + 1e-6, np.inf], weights=files.sizes)
    return np.cumsum(added)[: len(edges)]


def _build_line(name: str, color: int, sums: Floats, top: float, files: DataFiles | None) -> Line:
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
