"""Line chart of the growth of a cube: bytes by modification time of their files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import attrs
import numpy as np
import numpy.typing as npt

from kartothek_cube.cli.report.files import DataFiles
from kartothek_cube.cli.terminal import pluralize
from kartothek_cube.io_components.runtime.progress import bytes_text

__all__ = ("Growth", "Line", "Tick", "growth")

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
    count = "" if files is None else f" in {pluralize(len(files), 'file')}"
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
        return f"{stamp:%Y-%m-%d %H:%M}"
    if span < 2 * 86_400:
        return f"{stamp:%d %b %H:%M:%S}" if span < 3600 else f"{stamp:%d %b %H:%M}"
    return f"{stamp:%Y-%m-%d}" if span < 3 * 365 * 86_400 else f"{stamp:%b %Y}"
