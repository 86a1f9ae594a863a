"""What is wrong with the files of a dataset, and the command that mends it."""

from __future__ import annotations

import shlex

import attrs
import numpy as np

from kartothek_cube.cli.report.files import DataFiles
from kartothek_cube.io_components.runtime.progress import bytes_text

__all__ = ("Advice", "advise", "shell_command")

#: files below this size cost more to open than to read
_SMALL = 1 << 20
#: a partition is too large if it has this many times the bytes of the median
_SKEW = 8
#: as many partitions are needed before one can stick out, or all be too small
_MANY = 8


@attrs.frozen
class Advice:
    """
    One warning.

    Attributes
    ----------
    title
        What is wrong, in a few words.
    text
        Why that matters, with figures.
    command
        What to type.
    language
        ``shell`` or ``python``.
    """

    title: str
    text: str
    command: str
    language: str = "shell"


def shell_command(store: str, cube: str, *arguments: str) -> str:
    """A call of the command line, ready to be pasted."""
    return shlex.join(["kartothek_cube", "--store", store, cube, *arguments])


def advise(name: str, files: DataFiles, store: str, cube: str, *, is_seed: bool) -> list[Advice]:
    """
    Look for small files, skewed partitions and partitions that are too small.

    Parameters
    ----------
    name
        Dataset id.
    files
        Its data files.
    store, cube
        As they are named in commands.
    is_seed
        Whether it is the seed of the cube.

    Returns
    -------
    list of Advice
    """
    if not len(files):
        return []
    counts = np.bincount(files.partition)
    sizes = files.per_partition(files.sizes)
    found = [_several_files(files, counts, shell_command(store, cube, "compact", "--include", name))]
    if len(sizes) >= _MANY:
        build = _rebuild(name, files, is_seed)
        found += [_skewed(files, sizes, build), _tiny(counts, sizes, build)]
    return [advice for advice in found if advice is not None]


def _several_files(files: DataFiles, counts: np.ndarray, command: str) -> Advice | None:
    several = counts[files.partition] > 1
    if not several.any():
        return None
    mean = float(files.sizes[several].mean())
    small = "Small files: " if mean < _SMALL else ""
    return Advice(
        f"{small}{int((counts > 1).sum()):,} of {len(counts):,} partitions have several files",
        f"{int(several.sum()):,} files of {bytes_text(mean)} on average, up to {int(counts.max()):,} in a "
        "partition. Every query opens all of them and looks which rows are hidden by later ones.",
        command,
    )


def _skewed(files: DataFiles, sizes: np.ndarray, build: str) -> Advice | None:
    median, largest = float(np.median(sizes)), int(sizes.max())
    if largest <= _SKEW * max(median, 1.0) or largest < _SMALL:
        return None
    number = int((sizes > _SKEW * median).sum())
    at = int(np.flatnonzero(files.partition == int(np.argmax(sizes)))[0])
    keys = ", ".join(f"{key}={values[at].as_py()}" for key, values in files.keys.items())
    are = "partitions are" if number > 1 else "partition is"
    return Advice(
        f"Skew: {number:,} {are} more than {_SKEW} times as large as the median",
        f"{keys} has {bytes_text(largest)}, the median is {bytes_text(median)}. "
        "Workers wait for the one that gets it. Partition by one more column.",
        build,
        "python",
    )


def _tiny(counts: np.ndarray, sizes: np.ndarray, build: str) -> Advice | None:
    mean = float(sizes.mean())
    if mean >= _SMALL / 4 or len(sizes) < 4 * _MANY:
        return None
    return Advice(
        f"Fine partitions: {len(sizes):,} partitions of {bytes_text(mean)} on average",
        "Opening files takes longer than reading them. "
        "Partition by fewer or coarser columns, and index the others.",
        build,
        "python",
    )


def _rebuild(name: str, files: DataFiles, is_seed: bool) -> str:
    if is_seed:
        return "build_cube(data, cube.copy(partition_columns=[...]), store, overwrite=True)"
    return (
        f"extend_cube({{{name!r}: frame}}, cube, store, overwrite=True, "
        f"partition_on={{{name!r}: [...]}})  # now {list(files.keys)}"
    )
