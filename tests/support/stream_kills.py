"""Kill the driver of a stream again and again; each row of the source has to be in its sink once."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store.resolve import ensure_store
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, keep_cube_history
from tests.support.spark_session import shared_session
from tests.support.stream_pipeline import append_batch, run_stream

CUBE = Cube(["x"], ["p"], "cube")
COPY = CUBE.copy(uuid_prefix="copy")


def cells(xs: Iterable[int]) -> pa.Table:
    numbers = list(xs)
    return pa.table({"x": numbers, "p": [x % 2 for x in numbers], "v": numbers})


def stored_rows(url: str, cube: Cube) -> list[int]:
    """All rows in the files of a cube, also those that a query does not show."""
    dataset = DatasetMetadata.load_from_store(cube.ktk_dataset_uuid("seed"), ensure_store(url))
    root = Path(url.removeprefix("hfs://").partition("?")[0])
    keys = [key for files in dataset.partition_table.files.values() for key in files.to_pylist()]
    return sorted(x for key in keys for x in pq.ParquetFile(root / key).read(["x"])["x"].to_pylist())


class Source:
    """The cube that a stream reads, and the rows that it has."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.rows = list(range(8))
        build_cube(cells(self.rows), CUBE, url)
        keep_cube_history(CUBE, url, 10_000)

    def append(self) -> None:
        start = len(self.rows)
        new = range(start, start + 4)
        append_to_cube(cells(new), CUBE, self.url)
        self.rows += new


@contextmanager
def writer(url: str, seconds: float) -> Iterator[list[int]]:
    """Append to the sink as often, as one that is no stream does; gives the rows."""
    build_cube(cells([-1, -2]), COPY, url)
    rows, end = [-1, -2], threading.Event()

    def write() -> None:
        for number in count(2):
            if end.wait(seconds):
                return
            new = [1 - 2 * number, -2 * number]
            append_to_cube(cells(new), COPY, url)
            rows.extend(new)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield rows
    finally:
        end.set()
        thread.join()


def run_with_kills(
    url: str, directory: Path, points: Iterable[str], seconds: float, kind: str = "format"
) -> int:
    """Kill a stream at each of the points, then let this process run it to its end; the number of kills."""
    source, kills = Source(url), 0
    with writer(url, seconds) as others:
        for point in points:
            source.append()
            (directory / point).touch()
            command = [sys.executable, "-m", "tests.support.stream_pipeline", url, str(directory), kind]
            # a session of its own: the kill reaches Java and Python, and nothing else
            result = subprocess.run(
                command, start_new_session=True, capture_output=True, text=True, check=False
            )
            assert result.returncode == -signal.SIGKILL, result.stderr[-2000:]
            kills += 1
            found = stored_rows(url, COPY)
            assert len(found) == len(set(found)), f"twice after {kills} kills, the last at {point!r}"
        source.append()
        # Spark 4.1 ends after the batch that was not completed
        for _ in range(2):
            sink = append_batch(url) if kind == "function" else None
            run_stream(shared_session(), url, f"{directory}/checkpoint", sink)
    assert stored_rows(url, COPY) == sorted(source.rows + others)
    return kills
