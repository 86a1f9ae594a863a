"""Output of the example: timed steps, code, tables, bars, a directory tree."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from calendar import month_name
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from kartothek_cube import open_cube

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kartothek_cube.io.opened_cube import LazyQuery

WIDTH = 100
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


def step(number: int, title: str) -> None:
    """Print the title of a step."""
    print(f"\n{bold(f'{number}. {title}')}", flush=True)


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


def _texts(column: Sequence[Any]) -> list[str]:
    whole = all(value.is_integer() for value in column if isinstance(value, float))
    return [_text(value, digits=0 if whole else 1) for value in column]


def _text(value: Any, digits: int) -> str:
    if isinstance(value, pd.Timestamp):
        return f"{value:%d %b %H:%M}"
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


# ------------------------------------------------- results of steps, which `call` returns, in a directory


def text(call: Callable[[], object], directory: Path) -> None:
    """Print the representation of a result."""
    result(repr(call()).strip("<>"))


def error(call: Callable[[], object], directory: Path) -> None:
    """Print an error, with the rows that it shows."""
    try:
        call()
    except ValueError as raised:
        quote(f"{type(raised).__name__}: {str(raised).partition('Equal in')[0]}")
    else:
        raise RuntimeError("the duplicate hour was not detected")


def stats(call: Callable[[], object], directory: Path) -> None:
    """Print the stored rows and files."""
    call()
    datasets = open_cube("nyc", directory).stats()
    rows = ", ".join(f"{name} {of['rows']:,}" for name, of in sorted(datasets.items()))
    result(f"rows: {rows}; {sum(of['files'] for of in datasets.values())} files")


def gaps(call: Callable[[], object], directory: Path) -> None:
    """Print how many rows have no cell."""
    call()
    cube = open_cube("nyc", directory)
    n_rows = cube.stats(datasets="departures")["departures"]["rows"]
    n_lost = n_rows - len(cube.query("flights > 0").to_pandas())
    result(f"{n_lost} of {n_rows:,} rows of departures have no weather, so no query returns them")


def files(call: Callable[[], object], directory: Path) -> None:
    """Print how many files a cleanup deletes, and what is left."""
    before = count_files(directory)
    call()
    left = open_cube("nyc", directory).query("flights > 0", columns="flights").to_pandas()
    months = " to ".join(month_name[month] for month in (left["month"].min(), left["month"].max()))
    result(f"{before} files before, {count_files(directory)} after the cleanup")
    result(f"{left['flights'].sum():,.0f} flights are left, from {months}")


def frame(call: Callable[[], DataFrame], directory: Path) -> None:
    """Print a Spark DataFrame, and the time that it takes."""
    rows = _collect(call)
    table(list(rows.columns), list(rows.itertuples(index=False)))


def query(call: Callable[[], LazyQuery], directory: Path) -> None:
    """Print every sixth row of a query, and how many files it reads."""
    lazy, start = call(), time.perf_counter()
    rows = lazy.to_pandas()
    seconds = time.perf_counter() - start
    n_files = sum(len(dataset.partition_table) for dataset in open_cube("nyc", directory).datasets.values())
    read = f"{lazy.explain().read_files} of {n_files} data files read"
    result(f"{len(rows):,} rows; {read}; {1000 * seconds:.0f} ms")
    table(list(rows.columns), list(rows[6::6].itertuples(index=False)))


def bars(call: Callable[[], DataFrame], directory: Path) -> None:
    """Print one bar per band of wind."""
    rows = list(_collect(call).itertuples(index=False, name=None))
    longest = max(delay for *_, delay in rows)
    for wind, flights, cancelled, delay in rows:
        bar = "█" * max(round(24 * delay / longest), 1)
        remark = dim(f"{flights:>7,} flights, {cancelled / flights:>5.1%} cancelled")
        print(f"{DEEPER}from {wind:2.0f} mph  {bar:<24} {delay:4.1f} minutes late  {remark}")


def tree(call: Callable[[], object], directory: Path) -> None:
    """Print a directory tree; of many partitions, only the first and the last are shown."""
    call()
    print(f"{DEEPER}{directory}")
    _print_branches(directory, "")


def _collect(call: Callable[[], DataFrame]) -> pd.DataFrame:
    start = time.perf_counter()
    rows: pd.DataFrame = call().toArrow().to_pandas()
    result(f"{len(rows):,} rows; {1000 * (time.perf_counter() - start):,.0f} ms")
    return rows


def count_files(directory: Path) -> int:
    """Count the files in the store."""
    return sum(1 for path in directory.rglob("*") if path.is_file())


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
