"""Compare kartothek_cube with other engines, alternating in one run; prints medians and ratios.

DuckDB, Polars and the floor (pyarrow decoding just the needed columns) answer the same queries over the same
files; delta-rs is included for many small partitions and for upserts, plain Spark for cubes on Spark. If the
environment variable KARTOTHEK_PYTHON names an interpreter that has kartothek 5.3, it builds and queries a
cube of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent / "peers"
OURS = "kartothek_cube"
LAZY = ("cube + duckdb", "cube + polars", "duckdb", "polars")
LAZY_BASES = {"cube + duckdb": "duckdb", "cube + polars": "polars"}
SPARK = (OURS, "data source", "spark parquet")
ENGINES = ("duckdb", "polars", "floor")
#: interpreter with kartothek 5.3
KARTOTHEK = os.environ.get("KARTOTHEK_PYTHON")

#: environment of the cube workload: 500,000 rows, and the 5,000,000 rows of --full
REDUCED = {"BENCH_P": "50", "BENCH_X": "100", "BENCH_Y": "100"}
FULL = {"BENCH_P": "50", "BENCH_X": "400", "BENCH_Y": "250"}
#: selective scans, with dimensions of numbers and days, or of texts: 1,000,000 rows, and those of --full
SCANS = ({"BENCH_WORKLOAD": "scan_workload"}, {"BENCH_WORKLOAD": "scan_workload", "BENCH_TEXT": "1"})
SCAN_REDUCED = {"BENCH_P": "20", "BENCH_X": "250", "BENCH_Y": "200"}


@dataclass
class Results:
    """Measurements: workload -> engine -> values of all rounds."""

    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    answers: dict[str, dict[str, tuple[int, float]]] = field(default_factory=dict)

    def add(self, engine: str, measured: dict[str, Any]) -> None:
        """Add the measurements of a peer in one round."""
        for work, value in measured.items():
            if work == "maxrss_mb":
                self.seconds.setdefault("peak memory, MB", {}).setdefault(engine, []).append(value)
                continue
            self.seconds.setdefault(work, {}).setdefault(engine, []).append(value["s"])
            if "check" in value:
                self.answers.setdefault(work, {})[engine] = (value["rows"], round(value["check"], 3))

    def disagreements(self) -> list[str]:
        """Queries whose answers differ between engines; the floor joins nothing and is left out."""
        found = []
        for work, answers in self.answers.items():
            answers = {engine: answer for engine, answer in answers.items() if engine != "floor"}
            if len(set(answers.values())) > 1:
                found.append(f"{work}: (rows, sum of v0) differ: {answers}")
        return found

    def table(self, engines: list[str], bases: dict[str, str]) -> str:
        """Medians, and in brackets their ratio to those of a base."""
        lines = [["", *engines]]
        for work, values in self.seconds.items():
            cells = (_cell(values.get(engine), values.get(bases.get(engine, ""))) for engine in engines)
            lines.append([work, *cells])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join(rows)


def _cell(values: list[float] | None, base: list[float] | None) -> str:
    if not values:
        return "-"
    median, of_base = statistics.median(values), statistics.median(base or [0])
    # nothing is a multiple of no refused job
    return f"{median:.4g}" + (f" ({median / of_base:.2f} x)" if of_base else "")


def run(python: str, script: str, *args: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a script of `peers` in its own process; the third argument is its result file."""
    command = [python, str(PEERS / script), *map(str, args)]
    # kartothek 5.3 calls deprecated functions of its dependencies
    quiet = {"PYTHONWARNINGS": "ignore"} if "kartothek" in args else {}
    subprocess.run(command, check=True, env={**os.environ, **quiet, **(env or {})})
    return json.loads(Path(str(args[2])).read_text())


def compare_scans(work: Path, is_full: bool, rounds: int) -> Results:
    """Conditions that few rows meet."""
    results, size = Results(), FULL if is_full else SCAN_REDUCED
    for number, workload in enumerate(SCANS):
        measured = compare_cube(work / str(number), {**size, **workload}, rounds, None)
        results.seconds.update({name: value for name, value in measured.seconds.items() if name != "build"})
        results.answers.update(measured.answers)
    return results


def compare_queries(work: Path, is_full: bool, rounds: int) -> Results:
    """One cube, seven queries."""
    return compare_cube(work, FULL if is_full else REDUCED, rounds, KARTOTHEK)


def compare_cube(work: Path, env: dict[str, str], rounds: int, kartothek: str | None) -> Results:
    """Queries of a workload."""
    results = Results()
    work.mkdir(exist_ok=True)
    ours, theirs, out = work / "ours", work / "kartothek", work / "out.json"
    results.add(OURS, run(sys.executable, "cube.py", OURS, ours, out, "build", env=env))
    if kartothek:
        results.add("kartothek", run(kartothek, "cube.py", "kartothek", theirs, out, "build", env=env))
    results.seconds.pop("peak memory, MB")
    peers: dict[str, Callable[[], dict[str, Any]]] = {
        OURS: lambda: run(sys.executable, "cube.py", OURS, ours, out, "query", env=env)
    }
    for engine in ENGINES:
        peers[engine] = lambda engine=engine: run(sys.executable, "sql.py", engine, ours, out, env=env)
    if kartothek:
        peers["kartothek"] = lambda: run(kartothek, "cube.py", "kartothek", theirs, out, "query", 1, env=env)
    for number in range(rounds):
        for engine, measure in peers.items():
            _progress(f"cube, round {number + 1} of {rounds}: {engine}")
            results.add(engine, measure())
    return results


def compare_lazy(work: Path, is_full: bool, rounds: int) -> Results:
    """One aggregation over four datasets: the engines on a scan of the cube, and on the files."""
    results, env = Results(), FULL if is_full else REDUCED
    store, out = work / "lazy", work / "out.json"
    run(sys.executable, "cube.py", OURS, store, out, "build", env=env)
    for number in range(rounds):
        for engine in LAZY:
            _progress(f"GROUP BY, round {number + 1} of {rounds}: {engine}")
            results.add(engine, run(sys.executable, "lazy.py", engine, store, out, env=env))
    return results


def compare_plan(work: Path, is_full: bool, rounds: int) -> Results:
    """Many small partitions."""
    results, n = Results(), 20_000 if is_full else 2_000
    out = work / "out.json"
    for number in range(rounds):
        here = work / f"plan{number}"
        _progress(f"{n} partitions, round {number + 1} of {rounds}")
        results.add(OURS, run(sys.executable, "plan.py", OURS, here / "ours", out, n))
        measured = run(sys.executable, "plan_sql.py", here / "ours", here / "delta", out, n)
        for engine in ("duckdb", "delta"):
            results.add(engine, measured[engine])
        if KARTOTHEK:
            results.add("kartothek", run(KARTOTHEK, "plan.py", "kartothek", here / "kartothek", out, n, 1))
    return results


def compare_spark(work: Path, is_full: bool, rounds: int) -> Results:
    """One cube on Spark: built, and queried by function and by the data source, compared with plain Spark."""
    results, env = Results(), FULL if is_full else REDUCED
    _progress(f"Spark, {rounds} rounds")
    measured = run(
        sys.executable, "spark.py", work / "spark", work / "other", work / "out.json", rounds, env=env
    )
    measured.pop("maxrss_mb")
    for name, engines in measured.items():
        for engine, values in engines.items():
            for value in values:
                results.add(engine, {name: value})
    return results


#: comparison -> title, engines, function of the directory, of ``--full`` and of the number of rounds
COMPARISONS: dict[str, tuple[str, tuple[str, ...], Callable[[Path, bool, int], Results]]] = {
    "cube": ("One cube", (OURS, *ENGINES, "kartothek"), compare_queries),
    "scan": ("Selective scans", (OURS, *ENGINES), compare_scans),
    "lazy": ("One cube in other engines", LAZY, compare_lazy),
    "plan": ("Two datasets of partitions of 20 rows", (OURS, "duckdb", "delta", "kartothek"), compare_plan),
    "spark": ("One cube on Spark", SPARK, compare_spark),
}
#: peer that alternates the engines in its process -> title, other engines
ONE_PROCESS = {
    "small": ("Queries of 1,000 rows, and on several threads", ("duckdb", "polars")),
    "groups": ("One frame for each of 5,000 values of an index", ENGINES),
    "latency": ("500 files in a store with a latency of 20 ms", ("floor",)),
    "writes": ("Changes of five datasets of 730 days", ("not durable", "delta", "duckdb")),
    "shapes": ("Other shapes of cubes, a million rows each", ("duckdb", "polars")),
    "reads": ("Queries of one shape each", ("polars",)),
    "merge": ("Upserts of 1 % of 2,000,000 rows in 200 partitions", ("delta",)),
    "jobs": ("Jobs that build on each other, 1,500,000 cells", ("lance", "delta", "iceberg")),
}


def _compare_in_one_process(peer: str, title: str, work: Path, rounds: int) -> Results:
    results = Results()
    _progress(f"{title}, {rounds} rounds")
    for engine, measured in run(sys.executable, f"{peer}.py", work / peer, rounds, work / "out.json").items():
        results.add(engine, measured)
    return results


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(title: str, results: Results, engines: list[str]) -> None:
    bases = {engine: OURS for engine in engines if engine != OURS and OURS in engines}
    bases |= {engine: base for engine, base in LAZY_BASES.items() if engine in engines}
    print(f"\n{title}: median seconds, and their ratio to {', '.join(sorted(set(bases.values())))}\n")
    print(results.table(engines, bases), flush=True)


def main() -> int:
    """Parse the command line, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="5,000,000 rows and 20,000 partitions")
    parser.add_argument("--rounds", type=int, default=3, help="number of runs of every engine")
    parser.add_argument("--only", choices=[*COMPARISONS, *ONE_PROCESS], help="run one of the comparisons")
    parser.add_argument("--output", type=Path, help="also write all measurements as JSON")
    args = parser.parse_args()
    measured: dict[str, Results] = {}
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        for name, (title, engines, compare) in COMPARISONS.items():
            if args.only in (None, name):
                measured[name] = compare(work, args.full, args.rounds)
                _print(title, measured[name], [e for e in engines if e != "kartothek" or KARTOTHEK])
        for name, (title, engines) in ONE_PROCESS.items():
            if args.only in (None, name):
                measured[name] = _compare_in_one_process(name, title, work, args.rounds)
                _print(title, measured[name], [OURS, *engines])
    if args.output:
        seconds = {name: results.seconds for name, results in measured.items()}
        args.output.write_text(json.dumps(seconds, indent=1))
    disagreements = [line for results in measured.values() for line in results.disagreements()]
    for line in disagreements:
        print(line, file=sys.stderr)
    return 1 if disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
