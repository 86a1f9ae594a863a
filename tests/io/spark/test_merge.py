"""Merges of Spark frames: what the eager function does, in tasks of whole partitions."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from kartothek_cube.core.cube.cube import Cube
from kartothek_cube.core.errors import DuplicateCellsError
from kartothek_cube.core.transforms import month, truncate
from kartothek_cube.io.eager_cube import build_cube, merge_into_cube, query_cube, verify_cube
from kartothek_cube.io.spark import create_frame
from kartothek_cube.io.spark.cube import build_cube_from_spark, merge_into_cube_from_spark

CUBE = Cube(["x", "day"], ["p"], "cube", index_columns=["i"])
DAYS = pd.date_range("2020-01-01", periods=24, tz="UTC")


def rows(start: int, stop: int, factor: int = 1) -> pa.Table:
    xs = range(start, stop)
    return pa.table(
        {
            "x": xs,
            "day": pa.array(DAYS[start:stop]),
            "p": [x // 4 for x in xs],
            "i": [f"i{x % 3}" for x in xs],
            "v": [x * factor for x in xs],
            "w": [float(x) for x in xs],
        }
    )


def flagged(table: pa.Table) -> pa.Table:
    return table.append_column("gone", pa.array([x % 4 == 1 or None for x in table["x"].to_pylist()]))


def test_a_merge_is_that_of_the_eager_function(spark, url, tmp_path):
    other = f"hfs://{tmp_path}/other?create_if_missing=true"
    for store in (url, other):
        build_cube(rows(0, 16), CUBE, store)
    changes = flagged(rows(2, 22, 10).drop_columns("w"))
    result = merge_into_cube_from_spark(create_frame(changes), CUBE, url, delete_column="gone")
    expected = merge_into_cube(changes, CUBE, other, delete_column="gone")
    assert result.partitions.equals(expected.partitions)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (4, 11, 3)
    pd.testing.assert_frame_equal(query_cube(CUBE, url)[0], query_cube(CUBE, other)[0])
    assert verify_cube(CUBE, url).ok


def test_merges_derive_partition_columns(spark, url, tmp_path):
    cube = Cube(["x", "day"], [month("day"), truncate(5, "x")], "cube")
    other = f"hfs://{tmp_path}/other?create_if_missing=true"
    build_cube_from_spark(create_frame(rows(0, 16).drop_columns("p")), cube, url, max_rows_per_file=3)
    build_cube(rows(0, 16).drop_columns("p"), cube, other)
    changes = flagged(rows(2, 22, 10).drop_columns(["w", "p"]))
    result = merge_into_cube_from_spark(create_frame(changes), cube, url, delete_column="gone")
    expected = merge_into_cube(changes, cube, other, delete_column="gone")
    assert result.partitions.equals(expected.partitions)
    pd.testing.assert_frame_equal(query_cube(cube, url)[0], query_cube(cube, other)[0])
    assert verify_cube(cube, url).ok


def test_partitions_that_are_not_in_the_frame_keep_their_files(spark, url):
    before = build_cube(rows(0, 16), CUBE, url)["seed"].partition_table.labels.to_pylist()
    result = merge_into_cube_from_spark(create_frame(rows(4, 8, 3)), CUBE, url)
    after = result.dataset.partition_table.labels.to_pylist()
    assert {label for label in before if not label.startswith("p=1/")} < set(after)
    assert len(after) == len(before) and not set(before) >= set(after)
    nothing = merge_into_cube_from_spark(create_frame(rows(0, 4)).where("x < 0"), CUBE, url)
    assert nothing.rows_updated == 0 and len(query_cube(CUBE, url)[0]) == 16


@pytest.mark.parametrize(
    "table, error, text",
    [
        (pa.concat_tables([rows(0, 4), rows(1, 2)]), DuplicateCellsError, "several rows for one cell"),
        (rows(0, 4).append_column("z", pa.array([1] * 4)), ValueError, "not stored: .*z"),
        (rows(0, 4).drop_columns("i"), ValueError, "Missing columns"),
        (rows(0, 4), TypeError, "Expected a Spark DataFrame"),
    ],
    ids=["duplicates", "unknown", "missing", "no frame of Spark"],
)
def test_wrong_frames_change_nothing(spark, url, table, error, text):
    frame = table if error is TypeError else create_frame(table)
    build_cube(rows(0, 4), CUBE, url)
    before = sorted(Path(url.removeprefix("hfs://")).rglob("*"))
    with pytest.raises(error, match=text):
        merge_into_cube_from_spark(frame, CUBE, url)
    assert sorted(Path(url.removeprefix("hfs://")).rglob("*")) == before
