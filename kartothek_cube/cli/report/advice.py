"""Warnings about the files of a dataset, each with a command that solves the problem."""

from __future__ import annotations

import shlex

import attrs
import numpy as np

from kartothek_cube.cli.report.files import DataFiles
from kartothek_cube.cli.terminal import pluralize
from kartothek_cube.io_components.runtime.progress import bytes_text

__all__ = ("Advice", "advise", "shell_command")

#: bytes; smaller files cost more to open than to read
_SMALL_FILE = 1 << 20
#: a partition is skewed if it has more than this many times the bytes of the median
_SKEW_FACTOR = 8
#: minimum number of partitions for warnings about their sizes
_MIN_PARTITIONS = 8


@attrs.frozen
class Advice:
    """A warning: problem, explanation with figures, and the command that solves it."""

    title: str
    text: str
    command: str
    #: of the command: ``shell`` or ``python``
    language: str = "shell"


def shell_command(store: str, cube: str, *arguments: str) -> str:
    """Return a command line, quoted for the shell."""
    return shlex.join(["kartothek_cube", "--store", store, cube, *arguments])


def advise(name: str, files: DataFiles, store: str, cube: str, *, is_seed: bool) -> list[Advice]:
    """Warn about partitions with several files, skewed partitions and small partitions of a dataset."""
    if not len(files):
        return []
    counts = np.bincount(files.partition)
    sizes = files.per_partition(files.sizes)
    warnings = [_warn_several_files(files, counts, shell_command(store, cube, "compact", "--include", name))]
    if len(sizes) >= _MIN_PARTITIONS:
        build = _rebuild_command(name, files, is_seed)
        warnings += [_warn_skew(files, sizes, build), _warn_small_partitions(counts, sizes, build)]
    return [advice for advice in warnings if advice is not None]


def _warn_several_files(files: DataFiles, counts: np.ndarray, command: str) -> Advice | None:
    several = counts[files.partition] > 1
    if not several.any():
        return None
    mean = float(files.sizes[several].mean())
    small = "Small files: " if mean < _SMALL_FILE else ""
    return Advice(
        f"{small}{int((counts > 1).sum()):,} of {len(counts):,} partitions have several files",
        f"{int(several.sum()):,} files of {bytes_text(mean)} on average, up to {int(counts.max()):,} in a "
        "partition. Every query opens all of them and filters superseded rows.",
        command,
    )


def _warn_skew(files: DataFiles, sizes: np.ndarray, build: str) -> Advice | None:
    median, largest = float(np.median(sizes)), int(sizes.max())
    if largest <= _SKEW_FACTOR * max(median, 1.0) or largest < _SMALL_FILE:
        return None
    number = int((sizes > _SKEW_FACTOR * median).sum())
    at = int(np.flatnonzero(files.partition == int(np.argmax(sizes)))[0])
    keys = ", ".join(f"{key}={values[at].as_py()}" for key, values in files.keys.items())
    return Advice(
        f"Skew: {pluralize(number, 'partition')} more than {_SKEW_FACTOR} times as large as the median",
        f"{keys} has {bytes_text(largest)}, the median is {bytes_text(median)}. "
        "The largest partition delays the whole job. Partition by one more column.",
        build,
        "python",
    )


def _warn_small_partitions(counts: np.ndarray, sizes: np.ndarray, build: str) -> Advice | None:
    mean = float(sizes.mean())
    if mean >= _SMALL_FILE / 4 or len(sizes) < 4 * _MIN_PARTITIONS:
        return None
    return Advice(
        f"Small partitions: {len(sizes):,} partitions of {bytes_text(mean)} on average",
        "Opening files takes longer than reading them. "
        "Partition by fewer or coarser columns, and index the other ones.",
        build,
        "python",
    )


def _rebuild_command(name: str, files: DataFiles, is_seed: bool) -> str:
    if is_seed:
        return "build_cube(data, cube.copy(partition_columns=[...]), store, overwrite=True)"
    return (
        f"extend_cube({{{name!r}: frame}}, cube, store, overwrite=True, "
        f"partition_on={{{name!r}: [...]}})  # currently {list(files.keys)}"
    )
