"""Output of the example: timed steps, code, tables, bars, a directory tree."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

WIDTH = 88
INDENT = " " * 3
DEEPER = " " * 5


def _style(text: str, code: str) -> str:
    in_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"\033[{code}m{text}\033[0m" if in_colour else text


def bold(text: str) -> str:
    """Make the text bold, on a terminal."""
    return _style(text, "1")


def dim(text: str) -> str:
    """Make the text grey, on a terminal."""
    return _style(text, "2")


class Steps:
    """Numbers and times the steps."""

    def __init__(self) -> None:
        self._number = 0
        self._start = time.perf_counter()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a title, run the block, print its duration."""
        self._number += 1
        print(f"\n{bold(f'{self._number}. {title}')}", flush=True)
        start = time.perf_counter()
        yield
        print(dim(f"{f'{time.perf_counter() - start:.1f} s':>{WIDTH}}"), flush=True)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start


def title(text: str) -> None:
    """Print the main title."""
    print(f"\n{bold(text)}\n{bold('=' * len(text))}")


def say(text: str) -> None:
    """Print a paragraph; whitespace is normalised."""
    print(
        textwrap.fill(" ".join(text.split()), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT),
        flush=True,
    )


def code(text: str) -> None:
    """Print code as it is."""
    for line in text.splitlines():
        print(_style(DEEPER + line, "36"), flush=True)


def quote(text: str) -> None:
    """Print quoted text, each line after a bar."""
    width = WIDTH - len(DEEPER) - 2
    for line in text.splitlines():
        for part in textwrap.wrap(line, width, drop_whitespace=False) or [""]:
            print(f"{DEEPER}{dim('│')} {part}".rstrip())


def result(text: str) -> None:
    """Print the result of a call."""
    print(f"{DEEPER}{dim('→ ' + text)}")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows in columns; numbers are right-aligned."""
    columns = list(zip(*rows, strict=True))
    right = [any(isinstance(value, int | float) for value in column) for column in columns]
    texts = [[name, *_texts(column)] for name, column in zip(header, columns, strict=True)]
    widths = [max(map(len, column)) for column in texts]
    for number, row in enumerate(zip(*texts, strict=True)):
        padded = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        )
        line = "  ".join(padded).rstrip()
        print(DEEPER + (dim(line) if number == 0 else line))


def frame(rows: pd.DataFrame) -> None:
    """Print a DataFrame as a table."""
    table(list(rows.columns), list(rows.itertuples(index=False)))


def _texts(column: Sequence[Any]) -> list[str]:
    whole = all(value.is_integer() for value in column if isinstance(value, float))
    return [_text(value, digits=0 if whole else 1) for value in column]


def _text(value: Any, digits: int) -> str:
    if isinstance(value, pd.Timestamp):
        return f"{value:%d %b %H:%M}"
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def bars(rows: Iterable[tuple[str, float, str]], unit: str, width: int = 30) -> None:
    """Print one bar per (label, value, remark)."""
    rows = list(rows)
    longest = max(value for _, value, _ in rows)
    left = max(len(label) for label, _, _ in rows)
    print(f"{DEEPER}{'':{left}}  {dim(unit)}")
    for label, value, remark in rows:
        bar = "█" * max(round(width * value / longest), 1)
        print(f"{DEEPER}{label:>{left}}  {bar:<{width}} {value:4.1f}  {dim(remark)}")


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def tree(root: Path) -> None:
    """Print a directory tree; of many partitions, only the first and the last are shown."""
    print(f"{DEEPER}{root}")
    _print_branches(root, "")


def _print_branches(directory: Path, prefix: str) -> None:
    entries = sorted(directory.iterdir(), key=_natural_key)
    hidden = [entry for entry in entries if "=" in entry.name][1:-1]
    for entry in entries:
        if len(hidden) > 1 and entry in hidden:
            if entry is hidden[-1]:
                print(f"{DEEPER}{prefix}│   {dim(f'... {len(hidden)} more ...')}")
            continue
        branch, below = ("└── ", "    ") if entry is entries[-1] else ("├── ", "│   ")
        path, name = _collapse(entry)
        if path.is_dir():
            print(f"{DEEPER}{prefix}{branch}{name}/")
            _print_branches(path, prefix + below)
        else:
            print(f"{DEEPER}{prefix + branch + name:<62}{dim(f'{size(path.stat().st_size):>8}')}")


def _collapse(path: Path) -> tuple[Path, str]:
    """Follow directories with a single entry; return the last path and its name relative to the first."""
    name = _shorten(path.name)
    while path.is_dir() and len(children := list(path.iterdir())) == 1:
        path = children[0]
        name = f"{name}/{_shorten(path.name)}"
    return path, name


def _natural_key(path: Path) -> tuple[str, int]:
    """Sort key that puts month=2 before month=10."""
    start, _, value = path.name.partition("=")
    return (start, int(value)) if value.isdigit() else (path.name, 0)


def _shorten(name: str) -> str:
    """Shorten names that contain a UUID or a timestamp."""
    stem, dot, suffix = name.partition(".")
    if suffix.endswith("by-dataset-index.parquet"):
        return f"{stem[:10]}….by-dataset-index.parquet"
    return f"{stem[:8]}…{dot}{suffix}" if len(stem) == 32 else name
