"""Kill a stream again and again; each row of the source has to be in its sink once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.dataset import DatasetMetadata
from kartothek_cube.core.store.resolve import ensure_store
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, keep_cube_history

CUBE = Cube(["x"], ["p"], "cube")


def cells(xs: Iterable[int]) -> pa.Table:
    numbers = list(xs)
    return pa.table({"x": numbers, "p": [x % 2 for x in numbers], "v": numbers})


def stored_rows(url: str, cube: Cube) -> list[int]:
    """All rows in the files of a cube, also those that a query does not show."""
    dataset = DatasetMetadata.load_from_store(cube.ktk_dataset_uuid("seed"), ensure_store(url))
    root = Path(url.removeprefix("hfs://").partition("?")[0])
    keys = [key for files in dataset.partition_table.files.values() for key in files.to_pylist()]
    return sorted(x for key in keys for x in pq.ParquetFile(root / key).read(["x"])["x"].to_pylist())


def run_with_kills(url: str, directory: Path, points: Iterable[str]) -> int:
    """Run a stream once for each point at which it is killed, then to its end; the number of kills."""
    build_cube(cells(range(8)), CUBE, url)
    keep_cube_history(CUBE, url, 10_000)
    copy = CUBE.copy(uuid_prefix="copy")
    kills, expected = 0, list(range(8))
    for number, point in enumerate([*points, ""]):
        xs = range(10 * (number + 1), 10 * (number + 1) + 4)
        append_to_cube(cells(xs), CUBE, url)
        expected += xs
        (directory / "died").unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.support.stream_pipeline", url, str(directory), point]
        # a session of its own: the kill reaches Java and Python, and nothing else
        result = subprocess.run(command, start_new_session=True, capture_output=True, text=True, check=False)
        assert result.returncode == (-signal.SIGKILL if point else 0), result.stderr[-2000:]
        kills += result.returncode == -signal.SIGKILL
        if kills == 1:
            # a writer that is no stream; the target may not be there yet
            rows = cells([-1, -2])
            try:
                append_to_cube(rows, copy, url)
            except ValueError:
                build_cube(rows, copy, url)
            expected += [-1, -2]
    assert stored_rows(url, copy) == sorted(expected)
    return kills
