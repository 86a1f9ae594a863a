"""Looking after cubes on Spark: compaction, checks and retention give what eager functions give."""

from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.history import KEEP_HISTORY
from kartothek_cube.io.eager_cube import append_to_cube, build_cube, query_cube, verify_cube
from kartothek_cube.io.spark import _spark_executor as executor
from kartothek_cube.io.spark import cube

CUBE = Cube(["x"], ["p"], "cube")
SEED = pd.DataFrame({"x": [0, 1, 2], "p": [0, 1, 1], "v1": [0, 1, 2]})


@pytest.fixture
def built(spark, url):
    build_cube(SEED, CUBE, url, metadata={"seed": {KEEP_HISTORY: 9}})
    append_to_cube(SEED.assign(v1=[7, 8, 9]), CUBE, url)
    return url


def files(url: str) -> list[Path]:
    return sorted(Path(url.removeprefix("hfs://")).rglob("p=*/*.parquet"))


def test_compact(built):
    before = query_cube(CUBE, built)[0]
    counts = cube.compact_cube_spark(CUBE, built)["seed"]
    assert (counts["files_before"], counts["files_after"], counts["rows_after"]) == (4, 2, 3)
    pd.testing.assert_frame_equal(query_cube(CUBE, built)[0], before)
    assert verify_cube(CUBE, built).ok


def test_delete_rows(built):
    assert cube.delete_rows_spark(CUBE, built, "v1 > 8") == {"seed": {"rows_deleted": 1, "partitions": 1}}
    assert query_cube(CUBE, built)[0]["v1"].tolist() == [7, 8]
    assert verify_cube(CUBE, built).ok


def test_column_statistics_are_read_by_tasks_of_256_files(built, monkeypatch):
    jobs = []
    monkeypatch.setattr("kartothek_cube.io_components.write.build_index._FILES_PER_TASK", 1)
    monkeypatch.setattr(executor, "execute_on_spark", lambda job, spark: jobs.append(job))
    cube.build_column_statistics_spark(CUBE, built, "v1")
    assert [len(job.tasks) for job in jobs] == [4]


def test_verify(built):
    assert cube.verify_cube_spark(CUBE, built).ok
    files(built)[0].write_bytes(b"")
    files(built)[-1].unlink()
    report = cube.verify_cube_spark(CUBE, built)
    assert {problem.kind for problem in report.problems} >= {"missing-file", "unreadable-file"}
    assert report == verify_cube(CUBE, built)
    assert cube.verify_cube_spark(CUBE, built, deep=False) == verify_cube(CUBE, built, deep=False)


def test_as_of(built):
    rows = cube.query_cube_spark(CUBE, built, as_of={"seed": 1}).orderBy("x").collect()
    assert [row["v1"] for row in rows] == [0, 1, 2]


def test_retention(built):
    build_cube(SEED, CUBE, built, metadata={"seed": {KEEP_HISTORY: 0}}, overwrite=True)
    before = files(built)
    cube.cleanup_cube_spark(CUBE, built, retention=timedelta(hours=1))
    assert files(built) == before
    cube.cleanup_cube_spark(CUBE, built)
    assert len(files(built)) == 2
