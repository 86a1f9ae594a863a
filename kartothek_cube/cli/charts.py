"""Charts of the report: heat maps of partitions, and lines of the growth of a cube.

The axes of a heat map are partition keys. Neighbours are binned to limit the size, and sums become levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.cli.file_stats import DataFiles, Floats
from kartothek_cube.core.arrow import Ints
from kartothek_cube.core.errors import format_count
from kartothek_cube.io_components.runtime import bytes_text

#: number of colours
LEVELS = 7
_MAX_COLUMNS, _MAX_ROWS = 60, 30
#: ratio of largest to smallest value above which the scale is logarithmic
_LOG_SCALE_RATIO = 30


@attrs.frozen(eq=False)
class _Axis:
    """Ordered values of an axis: a code per file, a name per code."""

    title: str
    codes: Ints
    names: list[str]

    def bin_values(self, max_bins: int) -> tuple[Ints, list[str]]:
        """Merge equal numbers of neighbours into at most ``max_bins`` bins."""
        step = max(1, -(-len(self.names) // max_bins))
        starts = range(0, len(self.names), step)
        bins = [self.names[start : start + step] for start in starts]
        return self.codes // step, [_format_range(names[0], names[-1]) for names in bins]


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
    codes = pc.rank(values, tiebreaker="dense").to_numpy().astype(np.int64) - 1
    first = np.unique(codes, return_index=True)[1]
    return _Axis(name, codes, format_values(values.take(pa.array(first))))


def _join_axes(axes: Sequence[_Axis]) -> _Axis:
    """Combine several keys into one axis; the last one varies fastest."""
    codes, names = axes[0].codes, axes[0].names
    for axis in axes[1:]:
        size = len(axis.names)
        used, codes = np.unique(codes * size + axis.codes, return_inverse=True)
        names = [f"{names[code // size]} / {axis.names[code % size]}" for code in used.tolist()]
    return _Axis(" / ".join(axis.title for axis in axes), codes.astype(np.int64), names)


def build_heat_map(files: DataFiles) -> dict[str, Any] | None:
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
    return {
        "x_title": across.title,
        "y_title": down.title,
        "x_ends": (across.names[0], across.names[-1]),
        "y_labels": y_names,
        **_fill_squares(files, y * len(x_names) + x, names, len(x_names)),
    }


def _wrap_axis(axis: _Axis, files: DataFiles) -> dict[str, Any]:
    """Build the heat map of a single key, wrapped like lines of text."""
    codes, names = axis.bin_values(_MAX_COLUMNS * _MAX_ROWS)
    width = min(len(names), _MAX_COLUMNS)
    lines = [names[start : start + width] for start in range(0, len(names), width)]
    y_names = [_format_range(line[0].partition(" … ")[0], line[-1].rpartition(" … ")[2]) for line in lines]
    return {
        "x_title": axis.title,
        "y_title": "",
        "x_ends": (axis.names[0], axis.names[-1]) if len(lines) == 1 else ("", ""),
        "y_labels": y_names if len(lines) > 1 else [""],
        **_fill_squares(files, codes, names, width),
    }


def _fill_squares(files: DataFiles, square: Ints, names: Sequence[str], width: int) -> dict[str, Any]:
    """Sum up the files of each square, whose numbers go row by row; empty squares are left out."""
    used, at = np.unique(square, return_inverse=True)
    sums = {
        "rows": np.bincount(at, weights=files.rows),
        "bytes": np.bincount(at, weights=files.sizes),
        "files": np.bincount(at).astype(float),
    }
    partitions = np.bincount(np.unique(np.stack([at, files.partition]), axis=1)[0])
    scales = {metric: _scale(values) for metric, values in sums.items()}
    levels = [np.searchsorted(scales[m], sums[m], side="right").clip(1) - 1 for m in sums]
    names = [names[number] for number in used.tolist()]
    largest = sums["bytes"]
    most, least = int(np.argmax(largest)), int(np.argmin(largest))
    return {
        "width": width,
        "height": -(-int(square.max() + 1) // width),
        #: coloured squares: column, row, the level of each metric, a tooltip
        "cells": [
            {"x": number % width, "y": number // width, "levels": level, "text": text}
            for number, level, text in zip(
                used.tolist(),
                np.stack(levels, axis=1).tolist(),
                _describe_squares(names, sums, partitions),
                strict=True,
            )
        ],
        #: lowest value of each level, by metric
        "legends": {m: [_format_amount(m, value) for value in scale] for m, scale in scales.items()},
        #: maximum number of partitions per square
        "binned": int(partitions.max()),
        #: description for screen readers
        "summary": (
            f"{format_count(files.n_partitions, 'partition')}, {format_count(len(files), 'file')}, "
            f"{bytes_text(int(files.sizes.sum()))}; most bytes in {names[most]} "
            f"({bytes_text(largest[most])}), fewest in {names[least]} ({bytes_text(largest[least])})."
        ),
    }


def _scale(values: Floats) -> Floats:
    """Return the lowest value of each level, on a linear or logarithmic scale."""
    low, high = float(values.min()), float(values.max())
    if high > _LOG_SCALE_RATIO * max(low, 1.0):
        return np.geomspace(max(low, 1.0), high, LEVELS + 1)[:-1]
    return np.linspace(0, high, LEVELS + 1)[:-1] if high else np.zeros(LEVELS)


def _format_amount(metric: str, value: float) -> str:
    return bytes_text(value) if metric == "bytes" else f"{round(value):,}"


def _describe_squares(names: Sequence[str], sums: Mapping[str, Floats], partitions: Ints) -> list[str]:
    texts = []
    for name, rows, size, n_files, n_partitions in zip(names, *sums.values(), partitions, strict=True):
        amounts = (
            f"{format_count(round(rows), 'row')}, {bytes_text(size)}, {format_count(round(n_files), 'file')}"
        )
        texts.append(f"{name}: {amounts}" + (f" in {n_partitions:,} partitions" if n_partitions > 1 else ""))
    return texts


# -- growth ----------------------------------------------------------------------------------------

#: size of the plot area
WIDTH, HEIGHT = 960, 220
_N_POINTS = 160
_MAX_LINES = 6


def build_growth(files: Mapping[str, DataFiles]) -> dict[str, Any] | None:
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
    total = sum(float(line[-1]) for line in shown.values())
    quarters = [i / 4 for i in range(5)]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "lines": [_describe_line(name, line, top, with_times.get(name)) for name, line in shown.items()],
        #: positions and labels
        "x_ticks": [(WIDTH * q, _format_time(start + (stop - start) * q, stop - start)) for q in quarters],
        "y_ticks": [(HEIGHT * (1 - q), bytes_text(top * q)) for q in quarters],
        #: description for screen readers
        "summary": (
            f"{bytes_text(total)} stored between {_format_time(start, 0)} "
            f"and {_format_time(float(times.max()), 0)}."
        ),
    }


def _cumulative_bytes(files: DataFiles, edges: Floats) -> Floats:
    """Sum the bytes up to each edge; files without a time count from the start."""
    times = np.where(np.isnan(files.times), edges[0], files.times)
    added, _ = np.histogram(times, bins=[-np.inf, *edges[:-1] + 1e-6, np.inf], weights=files.sizes)
    return np.cumsum(added)[: len(edges)]


def _describe_line(name: str, sums: Floats, top: float, files: DataFiles | None) -> dict[str, str]:
    """Describe the line of a dataset, or of the others: path of SVG, bytes, times of first and last file."""
    x = np.linspace(0, WIDTH, len(sums))
    y = HEIGHT * (1 - sums / top)
    steps = "".join(f"H{x[i]:.1f}V{y[i]:.1f}" for i in np.flatnonzero(np.diff(sums, prepend=-1.0))[1:])
    line = {
        "name": name,
        "path": f"M{x[0]:.1f} {y[0]:.1f}{steps}H{x[-1]:.1f}",
        "added": bytes_text(float(sums[-1])),
        "first": "",
        "last": "",
    }
    if files is not None:
        line["added"] += f" in {format_count(len(files), 'file')}"
        line["first"] = _format_time(float(np.nanmin(files.times)), 0)
        line["last"] = _format_time(float(np.nanmax(files.times)), 0)
    return line


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
