"""How a cube grew: bytes by the time their files were stored, as lines."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import attrs
import numpy as np
import numpy.typing as npt

from kartothek_cube.cli.report.files import DataFiles
from kartothek_cube.io_components.runtime.progress import bytes_text

__all__ = ("Growth", "Line", "Tick", "growth")

#: size of the drawing area
WIDTH, HEIGHT = 960, 220
_POINTS = 160
_LINES = 6


@attrs.frozen
class Line:
    """
    One dataset.

    Attributes
    ----------
    name
        Its id.
    color
        Number of its colour, from 0 on.
    path
        The line, as the ``d`` of an SVG path.
    end_y
        Where it ends.
    added
        Bytes and files in words.
    first, last
        Time of the first and last file in words.
    """

    name: str
    color: int
    path: str
    end_y: float
    added: str
    first: str
    last: str


@attrs.frozen
class Tick:
    """A mark on an axis: where, and what it says."""

    at: float
    text: str


@attrs.frozen
class Growth:
    """Lines of the datasets, marks of the axes, and the picture in words."""

    width: int
    height: int
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str


def growth(files: Mapping[str, DataFiles]) -> Growth | None:
    """
    Draw how datasets grew.

    Parameters
    ----------
    files
        Data files by dataset id.

    Returns
    -------
    Growth
        None if the store does not tell times.
    """
    known = {name: f for name, f in files.items() if len(f) and not np.isnan(f.times).all()}
    if not known:
        return None
    times = np.concatenate([f.times[~np.isnan(f.times)] for f in known.values()])
    start, stop = float(times.min()), max(float(times.max()), float(times.min()) + 60)
    edges = np.linspace(start, stop, _POINTS)
    sums = {name: _sums(f, edges) for name, f in known.items()}
    order = sorted(sums, key=lambda name: -sums[name][-1])
    shown = {name: sums[name] for name in order[:_LINES]}
    if len(order) > _LINES:
        shown["others"] = np.sum([sums[name] for name in order[_LINES:]], axis=0)
    top = _round_up(max(float(line[-1]) for line in shown.values()) or 1.0)
    lines = tuple(
        _line(name, number, line, top, known.get(name)) for number, (name, line) in enumerate(shown.items())
    )
    total = sum(float(line[-1]) for line in shown.values())
    return Growth(
        width=WIDTH,
        height=HEIGHT,
        lines=lines,
        x_ticks=tuple(
            Tick(WIDTH * i / 4, _time(start + (stop - start) * i / 4, stop - start)) for i in range(5)
        ),
        y_ticks=tuple(Tick(HEIGHT * (1 - i / 4), bytes_text(top * i / 4)) for i in range(5)),
        summary=f"{bytes_text(total)} stored between {_time(start, 0)} and {_time(float(times.max()), 0)}.",
    )


def _sums(files: DataFiles, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Bytes stored up to each edge; files of unknown time were always there."""
    times = np.where(np.isnan(files.times), edges[0], files.times)
    added, _ = np.histogram(times, bins=[-np.inf, *edges[:-1] + 1e-6, np.inf], weights=files.sizes)
    return np.cumsum(added)[: len(edges)]


def _line(name: str, color: int, sums: npt.NDArray[np.float64], top: float, files: DataFiles | None) -> Line:
    x = np.linspace(0, WIDTH, len(sums))
    y = HEIGHT * (1 - sums / top)
    change = np.flatnonzero(np.diff(sums, prepend=-1.0))
    steps = "".join(f"H{x[i]:.1f}V{y[i]:.1f}" for i in change[1:])
    times = np.full(1, np.nan) if files is None else files.times
    count = "" if files is None else f" in {len(files):,} files"
    return Line(
        name=name,
        color=color,
        path=f"M{x[0]:.1f} {y[0]:.1f}{steps}H{x[-1]:.1f}",
        end_y=float(y[-1]),
        added=bytes_text(float(sums[-1])) + count,
        first="" if np.isnan(times).all() else _time(float(np.nanmin(times)), 0),
        last="" if np.isnan(times).all() else _time(float(np.nanmax(times)), 0),
    )


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten: its quarters are easy to read."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 4, 8, 10) if value <= step * power))


def _time(seconds: float, span: float) -> str:
    """A time in UTC, as exactly as the span demands; 0 for a full stamp."""
    stamp = datetime.fromtimestamp(seconds, UTC)
    if not span:
        return f"{stamp:%Y-%m-%d %H:%M}"
    if span < 2 * 86_400:
        return f"{stamp:%d %b %H:%M:%S}" if span < 3600 else f"{stamp:%d %b %H:%M}"
    return f"{stamp:%Y-%m-%d}" if span < 3 * 365 * 86_400 else f"{stamp:%b %Y}"
