"""Heat maps of partitions: keys become axes, neighbours are binned until they fit, sums become levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kartothek_cube.cli.report.files import DataFiles
from kartothek_cube.io_components.runtime.progress import bytes_text

__all__ = ("METRICS", "Cell", "HeatMap", "heat_map", "values_as_text")

Ints = npt.NDArray[np.int64]

#: what the colour of a cell can stand for
METRICS = ("rows", "bytes", "files")
#: number of colours
LEVELS = 7
_COLUMNS, _ROWS = 60, 30
#: from this ratio of the largest to the smallest value on, the scale is logarithmic
_WIDE = 30


@attrs.frozen
class Cell:
    """
    One coloured square.

    Attributes
    ----------
    x, y
        Column and row.
    levels
        Its colour for each of ``METRICS``, from 0 (little) on.
    text
        What it stands for.
    """

    x: int
    y: int
    levels: tuple[int, ...]
    text: str


@attrs.frozen
class HeatMap:
    """
    A heat map of the partitions of a dataset.

    Attributes
    ----------
    width, height
        Number of columns and rows.
    x_title, y_title
        Partition keys on the axes.
    x_ends, y_labels
        First and last value of the columns; a label for each row.
    cells
        The squares with files.
    legends
        For each of ``METRICS`` the least value of each level.
    binned
        How many partitions a square stands for at most.
    summary
        The picture in words.
    """

    width: int
    height: int
    x_title: str
    y_title: str
    x_ends: tuple[str, str]
    y_labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    legends: Mapping[str, tuple[str, ...]]
    binned: int
    summary: str


@attrs.frozen(eq=False)
class _Axis:
    """Values in order: the code of each file, and how a code is called."""

    title: str
    codes: Ints
    names: list[str]

    def binned(self, most: int) -> tuple[Ints, list[str]]:
        """Equally many neighbours as one, until there are few enough."""
        step = max(1, -(-len(self.names) // most))
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


def values_as_text(values: pa.Array) -> list[str]:
    """
    Values of partition keys as people write them.

    Parameters
    ----------
    values
        An Arrow array.

    Returns
    -------
    list of str
    """
    if pa.types.is_timestamp(values.type) and values.type.tz is None:
        days = values.cast(pa.date32(), safe=False)
        if days.cast(values.type).equals(values):
            values = days
    return ["null" if text is None else text for text in values.cast(pa.string()).to_pylist()]


def _axis(name: str, values: pa.Array) -> _Axis:
    encoded = values.dictionary_encode(null_encoding="encode")
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return _Axis(
        name, rank[encoded.indices.to_numpy()], values_as_text(encoded.dictionary.take(pa.array(order)))
    )


def _joined(axes: Sequence[_Axis]) -> _Axis:
    """Several keys as one axis, the first being the slowest."""
    codes, names = axes[0].codes, axes[0].names
    for axis in axes[1:]:
        used, codes = np.unique(codes * len(axis.names) + axis.codes, return_inverse=True)
        size = len(axis.names)
        names = [f"{names[code // size]} / {axis.names[code % size]}" for code in used.tolist()]
    return _Axis(" / ".join(axis.title for axis in axes), codes.astype(np.int64), names)


def heat_map(files: DataFiles) -> HeatMap | None:
    """
    Make the heat map of a dataset.

    Parameters
    ----------
    files
        Its data files.

    Returns
    -------
    HeatMap
        None for a dataset without partition keys or without files.
    """
    if not files.keys or not len(files):
        return None
    axes = [_axis(name, values) for name, values in files.keys.items()]
    axes = [axis for axis in axes if len(axis.names) > 1] or axes[:1]  # one value makes no picture
    if len(axes) == 1:
        return _wrapped(axes[0], files)
    across, down = axes[-1], _joined(axes[:-1])
    if len(down.names) > len(across.names):
        across, down = down, across
    x, x_names = across.binned(_COLUMNS)
    y, y_names = down.binned(_ROWS)
    names = [f"{a} / {b}" for a in y_names for b in x_names]
    return _drawn(files, x, y, names, y_names, (across.title, down.title), across.ends)


def _wrapped(axis: _Axis, files: DataFiles) -> HeatMap:
    """A single key, read like lines of text."""
    codes, names = axis.binned(_COLUMNS * _ROWS)
    width = min(len(names), _COLUMNS)
    lines = [names[start : start + width] for start in range(0, len(names), width)]
    y_names = [_range(line[0].partition(" … ")[0], line[-1].rpartition(" … ")[2]) for line in lines]
    if len(lines) == 1:
        y_names = [""]
    ends = axis.ends if len(lines) == 1 else ("", "")
    padded = [*names, *[""] * (width * len(lines) - len(names))]
    return _drawn(files, codes % width, codes // width, padded, y_names, (axis.title, ""), ends)


def _drawn(
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
        Cell(cell % width, cell // width, tuple(map(int, level)), _text(names[cell], sums, partitions, cell))
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
        legends={m: tuple(_amount(m, value) for value in scales[m]) for m in METRICS},
        binned=int(partitions.max()),
        summary=_summary(files, used, sums, names),
    )


def _scale(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The least value of each level: even steps, or even factors if values differ much."""
    low, high = float(values.min()), float(values.max())
    if high > _WIDE * max(low, 1.0):
        return np.geomspace(max(low, 1.0), high, LEVELS + 1)[:-1]
    return np.linspace(0, high, LEVELS + 1)[:-1] if high else np.zeros(LEVELS)


def _amount(metric: str, value: float) -> str:
    return bytes_text(value) if metric == "bytes" else f"{round(value):,}"


def _text(name: str, sums: Mapping[str, npt.NDArray[np.float64]], partitions: Ints, cell: int) -> str:
    amounts = ", ".join(
        bytes_text(sums[m][cell]) if m == "bytes" else f"{round(sums[m][cell]):,} {m}" for m in METRICS
    )
    number = int(partitions[cell])
    return f"{name}: {amounts}" + (f" in {number:,} partitions" if number > 1 else "")


def _summary(
    files: DataFiles, used: Ints, sums: Mapping[str, npt.NDArray[np.float64]], names: Sequence[str]
) -> str:
    most = int(used[np.argmax(sums["bytes"][used])])
    least = int(used[np.argmin(sums["bytes"][used])])
    size = bytes_text(int(files.sizes.sum()))
    return (
        f"{files.n_partitions:,} partitions with {len(files):,} files and {size}; "
        f"most bytes in {names[most]} ({bytes_text(sums['bytes'][most])}), "
        f"fewest in {names[least]} ({bytes_text(sums['bytes'][least])})."
    )
